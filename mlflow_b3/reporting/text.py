"""An audit report as text and as Markdown."""

import textwrap
from collections.abc import Iterable

from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.limitations import LIMITS, open_questions
from mlflow_b3.reporting.method import describe_method, describe_refit
from mlflow_b3.reporting.paper import REFERENCES, describe_for_paper
from mlflow_b3.reporting.readable import readable
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.reporting.tables import (
    Table,
    distribution_tables,
    fold_tables,
    score_table,
    sensitivity_tables,
    suspicious_tables,
)

WIDTH = 92


def to_text(report: AuditReport) -> str:
    """Return the whole report as text for a terminal."""
    headline = headline_of(report)
    tables = [
        *sensitivity_tables(report),
        *distribution_tables(report),
        *suspicious_tables(report),
    ]
    title = f"Leakage audit of {report.settings.model}"
    sections = [
        f"{title}\n{'=' * len(title)}",
        _paragraphs(headline.word, [headline.sentence]),
        "\n".join(_aligned(score_table(report).rows, right=1)),
        _paragraphs("In words", explain(report)),
        *("\n".join([table.title, *_aligned((table.head, *table.rows))]) for table in tables),
        _paragraphs("Findings", [str(finding) for finding in report.findings]),
        _paragraphs("How it was done", [describe_method(report), describe_refit(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def to_markdown(report: AuditReport) -> str:
    """Return the report as Markdown, for MLflow's artifact view."""
    report = readable(report)
    headline = headline_of(report)
    findings = [
        f"- **{f.code}** {_escaped(f.title)}: {_escaped(f.message)}" for f in report.findings
    ]
    parts = [
        f"# Leakage audit of {_escaped(report.settings.model)}",
        f"**{headline.word}.** {_escaped(headline.sentence)}",
        _markdown_table(score_table(report)),
        *(_escaped(sentence) for sentence in explain(report)),
        *map(_markdown_table, sensitivity_tables(report)),
        *_titled(distribution_tables(report)),
        *_titled(suspicious_tables(report)),
        "## Folds",
        *_titled(fold_tables(report)),
        "## Findings\n\n" + ("\n".join(findings) if findings else "None."),
        "## How it was done",
        _escaped(describe_method(report)),
        _escaped(describe_refit(report)),
        "## For a paper",
        _escaped(describe_for_paper(report)),
        _listed(REFERENCES),
        "## What is not known",
        _listed(open_questions(report)),
        "## What an audit does not detect",
        _listed(LIMITS),
    ]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Return text that a Markdown viewer shows as it is: no markup, no links, one line."""
    for character in "\\`*_{}[]<>|#~&$":
        text = text.replace(character, "\\" + character)
    for link, broken in (("://", ":\\//"), ("www.", "www\\."), ("@", "\\@")):
        text = text.replace(link, broken)
    return text.replace("\n", " ")


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(sentence)}" for sentence in sentences)


def _titled(tables: Iterable[Table]) -> list[str]:
    return [f"{_escaped(table.title)}:\n\n{_markdown_table(table)}" for table in tables]


def _markdown_table(table: Table) -> str:
    rows = [tuple(_escaped(cell) for cell in row) for row in (table.head, *table.rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|" + "---|" * len(table.head), *body])


def _aligned(rows: tuple[tuple[str, ...], ...], right: int | None = None) -> list[str]:
    """Return rows of cells as lines whose columns are below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "   ".join(
            cell.rjust(width) if place == right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _paragraphs(title: str, paragraphs: Iterable[str]) -> str:
    wrapped = [
        textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
        for text in paragraphs
    ]
    return "\n".join([title, *wrapped]) if wrapped else ""
