"""Policies and evidence that tests may change."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from mlflow_b3 import Policy
from mlflow_b3.evidence.document import Evidence
from mlflow_b3.evidence.policy import Pin, load_policy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4
EVIDENCE = Evidence(
    issued_at=NOW.isoformat(),
    audit_run_id="a" * 32,
    model_id="m-1",
    run_id="r1",
    source="models:/m-1",
    model_digest=DIGEST,
    model_files={"MLmodel": DIGEST, "data/model.skops": DIGEST},
    data_digest="d" * 36,
    rows_digest="e" * 16,
    folds_digest="f" * 16,
    files={"audit.json": DIGEST},
    settings={"b3/seed": "0"},
    results={"b3/e0": 0.25, "b3/fits": 100.0, "b3/seen_share": None},
    tags={"b3.p0_source": "cluster_error"},
    packages={"mlflow-b3": "0.1.0"},
    policy_hash=DIGEST,
)


def policy(**changes: Any) -> Policy:
    """Return the default policy, which pins nothing here, with some of its values changed."""
    return replace(load_policy(), **{"pins": (Pin(models="*"),), **changes})


def lenient(**changes: Any) -> Policy:
    """Return a policy that small audits pass: a wide interval is below its limit."""
    return policy(**{"e0_high": 0.9, "signed": False, **changes})


def evidence(**changes: Any) -> Evidence:
    """Return the example of an audit's evidence with some of its content changed."""
    return replace(EVIDENCE, **changes)
