"""Pattern `fragments`: clusters that linkage has split, an exact mixture of seen and new."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.folds import FoldSummary
from mlflow_b3.measurement.curve import FragmentLosses
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class FragmentEstimate(Result):
    """The loss on new clusters when linkage splits clusters.

    Attributes
    ----------
    e0 : float
    interval : tuple of float
        95 %, over clusters and refits, and over the range of the share.
    seen_share : float
        s: share of the validation rows whose true cluster also has rows in training.
    """

    e0: float
    interval: tuple[float, float]
    seen_share: float


def seen_share(split_rate: float, folds: Sequence[FoldSummary]) -> float:
    """Return s, the share of validation rows with true mates in training.

    A row whose true cluster is split in two finds the other part in training unless that part's
    id fell into the same fold: of the G - 1 other ids, those of the training side.
    """
    if not 0 <= split_rate < 1:
        raise InputError(f"split_rate={split_rate!r} must lie in [0, 1).")
    rows = sum(fold.n_validation for fold in folds)
    apart = sum(
        fold.n_validation
        * min(1.0, fold.clusters_training / (fold.clusters_training + fold.clusters_validation - 1))
        for fold in folds
    )
    return split_rate * apart / rows


def estimate_fragments(
    losses: FragmentLosses, low: float, high: float, *, bound: float | None = None
) -> FragmentEstimate:
    """Solve the mixture LOCO = (1-s)·e_0 + s·e_seen for e_0.

    Parameters
    ----------
    losses : FragmentLosses
    low, high : float
        The range of s; the estimate is given for its middle.
    bound : float, optional
        The largest possible loss M.

    Notes
    -----
    e_0 = (LOCO - s·e_seen)/(1-s). Nothing is extrapolated beyond the mixture; what it rests on is
    that clusters broken on purpose are broken like those that linkage broke: here with a cut
    drawn uniformly.
    """
    centre = (low + high) / 2
    ends = [_interval(losses, share, bound) for share in (low, high)]
    return FragmentEstimate(
        e0=_solve(losses, centre, bound),
        interval=(min(end[0] for end in ends), max(end[1] for end in ends)),
        seen_share=centre,
    )


def _solve(losses: FragmentLosses, share: float, bound: float | None) -> float:
    e0 = (losses.loss - share * losses.seen_loss) / (1 - share)
    return e0 if bound is None else min(e0, bound)


def _interval(losses: FragmentLosses, share: float, bound: float | None) -> tuple[float, float]:
    weights = np.array([1.0, -share]) / (1 - share)
    variance = weights @ np.array(losses.covariance) @ weights
    variance += (share / (1 - share) * losses.seen_stderr) ** 2
    quantile = float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2, losses.degrees_of_freedom))
    middle, reach = _solve(losses, share, bound), quantile * float(np.sqrt(variance))
    if bound is None:
        return middle - reach, middle + reach
    return max(0.0, middle - reach), max(middle, min(bound, middle + reach))
