"""The way from the measured losses to e_0: what is extrapolated, and how far it can be trusted."""

from dataclasses import dataclass, replace

import numpy as np

from mlflow_b3.estimation.estimates import solve
from mlflow_b3.estimation.methods import Method
from mlflow_b3.estimation.unmixing import Extrapolation, LeakShares
from mlflow_b3.results import Result

STEPS = 9


@dataclass(frozen=True, kw_only=True)
class ExtrapolationPath(Result):
    """The loss curve of the true validation clusters, down to the point without leakage.

    The axis is the exposure: 0 is the fold as it is, 1 has all validation rows in training, and
    below 0 there is less leakage than the fold has.

    Attributes
    ----------
    measured_exposure, measured_loss : tuple of float
        ℓ_V at the levels that were measured: losses on V̂ ∖ T' with the share of training clusters
        taken out.
    exposure : tuple of float
        From x* (no leaked row) to 0.
    loss, low, high : tuple of float
        The extrapolated loss there and its 95 % interval, for the leaked share of the estimate; the
        first is e_0.
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
    """Estimate the loss at ever less leakage, with the interval of each."""
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
