"""Corrected cross-validation in regions: is the correction right for one layout, or on average over layouts? (CVc, scenario of regions)"""

import matplotlib.pyplot as plt
import numpy as np
from experiment import Outcome, Request, Table, with_error
from matplotlib.figure import Figure
from problem import Array, Rows
from scipy.spatial.distance import cdist

#: Twelve regions of nine rows in a square, kernels of variance 1.5 and reach 3.
REGIONS, ROWS, SIDE, HALF = 12, 9, 10.0, 0.5
VARIANCE, REACH = 1.5, 3.0
REGION = np.repeat(np.arange(REGIONS), ROWS)
FOLDS = 12


def exponential(distance: Array) -> Array:
    return np.asarray(VARIANCE * np.exp(-distance / REACH))


def gaussian(distance: Array) -> Array:
    """Return the kernel of the paper's appendix A.3, with the same variance and reach."""
    return np.asarray(VARIANCE * np.exp(-((distance / REACH) ** 2) / 2))


KERNELS = {"exponential": exponential, "Gaussian": gaussian}


def run(request: Request) -> Outcome:
    count = 20 if request.quick else 300
    rows, metrics, drawn = [], {}, {}
    for name, kernel in KERNELS.items():
        found = np.array(
            [
                measure_layout(kernel, np.random.default_rng([request.seed, number]))
                for number in request.steps(range(count), f"layouts, {name} kernel")
            ]
        )
        true, shared, exact, none, excess = found.T
        drawn[name] = found
        apart = (shared - true) / true.mean()
        rows.append(
            [
                name,
                *(with_error(values) for values in (true, shared, exact, none)),
                f"{apart.std():.0%}",
                f"{(np.abs(apart) > 0.3).mean():.0%}",
                f"{np.corrcoef(apart, excess)[0, 1]:.2f}",
                f"{np.corrcoef((exact - true) / true.mean(), excess)[0, 1]:.2f}",
            ]
        )
        metrics |= {
            f"{name}/true": float(true.mean()),
            f"{name}/correction": float(shared.mean()),
            f"{name}/spread": float(apart.std()),
            f"{name}/correlation": float(np.corrcoef(apart, excess)[0, 1]),
        }
    table = Table(
        title="bias of cross-validation in new regions, and its correction, for fixed layouts of regions",
        columns=[
            "kernel",
            "true bias given the layout",
            "correction",
            "with what new regions really share",
            "nothing subtracted",
            "spread of correction - truth, by layout",
            "layouts more than 30% off",
            "its correlation with how far new regions are",
            "the same with what they really share",
        ],
        rows=rows,
        note=f"Ridge regression and squared loss, for which all columns are exact sums, over {count} layouts. New regions are anywhere in the square. "
        "The correction takes a new region to be as far from the observed ones as they are from each other. How far new regions are: "
        "mean covariance of new rows with the observed ones, less that of observed rows in different regions.",
    )
    return Outcome(tables=[table], metrics=metrics, pictures={"spatial-layouts": draw(drawn)})


def measure_layout(kernel: object, rng: np.random.Generator) -> tuple[float, ...]:
    """Return the true bias of one layout, its corrections, and how much more new regions share than observed ones.

    For y = f + δ + ε and a linear smoother with the cross-validated matrix H the bias of squared loss is
    (2/n)·Σ_ij H_ij (K_ij - C_j), with C_j the covariance of row j with a row in a new region.
    """
    places = draw_places(rng)
    inside = REGION[:, None] == REGION[None]
    covariance = kernel(cdist(places, places))  # type: ignore[operator]
    smoother = cross_validated_ridge(rng)
    new = np.concatenate([draw_places(rng) for _ in range(60)])
    shared_by_new = kernel(cdist(new, places)).mean(axis=0)  # type: ignore[operator]
    across = float(covariance[~inside].mean())
    scale = 2 / len(places)
    true = scale * float((smoother * (covariance - shared_by_new)).sum())
    # rows of other regions cancel in the correction, which takes them all to share the same
    correction = scale * float((smoother * inside * (covariance - across)).sum())
    exact = scale * float((smoother * inside * (covariance - shared_by_new)).sum())
    nothing = scale * float((smoother * inside * covariance).sum())
    return true, correction, exact, nothing, float(shared_by_new.mean() - across)


def draw_places(rng: np.random.Generator) -> Array:
    centres = rng.uniform(0, SIDE, size=(REGIONS, 2))
    return centres[REGION] + rng.uniform(-HALF, HALF, size=(len(REGION), 2))


def cross_validated_ridge(rng: np.random.Generator) -> Array:
    """Return the matrix that turns targets into cross-validated predictions; features differ between regions."""
    noise = np.sqrt(1.5) * rng.standard_normal((len(REGION), 6))
    X = 0.5 * (rng.standard_normal((REGIONS, 6))[REGION] + noise)
    X = np.column_stack([np.ones(len(X)), X])
    fold: Rows = rng.permutation(np.arange(len(X)) % FOLDS)
    matrix = np.zeros((len(X), len(X)))
    for number in range(FOLDS):
        held, training = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        gram = X[training].T @ X[training] + np.diag(np.r_[0, np.ones(6)])
        matrix[np.ix_(held, training)] = X[held] @ np.linalg.solve(gram, X[training].T)
    return matrix


def draw(found: dict[str, Array]) -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.8), layout="constrained")
    for panel, (name, values) in zip(panels, found.items(), strict=True):
        shown = panel.scatter(values[:, 0], values[:, 1], c=values[:, 4], s=9, cmap="coolwarm")
        ends = [values[:, :2].min(), values[:, :2].max()]
        panel.plot(ends, ends, color="0.5", linewidth=1)
        panel.set_title(f"{name} kernel", fontsize=10)
        panel.set_xlabel("true bias given the layout")
        figure.colorbar(shown, ax=panel, label="new regions share more")
    panels[0].set_ylabel("correction")
    plt.close(figure)
    return figure
