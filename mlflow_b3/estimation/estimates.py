"""`estimate`: the loss on new clusters from a loss curve and a leaked share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import ShapeCheck, check_shape, secant_limit
from mlflow_b3.estimation.intervals import interval, noise_error
from mlflow_b3.estimation.methods import CurveFit, Method, as_method, fit_curve, is_accurate
from mlflow_b3.estimation.power import PowerFit
from mlflow_b3.estimation.published import PublishedFit
from mlflow_b3.estimation.shares import refuse_seen
from mlflow_b3.estimation.unmixing import Extrapolation, LeakShares, unmix
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

MOST_LOSSES = 1001

Number = float | int
Range = Number | tuple[Number, Number]


@dataclass(frozen=True, kw_only=True)
class Estimate(Result):
    """The loss on new clusters, with everything that qualifies it.

    Attributes
    ----------
    e0 : float
        e_0, bias-corrected; not always more accurate than the uncorrected loss. At most the
        largest possible loss.
    interval : tuple of float
        95 % interval that contains noise, extrapolation and the range of p0.
    secant : float or None
        Lower limit (one-sided 95 %) that holds if the curve is convex: a secant with its noise
        subtracted, see `secant_limit`. None unless the measured curve supports convexity, see
        `ShapeCheck.supports_convexity`.
    losses : tuple of float
        e_j at each of `leaked`.
    leaked : tuple of int
        j: number of leaked rows in training; all from 0 on, or 1001 of them when there are more.
    residual : float
        ‖fitted curve - measured curve‖₂, as in the papers.
    method : str
        The name of the method that was used.
    shares : LeakShares
        The leaked shares; the middle where a range was given.
    shape : ShapeCheck
    noise : float
        Standard error that the noise of the losses alone gives to e_0; the rest of the interval is
        extrapolation.
    accurate : bool
        False when a solver's result could not be confirmed.
    sketch_error : float or None
        For `sketch`: a bound on the error of sketching as a multiple of e_0; see `fit_sketch`.
    """

    e0: float
    interval: tuple[float, float]
    secant: float | None
    losses: tuple[float, ...]
    leaked: tuple[int, ...]
    residual: float
    method: str
    shares: LeakShares
    shape: ShapeCheck
    noise: float
    accurate: bool = True
    sketch_error: float | None = None

    @property
    def extrapolated(self) -> bool:
        """Whether most of the interval comes from extrapolation: more refits would not help."""
        return self.interval[1] - self.interval[0] > 2 * (2 * 1.96 * self.noise)


def estimate(
    curve: LossCurve,
    p0: Range,
    method: str | Method = "auto",
    *,
    p0_validation: Number = 0.0,
    bound: float | None = None,
    **options: Any,
) -> Estimate:
    """Estimate e_0, the loss on new clusters, from a measured loss curve.

    Parameters
    ----------
    curve : LossCurve
    p0 : float or (low, high)
        p_T: the share of rows in T̂ that belong to the validation clusters.
    method : str or Method
        "auto" is "power"; the papers' estimators are "least-squares", "mono", "trend2" to "trend4",
        "trend2+mono" to "trend4+mono", "basis" and "sketch".
    p0_validation : float
        p_V: the share of rows in V̂ that belong to the training clusters. It needs the curve's
        `training_loss`.
    bound : float, optional
        The largest possible loss M; it limits the interval.
    **options
        Options of the method, such as `order=7` for "basis"; see `Method`.

    Notes
    -----
    The interval of the papers' estimators is e_0 ∓ t standard errors, from the linear map that the
    estimator applies to the losses, or its derivative where it is not linear. It holds the noise of
    the curve, but not the bias of smoothing, constraints, groups or a polynomial that is too low;
    that of `power` holds the extrapolation as well.

    References
    ----------
    .. [1] Barnes, M. and Dubrawski, A. (2017). The binomial block bootstrap estimator for
       evaluating loss on dependent clusters. UAI 2017.
    .. [2] Barnes, M. and Dubrawski, A. (2019). On the interaction effects between prediction and
       clustering. AISTATS 2019. arXiv:1807.06713.
    """
    chosen = as_method(method, **options)
    check_bound(bound)
    low, high = as_range("p0", p0)
    back = one_share("p0_validation", p0_validation)

    def problem(share: float) -> Extrapolation:
        return unmix(curve, LeakShares(p0=share, p0_validation=back))

    shares = LeakShares(p0=(low + high) / 2, p0_validation=back)
    return estimate_range(problem, low, high, shares, method=chosen, bound=bound)


def estimate_range(
    problem: Callable[[float], Extrapolation],
    low: float,
    high: float,
    shares: LeakShares,
    *,
    method: Method,
    bound: float | None = None,
    centre: float | None = None,
) -> Estimate:
    """Estimate in the middle of a range of shares, or at its centre, with an interval over it."""
    value = (low + high) / 2 if centre is None else centre
    middle = solve(problem(value), shares, method=method, bound=bound)
    if low == high:
        return middle
    ends = [solve(problem(end), shares, method=method, bound=bound) for end in (low, high)]
    secants = [end.secant for end in ends if end.secant is not None]
    return Estimate(
        **{
            **vars(middle),
            "interval": (
                min(part.interval[0] for part in (*ends, middle)),
                max(part.interval[1] for part in (*ends, middle)),
            ),
            "secant": min(secants) if len(secants) == len(ends) else None,
            "accurate": all(part.accurate for part in (*ends, middle)),
        }
    )


def solve(
    problem: Extrapolation,
    shares: LeakShares,
    *,
    method: Method,
    bound: float | None = None,
) -> Estimate:
    """Estimate e_0 of one extrapolation problem."""
    fit = fit_curve(problem, method)
    shape = check_shape(problem)
    ends, noise = ends_of(fit, problem, shape, bound)
    limit = problem.leakable
    count = min(limit + 1, MOST_LOSSES)
    leaked = np.unique(np.linspace(0, limit, count).round().astype(int))
    return Estimate(
        e0=possible(fit.e0, bound),
        interval=ends,
        secant=possible(secant_limit(problem), bound) if shape.supports_convexity else None,
        losses=tuple(fit.losses(leaked.astype(float), limit).tolist()),
        leaked=tuple(leaked.tolist()),
        residual=residual_of(fit, problem),
        method=method.name,
        shares=shares,
        shape=shape,
        noise=noise,
        accurate=is_accurate(fit),
        sketch_error=fit.sketch_error if isinstance(fit, PublishedFit) else None,
    )


def ends_of(
    fit: PowerFit | PublishedFit, problem: Extrapolation, shape: ShapeCheck, bound: float | None
) -> tuple[tuple[float, float], float]:
    """Return the interval of a fit's e_0, and the standard error that noise alone gives to it."""
    published = fit if isinstance(fit, PublishedFit) else None
    reads = published.reads if published else _read_parabola(problem)
    e0 = possible(fit.e0, bound)
    low, high = interval(
        problem,
        e0,
        shaped=shape.decreasing and shape.convex and not published,
        bound=bound,
        noise_weights=reads,
        readings=() if published else (float(reads @ problem.loss),),
    )
    return (min(low, e0), max(possible(high, bound), e0)), noise_error(problem, reads)


def residual_of(fit: CurveFit, problem: Extrapolation) -> float:
    """Return ‖fitted curve - measured curve‖₂."""
    return float(np.linalg.norm(fit.at(problem.exposure) - problem.loss))


def possible(value: float, bound: float | None) -> float:
    """Return the nearest possible loss: from 0 to the bound, where there is one."""
    return value if bound is None else min(max(value, 0.0), bound)


def check_bound(bound: object) -> None:
    """Raise an `InputError` unless a bound on the loss is None or a positive number."""
    number = isinstance(bound, (int, float, np.number)) and not isinstance(bound, bool)
    if bound is not None and not (number and 0 < float(bound) < np.inf):  # type: ignore[arg-type]
        raise InputError(
            f"bound={bound!r} must be the largest possible loss, a positive number, or None."
        )


def _read_parabola(problem: Extrapolation) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the weights with which a parabola reads the curve at x*."""
    order = min(2, len(problem.exposure) - 1)
    design = np.vander(problem.exposure, order + 1, increasing=True)
    inverse = np.linalg.pinv(design / problem.stderr[:, None]) / problem.stderr
    return np.asarray(problem.target ** np.arange(order + 1) @ inverse)


def one_share(name: str, value: object) -> float:
    """Return a single share in [0, 1)."""
    refuse_seen(name, value)
    try:
        share = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = float("nan")
    if not 0 <= share < 1:
        raise InputError(
            f"{name}={value!r} must be a number in [0, 1); give a share, not a percentage."
        )
    return share


def as_range(name: str, value: Range | Sequence[Number]) -> tuple[float, float]:
    """Return (low, high) of a number or a pair; shares must lie in [0, 1)."""
    refuse_seen(name, value)
    try:
        pair = (float(value), float(value))  # type: ignore[arg-type]
    except TypeError:
        try:
            low, high = value  # type: ignore[misc]
            pair = (float(low), float(high))
        except (TypeError, ValueError):
            raise InputError(f"{name}={value!r} must be a number or a pair (low, high).") from None
    except ValueError:
        raise InputError(f"{name}={value!r} must be a number or a pair (low, high).") from None
    if not 0 <= pair[0] <= pair[1] < 1:
        raise InputError(
            f"{name}={value!r} must lie in [0, 1), low before high; give a share, not a percentage."
        )
    return pair
