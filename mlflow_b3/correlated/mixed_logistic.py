"""Logistic regression with normal random intercepts of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from mlflow_b3.correlated.adaptive_quadrature import adaptive_quadrature
from mlflow_b3.correlated.climbing import FLAT, Objective, Peak, climb
from mlflow_b3.correlated.intercepts import Curvature, Intercepts
from mlflow_b3.correlated.joint_mode import Evaluation, laplace
from mlflow_b3.correlated.mixed_fit import MixedFit, as_codes, as_design, whitened
from mlflow_b3.correlated.profile import profile_interval
from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import InputError, choose

METHODS = ("auto", "aghq", "laplace", "laplace0")
#: Largest sd, on the scale of log odds: a group at 1 sd then has 1 row in 150 of the rarer class.
MOST_SD = 5.0
#: Upper end of an interval that the likelihood leaves open.
MOST_HIGH = 10.0
#: Smallest sd in a search, whose slope would be 0 at 0; below the second, it is reported as 0.
LEAST_SD = 1e-4
AS_ZERO = 5e-3
#: Where a search begins, and where one that ended at 0 is tried again.
FIRST_SD = 0.5
LEAST_AGAIN = 0.1
#: Penalty on coefficients of columns of mean square 1, so that a separating one stays finite.
SMALLEST_RIDGE = 1e-8
#: Information on such a coefficient, in rows of even odds times 4, below which it has run away.
RUN_AWAY = 0.02


@dataclass(kw_only=True)
class _Problem:
    """A regression in uncorrelated columns, and where its last integrand was highest."""

    target: Array
    columns: Array
    levels: Intercepts
    penalty: Array
    mode: tuple[Array, Array] | None = None
    converged: bool = True

    def at_mode(self, _: Array, sd: Array) -> tuple[float, Array, Array]:
        """Evaluate Laplace's approximation with the coefficients of the joint mode."""
        found = laplace(
            self.target, self.columns, self.levels, sd, penalty=self.penalty, start=self.mode
        )
        self.mode, self.converged = (found.coefficients, found.effects), found.converged
        return found.value, np.zeros(0), found.sd_slope

    def outer(self, beta: Array, sd: Array) -> tuple[float, Array, Array]:
        """Evaluate Laplace's approximation at coefficients."""
        found = laplace(
            self.target,
            np.empty((len(self.target), 0)),
            self.levels,
            sd,
            penalty=np.empty((0, 0)),
            offset=self.columns @ beta,
            start=None if self.mode is None else (np.zeros(0), self.mode[1]),
        )
        return self._penalised(found, beta)

    def nodes(self, beta: Array, sd: Array) -> tuple[float, Array, Array]:
        """Evaluate the quadrature at coefficients."""
        found = adaptive_quadrature(
            self.target,
            self.levels,
            sd,
            offset=self.columns @ beta,
            start=None if self.mode is None else self.mode[1],
        )
        return self._penalised(found, beta)

    def _penalised(self, found: Evaluation, beta: Array) -> tuple[float, Array, Array]:
        self.mode, self.converged = (beta, found.effects), found.converged
        pulled = self.penalty @ beta
        slope = self.columns.T @ found.offset_slope - pulled
        return found.value - float(beta @ pulled) / 2, slope, found.sd_slope

    def information(self, sd: Array) -> Array:
        """Return what is known of the coefficients at the last mode, penalty included."""
        beta, effects = self.mode or (np.zeros(self.columns.shape[1]), np.zeros(self.levels.total))
        chance = expit(self.columns @ beta + self.levels.added(effects, sd))
        weight = chance * (1 - chance)
        return Curvature(self.levels, sd, weight, self.columns, self.penalty).information


def fit_mixed_logistic(
    target: Any,
    X: Any,
    codes: Sequence[Any],
    *,
    ridge: float = 0.0,
    method: str = "auto",
    intervals: bool = True,
) -> MixedFit:
    """Fit a logistic regression with random intercepts by maximum likelihood.

        y_i ~ Bernoulli(g(x_i'β + Σ_l u_l[i])),   u_l ~ N(0, sd_l²)

    Parameters
    ----------
    target : array of 0 and 1
    X : array (n, p)
        Fixed effects, with a column of ones for the intercept.
    codes : sequence of array of int
        The group of each row, one array for each level, from 0.
    ridge : float, default 0
        Subtract ridge |β|²/2 from the log likelihood.
    method : {"auto", "aghq", "laplace", "laplace0"}
        "aghq" integrates one level by adaptive quadrature with 15 nodes. "laplace" takes crossed or
        nested levels. "laplace0" finds coefficients together with the intercepts, which is quick and
        biased. "auto" is "aghq" for one level and "laplace" for more.
    intervals : bool, default True
        Find the profile likelihood of each sd, with the other sd at their estimates and the
        coefficients at their best.

    Returns
    -------
    MixedFit

    Notes
    -----
    Restricted likelihood, which mends the bias of variances for numbers, overshoots for classes with
    few rows for each coefficient, and is not offered.
    """
    design, values = as_design(X, target)
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError("target must hold nothing but 0 and 1; number the two classes so.")
    levels = Intercepts(as_codes(codes, len(values)))
    if choose("method", method, METHODS) == "auto":
        method = "aghq" if len(codes) == 1 else "laplace"
    if method == "aghq" and len(codes) > 1:
        raise InputError(
            f"method='aghq' takes one level, and codes has {len(codes)}; use 'laplace'."
        )
    columns, back = whitened(design)
    problem = _Problem(
        target=values,
        columns=columns,
        levels=levels,
        penalty=ridge * back.T @ back + SMALLEST_RIDGE * np.eye(columns.shape[1]),
    )
    objective, peak, information = _highest(problem, method)
    beta, effects = problem.mode or (peak.coefficients, np.zeros(levels.total))
    sd = np.where(peak.spread > AS_ZERO, peak.spread, 0.0)
    known = np.linalg.eigvalsh(information - problem.penalty)
    converged = peak.converged and problem.converged
    low = high = sd
    if intervals:
        low, high = _intervals(objective, peak, information)
    return MixedFit(
        coefficients=back @ beta,
        effects=levels.as_given(effects, sd),
        sd=levels.in_given_order(sd),
        sd_low=levels.in_given_order(np.minimum(low, sd)),
        sd_high=levels.in_given_order(np.maximum(high, sd)),
        log_likelihood=peak.value + float(beta @ problem.penalty @ beta) / 2,
        converged=converged,
        separated=bool((sd > 0.99 * MOST_SD).any() or known.min(initial=1.0) < RUN_AWAY),
    )


def _highest(problem: _Problem, method: str) -> tuple[Objective, Peak, Array]:
    """Return the likelihood of a method, its peak, and the information on coefficients there."""
    none = np.empty((0, 0))
    sd = np.full(len(problem.levels.sizes), FIRST_SD)
    peak = _search(problem.at_mode, np.zeros(0), sd, none)
    problem.at_mode(peak.coefficients, peak.spread)
    information = problem.information(peak.spread)
    if method == "laplace0" or problem.mode is None:
        return problem.at_mode, peak, information
    objective = problem.nodes if method == "aghq" else problem.outer
    begin = np.maximum(peak.spread, LEAST_AGAIN)
    peak = _search(objective, problem.mode[0], begin, information)
    objective(peak.coefficients, peak.spread)
    return objective, peak, problem.information(peak.spread)


def _search(objective: Objective, beta: Array, sd: Array, information: Array) -> Peak:
    """Climb, and climb again from where a level that ended at 0 would do better."""
    bounds = np.full(len(sd), LEAST_SD), np.full(len(sd), MOST_SD)
    scale = np.full(len(sd), FIRST_SD / 2)
    peak = climb(objective, beta, sd, information=information, scale=scale, bounds=bounds)
    for level in np.flatnonzero(peak.spread < LEAST_AGAIN):
        other = peak.spread.copy()
        other[level] = LEAST_AGAIN
        if objective(peak.coefficients, other)[0] > peak.value:
            peak = climb(
                objective,
                peak.coefficients,
                other,
                information=information,
                scale=scale,
                bounds=bounds,
            )
    return peak


def _intervals(objective: Objective, peak: Peak, information: Array) -> tuple[Array, Array]:
    """Return the ends of the profile likelihood of each sd, the other sd at their estimates."""
    ends = np.empty((2, len(peak.spread)))
    for level, estimate in enumerate(peak.spread):

        def profile(value: float, level: int = level) -> float:
            sd = peak.spread.copy()
            sd[level] = value
            if not len(peak.coefficients):  # they follow by themselves
                return objective(peak.coefficients, sd)[0]
            return climb(
                objective,
                peak.coefficients,
                sd,
                information=information,
                scale=np.ones(len(sd)),
                bounds=(sd, sd),
                slope=FLAT,
            ).value

        ends[:, level] = profile_interval(profile, float(estimate), peak.value, most=MOST_HIGH)
    return ends[0], ends[1]
