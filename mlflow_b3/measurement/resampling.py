"""Which rows each refit is trained on and scored on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.folds import Fold, Rows
from mlflow_b3.measurement.breaking import UNIFORM, FragmentSizes, arm_number, arms_of, breakable
from mlflow_b3.measurement.levels import TEST_PARTS

PURPOSES = (
    "loco",
    "iid",
    "rows",
    "fragments",
    "test-without",
    "test-with",
    "welch-without",
    "welch-with",
    "simulated",
)
#: Refits that are those of another purpose, with more to report: they are trained with the same seeds.
ALSO = {"cv": "iid", "grouped": "loco"}
#: Below this many validated clusters, single rows take the place of clusters.
FEW_CLUSTERS = 10
#: Disjoint folds of each kind in the published test: at least and at most.
FEWEST_DISJOINT, MOST_DISJOINT = 3, 10
#: V̂ is cut into blocks, one for each disjoint fold: half of a block is trained on, a quarter is
#: scored by that model, and a quarter by one trained on T̂.
DISJOINT_BLOCK = 20
SMALLEST_BLOCK = 8
LEAST_DISJOINT_ROWS = FEWEST_DISJOINT * SMALLEST_BLOCK


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One refit: the rows of T', and the rows of V̂ ∖ T' and T̂ ∖ T' that it is scored on.

    With broken clusters, `arms` says in which way the cluster of each validation row was broken.
    """

    training: Rows
    validation: Rows
    held_back: Rows
    arms: Rows | None = None


@dataclass(frozen=True, order=True)
class Task:
    """The address of a refit; rows and seed follow from it and from the audit's seed.

    From 1 on, `arrangement` says in which order the rows are dealt to the cluster ids.
    """

    purpose: str
    fold: int
    level: int
    replicate: int
    arrangement: int = 0


@dataclass(frozen=True, kw_only=True)
class Resampler:
    """Draws the rows of every refit of an audit, each from its own stream of random numbers.

    Attributes
    ----------
    folds : tuple of Fold
    iid_folds : sequence of Fold
        Folds of single rows that ignore the clusters.
    clusters : numpy.ndarray
    exposures : tuple of float
        See `mlflow_b3.measurement.levels.exposures`.
    scheme : {"subset", "replace"}
        Draw T' without replacement and as large as T̂, or with replacement as the papers do.
    seed : int
    fragments : FragmentSizes
        How clusters are broken on purpose.
    n_train : int or None
        Rows of a training set that is drawn with replacement; None for as many as T̂ has.
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
        """Whether few clusters are validated on, so that rows are what varies between samples."""
        validated = np.zeros(int(self.clusters.max()) + 1, dtype=bool)
        for fold in self.folds:
            validated[self.clusters[fold.validation]] = True
        return int(validated.sum()) < FEW_CLUSTERS

    @property
    def n_units(self) -> int:
        """Number of what varies from sample to sample: clusters, or rows where they are few."""
        return len(self.clusters) if self.few_clusters else int(self.clusters.max()) + 1

    def units_of(self, rows: Rows) -> Rows:
        """Return the cluster of some rows, or the rows themselves where clusters are few."""
        return rows if self.few_clusters else self.clusters[rows]

    def draw(self, task: Task) -> Draw:
        """Return the rows of one refit."""
        if task.purpose in ("iid", "cv", "simulated"):
            return self._whole(self.iid_folds[task.fold], task)
        fold = self.folds[task.fold]
        if task.purpose in ("loco", "grouped"):
            return self._whole(fold, task)
        if task.purpose == "rows":
            if self.scheme == "replace":
                return self._replaced(fold, task)
            return self._injected(fold, task)
        if task.purpose == "fragments":
            return self._broken(fold, task)
        if task.purpose.startswith("welch"):
            return self._disjoint(fold, task)
        return self._small(fold, task)

    def fit_seed(self, task: Task) -> int:
        """Return the seed that the learner itself is given."""
        return int(self._rng(task, 1, task.replicate).integers(2**31))

    def arranged(self, task: Task, rows: Rows) -> Rows:
        """Return which rows of the table stand in some places of the task's arrangement.

        Every arrangement has the same draws of places, so that what is measured is one function of
        the order of the rows, which is exchangeable under the null hypothesis.
        """
        if not task.arrangement:
            return rows
        used = np.unique(
            np.concatenate([np.concatenate([f.training, f.validation]) for f in self.folds])
        )
        key = np.random.SeedSequence(self.seed, spawn_key=(task.arrangement - 1,))
        order = np.arange(len(self.clusters), dtype=rows.dtype)
        order[used] = np.random.default_rng(key).permutation(used)
        return order[rows]

    def injected_rows(self, task: Task) -> int:
        """Return how many rows of V̂ a refit puts into T', rounded at random to be right on average.

        At least one row of V̂ is left to be scored.
        """
        fold = self.folds[task.fold]
        count = int(self._wanted(task) + self._rng(task, 4, task.replicate).random())
        return min(count, len(fold.validation) - 1, len(fold.training) - 1)

    def _wanted(self, task: Task) -> float:
        fold = self.folds[task.fold]
        return self.exposures[task.level] * min(len(fold.training), len(fold.validation))

    def _rng(self, task: Task, stream: int, block: int) -> np.random.Generator:
        # an explicit spawn_key is the address that SeedSequence.spawn would have counted up to
        purpose = ALSO.get(task.purpose, task.purpose)
        key = (PURPOSES.index(purpose), task.fold, task.level, stream, block)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def _balanced(self, rows: Rows, count: int, task: Task, stream: int) -> Rows:
        """Return `count` of the rows, chosen equally often over the replicates.

        Replicates share a permutation in blocks and take windows of it: every row is then in T'
        (or scored) equally often up to one, which removes the noise of *which rows are scored*
        from the loss curve. Each window by itself is a uniformly random subset.
        """
        wanted = self._wanted(task)  # not the count, which may differ by one within a block
        block = max(1, round(len(rows) / max(1.0, min(wanted, len(rows) - wanted))))
        order = self._rng(task, stream, task.replicate // block).permutation(rows)
        start = round((task.replicate % block) * len(rows) / block)
        return np.take(order, np.arange(start, start + count), mode="wrap")

    def _injected(self, fold: Fold, task: Task) -> Draw:
        count = self.injected_rows(task)
        injected = self._balanced(fold.validation, count, task, 2)
        dropped = self._balanced(fold.training, count, task, 3)
        return _exchange(fold, injected, dropped)

    def _replaced(self, fold: Fold, task: Task) -> Draw:
        rng = self._rng(task, 2, task.replicate)
        n_train = self.n_train or len(fold.training)
        count = rng.binomial(n_train, self.exposures[task.level])
        injected = rng.choice(fold.validation, count)
        kept = rng.choice(fold.training, n_train - count)
        return Draw(
            training=np.concatenate([kept, injected]),
            validation=np.setdiff1d(fold.validation, injected),
            held_back=np.setdiff1d(fold.training, kept),
        )

    def _whole(self, fold: Fold, task: Task) -> Draw:
        """Train on all of T̂, or on a sample of the size that was asked for."""
        training = fold.training
        if self.n_train is not None:
            training = self._rng(task, 2, task.replicate).choice(training, self.n_train)
        return Draw(training=training, validation=fold.validation, held_back=training[:0])

    def _broken(self, fold: Fold, task: Task) -> Draw:
        """Break half of the clusters of V̂ and give one part of each to training.

        Two refits break every cluster once; the next two break them alike and swap the parts, so
        that four refits score every row once.
        """
        owners = self.clusters[fold.validation]
        labels = breakable(owners, self.fragments)
        groups = min(2, len(labels))
        round_, group = divmod(task.replicate, groups)
        pair, swapped = divmod(round_, 2)
        order = self._rng(task, 3, pair).permutation(labels)
        rng = self._rng(task, 2, groups * pair + group)
        second = self._rng(task, 4, task.replicate)
        arms = arms_of(self.fragments)
        together = np.argsort(owners, kind="stable")  # rows of a cluster, in their order
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
        draw = _exchange(fold, injected, dropped)
        ascending = np.argsort(validation)
        return Draw(
            training=draw.training,
            validation=validation[ascending],
            held_back=draw.held_back,
            arms=np.concatenate([none, *kinds])[ascending],
        )

    def _small(self, fold: Fold, task: Task) -> Draw:
        """Draw a small T' from one side only, for the leakage test; `level` is a part of V̂."""
        rng = self._rng(task, 2, task.replicate)
        size = small_size(fold)
        if task.purpose == "test-without":
            training, scored = fold.training, fold.validation
        else:
            order = self._rng(Task(task.purpose, task.fold, 0, 0), 3, 0).permutation(
                fold.validation
            )
            scored = np.sort(order[task.level :: test_parts(fold)])
            training = np.setdiff1d(fold.validation, scored)
        chosen = np.sort(rng.choice(training, min(size, len(training)), replace=False))
        return Draw(training=chosen, validation=scored, held_back=chosen[:0])

    def _disjoint(self, fold: Fold, task: Task) -> Draw:
        """Draw one of the disjoint folds of the published test; `level` is its number."""
        sizes = disjoint_sizes(fold)
        start = Task("welch-with", task.fold, 0, 0)  # all folds are cut from one permutation
        block = self._rng(start, 2, 0).permutation(fold.validation)[task.level :: sizes.count]
        training = block[: sizes.training]
        scored = block[sizes.training :][: sizes.validation]
        if task.purpose == "welch-without":
            order = self._rng(start, 3, 0).permutation(fold.training)
            training = order[task.level :: sizes.count][: sizes.training]
            scored = block[sizes.training + sizes.validation :][: sizes.validation]
        return Draw(training=np.sort(training), validation=np.sort(scored), held_back=training[:0])


@dataclass(frozen=True, kw_only=True)
class DisjointSizes:
    """The published test in one outer fold: `count` folds of each kind, and their rows.

    Attributes
    ----------
    count : int
        Training folds from T̂, and as many from V̂; 0 when there are too few rows.
    training, validation : int
        Rows of each training fold (n') and of each validation fold.
    """

    count: int
    training: int
    validation: int


def disjoint_sizes(fold: Fold) -> DisjointSizes:
    """Return how V̂ is cut for the published test: into three to ten blocks of about 20 rows."""
    rows = len(fold.validation)
    count = min(MOST_DISJOINT, max(FEWEST_DISJOINT, rows // DISJOINT_BLOCK))
    block = min(rows // count, 2 * (len(fold.training) // count))
    if block < SMALLEST_BLOCK:
        return DisjointSizes(count=0, training=0, validation=0)
    return DisjointSizes(count=count, training=block // 2, validation=(block - block // 2) // 2)


def small_size(fold: Fold) -> int:
    """Return the size of the training sets of the leakage test.

    A quarter of V̂, and 20 rows where V̂ has enough: with more the samples from V̂ become copies of
    each other, and models that have enough rows of either kind no longer differ.
    """
    available = len(fold.validation)
    return min(len(fold.training), max(2, available // 4, min(20, int(0.6 * available))))


def test_parts(fold: Fold) -> int:
    """Return into how many parts the leakage test divides V̂; none when it has a single row."""
    rows = len(fold.validation)
    return 0 if rows < 2 else min(TEST_PARTS, rows)


def _exchange(fold: Fold, injected: Rows, dropped: Rows) -> Draw:
    kept = _without(fold.training, dropped)
    return Draw(
        training=np.sort(np.concatenate([kept, injected])),
        validation=_without(fold.validation, injected),
        held_back=np.sort(dropped),
    )


def _without(rows: Rows, gone: Rows) -> Rows:
    """Return the rows that are not gone, in their order."""
    left = np.ones(int(rows.max()) + 1, dtype=bool)
    left[gone] = False
    return rows[left[rows]]
