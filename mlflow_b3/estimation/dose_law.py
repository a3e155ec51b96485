"""The law of doses: how many of a scored row's true mates are in training, given noisy cluster ids.

Rows are put into folds by noisy ids. In a refit, m rows of every validation cluster are moved into
training on purpose (its injected dose), and as many training rows are held back. A scored row then
has d true mates in training. `DoseLaw` gives P(d) for validation rows and for held-back rows, from
the noisy sizes and a statement about the ids: how many rows are misplaced, how many are of split
clusters.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import gammaln

from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.effects import Effects
from mlflow_b3.measurement.refits import UNIFORM, FragmentSizes

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
#: Injected doses of a noisy cluster by its number of rows.
Doses = Callable[[int], Sequence[int]]
#: The name of a law, the rows of the noisy cluster, and the injected dose.
_Key = tuple[str, int, int]

TARGETS = ("rows", "clusters")
#: The last entry of a law is the probability of this dose or more.
LARGEST_DOSE = 128
#: Sizes are distinguished up to this number of rows. Beyond it, in steps of `STEP`.
EXACT_SIZE = 100
STEP = 1.03
#: What the coefficients of generating functions beyond those that are read off may add to them.
ALIASING = 1e-9
#: Posterior probabilities below this are dropped.
NEGLIGIBLE = 1e-6
#: Hypergeometric draws of more rows than this, or from larger clusters, are taken as binomial.
EXACT_DRAWS = 64
ITERATIONS = 400
#: They end early when a step moves no more than this share of all clusters, which is looked at only
#: every so many steps. In six audits that moved e_0 by less than 1e-8 of the width of its interval.
STILL, STEPS_BETWEEN = 1e-8, 10
#: What keeps sizes possible that do not occur: the stated rates hold whatever the noisy sizes are.
RARE, MISSED = 1e-9, 1e-3
LARGEST_TILT = 50.0
#: True sizes are spread over similar ones between which fewer clusters than this were observed.
ENOUGH, WIDEST = 8, 1.6
#: Beyond exp(-this), powers are taken as zero.
VANISHED = 30.0
#: In which steps the chance that a misplaced mate is trained on enters doses from other parts.
CHANCE_STEP = 0.02
#: In how many steps the share of mates among injected rows is given.
SHARES = 1000
#: By which steps the share of held-back rows follows the dose of a single cluster.
LEFT_STEP = 0.005
#: Logarithms of factorials are tabled in pieces of this length.
TABLED = 1024
#: Below this, NumPy takes powers of complex numbers by repeated squaring itself.
SMALL_POWER = 100


# --- What other statements about ids say in terms of the two rates


def split_of_seen_share(share: float, sizes: Any, training_share: float) -> tuple[float, float]:
    """Return the split rate at which a given share of validation rows has a true mate in training.

    The other fragment of a row of a noisy cluster with M of N rows is on the training side with
    probability t·N/(N - M), so that σ = s·Σ_c (M_c/N)·t·N/(N - M_c).

    Parameters
    ----------
    share : float
        σ, the share of validation rows with any true mate in training in unchanged folds, as linkage
        evidence gives it.
    sizes : sequence of int
        Numbers of rows of the noisy clusters.
    training_share : float
        t, the share of all rows that are on the training side.

    Returns
    -------
    split_rate : float
    spread : float
        1, or more where clusters must have fallen into several parts: more rows are seen than splits in
        two allow. All clusters are then split, and a mate is in training so many times more often.

    Notes
    -----
    With several parts, seen rows also have more mates in training than the law says, which takes the
    others of a cluster as one part.

    Examples
    --------
    >>> from mlflow_b3.estimation.dose_law import split_of_seen_share
    >>> [round(value, 3) for value in split_of_seen_share(0.16, [10] * 200, 0.8)]
    [0.199, 1.0]
    >>> [round(value, 3) for value in split_of_seen_share(0.9, [10] * 200, 0.8)]
    [1.0, 1.119]
    """
    rows = _sizes(sizes)
    apart = float(np.average(_training_chance(rows, int(rows.sum()), training_share), weights=rows))
    if not 0 <= share <= 1:
        raise InputError(f"share={share!r} must lie in [0, 1].")
    return min(share / apart, 1.0), max(share / apart, 1.0)


def cluster_error_of_shares(p0: float, p0_validation: float | None, training_share: float) -> float:
    """Return the cluster error q that leaks as many rows as the shares p_T and p_V say.

    With a common error, p_T = q·(1 - t) and p_V = q·t. Shares that do not agree with any common q
    are replaced by the q that leaks as many rows in all, q = (t·p_T + (1 - t)·p_V)/(2·t·(1 - t)).
    To first order that keeps the mean dose of validation rows in unchanged folds: pairs of true mates
    are on different sides because the one or because the other is misplaced, and which of them it is
    makes no difference to their number. The shape of the law then differs: rows that leak into
    training only give many rows few mates, rows that leak out of it give few rows many.

    Parameters
    ----------
    p0, p0_validation : float
        p_T and p_V. None for p_V means as many rows as leaked the other way.
    training_share : float
        t, the share of all rows that are on the training side.

    Examples
    --------
    >>> from mlflow_b3.estimation.dose_law import cluster_error_of_shares
    >>> round(cluster_error_of_shares(0.02, 0.08, 0.8), 3)
    0.1
    >>> round(cluster_error_of_shares(0.02, 0.0, 0.8), 3)
    0.05
    """
    t = training_share
    error = (
        p0 / (1 - t)
        if p0_validation is None
        else (t * p0 + (1 - t) * p0_validation) / (2 * t * (1 - t))
    )
    if not 0 <= error < 1:
        raise InputError(
            f"p0={p0!r} and p0_validation={p0_validation!r} mean that a share of {error:.3g} of all ids "
            f"is wrong where {t:.0%} of the rows are in training; that must lie in [0, 1)."
        )
    return error


# --- Sizes: exact where they are small, in steps where they are large


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Ranges low..high of sizes, each represented by one size, `atom`; single sizes if small."""

    low: NDArray[np.intp]
    high: NDArray[np.intp]

    @classmethod
    def up_to(cls, top: int) -> "_Sizes":
        low = [*range(1, min(top, EXACT_SIZE) + 1)]
        while low[-1] < top and low[-1] >= EXACT_SIZE:
            following = max(low[-1] + 1, int(low[-1] * STEP))
            if following > top:
                break
            low.append(following)
        starts = np.array(low, dtype=np.intp)
        return cls(low=starts, high=np.append(starts[1:] - 1, max(top, low[-1])))

    @cached_property
    def atom(self) -> Floats:
        return np.asarray(np.round((self.low + self.high) / 2), dtype=np.float64)

    def index(self, size: Any) -> NDArray[np.intp]:
        found = np.searchsorted(self.low, size, side="right") - 1
        return np.asarray(np.clip(found, 0, len(self.low) - 1), dtype=np.intp)

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True, eq=False)
class _Cuts:
    """The two parts of a split cluster, for every true size.

    Attributes
    ----------
    applies : array over true sizes
        Whether clusters of that size can be split.
    parts : array, true sizes by part sizes
        Expected number of parts, two in all.
    others : array, true sizes by part sizes
        Mean size of the other part.
    """

    applies: Floats
    parts: Floats
    others: Floats

    @classmethod
    def of(cls, fragments: FragmentSizes, sizes: _Sizes) -> "_Cuts":
        count = len(sizes)
        applies, parts, rest = np.zeros(count), np.zeros((count, count)), np.zeros((count, count))
        for i, size in enumerate(sizes.atom.astype(int).tolist()):
            if not fragments.applies(size):
                continue
            applies[i] = 1
            if fragments.law == "uniform":
                cut, chance = np.arange(1, size), np.full(size - 1, 1 / (size - 1))
            else:
                outcomes, chance = fragments.outcomes(size)
                cut = np.array(outcomes)
            both = np.concatenate([cut, size - cut])
            twice = np.concatenate([chance, chance])
            place = sizes.index(both)
            parts[i] = np.bincount(place, twice, count)
            rest[i] = np.bincount(place, twice * (size - both), count)
        return cls(
            applies=applies,
            parts=parts,
            others=np.divide(rest, parts, out=np.zeros_like(rest), where=parts > 0),
        )


@lru_cache(maxsize=4)
def _cuts(fragments: FragmentSizes, top: int) -> _Cuts:
    return _Cuts.of(fragments, _Sizes.up_to(top))


def _sizes(values: Any) -> NDArray[np.intp]:
    sizes = np.asarray(values)
    if sizes.ndim != 1 or not len(sizes) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise InputError(
            "sizes must hold the number of rows of each noisy cluster, whole numbers from 1."
        )
    return sizes.astype(np.intp)


def _training_chance(size: Any, rows: int, training_share: float) -> Any:
    """Return the chance that another cluster is in training if one of this size is in validation."""
    return np.minimum(1.0, training_share * rows / np.maximum(rows - size, 1))


def _log_binomial(k: Any, n: Any, p: Any) -> Any:
    """Return log P(k) of a binomial law for whole numbers k and n; -inf outside of 0..n."""
    rest = np.maximum(n - k, 0)
    with np.errstate(divide="ignore"):
        # finite, so that no row at all with no chance at all is 0
        yes, no = np.maximum(np.log(p), -1e200), np.maximum(np.log1p(-p), -1e200)
    value = _log_factorial(n) - _log_factorial(np.maximum(k, 0)) - _log_factorial(rest)
    return np.where((k >= 0) & (k <= n), value + k * yes + rest * no, -np.inf)


def _log_factorial(n: NDArray[np.intp]) -> Floats:
    """Look log n! up."""
    first, last = int(n.min()) // TABLED, int(n.max()) // TABLED + 1
    return _log_factorials(first, last)[n - first * TABLED]


@lru_cache(maxsize=64)
def _log_factorials(first: int, last: int) -> Floats:
    return np.asarray(gammaln(np.arange(first * TABLED, last * TABLED) + 1.0))


def _powers(base: Complexes, count: NDArray[np.intp]) -> Complexes:
    """Return the powers of each row of `base`, by repeated squaring."""
    small = count < SMALL_POWER
    if small.all():
        return np.asarray(base ** count[:, None])
    result = np.ones_like(base)
    result[small] = base[small] ** count[small, None]
    rows = np.flatnonzero(~small)
    left, square = count[rows], base[rows]
    while len(rows):
        odd = left % 2 == 1
        result[rows[odd]] *= square[odd]
        some = left > 1
        rows, left, square = rows[some], left[some] // 2, square[some]
        square = square * square
    return result


def _weighted(weights: Any, functions: Complexes) -> Complexes:
    """Return sums of generating functions with real weights, one row for each row of `weights`."""
    # half the work of a product of complex matrices
    flat = functions.reshape(len(functions), -1).view(np.float64)
    summed = np.ascontiguousarray(weights @ flat).view(np.complex128)
    return summed.reshape(-1, *functions.shape[1:])


# --- The law


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Generating functions of doses from mates who share a part, by the size of a part.

    Attributes
    ----------
    whole : array over sizes
        Probability that a part is a whole cluster.
    other : pair of arrays, sizes by points, or None
        Doses from the other part, times the probability that there is one, if that part is on the
        training side and if it is on the validation side. None if no cluster is split.
    own : pair of arrays, sizes by points, or None
        Doses from the other rows of the part. None if no row is misplaced.
    """

    whole: Floats
    other: tuple[Complexes, Complexes] | None
    own: tuple[Complexes, Complexes] | None

    def other_at(self, apart: float, places: Any) -> Complexes:
        """Return the doses from the other part; `apart` is the chance that it is in training."""
        assert self.other is not None
        training, validation = self.other
        both = apart * training[places] + (1 - apart) * validation[places]
        return np.asarray(self.whole[places, None] + both)

    def misplaced(self, weights: Floats, apart: Floats) -> Complexes:
        """Return the doses of misplaced rows, one row for each row of `weights` over sizes."""
        # a polynomial in the chance of the training side
        return np.asarray(
            sum(
                apart[:, None] ** power * _weighted(weights, terms)
                for power, terms in enumerate(self._terms)
            )
        )

    @cached_property
    def _terms(self) -> tuple[Complexes, ...]:
        assert self.own is not None
        own = self.own[1], self.own[0] - self.own[1]
        if self.other is None:
            return own
        other = self.whole[:, None] + self.other[1], self.other[0] - self.other[1]
        return own[0] * other[0], own[1] * other[0] + own[0] * other[1], own[1] * other[1]


@dataclass(frozen=True)
class _Scored:
    """Scored rows of a noisy cluster, and what is in training.

    Attributes
    ----------
    size : int
        Rows of the noisy cluster.
    apart : float
        The chance that another cluster is on the training side.
    left : float
        The share of the training rows that is held back.
    plain : bool
        Whether no row is injected.
    same : float
        The chance that another row of the same noisy cluster is trained on.
    moved : int
        How many rows of the noisy cluster are trained on.
    kept : float or None
        If not None, each row of the noisy cluster is trained on with this chance instead.
    """

    size: int
    apart: float
    left: float
    plain: bool
    same: float
    moved: int = 0
    kept: float | None = None


@dataclass(frozen=True, eq=False)
class _Alike:
    """Scored rows of noisy clusters of one size, for which other clusters are trained on alike."""

    apart: float
    left: float
    plain: bool
    places: NDArray[np.intp]
    rows: tuple[_Scored, ...]


class _Batch:
    """Scored rows whose laws are made together.

    Attributes
    ----------
    scored : sequence of _Scored
    by_size : dict
        The same, by the size of the noisy cluster and by what is trained on elsewhere.
    size, apart, left, plain, same : array
        The attributes of the scored rows.
    """

    def __init__(self, scored: Sequence[_Scored]) -> None:
        self.scored = scored
        places: dict[tuple[int, float, float, bool], list[int]] = {}
        for place, rows in enumerate(scored):
            places.setdefault((rows.size, rows.apart, rows.left, rows.plain), []).append(place)
        self.by_size: dict[int, list[_Alike]] = {}
        for (size, apart, left, plain), own in places.items():
            rows_alike = tuple(scored[place] for place in own)
            alike = _Alike(apart, left, plain, np.array(own), rows_alike)
            self.by_size.setdefault(size, []).append(alike)
        self.size = np.array([rows.size for rows in scored])
        self.apart = np.array([rows.apart for rows in scored])
        self.left = np.array([rows.left for rows in scored])
        self.plain = np.array([rows.plain for rows in scored], dtype=np.intp)
        self.same = np.array([rows.same for rows in scored])


class _Reader(Protocol):
    """What is read off generating functions: they are evaluated at the points `z`."""

    @property
    def z(self) -> Complexes:
        """The points, inside of the unit circle."""

    @property
    def radius(self) -> float:
        """The largest modulus of a point."""

    def read(self, generating: Complexes) -> Floats:
        """Return what is wanted, one row for each generating function."""


class _Probabilities:
    """Reads the probabilities of all doses up to the largest one off a circle."""

    def __init__(self, largest_dose: int) -> None:
        self._largest_dose = largest_dose
        self._points = 2 * (largest_dose + 1)
        self.radius = ALIASING ** (1 / self._points)
        angles = np.arange(self._points // 2 + 1) / self._points
        self.z = self.radius * np.exp(-2j * np.pi * angles)

    def read(self, generating: Complexes) -> Floats:
        """Return P(d), of which the last one is the probability of as many or more."""
        doses = np.arange(self._largest_dose)
        coefficients = np.fft.irfft(generating, self._points)[:, : self._largest_dose]
        law = np.maximum(coefficients * self.radius ** -doses.astype(np.float64), 0)
        total = law.sum(axis=1)
        law /= np.maximum(total, 1)[:, None]
        return np.column_stack([law, np.maximum(0, 1 - total)])


class _Design:
    """Noisy clusters and what refits do with them: what laws at all rates have in common.

    Parameters
    ----------
    sizes, doses, held_back, training_share
        As in `DoseLaw`.
    """

    def __init__(
        self, sizes: Any, doses: Doses, held_back: float | None, training_share: float
    ) -> None:
        self.sizes = _sizes(sizes)
        self.doses = lru_cache(maxsize=None)(lambda size: tuple(doses(size)))
        self.training_share = t = training_share
        self.n_rows = int(self.sizes.sum())
        self.observed, counts = np.unique(self.sizes, return_counts=True)
        self.counts = counts.astype(np.float64)
        self.largest_dose = min(LARGEST_DOSE, 2 * int(self.observed[-1]) + 2)
        lists = [self.doses(size) for size in self.observed.tolist()]
        mean = np.array([np.mean(doses) for doses in lists])
        variance = np.array([np.var(doses) for doses in lists])
        self.injected_share = mean / self.observed
        injected = (1 - t) * float(self.counts @ mean)
        entailed = injected / (t * self.n_rows)
        self.held_back_share = entailed if held_back is None else held_back
        # refits that hold more rows back have more held-back rows
        excess = (1 - t) * float(self.counts @ variance) / injected**2 if injected else 0.0
        self._left_of_held_back = min(self.held_back_share * (1 + excess), 1.0)
        self._batches: dict[tuple[float, str], tuple[list[_Key], _Batch]] = {}
        self._expecting: dict[Effects, _Design] = {}
        self._read_off(_Probabilities(self.largest_dose))

    def _read_off(self, reader: "_Reader") -> None:
        self.reader, self.z, self.radius = reader, reader.z, reader.radius
        self.z_powers = self.z ** np.arange(EXACT_DRAWS + 1)[:, None]
        self._tables: dict[float, Complexes] = {}

    def expecting(self, effects: Effects) -> "_Design":
        """Return the same design for laws that are read off as expectations of effects."""
        if effects not in self._expecting:
            other = copy.copy(self)
            other._read_off(effects)
            self._expecting[effects] = other
        return self._expecting[effects]

    def power(self, count: Any, chance: Any) -> Complexes:
        """Return the generating functions of binomial laws, one row for each count."""
        n = np.asarray(count).astype(np.intp)
        p = np.broadcast_to(np.asarray(chance, dtype=np.float64), n.shape)
        # far beyond the largest dose nothing is left on the circle
        kept = n * -np.log1p(-p * (1 - self.radius)) < VANISHED
        if kept.all():
            return _powers(1 + p[:, None] * (self.z - 1), n)
        result = np.zeros((len(n), len(self.z)), dtype=np.complex128)
        result[kept] = _powers(1 + p[kept, None] * (self.z - 1), n[kept])
        return result

    def small_powers(self, chance: float) -> Complexes:
        """Return the powers of small clusters, which share them."""
        if chance not in self._tables:
            self._tables[chance] = self.power(np.arange(EXACT_SIZE), chance)
        return self._tables[chance]

    def batch(self, spread: float, name: str = "") -> "tuple[list[_Key], _Batch]":
        """Return what is scored of all observed sizes: everything, or the rows of one kind."""
        if (spread, name) not in self._batches:
            every = [key for size in self.observed.tolist() for key in self._keys(size)]
            keys = [key for key in every if name in ("", key[0])]
            batch = _Batch([self.scored(*key, spread) for key in keys])
            self._batches[spread, name] = keys, batch
        return self._batches[spread, name]

    def _keys(self, size: int) -> "list[_Key]":
        others = [(name, size, 0) for name in ("plain", "held back", "row folds")]
        return [*others, *(("validation", size, dose) for dose in self.doses(size))]

    def scored(self, name: str, size: int, dose: int, spread: float) -> _Scored:
        """Return the scored rows of one kind, of clusters of one size."""
        t = self.training_share
        apart = min(1.0, spread * min(1.0, t * self.n_rows / max(self.n_rows - size, 1)))
        if name == "plain":
            return _Scored(size=size, apart=apart, left=0.0, plain=True, same=0.0)
        if name == "row folds":
            return _Scored(size=size, apart=1.0, left=1 - t, plain=True, same=t, kept=t)
        if name == "held back":
            trained, left = t * self.n_rows, self._left_of_held_back
            apart = spread * (trained - size) / max(self.n_rows - size, 1)
            return _Scored(
                size=size,
                apart=min(max(apart, 0.0), 1.0),
                left=left,
                plain=False,
                same=1 - left,
                kept=1 - left,
            )
        # rounded, so that the doses of one cluster share most of the work
        usual = sum(self.doses(size)) / len(self.doses(size))
        more = (dose - usual) / (t * self.n_rows)
        left = self.held_back_share + LEFT_STEP * round(more / LEFT_STEP)
        return _Scored(
            size=size,
            apart=apart,
            left=min(max(left, 0.0), 1.0),
            plain=False,
            same=dose / max(size - 1, 1),
            moved=dose,
        )


class DoseLaw:
    r"""P(d): how many of a scored row's true mates are in training.

    The ids are taken to have arisen like this. Of all rows, a share s belongs to true clusters that
    were split in two parts with ids of their own. Then each row's id is replaced with chance q by that
    of a random row (or of a random part); that can be its own. A noisy cluster has M rows: a natives
    of a part with F rows, whose true cluster has G rows elsewhere, and M - a rows of other clusters.

    With t_o = t·N/(N - M) the chance that another noisy cluster is on the training side, l the share of
    training rows that are held back, r the mean injected share of validation clusters, and
    e = t_o·(1 - l) + (1 - t_o)·r the chance that a given row elsewhere is trained on, a scored
    validation row has

    * if native, with chance a/M: Hypergeometric(M - 1, a - 1, m) + Binomial(F - a, e) + D(G);
    * if misplaced, its own part having F' rows, with chance proportional to F': D(F' - 1) + D(G'),

    where D(n), the dose from n mates who share a part, is Binomial(n, (1 - q)(1 - l) + q·e) if that
    part is on the training side (chance t_o). Otherwise it is Binomial(n, q·e), and the natives among
    the injected rows of that cluster, all its doses being equally likely. A held-back row has
    Binomial(a - 1, 1 - l) in place of the hypergeometric term, and t_o = (t·N - M)/(N - M).

    F, G and a are averaged over their distribution given M. For it the true sizes are estimated from
    the noisy ones by maximum likelihood (EM for the expected number of true clusters of each size,
    where clusters that lose all their rows vanish and split clusters count twice). Sizes that few
    clusters have are smoothed together, within the noise of misplaced rows or, with split clusters, up
    to 60% more or less, but not above the largest noisy size. Otherwise each fragment would be taken
    for a cluster of a rare size.

    The stated rates hold whatever the noisy sizes are: over the rows of all noisy clusters, the
    distribution of F, G and a is tilted exponentially so that a share s of them is of split clusters
    and a share q has got a random id. Where the model is right the tilt is about nil. Where sizes
    contradict it, as clusters of ten rows each do that are said to be split at random, it is the
    distribution nearest to the model that has the stated rates. The other part of a split cluster is
    then sought among the noisy sizes that occur.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of rows of the noisy clusters.
    doses : callable
        The doses that a noisy cluster of a given size goes through: `doses(size)`.
    cluster_error : float
        q, in [0, 1).
    split_rate : float
        s, the share of all rows whose true cluster was split, in [0, 1]. Where fewer rows belong to
        clusters that can be split, all of these are.
    fragments : FragmentSizes
        How many rows break off a split cluster.
    held_back : float or None
        l. None for the share that the doses entail, so that the training size stays the same.
    training_share : float
        t, the share of all rows that are on the training side.
    spread : float
        How many times more often than a single cluster the rest of a split cluster is on the training
        side, because it has several parts: t_o is multiplied by it, up to 1.
    targets : {"rows", "clusters"}
        Whether a wrong id is that of a random row, so that large clusters receive more of them, or
        of a random cluster.

    Notes
    -----
    Approximations: other clusters lie on the training side independently, with the same chance
    whatever their size; the rows held back of one cluster, and the natives injected from another
    cluster, are binomial, as are those injected from clusters of more than 64 rows; sizes above 100
    rows are distinguished in steps of 3%. Laws end at 128 mates, where the last entry is the
    probability of as many or more.

    Counted on simulated ids, the probabilities of validation rows, averaged over all sizes, are within
    0.01 beside the error of counting. Laws of single sizes, and of held-back rows above all, are as
    uncertain as the true sizes, which are estimated from as many clusters as there are. With 120
    clusters of about 100 rows, the steps of 3% changed laws of validation rows by 0.02 to 0.08 in total
    variation on average, and by 0.24 at most, with split clusters; mean doses changed by 0.1%.

    Laws are coefficients of generating functions: sums of doses are products, evaluated on a circle
    and inverted by one Fourier transform.

    Examples
    --------
    >>> from mlflow_b3.estimation.dose_law import DoseLaw
    >>> law = DoseLaw([10] * 200, lambda size: (0, 1, 3), cluster_error=0.1)
    >>> law.plain(10)[:3].round(2).tolist()
    [0.38, 0.42, 0.11]
    >>> law.validation(10, 3)[2:5].round(2).tolist()
    [0.04, 0.49, 0.32]
    >>> exact = DoseLaw([10] * 200, lambda size: (0, 1, 3))
    >>> exact.validation(10, 3)[:5].round(2).tolist()
    [0.0, 0.0, 0.0, 1.0, 0.0]
    """

    def __init__(
        self,
        sizes: Any,
        doses: Doses,
        *,
        cluster_error: float = 0.0,
        split_rate: float = 0.0,
        fragments: FragmentSizes = UNIFORM,
        held_back: float | None = None,
        training_share: float = 0.8,
        spread: float = 1.0,
        targets: str = "rows",
    ) -> None:
        if not 0 <= (held_back or 0.0) <= 1 - 1e-12:
            raise InputError(f"held_back={held_back!r} must lie in [0, 1).")
        if not 0 < training_share < 1:
            raise InputError(f"training_share={training_share!r} must lie in (0, 1).")
        self.fragments = fragments
        self.by_rows = choose("targets", targets, TARGETS) == "rows"
        self._design = _Design(sizes, doses, held_back, training_share)
        self._set_rates(cluster_error, split_rate, spread)

    def at(
        self, *, cluster_error: float = 0.0, split_rate: float = 0.0, spread: float = 1.0
    ) -> "DoseLaw":
        """Return the law for the same clusters and doses at other rates.

        It shares with this one what does not depend on the rates.

        Parameters
        ----------
        cluster_error, split_rate, spread
            As for the class.
        """
        law = object.__new__(type(self))
        law.fragments, law.by_rows, law._design = self.fragments, self.by_rows, self._design
        law._set_rates(cluster_error, split_rate, spread)
        return law

    def expecting(self, effects: Effects) -> "DoseLaw":
        """Return the same law, whose methods give expectations in place of probabilities.

        Parameters
        ----------
        effects : Effects
            The functions of the dose whose expectations are wanted; what is returned for a row is
            `effects.read` of its generating function. Without a limit on doses, this takes fewer
            points than the probabilities of all doses do.
        """
        if effects not in self._expecting:
            law = copy.copy(self)
            law._design = self._design.expecting(effects)
            law._z, law._made = law._design.z, {}
            # what was found while the rates were set, which is not about generating functions
            law._cache = dict(self._cache)
            self._cache.clear()
            law._make(*law._design.batch(self.spread))
            self._expecting[effects] = law
        return self._expecting[effects]

    def _set_rates(self, cluster_error: float, split_rate: float, spread: float) -> None:
        for name, value, high in (
            ("cluster_error", cluster_error, 1 - 1e-12),
            ("split_rate", split_rate, 1.0),
        ):
            if not 0 <= value <= high:
                bracket = "]" if high == 1 else ")"
                raise InputError(f"{name}={value!r} must lie in [0, 1{bracket}.")
        if not spread >= 1:
            raise InputError(f"spread={spread!r} must be at least 1.")
        self.cluster_error, self.split_rate, self.spread = cluster_error, split_rate, spread
        design = self._design
        self.n_rows = design.n_rows
        self._observed, self._counts, self._z = design.observed, design.counts, design.z
        largest = int(self._observed[-1])
        noise = 3 * np.sqrt(2 * cluster_error * largest) + 2 if cluster_error else 0
        top = max(2 * largest if split_rate else 0, int(largest + noise))
        self._grid = _Sizes.up_to(min(top, self.n_rows))
        self._cache: dict[Any, Any] = {}
        self._made: dict[_Key, Floats] = {}
        self._expecting: dict[Effects, DoseLaw] = {}
        self._find_parts()

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Numbers of rows of the noisy clusters."""
        return self._design.sizes

    @property
    def held_back_share(self) -> float:
        """The share of the training rows that is held back."""
        return self._design.held_back_share

    @property
    def largest_dose(self) -> int:
        """The largest dose of a law; its probability includes all larger ones."""
        return self._design.largest_dose

    # --- parts and true sizes behind the noisy sizes

    def _leaving(self, size: Any) -> Any:
        """Return the chance that a row of a part of this size gets the id of another."""
        own = size / self.n_rows if self.by_rows else 1 / self._n_parts + 0 * size
        return self.cluster_error * (1 - np.minimum(own, 1))

    def _arriving(self, size: Any) -> Any:
        """Return the chance that a row of another part gets the id of one of this size."""
        share = size / self.n_rows if self.by_rows else 1 / self._n_parts + 0 * size
        return self.cluster_error * np.minimum(share, 1)

    def _find_parts(self) -> None:
        grid = self._grid
        self._n_parts = n_clusters = float(len(self.sizes))
        place = grid.index(self._observed)
        observed = np.bincount(place, self._counts, len(grid)).astype(np.float64)
        cuts = _cuts(self.fragments, int(grid.high[-1])) if self.split_rate else None
        true = np.asarray(observed + 0.05 * n_clusters / len(grid), dtype=np.float64)
        for _ in range(2 if self.cluster_error and not self.by_rows else 1):
            self._noisy = self._noisy_sizes()
            true, chance = self._fit(true, observed, cuts)
            self._parts = true * (1 - chance)
            if cuts is not None:
                self._parts = self._parts + (true * chance) @ cuts.parts
            self._n_parts = max(float(self._parts.sum()), 1.0)
        self._unsplit = np.ones(len(grid))
        self._others = np.zeros((len(grid), len(grid)))
        if cuts is not None:
            self._pair(true, chance, observed, cuts)
        self._tilt = self._calibrate() if self.cluster_error else 0.0

    def _pair(self, true: Floats, chance: Floats, observed: Floats, cuts: _Cuts) -> None:
        """Find the probability that a part is a whole cluster, and the size of the other if not."""
        atoms, count = self._grid.atom, len(self._grid)
        expected = self._parts @ self._noisy
        ratio = np.divide(observed, expected, out=np.zeros_like(observed), where=expected > 0)
        # how often parts of a size were met: the other part of a cluster is among the noisy ones too
        met = self._noisy @ ratio
        source, part = np.nonzero(cuts.parts > 0)
        size = cuts.others[source, part]
        left = np.clip(np.searchsorted(atoms, size, side="right") - 1, 0, count - 1)
        right = np.minimum(left + 1, count - 1)
        upper = np.clip((size - atoms[left]) / np.maximum(atoms[right] - atoms[left], 1), 0, 1)
        least = RARE * float(true.sum()) / count
        split = (np.maximum(true, least) * chance)[source] * cuts.parts[source, part]
        split *= met[left] * (1 - upper) + met[right] * upper + MISSED
        broken = np.bincount(part, split, count)
        whole = np.maximum(true * (1 - chance), RARE * RARE)
        # of the rows of all noisy clusters, the stated share is of split ones
        rows = self._parts * met * atoms
        odds = np.divide(broken, whole, out=np.zeros(count), where=whole > 0)
        factor = _solve(
            lambda log: float(rows @ (1 - 1 / (1 + np.exp(log) * odds))) / float(rows.sum()),
            self.split_rate,
        )
        self._unsplit = 1 / (1 + np.exp(factor) * odds)
        weight = split * ((1 - self._unsplit) / np.maximum(broken, 1e-300))[part]
        ends = np.concatenate([part * count + left, part * count + right])
        shares = np.concatenate([weight * (1 - upper), weight * upper])
        self._others = np.bincount(ends, shares, count * count).astype(float).reshape(count, -1)

    def _calibrate(self) -> float:
        """Return the tilt at which the stated share of the rows of all noisy clusters is misplaced."""
        strangers, chances, first = [], [], [0]
        for size in self._observed.tolist():
            _, _, natives, joint = self._untilted(size)
            strangers.append(size - natives)
            chances.append(joint.sum(axis=0))
            first.append(first[-1] + len(natives))
        number, starts = np.concatenate(strangers), first[:-1]
        logarithm = np.log(np.maximum(np.concatenate(chances), 1e-300))
        atoms = self._grid.atom
        stated = float(np.average(self._leaving(atoms), weights=self._parts * atoms))

        def misplaced(tilt: float) -> float:
            log = logarithm + tilt * number
            tilted = np.exp(log - np.repeat(np.maximum.reduceat(log, starts), np.diff(first)))
            mean = np.add.reduceat(tilted * number, starts) / np.add.reduceat(tilted, starts)
            return float(self._counts @ mean) / self.n_rows

        return _solve(misplaced, stated)

    def _fit(self, true: Floats, observed: Floats, cuts: _Cuts | None) -> tuple[Floats, Floats]:
        """Return the expected number of true clusters of each size, and the chance of being split."""
        atoms = self._grid.atom
        if cuts is None and not self.cluster_error:
            return observed, np.zeros_like(observed)
        # where clusters are split or not, fragments and clusters of similar sizes must be told apart
        noise = atoms + 2 * np.sqrt(2 * self.cluster_error * atoms) + 1
        most = noise if cuts is None else np.minimum(WIDEST * atoms, self._observed[-1])
        smooth = _smoothing(self._grid, observed, most)
        visible, kept = self._noisy.sum(axis=1), np.flatnonzero(observed)
        counts, sizes = observed[kept], self._noisy[:, kept]
        if cuts is None:
            back = sizes / np.maximum(visible, 1e-300)[:, None]

            def assign(true: Floats) -> tuple[Floats, float]:
                ratio = counts / np.maximum(true.dot(sizes), 1e-300)
                return smooth.dot(true * back.dot(ratio)), 0.0

            return _iterate(assign, true)[0], np.zeros(len(atoms))
        # clusters that cannot be split, and those that can, whole and in parts
        applies, left = cuts.applies, 1 - cuts.applies
        in_parts = applies[:, None] * (cuts.parts @ sizes)
        table = np.hstack([left[:, None] * sizes, applies[:, None] * sizes, in_parts])
        made = np.stack([left * visible, applies * visible, applies * (cuts.parts @ visible)])
        rows = np.stack([atoms * applies, atoms])

        def assign_parts(true: Floats) -> tuple[Floats, float]:
            breakable, total = rows.dot(true).tolist()
            rate = min(1.0, self.split_rate * total / max(breakable, 1e-300))
            share = np.array([1.0, 1 - rate, rate])
            expected = share.dot(true.dot(table).reshape(3, -1))
            ratio = counts / np.maximum(expected, 1e-300)
            seen = table.dot((share[:, None] * ratio).ravel())
            return smooth.dot(true * seen / np.maximum(share.dot(made), 1e-300)), rate

        true, rate = _iterate(assign_parts, true)
        return true, rate * applies

    def _noisy_sizes(self) -> Floats:
        """Return P(noisy size | part), parts by sizes; what is missing from 1 is empty or too large."""
        grid = self._grid
        count = len(grid)
        if not self.cluster_error:
            return np.eye(count)
        atoms = grid.atom.astype(np.intp)
        first, natives = _windows(atoms, 1 - self._leaving(atoms))
        second, others = _windows(np.maximum(self.n_rows - atoms, 0), self._arriving(atoms))
        if others.shape[1] > natives.shape[1]:
            natives, others = others, natives
        noisy = np.zeros((count, natives.shape[1] + others.shape[1] - 1))
        for shift, chance in enumerate(others.T):
            noisy[:, shift : shift + natives.shape[1]] += chance[:, None] * natives
        values = (first + second)[:, None] + np.arange(noisy.shape[1])
        inside = (values >= 1) & (values <= grid.high[-1])
        part = np.broadcast_to(np.arange(count)[:, None], values.shape)[inside]
        place = part * count + grid.index(values[inside])
        return np.asarray(np.bincount(place, noisy[inside], count * count).reshape(count, count))

    def _natives(self, size: int) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
        """Return parts (grid numbers, sizes), numbers of natives, and their joint probabilities."""
        key = ("natives", size)
        if key not in self._cache:
            places, parts, natives, joint = self._untilted(size)
            log = np.log(np.maximum(joint, 1e-300)) + self._tilt * (size - natives)
            tilted = np.where(joint > 0, np.exp(log - log.max()), 0)
            self._cache[key] = places, parts, natives, tilted / tilted.sum()
        found: tuple[NDArray[np.intp], Floats, Floats, Floats] = self._cache[key]
        return found

    def _untilted(self, size: int) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
        """Return the same by the model, whatever the stated rate."""
        key = ("untilted", size)
        if key not in self._cache:
            self._cache[key] = self._count_natives(size)
        found: tuple[NDArray[np.intp], Floats, Floats, Floats] = self._cache[key]
        return found

    def _count_natives(self, size: int) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
        if not self.cluster_error:
            one, own = np.ones((1, 1)), np.array([float(size)])
            return self._grid.index([size]), own, own, one
        places, parts, prior = self._candidates(size)
        if size <= EXACT_DRAWS:
            natives = np.arange(size + 1)
            stayed, arrived = self._log_chances
            log = stayed[places, : size + 1] + arrived[places, size::-1]
        else:
            stay, arrive = 1 - self._leaving(parts), self._arriving(parts)
            elsewhere = np.maximum(self.n_rows - parts, 0)
            within, outside = parts * stay * (1 - stay), elsewhere * arrive * (1 - arrive)
            share = within / np.maximum(within + outside, 1e-300)
            middle = parts * stay + (size - parts * stay - elsewhere * arrive) * share
            spread = np.sqrt(within * (1 - share))
            low = min(max(0, int(np.floor((middle - 5 * spread).min())) - 2), size)
            high = max(min(size, int(np.ceil((middle + 5 * spread).max())) + 2), low)
            natives = np.arange(low, high + 1, max(1, int(spread.min())))
            whole = parts.astype(np.intp)[:, None]
            log = _log_binomial(natives, whole, stay[:, None]) + _log_binomial(
                size - natives, np.maximum(self.n_rows - whole, 0), arrive[:, None]
            )
        log += np.log(prior)[:, None]
        joint = np.exp(log - log.max())
        return places, parts, natives.astype(np.float64), joint / joint.sum()

    @cached_property
    def _log_chances(self) -> tuple[Floats, Floats]:
        """Logarithms of P(so many rows stay) and P(so many others arrive), parts by numbers."""
        atoms = self._grid.atom
        whole = atoms.astype(np.intp)[:, None]
        number = np.arange(EXACT_DRAWS + 1)
        return (
            _log_binomial(number, whole, (1 - self._leaving(atoms))[:, None]),
            _log_binomial(
                number, np.maximum(self.n_rows - whole, 0), self._arriving(atoms)[:, None]
            ),
        )

    def _candidates(self, size: int) -> tuple[NDArray[np.intp], Floats, Floats]:
        """Return parts that can have become a noisy cluster of this size, and how many there are."""
        grid = self._grid
        if size <= EXACT_SIZE:
            likely = self._noisy[:, min(size, len(grid)) - 1]
            weight = self._parts * likely
            if weight.sum() <= 0:  # no such cluster was observed
                return np.arange(len(grid)), grid.atom, np.ones(len(grid))
            places = np.flatnonzero(weight > 10 * NEGLIGIBLE * weight.sum())
            return places, grid.atom[places], self._parts[places]
        # steps are wider than the noise of sizes may be, so that their clusters are spread evenly
        leaving = float(self._leaving(size))
        arrivals = self.n_rows * float(self._arriving(size))
        middle = (size - arrivals) / max(1 - leaving, 1e-9) if not self.by_rows else float(size)
        spread = np.sqrt(max(middle, 1.0) * leaving + arrivals) / max(1 - leaving, 1e-9)
        stride = max(1, int(spread / 2))
        reach = stride * int(np.ceil((5 * spread + 2) / stride))
        parts = round(middle) + np.arange(-reach, reach + 1, stride, dtype=np.float64)
        parts = parts[(parts >= 1) & (parts <= min(grid.high[-1], self.n_rows))]
        if not len(parts):
            parts = np.array([float(min(size, grid.high[-1]))])
        places = grid.index(parts)
        density = self._parts[places] / (grid.high - grid.low + 1)[places]
        return places, parts, np.maximum(density, RARE * max(float(density.max()), RARE))

    # --- generating functions

    def _injected(self, own: bool) -> Complexes:
        """Return doses from the injected rows of the scored row's own part, or of another part."""
        key = ("injected", own)
        if key not in self._cache:
            # all rows of another part are mates
            self._cache[key] = self._make_injected(self._grid.atom - own)
        found: Complexes = self._cache[key]
        return found

    def _make_injected(self, count: Floats) -> Complexes:
        """Return the generating functions of natives injected from a validation cluster.

        `count` is how many mates of the scored row there are in each part of the grid.
        """
        part, total, chance, own = self._sources
        asked = count[part] >= 1
        part, total, chance, own = part[asked], total[asked], chance[asked], own[asked]
        own = np.maximum(own * count[part] / self._grid.atom[part], 0)
        share = np.rint(SHARES * np.minimum(own / total, 1)).astype(np.intp)
        # from each cluster all of its doses are equally likely
        doses, number = self._dose_table
        of, level = np.nonzero(np.arange(doses.shape[1]) < number[total][:, None])
        dose = doses[total[of], level]
        kind = dose * (SHARES + 1) + np.where(dose > 0, share[of], 0)
        # most terms occur many times, so that each of them is computed once
        occurs = np.zeros(int(kind.max(initial=0)) + 1, dtype=bool)
        occurs[kind] = True
        dose, share = np.divmod(np.flatnonzero(occurs), SHARES + 1)
        # parts ascend, so that their entries follow each other
        first = np.append(0, np.cumsum(np.bincount(part[of], minlength=len(count))))
        entries: Any = (chance / number[total])[of], (np.cumsum(occurs) - 1)[kind], first
        weight: Any = csr_array(entries, shape=(len(count), len(dose)))
        result = _weighted(weight, self._design.power(dose, share / SHARES))
        result[count < 1] = 1
        return result

    @cached_property
    def _sources(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats, Floats]:
        """Parts, sizes of the noisy clusters that they become, their chances, and natives of the part."""
        atoms = self._grid.atom
        least = np.where(atoms <= EXACT_DRAWS, 1e-3, 0.1) * self._noisy.max(axis=1)
        noisy = np.where(self._noisy > least[:, None], self._noisy, 0)
        vanishing = np.flatnonzero(~noisy.any(axis=1))
        noisy[vanishing, vanishing] = 1
        part, place = np.nonzero(noisy)
        size, total = atoms[part], atoms[place]
        expected = size * (1 - self._leaving(size))
        own = expected + (total - expected) * self._native_slope(size)
        chance = noisy[part, place] / noisy.sum(axis=1)[part]
        return part, total.astype(np.intp), chance, np.minimum(total, own)

    @cached_property
    def _dose_table(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Doses by size, and how many there are."""
        lists = {size: self._design.doses(size) for size in self._grid.atom.astype(int).tolist()}
        number = np.zeros(max(lists) + 1, dtype=np.intp)
        doses = np.zeros((len(number), max(map(len, lists.values()))), dtype=np.intp)
        for size, own in lists.items():
            number[size] = len(own)
            doses[size, : len(own)] = own
        return doses, number

    def _native_slope(self, size: Floats) -> Any:
        """Return by how much natives exceed their mean for each row that a cluster is too large."""
        if not self.cluster_error:
            return 1.0
        leave, arrive = self._leaving(size), self._arriving(size)
        within = size * leave * (1 - leave)
        outside = (self.n_rows - size) * arrive * (1 - arrive)
        return within / np.maximum(within + outside, 1e-300)

    def _blocks(self, chance: float, left: float, plain: bool) -> "_Blocks":
        """Return doses of a part's rows, by its size, on the training and on the validation side.

        `chance` is rounded.
        """
        key = ("blocks", chance, left, plain)
        if key not in self._cache:
            self._cache[key] = self._make_blocks(*key[1:])
        found: _Blocks = self._cache[key]
        return found

    def _rounded(self, chance: Any) -> Any:
        # without misplaced rows, the chance that one is trained on does not matter
        return CHANCE_STEP * np.rint(chance / CHANCE_STEP) if self.cluster_error else 0.0 * chance

    def _make_blocks(self, chance: float, left: float, plain: bool) -> "_Blocks":
        atoms = self._grid.atom
        leave = self._leaving(atoms)
        elsewhere, kept = leave * chance, (1 - leave) * (1 - left) + leave * chance
        training = self._design.power(atoms - 1, kept)
        validation = self._of_misplaced(chance, elsewhere)
        other = own = None
        if self.split_rate:
            of_training = training * (1 + kept[:, None] * (self._z - 1))
            of_validation = validation * (1 + elsewhere[:, None] * (self._z - 1))
            if not plain:
                of_validation *= self._injected(own=False)
            other = _weighted(self._others, of_training), _weighted(self._others, of_validation)
        if self.cluster_error:
            own = training, validation if plain else validation * self._injected(own=True)
        return _Blocks(whole=self._unsplit, other=other, own=own)

    def _of_misplaced(self, chance: float, elsewhere: Floats) -> Complexes:
        """Return doses from the misplaced ones of the other rows of a part, by its size."""
        key = ("misplaced", chance)
        if key not in self._cache:
            self._cache[key] = self._design.power(self._grid.atom - 1, elsewhere)
        found: Complexes = self._cache[key]
        return found

    def _elsewhere(self, rows: _Alike | _Batch) -> Any:
        """Return the chance that a misplaced mate is trained on."""
        injected = (1 - rows.apart) * self._injected_elsewhere
        return rows.apart * (1 - rows.left) + injected * (1 - rows.plain)

    @cached_property
    def _injected_elsewhere(self) -> float:
        """Mean injected share of the clusters that misplaced rows are in."""
        weight = self._counts * self._observed
        if self.cluster_error and not self.by_rows:
            strangers = np.array([self._misplaced_share(size) for size in self._observed.tolist()])
            weight = weight * np.maximum(strangers, 1e-12)
        return float(np.average(self._design.injected_share, weights=weight))

    def _misplaced_share(self, size: int) -> float:
        """Return the share of misplaced rows in noisy clusters of this size."""
        _, _, natives, joint = self._natives(size)
        return 1 - float((joint @ natives).sum()) / size

    def _laws(self, batch: _Batch) -> Floats:
        """Return the laws of scored rows, one row for each."""
        generating = np.empty((len(batch.scored), len(self._z)), dtype=np.complex128)
        shares = {}
        for size, rows in batch.by_size.items():
            natives, elsewhere, shares[size] = self._elsewhere_of_natives(size, rows)
            for number, alike in enumerate(rows):
                doses = self._with_own(elsewhere[:, number], size, natives, alike.rows)
                generating[alike.places] = doses
        strangers = np.array([shares[size] for size in batch.size.tolist()])
        here = batch.size / self.n_rows if self.by_rows else 1 / self._n_parts
        chance = self._rounded(here * batch.same + (1 - here) * self._elsewhere(batch))
        blocks: dict[tuple[float, float, bool], list[int]] = {}
        plain = (batch.plain > 0).tolist()
        keys = zip(chance.tolist(), batch.left.tolist(), plain, strict=True)
        for place, key in enumerate(keys):
            if strangers[place] > NEGLIGIBLE:
                blocks.setdefault(key, []).append(place)
        for key, places in blocks.items():
            weights = np.array([self._other_parts(size) for size in batch.size[places].tolist()])
            laws = self._blocks(*key).misplaced(weights, batch.apart[places])
            generating[places] += strangers[places, None] * laws
        return self._design.reader.read(generating)

    def _elsewhere_of_natives(
        self, size: int, rows: Sequence[_Alike]
    ) -> tuple[NDArray[np.intp], Complexes, float]:
        """Return numbers of natives, their doses from other clusters, and the misplaced share."""
        places, parts, natives, joint = self._natives(size)
        joint = joint * natives / size
        strangers = max(0.0, 1 - float(joint.sum()))
        column, row = np.nonzero(joint.T > NEGLIGIBLE)
        chance = joint[row, column]
        lost = np.maximum(parts[row] - natives[column], 0).astype(np.intp)
        new = np.append(True, column[1:] > column[:-1])
        starts = np.flatnonzero(new)
        first = int(lost.min())
        count = int(lost.max()) - first + 1
        trained = np.array([self._elsewhere(alike) for alike in rows])
        scattered = self._scattered(trained, first, count)
        if self.split_rate:
            terms = scattered[lost - first]
            terms *= chance[:, None, None]
            for number, alike in enumerate(rows):
                blocks = self._blocks(self._rounded(trained[number]), alike.left, alike.plain)
                terms[:, number] *= blocks.other_at(alike.apart, places)[row]
            found = np.add.reduceat(terms, starts, axis=0)
        else:
            table = np.zeros((len(starts), count))
            table[np.cumsum(new) - 1, lost - first] = chance
            found = _weighted(table, scattered)
        return natives[column[starts]].astype(np.intp), found, strangers

    def _scattered(self, chance: Floats, low: int, count: int) -> Complexes:
        """Return (1 - e + e·z)^n for n = low, low + 1, ..., for each chance e."""
        table = np.empty((count, len(chance), len(self._z)), dtype=np.complex128)
        table[:] = 1 + chance[:, None] * (self._z - 1)
        table[0] **= low
        return np.asarray(np.multiply.accumulate(table))

    def _with_own(
        self,
        elsewhere: Complexes,
        size: int,
        natives: NDArray[np.intp],
        rows: Sequence[_Scored],
    ) -> Complexes:
        """Return all doses of natives, with those from rows of their own noisy cluster."""
        if size <= EXACT_DRAWS and all(own.kept is None for own in rows):
            drawn, number, first = _hypergeometric(size, tuple(own.moved for own in rows))
            terms = _weighted(drawn[:, natives], elsewhere) * self._design.z_powers[number]
            return np.asarray(np.add.reduceat(terms, first))
        mates = np.maximum(natives - 1, 0)
        return np.array([(elsewhere * self._own(size, mates, own)).sum(axis=0) for own in rows])

    def _own(self, size: int, mates: NDArray[np.intp], rows: _Scored) -> Complexes:
        """Return the doses from `mates` rows of the same noisy cluster."""
        if rows.kept is None:
            return self._design.power(np.full(len(mates), rows.moved), mates / max(size - 1, 1))
        if size <= EXACT_SIZE:
            return self._design.small_powers(rows.kept)[mates]
        return self._design.power(mates, rows.kept)

    def _other_parts(self, size: int) -> Floats:
        """Return the weights of parts that rows misplaced into a cluster of this size can be of."""
        # they are of another part than the natives of the cluster
        key = ("other parts", size)
        if key not in self._cache:
            places, _, _, joint = self._natives(size)
            rows = self._parts * self._grid.atom
            here = np.minimum(joint.sum(axis=1), self._parts[places]) * self._grid.atom[places]
            left = rows - np.bincount(places, here, len(rows))
            total = float(rows.sum() - here.sum())
            enough = total > NEGLIGIBLE * float(rows.sum())
            self._cache[key] = left / total if enough else rows / rows.sum()
        found: Floats = self._cache[key]
        return found

    # --- public laws

    def validation(self, size: int, dose: int) -> Floats:
        """Return P(d) of a scored validation row.

        Parameters
        ----------
        size : int
            M, the number of rows of its noisy cluster.
        dose : int
            m, how many of them were moved into training.

        Returns
        -------
        numpy.ndarray
            d = 0, 1, …, `largest_dose`; the last entry is the probability of as many or more.
        """
        if not 0 <= dose < size:
            raise InputError(
                f"dose={dose!r} must lie in [0, {size - 1}] for a cluster of {size} rows."
            )
        return self._found("validation", size, dose)

    def plain(self, size: int) -> Floats:
        """Return P(d) of a validation row in an unchanged fold: nothing injected or held back.

        Parameters
        ----------
        size : int
            M, the number of rows of its noisy cluster.
        """
        return self._found("plain", size)

    def held_back(self, size: int) -> Floats:
        """Return P(d) of a held-back training row.

        Parameters
        ----------
        size : int
            M, the number of rows of its noisy cluster.
        """
        return self._found("held back", size)

    def row_folds(self, size: int) -> Floats:
        """Return P(d) of a row in folds of single rows: every mate is trained on with probability t.

        Parameters
        ----------
        size : int
            M, the number of rows of its noisy cluster.
        """
        return self._found("row folds", size)

    def _found(self, name: str, size: int, dose: int = 0) -> Floats:
        """Return a copy of a law. Those of rows of one kind are made together, at the first one."""
        key = name, size, dose
        keys, batch = self._design.batch(self.spread, name)
        if keys[0] not in self._made:
            self._make(keys, batch)
        if key not in self._made:
            self._make([key], _Batch([self._design.scored(*key, self.spread)]))
        return self._made[key].copy()

    def _make(self, keys: Sequence[_Key], batch: _Batch) -> None:
        self._made |= dict(zip(keys, self._laws(batch), strict=True))
        self._cache.clear()  # many laws are kept at a time, and these are a hundred times as large


@lru_cache(maxsize=512)
def _hypergeometric(
    size: int, doses: tuple[int, ...]
) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return how many of a native's mates are among the rows drawn, by the number of natives.

    Returns
    -------
    chances : array
        One row for each dose and number of mates, one column for each number of natives.
    mates : array of int
        The number of mates of each row.
    first : array of int
        The first row of each dose.
    """
    lengths = np.array(doses) + 1
    first = np.cumsum(lengths) - lengths
    dose = np.repeat(doses, lengths)[:, None]
    drawn = np.arange(len(dose))[:, None] - np.repeat(first, lengths)[:, None]
    mates = np.maximum(np.arange(size + 1, dtype=np.float64) - 1, 0)
    log = (
        _log_choose(mates, drawn)
        + _log_choose(size - 1 - mates, dose - drawn)
        - _log_choose(np.array(size - 1.0), dose)
    )
    return np.exp(log), drawn[:, 0], first


def _log_choose(n: Any, k: Any) -> Any:
    inside = (k >= 0) & (k <= n)
    j = np.where(inside, k, 0)
    return np.where(inside, gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1), -np.inf)


def _windows(n: NDArray[np.intp], p: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the first values and the probabilities of binomial laws, without their far tails."""
    middle, spread = n * p, np.sqrt(n * p * (1 - p))
    low = np.maximum(0, np.floor(middle - 6 * spread - 3)).astype(np.intp)
    high = np.minimum(n, np.ceil(middle + 6 * spread + 10)).astype(np.intp)
    value = low[:, None] + np.arange(int((high - low).max()) + 1)
    law = np.exp(_log_binomial(value, n[:, None], p[:, None]))
    return low, np.where(value <= high[:, None], law, 0)


def _solve(share: Callable[[float], float], stated: float) -> float:
    """Return where an increasing function takes a value, or comes closest to it."""
    low, high = -LARGEST_TILT, LARGEST_TILT
    if share(low) >= stated:
        return low
    if share(high) <= stated:
        return high
    return float(brentq(lambda tilt: share(tilt) - stated, low, high, xtol=1e-6))


def _iterate(
    step: Callable[[Floats], tuple[Floats, float]], values: Floats
) -> tuple[Floats, float]:
    """Repeat a step until it changes nothing, `ITERATIONS` times at most."""
    for number in range(1, ITERATIONS + 1):
        before = values
        values, rate = step(values)
        if number % STEPS_BETWEEN == 0 and np.abs(values - before).max() <= STILL * values.sum():
            break
    return values, rate


def _smoothing(grid: _Sizes, observed: Floats, most: Floats) -> Floats:
    """Return the matrix that spreads numbers of clusters over similar sizes where few were observed.

    Sizes that many clusters have stay as they are. Others are spread over the sizes around them, up to
    those between which there are enough clusters, or to `most` and as far below.
    """
    count = len(grid)
    table = np.eye(count)
    sparse = np.flatnonzero(observed < ENOUGH)
    width = (grid.high - grid.low + 1).astype(np.float64)
    total = np.append(0, np.cumsum(np.where(observed < ENOUGH, observed, 0)))
    for place in sparse.tolist():
        low = high = place
        size = grid.atom[place]
        while total[high + 1] - total[low] < ENOUGH:
            # as far down as up, which keeps the mean size
            down = low > 0 and grid.atom[low - 1] >= 2 * size - most[place]
            up = high < count - 1 and grid.atom[high + 1] <= most[place]
            if not (down and up):
                break
            low, high = low - 1, high + 1
        window = sparse[(sparse >= low) & (sparse <= high)]
        table[:, place] = 0
        table[window, place] = width[window] / width[window].sum()
    return table
