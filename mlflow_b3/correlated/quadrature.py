"""Means of the logistic function over normal noise, by Gauss-Hermite quadrature."""

from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit

from mlflow_b3.correlated.structure import Array

#: The mean is exact to 1e-12 for a standard deviation of 1, 1e-6 for 2, 1e-5 for 3 and 1e-3 for 5.
N_NODES = 31


def _rule() -> tuple[Array, Array]:
    nodes, weights = hermegauss(N_NODES)
    return np.asarray(nodes), np.asarray(weights / weights.sum())


#: Nodes and weights for the standard normal distribution.
NODES, WEIGHTS = _rule()


def smoothed_logistic(f: Any, sd: Any) -> Array:
    """Return E g(f + sd z) for the logistic g and a standard normal z.

    Parameters
    ----------
    f : array
        Log odds.
    sd : float or array
        Standard deviations, alike in shape or to be stretched to it.
    """
    f, sd = np.asarray(f, dtype=float), np.asarray(sd, dtype=float)
    if not sd.any():  # exactly g(f), not up to the rounding of a sum
        return np.asarray(expit(f))
    mean = np.zeros(np.broadcast_shapes(f.shape, sd.shape))
    for node, weight in zip(
        NODES, WEIGHTS, strict=True
    ):  # node by node: no array 31 times as large
        mean += weight * expit(f + sd * node)
    return mean


def smoothed_slope(f: Any, sd: Any) -> Array:
    """Return E g'(f + sd z), the derivative of `smoothed_logistic` in f."""
    f, sd = np.asarray(f, dtype=float), np.asarray(sd, dtype=float)
    slope = np.zeros(np.broadcast_shapes(f.shape, sd.shape))
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        chance = expit(f + sd * node)
        slope += weight * chance * (1.0 - chance)
    return slope
