"""Lower limits that rest on the shape of the loss curve, and the checks of that shape."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri
from scipy.stats import qmc

from mlflow_b3.estimation.unmixing import Extrapolation
from mlflow_b3.results import Result

REJECTED_Z = 1.96
#: The part of the measured range, and the fewest levels, whose curvature counts by itself.
NEAR, NEAR_LEVELS = 0.4, 4
SECANT_CONFIDENCE = 0.95
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ShapeCheck(Result):
    """Whether the measured curve is decreasing and convex.

    Attributes
    ----------
    slope_z, curvature_z : float
        z-scores of the slope of a line and of the curvature of a parabola through the curve.
    near_curvature_z : float
        z-score of the curvature of a parabola through the lowest levels, those up to 40 % of the
        largest one and four at least; 0 with fewer levels, and in records of earlier versions.
    """

    slope_z: float
    curvature_z: float
    near_curvature_z: float = 0.0

    @property
    def decreasing(self) -> bool:
        """False when the curve rises beyond its noise: leaked rows hurt."""
        return self.slope_z <= REJECTED_Z

    @property
    def convex(self) -> bool:
        """False when the curve bends downwards beyond its noise."""
        return self.curvature_z >= -REJECTED_Z

    @property
    def supports_convexity(self) -> bool:
        """Whether the curve is convex beyond its noise, as a whole and where it is extrapolated from.

        The lower 97.5 % confidence limits of both curvatures must be above 0. Not to reject a
        convex curve is much less: noise hides any shape. The lowest levels count by themselves
        because a curve whose first leaked row changes little bends down there, and up as a whole.
        """
        return min(self.curvature_z, self.near_curvature_z) > REJECTED_Z


def check_shape(problem: Extrapolation) -> ShapeCheck:
    """Test slope and curvature of the measured curve against its whole covariance."""
    exposure = problem.exposure
    limit = exposure[0] + NEAR * float(np.ptp(exposure))
    near = max(NEAR_LEVELS, int(np.sum(exposure <= limit)))
    return ShapeCheck(
        slope_z=_z(problem, 1),
        curvature_z=_z(problem, 2),
        near_curvature_z=_z(problem, 2, near) if len(exposure) >= NEAR_LEVELS else 0.0,
    )


def _z(problem: Extrapolation, order: int, levels: int | None = None) -> float:
    """Return the z-score of the highest coefficient of a polynomial fitted to the first levels."""
    if len(problem.exposure) < order + 1:
        return 0.0
    row = np.zeros(len(problem.exposure))
    row[:levels] = _map(problem.exposure[:levels], problem.stderr[:levels], order)[order]
    error = float(np.sqrt(max(0.0, float(row @ problem.covariance @ row))))
    value = float(row @ problem.loss)
    # a noise-free curve has no error to compare with, only rounding
    return value / error if error > 1e-12 * max(1.0, float(np.abs(problem.loss).max())) else 0.0


def _map(exposure: Array, stderr: Array, order: int) -> Array:
    """Return the linear map from losses to the coefficients of a weighted polynomial fit."""
    design = np.vander(exposure, order + 1, increasing=True) / stderr[:, None]
    return np.asarray(np.linalg.pinv(design) / stderr)


def secant_limit(problem: Extrapolation) -> float:
    """Return the one-sided 95 % lower limit of a secant of the curve, read at no leakage.

    A secant of a convex curve lies below it outside of its two levels, so

        e_0 ≥ b(0) + |x*|·(b(0) - b(x_m))/x_m

    with the largest measured level x_m; with one direction and x_m = 1 this is
    e_0 ≥ (LOCO - p0·e_in)/(1 - p0). The noise of the two losses is subtracted, so the limit can
    fall below LOCO. It needs no degree and no tuning, but it is no guarantee: it holds for curves
    that are convex, also to the left of all levels, where nothing is measured.
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

    Lines through the first r levels lie below a convex curve to the left of these levels, so each
    of them, read at x*, underestimates e_0; so does b(0) itself. The limit is the largest of
    their values less c standard errors, with c the quantile of the joint maximum.
    """
    rows = [np.eye(len(problem.exposure))[0]]
    for count in _first_levels(len(problem.exposure)):
        row = np.zeros(len(problem.exposure))
        row[:count] = _read_line(problem.exposure[:count], problem.stderr[:count], problem.target)
        rows.append(row)
    weights = np.array(rows)
    values = weights @ problem.loss
    covariance = weights @ problem.covariance @ weights.T
    errors = np.sqrt(np.clip(np.diag(covariance), 0, None))
    critical = _joint_quantile(covariance, errors, confidence, problem.freedom)
    return float(np.max(values - critical * errors))


def _read_line(exposure: Array, stderr: Array, target: float) -> Array:
    """Return the weights with which a weighted line reads the losses at the target."""
    weights = stderr**-2 / np.sum(stderr**-2)
    centred = exposure - weights @ exposure
    slope = weights * centred / float(weights @ centred**2)
    return np.asarray(weights + (target - weights @ exposure) * slope)


def _first_levels(levels: int) -> list[int]:
    """Return how many of the first levels to draw lines through: all of 2 … m, or ten of them."""
    if levels <= 11:
        return list(range(2, levels + 1))
    return [int(count) for count in np.unique(np.geomspace(2, levels, 10).round())]


def _joint_quantile(covariance: Array, errors: Array, level: float, freedom: float) -> float:
    scale = np.where(errors > 0, errors, 1.0)
    correlation = covariance / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    points = (_normal_points(len(errors)) @ root.T).max(axis=1)
    if np.isfinite(freedom):
        points = points / _chi_points(len(errors), freedom)
    return float(np.quantile(points, level))


# The quantile is an integral, not an experiment: it is always taken over the same points, which
# are spread evenly (Sobol) and need not be many.
LOG_POINTS = 12


@lru_cache(maxsize=16)
def _uniform_points(size: int) -> Array:
    points = qmc.Sobol(size + 1, scramble=True, rng=np.random.default_rng(0)).random_base2(
        LOG_POINTS
    )
    return np.asarray(np.clip(points, 1e-12, 1 - 1e-12))


@lru_cache(maxsize=16)
def _normal_points(size: int) -> Array:
    return np.asarray(ndtri(_uniform_points(size)[:, :-1]))


@lru_cache(maxsize=16)
def _chi_points(size: int, freedom: float) -> Array:
    squares = stats.chi2.ppf(_uniform_points(size)[:, -1], freedom)
    return np.asarray(np.sqrt(squares / freedom))
