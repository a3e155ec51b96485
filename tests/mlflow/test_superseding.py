"""Audits that end at the same time mark each other as superseded."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from mlflow_b3.tracking.shown_on_models import supersede_older


def audit(run_id, end_time):
    tags = {"b3.status": "current"}
    info = SimpleNamespace(run_id=run_id, end_time=end_time, run_name="audit", start_time=0)
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags))


class Client:
    """Refuses a tag the first times, as a store does to the second of two inserts."""

    def __init__(self, refusals, message="(sqlite3.IntegrityError) UNIQUE constraint failed"):
        self.refusals, self.message, self.tags = refusals, message, {}

    def set_tag(self, run_id, key, value):
        if key == "b3.superseded_by" and self.refusals:
            self.refusals -= 1
            raise MlflowException(self.message)
        self.tags[run_id, key] = value

    def update_run(self, run_id, name):
        self.tags[run_id, "name"] = name


def test_a_tag_that_another_audit_sets_at_the_same_moment_is_set_again():
    client = Client(refusals=1)
    old, new = audit("old", 1), audit("new", 2)
    assert supersede_older(client, [old, new], new)
    assert client.tags["old", "b3.superseded_by"] == "new"
    assert client.tags["old", "b3.status"] == "superseded"


@pytest.mark.parametrize("client", [Client(9), Client(1, "no such run")])
def test_other_errors_and_lasting_ones_are_not_hidden(client):
    old, new = audit("old", 1), audit("new", 2)
    with pytest.raises(MlflowException):
        supersede_older(client, [old, new], new)
