"""Rows with pairs that speak for or against one entity, and what a clustering of them costs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from mlflow_b3.linkage.splits import Floats, Mask, Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedGraph:
    """Scored pairs of rows; all other pairs have one weight.

    Attributes
    ----------
    n : int
    first, second : array of int
        Every scored pair once.
    weight : array of float
        w_ij: positive for one entity, negative against.
    missing : float
        Weight of the pairs that are not scored, at most 0.
    """

    n: int
    first: Rows
    second: Rows
    weight: Floats
    missing: float

    def cost(self, labels: Rows) -> float:
        """Return the weight of the disagreements: positive pairs apart, negative ones together."""
        together = labels[self.first] == labels[self.second]
        apart = self.weight[~together & (self.weight > 0)].sum()
        inside = -self.weight[together & (self.weight < 0)].sum()
        sizes = np.bincount(labels)
        unscored = int((sizes * (sizes - 1) // 2).sum()) - int(together.sum())
        return float(apart + inside - self.missing * unscored)

    @cached_property
    def positive(self) -> Mask:
        """Which scored pairs speak for one entity."""
        return np.asarray(self.weight > 0)

    @cached_property
    def excess(self) -> "sparse.csr_array":
        """Symmetric matrix of w_ij - w_missing.

        With it a set A of rows and another B have the weight Σ excess + w_missing·|A|·|B|, so that
        pairs that are not scored never need to be listed.
        """
        values = np.tile(self.weight - self.missing, 2)
        rows, columns = (
            np.concatenate([self.first, self.second]),
            np.concatenate([self.second, self.first]),
        )
        return sparse.csr_array((values, (rows, columns)), shape=(self.n, self.n))

    def negative_pairs(self) -> tuple[Rows, Rows, Floats]:
        """Return the pairs that speak against one entity, also those not scored: i, j, |w|."""
        against = self.weight < 0
        first, second = self.first[against], self.second[against]
        strength = -self.weight[against]
        if self.missing == 0:
            return first, second, strength
        scored = np.zeros((self.n, self.n), dtype=bool)
        scored[self.first, self.second] = scored[self.second, self.first] = True
        rows, columns = np.nonzero(np.triu(~scored, 1))
        return (
            np.concatenate([first, rows]),
            np.concatenate([second, columns]),
            np.concatenate([strength, np.full(len(rows), -self.missing)]),
        )
