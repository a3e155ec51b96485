"""What leak-safe folds and purging save, and what they cost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare
from mlflow_b3.linkage.folds import MAX_GROUP, LeakSafeFolds, leak_safe_folds, purge
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Splits, as_codes
from mlflow_b3.linkage.truth import Leak
from mlflow_b3.results import Result
from mlflow_b3.wording import percent


@dataclass(frozen=True, kw_only=True)
class LeakPoint(Result):
    """One way of making the folds: what leaks, and what it costs.

    Attributes
    ----------
    lever : {"none", "folds", "purging"}
        Folds of the predicted clusters; of larger groups; or of the predicted clusters without the
        training rows that are linked to validation.
    threshold : float or None
        Pairs from this probability on are kept together, or lead to purging.
    train, validation : LeakShare or None
        p0 and p0_validation as measured; None without resolved rows or true labels.
    score_mass_left : float
        Σπ over pairs that straddle training and validation, as a share of that without a lever.
        It ranks settings of one lever. It is *no* leak share and falls faster than the leak: pairs
        were kept together because of these very scores.
    largest_group : float
        Share of all rows.
    n_groups : int
    imbalance : float
        Rows of the largest fold over those of the mean fold, less 1.
    rows_dropped : float
        Share of the training rows that purging drops, mean over folds.
    raised_to : float or None
        See `SafeGroups`.
    """

    lever: str
    threshold: float | None
    train: LeakShare | None
    validation: LeakShare | None
    score_mass_left: float
    largest_group: float
    n_groups: int
    imbalance: float
    rows_dropped: float
    raised_to: float | None


@dataclass(frozen=True, kw_only=True)
class LeakCurve(Result):
    """Leak against price, for folds of larger groups and for purging.

    Attributes
    ----------
    points : tuple of LeakPoint
        Without a lever first, then by lever and falling threshold.
    n_folds : int
        K.
    measured : bool
        The leak shares come from resolved rows or true labels. Otherwise only `score_mass_left` is
        known.
    """

    points: tuple[LeakPoint, ...]
    n_folds: int
    measured: bool

    def __str__(self) -> str:
        """Return a table, one line for each point."""
        head = (
            ("validation rows seen", "training rows leaked")
            if self.measured
            else ("score mass left",)
        )
        lines = [("lever", "threshold", *head, "largest group", "training rows dropped")]
        for point in self.points:
            shares = (point.validation, point.train)
            leak = map(_text, shares) if self.measured else [percent(point.score_mass_left)]
            threshold = "" if point.threshold is None else f"{point.threshold:g}"
            price = percent(point.largest_group), percent(point.rows_dropped)
            lines.append((point.lever, threshold, *leak, *price))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def of(self, lever: str) -> tuple[LeakPoint, ...]:
        """Return the points of one lever: "none", "folds" or "purging"."""
        return tuple(point for point in self.points if point.lever == lever)


def leak_curve(
    i: Any,
    j: Any,
    p: Any,
    K: int,
    clusters: Any,
    thresholds: Iterable[float] = (0.5, 0.1, 0.05, 0.01),
    *,
    leak: Callable[[Any], LeakEstimate | Leak | None] | None = None,
    max_group: float = MAX_GROUP,
    seed: int = 0,
) -> LeakCurve:
    """Compare folds of larger groups, and purging, over thresholds.

    Parameters
    ----------
    i, j, p, K, clusters, max_group, seed
        As in `leak_safe_folds`.
    thresholds : iterable of float
    leak : function of folds, optional
        What leaks across given folds, for example
        `lambda folds: leak_from_resolved_rows(rows, mates, folds, clusters)` or
        `lambda folds: leak_truth(true, folds)`. It gets fold numbers or, for purged splits, pairs
        of training and validation rows. Without it no leak share is given: what scores say about
        folds made of the same scores is worthless.

    Notes
    -----
    Resolved rows must have been drawn without regard to the folds; they then serve every point, so
    that the intervals of the points are not independent of each other.
    """
    pairs = PairTable.of(i, j, p, len(as_codes("clusters", clusters)))
    levels = sorted({float(threshold) for threshold in thresholds}, reverse=True)
    if not levels:
        raise InputError("thresholds is empty; give at least one.")
    rows, others, chances = pairs.first, pairs.second, pairs.probability
    plain = leak_safe_folds([], [], [], 1.0, K, clusters, seed=seed)
    whole = _mass(pairs, plain.folds)
    points = [_point("none", None, plain, plain.folds, pairs, whole, leak)]
    for level in levels:
        safe = leak_safe_folds(
            rows, others, chances, level, K, clusters, max_group=max_group, seed=seed
        )
        points.append(_point("folds", level, safe, safe.folds, pairs, whole, leak))
    for level in levels:
        purged = purge(rows, others, chances, plain.folds, clusters, level)
        points.append(_point("purging", level, plain, purged, pairs, whole, leak))
    return LeakCurve(points=tuple(points), n_folds=int(K), measured=leak is not None)


def _point(
    lever: str,
    threshold: float | None,
    made: LeakSafeFolds,
    folds: Any,
    pairs: PairTable,
    whole: float,
    leak: Callable[[Any], LeakEstimate | Leak | None] | None,
) -> LeakPoint:
    measured = None if leak is None else leak(folds)
    splits = Splits.of(folds, pairs.n)
    given = splits.training.sum(axis=0) / (~splits.validation).sum(axis=0)
    return LeakPoint(
        lever=lever,
        threshold=threshold,
        train=_share(measured, "train"),
        validation=_share(measured, "validation"),
        score_mass_left=_mass(pairs, folds) / whole if whole > 0 else 0.0,
        largest_group=made.largest_group,
        n_groups=made.n_groups,
        imbalance=made.imbalance,
        rows_dropped=float(1 - given.mean()),
        raised_to=made.raised_to,
    )


def _text(share: LeakShare | None) -> str:
    return "unknown" if share is None else str(share)


def _share(measured: LeakEstimate | Leak | None, side: str) -> LeakShare | None:
    if isinstance(measured, Leak):
        share = measured.p0 if side == "train" else measured.p0_validation
        return LeakShare(point=share, low=share, high=share)
    return None if measured is None else measured.side(side)


def _mass(pairs: PairTable, folds: Any) -> float:
    """Return Σπ over pairs and splits that have one row in training and one in validation."""
    splits = Splits.of(folds, pairs.n)
    total = 0.0
    for training, validation in zip(splits.training.T, splits.validation.T, strict=True):
        straddle = training[pairs.first] & validation[pairs.second]
        straddle |= validation[pairs.first] & training[pairs.second]
        total += float(np.dot(pairs.probability, straddle))
    return total
