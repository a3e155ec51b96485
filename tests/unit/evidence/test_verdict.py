"""Verdicts: what is not shown does not pass, and every reason is told."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import example_reports
import pytest
from evidence_examples import NOW, evidence, policy
from example_reports import changed
from hypothesis import given
from hypothesis import strategies as st

from mlflow_b3 import Finding, Verdict
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.evidence.document import TRUSTED_KEYS, key_id
from mlflow_b3.evidence.policy import Pin, load_policy
from mlflow_b3.evidence.verdict import (
    Proof,
    Reason,
    Results,
    conclude_reasons,
    is_allowed,
    judge_evidence,
    judge_results,
)

NOTHING = [None, math.nan, math.inf, -math.inf]


def report(**changes):
    """Return a report that the default policy lets pass: at most 0.34 where 0.45 is the limit."""
    return example_reports.report(**{"constant_loss": 0.45, **changes})


def found(rules, report, check):
    (reason,) = [
        each
        for each in judge_results(Results(policy=rules, report=report, model="clinic"))
        if each.check == check
    ]
    return reason


def outcome(rules, report):
    reasons = judge_results(Results(policy=rules, report=report, model="clinic"))
    return conclude_reasons(reasons), is_allowed(rules, reasons)


def curve(e0, error=example_reports.ERRORS):
    ends = (0.0,) * len(error)
    return Sensitivity(p0=error, e0=e0, low=ends, high=ends, error=error)


# --- outcomes -------------------------------------------------------------------------------------


def reason(outcome, waivable=False):
    return Reason(check="x", outcome=outcome, text="", waivable=waivable)


@pytest.mark.parametrize(
    ("outcomes", "concluded"),
    [
        ([], "FAIL"),
        (["NOT_APPLICABLE"], "FAIL"),
        (["PASS", "NOT_APPLICABLE"], "PASS"),
        (["PASS", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["PASS", "INCONCLUSIVE", "FAIL"], "FAIL"),
    ],
)
def test_the_worst_reason_decides_and_none_is_no_pass(outcomes, concluded):
    assert conclude_reasons(tuple(map(reason, outcomes))) == concluded


@pytest.mark.parametrize(
    ("inconclusive", "waivable", "allowed"),
    [
        ("refuse", [True], False),
        ("allow", [True], True),
        ("allow", [True, True], True),
        ("allow", [False], False),
        ("allow", [True, False], False),
    ],
)
def test_a_policy_may_waive_open_questions_but_not_what_is_unknown(inconclusive, waivable, allowed):
    reasons = (reason("PASS"), *(reason("INCONCLUSIVE", each) for each in waivable))
    assert is_allowed(policy(inconclusive=inconclusive), reasons) is allowed


def test_a_failure_is_never_waived():
    reasons = (reason("FAIL", True), reason("PASS"))
    assert not is_allowed(policy(inconclusive="allow"), reasons)


def test_a_verdict_travels_as_json_with_every_reason():
    verdict = Verdict(
        outcome="FAIL",
        allowed=False,
        reasons=(reason("PASS"), reason("FAIL")),
        model="clinic",
        version="3",
        policy_hash="0",
        audit_run_id=None,
        judged_at=NOW.isoformat(),
    )
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert verdict.decisive == (reason("FAIL"),)


# --- e0 and its limit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "limit", "expected", "waivable"),
    [
        ((0.26, 0.34), "constant", "PASS", False),
        ((0.26, 0.45), "constant", "PASS", False),
        ((0.26, 0.46), "constant", "INCONCLUSIVE", True),
        ((0.45, 0.46), "constant", "INCONCLUSIVE", True),
        ((0.46, 0.5), "constant", "FAIL", False),
        ((0.26, 0.34), 0.34, "PASS", False),
        ((0.26, 0.34), 0.3, "INCONCLUSIVE", True),
        ((0.26, 0.34), 0.2, "FAIL", False),
        ((0.26, None), 0.5, "INCONCLUSIVE", False),
        ((0.26, None), 0.2, "FAIL", False),
        ((0.34, 0.26), 0.5, "FAIL", False),
        ((math.nan, 0.34), 0.5, "FAIL", False),
        ((0.26, math.nan), 0.5, "FAIL", False),
        ((-math.inf, 0.34), 0.5, "FAIL", False),
        ((0.26, -math.inf), 0.5, "FAIL", False),
        ((None, 0.34), 0.5, "FAIL", False),
    ],
)
def test_the_upper_end_of_e0_is_held_against_the_limit(interval, limit, expected, waivable):
    seen = found(policy(e0_high=limit), report(e0_interval=interval), "e0_high")
    assert (seen.outcome, seen.waivable) == (expected, waivable)


def test_e0_itself_must_be_a_number_too():
    assert found(policy(), report(e0=math.nan), "e0_high").outcome == "FAIL"


@pytest.mark.parametrize("constant", NOTHING)
def test_a_loss_without_a_known_constant_prediction_is_open_and_not_waivable(constant):
    """As for losses that the user brings: nobody knows their best constant prediction."""
    seen = found(policy(), report(constant_loss=constant), "e0_high")
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
    assert "zero_one" in seen.text


def test_the_users_threshold_is_not_the_policys_limit():
    assert outcome(policy(), report(threshold=0.9, constant_loss=0.2))[0] == "FAIL"


def test_a_policy_without_a_limit_does_not_ask():
    assert [
        r.check
        for r in judge_results(
            Results(policy=policy(e0_high=None), report=report(), model="clinic")
        )
    ] == [
        "pins",
        "min_clusters",
        "min_repeated_clusters",
        "findings",
        "p0_sources",
        "refits",
    ]


@pytest.mark.parametrize(
    ("interval", "constant", "expected", "waivable"),
    [
        ((0.26, 0.34), 0.45, "PASS", False),
        ((0.26, 0.34), 0.3, "INCONCLUSIVE", True),
        ((0.26, 0.34), 0.2, "FAIL", False),
        ((0.26, None), 0.45, "INCONCLUSIVE", False),
        ((0.26, 0.34), None, "INCONCLUSIVE", False),
        ((0.26, 0.34), math.nan, "INCONCLUSIVE", False),
    ],
)
def test_a_numeric_limit_does_not_replace_the_constant(interval, constant, expected, waivable):
    rules = policy(e0_high=0.9)
    seen = found(rules, report(e0_interval=interval, constant_loss=constant), "constant")
    assert (seen.outcome, seen.waivable) == (expected, waivable)


def test_the_constant_is_asked_for_once():
    for limit, asked in (("constant", 0), (0.9, 1), (None, 0)):
        reasons = judge_results(
            Results(policy=policy(e0_high=limit), report=report(), model="clinic")
        )
        assert [reason.check for reason in reasons].count("constant") == asked


# --- what was audited -----------------------------------------------------------------------------


def pinned(**pin):
    return policy(pins=(Pin(models="clinic*", **pin),))


@pytest.mark.parametrize(
    ("pin", "expected", "told"),
    [
        ({}, "PASS", "nothing is pinned for 'clinic*'"),
        ({"target": ("disease",)}, "PASS", "target 'disease'"),
        ({"target": ("death", "disease")}, "PASS", "'death' or 'disease'"),
        ({"target": ("death",)}, "FAIL", "the target is 'disease', not 'death'"),
        ({"cluster": ("person",)}, "FAIL", "the cluster is 'patient_id', not 'person'"),
        ({"loss": ("log", "brier")}, "FAIL", "the loss is 'zero_one', not 'log' or 'brier'"),
        ({"data": ("0123456789abcdef",)}, "PASS", "the table 0123456789ab"),
        ({"data": ("0" * 36,)}, "FAIL", "the digest of the table is '0123456789abcdef'"),
    ],
)
def test_what_was_audited_is_held_against_the_pin_of_the_model(pin, expected, told):
    seen = found(pinned(**pin), report(), "pins")
    assert seen.outcome == expected
    assert told in seen.text


def test_everything_that_is_not_as_pinned_is_named_at_once():
    rules = pinned(target=("a",), cluster=("b",), loss=("c",), data=("0" * 36,))
    text = found(rules, report(), "pins").text
    for key in ("target", "cluster", "loss", "digest"):
        assert f"the {key} " in text


def test_a_model_that_no_pin_names_is_refused():
    for rules, model in ((load_policy(), "clinic"), (pinned(), "hospital"), (pinned(), "")):
        (seen,) = [
            r
            for r in judge_results(Results(policy=rules, report=report(), model=model))
            if r.check == "pins"
        ]
        assert seen.outcome == "FAIL"
        assert "does not say which target, cluster and loss count for" in seen.text


@pytest.mark.parametrize(
    ("logged", "audited", "expected"),
    [
        (frozenset({"abc", "def"}), "abc", "PASS"),
        (frozenset({"def"}), "abc", "FAIL"),
        (frozenset({"def"}), None, "FAIL"),
        (frozenset(), "abc", "FAIL"),
        (frozenset(), None, "FAIL"),
        (None, "abc", "INCONCLUSIVE"),
        (None, None, "INCONCLUSIVE"),
    ],
)
def test_the_table_of_training_is_known_by_the_digests_of_its_run(logged, audited, expected):
    rules = pinned(data=("training",))
    own = report(settings={"training_digest": audited})
    (seen,) = [
        each
        for each in judge_results(
            Results(policy=rules, report=own, model="clinic", training_digests=logged)
        )
        if each.check == "pins"
    ]
    assert (seen.outcome, seen.waivable) == (expected, False)


@pytest.mark.parametrize(
    ("check", "setting"), [("min_clusters", "n_clusters"), ("min_repeated_clusters", "n_repeated")]
)
def test_too_few_clusters_fail(check, setting):
    for count, least, expected in ((10, 10, "PASS"), (9, 10, "FAIL"), (0, 1, "FAIL")):
        rules = policy(**{check: least})
        assert found(rules, report(settings={setting: count}), check).outcome == expected
    assert check not in {
        r.check
        for r in judge_results(
            Results(policy=policy(**{check: None}), report=report(), model="clinic")
        )
    }


def test_a_report_that_does_not_count_repeated_clusters_is_open():
    """Those of earlier versions do not say, and have not looked for all findings either."""
    old = report(settings={"n_repeated": None})
    for check in ("min_repeated_clusters", "findings"):
        seen = found(policy(), old, check)
        assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
    assert found(policy(refuse_findings=("B311",)), old, "findings").outcome == "PASS"


def test_folds_with_a_cluster_on_both_sides_refuse_under_every_policy():
    fine = report()
    leaking = report(folds=(replace(fine.folds[0], shared_clusters=2), *fine.folds[1:]))
    assert outcome(policy(refuse_findings=()), fine)[0] == "PASS"
    seen = found(policy(refuse_findings=(), refits=None), leaking, "folds")
    assert seen.outcome == "FAIL"
    assert seen.text.startswith(f"1 of {len(fine.folds)} folds have rows of the same cluster id")


def test_a_trainer_counts_only_where_the_policy_names_it():
    """Nothing compares what a trainer trains with the logged model."""
    trained = report(settings={"refit": "trainer"})
    seen = found(policy(), trained, "refits")
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
    assert found(policy(refits=("clone", "trainer")), trained, "refits").outcome == "PASS"


def test_findings_refuse_where_the_policy_lists_them():
    given = (
        Finding(code="B343", message="'late': determines the target."),
        Finding(code="B315", message="few refits."),
    )
    seen = found(policy(), report(findings=given), "findings")
    assert (seen.outcome, seen.text) == ("FAIL", str(given[0]))
    assert found(policy(refuse_findings=("B301",)), report(findings=given), "findings").outcome == (
        "PASS"
    )
    assert outcome(policy(refuse_findings=()), report(findings=given))[0] == "PASS"


# --- where the leaked share comes from, and how it was refitted -----------------------------------


@pytest.mark.parametrize(
    ("source", "allowed", "expected", "waivable"),
    [
        ("cluster_error", None, "PASS", False),
        ("cluster_error", ("cluster_error", "p0"), "PASS", False),
        ("cluster_error", ("resolved_rows",), "FAIL", False),
        ("none", None, "INCONCLUSIVE", True),
        ("none", ("p0",), "INCONCLUSIVE", True),
        ("grid", None, "FAIL", False),
    ],
)
def test_the_source_of_the_leaked_share_counts(source, allowed, expected, waivable):
    seen = found(policy(p0_sources=allowed), report(p0_source=source), "p0_sources")
    assert (seen.outcome, seen.waivable) == (expected, waivable)


def test_a_bound_that_bounds_nothing_is_as_good_as_nothing():
    """`mixture` and linkage evidence may turn out vacuous; e0 is None then."""
    rules, vacuous = policy(e0_high=0.9), report(p0_source="mixture", e0=None)
    assert outcome(rules, vacuous) == ("INCONCLUSIVE", False)
    assert outcome(replace(rules, inconclusive="allow"), vacuous) == ("INCONCLUSIVE", True)


def test_an_audit_that_was_told_nothing_does_not_pass_by_itself():
    unknown = example_reports.unknown(constant_loss=0.9)
    assert outcome(policy(), unknown) == ("INCONCLUSIVE", False)
    assert outcome(policy(inconclusive="allow"), unknown) == ("INCONCLUSIVE", True)


@pytest.mark.parametrize(
    ("refits", "expected"), [(None, "PASS"), (("clone",), "PASS"), (("trainer",), "FAIL")]
)
def test_the_route_of_refitting_counts(refits, expected):
    assert found(policy(refits=refits), report(), "refits").outcome == expected


def test_a_lower_bound_of_e0_never_passes():
    partial = example_reports.lower_bound(constant_loss=0.9)
    closed = example_reports.lower_bound(constant_loss=0.9, e0_interval=(0.1, 0.2))
    for each in (partial, closed):
        seen = found(policy(), each, "refits")
        assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)
        assert outcome(policy(inconclusive="allow"), each) == ("INCONCLUSIVE", False)


# --- inflation and tipping points -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("inflation", "expected"), [(0.05, "PASS"), (0.1, "PASS"), (0.101, "FAIL"), (-0.02, "PASS")]
)
def test_inflation_is_held_against_its_limit(inflation, expected):
    assert (
        found(policy(inflation=0.1), report(inflation=inflation), "inflation").outcome == expected
    )


@pytest.mark.parametrize("inflation", NOTHING)
def test_an_inflation_that_is_not_known_is_open(inflation):
    seen = found(policy(inflation=0.1), report(inflation=inflation), "inflation")
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)


@pytest.mark.parametrize(
    ("limit", "least", "expected"),
    [
        (0.3, 0.1, "PASS"),  # e0 is 0.3 at a cluster error of exactly 0.1
        (0.3, 0.101, "FAIL"),
        (0.2, 0.01, "FAIL"),  # above it from the start
        (0.45, 0.3, "PASS"),
        (0.7, 0.5, "PASS"),  # never reached, as far as it is known: up to 0.5
        (0.7, 0.6, "INCONCLUSIVE"),
    ],
)
def test_the_tipping_point_is_that_of_the_policys_limit(limit, least, expected):
    """It is read from the curve: the report's own tipping points are for the user's threshold."""
    rules = policy(e0_high=limit, tipping_cluster_error=least)
    seen = found(rules, report(tipping_cluster_error=0.0), "tipping_cluster_error")
    assert seen.outcome == expected
    assert not seen.waivable


def test_split_clusters_have_a_tipping_point_of_their_own():
    rules = policy(e0_high=0.261, tipping_split_rate=0.1)
    assert found(rules, report(), "tipping_split_rate").outcome == "PASS"
    none = report(fragment_sensitivity=None)
    assert found(rules, none, "tipping_split_rate").outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "broken",
    [
        curve((0.25, math.nan, 0.27, 0.3, 0.6)),
        curve((math.nan,) * 5),
        curve((0.25, 0.26, 0.27, 0.28, -math.inf)),
        curve((0.25, 0.26), (0.0, math.nan)),
        curve((), ()),
        replace(curve((0.1, 0.2), (0.0, 0.5)), error=None),
    ],
    ids=["one NaN", "all NaN", "inf", "axis", "empty", "no axis"],
)
def test_a_curve_with_holes_shows_no_tipping_point(broken):
    rules = policy(e0_high=0.9, tipping_cluster_error=0.4)
    seen = found(rules, report(sensitivity=broken), "tipping_cluster_error")
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)


@pytest.mark.parametrize("constant", NOTHING)
def test_a_tipping_point_needs_a_known_limit(constant):
    rules = policy(tipping_cluster_error=0.1)
    seen = found(rules, report(constant_loss=constant), "tipping_cluster_error")
    assert (seen.outcome, seen.waivable) == ("INCONCLUSIVE", False)


NUMBERS = st.one_of(st.none(), st.sampled_from(NOTHING[1:]), st.floats(0, 0.2))
BAD = st.sampled_from(NOTHING[1:])


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "e0": NUMBERS,
            "inflation": NUMBERS,
            "constant_loss": NUMBERS,
            "p0": NUMBERS,
            "threshold": NUMBERS,
            "e0_interval": st.tuples(NUMBERS, NUMBERS),
            "sensitivity": st.lists(NUMBERS, min_size=2, max_size=2).map(
                lambda e0: curve(tuple(e0), (0.0, 0.5))
            ),
        },
    ),
    broken=st.sampled_from(["e0", "low", "high", "inflation", "constant_loss", "sensitivity"]),
    bad=BAD,
    inconclusive=st.sampled_from(["refuse", "allow"]),
)
def test_no_number_that_is_none_passes_whatever_the_others_are(values, broken, bad, inconclusive):
    rules = policy(inflation=0.5, tipping_cluster_error=0.1, inconclusive=inconclusive)
    seen = report(**values)
    low, high = seen.e0_interval
    wrong = {"low": {"e0_interval": (bad, high)}, "high": {"e0_interval": (low, bad)}}
    wrong["sensitivity"] = {"sensitivity": curve((0.1, bad), (0.0, 0.5))}
    seen = changed(seen, **wrong.get(broken, {broken: bad}))
    assert not is_allowed(rules, judge_results(Results(policy=rules, report=seen, model="clinic")))


# --- the evidence itself --------------------------------------------------------------------------


def judged(check, rules=None, *, signed_by=None, audits=1, now=NOW, **changes):
    reasons = judge_evidence(
        Proof(
            policy=rules or policy(),
            evidence=evidence(**changes),
            signed_by=signed_by,
            audits=audits,
            now=now,
        )
    )
    (reason,) = [each for each in reasons if each.check == check]
    return reason


@pytest.mark.parametrize(
    ("asked", "signed", "expected"),
    [(True, True, "PASS"), (True, False, "FAIL"), (False, False, "PASS"), (False, True, "PASS")],
)
def test_unsigned_evidence_counts_where_the_policy_says_so(keys, asked, signed, expected):
    key = keys.public if signed else None
    assert judged("signed", policy(signed=asked), signed_by=key).outcome == expected


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (timedelta(days=180), "PASS"),
        (timedelta(days=180, seconds=1), "FAIL"),
        (timedelta(), "PASS"),
        (timedelta(minutes=-5), "PASS"),  # clocks differ
        (timedelta(minutes=-11), "FAIL"),
    ],
)
def test_an_audit_is_neither_too_old_nor_of_the_future(age, expected):
    assert judged("max_age_days", now=NOW + age).outcome == expected


def test_an_audit_without_a_zone_was_made_in_utc():
    naive = NOW.replace(tzinfo=None).isoformat()
    assert judged("max_age_days", now=NOW, measured_at=naive).outcome == "PASS"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00", "0", "NaN"])
def test_a_time_that_cannot_be_read_fails_whatever_the_policy(text):
    for limit in (180.0, None):
        assert (
            judged(
                "max_age_days", policy(max_age_days=limit), measured_at=text, issued_at=text
            ).outcome
            == "FAIL"
        )


def test_any_age_will_do_where_the_policy_sets_none():
    old = datetime(1990, 1, 1).isoformat()
    assert judged("max_age_days", policy(max_age_days=None), measured_at=old).outcome == "PASS"


@pytest.mark.parametrize(
    ("audits", "earlier", "most", "expected"),
    [
        (1, (), None, "one audit of this model"),
        (3, (), None, "3 audits of this model"),
        (1, ("a", "b"), None, "3 audits of this model"),  # others were removed since
        (2, (), 2, "2 are allowed"),
    ],
)
def test_how_many_audits_were_tried_is_told(audits, earlier, most, expected):
    seen = judged("max_audits", policy(max_audits=most), audits=audits, earlier_audits=earlier)
    assert seen.outcome == ("NOT_APPLICABLE" if most is None else "PASS")
    assert expected in seen.text


def test_too_many_audits_fail():
    assert judged("max_audits", policy(max_audits=2), audits=3).outcome == "FAIL"
    seen = judged("max_audits", policy(max_audits=2), earlier_audits=("a", "b"))
    assert seen.outcome == "FAIL"


COMMITTED = {
    "hash": "0" * 64,
    "committed_at": "2026-02-01T00:00:00+00:00",
    "commitment_run_id": "c",
    "matched": True,
    "signed_by": None,
    "commitments": 1,
}


@pytest.mark.parametrize(
    ("committed", "met", "told"),
    [
        (None, False, "were not committed before it ran"),
        ({}, False, "were not committed before it ran"),
        (COMMITTED, True, "were committed beforehand, at 2026-02-01"),
        (COMMITTED | {"matched": False}, False, "are not those that were committed"),
        (COMMITTED | {"matched": "yes"}, False, "are not those that were committed"),
        (COMMITTED | {"commitments": 3}, True, "3 different settings were committed"),
    ],
)
def test_whether_settings_were_committed_is_told_and_may_be_asked_for(committed, met, told):
    for asked, otherwise in ((True, "FAIL"), (False, "NOT_APPLICABLE")):
        rules = policy(signed=False, preregistered=asked)
        seen = judged("preregistered", rules, preregistration=committed)
        assert seen.outcome == ("PASS" if met else otherwise)
        assert told in seen.text


def test_where_signatures_are_asked_for_an_unsigned_commitment_does_not_count(keys, monkeypatch):
    rules, signed = policy(preregistered=True), COMMITTED | {"signed_by": key_id(keys.public)}
    assert judged("preregistered", rules, preregistration=COMMITTED).outcome == "FAIL"
    assert judged("preregistered", rules, preregistration=signed).outcome == "FAIL"
    trusting = replace(rules, trusted_keys=(keys.public,))
    assert judged("preregistered", trusting, preregistration=signed).outcome == "PASS"
    monkeypatch.setenv(TRUSTED_KEYS, keys.public)
    assert judged("preregistered", rules, preregistration=signed).outcome == "PASS"


# --- scores of which more is better ---------------------------------------------------------------


def scored(low, high):
    """Return a report of an AUC with this interval, where one half is no skill."""
    turned = example_reports.report(constant_loss=0.5, threshold=0.5, threshold_given=False)
    return replace(
        changed(turned, loss="roc_auc", e0=(low + high) / 2, e0_interval=(low, high)),
    )


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.76, 0.9), "PASS"), ((0.7, 0.9), "INCONCLUSIVE"), ((0.55, 0.74), "FAIL")],
)
def test_the_lower_end_of_a_score_must_reach_its_limit(interval, expected):
    assert found(policy(score_low=0.75), scored(*interval), "score_low").outcome == expected


def test_a_score_must_beat_the_best_constant_prediction():
    assert found(policy(), scored(0.6, 0.9), "constant").outcome == "PASS"
    assert found(policy(), scored(0.4, 0.9), "constant").outcome == "INCONCLUSIVE"
    assert found(policy(score_low=0.1), scored(0.2, 0.4), "constant").outcome == "FAIL"


def test_a_limit_on_a_loss_says_nothing_about_a_score():
    for interval in ((0.1, 0.2), (0.8, 0.9)):
        reason = found(policy(e0_high=0.35), scored(*interval), "e0_high")
        assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", False)
        assert not outcome(policy(e0_high=0.35, inconclusive="allow"), scored(*interval))[1]


def test_a_limit_on_a_score_says_nothing_about_a_loss():
    reason = found(policy(score_low=0.1), report(), "score_low")
    assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", False)


def test_a_policy_without_a_limit_on_scores_keeps_its_hash():
    assert "score_low" in policy().to_dict()
    assert policy(score_low=0.7).hash != policy().hash
