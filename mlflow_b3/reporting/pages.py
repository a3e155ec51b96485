"""An audit report as a document, and as text, Markdown and HTML."""

from mlflow_b3.auditing.report import DOSE, AuditReport
from mlflow_b3.reporting import document
from mlflow_b3.reporting.card import card_of
from mlflow_b3.reporting.charts import MEASURED, figures_of
from mlflow_b3.reporting.cvc import cvc_section, findings_with_cvc
from mlflow_b3.reporting.document import (
    Block,
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
from mlflow_b3.reporting.headline import explain_tipping
from mlflow_b3.reporting.paper import describe_for_paper, references_of
from mlflow_b3.reporting.phrases import (
    explain_linkage,
    explain_regression,
    model_name,
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
    how_measured,
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


def to_card(report: AuditReport) -> str:
    """Return the answer of the report as a part of a notebook."""
    shown = readable(report)
    title = f"Leakage audit of {model_name(shown)}"
    return document.to_card(
        Document(title=title, answer=card_of(shown, in_python=True), sections=())
    )


def to_html(report: AuditReport) -> str:
    """Return the report as one HTML page; see `mlflow_b3.reporting.document.to_html`."""
    return document.to_html(audit_document(report))


def audit_document(report: AuditReport) -> Document:
    """Return what an audit found as a document, the answer first."""
    failure = traceback_lines(report)
    report = readable(report)
    figures = figures_of(report)
    curves = [figures[name] for name in (DOSE, "loss_curve") if name in figures]
    return Document(
        title=f"Leakage audit of {model_name(report)}",
        answer=card_of(report),
        sections=(
            Section(heading="The scores", blocks=(figures["scores"],)),
            Section(heading=curve_title(report), blocks=(*curves,)),
            _rates(figures),
            _findings(report, failure),
            *_groups(report),
            *cvc_section(report),
            *_numbers(report, figures),
            _share(report, figures.get("residual")),
            Section(
                heading="The leakage test",
                blocks=(Paragraph(text=explain_test_of(report)),),
                folded=True,
            ),
            *_details(report),
        ),
        footer=f"mlflow-b3 {report.version}",
    )


def _groups(report: AuditReport) -> list[Section]:
    """Return the scores of groups of rows, if there are any."""
    tables = group_tables(report)
    return [Section(heading="Groups of rows", blocks=tuple(tables), broad=True)] if tables else []


def _rates(figures: dict[str, Figure]) -> Section:
    curves = [figures[name] for name in ("sensitivity", "sensitivity_split") if name in figures]
    return Section(heading="What other rates of wrong ids would mean", blocks=(*curves,))


def _numbers(report: AuditReport, figures: dict[str, Figure]) -> list[Section]:
    """Return the answer in sentences, and the numbers behind the charts."""
    measured = [figures[MEASURED]] if MEASURED in figures else []
    return [
        Section(
            heading="In words and numbers",
            blocks=(
                *paragraphs([explain_answer(report), explain_inflation(report)]),
                *paragraphs([*explain_doses(report), explain_tipping(report)]),
                *sensitivity_tables(report),
                *suspicious_tables(report),
                *distribution_tables(report),
            ),
            folded=True,
        ),
        Section(
            heading="How e0 follows from the refits",
            blocks=(*paragraphs([how_measured(report)]), *measured),
            folded=True,
        ),
    ]


def _share(report: AuditReport, residual: Figure | None) -> Section:
    bound = [report.p0_bound.statement] if report.p0_bound else []
    told = [*bound, *explain_linkage(report), *explain_regression(report)]
    if report.dose is not None:  # no loss curve was measured
        heading = "What the evidence says about the leaked share"
        return Section(heading=heading, blocks=(*paragraphs(told),), folded=True)
    # a flat line shows nothing that its sentence does not say
    profile = Paragraph(text=report.search.statement) if residual is None else residual
    return Section(
        heading="What the loss curve says about the leaked share",
        blocks=(profile, *paragraphs(told)),
        folded=True,
    )


def _findings(report: AuditReport, failure: list[str]) -> Section:
    traceback = Lines(title="The first refit that failed", lines=tuple(failure))
    return Section(
        heading="Findings",
        blocks=(
            Findings(findings=findings_with_cvc(report)),
            *([traceback] if failure else []),
        ),
    )


def _details(report: AuditReport) -> list[Section]:
    """Return what is needed to repeat, to publish and to doubt an audit."""
    paragraph = Paragraph(text=describe_for_paper(report), quoted=True)
    blocks: dict[str, tuple[Block, ...]] = {
        "Folds": tuple(fold_tables(report)),
        "How it was done": (*paragraphs([describe_method(report), describe_refit(report)]),),
        "Settings": (settings_table(report),),
        "For a paper": (Paragraph(text=FOR_A_PAPER), paragraph, *lists(references_of(report))),
        "What is not known": (*lists(open_questions(report)),),
        "What an audit does not detect": (*lists(limits_of(report)),),
    }
    return [
        Section(heading=name, blocks=part, folded=True, in_text=name == "How it was done")
        for name, part in blocks.items()
    ]
