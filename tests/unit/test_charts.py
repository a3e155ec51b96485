"""The charts of a report: what they show, that they stay inside, and that everybody can read them."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from example_reports import REPORT, linked, lower_bound, report, split, unknown
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_b3 import AuditReport, LossCurve
from mlflow_b3.reporting.charts import (
    CHARACTER,
    DARK,
    LIGHT,
    MARK_COLOURS,
    TEXT,
    WIDTH,
    Axis,
    Plot,
    axis_for,
    charts_of,
    claimed_errors,
    plots_of,
)
from mlflow_b3.reporting.words import curve_caption, sensitivity_caption

pytestmark = pytest.mark.newest

SVG = "{http://www.w3.org/2000/svg}"
TAGS = {
    *("svg", "style", "title", "desc", "text", "line", "polyline", "polygon", "rect", "circle"),
}
numbers = st.floats(-1e12, 1e12) | st.floats(-1e-9, 1e-9) | st.sampled_from([0.0, 0.25, 1e6])
anything = st.floats() | numbers


def texts(svg: str) -> str:
    """Return all that is written in a picture."""
    return "\n".join(text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text"))


def drawn(svg: str, kind: str) -> list[ET.Element]:
    """Return what has a class."""
    return [e for e in ET.fromstring(svg).iter() if kind in e.get("class", "").split()]


def corners(element: ET.Element) -> list[tuple[float, float]]:
    """Return the points between which an element lies."""
    at = {name: float(value) for name, value in element.attrib.items() if _number(value)}
    tag = element.tag.removeprefix(SVG)
    if tag in ("polyline", "polygon"):
        pairs = [pair.split(",") for pair in element.get("points", "").split()]
        return [(float(x), float(y)) for x, y in pairs]
    if tag == "line":
        return [(at["x1"], at["y1"]), (at["x2"], at["y2"])]
    if tag == "circle":
        return [(at["cx"] - at["r"], at["cy"] - at["r"]), (at["cx"] + at["r"], at["cy"] + at["r"])]
    if tag == "rect":
        x, y = at.get("x", 0.0), at.get("y", 0.0)
        return [(x, y), (x + at["width"], y + at["height"])]
    if tag == "text":
        width = CHARACTER * len(element.text or "")
        before = {"middle": width / 2, "end": width}.get(element.get("text-anchor", ""), 0.0)
        return [(at["x"] - before, at["y"] - 10), (at["x"] - before + width, at["y"] + 2)]
    return []


def _number(value: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9.]+", value))


def check_picture(svg: str) -> None:
    """Check that a picture is well formed, has only numbers for numbers, and stays in its frame."""
    root = ET.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= TAGS
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for element in root.iter():
        assert not re.search(r"\b(nan|inf)", " ".join(element.attrib.values()), re.IGNORECASE)
        for x, y in corners(element):
            assert -0.5 <= x <= width + 0.5, ET.tostring(element)
            assert -0.5 <= y <= height + 0.5, ET.tostring(element)


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
    drawn_curves = [name for name in plots_of(audit) if name.startswith("sensitivity")]
    assert drawn_curves == curves


@pytest.mark.parametrize(
    "audit", [REPORT, split(), unknown(), report(fragments=None, fragment_sensitivity=None)]
)
def test_every_audit_has_a_file_of_each_name(audit):
    """On the training run a file of an older audit would otherwise pass for one of this."""
    files = charts_of(audit)
    assert sorted(files) == ["loss_curve", "residual", "scores", "sensitivity", "sensitivity_split"]
    for svg in files.values():
        check_picture(svg)


def test_a_curve_that_there_is_not_says_so():
    svg = charts_of(report(fragments=None, fragment_sensitivity=None))["sensitivity_split"]
    assert "No cluster has two rows, so that none can be split." in texts(svg)


def test_the_scores_are_on_one_axis_with_intervals_and_the_threshold():
    written = texts(charts_of(REPORT)["scores"])
    assert "ignoring clusters (IID): 0.150" in written
    assert "on noisy clusters (LOCO): 0.250 (0.220 – 0.280)" in written
    assert "on new clusters (e0): 0.300 (0.260 – 0.340)" in written
    assert "e0 at least, if the curve is convex: 0.280" in written
    assert "threshold 0.450" in written


def test_scores_are_told_apart_by_shape_and_not_by_colour_alone():
    marks = drawn(charts_of(REPORT)["scores"], "fill")
    shapes = [(mark.tag, len(corners(mark))) for mark in marks]
    assert len(set(shapes)) == len(shapes) == 4


def test_no_line_shows_between_the_digits_of_a_score():
    """The threshold at 0.22 runs through all labels; it is covered where they are."""
    root = ET.fromstring(charts_of(report(threshold=0.22))["scores"])
    elements = list(root)
    (line,) = [e for e in elements if "dashed" in e.get("class", "")]
    labels = [e for e in elements if re.match("ignoring|on noisy|on new", e.text or "")][1:]
    assert len(labels) == 3
    for label in labels:
        cover = elements[elements.index(label) - 1]
        assert cover.get("class") == "paper"
        assert elements.index(cover) > elements.index(line)
        (left, top), (right, bottom) = corners(cover)
        (x0, y0), (x1, y1) = corners(label)
        assert left < x0 < corners(line)[0][0] < x1 < right
        assert top < y0 < y1 < bottom


def test_an_unknown_score_has_an_interval_and_no_point():
    assert "on new clusters (e0): unknown (0.220 – 0.800)" in texts(charts_of(unknown())["scores"])
    assert len(drawn(charts_of(unknown())["scores"], "fill")) == 2


def test_a_threshold_nobody_gave_is_named_for_what_it_is():
    audit = report(settings={"threshold_given": False})
    assert "best constant answer 0.450" in texts(charts_of(audit)["scores"])


@pytest.mark.parametrize(("threshold", "arrow"), [(1e6, "→"), (-1e6, "←")])
def test_a_threshold_far_away_is_pointed_to_and_does_not_stretch_the_axis(threshold, arrow):
    svg = charts_of(report(threshold=threshold))["scores"]
    assert re.search(rf"threshold .* {arrow}", texts(svg))
    assert "0.2" in texts(svg)
    assert not drawn(svg, "dashed")


def test_the_extrapolation_ends_at_e0_with_its_band():
    svg = charts_of(REPORT)["loss_curve"]
    assert "e0 0.300" in texts(svg)
    assert len(drawn(svg, "area")) == 2  # the band and its sample
    assert "extrapolated to no leakage (e0)" in texts(svg)


def test_leakage_in_one_direction_has_one_measured_curve():
    path = replace(REPORT.path, measured_loss=REPORT.curve.loss)
    svg = charts_of(report(path=path))["loss_curve"]
    assert "without rows of training clusters" not in texts(svg)
    assert "without rows of training clusters" in texts(charts_of(REPORT)["loss_curve"])


def test_nothing_is_extrapolated_when_nothing_is_known():
    svg = charts_of(unknown())["loss_curve"]
    assert "e0" not in texts(svg)
    assert not drawn(svg, "dashed")


def test_split_clusters_are_a_mixture_of_seen_and_new_rows():
    svg = charts_of(split())["loss_curve"]
    assert "measured on clusters broken on purpose" in texts(svg)
    (line,) = drawn(svg, "dashed")
    assert len(corners(line)) == 2


def test_evidence_that_leaves_everything_open_shows_the_measured_curve_only():
    audit = linked("linkage_quality", "upper", e0=None, p0=None, inflation=None)
    assert "e0" not in texts(charts_of(audit)["loss_curve"])
    assert "taken as known" not in texts(charts_of(audit)["sensitivity_split"])


def test_the_tipping_point_and_what_is_known_are_marked():
    svg = charts_of(REPORT)["sensitivity"]
    assert "tips at 30%" in texts(svg)
    assert "taken as known: 10%" in texts(svg)
    assert len(drawn(svg, "shade")) == 2
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
    audit = replace(audit, settings=replace(audit.settings, claim=(0.55, 0.7)))
    svg = charts_of(audit)["sensitivity_split"]
    assert "taken as known: 55% to 70% (beyond this axis)" in texts(svg)
    assert len(drawn(svg, "shade")) == 1  # the sample in the legend
    assert not [e for e in drawn(svg, "fill") if "blue" in e.get("class")]


def test_more_rows_than_two_parts_of_a_cluster_explain_are_no_rate_above_one():
    audit = linked("resolved_rows")
    audit = replace(audit, settings=replace(audit.settings, claim=(0.4, 1.17)))
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


def test_the_tipping_point_of_a_lower_bound_is_the_latest_possible():
    svg = charts_of(lower_bound())["sensitivity"]
    assert "tips at 30% at the latest" in texts(svg)
    assert "at 30% at the latest." in svg


def test_noise_is_drawn_to_its_ends():
    audit = report(curve=replace(REPORT.curve, stderr=[0.05, 0.05]))
    axis = plots_of(audit)["loss_curve"].y
    assert axis.holds(0.25 + 1.96 * 0.05)
    assert axis.holds(0.2 - 1.96 * 0.05)


@pytest.mark.parametrize(("low", "high"), [(0.2, 9.0), (0.2, None), (-9.0, 0.2)])
def test_an_error_bar_that_leaves_the_axis_ends_in_an_arrow(low, high):
    plot = Plot("p", "", "", x=Axis(low=0, high=1), y=Axis(low=0, high=1))
    plot.error_bar(0.5, low, high, "blue")
    ends = [len(corners(e)) for e in drawn(plot.standalone(), "blue") if e.tag.endswith("polyline")]
    assert sorted(ends) == [2, 3]


def test_where_no_row_leaked_nothing_is_extrapolated_in_words():
    path = replace(REPORT.path, exposure=(0.0, 0.0))
    text = curve_caption(report(path=path, settings={"claim": (0.0, 0.0)}))
    assert "to the left" not in text
    assert text.endswith("By what was taken as known no row leaked, so e0 is read there.")


def test_lower_bounds_have_no_band():
    for svg in charts_of(lower_bound()).values():
        assert not drawn(svg, "area")
    assert "e0 is at least about this" in texts(charts_of(lower_bound())["sensitivity"])
    assert "e0 at least 0.300" in texts(charts_of(lower_bound())["loss_curve"])


def test_the_residual_profile_shows_the_noise_and_what_is_not_excluded():
    written = texts(charts_of(REPORT)["residual"])
    assert "not excluded by the curve: 0% to 10%" in written
    assert "no difference beyond the noise" in written
    assert "p0* 0%" in written


# --- for everybody --------------------------------------------------------------------------------


@pytest.mark.parametrize("audit", [REPORT, split(), unknown(), lower_bound()])
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
    svg = charts_of(REPORT)["scores"]
    root = ET.fromstring(svg)
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style
    background = drawn(svg, "paper")[0]
    assert (background.get("width"), background.get("height")) == (
        root.get("width"),
        root.get("height"),
    )


HOSTILE = [
    "<script>alert(1)</script>",
    "]]></style><svg onload=x>",
    '"><a href="x">',
    "a\x00\u202eb",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_become_markup_in_a_picture(name):
    for svg in charts_of(report(settings={"loss": name, "cluster": name, "model": name})).values():
        check_picture(svg)
        names = {key for element in ET.fromstring(svg).iter() for key in element.attrib}
        assert not [key for key in names if key.startswith("on") or "href" in key]
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
    audit = losses(
        unknown() if factor < 0 else REPORT,
        *("e0", "e0_interval", "e0_secant", "loco", "loco_interval", "iid", "threshold"),
    )
    return replace(
        audit,
        curve=curve,
        path=audit.path and losses(audit.path, "measured_loss", "loss", "low", "high"),
        sensitivity=losses(audit.sensitivity, "e0", "low", "high"),
        fragments=losses(audit.fragments, "loss", "seen_loss"),
        fragment_sensitivity=losses(audit.fragment_sensitivity, "e0", "low", "high"),
        settings=replace(audit.settings, loss="squared", loss_bound=None),
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
def test_an_axis_holds_its_core_and_has_some_ticks_with_different_labels(values, more):
    axis = axis_for(values, more)
    assert all(axis.low <= value <= axis.high for value in values)
    ticks = axis.ticks()
    labels = [label for _, label in ticks]
    assert 1 <= len(ticks) <= 9
    assert len(set(labels)) == len(labels)
    assert all(0 <= axis.part(value) <= 1 for value, _ in ticks)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 0.5, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (0.13, 0.36, ["0.15", "0.20", "0.25", "0.30", "0.35"]),
        (0, 1.5e6, ["0", "2.5e+05", "5e+05", "7.5e+05", "1e+06", "1.25e+06", "1.5e+06"]),
        (-2.0, 1.0, ["-2.0", "-1.5", "-1.0", "-0.5", "0", "0.5", "1.0"]),
    ],
)
def test_ticks_are_round_numbers(low, high, labels):
    assert [label for _, label in Axis(low=low, high=high).ticks()] == labels


def test_ticks_of_shares_are_percentages():
    axis = Axis(low=0.0, high=0.2, shares=True)
    assert [label for _, label in axis.ticks()][:3] == ["0%", "5%", "10%"]


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=5),
    core=st.lists(numbers, min_size=1, max_size=3),
    text=st.text(max_size=120),
)
def test_whatever_is_drawn_stays_inside_the_frame(points, core, text):
    plot = Plot("any", text, text, x=axis_for(core), y=axis_for(core), legend=2)
    plot.entry(text, "blue", "line")
    plot.entry(text, "blue", "diamond")
    plot.line([point[:2] for point in points], "blue")
    plot.band(*zip(*points, strict=True), "blue")
    for x, y, z in points:
        plot.mark(x, y, "diamond", "blue")
        if math.isfinite(x + y + z):
            plot.error_bar(x, min(y, z), max(y, z), "green")
            plot.interval(x, min(y, z), max(y, z), "green")
            plot.span(min(y, z), max(y, z))
            plot.level(y, text, "orange")
            plot.upright(x, text, "orange")
            plot.label(x, y, text)
    check_picture(plot.standalone())
    check_picture(plot.inline())


def test_a_line_is_cut_where_it_leaves_the_axis():
    """Nobody shall read a level off the upper edge."""
    plot = Plot("cut", "", "", x=Axis(low=0, high=2), y=Axis(low=0, high=1))
    plot.line([(0, 0.5), (1, 1.5), (2, 0.5)], "blue")
    runs = [e.get("points") for e in plot.root.iter("polyline")]
    assert len(runs) == 2
    middle = {point.split(",")[0] for run in runs for point in run.split()}
    quarter = plot.left + (plot.right - plot.left) / 4
    assert f"{quarter:g}" in middle


def test_text_that_is_too_long_is_shortened():
    plot = plots_of(report(settings={"loss": "x" * 100}))["scores"]
    longest = max(len(text.text or "") for text in plot.root.iter("text"))
    assert longest <= WIDTH / CHARACTER
