"""What people see of audits in MLflow's own pages, in a real browser."""

import importlib.util
import re

import pytest

from mlflow_b3.tracking.metrics_and_files import worth
from mlflow_b3.tracking.shown_on_models import compare_link, view_links

if importlib.util.find_spec("playwright") is not None:
    from playwright.sync_api import expect

pytestmark = pytest.mark.browser
# MLflow draws every curve twice: smoothed, and faintly as it is
CURVE = ".scatterlayer .js-line[style*='stroke-opacity: 1;']"


@pytest.fixture
def neighbours(audits):
    return audits.of("nearest neighbours")


def best_first(audits):
    """Return the names of the audits' runs."""
    return [f"{model.name} (b3)" for model in audits.comparison.contenders]


def metric(page, name):
    return page.get_by_role("link", name=name, exact=True)


# --- one model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["run_id", "audit_run_id"])
def test_the_page_of_a_run_shows_the_loss_on_new_clusters(audits, neighbours, page, picture, place):
    page.goto(audits.run(getattr(neighbours, place)))
    row = page.get_by_role("row").filter(has=metric(page, "b3/e0"))
    shown = worth(neighbours.e0) if place == "run_id" else neighbours.e0
    expect(row).to_contain_text(str(shown))
    picture("run" if place == "run_id" else "audit")


def test_an_audit_says_in_words_what_it_found(audits, neighbours, page):
    page.goto(audits.run(neighbours.audit_run_id))
    expect(page.get_by_text("▲ Inflated.").first).to_be_visible()
    expect(page.get_by_text("If 10% of the rows carry a wrong 'patient_id'").first).to_be_visible()


def test_the_report_renders_in_the_artifact_view(audits, neighbours, page, picture):
    page.goto(audits.run(neighbours.run_id, "artifacts", "b3", "report.html"))
    report = page.frame_locator("iframe")
    expect(report.get_by_role("heading", name=re.compile("^Leakage audit of"))).to_be_visible()
    expect(report.get_by_role("img").first).to_be_visible()
    expect(report.locator(".lead")).to_contain_text(f"{neighbours.e0:.3f}")
    picture("report")


def test_the_page_of_a_version_leads_to_the_report(audits, page, picture):
    page.goto(audits.page("#/models/clinic/versions/1"))
    expect(page.get_by_text("▲ Inflated.")).to_be_visible()
    expect(page.get_by_text("b3.e0_interval")).to_be_visible()
    picture("version")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value.frame_locator("iframe")
    expect(report.get_by_role("heading", name=re.compile("^Leakage audit of"))).to_be_visible()


def test_an_older_audit_says_that_it_is_superseded(audits, neighbours, page, picture):
    page.goto(audits.run(neighbours.run_id))
    page.get_by_role("link", name="nearest neighbours (b3) superseded").click()
    expect(page.get_by_text("Superseded by")).to_be_visible()
    picture("superseded")


# --- several models -----------------------------------------------------------------------------------


def test_the_table_of_runs_ranks_the_newest_audits_in_columns_of_their_own(audits, page, picture):
    page.goto(audits.page(view_links(audits.experiment)["table"]))
    expect(page.get_by_text("3 matching runs")).to_be_visible()
    names = page.get_by_role("link", name=re.compile(r"\(b3\)$"))
    expect(names).to_have_text(best_first(audits))
    # MLflow hides the column of verdicts, because no gate has judged any of them
    scores = ["b3.answer", "b3.iid", "b3.loco", "b3.e0", "b3.e0_interval"]
    columns = page.locator(".ag-header-cell[col-id^=tags]")
    expect(columns).to_have_count(len(scores))
    left = {column.inner_text().strip(): column.bounding_box()["x"] for column in columns.all()}
    assert sorted(left, key=left.__getitem__) == scores
    for model in audits.comparison.contenders:
        row = page.get_by_role("row").filter(has_text=f"{model.e0:.3f}")
        expect(row).to_contain_text(f"{model.loco:.3f}")
    picture("runs")


def test_the_menu_of_views_has_the_audits(audits, page):
    page.goto(audits.page(f"#/experiments/{audits.experiment}/runs"))
    page.get_by_test_id("saved-views-trigger").click()
    page.get_by_text("b3 audits").click()
    expect(page.get_by_text("3 matching runs")).to_be_visible()


def test_the_charts_overlay_the_curves_of_all_models(audits, page, picture):
    page.goto(audits.page(view_links(audits.experiment)["charts"]))
    for curve in ("dose", "sensitivity"):
        title = page.get_by_role("heading", name=f"b3_curve/{curve}", exact=True)
        card = page.get_by_test_id("experiment-view-compare-runs-card").filter(has=title)
        expect(card.locator(CURVE)).to_have_count(3)
        for name in best_first(audits):
            expect(card.get_by_text(f"{name} (b3_curve/{curve})")).to_be_attached()
    picture("charts")


@pytest.fixture
def compared(audits, page):
    """Open the view that compares runs."""
    page.set_viewport_size({"width": 1500, "height": 1900})
    runs = [model.audit_run_id for model in audits.comparison.contenders]
    page.goto(audits.page(compare_link(runs, [audits.experiment])))
    return page


def shown(value):
    """Return a number as the compare view writes it."""
    return f"{value:.3f}".rstrip("0")


def test_the_compare_view_has_the_scores_side_by_side(audits, compared, picture):
    expect(metric(compared, "b3/e0")).to_be_visible()
    for model in audits.comparison.contenders:
        expect(compared.get_by_text(f"{model.name} (b3)", exact=True)).to_be_visible()
        expect(compared.get_by_text(shown(model.e0), exact=True).first).to_be_visible()
    picture("compare")


def test_the_compare_view_leads_to_the_curves(audits, compared, picture):
    compared.get_by_text(shown(audits.comparison.contenders[0].e0), exact=True).first.hover()
    for _ in range(20):  # in steps: the column of names lags one step behind the values
        compared.mouse.wheel(0, 100)
        compared.wait_for_timeout(50)
    metric(compared, "b3_curve/loss").click()
    expect(compared.locator(CURVE)).to_have_count(3)
    for name in best_first(audits):
        expect(compared.get_by_text(f"{name} (b3_curve/loss)")).to_be_visible()
    compared.set_viewport_size({"width": 1500, "height": 950})
    picture("curves")


def test_the_comparison_renders_in_the_artifact_view(audits, page, picture):
    page.goto(audits.run(audits.run_id, "artifacts", "b3", "comparison.html"))
    comparison = page.frame_locator("iframe")
    for model in audits.comparison.contenders:
        row = comparison.get_by_role("row").filter(has_text=f"{model.e0:.3f}").first
        expect(row).to_contain_text(model.name)
    picture("comparison")
