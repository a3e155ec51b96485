"""Lower limits from the shape of the loss curve, checks of that shape, and intervals for e_0."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq, nnls
from scipy.special import ndtri
from scipy.stats import qmc

from mlflow_b3.estimation.problem import Extrapolation
from mlflow_b3.results import Result

# --- Lower limits from the shape of the loss curve, and checks of that shape

REJECTED_Z = 1.96
#: The lowest levels have a curvature check of their own: this part of the range, at least this many.
NEAR, NEAR_LEVELS = 0.4, 4
SECANT_CONFIDENCE = 0.95
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ShapeCheck(Result):
    """Tests of whether the measured curve is decreasing and convex.

    Attributes
    ----------
    slope_z, curvature_z : float
        z-scores of the slope of a line and of the curvature of a parabola fitted to the curve.
    near_curvature_z : float
        z-score of the curvature of a parabola fitted to the lowest levels: those up to 40% of the
        largest one, and at least four. 0 with fewer levels, and in records of earlier versions.
    """

    slope_z: float
    curvature_z: float
    near_curvature_z: float = 0.0

    @property
    def decreasing(self) -> bool:
        """False if the curve rises by more than its noise: leaked rows hurt."""
        return self.slope_z <= REJECTED_Z

    @property
    def convex(self) -> bool:
        """False if the curve bends downwards by more than its noise."""
        return self.curvature_z >= -REJECTED_Z

    @property
    def supports_convexity(self) -> bool:
        """Whether the data show a convex curve, both overall and at the levels nearest to no leakage.

        The lower 97.5% confidence limits of both curvatures must be above 0. Failing to reject a
        convex curve is much weaker, because noise hides any shape. The lowest levels are tested
        separately: if the first leaked row changes little, the curve bends down there even though
        it bends up overall.
        """
        return min(self.curvature_z, self.near_curvature_z) > REJECTED_Z


def check_shape(problem: Extrapolation) -> ShapeCheck:
    """Test the slope and curvature of the measured curve, using its full covariance."""
    exposure = problem.exposure
    limit = exposure[0] + NEAR * float(np.ptp(exposure))
    near = max(NEAR_LEVELS, int(np.sum(exposure <= limit)))
    return ShapeCheck(
        slope_z=_z_score(problem, 1),
        curvature_z=_z_score(problem, 2),
        near_curvature_z=_z_score(problem, 2, near) if len(exposure) >= NEAR_LEVELS else 0.0,
    )


def _z_score(problem: Extrapolation, order: int, levels: int | None = None) -> float:
    """Return the z-score of the leading coefficient of a polynomial fitted to the first levels."""
    if len(problem.exposure) < order + 1:
        return 0.0
    row = np.zeros(len(problem.exposure))
    row[:levels] = _coefficient_map(problem.exposure[:levels], problem.stderr[:levels], order)[
        order
    ]
    error = float(np.sqrt(max(0.0, float(row @ problem.covariance @ row))))
    value = float(row @ problem.loss)
    # the standard error of a noise-free curve is rounding error
    return value / error if error > 1e-12 * max(1.0, float(np.abs(problem.loss).max())) else 0.0


def _coefficient_map(exposure: Array, stderr: Array, order: int) -> Array:
    """Return the linear map from losses to the coefficients of a weighted polynomial fit."""
    design = np.vander(exposure, order + 1, increasing=True) / stderr[:, None]
    return np.asarray(np.linalg.pinv(design) / stderr)


def secant_limit(problem: Extrapolation) -> float:
    """Return the one-sided 95% lower limit of a secant of the curve, evaluated at no leakage.

    A secant of a convex curve lies below the curve outside its two levels, so

        e_0 ≥ b(0) + |x*|·(b(0) - b(x_m))/x_m

    where x_m is the largest measured level. With one direction and x_m = 1 this is
    e_0 ≥ (LOCO - p0·e_in)/(1 - p0). The noise of the two losses is subtracted, so the limit can
    fall below LOCO. It needs no degree and no tuning, but it is not a guarantee: the curve must
    also be convex to the left of all levels, where nothing is measured.
    """
    exposure = problem.exposure
    reach = float(exposure[-1] - exposure[0])
    part = (float(exposure[0]) - problem.target) / reach if reach > 0 else 0.0
    weights = np.zeros(len(exposure))
    weights[0] += 1 + part
    weights[-1] -= part
    error = float(np.sqrt(max(0.0, float(weights @ problem.covariance @ weights))))
    quantile = float(stats.t.ppf(SECANT_CONFIDENCE, problem.freedom))
    return float(weights @ problem.loss) - quantile * error


def lower_limit(problem: Extrapolation, confidence: float) -> float:
    """Return a simultaneous lower confidence limit for e_0 of a decreasing and convex curve.

    Lines through the first r levels lie below a convex curve to the left of these levels. Each
    line evaluated at x* therefore underestimates e_0, and so does b(0) itself. The limit is the
    largest of these values minus c standard errors, where c is the quantile of the joint maximum.
    """
    weights = _Lines.of(problem).at(problem.target)
    values = weights @ problem.loss
    covariance = weights @ problem.covariance @ weights.T
    errors = np.sqrt(np.clip(np.diag(covariance), 0, None))
    critical = _joint_quantile(covariance, errors, confidence, problem.freedom)
    return float(np.max(values - critical * errors))


def highest_line(problem: Extrapolation, targets: Array) -> Array:
    """Return, for each x*, the largest value there of the lines of `lower_limit`: no limit is above it.

    `targets` take the place of the target of the problem.
    """
    lines = _Lines.of(problem)
    start, slope = lines.weights @ problem.loss, lines.slope @ problem.loss
    return np.asarray((start + (targets[:, None] - lines.centre) * slope).max(axis=1))


@dataclass(frozen=True, eq=False)
class _Lines:
    """b(0), and weighted lines through the first levels, as weights of the losses."""

    weights: Array  # of the value at the centre
    centre: Array
    slope: Array

    @classmethod
    def of(cls, problem: Extrapolation) -> "_Lines":
        exposure, precision = problem.exposure, problem.stderr**-2
        lengths = _line_lengths(len(exposure))
        weights, slope = np.zeros((2, len(lengths) + 1, len(exposure)))
        centre = np.zeros(len(weights))
        weights[0, 0] = 1
        for row, count in enumerate(lengths, start=1):
            own = precision[:count] / np.sum(precision[:count])
            centre[row] = own @ exposure[:count]
            away = exposure[:count] - centre[row]
            weights[row, :count], slope[row, :count] = own, own * away / float(own @ away**2)
        return cls(weights, centre, slope)

    def at(self, target: float) -> Array:
        """Return the weights of the losses in the values at a target."""
        return np.asarray(self.weights + (target - self.centre)[:, None] * self.slope)


@lru_cache(maxsize=16)
def _line_lengths(levels: int) -> tuple[int, ...]:
    """Return the numbers of first levels to fit lines to: all of 2 … m, or ten of them."""
    if levels <= 11:
        return tuple(range(2, levels + 1))
    return tuple(int(count) for count in np.unique(np.geomspace(2, levels, 10).round()))


def _joint_quantile(covariance: Array, errors: Array, level: float, freedom: float) -> float:
    scale = np.where(errors > 0, errors, 1.0)
    correlation = covariance / np.outer(scale, scale)
    points = (_root(correlation) @ _normal_points(len(errors))).max(axis=0)
    if np.isfinite(freedom):
        points = points / _chi_points(len(errors), freedom)
    return float(np.quantile(points, level))


def _root(correlation: Array) -> Array:
    """Return a root that is unique, unlike eigenvectors: the same digits on every processor."""
    ridge = RIDGE * np.eye(len(correlation))
    try:
        return np.asarray(np.linalg.cholesky(correlation + ridge))
    except np.linalg.LinAlgError:  # a covariance that was rounded may have a negative variance
        values, vectors = np.linalg.eigh(correlation)
        repaired = (vectors * np.clip(values, 0, None)) @ vectors.T
        return np.asarray(np.linalg.cholesky(repaired + ridge))


# The quantile is an integral. It is always computed over the same evenly spread (Sobol) points, so
# a moderate number of them is enough.
LOG_POINTS = 12
# Added to the variances of correlations, some of which are singular.
RIDGE = 1e-8


@lru_cache(maxsize=16)
def _uniform_points(size: int) -> Array:
    points = qmc.Sobol(size + 1, scramble=True, rng=np.random.default_rng(0)).random_base2(
        LOG_POINTS
    )
    return np.asarray(np.clip(points, 1e-12, 1 - 1e-12))


@lru_cache(maxsize=16)
def _normal_points(size: int) -> Array:
    return np.ascontiguousarray(ndtri(_uniform_points(size)[:, :-1]).T)


@lru_cache(maxsize=16)
def _chi_points(size: int, freedom: float) -> Array:
    squares = stats.chi2.ppf(_uniform_points(size)[:, -1], freedom)
    return np.asarray(np.sqrt(squares / freedom))


# --- Confidence intervals for e_0 that cover both noise and extrapolation

CONFIDENCE = 0.95
POWERS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30, 40, 55, 75, 100])


def interval(
    problem: Extrapolation,
    e0: float,
    *,
    shaped: bool,
    bound: float | None,
    noise_weights: Array,
    readings: tuple[float, ...] = (),
) -> tuple[float, float]:
    """Return a 95% interval for e_0.

    The lower end is `lower_limit`. The upper end is `upper_limit`, but at least e_0 + t standard
    errors of the estimate. Each end has half of the error probability. If the curve is not
    decreasing or not convex, or the estimate does not rely on that shape, the ends are e_0 ∓ t
    standard errors of the estimate, widened to include the other readings of the curve.

    Parameters
    ----------
    problem : Extrapolation
        Its covariance must include every source of uncertainty: refits, clusters, and the rows
        that leaked. Intervals from refits alone cover 13-75% instead of 95%.
    e0 : float
        The estimate. It always lies inside the interval.
    shaped : bool
        Whether the estimate assumes a decreasing and convex curve and the data do not contradict
        that shape.
    bound : float or None
        The largest possible loss M.
    noise_weights : numpy.ndarray
        The estimate as a linear function of the curve, for the fallback.
    readings : tuple of float
        Values of other curves at the target, for the fallback.

    Notes
    -----
    If a few clusters with large losses make all levels rise and fall together, the best-fitting
    curve under the estimated covariance lies far below all levels (Peelle's puzzle), and so would
    the upper end. The interval therefore covers at least the noise of the estimate itself.
    """
    level = 1 - (1 - CONFIDENCE) / 2
    quantile = _quantile(level, problem.freedom)
    reach = quantile * noise_error(problem, noise_weights)
    if shaped:
        low = lower_limit(problem, level)
        high = max(upper_limit(problem, quantile), e0 + reach)
    else:
        low, high = min((e0, *readings)) - reach, max((e0, *readings)) + reach
    low = min(low, e0) if bound is None else min(max(low, 0.0), e0)
    high = max(high, e0) if bound is None else max(min(high, bound), e0)
    return low, high


@lru_cache(maxsize=64)
def _quantile(level: float, freedom: float) -> float:
    return float(stats.t.ppf(level, freedom))


def noise_error(problem: Extrapolation, weights: Array) -> float:
    """Return the standard error of a linear function of the curve."""
    return float(np.sqrt(max(0.0, float(weights @ problem.covariance @ weights))))


def upper_limit(problem: Extrapolation, quantile: float) -> float:
    """Return the largest e_0 of a curve Σ_k a_k (1-x)^k, a_k ≥ 0, that the data allow.

    The data allow a curve if its χ² exceeds the minimum χ² by at most quantile². Powers go up to
    the sharpness of the curve. Without that limit there is no upper bound below the largest
    possible loss, because a curve may rise arbitrarily fast to the left of all levels.
    """
    powers = np.append(POWERS[problem.sharpness > POWERS], problem.sharpness)
    design, loss = _whitened(problem, (1 - problem.exposure)[:, None] ** powers)
    goal = (1 - problem.target) ** powers.astype(float)
    least, start = _best_fit(design, loss, goal)
    allowed = least + quantile**2

    stiffness = 1e4 * max(1.0, float(np.abs(design).max())) / float(np.abs(goal).max())
    stacked = np.vstack([design, stiffness * goal])

    def excess(value: float) -> float:
        """Return by how much χ² over curves with this e_0 exceeds what is allowed."""
        padded = np.append(loss, stiffness * value)
        weights, _ = nnls(stacked, padded, maxiter=100 * stacked.shape[1])
        rest = loss - design @ weights
        return float(rest @ rest) - allowed

    low, step = start, max(1e-6, float(np.sqrt(problem.covariance[0, 0])))
    high = start + step
    for _ in range(60):
        if excess(high) > 0:
            break
        low, high = high, high + 3 * (high - low)
    else:
        return float("inf")
    if excess(low) > 0:  # rounding error: only the best fit is allowed
        return low
    return float(brentq(excess, low, high, xtol=1e-2 * step))


def _whitened(problem: Extrapolation, columns: Array) -> tuple[Array, Array]:
    """Return columns and losses with independent unit noise, reduced to as few rows as possible."""
    both = np.column_stack([columns, problem.loss])
    variance = np.diag(problem.covariance)
    # noise-free refits make the covariance singular
    ridge = 1e-10 * float(variance.sum())
    if np.count_nonzero(problem.covariance) <= len(variance):
        both = both / np.sqrt(variance + ridge)[:, None]
    else:
        root = np.linalg.cholesky(problem.covariance + ridge * np.eye(len(variance)))
        both = np.linalg.solve(root, both)
    if len(both) > both.shape[1]:
        both = np.asarray(np.linalg.qr(both, mode="r"), float)
    return np.asarray(both[:, :-1]), np.asarray(both[:, -1])


def _best_fit(design: Array, loss: Array, goal: Array) -> tuple[float, float]:
    weights, norm = nnls(design, loss, maxiter=100 * design.shape[1])
    return float(norm) ** 2, float(goal @ weights)
