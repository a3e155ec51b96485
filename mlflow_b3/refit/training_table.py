"""What MLflow knows about the table that a model was trained on."""

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

CONTEXTS = ("train", "training")


@dataclass(frozen=True, kw_only=True)
class TrainingTable:
    """A table that a run logged for its training.

    Attributes
    ----------
    rows : int or None
        How many rows it had; None where nobody logged that.
    texts : tuple of str
        The columns that held text.
    """

    rows: int | None = None
    texts: tuple[str, ...] = ()


def training_table(run_id: str | None) -> TrainingTable:
    """Return what a run says about its training table.

    Autologging and `mlflow.log_input(..., context="training")` leave that with the run.
    """
    tables = {
        TrainingTable(rows=_rows(dataset.profile), texts=_texts(dataset.schema))
        for dataset in _datasets(run_id)
    }
    counts = {table.rows for table in tables}
    return TrainingTable(  # of several, which one is not known
        rows=counts.pop() if len(counts) == 1 else None,
        texts=tables.pop().texts if len(tables) == 1 else (),
    )


def digest_like_training(frame: pd.DataFrame, run_id: str | None) -> str | None:
    """Return MLflow's digest of a table, if a run logged a dataset of the same number of rows.

    MLflow visits every value to compute it, so it is not computed in vain.
    """
    sizes = {_rows(dataset.profile) for dataset in _datasets(run_id)}
    if not sizes & {len(frame), None}:
        return None
    from mlflow.data.digest_utils import compute_pandas_digest

    try:
        return str(compute_pandas_digest(frame))
    except (TypeError, ValueError):
        return None  # MLflow cannot digest such values, so it has logged no such table


def training_datasets(run: Any) -> list[Any]:
    """Return the datasets that a run logged as those of its training."""
    return [given.dataset for given in run.inputs.dataset_inputs if _context(given) in CONTEXTS]


def _datasets(run_id: str | None) -> list[Any]:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if not run_id:
        return []
    try:
        return training_datasets(MlflowClient().get_run(run_id))
    except (MlflowException, OSError):
        return []  # a model may outlive its run


def _context(given: Any) -> str | None:
    return next((tag.value for tag in given.tags if tag.key == "mlflow.data.context"), None)


def _rows(profile: str | None) -> int | None:
    try:
        values = json.loads(profile or "{}")
        rows = values.get("num_rows") or values.get("features_shape", [None])[0]
        return None if rows is None else int(rows)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _texts(schema: str | None) -> tuple[str, ...]:
    try:
        columns = json.loads(schema or "{}").get("mlflow_colspec") or []
        return tuple(str(column["name"]) for column in columns if column["type"] == "string")
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()
