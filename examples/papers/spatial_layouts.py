"""Corrected cross-validation in regions: is the correction right for one layout, or on average over layouts? (CVc, scenario of regions)"""

from dataclasses import dataclass

import cvc_cases
import cvc_design
import matplotlib.pyplot as plt
import numpy as np
from cvc_cases import SHORT
from experiment import Outcome, Request, Table, with_error
from matplotlib.figure import Figure
from problem import Array, Rows
from scipy.spatial.distance import cdist
from scipy.special import expit

from mlflow_b3.correlated.formulas import SLOPES, Bias, BiasSums
from mlflow_b3.correlated.targets import Draws, smoothed_logistic

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
    logistic, more = logistic_table(request)
    return Outcome(
        tables=[table, logistic],
        metrics=metrics | more,
        pictures={"spatial-layouts": draw(drawn)},
    )


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


# --- Logistic regression, for which there is no exact sum

#: New regions of a layout, and how many of their rows a simulated sample is compared with.
NEW_REGIONS, NEW_ROWS = 20, 6
#: In the simulation that raised the question: correction and bias given the layout, by loss.
QUESTION = {"log": (0.020, 0.014), "zero_one": (0.018, 0.013)}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Bias and correction of logistic regression in one layout, by loss, and how much more new regions share."""

    true: dict[str, Bias]
    correction: dict[str, Bias]
    excess: float


def logistic_table(request: Request) -> tuple[Table, dict[str, float]]:
    """Return bias and correction of logistic regression over layouts."""
    count, draws = (10, 60) if request.quick else (200, 300)
    found = [
        measure_logistic_layout(np.random.default_rng([request.seed, 1, number]), draws)
        for number in request.steps(range(count), "layouts, logistic regression")
    ]
    excess = np.array([layout.excess for layout in found])
    rows, metrics, apart = [], {}, {}
    for loss, (corrected, measured) in QUESTION.items():
        name = SHORT[loss]
        true = np.array([layout.true[loss].value for layout in found])
        correction = np.array([layout.correction[loss].value for layout in found])
        noise = [
            layout.true[loss].error ** 2 + layout.correction[loss].error ** 2 for layout in found
        ]
        apart[loss] = correction - true
        spread = np.sqrt(max(apart[loss].var() - np.mean(noise), 0.0))
        as_far = correction / true >= corrected / measured
        rows.append(
            [
                name,
                with_error(true),
                with_error(correction),
                with_error(apart[loss]),
                f"{spread:.4f} ({spread / true.mean():.0%})",
                f"{np.sqrt(np.mean(noise)):.4f}",
                f"{corrected / measured:.2f} times: {as_far.mean():.0%}",
                f"{np.corrcoef(apart[loss], excess)[0, 1]:.2f}",
            ]
        )
        metrics |= {
            f"logistic/{loss}/true": float(true.mean()),
            f"logistic/{loss}/correction": float(correction.mean()),
            f"logistic/{loss}/spread": float(spread),
            f"logistic/{loss}/as_far": float(as_far.mean()),
        }
    both = np.corrcoef(*apart.values())[0, 1] if len(found) > 2 else np.nan
    table = Table(
        title="the same for logistic regression, exponential kernel",
        columns=[
            "loss",
            "true bias given the layout",
            "correction",
            "correction - truth",
            "its spread by layout",
            "noise of one layout",
            "layouts as far above the truth as the one in question",
            "correlation with how far new regions are",
        ],
        rows=rows,
        note=f"`LogisticRegression(C=1)` on six features, {len(found)} layouts, {12 * draws} refits for each world and layout. The working model is the "
        "truth. Spread: standard deviation without the noise of the simulation. "
        f"Errors of both losses go together: their correlation is {both:.2f}.",
    )
    return table, metrics


def measure_logistic_layout(rng: np.random.Generator, draws: int) -> Layout:
    """Return bias and correction in one layout, both by `draws` refits of every fold.

    The bias is the mean of L₂(s_i)·(μ_i - m_i) over fields and targets, with m_i the mean of such a row in a new region
    given the field at all rows of the table. Only the world differs in the correction.
    """
    places, new = draw_places(rng), np.concatenate([draw_places(rng) for _ in range(NEW_REGIONS)])
    X = cvc_cases.field_covariates(rng)
    mean = 0.5 * X.sum(axis=1)
    learner = cvc_cases.Ridge(np.column_stack([np.ones(len(X)), X]), cvc_design.ridge_penalty(6))
    root, weights, left = cvc_cases.field_given(
        places, new, lambda one, other: exponential(cdist(one, other))
    )
    world = Draws(*cvc_cases.field_world(mean, places), int(rng.integers(2**31)))
    true, correction = ({loss: BiasSums(FOLDS) for loss in SHORT} for _ in range(2))
    for fold, (training, held) in enumerate(cvc_design.random_folds(len(X), FOLDS, rng)):
        field = rng.standard_normal((draws, len(X))) @ root.T
        chance = expit(mean + field)
        target = (rng.random(field.shape) < chance).astype(float)
        in_use = np.zeros((draws, len(held)))
        for row in rng.integers(len(new), size=(NEW_ROWS, draws)):
            known = np.einsum("ij,ij->i", weights[row], field)
            in_use += smoothed_logistic(mean[held] + known[:, None], left[row][:, None]) / NEW_ROWS
        score = learner.refitted(target[:, training], training, held)
        _add(true, fold, score, chance[:, held], in_use)
        drawn = world.batch(draws, fold * draws)
        score = learner.refitted(drawn.target[:, training], training, held)
        _add(correction, fold, score, drawn.expected[:, held], drawn.deployed[:, held])
    apart, shared = REGION[:, None] != REGION[None], exponential(cdist(new, places))
    return Layout(
        true={loss: sums.bias() for loss, sums in true.items()},
        correction={loss: sums.bias() for loss, sums in correction.items()},
        excess=float(shared.mean() - exponential(cdist(places, places))[apart].mean()),
    )


def _add(
    sums: dict[str, BiasSums], fold: int, score: Array, expected: Array, deployed: Array
) -> None:
    for loss, total in sums.items():
        for row in zip(SLOPES[loss](score), expected, deployed, strict=True):
            total.add(fold, *row)


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
