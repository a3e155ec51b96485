"""How noisy a loss curve is, judged by the curve itself."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from mlflow_b3.errors import InputError

Array = NDArray[np.float64]

#: From this many levels on the roughness of a curve tells its noise well enough.
ENOUGH_LEVELS = 12
HIGHEST_DEGREE = 7
FEWEST_LEVELS = 5
#: From this z-score on losses and their standard errors count as going together.
ASSOCIATED_Z = 1.645
#: By how much the noise of single refits may differ between levels.
LARGEST_RATIO = 10.0
SMOOTH_POWERS = (0, 1, 2, 3, 4, 6, 8, 12, 17, 24)


def noise_scale(exposure: Array, loss: Array, stderr: Array) -> float:
    """Return the factor by which stated standard errors are to be multiplied.

    It is the root mean square of the standardised residuals from a smooth curve, the better one
    of a polynomial and a non-negative sum of powers (1-x)^k; 1 with fewer than 12 levels.
    """
    levels = len(loss)
    if levels < ENOUGH_LEVELS:
        return 1.0
    degree = min(HIGHEST_DEGREE, levels // 3)
    rough = _residuals(exposure, loss, stderr, degree)
    scale = float(rough @ rough) / (levels - degree - 1)
    design = (1 - exposure)[:, None] ** np.array(SMOOTH_POWERS) / stderr[:, None]
    weights, norm = nnls(design, loss / stderr, maxiter=100 * design.shape[1])
    scale = min(scale, float(norm) ** 2 / (levels - np.count_nonzero(weights)))
    return float(np.sqrt(max(scale, 1e-12)))


def smooth_errors(exposure: Array, loss: Array, stderr: Array, fits: Array) -> Array:
    """Return standard errors that do not go with the losses, smoothed over the levels if need be.

    Losses that are skewed have means and standard errors that are low together by chance. Levels
    weighted by their own standard errors then count most where they are too low, and e_0 comes out
    worse than without any. Where that shows, as a correlation of the residuals of losses and
    standard errors from smooth curves (one-sided test at 5 %, 12 levels or more), the logarithm of
    the variance of a single refit is replaced by a parabola over the exposure, and none counts as
    less than a tenth as noisy as the noisiest. Standard errors that pass are left alone.

    Parameters
    ----------
    exposure, loss, stderr : array
        All standard errors positive.
    fits : array
        How many refits each level rests on; ones where that is not known.
    """
    levels = len(stderr)
    if levels < ENOUGH_LEVELS:
        return stderr
    variance = stderr**2 * fits
    root = np.sqrt(np.maximum(fits - 1, 1))[:, None]
    design = np.polynomial.chebyshev.chebvander(_centred(exposure), 2)
    logarithm = np.log(variance)
    found, *_ = np.linalg.lstsq(design * root, logarithm * root[:, 0], rcond=None)
    smooth = np.exp(design @ found)
    # the mean logarithm of estimated variances is below that of their mean
    smooth *= np.average(variance / smooth, weights=fits)
    degree = min(HIGHEST_DEGREE, levels // 3)
    rough = _residuals(exposure, loss, np.sqrt(smooth / fits), degree)
    together = float(np.corrcoef(rough, logarithm - np.log(smooth))[0, 1])
    if not together > ASSOCIATED_Z / np.sqrt(levels - degree - 1):
        return stderr
    smooth = np.maximum(smooth, float(smooth.max()) / LARGEST_RATIO**2)
    return np.asarray(np.sqrt(smooth / fits))


def noise_of(exposure: Array, loss: Array) -> Array:
    """Return standard errors of a curve that came without them, from its roughness.

    Notes
    -----
    Residuals from a polynomial, their squares averaged over a quarter of the levels around each,
    twice: the second polynomial is weighted by the first answer. With five to eleven levels there
    is one common standard error.

    Raises
    ------
    InputError
        With fewer than five levels noise and curvature cannot be told apart.
    """
    levels = len(loss)
    if levels < FEWEST_LEVELS:
        raise InputError(
            f"the curve has {levels} levels and no stderr; give stderr, or measure at least "
            f"{FEWEST_LEVELS} levels."
        )
    if levels < ENOUGH_LEVELS:
        rough = _residuals(exposure, loss, np.ones(levels), 2)
        return np.full(levels, np.sqrt(rough @ rough / (levels - 3)))
    degree = min(HIGHEST_DEGREE, levels // 3)
    near = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))) <= levels // 8
    stderr = np.ones(levels)
    for _ in range(2):
        squares = (stderr * _residuals(exposure, loss, stderr, degree)) ** 2
        variance = near @ squares / near.sum(axis=1) * levels / (levels - degree - 1)
        floor = 1e-4 * float(variance.max()) + np.finfo(float).tiny
        stderr = np.sqrt(np.maximum(variance, floor))
    return np.asarray(stderr)


def _residuals(exposure: Array, loss: Array, stderr: Array, degree: int) -> Array:
    design = np.polynomial.chebyshev.chebvander(_centred(exposure), degree) / stderr[:, None]
    values = loss / stderr
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


def _centred(exposure: Array) -> Array:
    """Return the exposures spread over [-1, 1]."""
    return np.asarray(2 * (exposure - exposure[0]) / max(float(np.ptp(exposure)), 1e-12) - 1)
