"""The search for the highest marginal likelihood in coefficients and standard deviations."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from mlflow_b3.correlated.structure import Array

#: Log likelihood at coefficients and parameters of the spread, and its slopes by both.
Objective = Callable[[Array, Array], tuple[float, Array, Array]]

#: Steps of a search. What it may still gain, by its slope and the curvature it began with, is below
#: half the square of the second number where it has converged.
MOST_STEPS = 200
FLAT = 0.01
#: The slope at which a search ends by itself.
PRECISE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Where a search ended.

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
        Where to begin.
    information : array (p, p)
        A guess of the curvature in the coefficients; it makes all steps of like size.
    scale : array
        The same for each parameter of the spread, as a standard error.
    bounds : tuple of array
        Least and most of each parameter of the spread; equal where it must stay.
    slope : float
        End where the slope is smaller; `FLAT` does where the height is wanted and not the place.
    """
    turn = np.linalg.inv(np.linalg.cholesky(information)).T
    p = len(coefficients)

    def place(at: Array) -> tuple[Array, Array]:
        # the scale must not move a parameter beyond its bounds by a rounding
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
    # what is left of the slope once steps beyond the bounds are ruled out
    left = np.clip(found.x - found.jac, least, most) - found.x
    best, spread_there = place(found.x)
    return Peak(
        coefficients=best,
        spread=spread_there,
        value=-float(found.fun),
        converged=bool(np.isfinite(found.fun) and np.abs(left).max(initial=0.0) < FLAT),
    )
