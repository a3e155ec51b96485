"""What a person sees while refits run."""

import io
import sys

import pytest
from learners import Patient

from mlflow_b3 import audit, make_clinic
from mlflow_b3.measurement import runner

SUBJECT = {"target": "disease", "cluster": "patient_id"}
SMALL = {"folds": 3, "repeats": 1, "budget": 100}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def watched(monkeypatch):
    """Audit on a terminal, and look at the estimate all the time; return the report and the lines."""

    def run(clinic, **options):
        screen = Terminal()
        with monkeypatch.context() as patch:  # not in the fixture: pytest itself replaces stderr
            patch.setattr(sys, "stderr", screen)
            patch.setattr(runner, "SECONDS_BETWEEN_LOOKS", 0.0)
            patch.setattr(runner, "SHARE", 1.0)
            report = audit(Patient(), clinic, **SUBJECT, **SMALL, **options, progress=True)
        return report, [line for line in screen.getvalue().split("\r") if line.strip()]

    return run


@pytest.fixture(scope="module")
def clinic():
    return make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame


@pytest.mark.parametrize(
    ("known", "told"),
    [({"cluster_error": 0.1}, "e0 0."), ({"split_rate": 0.3}, "e0 "), ({}, "loco 0.")],
)
def test_refits_time_and_the_current_estimate_are_shown(clinic, watched, known, told):
    report, (*_, last) = watched(clinic, **known)
    assert f"{report.settings.fits}/{report.settings.fits}" in last
    assert told in last
    assert " to " in last, "the interval"


def test_the_number_of_refits_is_that_of_the_budget_from_the_beginning(clinic, watched):
    report, lines = watched(clinic, cluster_error=0.1, method="power")
    totals = {line.split("/")[1].split(" ")[0] for line in lines if "/" in line}
    assert totals <= {str(report.settings.fits), "100"}


def test_by_doses_the_number_of_refits_is_known_from_the_beginning(clinic, watched):
    report, lines = watched(clinic, cluster_error=0.1, method="dose")
    totals = {line.split("/")[1].split(" ")[0] for line in lines if "/" in line}
    assert totals == {str(report.settings.fits)}


def test_looking_changes_no_number(clinic, watched):
    shown = watched(clinic, cluster_error=0.1)[0]
    assert shown == audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1, progress=False)


def test_nothing_is_shown_where_nobody_looks(clinic, capfd):
    audit(Patient(), clinic, **SUBJECT, **SMALL, cluster_error=0.1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("method", "names"),
    [("dose", {"Scores", "Loss by dose"}), ("power", {"Scores", "Loss curve"})],
)
def test_the_bar_is_named_after_what_the_refits_are_for(clinic, watched, method, names):
    _, lines = watched(clinic, cluster_error=0.1, method=method)
    assert {line.split(":")[0] for line in lines} - {"Refits"} == names
