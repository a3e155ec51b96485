"""Small plots as SVG: one file, no scripts, readable by machines and by people."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mlflow_b3.reporting.axes import Axis, finite
from mlflow_b3.reporting.palette import COLOURS
from mlflow_b3.wording import visible

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
