"""e_0 as a function of the leaked share, its tipping points, and the path of the extrapolation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import check_shape
from mlflow_b3.estimation.estimate import (
    Method,
    Number,
    as_method,
    check_bound,
    ends_of,
    fit_all,
    is_accurate,
    one_share,
    solve,
)
from mlflow_b3.estimation.power_estimator import PowerFit
from mlflow_b3.estimation.problem import Extrapolation, LeakShares, unmix
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

# --- The sensitivity curve: e_0 as a function of the leaked share, and its tipping points

MOST_NODES = 17
#: An estimate and its interval.
Point = tuple[float, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Result):
    """e_0 as a function of the leaked share.

    Attributes
    ----------
    p0 : tuple of float
        Leaked shares: p_T for pattern `rows`, the share s of seen rows for `fragments`.
    e0, low, high : tuple of float
        The estimate and its 95% interval at each share; `low` and `high` are empty without a band.
    pattern : {"rows", "fragments"}
    error : tuple of float or None
        The cluster error (rows) or split rate (fragments) of each share. None for a loss curve
        alone, whose fold sizes are unknown.
    accurate : bool
        False if a solver's result for one of the shares could not be confirmed.
    greater : bool
        Whether e_0 is a score of which more is better, so that it reaches a threshold from above.
    supported : float or None
        For scores: the cluster error or split rate above which fewer than a tenth of the validation rows
        have no mates in training, so that e_0 is an extrapolation. None if there is none.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> found = b3.sensitivity(curve, p0=[0, 0.1, 0.2, 0.3])
    >>> round(found.tipping_point(0.35), 2)
    0.14
    """

    p0: tuple[float, ...]
    e0: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    pattern: str = "rows"
    error: tuple[float, ...] | None = None
    accurate: bool = True
    greater: bool = False
    supported: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain values; `greater` and `supported` only if they say something."""
        values = super().to_dict()
        if not self.greater:
            del values["greater"]
        if self.supported is None:
            del values["supported"]
        return values

    def tipping_point(self, threshold: float) -> float | None:
        """Return the smallest share at which e_0 reaches a threshold, or None."""
        return self._crossing(self.p0, threshold)

    def tipping_error(self, threshold: float) -> float | None:
        """Return the smallest cluster error or split rate at which e_0 reaches a threshold."""
        return None if self.error is None else self._crossing(self.error, threshold)

    def _crossing(self, axis: Sequence[float], threshold: float) -> float | None:
        if self.greater:
            return _crossing(axis, [-value for value in self.e0], -threshold)
        return _crossing(axis, self.e0, threshold)


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
    band: bool = True,
    **options: Any,
) -> Sensitivity:
    """Return e_0 and its interval for each leaked share.

    Parameters
    ----------
    curve : LossCurve
    p0 : sequence of float
        Increasing.
    method, p0_validation, bound, **options
        As in `estimate`.
    band : bool
        Whether to compute the intervals. Without them `low` and `high` are empty.

    Notes
    -----
    If p0_validation is 0, one fit of `power` gives e_0 for every p0. Everything else is computed at
    17 shares at most and interpolated between them.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> found = b3.sensitivity(curve, p0=[0, 0.1, 0.2])
    >>> [round(loss, 2) for loss in found.e0]
    [0.3, 0.33, 0.38]
    """
    chosen = as_method(method, **options)
    check_bound(bound)
    shares = np.array([one_share("p0", share) for share in p0])
    p_validation = one_share("p0_validation", p0_validation)
    if not len(shares) or (np.diff(shares) <= 0).any():
        raise InputError("p0 must be a non-empty, increasing sequence of shares in [0, 1).")
    nodes = shares
    if len(shares) > MOST_NODES:
        nodes = np.linspace(shares[0], shares[-1], MOST_NODES)
    one_fit = chosen.name == "power" and not p_validation
    if one_fit and not band:
        nodes = nodes[:1]
    problems = [unmix(curve, LeakShares(p0=p, p0_validation=p_validation)) for p in nodes.tolist()]
    fits = fit_all(problems, chosen)
    first = fits[0]
    if one_fit and isinstance(first, PowerFit):
        e0 = first.read(-shares / (1 - shares) / curve.exhausted_at)
    else:
        e0 = _interpolate(shares, nodes, np.array([fit.e0 for fit in fits]))
    e0 = _make_monotone(e0 if bound is None else np.clip(e0, 0.0, bound))
    low = high = shares[:0]
    if band:
        shape = check_shape(problems[0])
        ends = np.array(
            [ends_of(f, p, shape, bound)[0] for f, p in zip(fits, problems, strict=True)]
        )
        low = np.minimum(_interpolate(shares, nodes, ends[:, 0]), e0)
        high = np.maximum(_interpolate(shares, nodes, _make_monotone(ends[:, 1])), e0)
    return Sensitivity(
        p0=tuple(shares.tolist()),
        e0=tuple(e0.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        accurate=all(map(is_accurate, fits)),
    )


def _interpolate(
    shares: NDArray[np.float64], nodes: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate monotonically between the nodes."""
    if len(nodes) == len(shares):
        return values
    return np.asarray(PchipInterpolator(nodes, values)(shares))


def _make_monotone(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the small falls of a curve that rises overall."""
    return np.maximum.accumulate(values) if values[-1] >= values[0] else values


def trace(
    point: Callable[[float], Point],
    shares: Sequence[float],
    *,
    pattern: str,
    error: Sequence[float] | None,
    most: int | None = None,
) -> Sensitivity:
    """Evaluate an estimator along increasing shares.

    With `most`, it is evaluated at that many shares only, and interpolated between them.
    """
    wanted = nodes = np.array(shares)
    if most is not None and len(shares) > most:
        nodes = wanted[np.linspace(0, len(shares) - 1, most).round().astype(int)]
    found = np.array([[e0, *ends] for e0, ends in map(point, nodes.tolist())])
    columns = [_interpolate(wanted, nodes, column).tolist() for column in found.T]
    points = [(e0, (low, high)) for e0, low, high in zip(*columns, strict=True)]
    return join_points(points, shares, pattern=pattern, error=error)


def join_points(
    points: Sequence[Point],
    shares: Sequence[float],
    *,
    pattern: str,
    error: Sequence[float] | None,
) -> Sensitivity:
    """Return the curve through estimates and their intervals at increasing shares.

    If the curve falls, a larger leaked share never means a smaller loss on new clusters. Estimates
    and upper ends are therefore made non-decreasing; lower ends are left unchanged.
    """
    values = np.array([[e0, *ends] for e0, ends in points])
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


# --- The path of the extrapolation from the measured losses to e_0, with its uncertainty

STEPS = 9


@dataclass(frozen=True, kw_only=True)
class ExtrapolationPath(Result):
    """The loss curve of the true validation clusters, down to the point without leakage.

    The axis is the exposure: 0 is the unchanged fold, 1 has all validation rows in training, and
    negative values have less leakage than the fold.

    Attributes
    ----------
    measured_exposure, measured_loss : tuple of float
        ℓ_V at the measured levels: losses on V̂ ∖ T' with the share of training clusters removed.
    exposure : tuple of float
        From x* (no leaked row) to 0.
    loss, low, high : tuple of float
        The extrapolated loss and its 95% interval, for the leaked share of the estimate. The first
        loss is e_0.
    """

    measured_exposure: tuple[float, ...]
    measured_loss: tuple[float, ...]
    exposure: tuple[float, ...]
    loss: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def trace_extrapolation(
    problem: Extrapolation, shares: LeakShares, *, method: Method, bound: float | None = None
) -> ExtrapolationPath:
    """Estimate the loss and its interval at exposures from no leakage to the unchanged fold."""
    steps = np.linspace(problem.target, 0.0, STEPS if problem.target < 0 else 1).tolist()
    results = [
        solve(replace(problem, target=step), shares, method=method, bound=bound) for step in steps
    ]
    return ExtrapolationPath(
        measured_exposure=tuple(problem.exposure.tolist()),
        measured_loss=tuple(problem.loss.tolist()),
        exposure=tuple(steps),
        loss=tuple(result.e0 for result in results),
        low=tuple(result.interval[0] for result in results),
        high=tuple(result.interval[1] for result in results),
    )
