"""Find recorded audits in MLflow and read them back."""

import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import EvidenceError, InputError, TrackingError
from mlflow_b3.refit.loading import (
    announced_waiting,
    matching,
    model_info,
    raise_if_unreachable,
    registered_version,
    resolve_source,
)
from mlflow_b3.tracking.metrics_and_files import load_report

RUN_ID = re.compile(r"[0-9a-f]{32}")
MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
#: The subject of audits of bare estimators, which belong to no logged model.
NOTHING = "none"
#: The tag `b3.evidence` of an audit that was written to a run other than its model's.
NO_EVIDENCE = "none"
#: Databases limit the number of values in a query.
MOST_EXPERIMENTS = 500


def find_audit(client: Any, reference: str) -> str:
    """Return the run of the newest audit of a model.

    Parameters
    ----------
    client : MlflowClient
    reference : str
        A model URI, the id of a LoggedModel, the id of the run that trained it, or of an audit's run.
    """
    from mlflow.exceptions import MlflowException

    try:
        with announced_waiting():
            tags = _tags_of_reference(client, reference)
    except MlflowException as error:
        raise_if_unreachable(error)
        raise TrackingError(f"{reference!r} was not found: {error}") from error
    if "b3.audit_run_id" not in tags:
        raise TrackingError(
            f"{reference!r} has no audit. Audit it first, or give data, target and cluster to audit all "
            "models together."
        )
    audit_run_id = str(tags["b3.audit_run_id"])
    _require_active_run(client, audit_run_id, reference)
    return audit_run_id


def _require_active_run(client: Any, audit_run_id: str, reference: str) -> None:
    """Raise an error if the run of an audit was deleted."""
    from mlflow.exceptions import MlflowException

    subject = f"the audit of {reference!r}, run {audit_run_id}, "
    advice = "audit the model again, or name only the other models"
    try:
        stage = client.get_run(audit_run_id).info.lifecycle_stage
    except MlflowException as error:
        raise_if_unreachable(error)
        raise TrackingError(f"{subject}was not found; {advice}: {error}") from error
    if stage != "active":
        raise TrackingError(
            f"{subject}was deleted; restore it (`mlflow runs restore --run-id {audit_run_id}`), {advice}."
        )


def _tags_of_reference(client: Any, reference: str) -> dict[str, str]:
    if RUN_ID.fullmatch(reference):
        return dict(client.get_run(reference).data.tags)
    if MODEL_ID.fullmatch(reference):
        reference = f"models:/{reference}"
    version = registered_version(reference)
    if version is not None:
        tags = dict(client.get_model_version(*version).tags)
        if "b3.audit_run_id" in tags:  # the run may show the audit of another version
            return tags
    info = model_info(reference)
    if info.model_id:
        return dict(client.get_logged_model(info.model_id).tags)
    return dict(client.get_run(info.run_id).data.tags) if info.run_id else {}


def current_audits(client: Any, experiment: str) -> list[str]:
    """Return the run of the newest audit of each model of an experiment, given by name or id.

    An audit made by `mlflow run` may be in another experiment; the run of its model says where. An
    audit that was written to a run other than its model's supersedes none, so a model can have two.
    """
    experiment_id = _experiment_id(client, experiment)
    audits: dict[str, str] = {}
    for run in _search_all(client.search_runs, [experiment_id], "tags.`b3.audit_run_id` LIKE '%'"):
        tags = run.data.tags
        own = "b3.status" in tags
        found = run.info.run_id if own else tags["b3.audit_run_id"]
        subject = tags.get("b3.subject", "none")
        model = found if subject == "none" else subject
        if model in audits:
            continue  # MLflow lists the newest runs first
        if tags["b3.status"] == "current" if own else _is_current(client, found):
            audits[model] = found
    if not audits:
        raise TrackingError(
            f"experiment={experiment!r} has no current audits; give the run ids of superseded ones to "
            "compare those."
        )
    return list(audits.values())


def _experiment_id(client: Any, experiment: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        with announced_waiting():
            found = client.get_experiment_by_name(experiment)
    except MlflowException as error:
        raise_if_unreachable(error)
        raise
    if found is None and experiment.isdigit():
        with suppress(MlflowException):
            found = client.get_experiment(experiment)
    if found is None:
        raise TrackingError(f"experiment={experiment!r} was not found.")
    return str(found.experiment_id)


def _is_current(client: Any, audit_run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(audit_run_id)
    except MlflowException as error:
        raise_if_unreachable(error)
        return False  # removed
    current = run.data.tags.get("b3.status") == "current"
    return bool(current and run.info.lifecycle_stage == "active")


def subject_of(client: Any, model_id: str | None, uri: str | None, run_id: str | None) -> str:
    """Return the tag `b3.subject`, which all audits of one model share.

    It is the id of the LoggedModel, or else the source of its files, which is the same for all
    registered versions made from it.
    """
    from mlflow.exceptions import MlflowException

    if model_id is None and uri is not None:
        with suppress(MlflowException, EvidenceError):
            found = resolve_source(client, uri)
            return found.model_id or found.source
    return model_id or uri or run_id or NOTHING


def tried_audits(client: Any, subject: str) -> list[Any]:
    """Return the runs of all audits of a model in all experiments, newest first.

    Audits that failed, were killed or have been deleted are included.
    """
    return audits_among(runs_of(client, subject))


def audits_among(runs: Iterable[Any]) -> list[Any]:
    """Return the runs that are audits, not commitments or attestations."""
    others = ("b3.commitment", "b3.attests")
    return [
        run
        for run in runs
        if run.data.tags.get("b3.audit_run_id", run.info.run_id) == run.info.run_id
        and not any(tag in run.data.tags for tag in others)
    ]


def runs_of(client: Any, subject: str) -> list[Any]:
    """Return all runs with this subject, newest first, including deleted ones."""
    from mlflow.entities import ViewType

    if subject == NOTHING:
        return []
    filters = f"tags.`b3.subject` {matching(subject)}"
    everywhere = _search_all(client.search_experiments, view_type=ViewType.ALL)
    experiments = [experiment.experiment_id for experiment in everywhere]
    runs = [
        run
        for first in range(0, len(experiments), MOST_EXPERIMENTS)
        for run in _search_all(
            client.search_runs,
            experiments[first : first + MOST_EXPERIMENTS],
            filters,
            run_view_type=ViewType.ALL,
        )
    ]
    own = [run for run in runs if run.data.tags.get("b3.subject") == subject]
    return sorted(own, key=lambda run: run.info.start_time, reverse=True)


def runs_where(client: Any, experiments: list[str], filters: str) -> list[Any]:
    """Return all active runs of experiments that match a filter."""
    return _search_all(client.search_runs, experiments, filters)


def _search_all(search: Any, *arguments: Any, **options: Any) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = search(*arguments, **options, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def audited_versions(client: Any, name: str) -> list[str]:
    """Return the URIs of the audited versions of a registered model.

    A version that was registered after the audit of its model has no tags of the audit itself.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = client.search_model_versions(f"name {matching(name)}")
        versions = [version for version in found if version.name == name]
        uris = [
            f"models:/{name}/{version.version}"
            for version in sorted(versions, key=lambda v: int(v.version))
            if "b3.audit_run_id" in version.tags or _model_has_audit(client, version.source)
        ]
    except MlflowException as error:
        raise_if_unreachable(error)
        raise TrackingError(f"registered_model={name!r} cannot be looked up: {error}") from error
    if not uris:
        raise TrackingError(f"the registered model {name!r} has no audited version.")
    return uris


def _model_has_audit(client: Any, source: str | None) -> bool:
    from mlflow.exceptions import MlflowException

    model_id = (source or "").removeprefix("models:/")
    if not MODEL_ID.fullmatch(model_id):
        return False
    with suppress(MlflowException):  # the LoggedModel may have been deleted
        return "b3.audit_run_id" in client.get_logged_model(model_id).tags
    return False


def read_audit(audit_run_id: str) -> AuditReport:
    """Return the report of a recorded audit, with the influence of each cluster if recorded."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = download_artifacts(artifact_uri=f"runs:/{audit_run_id}/b3", dst_path=folder)
            return load_report(path)
    except (MlflowException, OSError, InputError) as error:
        raise_if_unreachable(error)
        raise TrackingError(f"the audit of run {audit_run_id} cannot be read: {error}") from error
