"""The run of an audit: created as a child of the audited run, and always ended."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import TrackingError
from mlflow_b3.refit.loading import announced_waiting, raise_if_unreachable
from mlflow_b3.results import visible
from mlflow_b3.version import __version__

LONGEST_TAG = 5000
LONGEST_NOTE = 7900
#: Of lines in a description; MLflow's page does not wrap code.
ERROR_WIDTH = 80
#: The tag that MLflow shows as the description of a run.
NOTE = "mlflow.note.content"
#: Some of MLflow's databases limit the length of a run's name.
LONGEST_NAME = 250
#: A tag that identifies the request that created a run; MLflow's UI hides tags with its prefix.
REQUEST = "mlflow.b3.request"


@dataclass(frozen=True, kw_only=True)
class AuditRun:
    """The run of an audit, and whether we end it: `mlflow run` ends its own runs."""

    id: str
    own: bool


@contextmanager
def audit_run(parent: str | None, subject: str | None = None) -> Iterator[AuditRun]:
    """Create the run of an audit; mark it as failed, with the error, if anything goes wrong.

    The `subject` is the audited model. It is recorded at the start because unfinished audits count
    too.
    """
    from mlflow import MlflowClient

    client = MlflowClient()
    with mlflow_errors_as("the audit's run could not be created"):
        run = _open_run(client, parent, subject)
    try:
        yield run
    except BaseException as error:
        _mark_failed(client, run.id, error)
        raise


@contextmanager
def tracking_errors(what: str, report: AuditReport | None = None) -> Iterator[None]:
    """Turn MLflow's errors into a `TrackingError` that says what was not written."""
    with mlflow_errors_as(f"{what} could not be written to MLflow", report):
        yield


@contextmanager
def mlflow_errors_as(message: str, report: AuditReport | None = None) -> Iterator[None]:
    """Turn MLflow's errors into a `TrackingError` that starts with a message."""
    from mlflow.exceptions import MlflowException

    try:
        with announced_waiting():
            yield
    except (MlflowException, OSError) as error:
        try:
            raise_if_unreachable(error)
        except TrackingError as unreachable:
            raise TrackingError(f"{message}: {unreachable}", report=report) from error
        raise TrackingError(f"{message}: {error}", report=report) from error


@contextmanager
def impatient() -> Iterator[None]:
    """Retry at most once, after an error for which MLflow's client has already retried for minutes."""
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES

    before = os.environ.get(RETRIES.name)
    RETRIES.set(min(1, RETRIES.get()))
    try:
        yield
    finally:
        if before is None:
            RETRIES.unset()
        else:
            os.environ[RETRIES.name] = before


def child_tags(client: Any, parent: str | None, kind: str) -> tuple[str, dict[str, str]]:
    """Return the experiment and the initial tags of a child run."""
    tags = {
        "mlflow.runName": kind.replace(" ", "-"),
        "mlflow.source.name": "mlflow-b3",
        "b3.version": __version__,
    }
    if parent is None:
        from mlflow.tracking.fluent import _get_experiment_id

        return _get_experiment_id(), tags
    run = client.get_run(parent)
    if run.info.lifecycle_stage != "active":
        raise TrackingError(f"run {parent} is deleted; restore it before auditing its model.")
    tags["mlflow.parentRunId"] = parent
    tags["mlflow.runName"] = f"{str(run.info.run_name)[: LONGEST_NAME - 30]} ({kind})"
    if user := run.data.tags.get("mlflow.user"):
        tags["mlflow.user"] = user
    return run.info.experiment_id, tags


def new_run(client: Any, experiment: str, tags: dict[str, str]) -> str:
    """Create a run with a tag that identifies the request."""
    made = client.create_run(experiment, tags={**tags, REQUEST: uuid.uuid4().hex})
    return str(made.info.run_id)


def remove_twins(client: Any, run_id: str) -> None:
    """Delete duplicates of a run that the same request created.

    MLflow's client repeats a request if the response is lost or late. The first request may still be
    executed after the second, so call this last.
    """
    run = client.get_run(run_id)
    word = run.data.tags.get(REQUEST)
    if word is None:
        return
    for twin in client.search_runs([run.info.experiment_id], f"tags.`{REQUEST}` = '{word}'"):
        if twin.info.run_id != run_id:
            client.delete_run(twin.info.run_id)


def _open_run(client: Any, parent: str | None, subject: str | None) -> AuditRun:
    """Return the audit's run; `mlflow run` has already created one for its entry point."""
    experiment, tags = child_tags(client, parent, "b3 audit" if parent is None else "b3")
    about = {} if subject in (None, "none") else {"b3.subject": str(subject)}
    project = project_run(client, "audit")
    if project is not None and (
        parent is None or experiment == client.get_run(project).info.experiment_id
    ):
        for name, value in {**tags, **about}.items():
            if name != "mlflow.source.name":
                client.set_tag(project, name, value)
        return AuditRun(id=project, own=False)
    run_id = new_run(client, experiment, tags)
    try:
        for name, value in about.items():  # only now: a run with a subject counts as an audit
            client.set_tag(run_id, name, value)
    except BaseException as error:
        _mark_failed(client, run_id, error)
        raise
    return AuditRun(id=run_id, own=True)


def project_run(client: Any, entry_point: str) -> str | None:
    """Return the run that `mlflow run` created for an entry point of ours, or None."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return None
    tags = client.get_run(run_id).data.tags
    return run_id if tags.get("mlflow.project.entryPoint") == entry_point else None


def error_note(word: str, text: str) -> str:
    """Return the description of an audit that did not come to its end: the whole error, as it is."""
    wrapped = (part for line in text.splitlines() for part in wrap(visible(line), ERROR_WIDTH))
    lines = "\n".join(f"    {line}" for line in wrapped)  # code: nothing in it is markup
    return f"**The audit {'was ' if word == 'stopped' else ''}{word}.**\n\n{lines}"[:LONGEST_NOTE]


def _mark_failed(client: Any, child: str, error: BaseException) -> None:
    from mlflow.exceptions import MlflowException

    text = f"{type(error).__name__}: {error}"[:LONGEST_TAG]
    status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
    with impatient(), suppress(MlflowException, OSError):  # report the first error, not this one
        client.set_terminated(child, status=status)
        client.set_tag(child, "b3.error", text)
        remove_twins(client, child)
        word = "stopped" if status == "KILLED" else "failed"
        client.set_tag(child, NOTE, error_note(word, text))
        name = f"{client.get_run(child).info.run_name} {word}"
        client.set_tag(child, "mlflow.runName", name[:LONGEST_NAME])
