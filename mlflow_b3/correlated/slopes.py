"""A test for random slopes, which a correction by random intercepts would miss."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from mlflow_b3.correlated.structure import Array, Level, centred_in_groups
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
#: How often slopes of a detectable standard deviation are found.
POWER = 0.8
#: Largest standard deviation that is tried, in log odds or standard deviations of the residuals, and how
#: often it is halved.
LARGEST_SD, HALVINGS = 8.0, 12
#: Standard deviations tried between a value and its half: steps of 9%.
STEPS_BETWEEN = 8
#: Fewest and most simulated samples for the power of a logistic model, and the most classes in them.
LEAST_SAMPLES, MOST_SAMPLES, MOST_CLASSES = 20, 250, 500_000


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
    detectable : tuple of (str, float or None)
        Each feature, and the smallest standard deviation of its slopes that is found with `POWER`; None
        if slopes of no size are. Empty if equal slopes are rejected.
    """

    level: str
    feature: str
    pvalue: float
    detectable: tuple[tuple[str, float | None], ...] = ()

    @property
    def rejected(self) -> bool:
        """Whether equal slopes are rejected."""
        return self.pvalue <= LEVEL

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"the feature {self.feature!r} acts differently in different groups of {self.level!r} (p = "
            f"{self.pvalue:.2g} in a test at {percent(LEVEL)}). The correction assumes groups that "
            "differ only by a constant and would miss most of the bias; none is given. Trust the score "
            "with whole groups left out."
        )


def examine_slopes(
    target: Array,
    features: pd.DataFrame,
    scores: Array,
    level: Level,
    seed: int,
    *,
    power: bool = True,
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
    power : bool, default True
        Whether to compute which slopes are found.

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

    The power against slopes of one feature comes from the same arrangements in regression, in which
    slopes b_g move the sum of a group by b_g Σ x², less what the fixed effects take of it; and from
    classes drawn from the null model with slopes in classification. The other features are as in the
    arrangements.

    Products of features matter most. If a feature that differs between groups changes the effect of
    another one, the slopes of the latter differ between groups although all effects are the same.
    """
    rows = _select_rows(target, features, scores, level)
    if rows is None:
        return None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(len(level.name),)))
    null = _arrange(rows, rng)
    own = (null.found - null.mean) / null.spread
    reached = max(float(own.max()), float(own.sum()) / null.unit)
    pvalue = float((1 + np.sum(null.largest >= reached)) / (ARRANGEMENTS + 1))
    test = SlopeTest(level=level.name, feature=rows.names[int(own.argmax())], pvalue=pvalue)
    if test.rejected or not power:
        return test
    sds = [_detectable_sd(rows, null, place, rng) for place in range(len(rows.names))]
    return replace(test, detectable=tuple(zip(rows.names, sds, strict=True)))


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


def varying_features(features: pd.DataFrame, level: Level) -> pd.DataFrame:
    """Return the features that may have random slopes, standardised.

    These are the numeric ones without missing values that vary within groups, of the first 50.
    """
    numeric = features.select_dtypes(include=["number", "bool"]).iloc[:, :MOST_FEATURES]
    values = numeric.to_numpy(dtype=float)
    values = _standardised(np.where(np.isfinite(values).all(axis=0), values, 0.0))
    varied = (centred_in_groups(values, level) ** 2).sum(axis=0) > 1e-9 * len(values)
    names = [str(name) for name in numeric.columns[varied]]
    return pd.DataFrame(values[:, varied], columns=names)


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


@dataclass(frozen=True, kw_only=True)
class _Arrangements:
    """The statistics of the table and of arrangements without random slopes.

    Attributes
    ----------
    found : array (features,)
    null : array (arrangements, features)
        Standardised by the mean and the spread of the arrangements.
    mean, spread : array (features,)
    unit : float
        Spread of the sum of the standardised statistics.
    slopes : array (n, features)
        Features on the working scale, centred in each group.
    base : array (n, effects)
        Orthonormal fixed effects on the working scale.
    errors : array (n, some)
        What intercepts and fixed effects do not explain of the first arrangements.
    logistic : _Logistic or None
    """

    found: Array
    null: Array
    mean: Array
    spread: Array
    unit: float
    slopes: Array
    base: Array
    errors: Array
    logistic: "_Logistic | None"

    @property
    def largest(self) -> Array:
        """The largest statistic of each arrangement, over features and their sum."""
        together = self.null.sum(axis=1) / self.unit
        return np.asarray(np.maximum(self.null.max(axis=1), together))

    @property
    def critical(self) -> float:
        """What the largest statistic must exceed to reject equal slopes."""
        allowed = int(LEVEL * (ARRANGEMENTS + 1)) - 1
        return float(np.sort(self.largest)[-1 - allowed])

    def share_rejected(self, own: Array, place: int, beside: NDArray[np.intp]) -> float:
        """Return how often equal slopes are rejected.

        Parameters
        ----------
        own : array (m,)
            Standardised statistics of one feature.
        place : int
            Its place.
        beside : array of int (m,)
            The arrangements from which the statistics of the other features are taken.
        """
        others = np.delete(self.null[beside], place, axis=1)
        together = (own + others.sum(axis=1)) / self.unit
        largest = np.maximum(np.maximum(own, together), others.max(axis=1, initial=-np.inf))
        return float(np.mean(largest > self.critical))


def _arrange(rows: _Rows, rng: np.random.Generator) -> _Arrangements:
    """Return the statistic of each feature, and its values in arrangements without random slopes."""
    effects, count = _effects(rows), len(rows.target)
    if rows.task == "classification":
        model = _fit_logistic(rows, effects)
        weight, residual = model.weight, rows.target - model.mean
    else:
        model, weight, residual = None, np.ones(count), rows.target
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
    batches: list[Array] = []
    first = np.empty((count, 0))
    for size in _batches(count):
        if model is None:
            # fitting makes residuals smaller than errors; rescale them
            drawn = own / np.sqrt(left)[:, None] * rng.choice([-1.0, 1.0], size=(count, size))
        else:
            drawn = (model.draw(rows.groups, size, rng) - model.mean[:, None]) / root
        errors = fitted(drawn)
        first = first if batches else errors
        batches.append(statistics(errors))
    null = np.concatenate(batches)
    # standardise, so that all features count equally
    mean, spread = null.mean(axis=0), np.maximum(null.std(axis=0), 1e-12)
    null = (null - mean) / spread
    return _Arrangements(
        found=statistics(own)[0],
        null=null,
        mean=mean,
        spread=spread,
        unit=max(float(null.sum(axis=1).std()), 1e-12),
        slopes=slopes,
        base=base,
        errors=first,
        logistic=model,
    )


def _detectable_sd(
    rows: _Rows, null: _Arrangements, place: int, rng: np.random.Generator
) -> float | None:
    """Return the smallest standard deviation of a feature's slopes that is found with `POWER`.

    Slopes are those of the feature less its mean in the group, for each standard deviation of that
    difference: what a slope adds to all rows of a group is an intercept.
    """
    power = _power_of_numbers if null.logistic is None else _power_of_classes
    within = rows.centred(rows.columns[:, [place]], np.ones(len(rows.target)))[:, 0]
    within /= np.sqrt(np.mean(within**2))
    found = power(rows, null, place, within, rng)
    unit = 1.0 if null.logistic is not None else float(np.sqrt(np.mean(null.errors**2)))
    steps = np.arange(HALVINGS * STEPS_BETWEEN)[::-1] / STEPS_BETWEEN
    sds = unit * LARGEST_SD * 2.0**-steps
    low, high = -1, len(sds) - 1
    if found(sds[high]) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if found(sds[middle]) >= POWER:
            high = middle
        else:
            low = middle
    return float(sds[high])


def _power_of_numbers(
    rows: _Rows, null: _Arrangements, place: int, within: Array, rng: np.random.Generator
) -> Callable[[float], float]:
    """Return how often a linear model finds slopes, by their standard deviation.

    Slopes b_g move the sum of a group by Σ x² b_g, less what fixed effects take of it. The spread of
    the statistic in arrangements grows with the residuals.
    """
    x = within
    columns = np.arange(ARRANGEMENTS) % null.errors.shape[1]
    powers = {k: rows.sums(x**k)[:, None] for k in (2, 4, 6, 8)}
    sums = rows.sums(x[:, None] * null.errors)[:, columns]
    cubes = rows.sums((x**3)[:, None] * null.errors)[:, columns]
    scale = ((x**2)[:, None] * null.errors**2).sum(axis=0)[columns]
    basis = rows.sums(x[:, None] * null.base)
    drawn = rng.normal(size=sums.shape)
    unit = powers[2] * drawn - basis @ (basis.T @ drawn)
    variance = float(np.mean(null.errors**2))

    def spread(slope: Array) -> Array:
        square = slope**2
        own = variance * powers[2] + square * powers[4]
        alone = variance**2 * powers[4] + 2 * variance * square * powers[6] + square**2 * powers[8]
        return np.asarray(np.sqrt((own**2 - alone).sum(axis=0)) / own.sum(axis=0))

    without = spread(np.zeros((len(unit), 1)))

    def power(sd: float) -> float:
        moved = sd * unit
        slope = moved / np.maximum(powers[2], 1e-300)
        total = scale + (2 * slope * cubes + slope**2 * powers[4]).sum(axis=0)
        statistic = ((sums + moved) ** 2).sum(axis=0) / np.maximum(total, 1e-300)
        own = (statistic - null.mean[place]) / (null.spread[place] * spread(slope) / without)
        return null.share_rejected(own, place, columns)

    return power


def _power_of_classes(
    rows: _Rows, null: _Arrangements, place: int, within: Array, rng: np.random.Generator
) -> Callable[[float], float]:
    """Return how often classes that are drawn with slopes are rejected, by their standard deviation."""
    model = null.logistic
    assert model is not None
    count, groups = len(rows.target), len(rows.starts)
    size = max(LEAST_SAMPLES, min(MOST_SAMPLES, MOST_CLASSES // count))
    x, root = null.slopes[:, place], np.sqrt(model.weight)[:, None]
    shift = rng.normal(size=(groups, size))[rows.groups] * within[:, None]
    odds = (
        model.fixed[:, None]
        + (model.intercepts[:, None] + model.error[:, None] * rng.normal(size=(groups, size)))[
            rows.groups
        ]
    )
    uniform = rng.random((count, size))

    def power(sd: float) -> float:
        classes = (uniform < expit(odds + sd * shift)).astype(float)
        errors = root * rows.centred((classes - model.mean[:, None]) / root**2, model.weight)
        errors -= null.base @ (null.base.T @ errors)
        products = x[:, None] * errors
        statistic = (rows.sums(products) ** 2).sum(axis=0) / (products**2).sum(axis=0)
        own = (statistic - null.mean[place]) / null.spread[place]
        return null.share_rejected(own, place, np.arange(size))

    return power


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
