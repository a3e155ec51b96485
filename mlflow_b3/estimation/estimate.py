"""`estimate`: the loss on new clusters, from a loss curve and a leaked share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

from mlflow_b3.errors import InputError, choose, closest
from mlflow_b3.estimation.bounds import ShapeCheck, check_shape, interval, noise_error, secant_limit
from mlflow_b3.estimation.power_estimator import PowerFit, fit_power
from mlflow_b3.estimation.problem import Extrapolation, LeakShares, refuse_seen, unmix
from mlflow_b3.estimation.published import (
    GROUPINGS,
    LARGEST_SYSTEM,
    SMOOTHNESS_ORDER,
    PublishedFit,
    fit_basis,
    fit_sequence,
    fit_sketch,
)
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

# --- Estimators and their options

Array = NDArray[np.float64]

OBJECTIVES = ("norm", "squared")
TRENDS = tuple(f"trend{order}{end}" for end in ("", "+mono") for order in (2, 3, 4))
METHODS = ("auto", "power", "least-squares", "mono", *TRENDS, "basis", "sketch")

#: The options of each method, with their default values.
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in METHODS},
    **{name: {"smoothing": 10.0, "objective": "norm"} for name in TRENDS},
    "basis": {"order": 2},
    "sketch": {"groups": 7, "grouping": "means", "smoothing": 0.1, "objective": "norm"},
}


class CurveFit(Protocol):
    """A fitted loss curve."""

    @property
    def e0(self) -> float:
        """The loss on new clusters."""

    def at(self, exposure: Array) -> Array:
        """Return the fitted curve at the given exposures."""

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j: the loss with j of the `leakable` rows in training."""


@dataclass(frozen=True, kw_only=True)
class Method(Result):
    """An estimator and its options. Options that the estimator does not have are None.

    Attributes
    ----------
    name : str
        `power` (also called `auto`), or one of the papers' estimators: `least-squares`, the plain
        system Ae = b; `mono`, with decreasing losses; `trend2`, `trend3` and `trend4`, with smooth
        losses; `trend2+mono`, `trend3+mono` and `trend4+mono`, with both; `basis`, a polynomial;
        `sketch`, losses in groups.
    order : int
        Order of the polynomial of `basis`. The default is 2; the papers also use 7.
    smoothing : float
        λ. The default is 10 for the trend filters, as in the papers' experiments, and 0.1 for
        `sketch`. No single λ suits every curve: the same λ smooths less with more levels and more
        training rows.
    objective : {"norm", "squared"}
        What trend filters and `sketch` minimise. "norm" is ‖Ae-b‖ + λ‖De‖, which the authors'
        program minimises and for which they chose λ. "squared" is ‖Ae-b‖² + λ‖De‖², which the
        papers print.
    groups : int
        Number of groups k of `sketch`.
    grouping : {"means", "blocks", "medoids"}
        What represents a group of `sketch`.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> method = b3.Method(name="basis", order=2)
    >>> round(b3.estimate(curve, p0=0.1, method=method).e0, 2)
    0.32
    """

    name: str = "auto"
    order: int | None = None
    smoothing: float | None = None
    objective: str | None = None
    groups: int | None = None
    grouping: str | None = None

    def __post_init__(self) -> None:
        """Fill in default values and check all options."""
        choose("method", self.name, METHODS)
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        given = {name: value for name, value in given.items() if value is not None}
        _check_names(self.name, given)
        values = {**OPTIONS[self.name], **given}
        for name, value in values.items():
            object.__setattr__(self, name, _CHECKS[name](name, value))
        if self.name == "auto":
            object.__setattr__(self, "name", "power")

    @property
    def options(self) -> dict[str, Any]:
        """The options that this method has, with their values."""
        return {name: getattr(self, name) for name in OPTIONS[self.name]}


def as_method(method: str | Method, **options: Any) -> Method:
    """Return the `Method` with a given name and options.

    Parameters
    ----------
    method : str or Method
    **options
        Options of the method, see `Method`. Allowed only if `method` is a name.
    """
    if isinstance(method, Method):
        if options:
            raise InputError(
                f"{', '.join(options)} given beside a Method; set options in the Method, or give "
                "the method's name and the options."
            )
        return method
    choose("method", method, METHODS)
    _check_names(method, options)
    return Method(name=method, **options)


def _check_names(method: str, options: dict[str, Any]) -> None:
    allowed = OPTIONS[method]
    for name in options:
        if name not in allowed:
            has = f"only {', '.join(allowed)}" if allowed else "none"
            raise InputError(
                f"{name}={options[name]!r} is not an option of method {method!r}, which has {has}."
                + closest(name, allowed)
            )


def _whole_number(name: str, value: Any) -> int:
    least = 1 if name == "groups" else 0
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name}={value!r} must be a whole number from {least}.")
    return int(value)


def _non_negative_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number from 0.")
    return float(value)


_CHECKS: dict[str, Any] = {
    "order": _whole_number,
    "groups": _whole_number,
    "smoothing": _non_negative_number,
    "objective": lambda name, value: choose(name, value, OBJECTIVES),
    "grouping": lambda name, value: choose(name, value, GROUPINGS),
}


def check_size(
    method: Method, levels: int, leakable: int, *, largest: int = LARGEST_SYSTEM
) -> None:
    """Raise an `InputError` if a curve has too few levels or too many losses for a method.

    Parameters
    ----------
    method : Method
    levels : int
    leakable : int
        The largest j of e_j.
    largest : int
        The largest number of leaked rows for which the full system is solved.
    """
    if levels < 2:
        raise InputError("the curve has only one level; measure at least two.")
    if method.name == "least-squares" and levels <= leakable + 1:
        raise InputError(
            f"method 'least-squares' solves for {leakable + 1} losses and needs more levels than "
            f"that, the curve has {levels}: infinitely many losses would fit it. Use the method "
            "'power', 'basis' or 'trend4+mono', or measure the curve with at most "
            f"{max(levels - 2, 1)} training rows in each refit (in an audit: scheme='replace', "
            f"n_train={max(levels - 2, 1)}, levels={levels})."
        )
    needed, way_out = _needed_levels(method, leakable)
    if levels < needed:
        raise InputError(
            f"method {method.name!r} needs at least {needed} levels here, the curve has {levels}; "
            f"measure more levels, or use {way_out}."
        )
    if method.name == "sketch" and method.options["grouping"] != "means":
        # a binomial distribution is at most √m/2 wide; columns further apart leave levels uncovered
        fewest = math.ceil(math.sqrt(leakable) / 3)
        if method.options["groups"] < fewest:
            raise InputError(
                f"grouping={method.options['grouping']!r} with {method.options['groups']} groups of "
                f"{leakable} columns leaves levels that no column stands for; use at least "
                f"groups={fewest}, or grouping='means'."
            )
    if solves_in_full(method) and leakable > largest:
        raise InputError(
            f"method {method.name!r} would solve for {leakable + 1} losses, more than the "
            f"{largest + 1} it is allowed here; use 'basis', 'sketch' or 'power', whose size does not "
            "grow with the training set, or smaller training sets (in an audit: scheme='replace', "
            "n_train=100)."
        )


def _needed_levels(method: Method, leakable: int) -> tuple[int, str]:
    if method.name == "basis":
        return method.options["order"] + 1, "a lower order"
    columns = leakable + 1
    if method.name == "sketch":
        columns = min(method.options["groups"], leakable) + 1
        if not method.options["smoothing"]:
            return columns, "fewer groups or some smoothing"
    # with fewer levels, the polynomial that smoothing does not penalise is undetermined
    return min(_smoothness_order(method), columns), "the method 'power'"


def solves_in_full(method: Method) -> bool:
    """Return whether a method solves for every loss e_0 … e_m, which is slow for large m."""
    if method.name == "sketch":
        return bool(method.options["grouping"] == "medoids")
    return method.name not in ("power", "basis")


def _smoothness_order(method: Method) -> int:
    if method.name == "sketch":
        return SMOOTHNESS_ORDER
    return int(method.name.partition("+")[0][-1]) if method.name in TRENDS else 0


def fit_curve(problem: Extrapolation, method: Method) -> PowerFit | PublishedFit:
    """Fit the curve with one method, without its uncertainty."""
    check_size(method, len(problem.exposure), problem.leakable)
    if method.name == "power":
        return fit_power(problem)
    if method.name == "basis":
        return fit_basis(problem, **method.options)
    if method.name == "sketch":
        return fit_sketch(problem, **method.options)
    return fit_sequence(
        problem,
        order=_smoothness_order(method),
        decreasing=method.name.endswith("mono"),
        **method.options,
    )


def fit_all(problems: Sequence[Extrapolation], method: Method) -> list[PowerFit | PublishedFit]:
    """Fit several problems of one curve. `power` is fitted once if only the target differs."""
    fits = [fit_curve(problems[0], method)]
    first = fits[0]
    for problem in problems[1:]:
        if isinstance(first, PowerFit) and np.array_equal(problem.loss, problems[0].loss):
            fits.append(replace(first, target=problem.target))
        else:
            fits.append(fit_curve(problem, method))
    return fits


def is_accurate(fit: PowerFit | PublishedFit) -> bool:
    """Return False if a solver's result could not be confirmed."""
    return fit.accurate if isinstance(fit, PublishedFit) else True


# --- `estimate`: the loss on new clusters from a loss curve and a leaked share

MOST_LOSSES = 1001

Number = float | int
Range = Number | tuple[Number, Number]


@dataclass(frozen=True, kw_only=True)
class Estimate(Result):
    """The estimated loss on new clusters, with its uncertainty and diagnostics.

    Attributes
    ----------
    e0 : float
        e_0, corrected for bias. It never exceeds the largest possible loss, and it is not always
        more accurate than the uncorrected loss.
    interval : tuple of float
        95% interval that covers noise, extrapolation and the range of p0.
    secant : float or None
        One-sided 95% lower limit for a convex curve: a secant with its noise subtracted, see
        `secant_limit`. None unless the measured curve supports convexity, see
        `ShapeCheck.supports_convexity`.
    losses : tuple of float
        e_j at each of `leaked`.
    leaked : tuple of int
        j: numbers of leaked rows in training, from 0. At most 1001 values are listed.
    residual : float
        ‖fitted curve - measured curve‖₂, as in the papers.
    method : str
        The name of the method that was used.
    shares : LeakShares
        The leaked shares; the middle of the range if a range was given.
    shape : ShapeCheck
    noise : float
        Standard error of e_0 from the noise of the losses alone. The rest of the interval is
        extrapolation.
    accurate : bool
        False if a solver's result could not be confirmed.
    sketch_error : float or None
        For `sketch`: a bound on the sketching error, as a multiple of e_0; see `fit_sketch`.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> found = b3.estimate(curve, p0=(0.05, 0.15))
    >>> low, high = found.interval
    >>> low < found.e0 < high
    True
    >>> len(found.losses)
    101
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
        """Whether most of the interval comes from extrapolation, so more refits would not help."""
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
        p_V: the share of rows in V̂ that belong to the training clusters. Requires a curve with
        `training_loss`.
    bound : float, optional
        The largest possible loss M. It limits the estimate and the interval.
    **options
        Options of the method, such as `order=7` for "basis"; see `Method`.

    Notes
    -----
    For the papers' estimators the interval is e_0 ∓ t standard errors, computed from the linear map
    that the estimator applies to the losses, or from its derivative if it is not linear. It covers
    the noise of the curve, but not the bias of smoothing, constraints, groups or a polynomial of
    too low an order. The interval of `power` covers the extrapolation as well.

    References
    ----------
    .. [1] Barnes, M. and Dubrawski, A. (2017). The binomial block bootstrap estimator for
       evaluating loss on dependent clusters. UAI 2017.
    .. [2] Barnes, M. and Dubrawski, A. (2019). On the interaction effects between prediction and
       clustering. AISTATS 2019. arXiv:1807.06713.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> found = b3.estimate(curve, p0=0.1)
    >>> found.method, round(found.e0, 2)
    ('power', 0.33)
    >>> round(b3.estimate(curve, p0=0.1, method="basis", order=2).e0, 2)
    0.32
    """
    chosen = as_method(method, **options)
    check_bound(bound)
    low, high = as_range("p0", p0)
    p_validation = one_share("p0_validation", p0_validation)

    def problem(share: float) -> Extrapolation:
        return unmix(curve, LeakShares(p0=share, p0_validation=p_validation))

    shares = LeakShares(p0=(low + high) / 2, p0_validation=p_validation)
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
    """Estimate e_0 over a range of shares.

    The estimate is taken at `centre`, by default the middle of the range. The interval covers the
    whole range.
    """
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
    """Return the interval for a fit's e_0, and its standard error from noise alone."""
    published = fit if isinstance(fit, PublishedFit) else None
    reads = published.reads if published else _parabola_weights(problem)
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
    """Clip a loss to [0, bound], if there is a bound."""
    return value if bound is None else min(max(value, 0.0), bound)


def check_bound(bound: object) -> None:
    """Raise an `InputError` unless the bound on the loss is None or a positive number."""
    number = isinstance(bound, (int, float, np.number)) and not isinstance(bound, bool)
    if bound is not None and not (number and 0 < float(bound) < np.inf):  # type: ignore[arg-type]
        raise InputError(
            f"bound={bound!r} must be the largest possible loss, a positive number, or None."
        )


def _parabola_weights(problem: Extrapolation) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the weights of the losses in a fitted parabola evaluated at x*."""
    order = min(2, len(problem.exposure) - 1)
    design = np.vander(problem.exposure, order + 1, increasing=True)
    inverse = np.linalg.pinv(design / problem.stderr[:, None]) / problem.stderr
    return np.asarray(problem.target ** np.arange(order + 1) @ inverse)


def one_share(name: str, value: object) -> float:
    """Return a share as a float, or raise an `InputError` unless it lies in [0, 1)."""
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
    """Return (low, high) from a number or a pair of shares in [0, 1)."""
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


# --- The distribution of the loss on new clusters


@dataclass(frozen=True, kw_only=True)
class LossDistribution(Result):
    """For each threshold, the share of rows of new clusters whose loss exceeds it.

    Attributes
    ----------
    thresholds : tuple of float
        Increasing.
    exceeding : tuple of float
        P(loss > t) on new clusters; non-increasing.
    low, high : tuple of float
        Pointwise 95% interval at each threshold.
    uncorrected : tuple of float
        P(loss > t) on the unchanged folds.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.3, 0.6, 1], loss=[0.50, 0.44, 0.40, 0.36], stderr=[0.004] * 4, n_train=100
    ... )
    >>> found = b3.estimate_distribution([0.5], [curve], p0=0.1)
    >>> found.uncorrected[0] < found.exceeding[0]
    True
    """

    thresholds: tuple[float, ...]
    exceeding: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    uncorrected: tuple[float, ...]

    def quantile(self, share: float) -> tuple[float | None, float | None]:
        """Return the thresholds (low, high) that enclose a quantile of the loss.

        An end is None if the quantile lies below or above all thresholds.
        """
        if not 0 < share < 1:
            raise InputError(f"share={share!r} must lie in (0, 1).")
        above = [t for t, p in zip(self.thresholds, self.exceeding, strict=True) if p <= 1 - share]
        below = [t for t, p in zip(self.thresholds, self.exceeding, strict=True) if p > 1 - share]
        return (below[-1] if below else None, above[0] if above else None)


def estimate_distribution(
    thresholds: Sequence[Number],
    curves: Sequence[LossCurve],
    p0: Any,
    method: Any = "auto",
    *,
    p0_validation: Number = 0.0,
    **options: Any,
) -> LossDistribution:
    """Estimate the distribution of the loss on new clusters.

    Parameters
    ----------
    thresholds : sequence of float
        Increasing.
    curves : sequence of LossCurve
        One loss curve for each threshold t: the share of rows with a loss above t.
    p0, method, p0_validation, **options
        As in `estimate`.

    Notes
    -----
    The papers extend B3 to a histogram of the loss (UAI 2017, section 5). Here each threshold
    defines a loss of its own, 1[loss > t]. Unlike the share of a single bin, it falls with leakage
    whenever leakage makes losses stochastically smaller, so the estimators can assume the same
    shape. Each threshold is estimated separately; isotonic regression then makes the shares
    monotone.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curves = [
    ...     b3.LossCurve(
    ...         injected=[0, 0.3, 0.6, 1], loss=loss, stderr=[0.004] * 4, n_train=100
    ...     )
    ...     for loss in ([0.51, 0.45, 0.40, 0.36], [0.20, 0.16, 0.13, 0.11])
    ... ]
    >>> found = b3.estimate_distribution([0.5, 1.0], curves, p0=0.1)
    >>> [round(share, 2) for share in found.exceeding]
    [0.54, 0.22]
    """
    points = [float(threshold) for threshold in thresholds]
    ordered = all(a < b for a, b in pairwise(points)) and all(map(math.isfinite, points))
    if not points or len(points) != len(curves) or not ordered:
        raise InputError(
            f"thresholds must be finite and increase, with one curve for each: {len(points)} "
            f"thresholds and {len(curves)} curves were given."
        )
    results = [
        estimate(curve, p0, method, p0_validation=p0_validation, bound=1.0, **options)
        for curve in curves
    ]
    return distribution_of(points, results, [curve.loss[0] for curve in curves])


def distribution_of(
    thresholds: Sequence[float], results: Sequence[Estimate], uncorrected: Sequence[float]
) -> LossDistribution:
    """Combine the estimates of single thresholds."""

    def ordered(values: Sequence[float]) -> tuple[float, ...]:
        kept = np.clip(np.asarray(values, float), 0.0, 1.0)
        return tuple(isotonic_regression(kept, increasing=False).tolist())

    return LossDistribution(
        thresholds=tuple(thresholds),
        exceeding=ordered([result.e0 for result in results]),
        low=ordered([result.interval[0] for result in results]),
        high=ordered([result.interval[1] for result in results]),
        uncorrected=tuple(uncorrected),
    )
