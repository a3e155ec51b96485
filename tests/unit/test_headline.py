"""The answer of an audit in a word: what each word needs, and what can never give it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from example_reports import (
    FRAGMENTS,
    REPORT,
    SHOWS_NOTHING,
    changed,
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
    CANNOT_TELL,
    GIVEN_AWAY,
    HOLDS,
    INFLATED,
    MISSED,
    NOT_SHOWN,
    OPEN,
    SHOWN,
    SIGNS,
    UNDECIDED,
    UNKNOWN,
    WORDS,
    Headline,
    compare_with_threshold,
    explain_tipping,
    headline_of,
    loco_inflation,
    tipping_rates,
)
from mlflow_b3.reporting.sentences import explain_inflation

pytestmark = pytest.mark.newest

ANY = {"threshold_given": False}


def word(audit: AuditReport) -> str:
    return headline_of(audit).word


def sentence(audit: AuditReport) -> str:
    """Return the sentence with its premise."""
    headline = headline_of(audit)
    return f"{headline.sentence} {headline.premise}"


def shared() -> AuditReport:
    """Return an audit on given folds that split a cluster which is known to be one."""
    return report(folds=(replace(REPORT.folds[0], shared_clusters=2, shared_rows=0.1),))


def without_threshold(audit: AuditReport, **changes) -> AuditReport:
    return changed(audit, settings={"threshold_given": False}, **changes)


def sound(*, settings: dict | None = None, **changes) -> AuditReport:
    """Return the audit of a model whose score on new clusters is about the reported one."""
    return report(
        settings=settings,
        **{
            "test": SHOWS_NOTHING,
            "iid": 0.15,
            "loco": 0.155,
            "loco_interval": (0.13, 0.18),
            "e0": 0.16,
            "e0_interval": (0.12, 0.2),
            "inflation": 0.005,
            "constant_loss": 0.45,
            **changes,
        },
    )


# --- the worst comparison decides -----------------------------------------------------------------


def test_a_score_by_rows_far_below_that_on_new_clusters_is_inflated():
    """The score by ids alone shows no inflation, which must not be the headline."""
    audit = sound(
        settings=ANY,
        iid=0.151,
        loco=0.327,
        loco_interval=(0.27, 0.38),
        e0=0.374,
        e0_interval=(0.29, 0.45),
        inflation=0.047,
    )
    assert str(headline_of(audit)).startswith(
        "▲ Inflated: reported error rate 0.151, on new patients 0.374 (+0.223). Whether it beats a "
        "constant guess (0.450) remains open. By patient_id alone: 0.327, inflation not shown. "
    )


def test_the_sentence_gives_the_scores_the_premise_the_interval_and_the_threshold():
    assert headline_of(REPORT) == Headline(
        word=INFLATED,
        sentence="Reported error rate 0.150, on new patients 0.300 (+0.150). By patient_id alone: 0.250, "
        "inflated as well.",
        premise="If 10% of the rows carry a wrong 'patient_id', the error rate on new patients is about "
        "0.300 (95% interval 0.260 to 0.340), all of it below the threshold of 0.450.",
        gap="+0.150",
    )


def test_scores_by_rows_and_by_ids_that_differ_are_inflation_whatever_is_known_of_the_ids():
    audit = without_threshold(unknown())
    assert word(audit) == INFLATED
    assert sentence(audit).startswith(
        "Reported error rate 0.150, by patient_id alone 0.250 (+0.100). Whether it beats a constant "
        "guess (0.450) remains open. Wrong ids would make it worse; by how much is not known. How many "
        "values of patient_id are wrong is not known"
    )
    assert word(changed(audit, iid=0.23)) == CANNOT_TELL


def test_scores_of_different_rows_are_not_compared():
    audit = sound(settings={**ANY, "n_validated": 50}, loco=0.25, loco_interval=(0.2, 0.3))
    assert word(audit) != INFLATED


def test_the_larger_of_both_scores_is_compared_where_the_correction_is_downwards():
    audit = sound(e0=0.24, inflation=-0.01, loco=0.25, loco_interval=(0.22, 0.28))
    assert sentence(audit).startswith(
        "Reported error rate 0.150, by patient_id alone 0.250 (+0.100)"
    )


def test_known_clusters_on_both_sides_inflate_the_score_of_a_learner_that_profits():
    audit = without_threshold(shared(), iid=0.24, e0=0.25, inflation=0.0, e0_interval=(0.2, 0.3))
    assert word(audit) == INFLATED
    assert word(changed(audit, test=SHOWS_NOTHING)) == CANNOT_TELL


@pytest.mark.parametrize("low", [0.2, 0.26])
@pytest.mark.parametrize("test", [REPORT.test, SHOWS_NOTHING])
def test_match_probabilities_that_nobody_checked_show_no_inflation(test, low):
    audit = linked("match_probability", "uncalibrated", test=test, e0_interval=(low, 0.34))
    assert word(without_threshold(audit, iid=0.24)) == CANNOT_TELL
    assert "obody has checked" in sentence(without_threshold(audit, iid=0.24))
    by_rows = headline_of(without_threshold(audit))
    assert by_rows.word == INFLATED, "by rows against by ids, which needs no probabilities"
    assert by_rows.sentence.startswith("Reported error rate 0.150, by patient_id alone")


def test_a_lower_bound_shows_inflation_but_never_its_absence():
    bound = without_threshold(lower_bound(e0_interval=(0.2, None)), iid=0.24)
    assert word(bound) == INFLATED
    silent = changed(bound, test=SHOWS_NOTHING)
    assert word(silent) == CANNOT_TELL
    assert "art of the model was not retrained" in sentence(silent)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, SHOWN),
        ({"test": SHOWS_NOTHING}, NOT_SHOWN),
        ({"e0": 0.24, "inflation": -0.01}, NOT_SHOWN),
        ({"settings": {"claim": (0.0, 0.0)}}, NOT_SHOWN),
        ({"settings": {"claim": (0.0, 0.1)}}, OPEN),
        ({"settings": {"claim": (0.01, 0.1)}}, SHOWN),
        # the interval excludes the score whatever the test says
        ({"test": SHOWS_NOTHING, "e0_interval": (0.26, 0.34), "loco": 0.2}, SHOWN),
    ],
)
def test_inflation_by_ids_needs_rows_that_leaked_and_a_learner_that_profits(changes, expected):
    assert loco_inflation(report(**{"e0_interval": (0.2, 0.34), **changes})) == expected


@pytest.mark.parametrize(("e0", "expected"), [(0.2503, NOT_SHOWN), (0.252, SHOWN)])
def test_a_correction_that_the_printed_numbers_do_not_show_is_no_inflation(e0, expected):
    audit = report(loco=0.25, e0=e0, inflation=e0 - 0.25, e0_interval=(0.2, 0.34))
    assert loco_inflation(audit) == expected


@pytest.mark.parametrize("e0", [0.25, 0.2501, 0.2499])
def test_where_all_ids_are_right_nothing_is_said_about_the_score_by_ids(e0):
    """It is e0, up to rounding errors."""
    audit = report(settings={"claim": (0.0, 0.0)}, e0=e0, inflation=e0 - 0.25)
    assert "on new patients" in sentence(audit) or e0 < 0.25
    assert "inflated" not in sentence(audit)
    assert "inflation" not in sentence(audit)
    assert explain_inflation(audit).endswith(" By patient_id alone it is 0.250.")


def test_a_difference_that_rounds_to_zero_has_no_sign():
    audit = sound(settings=ANY, iid=0.1602, e0=0.1601, loco=0.16, inflation=0.0001)
    assert "on new patients 0.160 (+0.000)" in sentence(audit)
    assert "-0.000" not in str(audit) + audit.to_text()


@pytest.mark.parametrize("changes", [{"n_validated": 6, "n_clusters": 6}, {"refit_agreement": 0.5}])
def test_inflation_is_told_with_what_makes_it_unsure(changes):
    told = sentence(report(settings={**ANY, **changes}))
    assert "uncertain for the same reason" in told or "This is uncertain, because" in told
    assert "uncertain" not in sentence(report(settings=ANY))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("clusters", [3, 6])
@pytest.mark.parametrize("make", [report, sound, unknown])
def test_few_clusters_are_told_once(make, clusters, given):
    few = {"n_clusters": clusters, "n_validated": clusters, "threshold_given": given}
    told = sentence(changed(make(), settings=few))
    assert told.count("too few to generalise") == 1
    assert told.count("constant guess (") <= 1


# --- where the data cannot tell -------------------------------------------------------------------


def test_one_row_a_cluster_cannot_tell():
    audit = sound(settings={**ANY, "n_clusters": 2000, "n_validated": 2000})
    assert word(audit) == CANNOT_TELL
    assert sentence(audit).startswith("No cluster has a second row")
    few = sound(settings={**ANY, "n_clusters": 1995, "n_validated": 1995})
    assert sentence(few).startswith("At most 5 clusters have a second row")


def test_three_clusters_cannot_tell():
    audit = sound(settings={**ANY, "n_clusters": 3, "n_validated": 3})
    assert word(audit) == CANNOT_TELL
    told = "3 clusters are too few to generalise to new ones; at least 10 are needed."
    assert sentence(audit).startswith(told)


@pytest.mark.parametrize(("clusters", "expected"), [(4, CANNOT_TELL), (5, INFLATED)])
def test_inflation_needs_more_clusters_than_could_all_drop_by_chance(clusters, expected):
    audit = report(settings={**ANY, "n_clusters": clusters, "n_validated": clusters})
    assert word(audit) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {**ANY, "n_clusters": 2000, "n_validated": 2000}},
        {"findings": (SimpleNamespace(code=GIVEN_AWAY),)},
    ],
)
def test_data_that_show_nothing_have_no_tipping_point(changes):
    told = "There is no tipping point: these data cannot show what wrong ids would do."
    assert explain_tipping(sound(**changes)) == tipping_rates(sound(**changes)) == told
    assert "better than a constant guess" not in sentence(sound(**changes))


def test_a_model_without_any_error_cannot_tell():
    """As when a feature equals the target."""
    audit = sound(iid=0.0, loco=0.0, loco_interval=(0.0, 0.0), e0=0.0, e0_interval=(0.0, 0.01))
    assert word(audit) == CANNOT_TELL
    assert "a feature contains the target" in sentence(audit)


def test_a_feature_that_gives_away_the_target_cannot_tell():
    audit = sound(findings=(SimpleNamespace(code=GIVEN_AWAY),))
    assert word(audit) == CANNOT_TELL
    assert sentence(audit).startswith("A feature gives away the target")


def test_no_rate_cannot_tell_whatever_the_threshold_and_leads_with_the_tipping_point():
    for threshold in (0.45, 1e6):
        audit = unknown(iid=0.24, test=SHOWS_NOTHING, threshold=threshold)
        assert word(audit) == CANNOT_TELL
        assert sentence(audit).startswith("Tipping point: the model would reach the")
        assert "Give cluster_error or split_rate" in sentence(audit)


def test_no_rate_does_not_say_that_it_beats_a_guess_and_that_this_is_open():
    """The tipping points go by the estimate; the interval may leave them open."""
    audit = unknown(iid=0.24, test=SHOWS_NOTHING, constant_loss=0.45, tipping_cluster_error=None)
    audit = replace(audit, plan=replace(audit.plan, threshold_given=False))
    told = headline_of(audit).sentence
    assert told.startswith(
        "By the estimate, the model would still beat a constant guess (0.450) even if 50% of the rows "
        "carried a wrong id or if all rows belonged to split clusters. "
    )
    sure = "By the interval, this is sure only up to 19.6% wrong ids. Reported error rate 0.240, "
    assert sure in told
    assert "remains open" not in told
    never_sure = replace(audit.sensitivity, high=(0.46, *audit.sensitivity.high[1:]))
    told = headline_of(changed(audit, sensitivity=never_sure)).sentence
    assert "Its interval leaves that open. Reported error rate 0.240, " in told


def test_a_model_without_skill_cannot_tell():
    audit = sound(
        iid=0.44, loco=0.46, loco_interval=(0.43, 0.49), e0=0.46, e0_interval=(0.43, 0.49)
    )
    assert word(audit) == CANNOT_TELL
    assert "no better than a constant guess (0.450)" in sentence(audit)


def test_a_wide_interval_cannot_tell():
    audit = sound(settings=ANY, e0_interval=(0.1, 0.4))
    assert word(audit) == CANNOT_TELL
    told = "leaves room for +0.250; more clusters or a larger budget would narrow it."
    assert told in headline_of(audit).answer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"n_validated": 4}}, "4 clusters are too few to generalise to new ones"),
        ({"settings": {"refit_agreement": 0.5}}, "the refits are unlike the logged model"),
        ({"settings": {"refit_agreement": math.nan}}, "the refits are unlike the logged model"),
        ({"accurate": False}, "the solver's numbers may be inaccurate"),
        ({"folds": shared().folds}, "the folds have rows of the same cluster id on both sides"),
        ({"settings": {"refit_strength": "lower-bound"}}, "part of the model was not retrained"),
    ],
)
def test_a_score_that_holds_needs_clusters_refits_a_solver_and_folds(changes, reason):
    assert word(sound(**changes)) == CANNOT_TELL
    assert reason.lower() in sentence(sound(**changes)).lower()


# --- where it holds -------------------------------------------------------------------------------


def test_a_score_holds_where_the_interval_leaves_no_room_for_inflation():
    assert word(sound(settings=ANY)) == HOLDS
    assert str(headline_of(sound(settings=ANY))).startswith(
        "● Holds: reported error rate 0.150, on new patients 0.160 (+0.010), better than a constant "
        "guess (0.450). If 10%"
    )
    assert word(sound()) == HOLDS


def test_a_score_that_holds_may_miss_the_threshold_or_leave_it_open():
    missed = headline_of(sound(threshold=0.11))
    assert missed.word == MISSED
    told = ", no better than the threshold (0.110) but better than a constant guess (0.450)."
    assert missed.sentence.endswith(told)
    assert word(sound(threshold=0.18)) == CANNOT_TELL


def test_a_threshold_takes_the_place_of_an_unknown_constant():
    assert word(sound(constant_loss=None)) == HOLDS
    assert word(sound(constant_loss=None, settings=ANY)) == CANNOT_TELL
    told = "constant guess is not known; give threshold= to compare it with what is good enough."
    assert told in sentence(sound(constant_loss=None, settings=ANY))


def test_the_solver_of_misplaced_rows_does_not_matter_for_split_clusters():
    audit = sound(settings={"pattern": "fragments"}, p0_source="split_rate", accurate=False)
    assert word(audit) == HOLDS


def test_every_word_has_a_sign_and_a_style():
    assert [SIGNS[name] for name in (INFLATED, CANNOT_TELL, HOLDS, UNKNOWN)] == ["▲", "◆", "●", "?"]
    assert {Headline(word=name, sentence="…").state for name in WORDS} == {
        "bad",
        "open",
        "good",
        "unknown",
    }


def test_the_folds_of_the_score_by_ids_are_named():
    made = linked("resolved_rows")
    made = changed(made, settings={"fold_threshold": 0.5, **ANY})
    assert "On folds made with match probabilities: 0.250, inflated" in sentence(made)
    assert "On the given folds: 0.250, inflated" in sentence(without_threshold(shared()))


# --- the threshold --------------------------------------------------------------------------------


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
    assert compare_with_threshold(report(threshold=threshold)) == expected


def test_without_a_threshold_the_constant_is_compared_with():
    assert "on new patients 0.300 (+0.150), better than a constant guess (0.450)." in sentence(
        report(settings=ANY)
    )


def test_an_estimate_outside_its_own_interval_decides_nothing():
    assert compare_with_threshold(report(e0=0.5)) == UNDECIDED
    assert compare_with_threshold(report(e0=0.1, threshold=0.2)) == UNDECIDED


@pytest.mark.parametrize("source", ["resolved_rows", "partition_samples"])
def test_checked_evidence_can_show_that_a_loss_is_small(source):
    assert compare_with_threshold(linked(source)) == BELOW


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (linked("match_probability", "uncalibrated"), "nobody has checked the match probabilities"),
        (
            report(p0_source="match_column", settings={"claim": (0.01, 0.3)}),
            "nobody has checked the match probabilities",
        ),
        (report(settings={"n_validated": 6}), "6 clusters are too few to generalise to new ones"),
        (report(accurate=False), "the solver's numbers may be inaccurate"),
        (shared(), "the folds have rows of the same cluster id on both sides"),
        (lower_bound(), "part of the model was not retrained"),
    ],
)
def test_a_small_loss_needs_evidence_to_rely_on(audit, reason):
    assert compare_with_threshold(audit) == UNDECIDED
    assert f"remains open, because {reason}" in sentence(audit)
    assert sentence(audit).count(reason) == 1
    assert compare_with_threshold(changed(audit, threshold=0.2)) == ABOVE


def test_a_bound_from_the_rows_that_excludes_nothing_shows_nothing():
    audit = report(
        p0_source="mixture", settings={"claim": (0.0, 0.1)}, e0=None, e0_interval=(0.2, 0.4)
    )
    assert compare_with_threshold(audit) == UNDECIDED
    assert "The rows do not reveal how many of them leaked. If at most half of" in sentence(audit)
    assert "at most 10%" not in sentence(audit)


def test_an_interval_without_an_upper_end_says_so():
    audit = linked("linkage_quality", "upper", e0=None, e0_interval=(0.2, None))
    assert "is at least 0.200 with 95% confidence, with no upper limit" in sentence(audit)
    assert "with no upper limit)" in sentence(report(e0_interval=(0.26, None)))


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
    compared = compare_with_threshold(audit)
    if compared == BELOW or answer.word == HOLDS:
        assert full
        assert clusters >= 10
        assert source != "match_column"
        assert low <= high < threshold
        assert e0 is None or e0 < threshold
    if compared == ABOVE:
        assert low >= threshold
    if answer.word == HOLDS:
        assert e0 is not None


def test_a_headline_travels_as_plain_values():
    answer = headline_of(split(fragments=FRAGMENTS))
    assert Headline.from_dict(answer.to_dict()) == answer
