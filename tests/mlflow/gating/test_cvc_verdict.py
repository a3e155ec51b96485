"""Corrected cross-validation at the gate: the limit of e0 holds for CV_c, and what is bound holds."""

import math
from dataclasses import replace

import example_reports
import pytest
from evidence_examples import lenient, policy
from example_reports import changed, corrected, with_cvc
from hypothesis import given
from hypothesis import strategies as st

from mlflow_b3 import Finding, verify
from mlflow_b3.evidence.verdict import (
    Results,
    conclude_reasons,
    is_allowed,
    judge_champion,
    judge_results,
)
from mlflow_b3.gating.gate import CVC_HIGH, remedies

CHECK = "cvc_high"


def report(**changes):
    """Return a report whose e0 is at most 0.34 and CV_c at most 0.33 where 0.45 is the limit."""
    settings = changes.pop("settings", {})
    audit = example_reports.report(settings=settings, constant_loss=0.45)
    return replace(audit, cvc=corrected(**changes))


def found(rules, report):
    (reason,) = [
        each
        for each in judge_results(Results(policy=rules, report=report, model="clinic"))
        if each.check == CHECK
    ]
    return reason


def outcome(rules, report):
    reasons = judge_results(Results(policy=rules, report=report, model="clinic"))
    return conclude_reasons(reasons), is_allowed(rules, reasons)


@pytest.mark.parametrize(
    ("interval", "limit", "expected", "waivable"),
    [
        ((0.19, 0.33), "constant", "PASS", False),
        ((0.19, 0.45), "constant", "PASS", False),
        ((0.19, 0.46), "constant", "INCONCLUSIVE", True),
        ((0.45, 0.46), "constant", "INCONCLUSIVE", True),
        ((0.46, 0.5), "constant", "FAIL", False),
        ((0.19, 0.33), 0.33, "PASS", False),
        ((0.19, 0.33), 0.3, "INCONCLUSIVE", True),
        ((0.19, 0.33), 0.1, "FAIL", False),
        ((0.33, 0.19), 0.5, "FAIL", False),
        ((math.nan, 0.33), 0.5, "FAIL", False),
        ((0.19, math.nan), 0.5, "FAIL", False),
        ((0.19, -math.inf), 0.5, "FAIL", False),
        (None, 0.5, "INCONCLUSIVE", False),
    ],
)
def test_the_upper_end_of_cvc_is_held_against_the_limit_of_e0(interval, limit, expected, waivable):
    seen = found(policy(e0_high=limit), report(interval=interval))
    assert (seen.outcome, seen.waivable) == (expected, waivable)


def test_cvc_itself_must_be_a_number_too():
    assert found(policy(), report(cvc=math.nan)).outcome == "FAIL"


def test_a_withheld_correction_is_open_whatever_the_policy_waives():
    finding = Finding(code="B331", message="there are 3 groups.")
    withheld = report(cvc=None, bias=None, interval=None, findings=(finding,))
    seen = found(policy(), withheld)
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
    assert "B331" in seen.text
    assert outcome(policy(inconclusive="allow"), withheld) == ("INCONCLUSIVE", False)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "hot", "lower_quality": True},
        {"engine": "last_layer", "lower_quality": True, "interval": (0.0, 0.01)},
        {"settings": {"refit_strength": "lower-bound"}},
    ],
    ids=str,
)
def test_what_may_miss_a_part_of_the_bias_never_passes(changes):
    seen = found(policy(), report(**changes))
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
    assert not outcome(policy(inconclusive="allow"), report(**changes))[1]


def test_the_worse_of_e0_and_cvc_decides():
    assert outcome(policy(e0_high=0.4), report()) == ("PASS", True)
    assert outcome(policy(e0_high=0.4), report(interval=(0.41, 0.5)))[0] == "FAIL"
    bad = changed(report(), e0_interval=(0.41, 0.5))
    assert outcome(policy(e0_high=0.4), bad)[0] == "FAIL"


@pytest.mark.parametrize("constant", [None, math.nan])
def test_a_loss_without_a_known_constant_prediction_leaves_cvc_open_too(constant):
    seen = found(policy(), changed(report(), constant_loss=constant))
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)


def test_without_cvc_or_without_a_limit_nothing_is_asked():
    audits = (report(), replace(report(), cvc=None))
    for rules, audit in zip((policy(e0_high=None), policy()), audits, strict=True):
        assert CHECK not in [
            reason.check
            for reason in judge_results(Results(policy=rules, report=audit, model="clinic"))
        ]


@given(
    low=st.floats(allow_nan=True, allow_infinity=True),
    high=st.floats(allow_nan=True, allow_infinity=True),
    limit=st.floats(min_value=0, max_value=1),
)
def test_cvc_passes_only_where_both_ends_are_numbers_below_the_limit(low, high, limit):
    seen = found(policy(e0_high=limit), report(interval=(low, high)))
    below = math.isfinite(low) and math.isfinite(high) and low <= high <= limit
    assert (seen.outcome == "PASS") == below


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.19, 0.33), "PASS"), ((0.19, 0.5), "INCONCLUSIVE"), ((0.46, 0.5), "FAIL")],
)
def test_with_a_numeric_limit_cvc_must_beat_the_constant_too(interval, expected):
    reasons = judge_results(
        Results(policy=policy(e0_high=0.9), report=report(interval=interval), model="clinic")
    )
    (seen,) = [each for each in reasons if each.check == "cvc_constant"]
    assert seen.outcome == expected


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.76, 0.9), "PASS"), ((0.6, 0.9), "INCONCLUSIVE"), ((0.55, 0.7), "FAIL")],
)
def test_a_corrected_score_must_reach_the_least_that_is_allowed(interval, expected):
    turned = report(interval=interval, loss="roc_auc")
    scored = changed(turned, loss="roc_auc", e0=0.85, e0_interval=(0.8, 0.9))
    reasons = judge_results(Results(policy=policy(score_low=0.75), report=scored, model="clinic"))
    (seen,) = [each for each in reasons if each.check == "cvc_low"]
    assert seen.outcome == expected
    assert remedies([seen], "models:/clinic/3") == (
        () if expected == "PASS" else (CVC_HIGH[expected],)
    )


def test_a_corrected_score_of_another_kind_does_not_pass():
    seen = judge_results(Results(policy=policy(), report=report(loss="roc_auc"), model="clinic"))
    assert [each.outcome for each in seen if each.check.startswith("cvc")] == ["FAIL"]


@pytest.mark.parametrize("interval", [(0.19, 0.5), (0.46, 0.5)])
def test_every_refusal_comes_with_what_to_do(interval):
    seen = found(policy(), report(interval=interval))
    assert remedies([seen], "models:/clinic/3") == (CVC_HIGH[seen.outcome],)


def test_the_champion_is_still_held_against_by_e0(complete):
    """CV_c may be withheld of one of the two; what a policy says about e0 stays the same."""
    audit = with_cvc(complete)
    assert judge_champion("not_worse", audit, audit) == judge_champion(
        "not_worse", replace(audit, cvc=None), replace(audit, cvc=None)
    )


# --- evidence -------------------------------------------------------------------------------------


@pytest.fixture
def version(fresh):
    """Return a version of its own, audited with CV_c."""
    return replace(fresh, report=with_cvc(fresh.report)).record()


def test_a_version_with_cvc_passes_and_its_evidence_holds(version):
    verdict = version.judge()
    assert verdict.allowed
    assert CHECK in [reason.check for reason in verdict.reasons]
    assert verify(version.uri, lenient()).holds


@pytest.mark.parametrize(
    "name", ["b3/cvc", "b3/cvc_high", "b3/cvc_bias", "b3/cvc_grouped", "b3_curve/cvc"]
)
def test_a_changed_number_of_the_correction_is_noticed(version, name):
    version.client.log_metric(version.audit_run_id, name, 0.001, step=2000)
    assert f"was changed after it was written: {name}" in version.refusal()


def test_verify_names_a_changed_cvc(version):
    version.client.log_metric(version.audit_run_id, "b3/cvc", 0.001)
    checked = verify(version.uri, lenient())
    assert not checked.holds
    (metrics,) = [check for check in checked.checks if check.check == "metrics"]
    assert metrics.outcome == "FAIL"
    assert "b3/cvc" in metrics.text


def test_verify_notices_a_changed_cvc_on_the_models_run(version):
    version.client.log_metric(version.run_id, "b3/cvc", 0.001)
    (metrics,) = [c for c in verify(version.uri, lenient()).checks if c.check == "metrics"]
    assert (metrics.outcome, "b3/cvc" in metrics.text) == ("FAIL", True)


def test_cvc_that_is_added_to_an_audit_without_it_is_noticed(audited):
    audited.client.log_metric(audited.audit_run_id, "b3/cvc", 0.001)
    assert "b3/cvc" in audited.refusal()


def test_an_edited_report_does_not_change_the_verdict(version):
    path = version.audit_files / "audit.json"
    path.write_text(path.read_text().replace('"cvc": 0.25', '"cvc": 0.01'))
    assert "'audit.json' was changed" in version.refusal()
