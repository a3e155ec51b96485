"""`record`: write audits to MLflow, each to a run of its own."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from mlflow_b3.auditing.audit import audit
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.auditing.request import make_request
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.errors import InputError, InterruptedAudit, TrackingError
from mlflow_b3.evidence.document import FILE, digest, seal
from mlflow_b3.measurement.runner import Interruption
from mlflow_b3.options import OPTIONS, flat_options
from mlflow_b3.refit.loading import load_model
from mlflow_b3.reporting.document import escaped
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.tracking.audits import NO_EVIDENCE, subject_of, tried_audits
from mlflow_b3.tracking.metrics_and_files import (
    files_of,
    issue_evidence,
    load_report,
    log_curves,
    log_dataset,
    log_files,
    log_scalars,
    parameters_of,
    save_report,
    tags_of,
    warn_of_key,
)
from mlflow_b3.tracking.preregistration import Preregistration, find_preregistration
from mlflow_b3.tracking.runs import (
    LONGEST_NAME,
    NOTE,
    AuditRun,
    audit_run,
    impatient,
    mlflow_errors_as,
    project_run,
    remove_twins,
    tracking_errors,
)
from mlflow_b3.tracking.shown_on_models import (
    CURRENT,
    NONE,
    PAGE,
    Showcase,
    Shown,
    add_view,
    answer_markdown,
    colour_run,
    courtesy,
    end_after,
    recorded_audits,
    version_tags,
)

# --- MLflow's active model


@contextmanager
def without_active_model() -> Iterator[None]:
    """Link metrics only to the models that they name.

    `mlflow.models.evaluate`, `mlflow.set_active_model` and the environment variable
    `MLFLOW_ACTIVE_MODEL_ID` make a model active. `MlflowClient.log_batch` then adds it to metrics
    without a model, and every point of a curve would become a row on the model's page.
    """
    from mlflow.tracking import fluent

    before = fluent._ACTIVE_MODEL_CONTEXT.get()
    no_model = fluent.ActiveModelContext()
    no_model._model_id = None  # its default is the model that the environment names
    fluent._ACTIVE_MODEL_CONTEXT.set(no_model)
    try:
        yield
    finally:
        fluent._ACTIVE_MODEL_CONTEXT.set(before)


# --- Audits that the user stopped


def write_part(report: AuditReport, run: AuditRun) -> None:
    """Write the results of a stopped audit to its own run, which ends as killed.

    The model and its run do not show it. It supersedes no audit and leaves no evidence, because
    somebody who watches the estimate could stop at a convenient moment.
    """
    from mlflow import MlflowClient

    client = MlflowClient()
    with tracking_errors("the part of the audit that was made", report), without_active_model():
        name = f"{client.get_run(run.id).info.run_name} stopped"
        tags = {
            "b3.partial": "true",
            "b3.error": stopped_message(report),
            "mlflow.runName": name[:LONGEST_NAME],
        }
        log_files(client, run.id, files_of(report))
        log_scalars(client, run.id, report, tags, parameters_of(report))
        if run.own:
            client.set_terminated(run.id, status="KILLED")


def require_whole(report: AuditReport) -> None:
    """Raise an `InterruptedAudit` for a partial report."""
    if report.partial:
        raise InterruptedAudit(stopped_message(report))


def stopped_message(report: AuditReport) -> str:
    """Return a sentence that says when an audit was stopped."""
    assert report.refits is not None
    done, planned = report.refits.done, report.refits.planned
    return f"the audit of {report.subject.model} was stopped after {done} of {planned} refits."


# --- Writing audits: each has a child run, and the audited run shows the newest

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where an audit is written.

    Attributes
    ----------
    run : AuditRun
        The audit's own run.
    shown_on : sequence of str
        The runs that show the newest audit.
    on_model : bool
        The audited model itself shows it: its LoggedModel, and its registered versions.
    logged_by_mlflow : bool
        MLflow itself writes the metrics of the first of these runs and of the LoggedModel.
    committed : Preregistration or None
        What was committed before the audit ran.
    """

    run: AuditRun
    shown_on: Sequence[str]
    on_model: bool = True
    logged_by_mlflow: bool = False
    committed: Preregistration | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedAudit:
    """An audit and its record in MLflow.

    Attributes
    ----------
    report : AuditReport
    run_id : str
    digest : str or None
        The SHA-256 of the evidence as it was written, not as it was read back: whoever signs the audit
        can demand this very record. None without evidence.
    """

    report: AuditReport
    run_id: str
    digest: str | None


def audit_and_record(model: Any, data: Any, **arguments: Any) -> tuple[AuditReport, str]:
    """Audit a logged model and write the result to MLflow; return the report and its run.

    The arguments are those of `make_record`.
    """
    made = make_record(model, data, **arguments)
    return made.report, made.run_id


def make_record(
    model: Any,
    data: Any,
    *,
    run_id: str | None = None,
    mlflow_logs: bool = False,
    **arguments: Any,
) -> RecordedAudit:
    """Audit a logged model and write the result to MLflow.

    The audit gets a child run at its first refit; invalid input leaves no run. If the audit fails, its
    run ends as failed with the error in the tag `b3.error`, and the audited run is not changed. If only
    writing fails, the refits are not lost: the error has the report as `error.report` and names the
    folder that it was saved to.

    The evidence is not signed, because the audit runs the model's code; see `mlflow_b3.attest`.

    Parameters
    ----------
    model, data, **arguments
        As in `mlflow_b3.audit`.
    run_id : str, optional
        The parent of the audit's run; by default the model's run. The model's run always shows the
        audit.
    mlflow_logs : bool
        MLflow itself writes the metrics to that run and to the LoggedModel.

    Returns
    -------
    RecordedAudit
        A partial report, after Ctrl-C, is only in its run.
    """
    from mlflow import MlflowClient

    client = MlflowClient()
    warn_of_key()
    options = flat_options(arguments)
    make_request(
        {"model": model, "data": data, **options}
    )  # refuse bad options before loading code
    audited = load_model(
        model,
        trainer=options.get("trainer"),
        refit=options.get("refit", OPTIONS["refit"].default),
        options=options.get("refit_options"),
    )
    shown_on = list(dict.fromkeys(run for run in (run_id, audited.run_id) if run is not None))
    subject = subject_of(client, audited.model_id, audited.uri, audited.run_id)
    opened: list[_Places] = []
    with ExitStack() as stack:

        def begin() -> None:
            run = stack.enter_context(audit_run(shown_on[0] if shown_on else None, subject))
            with mlflow_errors_as("the commitments of the model could not be read"):
                committed = find_preregistration(client, audited, run.id, data, options)
                everywhere = [*shown_on, *_shown_elsewhere(client, run.id, shown_on)]
            opened.append(
                _Places(
                    run=run,
                    shown_on=everywhere,
                    logged_by_mlflow=mlflow_logs,
                    committed=committed,
                )
            )

        watched = replace(audited, before_first_refit=begin)
        remaining = {name: options[name] for name in options if name not in ("trainer", "refit")}
        report = audit(watched, data, **remaining)
        if not opened:
            begin()
        (places,) = opened
        if report.partial:
            write_part(report, places.run)
            return RecordedAudit(report=report, run_id=places.run.id, digest=None)
        with _save_on_failure(report):
            written = _write(report, places)
    _raise_if_interrupted(written.interrupted)
    return RecordedAudit(report=report, run_id=places.run.id, digest=written.digest)


def record(report: AuditReport | str | PathLike[str], run_id: str | None = None) -> str:
    """Write a finished audit to MLflow.

    Parameters
    ----------
    report : AuditReport or path
        A path is the folder of an audit that was saved because it could not be written to MLflow.
    run_id : str, optional
        The parent run; by default the run of the audited model. An audit of a bare estimator without
        a run gets a run in the current experiment. With a run other than the model's, the model and
        its run are not changed, and no audit is superseded.

    Returns
    -------
    str
        The id of the audit's own run.

    Examples
    --------
    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> report = b3.audit(
    ...     GaussianNB(),
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> run_id = b3.record(report)
    >>> mlflow.get_run(run_id).data.metrics["b3/fits"] == report.refits.done
    True
    """
    if isinstance(report, CvcReport):
        raise InputError(
            "report: corrected cross-validation is recorded as part of an audit; run "
            "mlflow_b3.audit(…, method='cvc')."
        )
    if not isinstance(report, AuditReport):
        report = load_report(report)
    if report.partial:
        raise InputError(
            "report: the audit was stopped early; run it again and record the complete report."
        )
    parent = run_id or report.subject.run_id
    with audit_run(parent) as run:
        places = _Places(
            run=run,
            shown_on=[] if parent is None else [parent],
            on_model=parent == report.subject.run_id,
        )
        written = _write(report, places)
    _raise_if_interrupted(written.interrupted)
    return run.id


def _raise_if_interrupted(interrupted: bool) -> None:
    """Raise the `KeyboardInterrupt` that was held back while the audit was written."""
    if interrupted:
        _LOG.warning("The audit was recorded before the interruption.")
        raise KeyboardInterrupt


@contextmanager
def _save_on_failure(report: AuditReport) -> Iterator[None]:
    """Save an audit to a folder if it cannot be written to MLflow."""
    try:
        yield
    except TrackingError as error:
        raise TrackingError(f"{error}\n{_save_locally(report)}", report=report) from error
    except KeyboardInterrupt:
        _LOG.warning("The audit was not recorded. %s", _save_locally(report))
        raise


def _save_locally(report: AuditReport) -> str:
    """Save an audit to a folder here; return a message about it."""
    try:
        folder = str(save_report(report))
    except OSError as error:
        return (
            f"It could not be saved to a folder here either: {error}. In Python it is the attribute "
            "`report` of the error; on the command line it is printed."
        )
    return (
        f"The audit was saved to the folder {folder!r}. To write it to MLflow later, in Python: "
        f"mlflow_b3.record({folder!r})"
    )


def _shown_elsewhere(client: Any, child: str, shown_on: Sequence[str]) -> list[str]:
    """Return the run of `mlflow run`, if it is not the audit's own run."""
    project = project_run(client, "audit")
    return [] if project in (None, child, *shown_on) else [str(project)]


@dataclass(frozen=True, kw_only=True)
class _Written:
    """The digest of the evidence that was written, and whether Ctrl-C came too late to stop it."""

    digest: str | None
    interrupted: bool


def _write(report: AuditReport, places: _Places) -> _Written:
    """Write the audit's own run, and then show it on the model."""
    from mlflow import MlflowClient

    client, child = MlflowClient(), places.run.id
    tags = tags_of(report, child)
    model_id = report.subject.model_id if places.on_model else None
    files = files_of(report)
    with tracking_errors("the audit", report), without_active_model():
        tags["b3.subject"] = subject_of(
            client, report.subject.model_id, report.subject.uri, report.subject.run_id
        )
        log_dataset(client, child, report, model_id)
        log_curves(client, child, report)
        log_files(client, child, files)
        on_versions = version_tags(report, tags)
        evidence = _log_evidence(client, report, places, files, on_versions)
        tags |= evidence
        own = {
            **on_versions,
            **tags,
            NOTE: "\n\n".join([answer_markdown(report), *map(escaped, explain(report))]),
        }
        linked = None if places.logged_by_mlflow else model_id
        log_scalars(client, child, report, own, parameters_of(report), model_id=linked)
        shown = Shown(audit_run_id=child, report=report, tags=tags, page=files[PAGE])
        interrupted = _end_and_show(client, shown, places)
    found = evidence.get("b3.evidence")
    written = _Written(digest=None if found == NO_EVIDENCE else found, interrupted=interrupted)
    if interrupted:
        return written
    with without_active_model():
        courtesy("the colour of the run", lambda: colour_run(client, child))
        courtesy("the view of all audits", lambda: add_view(client, child))
    return written


def _end_and_show(client: Any, shown: Shown, places: _Places) -> bool:
    """End an audit's own run, which makes it the newest, and show the newest.

    Returns
    -------
    bool
        Whether Ctrl-C came meanwhile. It is held back until the end, because a half-written audit
        would look current to others.
    """
    from mlflow.exceptions import MlflowException

    audited, subject = shown.report.subject, shown.tags["b3.subject"]
    showcase = Showcase(
        client=client,
        own=shown,
        runs=places.shown_on,
        subject=subject,
        model_run=audited.run_id,
        model_id=audited.model_id,
        on_model=places.on_model,
        measured_elsewhere=places.shown_on[0] if places.logged_by_mlflow else None,
    )
    remove_twins(client, places.run.id)
    if places.run.own:
        client.set_terminated(places.run.id, end_time=end_after(recorded_audits(client, subject)))
    with Interruption() as interruption, interruption.held():
        try:
            client.set_tag(places.run.id, "b3.supersedes", NONE)
            client.set_tag(places.run.id, "b3.status", CURRENT)
            showcase.show_newest()
        except BaseException:  # including a second Ctrl-C
            with impatient(), suppress(MlflowException, OSError):
                showcase.withdraw()
            raise
    return interruption.pending


def _log_evidence(
    client: Any,
    report: AuditReport,
    places: _Places,
    files: Mapping[str, str],
    on_versions: Mapping[str, str],
) -> dict[str, str]:
    """Write the evidence of an audit to its run; return its tag."""
    if not places.on_model:
        return {"b3.evidence": NO_EVIDENCE}
    child, committed = places.run.id, places.committed
    tried = tried_audits(client, on_versions["b3.subject"])
    evidence = issue_evidence(
        client,
        report,
        audit_run_id=child,
        files=files,
        tags=on_versions,
        earlier=tuple(run.info.run_id for run in tried if run.info.run_id != child),
        preregistration=None if committed is None else committed.as_evidence(report),
    )
    if evidence is None:
        return {}
    document = seal(evidence, None)
    log_files(client, child, {FILE: document})
    return {"b3.evidence": digest(document.encode())}
