"""The simulation of Yuval and Rosset (AISTATS 2025, section 4.1 and appendix A.1), as their program draws it.

110 rows of ten entities on five days, two rows of each entity on the first four days and three on the
last. Ten covariates, each N(0, (ZZ' + 1.5 I)/4) with Z the indicators of entities and days, so that
they differ between groups. Log odds are half the sum of the covariates, plus intercepts of entities
(sd 1) and days (sd 0.5). Candidates use the first 10, 7 or 2 covariates. Eleven random folds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from mlflow_b3.correlated.structure import Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import smoothed_logistic

Array = np.ndarray[Any, Any]
Folds = list[tuple[Array, Array]]

ENTITY = np.repeat(np.arange(10), 11)
DAY = np.tile(np.repeat(np.arange(5), [2, 2, 2, 2, 3]), 10)
SD = (1.0, 0.5)
N = len(ENTITY)
SIZES = (10, 7, 2)
N_FOLDS = 11
#: Of one covariate: entity, day and the row itself have a quarter of 1, 1 and 1.5.
VARIANCE, COEFFICIENT = 0.875, 0.5
#: Losses by the target, or its chance, and the log odds of the score.
LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "log": lambda target, score: np.logaddexp(0.0, score) - target * score,
    "zero_one": lambda target, score: np.where(score >= 0, 1.0 - target, target),
}
#: Standard normal numbers of equal weight; a loss that jumps is off by no more than 1/4000 of its jump.
QUANTILES = norm.ppf((np.arange(4000) + 0.5) / 4000)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One table.

    Attributes
    ----------
    X : array (n, 10)
    mean : array (n,)
        Log odds without random effects.
    by_entity : array (n,)
        Intercept of each row's entity.
    chance : array (n,)
        Probability of class 1 with all effects.
    target : array (n,)
    folds : list of (training rows, validation rows)
    """

    X: Array
    mean: Array
    by_entity: Array
    chance: Array
    target: Array
    folds: Folds

    def design(self, size: int) -> Array:
        """Return the intercept and the first covariates."""
        return np.column_stack([np.ones(len(self.X)), self.X[:, :size]])


def published_sample(seed: int) -> Sample:
    """Return the table with this number."""
    rng = np.random.default_rng(seed)
    X = 0.5 * (
        rng.standard_normal((10, 10))[ENTITY]
        + rng.standard_normal((5, 10))[DAY]
        + np.sqrt(1.5) * rng.standard_normal((N, 10))
    )
    mean = COEFFICIENT * X.sum(axis=1)
    by_entity = SD[0] * rng.standard_normal(10)[ENTITY]
    chance = expit(mean + by_entity + SD[1] * rng.standard_normal(5)[DAY])
    return Sample(
        X=X,
        mean=mean,
        by_entity=by_entity,
        chance=chance,
        target=(rng.random(N) < chance).astype(float),
        folds=random_folds(N, N_FOLDS, rng),
    )


def random_folds(n: int, count: int, rng: np.random.Generator) -> Folds:
    """Return (training, validation) rows of folds of equal size."""
    return folds_of(rng.permutation(n) % count)


def folds_of(codes: Array) -> Folds:
    """Return (training, validation) rows, one fold for each code."""
    return [
        (np.flatnonzero(codes != code), np.flatnonzero(codes == code)) for code in np.unique(codes)
    ]


def levels(*, entity_new: bool = True) -> Structure:
    """Return the two levels."""
    return Structure(
        levels=(
            Level(name="entity", codes=ENTITY, new=entity_new),
            Level(name="day", codes=DAY, new=True),
        )
    )


def working_model(mean: Array, sd: tuple[float, ...] = SD) -> WorkingModel:
    """Return a working model that is given."""
    return WorkingModel(task="classification", mean=mean, sd=sd, sd_low=sd, sd_high=sd)


# --- The loss in use


def new_groups_chance(sample: Sample) -> Array:
    """Return the exact probability of class 1 for the same rows with new entities and days.

    This is the paper's generalisation error: its program keeps the covariates and draws new intercepts.
    """
    return smoothed_logistic(sample.mean, np.hypot(*SD))


def same_entities_chance(sample: Sample) -> Array:
    """Return the exact probability of class 1 for the same entities on new days."""
    return smoothed_logistic(sample.mean + sample.by_entity, SD[1])


def new_rows_loss(loss: str, intercept: Array, coefficients: Array) -> float:
    """Return the exact loss on rows of new entities and days, covariates included ("GenNew").

    Covariates differ between groups here, so new groups also have new covariates, which the
    generalisation error at the observed ones leaves out. Score s = a + b'x and log odds f of a new row are jointly
    normal, and f given s is integrated by quadrature.

    Parameters
    ----------
    loss : str
    intercept : array (models,)
    coefficients : array (models, size)
        Regressions on the first covariates; the mean over them is returned.
    """
    spread = np.sqrt(VARIANCE * (coefficients**2).sum(axis=1))[:, None]
    common = VARIANCE * COEFFICIENT * coefficients.sum(axis=1)[:, None] / np.maximum(spread, 1e-12)
    rest = VARIANCE * COEFFICIENT**2 * 10 - common**2 + SD[0] ** 2 + SD[1] ** 2
    chance = smoothed_logistic(common * QUANTILES, np.sqrt(rest))
    return float(LOSSES[loss](chance, intercept[:, None] + spread * QUANTILES).mean())


# --- Regressions for many targets at once


def cross_validated(fit: Callable[[Array, Array], Array], folds: Folds) -> Array:
    """Return the score of each row by `fit(training rows, held rows)`."""
    scores = np.empty(sum(len(held) for _, held in folds))
    for training, held in folds:
        scores[held] = fit(training, held)
    return scores


def penalised_scores(
    columns: Array, penalty: Array, targets: Array, held_columns: Array, used: Array | None = None
) -> Array:
    """Return log odds of other rows by penalised logistic regressions, one for each row of targets.

    With the columns of random intercepts times their sd, and penalty 1, this is the joint mode of a
    regression with random effects; `used` says which columns predict.
    """
    beta = np.zeros((len(targets), columns.shape[1]))
    for _ in range(60):
        chance = expit(beta @ columns.T)
        weight = chance * (1 - chance)
        bread = (columns.T * weight[:, None, :]) @ columns + np.diag(penalty)
        pull = (targets - chance) @ columns - penalty * beta
        step = np.linalg.solve(bread, pull[..., None])[..., 0]
        change = np.abs(step @ columns.T).max(axis=1)
        beta += np.minimum(1.0, 4.0 / np.maximum(change, 1e-9))[:, None] * step
        if change.max() < 1e-8:
            break
    return (beta if used is None else beta * used) @ held_columns.T


def ridge_penalty(size: int) -> Array:
    """Return the penalty of scikit-learn's LogisticRegression(C=1): none on the intercept."""
    return np.r_[0.0, np.ones(size)]


def with_effects(design: Array, sd: tuple[float, ...] = SD) -> tuple[Array, Array]:
    """Return a design with the indicators of entities and days times their sd, and its penalty."""
    columns = [design, sd[0] * np.eye(10)[ENTITY], sd[1] * np.eye(5)[DAY]]
    return np.hstack(columns), np.r_[np.full(design.shape[1], 1e-3), np.ones(15)]
