"""What the charts of a report show, in words."""

from mlflow_b3.reporting.premises import is_mixture, rate_of
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import loss_words, number, percent


def score_caption(report: AuditReport) -> str:
    """Return how to read the chart of the scores."""
    word = loss_words(report.settings.loss)
    text = f"The {word} of the same learner under three ways of validating it; smaller is better."
    if report.e0 is None:
        text += " Of the last only a range is known"
        text += "." if report.e0_interval[1] is not None else ", which has no upper end."
    elif report.settings.refit_strength != "full":
        text += " The last is a lower bound; the bar has no upper end."
    if report.e0_secant is not None:
        text += " The lower limit rests on a convex loss curve."
    return text


def curve_title(report: AuditReport) -> str:
    """Return the heading over the chart of the loss curve."""
    if is_mixture(report):
        return "From seen to new clusters"
    return "The measured loss curve" + (" and its extrapolation" if report.path else "")


def curve_caption(report: AuditReport) -> str:
    """Return how e0 follows from what was measured, or why it does not."""
    word = loss_words(report.settings.loss)
    if is_mixture(report):
        return (
            f"With s the share of validation rows whose true cluster also has rows in training, the "
            f"{word} on the folds is LOCO = (1−s)·e0 + s·e_seen. e_seen was measured by breaking "
            "clusters in two on purpose and giving one part to training; the line is solved for e0 "
            "at s = 0. Its right end differs from what was measured where clusters that are "
            "fragments already gain less from being broken again."
        )
    text = _measuring(word)
    if report.path is not None:
        low, high = report.settings.claim or (0.0, 0.0)
        middle = " All of this is for the middle of the range that was taken as known." * (
            low < high
        )
        if report.path.exposure[0] == 0:
            return f"{text} By what was taken as known no row leaked, so e0 is read there.{middle}"
        return (
            f"{text} Rows that leaked by wrong ids are in there already, so the point without leakage "
            f"lies to the left, at {percent(report.path.exposure[0])}; there the curve gives e0."
            f"{middle}"
        )
    if report.settings.pattern == "fragments":
        return f"{text} So many rows may have been seen that e0 cannot be solved for."
    return (
        f"{text} The point without leakage lies to the left of it; how far is not known, because "
        "nothing is known about how many ids are wrong. So nothing is extrapolated here."
    )


def measured_caption(report: AuditReport) -> str:
    """Return what the measured curve says where e0 follows from a mixture."""
    return (
        f"{_measuring(loss_words(report.settings.loss))} How steeply it falls is how much this learner "
        "profits from rows of the same cluster. For split clusters e0 is solved from the mixture above, "
        "not read from this curve."
    )


def _measuring(word: str) -> str:
    return (
        f"More and more validation rows were put into training on purpose, and the {word} on the "
        "others was measured. At 0 % the folds are as they are."
    )


def sensitivity_caption(report: AuditReport, *, split: bool) -> str:
    """Return how to read a sensitivity curve."""
    rate = {
        "split rate": "share of rows whose cluster was split",
        "cluster error": "share of rows with a wrong id",
    }.get(rate_of(report, split=split), "share of training rows that belong to validation clusters")
    text = f"The loss on new clusters for every {rate}: the one thing that the data cannot tell."
    if report.threshold is not None and not report.settings.threshold_given:
        text += (
            f" No threshold was given; {number(report.threshold)} is the loss of the best constant "
            "answer, which needs no features."
        )
    return text
