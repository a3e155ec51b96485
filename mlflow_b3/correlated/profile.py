"""Intervals of a standard deviation by its profile likelihood."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

#: Fall in log likelihood at the ends of a 95 % interval, half the quantile of χ² with one degree of
#: freedom (3.841).
DROP = 1.92
#: Ends are found to this share of the estimate, and no closer than this.
PRECISION = 2e-3
SMALLEST = 1e-4


def profile_interval(
    log_likelihood: Callable[[float], float], estimate: float, peak: float, *, most: float
) -> tuple[float, float]:
    """Return where the profile has fallen by 1.92 on both sides of the estimate.

    Parameters
    ----------
    log_likelihood : callable
        Of a standard deviation, all else at its best.
    estimate, peak : float
        Where it is highest, and how high.
    most : float
        The upper end where the profile has not fallen before.

    Notes
    -----
    The lower end is 0 where the profile does not fall enough on the way to it.
    """

    def left(sd: float) -> float:
        # the root of the fall is close to linear in sd, so that few steps find the ends
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
