"""Shows an audit on the page of a registered model version, which has no metrics of its own."""

import json
from contextlib import suppress
from typing import Any

from mlflow_b3.refit.loading import registered_version
from mlflow_b3.reporting.layout import escaped
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.wording import number

#: How our descriptions begin; others are not ours to replace.
OPENING = "**Leakage audit.**"


def show_on_versions(
    client: Any, report: AuditReport, audit_run_id: str, tags: dict[str, str]
) -> None:
    """Write tags, and a description where there is none, to the versions of the audited model."""
    low, high = report.e0_interval
    full = report.settings.refit_strength == "full"
    values = {
        "b3.e0": number(report.e0 if full else None),
        "b3.e0_interval": f"{number(low)} or more"
        if high is None
        else f"{number(low)} to {number(high)}",
        "b3.loco": number(report.loco),
        "b3.iid": number(report.iid),
    }
    experiment = client.get_run(audit_run_id).info.experiment_id
    page = f"#/experiments/{experiment}/runs/{audit_run_id}/artifacts/b3/report.html"
    text = f"{OPENING} {escaped(explain(report)[0])} [Report]({page})"
    for name, version in _versions(client, report):
        for key, value in {**tags, **values}.items():
            client.set_model_version_tag(name, version, key, value)
        known = client.get_model_version(name, version).description or ""
        if not known or known.startswith(OPENING):
            client.update_model_version(name, version, description=text)


def _versions(client: Any, report: AuditReport) -> list[tuple[str, str]]:
    """Return the version that was audited, and all others that are the same LoggedModel."""
    from mlflow.exceptions import MlflowException

    settings = report.settings
    own = registered_version(settings.uri)
    found = {} if own is None else {own: None}
    if settings.model_id is not None:
        listed = client.get_logged_model(settings.model_id).tags.get("mlflow.modelVersions", "[]")
        for name, version in {(v["name"], str(v["version"])) for v in json.loads(listed)}:
            with suppress(MlflowException):  # the list still names versions that were deleted
                client.get_model_version(name, version)
                found[name, version] = None
    return list(found)


def audits_on_versions(client: Any, report: AuditReport) -> list[str]:
    """Return the runs of the audits that the versions of the audited model show now."""
    shown = [client.get_model_version(*version).tags for version in _versions(client, report)]
    return [tags["b3.audit_run_id"] for tags in shown if "b3.audit_run_id" in tags]
