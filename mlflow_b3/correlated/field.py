"""Regression with a Gaussian random field over locations, observed in regions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist
from scipy.special import expit

from mlflow_b3.correlated.likelihood import Intercepts, bernoulli, joint_mode
from mlflow_b3.correlated.mixed import (
    FLAT,
    Objective,
    Peak,
    as_design,
    climb,
    inverse_of,
    profile_interval,
    whitened,
)
from mlflow_b3.correlated.structure import KERNELS, Array, Codes, Field
from mlflow_b3.errors import InputError, choose

# --- Laplace's approximation of a logistic regression with a random field

#: Most Newton steps, most halvings of a step, and the gain in log likelihood that counts as none.
MOST_STEPS = 60
MOST_HALVINGS = 12
NO_GAIN = 1e-9
#: Smallest weight of a row; the weight of a row of certain class must not be 0.
LEAST_WEIGHT = 1e-12
#: Penalty on coefficients of columns of mean square 1, which keeps separating columns finite.
SMALLEST_RIDGE = 1e-8


@dataclass(kw_only=True)
class ClassField:
    """Classes 0 and 1 with a field of kernel σ² exp(-d/r) in their log odds.

    Attributes
    ----------
    target, columns, distances : array
        Columns are uncorrelated and have mean square 1.
    weights : array or None
        K⁻¹ f at the last mode, where the next search starts.
    information : array (p, p)
        Information on the coefficients at the last evaluation; the identity before the first.
    converged : bool
        Whether the last search for the mode converged.
    """

    target: Array
    columns: Array
    distances: Array
    weights: Array | None = None
    converged: bool = True
    information: Array = field(init=False)

    def __post_init__(self) -> None:
        """Initialise the information."""
        self.information = np.eye(self.columns.shape[1])

    def first_coefficients(self) -> Array:
        """Return the coefficients without a field."""
        p, none = self.columns.shape[1], Intercepts([np.zeros(len(self.target), dtype=np.intp)])
        penalty = SMALLEST_RIDGE * np.eye(p)
        return joint_mode(
            self.target, self.columns, none, np.zeros(1), penalty=penalty
        ).coefficients

    def evaluate(self, beta: Array, spread: Array) -> tuple[float, Array, Array]:
        """Return the log likelihood at coefficients, σ and log r, and its gradients.

        Notes
        -----
        Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), algorithms 3.1 and 5.1.
        """
        sd, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = sd**2 * np.exp(-self.distances / reach)
        offset = self.columns @ beta
        weights, effect, value, lower = self._mode(kernel, offset)
        chance = expit(offset + effect)
        weight = np.maximum(chance * (1 - chance), LEAST_WEIGHT)
        inverse = inverse_of(lower)
        variances = (1 - np.diag(inverse)) / weight
        root = np.sqrt(weight)
        smooth = root[:, None] * inverse * root
        pull = variances * weight * (1 - 2 * chance)
        spared = pull - smooth @ (kernel @ pull)
        changes = 2 * kernel / sd, kernel * self.distances / reach
        slopes = [
            (weights - spared) @ change @ weights / 2 - np.vdot(smooth, change) / 2
            for change in changes
        ]
        by_offset = self.target - chance - (pull - weight * (kernel @ spared)) / 2
        self.weights = weights
        self.information = self.columns.T @ smooth @ self.columns
        penalised = SMALLEST_RIDGE * beta
        value -= float(np.log(np.diag(lower)).sum() + beta @ penalised / 2)
        return value, self.columns.T @ by_offset - penalised, np.array(slopes)

    def _mode(self, kernel: Array, offset: Array) -> tuple[Array, Array, float, Array]:
        """Return K⁻¹ f and f at the mode of the field, the joint likelihood, and a Cholesky factor.

        The factor is that of I + W^½ K W^½.
        """
        target, identity = self.target, np.eye(len(self.target))

        def at(weights: Array) -> tuple[Array, float]:
            effect = kernel @ weights
            return effect, bernoulli(target, offset + effect) - float(weights @ effect) / 2

        weights = np.zeros(len(target)) if self.weights is None else self.weights
        effect, value = at(weights)
        flat, lowest = at(np.zeros(len(target)))
        if lowest > value:  # the last mode belongs to another kernel and is a bad start
            weights, effect, value = np.zeros(len(target)), flat, lowest
        self.converged = False
        for _ in range(MOST_STEPS):
            chance = expit(offset + effect)
            weight = np.maximum(chance * (1 - chance), LEAST_WEIGHT)
            root = np.sqrt(weight)
            lower = cholesky(identity + root[:, None] * kernel * root, lower=True)
            if self.converged:
                break
            right = weight * effect + target - chance
            solved = cho_solve((lower, True), root * (kernel @ right))
            step = right - root * solved - weights
            gain = float(step @ kernel @ (target - chance - weights))
            length = 1.0
            for _ in range(MOST_HALVINGS):
                moved = weights + length * step
                there, new = at(moved)
                if new >= value - NO_GAIN:
                    break
                length /= 2
            weights, effect, value = moved, there, new
            self.converged = gain < NO_GAIN
        return weights, effect, value, lower


# --- Restricted likelihood of a linear regression with a random field

#: Smallest sum of squares of a target of variance 1, if columns fit it without error.
NO_SQUARES = 1e-12


@dataclass(frozen=True, kw_only=True)
class NumberField:
    """Numbers with a field of kernel σ² exp(-d/r) and independent noise.

    Attributes
    ----------
    target, columns, distances : array
        The target has variance 1. Columns are uncorrelated and have mean square 1.
    """

    target: Array
    columns: Array
    distances: Array

    @property
    def freedom(self) -> int:
        """Number of rows minus number of coefficients."""
        return int(len(self.target) - self.columns.shape[1])

    def evaluate(self, _: Array, spread: Array) -> tuple[float, Array, Array]:
        """Return the restricted log likelihood at σ/noise and log r, and its gradients.

        It is maximised over coefficients and noise.
        """
        ratio, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = ratio**2 * np.exp(-self.distances / reach)
        lower = cholesky(kernel + np.eye(len(kernel)), lower=True)
        smooth = inverse_of(lower)
        crossed = smooth @ self.columns
        information = self.columns.T @ crossed
        smooth -= crossed @ np.linalg.solve(information, crossed.T)
        residual = smooth @ self.target
        squares = max(float(self.target @ residual), NO_SQUARES)
        determinants = 2 * np.log(np.diag(lower)).sum() + np.linalg.slogdet(information)[1]
        level = np.log(2 * np.pi * squares / self.freedom) + 1
        changes = 2 * kernel / ratio, kernel * self.distances / reach
        slopes = [
            float(self.freedom / squares * (residual @ change @ residual) - np.vdot(smooth, change))
            / 2
            for change in changes
        ]
        value = -float(self.freedom * level + determinants) / 2
        return value, np.zeros(0), np.array(slopes)

    def estimates(self, spread: Array) -> tuple[Array, float]:
        """Return coefficients and noise at σ/noise and log r."""
        ratio, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = ratio**2 * np.exp(-self.distances / reach)
        factor = cho_factor(kernel + np.eye(len(kernel)), lower=True)
        crossed = cho_solve(factor, self.columns)
        beta = np.linalg.solve(self.columns.T @ crossed, crossed.T @ self.target)
        residual = self.target - self.columns @ beta
        squares = max(float(residual @ cho_solve(factor, residual)), NO_SQUARES)
        return np.asarray(beta, dtype=float), float(np.sqrt(squares / self.freedom))


class NumberProfile:
    """The restricted likelihood in σ at one reach, maximised over coefficients and noise.

    The kernel is diagonalised once.
    """

    def __init__(self, field: NumberField, reach: float, noise: float) -> None:
        values, vectors = eigh(np.exp(-field.distances / reach))
        self.values = np.maximum(values, 0.0)
        self.target, self.columns = vectors.T @ field.target, vectors.T @ field.columns
        self.noise = noise

    def __call__(self, sd: float) -> float:
        """Return the profile at one σ."""

        def loss(log_noise: float) -> float:
            variances = sd**2 * self.values + np.exp(2 * log_noise)
            crossed = self.columns / variances[:, None]
            information = self.columns.T @ crossed
            beta = np.linalg.solve(information, crossed.T @ self.target)
            residual = self.target - self.columns @ beta
            fit = (residual**2 / variances + np.log(2 * np.pi * variances)).sum()
            constant = self.columns.shape[1] * np.log(2 * np.pi)
            return float(fit + np.linalg.slogdet(information)[1] - constant) / 2

        # the target has variance 1, so the noise cannot be larger
        near = np.log(self.noise) - 3, max(np.log(self.noise), 0.0) + 1
        found = minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-3})
        return -float(found.fun)


# --- Regression with a Gaussian random field

TASKS = ("classification", "regression")
#: The power of distance over reach in the exponent of each kernel.
POWERS = dict(zip(KERNELS, (1, 2), strict=True))
#: Number of rows up to which a dense covariance can be factorised a few hundred times.
MOST_ROWS = 1500
#: Largest σ, on the log odds scale or in standard deviations of the target.
MOST_SD = 5.0
#: Largest σ in units of the noise, for regression.
MOST_RATIO = 100.0
#: Upper end of an interval that the likelihood does not bound.
MOST_HIGH = 10.0
#: Smallest σ in a search, because the slope vanishes at 0. Below the second value, σ is reported as 0.
LEAST_SD = 1e-3
AS_ZERO = 5e-3
#: Smallest and largest reach of the kernel, as shares of the largest distance.
REACHES = (0.01, 1.0)
#: Starting values: searches start at the best of these reaches and σ, and this many are run.
FIRST_REACHES = (0.03, 0.1, 0.3)
FIRST_SD = (0.5, 1.5)
SEARCHES = 2
#: Information on a coefficient below which it has diverged, as in `fit_mixed_logistic`.
RUN_AWAY = 0.02


@dataclass(frozen=True, kw_only=True)
class FieldFit:
    """A fitted regression with a random field.

    Attributes
    ----------
    coefficients : array (p,)
        Coefficients of the fixed effects.
    sd, reach : float
        σ and r of the kernel σ² exp(-d/r).
    sd_low, sd_high : float
        95% interval of σ by its profile likelihood; equal to `sd` if it was not requested.
    log_likelihood : float
        Log likelihood at the estimates; restricted for regression.
    converged : bool
    capped : bool
        Whether the likelihood still grows at the largest σ, 5.
    separated : bool
        Whether columns separate the classes without error, so coefficients diverge.
    noise : float or None
        Standard deviation of the residuals, for regression.
    """

    coefficients: Array
    sd: float
    reach: float
    sd_low: float
    sd_high: float
    log_likelihood: float
    converged: bool
    capped: bool
    separated: bool = False
    noise: float | None = None


def fit_field(
    target: Any,
    X: Any,
    coordinates: Any,
    task: str,
    *,
    kernel: str = "exponential",
    intervals: bool = True,
) -> FieldFit:
    """Fit a regression with a Gaussian random field of kernel σ² exp(-d/r) or σ² exp(-(d/r)²).

    Parameters
    ----------
    target : array
        0 and 1, or numbers.
    X : array (n, p)
        Fixed effects, with a column of ones for the intercept.
    coordinates : array (n, d)
        The location of each row; distances are Euclidean.
    task : {"classification", "regression"}
        Classification uses Laplace's approximation, regression restricted maximum likelihood.
    kernel : {"exponential", "gaussian"}
        The second is smooth: nearby rows are almost the same.
    intervals : bool, default True
        Whether to compute the profile likelihood interval of σ, with the reach at its estimate and
        the likelihood maximised over all other parameters.

    Returns
    -------
    FieldFit

    Notes
    -----
    Within a region of limited extent, the data determine σ²/r far better than σ and r. Searches
    without bounds may therefore end anywhere, so the reach is kept between 1% and 100% of the largest
    distance, and σ² is at most 25. The interval of σ holds the reach fixed, so its ends together with
    the reach are models that the data do not reject.

    The Gaussian kernel is the exponential one of squared distances, with the reach squared.
    """
    design, values = as_design(X, target)
    power = POWERS[choose("kernel", kernel, tuple(POWERS))]
    distances = _distances(coordinates, len(values)) ** power
    columns, back = whitened(design)
    if choose("task", task, TASKS) == "regression":
        return _fit_numbers(values, columns, back, distances, power, intervals)
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError("target must contain only 0 and 1; encode the two classes like this.")
    return _fit_classes(values, columns, back, distances, power, intervals)


def _distances(coordinates: Any, n_rows: int) -> Array:
    """Return the distances between all locations, or raise an `InputError`."""
    places = np.asarray(coordinates, dtype=float)
    places = places[:, None] if places.ndim == 1 else places
    if places.ndim != 2 or len(places) != n_rows or not np.isfinite(places).all():
        raise InputError(
            f"coordinates has the shape {places.shape}; it must be an array of finite numbers with "
            f"{n_rows} rows, one for each row of X."
        )
    if n_rows > MOST_ROWS:
        raise InputError(
            f"A field over {n_rows} rows is too large; {MOST_ROWS} can be fitted. Give a sample of "
            "rows from all regions, or name the regions as groups instead."
        )
    distances = np.asarray(cdist(places, places), dtype=float)
    if not distances.max(initial=0.0) > 0:
        raise InputError("coordinates are the same for all rows; a field needs different places.")
    return distances


def _maximise(
    objective: Objective, beta: Array, information: Array, extent: float, power: int, most: float
) -> Peak:
    """Maximise from the best of several starting points; `extent` is the largest distance to the `power`."""
    reach = np.log(np.array(REACHES) ** power * extent)
    bounds = np.array([LEAST_SD, reach[0]]), np.array([most, reach[1]])
    grid = [
        np.array([sd, np.log(share**power * extent)])
        for sd, share in product(FIRST_SD, FIRST_REACHES)
    ]
    grid.sort(key=lambda spread: -objective(beta, spread)[0])
    scale = np.array([0.25, 0.5])
    peaks = [
        climb(objective, beta, start, information=information, scale=scale, bounds=bounds)
        for start in grid[:SEARCHES]
    ]
    return max(peaks, key=lambda peak: peak.value)


def _fit_classes(
    target: Array, columns: Array, back: Array, distances: Array, power: int, intervals: bool
) -> FieldFit:
    """Fit classes by Laplace's approximation, with coefficients in the outer search."""
    field = ClassField(target=target, columns=columns, distances=distances)
    beta = field.first_coefficients()
    extent = float(distances.max())
    field.evaluate(beta, np.array([FIRST_SD[0], np.log(FIRST_REACHES[1] ** power * extent)]))
    peak = _maximise(field.evaluate, beta, field.information, extent, power, MOST_SD)
    field.evaluate(peak.coefficients, peak.spread)
    information, converged = field.information, peak.converged and field.converged

    def profile(sd: float) -> float:
        spread = np.array([max(sd, LEAST_SD), peak.spread[1]])
        return climb(
            field.evaluate,
            peak.coefficients,
            spread,
            information=information,
            scale=np.ones(2),
            bounds=(spread, spread),
            slope=FLAT,
        ).value

    low, high = _interval(profile, peak.spread[0], peak.value, intervals)
    known = np.linalg.eigvalsh(information).min(initial=1.0)
    sd = float(peak.spread[0]) if peak.spread[0] > AS_ZERO else 0.0
    return FieldFit(
        coefficients=back @ peak.coefficients,
        sd=sd,
        reach=float(np.exp(peak.spread[1] / power)),
        sd_low=min(low, sd),
        sd_high=max(high, sd),
        log_likelihood=peak.value,
        converged=converged,
        capped=sd > 0.99 * MOST_SD,
        separated=bool(known < RUN_AWAY),
    )


def _fit_numbers(
    target: Array, columns: Array, back: Array, distances: Array, power: int, intervals: bool
) -> FieldFit:
    """Fit numbers by restricted maximum likelihood."""
    if len(target) <= columns.shape[1]:
        raise InputError(
            f"X has {columns.shape[1]} independent columns for {len(target)} rows; give more rows "
            "or fewer columns."
        )
    unit = float(target.std()) or 1.0
    field = NumberField(target=target / unit, columns=columns, distances=distances)
    none, extent = np.empty((0, 0)), float(distances.max())
    peak = _maximise(field.evaluate, np.zeros(0), none, extent, power, MOST_RATIO)
    beta, noise = field.estimates(peak.spread)
    ratio, reach = float(peak.spread[0]), float(np.exp(peak.spread[1]))
    sd = noise * ratio if ratio > AS_ZERO else 0.0
    low, high = sd, sd
    if intervals:
        profile = NumberProfile(field, reach, noise)
        low, high = profile_interval(profile, sd, profile(sd), most=MOST_HIGH)
    sizes = np.array([sd, min(low, sd), max(high, sd)])
    # the density of orthonormal contrasts, independent of the units of the columns
    scale = columns.shape[1] * np.log(len(target)) / 2 - field.freedom * np.log(unit)
    sd, low, high = (unit * np.minimum(sizes, [MOST_SD, MOST_SD, MOST_HIGH])).tolist()
    return FieldFit(
        coefficients=unit * (back @ beta),
        sd=sd,
        reach=reach ** (1 / power),
        sd_low=low,
        sd_high=high,
        log_likelihood=peak.value + float(scale),
        converged=peak.converged,
        capped=bool(sizes[0] > 0.99 * MOST_SD),
        noise=unit * noise,
    )


def _interval(
    profile: Callable[[float], float], estimate: float, peak: float, wanted: bool
) -> tuple[float, float]:
    """Return the interval of σ, or σ twice if no interval is wanted."""
    if not wanted:
        return estimate, estimate
    return profile_interval(profile, estimate, peak, most=MOST_HIGH)


# --- A random field observed in regions: what a new region shares with them, and what it does not

#: Number of rows whose distances to all others are in memory at once.
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class RegionalField:
    """A field as √K̄ c + δ̃, where c is common to all regions and δ̃ is independent between regions.

    Attributes
    ----------
    across : float
        K̄, the mean covariance of rows in different regions.
    rows : tuple of array
        The rows of each region.
    roots : tuple of array
        The symmetric root of the covariance of δ̃ in each region.
    own_sd : array (n,)
        Standard deviation of δ̃ in each row.
    clipped : float
        Share of the spectrum that was dropped because K - K̄ is not a covariance there.
    """

    across: float
    rows: tuple[Codes, ...]
    roots: tuple[Array, ...]
    own_sd: Array
    clipped: float

    def own_part(self, noise: Array) -> Array:
        """Return δ̃ from standard normal noise (..., n)."""
        part = np.empty_like(noise)
        for rows, root in zip(self.rows, self.roots, strict=True):
            part[..., rows] = noise[..., rows] @ root
        return part


def covariances(
    first: Array, second: Array, sd: float, reach: float, kernel: str = "exponential"
) -> Array:
    """Return the covariances σ² exp(-d/r), or σ² exp(-(d/r)²), between locations."""
    return np.asarray(sd**2 * np.exp(-((cdist(first, second) / reach) ** POWERS[kernel])))


def regional_field(
    field: Field, sd: float, reach: float, kernel: str = "exponential"
) -> RegionalField:
    """Split a field into a part that all regions share and a part of each region.

    Parameters
    ----------
    field : Field
    sd, reach : float
        σ and r of the kernel.
    kernel : {"exponential", "gaussian"}

    Notes
    -----
    A new region is assumed to be as far from the observed regions as they are from each other, so it
    shares their mean covariance K̄. The covariance of the region's own part is K - K̄ within a region
    and 0 across regions. Yuval and Rosset (AISTATS 2025) drop the common part, which leaves rows with
    less variance than the field has. Negative eigenvalues of K - K̄ are set to 0. The variance of a
    row in use is then that of the clipped matrix, so simulated means agree. The symmetric root is used
    because it is unique, so every worker creates the same field.
    """
    places, codes = field.coordinates, field.regions.codes
    order = np.argsort(codes, kind="stable")
    rows = tuple(np.split(order, np.cumsum(np.bincount(codes))[:-1]))
    if len(rows) < 2:
        raise InputError(
            f"field regions={field.regions.name!r}: there is one region; at least two are needed to "
            "estimate what a new region shares with them."
        )
    inside = [covariances(places[own], places[own], sd, reach, kernel) for own in rows]
    total = sum(
        float(covariances(places[start : start + _ROWS_AT_ONCE], places, sd, reach, kernel).sum())
        for start in range(0, len(places), _ROWS_AT_ONCE)
    )
    pairs = len(places) ** 2 - sum(len(own) ** 2 for own in rows)
    across = max(0.0, (total - sum(float(block.sum()) for block in inside)) / pairs)
    roots, own_sd, lost, kept = [], np.empty(len(places)), 0.0, 0.0
    for own, block in zip(rows, inside, strict=True):
        values, vectors = np.linalg.eigh(block - across)
        lost -= float(values[values < 0].sum())
        values = np.maximum(values, 0.0)
        kept += float(values.sum())
        root = (vectors * np.sqrt(values)) @ vectors.T
        roots.append(root)
        own_sd[own] = np.sqrt((root**2).sum(axis=1))
    return RegionalField(
        across=across,
        rows=rows,
        roots=tuple(roots),
        own_sd=own_sd,
        clipped=lost / (lost + kept) if lost else 0.0,
    )
