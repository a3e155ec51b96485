"""A test for random slopes, which a correction by random intercepts would miss."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from mlflow_b3.correlated.structure import Array, Level
from mlflow_b3.results import percent

#: Level of the test: how often a correction is withheld without reason.
LEVEL = 0.05
ARRANGEMENTS = 499
MOST_FEATURES = 50
#: Smallest number of rows of a group that is informative about slopes.
LEAST_ROWS = 3
#: Smallest number of groups for the test.
LEAST_GROUPS_FOR_SLOPES = 5
#: Rows per fixed effect; a class is less informative than a number.
ROWS_PER_EFFECT = {"regression": 8, "classification": 30}
#: Quantiles of a feature at which its effect may bend.
KNOTS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
#: Nonlinear terms are chosen from those of this many first features.
MOST_BENT = 20
#: Penalty on fixed effects in the logistic model, for standardised terms.
PENALTY = 1.0
STEPS = 12


@dataclass(frozen=True, kw_only=True)
class SlopeTest:
    """A test of equal slopes in all groups of a level.

    Attributes
    ----------
    level : str
        The column with the groups.
    feature : str
        The feature whose slopes differ most.
    pvalue : float
        p-value of the largest statistic, over single features and all of them together.
    """

    level: str
    feature: str
    pvalue: float

    @property
    def rejected(self) -> bool:
        """Whether equal slopes are rejected."""
        return self.pvalue <= LEVEL

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"the feature {self.feature!r} acts differently in different groups of {self.level!r} (p = "
            f"{self.pvalue:.2g} in a test at {percent(LEVEL)}). The correction knows groups "
            "that differ by a constant only, and would miss most of the bias; none is given. Trust the "
            "score by whole groups left out."
        )


def examine_slopes(
    target: Array, features: pd.DataFrame, scores: Array, level: Level, seed: int
) -> SlopeTest | None:
    """Test whether features have the same slopes in all groups of a level.

    Parameters
    ----------
    target : array
        Numbers, or 0 and 1.
    features : DataFrame
        The first 50 numeric columns are tested.
    scores : array
        Scores of the model from folds of whole groups.
    level : Level
    seed : int

    Returns
    -------
    SlopeTest or None
        None without numeric features that vary within groups, or with too few groups or rows.

    Notes
    -----
    The null model has an intercept for each group and effects that are the same in all groups: the
    features, the model's score, and as many squares, products and bends of features as the rows allow.
    Terms that correlate most with the residuals of the linear effects are chosen first. The model is
    linear for regression and logistic for classification. Let r be its residuals, w its weights (1 for
    regression) and x a feature, centred in each group with weights w. Slopes differ if
    Σ_g (Σ_{i∈g} x_i r_i)² is large relative to Σ_i x_i² r_i². This is the self-normalised score test
    of the variance of a slope. The null distribution comes from residuals with random signs in
    regression, and from classes drawn from the null model in classification. The fixed effects are
    refitted to each arrangement. The statistics of single features are standardised by that
    distribution. The largest of these and of their standardised sum is compared with its values in the
    arrangements.

    Products of features matter most. If a feature that differs between groups changes the effect of
    another one, the slopes of the latter differ between groups although all effects are the same.
    """
    rows = _select_rows(target, features, scores, level)
    if rows is None:
        return None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(len(level.name),)))
    found, null = _statistics(rows, rng)
    # standardise, so that all features count equally
    mean, spread = null.mean(axis=0), np.maximum(null.std(axis=0), 1e-12)
    null, own = (null - mean) / spread, (found - mean) / spread
    together = null.sum(axis=1)
    unit = max(float(together.std()), 1e-12)
    largest = np.maximum(null.max(axis=1), together / unit)
    reached = max(float(own.max()), float(own.sum()) / unit)
    pvalue = float((1 + np.sum(largest >= reached)) / (ARRANGEMENTS + 1))
    return SlopeTest(level=level.name, feature=rows.names[int(own.argmax())], pvalue=pvalue)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of groups that are large enough, sorted by group."""

    target: Array
    columns: Array
    score: Array
    groups: NDArray[np.intp]
    names: tuple[str, ...]

    @property
    def task(self) -> str:
        return "classification" if np.isin(self.target, (0.0, 1.0)).all() else "regression"

    @property
    def starts(self) -> NDArray[np.intp]:
        return np.flatnonzero(np.diff(self.groups, prepend=-1))

    def sums(self, values: Array) -> Array:
        """Return the sums of columns in each group."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=0))

    def centred(self, values: Array, weight: Array) -> Array:
        """Return columns minus their weighted means in each group."""
        means = self.sums(values * weight[:, None]) / self.sums(weight)[:, None]
        return np.asarray(values - means[self.groups])


def _select_rows(
    target: Array, features: pd.DataFrame, scores: Array, level: Level
) -> _Rows | None:
    order = np.argsort(level.codes, kind="stable")
    kept = order[np.bincount(level.codes)[level.codes[order]] >= LEAST_ROWS]
    groups = np.unique(level.codes[kept], return_inverse=True)[1]
    numeric = features.select_dtypes(include=["number", "bool"]).iloc[:, :MOST_FEATURES]
    if not len(kept) or groups.max() + 1 < LEAST_GROUPS_FOR_SLOPES or numeric.empty:
        return None
    values = numeric.to_numpy(dtype=float)[kept]
    usable = np.isfinite(values).all(axis=0)
    values, names = _standardised(values[:, usable]), numeric.columns[usable]
    rows = _Rows(
        target=target[kept],
        columns=values,
        score=_standardised(scores[kept, None]),
        groups=groups,
        names=tuple(map(str, names)),
    )
    varied = (rows.centred(values, np.ones(len(kept))) ** 2).sum(axis=0) > 1e-9 * len(kept)
    linear = int(varied.sum()) + 2
    if not varied.any() or len(kept) - groups.max() - 1 <= 2 * linear:
        return None
    return replace(
        rows, columns=values[:, varied], names=tuple(str(name) for name in names[varied])
    )


def _standardised(values: Array) -> Array:
    deviation = values.std(axis=0)
    return np.asarray((values - values.mean(axis=0)) / np.where(deviation > 1e-12, deviation, 1.0))


def _orthonormal_basis(columns: Array) -> Array:
    """Return orthonormal columns that span the same space."""
    left, size, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, size > 1e-8 * size.max()])


def _effects(rows: _Rows) -> Array:
    """Return the terms of the null model: linear terms, and the most informative nonlinear ones."""
    plain = np.column_stack([rows.columns, rows.score, rows.score**2])
    one = np.ones(len(plain))
    room = int((len(plain) - rows.groups.max() - 1) / ROWS_PER_EFFECT[rows.task]) - plain.shape[1]
    if room <= 0:
        return _standardised(plain)
    bent = rows.columns[:, :MOST_BENT]
    first, second = np.triu_indices(bent.shape[1])
    bends = [np.maximum(bent - np.quantile(bent, knot, axis=0), 0.0) for knot in KNOTS]
    terms = np.column_stack([bent[:, first] * bent[:, second], *bends])
    base = _orthonormal_basis(rows.centred(plain, one))
    left = rows.centred(np.column_stack([rows.target, terms]), one)
    left -= base @ (base.T @ left)
    size = np.sqrt((left**2).sum(axis=0))
    correlation = np.abs(left[:, 0] @ left[:, 1:]) / np.maximum(size[1:], 1e-6 * len(plain) ** 0.5)
    best = np.argsort(-correlation, kind="stable")[:room]
    return _standardised(np.column_stack([plain, terms[:, np.sort(best)]]))


def _statistics(rows: _Rows, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the statistic of each feature, and its values in arrangements without random slopes."""
    effects, count = _effects(rows), len(rows.target)
    if rows.task == "classification":
        null = _fit_logistic(rows, effects)
        weight, residual = null.weight, rows.target - null.mean
    else:
        null, weight, residual = None, np.ones(count), rows.target
    root, total = np.sqrt(weight)[:, None], rows.sums(weight)
    base = _orthonormal_basis(rows.centred(effects, weight) * root)
    left = np.maximum(1.0 - (base**2).sum(axis=1) - weight / total[rows.groups], 0.1)

    def fitted(errors: Array) -> Array:
        """Return what intercepts and fixed effects do not explain of errors, on the working scale."""
        errors = root * rows.centred(errors / root, weight)
        return np.asarray(errors - base @ (base.T @ errors))

    slopes = rows.centred(rows.columns, weight) * root

    def statistics(errors: Array) -> Array:
        found = np.empty((errors.shape[1], slopes.shape[1]))
        for number, slope in enumerate(slopes.T):
            products = slope[:, None] * errors
            scale = np.maximum((products**2).sum(axis=0), 1e-300)
            found[:, number] = (rows.sums(products) ** 2).sum(axis=0) / scale
        return found

    own = fitted(residual[:, None] / root)
    batches = []
    for size in _batches(count):
        if null is None:
            # fitting makes residuals smaller than errors; rescale them
            drawn = own / np.sqrt(left)[:, None] * rng.choice([-1.0, 1.0], size=(count, size))
        else:
            drawn = (null.draw(rows.groups, size, rng) - null.mean[:, None]) / root
        batches.append(statistics(fitted(drawn)))
    return statistics(own)[0], np.concatenate(batches)


def _batches(rows: int) -> list[int]:
    """Return batch sizes of arrangements that limit memory use."""
    size = max(1, min(ARRANGEMENTS, 2_000_000 // rows))
    return [min(size, ARRANGEMENTS - start) for start in range(0, ARRANGEMENTS, size)]


@dataclass(frozen=True, kw_only=True)
class _Logistic:
    """A logistic model with fixed effects and random intercepts of groups."""

    fixed: Array
    intercepts: Array
    error: Array
    mean: Array

    @property
    def weight(self) -> Array:
        return np.maximum(self.mean * (1 - self.mean), 1e-3)

    def draw(self, groups: NDArray[np.intp], size: int, rng: np.random.Generator) -> Array:
        """Draw classes, with intercepts drawn around their means, which are too close to 0."""
        spread = self.error[:, None] * rng.normal(size=(len(self.error), size))
        odds = self.fixed[:, None] + (self.intercepts[:, None] + spread)[groups]
        return (rng.random(odds.shape) < expit(odds)).astype(float)


def _fit_logistic(rows: _Rows, effects: Array) -> _Logistic:
    """Fit by penalised quasi-likelihood, with an EM step for the variance of intercepts."""
    design = np.column_stack([np.ones(len(effects)), effects])
    penalty = np.diag(np.r_[1e-6, np.full(effects.shape[1], PENALTY)])
    odds, variance = np.zeros(len(design)), 1.0
    for _ in range(STEPS):
        mean = expit(odds)
        weight = np.maximum(mean * (1 - mean), 1e-3)
        working = odds + (rows.target - mean) / weight
        weighted = design * weight[:, None]
        share = 1 / (rows.sums(weight) + 1 / variance)
        sums, seen = rows.sums(weighted), rows.sums(weight * working)
        matrix = weighted.T @ design - (sums * share[:, None]).T @ sums + penalty
        coefficients = np.linalg.solve(matrix, weighted.T @ working - sums.T @ (share * seen))
        fixed = design @ coefficients
        intercepts = share * (seen - sums @ coefficients)
        variance = float(np.clip(np.mean(intercepts**2 + share), 0.05, 25.0))
        odds = np.clip(fixed + intercepts[rows.groups], -8.0, 8.0)
    return _Logistic(fixed=fixed, intercepts=intercepts, error=np.sqrt(share), mean=expit(odds))
