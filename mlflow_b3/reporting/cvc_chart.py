"""The charts of corrected cross-validation: its scores, and what other variances would mean."""

from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.axes import Axis, axis_for, finite
from mlflow_b3.reporting.cvc_tables import GROUPED, Score, cvc_scores, score_value
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.reporting.tables import confidence_note
from mlflow_b3.wording import interval_words, loss_words, number

ROW = 42
CVC_SCORES, CVC_MULTIPLES = "cvc", "cvc_sensitivity"
MARKS = (("circle", "orange"), ("triangle", "blue"), ("square", "green"))


def cvc_plots(report: AuditReport) -> dict[str, Plot]:
    """Return the charts of corrected cross-validation; none for audits without it."""
    if report.cvc is None:
        return {}
    return {
        CVC_SCORES: plot_cvc_scores(report.cvc, e0_score(report)),
        CVC_MULTIPLES: plot_multiples(report.cvc),
    }


def e0_score(report: AuditReport) -> Score:
    """Return the loss on new clusters by the audit, to stand beside the scores."""
    least = "" if report.settings.refit_strength == "full" else " at least"
    ends = report.e0_interval
    note = confidence_note(report, ends)
    return f"new clusters by the audit (e0){least}", report.e0, ends, note


def plot_cvc_scores(report: CvcReport, e0: Score) -> Plot:
    """Draw the scores with their intervals on one axis."""
    word = loss_words(report.loss)
    scores = cvc_scores(report)
    rows = [*zip(scores, MARKS, strict=False), (e0, ("diamond", "blue"))]
    texts = [_words(score) for score, _ in rows]
    core = [score[1] for score, _ in rows]
    ends = [end for score, _ in rows for end in score[2] or ()]
    plot = Plot(
        CVC_SCORES,
        f"Cross-validation and its correction: {word}",
        "; ".join(texts) + ".",
        x=axis_for([*core, *report.cv_interval], ends, label=word),
        y=Axis(low=0, high=len(rows)),
        height=ROW * len(rows),
        y_axis=False,
    )
    for place, (text, ((_, value, interval, _), (shape, kind))) in enumerate(
        zip(texts, rows, strict=True)
    ):
        y = len(rows) - place - 0.68
        if interval is not None:
            plot.interval(y, *interval, kind)
        if value is not None:
            plot.mark(value, y, shape, kind)
        plot.text(plot.left + 4, plot.top + ROW * place + 16, text, alone=True)
    return plot


def _words(score: Score) -> str:
    name, _, ends, note = score
    return f"{name}: {score_value(score)}" + (f" ({interval_words(ends)}{note})" if ends else "")


def plot_multiples(report: CvcReport) -> Plot:
    """Draw CV_c against multiples of the standard deviations that were found."""
    times, values = report.multipliers, report.sensitivity
    if len(finite(values)) < 2:
        return _plot_nothing()
    word = loss_words(report.loss)
    grouped = report.grouped
    plot = Plot(
        CVC_MULTIPLES,
        "CV_c if groups differed less or more than was found",
        f"CV_c goes from {number(values[0])} at {times[0]:g} times the standard deviations between "
        f"groups that were found to {number(values[-1])} at {times[-1]:g} times; at their own size it "
        f"is {number(report.cvc)}.",
        x=Axis(
            low=min(times),
            high=max(times),
            label="multiple of the standard deviations that were found",
        ),
        y=axis_for(
            [report.cv, *values], [*(report.interval or ()), grouped], label=f"{word} (CV_c)"
        ),
        height=190,
        legend=3 + (grouped is not None),
    )
    plot.entry("CV_c", "blue", "line")
    plot.entry(
        _words(("as found, with its 95 % interval", report.cvc, report.interval, "")),
        "blue",
        "triangle",
    )
    plot.entry(f"cross-validation as it is (CV): {number(report.cv)}", "orange", "dashed")
    plot.line([(min(times), report.cv), (max(times), report.cv)], "orange", dashed=True)
    if grouped is not None:
        plot.entry(f"{GROUPED}: {number(grouped)}", "green", "dashed")
        plot.line([(min(times), grouped), (max(times), grouped)], "green", dashed=True)
    plot.line(zip(times, values, strict=True), "blue")
    if report.cvc is not None and report.interval is not None:
        plot.error_bar(1.0, *report.interval, "blue")
        plot.mark(1.0, report.cvc, "triangle", "blue")
    return plot


def _plot_nothing() -> Plot:
    """Say that there is no curve, where one may be looked for."""
    words = "The correction is withheld: there is no curve."
    plot = Plot(
        CVC_MULTIPLES,
        "CV_c if groups differed less or more than was found",
        words,
        x=Axis(low=0.0, high=2.0, label="multiple of the standard deviations that were found"),
        y=Axis(low=0.0, high=1.0),
        height=60,
        y_axis=False,
    )
    plot.text(plot.left + 4, (plot.top + plot.bottom) / 2, words, alone=True)
    return plot


def scores_caption(report: CvcReport) -> str:
    """Return how to read the chart of the scores."""
    return (
        f"The {loss_words(report.loss)} of the same learner; smaller is better. CV puts rows of one "
        "group into training and validation, CV_c adds what it gains by that, grouped CV keeps groups "
        "whole, and e0 is the audit's answer where ids may be wrong. Bars are 95 % intervals where "
        "nothing else is said."
    )


def multiples_caption(report: CvcReport) -> str:
    """Return how to read the curve over the standard deviations; nothing where there is none."""
    if len(finite(report.sensitivity)) < 2:
        return ""
    return (
        "The standard deviations between groups are what few groups tell badly. The curve says what "
        "CV_c would be if all of them were larger or smaller by the same factor; at 0 groups do not "
        "differ, and cross-validation is right as it is."
    )
