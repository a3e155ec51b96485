"""Cross-validation of correlated rows whose structure is known, with its bias added back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_b3.correlated.learner import MixedLogistic
    from mlflow_b3.correlated.network_losses import group_effect_loss, pair_effect_loss
    from mlflow_b3.correlated.structure import WorkingModel


__all__ = ["MixedLogistic", "WorkingModel", "group_effect_loss", "pair_effect_loss"]

# imported on first use, so that an audit that needs only part of this package does not import scikit-learn
_HOMES = {
    "MixedLogistic": "learner",
    "WorkingModel": "structure",
    "group_effect_loss": "network_losses",
    "pair_effect_loss": "network_losses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlflow_b3.correlated' has no attribute {name!r}")
    return getattr(import_module(f"mlflow_b3.correlated.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
