"""A small Gibbs sampler for the two models of Bayesian record linkage (thesis, models 4.1 and 4.2).

Λ_i ~ U{1 … N}, y_jℓ ~ θ_ℓ; a field of a record is that of its entity with probability 1 - β_ℓ, and otherwise drawn from
F_ℓ(· | y): from θ_ℓ itself for categories, from strings near y for strings. β_ℓ ~ Beta(a, b). Made for experiments: every
record is compared with every entity, without blocking.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from problem import Array, Rows
from scipy.special import softmax


def categorical_distortion(theta: Any) -> Array:
    """Return F(x | y) = θ(x), whatever y is."""
    theta = np.asarray(theta, float)
    return np.tile(theta, (len(theta), 1))


def string_distortion(theta: Any, distances: Any, steepness: float) -> Array:
    """Return F(x | y) ∝ θ(x)·exp(-c·d(x, y)); rows are y."""
    weights = np.asarray(theta, float) * np.exp(-steepness * np.asarray(distances, float))
    return weights / weights.sum(axis=1, keepdims=True)


def channel(distortion: Array, beta: float) -> Array:
    """Return P(x | y) = (1 - β)·1[x = y] + β·F(x | y); rows are y."""
    return (1 - beta) * np.eye(len(distortion)) + beta * distortion


def sample_linkage(
    records: Rows,
    thetas: Sequence[Array],
    distortions: Sequence[Array],
    entities: int,
    *,
    sweeps: int,
    keep: int,
    seed: Any = 0,
    prior: tuple[float, float] = (1.0, 9.0),
    known: Rows | None = None,
) -> tuple[Rows, Array]:
    """Return `keep` samples of Λ (samples by records) and of β, evenly spread over the second half of the sweeps.

    `records` has a code of θ_ℓ's values for each record and field. `known` are the entities' values if they are known:
    then they are not sampled, and labels of entities keep their meaning.
    """
    rng = np.random.default_rng(seed)
    count, fields = records.shape
    # every record is alone at first, as far as there are entities
    entity = (
        rng.integers(entities, size=count) if known is not None else np.arange(count) % entities
    )
    values = np.zeros((entities, fields), int) if known is None else np.array(known)
    if known is None:
        values[entity[::-1]] = records[::-1]
    beta = np.full(fields, prior[0] / sum(prior))
    kept_at = set(np.linspace(sweeps // 2, sweeps - 1, keep).round().astype(int).tolist())
    found, rates = [], []
    for sweep in range(sweeps):
        channels = [channel(each, b) for each, b in zip(distortions, beta, strict=True)]
        logs = [np.log(each.clip(1e-300)) for each in channels]
        if known is None:
            _move_one_by_one(entity, values, records, thetas, channels, logs, rng)
            for f, theta in enumerate(thetas):
                total = np.tile(np.log(theta), (entities, 1))
                np.add.at(total, entity, logs[f][:, records[:, f]].T)
                values[:, f] = _draw(softmax(total, axis=1), rng)
        else:
            score = sum(logs[f][values[:, f]][:, records[:, f]] for f in range(fields)).T
            entity = (score + rng.gumbel(size=score.shape)).argmax(axis=1)
        for f, each in enumerate(distortions):
            own = values[entity, f]
            hit = records[:, f] == own
            again = beta[f] * each[own, records[:, f]]
            lost = np.where(hit, rng.random(count) < again / (1 - beta[f] + again), True)
            beta[f] = rng.beta(prior[0] + lost.sum(), prior[1] + count - lost.sum())
        beta = beta.clip(1e-6, 1 - 1e-6)
        if sweep in kept_at:
            found.append(entity.copy())
            rates.append(beta.copy())
    return np.array(found), np.array(rates)


def _move_one_by_one(
    entity: Rows,
    values: Rows,
    records: Rows,
    thetas: Sequence[Array],
    channels: Sequence[Array],
    logs: Sequence[Array],
    rng: np.random.Generator,
) -> None:
    """Draw Λ_i of each record in turn, with the values of empty entities integrated out.

    Drawn from the prior instead, they would hardly ever be those of a record, and no record would find a new entity.
    """
    sizes = np.bincount(entity, minlength=len(values))
    fields = range(records.shape[1])
    new = sum(np.log(thetas[f] @ channels[f])[records[:, f]] for f in fields)
    for row in rng.permutation(len(records)):
        sizes[entity[row]] -= 1
        empty = np.flatnonzero(sizes == 0)
        score = sum(logs[f][values[:, f], records[row, f]] for f in fields)
        score[empty] = new[row]
        chosen = int((score + rng.gumbel(size=len(score))).argmax())
        if sizes[chosen] == 0:
            for f in fields:
                chance = thetas[f] * channels[f][:, records[row, f]]
                values[chosen, f] = _draw((chance / chance.sum())[None], rng)[0]
        sizes[chosen] += 1
        entity[row] = chosen


def _draw(chances: Array, rng: np.random.Generator) -> Rows:
    """Draw one value for each row of probabilities."""
    above = rng.random((len(chances), 1)) > chances.cumsum(axis=1)
    return above.sum(axis=1).clip(max=chances.shape[1] - 1)
