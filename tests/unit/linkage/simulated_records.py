"""Records of entities with errors, scored pair by pair: a linkage whose truth is known."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import expit, logit


@dataclass(frozen=True)
class Linked:
    """Simulated rows: true entities, predicted clusters and scored pairs."""

    true: np.ndarray
    clusters: np.ndarray
    first: np.ndarray
    second: np.ndarray
    log_odds: np.ndarray

    @property
    def pairs(self):
        return self.first, self.second, expit(self.log_odds)

    def mates(self, rows):
        """Return all rows of the same entity for each of some rows, as a reviewer would."""
        return [np.setdiff1d(np.flatnonzero(self.true == self.true[row]), row) for row in rows]


def linked_records(
    seed=0, *, entities=500, noise=0.15, threshold=0.9, fields=6, values=25, floor=-14
):
    """Simulate rows of entities of 1 to 9 rows, and link them as Fellegi and Sunter do.

    Every field of a record is redrawn with a probability that varies between entities, which the
    linkage does not know: its probabilities are off. All pairs are scored; those below a weight of
    `floor` bits are left out.
    """
    rng = np.random.default_rng(seed)
    sizes = 1 + np.minimum(rng.negative_binomial(1, 0.4, entities), 8)
    true = np.repeat(np.arange(entities), sizes)
    frequency = (1 / np.arange(1, values + 1)) / (1 / np.arange(1, values + 1)).sum()
    originals = rng.choice(values, size=(entities, fields), p=frequency)
    errors = rng.beta(1, 1 / noise - 1, entities)
    redrawn = rng.random((len(true), fields)) < errors[true][:, None]
    noisy = rng.choice(values, size=redrawn.shape, p=frequency)
    records = np.where(redrawn, noisy, originals[true])
    first, second = np.triu_indices(len(true), 1)
    same_error = 1 - (1 - noise) ** 2
    prior = np.mean(true[first] == true[second])
    log_odds = np.full(len(first), logit(prior))
    for field in range(fields):
        value, other = records[first, field], records[second, field]
        u = frequency[value]
        agree = np.log((1 - same_error + same_error * u) / u)
        log_odds += np.where(value == other, agree, np.log(same_error))
    keep = log_odds > floor * np.log(2)
    first, second, log_odds = first[keep], second[keep], log_odds[keep]
    link = log_odds > logit(threshold)
    graph = coo_array((link[link], (first[link], second[link])), shape=(len(true), len(true)))
    clusters = connected_components(graph, directed=False)[1]
    return Linked(true, clusters, first, second, log_odds)
