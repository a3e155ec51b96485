"""One refit: the rows that it trains on and scores, how it runs, and its outcome."""

import ctypes
import faulthandler
import math
import os
import signal
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.folds import Fold, RowNumbers
from mlflow_b3.data.losses import Loss
from mlflow_b3.data.pairs import PairLoss
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError, PredictionError, choose
from mlflow_b3.measurement.design import DOSES, TEST_PARTS, dose_levels
from mlflow_b3.refit.learner import ConstantPredictor, Learner, Rows
from mlflow_b3.results import Result

if TYPE_CHECKING:
    from mlflow_b3.measurement.collecting import FoldLosses

# --- Breaking clusters on purpose: how many rows break off, and which part is scored

NAMES = ("uniform", "halves", "singles")
#: Of seven broken clusters, four are broken as requested; the others show the effect of the dose.
MAIN_PART = 4


@dataclass(frozen=True, kw_only=True)
class FragmentSizes:
    """The number of rows that break off a cluster.

    Attributes
    ----------
    law : {"uniform", "halves", "singles", "sizes", "shares"}
        A cut drawn uniformly, half of the rows, a single row, or one of `values`.
    values : tuple of float
        Numbers of rows (`sizes`) or shares of the cluster's rows (`shares`), all equally likely. A
        size applies to clusters with more rows than that; clusters to which no size applies are
        left whole. A share is rounded at random, and leaves at least one row on either side.
    """

    law: str = "uniform"
    values: tuple[float, ...] = ()

    def draw(self, rows: int, rng: np.random.Generator) -> int:
        """Draw how many of a cluster's rows break off; 0 if it cannot be broken in this way."""
        if not self.applies(rows):
            return 0
        if self.law == "uniform":
            return int(rng.integers(1, rows))
        sizes, chances = self.outcomes(rows)
        return int(rng.choice(sizes, p=chances))

    def breaks_again(self, rows: int) -> float:
        """Return the share of a cluster's rows whose part can be broken a second time."""
        if not self.applies(rows):
            return 0.0
        sizes, chances = self.outcomes(rows)
        parts = ((size * self.applies(size), rows - size) for size in sizes)
        lasting = [part + rest * self.applies(rest) for part, rest in parts]
        return float(np.dot(lasting, chances)) / rows

    def outcomes(self, rows: int) -> tuple[list[int], NDArray[np.float64]]:
        """Return the numbers of rows that can break off a cluster, and their probabilities."""
        if self.law == "shares":
            shares = np.array(self.values) * rows
            below = np.floor(shares)
            ends = np.concatenate([below, below + 1])
            sizes = np.clip(ends, 1, rows - 1).astype(int).tolist()
            chances = np.concatenate([1 - (shares - below), shares - below])
        else:
            if self.law == "sizes":
                sizes = [int(size) for size in self.values if size < rows]
            else:
                sizes = {"halves": [rows // 2], "singles": [1]}.get(self.law, [*range(1, rows)])
            chances = np.ones(len(sizes))
        return sizes, chances / chances.sum()

    def applies(self, rows: int) -> bool:
        """Return whether a cluster of this many rows can be broken."""
        return rows > (min(self.values) if self.law == "sizes" else 1)

    def __str__(self) -> str:
        """Return the text that `parse_fragments` reads."""
        return ",".join(f"{value:g}" for value in self.values) if self.values else self.law


UNIFORM = FragmentSizes()


def parse_fragments(value: Any) -> FragmentSizes:
    """Parse the `fragments` argument: a name, or the sizes or shares of known fragments.

    Parameters
    ----------
    value : {"uniform", "halves", "singles"}, or sequence of numbers, or such numbers as text
        Whole numbers from 1 are numbers of rows. Numbers between 0 and 1 are shares of a cluster's
        rows.
    """
    if isinstance(value, str):
        parts = [part for part in value.split(",") if part.strip()]
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            return FragmentSizes(law=choose("fragments", value, NAMES))
    else:
        try:
            items = list(value) if isinstance(value, Iterable) else [value]
            numbers = [math.nan if isinstance(item, bool) else float(item) for item in items]
        except (TypeError, ValueError):
            numbers = []
    if numbers and all(0 < number < 1 for number in numbers):
        return FragmentSizes(law="shares", values=tuple(numbers))
    if numbers and all(number >= 1 and number.is_integer() for number in numbers):
        return FragmentSizes(law="sizes", values=tuple(numbers))
    raise InputError(
        f"fragments={value!r} is not usable; use one of {', '.join(map(repr, NAMES))}, or give the "
        "sizes of known fragments: whole numbers of rows from 1, or else shares of a cluster's rows "
        "between 0 and 1."
    )


def breakable(clusters: NDArray[np.intp], sizes: FragmentSizes = UNIFORM) -> NDArray[np.intp]:
    """Return the clusters that can be broken: those with two rows or, for known sizes, enough rows."""
    counts = np.bincount(clusters)
    applies = [sizes.applies(count) for count in range(int(counts.max()) + 1)]
    return np.flatnonzero(np.array(applies)[counts])


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of breaking clusters within a refit.

    Attributes
    ----------
    sizes : FragmentSizes
    again : bool
        Whether to break the scored part once more, as if a cluster of V̂ were already a fragment.
    """

    sizes: FragmentSizes
    again: bool = False

    def split(
        self,
        rows: RowNumbers,
        rng: np.random.Generator,
        second: np.random.Generator,
        *,
        swapped: bool,
    ) -> tuple[RowNumbers, RowNumbers]:
        """Break one cluster; return the rows for training and the rows to score.

        If a cluster is split into (a, m-a), a rows meet m-a mates in training and m-a rows meet a
        mates. Either part is therefore scored with the same probability. With `swapped` and `rng` in
        the same state, the other part is scored. Together the two calls score every row once, so
        doses are weighted as for the rows of truly split clusters.
        """
        training, scored = self._parts(rows, rng)
        if swapped:
            training, scored = scored, training
        if self.again:
            if self.sizes.applies(len(scored)):
                more, scored = self._parts(scored, second)
                training = np.concatenate([training, more])
            elif second.random() < 0.5:  # score these as rarely as rows that are broken again
                scored = scored[:0]
        return training, scored

    def _parts(self, rows: RowNumbers, rng: np.random.Generator) -> tuple[RowNumbers, RowNumbers]:
        order = rng.permutation(rows)
        size = self.sizes.draw(len(rows), rng)
        parts = order[:size], order[size:]
        return parts if rng.random() < 0.5 else parts[::-1]


def arms_of(sizes: FragmentSizes) -> tuple[Arm, ...]:
    """Return the ways of breaking: as requested, the same twice, and the smallest and largest dose.

    Of all splits in two, splitting off a single row leaves the rows of a cluster the fewest mates in
    training on average, 2(m-1)/m, and splitting into halves leaves the most, m/2.
    """
    others = [FragmentSizes(law=law) for law in ("singles", "halves") if law != sizes.law]
    return (Arm(sizes=sizes), Arm(sizes=sizes, again=True), *(Arm(sizes=s) for s in others))


def arm_number(breaking: int, arms: int) -> int:
    """Return the arm of the n-th broken cluster of a fold; the first few are broken as requested."""
    place = breaking % (MAIN_PART + arms - 1)
    return max(0, place - MAIN_PART + 1)


# --- Drawing the rows of refits

#: With fewer validated clusters than this, single rows replace clusters as units.
FEW_CLUSTERS = 10
#: Minimum and maximum number of disjoint folds of each kind in the published test.
FEWEST_DISJOINT, MOST_DISJOINT = 3, 10
#: V̂ is cut into blocks, one for each disjoint fold. Half of a block is for training, a quarter is
#: scored by that model, and a quarter by a model trained on T̂.
DISJOINT_BLOCK = 20
SMALLEST_BLOCK = 8
LEAST_DISJOINT_ROWS = FEWEST_DISJOINT * SMALLEST_BLOCK


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The rows of one refit: those of T', and the scored rows of V̂ ∖ T' and T̂ ∖ T'.

    With broken clusters, `arms` is the way in which the cluster of each validation row was broken.
    With rotated doses, `levels` is the level of the dose of its cluster.
    """

    training: RowNumbers
    validation: RowNumbers
    held_back: RowNumbers
    arms: RowNumbers | None = None
    levels: RowNumbers | None = None


@dataclass(frozen=True, order=True)
class Task:
    """The key of a refit. With the audit's seed, it determines the rows and the learner's seed.

    `purpose` names its kind, one of `KINDS`. An `arrangement` from 1 on is the number of a permutation
    of the rows over the cluster ids.
    """

    purpose: str
    fold: int
    level: int
    replicate: int
    arrangement: int = 0

    @property
    def kind(self) -> "Kind":
        """The kind of refit, which draws the rows and collects the losses."""
        return KINDS[self.purpose]


@dataclass(frozen=True, kw_only=True)
class Resampler:
    """Draws the rows of an audit's refits, each from its own stream of random numbers.

    Attributes
    ----------
    folds : tuple of Fold
    iid_folds : sequence of Fold
        Folds of single rows, which ignore the clusters.
    clusters : numpy.ndarray
    exposures : tuple of float
        See `mlflow_b3.measurement.design.exposures`.
    scheme : {"subset", "replace"}
        Draw T' without replacement and as large as T̂, or with replacement as in the papers.
    seed : int
    fragments : FragmentSizes
        How clusters are broken on purpose.
    n_train : int or None
        Size of a training set that is drawn with replacement; None for the size of T̂.
    """

    folds: tuple[Fold, ...]
    iid_folds: Sequence[Fold]
    clusters: NDArray[np.intp]
    exposures: tuple[float, ...]
    scheme: str
    seed: int
    fragments: FragmentSizes = UNIFORM
    n_train: int | None = None

    @cached_property
    def few_clusters(self) -> bool:
        """Whether so few clusters are validated that rows are the units of sampling."""
        validated = np.zeros(int(self.clusters.max()) + 1, dtype=bool)
        for fold in self.folds:
            validated[self.clusters[fold.validation]] = True
        return int(validated.sum()) < FEW_CLUSTERS

    @property
    def n_units(self) -> int:
        """Number of sampling units: clusters, or rows if there are few clusters."""
        return len(self.clusters) if self.few_clusters else int(self.clusters.max()) + 1

    def units_of(self, rows: RowNumbers) -> RowNumbers:
        """Return the cluster of each row, or the rows themselves if there are few clusters."""
        return rows if self.few_clusters else self.clusters[rows]

    def draw(self, task: Task) -> Draw:
        """Return the rows of one refit."""
        return task.kind.draw(self, task)

    def fit_seed(self, task: Task) -> int:
        """Return the seed for the learner itself."""
        return int(self.rng(task, 1, task.replicate).integers(2**31))

    def arranged(self, task: Task, rows: RowNumbers) -> RowNumbers:
        """Return the rows of the table at the given places of the task's arrangement.

        Every arrangement draws the same places. The measured losses are therefore a fixed function
        of the order of the rows, which is exchangeable under the null hypothesis.
        """
        if not task.arrangement:
            return rows
        mask = np.zeros(len(self.clusters), dtype=bool)
        for fold in self.folds:
            mask[fold.training] = mask[fold.validation] = True
        used = np.flatnonzero(mask).astype(self.folds[0].training.dtype)
        key = np.random.SeedSequence(self.seed, spawn_key=(task.arrangement - 1,))
        order = np.arange(len(self.clusters), dtype=rows.dtype)
        order[used] = np.random.default_rng(key).permutation(used)
        return order[rows]

    @cached_property
    def _rotations(self) -> "dict[Task, Rotation]":
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what workers can draw again."""
        return {name: value for name, value in vars(self).items() if name != "_rotations"}

    def rotation(self, task: Task) -> "Rotation":
        """Return the random orders that all steps of a task's rotation share."""
        start = replace(task, level=0)
        found = self._rotations.pop(start, None) or Rotation.draw(self, start)
        self._rotations[start] = found
        for oldest in [*self._rotations][:-ROTATIONS_KEPT]:
            self._rotations.pop(oldest, None)
        return found

    def rng(self, task: Task, stream: int, block: int) -> np.random.Generator:
        """Return the random generator of one stream of a task, or of a block of replicates."""
        # an explicit spawn_key selects the same stream as counting with SeedSequence.spawn
        key = (task.kind.stream, task.fold, task.level, stream, block)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


#: A pass takes a step in each fold before the next one, so as many rotations are used in turns.
ROTATIONS_KEPT = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """What all steps of a rotation of doses share.

    Attributes
    ----------
    owners : array of int
        The cluster of each validation row, by its place in `sizes`.
    sizes, start : array of int
        Validation rows of each cluster, and the level at which its rotation starts.
    counts : array of int
        The number of levels of each cluster.
    doses : array of int, clusters by levels
        The dose of each cluster at its levels.
    places : array of int
        The place of each validation row in the random order of its cluster's rows.
    others : array of int
        The training rows in random order.
    trained : array of bool
        Which rows are the training rows.
    """

    owners: RowNumbers
    sizes: RowNumbers
    start: RowNumbers
    counts: RowNumbers
    doses: RowNumbers
    places: RowNumbers
    others: RowNumbers
    trained: NDArray[np.bool_]

    @classmethod
    def draw(cls, resampler: Resampler, task: Task) -> "Rotation":
        """Draw the random orders."""
        fold = resampler.folds[task.fold]
        rng = resampler.rng(task, 2, task.replicate)
        codes = resampler.clusters[fold.validation]
        counts = np.bincount(codes)
        sizes = counts[counts > 0]
        owners = (np.cumsum(counts > 0) - 1)[codes]
        order = _by_owner(owners, rng.random(len(owners)))
        places = np.empty(len(owners), dtype=np.int32)
        places[order] = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        levels, doses = _dose_table(sizes)
        return cls(
            owners=owners.astype(np.int32),
            sizes=sizes,
            start=rng.integers(len(DOSES), size=len(sizes)) % levels,
            counts=levels,
            doses=doses,
            places=places,
            others=resampler.rng(task, 3, task.replicate).permutation(fold.training),
            trained=_row_mask(fold, fold.training),
        )

    def at(self, step: int) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
        """Return each cluster's dose at a step, its level, and the rows moved in the steps before."""
        clusters = np.arange(len(self.sizes))
        before = np.zeros(len(clusters), dtype=np.intp)
        for earlier in range(step):
            before += self.doses[clusters, (self.start + earlier) % self.counts]
        level = (self.start + step) % self.counts
        return self.doses[clusters, level], level, before


def _dose_table(sizes: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
    """Return the number of levels of each cluster, and its doses by level."""
    different, kind = np.unique(sizes, return_inverse=True)
    lists = [dose_levels(rows) for rows in different.tolist()]
    table = np.zeros((len(lists), len(DOSES)), dtype=np.intp)
    for row, levels in zip(table, lists, strict=True):
        row[: len(levels)] = levels
    return np.array([len(levels) for levels in lists])[kind], table[kind]


def _by_owner(owners: RowNumbers, lots: NDArray[np.float64]) -> RowNumbers:
    """Return the order of rows by owner, and by lot among those of one owner."""
    order = np.argsort(lots)  # a stable sort takes several times as long, and lots hardly ever tie
    if (np.diff(lots[order]) == 0).any():
        order = np.argsort(lots, kind="stable")
    # NumPy sorts numbers of 16 bits by counting, which takes a tenth of the time
    small = np.uint16 if owners.max() < 2**16 else owners.dtype
    return order[np.argsort(owners.astype(small)[order], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class DisjointSizes:
    """The disjoint folds of the published test in one outer fold.

    Attributes
    ----------
    count : int
        Number of training folds from T̂, and from V̂; 0 if there are too few rows.
    training, validation : int
        Numbers of rows of each training fold (n') and of each validation fold.
    """

    count: int
    training: int
    validation: int


def disjoint_sizes(fold: Fold) -> DisjointSizes:
    """Return the disjoint folds of the published test: V̂ in three to ten blocks of about 20 rows."""
    rows = len(fold.validation)
    count = min(MOST_DISJOINT, max(FEWEST_DISJOINT, rows // DISJOINT_BLOCK))
    block = min(rows // count, 2 * (len(fold.training) // count))
    if block < SMALLEST_BLOCK:
        return DisjointSizes(count=0, training=0, validation=0)
    return DisjointSizes(count=count, training=block // 2, validation=(block - block // 2) // 2)


def small_size(fold: Fold) -> int:
    """Return the size of the training sets of the leakage test.

    It is a quarter of V̂, or 20 rows if V̂ has enough. Larger samples from V̂ would be nearly
    identical, and models with enough rows of either kind no longer differ.
    """
    available = len(fold.validation)
    return min(len(fold.training), max(2, available // 4, min(20, int(0.6 * available))))


def test_parts(fold: Fold) -> int:
    """Return the number of parts of V̂ in the leakage test; 0 if V̂ has a single row."""
    rows = len(fold.validation)
    return 0 if rows < 2 else min(TEST_PARTS, rows)


def _exchange_rows(
    trained: NDArray[np.bool_], fold: Fold, injected: RowNumbers, dropped: RowNumbers
) -> RowNumbers:
    """Return the rows of a fold's mask of training rows with some of V̂ in place of some of T̂."""
    trained = trained.copy()
    trained[dropped] = False
    trained[injected] = True
    return _rows_of(trained, fold.training)


def _row_mask(fold: Fold, rows: RowNumbers) -> NDArray[np.bool_]:
    """Return which rows are given, among all up to the last row of the fold."""
    mask = np.zeros(1 + int(max(fold.training.max(), fold.validation.max())), dtype=bool)
    mask[rows] = True
    return mask


def _rows_of(mask: NDArray[np.bool_], like: RowNumbers) -> RowNumbers:
    return np.flatnonzero(mask).astype(like.dtype)


def _remove_rows(rows: RowNumbers, gone: RowNumbers) -> RowNumbers:
    """Return the rows without those in `gone`, in their order."""
    left = np.ones(int(rows.max()) + 1, dtype=bool)
    left[gone] = False
    return rows[left[rows]]


# --- The kinds of refit: the rows that each trains on and scores, and how its losses are collected


class Kind(ABC):
    """One kind of refit.

    Attributes
    ----------
    stream : int
        The number of its stream of random numbers. Kinds with the same number train with the same
        seeds.
    returns_rows : bool
        Whether the outcome that a worker returns contains the scored rows. Those of whole folds are
        known, and those of rotated doses are quickly drawn again.
    """

    returns_rows = True

    def __init__(self, stream: int) -> None:
        self.stream = stream

    @abstractmethod
    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return the rows of a task."""

    @abstractmethod
    def collect(
        self, losses: "FoldLosses", outcome: "Outcome", draw: Draw, resampler: Resampler
    ) -> None:
        """Add an outcome to the losses of its fold."""


class WholeFold(Kind):
    """Trains on all of T̂, or on a sample of the requested size, and scores V̂.

    These refits run before all other kinds, which are compared with them.
    """

    returns_rows = False

    def fold(self, resampler: Resampler, task: Task) -> Fold:
        """Return the fold of a task."""
        return resampler.folds[task.fold]

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return the rows of the fold."""
        fold = self.fold(resampler, task)
        training = fold.training
        if resampler.n_train is not None:
            training = resampler.rng(task, 2, task.replicate).choice(training, resampler.n_train)
        return Draw(training=training, validation=fold.validation, held_back=training[:0])

    def collect(
        self, losses: "FoldLosses", outcome: "Outcome", draw: Draw, resampler: Resampler
    ) -> None:
        """Add to LOCO, and to level 0 of a measured curve if T' is all of T̂ there."""
        losses.add_whole(outcome, draw)
        if resampler.scheme == "subset" and losses.doses is None:
            losses.add_level(outcome, draw, resampler)


class RowFold(WholeFold):
    """Uses folds of single rows, which ignore the clusters: ordinary cross-validation."""

    def fold(self, resampler: Resampler, task: Task) -> Fold:
        """Return the fold of a task."""
        return resampler.iid_folds[task.fold]


class InjectedRows(Kind):
    """Replaces rows of T̂ by a share of V̂ in training: one level of the loss curve."""

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return the rows of T': drawn without replacement and as many as T̂ has, or as in the papers."""
        fold = resampler.folds[task.fold]
        if resampler.scheme == "replace":
            return self._replaced(resampler, fold, task)
        count = self.count(resampler, task)
        injected = self._balanced(resampler, fold.validation, count, task, 2)
        dropped = self._balanced(resampler, fold.training, count, task, 3)
        trained = _row_mask(fold, fold.training)
        return Draw(
            training=_exchange_rows(trained, fold, injected, dropped),
            validation=_remove_rows(fold.validation, injected),
            held_back=np.sort(dropped),
        )

    def count(self, resampler: Resampler, task: Task) -> int:
        """Return how many rows of V̂ go into T', rounded at random so that the mean is exact.

        At least one row of V̂ is left for scoring.
        """
        fold = resampler.folds[task.fold]
        wanted = self._wanted(resampler, task)
        count = int(wanted + resampler.rng(task, 4, task.replicate).random())
        return min(count, len(fold.validation) - 1, len(fold.training) - 1)

    def collect(
        self, losses: "FoldLosses", outcome: "Outcome", draw: Draw, resampler: Resampler
    ) -> None:
        """Add to the task's level of the curve."""
        losses.add_level(outcome, draw, resampler)

    def _wanted(self, resampler: Resampler, task: Task) -> float:
        fold = resampler.folds[task.fold]
        return resampler.exposures[task.level] * min(len(fold.training), len(fold.validation))

    def _balanced(
        self, resampler: Resampler, rows: RowNumbers, count: int, task: Task, stream: int
    ) -> RowNumbers:
        """Return `count` of the rows, such that replicates choose every row equally often.

        Blocks of replicates share a permutation and take windows of it. Every row is then in T' (or
        scored) equally often, up to one, which removes the noise of *which rows are scored* from the
        loss curve. Each single window is a uniformly random subset.
        """
        # not based on `count`, which may differ by one within a block
        wanted = self._wanted(resampler, task)
        block = max(1, round(len(rows) / max(1.0, min(wanted, len(rows) - wanted))))
        order = resampler.rng(task, stream, task.replicate // block).permutation(rows)
        start = round((task.replicate % block) * len(rows) / block)
        return np.take(order, np.arange(start, start + count), mode="wrap")

    def _replaced(self, resampler: Resampler, fold: Fold, task: Task) -> Draw:
        rng = resampler.rng(task, 2, task.replicate)
        n_train = resampler.n_train or len(fold.training)
        count = rng.binomial(n_train, resampler.exposures[task.level])
        injected = rng.choice(fold.validation, count)
        kept = rng.choice(fold.training, n_train - count)
        return Draw(
            training=np.concatenate([kept, injected]),
            validation=_remove_rows(fold.validation, injected),
            held_back=_remove_rows(fold.training, kept),
        )


class BrokenClusters(Kind):
    """Breaks half of the clusters of V̂, moves one part of each to training and scores the other.

    Two refits break every cluster once. The next two break them in the same way and swap the parts,
    so four refits score every row once.
    """

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return the rows of T', and the scored rows with the way in which their cluster was broken."""
        fold = resampler.folds[task.fold]
        owners = resampler.clusters[fold.validation]
        labels = breakable(owners, resampler.fragments)
        groups = min(2, len(labels))
        round_, group = divmod(task.replicate, groups)
        pair, swapped = divmod(round_, 2)
        order = resampler.rng(task, 3, pair).permutation(labels)
        rng = resampler.rng(task, 2, groups * pair + group)
        second = resampler.rng(task, 4, task.replicate)
        arms = arms_of(resampler.fragments)
        together = np.argsort(owners, kind="stable")  # rows by cluster, in their order
        first = np.searchsorted(owners, order, side="left", sorter=together)
        last = np.searchsorted(owners, order, side="right", sorter=together)
        moved, scored, kinds = [], [], []
        room = len(fold.training) - 1
        for place in np.array_split(np.arange(len(order)), groups)[group].tolist():
            kind = arm_number(pair * len(order) + place, len(arms))
            rows = fold.validation[together[first[place] : last[place]]]
            training, rest = arms[kind].split(rows, rng, second, swapped=bool(swapped))
            if room > 0:
                moved.append(training[:room])
                scored.append(rest)
                kinds.append(np.full(len(rest), kind, dtype=np.intp))
                room -= len(moved[-1])
        none = fold.validation[:0]
        injected, validation = np.concatenate([none, *moved]), np.concatenate([none, *scored])
        dropped = second.choice(fold.training, len(injected), replace=False)
        ascending = np.argsort(validation)
        trained = _row_mask(fold, fold.training)
        return Draw(
            training=_exchange_rows(trained, fold, injected, dropped),
            validation=validation[ascending],
            held_back=np.sort(dropped),
            arms=np.concatenate([none, *kinds])[ascending],
        )

    def collect(
        self,
        losses: "FoldLosses",
        outcome: "Outcome",
        draw: Draw,
        resampler: Resampler,  # noqa: ARG002 - as other kinds
    ) -> None:
        """Add to the losses of rows whose cluster was broken."""
        losses.add_broken(outcome, draw)


class RotatedDoses(Kind):
    """Moves some rows of every cluster of V̂ to training, a different number for each cluster.

    Each cluster starts at a random one of its doses and takes the next one in each refit, so it has
    every dose once in as many refits. The rows that it moves are the next ones of a random order, so
    every row is moved equally often. As many rows of T̂ are left out of training and scored.
    """

    returns_rows = False

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return the rows of T', and the scored rows with the level of their dose."""
        fold = resampler.folds[task.fold]
        shared = resampler.rotation(task)
        sizes, owners = shared.sizes, shared.owners
        dose, level, before = shared.at(task.level)
        too_many = np.cumsum(dose) > len(fold.training) - 1
        dose[too_many] = level[too_many] = 0
        moved = (shared.places - before[owners]) % sizes[owners] < dose[owners]
        injected = fold.validation[moved]
        first = task.level * len(shared.others) // len(DOSES)
        dropped = np.take(shared.others, np.arange(first, first + len(injected)), mode="wrap")
        scored = ~moved
        return Draw(
            training=_exchange_rows(shared.trained, fold, injected, dropped),
            validation=fold.validation[scored],
            held_back=np.sort(dropped),
            levels=level[owners[scored]],
        )

    def collect(
        self,
        losses: "FoldLosses",
        outcome: "Outcome",
        draw: Draw,
        resampler: Resampler,  # noqa: ARG002 - as other kinds
    ) -> None:
        """Add to the losses by dose."""
        losses.add_doses(outcome, draw)


class PairedTest(Kind):
    """Trains on a small sample of one side, for the leakage test; `level` is a part of V̂."""

    def __init__(self, stream: int, *, leaked: bool) -> None:
        super().__init__(stream)
        self.leaked = leaked

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return rows of T̂ to train on and all of V̂ to score, or rows of V̂ and one part of it."""
        fold = resampler.folds[task.fold]
        rng = resampler.rng(task, 2, task.replicate)
        training, scored = fold.training, fold.validation
        if self.leaked:
            start = Task(task.purpose, task.fold, 0, 0)  # all parts are cut from one permutation
            order = resampler.rng(start, 3, 0).permutation(fold.validation)
            scored = np.sort(order[task.level :: test_parts(fold)])
            training = _remove_rows(fold.validation, scored)
        size = min(small_size(fold), len(training))
        chosen = np.sort(rng.choice(training, size, replace=False))
        return Draw(training=chosen, validation=scored, held_back=chosen[:0])

    def collect(
        self,
        losses: "FoldLosses",
        outcome: "Outcome",
        draw: Draw,
        resampler: Resampler,  # noqa: ARG002 - as other kinds
    ) -> None:
        """Add to one side of the comparison."""
        losses.add_tested(outcome, draw, leaked=self.leaked)


class WelchTest(Kind):
    """Trains on one of the disjoint folds of the published test; `level` is its number."""

    def __init__(self, stream: int, *, leaked: bool) -> None:
        super().__init__(stream)
        self.leaked = leaked

    def draw(self, resampler: Resampler, task: Task) -> Draw:
        """Return training rows of one side, and validation rows that no other refit scores."""
        fold = resampler.folds[task.fold]
        sizes = disjoint_sizes(fold)
        start = Task("welch-with", task.fold, 0, 0)  # all folds are cut from one permutation
        block = resampler.rng(start, 2, 0).permutation(fold.validation)[task.level :: sizes.count]
        training = block[: sizes.training]
        scored = block[sizes.training :][: sizes.validation]
        if not self.leaked:
            order = resampler.rng(start, 3, 0).permutation(fold.training)
            training = order[task.level :: sizes.count][: sizes.training]
            scored = block[sizes.training + sizes.validation :][: sizes.validation]
        return Draw(training=np.sort(training), validation=np.sort(scored), held_back=training[:0])

    def collect(
        self, losses: "FoldLosses", outcome: "Outcome", draw: Draw, resampler: Resampler
    ) -> None:
        """Add nothing: each refit is one value of the test."""


#: Kinds of refit by the purpose of their tasks. Stream numbers must never change: seeds depend on them.
KINDS: dict[str, Kind] = {
    "loco": WholeFold(0),
    "iid": RowFold(1),
    "rows": InjectedRows(2),
    "fragments": BrokenClusters(3),
    "test-without": PairedTest(4, leaked=False),
    "test-with": PairedTest(5, leaked=True),
    "welch-without": WelchTest(6, leaked=False),
    "welch-with": WelchTest(7, leaked=True),
    # corrected cross-validation: whole folds that return more, and simulated targets
    "cv": RowFold(1),
    "grouped": WholeFold(0),
    "simulated": RowFold(8),
    "doses": RotatedDoses(9),
}


# --- Outcomes: the losses of one refit, and the counts of all refits

Losses = NDArray[np.float64]
#: An audit fails if a larger share of its refits fails.
TOLERATED_FAILURES = 0.1
#: Number of causes of failures that a report lists.
MOST_CAUSES = 5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The losses of one refit, or its failure.

    Attributes
    ----------
    task : Task
    validation, held_back : array or None
        The losses on V̂ ∖ T' and T̂ ∖ T', row by row; None if the refit failed.
    seconds : float
        Time of training and prediction.
    one_class : bool
        Whether its training rows had a single class.
    warnings : tuple of str
    error : str or None
        One line with the cause of the failure, an empty line, and the traceback.
    timed_out : bool
        Whether it failed because it exceeded the time limit of a refit.
    draw : Draw or None
        The rows, if available; otherwise they can be drawn from the task.
    """

    task: Task
    validation: Losses | None = None
    held_back: Losses | None = None
    seconds: float = 0.0
    one_class: bool = False
    warnings: tuple[str, ...] = ()
    error: str | None = None
    timed_out: bool = False
    draw: Draw | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers send: without known rows, and with a bit for each loss of 0 or 1."""
        draw = self.draw if self.task.kind.returns_rows else None
        losses = {name: _packed(getattr(self, name)) for name in ("validation", "held_back")}
        return {**vars(self), "draw": draw, **losses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what workers sent."""
        losses = {name: _unpacked(state[name]) for name in ("validation", "held_back")}
        vars(self).update({**state, **losses})


def _packed(losses: Losses | None) -> Any:
    """Return losses of 0 and 1 as their number and bits, and others unchanged."""
    if losses is None or not ((losses == 0) | (losses == 1)).all():
        return losses
    return len(losses), np.packbits(losses == 1)


def _unpacked(packed: Any) -> Losses | None:
    if isinstance(packed, tuple):
        count, bits = packed
        packed = np.unpackbits(bits, count=count).astype(np.float64)
    losses: Losses | None = packed
    return losses


@dataclass(frozen=True, kw_only=True)
class Refits(Result):
    """How the refits of an audit went.

    Attributes
    ----------
    planned, done : int
        Refits that the budget allowed, and refits that ran, including failed ones.
    failed : int
        Refits that failed. No number of the report uses them.
    timed_out : int
        Failed refits that exceeded the time limit of a refit.
    causes : tuple of (str, int)
        Causes of failures with their counts, the most frequent first.
    traceback : str or None
        Traceback of the first failure.
    partial : bool
        Whether the user stopped the audit. Its numbers use the refits done until then.
    workers_lost : int
        How often worker processes died. Their refits ran again.
    retried : int
        Refits that failed in an earlier run with the same journal and succeeded in this one.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> refits = b3.Refits(planned=100, done=98, failed=2, causes=(("ValueError", 2),))
    >>> refits.done - refits.failed
    96
    """

    planned: int
    done: int
    failed: int = 0
    timed_out: int = 0
    causes: tuple[tuple[str, int], ...] = ()
    traceback: str | None = None
    partial: bool = False
    workers_lost: int = field(default=0, compare=False)
    retried: int = field(default=0, compare=False)


@dataclass
class FitCounts:
    """Counts over all refits of an audit, updated while they run.

    Attributes
    ----------
    planned : int
        Refits planned so far.
    done, failed, timed_out, one_class : int
    replayed : int
        Done refits that were read from a journal.
    retried : int
        Refits that failed in an earlier run and succeeded in this one.
    workers_lost : int
        How often worker processes died.
    seconds : float
        Time of training and prediction over all workers, including refits read from a journal.
    first_error : str or None
    causes : Counter
        First lines of errors.
    warnings : Counter
    interrupted : bool
        Whether the user stopped the audit.
    """

    planned: int = 0
    done: int = 0
    failed: int = 0
    timed_out: int = 0
    one_class: int = 0
    replayed: int = 0
    retried: int = 0
    workers_lost: int = 0
    seconds: float = 0.0
    first_error: str | None = None
    causes: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False

    def add(self, outcome: Outcome) -> None:
        """Count one refit."""
        self.done += 1
        self.seconds += outcome.seconds
        self.one_class += outcome.one_class
        self.warnings.update(outcome.warnings)
        if outcome.error is not None:
            self.failed += 1
            self.timed_out += outcome.timed_out
            self.causes[outcome.error.splitlines()[0]] += 1
            self.first_error = self.first_error or outcome.error

    def summary(self) -> Refits:
        """Return the summary for the report."""
        return Refits(
            planned=self.planned,
            done=self.done,
            failed=self.failed,
            timed_out=self.timed_out,
            causes=tuple(self.causes.most_common(MOST_CAUSES)),
            traceback=self.first_error,
            partial=self.interrupted,
            workers_lost=self.workers_lost,
            retried=self.retried,
        )


# --- A time limit for one refit that a learner cannot suppress

#: A worker process ends if a refit does not react within twice its time limit plus this many seconds.
GRACE = 1.0


class RefitTimeout(BaseException):
    """A refit took too long. Not an `Exception`, because learners may catch those."""


@contextmanager
def time_limit(seconds: float | None, *, may_exit: bool = False) -> Iterator[None]:
    """Raise `RefitTimeout` if the block takes longer than the limit.

    Parameters
    ----------
    seconds : float or None
        None sets no limit.
    may_exit : bool
        Whether this is one of our worker processes. If native code does not return to Python, the
        process ends after twice the time, and its refits run again elsewhere.

    Notes
    -----
    In the main thread a signal also interrupts blocking calls, such as a sleep or a socket. In other
    threads the exception is raised at the next line of Python.
    """
    if seconds is None:
        yield
        return
    interrupt = _limit_by_signal if _has_signal() else _limit_by_thread
    if may_exit:
        faulthandler.dump_traceback_later(2 * seconds + GRACE, exit=True, file=_devnull())
    try:
        with interrupt(seconds):
            yield
    finally:
        if may_exit:
            faulthandler.cancel_dump_traceback_later()


def _has_signal() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _limit_by_signal(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        raise RefitTimeout

    before = signal.signal(signal.SIGALRM, stop)
    started = time.monotonic()
    # repeat each second, in case the learner catches it
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        with _ignore_late_timeout():
            signal.setitimer(signal.ITIMER_REAL, 0)
        with _ignore_late_timeout():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left:  # resume an alarm that was set before
                left = max(left - (time.monotonic() - started), 0.001)
                signal.setitimer(signal.ITIMER_REAL, left, again)


def _ignore_late_timeout() -> AbstractContextManager[None]:
    """Ignore a timeout that is raised during cleanup."""
    return suppress(RefitTimeout)


@contextmanager
def _limit_by_thread(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    raised = ctypes.py_object(RefitTimeout)
    over = threading.Event()

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, raised)
            wait = 1.0

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with _ignore_late_timeout():
            over.set()
        with _ignore_late_timeout():
            over.set()
            watcher.join()


_DEVNULL: list[int] = []


def _devnull() -> int:
    """Return a descriptor of the null device, opened once."""
    if not _DEVNULL:
        _DEVNULL.append(os.open(os.devnull, os.O_WRONLY))
    return _DEVNULL[0]


# --- Running one refit: train on the rows of a task, score the rows left out, and report failures


class WorkersLost(Exception):  # noqa: N818 - an event, which never reaches users
    """Worker processes died while they ran refits."""


class Workers(Protocol):
    """A pool that runs refits."""

    @property
    def count(self) -> int:
        """Number of refits that run at the same time."""

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches of refits, and yield the outcomes of each batch when it is done, in any order.

        Raises
        ------
        WorkersLost
            If workers died. Unfinished batches then yield no outcomes.
        """


@dataclass(frozen=True, kw_only=True)
class Refitter:
    """Everything that a refit needs besides its task, sent to each worker once.

    Attributes
    ----------
    data, learner, loss, resampler
    seconds_at_most : float or None
        Time limit of one refit.
    """

    data: AuditData
    learner: Learner
    loss: Loss
    resampler: Resampler
    seconds_at_most: float | None = None

    def run(self, task: Task, *, may_exit: bool = False, catch_warnings: bool = True) -> Outcome:
        """Train on the task's rows and return the losses on the rows left out."""
        draw = self.resampler.draw(task)
        result: dict[str, Any]
        started = time.perf_counter()
        try:
            with (
                _record_warnings(catch_warnings) as caught,
                time_limit(self.seconds_at_most, may_exit=may_exit),
            ):
                result = self._fit_and_score(task, draw)
        except PredictionError:
            raise  # other rows would fail in the same way
        except RefitTimeout:
            limit = f"the refit took longer than fit_timeout, {self.seconds_at_most:g} s"
            result = {"error": f"TimeoutError: {limit}", "timed_out": True}
        except Exception as error:  # learners may raise anything; every failure is reported
            result = {"error": f"{_describe_error(error)}\n\n{traceback.format_exc()}"}
        texts = {f"{w.category.__name__}: {w.message}" for w in caught}
        seconds = time.perf_counter() - started
        self.data.give_back()
        return Outcome(task=task, seconds=seconds, warnings=tuple(sorted(texts)), **result)

    def run_batch(
        self, tasks: Sequence[Task], *, may_exit: bool = False, catch_warnings: bool = True
    ) -> list[Outcome]:
        """Run several tasks one after another."""
        return [self.run(task, may_exit=may_exit, catch_warnings=catch_warnings) for task in tasks]

    def _fit_and_score(self, task: Task, draw: Draw) -> dict[str, Any]:
        seed = self.resampler.fit_seed(task)
        # no reference to the training rows remains, so their memory is free before scoring
        predictor = self.learner.fit(self._rows(task, draw.training), seed)
        validation, held_back = self._score(predictor, task, draw)
        return {
            "validation": validation,
            "held_back": held_back,
            "one_class": isinstance(predictor, ConstantPredictor),
            "draw": replace(draw, training=draw.training[:0]),
        }

    def _rows(self, task: Task, chosen: RowNumbers) -> Rows:
        at, weight = self.resampler.arranged(task, chosen), self.data.weight
        return Rows(
            X=self.data.take(at),
            target=self.data.target.take(at),
            ids=self.data.ids.take(at),
            weight=None if weight is None else weight[at],
        )

    def _score(self, predictor: Any, task: Task, draw: Draw) -> tuple[Losses, Losses]:
        chosen = np.concatenate([draw.validation, draw.held_back])
        if not len(chosen):  # drawing with replacement can use up V̂
            return np.zeros(0), np.zeros(0)
        at = self.resampler.arranged(task, chosen)
        X, target, count = self.data.take(at), self.data.target.take(at), len(draw.validation)
        if isinstance(self.loss, PairLoss):
            clusters, groups = self.resampler.clusters[chosen], self.loss.groups
            inside = None if groups is None else groups[chosen]
            losses = self.loss.evaluate_pairs(predictor, X, target, clusters, count, inside)
        else:
            losses = self.loss.evaluate(predictor, X, target)
        return losses[: len(draw.validation)], losses[len(draw.validation) :]


@contextmanager
def _record_warnings(wanted: bool) -> Iterator[list[warnings.WarningMessage]]:
    if not wanted:
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


def _describe_error(error: Exception) -> str:
    """Return the type and the first line of an exception; later lines may be details."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def close_quietly(results: Any) -> None:
    """Close joblib's generator without its warning about cancelled tasks; cancelling is intended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results.close()
