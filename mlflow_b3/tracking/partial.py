"""Audits that the user stopped, in MLflow: in a run of their own, and nowhere else."""

from mlflow_b3.errors import InterruptedAudit
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.active_model import without_active_model
from mlflow_b3.tracking.files import files_of
from mlflow_b3.tracking.metrics import parameters_of
from mlflow_b3.tracking.runs import LONGEST_NAME, AuditRun, tracking_errors
from mlflow_b3.tracking.writing import log_files, log_scalars


def write_part(report: AuditReport, run: AuditRun) -> None:
    """Write what a stopped audit knows to its own run, which ends as killed.

    The audited model and its run show nothing of it, it supersedes no audit and leaves no evidence:
    who watches the estimate can stop when it pleases.
    """
    from mlflow import MlflowClient

    client = MlflowClient()
    with tracking_errors("the part of the audit that was made", report), without_active_model():
        name = f"{client.get_run(run.id).info.run_name} stopped"
        tags = {
            "b3.partial": "true",
            "b3.error": told(report),
            "mlflow.runName": name[:LONGEST_NAME],
        }
        log_files(client, run.id, files_of(report))
        log_scalars(client, run.id, report, tags, parameters_of(report))
        if run.own:
            client.set_terminated(run.id, status="KILLED")


def require_whole(report: AuditReport) -> None:
    """Raise an `InterruptedAudit` for a part, where only a whole audit will do."""
    if report.partial:
        raise InterruptedAudit(told(report))


def told(report: AuditReport) -> str:
    """Return that an audit was stopped, and when."""
    assert report.refits is not None
    done, planned = report.refits.done, report.refits.planned
    return f"the audit of {report.settings.model} was stopped after {done} of {planned} refits."
