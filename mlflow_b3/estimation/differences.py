"""The interval of a difference between two estimates that share part of their noise."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.measurement.accumulation import robust_covariance

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertain:
    """An estimate with its 95 % interval and what is known about where its noise comes from.

    Attributes
    ----------
    value, low, high : float
    noise : float
        Standard error that it shares with no other estimate.
    influence : array or None
        ψ: what each cluster adds to its error; None where that is not known.
    """

    value: float
    low: float
    high: float
    noise: float = 0.0
    influence: Array | None = None


def difference_interval(
    a: Uncertain, b: Uncertain, *, freedom: float, widening: float = 1.0
) -> tuple[float, float]:
    """Return the interval of a - b.

    With w the distance from an estimate to the end of its interval that matters, t·s the part of it
    that is noise of clusters and refits, and ρ the correlation of the two,

        lower = a - b - √(w_a² + w_b² - 2ρ·n_a·n_b),   n = min(w, t·s),

    and the upper end alike. Only noise is taken to be shared: what extrapolation adds to either
    interval is not. The root is at least t times the standard error of the difference.

    Parameters
    ----------
    a, b : Uncertain
    freedom : float
        Degrees of freedom: clusters less one.
    widening : float
        Multiplies the root, for several differences at once.

    References
    ----------
    .. [1] Zou, G. Y. and Donner, A. (2008). Construction of confidence limits about effect
       measures: a general approach. Statistics in Medicine 27(10). doi:10.1002/sim.3095.
    """
    gap = a.value - b.value
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    own, other, shared = _covariance(a, b)
    errors = math.sqrt(own), math.sqrt(other)
    correlation = shared / (errors[0] * errors[1]) if own > 0 and other > 0 else 0.0
    least = quantile * math.sqrt(max(0.0, own + other - 2 * shared))

    def reach(widths: tuple[float, float]) -> float:
        noisy = [min(width, quantile * error) for width, error in zip(widths, errors, strict=True)]
        square = widths[0] ** 2 + widths[1] ** 2 - 2 * correlation * noisy[0] * noisy[1]
        return widening * max(math.sqrt(max(0.0, square)), least)

    return (
        gap - reach((a.value - a.low, b.high - b.value)),
        gap + reach((a.high - a.value, b.value - b.low)),
    )


def _covariance(a: Uncertain, b: Uncertain) -> tuple[float, float, float]:
    """Return both variances by what clusters add and what each has alone, and the covariance."""
    if a.influence is None or b.influence is None:
        return a.noise**2, b.noise**2, 0.0
    joint = robust_covariance(np.column_stack([a.influence, b.influence]))
    return (
        float(joint[0, 0]) + a.noise**2,
        float(joint[1, 1]) + b.noise**2,
        float(joint[0, 1]),
    )
