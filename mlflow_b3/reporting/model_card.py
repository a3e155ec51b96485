"""An audit as the sections of a model card on evaluation and caveats."""

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.reporting.cvc import findings_with_cvc
from mlflow_b3.reporting.document import Table, escaped, listed, markdown_table
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.phrases import better_words, readable
from mlflow_b3.reporting.sentences import limits_of, open_questions
from mlflow_b3.reporting.tables import group_tables, score_table
from mlflow_b3.results import loss_words, number

#: A model card says what an audit looked at. These are other questions, for its author.
NOT_AUDITED = (
    "The audit looked at one kind of error: scores that are optimistic because rows of one cluster are "
    "in both training and validation. It says nothing about {fairness}, drift, calibration, or data from "
    "elsewhere."
)

STATED = "The rate of wrong ids was stated by the person who ran the audit; an audit cannot measure it from losses."
#: Where the rate of wrong ids comes from, by its source.
RATES = {
    "none": "No rate of wrong ids was given.",
    "p0": STATED,
    "cluster_error": STATED,
    "split_rate": STATED,
    "mixture": "The rate of wrong ids is bounded by the rows themselves.",
    "resolved_rows": "The rate of wrong ids comes from a sample of rows that were looked up by hand.",
    "partition_samples": "The rate of wrong ids comes from posterior samples of the record linkage.",
    "linkage_quality": "The rate of wrong ids is bounded by the stated quality of the record linkage.",
    "match_probability": "The rate of wrong ids comes from match probabilities that nobody has checked.",
    "match_column": "The rate of wrong ids comes from match probabilities that nobody has checked.",
}


def to_model_card(report: AuditReport) -> str:
    """Return the sections of a model card, in Markdown without any markup but its own."""
    report = readable(report)
    headline = headline_of(report)
    parts = [
        "## Evaluation",
        "### Testing data, factors and metrics",
        listed([_data(report), _factors(report), _metric(report)]),
        "### Results",
        f"**{headline.sign} {headline.word}.** {escaped(headline.told)}",
        markdown_table(_scores(report)),
        *(f"{escaped(each.caption)}:\n\n{markdown_table(each)}" for each in group_tables(report)),
        "## Caveats and recommendations",
        "What the audit found:",
        _findings(report),
        "What is not known:",
        listed(open_questions(report)),
        "What the audit does not detect:",
        listed([*limits_of(report), _not_audited(report)]),
        f"Audited with mlflow-b3 {escaped(report.version)}, seed {report.plan.seed}, data digest "
        f"{report.subject.data_digest}{_when(report)}.",
    ]
    return "\n\n".join(parts) + "\n"


def _data(report: AuditReport) -> str:
    subject = report.subject
    return (
        f"Data: {subject.n_rows:,} rows of {subject.n_clusters:,} clusters by {subject.cluster!r}. The model "
        f"predicts {subject.target!r} ({subject.task}). For every score, it was retrained and scored on "
        "rows that it was not trained on."
    )


def _factors(report: AuditReport) -> str:
    return (
        "Factors: rows of one cluster are alike. The scores differ in how many rows of its own cluster a "
        f"scored row had in training. {RATES[report.p0_source]}"
    )


def _metric(report: AuditReport) -> str:
    return f"Metric: {loss_words(report.subject.loss)}; {better_words(report)}."


def _scores(report: AuditReport) -> Table:
    """Return the scores, and that of the best constant prediction for comparison."""
    table = score_table(report)
    if report.constant_loss is None:
        return table
    constant = ("best constant prediction, for comparison", number(report.constant_loss), "")
    return Table(header=table.header, rows=(*table.rows, constant), align="lr")


def _findings(report: AuditReport) -> str:
    found = findings_with_cvc(report)
    return listed(f"{each.code} {each.title}: {each.message}" for each in found) or "- No findings."


def _not_audited(report: AuditReport) -> str:
    """Return what the audit did not look at; with `by`, it did compare the scores of groups."""
    compared = report.groups is not None
    fairness = (
        "fairness beyond the scores of these groups" if compared else "fairness between groups"
    )
    return NOT_AUDITED.format(fairness=fairness)


def _when(report: AuditReport) -> str:
    measured = report.measured.measured_at
    return "" if measured is None else f", {measured[:10]}"
