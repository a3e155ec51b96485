"""An audit report as text, Markdown, and one HTML file without scripts or links."""

import textwrap
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.reporting.charts import figures_of
from mlflow_b3.reporting.cvc import (
    cvc_parts,
    cvc_sections,
    cvc_values,
    findings_with_cvc,
    listed_findings,
)
from mlflow_b3.reporting.document import (
    WIDTH,
    aligned,
    escaped,
    listed,
    markdown_table,
    paragraphs,
    titled,
)
from mlflow_b3.reporting.drawing import CHART_STYLE, colours_of
from mlflow_b3.reporting.phrases import (
    describe_method,
    describe_refit,
    explain_linkage,
    explain_regression,
    readable,
    traceback_lines,
)
from mlflow_b3.reporting.tables import (
    distribution_tables,
    fold_tables,
    score_table,
    sensitivity_tables,
    settings_table,
    suspicious_tables,
)
from mlflow_b3.reporting.words import (
    LIMITS,
    curve_caption,
    curve_title,
    describe_for_paper,
    explain,
    explain_answer,
    explain_inflation,
    explain_test,
    explain_tipping,
    headline_of,
    measured_caption,
    open_questions,
    references_of,
    score_caption,
    sensitivity_caption,
)

# --- An audit report as text and as Markdown

FIRST_FAILURE = "The first refit that failed"


def to_text(report: AuditReport) -> str:
    """Return the whole report as text for a terminal."""
    failure = traceback_lines(report)
    report = readable(report)
    headline = headline_of(report)
    tables = [
        *sensitivity_tables(report),
        *distribution_tables(report),
        *suspicious_tables(report),
    ]
    title = f"Leakage audit of {report.settings.model}"
    sections = [
        f"{title}\n{'=' * len(title)}",
        textwrap.fill(str(headline), WIDTH, subsequent_indent="  "),
        "\n".join(aligned(score_table(report).rows, right=1)),
        paragraphs("In words", explain(report)),
        *cvc_sections(report),
        *("\n".join([table.title, *aligned((table.head, *table.rows))]) for table in tables),
        paragraphs("Findings", [str(finding) for finding in findings_with_cvc(report)]),
        "\n".join([FIRST_FAILURE, *(f"  {line}" for line in failure)]) if failure else "",
        paragraphs("How it was done", [describe_method(report), describe_refit(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def to_markdown(report: AuditReport) -> str:
    """Return the report as Markdown, for MLflow's artifact view."""
    failure = [f"    {line}" for line in traceback_lines(report)]
    report = readable(report)
    headline = headline_of(report)
    parts = [
        f"# Leakage audit of {escaped(report.settings.model)}",
        f"**{headline.sign} {headline.word}.** {escaped(headline.sentence)}",
        markdown_table(score_table(report)),
        *(escaped(sentence) for sentence in explain(report)),
        *map(markdown_table, sensitivity_tables(report)),
        *titled(distribution_tables(report)),
        *titled(suspicious_tables(report)),
        *cvc_parts(report),
        "## Folds",
        *titled(fold_tables(report)),
        "## Findings\n\n" + listed_findings(findings_with_cvc(report)),
        *([FIRST_FAILURE + ":", "\n".join(failure)] if failure else []),
        "## How it was done",
        escaped(describe_method(report)),
        escaped(describe_refit(report)),
        "## For a paper",
        escaped(describe_for_paper(report)),
        listed(references_of(report)),
        "## What is not known",
        listed(open_questions(report)),
        "## What an audit does not detect",
        listed(LIMITS),
    ]
    return "\n\n".join(parts) + "\n"


# --- HTML pages that need no network, no scripts and no other files

FOLDER = "mlflow_b3.reporting"


def page(template: str, **values: Any) -> str:
    """Return a page made of one of our templates; every value is text unless it is `Markup`."""
    style = Markup(_style())
    return _templates().get_template(template).render(style=style, **values)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader(FOLDER, "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


@cache
def _style() -> str:
    return (
        colours_of(":root")
        + CHART_STYLE
        + files(FOLDER).joinpath("report.css").read_text(encoding="utf-8")
    )


# --- An audit report as one HTML file: no scripts, no links, nothing from elsewhere


def to_html(report: AuditReport) -> str:
    """Return the report as one HTML page.

    It needs no network and contains no scripts and no links, so that it reads the same in MLflow's
    artifact view, in a browser and on paper. Every name that others chose is text in it.
    """
    failure = traceback_lines(report)
    report = readable(report)
    headline = headline_of(report)
    figures = figures_of(report)
    bound = [report.p0_bound.statement] if report.p0_bound else []
    return page(
        "report.html.j2",
        settings=report.settings,
        headline=headline,
        charts={name: Markup(figure.svg()) for name, figure in figures.items()},
        score_caption=score_caption(report),
        answer=[explain_answer(report), explain_inflation(report)],
        cvc=cvc_values(report),
        curve_title=curve_title(report),
        curve_caption=curve_caption(report),
        measured_caption=measured_caption(report),
        tipping=explain_tipping(report),
        sensitivity=[
            (name, sensitivity_caption(report, split=name.endswith("split")))
            for name in figures
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
