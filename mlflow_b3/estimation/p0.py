"""p0 from the data: the papers' grid search, and the mixture bound."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from mlflow_b3.data.folds import Fold, RowNumbers
from mlflow_b3.data.table import AuditData, is_plain
from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.estimation.bounds import CONFIDENCE, check_shape, highest_line, lower_limit
from mlflow_b3.estimation.estimate import (
    Method,
    Number,
    as_method,
    check_bound,
    fit_all,
    fit_curve,
    is_accurate,
    residual_of,
)
from mlflow_b3.estimation.problem import Extrapolation, LeakShares, unmix
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

# --- p0 from the loss curve alone: the papers' grid search and its limits

MOST_CANDIDATES = 100
#: An audit does not search p0 above this value, at which half of the training rows would be leaked.
LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class P0Search(Result):
    """The residual profile of algorithm 2, or of algorithm 4 for both directions.

    Attributes
    ----------
    p0 : tuple of float
        The candidates; for both directions, p_T of every pair.
    residual : tuple of float
        ‖fitted - measured‖₂ for each candidate.
    p0_star : float
        The candidate with the smallest residual, as the papers define it.
    identified : tuple of float
        The smallest and the largest p0 that the curve does not exclude, because their lower
        confidence limit for e_0 is a possible loss. This assumes a decreasing and convex curve. If
        that shape is rejected or the loss has no bound, no candidate is excluded.
    flat : bool
        Whether the residuals of all identified candidates agree within the noise. If so, `p0_star`
        is not an estimate of p0.
    noise : float
        The expected residual from noise alone, ‖stderr‖₂.
    accurate : bool
        False if a solver's result for one of the candidates could not be confirmed.
    p0_validation : tuple of float or None
        For both directions, p_V of every pair.
    p0_validation_star : float or None

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> search = b3.search_p0(curve, p0=[0, 0.1, 0.2])
    >>> len(search.residual), search.p0_star in search.p0
    (3, True)
    """

    p0: tuple[float, ...]
    residual: tuple[float, ...]
    p0_star: float
    identified: tuple[float, float]
    flat: bool
    noise: float = 0.0
    accurate: bool = True
    p0_validation: tuple[float, ...] | None = None
    p0_validation_star: float | None = None

    @property
    def estimated(self) -> float | None:
        """p0* if the profile distinguishes the candidates, else None."""
        return None if self.flat else self.p0_star

    @property
    def statement(self) -> str:
        """The result of the search as a sentence."""
        low, high = self.identified
        excluded = (
            f"The curve excludes only p0 above {high:.3g}"
            if high < max(self.p0)
            else "The curve excludes no p0"
        )
        if self.flat:
            return (
                f"The loss curve does not tell p0: the residual is the same within the noise for "
                f"every p0 from {low:.3g} to {high:.3g}. p0* = {self.p0_star:.3g} is where the "
                f"smallest residual happened to fall, not an estimate. {excluded}."
            )
        return (
            f"The smallest residual is at p0* = {self.p0_star:.3g}, and the residual differs by "
            f"more than the noise between p0 = {low:.3g} and {high:.3g}. What the loss curve "
            "measures does not depend on p0, so the difference comes from the smoothing and the "
            f"constraints of the method. {excluded}."
        )


def search_p0(
    curve: LossCurve,
    method: str | Method = "auto",
    *,
    p0: Sequence[Number] | None = None,
    p0_validation: Sequence[Number] | None = None,
    bound: float | None = None,
    **options: Any,
) -> P0Search:
    """Search the leaked share whose fitted curve leaves the smallest residual.

    Parameters
    ----------
    curve : LossCurve
    method, bound, **options
        As in `estimate`.
    p0 : sequence of float, optional
        The candidates. The default is 0, 1/n', 2/n', … (n'-1)/n', with at most a hundred values.
    p0_validation : sequence of float, optional
        Candidates for p_V. Every pair with a candidate p0 is tried (algorithm 4). By default p_V = 0
        (algorithm 2).

    Notes
    -----
    The measured losses depend only on the injected share. Another candidate p0 relabels the axis
    affinely, and polynomials stay polynomials. The residual of unconstrained solvers is therefore
    the same for every candidate, and assumption 1 of the papers, which the consistency of p0*
    requires, does not hold for smooth curves. The curve can exclude a p0 that is so large that a
    decreasing and convex curve would rise above the largest possible loss; `identified` gives the
    candidates that remain. One set of refits serves all candidates, so the search needs no more
    refits than a single candidate. For both directions the residual is that of the unmixed curve,
    in the units of the measured one.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> search = b3.search_p0(curve, p0=[0, 0.1, 0.2], bound=1.0)
    >>> search.flat, search.identified
    (True, (0.0, 0.2))
    """
    chosen = as_method(method, **options)
    check_bound(bound)
    candidates = _candidates("p0", p0, curve.n_train)
    p_validation = (
        np.zeros(1) if p0_validation is None else _candidates("p0_validation", p0_validation, 1)
    )
    pairs = [(float(t), float(v)) for t in candidates for v in p_validation if t + v < 1]
    shares = [LeakShares(p0=t, p0_validation=v) for t, v in pairs]
    first = unmix(curve, shares[0])
    if chosen.name == "power" and p0_validation is None:  # candidates differ in their target only
        fits = [fit_curve(first, chosen)]
        residual = np.full(len(pairs), residual_of(fits[0], first))
        highest = highest_line(first, -candidates / (1 - candidates) / curve.exhausted_at)
    else:
        problems = [first, *(unmix(curve, share) for share in shares[1:])]
        fits = fit_all(problems, chosen)
        shrink = [(1 - t - v) / (1 - t) for t, v in pairs]
        each = zip(shrink, fits, problems, strict=True)
        residual = np.array([s * residual_of(f, p) for s, f, p in each])
        highest = np.array([highest_line(p, np.array([p.target]))[0] for p in problems])
    possible = np.ones(len(pairs), dtype=bool)
    if bound is not None:
        for place in np.flatnonzero(highest > bound).tolist():
            possible[place] = _allows_possible_loss(unmix(curve, shares[place]), bound)
    if not possible.any():  # the curve excludes every candidate, so it tells nothing about p0
        possible[:] = True
    kept = residual[possible]
    best = int(np.argmin(residual))
    noise = float(np.linalg.norm(first.stderr))
    forward = np.array([t for t, _ in pairs])
    return P0Search(
        p0=tuple(forward.tolist()),
        residual=tuple(residual.tolist()),
        p0_star=pairs[best][0],
        identified=(float(forward[possible].min()), float(forward[possible].max())),
        flat=bool(np.ptp(kept) <= noise),
        noise=noise,
        accurate=all(map(is_accurate, fits)),
        p0_validation=None if p0_validation is None else tuple(v for _, v in pairs),
        p0_validation_star=None if p0_validation is None else pairs[best][1],
    )


def _candidates(name: str, values: Sequence[Number] | None, n_train: int) -> NDArray[np.float64]:
    if values is None:
        count = min(n_train, MOST_CANDIDATES)
        return np.arange(count) / count
    try:
        grid = np.asarray(values, float)
    except (TypeError, ValueError):
        grid = np.zeros((0,))
    inside = bool(((grid >= 0) & (grid < 1)).all())  # False for NaN
    if grid.ndim != 1 or not len(grid) or not inside or (np.diff(grid) <= 0).any():
        raise InputError(
            f"{name}={values!r} must be a non-empty, increasing sequence of candidates in [0, 1)."
        )
    return grid


def _allows_possible_loss(problem: Extrapolation, bound: float) -> bool:
    """Return whether the lower limit of e_0 is a possible loss."""
    shape = check_shape(problem)
    if not (shape.decreasing and shape.convex):
        return True
    return lower_limit(problem, 1 - (1 - CONFIDENCE) / 2) <= bound


# --- How well a classifier separates the rows of the two sides of a fold

CROSS_FITS = 5
TREES = 50
LEAF = 5

Array = NDArray[np.float64]


def encode(first: pd.DataFrame, second: pd.DataFrame) -> Array:
    """Encode the rows of both sides as numbers that do not depend on the side.

    Each value becomes its rank among the distinct values of its column (text in alphabetical
    order). A column with missing values gets an additional indicator column.
    """
    columns = []
    for name in first.columns:
        values, missing = _plain_values(first[name], second[name])
        codes = np.zeros(len(values))
        codes[~missing] = np.unique(values[~missing], return_inverse=True)[1]
        if missing.any():
            codes[missing] = 0.0 if missing.all() else np.median(codes[~missing])
            columns.append(missing.astype(float))
        columns.append(codes)
    return np.column_stack(columns)


def _plain_values(
    first: "pd.Series[Any]", second: "pd.Series[Any]"
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    sides = (first, second)
    missing = np.concatenate([side.isna().to_numpy(dtype=bool) for side in sides])
    if all(pd.api.types.is_numeric_dtype(side) for side in sides):
        numbers = [side.to_numpy(dtype=float, na_value=np.nan) for side in sides]
        return np.concatenate(numbers), missing
    if all(pd.api.types.is_datetime64_any_dtype(side) for side in sides):
        dates = [side.to_numpy(dtype="datetime64[ns]").astype(np.int64) for side in sides]
        return np.concatenate(dates), missing
    return np.array([str(value) for side in sides for value in side]), missing


def score_sides(
    features: Array,
    is_validation: NDArray[np.bool_],
    groups: NDArray[np.intp] | None,
    rng: np.random.Generator,
) -> Array:
    """Return a score of how validation-like each row is, from models that were not trained on it.

    Parameters
    ----------
    features : array
    is_validation : array of bool
        The side of each row.
    groups : array or None
        Rows of a group are held out together.
    rng : numpy.random.Generator
    """
    state = int(rng.integers(2**31))
    if groups is None:
        folds = StratifiedKFold(CROSS_FITS, shuffle=True, random_state=state)
    else:
        fewest = min(len(np.unique(groups[side])) for side in (is_validation, ~is_validation))
        folds = StratifiedGroupKFold(
            max(2, min(CROSS_FITS, fewest)), shuffle=True, random_state=state
        )
    scores = np.empty(len(features))
    for known, held_out in folds.split(features, is_validation, groups):
        trees = ExtraTreesClassifier(
            TREES, min_samples_leaf=LEAF, random_state=int(rng.integers(2**31))
        )
        trees.fit(features[known], is_validation[known])
        chances = trees.predict_proba(features[held_out])
        scores[held_out] = chances[:, 1] if chances.shape[1] == 2 else float(trees.classes_[0])
    # break ties at random, so that their order does not depend on the side
    return np.asarray(stats.rankdata(scores) + rng.uniform(-0.25, 0.25, len(scores)))


def design_effect(inside: NDArray[np.bool_], ids: NDArray[np.intp]) -> float:
    """Return the largest design effect 1 + (m-1)·ρ over the sets, by analysis of variance."""
    _, codes, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    rows, groups = len(ids), len(sizes)
    typical = float(np.sum(sizes**2) / rows)
    if rows == groups:
        return 1.0
    effects = []
    for member in inside.T.astype(float):
        means = np.bincount(codes, member) / sizes
        within = float(np.sum((member - means[codes]) ** 2)) / (rows - groups)
        between = float(np.sum(sizes * (means - member.mean()) ** 2)) / (groups - 1)
        spread = (rows - typical) / (groups - 1)
        variance = max(0.0, (between - within) / spread)
        effects.append(1 + (typical - 1) * variance / max(variance + within, 1e-12))
    return max(effects)


# --- An upper bound on p0 from the rows themselves: how much of T̂ looks like V̂

#: Shares of V̂ in the sets A: its most validation-like 5%, 10% … 90%.
SET_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAST_ROWS = 20
MOST_ROWS = 2000  # of a side; more rows slow the classifier down and hardly tighten the bound
DRAWS = 5000

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class P0Bound(Result):
    """An upper confidence bound on p0, the share of T̂ that belongs to the validation clusters.

    Attributes
    ----------
    p0_upper : float
        The upper bound; 1 if the rows exclude nothing.
    confidence : float
        The bound holds with at least this probability.
    threshold_share : float
        Share of V̂ in the decisive set A of most validation-like rows.
    n_training, n_validation : int
        Numbers of rows of T̂ and V̂; sums if several folds were bounded together.
    design_effect : float
        The factor by which rows that may have been misplaced together reduce the effective number
        of rows; 1 if rows are misplaced one by one.
    vacuous : bool
        Whether the bound excludes no share that would be considered without evidence. The limit is
        half of the training rows or, in an audit where the same number of rows leaks back, wrong
        ids on half of all rows.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bound = b3.bound_p0(rng.normal(0, 1, (60, 2)), rng.normal(0, 1, (40, 2)))
    >>> bound.vacuous, bound.n_training, bound.n_validation
    (True, 60, 40)
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
        """The bound as a sentence."""
        share = f"{100 * self.p0_upper:.3g}%"
        if self.vacuous:
            return (
                "The rows do not reveal how many of them leaked: too many training rows look like "
                "validation rows, because the clusters are alike or because rows leaked. A bound "
                f"of {share} of the training rows excludes nothing that would be considered "
                "without it."
            )
        how = "one by one" if self.design_effect == 1 else "together with others of their id"
        return (
            f"At most {share} of the training rows belong to the validation clusters "
            f"({100 * self.confidence:.3g}% confidence, if rows are misplaced {how}): no more of "
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

    The sets are {x: score(x) ≥ c}, where score is the out-of-fold score of a classifier of T̂ versus
    V̂ (extra trees) and c cuts off the 5% … 90% most validation-like rows of V̂.

    Parameters
    ----------
    training, validation : DataFrame or two-dimensional array
        Rows of T̂ and of V̂ with the same columns. Include the target and leave out the cluster id.
        Numbers, dates and text may be mixed, and values may be missing.
    confidence : float
    seed : int
    clusters : (ids of training rows, ids of validation rows), optional
        Give the ids if rows of one id may have been misplaced together, as fragments of a cluster.
        They are then held out together, and count as fewer rows.

    Returns
    -------
    P0Bound

    Notes
    -----
    *Guarantee.* Rows that are misplaced one by one are a random sample of the rows of the
    validation clusters. Suppose M = p0·|T̂| of them are in T̂. For a fixed score, the number K_r of
    leaked rows that score above the r-th validation row is then distributed as in a random order of
    M + |V̂| rows (beta-binomial with M, r, |V̂|+1-r). This holds for any laws, and for any similarity
    of the rows of a cluster; other rows of T̂ can only add to the count. An M is rejected if the
    smallest p-value of K_r over r is among the lowest 1 - `confidence` of its distribution, which is
    simulated jointly for all r. The bound is the largest M that is not rejected, divided by |T̂|.
    It needs neither intervals for both shares nor a Bonferroni correction over the sets.

    The score of a row comes from a model that was not trained on it. The argument does not cover
    that the models of different folds share training rows. In simulations in which leaked rows are
    indistinguishable and everything else is separable, sharing made the counts more variable
    (standard deviation up to 1.2 times as large) and larger on average (by 0.3 standard deviations,
    which is the safe side).

    *What it bounds.* The share p0 of these rows of T̂, plus (1-p0)·κ, where κ is the smallest
    P_T(A)/P_V(A) that was found. If all clusters come from one population, κ is near 1 and the bound
    is vacuous. It is called vacuous from `LARGEST_SHARE` on, the largest share that `search_p0`
    considers.

    *Leakage in both directions.* With V̂ = (1-p_V)·P_V + p_V·P_T and x = P_T(A)/P_V(A),

        T̂(A)/V̂(A) = [(1-p_T)·x + p_T] / [p_V·x + 1-p_V],

    whose derivative in x has the sign of 1-p_T-p_V. If p_T + p_V < 1, the ratio is therefore at
    least p_T/(1-p_V) ≥ p_T, so it bounds p_T/(1-p_V) and hence p_T. If the same number of rows leaks
    back, p_V = p_T·|T̂|/|V̂|, and p_T ≤ U/(1 + U·|T̂|/|V̂|) follows from the bound U.

    *Rows misplaced together* are not a random sample of rows. With `clusters`, all counts are
    divided by the design effect 1 + (m-1)·ρ of membership in A, where m is the size of the clusters
    of V̂ and ρ their intraclass correlation; the largest effect over the sets is used. This is an
    approximation. It assumes that rows misplaced together are no more than a cluster of V̂ has.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> training = rng.normal(0, 1, (200, 2))
    >>> validation = rng.normal(4, 1, (100, 2))
    >>> bound = b3.bound_p0(training, validation)
    >>> bound.p0_upper < 0.2, bound.vacuous
    (True, False)
    """
    check_seed(seed)
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence!r} must lie between 0 and 1.")
    sides = _as_frames(training, validation)
    ids = None if clusters is None else _as_cluster_codes(clusters, sides)
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
    """Bound p0 as `bound_p0` does; `take(side, rows)` returns the given rows of T̂ (0) or V̂ (1)."""
    rng = np.random.default_rng(seed)
    kept = [np.sort(rng.permutation(size)[:MOST_ROWS]) for size in sizes]
    features = encode(*(take(side, rows) for side, rows in enumerate(kept)))
    is_validation = np.repeat([False, True], [len(rows) for rows in kept])
    groups = None
    if ids is not None:
        groups = np.concatenate([side[rows] for side, rows in zip(ids, kept, strict=True)])
    scores = score_sides(features, is_validation, groups, rng)
    ranks, counts, inside = _count_in_sets(scores, is_validation)
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


def _as_frames(training: Any, validation: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    frames = []
    for name, side in (("training", training), ("validation", validation)):
        frame = side if isinstance(side, pd.DataFrame) else np.asarray(side)
        if frame.ndim != 2:
            raise InputError(f"{name} has {frame.ndim} dimensions; give rows and columns.")
        frame = pd.DataFrame(frame).rename(columns=str)
        if len(frame) < LEAST_ROWS:
            raise InputError(
                f"{name} has {len(frame)} rows; a bound on p0 needs at least {LEAST_ROWS}."
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


def _as_cluster_codes(
    clusters: Any, sides: tuple[pd.DataFrame, pd.DataFrame]
) -> list[NDArray[np.intp]]:
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
            "clusters must give an id for every row, no id on both sides, and at least two ids on "
            "the validation side: with one, the similarity of rows of an id cannot be estimated."
        )
    return [first, second]


def _count_in_sets(
    scores: Array, is_validation: NDArray[np.bool_]
) -> tuple[Counts, Counts, NDArray[np.bool_]]:
    """Return r, the number of training rows above the r-th validation row, and V̂'s members of each A."""
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
    """Return the largest M/|T̂| that is not rejected, and the set that is decisive against more."""
    sampled, n_validation, whole = sizes
    total = max(1, round(whole))
    drawn = min(total, max(1, round(sampled)))
    steps = np.diff(np.concatenate([[0.0], ranks, [n_validation + 1]]))
    parts = rng.dirichlet(steps, size=DRAWS)
    state = int(rng.integers(2**31))

    def test_leaked(leaked: int) -> tuple[bool, int]:
        """Return whether M = `leaked` is rejected, and the decisive set."""
        stream = np.random.default_rng(state)
        # a subsample of T̂ contains a random number of the leaked rows; T̂ itself contains them all
        present = stream.hypergeometric(leaked, total - leaked, drawn, size=DRAWS)
        simulated = stream.multinomial(present, parts).cumsum(axis=1)[:, :-1]
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

    rejected, decisive = test_leaked(total)
    if not rejected:
        return 1.0, decisive
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        rejected, index = test_leaked(middle)
        if rejected:
            high, decisive = middle, index
        else:
            low = middle
    return low / total, decisive


# --- The mixture bound on p0 over the folds of an audit


def bound_folds(
    data: AuditData, folds: Sequence[Fold], *, p0_validation: float | None = None, seed: int = 0
) -> P0Bound:
    """Bound the p0 of an audit: the mean over folds, weighted by validation rows.

    Each fold is bounded at level 1 - 0.05/folds, so all bounds hold together with 95% confidence.
    Their mean then bounds the mean over folds, which an audit calls p0, even if leakage differs
    between folds. A fold with too few rows gets the bound 1.

    Parameters
    ----------
    data : AuditData
        The cluster id is not used as a feature, even if the model uses it, because it may be wrong.
    folds : sequence of Fold
        The folds of one assignment of clusters.
    p0_validation : float, optional
        p_V. By default the same number of rows leaks back, p_V = p_T·|T̂|/|V̂|. A fold's bound U
        holds for p_T/(1-p_V), so it becomes U·(1-p_V) or U/(1 + U·|T̂|/|V̂|).
    seed : int

    Notes
    -----
    The bound is vacuous unless it is below `largest_share`.
    """
    rows = _columns(data)
    sizes = np.array([[len(fold.training), len(fold.validation)] for fold in folds], dtype=float)
    weights = sizes[:, 1] / sizes[:, 1].sum()
    level = 1 - (1 - CONFIDENCE) / len(folds)
    seeds = np.random.SeedSequence(seed).generate_state(len(folds))
    upper, shares = np.ones(len(folds)), np.zeros(len(folds))
    gaps = {n: c.isna().to_numpy(dtype=bool) for n, c in rows.items() if c.hasnans}
    for number, fold in enumerate(folds):
        sides = (fold.training, fold.validation)
        empty = [name for name, gap in gaps.items() if all(gap[side].all() for side in sides)]
        known = {name: column for name, column in rows.items() if name not in empty}
        if sizes[number].min() >= LEAST_ROWS and known:
            bound = bound_sides(
                partial(_take_rows, known, sides),
                (len(fold.training), len(fold.validation)),
                confidence=level,
                seed=int(seeds[number]),
            )
            upper[number], shares[number] = bound.p0_upper, bound.threshold_share
    if p0_validation is None:
        upper = upper / (1 + upper * sizes[:, 0] / sizes[:, 1])
    else:
        upper = upper * (1 - p0_validation)
    mean = float(weights @ upper)
    return P0Bound(
        p0_upper=mean,
        confidence=CONFIDENCE,
        threshold_share=float(weights @ shares),
        n_training=int(sizes[:, 0].sum()),
        n_validation=int(sizes[:, 1].sum()),
        design_effect=1.0,
        vacuous=mean >= largest_share(folds, p0_validation),
    )


def largest_share(folds: Sequence[Fold], p0_validation: float | None = None) -> float:
    """Return the largest p0 that an audit considers without evidence.

    If the same number of rows leaks back, it is the share for wrong ids on half of all rows: the
    mean of |V̂|/2N over folds, where sensitivity curves end. Otherwise it is half of the training
    rows, where `search_p0` ends, for p_T/(1-p_V).
    """
    if p0_validation is not None:
        return LARGEST_SHARE * (1 - p0_validation)
    sizes = np.array([[len(fold.training), len(fold.validation)] for fold in folds], dtype=float)
    return float(sizes[:, 1] @ (sizes[:, 1] / sizes.sum(axis=1)) / sizes[:, 1].sum() / 2)


def _columns(data: AuditData) -> dict[str, "pd.Series[Any]"]:
    """Return features and target by name, without the cluster id and without lists or arrays."""
    features = data.features
    framed = isinstance(features, pd.DataFrame)
    columns = {
        name: features.iloc[:, place] if framed else pd.Series(features[:, place])
        for place, name in enumerate(data.feature_names)
        if name not in (data.cluster_name, data.target_name)
    }
    columns = {name: column for name, column in columns.items() if is_plain(column)}
    return {**columns, data.target_name: pd.Series(data.target)}


def _take_rows(
    columns: dict[str, "pd.Series[Any]"],
    sides: tuple[RowNumbers, RowNumbers],
    side: int,
    rows: RowNumbers,
) -> pd.DataFrame:
    """Return the given rows of one side of a fold."""
    chosen = sides[side][rows]
    return pd.DataFrame({name: column.iloc[chosen] for name, column in columns.items()})
