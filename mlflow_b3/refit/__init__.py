"""How a logged model is trained again: one interface, one small file per flavour."""

from mlflow_b3.refit.interface import AuditedModel, Learner
from mlflow_b3.refit.loading import load_model, without_autologging

__all__ = ["AuditedModel", "Learner", "load_model", "without_autologging"]
