"""Which estimator, and with which options."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, choose, closest
from mlflow_b3.estimation.power import PowerFit, fit_power
from mlflow_b3.estimation.published import LARGEST_SYSTEM, PublishedFit, fit_basis, fit_sequence
from mlflow_b3.estimation.sketching import GROUPINGS, SMOOTHNESS_ORDER, fit_sketch
from mlflow_b3.estimation.unmixing import Extrapolation
from mlflow_b3.results import Result

Array = NDArray[np.float64]

OBJECTIVES = ("norm", "squared")
TRENDS = tuple(f"trend{order}{end}" for end in ("", "+mono") for order in (2, 3, 4))
METHODS = ("auto", "power", "least-squares", "mono", *TRENDS, "basis", "sketch")

#: The options of each method, with the values that they have unless given.
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
        """Return the fitted curve at some exposures."""

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j: the loss with j of the `leakable` rows in training."""


@dataclass(frozen=True, kw_only=True)
class Method(Result):
    """An estimator with its options; those that it does not have are None.

    Attributes
    ----------
    name : str
        `power` (`auto` is the same), or one of the papers' estimators: `least-squares`, the system
        Ae = b as it is; `mono`, with decreasing losses; `trend2`, `trend3` and `trend4`, with
        smooth losses; `trend2+mono`, `trend3+mono` and `trend4+mono`, with both; `basis`, a
        polynomial; `sketch`, losses in groups.
    order : int
        Of the polynomial of `basis`: 2, the papers also use 7.
    smoothing : float
        λ of the trend filters, 10 as in the papers' experiments, and of `sketch`, 0.1. One λ does
        not fit all: it smooths less the more levels and the more training rows there are.
    objective : {"norm", "squared"}
        What trend filters and `sketch` minimise: ‖Ae-b‖ + λ‖De‖, as the authors' program does,
        for which their λ were chosen, or ‖Ae-b‖² + λ‖De‖², which the papers print.
    groups : int
        k of `sketch`.
    grouping : {"means", "blocks", "medoids"}
        What stands for a group of `sketch`.
    """

    name: str = "auto"
    order: int | None = None
    smoothing: float | None = None
    objective: str | None = None
    groups: int | None = None
    grouping: str | None = None

    def __post_init__(self) -> None:
        """Fill in the values of options that were not given; refuse what cannot be."""
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
    """Return a method of some name with options.

    Parameters
    ----------
    method : str or Method
    **options
        Those of `Method` that the method has; only with a name.
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


def _whole(name: str, value: Any) -> int:
    least = 1 if name == "groups" else 0
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name}={value!r} must be a whole number from {least}.")
    return int(value)


def _weight(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number from 0.")
    return float(value)


_CHECKS: dict[str, Any] = {
    "order": _whole,
    "groups": _whole,
    "smoothing": _weight,
    "objective": lambda name, value: choose(name, value, OBJECTIVES),
    "grouping": lambda name, value: choose(name, value, GROUPINGS),
}


def check_size(
    method: Method, levels: int, leakable: int, *, largest: int = LARGEST_SYSTEM
) -> None:
    """Raise an `InputError` when a curve has too few levels, or too many losses, for a method.

    Parameters
    ----------
    method : Method
    levels : int
    leakable : int
        The largest j of e_j.
    largest : int
        The most leaked rows for which all losses are solved for.
    """
    if levels < 2:
        raise InputError("the curve has one level only; measure at least two.")
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
        # a binomial distribution is at most √m/2 wide; further apart, levels fall between columns
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
    # fewer levels than that leave the polynomial open that is not penalised
    return min(_smoothness_order(method), columns), "the method 'power'"


def solves_in_full(method: Method) -> bool:
    """Return whether a method solves for every loss e_0 … e_m, which takes time for large m."""
    if method.name == "sketch":
        return bool(method.options["grouping"] == "medoids")
    return method.name not in ("power", "basis")


def _smoothness_order(method: Method) -> int:
    if method.name == "sketch":
        return SMOOTHNESS_ORDER
    return int(method.name.partition("+")[0][-1]) if method.name in TRENDS else 0


def fit_curve(problem: Extrapolation, method: Method) -> PowerFit | PublishedFit:
    """Fit the curve of a method, without its uncertainty."""
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
    """Fit several readings of one curve; where only the target differs, one fit of `power` does."""
    fits = [fit_curve(problems[0], method)]
    first = fits[0]
    for problem in problems[1:]:
        if isinstance(first, PowerFit) and np.array_equal(problem.loss, problems[0].loss):
            fits.append(replace(first, target=problem.target))
        else:
            fits.append(fit_curve(problem, method))
    return fits


def is_accurate(fit: PowerFit | PublishedFit) -> bool:
    """Return False when a solver's result could not be confirmed."""
    return fit.accurate if isinstance(fit, PublishedFit) else True
