"""Scored pairs as votes: what each row hears from every predicted cluster on the other side."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from mlflow_b3.linkage.splits import Floats, Mask, Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Votes:
    """The best score of each row with each predicted cluster, and the scores behind it.

    Attributes
    ----------
    row, cluster : array of int
        The row and the predicted cluster of its possible mates, every combination once.
    best : array of float
        The largest score of the row's pairs with that cluster.
    pair_row, pair_score : array
        Row and score of every pair behind the votes.
    """

    row: Rows
    cluster: Rows
    best: Floats
    pair_row: Rows
    pair_score: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectedPairs:
    """Every pair seen from both of its rows, in the order of rows and of their mates' clusters.

    Attributes
    ----------
    row, mate : array of int
    score : array of float
        Probabilities, or anything that grows with them.
    cluster : array of int
        Predicted cluster of the mate.
    """

    row: Rows
    mate: Rows
    score: Floats
    cluster: Rows

    @classmethod
    def of(
        cls, first: Rows, second: Rows, score: Floats, clusters: Rows, *, within: bool = False
    ) -> Self:
        """Turn pairs of rows into directed ones; those within a cluster only if `within`."""
        if not within:
            across = clusters[first] != clusters[second]
            first, second, score = first[across], second[across], score[across]
        row, mate = np.concatenate([first, second]), np.concatenate([second, first])
        order = np.lexsort([clusters[mate], row])
        row, mate = row[order], mate[order]
        both = np.concatenate([score, score])[order]
        return cls(row=row, mate=mate, score=both, cluster=clusters[mate])

    def votes(self, own: Mask, other: Mask) -> Votes:
        """Return what the rows of one side hear from the clusters of the other side."""
        use = np.flatnonzero(own[self.row] & other[self.mate])
        row, cluster, score = self.row[use], self.cluster[use], self.score[use]
        if not len(use):
            return Votes(row=row, cluster=cluster, best=score, pair_row=row, pair_score=score)
        changes = (row[1:] != row[:-1]) | (cluster[1:] != cluster[:-1])
        starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
        return Votes(
            row=row[starts],
            cluster=cluster[starts],
            best=np.maximum.reduceat(score, starts),
            pair_row=row,
            pair_score=score,
        )


def any_match(rows: Rows, probability: Floats, n: int) -> Floats:
    """Return 1 - Π(1 - p) over the values of each of n rows."""
    with np.errstate(divide="ignore"):  # a certain match: log 0
        misses = np.log1p(-probability)
    return np.asarray(-np.expm1(np.bincount(rows, weights=misses, minlength=n)))
