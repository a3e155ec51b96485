"""Folds that keep probable mates together, purged training rows, and the trade-offs of both."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from mlflow_b3.data.folds import balanced_splits
from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.leak import Leak, LeakEstimate, LeakShare, Mask, Rows, Splits, as_codes
from mlflow_b3.linkage.pairs import PairTable
from mlflow_b3.results import Result, not_percentage, percent

# --- Rows or clusters joined by links


def joined_by(one: Rows, two: Rows, count: int) -> Rows:
    """Return the connected component of each of `count` rows or clusters."""
    links = sparse.coo_array((np.ones(len(one), dtype=bool), (one, two)), shape=(count, count))
    _, labels = sparse.csgraph.connected_components(links, directed=False)
    return np.asarray(labels, dtype=np.intp)


def joined_up_to(limit: float, sizes: Rows, one: Rows, two: Rows) -> Rows:
    """Join clusters link by link, skipping links that would make a group of over `limit` rows."""
    parent, weight = list(range(len(sizes))), sizes.tolist()

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in zip(one.tolist(), two.tolist(), strict=True):
        a, b = root(a), root(b)
        if a != b and weight[a] + weight[b] <= limit:
            parent[b] = a
            weight[a] += weight[b]
    return np.array([root(node) for node in range(len(sizes))], dtype=np.intp)


# --- Folds that keep probable mates together, and training rows without them

MAX_GROUP = 0.05


@dataclass(frozen=True, kw_only=True)
class SafeGroups(Result):
    """Groups of rows to keep in one fold: predicted clusters joined with their probable mates.

    Attributes
    ----------
    groups : tuple of int
        The group of each row.
    threshold : float
        Pairs with at least this probability should stay together.
    n_groups : int
    largest_group : float
        Size of the largest group, as a share of all rows.
    cut_pairs : int
        Number of pairs at or above the threshold that are apart, because their group would have
        been too large.
    raised_to : float or None
        All pairs above this probability are together; None if all pairs at or above the threshold
        are.
    """

    groups: tuple[int, ...] = field(repr=False)
    threshold: float
    n_groups: int
    largest_group: float
    cut_pairs: int
    raised_to: float | None

    def __str__(self) -> str:
        """Return a summary of the groups in one sentence."""
        apart = f", except for {self.cut_pairs} of them" if self.cut_pairs else ""
        return (
            f"{len(self.groups)} rows in {self.n_groups} groups that keep pairs with a probability of "
            f"at least {self.threshold:g} together{apart}; the largest has "
            f"{percent(self.largest_group)} of the rows."
        )


@dataclass(frozen=True, kw_only=True)
class LeakSafeFolds(SafeGroups):
    """Folds of whole groups, balanced by rows. Pass them to an audit as `folds`.

    Attributes
    ----------
    folds : tuple of int
        The fold of each row, from 0.
    imbalance : float
        Size of the largest fold relative to the mean, minus 1.
    """

    folds: tuple[int, ...] = field(repr=False)
    imbalance: float

    def __str__(self) -> str:
        """Return a summary of the folds in one sentence."""
        return (
            f"{self.get_n_splits()} folds, the largest {percent(self.imbalance)} above the mean, of "
            f"{super().__str__()}"
        )

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:  # noqa: ARG002 - scikit-learn's signature
        """Yield training and validation rows of each fold, like scikit-learn's splitters."""
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        if rows != len(self.folds):
            raise InputError(f"X has {rows} rows; these folds were made for {len(self.folds)}.")
        numbers = np.array(self.folds)
        for fold in range(self.get_n_splits()):
            yield np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return the number of folds."""
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
    """Make folds that keep probable mates together.

    Parameters
    ----------
    i, j, p : arrays
        Rows and match probability of each pair; `PairTable` unpacks into them.
    threshold : float
        Pairs with at least this probability stay together. It can be much lower than the threshold
        of the clusters: joining two entities costs a little balance, but splitting one leaks.
    K : int
        Number of folds.
    clusters : sequence
        The predicted cluster of each row. Clusters are never split.
    max_group : float
        Largest size of a group as a share of the rows. Groups may always be as large as the largest
        cluster.
    seed : int
        Decides which groups of equal size share a fold.

    Returns
    -------
    LeakSafeFolds
        A splitter. Pass it to an audit as `folds`.

    Notes
    -----
    In simulations of person records (clusters at 0.9, five folds), a threshold of 0.1 reduced the
    leaked share p0 to between a quarter and a half, and groups had up to 1.5% of the rows. Do not
    use `leak_from_pairs` with the same scores on such folds: its result is far too low.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> pairs = linkage.PairTable.of([0, 1, 3], [1, 2, 4], [0.99, 0.6, 0.95], n=6)
    >>> clusters = [0, 0, 1, 2, 2, 3]
    >>> folds = linkage.leak_safe_folds(*pairs, threshold=0.1, K=2, clusters=clusters, max_group=0.5)
    >>> folds.folds[1] == folds.folds[2]  # a pair with probability 0.6
    True
    >>> [len(validation) for training, validation in folds.split(clusters)]
    [3, 3]
    """
    check_seed(seed)
    if isinstance(K, bool) or not isinstance(K, (int, np.integer)) or K < 2:
        raise InputError(f"K={K!r} must be a whole number, 2 or more.")
    made = safe_groups(i, j, p, threshold, clusters, max_group)
    if made.n_groups < K:
        raise InputError(
            f"K={K} is more than the {made.n_groups} groups at threshold={threshold}. Use fewer "
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
    Groups are the connected components of clusters and pairs with π ≥ threshold. With a low
    threshold they snowball: at 0.01, a fifth to a third of all rows were in one group in
    simulations. Components that are too large are therefore rebuilt: links are added by decreasing
    probability, unless the joint group would be too large. This keeps every link that a higher
    threshold for the component would keep, and more.
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

    A training row is dropped if a pair with π ≥ threshold links its predicted cluster to a
    validation row.

    Parameters
    ----------
    i, j, p, clusters, threshold
        As in `leak_safe_folds`.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    allow_split : bool
        Accept folds with rows of one predicted cluster on both sides.

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
    """Remove training rows that are linked to validation rows.

    A training row is removed if a pair with π ≥ threshold links its predicted cluster to a
    validation row. Every row is still validated, but training sets are smaller.

    Parameters
    ----------
    i, j, p, clusters, threshold
        As in `leak_safe_folds`.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    allow_split : bool
        Accept folds with rows of one predicted cluster on both sides.

    Returns
    -------
    tuple of (training rows, validation rows)
        Pass it to an audit as `folds`. `mlflow_b3.linkage.folds.purge_mask` returns a mask
        of the removed rows instead.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> pairs = linkage.PairTable.of([0, 1, 3], [1, 2, 4], [0.99, 0.6, 0.95], n=6)
    >>> folds, clusters = [0, 0, 1, 1, 1, 0], [0, 0, 1, 2, 2, 3]
    >>> splits = linkage.purge(*pairs, folds, clusters, threshold=0.1)
    >>> for training, validation in splits:
    ...     print(training, validation)
    [3 4] [0 1 5]
    [5] [2 3 4]
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


# --- The trade-offs of leak-safe folds and of purging


@dataclass(frozen=True, kw_only=True)
class LeakPoint(Result):
    """One way to make the folds: what leaks, and what it costs.

    Attributes
    ----------
    lever : {"none", "folds", "purging"}
        Folds of predicted clusters; folds of larger groups; or folds of predicted clusters without
        the training rows that are linked to validation rows.
    threshold : float or None
        Pairs with at least this probability are kept together, or cause purging.
    train, validation : LeakShare or None
        p0 and p0_validation, as measured; None without resolved rows or true labels.
    score_mass_left : float
        Σπ over pairs between training and validation, relative to folds without a lever. Use it to
        rank settings of one lever. It is *not* a leak share: it falls faster than the leak, because
        the same scores decided which pairs stay together.
    largest_group : float
        Size of the largest group, as a share of all rows.
    n_groups : int
    imbalance : float
        Size of the largest fold relative to the mean, minus 1.
    rows_dropped : float
        Share of the training rows that purging removes, mean over folds.
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
    """Leak and cost of folds of larger groups and of purging, over thresholds.

    Attributes
    ----------
    points : tuple of LeakPoint
        Folds without a lever first, then by lever and decreasing threshold.
    n_folds : int
        K.
    measured : bool
        Whether the leak shares were measured with resolved rows or true labels. Otherwise only
        `score_mass_left` is known.
    """

    points: tuple[LeakPoint, ...]
    n_folds: int
    measured: bool

    def __str__(self) -> str:
        """Return a table with a line for each point."""
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
    """Compare folds of larger groups and purging over thresholds.

    Parameters
    ----------
    i, j, p, K, clusters, max_group, seed
        As in `leak_safe_folds`.
    thresholds : iterable of float
    leak : function of folds, optional
        Returns what leaks across given folds, for example
        `lambda folds: leak_from_resolved_rows(rows, mates, folds, clusters)` or
        `lambda folds: leak_truth(true, folds)`. It is called with fold numbers or, for purged
        splits, with pairs of training and validation rows. Without it, no leak shares are reported:
        scores cannot measure the leak of folds that were made with them.

    Returns
    -------
    LeakCurve

    Notes
    -----
    Resolved rows must be drawn independently of the folds. The same rows are used at every point,
    and the intervals of the points are therefore not independent.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> i = list(range(0, 40, 2))
    >>> pairs = linkage.PairTable.of(i, [row + 1 for row in i], [0.05, 0.6] * 10, n=40)
    >>> curve = linkage.leak_curve(*pairs, 2, clusters=range(40), thresholds=[0.5, 0.01])
    >>> for point in curve.of("folds"):
    ...     print(point.threshold, point.n_groups)
    0.5 30
    0.01 20
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
    """Return Σπ over pairs and splits with one row in training and one in validation."""
    splits = Splits.of(folds, pairs.n)
    total = 0.0
    for training, validation in zip(splits.training.T, splits.validation.T, strict=True):
        across = training[pairs.first] & validation[pairs.second]
        across |= validation[pairs.first] & training[pairs.second]
        total += float(np.dot(pairs.probability, across))
    return total
