"""The chart of the loss curve: what was measured, and how e0 follows from it."""

import numpy as np

from mlflow_b3.estimation.path import ExtrapolationPath
from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.premises import confidence_of, folds_words, is_mixture
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.wording import loss_words, number, percent


def plot_losses(report: AuditReport) -> Plot:
    """Draw the loss curve with its extrapolation, or the mixture of seen and new rows."""
    if is_mixture(report):
        return _mixture(report, report.e0 or 0.0)
    return plot_measured(report, "loss_curve")


def plot_measured(report: AuditReport, name: str) -> Plot:
    """Draw the loss curve as it was measured, with its extrapolation where there is one."""
    curve, path = report.curve, report.path
    errors = [1.96 * error for error in curve.stderr or [0.0] * len(curve.loss)]
    measured = list(zip(curve.exposure, curve.loss, strict=True))
    unmixed = (
        [] if path is None else list(zip(path.measured_exposure, path.measured_loss, strict=True))
    )
    separate = bool(unmixed) and not np.allclose(unmixed, measured)
    full = report.settings.refit_strength == "full"
    ends = [y + side * e for (_, y), e in zip(measured, errors, strict=True) for side in (-1, 1)]
    ends += [] if path is None else [*path.loss, *path.low, *(path.high if full else ())]
    word = loss_words(report.settings.loss)
    shown = [*curve.loss, *(y for _, y in unmixed), None if path is None else report.e0]
    axis = axis_for(shown, ends, label=word, reach=6.0)
    most = max(curve.exposure)
    first = min([0.0, *(path.exposure if path else ())])
    margin = 0.04 * max(most - first, 0.1)
    first_loss, last_loss = number(curve.loss[0]), number(curve.loss[-1])
    description = (
        f"The {word} goes from {first_loss} on the folds as they are to {last_loss} with "
        f"{percent(most)} of the validation rows in training."
    )
    if path is not None:
        description += f" Extrapolated to no leakage it is {number(path.loss[0])}."
    plot = Plot(
        name,
        "The measured loss curve" + (" and its extrapolation" if path else ""),
        description,
        x=Axis(
            low=first - margin,
            high=most + margin,
            label="validation rows put into training",
            shares=True,
        ),
        y=axis,
        legend=1 + separate + 2 * (path is not None),
    )
    plot.entry("measured, with the 95 % noise of the refits", "green", "square")
    if separate:
        plot.entry("the same without rows of training clusters", "blue", "circle")
    for (x, y), error in zip(measured, errors, strict=True):
        plot.error_bar(x, y - error, y + error, "green")
        plot.mark(x, y, "square", "green")
    plot.line(measured, "green")
    if separate:
        plot.line(unmixed, "blue")
        for x, y in unmixed:
            plot.mark(x, y, "circle", "blue")
    if path is not None:
        _extrapolation(plot, path, full=full)
    return plot


def _extrapolation(plot: Plot, path: ExtrapolationPath, *, full: bool) -> None:
    plot.entry("extrapolated to no leakage (e0)", "blue", "dashed")
    if full:
        plot.entry("95 % interval of the extrapolation", "blue", "area")
        plot.band(path.exposure, path.low, path.high, "blue")
    else:
        plot.entry("e0 is at least this with 95 % confidence", "orange", "dashed")
        plot.line(zip(path.exposure, path.low, strict=True), "orange", dashed=True)
    plot.line(zip(path.exposure, path.loss, strict=True), "blue", dashed=True)
    plot.mark(path.exposure[0], path.loss[0], "diamond", "blue")
    least = "" if full else "at least "
    plot.label(path.exposure[0], path.loss[0], f"e0 {least}{number(path.loss[0])}")


def _mixture(report: AuditReport, e0: float) -> Plot:
    """Draw LOCO = (1-s)·e_0 + s·e_seen, the line that replaces the extrapolation for fragments."""
    losses, share = report.fragments, report.p0 or 0.0
    assert losses is not None
    word = loss_words(report.settings.loss)
    low, high = report.e0_interval
    end = e0 + (report.loco - e0) / share if share > 0 else losses.seen_loss
    error = 1.96 * losses.seen_stderr
    axis = axis_for(
        [report.loco, e0, losses.seen_loss, end],
        [*report.loco_interval, low, high, losses.seen_loss - error, losses.seen_loss + error],
        label=word,
        reach=2.0,
    )
    plot = Plot(
        "loss_curve",
        "Rows that were seen and rows that were not: a mixture",
        f"The {word} {folds_words(report)}, {number(report.loco)}, is a mixture of "
        f"{percent(share)} rows whose true cluster also has rows in training and others that are "
        f"new. On the first it is {number(losses.seen_loss)} as measured by breaking clusters on "
        f"purpose; so it is {number(e0)} on the new ones.",
        x=Axis(
            low=-0.04,
            high=1.04,
            label="validation rows with true mates in training (s)",
            shares=True,
        ),
        y=axis,
        legend=3,
    )
    plot.entry("on the folds as they are (LOCO), 95 % interval", "green", "square")
    plot.entry("measured on clusters broken on purpose", "orange", "circle")
    plot.entry(f"solved for new clusters (e0), {confidence_of(report)} interval", "blue", "diamond")
    plot.line([(0.0, e0), (1.0, end)], "edge", dashed=True)
    plot.error_bar(share, *report.loco_interval, "green")
    plot.mark(share, report.loco, "square", "green")
    plot.error_bar(1.0, losses.seen_loss - error, losses.seen_loss + error, "orange")
    plot.mark(1.0, losses.seen_loss, "circle", "orange")
    plot.error_bar(0.0, low, high, "blue")
    plot.mark(0.0, e0, "diamond", "blue")
    plot.label(0.0, e0, f"e0 {number(e0)}")
    return plot
