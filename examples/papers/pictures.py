"""The pictures of the published experiments; see protocol.py and solution_times.py."""

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from protocol import Trials

#: Colours of Okabe and Ito, which colour-blind people can tell apart.
COLOURS = {
    "IID": "#999999",
    "LOCO": "#666666",
    "T4+mono": "#d55e00",
    "Basis(2)": "#e69f00",
    "Basis(7)": "#009e73",
    "Sketch": "#cc79a7",
    "default": "#0072b2",
    "default, own levels": "#56b4e9",
}
MARKERS = {"T4+mono": "s", "Sketch": "^", "Basis(7)": "D", "default": "o"}
TITLES = {
    "oracle": "Sampled from the true clusters, as published",
    "user": "Sampled from T̂ and V̂, as a user must",
}


def draw_errors(found: "Trials") -> Figure:
    """Draw the absolute errors of e0 as boxes, one panel for each setting."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.9), sharey=True, layout="constrained")
    for panel, (setting, errors) in zip(panels, found.errors.items(), strict=True):
        for place, name in enumerate(errors):
            values, colour = np.abs(errors[name]), COLOURS[name]
            panel.boxplot(
                values,
                positions=[place],
                widths=0.6,
                whis=(0, 100),
                patch_artist=True,
                boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
                medianprops={"color": "black", "linewidth": 1.6},
                whiskerprops={"color": colour},
                capprops={"color": colour},
            )
            spread = place + np.linspace(-0.16, 0.16, len(values))
            panel.plot(spread, values, "o", color=colour, markersize=3)
        loco = np.median(np.abs(errors["LOCO"]))
        panel.axhline(loco, color="0.3", linestyle=":", linewidth=1, zorder=0)
        names = [name.replace(", ", ",\n") for name in errors]
        panel.set_xticks(range(len(names)), names, fontsize=8)
        panel.set_title(TITLES[setting], fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("absolute error of e0")
    trials = len(found.errors["user"]["LOCO"])
    figure.suptitle(
        f"{found.problem.name}: e0 = {found.e0:.3g}; {trials} trials, whiskers to the extremes, "
        "dotted: median of LOCO",
        fontsize=10,
    )
    plt.close(figure)
    return figure


def draw_curves(found: "Trials") -> Figure:
    """Draw each trial's recovered losses e_j against the true ones."""
    methods = list(found.recovered)
    figure, row = plt.subplots(
        1, len(methods), figsize=(11, 2.7), sharex=True, sharey=True, layout="constrained"
    )
    for panel, name in zip(row, methods, strict=True):
        for number, each in enumerate(found.recovered[name]):
            label = "each trial" if not number else None
            panel.plot(each.leaked, each.losses, color=COLOURS[name], alpha=0.6, lw=1, label=label)
        panel.plot(found.leaked, found.curve, "k--", linewidth=1.6, label="true")
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("leaked rows $j$")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8, frameon=False, loc="upper right")
    low, high = found.curve.min(), found.curve.max()
    row[0].set_ylim(low - 0.15 * (high - low), high + 0.45 * (high - low))
    row[0].set_ylabel(f"{found.problem.name}: loss $e_j$")
    plt.close(figure)
    return figure


def draw_times(sizes: list[int], seconds: dict[str, list[float]]) -> Figure:
    """Draw the time of one estimate against the size of the training set."""
    figure, panel = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
    for name, taken in seconds.items():
        panel.loglog(
            sizes[: len(taken)], taken, marker=MARKERS[name], color=COLOURS[name], label=name
        )
        last = int(np.flatnonzero(np.isfinite(taken))[-1])
        if last + 1 < len(taken):
            panel.annotate(
                "refused\nbeyond",
                (sizes[last], taken[last]),
                xytext=(8, -4),
                textcoords="offset points",
                fontsize=8,
                color=COLOURS[name],
            )
    panel.set_xlabel("training rows n'")
    panel.set_ylabel("seconds for one estimate")
    panel.set_title("Time of one estimate with its interval, 10 levels", fontsize=10)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False)
    plt.close(figure)
    return figure
