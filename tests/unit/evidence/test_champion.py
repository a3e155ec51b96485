"""The champion: a candidate is held against it in pairs, and noise is no difference."""

from dataclasses import replace

import pytest
from example_reports import changed
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3.evidence.verdict import judge_champion

LEARNERS = {
    "nearest": KNeighborsClassifier(5),
    "copy": KNeighborsClassifier(5),
    "logistic": LogisticRegression(),
    "stump": DecisionTreeClassifier(max_depth=1, random_state=0),
}


@pytest.fixture(scope="module")
def reports():
    clinic = b3.make_clinic(patients=80, records=6, cluster_error=0.1, seed=5)
    options = {"target": "disease", "cluster": "patient_id", "progress": False, "n_jobs": 1}
    options |= {"cluster_error": (0.05, 0.15), "budget": 150, "repeats": 1}
    return {name: b3.audit(model, clinic.frame, **options) for name, model in LEARNERS.items()}


@pytest.fixture(scope="module")
def better(reports):
    """Return an audit that is better than another one beyond noise, and the other one."""
    nearest = reports["nearest"]
    return moved(nearest, -0.15), nearest


def moved(report, by):
    """Return a report whose e0 is another, cluster by cluster the same: the difference is sure."""
    readings = tuple(
        replace(r, e0=r.e0 + by, low=r.low + by, high=r.high + by) for r in report.readings
    )
    low, high = report.e0_interval
    return changed(report, e0=report.e0 + by, e0_interval=(low + by, high + by), readings=readings)


@pytest.mark.parametrize("rule", ["not_worse", "better"])
def test_a_candidate_that_is_better_beyond_noise_passes(better, rule):
    candidate, champion = better
    reason = judge_champion(rule, candidate, champion)
    assert (reason.check, reason.outcome) == ("champion", "PASS")
    assert reason.text.startswith("this version is better by 0.150")
    assert reason.text.endswith("beyond noise")


@pytest.mark.parametrize("rule", ["not_worse", "better"])
def test_a_candidate_that_is_worse_beyond_noise_fails(better, rule):
    champion, candidate = better
    reason = judge_champion(rule, candidate, champion)
    assert reason.outcome == "FAIL"
    assert reason.text.startswith("the champion is better by 0.150")


@pytest.mark.parametrize(
    ("rule", "outcome", "waivable"),
    [("not_worse", "PASS", False), ("better", "INCONCLUSIVE", True)],
)
def test_what_is_within_the_noise_is_not_worse_and_not_better(reports, rule, outcome, waivable):
    reason = judge_champion(rule, reports["nearest"], reports["copy"])
    assert (reason.outcome, reason.waivable) == (outcome, waivable)
    assert "which is within the noise" in reason.text


def test_real_learners_are_told_apart_only_beyond_noise(reports):
    names = ("nearest", "logistic", "stump")
    outcomes = {
        (a, b): judge_champion("not_worse", reports[a], reports[b]).outcome
        for a in names
        for b in names
    }
    for (a, b), outcome in outcomes.items():
        assert not (outcome == "FAIL" and outcomes[b, a] == "FAIL")
        assert outcome in ("PASS", "FAIL")


@pytest.mark.parametrize(
    "changes",
    [{"rows_digest": "another table"}, {"claim": (0.0, 0.01)}, {"method": "basis"}],
    ids=["rows", "leakage", "method"],
)
def test_audits_that_were_not_made_together_decide_nothing(better, changes):
    candidate, champion = better
    other = changed(champion, settings=changes)
    reason = judge_champion("not_worse", candidate, other)
    assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", True)
    assert "not audited together" in reason.text


def test_audits_with_different_losses_decide_nothing(better):
    candidate, champion = better
    other = changed(champion, settings={"loss": "log"})
    reason = judge_champion("not_worse", candidate, other)
    assert reason.outcome == "INCONCLUSIVE"
    assert "cannot be compared with the champion" in reason.text


def test_without_e0_nothing_is_decided(better):
    candidate, champion = better
    for pair in ((changed(candidate, e0=None), champion), (candidate, changed(champion, e0=None))):
        reason = judge_champion("not_worse", *pair)
        assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", True)


def test_a_lower_bound_decides_nothing(better):
    candidate, champion = better
    settings = {"refit_strength": "lower-bound"}
    partial = changed(candidate, settings=settings, e0_interval=(0.1, None))
    assert judge_champion("not_worse", partial, champion).outcome == "INCONCLUSIVE"


def test_without_what_each_cluster_adds_nothing_is_paired(better):
    candidate, champion = better
    reason = judge_champion("not_worse", replace(candidate, influence=None), champion)
    assert reason.outcome == "INCONCLUSIVE"
