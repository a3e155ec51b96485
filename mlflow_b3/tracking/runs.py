"""The run of an audit: opened as a child of the audited run, and ended whatever happens."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlflow_b3.errors import TrackingError
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.version import __version__

LONGEST_TAG = 5000
#: Some databases behind MLflow hold no more of a run's name.
LONGEST_NAME = 250


@contextmanager
def audit_run(parent: str | None, subject: str | None = None) -> Iterator[str]:
    """Open the run of an audit; mark it as failed, with the error, if anything goes wrong.

    The `subject` is what is audited: an audit that does not come to its end was tried all the same.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    try:
        child, own = _open_run(client, parent, subject)
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


def child_tags(client: Any, parent: str | None, kind: str) -> tuple[str, dict[str, str]]:
    """Return the experiment and the first tags of a run below another one."""
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


def _open_run(client: Any, parent: str | None, subject: str | None) -> tuple[str, bool]:
    """Return the audit's run and whether it is ours to end.

    `mlflow run` has already made a run for its entry point, and ends it itself.
    """
    experiment, tags = child_tags(client, parent, "b3 audit" if parent is None else "b3")
    if subject not in (None, "none"):
        tags["b3.subject"] = subject
    project = project_run(client, "audit")
    if project is not None and (
        parent is None or experiment == client.get_run(project).info.experiment_id
    ):
        for name, value in tags.items():
            if name != "mlflow.source.name":
                client.set_tag(project, name, value)
        return project, False
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
        name = f"{client.get_run(child).info.run_name} failed"
        client.set_tag(child, "mlflow.runName", name[:LONGEST_NAME])
        client.set_terminated(
            child, status="KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        )
    except (MlflowException, OSError):
        return  # the first error is the one to report
