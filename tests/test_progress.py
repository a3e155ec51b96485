"""What a person sees while refits run."""

import io
import sys

import pytest
from learners import Patient

from mlflow_b3 import audit, make_clinic
from mlflow_b3.measurement import progress

SUBJECT = {"target": "disease", "cluster": "patient_id"}
SMALL = {"folds": 3, "repeats": 1, "budget": 100}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(progress, "SHARE", 1.0)
    return screen


@pytest.fixture(scope="module")
def clinic():
    return make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame


@pytest.mark.parametrize(
    ("known", "told"),
    [({"cluster_error": 0.1}, "e0 0."), ({"split_rate": 0.3}, "e0 "), ({}, "loco 0.")],
)
def test_refits_time_and_the_current_estimate_are_shown(clinic, terminal, known, told):
    audit(Patient(), clinic, **SUBJECT, **SMALL, **known, progress=True)
    *_, last = [line for line in terminal.getvalue().split("\r") if line.strip()]
    assert "99/99" in last
    assert told in last
    assert " to " in last, "the interval"


def test_the_number_of_refits_is_that_of_the_budget_from_the_beginning(clinic, terminal):
    audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1, progress=True)
    totals = {
        line.split("/")[1].split(" ")[0] for line in terminal.getvalue().split("\r") if "/" in line
    }
    assert totals <= {"99", "100"}


def test_looking_changes_no_number(clinic, terminal):  # noqa: ARG001
    shown = audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1, progress=True)
    assert shown == audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1, progress=False)


def test_nothing_is_shown_where_nobody_looks(clinic, capfd):
    audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1)
    assert capfd.readouterr().err == ""
