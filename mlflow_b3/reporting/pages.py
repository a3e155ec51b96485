"""An audit report as a document, and as text, Markdown and HTML."""

from mlflow_b3.auditing.report import DOSE, AuditReport
from mlflow_b3.reporting import document
from mlflow_b3.reporting.charts import MEASURED, figures_of
from mlflow_b3.reporting.cvc import cvc_section, findings_with_cvc
from mlflow_b3.reporting.document import (
    Answer,
    Document,
    Figure,
    Findings,
    Lines,
    Paragraph,
    Section,
    lists,
    paragraphs,
)
from mlflow_b3.reporting.doses import explain_doses
from mlflow_b3.reporting.headline import explain_tipping, headline_of
from mlflow_b3.reporting.paper import describe_for_paper, references_of
from mlflow_b3.reporting.phrases import (
    explain_linkage,
    explain_regression,
    readable,
    traceback_lines,
)
from mlflow_b3.reporting.sentences import (
    curve_title,
    describe_method,
    describe_refit,
    explain_answer,
    explain_inflation,
    explain_test_of,
    limits_of,
    open_questions,
)
from mlflow_b3.reporting.tables import (
    distribution_tables,
    fold_tables,
    group_tables,
    sensitivity_tables,
    settings_table,
    suspicious_tables,
)

FOR_A_PAPER = (
    "How clusters and leakage were handled, as TRIPOD+AI requires. Copy it, and check that it fits."
)


def to_text(report: AuditReport) -> str:
    """Return the report as text for a terminal."""
    return document.to_text(audit_document(report))


def to_markdown(report: AuditReport) -> str:
    """Return the report as Markdown, for MLflow's artifact view."""
    return document.to_markdown(audit_document(report))


def to_html(report: AuditReport) -> str:
    """Return the report as one HTML page; see `mlflow_b3.reporting.document.to_html`."""
    return document.to_html(audit_document(report))


def audit_document(report: AuditReport) -> Document:
    """Return what an audit found as a document, the answer first."""
    failure = traceback_lines(report)
    report = readable(report)
    headline = headline_of(report)
    figures = figures_of(report)
    curves = [figures[name] for name in (DOSE, "loss_curve", MEASURED) if name in figures]
    return Document(
        title=f"Leakage audit of {report.subject.model}",
        answer=Answer(
            sentence=headline.sentence,
            word=headline.word,
            sign=headline.sign,
            state=headline.state,
        ),
        sections=(
            Section(
                heading="The scores",
                blocks=(
                    figures["scores"],
                    *paragraphs([explain_answer(report), explain_inflation(report)]),
                ),
            ),
            *_groups(report),
            *cvc_section(report),
            Section(
                heading=curve_title(report), blocks=(*curves, *paragraphs(explain_doses(report)))
            ),
            _rates(report, figures),
            _share(report, figures["residual"]),
            Section(heading="The leakage test", blocks=(Paragraph(text=explain_test_of(report)),)),
            Section(heading="Folds", blocks=tuple(fold_tables(report)), folded=True),
            _findings(report, failure),
            Section(
                heading="How it was done",
                blocks=(*paragraphs([describe_method(report), describe_refit(report)]),),
            ),
            *_details(report),
        ),
        footer=f"mlflow-b3 {report.version}",
    )


def _groups(report: AuditReport) -> list[Section]:
    """Return the scores of groups of rows, if there are any."""
    tables = group_tables(report)
    return [Section(heading="Groups of rows", blocks=tuple(tables))] if tables else []


def _rates(report: AuditReport, figures: dict[str, Figure]) -> Section:
    curves = [figures[name] for name in ("sensitivity", "sensitivity_split") if name in figures]
    return Section(
        heading="What other rates of wrong ids would mean",
        blocks=(Paragraph(text=explain_tipping(report)), *curves, *sensitivity_tables(report)),
    )


def _share(report: AuditReport, residual: Figure) -> Section:
    bound = [report.p0_bound.statement] if report.p0_bound else []
    told = [*bound, *explain_linkage(report), *explain_regression(report)]
    return Section(
        heading="What the loss curve says about the leaked share",
        blocks=(residual, *paragraphs(told)),
    )


def _findings(report: AuditReport, failure: list[str]) -> Section:
    traceback = Lines(title="The first refit that failed", lines=tuple(failure))
    return Section(
        heading="Findings",
        blocks=(
            Findings(findings=findings_with_cvc(report)),
            *([traceback] if failure else []),
            *suspicious_tables(report),
            *distribution_tables(report),
        ),
    )


def _details(report: AuditReport) -> list[Section]:
    """Return what is needed to repeat, to publish and to doubt an audit."""
    paragraph = Paragraph(text=describe_for_paper(report), quoted=True)
    return [
        Section(heading="Settings", blocks=(settings_table(report),), folded=True),
        Section(
            heading="For a paper",
            blocks=(Paragraph(text=FOR_A_PAPER), paragraph, *lists(references_of(report))),
            folded=True,
        ),
        Section(heading="What is not known", blocks=(*lists(open_questions(report)),), folded=True),
        Section(
            heading="What an audit does not detect",
            blocks=(*lists(limits_of(report)),),
            folded=True,
        ),
    ]
