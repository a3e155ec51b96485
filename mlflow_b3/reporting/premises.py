"""On what the numbers of an audit rest: what is known of the leakage, the folds, the confidence."""

import math

from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.reporting.linkage import describe_evidence
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number, percent

NOT_FINITE = "Some of the numbers of this audit are not finite, so they say nothing."


#: An end of an interval that is so many times the loss of a constant prediction limits nothing.
SENSELESS = 10.0


def largest_sensible(report: AuditReport) -> float:
    """Return the loss beyond which a number is an artefact of extrapolation, not worth printing.

    Ten times the loss of the best constant prediction, of the score by ids, or of the threshold,
    whichever is largest. Losses with a natural limit, such as error rates, need none.
    """
    settings = report.settings
    if settings.loss_bound is not None and settings.loss != "log":
        return math.inf
    given = report.threshold if settings.threshold_given else None
    known = [report.loco_interval[1], report.constant_loss or 0.0, given or 0.0]
    largest = max(value for value in known if not math.isnan(value))
    return SENSELESS * largest if largest > 0 else math.inf


def sensible_number(report: AuditReport, value: float) -> str:
    """Return a loss in words, without digits where it is an artefact of extrapolation."""
    most = largest_sensible(report)
    return f"over {number(most)}" if value > most else number(value)


def is_finite(report: AuditReport) -> bool:
    """Return whether all numbers that an answer is made of are numbers."""
    numbers = (
        *(report.e0, *report.e0_interval, report.threshold, report.inflation),
        *(report.iid, report.loco, *report.loco_interval, report.test.pvalue),
    )
    return all(math.isfinite(value) for value in numbers if value is not None)


def premise_of(report: AuditReport) -> str:
    """Return what is known about the ids, as the condition of everything that follows."""
    settings = report.settings
    wrong = f"carry a wrong {settings.cluster!r}"
    if settings.claim is None:
        return f"If at most half of the rows {wrong} or belong to split clusters"
    low, high = settings.claim
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    if report.linkage is not None:
        return describe_evidence(report, report.linkage)
    if report.p0_source == "match_column":
        return (
            f"By match probabilities of the rows that nobody checked, {percent(settings.middle)} of "
            f"them {wrong}, or anything from {rate}. If so"
        )
    if report.p0_source == "cluster_error":
        return f"If {rate} of the rows {wrong}"
    if report.p0_source == "split_rate":
        return f"If {rate} of the rows belong to a cluster that was split in two ids"
    known = "If"
    if report.p0_source == "mixture":
        rate = f"at most {percent(high)}"
        if report.e0 is None:
            known = "The rows do not tell how many of them leaked. If"
            if settings.p0_validation is None:
                return f"{known} at most half of them {wrong} and no cluster was split"
    back = "as many rows leaked back"
    if settings.p0_validation is not None:
        back = f"{percent(settings.p0_validation)} of the validation rows to its training clusters"
    return f"{known} {rate} of the training rows of a fold belong to its validation clusters, and {back}"


def folds_words(report: AuditReport) -> str:
    """Return by which folds the score is that keeps clusters apart, as far as they do."""
    settings = report.settings
    if shares_clusters(report):
        return "on the given folds"
    if settings.fold_threshold is None and settings.purge_threshold is None:
        return "by the cluster ids as they are"
    return "on folds made with match probabilities"


def shares_clusters(report: AuditReport) -> bool:
    """Return whether folds have rows of one cluster id on both sides."""
    return any(fold.shared_clusters for fold in report.folds)


def is_half(report: AuditReport) -> bool:
    """Return whether e0 is the value for half of an upper limit on the leakage."""
    upper = report.linkage is not None and report.linkage.kind == "upper"
    return report.e0 is not None and (upper or report.p0_source == "mixture")


def is_mixture(report: AuditReport) -> bool:
    """Return whether e0 is solved from a mixture of seen and new rows, not read from the curve."""
    known = report.e0 is not None and report.fragments is not None
    return report.settings.pattern == "fragments" and known


def confidence_of(report: AuditReport) -> str:
    """Return the confidence of the interval of e0.

    Where it is over all leakage up to a limit that itself may fail, both may.
    """
    limit = 1.0
    if is_half(report) and report.p0_source == "mixture":
        limit = 0.95 if report.p0_bound is None else report.p0_bound.confidence
    elif is_half(report) and report.linkage is not None and report.linkage.n_labels is not None:
        limit = report.linkage.level
    return percent(CONFIDENCE + limit - 1)


def rate_of(report: AuditReport, *, split: bool) -> str:
    """Return what the horizontal axis of a sensitivity curve is called."""
    if split:
        return "split rate"
    # where the share of validation rows is fixed, no rate of wrong ids stands behind a p0
    return "leaked share p0" if report.sensitivity.error is None else "cluster error"
