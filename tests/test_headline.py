"""The answer of an audit in a word: what each word needs, and what can never give it."""

import math
from dataclasses import replace

import pytest
from example_report import (
    FRAGMENTS,
    REPORT,
    SHOWS_NOTHING,
    linked,
    lower_bound,
    report,
    split,
    unknown,
)
from hypothesis import given
from hypothesis import strategies as st

from mlflow_b3 import AuditReport
from mlflow_b3.reporting.headline import (
    ABOVE,
    BELOW,
    INFLATED,
    NOT_SHOWN,
    UNDECIDED,
    UNKNOWN,
    WORDS,
    Headline,
    headline_of,
)

ANY = {"threshold_given": False}


def word(audit: AuditReport) -> str:
    return headline_of(audit).word


def shared() -> AuditReport:
    """Return an audit on given folds that split a cluster which is known to be one."""
    return report(folds=(replace(REPORT.folds[0], shared_clusters=2, shared_rows=0.1),))


def without_threshold(audit: AuditReport, **changes) -> AuditReport:
    return replace(audit, settings=replace(audit.settings, threshold_given=False), **changes)


# --- with a threshold -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.45, BELOW),
        (0.341, BELOW),
        (0.34, UNDECIDED),  # the upper end of the interval reaches it
        (0.31, UNDECIDED),
        (0.29, UNDECIDED),  # e0 is above it, but not all of its interval
        (0.26, ABOVE),  # a loss that equals the threshold fails
        (0.1, ABOVE),
    ],
)
def test_e0_and_all_of_its_interval_are_compared_with_the_threshold(threshold, expected):
    assert word(report(threshold=threshold)) == expected


def test_the_sentence_gives_the_premise_the_loss_its_interval_and_the_threshold():
    assert headline_of(REPORT) == Headline(
        word=BELOW,
        sentence="If 10 % of the rows carry a wrong 'patient_id', the error rate on new clusters is "
        "about 0.300 (95 % interval 0.260 to 0.340), all of it below the threshold of 0.450.",
    )


def test_an_estimate_outside_its_own_interval_decides_nothing():
    assert word(report(e0=0.5)) == UNDECIDED
    assert word(report(e0=0.1, threshold=0.2)) == UNDECIDED


def test_when_nothing_is_known_only_an_interval_over_everything_decides():
    assert word(unknown()) == UNKNOWN
    assert word(unknown(threshold=0.81)) == BELOW
    assert word(unknown(threshold=0.22)) == ABOVE


def test_when_split_clusters_could_not_be_measured_the_interval_is_not_over_everything():
    audit = unknown(threshold=0.81, fragments=None, fragment_sensitivity=None)
    assert word(audit) == UNDECIDED
    assert "split clusters would do could not be measured" in headline_of(audit).sentence


def test_a_bound_from_the_rows_decides_when_all_up_to_it_does():
    audit = report(p0_source="mixture", settings={"claim": (0.0, 0.05)})
    assert word(audit) == BELOW
    assert word(replace(audit, threshold=0.33)) == UNDECIDED
    assert word(replace(audit, e0=None, e0_interval=(0.2, 0.6))) == UNKNOWN


def test_a_lower_bound_is_never_below_a_threshold():
    for threshold in (0.27, 0.45, 1e9):
        assert word(lower_bound(threshold=threshold)) == UNKNOWN
    assert "part of the model was not trained again" in headline_of(lower_bound()).sentence


def test_a_lower_bound_that_is_above_is_above():
    assert word(lower_bound(threshold=0.26)) == ABOVE
    assert "is at least about 0.300 (at least 0.260" in headline_of(lower_bound()).sentence


@pytest.mark.parametrize(
    "audit",
    [
        linked("match_probability", "uncalibrated"),
        report(p0_source="match_column", settings={"claim": (0.01, 0.3)}),
    ],
)
def test_match_probabilities_that_nobody_checked_never_show_that_a_loss_is_small(audit):
    assert word(audit) == UNDECIDED
    assert "nobody has checked the match probabilities" in headline_of(audit).sentence
    assert word(replace(audit, threshold=0.2)) == ABOVE


@pytest.mark.parametrize("source", ["resolved_rows", "partition_samples"])
def test_checked_evidence_can_show_that_a_loss_is_small(source):
    assert word(linked(source)) == BELOW


def test_evidence_that_excludes_nothing_shows_nothing():
    audit = linked("linkage_quality", "upper", e0=None, e0_interval=(0.2, 0.4))
    assert word(audit) == UNDECIDED
    assert "leaves open that all validation rows were seen" in headline_of(audit).sentence
    audit = replace(audit, e0_interval=(0.2, None))
    assert word(audit) == UNKNOWN
    assert "the error rate on new clusters is at least 0.200" in headline_of(audit).sentence


def test_a_bound_from_the_rows_that_excludes_nothing_shows_nothing():
    audit = report(
        p0_source="mixture", settings={"claim": (0.0, 0.1)}, e0=None, e0_interval=(0.2, 0.4)
    )
    assert word(audit) == UNDECIDED
    sentence = headline_of(audit).sentence
    assert sentence.startswith("The rows do not tell how many of them leaked. If at most half of")
    assert "at most 10 %" not in sentence


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (report(settings={"n_validated": 4}), "4 clusters are too few to speak of others"),
        (report(settings={"refit_agreement": 0.5}), "the refits are unlike the logged model"),
        (report(settings={"refit_agreement": math.nan}), "the refits are unlike the logged model"),
        (report(accurate=False), "the solver was not sure of its numbers"),
        (shared(), "known clusters sit on both sides of the folds"),
    ],
)
def test_a_small_loss_needs_clusters_refits_a_solver_and_folds_to_rely_on(audit, reason):
    assert word(audit) == UNDECIDED
    assert reason in headline_of(audit).sentence
    assert word(replace(audit, threshold=0.2)) == ABOVE


@pytest.mark.parametrize(
    "audit",
    [
        report(settings={"n_validated": 4}),
        report(settings={"refit_agreement": 0.5}),
        report(accurate=False),
        report(p0_source="match_column", settings={"claim": (0.01, 0.3)}),
    ],
)
def test_a_large_loss_is_told_with_what_makes_it_unsure(audit):
    assert "That is not sure, because" in headline_of(replace(audit, threshold=0.2)).sentence
    if audit.p0_source != "match_column":
        assert "That is not sure, because" in headline_of(without_threshold(audit)).sentence
    assert "not sure" not in headline_of(report(threshold=0.2)).sentence


def test_the_solver_of_misplaced_rows_does_not_matter_for_split_clusters():
    assert word(split(accurate=False)) == BELOW


# --- without a threshold --------------------------------------------------------------------------


def test_a_threshold_that_nobody_gave_is_not_compared_with():
    """The loss of the best constant answer is no requirement."""
    assert word(report(settings=ANY)) == INFLATED
    assert "threshold" not in headline_of(report(settings=ANY)).sentence


def test_both_uncorrected_scores_are_in_the_sentence():
    assert headline_of(report(settings=ANY)).sentence.endswith(
        "cross-validation reports 0.150 when it ignores clusters and 0.250 by the cluster ids as "
        "they are."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"test": SHOWS_NOTHING}, NOT_SHOWN),
        ({"e0": 0.24, "inflation": -0.01}, NOT_SHOWN),
        # the interval excludes the score whatever the test says
        ({"test": SHOWS_NOTHING, "e0_interval": (0.26, 0.34), "loco": 0.2}, INFLATED),
    ],
)
def test_inflation_needs_a_learner_that_profits_and_a_correction_upwards(changes, expected):
    low = {"e0_interval": (0.2, 0.34)} | changes
    assert word(report(settings=ANY, **low)) == expected


def test_no_inflation_shown_is_no_proof():
    audit = report(settings=ANY, test=SHOWS_NOTHING, e0_interval=(0.2, 0.34))
    assert "no proof" in headline_of(audit).sentence


@pytest.mark.parametrize(
    ("claim", "expected"), [((0.0, 0.1), UNKNOWN), ((0.01, 0.1), INFLATED), ((0.0, 0.0), NOT_SHOWN)]
)
def test_a_range_that_starts_at_no_leakage_does_not_say_that_rows_leaked(claim, expected):
    audit = report(settings={**ANY, "claim": claim}, e0_interval=(0.2, 0.34))
    assert word(audit) == expected


def test_without_a_leaked_share_inflation_is_not_known():
    audit = without_threshold(unknown())
    assert word(audit) == UNKNOWN
    assert "The first is too good. Whether the second is too good is open" in (
        headline_of(audit).sentence
    )
    assert "The first" not in headline_of(replace(audit, iid=0.23)).sentence


def test_a_score_without_clusters_far_below_is_too_good_whatever_is_known_of_the_other():
    audit = report(settings=ANY, test=SHOWS_NOTHING, e0_interval=(0.2, 0.34))
    assert word(audit) == NOT_SHOWN
    sentence = "The first is too good. That the second is too good was not shown"
    assert sentence in headline_of(audit).sentence
    part = replace(audit, settings=replace(audit.settings, n_validated=50))
    assert "The first" not in headline_of(part).sentence, "scores of different rows"


def test_the_folds_of_the_second_score_are_named():
    made = linked("resolved_rows")
    made = replace(made, settings=replace(made.settings, fold_threshold=0.5, **ANY))
    assert "0.250 on folds made with match probabilities." in headline_of(made).sentence
    assert "0.250 on the given folds." in headline_of(without_threshold(shared())).sentence


@pytest.mark.parametrize("low", [0.2, 0.26])
@pytest.mark.parametrize("test", [REPORT.test, SHOWS_NOTHING])
def test_scores_that_nobody_checked_leave_inflation_open(test, low):
    audit = linked("match_probability", "uncalibrated", test=test, e0_interval=(low, 0.34))
    assert word(without_threshold(audit)) == UNKNOWN


def test_a_lower_bound_shows_inflation_but_never_its_absence():
    assert word(without_threshold(lower_bound(e0_interval=(0.2, None)))) == INFLATED
    silent = without_threshold(lower_bound(e0_interval=(0.2, None), test=SHOWS_NOTHING))
    assert word(silent) == UNKNOWN
    assert "part of the model was not trained again" in headline_of(silent).sentence


def test_known_clusters_on_both_sides_inflate_the_score_of_a_learner_that_profits():
    audit = without_threshold(shared(), e0=0.25, inflation=0.0, e0_interval=(0.2, 0.3))
    assert word(audit) == INFLATED
    assert word(replace(audit, test=SHOWS_NOTHING)) == NOT_SHOWN


def test_a_given_threshold_of_none_is_no_threshold():
    assert word(report(threshold=None)) == INFLATED


# --- numbers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "changes",
    ["e0", "threshold", "loco", "iid", "low", "high", "loco_interval", "inflation", "pvalue"],
)
def test_a_number_that_is_not_finite_is_never_an_answer(changes, given, value):
    fields = {
        "low": {"e0_interval": (value, 0.34)},
        "high": {"e0_interval": (0.26, value)},
        "loco_interval": {"loco_interval": (value, value)},
        "pvalue": {"test": replace(REPORT.test, pvalue=value)},
    }.get(changes, {changes: value})
    assert word(report(settings={"threshold_given": given}, **fields)) == UNKNOWN


numbers = st.floats() | st.sampled_from([0.1, 0.2, 0.3, 0.4])
losses = st.none() | numbers


@given(
    e0=losses,
    low=numbers,
    high=losses,
    threshold=losses,
    full=st.booleans(),
    clusters=st.integers(0, 20),
    source=st.sampled_from(["none", "p0", "mixture", "match_column"]),
)
def test_below_always_means_that_everything_is_below(
    e0, low, high, threshold, full, clusters, source
):
    strength = "full" if full else "lower-bound"
    settings = {"refit_strength": strength, "n_validated": clusters}
    audit = report(
        settings=settings, e0=e0, e0_interval=(low, high), threshold=threshold, p0_source=source
    )
    answer = headline_of(audit)
    assert answer.word in WORDS
    if answer.word == BELOW:
        assert full
        assert clusters >= 10
        assert source != "match_column"
        assert low <= high < threshold
        assert e0 is None or e0 < threshold
    if answer.word == ABOVE:
        assert low >= threshold


def test_a_headline_travels_as_plain_values():
    answer = headline_of(split(fragments=FRAGMENTS))
    assert Headline.from_dict(answer.to_dict()) == answer
