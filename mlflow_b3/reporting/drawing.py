"""Colours of charts and pages, drawing on matplotlib axes, and figures as small, accessible SVG files.

Matplotlib is imported only when something is drawn: texts and tables do not need it.
"""

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mlflow_b3.results import percent, visible

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

Draw = Callable[["Axes"], None]

# --- The colours of reports and charts, for light and dark screens

#: Okabe and Ito's colours, which people with any colour vision can tell apart, darkened or lightened
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
PAPER, INK, MUTED, GRID = (LIGHT[name] for name in ("paper", "ink", "muted", "grid"))
EDGE, BLUE, ORANGE, GREEN = (LIGHT[name] for name in ("edge", "blue", "orange", "green"))


def _variables(colours: dict[str, str], root: str) -> str:
    return root + "{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


def colours_of(root: str) -> str:
    """Return the style sheet that gives an element its colours; paper is light on any screen."""
    return (
        f"{_variables(LIGHT, root)}\n"
        f"@media (prefers-color-scheme:dark){{{_variables(DARK, root)}}}\n"
        f"@media print{{{_variables(LIGHT, root)}}}\n"
    )


#: Elements keep the light colours as attributes, for viewers that do not support variables.
CHART_STYLE = (
    """
.b3{font:12.5px system-ui,sans-serif;max-width:100%;height:auto}
.b3 text{stroke:var(--paper);stroke-width:3px;paint-order:stroke}
"""
    + "\n".join(
        f'.b3 [fill="{colour}"]{{fill:var(--{name})}}.b3 [stroke="{colour}"]{{stroke:var(--{name})}}'
        for name, colour in LIGHT.items()
        if name not in ("panel", "red")
    )
    + "\n"
)


# --- Which values an axis shows

LARGEST = 1e100
#: Of an axis, as a part of its values: what is smaller needs ticks with too many digits.
LEAST_WIDTH = 1e-2


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values with its label.

    Attributes
    ----------
    low, high : float
    label : str
    shares : bool
        Ticks are percentages.
    whole : bool
        Ticks are whole numbers.
    """

    low: float
    high: float
    label: str = ""
    shares: bool = False
    whole: bool = False


def axis_for(
    core: Iterable[float | None],
    more: Iterable[float | None] = (),
    *,
    perhaps: float | None = None,
    label: str = "",
    reach: float = 4.0,
) -> Axis:
    """Return an axis that shows all of the `core`, and those of `more` that are not far away.

    Values beyond `reach` times the width of the core stretch the axis no further, so that one huge
    number cannot hide all others; the one value that is shown `perhaps` then does not stretch it at
    all. Numbers that are not finite are left out.
    """
    inner = finite(core) or [0.0, 1.0]
    low, high = min(inner), max(inner)
    width = max(high - low, LEAST_WIDTH * max(abs(low), abs(high)))
    width = width if width > 1 / LARGEST else 1.0  # ticks cannot be told apart in less
    least, most = low - reach * width, high + reach * width
    outer = [min(max(value, least), most) for value in finite(more)]
    outer += [value for value in finite([perhaps]) if least <= value <= most]
    low, high = min([low, *outer]), max([high, *outer])
    pad = 0.09 * max(high - low, width)
    return Axis(low=0.0 if 0 <= low < pad else low - pad, high=high + pad, label=label)


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are numbers and can be drawn."""
    return [
        min(max(float(value), -LARGEST), LARGEST)
        for value in values
        if value is not None and math.isfinite(value)
    ]


# --- Drawing on axes

#: Letters that fit on a line of a chart, and beside a sample in its legend.
LONGEST_LABEL, LONGEST_ENTRY = 54, 51
#: Approximate width of a letter, as no font is known.
CHARACTER = 6.8


def set_axes(ax: "Axes", x: Axis, y: Axis | None = None) -> None:
    """Set the limits, labels and ticks of axes; without `y` there is no vertical axis."""
    ax.set_xlim(x.low, x.high)
    ax.set_xlabel(shown(x.label, LONGEST_ENTRY), parse_math=False)
    _set_ticks(ax, "x", x)
    if y is None:
        ax.yaxis.set_visible(False)
    else:
        ax.set_ylim(y.low, y.high)
        _set_ticks(ax, "y", y)
        # above the axis, because long names of losses do not fit beside it
        title = shown(y.label, min(LONGEST_ENTRY, _across(ax)))
        ax.set_title(title, loc="left", fontsize="medium", parse_math=False)
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.tick_params(left=False, bottom=False)
    ax.set_axisbelow(True)


def _set_ticks(ax: "Axes", which: str, limits: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

    axis = ax.xaxis if which == "x" else ax.yaxis
    steps = [1, 2, 5, 10] if limits.whole else [1, 2, 2.5, 5, 10]
    bins = 10 if limits.whole else 5 if which == "x" else 6
    axis.set_major_locator(MaxNLocator(nbins=bins, steps=steps, integer=limits.whole))
    axis.grid(True)
    plain = ScalarFormatter(useOffset=False)
    plain.set_scientific(False)
    largest = max(abs(limits.low), abs(limits.high))
    if limits.shares:
        axis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    elif 1e-3 <= largest < 1e5:
        axis.set_major_formatter(plain)
    else:
        axis.set_major_formatter(FuncFormatter(lambda value, _: _long_label(value, which, limits)))


def _long_label(value: float, which: str, limits: Axis) -> str:
    """Return the label of a tick; none if half of it would leave the picture on the right."""
    label = f"{value:.6g}"
    room = (limits.high - value) / (limits.high - limits.low) * (WIDTH - LEFT - RIGHT) + RIGHT
    return "" if which == "x" and CHARACTER * len(label) / 2 > room else label


def line(
    ax: "Axes",
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    *,
    dashed: bool = False,
    label: str = "",
) -> "Line2D":
    """Draw a line through points; parts beyond the axes are cut off."""
    values = [min(max(value, -LARGEST), LARGEST) for value in y]
    (drawn,) = ax.plot(
        x, values, color=colour, linestyle=(0, (3, 2)) if dashed else "-", label=label
    )
    return drawn


def mark(
    ax: "Axes", x: float | None, y: float | None, shape: str, colour: str, *, label: str = ""
) -> "Line2D":
    """Draw one point, if it is known and inside the axes."""
    at: tuple[list[float], list[float]] = ([], [])
    if x is not None and y is not None and _holds(ax.get_xlim(), x) and _holds(ax.get_ylim(), y):
        at = ([x], [y])
    (drawn,) = ax.plot(
        *at, marker=shape, color=colour, markersize=8, linestyle="none", clip_on=False, label=label
    )
    return drawn


def band(
    ax: "Axes",
    x: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    colour: str,
    *,
    label: str,
) -> "Artist":
    """Fill the area between two curves."""
    least, most = ax.get_ylim()
    bottom, top = ([min(max(value, least), most) for value in curve] for curve in (low, high))
    return ax.fill_between(x, bottom, top, color=colour, alpha=0.2, linewidth=0, label=label)


def shade(ax: "Axes", low: float, high: float, *, label: str) -> "Line2D | Patch":
    """Shade the visible part between two values of the horizontal axis; one value is a line."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    least, most = ax.get_xlim()
    if high - low <= 0.008 * (most - least):  # a single value is a line that can be seen
        if least <= low <= most:
            ax.axvline(low, color=EDGE, linewidth=1.5, zorder=1)
        return Line2D([], [], color=EDGE, linewidth=1.5, label=label)
    if low <= most and high >= least:
        ax.axvspan(max(low, least), min(high, most), color=EDGE, alpha=0.2, linewidth=0)
    return Patch(color=EDGE, alpha=0.2, linewidth=0, label=label)


def spread(
    ax: "Axes", at: float, low: float, high: float | None, colour: str, *, upright: bool = False
) -> None:
    """Draw a horizontal or vertical interval, with an arrow where it continues beyond the axis."""
    limits = ax.get_ylim() if upright else ax.get_xlim()
    if math.isnan(low) or (high is not None and math.isnan(high)):
        return
    if upright and not _holds(ax.get_xlim(), at):
        return
    ends = [
        min(max(value, limits[0]), limits[1])
        for value in (low, limits[1] if high is None else high)
    ]
    caps, arrows = (("_", "_"), ("v", "^")) if upright else (("|", "|"), ("<", ">"))
    across = [at, at]
    ax.plot(*((across, ends) if upright else (ends, across)), color=colour, clip_on=False)
    for place, value in enumerate((low, high)):
        inside = value is not None and _holds(limits, value)
        point = (at, ends[place]) if upright else (ends[place], at)
        ax.plot(
            *([value] for value in point),
            marker=(caps if inside else arrows)[place],
            color=colour,
            markersize=9 if inside else 7,
            markeredgewidth=2 if inside else 0,
            clip_on=False,
        )


#: The part of the height of axes that a text below a point needs.
ROOM_BELOW = 0.2


def write(ax: "Axes", x: float, y: float, text: str, *, below: bool = False) -> None:
    """Write beside a point: above it, or below if there is room."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    x, y = min(max(x, left), right), min(max(y, bottom), top)
    part = (y - bottom) / (top - bottom)
    if part > 0.92 or (below and part > ROOM_BELOW):
        shift, edge = -8, "top"
    else:
        shift, edge = 8, "bottom"
    room = (right - x) / (right - left) * (WIDTH - LEFT - RIGHT)
    late = CHARACTER * len(text) > room
    ax.annotate(
        shown(text),
        (x, y),
        xytext=(-8 if late else 8, shift),
        textcoords="offset points",
        ha="right" if late else "left",
        va=edge,
        annotation_clip=False,
        parse_math=False,
    )


def write_in_corner(ax: "Axes", text: str, *, top: bool) -> None:
    """Write at the right end of axes, inside them."""
    ax.annotate(
        shown(text, min(LONGEST_LABEL, _across(ax))),
        (1, 1 if top else 0),
        xycoords="axes fraction",
        xytext=(-4, -4 if top else 4),
        textcoords="offset points",
        ha="right",
        va="top" if top else "bottom",
        parse_math=False,
    )


def write_above(ax: "Axes", part: float, text: str) -> None:
    """Write above axes, at a part of their width."""
    side = "left" if part < 0.25 else "right" if part > 0.75 else "center"
    ax.annotate(
        shown(text, min(LONGEST_LABEL, _across(ax))),
        (part, 1),
        xycoords="axes fraction",
        xytext=(0, 3),
        textcoords="offset points",
        ha=side,
        parse_math=False,
    )


def write_in_row(ax: "Axes", y: float, text: str) -> None:
    """Write at the left end of a row of axes, on top of whatever is drawn there."""
    ax.annotate(
        shown(text, min(LONGEST_LABEL, _across(ax) - 1)),
        (0, y),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        # a line that shows between two digits looks like a colon
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
        parse_math=False,
    )


def legend(ax: "Axes", handles: Sequence["Artist"]) -> None:
    """Write what is drawn above the axes, one line for each handle."""
    from matplotlib.transforms import ScaledTranslation

    upright = ax.yaxis.get_visible()
    left, up = (_left(ax) - 8, 24) if upright else (RIGHT - 8, 10)
    shift = ScaledTranslation(-left / POINTS, up / POINTS, ax.figure.dpi_scale_trans)
    made = ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        bbox_transform=ax.transAxes + shift,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.48,
        fontsize="medium",
    )
    for text in made.get_texts():
        text.set_text(shown(text.get_text(), LONGEST_ENTRY))
        text.set_parse_math(False)


def shown(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return text without hidden characters, shortened to what fits."""
    words = visible(text)
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _holds(limits: tuple[float, float], value: float) -> bool:
    return limits[0] <= value <= limits[1]


# --- Figures as SVG: no scripts, no links, the same bytes each time

#: Narrow enough for labels of 11 pixels on a phone.
WIDTH = 400
LEFT, RIGHT, BOTTOM = 54, 16, 44
LINE = 19
POINTS = 72  # in an inch, and in matplotlib's SVG a pixel is a point
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
#: Matplotlib's own settings otherwise, whatever the user's are.
SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlepad": 8.0,
    "axes.titley": 1.0,  # else all labels are measured to find where it may be
    "font.size": 12.5,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "b3",
    "text.color": INK,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The shapes and texts of a figure, and the height of the whole in pixels.

    Drawing takes most of the time of a report, so that its forms share what was drawn once.
    """

    name: str
    shapes: tuple[ET.Element, ...]
    height: float


def drawing_of(draw: Draw, *, name: str, height: float) -> Drawing:
    """Return what a function draws on the axes that it is given.

    Parameters
    ----------
    draw : callable
    name : str
        Of the figure, unique in its page.
    height : float
        Of the axes, in pixels.
    """
    drawn, total = _drawn(draw, height)
    return Drawing(name=name, shapes=tuple(_slim(drawn, f"b3-{name}-clip")), height=total)


def to_svg(drawing: Drawing, *, title: str, alt: str, standalone: bool = False) -> str:
    """Return a drawing as SVG.

    Parameters
    ----------
    drawing : Drawing
    title, alt : str
        Read aloud instead of the picture.
    standalone : bool
        A file of its own, with its colours and its background; else a part of a page that has the
        styles.
    """
    size = {"width": str(WIDTH), "height": _short(drawing.height)}
    root = ET.Element(
        "svg",
        {
            "xmlns": SVG.strip("{}"),
            "class": "b3",
            "viewBox": f"0 0 {size['width']} {size['height']}",
            **size,
            "role": "img",
            "aria-labelledby": f"b3-{drawing.name}-title b3-{drawing.name}-desc",
            "stroke-linejoin": "round",
        },
    )
    if standalone:
        ET.SubElement(root, "style").text = colours_of(".b3") + CHART_STYLE
        root.set("font-family", "system-ui,sans-serif")
        root.set("font-size", "12.5")
    for tag, text in (("title", title), ("desc", alt)):
        ET.SubElement(root, tag, {"id": f"b3-{drawing.name}-{tag}"}).text = visible(text)
    if standalone:
        ET.SubElement(root, "rect", {"fill": PAPER, **size})
    root.extend(drawing.shapes)
    return ET.tostring(root, encoding="unicode") + "\n" * standalone


def _drawn(draw: Draw, height: float) -> tuple[ET.Element, float]:
    """Return what matplotlib makes of a drawing, and its height."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.StringIO()
    with mpl.rc_context(), warnings.catch_warnings():
        # the text stays text, so that it does not matter which letters matplotlib's font has
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        figure = Figure(figsize=(WIDTH / POINTS, 1), dpi=POINTS)
        ax = figure.add_axes((0, 0, 1, 1))
        draw(ax)
        entries = ax.get_legend()
        lines = 0 if entries is None else len(entries.get_texts())
        upright = ax.yaxis.get_visible()
        top = LINE * lines + (30 if upright and ax.get_title("left") else 18)
        left, total = (_left(ax) if upright else RIGHT), top + height + BOTTOM
        figure.set_size_inches(WIDTH / POINTS, total / POINTS)
        width = (WIDTH - RIGHT - left) / WIDTH
        ax.set_position((left / WIDTH, BOTTOM / total, width, height / total))
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return ET.fromstring(file.getvalue()), total


class Drawable(Protocol):
    """A picture that can be drawn on axes."""

    @property
    def draw(self) -> Draw:
        """Draws on the axes that it is given."""

    @property
    def height(self) -> float:
        """Of the axes, in pixels."""


def draw_side_by_side(figures: Sequence[Drawable], ax: "Axes | None" = None) -> "list[Axes]":
    """Draw figures on axes of a new matplotlib figure, or the first one on given axes."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    if ax is not None:
        figures[0].draw(ax)
        return [ax]
    with mpl.rc_context(SETTINGS):
        height = max(figure.height for figure in figures) + 120
        size = (len(figures) * WIDTH / POINTS, height / POINTS)
        _, made = plt.subplots(1, len(figures), figsize=size, squeeze=False, layout="constrained")
        for figure, axes in zip(figures, made[0], strict=True):
            figure.draw(axes)
    return list(made[0])


def _left(ax: "Axes") -> float:
    """Return how much room the labels of the vertical axis need."""
    labels = ax.yaxis.get_major_formatter().format_ticks(list(ax.get_yticks()))
    return max(LEFT, 12 + CHARACTER * max(map(len, labels), default=0))


def _across(ax: "Axes") -> int:
    """Return how many characters fit into the width of axes."""
    left = _left(ax) if ax.yaxis.get_visible() else RIGHT
    return int((WIDTH - RIGHT - left) / CHARACTER)


def _slim(root: ET.Element, clip: str) -> Iterator[ET.Element]:
    """Yield the shapes and texts of matplotlib's SVG, without groups, links and styles.

    Names of elements would not be unique in a page of several figures, and attributes, unlike
    styles, give way to the style sheet of the page.
    """
    named = {e.get("id"): e for e in root.iter() if e.get("id")}
    frames = list(root.iter(f"{SVG}clipPath"))
    assert len(frames) <= 1, "one pair of axes has one frame"
    for frame in frames:
        made = ET.Element("clipPath", {"id": clip})
        ET.SubElement(made, "rect", {k: _short(float(v)) for k, v in frame[0].attrib.items()})
        yield made
    yield from _shapes(root, named, {}, f"url(#{clip})")


def _shapes(
    parent: ET.Element, named: dict[str | None, ET.Element], outer: dict[str, str], clip: str
) -> Iterator[ET.Element]:
    for element in parent:
        tag = element.tag.removeprefix(SVG)
        inner = {**outer, **({"clip-path": clip} if element.get("clip-path") else {})}
        if tag == "g":
            yield from _shapes(element, named, inner, clip)
        elif tag == "text":
            attributes = {
                "x": _numbers(element.get("x", "0")),
                "y": _numbers(element.get("y", "0")),
            }
            made = ET.Element("text", {**attributes, **_attributes(element)})
            made.text = element.text
            yield made
        elif tag == "path" and _attributes(element) != {"fill": "none"}:  # not the background
            shape = {"d": _numbers(element.get("d", "")), **_attributes(element), **inner}
            yield ET.Element("path", shape)
        elif tag == "use":
            path = named[element.get(LINK, "")[1:]]
            at = " ".join(_numbers(element.get(name, "0")) for name in ("x", "y"))
            placed = {"d": _numbers(path.get("d", "")), "transform": f"translate({at})"}
            made = ET.Element("path", {**placed, **_attributes(path), **_attributes(element)})
            if inner:  # a frame on the path itself would move with it
                frame = ET.Element("g", inner)
                frame.append(made)
                made = frame
            yield made


def _attributes(element: ET.Element) -> dict[str, str]:
    """Return the style of an element as attributes, except its font."""
    pairs = [part.split(":") for part in element.get("style", "").split(";") if part]
    style = {name.strip(): value.strip() for name, value in pairs}
    known = ("stroke-linejoin", "stroke-dashoffset", "font-size", "font-family")
    common = {("text-anchor", "start"), ("stroke-linecap", "butt")}
    return {k: v for k, v in style.items() if k not in known and (k, v) not in common}


def _numbers(text: str) -> str:
    """Return a path with two decimals, which is finer than any screen."""
    short = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda found: _short(float(found[0])), text)
    return re.sub(r"\s*([MLQCz])\s*", r"\1", short).strip()


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
