"""What the server gate has decided: one JSON object a line."""

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from mlflow_b3.errors import InputError

#: The path of a file that every decision is appended to.
GATE_LOG = "MLFLOW_B3_GATE_LOG"
LOGGER = logging.getLogger("mlflow_b3.gate")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asked for what.

    Attributes
    ----------
    actor : str or None
        The user, where the server knows its users.
    remote : str or None
        The address that the request came from.
    route : str
        Method and path.
    """

    actor: str | None
    remote: str | None
    route: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision of the gate.

    Attributes
    ----------
    event : str
        What was asked for: "alias", "stage", "rename", "tag", "files" …
    model, version : str or None
    target : str or None
        The alias, stage, name, tag or file.
    outcome : str
        The verdict, or REFUSED where none was needed.
    allowed : bool
    reasons : sequence of str
    policy_hash : str
    audit_run_id : str or None
    """

    event: str
    model: str | None
    version: str | None
    target: str | None
    outcome: str
    allowed: bool
    reasons: Sequence[str]
    policy_hash: str
    audit_run_id: str | None = None


def log_to_stderr() -> None:
    """Let decisions be seen where a server's other messages are, each as it is."""
    if not LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def check_log_file() -> None:
    """Refuse a file for decisions that cannot be written."""
    path = os.environ.get(GATE_LOG)
    try:
        if path:
            _append(path, "")
    except OSError as error:
        raise InputError(f"{GATE_LOG}={path!r} cannot be written: {error}") from error


def write_decision(decision: Decision, request: Request) -> None:
    """Log a decision; names in it cannot break out of their line."""
    content = {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **asdict(request),
        **asdict(decision),
    }
    line = json.dumps(content, ensure_ascii=True, default=str)
    LOGGER.info(line)
    path = os.environ.get(GATE_LOG)
    if path:
        try:
            _append(path, f"{line}\n")
        except OSError as error:
            LOGGER.error(json.dumps({"event": "log", "reasons": [str(error)]}))


def _append(path: str, text: str) -> None:
    """Write in one call, so that lines of several workers do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
