"""Which audit of a model is its newest one: those before it are marked as superseded."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.audits import matching
from mlflow_b3.tracking.runs import LONGEST_NAME
from mlflow_b3.tracking.versions import audits_on_versions

CURRENT, SUPERSEDED = "current", "superseded"


def audits_shown(client: Any, report: AuditReport, shown_on: Sequence[str]) -> list[str]:
    """Return the runs of the audits that a model, its versions and these runs show now.

    To be asked before they show another one. An evaluation may have left an older audit in an
    experiment of its own, which nothing but these tags tells.
    """
    from mlflow.exceptions import MlflowException

    places = [client.get_run(run_id).data.tags for run_id in shown_on]
    if report.settings.model_id is not None:
        places.append(client.get_logged_model(report.settings.model_id).tags)
    found = [tags["b3.audit_run_id"] for tags in places if "b3.audit_run_id" in tags]
    with suppress(MlflowException):  # a registry that cannot be asked is no reason to lose an audit
        found += audits_on_versions(client, report)
    return list(dict.fromkeys(found))


def audits_before(
    client: Any, child: str, subject: str, shown_on: Sequence[str], shown_before: Iterable[str]
) -> list[Any]:
    """Return the runs of the audits that a new one of the same model supersedes.

    Parameters
    ----------
    client : MlflowClient
    child : str
        The new audit's own run.
    subject : str
        The audited model, as in the tag `b3.subject`.
    shown_on : sequence of str
        The runs that show the new audit; older ones are looked for in their experiments.
    shown_before : iterable of str
        What `audits_shown` returned.
    """
    if subject == "none":
        return []
    runs = [client.get_run(run_id) for run_id in (child, *shown_on)]
    experiments = list(dict.fromkeys(run.info.experiment_id for run in runs))
    filters = f"tags.`b3.subject` {matching(subject)} and tags.`b3.status` = '{CURRENT}'"
    in_experiments = client.search_runs(experiments, filters)
    found = [run for run in in_experiments if run.data.tags["b3.subject"] == subject]
    found += _still_current(client, subject, shown_before)
    return list({run.info.run_id: run for run in found if run.info.run_id != child}.values())


def become_current(client: Any, child: str, earlier: Sequence[Any]) -> None:
    """Mark an audit as the newest of its model, and those before it as superseded."""
    superseded = ", ".join(run.info.run_id for run in earlier)
    client.set_tag(child, "b3.supersedes", superseded or "none")
    client.set_tag(child, "b3.status", CURRENT)
    for run in earlier:
        _supersede(client, run, child)


def _still_current(client: Any, subject: str, run_ids: Iterable[str]) -> list[Any]:
    """Return those of some audits that are of this model and have not been deleted."""
    from mlflow.exceptions import MlflowException

    found = []
    for run_id in run_ids:
        with suppress(MlflowException):  # removed for good
            run = client.get_run(run_id)
            own = run.data.tags.get("b3.subject") == subject
            current = run.data.tags.get("b3.status") == CURRENT
            if own and current and run.info.lifecycle_stage == "active":
                found.append(run)
    return found


def _supersede(client: Any, run: Any, successor: str) -> None:
    """Mark an audit as no longer the newest, where everyone can see it; its numbers stay."""
    run_id = run.info.run_id
    client.set_tag(run_id, "b3.status", SUPERSEDED)
    client.set_tag(run_id, "b3.superseded_by", successor)
    note = run.data.tags.get("mlflow.note.content", "")
    told = f"**Superseded** by the audit of run `{successor}`.\n\n{note}"
    client.set_tag(run_id, "mlflow.note.content", told)
    client.update_run(run_id, name=f"{run.info.run_name} {SUPERSEDED}"[:LONGEST_NAME])
