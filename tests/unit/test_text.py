"""The report in words: what it says, and that it says it safely."""

import math
import re
from dataclasses import replace

import pytest
from example_reports import (
    PROFITS,
    REPORT,
    SHOWS_NOTHING,
    changed,
    linked,
    lower_bound,
    report,
    split,
    unknown,
)

from mlflow_b3 import AuditReport, Finding
from mlflow_b3.auditing.findings import audit_findings
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.reporting.document import WIDTH
from mlflow_b3.reporting.headline import BELOW, compare_with_threshold, headline_of
from mlflow_b3.reporting.pages import to_html, to_markdown, to_text
from mlflow_b3.reporting.sentences import (
    describe_method,
    describe_refit,
    explain,
    explain_inflation,
    explain_test,
    open_questions,
)
from mlflow_b3.reporting.tables import score_rows
from mlflow_b3.results import loss_words, number, percent

pytestmark = pytest.mark.newest


def said(audit: AuditReport) -> str:
    """Return the whole text on one line, without the breaks of the terminal."""
    return re.sub(r"\s+", " ", to_text(audit))


# --- the answer and its premise -------------------------------------------------------------------


def test_the_answer_starts_with_its_premise_and_gives_an_interval():
    assert explain(REPORT)[0].startswith(
        "If 10% of the rows carry a wrong 'patient_id', this model's error rate on clusters it "
        "has never seen is about 0.300 (95% interval 0.260 to 0.340)."
    )


def test_the_answer_warns_that_the_corrected_value_is_less_certain():
    assert "less certain than the uncorrected one, not more" in explain(REPORT)[0]


def test_a_range_of_cluster_errors_is_named_as_a_range():
    audit = report(settings={"claim": (0.05, 0.15)})
    assert explain(audit)[0].startswith("If 5% to 15% of the rows carry a wrong 'patient_id',")


def test_a_share_p0_is_named_as_a_share_of_training_rows():
    audit = report(p0_source="p0", settings={"claim": (0.025, 0.025)})
    assert explain(audit)[0].startswith(
        "If 2.5% of the training rows of a fold belong to its validation clusters,"
    )


def test_without_a_known_share_no_single_number_is_claimed():
    """The interval covers every share, and the table takes the place of the answer."""
    answer = explain(unknown())[0]
    assert answer.startswith("How well this model does on new clusters is not known")
    assert "between 0.220 and 0.800" in answer
    assert "If at most half of the rows carry a wrong 'patient_id'" in answer
    assert "error rate on new patients (e0) unknown 0.220 – 0.800" in said(unknown())
    assert "What each cluster error would mean" in said(unknown())


def test_without_a_known_share_both_scores_are_doubted():
    inflation = explain(unknown())[1]
    assert "reports an error rate of 0.150; by patient_id alone it is 0.250" in inflation
    assert "optimistic as well if ids are wrong" in inflation


# --- how optimistic ------------------------------------------------------------------------------


def test_both_uncorrected_scores_are_compared_with_the_answer():
    assert explain(REPORT)[1] == (
        "Ignoring clusters, cross-validation reports an error rate of 0.150, by this estimate optimistic "
        "by 0.150. By patient_id alone it is 0.250, by this estimate optimistic by 0.050."
    )


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"test": SHOWS_NOTHING}, "This is within the noise: it may not be optimistic at all."),
        ({"settings": {"claim": (0.0, 0.1)}}, "Whether it is optimistic at all is not known."),
    ],
)
def test_an_estimate_of_the_bias_is_not_sold_as_shown(changes, caveat):
    assert explain_inflation(report(e0_interval=(0.2, 0.34), **changes)).endswith(caveat)


def test_a_score_that_leakage_made_worse_is_not_called_too_good():
    audit = report(e0=0.24, inflation=-0.01)
    assert explain(audit)[1].endswith("by this estimate not optimistic (correction -0.010).")


def test_a_score_without_clusters_that_is_too_bad_is_not_called_too_good():
    """e0 below the IID loss: `optimistic by -0.050` would be nonsense."""
    audit = report(e0=0.1, inflation=-0.15)
    assert "optimistic by -" not in explain(audit)[1]


# --- the test -------------------------------------------------------------------------------------


def test_rejection_names_the_null_the_effect_and_what_does_not_follow():
    text = explain_test(PROFITS)
    assert text.startswith(
        "The model benefits from leaked rows (p = 0.0001): in small training sets, other rows of the "
        "validation clusters lower the loss by 0.080"
    )
    assert "lower the loss by 0.080" in text
    assert "The test does not say that ids are wrong." in text


def test_no_rejection_is_never_sold_as_proof_of_absence():
    text = explain_test(SHOWS_NOTHING)
    assert text.startswith("No evidence that the model benefits from leaked rows (p = 0.34).")
    assert "does not prove that leakage is harmless" in text
    assert "an effect of 0.050 would have been found in four of five cases" in text


@pytest.mark.parametrize("test", [PROFITS, SHOWS_NOTHING])
def test_either_answer_comes_with_its_interval_its_power_and_both_readings(test):
    text = explain_test(test)
    low, high = test.interval
    assert f"90% interval {low:.3f} to {high:.3f}" in text
    assert "an effect of 0.050 would have been found in four of five cases" in text
    assert "the score is optimistic" in text or "make the score optimistic" in text
    assert "not say that ids are wrong" in text or "not that ids are wrong" in text


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({"unit": "clusters"}, "It is the paired form, on 200 clusters"),
        ({}, "on 200 rows, so it is about new rows of these clusters"),
        ({"method": "welch", "unit": "folds"}, "the published form, on 200 folds without a row"),
        (
            {"method": "permutation", "arrangements": 99},
            "on 200 rows and 99 rearrangements, whose null hypothesis is stronger",
        ),
    ],
)
def test_the_text_names_the_form_of_the_test_and_its_units(changes, form):
    for test in (PROFITS, SHOWS_NOTHING):
        assert form in explain_test(replace(test, **changes))


@pytest.mark.parametrize("test", [PROFITS, SHOWS_NOTHING])
def test_the_report_repeats_what_the_test_says(test):
    assert explain_test(test) in said(report(test=test))


def test_a_test_of_losses_that_did_not_change_names_no_effect_that_it_would_have_found():
    """As with three clusters of which no prediction changes."""
    still = replace(
        SHOWS_NOTHING, statistic=0.0, pvalue=1.0, effect=0.0, interval=(0.0, 0.0), detectable=0.0
    )
    told = "no loss changed, so which effect the test would have found is not known."
    audit = report(test=still)
    assert told in explain_test(still)
    assert [question for question in open_questions(audit) if question.endswith(told)]
    counts = FitCounts(planned=420, done=420)
    (finding,) = (each for each in audit_findings(audit, counts) if each.code == "B308")
    assert finding.message.endswith(told)
    assert "four of five" not in explain_test(still)


# --- the tipping point ----------------------------------------------------------------------------


def test_the_tipping_point_is_given_for_both_patterns():
    assert explain(REPORT)[3] == (
        "Tipping point: the model would reach the threshold of 0.450 if 30% of the "
        "rows carried a wrong id, but not even if all rows belonged to split clusters. By the "
        "interval, it could from 19.6% wrong ids on."
    )


def test_a_tipping_point_that_both_patterns_have_is_given_in_one_clause():
    assert explain(changed(REPORT, tipping_split_rate=0.4))[3] == (
        "Tipping point: the model would reach the threshold of 0.450 if 30% of the "
        "rows carried a wrong id or if 40% of the rows belonged to split clusters. By the interval, it "
        "could from 19.6% wrong ids on."
    )


def test_a_threshold_that_no_rate_reaches_is_told_in_one_clause():
    text = explain(changed(REPORT, tipping_cluster_error=None))[3]
    assert text.startswith(
        "The model would still stay below the threshold of 0.450 even if 50% of the rows carried a "
    )
    assert text.endswith(
        "wrong id or if all rows belonged to split clusters. By the interval, this is sure only up to "
        "19.6% wrong ids."
    )


def test_a_threshold_that_nobody_gave_is_named_for_what_it_is():
    audit = report(settings={"threshold_given": False})
    assert "would be no better than a constant guess (0.450) if 30%" in explain(audit)[3]


def test_without_clusters_to_break_nothing_is_said_about_split_ones():
    audit = report(fragments=None, fragment_sensitivity=None)
    assert "30% of the rows carried a wrong id" in explain(audit)[3]
    assert "split" not in explain(audit)[3]


def test_a_score_that_reaches_the_threshold_already_has_no_tipping_point():
    """Whether e0 reaches it is another question: it may be below where leaked rows hurt."""
    audit = report(threshold=0.25, e0=0.2, e0_interval=(0.16, 0.24), inflation=-0.05)
    assert compare_with_threshold(audit) == BELOW
    assert explain(audit)[3] == (
        "There is no tipping point: by patient_id alone, the loss is 0.250, which is already "
        "no better than the threshold of 0.250."
    )
    constant = report(threshold=0.25, settings={"threshold_given": False})
    assert "already no better than a constant guess (0.250)" in explain(constant)[3]


def test_without_a_cluster_error_the_tipping_point_is_a_share_of_training_rows():
    """With a fixed share of validation rows from training clusters no rate of wrong ids is behind p0."""
    audit = report(
        p0_source="p0",
        sensitivity=replace(REPORT.sensitivity, error=None),
        tipping_cluster_error=None,
        settings={"claim": (0.05, 0.05), "p0_validation": 0.0},
    )
    assert "if 15% of the training rows of a fold belonged to its validation" in explain(audit)[3]
    assert "wrong id" not in explain(audit)[3]
    text = said(audit)
    assert "What each leaked share p0 would mean" in text
    assert "5% 0.300 0.260 – 0.340" in text
    assert "cluster error" not in text


def test_no_threshold_no_tipping_point():
    assert "there is no tipping point" in explain(report(threshold=None))[3]


# --- fragments ------------------------------------------------------------------------------------


def test_fragments_have_a_premise_of_their_own():
    premise = "If 40% of the rows belong to a cluster that was split into two ids,"
    assert explain(split())[0].startswith(premise)


def test_fragments_show_the_table_over_the_split_rate():
    text = said(split())
    assert "What each split rate would mean" in text
    assert "10% 0.261 0.231 – 0.291" in text
    assert "| split rate | e0 | 95% interval |" in to_markdown(split())
    assert "| 10% | 0.261 | 0.231 – 0.291 |" in to_markdown(split())


def test_fragments_have_no_secant_and_use_a_mixture():
    assert [name for name, _, _ in score_rows(split())][-1] == "error rate on new patients (e0)"
    assert "estimator mixture" in describe_method(split())


# --- the whole text -------------------------------------------------------------------------------


def test_the_whole_text_of_a_report_is_a_method():
    assert REPORT.to_text() == to_text(REPORT)


def test_a_name_cannot_steer_the_terminal():
    text = to_text(report(settings={"model": "m\x1b[2J\x1b[1;1HAll fine", "cluster": "a\u202eb"}))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", text)
    assert "m[U+001B][2J" in text


def test_numbers_that_are_not_finite_are_not_told_as_an_answer():
    for audit in (report(e0=math.nan), report(test=replace(PROFITS, pvalue=math.nan))):
        assert not re.search(r"(about|by|is|=) nan", said(audit))
        assert "are not finite, so nothing follows from them" in said(audit)


def test_a_lower_bound_above_the_estimate_is_marked():
    names = [name for name, _, _ in score_rows(report(e0=0.27))]
    assert names[-1] == "e0 at least, if the curve is convex (here it is above e0)"


def test_the_interval_up_to_a_limit_of_95_percent_holds_with_90_in_every_place():
    for audit in (
        report(p0_source="mixture", settings={"claim": (0.0, 0.1)}),
        linked("linkage_quality", "upper"),
    ):
        assert "about 0.300 (90% interval 0.260 to 0.340)" in headline_of(audit).premise
        assert "about 0.300 (90% interval 0.260 to 0.340)" in explain(audit)[0]
        assert "0.260 – 0.340 (90%)" in said(audit)
    exact = linked("linkage_quality", "upper")
    exact = changed(exact, linkage=replace(exact.linkage, n_labels=None))
    assert "(95% interval 0.260 to 0.340)" in explain(exact)[0]


def test_a_limit_on_the_seen_share_is_a_limit_on_the_split_rate():
    """40% of the 80.4% that five folds put apart, and 32% of them where that is estimated."""
    assert "of split rates, this corresponds to at most 49.8%." in said(
        linked("linkage_quality", "upper")
    )
    assert "of split rates, this corresponds to 39.8%." in said(linked("resolved_rows"))


def test_the_scores_come_from_naive_to_corrected():
    assert score_rows(REPORT) == [
        ("error rate, reported (IID)", 0.15, None),
        ("error rate by patient_id alone (LOCO)", 0.25, (0.22, 0.28)),
        ("error rate on new patients (e0)", 0.3, (0.26, 0.34)),
        ("e0 at least, if the curve is convex", 0.28, None),
    ]


def test_the_text_tells_how_to_repeat_the_audit():
    method = describe_method(REPORT)
    for part in (
        "2000 rows",
        "200 clusters by 'patient_id'",
        "5 folds",
        "loss zero_one",
        "420 refits",
        "without replacement",
        "estimator power",
        "seed 7",
        "data 0123456789abcdef",
        "mlflow-b3 0.1.0",
    ):
        assert part in method


def test_the_text_names_the_scheme_with_replacement():
    assert "drawn with replacement" in describe_method(report(settings={"scheme": "replace"}))


def test_findings_are_printed_with_code_title_and_message():
    assert "B315 (few refits): each level rests on 3 refits." in said(REPORT)


def test_without_findings_their_heading_is_left_out_of_the_text():
    assert "Findings" not in to_text(report(findings=()))
    assert "## Findings\n\nNone." in to_markdown(report(findings=()))


def test_lines_fit_a_terminal():
    assert max(len(line) for line in to_text(REPORT).splitlines()) <= WIDTH


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("zero_one", "error rate"),
        ("log", "log loss"),
        ("brier", "Brier score"),
        ("hinge", "hinge loss"),
        ("squared", "mean squared error"),
        ("absolute", "mean absolute error"),
        ("my_loss", "loss 'my_loss'"),
    ],
)
def test_losses_have_names_that_fit_a_sentence(loss, words):
    assert loss_words(loss) == words
    assert f"this model's {words} on clusters" in explain(report(settings={"loss": loss}))[0]


# --- Markdown -------------------------------------------------------------------------------------


def test_markdown_has_the_scores_and_the_table_of_the_text():
    markdown = to_markdown(REPORT)
    assert markdown.startswith("# Leakage audit of clinic version 3 (KNeighborsClassifier)\n")
    assert "| error rate on new patients (e0) | 0.300 | 0.260 – 0.340 |" in markdown
    assert "| 10% | 0.300 | 0.260 – 0.340 |" in markdown
    assert "- **B315** few refits: each level rests on 3 refits." in markdown
    assert "mlflow-b3 0.1.0.\n\nRoute 'clone': " in markdown


PARTIAL = lower_bound()


def test_a_refit_of_a_part_gives_a_lower_bound_in_every_sentence():
    text = " ".join(to_text(PARTIAL).split())
    assert "error rate on new patients (e0), at least 0.300 0.260, no upper limit" in text
    assert "is at least about 0.300 (at least 0.260 with 95% confidence)" in text
    assert "How much larger cannot be determined" in text
    assert "Both are optimistic" in text
    assert "0.340" not in text  # no upper end, in no table
    assert "would reach the threshold" not in text or "at the latest" in text
    assert "only part of the bias can show: losses are lower bounds" in text
    assert "only a linear head was trained" in text


def test_a_refit_of_a_part_never_says_that_leakage_is_harmless():
    tame = changed(PARTIAL, tipping_cluster_error=None, tipping_split_rate=None, inflation=-0.01)
    text = " ".join(explain(tame))
    assert "not even if" not in text
    assert "would not reach" not in text
    assert "not too low" not in text
    assert "at an unknown rate" in text
    assert "the second shows no bias, which does not mean that it has none" in text


def test_a_refit_of_a_part_that_shows_no_bias_is_not_called_too_good():
    silent = lower_bound(e0_interval=(0.2, None), test=SHOWS_NOTHING)
    assert "Both are optimistic" not in explain_inflation(silent)


def test_the_route_and_what_was_recovered_are_told():
    settings = {
        "refit": "parameters",
        "refit_notes": ("max_depth came from the run",),
        "refit_agreement": 0.975,
        "sample_weight": "weight",
    }
    text = describe_refit(changed(REPORT, settings=settings))
    assert text == (
        "Route 'parameters': a model with the recovered parameters was trained on other rows, so "
        "that all of the bias can show; max_depth came from the run; rows were weighted by 'weight' "
        "in training, not in the losses; trained on all rows, it agrees with the logged model in "
        "97.5% of its predictions."
    )


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b",
    "`rm -rf`",
    "[click](javascript:alert(1))",
    "**bold** _em_",
    "x\n\n# heading",
    "back\\slash",
]


def unescaped(markdown: str, characters: str) -> list[str]:
    """Return the special characters that no backslash makes harmless."""
    harmless = re.sub(r"\\.", "", markdown)
    return [character for character in harmless if character in characters]


def special_characters(markdown: str) -> list[str]:
    """Return what a Markdown viewer would act on, beyond the report's own tables and headings."""
    return sorted(unescaped(markdown, "`*_{}[]<>|#"))


def markdown_with(where: str, name: str) -> str:
    if where == "finding":
        return to_markdown(report(findings=(Finding(code="B312", message=name),)))
    if where == "loss":
        return to_markdown(report(settings={"loss": f"own {name}"}))
    return to_markdown(report(settings={where: name}))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["model", "cluster", "finding", "loss"])
def test_names_from_outside_cannot_become_markup(where, name):
    """Names of models, columns and losses, and errors of learners, are text and nothing else.

    A loss is called after its function, and that of a lambda is called `<lambda>`.
    """
    plain = special_characters(markdown_with(where, "plain"))
    assert special_characters(markdown_with(where, name)) == plain


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["model", "cluster", "finding", "loss"])
def test_names_from_outside_cannot_break_lines(where, name):
    plain = markdown_with(where, "plain").count("\n")
    assert markdown_with(where, name).count("\n") == plain


def test_escaped_names_can_still_be_read():
    markdown = to_markdown(report(settings={"model": "my_model|v2"}))
    assert "# Leakage audit of my\\_model\\|v2\n" in markdown


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0.000"),
        (0.25, "0.250"),
        (-0.25, "-0.250"),
        (0.01, "0.010"),
        (1.0, "1.000"),
        (0.00123456, "0.001"),
        (0.000123456, "0.000123"),
        (-0.00001234, "-1.23e-05"),
        (123.456, "123"),
        (1234567.0, "1.23e+06"),
    ],
)
def test_numbers_have_three_decimals_or_three_digits(value, text):
    assert number(value) == text


def test_an_interval_without_an_upper_end_has_no_upper_limit():
    audit = report(e0_interval=(0.26, None))
    assert "0.260, no upper limit" in said(audit)
    assert "with no upper limit" in explain(audit)[0]
    assert "unknown" not in said(audit)


def test_a_loss_that_extrapolation_made_up_is_never_printed():
    """Ratings from 1 to 5 have no squared error of 14792; a log loss of 34.539 limits nothing."""
    curve = replace(
        REPORT.sensitivity, e0=(1.8, 1.9, 2.0, 2.3, 9000.0), high=(2.0, 2.1, 2.2, 14792.0, 20000.0)
    )
    audit = report(
        settings={"loss": "squared", "loss_bound": None, "task": "regression"},
        e0=2.3,
        e0_interval=(1.818, 14792.0),
        loco=1.8,
        loco_interval=(1.7, 1.9),
        iid=1.5,
        threshold=1.9,
        constant_loss=1.9,
        sensitivity=curve,
    )
    for text in (said(audit), to_markdown(audit), to_html(audit)):
        assert not re.search("14792|9000|20000", text)
    assert "1.818, no upper limit" in said(audit)
    assert "over 19.000" in said(audit)
    log = changed(audit, settings={"loss": "log", "loss_bound": 34.539})
    assert "34.5" not in said(changed(log, e0_interval=(0.702, 34.539)))
    split_up = split(e0_interval=(0.26, None))
    assert "no upper limit" in to_html(split_up)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (0.1, "10%"),
        (0.125, "12.5%"),
        (1 / 3, "33.3%"),
        (0.001, "0.1%"),
        (1, "100%"),
    ],
)
def test_shares_are_percentages_of_three_digits(value, text):
    assert percent(value) == text
