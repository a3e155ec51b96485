"""Confidence intervals for e_0 that contain noise and extrapolation alike."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq, nnls

from mlflow_b3.estimation.bounds import lower_limit
from mlflow_b3.estimation.unmixing import Extrapolation

CONFIDENCE = 0.95
POWERS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30, 40, 55, 75, 100])
Array = NDArray[np.float64]


def interval(
    problem: Extrapolation,
    e0: float,
    *,
    shaped: bool,
    bound: float | None,
    noise_weights: Array,
    readings: tuple[float, ...] = (),
) -> tuple[float, float]:
    """Return a 95 % interval for e_0.

    The lower end is `lower_limit`, the upper end `upper_limit`, but not below e_0 + t standard errors
    of the estimate; each has half of the error probability. Where the curve is not decreasing or not convex, or the estimate does not use that
    it is, the ends are e_0 ∓ t standard errors of the estimate instead, spread over other readings
    of the curve.

    Parameters
    ----------
    problem : Extrapolation
        Its covariance must hold everything that is uncertain: refits, clusters, the rows that
        leaked. Intervals from refits alone cover 13-75 % instead of 95 %.
    e0 : float
        The estimate; always inside the interval.
    shaped : bool
        The estimate rests on a decreasing and convex curve, and the curve does not contradict it.
    bound : float or None
        The largest possible loss M.
    noise_weights : numpy.ndarray
        The estimate as a linear function of the curve, for the fallback.
    readings : tuple of float
        What other curves would read at the target, for the fallback.

    Notes
    -----
    Where few clusters with large losses make all levels rise and fall together, the curve that fits
    best by the estimated covariance lies far below all of them (Peelle's puzzle), and so would the
    upper end: the noise of the estimate itself is the least that it must hold.
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

    The data allow a curve when its χ² exceeds the least possible one by at most quantile².
    Powers go up to the sharpness of the curve: without such a limit no upper bound below the
    largest loss exists, because a curve may rise arbitrarily fast to the left of all levels.
    """
    powers = np.append(POWERS[problem.sharpness > POWERS], problem.sharpness)
    design, loss = _whitened(problem, (1 - problem.exposure)[:, None] ** powers)
    goal = (1 - problem.target) ** powers.astype(float)
    least, start = _least(design, loss, goal)
    allowed = least + quantile**2

    def excess(value: float) -> float:
        return _constrained(design, loss, goal, value) - allowed

    low, step = start, max(1e-6, float(np.sqrt(problem.covariance[0, 0])))
    high = start + step
    for _ in range(60):
        if excess(high) > 0:
            break
        low, high = high, high + 3 * (high - low)
    else:
        return float("inf")
    if excess(low) > 0:  # rounding: nothing beyond the best fit is allowed
        return low
    return float(brentq(excess, low, high, xtol=1e-2 * step))


def _whitened(problem: Extrapolation, columns: Array) -> tuple[Array, Array]:
    """Return columns and losses with independent unit noise, in as few rows as hold them."""
    both = np.column_stack([columns, problem.loss])
    variance = np.diag(problem.covariance)
    # refits without noise leave the covariance singular
    ridge = 1e-10 * float(variance.sum())
    if np.count_nonzero(problem.covariance) <= len(variance):
        both = both / np.sqrt(variance + ridge)[:, None]
    else:
        root = np.linalg.cholesky(problem.covariance + ridge * np.eye(len(variance)))
        both = np.linalg.solve(root, both)
    if len(both) > both.shape[1]:
        both = np.asarray(np.linalg.qr(both, mode="r"), float)
    return np.asarray(both[:, :-1]), np.asarray(both[:, -1])


def _least(design: Array, loss: Array, goal: Array) -> tuple[float, float]:
    weights, norm = nnls(design, loss, maxiter=100 * design.shape[1])
    return float(norm) ** 2, float(goal @ weights)


def _constrained(design: Array, loss: Array, goal: Array, value: float) -> float:
    """Return the least χ² among curves with goal·a = value."""
    heavy = 1e4 * max(1.0, float(np.abs(design).max())) / float(np.abs(goal).max())
    stacked = np.vstack([design, heavy * goal])
    padded = np.append(loss, heavy * value)
    weights, _ = nnls(stacked, padded, maxiter=100 * stacked.shape[1])
    rest = loss - design @ weights
    return float(rest @ rest)
