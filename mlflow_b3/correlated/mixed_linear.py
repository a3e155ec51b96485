"""Linear regression with normal random intercepts of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from mlflow_b3.correlated.climbing import Peak, climb
from mlflow_b3.correlated.intercepts import Curvature, Intercepts
from mlflow_b3.correlated.mixed_fit import MixedFit, as_codes, as_design, whitened
from mlflow_b3.correlated.profile import profile_interval
from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import InputError

#: Smallest and largest sd in units of the noise; below the third, it is reported as 0.
LEAST_RATIO = 1e-4
MOST_RATIO = 1e3
AS_ZERO = 5e-3
#: Where a search begins, and where one that ended at 0 is tried again.
FIRST_RATIO = 0.5
LEAST_AGAIN = 0.1
#: Upper ends of intervals, in units of the estimate and the noise together.
MOST_TIMES = 20.0
#: Sum of squares of a target of variance 1 that columns and groups tell without error.
NO_SQUARES = 1e-12


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """A linear regression in uncorrelated columns."""

    target: Array
    columns: Array
    levels: Intercepts

    @property
    def freedom(self) -> int:
        """Rows less coefficients."""
        return int(len(self.target) - self.columns.shape[1])

    def solved(self, ratio: Array) -> tuple[Array, Array, Array, float, Curvature]:
        """Return coefficients, intercepts, residuals and penalised squares at sd over noise."""
        columns, levels, target = self.columns, self.levels, self.target
        none = np.zeros((columns.shape[1], columns.shape[1]))
        curvature = Curvature(levels, ratio, np.ones(len(target)), columns, none)
        right = np.repeat(ratio, levels.sizes) * levels.sums(target)
        effects, beta = curvature.solve(right, columns.T @ target)
        residual = target - columns @ beta - levels.added(effects, ratio)
        squares = max(float(residual @ residual + effects @ effects), NO_SQUARES)
        return beta, effects, residual, squares, curvature

    def restricted(self, _: Array, ratio: Array) -> tuple[float, Array, Array]:
        """Return the restricted log likelihood at the best noise, and its slopes."""
        _beta, effects, residual, squares, curvature = self.solved(ratio)
        level = np.log(2 * np.pi * squares / self.freedom) + 1
        value = -(self.freedom * level + _log_determinants(curvature)) / 2
        own, _, rest = curvature.inverse(coefficients=True)
        diagonal = np.concatenate([own, np.diag(rest)[: curvature.others]])
        traces = np.array([part.sum() for part in self.levels.split(diagonal)])
        pulls = np.array([residual @ part for part in self.levels.of_rows(effects)])
        slopes = pulls * self.freedom / squares - (self.levels.sizes - traces) / ratio
        return value, np.zeros(0), slopes

    def best_noise(self, sd: Array, top: Array, noise: float) -> float:
        """Return the restricted log likelihood of sd at the noise that suits it best.

        `top` and `noise` are the estimates.
        """

        def loss(log_noise: float) -> float:
            now = float(np.exp(log_noise))
            *_rest, squares, curvature = self.solved(sd / now)
            fit = self.freedom * np.log(2 * np.pi * now**2) + squares / now**2
            return float(fit + _log_determinants(curvature)) / 2

        # all that an sd leaves unexplained becomes noise
        most = np.log(noise**2 + float(top @ top)) / 2 + 0.5
        near = np.log(noise) - 1, most
        found = minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-3})
        return -float(found.fun)


def fit_mixed_linear(
    target: Any, X: Any, codes: Sequence[Any], *, intervals: bool = True
) -> MixedFit:
    """Fit a linear regression with random intercepts by restricted maximum likelihood.

        y_i = x_i'β + Σ_l u_l[i] + ε_i,   u_l ~ N(0, sd_l²),   ε ~ N(0, noise²)

    Parameters
    ----------
    target : array of float
    X : array (n, p)
        Fixed effects, with a column of ones for the intercept.
    codes : sequence of array of int
        The group of each row, one array for each level, from 0.
    intervals : bool, default True
        Find the profile likelihood of each sd, with the other sd at their estimates and coefficients
        and noise at their best.

    Returns
    -------
    MixedFit

    Notes
    -----
    The restricted likelihood is that of the contrasts which are free of β. Variances by plain maximum
    likelihood are too small by the share of the coefficients in what the groups tell (for the mean of q
    groups, by 1/q); restricted ones are not, and are those of the analysis of variance where groups are
    balanced and the estimate is not 0. Computed as in the R package lme4 (doi:10.18637/jss.v067.i01).
    """
    design, values = as_design(X, target)
    levels = Intercepts(as_codes(codes, len(values)))
    columns, back = whitened(design)
    if len(values) <= columns.shape[1]:
        raise InputError(
            f"X has {columns.shape[1]} independent columns for {len(values)} rows; give more rows "
            "or fewer columns."
        )
    unit = float(values.std()) or 1.0
    problem = _Problem(target=values / unit, columns=columns, levels=levels)
    peak = _highest(problem)
    ratio = np.where(peak.spread > AS_ZERO, peak.spread, 0.0)
    beta, effects, _, squares, _ = problem.solved(ratio)
    noise = float(np.sqrt(squares / problem.freedom))
    sd = noise * ratio
    low = high = sd
    if intervals:
        low, high = _intervals(problem, sd, noise)
    # the density of orthonormal contrasts, whatever the units of the columns
    scale = columns.shape[1] * np.log(len(values)) / 2 - problem.freedom * np.log(unit)
    return MixedFit(
        coefficients=unit * (back @ beta),
        effects=levels.as_given(unit * effects, ratio),
        sd=levels.in_given_order(unit * sd),
        sd_low=levels.in_given_order(unit * np.minimum(low, sd)),
        sd_high=levels.in_given_order(unit * np.maximum(high, sd)),
        log_likelihood=peak.value + float(scale),
        converged=peak.converged and bool((ratio < 0.99 * MOST_RATIO).all()),
        noise=unit * noise,
    )


def _log_determinants(curvature: Curvature) -> float:
    """Return the logarithm of the determinant of intercepts and coefficients together."""
    logs = np.log(np.diag(curvature.lower)[curvature.others :])
    return curvature.log_determinant + 2 * float(logs.sum())


def _highest(problem: _Problem) -> Peak:
    """Climb, and climb again from where a level that ended at 0 would do better."""
    count = len(problem.levels.sizes)
    bounds = np.full(count, LEAST_RATIO), np.full(count, MOST_RATIO)
    none, scale = np.empty((0, 0)), np.full(count, FIRST_RATIO / 2)
    nothing, start = np.zeros(0), np.full(count, FIRST_RATIO)
    peak = climb(problem.restricted, nothing, start, information=none, scale=scale, bounds=bounds)
    for level in np.flatnonzero(peak.spread < LEAST_AGAIN):
        other = peak.spread.copy()
        other[level] = LEAST_AGAIN
        if problem.restricted(nothing, other)[0] > peak.value:
            peak = climb(
                problem.restricted, nothing, other, information=none, scale=scale, bounds=bounds
            )
    return peak


def _intervals(problem: _Problem, sd: Array, noise: float) -> tuple[Array, Array]:
    """Return the ends of the profile likelihood of each sd, the other sd at their estimates."""
    ends = np.empty((2, len(sd)))
    peak = problem.best_noise(sd, sd, noise)
    for level, estimate in enumerate(sd):

        def profile(value: float, level: int = level) -> float:
            moved = sd.copy()
            moved[level] = value
            return problem.best_noise(moved, sd, noise)

        most = MOST_TIMES * float(estimate + noise)
        ends[:, level] = profile_interval(profile, float(estimate), peak, most=most)
    return ends[0], ends[1]
