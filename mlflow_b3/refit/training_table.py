"""What MLflow knows about the table that a model was trained on."""

import json
from typing import Any

CONTEXTS = ("train", "training")


def training_rows(run_id: str | None) -> int | None:
    """Return how many rows the training table of a run had; None where nobody logged it.

    Autologging and `mlflow.log_input(..., context="training")` leave that with the run.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        inputs = MlflowClient().get_run(run_id).inputs.dataset_inputs
    except (MlflowException, OSError):
        return None  # a model may outlive its run
    counts = {_rows(given.dataset.profile) for given in inputs if _is_training(given)}
    return counts.pop() if len(counts) == 1 else None  # of several, which one is not known


def _is_training(given: Any) -> bool:
    return any(tag.key == "mlflow.data.context" and tag.value in CONTEXTS for tag in given.tags)


def _rows(profile: str | None) -> int | None:
    try:
        values = json.loads(profile or "{}")
        rows = values.get("num_rows") or values.get("features_shape", [None])[0]
        return None if rows is None else int(rows)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
