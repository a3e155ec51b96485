"""What linkage evidence says, in sentences."""

from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import percent


def describe_evidence(report: AuditReport, leak: LeakEstimate) -> str:
    """Return what linkage evidence says about the rows, as the premise of the answer."""
    low, high = report.settings.claim or (0.0, 1.0)
    share = leak.validation
    mates = "have records of the same true cluster in training"
    seen = f"of the validation rows {mates}"
    if report.e0 is None:
        found = f"all validation rows may {mates}, or so many that the others cannot be told"
    elif share.point is None:
        found = f"at most {percent(high)} {seen}"
    else:
        found = f"{percent(share.point)} ({percent(low)} to {percent(high)}) {seen}"
    checked = "" if leak.n_labels is None else f"{leak.n_labels} "
    by = {
        "resolved_rows": f"By the {checked}rows that were resolved by hand",
        "partition_samples": "By the posterior samples of the linkage",
        "linkage_quality": "By the recall of the linkage",
        "match_probability": "By match probabilities that nobody checked, as an order of magnitude",
    }
    return f"{by[report.p0_source]}, {found}. If so"


def explain_linkage(report: AuditReport) -> list[str]:
    """Return both leak shares of linkage evidence, and how the folds were made of it."""
    leak = report.linkage
    if leak is None:
        return []
    sides = [_share(share, leak.kind) for share in (leak.train, leak.validation)]
    kind = {
        "estimate": f"an estimate with a {percent(leak.level)} interval",
        "upper": "an upper limit if those figures are exact"
        if leak.n_labels is None
        else f"an upper limit with {percent(leak.level)} confidence",
        "lower": "a lower limit",
        "uncalibrated": "what scores say that nobody checked",
    }
    return [
        f"Leak shares by {leak.method}: {sides[0]} of the training rows of a fold have records of the "
        f"same true cluster in validation, {sides[1]} of the validation rows have some in training; "
        f"{kind[leak.kind]}. The second drives the score; the first falls as folds are added, the "
        "second does not." + _as_split_rate(report)
    ]


def _share(share: LeakShare, kind: str) -> str:
    if share.point is None:
        return f"{percent(share.low)} to {percent(share.high)}"
    if kind == "uncalibrated":  # its ends are no interval
        return percent(share.point)
    return f"{percent(share.point)} ({percent(share.low)} to {percent(share.high)})"


def _as_split_rate(report: AuditReport) -> str:
    """Return the split rate of the table that goes with the seen share, where there is one."""
    leak, apart = report.linkage, 2 * seen_share(0.5, report.folds).share
    upper = leak is not None and leak.kind == "upper"
    seen = leak.validation.high if leak is not None and upper else report.p0
    if report.e0 is None or seen is None or seen >= apart:
        return ""
    return f" In the table of split rates that is {'at most ' * upper}{percent(seen / apart)}."


def explain_regression(report: AuditReport) -> list[str]:
    """Return what the regression of losses on leak probabilities says, where it was made."""
    return [] if report.regression is None else [report.regression.statement]
