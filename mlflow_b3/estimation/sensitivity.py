"""The sensitivity curve: e_0 for every leaked share, and where it crosses a threshold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimates import Number, estimate
from mlflow_b3.estimation.methods import Method, as_method
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Result):
    """e_0 as a function of the leaked share.

    Attributes
    ----------
    p0 : tuple of float
        Leaked shares: p_T for pattern `rows`, the share s of seen rows for `fragments`.
    e0, low, high : tuple of float
        The estimate and its 95 % interval at each share.
    pattern : {"rows", "fragments"}
    error : tuple of float or None
        The cluster error (rows) or split rate (fragments) that belongs to each share; None for a
        bare loss curve, whose fold sizes are not known.
    accurate : bool
        False when a solver's result for one of the shares could not be confirmed.
    """

    p0: tuple[float, ...]
    e0: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    pattern: str = "rows"
    error: tuple[float, ...] | None = None
    accurate: bool = True

    def tipping_point(self, threshold: float) -> float | None:
        """Return the smallest share at which e_0 reaches a threshold; None if none here does."""
        return _crossing(self.p0, self.e0, threshold)

    def tipping_error(self, threshold: float) -> float | None:
        """Return the smallest cluster error or split rate at which e_0 reaches a threshold."""
        return None if self.error is None else _crossing(self.error, self.e0, threshold)


def _crossing(axis: Sequence[float], values: Sequence[float], threshold: float) -> float | None:
    if not np.isfinite(threshold):
        raise InputError(f"threshold={threshold!r} must be a finite number.")
    for index, value in enumerate(values):
        if value >= threshold:
            if index == 0:
                return axis[0]
            before = values[index - 1]
            part = (threshold - before) / (value - before)
            return axis[index - 1] + part * (axis[index] - axis[index - 1])
    return None


def sensitivity(
    curve: LossCurve,
    p0: Sequence[Number],
    method: str | Method = "auto",
    *,
    p0_validation: Number = 0.0,
    bound: float | None = None,
    **options: Any,
) -> Sensitivity:
    """Return e_0 with its interval for each of some leaked shares.

    Parameters
    ----------
    curve : LossCurve
    p0 : sequence of float
        Increasing.
    method, p0_validation, bound, **options
        As in `estimate`.
    """
    chosen = as_method(method, **options)
    shares = [float(share) for share in p0]
    if not shares or any(a >= b for a, b in pairwise(shares)):
        raise InputError("p0 must be a non-empty, increasing sequence of shares in [0, 1).")

    accurate = []

    def point(share: float) -> tuple[float, tuple[float, float]]:
        result = estimate(curve, share, chosen, p0_validation=p0_validation, bound=bound)
        accurate.append(result.accurate)
        return result.e0, result.interval

    traced = trace(point, shares, pattern="rows", error=None)
    return replace(traced, accurate=all(accurate))


def trace(
    point: Callable[[float], tuple[float, tuple[float, float]]],
    shares: Sequence[float],
    *,
    pattern: str,
    error: Sequence[float] | None,
) -> Sensitivity:
    """Evaluate an estimator along increasing shares.

    A larger leaked share never means a smaller loss on new clusters when the curve falls, so the
    small wiggles of separate fits are levelled upwards; lower ends stay as they are.
    """
    points = [point(share) for share in shares]
    values = np.array([[e0, low, high] for e0, (low, high) in points])
    if values[-1, 0] >= values[0, 0]:
        values[:, ::2] = np.maximum.accumulate(values[:, ::2], axis=0)
    e0, low, high = (tuple(column.tolist()) for column in values.T)
    return Sensitivity(
        p0=tuple(shares),
        e0=e0,
        low=low,
        high=high,
        pattern=pattern,
        error=None if error is None else tuple(error),
    )
