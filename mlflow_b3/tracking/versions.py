"""Shows an audit on the page of a registered model version, which has no metrics of its own."""

from typing import Any

from mlflow_b3.refit.loading import registered_version
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.wording import number

#: How our descriptions begin; others are not ours to replace.
OPENING = "**Leakage audit.**"


def show_on_version(
    client: Any, report: AuditReport, audit_run_id: str, tags: dict[str, str]
) -> None:
    """Write tags, and a description where there is none, to the version that was audited.

    A model that was named by its run or by its id belongs to no version in particular.
    """
    place = registered_version(report.settings.uri)
    if place is None:
        return
    name, version = place
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
    for key, value in {**tags, **values}.items():
        client.set_model_version_tag(name, version, key, value)
    known = client.get_model_version(name, version).description or ""
    if not known or known.startswith(OPENING):
        experiment = client.get_run(audit_run_id).info.experiment_id
        page = f"#/experiments/{experiment}/runs/{audit_run_id}/artifacts/b3/report.html"
        text = f"{OPENING} {explain(report)[0]} [Report]({page})"
        client.update_model_version(name, version, description=text)
