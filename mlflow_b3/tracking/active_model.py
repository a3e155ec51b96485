"""MLflow's active model, to which it links every metric that names no other model."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_active_model() -> Iterator[None]:
    """Link metrics to the models they name and to no other.

    `mlflow.models.evaluate`, `mlflow.set_active_model` and the environment variable
    `MLFLOW_ACTIVE_MODEL_ID` make a model active, and then also `MlflowClient.log_batch` adds it to
    metrics without a model: every point of a curve would become a row on the model's page.
    """
    from mlflow.tracking import fluent

    before = fluent._ACTIVE_MODEL_CONTEXT.get()
    nobody = fluent.ActiveModelContext()
    nobody._model_id = None  # the environment's, if that names one
    fluent._ACTIVE_MODEL_CONTEXT.set(nobody)
    try:
        yield
    finally:
        fluent._ACTIVE_MODEL_CONTEXT.set(before)
