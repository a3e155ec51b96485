"""Writes the parts of an audit to a run of MLflow: table, numbers, curves and files."""

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.audits import DATASET_DIGEST
from mlflow_b3.tracking.files import write_files
from mlflow_b3.tracking.metrics import OF_CVC, curves_of, metrics_of

FOLDER = "b3"
#: A metric that every audit has.
ALWAYS = "b3/fits"
#: What MLflow calls a row that another has added in the same moment.
COLLISION = "BAD_REQUEST"
#: Seconds to wait after each collision.
PAUSES = (0.1, 0.3, 1.0)


def log_dataset(client: Any, child: str, report: AuditReport, model_id: str | None) -> None:
    """Name the audited table as the input of an audit's run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

    settings = report.settings
    source = settings.data_source
    profile = {"num_rows": settings.n_rows, "num_clusters": settings.n_clusters}
    dataset = Dataset(
        name=_dataset_name(report),
        digest=_dataset_digest(report),
        source_type="code" if source is None else "local",
        source=json.dumps(
            {"tags": {"mlflow.source.name": "mlflow-b3"}} if source is None else {"uri": source}
        ),
        profile=json.dumps(profile),
    )
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "audit")])]
    models = [LoggedModelInput(model_id)] if model_id else None
    insist(lambda: client.log_inputs(child, datasets=inputs, models=models))


def _dataset_name(report: AuditReport) -> str:
    source = report.settings.data_source
    return "b3-audit" if source is None else Path(source).name


def _dataset_digest(report: AuditReport) -> str:
    """Return as much of the digest as MLflow's tables have room for; a tag has all of it."""
    return report.settings.data_digest[:DATASET_DIGEST]


def log_scalars(
    client: Any,
    run_id: str,
    report: AuditReport,
    tags: dict[str, str],
    parameters: dict[str, str],
    *,
    model_id: str | None = None,
    unknown_only: bool = False,
) -> None:
    """Write the metrics, tags and parameters of a run in one request."""
    from mlflow.entities import Metric, Param, RunTag

    earlier = client.get_run(run_id).data.metrics
    now = _now()
    if ALWAYS in earlier:
        # MLflow shows the value with the latest time, and who wrote before may have another clock
        before = client.get_metric_history(run_id, ALWAYS)
        now = max(now, *(metric.timestamp + 1 for metric in before))
    metrics = []
    # an older audit of the run may have had CV_c, where this one has none
    for name, value in (dict.fromkeys(OF_CVC) | metrics_of(report)).items():
        if value is None:
            if name not in earlier:
                continue
            value = math.nan  # an older audit's value must not pass for this one's
        elif unknown_only:
            continue
        linked = model_id if math.isfinite(value) else None  # MLflow stores a model's NaN as 0
        extra = {}
        if linked is not None:
            extra = {
                "model_id": linked,
                "dataset_name": _dataset_name(report),
                "dataset_digest": _dataset_digest(report),
                "run_id": run_id,
            }
        metrics.append(Metric(name, value, now, 0, **extra))
    params = [Param(name, value) for name, value in parameters.items()]
    named = [RunTag(name, value) for name, value in tags.items()]
    insist(lambda: client.log_batch(run_id, metrics=metrics, params=params, tags=named))


def log_curves(client: Any, child: str, report: AuditReport) -> None:
    """Write the curves of an audit as stepped metrics."""
    from mlflow.entities import Metric

    now = _now()
    metrics = [
        Metric(name, value, now, step)
        for name, points in curves_of(report).items()
        for step, value in points
    ]
    client.log_batch(child, metrics=metrics)


def insist(write: Callable[[], None]) -> None:
    """Write again what collided with another audit.

    MLflow looks whether a table, metric or tag is known and then adds it; where two do that at once,
    its database refuses the second.
    """
    from mlflow.exceptions import MlflowException

    for pause in PAUSES:
        try:
            write()
        except MlflowException as error:
            if error.error_code != COLLISION:
                raise
            time.sleep(pause)
        else:
            return
    write()


def log_files(client: Any, run_id: str, files: Mapping[str, str]) -> None:
    """Write files under `b3/` in the artifacts of a run."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), files)
        client.log_artifacts(run_id, folder, FOLDER)


def _now() -> int:
    return int(time.time() * 1000)
