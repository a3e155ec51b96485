"""Which audit of a model is its newest one: those before it are marked as superseded."""

from collections.abc import Sequence
from typing import Any

from mlflow_b3.tracking.audits import tried_audits
from mlflow_b3.tracking.runs import LONGEST_NAME

CURRENT, SUPERSEDED = "current", "superseded"


def audits_before(client: Any, child: str, subject: str) -> list[Any]:
    """Return the runs of the audits that a new one of the same model supersedes.

    They may be in any experiment: an evaluation leaves its audit in one of its own.

    Parameters
    ----------
    client : MlflowClient
    child : str
        The new audit's own run.
    subject : str
        The audited model, as in the tag `b3.subject`.
    """
    return [
        run
        for run in tried_audits(client, subject)
        if run.info.run_id != child
        and run.data.tags.get("b3.status") == CURRENT
        and run.info.lifecycle_stage == "active"
    ]


def become_current(client: Any, child: str, earlier: Sequence[Any]) -> None:
    """Mark an audit as the newest of its model, and those before it as superseded."""
    superseded = ", ".join(run.info.run_id for run in earlier)
    client.set_tag(child, "b3.supersedes", superseded or "none")
    client.set_tag(child, "b3.status", CURRENT)
    for run in earlier:
        _supersede(client, run, child)


def _supersede(client: Any, run: Any, successor: str) -> None:
    """Mark an audit as no longer the newest, where everyone can see it; its numbers stay."""
    run_id = run.info.run_id
    client.set_tag(run_id, "b3.status", SUPERSEDED)
    client.set_tag(run_id, "b3.superseded_by", successor)
    note = run.data.tags.get("mlflow.note.content", "")
    told = f"**Superseded** by the audit of run `{successor}`.\n\n{note}"
    client.set_tag(run_id, "mlflow.note.content", told)
    client.update_run(run_id, name=f"{run.info.run_name} {SUPERSEDED}"[:LONGEST_NAME])
