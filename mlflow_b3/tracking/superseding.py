"""An audit is its model's newest one: those before it are marked as superseded.

MLflow has no locks, and several audits of one model may end at the same time. So the order of audits
does not depend on who writes last: it is that of the ends of their runs, which everybody can read.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from mlflow_b3.tracking.audits import NO_EVIDENCE, tried_audits
from mlflow_b3.tracking.runs import LONGEST_NAME

CURRENT, SUPERSEDED = "current", "superseded"
NONE = "none"
_OPENING = "**Superseded**"


def order(run: Any) -> tuple[float, str]:
    """Return where an audit's run is in the order of audits; `mlflow run` ends its own later."""
    ended = run.info.end_time
    return (float("inf") if ended is None else float(ended), run.info.run_id)


def newest(runs: Iterable[Any]) -> Any | None:
    """Return the newest of some audits' runs; None where there are none."""
    return max(runs, key=order, default=None)


def recorded_audits(client: Any, subject: str) -> list[Any]:
    """Return the runs of a model's audits that came to their end and were not deleted.

    They may be in any experiment: an evaluation leaves its audit in one of its own.

    Parameters
    ----------
    client : MlflowClient
    subject : str
        The audited model, as in the tag `b3.subject`.
    """
    return [run for run in tried_audits(client, subject) if is_recorded(run)]


def is_recorded(run: Any) -> bool:
    """Return whether a run is that of an audit which came to its end and was not deleted."""
    return "b3.status" in run.data.tags and run.info.lifecycle_stage == "active"


def is_current(run: Any) -> bool:
    """Return whether the run of a recorded audit is the newest of its model, or may be."""
    return bool(run.data.tags["b3.status"] == CURRENT)


def is_on_model(run: Any) -> bool:
    """Return whether an audit is shown on its model, not on another run only."""
    return bool(run.data.tags.get("b3.evidence") != NO_EVIDENCE)


def end_after(earlier: Iterable[Any]) -> int:
    """Return a time for the end of an audit, after that of others also where their clocks differ."""
    ends: list[int] = [run.info.end_time + 1 for run in earlier if run.info.end_time is not None]
    return max(int(time.time() * 1000), *ends, 0)


def supersede_older(client: Any, audits: Sequence[Any], successor: Any) -> bool:
    """Mark all audits of a model but the newest as superseded; return whether there was one."""
    older = [run for run in audits if order(run) < order(successor) and is_current(run)]
    for run in older:
        _supersede(client, run, successor.info.run_id)
    before = [
        run.info.run_id
        for run in audits
        if run in older or run.data.tags.get("b3.superseded_by") == successor.info.run_id
    ]
    told = ", ".join(before) or NONE
    if successor.data.tags.get("b3.supersedes") == told:
        return bool(older)
    client.set_tag(successor.info.run_id, "b3.supersedes", told)
    return True


def _supersede(client: Any, run: Any, successor: str) -> None:
    """Mark an audit as no longer the newest, where everyone can see it; its numbers stay."""
    run_id = run.info.run_id
    client.set_tag(run_id, "b3.superseded_by", successor)
    note = run.data.tags.get("mlflow.note.content", "")
    if not note.startswith(_OPENING):  # another audit may be saying the same at this moment
        told = f"{_OPENING} by the audit of run `{successor}`.\n\n{note}"
        client.set_tag(run_id, "mlflow.note.content", told)
    if not run.info.run_name.endswith(SUPERSEDED):
        client.update_run(run_id, name=f"{run.info.run_name} {SUPERSEDED}"[:LONGEST_NAME])
    client.set_tag(run_id, "b3.status", SUPERSEDED)
