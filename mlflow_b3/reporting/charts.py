"""The charts of an audit: its scores, loss curve, sensitivity curves and residual profile."""

from collections.abc import Sequence

import numpy as np

from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.readable import readable
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.wording import interval_words, loss_words, number, percent

ROW = 42
#: Up to this error a sensitivity curve is always shown in full.
NEAR = 0.2


def charts_of(report: AuditReport) -> dict[str, str]:
    """Return the charts of a report as SVG files, by name.

    `scores`, `loss_curve`, `residual`, and `sensitivity` (over the cluster error) or
    `sensitivity_split` (over the split rate), both where the pattern is not known.
    """
    return {name: plot.standalone() for name, plot in plots_of(readable(report)).items()}


def plots_of(report: AuditReport) -> dict[str, Plot]:
    """Return the plots of a report whose names are readable."""
    pattern = report.settings.pattern
    plots = {"scores": _scores(report), "loss_curve": _loss_curve(report)}
    if pattern != "fragments":
        plots["sensitivity"] = _sensitivity(report, report.sensitivity)
    if pattern != "rows" and report.fragment_sensitivity is not None:
        plots["sensitivity_split"] = _sensitivity(report, report.fragment_sensitivity)
    return {**plots, "residual": _residual(report)}


def threshold_words(report: AuditReport) -> str:
    """Return what the threshold is, with its value."""
    what = "threshold" if report.settings.threshold_given else "best constant answer"
    return f"{what} {number(report.threshold)}"


def _scores(report: AuditReport) -> Plot:
    word = loss_words(report.settings.loss)
    least = "" if report.settings.refit_strength == "full" else " at least"
    low, high = report.e0_interval
    rows: list[tuple[str, float | None, tuple[float, float | None] | None, str, str]] = [
        ("ignoring clusters (IID)", report.iid, None, "circle", "orange"),
        ("on noisy clusters (LOCO)", report.loco, report.loco_interval, "square", "green"),
        (f"on new clusters (e0){least}", report.e0, (low, high), "diamond", "blue"),
    ]
    if report.e0_guaranteed is not None:
        rows.append(("e0 is at least, up to noise", report.e0_guaranteed, None, "pointer", "blue"))
    texts = [
        f"{name}: {number(value)}" + (f" ({interval_words(ends)})" if ends else "")
        for name, value, ends, _, _ in rows
    ]
    core = [report.iid, report.loco, *report.loco_interval, report.e0, report.e0_guaranteed]
    x = axis_for(core, [low, high, report.threshold], label=word)
    plot = Plot(
        "scores",
        f"The scores of this audit: {word}",
        "; ".join(texts) + ("." if report.threshold is None else f"; {threshold_words(report)}."),
        x=x,
        y=Axis(low=0, high=len(rows)),
        height=ROW * len(rows),
        y_axis=False,
    )
    if report.threshold is not None:
        _vertical_threshold(plot, report)
    for place, (text, (_, value, ends, shape, kind)) in enumerate(zip(texts, rows, strict=True)):
        y = len(rows) - place - 0.68
        if ends is not None:
            plot.interval(y, *ends, kind)
        if value is not None:
            plot.mark(value, y, shape, kind)
        plot.text(plot.left + 4, plot.top + ROW * place + 16, text)
    return plot


def _vertical_threshold(plot: Plot, report: AuditReport) -> None:
    assert report.threshold is not None
    if plot.x.holds(report.threshold):
        plot.upright(report.threshold, threshold_words(report), "edge")
    else:
        side = "→" if report.threshold > plot.x.high else "←"
        plot.text(plot.right, plot.top - 4, f"{threshold_words(report)} {side}", anchor="end")


def _loss_curve(report: AuditReport) -> Plot:
    if report.settings.pattern == "fragments" and report.fragments and report.e0 is not None:
        return _mixture(report, report.e0)
    curve, path = report.curve, report.path
    errors = [1.96 * error for error in curve.stderr or [0.0] * len(curve.loss)]
    measured = list(zip(curve.exposure, curve.loss, strict=True))
    unmixed = (
        [] if path is None else list(zip(path.measured_exposure, path.measured_loss, strict=True))
    )
    separate = bool(unmixed) and not np.allclose(unmixed, measured)
    lengths = [] if path is None else [*path.loss, *path.low, *path.high]
    word = loss_words(report.settings.loss)
    axis = axis_for(
        [*curve.loss, report.e0, *(y for _, y in unmixed)], lengths, label=word, reach=2.0
    )
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
        "loss_curve",
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
    plot.entry(
        "measured on the validation rows, with 95 % of the noise of refits", "green", "square"
    )
    if separate:
        plot.entry("the same, without the rows that belong to training clusters", "blue", "circle")
    for (x, y), error in zip(measured, errors, strict=True):
        plot.error_bar(x, y - error, y + error, "green")
        plot.mark(x, y, "square", "green")
    plot.line(measured, "green")
    if separate:
        plot.line(unmixed, "blue")
        for x, y in unmixed:
            plot.mark(x, y, "circle", "blue")
    if path is not None:
        plot.entry("extrapolated to the point without leakage (e0)", "blue", "dashed")
        plot.entry("its 95 % interval, for the middle of what is known", "blue", "area")
        plot.band(path.exposure, path.low, path.high, "blue")
        plot.line(zip(path.exposure, path.loss, strict=True), "blue", dashed=True)
        plot.mark(path.exposure[0], path.loss[0], "diamond", "blue")
        plot.label(path.exposure[0], path.loss[0], f"e0 {number(path.loss[0])}")
    return plot


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
        f"The {word} by the ids as they are, {number(report.loco)}, is a mixture of "
        f"{percent(share)} rows whose true cluster also has rows in training and others that are "
        f"new. On the first it is {number(losses.seen_loss)} as measured by breaking clusters on "
        f"purpose; so it is {number(e0)} on the new ones.",
        x=Axis(
            low=-0.04,
            high=1.04,
            label="validation rows whose true cluster has rows in training",
            shares=True,
        ),
        y=axis,
        legend=3,
    )
    plot.entry("on the folds as they are (LOCO), with its 95 % interval", "green", "square")
    plot.entry("measured on clusters that were broken on purpose", "orange", "circle")
    plot.entry("solved for rows of new clusters (e0), with its 95 % interval", "blue", "diamond")
    plot.line([(0.0, e0), (1.0, end)], "edge", dashed=True)
    plot.error_bar(share, *report.loco_interval, "green")
    plot.mark(share, report.loco, "square", "green")
    plot.error_bar(1.0, losses.seen_loss - error, losses.seen_loss + error, "orange")
    plot.mark(1.0, losses.seen_loss, "circle", "orange")
    plot.error_bar(0.0, low, axis.high * 2 if high is None else high, "blue")
    plot.mark(0.0, e0, "diamond", "blue")
    plot.label(0.0, e0, f"e0 {number(e0)}")
    return plot


def claimed_errors(report: AuditReport, curve: Sensitivity) -> tuple[float, float, float] | None:
    """Return what is known of the leakage as (low, middle, high) on the axis of a curve.

    None where nothing is known, or it belongs to the other pattern.
    """
    settings = report.settings
    if settings.claim is None or settings.pattern != curve.pattern or curve.error is None:
        return None
    values = [settings.claim[0], settings.middle, settings.claim[1]]
    if report.p0_source not in ("cluster_error", "split_rate", "match_column"):
        values = np.interp(values, curve.p0, curve.error).tolist()
    low, middle, high = values
    return low, middle, high


def _sensitivity(report: AuditReport, curve: Sensitivity) -> Plot:
    rows = curve.pattern == "rows"
    full = report.settings.refit_strength == "full"
    error = curve.error or curve.p0
    near = [e0 for at, e0 in zip(error, curve.e0, strict=True) if at <= NEAR]
    known = [report.e0, *report.e0_interval] if report.e0 is not None else []
    axis = axis_for(
        [report.loco, *report.loco_interval, *near, *known],
        [*curve.e0, *(curve.high if full else ()), *curve.low, report.threshold],
        label=f"{loss_words(report.settings.loss)} on new clusters (e0)",
        reach=2.0,
    )
    claimed = claimed_errors(report, curve)
    tip = report.tipping_cluster_error if rows else report.tipping_split_rate
    unit = "cluster error" if rows else "split rate"
    description = (
        f"e0 rises from {number(curve.e0[0])} at a {unit} of {percent(error[0])} to "
        f"{number(curve.e0[-1])} at {percent(error[-1])}."
    )
    if tip is not None:
        description += f" It reaches the {threshold_words(report)} at {percent(tip)}."
    plot = Plot(
        "sensitivity" if rows else "sensitivity_split",
        f"What each {unit} would mean",
        description,
        x=Axis(
            low=error[0],
            high=max(error[-1], error[0] + 0.01),
            label="rows with a wrong id (cluster error)"
            if rows
            else "rows of split clusters (split rate)",
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
        _claim(plot, report, claimed, error)
    plot.line(zip(error, curve.e0, strict=True), "blue")
    if report.threshold is not None:
        _threshold(plot, report, tip)
    return plot


def _claim(
    plot: Plot, report: AuditReport, claimed: tuple[float, float, float], error: Sequence[float]
) -> None:
    low, middle, high = claimed
    beyond = " or more" if high >= error[-1] else ""
    taken = percent(low) if low == high else f"{percent(low)} to {percent(high)}{beyond}"
    plot.span(low, high)
    plot.entry(f"what this audit takes as known: {taken}", "", "shade")
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
        plot.label(tip, report.threshold, f"tips at {percent(tip)}", above=False)


def _residual(report: AuditReport) -> Plot:
    search = report.search
    least = min(search.residual)
    low, high = search.identified
    plot = Plot(
        "residual",
        "How well the loss curve fits each leaked share",
        search.statement,
        x=Axis(
            low=min(search.p0),
            high=max(*search.p0, min(search.p0) + 0.01),
            label="candidate share of leaked training rows (p0)",
            shares=True,
        ),
        y=axis_for([0.0, *search.residual, least + search.noise], label="residual of the fit"),
        height=150,
        legend=3,
    )
    plot.entry("residual for each candidate; a smaller one fits better", "blue", "line")
    plot.entry("differences that noise alone would make", "orange", "area")
    ends = f"{percent(low)} to {percent(high)}"
    plot.entry(f"not excluded by the curve: {ends}", "", "shade")
    plot.span(low, high)
    ends_x = [min(search.p0), max(search.p0)]
    plot.band(ends_x, [least, least], [least + search.noise] * 2, "orange")
    plot.line(zip(search.p0, search.residual, strict=True), "blue")
    plot.mark(search.p0_star, least, "diamond", "blue")
    plot.label(search.p0_star, least, f"p0* {percent(search.p0_star)}", above=False)
    return plot
