"""The gate inside MLflow's server: `mlflow server --app-name b3-gate`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_b3.gating.server.app import add_gate, create_app, create_app_with_auth

__all__ = ["add_gate", "create_app", "create_app_with_auth"]


def __getattr__(name: str) -> Any:
    # imported when first used: the app reads the policy of the server that imports it
    if name not in __all__:
        raise AttributeError(f"module 'mlflow_b3.gating.server' has no attribute {name!r}")
    return getattr(import_module("mlflow_b3.gating.server.app"), name)
