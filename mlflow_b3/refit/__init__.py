"""How a logged model is trained again: one interface, one small file per flavour."""

from mlflow_b3.refit.learner import (
    AuditedModel,
    CannotRefit,
    FunctionPredictor,
    Learner,
    MethodPredictor,
    Rows,
    Source,
)
from mlflow_b3.refit.loading import load_model, without_autologging

__all__ = [
    "AuditedModel",
    "CannotRefit",
    "FunctionPredictor",
    "Learner",
    "MethodPredictor",
    "Rows",
    "Source",
    "load_model",
    "without_autologging",
]
