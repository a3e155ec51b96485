"""Condition numbers of the papers' linear systems, and what they look like (thesis, figures 6.5 to 6.7)."""

import matplotlib.pyplot as plt
import numpy as np
from experiment import Outcome, Request, Table
from matplotlib.figure import Figure
from problem import Array
from scipy.special import betainc
from scipy.stats import binom

P0 = 0.1
ORDER = 7
#: The thesis shows these sizes.
SHOWN = (10, 100, 1000)


def run(request: Request) -> Outcome:
    largest = 100 if request.quick else 1000
    sizes = [size for size in (8, 10, 15, 20, 30, 50, 100, 200, 500, 1000) if size <= largest]
    found: dict[str, list[float]] = {"A": [], "A, Sketch(7)": [], "AΨ": []}
    for size in request.steps(sizes, "conditioning"):
        matrix = leakage_matrix(size)
        found["A"].append(condition(matrix))
        found["A, Sketch(7)"].append(condition(sketched(size)))
        found["AΨ"].append(condition(matrix @ basis(size)))
    sizes = sizes[: len(found["A"])]
    table = Table(
        title=f"condition numbers, p0 = {P0}, 2n' levels, polynomials of order {ORDER} (figure 6.5)",
        columns=["n'", *found],
        rows=[
            [size, *(f"{value:.3g}" for value in row)]
            for size, row in zip(sizes, zip(*found.values(), strict=True), strict=True)
        ],
        note="The thesis shows a figure only: A degrades with n', AΨ improves. Beyond 1e16 a condition number "
        "says only that the matrix is singular in double precision.",
    )
    metrics = {
        f"condition/{name.split(',')[0] if name != 'A, Sketch(7)' else 'sketch'}/{size}".replace(
            "AΨ", "basis"
        ): value
        for name, values in found.items()
        for size, value in zip(sizes, values, strict=True)
    }
    shown = [size for size in SHOWN if size <= largest]
    drawn = {
        "conditioning": draw_conditions(sizes, found),
        "conditioning-matrices": draw_matrices(shown),
    }
    return Outcome(tables=[table], metrics=metrics, pictures=drawn)


def shares(size: int) -> Array:
    """Return 2n' levels from p0 to 1."""
    return np.linspace(P0, 1, 2 * size)


def leakage_matrix(size: int) -> Array:
    """Return A: the probability of j leaked rows among n' at each level."""
    return np.asarray(binom.pmf(np.arange(size + 1), size, shares(size)[:, None]))


def basis(size: int) -> Array:
    """Return Ψ: (j/n')^k for k = 0 … s."""
    return np.vander(np.arange(size + 1) / size, ORDER + 1, increasing=True)


def sketched(size: int, groups: int = 7) -> Array:
    """Return A with its columns but the first summed over groups of neighbours."""
    ends = np.linspace(0, size, groups + 1).round().astype(int)
    p = shares(size)[:, None]
    below = np.where(ends < size, betainc(size - ends.clip(max=size - 1), ends + 1, 1 - p), 1.0)
    return np.column_stack([below[:, 0], np.diff(below, axis=1)])


def condition(matrix: Array) -> float:
    """Return the ratio of the largest to the smallest singular value."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def draw_conditions(sizes: list[int], found: dict[str, list[float]]) -> Figure:
    figure, panel = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (name, values), style in zip(found.items(), ("o-", "^--", "s-"), strict=True):
        panel.loglog(sizes, np.minimum(values, 1e18), style, label=name)
    panel.axhline(1e16, color="0.6", linestyle=":", linewidth=1)
    panel.set_xlabel("training rows n'")
    panel.set_ylabel("condition number")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    plt.close(figure)
    return figure


def draw_matrices(sizes: list[int]) -> Figure:
    figure, panels = plt.subplots(
        2, len(sizes), figsize=(3.2 * len(sizes), 5.4), squeeze=False, layout="constrained"
    )
    for size, (upper, lower) in zip(sizes, panels.T, strict=True):
        matrix = leakage_matrix(size)
        for panel, values, name in ((upper, matrix, "A"), (lower, matrix @ basis(size), "AΨ")):
            panel.imshow(values / values.max(), aspect="auto", cmap="viridis", vmax=0.7)
            panel.set_title(f"{name}, n' = {size}", fontsize=10)
            panel.set_ylabel("level")
        upper.set_xlabel("leaked rows j")
        lower.set_xlabel("polynomial")
    plt.close(figure)
    return figure
