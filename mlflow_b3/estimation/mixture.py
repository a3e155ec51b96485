"""An upper bound on p0 from the rows themselves: how much of T̂ can look like V̂."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE
from mlflow_b3.estimation.separation import design_effect, encode, score_sides
from mlflow_b3.results import Result

#: Shares of V̂ that the sets A hold: its most validation-like 5 %, 10 % … 90 %.
SET_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAST_ROWS = 20
MOST_ROWS = 2000  # of a side; more make the classifier slow and the bound hardly smaller
DRAWS = 5000

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class P0Bound(Result):
    """An upper confidence bound on p0, the share of T̂ that belongs to the validation clusters.

    Attributes
    ----------
    p0_upper : float
        p0 is at most this; 1 when the rows exclude nothing.
    confidence : float
        How often, at least, such a bound holds.
    threshold_share : float
        Share of V̂ in the set A that decided: the most validation-like rows.
    n_training, n_validation : int
        Rows of T̂ and V̂; sums where several folds were bounded together.
    design_effect : float
        By how much rows that may have been misplaced together count for fewer; 1 when rows are
        misplaced one by one.
    vacuous : bool
        The bound excludes no share that would be considered without evidence: half of the
        training rows; in an audit where as many rows leak back, wrong ids on half of all rows.
    """

    p0_upper: float
    confidence: float
    threshold_share: float
    n_training: int
    n_validation: int
    design_effect: float
    vacuous: bool

    @property
    def statement(self) -> str:
        """What the bound says, in plain words."""
        share = f"{100 * self.p0_upper:.3g} %"
        if self.vacuous:
            return (
                "The rows do not tell how many of them leaked: too many training rows look like "
                "validation rows, because the clusters are alike or because rows leaked. A bound "
                f"of {share} of the training rows excludes nothing that would be considered "
                "without it."
            )
        how = "one by one" if self.design_effect == 1 else "together with others of their id"
        return (
            f"At most {share} of the training rows belong to the validation clusters "
            f"({100 * self.confidence:.3g} % confidence, if rows are misplaced {how}): no more of "
            "them look like validation rows. It does not say that any row leaked."
        )


def bound_p0(
    training: Any,
    validation: Any,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    clusters: tuple[Sequence[Any], Sequence[Any]] | None = None,
) -> P0Bound:
    """Bound p0 from above by mixture-proportion estimation.

    T̂ = (1-p0)·P_T + p0·P_V and V̂ ~ P_V, laws of features *and* target. For every set A,
    T̂(A) ≥ p0·V̂(A), so

        p0 ≤ min over A of T̂(A)/V̂(A).

    The sets are {x: score(x) ≥ c}, with the out-of-fold score of a classifier of T̂ versus V̂ (extra
    trees), and with c at the 5 % … 90 % most validation-like rows of V̂.

    Parameters
    ----------
    training, validation : DataFrame or two-dimensional array
        Rows of T̂ and of V̂ with the same columns, the target among them, the cluster id not. Numbers,
        dates and text may be mixed, and values may be missing.
    confidence : float
    seed : int
    clusters : (ids of training rows, ids of validation rows), optional
        Give the ids if rows of an id may have been misplaced together, as fragments of a cluster.
        They are then held out together, and counted as fewer.

    Returns
    -------
    P0Bound

    Notes
    -----
    *Guarantee.* Rows that are misplaced one by one are a random sample of the rows of the
    validation clusters. Suppose M = p0·|T̂| of them are in T̂. For a fixed score, the number K_r of
    leaked rows that score above the r-th validation row is then distributed as in a random order of
    M + |V̂| rows (beta-binomial with M, r, |V̂|+1-r), whatever the laws and however alike the rows of a
    cluster are; other rows of T̂ can only add to the count. An M is rejected when the smallest
    p-value of K_r over r is among the lowest 1 - `confidence` of its distribution, which is
    simulated jointly for all r. The bound is the largest M that is not rejected, divided by |T̂|. Departing from
    intervals for both shares with a Bonferroni correction for each set, this needs neither.

    The score of a row comes from a model that was not trained on it. That the models of different
    folds share rows is not covered by the argument. In simulations where leaked rows cannot be told
    apart at all and everything else can, it made the counts vary more (standard deviation up to 1.2
    times) and larger on average (by 0.3 standard deviations, the safe side).

    *What it bounds.* The share p0 of these rows of T̂, plus (1-p0)·κ with κ the smallest P_T(A)/P_V(A)
    that was found: where clusters come from one population κ is near 1 and the bound is vacuous.
    It is called so from `LARGEST_SHARE` on, beyond which `search_p0` does not look either.

    *Leakage in both directions.* With V̂ = (1-p_V)·P_V + p_V·P_T and x = P_T(A)/P_V(A),

        T̂(A)/V̂(A) = [(1-p_T)·x + p_T] / [p_V·x + 1-p_V],

    whose derivative in x has the sign of 1-p_T-p_V. As long as p_T + p_V < 1 the ratio is therefore
    at least p_T/(1-p_V) ≥ p_T: it bounds p_T/(1-p_V), and p_T all the more. Where as many rows leak
    back, p_V = p_T·|T̂|/|V̂|, and p_T ≤ U/(1 + U·|T̂|/|V̂|) follows from the bound U.

    *Rows misplaced together* are not a random sample of rows. With `clusters`, all counts are
    divided by the design effect 1 + (m-1)·ρ of belonging to A, with m the size of the clusters of V̂
    and ρ their intraclass correlation, the largest over sets. It is an approximation, and assumes
    that no more rows than a cluster of V̂ has are misplaced together.
    """
    check_seed(seed)
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence!r} must lie between 0 and 1.")
    sides = _frames(training, validation)
    ids = None if clusters is None else _ids(clusters, sides)
    return bound_sides(
        lambda side, rows: sides[side].iloc[rows],
        (len(sides[0]), len(sides[1])),
        confidence=confidence,
        seed=seed,
        ids=ids,
    )


def bound_sides(
    take: Callable[[int, NDArray[np.intp]], pd.DataFrame],
    sizes: tuple[int, int],
    *,
    confidence: float,
    seed: int,
    ids: Sequence[NDArray[np.intp]] | None = None,
) -> P0Bound:
    """Bound p0 as `bound_p0` does, where `take(side, rows)` gives some rows of T̂ (0) or V̂ (1)."""
    rng = np.random.default_rng(seed)
    kept = [np.sort(rng.permutation(size)[:MOST_ROWS]) for size in sizes]
    features = encode(*(take(side, rows) for side, rows in enumerate(kept)))
    is_validation = np.repeat([False, True], [len(rows) for rows in kept])
    groups = None
    if ids is not None:
        groups = np.concatenate([side[rows] for side, rows in zip(ids, kept, strict=True)])
    scores = score_sides(features, is_validation, groups, rng)
    ranks, counts, inside = _count(scores, is_validation)
    effect = 1.0 if groups is None else design_effect(inside, groups[is_validation])
    share, index = _largest_share(
        ranks / effect,
        np.ceil(counts / effect).astype(np.int64),
        sizes=(len(kept[0]) / effect, len(kept[1]) / effect, sizes[0] / effect),
        level=1 - confidence,
        rng=rng,
    )
    return P0Bound(
        p0_upper=share,
        confidence=confidence,
        threshold_share=float(ranks[index] / len(kept[1])),
        n_training=sizes[0],
        n_validation=sizes[1],
        design_effect=effect,
        vacuous=share >= LARGEST_SHARE,
    )


def _frames(training: Any, validation: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    frames = []
    for name, side in (("training", training), ("validation", validation)):
        frame = side if isinstance(side, pd.DataFrame) else np.asarray(side)
        if frame.ndim != 2:
            raise InputError(f"{name} has {frame.ndim} dimensions; give rows and columns.")
        frame = pd.DataFrame(frame).rename(columns=str)
        if len(frame) < LEAST_ROWS:
            raise InputError(
                f"{name} has {len(frame)} rows; the least for a bound on p0 is {LEAST_ROWS}."
            )
        frames.append(frame)
    first, second = frames
    if sorted(first.columns) != sorted(second.columns) or first.columns.has_duplicates:
        odd = sorted(set(first.columns) ^ set(second.columns))
        raise InputError(
            "training and validation must have the same columns, each once"
            + (f"; {odd} are on one side only." if odd else ".")
        )
    second = second[first.columns]
    empty = [name for name in first if first[name].isna().all() and second[name].isna().all()]
    if empty or not len(first.columns):
        raise InputError(
            f"columns {empty} have no value in any row; drop them."
            if empty
            else "training and validation have no columns."
        )
    return first, second


def _ids(clusters: Any, sides: tuple[pd.DataFrame, pd.DataFrame]) -> list[NDArray[np.intp]]:
    if len(clusters) != 2 or any(
        len(ids) != len(side) for ids, side in zip(clusters, sides, strict=True)
    ):
        raise InputError(
            "clusters must be a pair: an id for each training row, and one for each validation row "
            f"({len(sides[0])} and {len(sides[1])} of them)."
        )
    codes = pd.factorize(pd.Series([*clusters[0], *clusters[1]], dtype=object))[0]
    first, second = np.split(codes, [len(sides[0])])
    if (codes < 0).any() or np.intersect1d(first, second).size or np.ptp(second) == 0:
        raise InputError(
            "clusters must name an id for every row, none of them on both sides, and at least two "
            "on the validation side: with one, nothing tells how alike the rows of an id are."
        )
    return [first, second]


def _count(
    scores: Array, is_validation: NDArray[np.bool_]
) -> tuple[Counts, Counts, NDArray[np.bool_]]:
    """Return r, the training rows above the r-th validation row, and which of V̂ are in each A."""
    own = scores[is_validation]
    ranks = np.unique(np.maximum(1, (np.array(SET_SHARES) * len(own)).astype(np.int64)))
    limits = np.sort(own)[::-1][ranks - 1]
    counts = (scores[~is_validation][:, None] > limits).sum(axis=0)
    return ranks, counts, own[:, None] >= limits


def _largest_share(
    ranks: Array,
    counts: Counts,
    *,
    sizes: tuple[float, float, float],
    level: float,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """Return the largest M/|T̂| that is not rejected, and which set speaks most against more."""
    sampled, n_validation, whole = sizes
    total = max(1, round(whole))
    drawn = min(total, max(1, round(sampled)))
    steps = np.diff(np.concatenate([[0.0], ranks, [n_validation + 1]]))
    parts = rng.dirichlet(steps, size=DRAWS)
    state = int(rng.integers(2**31))

    def against(leaked: int) -> tuple[bool, int]:
        """Return whether M = `leaked` is rejected, and by which set."""
        again = np.random.default_rng(state)
        # a subsample of T̂ holds a random number of the leaked rows; all of T̂ holds all of them
        present = again.hypergeometric(leaked, total - leaked, drawn, size=DRAWS)
        simulated = again.multinomial(present, parts).cumsum(axis=1)[:, :-1]
        usual = round(leaked * drawn / total)
        numbers = np.arange(usual + 1)
        chances = [
            stats.betabinom.pmf(numbers, usual, r, n_validation + 1 - r).cumsum() for r in ranks
        ]
        observed = [table[min(k, usual)] for table, k in zip(chances, counts, strict=True)]
        smallest = np.min(
            [table[np.minimum(simulated[:, i], usual)] for i, table in enumerate(chances)], axis=0
        )
        index = int(np.argmin(observed))
        as_small = int((smallest <= observed[index] * (1 + 1e-9)).sum())
        return (1 + as_small) / (1 + DRAWS) <= level, index

    rejected, decisive = against(total)
    if not rejected:
        return 1.0, decisive
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        rejected, index = against(middle)
        if rejected:
            high, decisive = middle, index
        else:
            low = middle
    return low / total, decisive
