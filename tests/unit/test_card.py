"""The answer at a glance: a card in notebooks, a dozen lines on a terminal, and charts on axes."""

import re

import matplotlib as mpl
import pytest
from example_reports import CVC, REPORT, by_doses, changed, lower_bound, report, split, unknown
from test_dose_reporting import REPORT_BY_DOSES, SHRUNK
from test_html import Page

from mlflow_b3 import InputError
from mlflow_b3.reporting.card import STYLES, card_of, summary_of
from mlflow_b3.reporting.headline import GIVE_A_RATE
from mlflow_b3.reporting.phrases import clusters_noun, model_name

pytestmark = pytest.mark.newest


def settings(**changes):
    return report(settings=changes)


# --- the lines of a terminal ------------------------------------------------------------------------


def test_a_summary_has_the_headline_the_scores_the_tipping_point_and_the_findings():
    assert str(REPORT).splitlines() == [
        "▲ Inflated: reported error rate 0.150, on new patients 0.300 (+0.150). By",
        "  patient_id alone: 0.250, inflated as well.",
        "",
        "  Reported           0.150           folds that ignore patients (IID)",
        "  By patient_id      0.250           0.220 – 0.280, 95% interval (LOCO)",
        "  On new patients    0.300 (+0.150)  0.260 – 0.340, 95% interval (e0)",
        "                     If 10% of the rows carry a wrong 'patient_id'.",
        "  Tipping point      30% wrong ids would make it no better than the threshold",
        "                     (0.450), 19.6% could; all rows in split clusters would not",
        "  Findings           B315 few refits",
        "  More               report.to_text(), report.to_html(path), report.plot()",
    ]


def test_a_summary_without_a_rate_says_what_to_give():
    assert GIVE_A_RATE in " ".join(str(unknown()).split())
    assert GIVE_A_RATE not in " ".join(str(REPORT).split())
    few = changed(unknown(), settings={"n_validated": 3})
    assert GIVE_A_RATE not in " ".join(str(few).split())  # it alone would not help


@pytest.mark.parametrize(
    "audit", [REPORT, unknown(), split(), lower_bound(), REPORT_BY_DOSES, by_doses(SHRUNK)]
)
def test_a_summary_is_short_and_as_wide_as_the_terminal(audit):
    links = {"Report": "http://127.0.0.1:5000/#/experiments/0/runs/0/artifacts/b3/report.html"}
    lines = summary_of(audit, width=80, links=links).splitlines()
    assert len(lines) <= 14
    assert all(len(line) <= 80 for line in lines if "http" not in line)
    assert len(summary_of(audit, width=120).splitlines()) < len(lines)


def test_colours_are_only_added():
    coloured = summary_of(REPORT, colour=True)
    assert coloured.startswith(f"{STYLES['bad']}▲ Inflated:")
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == summary_of(REPORT)


# --- notebooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("audit", [REPORT, unknown(), CVC])
def test_a_repr_has_at_most_six_lines(audit):
    assert len(repr(audit).splitlines()) <= 6
    assert len(repr(audit)) < 500


def test_the_card_of_a_notebook_has_the_answer_its_scores_and_what_belongs_to_it():
    card = Page(REPORT._repr_html_())
    for part in (
        "Leakage audit of clinic version 3 (KNeighborsClassifier) ▲ Inflated",
        "On new patients 0.300 (+0.150) 0.260 – 0.340, 95% interval (e0)",
        "Tipping point The model would reach the threshold of 0.450 if 30% of the rows",
        "B315 few refits",
    ):
        assert part in card.text
    assert "svg" not in card.tags


def test_nothing_is_said_about_promotion_but_who_decides():
    facts = dict(card_of(REPORT).facts)
    assert facts["Promotion"] == (
        "Not decided by an audit. Ask the gate: mlflow-b3 gate models:/clinic/3"
    )
    bare = settings(uri=None, model_id=None)
    assert "Register the model" in dict(card_of(bare).facts)["Promotion"]


def test_in_python_it_is_said_that_an_audit_must_be_recorded_before_the_gate_sees_it():
    told = "Record it with b3.record(report), then run mlflow-b3 gate models:/clinic/3"
    assert told in Page(REPORT._repr_html_()).text
    assert "b3.record" not in REPORT.to_html()  # also the page in MLflow, of a recorded audit
    logged = settings(uri="runs:/5f/model")
    assert "Register the model, record the audit with b3.record(report), then run" in (
        Page(logged._repr_html_()).text
    )


def test_corrected_cross_validation_has_a_card_with_its_scores():
    assert "Corrected (CV_c) 0.349" in Page(CVC._repr_html_()).text


# --- tables and charts ------------------------------------------------------------------------------


def test_the_scores_are_a_table():
    frame = REPORT.frame()
    assert frame.loc["e0", ["value", "low", "high"]].tolist() == [0.3, 0.26, 0.34]
    assert frame.loc["e0", "meaning"] == "error rate on new patients"
    assert unknown().frame()["value"].isna().tolist() == [False, False, True]


def test_the_loss_curve_is_a_table():
    assert REPORT.curve.frame().columns.tolist() == ["injected", "exposure", "loss", "stderr"]


@pytest.fixture
def _agg():
    before = mpl.get_backend()
    mpl.use("agg")
    yield
    mpl.pyplot.close("all")
    mpl.use(before)


@pytest.mark.usefixtures("_agg")
@pytest.mark.parametrize("kind", ["scores", "dose", "sensitivity", "loss"])
def test_every_chart_can_be_drawn_on_axes_of_the_user(kind):
    ax = mpl.figure.Figure().add_subplot()
    assert REPORT_BY_DOSES.plot(kind, ax) is ax
    assert ax.lines
    assert REPORT_BY_DOSES.plot(kind).get_xlabel() == ax.get_xlabel()


@pytest.mark.usefixtures("_agg")
def test_without_a_name_all_charts_of_the_page_are_drawn():
    assert len(REPORT_BY_DOSES.plot()) == 3
    assert len(unknown().plot()) == 4


def test_charts_that_an_audit_does_not_have_are_refused():
    with pytest.raises(InputError, match="has no losses by dose; choose 'loss'"):
        REPORT.plot("dose")
    with pytest.raises(InputError, match="Did you mean 'scores'"):
        REPORT.plot("score")


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "noun"),
    [
        ("patient_id", "patients"),
        ("PatientID", "patients"),
        ("person", "people"),
        ("family id", "families"),
        ("grid", "clusters"),
        ("paid", "clusters"),
        ("x7", "clusters"),
        ("", "clusters"),
    ],
)
def test_clusters_are_named_after_their_column_where_it_has_a_common_noun(column, noun):
    assert clusters_noun(column) == noun


def test_a_model_is_named_by_name_and_version_never_by_an_id():
    assert model_name(REPORT) == "clinic version 3 (KNeighborsClassifier)"
    by_id = settings(uri="models:/m-0123", model="models:/m-0123 (KNeighborsClassifier)")
    assert model_name(by_id) == "KNeighborsClassifier"
    assert model_name(settings(uri=None, model="GaussianNB")) == "GaussianNB"
