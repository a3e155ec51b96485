"""Which rows to look at first."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError, choose
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Floats, Rows, as_codes
from mlflow_b3.linkage.votes import DirectedPairs
from mlflow_b3.results import Result

ORDERS = ("influence", "probability")


@dataclass(frozen=True, kw_only=True)
class SuspiciousRow(Result):
    """A row that may have a mate in training.

    Attributes
    ----------
    id : str
        The id of the row, or its number where no ids were given.
    row : int
        Row number from 0.
    leak_probability : float
        r_j.
    loss : float
    influence : float
        By how much the score looks better for it; see `rank_rows`.
    best_mate : int or None
        The row it most probably belongs with, in another predicted cluster.
    mate_id : str or None
    mate_probability : float or None
    """

    id: str
    row: int
    leak_probability: float
    loss: float
    influence: float
    best_mate: int | None = None
    mate_id: str | None = None
    mate_probability: float | None = None


def rank_rows(
    leak_probability: Any,
    losses: Any,
    *,
    pairs: PairTable | None = None,
    clusters: Any = None,
    ids: Any = None,
    most: int = 50,
    by: str = "influence",
) -> tuple[SuspiciousRow, ...]:
    """Return the most suspicious rows, for review.

    Parameters
    ----------
    leak_probability : array of float
        r_j of every row, for example `row_probability` of a `LeakEstimate`.
    losses : array of float
        Loss of every row when it was validated.
    pairs : PairTable, optional
        To name the most probable mate of each row.
    clusters : sequence, optional
        Predicted clusters; mates in the row's own cluster, which do not leak, are then left out.
    ids : sequence, optional
        The id of every row.
    most : int
        How many rows.
    by : {"influence", "probability"}

    Notes
    -----
    influence_j = r_j·(mean loss - loss_j)/n: to first order, how much the mean loss rises when the
    row is left out, times the probability that it should be, because it leaked. The rows that make
    the score look good and probably leaked come first; a leaked row with a large loss has a
    negative influence. It is not what the mate in training did to the row's loss, which needs a
    refit, nor do the influences add up to the bias of the score: use the audit for that. Rows with
    r = 0 are never listed.
    """
    choose("by", by, ORDERS)
    r, loss = np.asarray(leak_probability, dtype=float), np.asarray(losses, dtype=float)
    _check(r, loss, most)
    influence = r * (loss.mean() - loss) / len(loss)
    ranks = influence if by == "influence" else r
    order = np.lexsort([-r, -ranks])
    order = order[r[order] > 0][:most]
    mates, chances = _best_mates(pairs, clusters, len(r))
    names = range(len(r)) if ids is None else ids
    return tuple(
        SuspiciousRow(
            id=str(names[row]),
            row=row,
            leak_probability=float(r[row]),
            loss=float(loss[row]),
            influence=float(influence[row]),
            best_mate=int(mates[row]) if mates[row] >= 0 else None,
            mate_id=str(names[mates[row]]) if mates[row] >= 0 else None,
            mate_probability=float(chances[row]) if mates[row] >= 0 else None,
        )
        for row in order.tolist()
    )


def _check(r: Floats, loss: Floats, most: int) -> None:
    problems = []
    if r.ndim != 1 or r.shape != loss.shape or not len(r):
        problems.append(
            f"leak_probability has {r.shape} and losses {loss.shape} values; one of each is needed "
            "for every row."
        )
    if not ((r >= 0) & (r <= 1)).all():
        problems.append("leak_probability must lie in [0, 1] everywhere.")
    if not np.isfinite(loss).all():
        problems.append(f"{int((~np.isfinite(loss)).sum())} losses are missing or infinite.")
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 1:
        problems.append(f"most={most!r} must be a whole number from 1.")
    if problems:
        raise InputError.from_problems("rank_rows", problems)


def _best_mates(pairs: PairTable | None, clusters: Any, n: int) -> tuple[Rows, Floats]:
    mates, chances = np.full(n, -1, dtype=np.intp), np.zeros(n)
    if pairs is None:
        return mates, chances
    if pairs.n != n:
        raise InputError(f"pairs refer to {pairs.n} rows; there are {n}.")
    codes = np.arange(n) if clusters is None else as_codes("clusters", clusters, n)
    both = DirectedPairs.of(*pairs, codes)
    order = np.argsort(both.score, kind="stable")
    mates[both.row[order]] = both.mate[order]  # the last one, the most probable, stays
    chances[both.row[order]] = both.score[order]
    return mates, chances
