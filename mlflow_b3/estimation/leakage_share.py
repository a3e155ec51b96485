"""p0 from the loss curve alone: the papers' grid search, and what it cannot tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import check_shape, lower_limit
from mlflow_b3.estimation.estimates import Number, check_bound, residual_of
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.estimation.methods import Method, as_method, fit_all, is_accurate
from mlflow_b3.estimation.unmixing import Extrapolation, LeakShares, unmix
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

MOST_CANDIDATES = 100
#: p0 above this is not searched in an audit: half of the training rows would be leaked.
LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class P0Search(Result):
    """The residual profile of algorithm 2, or of algorithm 4 for both directions.

    Attributes
    ----------
    p0 : tuple of float
        The candidates; for both directions p_T of every pair.
    residual : tuple of float
        ‖fitted - measured‖₂ for each candidate.
    p0_star : float
        The candidate with the smallest residual, as the papers define it.
    identified : tuple of float
        The smallest and the largest p0 that the curve does not exclude: those whose lower
        confidence limit for e_0 is a possible loss. It rests on a decreasing and convex curve; all
        candidates where that is rejected or the loss has no bound.
    flat : bool
        No identified candidate's residual exceeds another's by more than the noise: `p0_star` is
        then no estimate of anything.
    noise : float
        The residual that noise alone would leave, ‖stderr‖₂.
    accurate : bool
        False when a solver's result for one of the candidates could not be confirmed.
    p0_validation : tuple of float or None
        For both directions, p_V of every pair.
    p0_validation_star : float or None
    """

    p0: tuple[float, ...]
    residual: tuple[float, ...]
    p0_star: float
    identified: tuple[float, float]
    flat: bool
    noise: float = 0.0
    accurate: bool = True
    p0_validation: tuple[float, ...] | None = None
    p0_validation_star: float | None = None

    @property
    def estimated(self) -> float | None:
        """p0* where the profile tells candidates apart, else None."""
        return None if self.flat else self.p0_star

    @property
    def statement(self) -> str:
        """What the search says about p0, in words."""
        low, high = self.identified
        excluded = (
            f"The curve excludes only p0 above {high:.3g}"
            if high < max(self.p0)
            else "The curve excludes no p0"
        )
        if self.flat:
            return (
                f"The loss curve does not tell p0: the residual is the same within the noise for "
                f"every p0 from {low:.3g} to {high:.3g}. p0* = {self.p0_star:.3g} is where the "
                f"smallest residual happened to fall, not an estimate. {excluded}."
            )
        return (
            f"The smallest residual is at p0* = {self.p0_star:.3g}, and the residual differs by "
            f"more than the noise between p0 = {low:.3g} and {high:.3g}. What the loss curve "
            "measures does not depend on p0, so the difference comes from the smoothing and the "
            f"constraints of the method. {excluded}."
        )


def search_p0(
    curve: LossCurve,
    method: str | Method = "auto",
    *,
    p0: Sequence[Number] | None = None,
    p0_validation: Sequence[Number] | None = None,
    bound: float | None = None,
    **options: Any,
) -> P0Search:
    """Search the leaked share whose fitted curve leaves the smallest residual.

    Parameters
    ----------
    curve : LossCurve
    method, bound, **options
        As in `estimate`.
    p0 : sequence of float, optional
        The candidates; 0, 1/n', 2/n', … (n'-1)/n' by default, a hundred of them at most.
    p0_validation : sequence of float, optional
        Candidates of p_V: every pair with p0 is tried, algorithm 4. By default p_V = 0, algorithm
        2.

    Notes
    -----
    What is measured depends on the injected share only; another candidate p0 relabels the axis
    affinely, and polynomials stay polynomials. The residual of unconstrained solvers is therefore
    the same for every candidate, and assumption 1 of the papers, on which the consistency of
    p0* rests, does not hold for smooth curves. What the curve can exclude is a p0 so large that a
    decreasing and convex curve would rise above the largest possible loss: that is `identified`.
    One set of refits serves all candidates, so this costs as much as a single one. For both
    directions the residual is that of the unmixed curve, in the units of the measured one.
    """
    chosen = as_method(method, **options)
    check_bound(bound)
    candidates = _candidates("p0", p0, curve.n_train)
    back = np.zeros(1) if p0_validation is None else _candidates("p0_validation", p0_validation, 1)
    pairs = [(float(t), float(v)) for t in candidates for v in back if t + v < 1]
    problems = [unmix(curve, LeakShares(p0=t, p0_validation=v)) for t, v in pairs]
    fits = fit_all(problems, chosen)
    shrink = [(1 - t - v) / (1 - t) for t, v in pairs]
    residual = np.array(
        [s * residual_of(f, p) for s, f, p in zip(shrink, fits, problems, strict=True)]
    )
    possible = np.array([_possible(problem, bound) for problem in problems])
    if not possible.any():  # no candidate is: nothing is learnt
        possible[:] = True
    kept = residual[possible]
    best = int(np.argmin(residual))
    noise = float(np.linalg.norm(problems[0].stderr))
    forward = np.array([t for t, _ in pairs])
    return P0Search(
        p0=tuple(forward.tolist()),
        residual=tuple(residual.tolist()),
        p0_star=pairs[best][0],
        identified=(float(forward[possible].min()), float(forward[possible].max())),
        flat=bool(np.ptp(kept) <= noise),
        noise=noise,
        accurate=all(map(is_accurate, fits)),
        p0_validation=None if p0_validation is None else tuple(v for _, v in pairs),
        p0_validation_star=None if p0_validation is None else pairs[best][1],
    )


def _candidates(name: str, values: Sequence[Number] | None, n_train: int) -> NDArray[np.float64]:
    if values is None:
        count = min(n_train, MOST_CANDIDATES)
        return np.arange(count) / count
    try:
        grid = np.asarray(values, float)
    except (TypeError, ValueError):
        grid = np.zeros((0,))
    inside = bool(((grid >= 0) & (grid < 1)).all())  # False for NaN
    if grid.ndim != 1 or not len(grid) or not inside or (np.diff(grid) <= 0).any():
        raise InputError(
            f"{name}={values!r} must be a non-empty, increasing sequence of candidates in [0, 1)."
        )
    return grid


def _possible(problem: Extrapolation, bound: float | None) -> bool:
    """Return whether the curve allows e_0 to be a possible loss."""
    shape = check_shape(problem)
    if bound is None or not (shape.decreasing and shape.convex):
        return True
    return lower_limit(problem, 1 - (1 - CONFIDENCE) / 2) <= bound
