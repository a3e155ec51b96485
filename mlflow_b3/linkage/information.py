"""How well any linkage can do with given fields: information bounds on its error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import xlogy

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.channels import (
    check_channels,
    check_distortion,
    check_entities,
    check_frequencies,
)
from mlflow_b3.linkage.splits import Floats
from mlflow_b3.results import Result

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
