"""The charts of reports, as SVG."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity
from mlflow_b3.reporting.phrases import (
    confidence_of,
    folds_words,
    is_mixture,
    rate_of,
    readable,
    sensible_number,
)
from mlflow_b3.reporting.tables import (
    GROUPED,
    Score,
    confidence_note,
    cvc_scores,
    score_value,
    secant_words,
)
from mlflow_b3.results import interval_words, loss_words, number, percent, visible

# --- The axes of plots: which values they show, and where they have ticks

LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values with its label.

    Attributes
    ----------
    low, high : float
    label : str
    shares : bool
        Ticks are percentages.
    """

    low: float
    high: float
    label: str = ""
    shares: bool = False

    def part(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; values beyond the ends are moved to them."""
        # halves, so that the width of the largest range is still a number
        width = self.high / 2 - self.low / 2
        return min(1.0, max(0.0, (value / 2 - self.low / 2) / width)) if width > 0 else 0.5

    def holds(self, value: float) -> bool:
        """Return whether a value lies between the ends."""
        return self.low <= value <= self.high

    def ticks(self) -> list[tuple[float, str]]:
        """Return some round values, seven at the most, with their labels."""
        raw = (self.high / 2 - self.low / 2) / 3.5
        if not raw > 0:
            return [(self.low, f"{self.low:g}")]
        size = 10.0 ** math.floor(math.log10(raw))
        step = size * next(round_ for round_ in (1, 2, 2.5, 5, 10) if round_ * size >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [k * step for k in range(first, last + 1)] if last - first < 20 else [self.low]
        return [(value, self._label(value, step)) for value in values]

    def _label(self, value: float, step: float) -> str:
        if self.shares:
            return percent(value)
        largest = max(abs(self.low), abs(self.high))
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
        if not value:
            return "0"
        if largest >= 1e5 or decimals > 4:
            return f"{value:.{max(1, min(9, math.ceil(math.log10(largest / step)) + 2))}g}"
        halves = abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6  # a step of 2.5
        return f"{value:.{decimals + halves}f}"


def axis_for(
    core: Iterable[float | None],
    more: Iterable[float | None] = (),
    *,
    perhaps: float | None = None,
    label: str = "",
    reach: float = 4.0,
) -> Axis:
    """Return an axis that shows all of the `core`, and `more` as far as it is not far away.

    Values beyond `reach` times the width of the core stretch the axis no further, so that one huge
    number cannot hide all others; the one value that is shown `perhaps` then does not stretch it at
    all. Numbers that are not finite are left out.
    """
    inner = finite(core) or [0.0, 1.0]
    low, high = min(inner), max(inner)
    width = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
    least, most = low - reach * width, high + reach * width
    outer = [min(max(value, least), most) for value in finite(more)]
    outer += [value for value in finite([perhaps]) if least <= value <= most]
    low, high = min([low, *outer]), max([high, *outer])
    pad = 0.09 * max(high - low, width)
    return Axis(low=0.0 if 0 <= low < pad else low - pad, high=high + pad, label=label)


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the numbers among values, none of them beyond what can be drawn."""
    return [
        min(max(float(value), -LARGEST), LARGEST)
        for value in values
        if value is not None and math.isfinite(value)
    ]


# --- The colours of reports and charts, for light and dark screens

#: Okabe and Ito's colours, which people with any colour vision tell apart, darkened or lightened
#: where they would be too faint on their background.
LIGHT = {
    "paper": "#ffffff",
    "panel": "#f3f5f8",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "grid": "#d5dbe1",
    "edge": "#8a939c",
    "blue": "#0072b2",
    "orange": "#c45500",
    "green": "#00795a",
    "red": "#b3261e",
}
DARK = {
    "paper": "#14181d",
    "panel": "#1f252c",
    "ink": "#e8edf2",
    "muted": "#a9b4bf",
    "grid": "#39424c",
    "edge": "#7d8894",
    "blue": "#56b4e9",
    "orange": "#e69f00",
    "green": "#2fbf94",
    "red": "#ff8a80",
}
TEXT = ("ink", "muted")
MARK_COLOURS = ("blue", "orange", "green", "red", "edge")


def _variables(colours: dict[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


#: Paper is light whatever the screen.
COLOURS = (
    f"{_variables(LIGHT)}\n"
    f"@media (prefers-color-scheme:dark){{{_variables(DARK)}}}\n"
    f"@media print{{{_variables(LIGHT)}}}\n"
)


# --- Small plots as SVG: one file, no scripts, readable by machines and by people

#: So narrow that labels can be read on a phone.
WIDTH = 440
LEFT, RIGHT, BOTTOM = 54, 16, 44
LINE = 18
#: Width of a character of the labels, as far as one can say without a font.
CHARACTER = 6.7
Point = tuple[float, float]
CORNERS: dict[str, list[Point]] = {
    "diamond": [(0, -6.5), (6.5, 0), (0, 6.5), (-6.5, 0)],
    "triangle": [(0, -6), (6, 5), (-6, 5)],
    "pointer": [(0, -6), (10, 0), (0, 6)],
}

STYLE = """
.b3{font:12px system-ui,sans-serif;max-width:100%;height:auto}
.b3 text{fill:var(--ink);stroke:var(--paper);stroke-width:3px;paint-order:stroke;stroke-linejoin:round}
.b3 .muted{fill:var(--muted)}
.b3 .paper{fill:var(--paper)}
.b3 .grid{stroke:var(--grid)}
.b3 .axis{stroke:var(--edge)}
.b3 .line{fill:none;stroke-width:2}
.b3 .dashed{stroke-dasharray:6 4}
.b3 .area{stroke:none;opacity:.2}
.b3 .shade{stroke:none;fill:var(--edge);opacity:.2}
.b3 .blue{stroke:var(--blue)}.b3 .blue.fill,.b3 .blue.area{fill:var(--blue)}
.b3 .orange{stroke:var(--orange)}.b3 .orange.fill,.b3 .orange.area{fill:var(--orange)}
.b3 .green{stroke:var(--green)}.b3 .green.fill,.b3 .green.area{fill:var(--green)}
.b3 .edge{stroke:var(--edge)}.b3 .edge.fill{fill:var(--edge)}
"""


class Plot:
    """A plot on two axes, drawn piece by piece.

    Parameters
    ----------
    name : str
        Of the plot, unique in its page.
    title, description : str
        Read aloud instead of the picture.
    x, y : Axis
    height : float
        Of the area between the axes.
    legend : int
        Lines of the legend.
    y_axis : bool
        Draw the vertical axis.
    """

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        *,
        x: Axis,
        y: Axis,
        height: float = 230,
        legend: int = 0,
        y_axis: bool = True,
    ) -> None:
        """Draw the axes of an empty plot."""
        self.x, self.y = x, y
        self._legend = 0
        self.left = LEFT if y_axis else RIGHT
        self.right = WIDTH - RIGHT
        self.top = LINE * legend + (30 if y_axis and y.label else 14)
        self.bottom = self.top + height
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "class": "b3",
                "viewBox": f"0 0 {WIDTH} {_round(self.bottom + BOTTOM)}",
                "width": str(WIDTH),
                "height": _round(self.bottom + BOTTOM),
                "role": "img",
                "aria-labelledby": f"b3-{name}-title b3-{name}-desc",
            },
        )
        for tag, text in (("title", title), ("desc", description)):
            ET.SubElement(self.root, tag, {"id": f"b3-{name}-{tag}"}).text = visible(text)
        self._axes(y_axis)

    def _axes(self, y_axis: bool) -> None:
        for value, label in self.x.ticks():
            at = self._x(value)
            self._add("line", "grid", x1=at, y1=self.top, x2=at, y2=self.bottom)
            self.text(at, self.bottom + LINE, label, anchor="middle", kind="muted")
        middle = (self.left + self.right) / 2
        self.text(middle, self.bottom + 2 * LINE, self.x.label, anchor="middle")
        self._add("line", "axis", x1=self.left, y1=self.bottom, x2=self.right, y2=self.bottom)
        if y_axis:
            for value, label in self.y.ticks():
                at = self._y(value)
                self._add("line", "grid", x1=self.left, y1=at, x2=self.right, y2=at)
                self.text(self.left - 6, at + 4, label, anchor="end", kind="muted")
            self.text(4, self.top - 12, self.y.label)

    def line(self, points: Iterable[Sequence[float]], kind: str, *, dashed: bool = False) -> None:
        """Draw a line through points; parts beyond the axes are left out."""
        shown = _numbers(points)
        for run in _inside([(x, y) for x, y in shown], self.y):
            path = " ".join(f"{_round(self._x(x))},{_round(self._y(y))}" for x, y in run)
            self._add("polyline", f"line {kind}" + " dashed" * dashed, points=path)

    def band(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str
    ) -> None:
        """Fill the area between two curves."""
        rows = _numbers(zip(x, low, high, strict=True))
        edge = [(a, c) for a, _, c in rows] + [(a, b) for a, b, _ in reversed(rows)]
        path = " ".join(f"{_round(self._x(a))},{_round(self._y(b))}" for a, b in edge)
        self._add("polygon", f"area {kind}", points=path)

    def span(self, low: float, high: float) -> None:
        """Shade everything between two values of the horizontal axis."""
        start, end = self._x(low), self._x(high)
        start, end = (start, end) if end - start >= 3 else (start - 1.5, start + 1.5)
        start, end = max(start, self.left), min(end, self.right)
        self._add("rect", "shade", x=start, y=self.top, width=end - start, height=self.height)

    @property
    def height(self) -> float:
        """The height of the area between the axes."""
        return self.bottom - self.top

    def level(self, y: float, label: str, kind: str) -> None:
        """Draw a horizontal line with its label."""
        self.line([(self.x.low, y), (self.x.high, y)], kind, dashed=True)
        at = self._y(y)
        below = at - self.top < LINE
        self.text(self.right - 4, at + 15 if below else at - 6, label, anchor="end")

    def upright(self, x: float, label: str, kind: str) -> None:
        """Draw a vertical line with its label above it."""
        self.line([(x, self.y.low), (x, self.y.high)], kind, dashed=True)
        self.text(self._x(x), self.top - 4, label, anchor="middle")

    def error_bar(self, x: float, low: float, high: float | None, kind: str) -> None:
        """Draw a vertical interval; an arrow where it goes on beyond the axis."""
        if self.x.holds(x):
            at, start, stop = self._x(x), self._y(low), self.top if high is None else self._y(high)
            self._add("line", f"line {kind}", x1=at, y1=stop, x2=at, y2=start)
            for value, place, turn in ((low, start, -1), (high, stop, 1)):
                open_ended = value is None or not self.y.holds(value)
                tip = [(at - 4, place + turn * 7), (at, place), (at + 4, place + turn * 7)]
                self._end(tip if open_ended else [(at - 4, place), (at + 4, place)], kind)

    def interval(self, y: float, low: float, high: float | None, kind: str) -> None:
        """Draw a horizontal interval; an arrow where it goes on beyond the axis."""
        at, start, stop = self._y(y), self._x(low), self.right if high is None else self._x(high)
        self._add("line", f"line {kind}", x1=start, y1=at, x2=stop, y2=at)
        for value, place, turn in ((low, start, 1), (high, stop, -1)):
            open_ended = value is None or not self.x.holds(value)
            tip = [(place + turn * 7, at - 4), (place, at), (place + turn * 7, at + 4)]
            self._end(tip if open_ended else [(place, at - 5), (place, at + 5)], kind)

    def _end(self, points: Sequence[Point], kind: str) -> None:
        path = " ".join(f"{_round(a)},{_round(b)}" for a, b in points)
        self._add("polyline", f"line {kind}", points=path)

    def mark(self, x: float, y: float, shape: str, kind: str) -> None:
        """Draw one point, where both axes hold it."""
        if self.x.holds(x) and self.y.holds(y):
            self._shape(self._x(x), self._y(y), shape, kind)

    def label(self, x: float, y: float, text: str, *, below: bool = False) -> None:
        """Write next to a point, above it or, where there is room, below."""
        at = self._y(y)
        below = at - self.top < LINE or (below and self.bottom - at > 2 * LINE)
        self.text(self._x(x) + 8, at + LINE if below else at - 8, text)

    def entry(self, text: str, kind: str, sample: str) -> None:
        """Add a line to the legend: a sample of how it is drawn, and what it is."""
        at = 12 + LINE * self._legend
        self._legend += 1
        if sample in ("line", "dashed"):
            self._add("line", f"line {kind} {sample}", x1=8, y1=at, x2=32, y2=at)
        elif sample in ("area", "shade"):
            self._add("rect", f"{sample} {kind}".strip(), x=8, y=at - 6, width=24, height=12)
        else:
            self._shape(20, at, sample, kind)
        self.text(40, at + 4, text)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        kind: str = "",
        alone: bool = False,
    ) -> None:
        """Write text that stays inside the picture; `alone` lets nothing show behind it."""
        if not text:
            return
        words = visible(text)
        most = int((WIDTH - 8) / CHARACTER)
        words = words if len(words) <= most else words[: most - 1] + "…"
        width = CHARACTER * len(words)
        before = {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        x = min(max(x, 4 + before), WIDTH - 4 - width + before)
        if alone:  # a line that goes on between two digits looks like a colon
            self._add("rect", "paper", x=x - before - 2, y=y - 11, width=width + 4, height=14)
        attributes = {"x": _round(x), "y": _round(y)}
        if anchor != "start":
            attributes["text-anchor"] = anchor
        if kind:
            attributes["class"] = kind
        ET.SubElement(self.root, "text", attributes).text = words

    def _shape(self, x: float, y: float, shape: str, kind: str) -> None:
        kind = f"{kind} fill"
        if shape == "circle":
            self._add("circle", kind, cx=x, cy=y, r=5)
        elif shape == "square":
            self._add("rect", kind, x=x - 4.5, y=y - 4.5, width=9, height=9)
        else:
            path = " ".join(f"{_round(x + a)},{_round(y + b)}" for a, b in CORNERS[shape])
            self._add("polygon", kind, points=path)

    def _x(self, value: float) -> float:
        return self.left + self.x.part(value) * (self.right - self.left)

    def _y(self, value: float) -> float:
        return self.bottom - self.y.part(value) * (self.bottom - self.top)

    def _add(self, tag: str, kind: str, **attributes: float | str) -> None:
        texts = {
            name: value if isinstance(value, str) else _round(value)
            for name, value in attributes.items()
        }
        ET.SubElement(self.root, tag, {"class": kind, **texts})

    def inline(self) -> str:
        """Return the plot for a page that has the styles."""
        return ET.tostring(self.root, encoding="unicode")

    def standalone(self) -> str:
        """Return the plot as a file of its own, with its colours and its background."""
        size = {"width": self.root.get("width", ""), "height": self.root.get("height", "")}
        root = ET.Element(self.root.tag, self.root.attrib)
        ET.SubElement(root, "style").text = COLOURS + STYLE
        titles, drawn = self.root[:2], self.root[2:]
        root.extend(titles)
        ET.SubElement(root, "rect", {"class": "paper", **size})
        root.extend(drawn)
        return ET.tostring(root, encoding="unicode") + "\n"


def _numbers(rows: Iterable[Sequence[float]]) -> list[list[float]]:
    """Return the rows without those in which something is not a number."""
    return [shown for row in rows if len(shown := finite(row)) == len(row)]


def _inside(points: Sequence[Point], axis: Axis) -> list[list[Point]]:
    """Cut a line where it leaves the axis; return the parts that lie within."""
    runs: list[list[Point]] = []
    joined = False
    for (x0, y0), (x1, y1) in pairwise(points):
        start, end = _within(y0, y1, axis)
        if start > end:
            joined = False
            continue
        ends = [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in (start, end)]
        if joined and start == 0:
            runs[-1].append(ends[1])
        else:
            runs.append(ends)
        joined = end == 1
    return runs


def _within(y0: float, y1: float, axis: Axis) -> tuple[float, float]:
    """Return which part of the way from y0 to y1 an axis holds; none where start > end."""
    if y0 == y1:
        return (0.0, 1.0) if axis.holds(y0) else (1.0, 0.0)
    first, last = sorted((edge - y0) / (y1 - y0) for edge in (axis.low, axis.high))
    return max(0.0, first), min(1.0, last)


def _round(value: float) -> str:
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".")


# --- The chart of the loss curve: what was measured, and how e0 follows from it


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


# --- The chart of a sensitivity curve: what each rate of wrong ids would mean

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


# --- The charts of corrected cross-validation: its scores, and what other variances would mean

ROW = 42
CVC_SCORES, CVC_MULTIPLES = "cvc", "cvc_sensitivity"
SCORE_MARKS = (("circle", "orange"), ("triangle", "blue"), ("square", "green"))


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
    rows = [*zip(scores, SCORE_MARKS, strict=False), (e0, ("diamond", "blue"))]
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


# --- The charts of an audit: its scores, loss curve, sensitivity curves and residual profile

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
