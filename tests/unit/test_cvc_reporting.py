"""Corrected cross-validation in reports: the answer first, when to trust it, nothing slipped in."""

import re
from dataclasses import replace

import pytest
from example_reports import (
    CVC,
    DAY,
    PATIENT,
    REPORT,
    audited,
    changed,
    lower_bound,
    over_regions,
    report,
    withheld,
)
from test_charts import check_picture, marks, texts
from test_html import HOSTILE, Page

from mlflow_b3 import AuditReport, Finding
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.charts import charts_of, figures_of
from mlflow_b3.reporting.cvc import cvc_markdown, cvc_text, findings_with_cvc
from mlflow_b3.reporting.cvc_sentences import (
    ENGINES,
    TITLE,
    WORKING,
    apart,
    explain_cvc,
    explain_pair,
    trust_cvc,
)
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.pages import to_html, to_markdown, to_text
from mlflow_b3.reporting.paper import CORRELATED, REFERENCES, describe_for_paper, references_of
from mlflow_b3.reporting.sentences import describe_method, open_questions

pytestmark = pytest.mark.newest

AUDIT = audited()
CHARTS = ("cvc", "cvc_sensitivity")


def one_line(text: str) -> str:
    return " ".join(text.split())


# --- the report of its own ------------------------------------------------------------------------


def test_the_answer_comes_first_in_one_sentence():
    lines = str(CVC).splitlines()
    assert lines[0] == TITLE
    assert one_line(" ".join(lines[3:5])) == (
        "Cross-validation gives 0.312 (error rate); for new groups of 'patient' and 'day' expect "
        "0.349 (95% interval 0.300 to 0.420)."
    )


def test_the_three_scores_have_their_intervals():
    text = str(CVC)
    for row in (
        "  folds of rows (CV)                      0.312   0.270 – 0.354",
        "  corrected (CV_c)                        0.349   0.300 – 0.420",
        "  whole 'patient' left out (grouped CV)   0.355   0.310 – 0.400",
    ):
        assert row in text


def test_levels_say_how_many_how_different_and_whether_they_are_new():
    text = one_line(str(replace(CVC, groups=(replace(PATIENT, new=False), DAY))))
    assert "patient 10 the same 1.030 0.600 – 1.900" in text
    assert "day 5 new ones 0.400 0.000 – 1.300" in text
    assert "for new groups of 'day' and known groups of 'patient' expect" in text


def test_where_all_groups_are_met_again_that_is_said():
    seen = replace(CVC, groups=(replace(PATIENT, new=False),), grouped=None, grouped_interval=None)
    assert "for known groups of 'patient' expect 0.349" in one_line(str(seen))
    assert "grouped CV" not in str(seen)


def test_three_levels_are_enumerated():
    groups = (PATIENT, DAY, replace(DAY, name="site"))
    assert "new groups of 'patient', 'day' and 'site' expect" in one_line(
        str(replace(CVC, groups=groups))
    )


def test_a_standard_deviation_is_put_into_odds():
    """A third of a normal distribution lies further than one deviation from its mean; e^1.03 = 2.8."""
    text = " ".join(explain_cvc(CVC))
    assert "about one group in three has odds more than 2.8 times above or below" in text
    assert "odds" not in " ".join(explain_cvc(replace(CVC, task="regression", loss="squared")))


def test_what_was_simulated_is_told_in_words():
    text = " ".join(explain_cvc(CVC))
    assert "In the simulated world, log odds are the sum of a normal effect of each group" in text
    assert "what the model itself predicts for a row after training without the row's" in text
    assert "slope 0.520" in text
    assert "400 samples were simulated. The model was retrained on each of them." in text
    numbers = " ".join(explain_cvc(replace(CVC, task="regression", loss="squared")))
    assert "targets are the sum of a normal effect of each group, noise and a fixed part" in numbers
    assert "Nothing had to be simulated." in " ".join(explain_cvc(replace(CVC, draws=0)))


@pytest.mark.parametrize("engine", ["fast", "joint", "full", "hot", "last_layer"])
@pytest.mark.parametrize("working", ["score", "glmm", "given"])
def test_every_engine_and_working_model_has_its_words(engine, working):
    text = " ".join(explain_cvc(replace(CVC, engine=engine, working=working)))
    assert ENGINES[engine] in text
    assert WORKING[working] in text


@pytest.mark.parametrize("engine", ["hot", "last_layer"])
def test_an_engine_of_lower_quality_says_so_in_the_answer(engine):
    crude = replace(CVC, engine=engine, lower_quality=True)
    assert "This comes from an approximation of lower quality." in one_line(str(crude)[:400])
    assert "lower quality" in headline_of(audited(crude)).premise
    assert "lower quality" not in str(CVC)


def test_regions_of_a_field_are_told_apart_from_groups():
    text = one_line(str(over_regions()))
    assert "for new regions by 'region' expect 0.349" in text
    assert "Rows that are close to each other by 'east' and 'north' are alike" in text
    assert "36.8% at a distance of 3.100" in text
    assert "field over east, north – – 1.200 0.700 – 2.000" in text
    assert "region 12 new ones – –" in text


def test_the_table_of_multiples_has_round_ones():
    text = one_line(str(CVC))
    assert "multiple of the standard deviations CV_c 0 0.312 0.5 0.322 1 0.349 1.5 0.386 2" in text


def test_how_it_was_done_is_enough_to_repeat_it():
    text = one_line(str(CVC))
    for part in ("110 rows", "10 folds of rows", "engine 'full'", "400 simulated", "seed 7"):
        assert part in text.partition("How it was done")[2]


def test_findings_come_with_their_codes():
    assert "B335 (few groups make the correction uncertain): 'day' has 5" in str(CVC)
    assert "Findings" not in str(replace(CVC, findings=()))
    assert "## Findings\n\nNone." in cvc_markdown(replace(CVC, findings=()))


def test_markdown_says_the_same():
    markdown = cvc_markdown(CVC)
    assert markdown.startswith(f"# {TITLE}\n\n**Cross-validation gives 0.312")
    assert "| corrected (CV\\_c) | 0.349 | 0.300 – 0.420 |" in markdown
    assert "| patient | 10 | new ones | 1.030 | 0.600 – 1.900 |" in markdown
    assert "- **B335** few groups" in markdown


# --- what is withheld -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["B331", "B332", "B333", "B334"])
def test_a_correction_that_is_withheld_says_why_first(code):
    lines = str(withheld(code, "the reason")).splitlines()
    assert lines[3].startswith("No correction is given: the reason. The error rate")
    assert "unknown amount" in one_line(str(withheld()))
    assert "CV_c)                        withheld" in str(withheld())


def test_only_what_withholds_is_the_reason():
    both = replace(withheld(), findings=(*CVC.findings, *withheld().findings))
    assert str(both).splitlines()[3].startswith("No correction is given: 'day' has 2 groups")
    other = replace(withheld(), findings=CVC.findings)
    assert "is given: 'day' has 5 groups" in one_line(str(other))
    assert "is given: it could not be computed." in str(replace(withheld(), findings=()))


def test_without_a_correction_the_grouped_score_is_pointed_to():
    assert "Folds of whole groups of 'patient', which need no model of the correlation, give" in (
        one_line(str(withheld()))
    )
    alone = replace(withheld(), grouped=None, grouped_interval=None, grouped_by=None)
    assert "Folds of whole" not in str(alone)


def test_nothing_is_explained_about_a_correction_that_does_not_exist():
    assert explain_cvc(withheld()) == []
    assert trust_cvc(withheld()) == []
    assert "When to trust" not in str(withheld())
    assert "When to trust" not in cvc_markdown(withheld())
    page = Page(to_html(audited(withheld())))
    assert "When to trust" not in page.text
    assert page.text.count("o correction ") >= 3


# --- when to trust which --------------------------------------------------------------------------


def test_the_assumptions_are_always_told():
    text = " ".join(trust_cvc(CVC))
    assert (
        "a learner gains by recognising groups from their features; folds of whole groups do"
        in text
    )
    assert "(1-p)³" in text
    assert "right on average but noisy in each case" in text
    assert "'day' has 5 groups" in text


def test_many_groups_need_no_word_about_few():
    many = replace(CVC, groups=(replace(PATIENT, groups=200),))
    assert "noisy in each case" not in " ".join(trust_cvc(many))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "differ by no more than their noise. Folds of whole 'patient' still share groups of"),
        ({"grouped": 0.5, "grouped_interval": (0.45, 0.55)}, "if so, trust the grouped score"),
        ({"grouped": 0.2, "grouped_interval": (0.15, 0.25)}, "Use CV_c as the cautious number"),
        ({"findings": (Finding(code="B338", message="x."),)}, "if so, trust the grouped score"),
    ],
)
def test_the_grouped_score_is_held_against_the_corrected_one(changes, words):
    assert words in trust_cvc(replace(CVC, **changes))[0]


def test_a_correction_far_below_the_noise_makes_plain_cross_validation_good_enough():
    """A bias of half a standard error lowers the confidence of an interval from 95 to 92%."""
    small = replace(CVC, bias=0.003, bias_interval=(0.001, 0.01), cvc=0.315)
    assert "plain cross-validation is good enough here" in explain_cvc(small)[0]
    some = replace(small, bias_interval=(0.001, 0.02))
    assert "good enough" not in explain_cvc(some)[0]


@pytest.mark.parametrize(
    ("bias", "ends"), [(-0.002, (-0.01, 0.02)), (0.002, (0.0, 0.02)), (-0.1, None)]
)
def test_a_correction_that_may_be_nothing_is_not_called_a_gain(bias, ends):
    none = replace(CVC, bias=bias, bias_interval=ends)
    assert (
        "does not show that cross-validation gains from rows of the same groups"
        in explain_cvc(none)[0]
    )
    assert "is what cross-validation gains from rows of the same groups" in explain_cvc(CVC)[0]


@pytest.mark.parametrize(
    ("value", "ends", "side"),
    [
        (0.5, (0.45, 0.55), 1),
        (0.1, (0.05, 0.15), -1),
        (0.5, (0.3, 0.7), 0),
        (0.41, (0.40, 0.42), 0),
        (0.5, (0.45, None), 1),
        (0.5, (0.3, None), 0),
    ],
)
def test_scores_are_apart_where_neither_lies_in_the_interval_of_the_other(value, ends, side):
    assert apart(value, ends, CVC.cvc, CVC.interval) == side


# --- in an audit ----------------------------------------------------------------------------------


def test_the_summary_mentions_the_corrected_score_behind_e0():
    plain, sentence = headline_of(replace(AUDIT, cvc=None)), headline_of(AUDIT).premise
    assert sentence.startswith(plain.premise)
    assert headline_of(AUDIT).word == plain.word
    assert sentence.endswith(
        "Cross-validation corrected for correlated rows (CV_c) gives 0.349 (95% interval 0.300 to "
        "0.420) for new groups of 'patient' and 'day'."
    )
    assert headline_of(audited(withheld())).premise.endswith("is given; the findings say why.")


def test_the_corrected_score_does_not_change_the_word_of_the_audit():
    """It takes ids as right, so it cannot decide about an audit of wrong ones."""
    bad = replace(CVC, cvc=0.9, interval=(0.8, 1.0))
    assert headline_of(audited(bad)).word == headline_of(AUDIT).word == "Inflated"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "differ by no more than their noise. If one number is needed, use the larger, 0.360",
        ),
        ({"e0": 0.6, "e0_interval": (0.5, 0.7)}, "signature of their cluster"),
        ({"e0": 0.2, "e0_interval": (0.1, 0.25)}, "at a level that e0 does not know of ('day')"),
        ({"e0": None, "e0_interval": (0.2, 0.8)}, "e0 is not known"),
        ({"cluster": "visit"}, "They answer different questions"),
    ],
)
def test_e0_is_held_against_the_corrected_score(changes, words):
    assert words in explain_pair(audited(**changes))[0]


def test_a_dependence_that_no_level_explains_is_left_open():
    one = replace(CVC, groups=(PATIENT,))
    assert (
        "depend on each other in another way"
        in explain_pair(audited(one, e0=0.2, e0_interval=(0.1, 0.25)))[0]
    )


def test_a_lower_bound_of_e0_is_not_said_to_be_below():
    audit = replace(lower_bound(e0=0.2, e0_interval=(0.15, None)), cvc=CVC)
    audit = changed(audit, settings={"cluster": "patient"})
    assert "cannot be compared: e0 is a lower bound" in explain_pair(audit)[0]


def test_what_wrong_ids_may_have_taken_is_a_what_if():
    """10% wrong ids leave (1 - 0.1)³ of the correction: 0.037 / 0.729 = 0.0508, and CV + that."""
    far = {"e0": 0.6, "e0_interval": (0.5, 0.7)}
    text = explain_pair(audited(**far))[0]
    assert "correction would be 0.051 without them instead of 0.037" in text
    assert "CV_c would be 0.363. This is a what-if, not an estimate" in text
    few = explain_pair(audited(**far, settings={"claim": (0.05, 0.05)}))[0]
    assert "what-if" not in few
    nothing_known = audited(**far, settings={"claim": None})
    assert "what-if" not in explain_pair(nothing_known)[0]


def test_where_ids_are_taken_as_right_e0_is_the_score_by_whole_clusters():
    taken = audited(settings={"claim": (0.0, 0.0)})
    assert (
        "ids were taken as correct, so e0 is the score by folds of whole"
        in (explain_pair(taken)[0])
    )
    far = audited(settings={"claim": (0.0, 0.0)}, e0=0.6, e0_interval=(0.5, 0.7))
    assert "or ids are wrong after all" in explain_pair(far)[1]
    assert "so many ids are wrong" not in explain_pair(far)[1]


def test_groups_that_are_met_again_are_another_question_than_e0():
    seen = replace(CVC, groups=(replace(PATIENT, new=False), DAY))
    assert "They answer different questions" in explain_pair(audited(seen))[0]


@pytest.mark.parametrize("form", [to_text, to_markdown, lambda audit: Page(to_html(audit)).text])
def test_every_form_of_an_audit_has_the_section(form):
    text = one_line(form(AUDIT)).replace("\\", "")
    assert TITLE in text
    for part in (
        "for new groups of 'patient' and 'day' expect 0.349 (95% interval 0.300 to 0.420)",
        "new clusters (e0)",
        "When to trust which",
        "e0 (0.360) and CV_c (0.349)",
        "What correlates the rows",
        "CV_c: 110 rows",
    ):
        assert part in text


def test_the_section_of_the_page_stands_behind_the_scores():
    page = to_html(AUDIT)
    sections = ["<h2>The scores</h2>", "<h2>The measured loss curve", f"<h2>{TITLE}</h2>"]
    places = [page.index(section) for section in sections]
    assert places == sorted(places)
    assert Page(page).tags.count("svg") == Page(page).tags.count("figure") == 3 + len(CHARTS)
    ids = [value for name, value in Page(page).attributes if name == "id"]
    assert len(set(ids)) == len(ids)


def test_findings_are_told_once():
    own = Finding(code="B315", message="each level rests on 3 refits.")
    audit = audited(findings=(own,))
    assert findings_with_cvc(audit) == (own, *CVC.findings)
    assert findings_with_cvc(AUDIT) == CVC.findings
    assert to_text(AUDIT).count("B335") == to_text(audit).count("B335") == 1
    assert findings_with_cvc(REPORT) == REPORT.findings


def test_the_paragraph_for_a_paper_says_what_was_corrected():
    text = describe_for_paper(AUDIT)
    for part in (
        "By cross-validation on 10 folds of rows, the error rate was 0.312",
        "correlation of rows within 'patient' and 'day' (Yuval and Rosset, 2025; logistic working",
        "was estimated as 0.037 (95% interval 0.011 to 0.092), so 0.349",
        "With whole groups of 'patient' left out, it was 0.355",
        "assumes that group identifiers are right",
    ):
        assert part in text
    assert text.endswith("data digest 0123456789abcdef).")
    assert "could not be estimated." in describe_for_paper(audited(withheld()))
    assert "a Gaussian random field" in describe_for_paper(audited(over_regions()))
    assert references_of(AUDIT) == (*REFERENCES, CORRELATED)
    assert references_of(REPORT) == REFERENCES


def test_what_stays_open_is_listed():
    text = " ".join(open_questions(AUDIT))
    assert "only within the named groups" in text
    assert "10 'patient' and 5 'day' are too few to estimate it well" in text
    assert "no correction is given" in " ".join(open_questions(audited(withheld())))


def test_audits_of_other_methods_do_not_change():
    """Every word, table and picture of the section belongs to `cvc`."""
    assert REPORT.cvc is None
    for form in (to_text, to_markdown, to_html):
        assert "CV_c" not in form(REPORT).replace("\\", "")
        assert "correlated rows" not in form(REPORT)
    assert set(charts_of(AUDIT)) - set(charts_of(REPORT)) == set(CHARTS)
    assert "CV_c" not in describe_method(REPORT)


def test_an_audit_with_it_comes_back_from_json():
    assert AuditReport.from_json(AUDIT.to_json()) == AUDIT
    assert CvcReport.from_json(over_regions().to_json()) == over_regions()


# --- pictures -------------------------------------------------------------------------------------


def test_the_scores_are_drawn_on_one_axis_with_e0_beside_them():
    svg = charts_of(AUDIT)["cvc"]
    written = texts(svg)
    for text in (
        "folds of rows (CV): 0.312 (0.270 – 0.354)",
        "corrected (CV_c): 0.349 (0.300 – 0.420)",
        "whole groups (grouped CV): 0.355 (0.310 – 0.400)",
        "new clusters (e0): 0.360 (0.320 – 0.400)",
    ):
        assert text in written
    assert len(marks(figures_of(AUDIT)["cvc"])) == 4


def test_the_curve_is_drawn_over_the_multiples():
    svg = charts_of(AUDIT)["cvc_sensitivity"]
    assert "multiple of the standard deviations that were found" in texts(svg)
    assert "cross-validation as it is (CV): 0.312" in texts(svg)
    assert "goes from 0.312 at 0 times" in svg


def test_an_audit_whose_correction_is_withheld_has_both_charts():
    svg = charts_of(audited(withheld()))
    assert "No correction is given, so there is no curve." in texts(svg["cvc_sensitivity"])
    assert "corrected (CV_c): withheld" in texts(svg["cvc"])
    assert len(marks(figures_of(audited(withheld()))["cvc"])) == 3


def test_an_interval_of_e0_with_other_confidence_says_so():
    audit = audited(p0_source="mixture", settings={"claim": (0.0, 0.05)})
    assert "(0.320 – 0.400 (90%))" in texts(charts_of(audit)["cvc"])
    assert "0.320 – 0.400 (90%)" in to_text(audit)


@pytest.mark.parametrize("factor", [1.0, 1e6, 1e-9, -3.0, 0.0])
@pytest.mark.parametrize("cvc", [CVC, withheld(), over_regions()], ids=["cvc", "withheld", "field"])
def test_losses_of_every_size_stay_inside_the_frame(cvc, factor):
    def scaled(value):
        if isinstance(value, tuple):
            return tuple(sorted(map(scaled, value)))
        return None if value is None else factor * value

    names = ("cv", "cv_interval", "cvc", "interval", "grouped", "grouped_interval", "sensitivity")
    cvc = replace(cvc, loss="squared", **{name: scaled(getattr(cvc, name)) for name in names})
    for name, figure in figures_of(audited(cvc)).items():
        if name in CHARTS:
            check_picture(figure.svg(standalone=True))


def test_pictures_have_words_for_those_who_do_not_see_them():
    for svg in (charts_of(AUDIT)[name] for name in CHARTS):
        assert 'role="img"' in svg
        assert len(re.search(r"<desc [^>]*>(.*?)</desc>", svg).group(1)) > 60


# --- names from outside ---------------------------------------------------------------------------


def named(name: str) -> CvcReport:
    """Return the example in which everything that others chose has a name."""
    return replace(
        over_regions(),
        groups=(replace(PATIENT, name=name), replace(DAY, name=name, new=False)),
        grouped_by=name,
        loss=name,
        field=replace(over_regions().field, coordinates=(name, name)),
        findings=(Finding(code="B341", message=name),),
        settings={"model": name, "target": name},
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_adds_an_element_or_an_attribute_to_the_page(name):
    plain, page = Page(to_html(audited(named("plain")))), Page(to_html(audited(named(name))))
    assert page.tags == plain.tags
    assert [key for key, _ in page.attributes] == [key for key, _ in plain.attributes]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "form", [cvc_markdown, lambda cvc: to_markdown(audited(cvc))], ids=["alone", "audit"]
)
def test_no_name_breaks_a_line_or_adds_markup_in_markdown(form, name):
    plain, markdown = form(named("plain")), form(named(name))
    assert markdown.count("\n") == plain.count("\n")

    def special(text: str) -> list[str]:
        return sorted(re.findall(r"[`*_{}\[\]<>|#~&$]", re.sub(r"\\.", "", text)))

    assert special(markdown) == special(plain)


@pytest.mark.parametrize("name", HOSTILE)
def test_hidden_characters_are_named_everywhere(name):
    hidden = "[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\u00ad]"
    audit = audited(named(name))
    shown = [cvc_text(named(name)), cvc_markdown(named(name)), to_html(audit), to_text(audit)]
    for text in [*shown, *charts_of(audit).values()]:
        assert not re.search(hidden, text)
        text.encode("utf-8")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup_in_a_picture(name):
    for svg in (charts_of(audited(named(name)))[chart] for chart in CHARTS):
        check_picture(svg)


def test_long_names_are_shortened_in_the_middle():
    name = "begin" + "x" * 100_000 + "end"
    assert len(str(named(name))) < 20_000
    assert len(to_html(audited(named(name))).encode()) < 200_000


@pytest.mark.parametrize("link", ["https://x.org/a", "www.x.org", "someone@x.org"])
def test_no_name_becomes_a_link_in_markdown(link):
    assert link not in cvc_markdown(named(link))
    assert link not in to_markdown(report(cvc=named(link)))
