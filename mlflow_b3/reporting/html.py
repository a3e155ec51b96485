"""An audit report as one HTML file: no scripts, no links, nothing from elsewhere."""

from markupsafe import Markup

from mlflow_b3.reporting.captions import (
    curve_caption,
    curve_title,
    measured_caption,
    score_caption,
    sensitivity_caption,
)
from mlflow_b3.reporting.charts import plots_of
from mlflow_b3.reporting.cvc import cvc_values, findings_with_cvc
from mlflow_b3.reporting.headline import explain_tipping, headline_of
from mlflow_b3.reporting.limitations import LIMITS, open_questions
from mlflow_b3.reporting.linkage import explain_linkage, explain_regression
from mlflow_b3.reporting.method import describe_refit
from mlflow_b3.reporting.pages import page
from mlflow_b3.reporting.paper import describe_for_paper, references_of
from mlflow_b3.reporting.readable import readable, traceback_lines
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import (
    explain_answer,
    explain_inflation,
    explain_test,
)
from mlflow_b3.reporting.tables import (
    distribution_tables,
    fold_tables,
    sensitivity_tables,
    settings_table,
    suspicious_tables,
)


def to_html(report: AuditReport) -> str:
    """Return the report as one HTML page.

    It needs no network and contains no scripts and no links, so that it reads the same in MLflow's
    artifact view, in a browser and on paper. Every name that others chose is text in it.
    """
    failure = traceback_lines(report)
    report = readable(report)
    headline = headline_of(report)
    plots = plots_of(report)
    bound = [report.p0_bound.statement] if report.p0_bound else []
    return page(
        "report.html.j2",
        settings=report.settings,
        headline=headline,
        charts={name: Markup(plot.inline()) for name, plot in plots.items()},
        score_caption=score_caption(report),
        answer=[explain_answer(report), explain_inflation(report)],
        cvc=cvc_values(report),
        curve_title=curve_title(report),
        curve_caption=curve_caption(report),
        measured_caption=measured_caption(report),
        tipping=explain_tipping(report),
        sensitivity=[
            (name, sensitivity_caption(report, split=name.endswith("split")))
            for name in plots
            if name.startswith("sensitivity")
        ],
        sensitivity_tables=sensitivity_tables(report),
        search=report.search.statement,
        evidence=[*bound, *explain_linkage(report), *explain_regression(report)],
        test=explain_test(report.test),
        fold_tables=fold_tables(report),
        findings=findings_with_cvc(report),
        failure=failure,
        other_tables=[*suspicious_tables(report), *distribution_tables(report)],
        refit=describe_refit(report),
        settings_table=settings_table(report),
        paragraph=describe_for_paper(report),
        references=references_of(report),
        open_questions=open_questions(report),
        limits=LIMITS,
    )
