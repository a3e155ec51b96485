"""The charts of an audit and of corrected cross-validation: what they show, drawn on axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mlflow_b3.auditing.report import DOSE, AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.dose import DoseCurve, DoseSolution
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity
from mlflow_b3.reporting.cvc_sentences import multiples_caption, scores_caption
from mlflow_b3.reporting.document import Figure
from mlflow_b3.reporting.doses import TITLE as DOSES_TITLE
from mlflow_b3.reporting.doses import dose_caption, dose_sentence
from mlflow_b3.reporting.drawing import (
    BLUE,
    EDGE,
    GREEN,
    ORANGE,
    ROOM_BELOW,
    Axis,
    axis_for,
    band,
    draw_side_by_side,
    finite,
    legend,
    line,
    mark,
    set_axes,
    shade,
    spread,
    write,
    write_above,
    write_in_corner,
    write_in_row,
)
from mlflow_b3.reporting.phrases import (
    claimed_errors,
    confidence_of,
    folds_words,
    is_mixture,
    new_clusters,
    rate_of,
    readable,
    sensible_number,
)
from mlflow_b3.reporting.sentences import (
    curve_caption,
    measured_caption,
    score_caption,
    sensitivity_caption,
)
from mlflow_b3.reporting.tables import (
    GROUPED,
    Score,
    confidence_note,
    cvc_score_table,
    cvc_scores,
    dose_table,
    score_table,
    score_value,
    secant_words,
)
from mlflow_b3.results import interval_words, loss_words, number, percent

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# --- All charts of an audit, by the names of their files

MEASURED, CVC_SCORES, CVC_MULTIPLES = "measured_curve", "cvc", "cvc_sensitivity"


def charts_of(report: AuditReport, drawn: Mapping[str, Figure] | None = None) -> dict[str, str]:
    """Return the charts of a report as SVG files, by name.

    `scores`, `loss_curve`, `residual`, and both `sensitivity` (over the cluster error) and
    `sensitivity_split` (over the split rate). An audit by doses has `dose` too, and one with corrected
    cross-validation `cvc` and `cvc_sensitivity`.

    Parameters
    ----------
    report : AuditReport
    drawn : mapping of str to Figure, optional
        Figures of the report's page, which are not drawn again.
    """
    report = readable(report)
    by_split = report.fragment_sensitivity
    figures = {
        "loss_curve": loss_figure(report),
        "sensitivity": sensitivity_figure(report, report.sensitivity),
        "sensitivity_split": no_splits_figure()
        if by_split is None
        else sensitivity_figure(report, by_split),
        "residual": residual_figure(report),
        **figures_of(report),
        **(drawn or {}),
    }
    return {
        name: figure.svg(standalone=True) for name, figure in figures.items() if name != MEASURED
    }


def figures_of(report: AuditReport) -> dict[str, Figure]:
    """Return the figures of the page of a report whose names are readable.

    Where losses were measured by dose, these take the place of the loss curve, which follows from
    them. For split clusters, whose `loss_curve` is a mixture, the curve as it was measured comes along.
    """
    pattern, doses = report.claim.pattern, report.conclusion.dose
    figures = [scores_figure(report)]
    figures.append(loss_figure(report) if doses is None else dose_figure(report, doses))
    if is_mixture(report):
        figures.append(measured_figure(report, MEASURED))
    if pattern != "fragments":
        figures.append(sensitivity_figure(report, report.sensitivity))
    if pattern != "rows" and report.fragment_sensitivity is not None:
        figures.append(sensitivity_figure(report, report.fragment_sensitivity))
    if not report.search.flat:
        figures.append(residual_figure(report))
    if report.cvc is not None:
        figures += [cvc_figure(report.cvc, e0_score(report)), multiples_figure(report.cvc)]
    return {figure.name: figure for figure in figures}


# --- Charts on a user's axes

#: What a user may ask for, and the name of its figure.
KINDS = ("scores", "dose", "sensitivity", "loss")


def plot_report(
    report: AuditReport, kind: str | None = None, ax: "Axes | None" = None
) -> "Axes | list[Axes]":
    """Draw one chart of a report on axes, or those of its page side by side."""
    report = readable(report)
    if kind is not None:
        (drawn,) = draw_side_by_side([_figure_of(report, choose("kind", kind, KINDS))], ax)
        return drawn
    if ax is not None:
        raise InputError(f"ax was given without kind; choose one of {', '.join(KINDS)}.")
    page = figures_of(report)
    return draw_side_by_side([page[name] for name in PAGE_FIGURES if name in page])


PAGE_FIGURES = ("scores", DOSE, "loss_curve", "sensitivity", "sensitivity_split")


def _figure_of(report: AuditReport, kind: str) -> Figure:
    doses = report.conclusion.dose
    if kind == "scores":
        return scores_figure(report)
    if kind == "loss":
        return loss_figure(report)
    if kind == "sensitivity":
        by_split = report.fragment_sensitivity if report.claim.pattern == "fragments" else None
        return sensitivity_figure(report, by_split or report.sensitivity)
    if doses is None:
        raise InputError(
            f"kind='dose': this audit, by the method {report.plan.method!r}, has no losses by dose; "
            "choose 'loss'."
        )
    return dose_figure(report, doses)


# --- Scores, one below the other on one axis

ROW = 42
#: Doses up to which every point of a curve has a mark.
MOST_MARKS = 20


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """A score that is drawn with its interval below its words."""

    text: str
    value: float | None
    interval: tuple[float, float | None] | None
    shape: str
    colour: str


def draw_score_rows(ax: "Axes", rows: Sequence[ScoreRow], x: Axis) -> None:
    """Draw scores below each other, each below its words."""
    set_axes(ax, x)
    ax.set_ylim(0, len(rows))
    for place, row in enumerate(rows):
        top = len(rows) - place
        if row.interval is not None:
            spread(ax, top - 0.72, *row.interval, row.colour)
        mark(ax, row.value, top - 0.72, row.shape, row.colour)
    for place, row in enumerate(rows):
        write_in_row(ax, len(rows) - place - 0.28, row.text)


def scores_figure(report: AuditReport) -> Figure:
    """Return the scores of an audit with their intervals, compared with the threshold."""
    texts = [row.text for row in _score_rows(report)]
    limit = [] if report.threshold is None else [threshold_words(report)]
    return Figure(
        name="scores",
        title=f"The scores of this audit: {loss_words(report.subject.loss)}",
        alt="; ".join([*texts, *limit]) + ".",
        caption=score_caption(report),
        draw=partial(draw_scores, report=report),
        height=ROW * len(texts),
        data=score_table(report),
    )


def draw_scores(ax: "Axes", report: AuditReport) -> None:
    """Draw the scores of an audit on one axis, with the threshold."""
    core = [report.iid, report.loco, *report.loco_interval, report.e0, report.e0_secant]
    word = loss_words(report.subject.loss)
    x = axis_for(core, report.e0_interval, perhaps=report.threshold, label=word)
    if report.threshold is not None:
        words = threshold_words(report)
        if x.low <= report.threshold <= x.high:
            ax.axvline(report.threshold, color=EDGE, linestyle=(0, (3, 2)))
            write_above(ax, (report.threshold - x.low) / (x.high - x.low), words)
        else:
            write_above(ax, 1.0, f"{words} {'→' if report.threshold > x.high else '←'}")
    draw_score_rows(ax, _score_rows(report), x)


def _score_rows(report: AuditReport) -> list[ScoreRow]:
    least = "" if report.refit.is_full else " at least"
    folds = folds_words(report).removesuffix(" alone")
    rows: list[tuple[str, float | None, tuple[float, float | None] | None, str, str]] = [
        ("reported (IID)", report.iid, None, "o", ORANGE),
        (f"{folds} (LOCO)", report.loco, report.loco_interval, "s", GREEN),
        (f"on {new_clusters(report)} (e0){least}", report.e0, report.e0_interval, "D", BLUE),
    ]
    if report.e0_secant is not None:
        rows.append((secant_words(report), report.e0_secant, None, ">", BLUE))
    return [
        ScoreRow(
            text=f"{name}: {number(value)}"
            + (f" ({interval_words(ends)}{confidence_note(report, ends)})" if ends else ""),
            value=value,
            interval=ends,
            shape=shape,
            colour=colour,
        )
        for name, value, ends, shape, colour in rows
    ]


def threshold_words(report: AuditReport) -> str:
    """Return what the threshold is, with its value."""
    what = "threshold" if report.plan.threshold_given else "constant guess"
    return f"{what} {number(report.threshold)}"


# --- The loss by dose: rows of the same cluster in training

DOSE_LABEL = "other rows of the same cluster in training"


def dose_figure(report: AuditReport, found: DoseSolution) -> Figure:
    """Return the loss by how many rows of its own cluster a row has in training."""
    return Figure(
        name=DOSE,
        title=DOSES_TITLE,
        alt=f"The {loss_words(report.subject.loss)} goes from {number(found.curve.loss[0])} with no other "
        f"row of the same cluster in training to {number(found.curve.loss[-1])} with "
        f"{found.curve.d[-1]}. {dose_sentence(report, found.curve)}",
        caption=dose_caption(report, found),
        draw=partial(draw_doses, report=report, curve=found.curve),
        data=dose_table(report, found.curve),
    )


def draw_doses(ax: "Axes", report: AuditReport, curve: DoseCurve) -> None:
    """Draw the loss by dose with its interval, e0 at 0, and the score by the ids."""
    full, e0, last = report.refit.is_full, report.e0, max(curve.d[-1], 1)
    ends: list[float | None] = [*curve.low, *(curve.high if full else ())]
    ends += () if e0 is None else report.e0_interval
    set_axes(
        ax,
        Axis(low=-0.04 * last, high=1.04 * last, label=DOSE_LABEL, whole=True),
        axis_for(
            [*curve.loss, report.loco, *report.loco_interval, e0],
            ends,
            label=loss_words(report.subject.loss),
            reach=2.0 if report.subject.loss_bound is None else 8.0,
        ),
    )
    if full:
        limit = band(ax, curve.d, curve.low, curve.high, GREEN, label="its 95% interval")
    else:
        label = "and at least this with 95% confidence"
        limit = line(ax, curve.d, curve.low, GREEN, dashed=True, label=label)
    what = loss_words(report.subject.loss)
    label = f"{what} by how many there are" if full else "the loss is at least about this"
    entries: list[Artist] = [line(ax, curve.d, curve.loss, GREEN, label=label), limit]
    if last <= MOST_MARKS:
        for d, loss in zip(curve.d[1:], curve.loss[1:], strict=True):
            mark(ax, d, loss, "s", GREEN)
    label = f"score by the ids (LOCO): {number(report.loco)}"
    entries.append(line(ax, [0, last], [report.loco] * 2, EDGE, dashed=True, label=label))
    if e0 is not None:
        spread(ax, 0.0, *report.e0_interval, BLUE, upright=True)
        label = f"with none: new clusters (e0), {confidence_of(report)} interval"
        entries.append(mark(ax, 0.0, e0, "D", BLUE, label=label))
        write(ax, 0.0, e0, f"e0 {'' if full else 'at least '}{number(e0)}")
    else:
        mark(ax, 0.0, curve.loss[0], "s", GREEN)
    legend(ax, entries)


# --- The loss curve: what was measured, and how e0 follows from it


def loss_figure(report: AuditReport) -> Figure:
    """Return the loss curve with its extrapolation, or the mixture of seen and new rows."""
    if not is_mixture(report):
        return measured_figure(report, "loss_curve")
    assert report.fragments is not None
    word = loss_words(report.subject.loss)
    return Figure(
        name="loss_curve",
        title="Rows that were seen and rows that were not: a mixture",
        alt=f"The {word} {folds_words(report)}, {number(report.loco)}, is a mixture of "
        f"{percent(report.p0 or 0.0)} rows whose true cluster also has rows in training and others "
        f"that are new. On the former, it is {number(report.fragments.seen_loss)} as measured by "
        f"breaking clusters on purpose, so it is {number(report.e0)} on the new ones.",
        caption=curve_caption(report),
        draw=partial(draw_mixture, report=report),
    )


def measured_figure(report: AuditReport, name: str) -> Figure:
    """Return the loss curve as it was measured, with its extrapolation where there is one."""
    curve, path = report.curve, report.path
    alt = (
        f"The {loss_words(report.subject.loss)} goes from {number(curve.loss[0])} on the folds as "
        f"they are to {number(curve.loss[-1])} with {percent(max(curve.exposure))} of the validation "
        "rows in training."
    )
    if path is not None:
        alt += f" Extrapolated to no leakage, it is {number(path.loss[0])}."
    title = "The measured loss curve" + (" and its extrapolation" if path else "")
    return Figure(
        name=name,
        title=title
        if report.dose is None
        else "The loss curve that follows from the losses by dose",
        alt=alt,
        caption=measured_caption(report) if name == MEASURED else curve_caption(report),
        draw=partial(draw_measured, report=report),
    )


def draw_measured(ax: "Axes", report: AuditReport) -> None:
    """Draw the loss curve as it was measured, with its extrapolation where there is one."""
    curve, path = report.curve, report.path
    errors = [1.96 * error for error in curve.stderr or [0.0] * len(curve.loss)]
    unmixed = (
        [] if path is None else list(zip(path.measured_exposure, path.measured_loss, strict=True))
    )
    measured = list(zip(curve.exposure, curve.loss, strict=True))
    full = report.refit.is_full
    ends = [y + side * e for (_, y), e in zip(measured, errors, strict=True) for side in (-1, 1)]
    ends += [] if path is None else [*path.loss, *path.low, *(path.high if full else ())]
    values = [*curve.loss, *(y for _, y in unmixed), None if path is None else report.e0]
    most = max(curve.exposure)
    first = min([0.0, *(path.exposure if path else ())])
    margin = 0.04 * max(most - first, 0.1)
    label = "validation rows put into training"
    set_axes(
        ax,
        Axis(low=first - margin, high=most + margin, label=label, shares=True),
        axis_for(values, ends, label=loss_words(report.subject.loss), reach=6.0),
    )
    entries: list[Artist] = []
    source = "measured" if report.dose is None else "from the losses by dose"
    for (x, y), error in zip(measured, errors, strict=True):
        spread(ax, x, y - error, y + error, GREEN, upright=True)
        label = f"{source}, with the 95% noise"
        entries[:1] = [mark(ax, x, y, "s", GREEN, label=label)]
    line(ax, curve.exposure, curve.loss, GREEN)
    if path is not None and not np.allclose(unmixed, measured):
        line(ax, path.measured_exposure, path.measured_loss, BLUE)
        for x, y in unmixed:
            label = "the same without rows of training clusters"
            entries[1:2] = [mark(ax, x, y, "o", BLUE, label=label)]
    if path is not None:
        entries += _draw_extrapolation(ax, path, full=full)
    legend(ax, entries)


def _draw_extrapolation(ax: "Axes", path: ExtrapolationPath, *, full: bool) -> "list[Artist]":
    if full:
        label = "95% interval of the extrapolation"
        limit = band(ax, path.exposure, path.low, path.high, BLUE, label=label)
    else:
        label = "e0 is at least this with 95% confidence"
        limit = line(ax, path.exposure, path.low, ORANGE, dashed=True, label=label)
    label = "extrapolated to no leakage (e0)"
    drawn = line(ax, path.exposure, path.loss, BLUE, dashed=True, label=label)
    mark(ax, path.exposure[0], path.loss[0], "D", BLUE)
    least = "" if full else "at least "
    write(ax, path.exposure[0], path.loss[0], f"e0 {least}{number(path.loss[0])}")
    return [drawn, limit]


def draw_mixture(ax: "Axes", report: AuditReport) -> None:
    """Draw LOCO = (1-s)·e_0 + s·e_seen, the line that replaces the extrapolation for fragments."""
    losses, share, e0 = report.fragments, report.p0 or 0.0, report.e0 or 0.0
    assert losses is not None
    seen, error = losses.seen_loss, 1.96 * losses.seen_stderr
    end = e0 + (report.loco - e0) / share if share > 0 else seen
    ends = [*report.loco_interval, *report.e0_interval, seen - error, seen + error]
    label = "validation rows with true mates in training (s)"
    word = loss_words(report.subject.loss)
    set_axes(
        ax,
        Axis(low=-0.04, high=1.04, label=label, shares=True),
        axis_for([report.loco, e0, seen, end], ends, label=word, reach=2.0),
    )
    line(ax, [0.0, 1.0], [e0, end], EDGE, dashed=True)
    spread(ax, share, *report.loco_interval, GREEN, upright=True)
    spread(ax, 1.0, seen - error, seen + error, ORANGE, upright=True)
    spread(ax, 0.0, *report.e0_interval, BLUE, upright=True)
    loco = "on the folds as they are (LOCO), 95% interval"
    broken = "measured on clusters broken on purpose"
    solved = f"solved for new clusters (e0), {confidence_of(report)} interval"
    legend(
        ax,
        [
            mark(ax, share, report.loco, "s", GREEN, label=loco),
            mark(ax, 1.0, seen, "o", ORANGE, label=broken),
            mark(ax, 0.0, e0, "D", BLUE, label=solved),
        ],
    )
    write(ax, 0.0, e0, f"e0 {number(e0)}")


# --- A sensitivity curve: what each rate of wrong ids would mean

#: Up to this error a sensitivity curve is always shown in full.
NEAR = 0.2
#: What the horizontal axis counts, by what it is called.
LABELS = {
    "cluster error": "rows with a wrong id (cluster error)",
    "split rate": "rows of split clusters (split rate)",
    "leaked share p0": "training rows of validation clusters (p0)",
}


def sensitivity_figure(report: AuditReport, curve: Sensitivity) -> Figure:
    """Return a sensitivity curve with the threshold, the tipping point and what is known."""
    rows = curve.pattern == "rows"
    error = curve.error or curve.p0
    unit, tip = rate_of(report, split=not rows), _tipping(report, curve)
    alt = (
        f"e0 goes from {number(curve.e0[0])} at a {unit} of {percent(error[0])} to "
        f"{sensible_number(report, curve.e0[-1])} at {percent(error[-1])}."
    )
    if tip is not None:
        alt += f" It reaches the {threshold_words(report)} at {percent(tip)}{_latest(report)}."
    return Figure(
        name="sensitivity" if rows else "sensitivity_split",
        title=f"What each {unit} would mean",
        alt=alt,
        caption=sensitivity_caption(report, split=not rows),
        draw=partial(draw_sensitivity, report=report, curve=curve),
    )


def draw_sensitivity(ax: "Axes", report: AuditReport, curve: Sensitivity) -> None:
    """Draw a sensitivity curve with the threshold, the tipping point and what is known."""
    full = report.refit.is_full
    error = curve.error or curve.p0
    near = [e0 for at, e0 in zip(error, curve.e0, strict=True) if at <= NEAR]
    known = [report.e0, *report.e0_interval] if report.e0 is not None else []
    label = LABELS[rate_of(report, split=curve.pattern != "rows")]
    set_axes(
        ax,
        Axis(low=error[0], high=max(error[-1], error[0] + 0.01), label=label, shares=True),
        axis_for(
            [report.loco, *report.loco_interval, *near, *known],
            [*curve.e0, *(curve.high if full else ()), *curve.low],
            perhaps=report.threshold,
            label=f"{loss_words(report.subject.loss)} on new clusters (e0)",
            reach=2.0 if report.subject.loss_bound is None else 8.0,
        ),
    )
    if full:
        limit = band(ax, error, curve.low, curve.high, BLUE, label="its 95% interval")
    else:
        label = "and at least this with 95% confidence"
        limit = line(ax, error, curve.low, BLUE, dashed=True, label=label)
    claimed = claimed_errors(report, curve)
    taken = [] if claimed is None else [_draw_claim(ax, report, claimed)]
    label = "estimate of e0" if full else "e0 is at least about this"
    legend(ax, [line(ax, error, curve.e0, BLUE, label=label), limit, *taken])
    if report.threshold is not None:
        _draw_threshold(ax, report, report.threshold, _tipping(report, curve))


def _tipping(report: AuditReport, curve: Sensitivity) -> float | None:
    """Return where a curve reaches the threshold, on its own axis."""
    return {
        "cluster error": report.tipping_cluster_error,
        "split rate": report.tipping_split_rate,
    }.get(rate_of(report, split=curve.pattern != "rows"), report.tipping_p0)


def _draw_claim(ax: "Axes", report: AuditReport, claimed: tuple[float, float, float]) -> "Artist":
    low, middle, high = claimed
    taken = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    if high > 1:  # more rows were seen than could be if all clusters were split in two
        taken = f"{percent(low)} or more" if low < 1 else "more than 100%"
    beyond = " (beyond this axis)" if high > ax.get_xlim()[1] else ""
    ends = report.e0_interval
    if report.e0 is not None and ends[1] is not None:
        spread(ax, middle, *ends, BLUE, upright=True)
    if report.e0 is not None:
        mark(ax, middle, report.e0, "D", BLUE)
    return shade(ax, low, high, label=f"taken as known: {taken}{beyond}")


def _draw_threshold(ax: "Axes", report: AuditReport, value: float, tip: float | None) -> None:
    words, (low, high) = threshold_words(report), ax.get_ylim()
    if not low <= value <= high:
        above = value > high
        write_in_corner(ax, f"{words} {'↑' if above else '↓'}", top=above)
        return
    ends = ax.get_xlim()
    line(ax, ends, [value, value], ORANGE, dashed=True)
    if tip is None or not ends[0] <= tip <= ends[1]:
        write(ax, ends[1], value, words)
        return
    mark(ax, tip, value, "^", ORANGE)
    told = f"tips at {percent(tip)}{_latest(report)}"
    if tip > 0 and value - low > ROOM_BELOW * (high - low):
        write(ax, ends[1], value, words)
        write(ax, tip, value, told, below=True)
    elif tip > 0:  # above the line it could hide e0
        write(ax, ends[1], value, f"{words}, {told}")
    else:  # both at the same height would overlap
        write(ax, ends[1], value, f"{words}: reached without leakage")


def _latest(report: AuditReport) -> str:
    """Return that a tipping point is the latest possible one, if only part of the bias shows."""
    return "" if report.refit.is_full else " at the latest"


def no_splits_figure() -> Figure:
    """Return a figure that says why there is no curve over the split rate."""
    return _empty_figure(
        "sensitivity_split",
        "What each split rate would mean",
        "No cluster has two rows, so none can be split.",
        Axis(low=0.0, high=0.5, label=LABELS["split rate"], shares=True),
    )


def _empty_figure(name: str, title: str, words: str, x: Axis) -> Figure:
    def draw(ax: "Axes") -> None:
        set_axes(ax, x)
        write_in_row(ax, 0.5, words)

    return Figure(name=name, title=title, alt=words, caption="", draw=draw, height=60)


# --- The residual profile: which leaked shares the loss curve excludes


def residual_figure(report: AuditReport) -> Figure:
    """Return how well the loss curve fits each leaked share."""
    return Figure(
        name="residual",
        title="How well the loss curve fits each leaked share",
        alt=report.search.statement,
        caption=report.search.statement,
        draw=partial(draw_residual, report=report),
        height=150,
    )


def draw_residual(ax: "Axes", report: AuditReport) -> None:
    """Draw how well the loss curve fits each leaked share, and which shares remain possible."""
    search = report.search
    first, last, least = min(search.p0), max(search.p0), min(search.residual)
    label = "candidate share of leaked training rows (p0)"
    set_axes(
        ax,
        Axis(low=first, high=max(last, first + 0.01), label=label, shares=True),
        axis_for([0.0, *search.residual, least + search.noise], label="residual of the fit"),
    )
    low, high = search.identified
    open_ = f"not excluded by the curve: {percent(low)} to {percent(high)}"
    level = [least + search.noise] * 2
    noise = "below this line, differences are within the noise"
    legend(
        ax,
        [
            line(ax, search.p0, search.residual, BLUE, label="residual of each candidate"),
            line(ax, [first, last], level, ORANGE, dashed=True, label=noise),
            shade(ax, low, high, label=open_),
        ],
    )
    mark(ax, search.p0_star, least, "D", BLUE)
    write(ax, search.p0_star, least, f"p0* {percent(search.p0_star)}")


# --- Corrected cross-validation: its scores, and what other variances would mean

SCORE_MARKS = (("o", ORANGE), ("^", BLUE), ("s", GREEN))
MULTIPLES = "CV_c if groups differed less or more than was found"
TIMES = "multiple of the standard deviations that were found"


def e0_score(report: AuditReport) -> Score:
    """Return the audit's loss on new clusters, to show beside the scores."""
    least = "" if report.refit.is_full else " at least"
    ends = report.e0_interval
    note = confidence_note(report, ends)
    return f"new clusters (e0){least}", report.e0, ends, note


def cvc_figure(report: CvcReport, *more: Score) -> Figure:
    """Return the scores with their intervals, and more of the same loss beside them."""
    texts = [row.text for row in _cvc_rows(report, more)]
    return Figure(
        name=CVC_SCORES,
        title=f"Cross-validation and its correction: {loss_words(report.loss)}",
        alt="; ".join(texts) + ".",
        caption=scores_caption(report),
        draw=partial(draw_cvc, report=report, more=more),
        height=ROW * len(texts),
        data=cvc_score_table(report, *more),
    )


def draw_cvc(ax: "Axes", report: CvcReport, more: Sequence[Score] = ()) -> None:
    """Draw the scores of corrected cross-validation on one axis."""
    rows = _cvc_rows(report, more)
    core = [*(row.value for row in rows), *report.cv_interval]
    ends = [end for row in rows for end in row.interval or ()]
    draw_score_rows(ax, rows, axis_for(core, ends, label=loss_words(report.loss)))


def _cvc_rows(report: CvcReport, more: Sequence[Score]) -> list[ScoreRow]:
    marked = [*zip(cvc_scores(report), SCORE_MARKS, strict=False)]
    marked += [(score, ("D", BLUE)) for score in more]
    return [
        ScoreRow(text=_words(score), value=score[1], interval=score[2], shape=shape, colour=colour)
        for score, (shape, colour) in marked
    ]


def _words(score: Score) -> str:
    name, _, ends, note = score
    return f"{name}: {score_value(score)}" + (f" ({interval_words(ends)}{note})" if ends else "")


def multiples_figure(report: CvcReport) -> Figure:
    """Return CV_c against multiples of the standard deviations that were found."""
    times, values = report.multipliers, report.sensitivity
    if len(finite(values)) < 2:
        words = "No correction is given, so there is no curve."
        return _empty_figure(CVC_MULTIPLES, MULTIPLES, words, Axis(low=0.0, high=2.0, label=TIMES))
    return Figure(
        name=CVC_MULTIPLES,
        title=MULTIPLES,
        alt=f"CV_c goes from {number(values[0])} at {times[0]:g} times the standard deviations between "
        f"groups that were found to {number(values[-1])} at {times[-1]:g} times; at their own size it "
        f"is {number(report.cvc)}.",
        caption=multiples_caption(report),
        draw=partial(draw_multiples, report=report),
        height=190,
    )


def draw_multiples(ax: "Axes", report: CvcReport) -> None:
    """Draw CV_c against multiples of the standard deviations that were found."""
    times, values, grouped = report.multipliers, report.sensitivity, report.grouped
    low, high = min(times), max(times)
    word = f"{loss_words(report.loss)} (CV_c)"
    set_axes(
        ax,
        Axis(low=low, high=high, label=TIMES),
        axis_for([report.cv, *values], [*(report.interval or ()), grouped], label=word),
    )
    entries = [line(ax, times, values, BLUE, label="CV_c")]
    if report.interval is not None:
        spread(ax, 1.0, *report.interval, BLUE, upright=True)
    found = _words(("as found, with its 95% interval", report.cvc, report.interval, ""))
    entries.append(mark(ax, 1.0, report.cvc, "^", BLUE, label=found))
    label = f"cross-validation as it is (CV): {number(report.cv)}"
    entries.append(line(ax, [low, high], [report.cv] * 2, ORANGE, dashed=True, label=label))
    if grouped is not None:
        label = f"{GROUPED}: {number(grouped)}"
        entries.append(line(ax, [low, high], [grouped] * 2, GREEN, dashed=True, label=label))
    legend(ax, entries)
