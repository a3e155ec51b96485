"""An audit report as text and as Markdown."""

import textwrap

from mlflow_b3.reporting.cvc import cvc_parts, cvc_sections, findings_with_cvc, listed_findings
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.layout import (
    WIDTH,
    aligned,
    escaped,
    listed,
    markdown_table,
    paragraphs,
    titled,
)
from mlflow_b3.reporting.limitations import LIMITS, open_questions
from mlflow_b3.reporting.method import describe_method, describe_refit
from mlflow_b3.reporting.paper import describe_for_paper, references_of
from mlflow_b3.reporting.readable import readable, traceback_lines
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.reporting.tables import (
    distribution_tables,
    fold_tables,
    score_table,
    sensitivity_tables,
    suspicious_tables,
)

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
