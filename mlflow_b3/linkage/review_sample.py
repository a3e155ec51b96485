"""Which rows to have reviewed, and how many."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.splits import Floats, Rows
from mlflow_b3.wording import not_percentage

#: The strata of rows with positive scores, by rising score.
SCORED = ("low", "middle", "high")
UNSCORED = "none"
UNIFORM = "all"
#: The part of the sample that is dealt to strata by their size, whatever the scores say.
PROPORTIONAL = 0.5
#: Rows that score less than this are taken to leak as often: scores miss leaks.
LEAST_RATE = 0.01
#: As long as there are so many, so many rows of each stratum are sampled.
LEAST_ROWS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class ReviewSample:
    """Rows drawn for review, in random order.

    Attributes
    ----------
    rows : array of int
        Row numbers from 0.
    stratum : tuple of str
        The stratum of each of them.
    sizes : mapping of str to int
        How many rows of the table each stratum has.
    n : int
        Number of rows of the table.
    """

    rows: Rows
    stratum: tuple[str, ...]
    sizes: Mapping[str, int]
    n: int

    def __len__(self) -> int:
        """Return the number of sampled rows."""
        return len(self.rows)

    @property
    def strata(self) -> tuple[tuple[str, ...], Mapping[str, int]]:
        """The `strata` of `leak_from_resolved_rows`."""
        return self.stratum, self.sizes


def rows_needed(split_rate: float, delta: float, *, level: float = 0.95) -> int:
    """Return how many rows to review for a leak share that is right within a relative error.

    Parameters
    ----------
    split_rate : float
        σ: a guess of the share of rows whose entity has more than one predicted cluster.
    delta : float
        δ: the relative error, as 0.25 for a quarter of the leak share.
    level : float
        How sure.

    Notes
    -----
    B = (z/δ)²·(1 − σ)/σ for uniform samples, z the normal quantile: 246 rows for σ = 0.2 and
    δ = 0.25, but 1168 for σ = 0.05.
    """
    problems = []
    if not 0 < split_rate < 1:
        problems.append(
            f"split_rate={split_rate!r} must lie between 0 and 1.{not_percentage(split_rate)}"
        )
    if not 0 < delta < math.inf:
        problems.append(f"delta={delta!r} must be a positive relative error.")
    if not 0 < level < 1:
        problems.append(f"level={level!r} must lie between 0 and 1.")
    if problems:
        raise InputError.from_problems("rows_needed", problems)
    z = float(stats.norm.ppf((1 + level) / 2))
    return math.ceil((z / delta) ** 2 * (1 - split_rate) / split_rate)


def sample_rows(n: int, B: int, scores: Any = None, seed: int = 0) -> ReviewSample:
    """Draw rows for review: uniformly, or more of those which scores make suspicious.

    Parameters
    ----------
    n : int
        Number of rows of the table.
    B : int
        Number of rows to review.
    scores : sequence of float, optional
        s_i ≥ 0: how likely each row is to leak, as `LeakEstimate.row_probability` says; it need not
        be right. A good score makes the sample worth more, a bad one less; none makes it biased.
    seed : int

    Returns
    -------
    ReviewSample
        To be laid out by `review_sheet`; its rows are in random order, so that the first ones of
        them are a sample too.

    Notes
    -----
    Strata are the rows without a score, and those with one in three groups of equal sums of √s:
    then N_h·√s̄_h, the measure of Neyman's allocation, is about the same in each, as it is for the
    best cuts (Dalenius and Hodges, doi:10.1080/01621459.1959.10501501). Half of the sample is dealt
    by size: the rows that no score suspects are where leaks hide. The other half goes by
    N_h·√(s̄_h(1 − s̄_h)), with s̄_h at least 0.01.
    """
    check_seed(seed)
    whole = [isinstance(count, (int, np.integer)) and count is not True for count in (n, B)]
    if not all(whole) or not 1 <= B <= n:
        raise InputError(f"B={B!r} rows of n={n!r} cannot be drawn; B must be in 1 … n.")
    rng = np.random.default_rng(seed)
    names, stratum, chance = _strata(n, scores)
    sizes = np.bincount(stratum, minlength=len(names))
    counts = _allocation(sizes, chance, B)
    drawn = [
        rng.choice(np.flatnonzero(stratum == h), count, replace=False)
        for h, count in enumerate(counts.tolist())
    ]
    rows = rng.permutation(np.concatenate(drawn))
    return ReviewSample(
        rows=rows.astype(np.intp),
        stratum=tuple(names[h] for h in stratum[rows].tolist()),
        sizes=dict(zip(names, sizes.tolist(), strict=True)),
        n=int(n),
    )


def _strata(n: int, scores: Any) -> tuple[list[str], Rows, Floats]:
    """Return the names of the strata, the stratum of each row, and the mean score of each."""
    if scores is None:
        return [UNIFORM], np.zeros(n, dtype=np.intp), np.ones(1)
    values = np.asarray(scores, dtype=float)
    if values.shape != (n,):
        raise InputError(
            f"scores has shape {values.shape}; one score for each of {n} rows is needed."
        )
    wrong = ~((values >= 0) & (values < np.inf))
    if wrong.any():
        raise InputError(f"scores: {int(wrong.sum())} are missing, negative or infinite.")
    stratum = np.zeros(n, dtype=np.intp)
    ranked = np.sort(values[values > 0])
    if len(ranked):
        mass = np.cumsum(np.sqrt(ranked))
        parts = np.arange(1, len(SCORED)) / len(SCORED)
        cuts = ranked[np.searchsorted(mass, mass[-1] * parts)]
        stratum[values > 0] = 1 + np.searchsorted(cuts, values[values > 0])
    used, stratum = np.unique(stratum, return_inverse=True)
    names = [(UNSCORED, *SCORED)[h] for h in used]
    means = np.bincount(stratum, values) / np.bincount(stratum)
    return names, stratum.astype(np.intp), means


def _allocation(sizes: Rows, chance: Floats, count: int) -> Rows:
    """Return how many rows of each stratum are sampled."""
    rate = np.clip(chance, LEAST_RATE, 0.5)
    spread = sizes * np.sqrt(rate * (1 - rate))
    wanted = count * (
        PROPORTIONAL * sizes / sizes.sum() + (1 - PROPORTIONAL) * spread / spread.sum()
    )
    least = np.minimum(sizes, LEAST_ROWS if len(sizes) > 1 else 1)
    if least.sum() > count:
        raise InputError(
            f"B={count} rows are too few for {len(sizes)} strata; draw {int(least.sum())} or more, or "
            "leave out scores."
        )
    given: Rows = np.clip(np.floor(wanted).astype(np.intp), least, sizes)
    while given.sum() != count:
        step = 1 if given.sum() < count else -1
        free = given < sizes if step > 0 else given > least
        given[np.argmax(np.where(free, step * (wanted - given), -np.inf))] += step
    return given
