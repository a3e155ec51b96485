"""Finds recorded audits in MLflow and reads them back."""

import re
from dataclasses import replace
from typing import Any

from mlflow_b3.errors import TrackingError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.refit.loading import model_info
from mlflow_b3.reporting.report import AuditReport

RUN_ID = re.compile(r"[0-9a-f]{32}")
MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
MOST_AUDITS = 200


def find_audit(client: Any, reference: str) -> str:
    """Return the run of the newest audit of a model.

    Parameters
    ----------
    client : MlflowClient
    reference : str
        A model URI, the id of a LoggedModel, the id of the run that trained it, or that of an audit.
    """
    from mlflow.exceptions import MlflowException

    try:
        tags = _tags(client, reference)
    except MlflowException as error:
        raise TrackingError(f"{reference!r} was not found: {error}") from error
    if "b3.audit_run_id" not in tags:
        raise TrackingError(
            f"{reference!r} has no audit. Audit it first, or give data, target and cluster so that "
            "all models are audited together."
        )
    return str(tags["b3.audit_run_id"])


def _tags(client: Any, reference: str) -> dict[str, str]:
    if RUN_ID.fullmatch(reference):
        return dict(client.get_run(reference).data.tags)
    if MODEL_ID.fullmatch(reference):
        reference = f"models:/{reference}"
    info = model_info(reference)
    tags: dict[str, str] = {}
    if info.run_id:
        tags.update(client.get_run(info.run_id).data.tags)
    if info.model_id:
        tags.update(client.get_logged_model(info.model_id).tags)
    return tags


def current_audits(client: Any, experiment: str) -> list[str]:
    """Return the runs of the newest audit of each model of an experiment, given by name or id."""
    found = client.get_experiment_by_name(experiment)
    if found is None and experiment.isdigit():
        from mlflow.exceptions import MlflowException

        try:
            found = client.get_experiment(experiment)
        except MlflowException:
            found = None
    if found is None:
        raise TrackingError(f"experiment={experiment!r} was not found.")
    runs = client.search_runs(
        [found.experiment_id],
        "tags.`b3.status` = 'current' and attributes.status = 'FINISHED'",
        max_results=MOST_AUDITS,
        order_by=["attributes.start_time DESC"],
    )
    if not runs:
        raise TrackingError(f"experiment={experiment!r} has no audits.")
    return [run.info.run_id for run in runs]


def audited_versions(client: Any, name: str) -> list[str]:
    """Return the URIs of the versions of a registered model that have been audited."""
    versions = client.search_model_versions(f"name = '{name}'")
    uris = [
        f"models:/{name}/{version.version}"
        for version in sorted(versions, key=lambda v: int(v.version))
        if version.tags.get("b3.audit_run_id")
    ]
    if not uris:
        raise TrackingError(f"the registered model {name!r} has no audited version.")
    return uris


def read_audit(audit_run_id: str) -> AuditReport:
    """Return the report of a recorded audit, with what each cluster adds where that was recorded."""
    from mlflow.artifacts import download_artifacts, list_artifacts
    from mlflow.exceptions import MlflowException

    try:
        folder = f"runs:/{audit_run_id}/b3"
        names = {file.path.rpartition("/")[2] for file in list_artifacts(artifact_uri=folder)}

        def read(name: str) -> str:
            path = download_artifacts(artifact_uri=f"{folder}/{name}")
            with open(path, encoding="utf-8") as file:
                return file.read()

        report = AuditReport.from_json(read("audit.json"))
        if "influence.csv" in names:
            report = replace(report, influence=Influence.from_csv(read("influence.csv")))
    except (MlflowException, OSError, ValueError, TypeError, KeyError) as error:
        raise TrackingError(
            f"the audit of run {audit_run_id} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return report
