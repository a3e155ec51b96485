"""Pattern `fragments`: linkage splits clusters, so the loss is a mixture of seen and new clusters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.problem import LeakShares, SeenShare
from mlflow_b3.measurement.curve import FragmentLosses
from mlflow_b3.results import Result

Share = SeenShare | float | int


@dataclass(frozen=True, kw_only=True)
class DoseEstimate(Result):
    """e_0 if linkage broke clusters in another way, with the saturation left as measured.

    Attributes
    ----------
    fragments : str
        As in `DoseLoss`: "singles" or "halves".
    e0 : float

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> dose = b3.DoseLoss(fragments="halves", seen_loss=0.20, stderr=0.01)
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22, doses=[dose])
    >>> for other in b3.estimate_fragments(losses, seen_share=0.2).doses:
    ...     print(other.fragments, round(other.e0, 3))
    halves 0.325
    """

    fragments: str
    e0: float


@dataclass(frozen=True, kw_only=True)
class FragmentEstimate(Result):
    """The loss on new clusters when linkage splits clusters.

    Attributes
    ----------
    e0 : float
    interval : tuple of float
        95% interval over clusters, refits and the range of the share.
    seen_share : float
        s: share of the validation rows whose true cluster also has rows in training; the middle
        of the range if a range was given.
    doses : tuple of DoseEstimate
        e_0 for the other fragment sizes that were measured.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22)
    >>> found = b3.estimate_fragments(losses, seen_share=(0.1, 0.3))
    >>> round(found.seen_share, 2), round(found.e0, 2)
    (0.2, 0.32)
    """

    e0: float
    interval: tuple[float, float]
    seen_share: float
    doses: tuple[DoseEstimate, ...] = ()


def seen_share(split_rate: float, folds: Sequence[FoldSummary], *, parts: int = 2) -> SeenShare:
    """Return s, the share of validation rows with true mates in training.

    A row whose true cluster is split into f ids is seen unless the f-1 other ids all fall into its
    own fold. With G_T ids in training and G_V in validation, including its own, the probability of
    that is C(G_V - 1, f - 1)/C(G_T + G_V - 1, f - 1). Folds are weighted by their validation rows.

    Parameters
    ----------
    split_rate : float
        σ: share of all rows whose true cluster is split.
    folds : sequence of FoldSummary
        For example `report.folds`.
    parts : int
        f, the number of ids of a split cluster.

    Notes
    -----
    For K equal folds of many ids this is σ·(1 - K^(1-f)), the split-count identity of record
    linkage. Here ids are drawn without replacement, which matters if there are few of them.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from mlflow_b3.data.folds import FoldSummary
    >>> fold = FoldSummary(
    ...     n_training=800,
    ...     n_validation=200,
    ...     clusters_training=80,
    ...     clusters_validation=20,
    ...     shared_clusters=0,
    ...     shared_rows=0.0,
    ... )
    >>> round(b3.seen_share(0.1, [fold]).share, 3)
    0.081
    """
    if not 0 <= split_rate < 1:
        raise InputError(f"split_rate={split_rate!r} must lie in [0, 1).")
    return SeenShare(share=split_rate * _probability_apart(folds, parts))


def _probability_apart(folds: Sequence[FoldSummary], parts: int = 2) -> float:
    """Return the probability that a row of a split cluster has mates in training."""
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 2:
        raise InputError(f"parts={parts!r} must be a whole number from 2.")
    rows = sum(fold.n_validation for fold in folds)
    return (
        sum(fold.n_validation * _probability_apart_in_fold(fold, parts - 1) for fold in folds)
        / rows
    )


def _probability_apart_in_fold(fold: FoldSummary, others: int) -> float:
    inside, all_ids = (
        fold.clusters_validation - 1,
        fold.clusters_training + fold.clusters_validation,
    )
    # ids on both sides of user-defined folds count twice, so `others` can exceed what is available
    return 1 - math.comb(inside, others) / max(1, math.comb(all_ids - 1, others))


def estimate_fragments(
    losses: FragmentLosses,
    *,
    seen_share: Share | tuple[Share, Share],
    bound: float | None = None,
) -> FragmentEstimate:
    """Solve the mixture LOCO = (1-s)·e_0 + s·e_seen for e_0.

    Parameters
    ----------
    losses : FragmentLosses
        From an audit, or built from plain numbers.
    seen_share : SeenShare or float, or a pair (low, high) of them
        s. For a range, e_0 is estimated at its middle.
    bound : float, optional
        The largest possible loss M.

    Notes
    -----
    e_0 = (LOCO - s·e_seen)/(1-s). Nothing is extrapolated beyond the mixture. The assumption is
    that clusters broken on purpose are broken like those that linkage broke.

    The mixture would be exact if breaking a fragment once more changed nothing. But a share s of
    the rows is already seen, and breaking their clusters on purpose adds to their gain, so the
    measured e_seen is too low. Let D = LOCO - e_seen be the gain of broken clusters, and ρ the part
    of it that fragments show (`FragmentLosses.saturation`). Then

        e_0 = LOCO + D·s·(1 - s·ρ)/(1 - s).

    ρ = 0 gives the plain mixture. ρ is measured by breaking clusters twice; the remaining error is
    of second order in s.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22, stderr=0.01, seen_stderr=0.01)
    >>> found = b3.estimate_fragments(losses, seen_share=0.2)
    >>> round(found.e0, 3), [round(end, 3) for end in found.interval]
    (0.32, [0.295, 0.345])
    """
    low, high = _share_range(seen_share)
    centre = (low + high) / 2
    ends = [_interval(losses, share, bound) for share in (low, centre, high)]
    return FragmentEstimate(
        e0=_solve(losses, centre, losses.gain, bound),
        interval=(min(end[0] for end in ends), max(end[1] for end in ends)),
        seen_share=centre,
        doses=_dose_estimates(losses, centre, bound),
    )


def weigh_fragments(
    losses: FragmentLosses, shares: Sequence[float], *, bound: float | None = None
) -> FragmentEstimate:
    """Average e_0 over the distribution of the share of seen rows.

    Parameters
    ----------
    losses : FragmentLosses
    shares : sequence of float
        Equally likely values of s, such as 200 quantiles of its distribution given the linkage
        evidence.
    bound : float, optional
        The largest possible loss M.

    Notes
    -----
    At each s, e_0 has a t distribution around the solution of `estimate_fragments`. The result is
    the mixture of these distributions: its median is the estimate, and its 2.5% and 97.5% quantiles
    are the interval, which therefore covers the uncertainty of s. Unlike the mean, the median does
    not depend on whether s or e_0 is averaged.
    """
    values = np.array([_share_range(share)[0] for share in shares])
    if not len(values):
        raise InputError("shares is empty; give equally likely values of the seen share.")
    middles = np.array([_solve(losses, share, losses.gain, None) for share in values])
    errors = np.array([mixture_error(losses, share) for share in values])
    errors = np.maximum(errors, 1e-12)
    freedom = losses.degrees_of_freedom or math.inf

    def below(loss: float, chance: float) -> float:
        return float(np.mean(stats.t.cdf((loss - middles) / errors, freedom))) - chance

    spread = 1e3 * errors.max()
    ends = float(middles.min() - spread), float(middles.max() + spread)
    tail = (1 - CONFIDENCE) / 2
    low, e0, high = (
        float(optimize.brentq(below, *ends, args=(chance,))) for chance in (tail, 0.5, 1 - tail)
    )
    if bound is not None:
        low, e0, high = (min(max(value, 0.0), bound) for value in (low, e0, high))
    centre = float(np.median(values))
    return FragmentEstimate(
        e0=e0, interval=(low, high), seen_share=centre, doses=_dose_estimates(losses, centre, bound)
    )


def _dose_estimates(
    losses: FragmentLosses, share: float, bound: float | None
) -> tuple[DoseEstimate, ...]:
    return tuple(
        DoseEstimate(
            fragments=dose.fragments,
            e0=_solve(losses, share, losses.loss - dose.seen_loss, bound),
        )
        for dose in losses.doses
    )


def tipping_split_rate(
    losses: FragmentLosses, folds: Sequence[FoldSummary], threshold: float
) -> float | None:
    """Return the smallest split rate below 1 at which e_0 reaches a threshold t, or None.

    It is s* = (t - LOCO)/(t - e_seen), or for ρ > 0 the smaller root of ρD·s² - (D+τ)·s + τ = 0
    with τ = t - LOCO, divided by the probability that the parts of a split cluster are in different
    folds.
    """
    if not math.isfinite(threshold):
        raise InputError(f"threshold={threshold!r} must be a finite number.")
    missing, gain = threshold - losses.loss, losses.gain
    if missing <= 0:
        return 0.0
    if gain <= 0:
        return None
    total = gain + missing
    root = math.sqrt(max(0.0, total**2 - 4 * losses.saturation * gain * missing))
    rate = 2 * missing / (total + root) / _probability_apart(folds)
    return rate if rate < 1 else None


def _share_range(value: object) -> tuple[float, float]:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if any(isinstance(item, LeakShares) for item in pair):
        raise InputError(
            f"seen_share={value!r} holds shares of pattern rows, which count misplaced rows. For split "
            "clusters give the share of validation rows with mates in training; see seen_share()."
        )
    try:
        low, high = (_share_value(item) for item in pair)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 <= low <= high < 1:
        raise InputError(
            f"seen_share={value!r} must be a SeenShare or a number in [0, 1), or a pair of them, low "
            "before high."
        )
    return low, high


def _share_value(value: Any) -> float:
    if isinstance(value, str):
        return math.nan
    return value.share if isinstance(value, SeenShare) else float(value)


def _solve(losses: FragmentLosses, share: float, gain: float, bound: float | None) -> float:
    e0 = losses.loss + gain * share * (1 - share * losses.saturation) / (1 - share)
    return e0 if bound is None else min(max(e0, 0.0), bound)


def mixture_weights(losses: FragmentLosses, share: float) -> NDArray[np.float64]:
    """Return the derivatives of e_0 by LOCO, e_seen and the loss of clusters broken twice."""
    odds, again = share / (1 - share), losses.again_loss is not None
    kept = 1 - share * (1 - losses.again_rows)
    return np.array([1 + odds * kept, -odds * (kept + share * again), odds * share * again])


def mixture_error(losses: FragmentLosses, share: float) -> float:
    """Return the standard error of e_0 over clusters and refits."""
    weights = mixture_weights(losses, share)
    covariance = np.diag([losses.stderr**2, losses.seen_stderr**2, 0.0])
    if losses.covariance is not None:
        size = len(losses.covariance)
        covariance[:size, :size] += np.array(losses.covariance)
    return math.sqrt(weights @ covariance @ weights)


def _interval(losses: FragmentLosses, share: float, bound: float | None) -> tuple[float, float]:
    freedom = losses.degrees_of_freedom or math.inf
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * mixture_error(losses, share)
    middle = _solve(losses, share, losses.gain, bound)
    if bound is None:
        return middle - reach, middle + reach
    return max(0.0, middle - reach), max(middle, min(bound, middle + reach))
