"""The list of checks: who asks for what, and that nothing which goes wrong passes."""

from types import SimpleNamespace

import pytest

from mlflow_b3 import EvidenceError
from mlflow_b3.evidence.document import digest
from mlflow_b3.gating import attesting, checks
from mlflow_b3.gating.checks import Check, Record, require


def record(**changes) -> Record:
    parts = {"archive": None, "run": None, "source": None, "evidence": None}
    return Record(**(parts | changes))


def test_who_asks_for_what():
    """To take a check out of a list is a decision, not a slip."""
    assert (
        *(checks.subject, checks.run_metrics, checks.run_tags, checks.input_table, checks.times),
    ) == checks.CONFIRMED
    assert (checks.version_tags, checks.active_run, checks.curves) == checks.RELIED_ON
    assert [each.name for each in checks.VERIFIED] == [
        *("evidence", "model_files", "audit_files", "metrics", "settings", "tags", "data"),
    ]
    assert [[each.name for each in stage] for stage in attesting.STAGES] == [
        ["evidence", "model_files", "audit_files", "metrics", "settings", "measured_at"],
        ["report"],
        ["data"],
        ["table_facts", "folds"],
        ["measurements", "conclusions"],
        ["preregistered"],
    ]


@pytest.mark.parametrize("each", [*checks.CONFIRMED, *checks.RELIED_ON, *checks.VERIFIED])
def test_what_cannot_be_read_fails(each):
    assert each(record()).outcome == "FAIL"
    with pytest.raises(AttributeError):
        require(record(), [each])


def test_the_words_of_a_failure_are_those_of_the_error():
    def find(_: Record) -> str:
        raise EvidenceError("it is of another model")

    reason = Check("evidence", find)(record())
    assert (reason.check, reason.outcome) == ("evidence", "FAIL")
    assert reason.text == "it is of another model"
    with pytest.raises(EvidenceError, match="it is of another model"):
        require(record(), [Check("evidence", find)])


def test_a_file_of_the_audit_is_read_by_its_digest_only():
    """Who swaps a file after it was compared must not have the other one believed."""
    archive = SimpleNamespace(read=lambda *_: b"swapped")
    evidence = SimpleNamespace(files={"audit.json": digest(b"written")})
    found = record(archive=archive, evidence=evidence)
    for name in ("audit.json", "added.csv"):
        with pytest.raises(EvidenceError, match=f"'{name}' was changed after it was written"):
            found.read(name)
