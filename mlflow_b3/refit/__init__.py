"""Train a logged model again: one interface, one file per flavour."""

from mlflow_b3.errors import CannotRefit
from mlflow_b3.refit.learner import (
    AuditedModel,
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
