"""Folds that keep probable mates together, and training sides without them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.folds import balanced_splits
from mlflow_b3.linkage.joined_clusters import joined_by, joined_up_to
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Mask, Rows, Splits, as_codes
from mlflow_b3.results import Result
from mlflow_b3.wording import not_percentage, percent

MAX_GROUP = 0.05


@dataclass(frozen=True, kw_only=True)
class SafeGroups(Result):
    """Groups of rows that stay together: predicted clusters, and their probable mates.

    Attributes
    ----------
    groups : tuple of int
        The group of each row.
    threshold : float
        Pairs from this probability on were to stay together.
    n_groups : int
    largest_group : float
        Share of all rows.
    cut_pairs : int
        Pairs from the threshold on that are apart after all, since groups would have grown too
        large.
    raised_to : float or None
        Every pair above this probability is together; None when all from the threshold on are.
    """

    groups: tuple[int, ...] = field(repr=False)
    threshold: float
    n_groups: int
    largest_group: float
    cut_pairs: int
    raised_to: float | None

    def __str__(self) -> str:
        """Return in a sentence what is kept together."""
        apart = f", but for {self.cut_pairs} of these" if self.cut_pairs else ""
        return (
            f"{len(self.groups)} rows in {self.n_groups} groups that keep pairs from probability "
            f"{self.threshold:g} on together{apart}; the largest has {percent(self.largest_group)} of "
            "the rows."
        )


@dataclass(frozen=True, kw_only=True)
class LeakSafeFolds(SafeGroups):
    """Folds of whole groups, balanced by rows; usable as the `folds` of an audit.

    Attributes
    ----------
    folds : tuple of int
        The fold of each row, from 0.
    imbalance : float
        Rows of the largest fold over those of the mean fold, less 1.
    """

    folds: tuple[int, ...] = field(repr=False)
    imbalance: float

    def __str__(self) -> str:
        """Return in a sentence what the folds keep together."""
        return (
            f"{self.get_n_splits()} folds, the largest {percent(self.imbalance)} above the mean, of "
            f"{super().__str__()}"
        )

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:  # noqa: ARG002 - scikit-learn's signature
        """Yield training and validation rows of every fold, as scikit-learn's splitters do."""
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        if rows != len(self.folds):
            raise InputError(f"X has {rows} rows; these folds were made for {len(self.folds)}.")
        numbers = np.array(self.folds)
        for fold in range(self.get_n_splits()):
            yield np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return K."""
        return max(self.folds) + 1


def leak_safe_folds(
    i: Any,
    j: Any,
    p: Any,
    threshold: float,
    K: int,
    clusters: Any,
    *,
    max_group: float = MAX_GROUP,
    seed: int = 0,
) -> LeakSafeFolds:
    """Make folds in which probable mates share a side.

    Parameters
    ----------
    i, j, p : arrays
        Rows and match probability of each pair; `PairTable` unpacks into them.
    threshold : float
        Pairs from this probability on stay together. It can be much lower than the one that the
        clusters were made with: joining two entities costs a little balance, tearing one apart
        leaks.
    K : int
        Number of folds.
    clusters : sequence
        The predicted cluster of each row; none is ever split.
    max_group : float
        No group grows beyond this share of the rows, or beyond the largest cluster.
    seed : int
        Decides which groups of equal size go together.

    Notes
    -----
    In simulations of person records (clusters at 0.9, five folds) a threshold of 0.1 left a quarter
    to a half of the leaked share p0, for nothing but groups of up to 1.5 % of the rows. What scores
    say about the leak of such folds (`leak_from_pairs`) is far too low: they were made to look so.
    """
    check_seed(seed)
    if isinstance(K, bool) or not isinstance(K, (int, np.integer)) or K < 2:
        raise InputError(f"K={K!r} must be a whole number from 2.")
    made = safe_groups(i, j, p, threshold, clusters, max_group)
    if made.n_groups < K:
        raise InputError(
            f"K={K} is more than the {made.n_groups} groups at threshold={threshold}; use fewer "
            "folds or a higher threshold."
        )
    folds = np.empty(len(made.groups), dtype=np.intp)
    for fold, (_, rows) in enumerate(balanced_splits(np.array(made.groups), int(K), seed)):
        folds[rows] = fold
    sizes = np.bincount(folds)
    return LeakSafeFolds(
        **vars(made),
        folds=tuple(folds.tolist()),
        imbalance=float(sizes.max() / sizes.mean() - 1),
    )


def safe_groups(
    i: Any, j: Any, p: Any, threshold: float, clusters: Any, max_group: float = MAX_GROUP
) -> SafeGroups:
    """Join predicted clusters with their probable mates.

    Parameters
    ----------
    i, j, p, threshold, clusters, max_group
        As in `leak_safe_folds`.

    Notes
    -----
    Groups are the connected components of clusters and pairs with π ≥ threshold. A low threshold
    snowballs: at 0.01 a fifth to a third of all rows hung together in simulations. Components that
    are too large are therefore joined anew, by falling probability, each link unless the joint
    group would be too large. That keeps every link that a higher threshold for the component would
    keep, and more.
    """
    _check_share("threshold", threshold)
    _check_share("max_group", max_group)
    codes = as_codes("clusters", clusters)
    first, second, probability = PairTable.of(i, j, p, len(codes))
    strong = (probability >= threshold) & (codes[first] != codes[second])
    one, two, weight = codes[first[strong]], codes[second[strong]], probability[strong]
    sizes = np.bincount(codes)
    limit = max(max_group * len(codes), sizes.max())
    parts = joined_by(one, two, len(sizes))
    heavy = np.bincount(parts, weights=sizes) > limit
    if heavy.any():
        inside = heavy[parts[one]]
        rest = joined_by(one[~inside], two[~inside], len(sizes))
        order = np.argsort(-weight[inside], kind="stable")
        joined = joined_up_to(limit, sizes, one[inside][order], two[inside][order])
        parts = as_codes("groups", np.where(heavy[parts], joined, len(sizes) + rest))
    apart = parts[one] != parts[two]
    groups = parts[codes]
    return SafeGroups(
        groups=tuple(groups.tolist()),
        threshold=float(threshold),
        n_groups=int(parts.max()) + 1,
        largest_group=float(np.bincount(groups).max() / len(groups)),
        cut_pairs=int(apart.sum()),
        raised_to=float(weight[apart].max()) if apart.any() else None,
    )


def purge_mask(
    i: Any,
    j: Any,
    p: Any,
    folds: Any,
    clusters: Any,
    threshold: float,
    *,
    allow_split: bool = False,
) -> Mask:
    """Return which training rows to drop from each split.

    A training row is dropped when a pair with π ≥ threshold leads from its predicted cluster into
    the validation rows.

    Parameters
    ----------
    i, j, p, clusters, threshold
        As in `leak_safe_folds`.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    allow_split : bool
        Accept folds that have rows of one predicted cluster on both sides.

    Returns
    -------
    array of bool, rows by splits
    """
    _check_share("threshold", threshold)
    codes = as_codes("clusters", clusters)
    splits = Splits.of(folds, len(codes))
    splits.require_whole(codes, allow_split=allow_split)
    first, second, probability = PairTable.of(i, j, p, len(codes))
    strong = probability >= threshold
    row, mate = first[strong], second[strong]
    drop = np.zeros_like(splits.training)
    for split, (training, validation) in enumerate(
        zip(splits.training.T, splits.validation.T, strict=True)
    ):
        linked = np.zeros(int(codes.max()) + 1, dtype=bool)
        linked[codes[row[training[row] & validation[mate]]]] = True
        linked[codes[mate[training[mate] & validation[row]]]] = True
        drop[:, split] = training & linked[codes]
    return drop


def purge(
    i: Any,
    j: Any,
    p: Any,
    folds: Any,
    clusters: Any,
    threshold: float,
    *,
    allow_split: bool = False,
) -> tuple[tuple[Rows, Rows], ...]:
    """Return splits without the training rows of `purge_mask`, usable as the `folds` of an audit.

    Every row is still validated; the price is paid in training rows.
    """
    splits = Splits.of(folds, len(as_codes("clusters", clusters)))
    drop = purge_mask(i, j, p, splits, clusters, threshold, allow_split=allow_split)
    kept = splits.training & ~drop
    empty = np.flatnonzero(~kept.any(axis=0))
    if len(empty):
        raise InputError(
            f"threshold={threshold}: no training rows are left in split {int(empty[0])}; raise it."
        )
    return tuple(
        (np.flatnonzero(training), np.flatnonzero(validation))
        for training, validation in zip(kept.T, splits.validation.T, strict=True)
    )


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not 0 < value <= 1:  # NaN fails too
        raise InputError(f"{name}={value!r} must lie in (0, 1].{not_percentage(value)}")
