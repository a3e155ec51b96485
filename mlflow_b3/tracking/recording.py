"""Writes audits to MLflow: a child run of its own for each, the newest one shown on the run."""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_b3.auditing import audit
from mlflow_b3.errors import TrackingError
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.layout import escaped
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.tracking.active_model import without_active_model
from mlflow_b3.tracking.files import files_of
from mlflow_b3.tracking.metrics import curves_of, metrics_of, parameters_of, tags_of
from mlflow_b3.tracking.versions import show_on_versions
from mlflow_b3.tracking.views import add_view
from mlflow_b3.version import __version__

FOLDER = "b3"
LONGEST_TAG = 5000
CURRENT, SUPERSEDED = "current", "superseded"


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where an audit is written.

    Attributes
    ----------
    child : str
        The audit's own run.
    shown_on : sequence of str
        The runs that show the newest audit.
    on_model : bool
        The audited model itself shows it: its LoggedModel, and the version it was named by.
    logged_by_mlflow : bool
        MLflow writes the metrics of the first of these runs and of the LoggedModel itself.
    """

    child: str
    shown_on: Sequence[str]
    on_model: bool = True
    logged_by_mlflow: bool = False


def audit_and_record(
    model: Any,
    data: Any,
    *,
    run_id: str | None = None,
    mlflow_logs: bool = False,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> tuple[AuditReport, str]:
    """Audit a logged model and write the result to MLflow.

    The audit has a child run from its first second on. If it fails, that run ends as failed with
    the error in its tag `b3.error`, and the audited run stays as it was. Where only writing fails,
    the error carries the report as `error.report`.

    Parameters
    ----------
    model, data, trainer, refit, refit_options, **arguments
        As in `mlflow_b3.audit`.
    run_id : str, optional
        The run that the audit is a child of; by default that of the model. The model's run shows
        the audit in any case.
    mlflow_logs : bool
        MLflow will write the metrics to that run and to the LoggedModel itself.

    Returns
    -------
    AuditReport, str
        The report and the id of the run that holds it.
    """
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    shown_on = list(dict.fromkeys(run for run in (run_id, audited.run_id) if run is not None))
    with _audit_run(shown_on[0] if shown_on else None) as child:
        report = audit(audited, data, refit_options=refit_options, **arguments)
        places = _Places(
            child=child,
            shown_on=shown_on,
            logged_by_mlflow=mlflow_logs,
        )
        _write(report, places)
    return report, child


def record(report: AuditReport, run_id: str | None = None) -> str:
    """Write an audit that has been made to MLflow.

    Parameters
    ----------
    report : AuditReport
    run_id : str, optional
        The run it belongs to; by default the run of the audited model. An audit of a bare
        estimator without a run gets a run of its own in the current experiment. Written to another
        run than the model's, it leaves the model and its run alone.

    Returns
    -------
    str
        The id of the audit's own run.
    """
    settings = report.settings
    parent = run_id or settings.run_id
    with _audit_run(parent) as child:
        places = _Places(
            child=child,
            shown_on=[] if parent is None else [parent],
            on_model=parent == settings.run_id,
        )
        _write(report, places)
    return child


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
            with tracking_errors("the audit"):
                client.set_terminated(child)
    except BaseException as error:
        _mark_failed(client, child, error)
        raise


@contextmanager
def tracking_errors(what: str, report: AuditReport | None = None) -> Iterator[None]:
    """Turn what goes wrong in MLflow into a `TrackingError` that says what was not written."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"{what} could not be written to MLflow: {error}", report=report
        ) from error


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
        tags["mlflow.runName"] = f"{run.info.run_name} (b3)"
        if user := run.data.tags.get("mlflow.user"):
            tags["mlflow.user"] = user
    project = project_run(client, "audit")
    if project is not None:
        for name, value in tags.items():
            if name != "mlflow.source.name":
                client.set_tag(project, name, value)
        return project, False
    if experiment is None:
        from mlflow.tracking.fluent import _get_experiment_id

        experiment = _get_experiment_id()
    return client.create_run(experiment, tags=tags).info.run_id, True


def project_run(client: Any, entry_point: str) -> str | None:
    """Return the run that `mlflow run` has made for an entry point of ours, and ends itself."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return None
    tags = client.get_run(run_id).data.tags
    return run_id if tags.get("mlflow.project.entryPoint") == entry_point else None


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


def _write(report: AuditReport, places: _Places) -> None:
    """Write what can fail first and what others see last, so that nothing is half-written."""
    from mlflow import MlflowClient

    client, child = MlflowClient(), places.child
    tags = tags_of(report, child)
    model_id = report.settings.model_id if places.on_model else None
    with tracking_errors("the audit", report), without_active_model():
        earlier = _earlier_audits(client, places, model_id)
        _log_dataset(client, child, report, model_id)
        _log_curves(client, child, report)
        _log_artifacts(client, child, report)
        own = {
            **tags,
            "b3.status": CURRENT,
            "b3.supersedes": ", ".join(earlier) or "none",
            "mlflow.note.content": "\n\n".join(map(escaped, explain(report))),
        }
        linked = None if places.logged_by_mlflow else model_id
        _log_scalars(client, child, report, own, model_id=linked)
        for number, run_id in enumerate(places.shown_on):
            _log_artifacts(client, run_id, report)
            known_elsewhere = places.logged_by_mlflow and number == 0
            _log_scalars(client, run_id, report, tags, unknown_only=known_elsewhere)
        if model_id is not None:
            client.set_logged_model_tags(model_id, tags)
        if places.on_model:
            show_on_versions(client, report, child, tags)
        for run_id in earlier:
            _supersede(client, run_id, child)
        add_view(client, client.get_run(child).info.experiment_id)


def _earlier_audits(client: Any, places: _Places, model_id: str | None) -> list[str]:
    """Return the audits that are shown now where this one is going to be shown."""
    tagged = [client.get_run(run_id).data.tags for run_id in places.shown_on]
    if model_id is not None:
        tagged.append(client.get_logged_model(model_id).tags)
    shown = dict.fromkeys(tags.get("b3.audit_run_id") for tags in tagged)
    return [run_id for run_id in shown if run_id not in (None, places.child)]


def _supersede(client: Any, run_id: str, successor: str) -> None:
    """Mark an audit as no longer the newest, where everyone can see it; its numbers stay."""
    from mlflow.exceptions import MlflowException

    with suppress(MlflowException):  # somebody has deleted it
        run = client.get_run(run_id)
        if run.data.tags.get("b3.status") != CURRENT:
            return
        client.set_tag(run_id, "b3.status", SUPERSEDED)
        client.set_tag(run_id, "b3.superseded_by", successor)
        note = run.data.tags.get("mlflow.note.content", "")
        told = f"**Superseded** by the audit of run `{successor}`.\n\n{note}"
        client.set_tag(run_id, "mlflow.note.content", told)
        client.update_run(run_id, name=f"{run.info.run_name} {SUPERSEDED}")


def _log_dataset(client: Any, child: str, report: AuditReport, model_id: str | None) -> None:
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
    client.log_inputs(
        child,
        datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "audit")])],
        models=[LoggedModelInput(model_id)] if model_id else None,
    )


def _dataset_name(report: AuditReport) -> str:
    source = report.settings.data_source
    return "b3-audit" if source is None else Path(source).name


def _dataset_digest(report: AuditReport) -> str:
    """Return as much of the digest as MLflow's tables have room for; a tag has all of it."""
    return report.settings.data_digest[:12]


def _log_scalars(
    client: Any,
    run_id: str,
    report: AuditReport,
    tags: dict[str, str],
    *,
    model_id: str | None = None,
    unknown_only: bool = False,
) -> None:
    """Write the metrics and tags of a run in one request, and to its own run the parameters."""
    from mlflow.entities import Metric, Param, RunTag

    now = _now()
    earlier = client.get_run(run_id).data.metrics
    metrics = []
    for name, value in metrics_of(report).items():
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
    # parameters cannot be changed later, so they are the audit's own
    own = parameters_of(report) if tags.get("b3.status") == CURRENT else {}
    client.log_batch(
        run_id,
        metrics=metrics,
        params=[Param(name, value) for name, value in own.items()],
        tags=[RunTag(name, value) for name, value in tags.items()],
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
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files_of(report).items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        client.log_artifacts(run_id, folder, FOLDER)


def _now() -> int:
    return int(time.time() * 1000)
