"""Writes audits to MLflow: a child run of its own for each, the newest one shown on the run."""

import csv
import io
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow_b3.auditing import audit
from mlflow_b3.errors import TrackingError
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.reporting.text import to_markdown
from mlflow_b3.version import __version__

FOLDER = "b3"
LONGEST_TAG = 5000


def audit_and_record(
    model: Any,
    data: Any,
    *,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> tuple[AuditReport, str]:
    """Audit a logged model and write the result to MLflow.

    The audit has a child run from its first second on. If it fails, that run ends as failed with
    the error in its tag `b3.error`, and the audited run stays as it was.

    Parameters
    ----------
    model, data, trainer, refit, refit_options, **arguments
        As in `mlflow_b3.audit`.

    Returns
    -------
    AuditReport, str
        The report and the id of the run that holds it.
    """
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    with _audit_run(audited.run_id) as child:
        report = audit(audited, data, refit_options=refit_options, **arguments)
        _write(report, audited.run_id, child)
    return report, child


def record(report: AuditReport, run_id: str | None = None) -> str:
    """Write an audit that has been made to MLflow.

    Parameters
    ----------
    report : AuditReport
    run_id : str, optional
        The run it belongs to; by default the run of the audited model. An audit of a bare
        estimator without a run gets a run of its own in the current experiment.

    Returns
    -------
    str
        The id of the audit's own run.
    """
    parent = run_id or report.settings.run_id
    with _audit_run(parent) as child:
        _write(report, parent, child)
    return child


def metrics_of(report: AuditReport) -> dict[str, float | None]:
    """Return the scalar metrics of a report; None where there is no value."""
    low, high = report.e0_interval
    split = report.settings.pattern == "fragments"
    seen = report.settings.claim if report.linkage is not None else None
    values = {
        # a lower bound must not pass for the loss itself where a threshold is set on this metric
        "e0": report.e0 if report.settings.refit_strength == "full" else None,
        "e0_low": low,
        "e0_high": high,
        "e0_guaranteed": report.e0_guaranteed,
        # shares of split clusters must not be held against tipping_p0, which counts misplaced rows
        "p0": None if split else report.p0,
        "seen_share": report.p0 if split else None,
        "seen_share_low": seen and seen[0],
        "seen_share_high": seen and seen[1],
        "p0_star": report.search.p0_star,
        "residual": report.residual,
        "loco": report.loco,
        "iid": report.iid,
        "inflation": report.inflation,
        "test_statistic": report.test.statistic,
        "test_pvalue": report.test.pvalue,
        "tipping_p0": report.tipping_p0,
        "tipping_cluster_error": report.tipping_cluster_error,
        "tipping_split_rate": report.tipping_split_rate,
        "fits": float(report.settings.fits),
        "refit_full": float(report.settings.refit_strength == "full"),
        "refit_agreement": report.settings.refit_agreement,
    }
    return {f"b3/{name}": None if value is None else float(value) for name, value in values.items()}


def curves_of(report: AuditReport) -> dict[str, list[tuple[int, float]]]:
    """Return the stepped metrics of a report: (permille of the axis, value).

    The axis of the loss is the exposure, which is the same for all folds and data; that of the
    residual is p0, that of the sensitivity curves the cluster error or split rate.
    """
    axis = report.sensitivity.error or report.sensitivity.p0
    series = {
        "loss": zip(report.curve.exposure, report.curve.loss, strict=True),
        "residual": zip(report.search.p0, report.search.residual, strict=True),
        "sensitivity": zip(axis, report.sensitivity.e0, strict=True),
    }
    split = report.fragment_sensitivity
    if split is not None and split.error is not None:
        series["sensitivity_split"] = zip(split.error, split.e0, strict=True)
    return {
        f"b3_curve/{name}": [(round(1000 * x), float(y)) for x, y in points]
        for name, points in series.items()
    }


def curves_table(report: AuditReport) -> str:
    """Return all curves of a report as one CSV table."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["curve", "axis", "x", "value", "low", "high"])
    for x, y, error in zip(
        report.curve.injected, report.curve.loss, report.curve.stderr or (), strict=True
    ):
        writer.writerow(["loss", "injected", x, y, y - 1.96 * error, y + 1.96 * error])
    for x, y in zip(report.search.p0, report.search.residual, strict=True):
        writer.writerow(["residual", "p0", x, y, "", ""])
    for curve in (report.sensitivity, report.fragment_sensitivity):
        if curve is not None and curve.error is not None:
            axis = "cluster_error" if curve.pattern == "rows" else "split_rate"
            for row in zip(curve.error, curve.e0, curve.low, curve.high, strict=True):
                writer.writerow([f"sensitivity_{curve.pattern}", axis, *row])
    return file.getvalue()


@contextmanager
def _audit_run(parent: str | None) -> Iterator[str]:
    """Open the run of an audit; mark it as failed, with the error, if anything goes wrong."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    try:
        child, own = _open_run(client, parent)
    except (MlflowException, OSError) as error:
        raise TrackingError(f"the audit's run could not be created: {error}") from error
    try:
        yield child
        if own:
            with _tracking_errors():
                client.set_terminated(child)
    except BaseException as error:
        _mark_failed(client, child, error)
        raise


@contextmanager
def _tracking_errors() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise TrackingError(f"the audit could not be written to MLflow: {error}") from error


def _open_run(client: Any, parent: str | None) -> tuple[str, bool]:
    """Return the audit's run and whether it is ours to end.

    `mlflow run` has already made a run for its entry point, and ends it itself.
    """
    tags = {
        "mlflow.runName": "b3-audit",
        "mlflow.source.name": "mlflow-b3",
        "b3.version": __version__,
    }
    experiment = None
    if parent is not None:
        run = client.get_run(parent)
        if run.info.lifecycle_stage != "active":
            raise TrackingError(f"run {parent} is deleted; restore it before auditing its model.")
        experiment = run.info.experiment_id
        tags["mlflow.parentRunId"] = parent
        if user := run.data.tags.get("mlflow.user"):
            tags["mlflow.user"] = user
    project = os.environ.get("MLFLOW_RUN_ID")
    if project and "mlflow.project.entryPoint" in client.get_run(project).data.tags:
        for name, value in tags.items():
            if name != "mlflow.source.name":
                client.set_tag(project, name, value)
        return project, False
    if experiment is None:
        from mlflow.tracking.fluent import _get_experiment_id

        experiment = _get_experiment_id()
    return client.create_run(experiment, tags=tags).info.run_id, True


def _mark_failed(client: Any, child: str, error: BaseException) -> None:
    from mlflow.exceptions import MlflowException

    text = f"{type(error).__name__}: {error}"[:LONGEST_TAG]
    try:
        client.set_tag(child, "b3.error", text)
        client.set_terminated(
            child, status="KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        )
    except (MlflowException, OSError):
        return  # the first error is the one to report


def _write(report: AuditReport, parent: str | None, child: str) -> None:
    """Write what can fail first and what others see last, so that nothing is half-written."""
    from mlflow import MlflowClient

    client = MlflowClient()
    settings = report.settings
    model_id = settings.model_id if parent == settings.run_id else None
    tags = {
        "b3.audit_run_id": child,
        "b3.p0_source": report.p0_source,
        "b3.pattern": settings.pattern,
        "b3.refit": settings.refit,
        "b3.refit_strength": settings.refit_strength,
        "b3.version": settings.version,
        "b3.data_digest": settings.data_digest,
        # MLflow keeps the values of older audits on the LoggedModel; these are not of this one
        "b3.not_known": ", ".join(n for n, v in metrics_of(report).items() if v is None) or "none",
    }
    with _tracking_errors():
        _log_dataset(client, child, report, model_id)
        _log_curves(client, child, report)
        _log_artifacts(client, child, report)
        # these show on the LoggedModel as well
        _log_scalars(
            client, child, report, {**tags, "mlflow.note.content": _note(report)}, model_id
        )
        if parent is not None:
            _log_artifacts(client, parent, report)
            _log_scalars(client, parent, report, tags, None)
        if model_id is not None:
            client.set_logged_model_tags(model_id, tags)


def _log_dataset(client: Any, child: str, report: AuditReport, model_id: str | None) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

    settings = report.settings
    profile = {"num_rows": settings.n_rows, "num_clusters": settings.n_clusters}
    dataset = Dataset(
        name="b3-audit",
        digest=settings.data_digest,
        source_type="code",
        source=json.dumps({"tags": {"mlflow.source.name": "mlflow-b3"}}),
        profile=json.dumps(profile),
    )
    client.log_inputs(
        child,
        datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "audit")])],
        models=[LoggedModelInput(model_id)] if model_id else None,
    )


def _log_scalars(
    client: Any, run_id: str, report: AuditReport, tags: dict[str, str], model_id: str | None
) -> None:
    """Write the metrics and tags of a run in one request."""
    from mlflow.entities import Metric, RunTag

    now = _now()
    earlier = client.get_run(run_id).data.metrics
    metrics = []
    for name, value in metrics_of(report).items():
        if value is None:
            if name not in earlier:
                continue
            value = math.nan  # an older audit's value must not pass for this one's
        linked = model_id if math.isfinite(value) else None  # MLflow stores a model's NaN as 0
        extra = {}
        if linked is not None:
            extra = {
                "model_id": linked,
                "dataset_name": "b3-audit",
                "dataset_digest": report.settings.data_digest,
                "run_id": run_id,
            }
        metrics.append(Metric(name, value, now, 0, **extra))
    client.log_batch(
        run_id, metrics=metrics, tags=[RunTag(name, value) for name, value in tags.items()]
    )


def _log_curves(client: Any, child: str, report: AuditReport) -> None:
    from mlflow.entities import Metric

    now = _now()
    metrics = [
        Metric(name, value, now, step)
        for name, points in curves_of(report).items()
        for step, value in points
    ]
    client.log_batch(child, metrics=metrics)


def _log_artifacts(client: Any, run_id: str, report: AuditReport) -> None:
    files = {
        "audit.json": report.to_json(),
        "curves.csv": curves_table(report),
        "report.md": to_markdown(report),
        "report.txt": str(report) + "\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        client.log_artifacts(run_id, folder, FOLDER)


def _note(report: AuditReport) -> str:
    return "\n\n".join(explain(report))


def _now() -> int:
    return int(time.time() * 1000)
