"""Writes audits to MLflow: a child run of its own for each, the newest one shown on the run."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from mlflow_b3.auditing import audit
from mlflow_b3.errors import TrackingError
from mlflow_b3.gating.evidence import FILE, digest
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.layout import escaped
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.tracking.active_model import without_active_model
from mlflow_b3.tracking.audits import NO_EVIDENCE, subject_of, tried_audits
from mlflow_b3.tracking.files import OF_ROWS, files_of, load_report, save_report
from mlflow_b3.tracking.issuing import Issuer
from mlflow_b3.tracking.metrics import parameters_of, tags_of
from mlflow_b3.tracking.preregistration import Preregistration, find_preregistration
from mlflow_b3.tracking.runs import audit_run, project_run, tracking_errors
from mlflow_b3.tracking.superseding import audits_before, become_current
from mlflow_b3.tracking.versions import show_on_versions, version_tags
from mlflow_b3.tracking.views import add_view
from mlflow_b3.tracking.writing import log_curves, log_dataset, log_files, log_scalars

_LOG = logging.getLogger(__name__)


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
    committed : Preregistration or None
        What was committed before the audit ran.
    """

    child: str
    shown_on: Sequence[str]
    on_model: bool = True
    logged_by_mlflow: bool = False
    committed: Preregistration | None = None


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
    the refits are not lost: the error carries the report as `error.report` and names the folder that
    it was saved to.

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
    from mlflow import MlflowClient

    client, issuer = MlflowClient(), Issuer.from_environment()
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    shown_on = list(dict.fromkeys(run for run in (run_id, audited.run_id) if run is not None))
    subject = subject_of(client, audited.model_id, audited.uri, audited.run_id)
    with audit_run(shown_on[0] if shown_on else None, subject) as child:
        given = {**arguments, "trainer": trainer, "refit": refit, "refit_options": refit_options}
        committed = find_preregistration(client, issuer, audited, child, data, given)
        report = audit(audited, data, refit_options=refit_options, **arguments)
        shown_on += _shown_elsewhere(client, child, shown_on)
        places = _Places(
            child=child,
            shown_on=shown_on,
            logged_by_mlflow=mlflow_logs,
            committed=committed,
        )
        with _saved_otherwise(report):
            _write(report, places, issuer)
    return report, child


def record(report: AuditReport | str | PathLike[str], run_id: str | None = None) -> str:
    """Write an audit that has been made to MLflow.

    Parameters
    ----------
    report : AuditReport or path
        The path is that of the folder in which an audit was saved that MLflow did not take.
    run_id : str, optional
        The run it belongs to; by default the run of the audited model. An audit of a bare
        estimator without a run gets a run of its own in the current experiment. Written to another
        run than the model's, it leaves the model and its run alone, and supersedes no audit.

    Returns
    -------
    str
        The id of the audit's own run.
    """
    if not isinstance(report, AuditReport):
        report = load_report(report)
    issuer = Issuer.from_environment()
    settings = report.settings
    parent = run_id or settings.run_id
    with audit_run(parent) as child:
        places = _Places(
            child=child,
            shown_on=[] if parent is None else [parent],
            on_model=parent == settings.run_id,
        )
        _write(report, places, issuer)
    return child


@contextmanager
def _saved_otherwise(report: AuditReport) -> Iterator[None]:
    """Save an audit that MLflow does not take."""
    try:
        yield
    except TrackingError as error:
        folder = str(save_report(report))
        raise TrackingError(
            f"{error}\nThe audit was saved to the folder {folder!r}. To write it to MLflow later, in "
            f"Python: mlflow_b3.record({folder!r})",
            report=report,
        ) from error


def _shown_elsewhere(client: Any, child: str, shown_on: Sequence[str]) -> list[str]:
    """Return the run of `mlflow run`, where the audit's own run is in the model's experiment."""
    project = project_run(client, "audit")
    return [] if project in (None, child, *shown_on) else [str(project)]


def _write(report: AuditReport, places: _Places, issuer: Issuer) -> None:
    """Write what can fail first and what others see last, so that nothing is half-written."""
    from mlflow import MlflowClient

    client, child = MlflowClient(), places.child
    settings = report.settings
    subject = subject_of(client, settings.model_id, settings.uri, settings.run_id)
    tags = tags_of(report, child)
    tags |= {
        "b3.subject": subject,
        "b3.verdict": issuer.verdict(report),
        "b3.policy": issuer.policy.hash[:12],  # gates may go by another one
    }
    on_versions = version_tags(report, tags)
    model_id = report.settings.model_id if places.on_model else None
    files = files_of(report)
    with tracking_errors("the audit", report), without_active_model():
        log_dataset(client, child, report, model_id)
        log_curves(client, child, report)
        log_files(client, child, files)
        tags |= _log_evidence(client, report, places, issuer, files, on_versions)
        own = {**tags, "mlflow.note.content": "\n\n".join(map(escaped, explain(report)))}
        linked = None if places.logged_by_mlflow else model_id
        log_scalars(client, child, report, own, parameters_of(report), model_id=linked)
        for number, run_id in enumerate(places.shown_on):
            log_files(client, run_id, {n: t for n, t in files.items() if n not in OF_ROWS})
            known_elsewhere = places.logged_by_mlflow and number == 0
            log_scalars(client, run_id, report, tags, {}, unknown_only=known_elsewhere)
        if model_id is not None:
            client.set_logged_model_tags(model_id, tags)
        earlier = audits_before(client, child, subject) if places.on_model else []
        become_current(client, child, earlier)
    with without_active_model():
        if places.on_model:
            _courtesy(
                "the registered version", show_on_versions, client, report, child, on_versions
            )
        experiment = client.get_run(child).info.experiment_id
        _courtesy("the view of all audits", add_view, client, experiment)


def _log_evidence(
    client: Any,
    report: AuditReport,
    places: _Places,
    issuer: Issuer,
    files: Mapping[str, str],
    on_versions: Mapping[str, str],
) -> dict[str, str]:
    """Write the evidence of an audit to its run; return the tag that says so."""
    if not places.on_model:
        return {"b3.evidence": NO_EVIDENCE}
    child, committed = places.child, places.committed
    tried = tried_audits(client, on_versions["b3.subject"])
    document = issuer.issue(
        client,
        report,
        audit_run_id=child,
        files=files,
        tags=on_versions,
        earlier=tuple(run.info.run_id for run in tried if run.info.run_id != child),
        preregistration=None if committed is None else committed.as_evidence(report),
    )
    if document is None:
        return {}
    log_files(client, child, {FILE: document})
    return {"b3.evidence": digest(document.encode())}


def _courtesy(what: str, write: Callable[..., None], *arguments: Any) -> None:
    """Write what is nice to have: an audit that is complete is not lost because of it."""
    from mlflow.exceptions import MlflowException

    try:
        write(*arguments)
    except (MlflowException, OSError) as error:
        _LOG.warning("The audit is recorded, but %s could not be written: %s", what, error)
