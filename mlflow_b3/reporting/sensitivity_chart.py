"""The chart of a sensitivity curve: what each rate of wrong ids would mean."""

from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.premises import rate_of, sensible_number
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.wording import loss_words, number, percent

#: Up to this error a sensitivity curve is always shown in full.
NEAR = 0.2
#: What the horizontal axis counts, by what it is called.
LABELS = {
    "cluster error": "rows with a wrong id (cluster error)",
    "split rate": "rows of split clusters (split rate)",
    "leaked share p0": "training rows of validation clusters (p0)",
}


def threshold_words(report: AuditReport) -> str:
    """Return what the threshold is, with its value."""
    what = "threshold" if report.settings.threshold_given else "best constant answer"
    return f"{what} {number(report.threshold)}"


def claimed_errors(report: AuditReport, curve: Sensitivity) -> tuple[float, float, float] | None:
    """Return what is known of the leakage as (low, middle, high) on the axis of a curve.

    None where nothing is known, evidence excludes nothing, or it belongs to the other pattern.
    """
    settings = report.settings
    if settings.claim is None or settings.pattern != curve.pattern or report.e0 is None:
        return None
    values = [settings.claim[0], settings.middle, settings.claim[1]]
    rates = ("cluster_error", "split_rate", "match_column")
    if report.p0_source not in rates and curve.error is not None and curve.p0[-1] > 0:
        # shares are proportional to the rate that they belong to
        values = [value * curve.error[-1] / curve.p0[-1] for value in values]
    low, middle, high = values
    return low, middle, high


def plot_sensitivity(report: AuditReport, curve: Sensitivity) -> Plot:
    """Draw a sensitivity curve with the threshold, the tipping point and what is known."""
    rows = curve.pattern == "rows"
    full = report.settings.refit_strength == "full"
    error = curve.error or curve.p0
    near = [e0 for at, e0 in zip(error, curve.e0, strict=True) if at <= NEAR]
    known = [report.e0, *report.e0_interval] if report.e0 is not None else []
    axis = axis_for(
        [report.loco, *report.loco_interval, *near, *known],
        [*curve.e0, *(curve.high if full else ()), *curve.low],
        perhaps=report.threshold,
        label=f"{loss_words(report.settings.loss)} on new clusters (e0)",
        reach=2.0 if report.settings.loss_bound is None else 8.0,
    )
    claimed = claimed_errors(report, curve)
    unit = rate_of(report, split=not rows)
    tip = {
        "cluster error": report.tipping_cluster_error,
        "split rate": report.tipping_split_rate,
    }.get(unit, report.tipping_p0)
    description = (
        f"e0 goes from {number(curve.e0[0])} at a {unit} of {percent(error[0])} to "
        f"{sensible_number(report, curve.e0[-1])} at {percent(error[-1])}."
    )
    if tip is not None:
        description += (
            f" It reaches the {threshold_words(report)} at {percent(tip)}{_latest(report)}."
        )
    plot = Plot(
        "sensitivity" if rows else "sensitivity_split",
        f"What each {unit} would mean",
        description,
        x=Axis(
            low=error[0],
            high=max(error[-1], error[0] + 0.01),
            label=LABELS[unit],
            shares=True,
        ),
        y=axis,
        legend=2 + (claimed is not None),
    )
    plot.entry("estimate of e0" if full else "e0 is at least about this", "blue", "line")
    if full:
        plot.entry("its 95 % interval", "blue", "area")
        plot.band(error, curve.low, curve.high, "blue")
    else:
        plot.entry("and at least this with 95 % confidence", "blue", "dashed")
        plot.line(zip(error, curve.low, strict=True), "blue", dashed=True)
    if claimed is not None:
        _claim(plot, report, claimed)
    plot.line(zip(error, curve.e0, strict=True), "blue")
    if report.threshold is not None:
        _threshold(plot, report, tip)
    return plot


def plot_no_splits() -> Plot:
    """Say that there is no curve over the split rate, where one may be looked for."""
    words = "No cluster has two rows, so that none can be split."
    plot = Plot(
        "sensitivity_split",
        "What each split rate would mean",
        words,
        x=Axis(low=0.0, high=0.5, label=LABELS["split rate"], shares=True),
        y=Axis(low=0.0, high=1.0),
        height=60,
        y_axis=False,
    )
    plot.text(plot.left + 4, (plot.top + plot.bottom) / 2, words, alone=True)
    return plot


def _claim(plot: Plot, report: AuditReport, claimed: tuple[float, float, float]) -> None:
    low, middle, high = claimed
    taken = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    if high > 1:  # more rows were seen than could be if all clusters were split in two
        taken = f"{percent(low)} or more" if low < 1 else "more than 100 %"
    beyond = " (beyond this axis)" if high > plot.x.high else ""
    plot.entry(f"taken as known: {taken}{beyond}", "", "shade")
    if plot.x.holds(low):
        plot.span(low, high)
    ends = report.e0_interval
    if report.e0 is not None and ends[1] is not None:
        plot.error_bar(middle, ends[0], ends[1], "blue")
    if report.e0 is not None:
        plot.mark(middle, report.e0, "diamond", "blue")


def _threshold(plot: Plot, report: AuditReport, tip: float | None) -> None:
    assert report.threshold is not None
    if not plot.y.holds(report.threshold):
        side = "↑" if report.threshold > plot.y.high else "↓"
        at = plot.top + 14 if report.threshold > plot.y.high else plot.bottom - 6
        plot.text(plot.right - 4, at, f"{threshold_words(report)} {side}", anchor="end")
        return
    plot.level(report.threshold, threshold_words(report), "orange")
    if tip is not None and plot.x.holds(tip):
        plot.mark(tip, report.threshold, "triangle", "orange")
        words = f"tips at {percent(tip)}{_latest(report)}" if tip > 0 else "reached without leakage"
        plot.label(tip, report.threshold, words, below=True)


def _latest(report: AuditReport) -> str:
    """Return that a tipping point is the latest possible one, where only part of the bias shows."""
    return "" if report.settings.refit_strength == "full" else " at the latest"
