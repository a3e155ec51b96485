"""An audit report as text and as Markdown."""

import textwrap
from collections.abc import Iterable

from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import (
    describe_method,
    describe_refit,
    explain,
)
from mlflow_b3.wording import loss_words, number, percent

WIDTH = 92
SUSPICIOUS = "Rows to look at first: likely leaked, and better for it"
SHOWN_ROWS = 10


def to_text(report: AuditReport) -> str:
    """Return the whole report as text for a terminal."""
    sections = [
        _title(report),
        "\n".join(_scores(report)),
        _paragraphs("In words", explain(report)),
        _sensitivity(report),
        _distribution(report),
        _suspicious(report),
        _paragraphs("Findings", [str(finding) for finding in report.findings]),
        _paragraphs("How it was done", [describe_method(report), describe_refit(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def to_markdown(report: AuditReport) -> str:
    """Return the report as Markdown, for MLflow's artifact view."""
    scores = "\n".join(
        f"| {_escaped(name)} | {number(value)} | {_range(ends)} |"
        for name, value, ends in score_rows(report)
    )
    findings = [
        f"- **{f.code}** {_escaped(f.title)}: {_escaped(f.message)}" for f in report.findings
    ]
    tables = [
        f"| {axis} | e0 | 95 % interval |\n|---|---|---|\n"
        + "\n".join(
            f"| {percent(error)} | {number(e0)} | {_range((low, high))} |"
            for error, e0, low, high in rows
        )
        for axis, rows in sensitivity_tables(report)
    ]
    parts = [
        f"# Leakage audit of {_escaped(report.settings.model)}",
        "| score | value | 95 % interval |\n|---|---|---|\n" + scores,
        "\n\n".join(_escaped(sentence) for sentence in explain(report)),
        *tables,
        *_distribution_table(report),
        *_suspicious_table(report),
        "## Findings\n\n" + ("\n".join(findings) if findings else "None."),
        "## How it was done\n\n" + _escaped(describe_method(report)),
        _escaped(describe_refit(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    for character in "\\`*_{}[]<>|#":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def _distribution(report: AuditReport) -> str:
    """Return the distribution of the loss as lines, where it was estimated."""
    if report.distribution is None:
        return ""
    lines = ["Share of rows with a loss above a threshold"]
    lines.append("  loss above     on the folds   on new clusters   95 % interval")
    lines += [
        f"  {number(t):<14} {percent(before):<14} {percent(after):<17} "
        f"{percent(low)} – {percent(high)}"
        for t, before, after, low, high in _distribution_rows(report)
    ]
    return "\n".join(lines)


def _distribution_table(report: AuditReport) -> list[str]:
    if report.distribution is None:
        return []
    rows = [
        f"| {number(t)} | {percent(before)} | {percent(after)} | {percent(low)} – {percent(high)} |"
        for t, before, after, low, high in _distribution_rows(report)
    ]
    head = "| loss above | rows on the folds | rows of new clusters | 95 % interval |\n|---|---|---|---|"
    return ["\n".join([head, *rows])]


def _distribution_rows(report: AuditReport) -> list[tuple[float, float, float, float, float]]:
    d = report.distribution
    assert d is not None
    return list(zip(d.thresholds, d.uncorrected, d.exceeding, d.low, d.high, strict=True))


def _suspicious(report: AuditReport) -> str:
    """Return the rows to review first as lines, where the evidence tells rows apart."""
    if not report.suspicious:
        return ""
    lines = [SUSPICIOUS, "  row            leak chance   loss      score better by   likely mate"]
    lines += [
        f"  {row:<14} {chance:<13} {loss:<9} {influence:<17} {mate}"
        for row, chance, loss, influence, mate in _suspicious_rows(report)
    ]
    return "\n".join(lines)


def _suspicious_table(report: AuditReport) -> list[str]:
    if not report.suspicious:
        return []
    head = "| row | leak chance | loss | score better by | likely mate |\n|---|---|---|---|---|"
    rows = [
        "| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in _suspicious_rows(report)
    ]
    return [f"{SUSPICIOUS}:", "\n".join([head, *rows])]


def _suspicious_rows(report: AuditReport) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            row.id,
            percent(row.leak_probability),
            number(row.loss),
            number(row.influence),
            ""
            if row.mate_id is None
            else f"{row.mate_id} ({percent(row.mate_probability or 0.0)})",
        )
        for row in report.suspicious[:SHOWN_ROWS]
    ]


def score_rows(
    report: AuditReport,
) -> list[tuple[str, float | None, tuple[float, float | None] | None]]:
    """Return the scores of a report with their names and intervals."""
    word = loss_words(report.settings.loss)
    at_least = "" if report.settings.refit_strength == "full" else ", at least"
    rows: list[tuple[str, float | None, tuple[float, float | None] | None]] = [
        (f"{word} ignoring clusters (IID)", report.iid, None),
        (f"{word} on noisy clusters (LOCO)", report.loco, report.loco_interval),
        (f"{word} on new clusters (e0){at_least}", report.e0, report.e0_interval),
    ]
    if report.e0_guaranteed is not None:
        rows.append(("e0 is at least, up to noise", report.e0_guaranteed, None))
    return rows


def _title(report: AuditReport) -> str:
    title = f"Leakage audit of {report.settings.model}"
    return f"{title}\n{'=' * len(title)}"


def _range(ends: tuple[float, float | None] | None) -> str:
    if ends is None:
        return ""
    low, high = ends
    return f"{number(low)} or more" if high is None else f"{number(low)} – {number(high)}"


def _scores(report: AuditReport) -> list[str]:
    rows = score_rows(report)
    width = max(len(name) for name, _, _ in rows)
    return [
        f"  {name:<{width}}  {number(value):>8}   {_range(ends)}".rstrip()
        for name, value, ends in rows
    ]


def sensitivity_tables(
    report: AuditReport,
) -> list[tuple[str, list[tuple[float, float, float, float | None]]]]:
    """Return (axis, rows of error, e0, low, high) for the pattern, or for both when unknown.

    There is no high where the refits give lower bounds only.
    """
    pattern, full = report.settings.pattern, report.settings.refit_strength == "full"
    curves = {"cluster error": report.sensitivity, "split rate": report.fragment_sensitivity}
    if pattern != "unknown":
        del curves["cluster error" if pattern == "fragments" else "split rate"]
    wanted = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
    tables = []
    for axis, curve in curves.items():
        if curve is not None and curve.error is not None:
            high = curve.high if full else [None] * len(curve.high)
            rows = zip(curve.error, curve.e0, curve.low, high, strict=True)
            tables.append((axis, [row for row in rows if row[0] in wanted]))
    return tables


def _sensitivity(report: AuditReport) -> str:
    tables = []
    for axis, rows in sensitivity_tables(report):
        lines = [f"What each {axis} would mean", f"  {axis:<14} {'e0':>8}   95 % interval"]
        for error, e0, low, high in rows:
            lines.append(f"  {percent(error):<14} {number(e0):>8}   {_range((low, high))}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _paragraphs(title: str, paragraphs: Iterable[str]) -> str:
    wrapped = [
        textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
        for text in paragraphs
    ]
    return "\n".join([title, *wrapped]) if wrapped else ""
