"""Corrected cross-validation as a document of its own, and as a section of an audit's."""

from collections.abc import Sequence

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting import document
from mlflow_b3.reporting.charts import cvc_figure, e0_score, multiples_figure
from mlflow_b3.reporting.cvc_sentences import (
    TITLE,
    answer_cvc,
    better_words,
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
    Tile,
    lists,
    paragraphs,
)
from mlflow_b3.reporting.phrases import readable
from mlflow_b3.reporting.tables import (
    Score,
    cvc_scores,
    level_table,
    multiple_tables,
    score_value,
)
from mlflow_b3.results import Finding, interval_words, loss_words, number

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
        answer=Answer(
            sentence=answer_cvc(report),
            unit=f"{sentence_start(loss_words(report.loss))}; {better_words(report)} is better",
            tiles=_tiles(report),
            findings=report.findings,
        ),
        sections=(
            Section(heading="The scores", blocks=tuple(_blocks(report, trust_cvc(report)))),
            Section(heading="Findings", blocks=(Findings(findings=report.findings),)),
            Section(heading="How it was done", blocks=(done,)),
        ),
    )


def cvc_card(report: CvcReport) -> str:
    """Return the answer of corrected cross-validation as a part of a notebook."""
    return document.to_card(cvc_document(report))


def cvc_repr(report: CvcReport) -> str:
    """Return the scores on one line."""
    scores = ", ".join(
        f"{name}={number(value)}"
        for name, value in (("cv", report.cv), ("cvc", report.cvc), ("grouped", report.grouped))
    )
    return f"<CvcReport: {loss_words(report.loss)} {scores}, {len(report.findings)} findings>"


def _tiles(report: CvcReport) -> tuple[Tile, ...]:
    colours = ("orange", "blue", "green")
    return tuple(
        Tile(
            label=sentence_start(name),
            value=score_value((name, value, ends, note)),
            note=f"{interval_words(ends)}, 95% interval" if ends else "",
            colour=colour,
        )
        for (name, value, ends, note), colour in zip(cvc_scores(report), colours, strict=False)
    )


def sentence_start(words: str) -> str:
    """Return words with a capital letter."""
    return words[0].upper() + words[1:]


def cvc_section(report: AuditReport) -> list[Section]:
    """Return the section of an audit's document; nothing for audits without it.

    The names in the report must be readable.
    """
    cvc = report.cvc
    if cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(cvc)]
    figure, *details = _blocks(cvc, trust, e0_score(report))
    answer = Paragraph(text=answer_cvc(cvc))
    return [
        Section(heading=TITLE, blocks=(figure, answer)),
        Section(heading="Corrected cross-validation in detail", blocks=tuple(details), folded=True),
    ]


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
