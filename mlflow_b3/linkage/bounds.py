"""What match-and-merge, and any linkage at all, can do at best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import xlogy

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.leak import Floats, LeakEstimate, LeakShare, Rows, as_codes
from mlflow_b3.linkage.pairs import PairTable
from mlflow_b3.results import Result, not_percentage

# --- Lower limits of the precision and recall of match-and-merge, from labelled pairs

Counts = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MatchMergeBounds(Result):
    """What the pairs within predicted clusters are worth, at least.

    Attributes
    ----------
    precision_low : float
        Lower limit of the share of true pairs among the pairs in one predicted cluster.
    recall_low : float
        Lower limit of the share of the true pairs that are in one predicted cluster.
    level : float
        Confidence of each limit by itself.
    method : {"labelled pairs", "reviewed matches"}
        Where the precision of matches comes from: shifted from labelled pairs to the true share of
        matches, or reviewed directly.
    match_precision : float
        Share of true pairs among the matched pairs, without allowance for chance.
    match_recall : float
        Share of the labelled true pairs that match.
    true_share : float or None
        C_X, the share of true pairs among all pairs: as given, or from the reviewed matches.
    n_matched, n_together : int
        |X_M| pairs that match directly, |X_Ŷ| pairs in one predicted cluster.
    n_pairs : int
        All pairs of rows.
    """

    precision_low: float
    recall_low: float
    level: float
    method: str
    match_precision: float
    match_recall: float
    true_share: float | None
    n_matched: int
    n_together: int
    n_pairs: int


def shifted_precision(precision: float, labelled_share: float, true_share: float) -> float:
    """Return the precision among pairs with another share of matches.

    Parameters
    ----------
    precision : float
        P: share of true matches among the labelled pairs that match.
    labelled_share : float
        C_V: share of true matches among the labelled pairs.
    true_share : float
        C_X: the share among the pairs that the precision is wanted for.

    Notes
    -----
    g(P) = C_X(1-C_V)P / [C_V(1-C_X) + (C_X-C_V)P]: Bayes' rule with the same rates of true and false
    positives. For C_X < C_V it is convex, so that a noisy P makes it too large on average: put in a
    lower limit of P.
    """
    shares = {"labelled_share": labelled_share, "true_share": true_share}
    problems = [
        f"{name}={value!r} must lie between 0 and 1, without them.{not_percentage(value)}"
        for name, value in shares.items()
        if not 0 < value < 1
    ]
    if not 0 <= precision <= 1:
        problems.append(f"precision={precision!r} must lie in [0, 1].{not_percentage(precision)}")
    if problems:
        raise InputError.from_problems("shifted_precision", problems)
    right = true_share * (1 - labelled_share) * precision
    wrong = labelled_share * (1 - true_share) * (1 - precision)
    return right / (right + wrong)


def swoosh_bounds(
    clusters: Any,
    matched: Any,
    matches: Counts,
    *,
    nonmatches: Counts | None = None,
    true_share: float | None = None,
    precision_sample: Counts | None = None,
    level: float = 0.95,
) -> MatchMergeBounds:
    """Bound precision and recall of clusters that match-and-merge has made.

    Parameters
    ----------
    clusters : sequence
        Predicted cluster of each row, from `components`, or from `match_and_merge` with functions
        that have the properties stated there.
    matched : int, or pair of sequences (i, j)
        The pairs of rows that match directly, X_M, or their number.
    matches : (int, int)
        Of labelled true pairs: how many match directly, and how many there are. They must be drawn
        at random from all true pairs, not from those that a model found, and not be those that the
        match was learnt from.
    nonmatches : (int, int), optional
        The same of labelled pairs that are not true, drawn at random from all such pairs.
    true_share : float, optional
        C_X: share of true pairs among all pairs; goes with `nonmatches`.
    precision_sample : (int, int), optional
        Instead of the two: of matched pairs drawn at random from X_M and reviewed, how many are
        true, and how many were reviewed. Prefer this one: it needs no C_X.
    level : float
        Confidence of each limit.

    Notes
    -----
    Pairs that match directly are in one cluster (X_M ⊆ X_Ŷ), so
    precision ≥ |X_M|/|X_Ŷ| · precision of matches, and recall ≥ recall of matches. The first is
    g(P_V) of labelled pairs (`shifted_precision`) at the Wilson lower limit of P_V, or the Wilson
    lower limit of the reviewed matches; the second the Wilson lower limit of the labelled true pairs
    that match.

    The way over g is that of the thesis. Where one pair in 1,000 is a match, a precision of
    0.99998 among as many true as false labelled pairs has to be proven, so that 1,000 labels prove
    nearly nothing. A review of matched pairs proves as much as its size; and with the recall it gives
    C_X = precision·|X_M|/(recall·N), with N = n(n-1)/2 pairs in all, which the thesis would
    estimate separately.

    The thesis found the truth below such limits in 4.2 % of 240 trials at level 95 %.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> clusters = linkage.components(6, [0, 1, 3], [1, 2, 4])
    >>> bounds = linkage.swoosh_bounds(
    ...     clusters, matched=3, matches=(90, 100), precision_sample=(98, 100)
    ... )
    >>> round(bounds.precision_low, 2), round(bounds.recall_low, 2)
    (0.71, 0.84)
    """
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1.")
    labels = as_codes("clusters", clusters)
    n = len(labels)
    sizes = np.bincount(labels)
    together = int((sizes * (sizes - 1) // 2).sum())
    n_matched = _count_matched(matched, labels, together)
    found, true_pairs = _counts("matches", matches)
    recall, n_pairs = found / true_pairs, n * (n - 1) // 2
    if precision_sample is not None:
        if nonmatches is not None or true_share is not None:
            raise InputError(
                "precision_sample is given together with nonmatches or true_share; give either "
                "reviewed matches, or labelled other pairs and the true share."
            )
        right, reviewed = _counts("precision_sample", precision_sample)
        low, precision = _wilson(right, reviewed, level), right / reviewed
        share = min(1.0, precision * n_matched / (recall * n_pairs)) if found else None
    else:
        low, precision = _shifted(found, true_pairs, nonmatches, true_share, level)
        share = true_share
    return MatchMergeBounds(
        precision_low=low * n_matched / together,
        recall_low=_wilson(found, true_pairs, level),
        level=float(level),
        method="labelled pairs" if precision_sample is None else "reviewed matches",
        match_precision=precision,
        match_recall=recall,
        true_share=share,
        n_matched=n_matched,
        n_together=together,
        n_pairs=n_pairs,
    )


def _shifted(
    found: int, true_pairs: int, nonmatches: Any, true_share: Any, level: float
) -> tuple[float, float]:
    """Return g at the lower limit of the labelled precision, and g at the precision itself."""
    if nonmatches is None or true_share is None:
        raise InputError(
            "The precision of matches is not known: give precision_sample, (true, reviewed) of "
            "matched pairs drawn at random, or nonmatches and true_share."
        )
    wrong, others = _counts("nonmatches", nonmatches)
    if not found + wrong:
        raise InputError("matches and nonmatches: none of the labelled pairs match.")
    labelled = true_pairs / (true_pairs + others)
    low = _wilson(found, found + wrong, level)
    return (
        shifted_precision(low, labelled, true_share),
        shifted_precision(found / (found + wrong), labelled, true_share),
    )


def _wilson(count: int, total: int, level: float) -> float:
    """Return the one-sided Wilson lower limit of a share."""
    test = stats.binomtest(count, total, alternative="greater")
    return float(test.proportion_ci(level, method="wilson").low)


def _counts(name: str, value: Any) -> Counts:
    try:
        part, total = (int(number) for number in value)
        whole = [part, total] == list(value)
    except (TypeError, ValueError, OverflowError):
        part, total, whole = 0, 0, False
    if not whole or not 0 <= part <= total or not total:
        raise InputError(
            f"{name}={value!r} must be two whole numbers: how many did, and of how many (from 1)."
        )
    return part, total


def _count_matched(matched: Any, labels: Rows, together: int) -> int:
    if isinstance(matched, (int, np.integer)) and not isinstance(matched, bool):
        count, apart = int(matched), 0
    else:
        try:
            first, second = matched
        except (TypeError, ValueError):
            raise InputError(
                f"matched={matched!r} must be a number of pairs, or two lists of rows (i, j)."
            ) from None
        pairs = PairTable.of(first, second, np.ones(np.size(first)), len(labels))
        count = len(pairs)
        apart = int((labels[pairs.first] != labels[pairs.second]).sum())
    if apart or not 0 < count <= together:
        raise InputError(
            f"matched: {count} pairs, {apart} of them in different clusters, and {together} pairs in "
            "one cluster. The bounds hold where all matched pairs are in one cluster, and for one "
            "pair at least: see components."
        )
    return count


# --- How the fields of a row come to differ from those of its entity: discrete channels

TOLERANCE = 1e-6


def hit_miss_channel(frequencies: Any, distortion: float) -> Floats:
    """Return P(x|y) of a field that is right, or replaced by a random value with probability β.

    P(x|y) = (1-β)·1[x=y] + β·θ(x).
    """
    theta = check_frequencies([frequencies])[0]
    beta = check_distortion(distortion, 1)[0]
    return np.asarray((1 - beta) * np.eye(len(theta)) + beta * theta, dtype=float)


def string_channel(frequencies: Any, distances: Any, distortion: float, steepness: float) -> Floats:
    """Return P(x|y) of a field that is right, or replaced by a similar value with probability β.

    Parameters
    ----------
    frequencies : array
        α: how frequent the values are.
    distances : matrix
        d(w, y) between values, for example edit distances; symmetric, 0 on the diagonal.
    distortion : float
        β.
    steepness : float
        c: how fast values become improbable with their distance. With 0 it is a random value.

    Notes
    -----
    P(x|y) = (1-β)·1[x=y] + β·F(x|y), F(w|y) = α(w)e^{-c·d(w,y)} / Σ_w' α(w')e^{-c·d(w',y)}.
    """
    alpha, beta = check_frequencies([frequencies])[0], check_distortion(distortion, 1)[0]
    similar = alpha * check_similarity(alpha, distances, steepness)
    return np.asarray(
        (1 - beta) * np.eye(len(alpha)) + beta * similar / similar.sum(axis=1, keepdims=True),
        dtype=float,
    )


def check_similarity(alpha: Floats, distances: Any, steepness: float) -> Floats:
    """Return e^{-c·d}, checked."""
    matrix = np.asarray(distances, dtype=float)
    if not 0 <= steepness < np.inf:
        raise InputError(f"steepness={steepness!r} must be a finite number from 0.")
    if matrix.shape != (len(alpha), len(alpha)):
        raise InputError(f"distances has shape {matrix.shape}; there are {len(alpha)} values.")
    usable = np.isfinite(matrix) & (matrix >= 0) & (matrix == matrix.T)
    if not usable.all() or np.diag(matrix).any():
        raise InputError(
            "distances must be finite numbers from 0, the same in both directions, and 0 from each "
            "value to itself."
        )
    return np.asarray(np.exp(-steepness * matrix), dtype=float)


def check_frequencies(frequencies: Any) -> list[Floats]:
    """Return the frequencies of each field, or say which are none."""
    if isinstance(frequencies, np.ndarray) and frequencies.ndim == 1:
        raise InputError("frequencies must be a list with an array for each field; wrap it in [ ].")
    fields = [np.asarray(theta, dtype=float) for theta in frequencies]
    problems = [
        f"field {number}: frequencies must be above 0 and sum to 1; they sum to {theta.sum():g}."
        for number, theta in enumerate(fields)
        if theta.ndim != 1 or not (theta > 0).all() or abs(theta.sum() - 1) > TOLERANCE
    ]
    if not fields:
        problems = ["it is empty; give the frequencies of at least one field."]
    if problems:
        raise InputError.from_problems("frequencies", problems)
    return [theta / theta.sum() for theta in fields]


def check_distortion(distortion: Any, fields: int) -> Floats:
    """Return β of each field."""
    betas = np.asarray(distortion, dtype=float)
    if betas.shape not in ((), (fields,)) or not ((betas >= 0) & (betas <= 1)).all():
        raise InputError(
            f"distortion={distortion!r} must be a probability, or one for each of {fields} fields."
        )
    return np.broadcast_to(betas, (fields,))


def check_channels(
    frequencies: Sequence[Any], channels: Sequence[Any]
) -> list[tuple[Floats, Floats]]:
    """Return the frequencies and the channel of each field."""
    thetas = check_frequencies(frequencies)
    if len(channels) != len(thetas):
        raise InputError(f"channels has {len(channels)} fields; frequencies has {len(thetas)}.")
    fields = []
    for number, (theta, matrix) in enumerate(zip(thetas, channels, strict=True)):
        channel = np.asarray(matrix, dtype=float)
        if channel.ndim != 2 or len(channel) != len(theta):
            raise InputError(
                f"channels: field {number} has shape {channel.shape}; {len(theta)} rows are needed, "
                "one for each true value."
            )
        if not (channel >= 0).all() or not (abs(channel.sum(axis=1) - 1) < TOLERANCE).all():
            raise InputError(f"channels: the rows of field {number} must be probabilities.")
        fields.append((theta, channel / channel.sum(axis=1, keepdims=True)))
    return fields


def check_entities(N: Any) -> int:
    """Return the number of entities."""
    if isinstance(N, bool) or not isinstance(N, (int, np.integer)) or N < 3:
        raise InputError(f"N={N!r} must be a number of entities, from 3.")
    return int(N)


# --- How well any linkage can do with given fields: information bounds on its error

DRAWS = 100_000
#: Combinations of frequencies up to which the collision error is summed exactly.
MOST_COMBINATIONS = 2_000_000
#: Numbers held at a time when drawing.
BLOCK = 2_000_000


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Result):
    """The probability of assigning a row to the wrong entity.

    Attributes
    ----------
    error : float
    stderr : float
        Monte-Carlo standard error; 0 where it was summed exactly.
    draws : int
    """

    error: float
    stderr: float
    draws: int


@dataclass(frozen=True, kw_only=True)
class LinkageErrorBound(Result):
    """Least error of any linkage of given fields.

    Attributes
    ----------
    error : float
        The larger of the two bounds, and at least 0.
    mi_fano : float
        Negative where it says nothing.
    collision : ErrorRate
    n_entities : int
    """

    error: float
    mi_fano: float
    collision: ErrorRate
    n_entities: int


def field_frequencies(frame: pd.DataFrame, columns: Sequence[str]) -> list[Floats]:
    """Return how frequent the values of each column are, for the functions of this module."""
    unknown = [column for column in columns if column not in frame]
    if unknown or isinstance(columns, str) or not len(columns):
        raise InputError(f"columns={columns!r} must be a list of columns of the frame.")
    missing = [column for column in columns if frame[column].isna().any()]
    if missing:
        raise InputError(
            f"frame has missing values in {missing}. Drop those rows, or count them as distorted: "
            "take the frequencies of the others, and add the missing share to the distortion."
        )
    shares = [frame[column].value_counts(normalize=True) for column in columns]
    return [np.asarray(share[share > 0], dtype=np.float64) for share in shares]


def mi_fano(frequencies: Sequence[Any], distortion: Any, N: int) -> float:
    """Return the mutual-information bound on the linkage error, for fields that are hit or missed.

    Parameters
    ----------
    frequencies : sequence of arrays
        θ_ℓ: for each field, how frequent its values are; they sum to 1.
    distortion : float or sequence of float
        β: probability that a field of a row is replaced by a random value; one for all fields, or
        one for each.
    N : int
        Number of entities, from 3.

    Returns
    -------
    float
        P(error) ≥ (ln N - Σ_ℓ I_ℓ - ln 2)/ln(N-1); negative where it says nothing.

    Notes
    -----
    Entity and row are linked through the fields only, so the row carries at most Σ_ℓ I_ℓ nats about
    its entity, I_ℓ = H(x_ℓ) - Σ_y θ_y·H(x_ℓ|y); then Fano's inequality. It holds for fields that
    depend on each other too. Against the printed bound (`printed_fano`) it is exact where that
    takes the largest divergence of any two values, and twice that.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    information = 0.0
    for theta, beta in zip(thetas, betas, strict=True):
        hit, miss = 1 - beta + beta * theta, beta * theta
        # Σ_y θ_y H(x|y): the own value, and all others, which are the misses without the own one
        entropy = -np.dot(theta, xlogy(hit, hit) + xlogy(miss, miss).sum() - xlogy(miss, miss))
        information += float(-xlogy(theta, theta).sum() - entropy)
    return _fano(information, check_entities(N))


def mi_fano_channel(frequencies: Sequence[Any], channels: Sequence[Any], N: int) -> float:
    """Return the mutual-information bound on the linkage error, for any discrete channels.

    Parameters
    ----------
    frequencies : sequence of arrays
        For each field, how frequent its true values are.
    channels : sequence of matrices
        For each field, P(x|y): a row for each true value y, a column for each value x seen. See
        `hit_miss_channel` and `string_channel`.
    N : int
        Number of entities, from 3.
    """
    information = 0.0
    for theta, channel in check_channels(frequencies, channels):
        seen = theta @ channel
        entropy = -np.dot(theta, xlogy(channel, channel).sum(axis=1))
        information += float(-xlogy(seen, seen).sum() - entropy)
    return _fano(information, check_entities(N))


def collision_error(
    frequencies: Sequence[Any], distortion: Any, N: int, *, draws: int = DRAWS, seed: int = 0
) -> ErrorRate:
    """Return the error of an oracle that knows which fields were lost, for fields hit or missed.

    No linkage of these fields has less. Summed exactly where the fields have few different
    frequencies, else drawn.

    Parameters
    ----------
    frequencies, distortion : as in `mi_fano`
    N : int
        Number of entities, from 3.
    draws, seed : int
        For fields with many different frequencies.

    Notes
    -----
    If the fields that were not lost have together the frequency q = Π θ_ℓ(y_ℓ), the other N - 1
    entities share them with Binomial(N-1, q) many, among which the oracle must guess:
    ε = E[1 - (1-(1-q)^N)/(N·q)], over lost fields and values. Fields are taken as independent.
    Fields that go together say less, and the error is larger; but where frequent values of one
    avoid frequent values of another it can be smaller. Combine such fields into one first.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    count, draws = check_entities(N), _check_draws(draws, seed)
    if math.prod(len(np.unique(theta)) + 1 for theta in thetas) <= MOST_COMBINATIONS:
        q, chance = np.ones(1), np.ones(1)
        for theta, beta in zip(thetas, betas, strict=True):
            values, place = np.unique(theta, return_inverse=True)
            mass = np.bincount(place, weights=theta)
            q = np.outer(q, np.r_[1.0, values]).ravel()
            chance = np.outer(chance, np.r_[beta, (1 - beta) * mass]).ravel()
        error = float(np.dot(chance, _guessing_error(q, count)))
        return ErrorRate(error=min(1.0, max(0.0, error)), stderr=0.0, draws=0)
    rng = np.random.default_rng(seed)
    q = np.ones(draws)
    for theta, beta in zip(thetas, betas, strict=True):
        kept = rng.random(draws) >= beta
        q *= np.where(kept, rng.choice(theta, size=draws, p=theta), 1.0)
    return _mean(_guessing_error(q, count))


def bayes_error(
    frequencies: Sequence[Any],
    channels: Sequence[Any],
    N: int,
    *,
    draws: int = 5_000,
    seed: int = 0,
) -> ErrorRate:
    """Return the error of the best linkage when all true values and the channels are known.

    By Monte Carlo: N entities and one row of them are drawn, and the row is assigned to the
    entity that is most probable; 1 minus that probability is averaged.

    Parameters
    ----------
    frequencies, channels : as in `mi_fano_channel`
    N : int
        Number of entities, from 3.
    draws, seed : int
    """
    fields = check_channels(frequencies, channels)
    count, draws = check_entities(N), _check_draws(draws, seed)
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK // count)
    errors = []
    for start in range(0, draws, block):
        size = min(block, draws - start)
        likelihood = np.ones((size, count))
        for theta, channel in fields:
            true = rng.choice(len(theta), size=(size, count), p=theta)
            # the row belongs to the first entity, as well as to any other
            reached = np.cumsum(channel, axis=1)[true[:, 0]]
            seen = (rng.random((size, 1)) * reached[:, -1:] > reached).sum(axis=1)
            likelihood *= channel[true, seen[:, None]]
        errors.append(1 - likelihood.max(axis=1) / likelihood.sum(axis=1))
    return _mean(np.concatenate(errors))


def linkage_error_bound(
    frequencies: Sequence[Any], distortion: Any, N: int, *, draws: int = DRAWS, seed: int = 0
) -> LinkageErrorBound:
    """Return the least error of any linkage of given fields: can they tell entities apart at all?

    The larger of `mi_fano` and `collision_error`, whose arguments it takes. For example
    `linkage_error_bound(field_frequencies(frame, ["sex", "birth_year", "zip3"]), 0.05, N)` with N
    entities that have at least two rows each gives the `error` of `leak_floor`.

    Examples
    --------
    Sex and a year of birth cannot identify one of 1,000 people:

    >>> import numpy as np
    >>> from mlflow_b3 import linkage
    >>> bound = linkage.linkage_error_bound([np.full(2, 1 / 2), np.full(80, 1 / 80)], 0.05, N=1000)
    >>> round(bound.error, 2)
    0.85
    """
    fano = mi_fano(frequencies, distortion, N)
    collision = collision_error(frequencies, distortion, N, draws=draws, seed=seed)
    return LinkageErrorBound(
        error=max(0.0, fano, collision.error), mi_fano=fano, collision=collision, n_entities=int(N)
    )


def _fano(information: float, count: int) -> float:
    return (math.log(count) - information - math.log(2)) / math.log(count - 1)


def _guessing_error(q: Floats, count: int) -> Floats:
    """Return 1 - (1-(1-q)^N)/(N·q), to 15 decimals for small q too."""
    q = np.maximum(q, np.finfo(float).tiny)  # a product over many fields may round to 0
    with np.errstate(divide="ignore"):  # log(0) where all entities are alike
        alone = -np.expm1(count * np.log1p(-q)) / (count * q)
    return np.asarray(1 - alone, dtype=float)


def _mean(errors: Floats) -> ErrorRate:
    return ErrorRate(
        error=float(np.clip(errors.mean(), 0, 1)),
        stderr=float(errors.std(ddof=1) / math.sqrt(len(errors))),
        draws=len(errors),
    )


def _check_draws(draws: Any, seed: Any) -> int:
    check_seed(seed)
    if isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 2:
        raise InputError(f"draws={draws!r} must be a whole number from 2.")
    return int(draws)


# --- The leak share that no linkage of given fields can avoid


def leak_floor(
    mate_rate: float, error: float, merge_rate_high: float, K: float, *, level: float = 0.95
) -> LeakEstimate:
    """Return the least leak shares of any clustering of such records that merges so little.

    Parameters
    ----------
    mate_rate : float
        ρ: share of the rows whose entity has other rows too.
    error : float
        ε: least probability of assigning such a row to the wrong entity, from the fields that
        linkage has: `linkage_error_bound` with N = number of entities that have at least two rows.
    merge_rate_high : float
        Upper limit of P(M), the share of rows in a predicted cluster with rows of another entity
        too. It needs a review of clusters, for rows drawn at random; without one it is 1, and the
        floor 0.
    K : float
        Number of folds.
    level : float
        Confidence of `merge_rate_high`.

    Notes
    -----
    A row with mates that is neither split from one of them (S) nor merged with others (M) is
    assigned to its entity without error by its cluster. So P(S) + P(M) ≥ ρ·ε, for any algorithm that
    has only these fields. With clusters put into K folds at random, p0 ≥ P(S)/K and
    p0_validation ≥ P(S)·(1 - 1/K), in expectation over the folds: the least is reached when every
    split entity is in two clusters.

    No error bound bounds p0 by itself: a linkage that merges everything errs everywhere, and leaks
    nothing.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> leak = linkage.leak_floor(mate_rate=0.8, error=0.5, merge_rate_high=0.1, K=5)
    >>> leak.kind, round(leak.train.low, 3), round(leak.validation.low, 3)
    ('lower', 0.06, 0.24)
    """
    problems = [
        f"{name}={value!r} must lie in [0, 1].{not_percentage(value)}"
        for name, value in (
            ("mate_rate", mate_rate),
            ("error", error),
            ("merge_rate_high", merge_rate_high),
        )
        if not 0 <= value <= 1
    ]
    if not 2 <= K < float("inf"):
        problems.append(f"K={K!r} must be a number of folds, at least 2.")
    if not 0 < level < 1:
        problems.append(f"level={level!r} must lie between 0 and 1.")
    if problems:
        raise InputError.from_problems("leak_floor", problems)
    split = max(0.0, mate_rate * error - merge_rate_high)
    return LeakEstimate(
        train=LeakShare(point=None, low=split / K, high=1.0),
        validation=LeakShare(point=None, low=split * (1 - 1 / K), high=1.0),
        kind="lower",
        method="leak_floor",
        level=float(level),
        n_folds=float(K),
        notes=(
            f"At least {split:.3g} of the rows are split from mates, by any linkage of these fields "
            f"that merges at most {merge_rate_high:.3g} of the rows with other entities.",
            f"It rests on {mate_rate:.3g} of the rows having mates, and on a least linkage error of "
            f"{error:.3g} for them.",
        ),
    )


# --- Information bounds as the thesis prints them, for reference; use those of `information`


def printed_fano(frequencies: Sequence[Any], distortion: Any, N: int) -> float:
    """Return the bound of theorem 7 on the linkage error, for fields that are hit or missed.

    1 - (γ + ln 2)/ln(N-1) with γ = 2·Σ_ℓ (1-β_ℓ)·ln(1/(β_ℓ·min θ_ℓ)).

    Parameters
    ----------
    frequencies, distortion, N : as in `mi_fano`

    Notes
    -----
    Valid, but negative (it says nothing) at most of the settings that the thesis plots; `mi_fano` and
    `collision_error` are far larger. Errata: the sum printed over all rows and fields must run over
    the fields of one row, as it does here; the remark on Pinsker's inequality should have ½ for 2;
    and γ grows without limit as β → 0, not as β → 1, where it vanishes.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    if (betas == 0).any():
        raise InputError("distortion: theorem 7 needs every field to be distorted sometimes.")
    gamma = sum(
        2 * (1 - beta) * math.log(1 / (beta * theta.min()))
        for theta, beta in zip(thetas, betas, strict=True)
        if len(theta) > 1  # entities never differ in a field with one value
    )
    return 1 - float(gamma + math.log(2)) / math.log(check_entities(N) - 1)


def printed_string_bound(
    frequencies: Sequence[Any], distances: Sequence[Any], distortion: Any, steepness: float, N: int
) -> float:
    """Return the bound of theorem 8 on the linkage error, for fields with similar strings.

    1 - (κ + ln 2)/ln(N-1) with κ the largest over y ≠ y' of
    Σ_ℓ [2(1-β_ℓ) + Σ_m (1-e^{-c·d(y,y')})·E e^{-c·d(M,y)}]·ln(1/min Q_ℓ),
    Q_ℓ(m|y) = β_ℓ·α_ℓ(m)·e^{-c·d(m,y)}.

    Parameters
    ----------
    frequencies : sequence of arrays
        α_ℓ.
    distances : sequence of matrices
        For each field, the distances between its values.
    distortion : float or sequence of float
    steepness : float
        c.
    N : int
        Number of entities, from 3.

    Notes
    -----
    Not a bound: kept to show what was printed; use `mi_fano_channel` with `string_channel`. Errata:
    the normaliser of F is dropped; β_ℓ is lost from the second term; Σ_m comes on top of the
    expectation, which is itself a sum over m; the absolute value is lost (it needs
    e^{-c·d(M,y)} + e^{-c·d(M,y')}); and the text says that the bound on the error grows with c,
    while κ grows, so that it falls.
    """
    alphas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(alphas))
    if len(distances) != len(alphas):
        raise InputError(f"distances has {len(distances)} fields; frequencies has {len(alphas)}.")
    if (betas == 0).any():
        raise InputError("distortion: theorem 8 needs every field to be distorted sometimes.")
    kappa = 0.0
    for alpha, matrix, beta in zip(alphas, distances, betas, strict=True):
        if len(alpha) == 1:
            continue
        similarity = check_similarity(alpha, matrix, steepness)
        differ = ~np.eye(len(alpha), dtype=bool)
        moment = len(alpha) * (similarity @ alpha)
        largest = (2 * (1 - beta) + (1 - similarity) * moment[:, None])[differ].max()
        kappa += float(largest * math.log(1 / (beta * alpha * similarity)[differ].min()))
    return 1 - (kappa + math.log(2)) / math.log(check_entities(N) - 1)
