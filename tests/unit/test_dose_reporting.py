"""What people see of an audit by doses: the chart, the sentences, the findings, the tables."""

import csv
import io
from collections import Counter
from dataclasses import replace

import pytest
from example_reports import DOSES, PROFITS, REPORT, SHOWS_NOTHING, by_doses, changed, unknown
from matplotlib.figure import Figure

from mlflow_b3 import AuditReport
from mlflow_b3.auditing.findings import audit_findings
from mlflow_b3.estimation.dose import VarianceParts
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.reporting.charts import charts_of, figures_of
from mlflow_b3.reporting.doses import narrowing
from mlflow_b3.reporting.headline import NOT_SHOWN, headline_of, loco_inflation
from mlflow_b3.reporting.pages import to_html, to_markdown, to_text
from mlflow_b3.reporting.paper import describe_for_paper
from mlflow_b3.reporting.sentences import (
    describe_method,
    explain,
    explain_test_of,
    limits_of,
    open_questions,
)
from mlflow_b3.reporting.tables import settings_table
from mlflow_b3.tracking.metrics_and_files import curves_of, curves_table, parameters_of

REPORT_BY_DOSES = by_doses()
SHRUNK = replace(DOSES, shrunk=True, no_effect=0.63)
SENTENCE = (
    "With none of the other rows of the same 'patient_id' in training, 30 of 100 rows are wrong; with "
    "one 26, with three 20, with nine 15."
)


def unknown_by_doses() -> AuditReport:
    """Return the report of an audit by doses that was told nothing about the leakage."""
    nothing = by_doses(
        settings={"pattern": "unknown", "claim": None}, p0_source="none", e0_interval=(0.22, 0.8)
    )
    return replace(
        nothing, conclusion=replace(nothing.conclusion, e0=None, p0=None, inflation=None)
    )


def one_line(text: str) -> str:
    return " ".join(text.split())


def messages(audit: AuditReport) -> dict[str, str]:
    counts = FitCounts(planned=95, done=95)
    return {finding.code: finding.message for finding in audit_findings(audit, counts)}


def codes(audit: AuditReport) -> set[str]:
    return set(messages(audit))


# --- the chart ------------------------------------------------------------------------------------


def test_the_page_shows_the_losses_by_dose_after_the_scores_and_no_loss_curve():
    assert list(figures_of(REPORT_BY_DOSES)) == ["scores", "dose", "sensitivity"]
    assert "dose" not in figures_of(REPORT)
    page = to_html(REPORT_BY_DOSES)
    places = ["The scores</h2>", "same cluster in training</h2>", "What other rates of wrong ids"]
    assert sorted(map(page.index, places)) == [page.index(place) for place in places]


def test_the_loss_curve_stays_among_the_plots():
    svg = charts_of(REPORT_BY_DOSES)["loss_curve"]
    assert "The loss curve that follows from the losses by dose" in svg
    assert "from the losses by dose, with the 95% noise" in svg


def test_the_chart_marks_e0_where_no_row_of_the_cluster_is_in_training():
    ax = Figure().add_subplot()
    figures_of(REPORT_BY_DOSES)["dose"].draw(ax)
    lines = [artist.get_xydata().tolist() for artist in ax.lines]
    curve = REPORT_BY_DOSES.dose
    assert [list(point) for point in zip(curve.d, curve.loss, strict=True)] in lines
    assert [[0.0, 0.3]] in lines
    assert "e0 0.300" in [text.get_text() for text in ax.texts]
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_the_chart_has_plain_words_for_those_who_see_it_and_those_who_do_not():
    figure = figures_of(REPORT_BY_DOSES)["dose"]
    assert figure.caption.startswith(SENTENCE)
    assert SENTENCE in figure.alt
    assert "differences between scores of the same rows" in to_text(REPORT_BY_DOSES).replace(
        "\n  ", " "
    )


def test_other_losses_are_told_in_their_own_units():
    figure = figures_of(by_doses(settings={"loss": "squared", "loss_bound": None}))["dose"]
    assert "the mean squared error is 0.300; with one 0.260, with three 0.200" in figure.caption


def test_small_error_rates_keep_their_digits():
    curve = replace(DOSES.curve, loss=(0.034, 0.026, 0.02, 0.012, 0.01, 0.004))
    caption = figures_of(by_doses(replace(DOSES, curve=curve)))["dose"].caption
    assert "3.4 of 100 rows are wrong; with one 2.6, with three 1.2, with nine 0.4." in caption


def test_where_nothing_is_known_the_curve_is_said_to_be_for_a_usual_error():
    audit = unknown_by_doses()
    figure = figures_of(audit)["dose"]
    assert "the curve is for a cluster error of 10%" in figure.caption
    assert "e0" not in charts_of(audit)["dose"].partition("</desc>")[2]
    assert "Of the variance of e0" not in to_text(audit)


def test_of_a_range_the_curve_is_said_to_be_for_its_middle():
    caption = figures_of(by_doses(settings={"claim": (0.05, 0.15)}))["dose"].caption
    assert caption.endswith("It is for the middle of the given range.")
    assert "middle" not in figures_of(REPORT_BY_DOSES)["dose"].caption


def test_lower_bounds_have_no_upper_limit_in_the_chart():
    partial = {"refit": "head", "refit_strength": "lower-bound"}
    audit = by_doses(settings=partial, e0_interval=(0.26, None))
    svg = charts_of(audit)["dose"]
    assert "e0 at least 0.300" in svg
    assert "its 95% interval" not in svg


def test_the_text_has_the_losses_as_a_table():
    assert "| 3 | 0.200 | 0.170 – 0.230 |" in to_markdown(REPORT_BY_DOSES)
    assert "3 0.200 0.170 – 0.230" in one_line(to_text(REPORT_BY_DOSES))


# --- the sentences --------------------------------------------------------------------------------


def test_what_would_narrow_the_interval_is_told_by_its_part_of_the_variance():
    told = (
        "Of the variance of e0, 75% comes from which clusters are in the table (more clusters narrow the "
        "interval), 20% from how the effect runs between no row of the same cluster in training and the "
        "measured doses (better ids narrow it, and more clusters or refits can, too) and 5% from the refits "
        "(a larger budget narrows it)."
    )
    assert told in explain(REPORT_BY_DOSES)
    assert told in one_line(to_text(REPORT_BY_DOSES))


def test_knowing_the_rate_better_helps_where_a_range_was_given():
    words = "or a narrower range narrow it"
    assert words in " ".join(explain(by_doses(settings={"claim": (0.05, 0.15)})))
    assert words not in " ".join(explain(REPORT_BY_DOSES))


def test_a_larger_budget_is_not_recommended_where_it_repeats_the_same_refits():
    """After two passes refits stop where they cause less than 5% of the variance."""
    settled = replace(DOSES, variance=VarianceParts(clusters=0.7, refits=0.01, ids=0.29))
    told = " ".join(explain(by_doses(settled)))
    assert "better ids narrow it, and more clusters can, too) and 1% from the refits." in told
    first_pass = replace(settled, refits=30)
    short = by_doses(first_pass, settings={"repeats": 1}, folds=REPORT.folds)
    assert "more clusters or refits can, too" in " ".join(explain(short))


def test_a_part_of_the_variance_that_is_zero_is_left_out():
    """As that of wrong ids is if all ids are right."""
    right = replace(DOSES, variance=VarianceParts(clusters=0.75, refits=0.25, ids=0.0))
    assert narrowing(by_doses(right), right) == (
        "Of the variance of e0, 75% comes from which clusters are in the table (more clusters narrow the "
        "interval) and 25% from the refits (a larger budget narrows it)."
    )


@pytest.mark.parametrize(
    ("largest", "told"),
    [
        ("clusters", "; more clusters would narrow it."),
        ("refits", "; a larger budget would narrow it."),
        ("ids", "; better ids narrow it, and more clusters or refits can, too."),
    ],
)
def test_a_wide_interval_comes_with_what_would_narrow_it(largest, told):
    parts = VarianceParts(**{"clusters": 0.1, "refits": 0.1, "ids": 0.1, largest: 0.8})
    wide = by_doses(
        replace(DOSES, variance=parts),
        settings={"threshold_given": False},
        test=SHOWS_NOTHING,
        iid=0.24,
        e0_interval=(0.2, 0.4),
        constant_loss=0.45,
    )
    assert told in headline_of(wide).sentence


def test_an_effect_within_its_noise_is_told():
    text = " ".join(explain(by_doses(SHRUNK, test=SHOWS_NOTHING)))
    assert "with a probability of 63%, there is none. So e0 was pulled towards the score by" in text
    assert "pulled" not in " ".join(explain(REPORT_BY_DOSES))


def test_an_effect_that_only_the_leakage_test_finds_is_told_without_contradiction():
    """Its null hypothesis is tested on all doses at once; by dose, no effect may stay more probable."""
    audit = by_doses(SHRUNK)
    text = " ".join(explain(audit))
    assert audit.test.rejected
    assert (
        "The leakage test finds an effect of rows of the same cluster (p = 0.0001), but its" in text
    )
    assert "there is none" not in text
    assert "How large this is remains uncertain." in text
    assert loco_inflation(audit) == NOT_SHOWN
    assert "inflated as well" not in str(headline_of(audit))


@pytest.mark.parametrize(
    ("test", "told"),
    [
        (SHOWS_NOTHING, "Effect within the noise: e0 was pulled towards LOCO."),
        (PROFITS, "Size of the effect uncertain: e0 was pulled towards LOCO."),
    ],
)
def test_a_pull_towards_the_score_by_ids_has_a_line_on_the_terminal(test, told):
    lines = [line.strip() for line in str(by_doses(SHRUNK, test=test)).splitlines()]
    assert lines.count(told) == 1
    assert "pulled" not in str(REPORT_BY_DOSES)
    assert "pulled" not in str(unknown_by_doses())


@pytest.mark.parametrize(
    "settings", [{}, {"pattern": "fragments", "claim": (0.4, 0.4)}], ids=["rows", "fragments"]
)
def test_no_sentence_speaks_of_an_extrapolation_in_shares(settings):
    source = "split_rate" if settings else "cluster_error"
    audit = by_doses(settings=settings, p0_source=source)
    page = one_line(to_html(audit))
    for words in ("extrapolat", "convex", "mixture", "sharpness", "small training sets", "secant"):
        assert words not in page
    assert "estimator dose (solved from differences between doses within rows" in describe_method(
        audit
    )


def test_the_paragraph_for_a_paper_says_how_e0_was_solved():
    text = describe_for_paper(REPORT_BY_DOSES)
    assert "was estimated by doses, a variant of the binomial block bootstrap" in text
    assert "solved from the differences within rows" in text
    assert "95 refits in total" in text
    assert "under every share of wrong identifiers up to 50%" in describe_for_paper(
        unknown_by_doses()
    )


def test_without_a_rate_the_loss_without_mates_is_said_to_be_conditional():
    """It follows from the measured losses only for an assumed rate of wrong ids."""
    nothing_known = changed(
        REPORT_BY_DOSES, settings={"pattern": "unknown", "claim": None}, e0=None
    )
    assert (
        "If 10% of the rows carried a wrong id, which nobody has said: with none of the"
        in to_html(nothing_known)
    )
    for written in (to_text(nothing_known), to_markdown(nothing_known)):
        assert "If 10% of the rows carried a wrong id, which nobody has said" in written
    for written in (to_html, to_text, to_markdown):
        assert "which nobody has said" not in written(REPORT_BY_DOSES)


def test_of_a_range_the_table_is_said_to_be_for_its_middle():
    audit = by_doses(settings={"claim": (0.05, 0.15)})
    assert "For the middle of the range of wrong ids" in to_text(audit)


def test_the_test_compares_training_sets_of_full_size():
    assert "in training sets of full size, other rows" in explain_test_of(REPORT_BY_DOSES)
    assert "in small training sets, other rows" in explain_test_of(REPORT)
    assert "in training sets of full size, they improved the loss" in describe_for_paper(
        REPORT_BY_DOSES
    )


def test_limits_and_open_questions_are_those_of_the_method():
    assert not [limit for limit in limits_of(REPORT_BY_DOSES) if "sharp" in limit]
    assert [limit for limit in limits_of(unknown()) if "sharp" in limit]
    no_secant = replace(REPORT, conclusion=replace(REPORT.conclusion, e0_secant=None))
    assert [question for question in open_questions(no_secant) if "secant" in question]
    assert not [question for question in open_questions(REPORT_BY_DOSES) if "secant" in question]


def test_a_split_rate_beside_a_cluster_error_is_told_everywhere():
    claim = replace(REPORT.claim, split_range=(0.2, 0.3))
    audit = replace(REPORT_BY_DOSES, claim=claim)
    settings = dict(settings_table(audit).rows)
    assert settings["leaked share"] == "cluster_error 10%, split_rate 20% to 30%"
    assert settings["clusters split"] == "uniform"
    assert "and 20% to 30% belong to clusters that were split" in describe_for_paper(audit)
    assert parameters_of(audit)["b3/split_rate"] == "0.2 to 0.3"
    assert "b3/split_rate" not in parameters_of(REPORT_BY_DOSES)


# --- findings -------------------------------------------------------------------------------------


def test_an_ordinary_audit_by_doses_has_no_finding_about_a_curve():
    assert codes(REPORT_BY_DOSES) == set()


def test_rows_without_mates_that_are_rare_are_a_finding():
    assert "B355" in codes(by_doses(replace(DOSES, unseen=0.09)))
    assert "B355" not in codes(by_doses(replace(DOSES, unseen=0.1)))


def test_rows_that_hurt_are_a_finding():
    assert "B304" in codes(by_doses(replace(DOSES, p_value=0.99, effect=-0.05)))
    assert "B304" not in codes(by_doses(replace(DOSES, p_value=0.9, effect=-0.01)))


def test_ids_and_refits_that_dominate_the_variance_are_findings():
    by_ids = VarianceParts(clusters=0.1, refits=0.1, ids=0.8)
    by_refits = VarianceParts(clusters=0.6, refits=0.3, ids=0.1)
    assert codes(by_doses(replace(DOSES, variance=by_ids))) == {"B306"}
    told = messages(by_doses(replace(DOSES, variance=by_ids)))["B306"]
    assert told.startswith(
        "80% of the variance of e0 comes from how the effect runs between no row"
    )
    assert told.endswith("better ids narrow it, and more clusters or refits can, too.")
    assert codes(by_doses(replace(DOSES, variance=by_refits))) == {"B315"}


# --- curves ---------------------------------------------------------------------------------------


def test_the_stepped_metric_counts_rows():
    points = curves_of(REPORT_BY_DOSES)["b3_curve/dose"]
    assert points == [(0, 0.3), (1, 0.26), (2, 0.23), (3, 0.2), (5, 0.17), (9, 0.15)]
    assert "b3_curve/dose" not in curves_of(REPORT)


def test_the_table_of_curves_has_the_losses_by_dose():
    rows = list(csv.DictReader(io.StringIO(curves_table(REPORT_BY_DOSES))))
    assert Counter(row["curve"] for row in rows)["dose"] == 6
    last = {
        "curve": "dose",
        "axis": "rows",
        "x": "9",
        "value": "0.15",
        "low": "0.12",
        "high": "0.18",
    }
    assert rows[-1] == last
