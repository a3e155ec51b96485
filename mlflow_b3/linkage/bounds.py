"""Bounds on the quality of match-and-merge, and on the error of any linkage."""

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
    """Lower limits of pairwise precision and recall of predicted clusters.

    Attributes
    ----------
    precision_low : float
        Lower limit of the share of true pairs among the pairs in one predicted cluster.
    recall_low : float
        Lower limit of the share of the true pairs that are in one predicted cluster.
    level : float
        Confidence of each limit separately.
    method : {"labelled pairs", "reviewed matches"}
        Where the precision of matches comes from: labelled pairs, shifted to the true share of
        matches, or a direct review of matched pairs.
    match_precision : float
        Share of true pairs among the matched pairs; a point estimate.
    match_recall : float
        Share of the labelled true pairs that match.
    true_share : float or None
        C_X, the share of true pairs among all pairs: as given, or estimated from the reviewed
        matches.
    n_matched, n_together : int
        |X_M|, the number of pairs that match directly, and |X_Ŷ|, the number of pairs within one
        predicted cluster.
    n_pairs : int
        Number of all pairs of rows.
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
    """Convert a precision to pairs with a different share of matches.

    Parameters
    ----------
    precision : float
        P: share of true matches among the labelled pairs that match.
    labelled_share : float
        C_V: share of true matches among the labelled pairs.
    true_share : float
        C_X: the share of true matches among the pairs for which the precision is wanted.

    Notes
    -----
    g(P) = C_X(1-C_V)P / [C_V(1-C_X) + (C_X-C_V)P]: Bayes' rule with the same true and false positive
    rates. For C_X < C_V it is convex, and a noisy P makes it too large on average. Pass a lower
    limit of P.
    """
    shares = {"labelled_share": labelled_share, "true_share": true_share}
    problems = [
        f"{name}={value!r} must lie strictly between 0 and 1.{not_percentage(value)}"
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
    """Bound the precision and recall of clusters made by match-and-merge.

    Parameters
    ----------
    clusters : sequence
        Predicted cluster of each row, from `components`, or from `match_and_merge` with functions
        that have the properties listed there.
    matched : int, or pair of sequences (i, j)
        The pairs of rows that match directly, X_M, or their number.
    matches : (int, int)
        How many of the labelled true pairs match directly, and how many labelled true pairs there
        are. Draw them at random from all true pairs, not from those that a model found. Do not use
        pairs that the match function was trained on.
    nonmatches : (int, int), optional
        The same two numbers for labelled pairs that are not true, drawn at random from all such
        pairs.
    true_share : float, optional
        C_X: share of true pairs among all pairs. Required with `nonmatches`.
    precision_sample : (int, int), optional
        Instead of the previous two: how many of the reviewed matched pairs are true, and how many
        were reviewed, drawn at random from X_M. Prefer this option: it does not need C_X.
    level : float
        Confidence of each limit.

    Notes
    -----
    Pairs that match directly are in one cluster (X_M ⊆ X_Ŷ), so
    precision ≥ |X_M|/|X_Ŷ| · precision of matches, and recall ≥ recall of matches. The precision of
    matches is g(P_V) of the labelled pairs (`shifted_precision`) at the Wilson lower limit of P_V,
    or the Wilson lower limit of the reviewed matches. The recall of matches is the Wilson lower
    limit of the labelled true pairs that match.

    The thesis uses g. Where one pair in 1,000 is a match, this requires proof of a precision of
    0.99998 among balanced labelled pairs, and 1,000 labels prove almost nothing. A review of matched
    pairs has no such problem. Together with the recall it also gives
    C_X = precision·|X_M|/(recall·N), with N = n(n-1)/2 pairs in all, which the thesis estimates
    separately.

    In the thesis, the truth was below such limits in 4.2% of 240 trials at level 95%.

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
            f"{name}={value!r} must be two whole numbers: a count, and the total (from 1) it is out of."
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
            "one cluster. The bounds need at least one matched pair, and every matched pair within "
            "one cluster: see components."
        )
    return count


# --- Discrete channels: how the fields of a row differ from those of its entity

TOLERANCE = 1e-6


def hit_miss_channel(frequencies: Any, distortion: float) -> Floats:
    """Return P(x|y) of a field that is replaced by a random value with probability β.

    P(x|y) = (1-β)·1[x=y] + β·θ(x).
    """
    theta = check_frequencies([frequencies])[0]
    beta = check_distortion(distortion, 1)[0]
    return np.asarray((1 - beta) * np.eye(len(theta)) + beta * theta, dtype=float)


def string_channel(frequencies: Any, distances: Any, distortion: float, steepness: float) -> Floats:
    """Return P(x|y) of a field that is replaced by a similar value with probability β.

    Parameters
    ----------
    frequencies : array
        α: the relative frequency of each value.
    distances : matrix
        d(w, y) between values, for example edit distances; symmetric, 0 on the diagonal.
    distortion : float
        β: probability that the field is replaced.
    steepness : float
        c: how fast values become improbable with distance. With 0 the replacement is random.

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
    """Check the distances and return e^{-c·d}."""
    matrix = np.asarray(distances, dtype=float)
    if not 0 <= steepness < np.inf:
        raise InputError(f"steepness={steepness!r} must be a finite number, 0 or above.")
    if matrix.shape != (len(alpha), len(alpha)):
        raise InputError(f"distances has shape {matrix.shape}; there are {len(alpha)} values.")
    usable = np.isfinite(matrix) & (matrix >= 0) & (matrix == matrix.T)
    if not usable.all() or np.diag(matrix).any():
        raise InputError(
            "distances must be finite and not negative, symmetric, and 0 on the diagonal."
        )
    return np.asarray(np.exp(-steepness * matrix), dtype=float)


def check_frequencies(frequencies: Any) -> list[Floats]:
    """Check the frequencies of each field and normalise them."""
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
    """Check β and return it for each field."""
    betas = np.asarray(distortion, dtype=float)
    if betas.shape not in ((), (fields,)) or not ((betas >= 0) & (betas <= 1)).all():
        raise InputError(
            f"distortion={distortion!r} must be a probability, or one for each of {fields} fields."
        )
    return np.broadcast_to(betas, (fields,))


def check_channels(
    frequencies: Sequence[Any], channels: Sequence[Any]
) -> list[tuple[Floats, Floats]]:
    """Check the frequencies and the channel of each field."""
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
    """Check the number of entities."""
    if isinstance(N, bool) or not isinstance(N, (int, np.integer)) or N < 3:
        raise InputError(f"N={N!r} must be the number of entities, 3 or more.")
    return int(N)


# --- Information bounds on the error of any linkage that uses given fields

DRAWS = 100_000
#: The collision error is summed exactly for up to this many combinations of frequencies.
MOST_COMBINATIONS = 2_000_000
#: How many numbers to draw at once.
BLOCK = 2_000_000


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Result):
    """The probability of assigning a row to the wrong entity.

    Attributes
    ----------
    error : float
    stderr : float
        Monte Carlo standard error; 0 if the error was summed exactly.
    draws : int
    """

    error: float
    stderr: float
    draws: int


@dataclass(frozen=True, kw_only=True)
class LinkageErrorBound(Result):
    """A lower bound on the error of any linkage that uses given fields.

    Attributes
    ----------
    error : float
        The larger of the two bounds, and at least 0.
    mi_fano : float
        Vacuous if negative.
    collision : ErrorRate
    n_entities : int
    """

    error: float
    mi_fano: float
    collision: ErrorRate
    n_entities: int


def field_frequencies(frame: pd.DataFrame, columns: Sequence[str]) -> list[Floats]:
    """Return the relative frequencies of the values of each column."""
    unknown = [column for column in columns if column not in frame]
    if unknown or isinstance(columns, str) or not len(columns):
        raise InputError(f"columns={columns!r} must be a list of columns of the frame.")
    missing = [column for column in columns if frame[column].isna().any()]
    if missing:
        raise InputError(
            f"frame has missing values in {missing}. Drop those rows, or treat missing values as "
            "distorted: use the frequencies of the other values, and add the missing share to the "
            "distortion."
        )
    shares = [frame[column].value_counts(normalize=True) for column in columns]
    return [np.asarray(share[share > 0], dtype=np.float64) for share in shares]


def mi_fano(frequencies: Sequence[Any], distortion: Any, N: int) -> float:
    """Return the mutual-information bound on the linkage error in the hit-miss model.

    Parameters
    ----------
    frequencies : sequence of arrays
        θ_ℓ: for each field, the relative frequencies of its values. They sum to 1.
    distortion : float or sequence of float
        β: probability that a field of a row is replaced by a random value; one number for all
        fields, or one for each.
    N : int
        Number of entities, at least 3.

    Returns
    -------
    float
        P(error) ≥ (ln N - Σ_ℓ I_ℓ - ln 2)/ln(N-1). The bound is vacuous if negative.

    Notes
    -----
    A row carries at most Σ_ℓ I_ℓ nats of information about its entity, with
    I_ℓ = H(x_ℓ) - Σ_y θ_y·H(x_ℓ|y); Fano's inequality gives the bound. It also holds for dependent
    fields. The information is exact here; the printed bound (`printed_fano`) uses twice the largest
    divergence of any two values instead.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    information = 0.0
    for theta, beta in zip(thetas, betas, strict=True):
        hit, miss = 1 - beta + beta * theta, beta * theta
        # Σ_y θ_y H(x|y): the true value, and the misses, which are all other values
        entropy = -np.dot(theta, xlogy(hit, hit) + xlogy(miss, miss).sum() - xlogy(miss, miss))
        information += float(-xlogy(theta, theta).sum() - entropy)
    return _fano(information, check_entities(N))


def mi_fano_channel(frequencies: Sequence[Any], channels: Sequence[Any], N: int) -> float:
    """Return the mutual-information bound on the linkage error for any discrete channels.

    Parameters
    ----------
    frequencies : sequence of arrays
        For each field, the relative frequencies of its true values.
    channels : sequence of matrices
        For each field, P(x|y): a row for each true value y, a column for each observed value x. See
        `hit_miss_channel` and `string_channel`.
    N : int
        Number of entities, at least 3.
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
    """Return the error of an oracle that knows which fields were replaced, in the hit-miss model.

    No linkage of these fields has a smaller error. It is summed exactly if the fields have few
    distinct frequencies, and estimated by Monte Carlo otherwise.

    Parameters
    ----------
    frequencies, distortion : as in `mi_fano`
    N : int
        Number of entities, at least 3.
    draws, seed : int
        For Monte Carlo, if the fields have many distinct frequencies.

    Notes
    -----
    Let q = Π θ_ℓ(y_ℓ) be the joint frequency of the fields that were kept. Of the other N - 1
    entities, Binomial(N-1, q) share these values, and the oracle has to guess among them:
    ε = E[1 - (1-(1-q)^N)/(N·q)], over replaced fields and values. Fields are assumed to be
    independent. The error is usually larger for dependent fields, but it can be smaller if frequent
    values of one field avoid frequent values of another. Combine such fields into one first.
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
    """Return the error of the best linkage if all true values and the channels are known.

    It is estimated by Monte Carlo: N entities and a row of one of them are drawn, the row is
    assigned to the most probable entity, and 1 minus that probability is averaged.

    Parameters
    ----------
    frequencies, channels : as in `mi_fano_channel`
    N : int
        Number of entities, at least 3.
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
            # without loss of generality the row belongs to the first entity
            reached = np.cumsum(channel, axis=1)[true[:, 0]]
            seen = (rng.random((size, 1)) * reached[:, -1:] > reached).sum(axis=1)
            likelihood *= channel[true, seen[:, None]]
        errors.append(1 - likelihood.max(axis=1) / likelihood.sum(axis=1))
    return _mean(np.concatenate(errors))


def linkage_error_bound(
    frequencies: Sequence[Any], distortion: Any, N: int, *, draws: int = DRAWS, seed: int = 0
) -> LinkageErrorBound:
    """Bound the error of any linkage that uses given fields from below.

    The bound is the larger of `bounds.mi_fano` and `bounds.collision_error`, which take the same
    arguments.

    Parameters
    ----------
    frequencies : sequence of arrays
        θ_ℓ: for each field, the relative frequencies of its values; see `bounds.field_frequencies`.
    distortion : float or sequence of float
        β: probability that a field of a row is replaced by a random value; one number for all
        fields, or one for each.
    N : int
        Number of entities, at least 3. For the `error` of `leak_floor`, count the entities with at
        least two rows.
    draws, seed : int
        For Monte Carlo, if the fields have many distinct frequencies.

    Returns
    -------
    LinkageErrorBound

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
    """Return 1 - (1-(1-q)^N)/(N·q), accurate for small q."""
    q = np.maximum(q, np.finfo(float).tiny)  # a product over many fields may underflow
    with np.errstate(divide="ignore"):  # log(0) if all entities are alike
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
    """Bound the leak shares of any linkage that uses given fields from below.

    Parameters
    ----------
    mate_rate : float
        ρ: share of the rows whose entity has other rows.
    error : float
        ε: lower bound on the probability of assigning such a row to the wrong entity, from
        `linkage_error_bound` with N the number of entities that have at least two rows.
    merge_rate_high : float
        Upper limit of P(M), the share of rows whose predicted cluster also holds rows of another
        entity. It requires a review of the clusters of randomly drawn rows. Without a review it is
        1, and the floor is 0.
    K : float
        Number of folds.
    level : float
        Confidence of `merge_rate_high`.

    Notes
    -----
    If a row with mates is neither split from one of them (S) nor merged with other entities (M), its
    cluster identifies its entity. So P(S) + P(M) ≥ ρ·ε for any algorithm that uses only these
    fields. With clusters assigned to K folds at random, p0 ≥ P(S)/K and
    p0_validation ≥ P(S)·(1 - 1/K), in expectation over the folds, with equality if every split
    entity is in two clusters.

    A bound on the linkage error does not bound p0 by itself: a linkage that merges everything has
    the largest error and leaks nothing.

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
        problems.append(f"K={K!r} must be the number of folds, 2 or more.")
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
            f"Any linkage of these fields that merges at most {merge_rate_high:.3g} of the rows with "
            f"other entities splits at least {split:.3g} of the rows from their mates.",
            f"This assumes that {mate_rate:.3g} of the rows have mates, and that the linkage error "
            f"for them is at least {error:.3g}.",
        ),
    )


# --- Information bounds as printed in the thesis, for reference; use those above instead


def printed_fano(frequencies: Sequence[Any], distortion: Any, N: int) -> float:
    """Return the bound on the linkage error of theorem 7, for the hit-miss model.

    1 - (γ + ln 2)/ln(N-1) with γ = 2·Σ_ℓ (1-β_ℓ)·ln(1/(β_ℓ·min θ_ℓ)).

    Parameters
    ----------
    frequencies, distortion, N : as in `mi_fano`

    Notes
    -----
    The bound is valid, but negative (vacuous) at most of the settings plotted in the thesis; `mi_fano`
    and `collision_error` are far larger. Errata: the sum is printed over all rows and fields, but
    must run over the fields of one row, as it does here; the remark on Pinsker's inequality should
    have ½ instead of 2; and γ diverges as β → 0, not as β → 1, where it vanishes.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    if (betas == 0).any():
        raise InputError(
            "distortion must be above 0 for every field: theorem 7 does not hold otherwise."
        )
    gamma = sum(
        2 * (1 - beta) * math.log(1 / (beta * theta.min()))
        for theta, beta in zip(thetas, betas, strict=True)
        if len(theta) > 1  # entities never differ in a field with one value
    )
    return 1 - float(gamma + math.log(2)) / math.log(check_entities(N) - 1)


def printed_string_bound(
    frequencies: Sequence[Any], distances: Sequence[Any], distortion: Any, steepness: float, N: int
) -> float:
    """Return the bound on the linkage error of theorem 8, for string fields.

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
        Number of entities, at least 3.

    Notes
    -----
    This is not a valid bound. It is kept as a record of what was printed; use `mi_fano_channel` with
    `string_channel` instead. Errata: the normaliser of F is missing; β_ℓ is missing from the second
    term; Σ_m is applied in addition to the expectation, which is itself a sum over m; the absolute
    value is missing (it requires e^{-c·d(M,y)} + e^{-c·d(M,y')}); and the text says that the bound
    grows with c, but κ grows with c, and the bound falls.
    """
    alphas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(alphas))
    if len(distances) != len(alphas):
        raise InputError(f"distances has {len(distances)} fields; frequencies has {len(alphas)}.")
    if (betas == 0).any():
        raise InputError(
            "distortion must be above 0 for every field: theorem 8 does not hold otherwise."
        )
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
