"""What an audit does not detect, and what one audit leaves open."""

from mlflow_b3.correlated.report import FEW_GROUPS
from mlflow_b3.measurement.resampling import FEW_CLUSTERS
from mlflow_b3.reporting.cvc_words import joined
from mlflow_b3.reporting.findings import LEAST_AGREEMENT
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number, percent

LIMITS = (
    "How many ids are wrong, from the model alone: the same loss curve fits every rate. Rows that "
    "were looked up by hand tell it, scores of record linkage do not.",
    "Leakage that is not about clusters: a feature that knows the target, preprocessing that was "
    "fitted on all rows, time running backwards.",
    "Clusters that nobody has named: if rows depend on each other through something that is not in "
    "the cluster column, no split by that column shows it.",
    "Very sharp effects: the interval assumes that a row is affected through no more mates than its "
    "cluster has rows, 25 at the most.",
    "Other populations: new clusters are taken to be like those of this table.",
    "The corrected score has less bias and more variance than the uncorrected one. Where leakage does "
    "not matter, the uncorrected one is as good.",
)

GIVEN = (
    "Whether the rate that was given is right; the sensitivity curve says what others would mean."
)
UNCHECKED = "How far the match probabilities are off: nobody has checked them."
VACUOUS = "How many rows leaked: the evidence that was to tell it excludes nothing."
#: What remains unknown of the leaked share, by where it came from.
SOURCES = {
    "none": "How many ids are wrong. Without that there is no single number for new clusters.",
    "p0": GIVEN,
    "cluster_error": GIVEN,
    "split_rate": GIVEN,
    "mixture": "How many rows leaked: the rows themselves give an upper bound, and it does not say "
    "that any row did.",
    "resolved_rows": "Whether those who looked rows up found all that belong together. That only a "
    "sample was looked up is in the interval.",
    "partition_samples": "Whether the model of the record linkage is right, whose samples were used.",
    "linkage_quality": "How far the leaked share is below its upper limit, and whether the figures of "
    "the linkage hold for this table.",
    "match_probability": UNCHECKED,
    "match_column": UNCHECKED,
}
PATTERNS = {
    "rows": "Whether ids go wrong row by row, as is assumed here. Where clusters are split, the same "
    "share of rows means something else.",
    "fragments": "Whether clusters were split by the linkage as they were broken here; and ids that "
    "are wrong for single rows are not corrected for.",
    "unknown": "Whether ids go wrong row by row, or by splitting clusters; both are shown.",
}


def open_questions(report: AuditReport) -> list[str]:
    """Return what is not known after this audit, in sentences."""
    settings, test = report.settings, report.test
    excluded = report.e0 is not None or settings.claim is None
    found = [SOURCES[report.p0_source] if excluded else VACUOUS, PATTERNS[settings.pattern]]
    if settings.refit_strength != "full":
        found.append(
            "How much larger the loss on new clusters is than what is shown: part of the model was "
            "not trained again."
        )
    if any(fold.shared_clusters for fold in report.folds):
        found.append(
            "How the model does on folds that keep known clusters together: those that were given "
            "do not."
        )
    if settings.n_validated < FEW_CLUSTERS:
        found.append(
            f"How far the next cluster differs from these {settings.n_validated}: the intervals speak "
            "of new rows of the same clusters."
        )
    if not test.rejected:
        found.append(
            "Whether this model profits from leaked rows at all. The test did not show it; an effect "
            f"below {number(test.detectable)} would often be missed."
        )
    if report.e0_secant is None and report.e0 is not None and settings.pattern == "rows":
        found.append(
            "A lower limit by a secant of the loss curve: the measured curve does not show that it "
            "is convex."
        )
    return found + _about_refits(report) + _about_cvc(report)


def _about_cvc(report: AuditReport) -> list[str]:
    """Return what corrected cross-validation leaves open."""
    cvc = report.cvc
    if cvc is None:
        return []
    if cvc.cvc is None:
        return ["How much too good ordinary cross-validation is: its correction is withheld."]
    found = [
        "Whether rows are correlated as the correction of cross-validation takes it: by the groups "
        "that were named, through effects that have nothing to do with their features, with right ids."
    ]
    few = [f"{group.groups} {group.name!r}" for group in cvc.groups if group.groups < FEW_GROUPS]
    if few:
        found.append(
            f"How much groups differ: {joined(few)} tell it badly, and the correction of "
            "cross-validation grows with it."
        )
    return found


def _about_refits(report: AuditReport) -> list[str]:
    agreement = report.settings.refit_agreement
    question = "Whether the refits are models like the one that was logged"
    if agreement is None:
        return [f"{question}: they could not be compared."] if report.settings.uri else []
    if not agreement >= LEAST_AGREEMENT:
        return [f"{question}: on all rows they agree in {percent(agreement)} only."]
    return []
