"""What people see of audits in MLflow's own pages, in a real browser."""

import importlib.util
import re

import pytest

if importlib.util.find_spec("playwright") is not None:
    from playwright.sync_api import expect

pytestmark = pytest.mark.browser
CURRENT = {
    "searchFilter": "tags.`b3.status` = 'current'",
    # sorted by their time, MLflow would hide audits below the runs that they audit
    "orderByKey": "metrics.`b3/e0`",
    "orderByAsc": "true",
}


# MLflow draws every curve twice, once smoothed and once as it is, faintly
CURVE = ".scatterlayer .js-line[style*='stroke-opacity: 1;']"


def ranked(audits):
    """Return the names of audits by their loss on new clusters."""
    return [audit.name for audit in sorted(audits.audits, key=lambda audit: audit.report.e0)]


@pytest.mark.parametrize("place", ["run_id", "child"])
def test_the_page_of_a_run_shows_the_loss_on_new_clusters(audits, page, picture, place):
    audit = audits["nearest neighbours"]
    page.goto(audits.run(getattr(audit, place)))
    name = page.get_by_role("link", name="b3/e0", exact=True)
    row = page.get_by_role("row").filter(has=name)
    expect(row).to_contain_text(str(audit.report.e0))
    picture("run" if place == "run_id" else "audit")


def test_an_audit_says_in_words_what_it_found(audits, page):
    page.goto(audits.run(audits["nearest neighbours"].child))
    expect(page.get_by_text("If 10 % of the rows carry a wrong 'patient_id'")).to_be_visible()


def test_the_report_renders_in_the_artifact_view(audits, page, picture):
    audit = audits["nearest neighbours"]
    page.goto(audits.run(audit.run_id, "artifacts", "b3", "report.md"))
    expect(page.get_by_role("heading", name=re.compile("^Leakage audit of"))).to_be_visible()
    score = page.get_by_role("row").filter(has_text="error rate on new clusters (e0)")
    expect(score).to_contain_text(f"{audit.report.e0:.3f}")
    picture("report")


def test_the_table_of_runs_ranks_the_newest_audits(audits, page, picture):
    page.goto(audits.runs(**CURRENT))
    expect(page.get_by_text("3 matching runs")).to_be_visible()
    names = page.get_by_role("link", name=re.compile(r"\(b3\)$"))
    expect(names).to_have_text([f"{name} (b3)" for name in ranked(audits)])
    picture("runs")


def test_the_charts_overlay_the_curves_of_all_models(audits, page, picture):
    page.goto(audits.runs(**CURRENT, compareRunsMode="CHART"))
    page.get_by_placeholder("Search metric charts").fill("b3_curve")
    for curve in ("loss", "sensitivity"):
        title = page.get_by_role("heading", name=f"b3_curve/{curve}", exact=True)
        card = page.get_by_test_id("experiment-view-compare-runs-card").filter(has=title)
        expect(card.locator(CURVE)).to_have_count(3)
        for name in ranked(audits):
            expect(card.get_by_text(f"{name} (b3) (b3_curve/{curve})")).to_be_attached()
    picture("charts")


def shown(value):
    """Return a number as the compare view writes it."""
    return f"{value:.3f}".rstrip("0")


def test_the_compare_view_has_the_scores_side_by_side(audits, page, picture):
    page.set_viewport_size({"width": 1500, "height": 1900})
    page.goto(audits.compared())
    expect(page.get_by_role("link", name="b3/e0", exact=True)).to_be_visible()
    for audit in audits.audits:
        expect(page.get_by_text(f"{audit.name} (b3)", exact=True)).to_be_visible()
        expect(page.get_by_text(shown(audit.report.e0), exact=True).first).to_be_visible()
    picture("compare")


def test_the_compare_view_leads_to_the_curves(audits, page, picture):
    page.set_viewport_size({"width": 1500, "height": 1900})
    page.goto(audits.compared())
    metric = page.get_by_role("link", name="b3_curve/loss", exact=True)
    values = page.get_by_role("grid").filter(has_text=shown(audits.audits[0].report.e0)).last
    values.evaluate("grid => grid.scrollTo(0, grid.scrollHeight)")  # rows out of sight are not there
    metric.click()
    expect(page.locator(CURVE)).to_have_count(3)
    for name in ranked(audits):
        expect(page.get_by_text(f"{name} (b3) (b3_curve/loss)")).to_be_visible()
    page.set_viewport_size({"width": 1500, "height": 950})
    picture("curves")


def test_the_page_of_a_version_leads_to_the_report(audits, page, picture):
    page.goto(audits.version())
    expect(page.get_by_text("Leakage audit.")).to_be_visible()
    expect(page.get_by_text("b3.e0_interval")).to_be_visible()
    picture("version")
    with page.expect_popup() as report:
        page.get_by_role("link", name="Report", exact=True).click()
    expect(report.value.get_by_role("heading", name=re.compile("^Leakage audit of"))).to_be_visible()


def test_an_older_audit_says_that_it_is_superseded(audits, page, picture):
    """It was told nothing about the ids, the newer one that one in ten is wrong."""
    page.goto(audits.run(audits["nearest neighbours"].run_id))
    page.get_by_role("link", name="nearest neighbours (b3) superseded").click()
    expect(page.get_by_text("Superseded by the audit of run")).to_be_visible()
    picture("superseded")
