"""The charts of a report: what they show, that they stay inside, and that everybody can read them."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from example_reports import (
    REPORT,
    audited,
    by_doses,
    changed,
    linked,
    lower_bound,
    report,
    split,
    unknown,
)
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from mlflow_b3 import AuditReport, LossCurve
from mlflow_b3.reporting import document, drawing
from mlflow_b3.reporting.charts import charts_of, figures_of
from mlflow_b3.reporting.document import Figure
from mlflow_b3.reporting.drawing import (
    CHARACTER,
    DARK,
    LIGHT,
    MARK_COLOURS,
    TEXT,
    Axis,
    axis_for,
    band,
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
from mlflow_b3.reporting.phrases import claimed_errors
from mlflow_b3.reporting.sentences import curve_caption, sensitivity_caption
from mlflow_b3.tracking.metrics_and_files import files_of

pytestmark = pytest.mark.newest

SVG = "{http://www.w3.org/2000/svg}"
TAGS = {"svg", "style", "title", "desc", "clipPath", "rect", "g", "path", "text"}
numbers = st.floats(-1e12, 1e12) | st.floats(-1e-9, 1e-9) | st.sampled_from([0.0, 0.25, 1e6])
anything = st.floats() | numbers


def texts(svg: str) -> str:
    """Return all that is written in a picture."""
    return "\n".join(text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text"))


def drawn(figure: Figure) -> Axes:
    """Return axes on which a figure was drawn, as a user would who has axes of their own."""
    ax = Canvas().subplots()
    figure.draw(ax)
    return ax


def marks(figure: Figure) -> list[str]:
    """Return the shapes of the points of a figure, without the ends of intervals."""
    return [
        shape
        for artist in drawn(figure).lines
        if (shape := artist.get_marker()) not in ("None", "|", "_")
        and artist.get_markersize() == 8
        and len(artist.get_xdata())
    ]


def dashed(figure: Figure) -> int:
    """Return how many lines of a figure are dashed."""
    return sum(artist.is_dashed() for artist in drawn(figure).lines)


def check_picture(svg: str) -> None:
    """Check that a picture is well formed, small and plain, and that its words stay in its frame."""
    root = ET.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= TAGS
    assert len(svg.encode()) < 25_000
    width, height = (float(root.get(name)) for name in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    for element in root.iter():
        values = " ".join(element.attrib.values())
        assert not re.search(r"\b(nan|inf)", values, re.IGNORECASE)
        assert not {"style", "onload", "onclick"} & set(element.attrib)
        assert not [key for key in element.attrib if "href" in key]
        assert all(url.startswith("#b3-") for url in re.findall(r"url\(([^)]*)", values))
    for text in root.iter(f"{SVG}text"):
        long = CHARACTER * len(text.text or "")
        before = {"middle": long / 2, "end": long}.get(text.get("text-anchor"), 0.0)
        start = float(text.get("x")) - before
        assert -8 <= start <= start + long <= width + 8, text.text
        assert 8 <= float(text.get("y")) <= height, text.text


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("audit", "curves"),
    [
        (REPORT, ["sensitivity"]),
        (split(), ["sensitivity_split"]),
        (unknown(), ["sensitivity", "sensitivity_split"]),
        (unknown(fragments=None, fragment_sensitivity=None), ["sensitivity"]),
    ],
)
def test_the_page_has_the_curves_of_the_pattern_and_both_when_it_is_not_known(audit, curves):
    drawn_curves = [name for name in figures_of(audit) if name.startswith("sensitivity")]
    assert drawn_curves == curves


@pytest.mark.parametrize(
    "audit",
    [REPORT, split(), unknown(), by_doses(), report(fragments=None, fragment_sensitivity=None)],
)
def test_every_audit_has_the_same_charts_and_one_by_doses_its_own(audit):
    files = charts_of(audit)
    curves = ["sensitivity", "sensitivity_split"]
    own = ["dose"] if audit.dose else []
    assert sorted(files) == [*own, "loss_curve", "residual", "scores", *curves]
    for svg in files.values():
        check_picture(svg)


def test_a_curve_that_there_is_not_says_so():
    svg = charts_of(report(fragments=None, fragment_sensitivity=None))["sensitivity_split"]
    assert "No cluster has two rows, so none can be split." in texts(svg)


def test_the_scores_are_on_one_axis_with_intervals_and_the_threshold():
    written = texts(charts_of(REPORT)["scores"])
    assert "reported (IID): 0.150" in written
    assert "by patient_id (LOCO): 0.250 (0.220 – 0.280)" in written
    assert "on new patients (e0): 0.300 (0.260 – 0.340)" in written
    assert "e0 at least, if the curve is convex: 0.280" in written
    assert "threshold 0.450" in written


def test_scores_are_told_apart_by_shape_and_not_by_colour_alone():
    shapes = marks(figures_of(REPORT)["scores"])
    assert len(set(shapes)) == len(shapes) == 4


def test_no_line_shows_between_the_digits_of_a_score():
    """The threshold at 0.22 runs through all labels; it is covered where they are."""
    root = ET.fromstring(charts_of(report(threshold=0.22))["scores"])
    elements = list(root)
    (threshold,) = [e for e in elements if e.get("stroke-dasharray")]
    labels = [e for e in elements if re.match("reported|by patient_id|on new", e.text or "")][1:]
    assert len(labels) == 3
    for label in labels:
        cover = elements[elements.index(label) - 1]
        assert cover.get("fill") == LIGHT["paper"]
        assert elements.index(cover) > elements.index(threshold)


def test_an_unknown_score_has_an_interval_and_no_point():
    figure = figures_of(unknown())["scores"]
    assert "on new patients (e0): unknown (0.220 – 0.800)" in texts(figure.svg())
    assert marks(figure) == ["o", "s"]


def test_a_threshold_nobody_gave_is_named_for_what_it_is():
    audit = report(settings={"threshold_given": False})
    assert "constant guess 0.450" in texts(charts_of(audit)["scores"])


@pytest.mark.parametrize(("threshold", "arrow"), [(1e6, "→"), (-1e6, "←")])
def test_a_threshold_far_away_is_pointed_to_and_does_not_stretch_the_axis(threshold, arrow):
    svg = charts_of(report(threshold=threshold))["scores"]
    assert re.search(rf"threshold .* {arrow}", texts(svg))
    assert "0.2" in texts(svg)
    assert "stroke-dasharray" not in svg


def test_the_extrapolation_ends_at_e0_with_its_band():
    figure = figures_of(REPORT)["loss_curve"]
    assert "e0 0.300" in texts(figure.svg())
    assert "extrapolated to no leakage (e0)" in texts(figure.svg())
    (area,) = drawn(figure).collections
    ends = area.get_paths()[0].get_extents()
    assert (ends.x0, ends.x1, ends.y0, ends.y1) == (-0.07, 0.0, 0.23, 0.34)


def test_leakage_in_one_direction_has_one_measured_curve():
    path = replace(REPORT.path, measured_loss=REPORT.curve.loss)
    svg = charts_of(report(path=path))["loss_curve"]
    assert "without rows of training clusters" not in texts(svg)
    assert "without rows of training clusters" in texts(charts_of(REPORT)["loss_curve"])


def test_nothing_is_extrapolated_when_nothing_is_known():
    figure = figures_of(unknown())["loss_curve"]
    assert "e0" not in texts(figure.svg())
    assert not dashed(figure)


def test_split_clusters_are_a_mixture_of_seen_and_new_rows():
    figure = figures_of(split())["loss_curve"]
    assert "measured on clusters broken on purpose" in texts(figure.svg())
    assert dashed(figure) == 1


def test_evidence_that_leaves_everything_open_shows_the_measured_curve_only():
    audit = linked("linkage_quality", "upper", e0=None, p0=None, inflation=None)
    assert "e0" not in texts(charts_of(audit)["loss_curve"])
    assert "taken as known" not in texts(charts_of(audit)["sensitivity_split"])


def test_the_tipping_point_and_what_is_known_are_marked():
    svg = charts_of(REPORT)["sensitivity"]
    assert "tips at 30%" in texts(svg)
    assert "taken as known: 10%" in texts(svg)
    figure = figures_of(report(settings={"claim": (0.05, 0.15)}))["sensitivity"]
    (span,) = drawn(figure).patches
    assert (span.get_x(), span.get_width()) == pytest.approx((0.05, 0.1))
    audit = report(settings={"claim": (0.05, 0.15)})
    assert "taken as known: 5% to 15%" in texts(charts_of(audit)["sensitivity"])


def test_a_model_that_fails_as_it_is_has_its_tipping_point_at_none():
    audit = report(threshold=0.25, tipping_cluster_error=0.0)
    assert "reached without leakage" in texts(charts_of(audit)["sensitivity"])


def test_shares_of_other_units_are_shown_on_the_axis_of_the_curve():
    curve = REPORT.sensitivity
    p0 = report(p0_source="p0", settings={"claim": (0.01, 0.05)})
    assert claimed_errors(p0, curve) == pytest.approx((0.02, 0.06, 0.1))
    assert claimed_errors(REPORT, curve) == pytest.approx((0.1, 0.1, 0.1))
    assert claimed_errors(unknown(), curve) is None
    assert claimed_errors(split(), curve) is None
    seen = linked("resolved_rows")
    assert claimed_errors(seen, seen.fragment_sensitivity) == pytest.approx((0.2, 0.3, 0.4))


def test_what_is_known_may_lie_beyond_the_axis():
    """The curve ends at a split rate of 50%; evidence of more than that has no place on it."""
    audit = linked("resolved_rows")
    audit = changed(audit, settings={"claim": (0.55, 0.7)})
    svg = charts_of(audit)["sensitivity_split"]
    assert "taken as known: 55% to 70% (beyond this axis)" in texts(svg)
    figure = figures_of(audit)["sensitivity_split"]
    assert not drawn(figure).patches
    assert "D" not in marks(figure)


def test_more_rows_than_two_parts_of_a_cluster_explain_are_no_rate_above_one():
    audit = linked("resolved_rows")
    audit = changed(audit, settings={"claim": (0.4, 1.17)})
    assert "taken as known: 40% or more" in texts(charts_of(audit)["sensitivity_split"])


def test_a_share_that_no_cluster_error_stands_behind_has_an_axis_of_its_own():
    curve = replace(REPORT.sensitivity, error=None)
    audit = report(
        p0_source="p0",
        sensitivity=curve,
        tipping_cluster_error=None,
        settings={"claim": (0.05, 0.05), "p0_validation": 0.0},
    )
    svg = charts_of(audit)["sensitivity"]
    assert "training rows of validation clusters (p0)" in texts(svg)
    assert "taken as known: 5%" in texts(svg)
    assert "tips at 15%" in texts(svg)
    assert "cluster error" not in svg
    assert "share of training rows" in sensitivity_caption(audit, split=False)


def test_a_tipping_point_near_the_bottom_is_named_beside_the_threshold():
    """Above the line its text would hide e0."""
    svg = charts_of(report(threshold=0.26, tipping_cluster_error=0.02))["sensitivity"]
    assert "threshold 0.260, tips at 2%" in texts(svg)


def test_the_tipping_point_of_a_lower_bound_is_the_latest_possible():
    svg = charts_of(lower_bound())["sensitivity"]
    assert "tips at 30% at the latest" in texts(svg)
    assert "at 30% at the latest." in svg


def test_noise_is_drawn_to_its_ends():
    audit = report(curve=replace(REPORT.curve, stderr=[0.05, 0.05]))
    low, high = drawn(figures_of(audit)["loss_curve"]).get_ylim()
    assert low < 0.2 - 1.96 * 0.05
    assert high > 0.25 + 1.96 * 0.05


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(0.2, 0.3, "||"), (0.2, 9.0, "|>"), (0.2, None, "|>"), (-9.0, 0.2, "<|")],
)
def test_an_interval_that_leaves_the_axis_ends_in_an_arrow(low, high, ends, upright):
    ax = Canvas().subplots()
    set_axes(ax, Axis(low=0, high=1), Axis(low=0, high=1))
    spread(ax, 0.5, low, high, "blue", upright=upright)
    shapes = "".join(artist.get_marker() for artist in ax.lines if artist.get_marker() != "None")
    assert shapes == (ends.translate(str.maketrans("|<>", "_v^")) if upright else ends)
    points = [xy for artist in ax.lines for xy in artist.get_ydata() if upright]
    assert all(0 <= value <= 1 for value in points)


def test_where_no_row_leaked_nothing_is_extrapolated_in_words():
    path = replace(REPORT.path, exposure=(0.0, 0.0))
    text = curve_caption(report(path=path, settings={"claim": (0.0, 0.0)}))
    assert "to the left" not in text
    assert text.endswith("No row is assumed to have leaked, so e0 is read at 0%.")


def test_lower_bounds_have_no_band():
    for figure in figures_of(lower_bound()).values():
        assert not drawn(figure).collections
    assert "e0 is at least about this" in texts(charts_of(lower_bound())["sensitivity"])
    assert "e0 at least 0.300" in texts(charts_of(lower_bound())["loss_curve"])


def test_the_residual_profile_shows_the_noise_and_what_is_not_excluded():
    written = texts(charts_of(REPORT)["residual"])
    assert "not excluded by the curve: 0% to 10%" in written
    assert "differences are within the noise" in written
    assert "p0* 0%" in written


# --- for everybody --------------------------------------------------------------------------------


@pytest.mark.parametrize("audit", [REPORT, split(), unknown(), lower_bound(), by_doses()])
def test_every_picture_has_words_for_those_who_do_not_see_it(audit):
    for name, svg in charts_of(audit).items():
        root = ET.fromstring(svg)
        labels = {root.find(f"{SVG}title").get("id"), root.find(f"{SVG}desc").get("id")}
        assert root.get("role") == "img"
        assert set(root.get("aria-labelledby").split()) == labels
        assert all(name in label for label in labels)
        assert len(root.find(f"{SVG}desc").text) > 40


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("background", ["paper", "panel"])
def test_text_has_the_contrast_that_wcag_asks_for(colours, background):
    for name in TEXT:
        assert contrast(colours[name], colours[background]) >= 4.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_marks_and_lines_have_the_contrast_that_wcag_asks_for(colours):
    for name in MARK_COLOURS:
        assert contrast(colours[name], colours["paper"]) >= 3


def test_a_file_of_its_own_has_its_colours_and_its_background():
    """A dark screen does not make the page around a picture dark."""
    root = ET.fromstring(charts_of(REPORT)["scores"])
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style
    background = root.find(f"{SVG}rect")
    assert background.get("fill") == LIGHT["paper"]
    for name in ("width", "height"):
        assert background.get(name) == root.get(name)


@pytest.mark.parametrize("audit", [REPORT, split(), unknown(), lower_bound(), by_doses()])
def test_every_colour_of_a_picture_has_one_for_dark_screens(audit):
    for svg in charts_of(audit).values():
        used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', svg))
        style = ET.fromstring(svg).find(f"{SVG}style").text
        assert used <= set(LIGHT.values())
        assert all(f'[fill="{colour}"]' in style for colour in used)


@pytest.mark.parametrize("audit", [REPORT, split(), audited()])
def test_each_figure_of_a_recorded_audit_is_drawn_once(audit, monkeypatch):
    """The page and the files of plots share it; drawing takes longer than all the rest of a report."""
    drawn, draw = [], drawing.drawing_of

    def counted(*given, name, **more):
        drawn.append(name)
        return draw(*given, name=name, **more)

    monkeypatch.setattr(document, "drawing_of", counted)
    files = files_of(audit)
    plots = [name[6:-4] for name in files if name.startswith("plots/")]
    shown = re.findall('id="b3-([a-z_]*)-title"', files["report.html"])
    assert sorted(drawn) == sorted({*plots, *shown})


def test_the_same_report_gives_the_same_bytes_whatever_the_user_set():
    first = charts_of(REPORT)
    with mpl.rc_context({"font.size": 30, "axes.grid": False, "lines.linewidth": 9}):
        assert charts_of(REPORT) == first
        assert mpl.rcParams["font.size"] == 30


def test_a_picture_says_nothing_about_when_and_by_what_it_was_made():
    for svg in charts_of(REPORT).values():
        assert "atplotlib" not in svg
        assert not re.search(r"\b20\d\d-\d\d", svg)


def test_a_report_is_printed_without_matplotlib():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from example_reports import REPORT;"
        "str(REPORT); sys.exit('matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(Path(__file__).parents[1])], check=True)


HOSTILE = [
    "<script>alert(1)</script>",
    "]]></style><svg onload=x>",
    '"><a href="x">',
    "a\x00\u202eb",
    "$\\frac{1}{",
    "漢字",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_become_markup_in_a_picture(name):
    for svg in charts_of(report(settings={"loss": name, "cluster": name, "model": name})).values():
        check_picture(svg)
        assert "\u202e" not in svg


# --- numbers of every kind ------------------------------------------------------------------------


def scaled(factor: float, shift: float = 0.0) -> AuditReport:
    """Return the example with all losses in other units."""

    def lose(value):
        if isinstance(value, tuple):
            return tuple(map(lose, value))
        return None if value is None else value * factor + shift

    def losses(result, *names):
        return replace(result, **{name: lose(getattr(result, name)) for name in names})

    curve = LossCurve(
        injected=REPORT.curve.injected,
        loss=lose(REPORT.curve.loss),
        stderr=[abs(factor) * error for error in REPORT.curve.stderr],
        n_train=1600,
    )
    audit = unknown() if factor < 0 else REPORT
    names = ("e0", "e0_interval", "e0_secant", "loco", "loco_interval", "iid", "threshold")
    return changed(
        audit,
        **{name: lose(getattr(audit, name)) for name in names},
        curve=curve,
        path=audit.path and losses(audit.path, "measured_loss", "loss", "low", "high"),
        sensitivity=losses(audit.sensitivity, "e0", "low", "high"),
        fragments=losses(audit.fragments, "loss", "seen_loss"),
        fragment_sensitivity=losses(audit.fragment_sensitivity, "e0", "low", "high"),
        settings={"loss": "squared", "loss_bound": None},
    )


@pytest.mark.parametrize(
    "audit",
    [
        scaled(1e6),
        scaled(1e-9),
        scaled(1.0, -5.0),
        scaled(0.0),
        scaled(0.0, 7.0),
        scaled(-1.0),
        scaled(1e-9, 1e6),
        scaled(1e300),
        split(p0=0.0, e0=0.25),
        report(threshold=None),
        report(search=replace(REPORT.search, p0=(0.0,), residual=(0.0,))),
        report(curve=LossCurve(injected=[0], loss=[0.25], n_train=9), path=None),
        report(settings={"loss": "x" * 500}),
    ],
)
def test_losses_of_every_size_are_drawn_inside_the_frame(audit):
    for svg in charts_of(audit).values():
        check_picture(svg)


@given(values=st.lists(numbers, min_size=1, max_size=6), more=st.lists(anything, max_size=4))
def test_an_axis_holds_its_core(values, more):
    axis = axis_for(values, more)
    assert all(axis.low <= value <= axis.high for value in values)


@settings(max_examples=30, deadline=None)
@given(core=st.lists(numbers, min_size=1, max_size=3))
@example(core=[2.225073858507e-311])
def test_an_axis_has_some_ticks_with_different_labels(core):
    ax = Canvas().subplots()
    set_axes(ax, axis_for(core), axis_for(core))
    low, high = ax.get_ylim()
    ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
    labels = ax.yaxis.get_major_formatter().format_ticks(ticks)
    assert 2 <= len(ticks) <= 9
    assert len(set(labels)) == len(labels)


def test_ticks_of_shares_are_percentages():
    ax = Canvas().subplots()
    set_axes(ax, Axis(low=0.0, high=0.2, shares=True))
    assert ax.xaxis.get_major_formatter().format_ticks([0.0, 0.05, 0.1]) == ["0%", "5%", "10%"]


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    points=st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=5),
    core=st.lists(numbers, min_size=1, max_size=3),
    text=st.text(max_size=120),
)
@example(points=[(0.0, 0.0, 1.0)], core=[0.0, 1.0], text="\x01" * 20)
@example(points=[(0.25, 0.0, 1.0)], core=[1000000.0, 1e-15], text="\U0004ffe9" * 11)
@example(points=[(0.0, 0.09, 1e6)], core=[1e6], text="\U000fc898" * 11)
def test_whatever_is_drawn_stays_inside_the_frame(points, core, text):
    limits = axis_for(core)

    def draw(ax: Axes) -> None:
        set_axes(ax, limits, replace(limits, label=text))
        across, low, high = zip(*points, strict=True)
        entries = [
            line(ax, across, low, LIGHT["blue"], label=text),
            band(ax, across, low, high, LIGHT["blue"], label="band"),
        ]
        for x, y, z in points:
            mark(ax, x, y, "D", LIGHT["blue"])
            spread(ax, x, y, z, LIGHT["green"], upright=True)
            entries.append(shade(ax, y, z, label=text))
        write(ax, core[0], core[-1], "beside a point")
        write_in_corner(ax, text[:20], top=True)
        write_above(ax, 0.5, text[:20])
        write_in_row(ax, core[0], text[:20])
        legend(ax, entries)

    figure = Figure(name="any", title=text, alt=text, caption="", draw=draw, height=200)
    for standalone in (True, False):
        check_picture(figure.svg(standalone=standalone))


def test_a_line_is_cut_where_it_leaves_the_axis():
    """Nobody shall read a level off the upper edge."""

    def draw(ax: Axes) -> None:
        set_axes(ax, Axis(low=0, high=2), Axis(low=0, high=1))
        line(ax, [0, 1, 2], [0.5, 1.5, 0.5], LIGHT["blue"])

    figure = Figure(name="cut", title="", alt="", caption="", draw=draw, height=200)
    root = ET.fromstring(figure.svg())
    (curve,) = [e for e in root.iter(f"{SVG}path") if e.get("stroke") == LIGHT["blue"]]
    assert curve.get("clip-path") == "url(#b3-cut-clip)"
    frame = root.find(f"{SVG}clipPath/{SVG}rect")
    assert float(frame.get("height")) == 200


def test_text_that_is_too_long_is_shortened():
    check_picture(charts_of(report(settings={"loss": "x" * 100}))["scores"])
