"""The checks of routes that write tags of runs: what an audit's run says of itself is written once.

A gate finds later audits of a model by these tags, which MLflow lets everybody change.
"""

import re
from collections.abc import Iterable
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos import service_pb2 as messages
from mlflow.server import handlers

from mlflow_b3.gating.decisions import Request
from mlflow_b3.gating.policy import folded
from mlflow_b3.gating.server_checks import After
from mlflow_b3.gating.server_gate import Gate
from mlflow_b3.gating.server_stores import exists

SUBJECT, AUDIT, COMMITMENT = "b3.subject", "b3.audit_run_id", "b3.commitment"
ONCE = frozenset({SUBJECT, AUDIT, COMMITMENT, "b3.evidence"})
#: What a body must contain to name one of them: as it is, escaped, or in letters and encodings other
#: than ASCII. All others are not even parsed.
_MAY_NAME = re.compile(rb"[bB]3\.|\\u|[\x00\x80-\xff]")


def check_run_tag(gate: Gate, request: Request) -> After | None:
    """Keep a tag of an audit's run from being changed."""
    if _may_name():
        asked = handlers._get_request_message(messages.SetTag())
        run_id = asked.run_id or asked.run_uuid
        _check(gate, request, run_id, [(asked.key, asked.value)])
    return None


def check_run_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep a tag of an audit's run from being removed."""
    if _may_name():
        asked = handlers._get_request_message(messages.DeleteTag())
        _check(gate, request, asked.run_id, [(asked.key, None)])
    return None


def check_run_batch(gate: Gate, request: Request) -> After | None:
    """Keep tags of an audit's run from being changed among others."""
    if _may_name():
        asked = handlers._get_request_message(messages.LogBatch())
        _check(gate, request, asked.run_id, [(tag.key, tag.value) for tag in asked.tags])
    return None


def _may_name() -> bool:
    from flask import request as asked

    return _MAY_NAME.search(asked.get_data(cache=True)) is not None


def _check(
    gate: Gate, request: Request, run_id: str, asked: Iterable[tuple[str, str | None]]
) -> None:
    wanted = [(_once(key), value) for key, value in asked]
    wanted = [(key, value) for key, value in wanted if key]
    run: Any = exists(gate.stores.get_run, run_id) if wanted else None
    if run is None:
        return
    tags = {_once(key) or key: value for key, value in run.data.tags.items()}
    own = run.info.run_id
    if tags.get(AUDIT, own) != own:
        return  # it shows the audits of its model, one after the other, and is none itself
    # Whoever is audited has its subject first, so that what failed was tried all the same.
    begun = SUBJECT in tags
    for key, value in wanted:
        if value == tags.get(key):
            continue
        foreign = key == AUDIT and begun and value != own
        if key in tags or foreign or _both(key, tags):
            raise _written_once(gate, request, key, own)
        if value is not None:
            tags[key] = value


def _both(key: str, tags: dict[str, str]) -> bool:
    """Whether a run would be an audit and a commitment at once."""
    return {AUDIT: COMMITMENT, COMMITMENT: AUDIT}.get(key) in tags


def _once(key: str) -> str:
    """Return which of the tags a key is, in whatever form a database takes for the same; or ""."""
    plain = folded(key).strip()
    return plain if plain in ONCE else ""


def _written_once(gate: Gate, request: Request, key: str, run_id: str) -> MlflowException:
    text = (
        f"the tag {key!r} of run {run_id} says which audit it is: it is written once, by the audit, "
        "and kept. Audit again instead."
    )
    return gate.refuse(request, "run tag", key, text)
