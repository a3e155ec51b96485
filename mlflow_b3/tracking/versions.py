"""Shows an audit on the page of a registered model version, which has no metrics of its own."""

import json
from contextlib import suppress
from typing import Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.refit.loading import registered_version
from mlflow_b3.refit.model_files import matching, resolve_source
from mlflow_b3.reporting.layout import escaped
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.wording import number

#: How our descriptions begin; others are not ours to replace.
OPENING = "**Leakage audit.**"
#: What a gate has said, with the policy and the time; a newer audit takes it away.
VERDICT = "b3.verdict"


def version_tags(report: AuditReport, tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of a registered version: those of the audit, and its main numbers."""
    low, high = report.e0_interval
    full = report.settings.refit_strength == "full"
    return {
        **tags,
        "b3.e0": number(report.e0 if full else None),
        "b3.e0_interval": f"{number(low)} or more"
        if high is None
        else f"{number(low)} to {number(high)}",
        "b3.loco": number(report.loco),
        "b3.iid": number(report.iid),
    }


def show_on_versions(
    client: Any, report: AuditReport, audit_run_id: str, tags: dict[str, str]
) -> None:
    """Write tags, and a description where there is none, to the versions of the audited model."""
    experiment = client.get_run(audit_run_id).info.experiment_id
    page = f"#/experiments/{experiment}/runs/{audit_run_id}/artifacts/b3/report.html"
    text = f"{OPENING} {escaped(explain(report)[0])} [Report]({page})"
    for name, version in _versions(client, report):
        # the run first: a server that guards these tags looks for the evidence there
        for key, value in sorted(tags.items(), key=lambda tag: tag[0] != "b3.audit_run_id"):
            client.set_model_version_tag(name, version, key, value)
        shown = client.get_model_version(name, version)
        if VERDICT in shown.tags:  # of an older audit
            client.delete_model_version_tag(name, version, VERDICT)
        known = shown.description or ""
        if not known or known.startswith(OPENING):
            client.update_model_version(name, version, description=text)


def _versions(client: Any, report: AuditReport) -> list[tuple[str, str]]:
    """Return the version that was audited, and all others that are the same LoggedModel.

    MLflow's list of them is a tag that anybody can write, and leaves out copies.
    """
    from mlflow.exceptions import MlflowException

    settings = report.settings
    own = registered_version(settings.uri)
    found = {} if own is None else {own: None}
    if settings.model_id is None:
        return list(found)
    waiting = [f"models:/{settings.model_id}", *(f"models:/{n}/{v}" for n, v in found)]
    listed = client.get_logged_model(settings.model_id).tags.get("mlflow.modelVersions", "[]")
    with suppress(ValueError, TypeError, KeyError, MlflowException, EvidenceError):
        for name, version in dict.fromkeys(
            (v["name"], str(v["version"])) for v in json.loads(listed)
        ):
            uri = f"models:/{name}/{version}"
            with suppress(MlflowException, EvidenceError):  # it still names those that were deleted
                if resolve_source(client, uri).model_id == settings.model_id:
                    found[name, version] = None
                    waiting.append(uri)
    while waiting:
        source = waiting.pop()
        for copy in client.search_model_versions(f"source_path {matching(source)}"):
            key = (copy.name, str(copy.version))
            if copy.source == source and key not in found:
                found[key] = None
                waiting.append("models:/" + "/".join(key))
    return list(found)
