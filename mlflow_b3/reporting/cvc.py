"""Corrected cross-validation as text and as Markdown, alone and beside e0."""

from collections.abc import Sequence
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.charts import e0_score
from mlflow_b3.reporting.document import (
    aligned,
    escaped,
    listed,
    markdown_table,
    paragraphs,
    titled,
)
from mlflow_b3.reporting.phrases import (
    TITLE,
    answer_cvc,
    describe_cvc,
    explain_cvc,
    explain_pair,
    multiples_caption,
    readable,
    scores_caption,
    trust_cvc,
)
from mlflow_b3.reporting.tables import Score, cvc_score_table, level_table, multiple_tables
from mlflow_b3.results import Finding

# --- Corrected cross-validation as text and as Markdown, alone and as a part of an audit

RESTS = "What the correction rests on"
TRUST = "When to trust which"


def cvc_text(report: CvcReport) -> str:
    """Return corrected cross-validation as text for a terminal, the answer first."""
    report = readable(report)
    sections = [
        *_text(report, trust_cvc(report)),
        paragraphs("Findings", [str(finding) for finding in report.findings]),
        paragraphs("How it was done", [describe_cvc(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def cvc_markdown(report: CvcReport) -> str:
    """Return corrected cross-validation as Markdown, the answer first."""
    report = readable(report)
    parts = [
        f"# {TITLE}",
        *_markdown(report, trust_cvc(report)),
        "## Findings",
        listed_findings(report.findings),
        "## How it was done",
        escaped(describe_cvc(report)),
    ]
    return "\n\n".join(parts) + "\n"


def listed_findings(findings: Sequence[Finding]) -> str:
    """Return findings as a Markdown list; that there are none where there are none."""
    rows = [f"- **{f.code}** {escaped(f.title)}: {escaped(f.message)}" for f in findings]
    return "\n".join(rows) if rows else "None."


def cvc_sections(report: AuditReport) -> list[str]:
    """Return the part of an audit's text; nothing for audits without corrected cross-validation.

    The names in the report must be readable.
    """
    if report.cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(report.cvc)]
    return _text(report.cvc, trust, e0_score(report))


def cvc_parts(report: AuditReport) -> list[str]:
    """Return the part of an audit's Markdown; nothing for audits without it."""
    if report.cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(report.cvc)]
    return [f"## {TITLE}", *_markdown(report.cvc, trust, e0_score(report))]


def findings_with_cvc(report: AuditReport) -> tuple[Finding, ...]:
    """Return the findings of an audit and of its corrected cross-validation, each once."""
    own = () if report.cvc is None else report.cvc.findings
    return report.findings + tuple(finding for finding in own if finding not in report.findings)


def cvc_values(report: AuditReport) -> dict[str, Any] | None:
    """Return what an audit's page shows of corrected cross-validation, where there is one."""
    cvc = report.cvc
    if cvc is None:
        return None
    return {
        "title": TITLE,
        "answer": answer_cvc(cvc),
        "rests": explain_cvc(cvc),
        "trust_title": TRUST,
        "trust": [*explain_pair(report), *trust_cvc(cvc)],
        "scores_caption": scores_caption(cvc),
        "multiples_caption": multiples_caption(cvc),
        "tables": [level_table(cvc), *multiple_tables(cvc)],
    }


def _text(report: CvcReport, trust: Sequence[str], *more: Score) -> list[str]:
    tables = [level_table(report), *multiple_tables(report)]
    return [
        paragraphs(TITLE, [answer_cvc(report)]),
        "\n".join(aligned(cvc_score_table(report, *more).rows, right=1)),
        paragraphs(RESTS, explain_cvc(report)),
        *("\n".join([table.title, *aligned((table.head, *table.rows))]) for table in tables),
        paragraphs(TRUST, trust),
    ]


def _markdown(report: CvcReport, trust: Sequence[str], *more: Score) -> list[str]:
    return [
        f"**{escaped(answer_cvc(report))}**",
        markdown_table(cvc_score_table(report, *more)),
        *map(escaped, explain_cvc(report)),
        *titled([level_table(report), *multiple_tables(report)]),
        *([f"{TRUST}:", listed(trust)] if trust else []),
    ]
