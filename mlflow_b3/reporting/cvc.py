"""Corrected cross-validation as a document of its own, and as a section of an audit's."""

from collections.abc import Sequence

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting import document
from mlflow_b3.reporting.charts import cvc_figure, e0_score, multiples_figure
from mlflow_b3.reporting.cvc_sentences import (
    TITLE,
    answer_cvc,
    describe_cvc,
    explain_cvc,
    explain_pair,
    trust_cvc,
)
from mlflow_b3.reporting.document import (
    Answer,
    Block,
    Document,
    Findings,
    Paragraph,
    Section,
    lists,
    paragraphs,
)
from mlflow_b3.reporting.phrases import readable
from mlflow_b3.reporting.tables import Score, level_table, multiple_tables
from mlflow_b3.results import Finding

TRUST = "When to trust which"


def cvc_text(report: CvcReport) -> str:
    """Return corrected cross-validation as text for a terminal, the answer first."""
    return document.to_text(cvc_document(report))


def cvc_markdown(report: CvcReport) -> str:
    """Return corrected cross-validation as Markdown, the answer first."""
    return document.to_markdown(cvc_document(report))


def cvc_document(report: CvcReport) -> Document:
    """Return corrected cross-validation as a document, the answer first."""
    report = readable(report)
    done = Paragraph(text=describe_cvc(report))
    return Document(
        title=TITLE,
        answer=Answer(sentence=answer_cvc(report)),
        sections=(
            Section(heading="The scores", blocks=tuple(_blocks(report, trust_cvc(report)))),
            Section(heading="Findings", blocks=(Findings(findings=report.findings),)),
            Section(heading="How it was done", blocks=(done,)),
        ),
    )


def cvc_section(report: AuditReport) -> list[Section]:
    """Return the section of an audit's document; nothing for audits without it.

    The names in the report must be readable.
    """
    cvc = report.cvc
    if cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(cvc)]
    blocks = [Paragraph(text=answer_cvc(cvc)), *_blocks(cvc, trust, e0_score(report))]
    return [Section(heading=TITLE, blocks=tuple(blocks))]


def findings_with_cvc(report: AuditReport) -> tuple[Finding, ...]:
    """Return the findings of an audit and of its corrected cross-validation, each once."""
    own = () if report.cvc is None else report.cvc.findings
    return report.findings + tuple(finding for finding in own if finding not in report.findings)


def _blocks(report: CvcReport, trust: Sequence[str], *more: Score) -> list[Block]:
    curve = multiples_figure(report)
    return [
        cvc_figure(report, *more),
        *paragraphs(explain_cvc(report)),
        level_table(report),
        *([curve] if curve.caption else []),  # a withheld correction has none
        *multiple_tables(report),
        *lists(trust, TRUST),
    ]
