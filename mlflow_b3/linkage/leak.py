"""Leak shares of folds: counted if the true entities are known, and estimates with priors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from mlflow_b3.errors import InputError, choose
from mlflow_b3.results import Result, percent

# --- The rows on each side of every split

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """The training and validation rows of every split.

    Attributes
    ----------
    training, validation : array of bool, rows by splits
    weights : array of float
        Weight of each split; they sum to 1.
    """

    training: Mask
    validation: Mask
    weights: Floats

    @classmethod
    def of(cls, folds: Any, n: int | None = None, *, by_rows: bool = False) -> Self:
        """Read folds: one fold number for each row, or pairs of training and validation rows.

        Parameters
        ----------
        folds : Splits, array of int, or sequence of (training rows, validation rows) or `Fold`
        n : int, optional
            Number of rows; required for pairs.
        by_rows : bool
            Weight splits by their number of validation rows, as a score over all validation rows
            does. By default splits have equal weights, as in the definition of p0.
        """
        if isinstance(folds, cls):
            return folds
        numbers = _fold_numbers(folds)
        if numbers is not None:
            if n is not None and len(numbers) != n:
                raise InputError(f"folds has {len(numbers)} rows; there are {n}.")
            labels, numbers = np.unique(numbers, return_inverse=True)
            if len(labels) < 2:
                raise InputError("folds has only one fold; at least two are needed.")
            validation = numbers[:, None] == np.arange(len(labels))
            training = ~validation
        else:
            training, validation = _from_pairs(folds, n)
        weights = validation.sum(axis=0) if by_rows else np.ones(validation.shape[1])
        return cls(training=training, validation=validation, weights=weights / weights.sum())

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.training)

    @property
    def n_folds(self) -> float:
        """K: the inverse of the mean share of rows in validation."""
        sizes = self.validation.sum(axis=0)
        shares = sizes / (sizes + self.training.sum(axis=0))
        return float(1 / np.dot(self.weights, shares))

    @property
    def training_weight(self) -> Floats:
        """Contribution of a leaked training row to p0, times the number of rows: n·w_k/|T_k|."""
        return np.asarray(self.n_rows * self.weights / self.training.sum(axis=0))

    @property
    def validation_weight(self) -> Floats:
        """Contribution of a seen validation row to p0_validation, times n: n·w_k/|V_k|."""
        return np.asarray(self.n_rows * self.weights / self.validation.sum(axis=0))

    def require_whole(self, clusters: Rows, *, allow_split: bool = False) -> None:
        """Raise an error if a split has rows of one predicted cluster on both sides."""
        if allow_split:
            return
        count = int(clusters.max()) + 1
        for split, (training, validation) in enumerate(
            zip(self.training.T, self.validation.T, strict=True)
        ):
            both = np.bincount(clusters[training], minlength=count) > 0
            both &= np.bincount(clusters[validation], minlength=count) > 0
            if both.any():
                raise InputError(
                    f"folds: {int(both.sum())} predicted clusters have rows on both sides of split "
                    f"{split}. Split by cluster, or set allow_split=True if this is intended."
                )


def as_codes(name: str, labels: Any, n: int | None = None) -> Rows:
    """Encode labels of rows as whole numbers from 0, in order of first appearance."""
    import pandas as pd

    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name} must have one label for each row.")
    if n is not None and len(values) != n:
        raise InputError(f"{name} has {len(values)} labels; there are {n} rows.")
    codes, _ = pd.factorize(values, sort=False)
    if (codes < 0).any():
        raise InputError(f"{name} is missing in {int((codes < 0).sum())} rows; give each a label.")
    return np.asarray(codes, dtype=np.intp)


def _fold_numbers(folds: Any) -> NDArray[Any] | None:
    if isinstance(folds, (str, bytes)) or not isinstance(folds, Iterable):
        raise InputError(
            f"folds={folds!r} is not valid. Give a fold number for each row, or pairs of training "
            "rows and validation rows."
        )
    if isinstance(folds, (list, tuple)) and len(folds) and not np.isscalar(folds[0]):
        return None
    numbers = np.asarray(folds)
    return numbers if numbers.ndim == 1 else None


def _row_numbers(rows: Any, n: int, split: int) -> Rows:
    """Return the rows of one side, given as row numbers or as a mask."""
    numbers = np.asarray(rows)
    if numbers.dtype == bool and numbers.shape == (n,):
        numbers = np.flatnonzero(numbers)
    if not numbers.size:
        return np.zeros(0, dtype=np.intp)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"folds: split {split} must be row numbers, or a mask of all rows.")
    if numbers.min() < 0 or numbers.max() >= n:
        raise InputError(f"folds: split {split}: row numbers must lie in 0 … {n - 1}.")
    return numbers.astype(np.intp)


def _from_pairs(folds: Any, n: int | None) -> tuple[Mask, Mask]:
    pairs = [
        (fold.training, fold.validation) if hasattr(fold, "training") else tuple(fold)
        for fold in folds
    ]
    if n is None:
        raise InputError(
            "n, the number of rows, is required with pairs of training and validation rows."
        )
    sides = np.zeros((2, n, len(pairs)), dtype=bool)
    for split, pair in enumerate(pairs):
        if len(pair) != 2:
            raise InputError(f"folds: split {split} must be (training rows, validation rows).")
        for side, rows in enumerate(pair):
            sides[side, _row_numbers(rows, n, split), split] = True
    for side, name in enumerate(("training", "validation")):
        empty = np.flatnonzero(~sides[side].any(axis=0))
        if len(empty):
            raise InputError(f"folds: split {int(empty[0])} has no {name} rows.")
    if (sides[0] & sides[1]).any():
        raise InputError("folds: a row is on both sides of a split.")
    return sides[0], sides[1]


# --- Estimates of leak shares, and the priors that audits derive from them

KINDS = ("estimate", "upper", "lower", "uncalibrated")
SIDES = ("train", "validation")
#: The largest share that an audit considers.
LARGEST = 0.95
#: Error of unchecked scores: one standard deviation of the logarithm.
UNCHECKED_FACTOR = 3.0
WIDE_FACTOR = 2.0
MOST_FRAGMENTS = 19


@dataclass(frozen=True, kw_only=True)
class LeakShare(Result):
    """The share of rows on one side of the folds that leak.

    Attributes
    ----------
    point : float or None
        None if only a bound is known.
    low, high : float
        The ends of the interval.
    """

    point: float | None
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check that the shares are in order and in [0, 1]."""
        middle = self.low if self.point is None else self.point
        if not 0 <= self.low <= middle <= self.high <= 1:  # NaN fails too
            raise InputError(
                f"low={self.low!r}, point={self.point!r}, high={self.high!r} must lie in [0, 1], in "
                "this order."
            )

    def __str__(self) -> str:
        """Return the share with its interval."""
        if self.low == self.high:
            return percent(self.high)
        ends = f"{percent(self.low)} to {percent(self.high)}"
        return ends if self.point is None else f"{percent(self.point)} ({ends})"


@dataclass(frozen=True, kw_only=True)
class LeakPrior(Result):
    """A prior distribution of the leak share, used to weight a sensitivity curve.

    Attributes
    ----------
    law : {"beta", "log-normal", "range"}
        `range` makes no statement about which shares in the range are likely.
    low, high : float
        The 2.5% and 97.5% quantiles, or the ends of the range.
    first, second : float
        Parameters of the distribution: a and b of the beta distribution; the median and the
        standard deviation of the logarithm; or the ends of the range.
    """

    law: str
    low: float
    high: float
    first: float
    second: float

    def quantiles(self, chances: Any) -> Floats:
        """Return the quantiles of the share at the given probabilities, at most 95%."""
        u = np.asarray(chances, dtype=float)
        if self.law == "beta":
            shares = stats.beta.ppf(u, self.first, self.second)
        elif self.law == "log-normal":
            shares = self.first * np.exp(self.second * stats.norm.ppf(u))
        else:
            shares = self.first + u * (self.second - self.first)
        return np.asarray(np.minimum(shares, LARGEST), dtype=float)


@dataclass(frozen=True, kw_only=True)
class LeakEstimate(Result):
    """An estimate of, or a bound on, the leak shares of folds (pattern `fragments`).

    Attributes
    ----------
    train : LeakShare
        p0: share of the training rows that have a true mate in validation.
    validation : LeakShare
        p0_validation: share of the validation rows that have a true mate in training. This is s,
        the seen share of `estimate_fragments`. Do not use either share in the formulas for
        misplaced rows.
    kind : {"estimate", "upper", "lower", "uncalibrated"}
        An estimate with its confidence interval; an upper limit, without a point; a lower limit; or
        an order of magnitude from unchecked scores.
    method : str
        The source of the estimate.
    level : float
        Confidence of the interval or limit.
    n_folds : float
        K.
    n_labels : int or None
        Number of rows or pairs that were checked by hand.
    fragments : tuple of float or None
        How entities are split: for typical split rows, the share of the entity's rows that are in
        the row's own cluster; None if unknown. It is the `fragments` of an audit.
    row_probability : tuple of float or None
        r_j: for each row, the probability that it has a true mate in training when it is validated.
    notes : tuple of str
        Caveats, in short sentences.
    wide : bool
        For unchecked scores: whether all plausible pairs were scored, not only those of a few
        blocks.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> leak = linkage.leak_from_split_rate((0.08, 0.12), K=5)
    >>> round(leak.validation.low, 3), round(leak.validation.high, 3)
    (0.064, 0.096)
    >>> prior = leak.to_prior()
    >>> prior.law, round(prior.low, 3), round(prior.high, 3)
    ('range', 0.064, 0.096)
    """

    train: LeakShare
    validation: LeakShare
    kind: str
    method: str
    level: float
    n_folds: float
    n_labels: int | None = None
    fragments: tuple[float, ...] | None = None
    row_probability: tuple[float, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    wide: bool = False

    def __post_init__(self) -> None:
        """Check the kind."""
        choose("kind", self.kind, KINDS)

    def __str__(self) -> str:
        """Return a summary in one or two sentences."""
        seen, leaked = (
            {
                "upper": f"at most {percent(share.high)}",
                "lower": f"at least {percent(share.low)}",
            }.get(self.kind, str(share))
            for share in (self.validation, self.train)
        )
        checked = "" if self.n_labels is None else f", {self.n_labels} checked by hand"
        doubt = ""
        if self.kind == "uncalibrated":
            doubt = " The scores were not checked: this is an order of magnitude."
        return (
            f"{seen[0].upper()}{seen[1:]} of the validation rows have a true mate in training, and "
            f"{leaked} of the training rows have one in validation (by {self.method}{checked}; "
            f"{self.n_folds:g} folds, confidence {percent(self.level)}).{doubt}"
        )

    def side(self, name: str = "validation") -> LeakShare:
        """Return the share of one side: "train" or "validation"."""
        return self.train if choose("side", name, SIDES) == "train" else self.validation

    def to_prior(self, side: str = "validation") -> LeakPrior:
        """Return a prior distribution of the share of one side.

        An estimate becomes a beta distribution with the same mean and interval width. Unchecked
        scores become a log-normal distribution with a standard deviation of log 3, or log 2 if all
        plausible pairs were scored (`wide`), which reflects their errors in simulations. A limit
        becomes a range.
        """
        share = self.side(side)
        if self.kind == "uncalibrated" and share.point:
            return uncalibrated_prior(share.point, wide=self.wide)
        if self.kind == "estimate" and share.point is not None and share.high > 0:
            return _beta(share.point, share, self.level)
        return LeakPrior(
            law="range", low=share.low, high=share.high, first=share.low, second=share.high
        )


def uncalibrated_prior(point: float, *, wide: bool = False) -> LeakPrior:
    """Return the prior distribution of the share if unchecked scores give `point`."""
    return _with_ends("log-normal", point, math.log(WIDE_FACTOR if wide else UNCHECKED_FACTOR))


def typical_fragments(shares: Any, weights: Any = None) -> tuple[float, ...] | None:
    """Summarise many shares by a few equally likely quantiles.

    Shares of 0 or 1 are not splits and do not count. Returns None if no shares are left.
    """
    values = np.asarray(shares, dtype=float)
    mass = np.ones_like(values) if weights is None else np.asarray(weights, dtype=float)
    keep = (values > 0) & (values < 1) & (mass > 0)
    if not keep.any():
        return None
    order = np.argsort(values[keep])
    values, mass = values[keep][order], mass[keep][order]
    if len(values) <= MOST_FRAGMENTS and weights is None:
        return tuple(values.tolist())
    reached = np.cumsum(mass) / mass.sum()
    chances = (np.arange(MOST_FRAGMENTS) + 0.5) / MOST_FRAGMENTS
    picked = np.minimum(np.searchsorted(reached, chances), len(values) - 1)
    return tuple(values[picked].tolist())


def _with_ends(law: str, first: float, second: float) -> LeakPrior:
    open_ended = LeakPrior(law=law, low=0.0, high=1.0, first=first, second=second)
    low, high = open_ended.quantiles([0.025, 0.975]).tolist()
    return LeakPrior(law=law, low=low, high=high, first=first, second=second)


def _beta(point: float, share: LeakShare, level: float) -> LeakPrior:
    """Return the beta distribution with a given mean and interval width.

    If no leak was observed, the mean cannot be kept. The distribution then decreases from 0 on
    (a = 1/2), and its quantile at the given confidence is the upper limit.
    """
    tails = (1 - level) / 2
    if point <= 0:
        b = optimize.brentq(lambda b: stats.beta.ppf(level, 0.5, b) - share.high, 1e-6, 1e9)
        return _with_ends("beta", 0.5, float(b))
    mean, width = min(point, 1 - 1e-9), share.high - share.low

    def widths(size: Any) -> Floats:
        ends = [stats.beta.ppf(tail, mean * size, (1 - mean) * size) for tail in (tails, 1 - tails)]
        return np.asarray(ends[1] - ends[0])

    # for small sizes the mass gathers at 0 and 1, and the interval narrows again: start from above
    sizes = np.geomspace(1e9, 0.5, 200)
    wide = widths(sizes)
    reached = np.flatnonzero(wide >= width)
    if not len(reached):
        size = float(sizes[wide.argmax()])
    elif reached[0] == 0:
        size = float(sizes[0])
    else:
        bracket = sizes[reached[0]], sizes[reached[0] - 1]
        size = float(optimize.brentq(lambda size: float(widths(size)) - width, *bracket))
    return _with_ends("beta", mean * size, (1 - mean) * size)


# --- Leak shares of folds if the true entities are known


@dataclass(frozen=True, kw_only=True)
class Leak(Result):
    """The leak shares of folds, counted from the true entities.

    Attributes
    ----------
    p0 : float
        Share of the training rows whose true entity also has validation rows, mean over folds.
    p0_validation : float
        Share of the validation rows whose true entity also has training rows, mean over folds. It
        determines the bias of the score. With K folds it is up to K - 1 times p0.
    training_values, validation_values : tuple of float
        v_i: the contribution of row i to either share. p0 and p0_validation are their means over
        all rows, and can be estimated from a sample of rows.
    split_counts : tuple of int
        m_i: number of other predicted clusters with rows of the row's true entity. It does not
        depend on the folds.
    """

    p0: float
    p0_validation: float
    training_values: tuple[float, ...]
    validation_values: tuple[float, ...]
    split_counts: tuple[int, ...]

    @property
    def split_rate(self) -> float:
        """σ: share of the rows whose true entity has more than one predicted cluster."""
        return float(np.mean(np.array(self.split_counts) > 0))


def leak_truth(true: Any, folds: Any, clusters: Any = None) -> Leak:
    """Count what leaks across folds, given the true entity of every row.

    Parameters
    ----------
    true : sequence
        c(i): the true entity of each row.
    folds : array of int, or sequence of (training rows, validation rows)
        F(i): the fold of each row, or splits.
    clusters : sequence, optional
        ĉ(i): the predicted cluster of each row, for the split counts. By default each fold counts
        as one cluster.

    Returns
    -------
    Leak

    Notes
    -----
    Let Z_ik = 1 if row i is in training in split k and its entity has rows in V_k. Then
    p0 = mean_k Σ_i Z_ik/|T_k| = mean_i v_i, with v_i = n·Σ_k Z_ik/(K·|T_k|). The definition of
    p0_validation is analogous.

    Examples
    --------
    Ann has two cluster ids, 0 and 1, which fell into different folds.

    >>> from mlflow_b3 import linkage
    >>> true = ["ann", "ann", "ann", "bob", "bob", "cyd"]
    >>> leak = linkage.leak_truth(true, folds=[0, 0, 1, 1, 1, 0], clusters=[0, 0, 1, 2, 2, 3])
    >>> round(leak.p0_validation, 2)
    0.5
    >>> leak.split_counts
    (1, 1, 1, 0, 0, 0)
    """
    entities = as_codes("true", true)
    splits = Splits.of(folds, len(entities))
    training, validation = leaked_values(entities, splits)
    owners = _own_folds(splits) if clusters is None else as_codes("clusters", clusters, len(true))
    return Leak(
        p0=float(training.mean()),
        p0_validation=float(validation.mean()),
        training_values=tuple(training.tolist()),
        validation_values=tuple(validation.tolist()),
        split_counts=tuple(split_counts(entities, owners).tolist()),
    )


def leaked_values(entities: Rows, splits: Splits) -> tuple[Floats, Floats]:
    """Return the contribution of each row to p0 and to p0_validation; see `Leak`."""
    count = int(entities.max()) + 1
    values = np.zeros((2, len(entities)))
    sides = (splits.training, splits.validation)
    weights = (splits.training_weight, splits.validation_weight)
    for side in (0, 1):
        for own, other, weight in zip(sides[side].T, sides[1 - side].T, weights[side], strict=True):
            present = np.bincount(entities[other], minlength=count) > 0
            values[side] += weight * (own & present[entities])
    return values[0], values[1]


def split_counts(entities: Rows, clusters: Rows) -> Rows:
    """Return m_i: the number of other predicted clusters with rows of the same true entity."""
    pairs = np.unique(np.column_stack([entities, clusters]), axis=0)
    return np.asarray(np.bincount(pairs[:, 0])[entities] - 1, dtype=np.intp)


def _own_folds(splits: Splits) -> Rows:
    return as_codes("folds", [row.tobytes() for row in splits.validation])
