"""Laplace's approximation of a logistic regression with random intercepts."""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from mlflow_b3.correlated.intercepts import Curvature, Intercepts
from mlflow_b3.correlated.structure import Array

#: Newton steps, halvings of one, and the gain in log likelihood that counts as none.
MOST_STEPS = 60
MOST_HALVINGS = 12
NO_GAIN = 1e-10


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Where the joint likelihood of coefficients and intercepts is highest.

    Attributes
    ----------
    coefficients, effects : array
        Intercepts in units of their sd.
    value : float
        Log likelihood given the intercepts, less |v|²/2 and the penalty of the coefficients.
    chance : array
        Probability of class 1 for each row.
    curvature : Curvature
    converged : bool
    """

    coefficients: Array
    effects: Array
    value: float
    chance: Array
    curvature: Curvature
    converged: bool


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A marginal log likelihood, and what it gains by a change of its arguments.

    Attributes
    ----------
    value : float
    sd_slope, offset_slope : array
        Its derivatives by the sd of each level and by the fixed part of each row.
    coefficients, effects : array
        Where the integrand is highest; the next search can start there.
    converged : bool
    """

    value: float
    sd_slope: Array
    offset_slope: Array
    coefficients: Array
    effects: Array
    converged: bool


def bernoulli(target: Array, log_odds: Array) -> float:
    """Return the log likelihood of classes 0 and 1."""
    return float(target @ log_odds - np.logaddexp(0.0, log_odds).sum())


def joint_mode(
    target: Array,
    X: Array,
    levels: Intercepts,
    sd: Array,
    *,
    penalty: Array,
    offset: Array | None = None,
    start: tuple[Array, Array] | None = None,
) -> Mode:
    """Maximise the joint likelihood of coefficients and intercepts by Newton's method.

        Σ_i [y_i t_i - log(1 + e^{t_i})] - |v|²/2 - β'Pβ/2,   t = offset + Xβ + Z diag(sd) v

    Parameters
    ----------
    target : array of 0 and 1
    X : array (n, p)
        Columns of the coefficients to be found; none where all are in the offset.
    levels : Intercepts
    sd : array
        In the order of `levels`.
    penalty : array (p, p)
        P.
    offset : array (n,), optional
    start : tuple of array, optional
        Coefficients and intercepts to begin with.
    """
    fixed = np.zeros(len(target)) if offset is None else offset
    beta, effects = start or (np.zeros(X.shape[1]), np.zeros(levels.total))
    scale = np.repeat(sd, levels.sizes)

    def at(beta: Array, effects: Array) -> tuple[float, Array]:
        log_odds = fixed + X @ beta + levels.added(effects, sd)
        prior = (effects @ effects + beta @ penalty @ beta) / 2
        return bernoulli(target, log_odds) - float(prior), expit(log_odds)

    value, chance = at(beta, effects)
    converged = False
    for _ in range(MOST_STEPS):
        curvature = Curvature(levels, sd, chance * (1 - chance), X, penalty)
        if converged:
            break
        residual = target - chance
        uphill = scale * levels.sums(residual) - effects, X.T @ residual - penalty @ beta
        step = curvature.solve(*uphill)
        gain = float(uphill[0] @ step[0] + uphill[1] @ step[1])
        length = 1.0
        for _ in range(MOST_HALVINGS):
            moved = beta + length * step[1], effects + length * step[0]
            new, there = at(*moved)
            if new >= value - NO_GAIN:
                break
            length /= 2
        (beta, effects), value, chance = moved, new, there
        converged = gain < NO_GAIN
    return Mode(
        coefficients=beta,
        effects=effects,
        value=value,
        chance=chance,
        curvature=curvature,
        converged=converged,
    )


def laplace(
    target: Array,
    X: Array,
    levels: Intercepts,
    sd: Array,
    *,
    penalty: Array,
    offset: Array | None = None,
    start: tuple[Array, Array] | None = None,
) -> Evaluation:
    """Integrate the intercepts out by Laplace's approximation at the joint mode.

        log L ≈ max - log|S Z'WZ S + I| / 2

    With columns in `X` the coefficients are those of the joint mode, which is quick and biased towards
    small sd (`nAGQ = 0` of the R package lme4, doi:10.18637/jss.v067.i01); with all of them in the
    offset this is the likelihood at these coefficients, to be maximised by the caller.

    Notes
    -----
    Its derivatives follow the mode, and with it the weights W, by implicit differentiation.
    """
    mode = joint_mode(target, X, levels, sd, penalty=penalty, offset=offset, start=start)
    curvature, chance = mode.curvature, mode.chance
    residual, weight = target - chance, chance * (1 - chance)
    variances, traces = curvature.row_variances()
    pull = variances * weight * (1 - 2 * chance)
    scale = np.repeat(sd, levels.sizes)
    answer, turn = curvature.solve(scale * levels.sums(pull), X.T @ pull)
    followed = pull - weight * (levels.added(answer, sd) + X @ turn)
    summed = levels.split(levels.sums(residual))
    own, answers = levels.of_rows(mode.effects), levels.split(answer)
    slopes = [
        float(
            residual @ own[level]
            - (levels.sizes[level] - traces[level]) / sd[level]
            - (followed @ own[level] + answers[level] @ summed[level]) / 2
        )
        if sd[level] > 0
        else 0.0
        for level in range(len(sd))
    ]
    return Evaluation(
        value=mode.value - curvature.log_determinant / 2,
        sd_slope=np.array(slopes),
        offset_slope=residual - followed / 2,
        coefficients=mode.coefficients,
        effects=mode.effects,
        converged=mode.converged,
    )
