"""A random field seen in regions: what a new region shares with them, and what it does not."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from mlflow_b3.correlated.structure import Array, Codes, Field
from mlflow_b3.errors import InputError

#: Rows whose distances to all others are held at once.
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class RegionalField:
    """A field as √K̄ c + δ̃, with c common to all regions and δ̃ independent between them.

    Attributes
    ----------
    across : float
        K̄, the mean covariance of rows in different regions.
    rows : tuple of array
        The rows of each region.
    roots : tuple of array
        The symmetric root of the covariance of δ̃ in each region.
    own_sd : array (n,)
        Standard deviation of δ̃ in each row.
    clipped : float
        Share of the spectrum that had to be dropped because K - K̄ is no covariance there.
    """

    across: float
    rows: tuple[Codes, ...]
    roots: tuple[Array, ...]
    own_sd: Array
    clipped: float

    def own_part(self, noise: Array) -> Array:
        """Return δ̃ from standard normal noise (..., n)."""
        part = np.empty_like(noise)
        for rows, root in zip(self.rows, self.roots, strict=True):
            part[..., rows] = noise[..., rows] @ root
        return part


def exponential_kernel(first: Array, second: Array, sd: float, reach: float) -> Array:
    """Return the covariances σ² exp(-d/r) between places."""
    return np.asarray(sd**2 * np.exp(-cdist(first, second) / reach))


def regional_field(field: Field, sd: float, reach: float) -> RegionalField:
    """Return the field split into what all regions share and what each has of its own.

    Parameters
    ----------
    field : Field
    sd, reach : float
        σ and r of the kernel σ² exp(-d/r).

    Notes
    -----
    A new region is as far from those observed as they are from each other, so it shares their mean
    covariance K̄. Inside a region the covariance of the own part is K - K̄, across regions none.
    Yuval and Rosset (AISTATS 2025) drop the common part altogether, which leaves rows with less
    variance than the field has. Where K - K̄ has negative eigenvalues these are set to 0; the
    variance of a row at use is then that of the clipped matrix, so that simulated means agree.
    The symmetric root is used because it is unique: every worker makes the same field.
    """
    places, codes = field.coordinates, field.regions.codes
    order = np.argsort(codes, kind="stable")
    rows = tuple(np.split(order, np.cumsum(np.bincount(codes))[:-1]))
    if len(rows) < 2:
        raise InputError(
            f"field regions={field.regions.name!r}: there is one region; two or more are needed to "
            "say what a new one shares with them."
        )
    inside = [exponential_kernel(places[own], places[own], sd, reach) for own in rows]
    total = sum(
        float(exponential_kernel(places[start : start + _ROWS_AT_ONCE], places, sd, reach).sum())
        for start in range(0, len(places), _ROWS_AT_ONCE)
    )
    pairs = len(places) ** 2 - sum(len(own) ** 2 for own in rows)
    across = max(0.0, (total - sum(float(block.sum()) for block in inside)) / pairs)
    roots, own_sd, lost, kept = [], np.empty(len(places)), 0.0, 0.0
    for own, block in zip(rows, inside, strict=True):
        values, vectors = np.linalg.eigh(block - across)
        lost -= float(values[values < 0].sum())
        values = np.maximum(values, 0.0)
        kept += float(values.sum())
        root = (vectors * np.sqrt(values)) @ vectors.T
        roots.append(root)
        own_sd[own] = np.sqrt((root**2).sum(axis=1))
    return RegionalField(
        across=across,
        rows=rows,
        roots=tuple(roots),
        own_sd=own_sd,
        clipped=lost / (lost + kept) if lost else 0.0,
    )
