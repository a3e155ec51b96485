"""Where audits and comparisons are found in MLflow's UI."""

from urllib.parse import urlsplit, urlunsplit

from mlflow_b3.comparing import Comparison
from mlflow_b3.tracking.views import compare_link, view_links


def where_to_look(run_id: str) -> str:
    """Return where an audit is found in MLflow's UI."""
    from mlflow import MlflowClient

    client = MlflowClient()
    run = client.get_run(run_id)
    experiment = run.info.experiment_id
    page = f"#/experiments/{experiment}/runs/{run_id}"
    places = {}
    if parent := run.data.tags.get("mlflow.parentRunId"):
        where = client.get_run(parent).info.experiment_id
        places["the audited run"] = f"#/experiments/{where}/runs/{parent}"
    places["this audit"] = page
    places["its report"] = f"{page}/artifacts/b3/report.html"
    places["all audits"] = view_links(experiment)["table"]
    return _listed(places)


def where_to_compare(comparison: Comparison, run_id: str) -> str:
    """Return where a comparison, and the audits that it is of, are found in MLflow's UI."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_run(run_id).info.experiment_id
    audits = [c.audit_run_id for c in comparison.contenders if c.audit_run_id]
    experiments = dict.fromkeys(client.get_run(audit).info.experiment_id for audit in audits)
    page = f"#/experiments/{experiment}/runs/{run_id}"
    places = {"this comparison": f"{page}/artifacts/b3/comparison.html"}
    if len(audits) > 1:
        places["side by side"] = compare_link(audits, list(experiments))
    places |= {f"all audits, {what}": link for what, link in view_links(experiment).items()}
    return _listed(places)


def _listed(places: dict[str, str]) -> str:
    import mlflow

    uri = _without_password(mlflow.get_tracking_uri())
    lines = ["Where to look in MLflow"]
    width = max(map(len, [*places, "start the UI"])) + 1
    if not uri.startswith("http"):
        lines.append(f"  {'start the UI:':<{width}}  mlflow ui --backend-store-uri {uri}")
        uri = "http://127.0.0.1:5000"
    lines += [f"  {what + ':':<{width}}  {uri.rstrip('/')}/{link}" for what, link in places.items()]
    return "\n".join(lines)


def _without_password(uri: str) -> str:
    """Return an address that can be shown to others: without user and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in uri else uri
