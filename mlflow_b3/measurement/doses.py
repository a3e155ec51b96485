"""Losses by dose: how many rows of a row's own cluster are in training."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mlflow_b3.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.intp]


def cluster_means(losses: Array, clusters: Integers) -> Array:
    """Return the mean loss of each cluster's scored rows in each pass; NaN where none was scored.

    Parameters
    ----------
    losses : array, shape (passes, rows)
        NaN where a row was not scored.
    clusters : array of int, shape (rows,)
    """
    seen = np.isfinite(losses)
    scored = _by_cluster(seen.astype(float), clusters)
    with np.errstate(invalid="ignore"):
        return np.asarray(_by_cluster(np.where(seen, losses, 0), clusters) / scored)


def _by_cluster(values: Iterable[Array], clusters: Integers) -> Array:
    n = int(clusters.max()) + 1
    return np.stack([np.bincount(clusters, row, minlength=n) for row in values])


@dataclass(frozen=True, kw_only=True, eq=False)
class DoseLosses:
    """Losses by cluster and level of the dose.

    A pass assigns the clusters to folds anew. Each fold has a *whole* refit on the unchanged fold, and
    *rotated* refits: some rows of every validation cluster are moved into training (its dose), as many
    training rows are held back, and the other validation rows and the held-back rows are scored. There
    are K clusters, P passes and L levels of doses.

    Every cluster counts by all of its rows, in LOCO as in e0. Where folds leave rows out, the scored
    rows of a cluster stand for the others, and LOCO differs from the mean of the scored rows.

    Attributes
    ----------
    sizes : array of int, shape (K,)
        Rows of each noisy cluster.
    doses : array of int, shape (L, K)
        Rows moved at each level, 0 at the first; -1 at levels that the cluster does not have.
    differences : array, shape (L + 2, K)
        Sum, over all scores of the cluster's rows, of the loss minus the same row's mean loss in whole
        refits. The last two levels are held-back rows, and rows in folds of single rows.
    counts : array of int, shape (L + 2, K)
        Number of scores in each sum.
    loco : array, shape (P, K)
        Mean loss of the cluster's rows in the whole refits of each pass; NaN where there is none.
    folds : array of int, shape (P, K)
        Fold of the cluster in each pass.
    training_share : float
        Share of the rows that are on the training side of a fold.
    held_back_share : float
        Share of the training rows that a rotated refit leaves out; 0 if there is none.
    refits : int
        Number of refits, whole and rotated.
    """

    sizes: Integers
    doses: Integers
    differences: Array
    counts: Integers
    loco: Array
    folds: Integers
    training_share: float
    held_back_share: float
    refits: int

    def __post_init__(self) -> None:
        """Check that the shapes agree and that something was measured."""
        levels, clusters = self.counts.shape
        expected = {
            "sizes": (clusters,),
            "doses": (levels - 2, clusters),
            "differences": (levels, clusters),
            "folds": self.loco.shape,
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise InputError(
                    f"{name} has shape {getattr(self, name).shape}, but counts and loco mean {shape}."
                )
        if self.loco.ndim != 2 or self.loco.shape[1] != clusters:
            raise InputError(
                f"loco has shape {self.loco.shape}; it needs one column for each of the {clusters} "
                "clusters."
            )
        if np.isfinite(self.loco).any(axis=0).sum() < 2:
            raise InputError("Fewer than two clusters have a loss in whole refits.")
        if not self.counts.any():
            raise InputError("counts are all 0: there is nothing beside whole refits.")
        if not np.isfinite(self.differences).all():
            raise InputError("differences holds values that are not finite.")

    @property
    def held_back(self) -> int:
        """The level of held-back rows."""
        return len(self.doses)

    @property
    def by_row(self) -> int:
        """The level of rows in folds of single rows."""
        return len(self.doses) + 1

    @property
    def mean_loco(self) -> Array:
        """Mean loss of each cluster in whole refits; 0 for clusters that were never validated."""
        seen = np.isfinite(self.loco)
        return np.asarray(
            np.where(seen, self.loco, 0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
        )

    @classmethod
    def from_rows(
        cls,
        *,
        clusters: ArrayLike,
        doses: Sequence[Sequence[int]],
        sums: Sequence[ArrayLike],
        counts: Sequence[ArrayLike],
        whole: ArrayLike,
        folds: ArrayLike,
        training_share: float,
        held_back_share: float,
        refits: int,
    ) -> Self:
        """Reduce losses of rows to clusters.

        Parameters
        ----------
        clusters : array of int, shape (rows,)
            Codes 0, ..., K - 1.
        doses : sequence of sequences of int
            Rows moved of each cluster by level.
        sums, counts : L + 2 arrays, shape (rows,)
            Sums of the losses of each row at each level, and their numbers; see `differences`.
        whole : array, shape (P, rows)
            Loss of each row in the whole refits of each pass; NaN where it was not scored.
        folds : array of int, shape (P, rows)
            Validation fold of each row in these passes.
        training_share, held_back_share, refits
        """
        codes = np.asarray(clusters, dtype=np.intp)
        losses = np.asarray(whole, dtype=float)
        seen = np.isfinite(losses)
        known = seen.sum(axis=0)
        baseline = np.where(seen, losses, 0).sum(axis=0) / np.maximum(known, 1)

        def numbers(own: ArrayLike) -> Array:
            return np.where(known > 0, np.asarray(own, dtype=float), 0)

        def excess(total: ArrayLike, number: Array) -> Array:
            return np.where(number > 0, np.asarray(total, dtype=float) - number * baseline, 0)

        # level by level, because all levels of all rows would fill memory
        differences = _by_cluster(map(excess, sums, map(numbers, counts)), codes)
        scores = _by_cluster(map(numbers, counts), codes).astype(np.intp)
        missing = [-1] * (len(scores) - 2)
        lists = [tuple(own) for own in doses]
        padded = {own: [*own, *missing[len(own) :]] for own in set(lists)}
        levels = np.array([padded[own] for own in lists], dtype=np.intp)
        sizes = np.bincount(codes)
        first = np.empty(len(sizes), dtype=np.intp)
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last value written stays
        return cls(
            sizes=sizes,
            doses=np.ascontiguousarray(levels.T),
            differences=differences,
            counts=scores,
            loco=cluster_means(losses, codes),
            folds=np.asarray(folds, dtype=np.intp)[:, first],
            training_share=training_share,
            held_back_share=held_back_share,
            refits=refits,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return lists and numbers for JSON; None stands for NaN."""
        loco = [[None if math.isnan(x) else x for x in row] for row in self.loco.tolist()]
        names = ("sizes", "doses", "differences", "counts", "folds")
        numbers = ("training_share", "held_back_share", "refits")
        return {
            **{name: getattr(self, name).tolist() for name in names},
            **{name: getattr(self, name) for name in numbers},
            "loco": loco,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build losses from the output of `to_dict`."""
        whole = ("sizes", "doses", "counts", "folds")
        return cls(
            **{name: np.asarray(values[name], dtype=np.intp) for name in whole},
            differences=np.asarray(values["differences"], dtype=float),
            loco=np.asarray(values["loco"], dtype=float),
            training_share=float(values["training_share"]),
            held_back_share=float(values["held_back_share"]),
            refits=int(values["refits"]),
        )

    def at_exposures(self, exposures: Sequence[float]) -> Array:
        """Return the loss of each cluster if its rows went into training with given probabilities.

        With exposure x, a row of a cluster of M rows has Binomial(M - 1, x) mates in training. The loss
        is interpolated between the measured doses, and between the last of them and held-back rows,
        which have all mates in training. Shape (exposures, K).
        """
        seen = self.counts > 0
        pooled = self.differences.sum(axis=1) / np.maximum(self.counts.sum(axis=1), 1)
        own = np.where(seen, self.differences / np.maximum(self.counts, 1), pooled[:, None])
        change = own - own[0]
        found = np.tile(self.mean_loco, (len(exposures), 1))
        for size in np.unique(self.sizes):
            which = np.flatnonzero(self.sizes == size)
            weights = self.interpolation(int(which[0]), exposures)
            found[:, which] += weights @ change[: self.by_row, which]
        return found

    def interpolation(self, cluster: int, exposures: Sequence[float]) -> Array:
        """Return the weights of the levels at each exposure, for clusters as large as the given one."""
        size, doses = int(self.sizes[cluster]), self.doses[:, cluster]
        levels = [*np.flatnonzero(doses >= 0)]
        knots = [float(doses[level]) for level in levels]
        if size - 1 > knots[-1]:
            levels.append(self.held_back)
            knots.append(size - 1.0)
        mates = np.arange(size)
        chance = stats.binom.pmf(mates, size - 1, np.asarray(exposures)[:, None])
        weights = np.zeros((len(exposures), self.by_row))
        for place, level in enumerate(levels):
            hat = np.zeros(len(knots))
            hat[place] = 1.0
            weights[:, level] = chance @ np.interp(mates, knots, hat)
        return weights
