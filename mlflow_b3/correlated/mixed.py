"""Mixed linear and logistic regression with random intercepts, and profile intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotri
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import expit

from mlflow_b3.correlated.likelihood import (
    Curvature,
    Evaluation,
    Intercepts,
    adaptive_quadrature,
    laplace,
)
from mlflow_b3.correlated.structure import Array, Codes
from mlflow_b3.errors import InputError, choose

# --- `MixedFit`: estimated fixed effects and random intercepts

#: Largest number of cells (largest level times all others) of one factorisation: two levels of 2000
#: groups.
MOST_CELLS = 4_000_000
#: With columns of unit length, directions of the design shorter than this are linear dependencies.
REPEATED = 1e-12


@dataclass(frozen=True, kw_only=True)
class MixedFit:
    """A fitted regression with random intercepts.

    Attributes
    ----------
    coefficients : array (p,)
        Coefficients of the fixed effects.
    effects : tuple of array
        Most likely intercept of each group, one array for each level.
    sd : tuple of float
        Standard deviations of the intercepts, one for each level.
    sd_low, sd_high : tuple of float
        95% intervals by the profile likelihood; equal to `sd` if they were not requested.
    log_likelihood : float
        Log likelihood at the estimates; restricted for regression.
    converged : bool
    separated : bool
        Whether columns or groups separate the classes without error, so estimates diverge.
    noise : float or None
        Standard deviation of the residuals, for regression.
    """

    coefficients: Array
    effects: tuple[Array, ...]
    sd: tuple[float, ...]
    sd_low: tuple[float, ...]
    sd_high: tuple[float, ...]
    log_likelihood: float
    converged: bool
    separated: bool = False
    noise: float | None = None


def as_design(X: Any, target: Any) -> tuple[Array, Array]:
    """Return the fixed effects and the target as float arrays, or raise an `InputError`."""
    design, values = np.asarray(X, dtype=float), np.asarray(target, dtype=float)
    if design.ndim != 2 or len(design) != len(values) or values.ndim != 1:
        raise InputError(
            f"X has the shape {design.shape} and target {values.shape}; X must be a table with one "
            "row for each value of the target."
        )
    if not len(values):
        raise InputError("target is empty; give rows to fit.")
    if not (np.isfinite(design).all() and np.isfinite(values).all()):
        raise InputError("X or target has missing or infinite numbers; fill or drop these rows.")
    return design, values


def as_codes(codes: Sequence[Any], n_rows: int) -> list[Codes]:
    """Return the groups of all levels as whole numbers from 0, or raise an `InputError`."""
    levels = [np.asarray(level) for level in codes]
    if not levels:
        raise InputError("codes is empty; give the groups of one level or more.")
    for position, level in enumerate(levels):
        if level.shape != (n_rows,) or level.dtype.kind not in "iu" or level.min() < 0:
            raise InputError(
                f"codes[{position}] must have one whole number from 0 for each of the {n_rows} rows."
            )
    sizes = sorted(int(level.max()) + 1 for level in levels)
    if sizes[-1] * sum(sizes[:-1]) > MOST_CELLS:
        raise InputError(
            f"codes has levels of {', '.join(map(str, sizes[::-1]))} groups; the number of groups of "
            f"the largest level times that of all others may be {MOST_CELLS:,} at most. Leave out the "
            "level that matters least, or merge its groups."
        )
    return [level.astype(np.intp) for level in levels]


def whitened(design: Array) -> tuple[Array, Array]:
    """Return uncorrelated columns of mean square 1 that span the design, and the back-transformation.

    The result Q, T satisfies Q = X T, so coefficients γ of Q are coefficients T γ of X. Linearly
    dependent directions are dropped, which gives the shortest of the equivalent coefficients.
    """
    sizes = np.sqrt((design**2).mean(axis=0))
    sizes[sizes == 0] = 1.0
    unit = design / sizes
    values, vectors = np.linalg.eigh(unit.T @ unit / len(unit))
    kept = values > REPEATED * values.max(initial=1.0)
    back = vectors[:, kept] / np.sqrt(values[kept])
    return unit @ back, back / sizes[:, None]


# --- Profile likelihood intervals of a standard deviation

#: Drop in log likelihood at the ends of a 95% interval: half the quantile of χ² with one degree of
#: freedom (3.841).
DROP = 1.92
#: Relative and smallest absolute precision of the ends.
PRECISION = 2e-3
SMALLEST = 1e-4


def profile_interval(
    log_likelihood: Callable[[float], float], estimate: float, peak: float, *, most: float
) -> tuple[float, float]:
    """Return the points on both sides of the estimate where the profile has dropped by 1.92.

    Parameters
    ----------
    log_likelihood : callable
        The profile: a function of the standard deviation, maximised over all other parameters.
    estimate, peak : float
        The maximiser, and the maximum.
    most : float
        The upper end if the profile does not drop enough before it.

    Notes
    -----
    The lower end is 0 if the profile does not drop enough above 0.
    """

    def left(sd: float) -> float:
        # the square root of the drop is nearly linear in sd, so few steps find the ends
        return float(np.sqrt(DROP) - np.sqrt(max(peak - log_likelihood(sd), 0.0)))

    precision = max(SMALLEST, PRECISION * estimate)
    low = 0.0
    if estimate > precision and left(0.0) < 0:
        low = float(brentq(left, 0.0, estimate, xtol=precision, rtol=PRECISION))
    inside, outside = estimate, min(most, 1.3 * estimate + 0.1)
    while left(outside) > 0:
        if outside >= most:
            return low, most
        inside, outside = outside, min(most, 1.6 * outside)
    return low, float(brentq(left, inside, outside, xtol=precision, rtol=PRECISION))


# --- Maximising the marginal likelihood over coefficients and standard deviations

#: Log likelihood at coefficients and spread parameters, and its gradients by both.
Objective = Callable[[Array, Array], tuple[float, Array, Array]]

#: Most steps of a search, and its tolerance. A search has converged if the gain that its slope and the
#: initial curvature still promise is below half the square of the tolerance.
MOST_STEPS = 200
FLAT = 0.01
#: The slope at which a search ends.
PRECISE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The end point of a search.

    Attributes
    ----------
    coefficients, spread : array
    value : float
    converged : bool
    """

    coefficients: Array
    spread: Array
    value: float
    converged: bool


def climb(
    objective: Objective,
    coefficients: Array,
    spread: Array,
    *,
    information: Array,
    scale: Array,
    bounds: tuple[Array, Array],
    slope: float = PRECISE,
) -> Peak:
    """Maximise a likelihood by a quasi-Newton method with bounds.

    Parameters
    ----------
    objective : callable
    coefficients, spread : array
        Starting point.
    information : array (p, p)
        An approximation of the curvature in the coefficients, used to scale the steps.
    scale : array
        The same for each spread parameter, as a standard error.
    bounds : tuple of array
        Lower and upper bounds of each spread parameter; equal to hold it fixed.
    slope : float
        Stop when the slope is smaller. `FLAT` is enough if only the maximum is needed, not the
        maximiser.
    """
    turn = np.linalg.inv(np.linalg.cholesky(information)).T
    p = len(coefficients)

    def place(at: Array) -> tuple[Array, Array]:
        # rounding in the scaling must not move a parameter beyond its bounds
        return coefficients + turn @ at[:p], np.clip(at[p:] * scale, *bounds)

    def downhill(at: Array) -> tuple[float, Array]:
        value, by_coefficient, by_spread = objective(*place(at))
        return -value, -np.concatenate([turn.T @ by_coefficient, by_spread * scale])

    begin = np.concatenate([np.zeros(p), np.clip(spread, *bounds) / scale])
    limits = [(None, None)] * p + list(zip(bounds[0] / scale, bounds[1] / scale, strict=True))
    found = minimize(
        downhill,
        begin,
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options={"maxiter": MOST_STEPS, "ftol": 1e-13, "gtol": slope},
    )
    least, most = np.array([(-np.inf, np.inf)] * p + limits[p:], dtype=float).T
    # the projected gradient: steps beyond the bounds do not count
    left = np.clip(found.x - found.jac, least, most) - found.x
    best, spread_there = place(found.x)
    return Peak(
        coefficients=best,
        spread=spread_there,
        value=-float(found.fun),
        converged=bool(np.isfinite(found.fun) and np.abs(left).max(initial=0.0) < FLAT),
    )


# --- Logistic regression with normal random intercepts

METHODS = ("auto", "aghq", "laplace", "laplace0")
#: Largest sd on the log odds scale. A group at 1 sd then has 1 row in 150 of the rarer class.
MOST_SD = 5.0
#: Upper end of an interval that the likelihood does not bound.
MOST_HIGH = 10.0
#: Smallest sd in a search, because the slope vanishes at 0. Below the second value, sd is reported as 0.
LEAST_SD = 1e-4
AS_ZERO = 5e-3
#: Starting value of a search, and of a second search if the first ended at 0.
FIRST_SD = 0.5
LEAST_AGAIN = 0.1
#: Penalty on coefficients of columns of mean square 1, which keeps separating columns finite.
SMALLEST_RIDGE = 1e-8
#: Information on such a coefficient, in rows of even odds times 4, below which it has diverged.
RUN_AWAY = 0.02


@dataclass(kw_only=True)
class _LogisticProblem:
    """A regression in uncorrelated columns, with the mode of the last evaluation."""

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
        """Evaluate Laplace's approximation at the given coefficients."""
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
        """Evaluate the quadrature at the given coefficients."""
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
        """Return the information on the coefficients at the last mode, including the penalty."""
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
        "aghq" integrates one level by adaptive quadrature with 15 nodes. "laplace" supports crossed
        and nested levels. "laplace0" estimates coefficients jointly with the intercepts, which is
        fast but biased. "auto" is "aghq" for one level and "laplace" for more.
    intervals : bool, default True
        Whether to compute profile likelihood intervals of each sd, with the other sd at their
        estimates and the likelihood maximised over the coefficients.

    Returns
    -------
    MixedFit

    Notes
    -----
    Restricted likelihood corrects the bias of variances in linear regression. In classification with
    few rows for each coefficient it over-corrects, so it is not available here.
    """
    design, values = as_design(X, target)
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError("target must contain only 0 and 1; encode the two classes like this.")
    levels = Intercepts(as_codes(codes, len(values)))
    if choose("method", method, METHODS) == "auto":
        method = "aghq" if len(codes) == 1 else "laplace"
    if method == "aghq" and len(codes) > 1:
        raise InputError(
            f"method='aghq' takes one level, and codes has {len(codes)}; use 'laplace'."
        )
    columns, back = whitened(design)
    problem = _LogisticProblem(
        target=values,
        columns=columns,
        levels=levels,
        penalty=ridge * back.T @ back + SMALLEST_RIDGE * np.eye(columns.shape[1]),
    )
    objective, peak, information = _maximise_logistic(problem, method)
    beta, effects = problem.mode or (peak.coefficients, np.zeros(levels.total))
    sd = np.where(peak.spread > AS_ZERO, peak.spread, 0.0)
    known = np.linalg.eigvalsh(information - problem.penalty)
    converged = peak.converged and problem.converged
    low = high = sd
    if intervals:
        low, high = sd_intervals(objective, peak, information)
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


def _maximise_logistic(problem: _LogisticProblem, method: str) -> tuple[Objective, Peak, Array]:
    """Return the likelihood of a method, its maximum, and the information on coefficients there."""
    none = np.empty((0, 0))
    sd = np.full(len(problem.levels.sizes), FIRST_SD)
    peak = search_sds(problem.at_mode, np.zeros(0), sd, none)
    problem.at_mode(peak.coefficients, peak.spread)
    information = problem.information(peak.spread)
    if method == "laplace0" or problem.mode is None:
        return problem.at_mode, peak, information
    objective = problem.nodes if method == "aghq" else problem.outer
    begin = np.maximum(peak.spread, LEAST_AGAIN)
    peak = search_sds(objective, problem.mode[0], begin, information)
    objective(peak.coefficients, peak.spread)
    return objective, peak, problem.information(peak.spread)


def search_sds(objective: Objective, beta: Array, sd: Array, information: Array) -> Peak:
    """Maximise, and restart if a positive sd is better for a level that ended at 0."""
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


def sd_intervals(objective: Objective, peak: Peak, information: Array) -> tuple[Array, Array]:
    """Return the profile likelihood interval of each sd, with the other sd at their estimates."""
    ends = np.empty((2, len(peak.spread)))
    for level, estimate in enumerate(peak.spread):

        def profile(value: float, level: int = level) -> float:
            sd = peak.spread.copy()
            sd[level] = value
            if not len(peak.coefficients):  # the joint mode determines them
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


# --- Linear regression with normal random intercepts

#: Smallest and largest sd in units of the noise.
LEAST_RATIO = 1e-4
MOST_RATIO = 1e3
#: Starting value of a search.
FIRST_RATIO = 0.5
#: Largest upper end of an interval, as a multiple of the estimate plus the noise.
MOST_TIMES = 20.0
#: Smallest sum of squares of a target of variance 1, if columns and groups fit it without error.
NO_SQUARES = 1e-12


@dataclass(frozen=True, kw_only=True)
class _LinearProblem:
    """A linear regression in uncorrelated columns."""

    target: Array
    columns: Array
    levels: Intercepts

    @property
    def freedom(self) -> int:
        """Number of rows minus number of coefficients."""
        return int(len(self.target) - self.columns.shape[1])

    def solved(self, ratio: Array) -> tuple[Array, Array, Array, float, Curvature]:
        """Return coefficients, intercepts, residuals, penalised squares and curvature at sd/noise."""
        columns, levels, target = self.columns, self.levels, self.target
        none = np.zeros((columns.shape[1], columns.shape[1]))
        curvature = Curvature(levels, ratio, np.ones(len(target)), columns, none)
        right = np.repeat(ratio, levels.sizes) * levels.sums(target)
        effects, beta = curvature.solve(right, columns.T @ target)
        residual = target - columns @ beta - levels.added(effects, ratio)
        squares = max(float(residual @ residual + effects @ effects), NO_SQUARES)
        return beta, effects, residual, squares, curvature

    def restricted(self, _: Array, ratio: Array) -> tuple[float, Array, Array]:
        """Return the restricted log likelihood, maximised over the noise, and its gradient."""
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
        """Return the restricted log likelihood of sd, maximised over the noise.

        `top` and `noise` are the estimates.
        """

        def loss(log_noise: float) -> float:
            now = float(np.exp(log_noise))
            *_rest, squares, curvature = self.solved(sd / now)
            fit = self.freedom * np.log(2 * np.pi * now**2) + squares / now**2
            return float(fit + _log_determinants(curvature)) / 2

        # the noise absorbs everything that sd leaves unexplained
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
        Whether to compute profile likelihood intervals of each sd, with the other sd at their
        estimates and the likelihood maximised over coefficients and noise.

    Returns
    -------
    MixedFit

    Notes
    -----
    The restricted likelihood is that of the contrasts that are free of β. Variances by plain maximum
    likelihood are too small by the share of the groups' information that goes into the coefficients
    (for the mean of q groups, by 1/q). Restricted estimates are not. They equal those of the analysis
    of variance if groups are balanced and the estimate is not 0. The computation follows the R package
    lme4 (doi:10.18637/jss.v067.i01).
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
    problem = _LinearProblem(target=values / unit, columns=columns, levels=levels)
    peak = _maximise_linear(problem)
    ratio = np.where(peak.spread > AS_ZERO, peak.spread, 0.0)
    beta, effects, _, squares, _ = problem.solved(ratio)
    noise = float(np.sqrt(squares / problem.freedom))
    sd = noise * ratio
    low = high = sd
    if intervals:
        low, high = _linear_intervals(problem, sd, noise)
    # the density of orthonormal contrasts, independent of the units of the columns
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
    """Return the log determinant over intercepts and coefficients jointly."""
    logs = np.log(np.diag(curvature.lower)[curvature.others :])
    return curvature.log_determinant + 2 * float(logs.sum())


def _maximise_linear(problem: _LinearProblem) -> Peak:
    """Maximise, and restart if a positive sd is better for a level that ended at 0."""
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


def _linear_intervals(problem: _LinearProblem, sd: Array, noise: float) -> tuple[Array, Array]:
    """Return the profile likelihood interval of each sd, with the other sd at their estimates."""
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


# --- The inverse of a dense matrix from its Cholesky factor


def inverse_of(lower: Array) -> Array:
    """Return the inverse of L L', at a third of the cost of solving for the identity."""
    inverse, _ = dpotri(lower, lower=1)
    return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T, dtype=float)
