"""How a logged model is trained again: one interface, one small file per flavour."""

from mlflow_b3.refit.interface import AuditedModel, CannotRefit, Learner, Rows, Source
from mlflow_b3.refit.loading import load_model, without_autologging
from mlflow_b3.refit.predictors import FunctionPredictor, MethodPredictor

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
