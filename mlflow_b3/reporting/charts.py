"""The charts of an audit: its scores, loss curve, sensitivity curves and residual profile."""

from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.cvc_chart import cvc_plots
from mlflow_b3.reporting.loss_chart import plot_losses, plot_measured
from mlflow_b3.reporting.premises import is_mixture
from mlflow_b3.reporting.readable import readable
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sensitivity_chart import plot_no_splits, plot_sensitivity, threshold_words
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.reporting.tables import confidence_note, secant_words
from mlflow_b3.wording import interval_words, loss_words, number, percent

ROW = 42
MEASURED = "measured_curve"


def charts_of(report: AuditReport) -> dict[str, str]:
    """Return the charts of a report as SVG files, by name.

    `scores`, `loss_curve`, `residual`, and both `sensitivity` (over the cluster error) and
    `sensitivity_split` (over the split rate): every audit has a file of each name, because files of
    an older one, of another pattern, cannot be removed from a run and would pass for its own. An audit
    with corrected cross-validation has `cvc` and `cvc_sensitivity` too.
    """
    report = readable(report)
    by_split = report.fragment_sensitivity
    plots = {
        "sensitivity": plot_sensitivity(report, report.sensitivity),
        "sensitivity_split": plot_no_splits()
        if by_split is None
        else plot_sensitivity(report, by_split),
        **plots_of(report),
    }
    return {name: plot.standalone() for name, plot in plots.items() if name != MEASURED}


def plots_of(report: AuditReport) -> dict[str, Plot]:
    """Return the plots of the page of a report whose names are readable.

    For split clusters, whose `loss_curve` is a mixture, the curve as it was measured comes along.
    """
    pattern = report.settings.pattern
    plots = {"scores": _scores(report), "loss_curve": plot_losses(report)}
    if is_mixture(report):
        plots[MEASURED] = plot_measured(report, MEASURED)
    if pattern != "fragments":
        plots["sensitivity"] = plot_sensitivity(report, report.sensitivity)
    if pattern != "rows" and report.fragment_sensitivity is not None:
        plots["sensitivity_split"] = plot_sensitivity(report, report.fragment_sensitivity)
    return {**plots, "residual": _residual(report), **cvc_plots(report)}


def _scores(report: AuditReport) -> Plot:
    word = loss_words(report.settings.loss)
    least = "" if report.settings.refit_strength == "full" else " at least"
    low, high = report.e0_interval
    rows: list[tuple[str, float | None, tuple[float, float | None] | None, str, str]] = [
        ("ignoring clusters (IID)", report.iid, None, "circle", "orange"),
        ("on noisy clusters (LOCO)", report.loco, report.loco_interval, "square", "green"),
        (f"on new clusters (e0){least}", report.e0, (low, high), "diamond", "blue"),
    ]
    if report.e0_secant is not None:
        rows.append((secant_words(report), report.e0_secant, None, "pointer", "blue"))
    texts = [
        f"{name}: {number(value)}"
        + (f" ({interval_words(ends)}{confidence_note(report, ends)})" if ends else "")
        for name, value, ends, _, _ in rows
    ]
    core = [report.iid, report.loco, *report.loco_interval, report.e0, report.e0_secant]
    x = axis_for(core, [low, high], perhaps=report.threshold, label=word)
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
        plot.text(plot.left + 4, plot.top + ROW * place + 16, text, alone=True)
    return plot


def _vertical_threshold(plot: Plot, report: AuditReport) -> None:
    assert report.threshold is not None
    if plot.x.holds(report.threshold):
        plot.upright(report.threshold, threshold_words(report), "edge")
    else:
        side = "→" if report.threshold > plot.x.high else "←"
        plot.text(plot.right, plot.top - 4, f"{threshold_words(report)} {side}", anchor="end")


def _residual(report: AuditReport) -> Plot:
    search = report.search
    first, last = min(search.p0), max(search.p0)
    least = min(search.residual)
    low, high = search.identified
    plot = Plot(
        "residual",
        "How well the loss curve fits each leaked share",
        search.statement,
        x=Axis(
            low=first,
            high=max(last, first + 0.01),
            label="candidate share of leaked training rows (p0)",
            shares=True,
        ),
        y=axis_for([0.0, *search.residual, least + search.noise], label="residual of the fit"),
        height=150,
        legend=3,
    )
    plot.entry("residual of each candidate", "blue", "line")
    plot.entry("up to here no difference beyond the noise", "orange", "dashed")
    plot.entry(f"not excluded by the curve: {percent(low)} to {percent(high)}", "", "shade")
    plot.span(low, high)
    plot.line([(first, least + search.noise), (last, least + search.noise)], "orange", dashed=True)
    plot.line(zip(search.p0, search.residual, strict=True), "blue")
    plot.mark(search.p0_star, least, "diamond", "blue")
    plot.label(search.p0_star, least, f"p0* {percent(search.p0_star)}")
    return plot
