"""`MixedFit`: fixed effects and random intercepts of groups, as they were estimated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.correlated.structure import Array, Codes
from mlflow_b3.errors import InputError

#: Cells of the largest level by all others that one factorisation may have: two levels of 2000 groups.
MOST_CELLS = 4_000_000
#: Directions of the design that are shorter than this, all columns being of length 1, are repeated columns.
REPEATED = 1e-12


@dataclass(frozen=True, kw_only=True)
class MixedFit:
    """A regression with random intercepts, fitted.

    Attributes
    ----------
    coefficients : array (p,)
        Of the fixed effects.
    effects : tuple of array
        Most likely intercept of each group, one array for each level.
    sd : tuple of float
        Standard deviations of the intercepts, one for each level.
    sd_low, sd_high : tuple of float
        95 % intervals by the profile likelihood; equal to `sd` where they were not asked for.
    log_likelihood : float
        At the estimates; restricted for numbers.
    converged : bool
    separated : bool
        Classes are told apart without error by columns or groups, so that estimates have no limit.
    noise : float or None
        Standard deviation of the residuals, for numbers.
    """

    coefficients: Array
    effects: tuple[Array, ...]
    sd: tuple[float, ...]
    sd_low: tuple[float, ...]
    sd_high: tuple[float, ...]
    log_likelihood: float
    converged: bool
    separated: bool = False
    noise: float | None = None


def as_design(X: Any, target: Any) -> tuple[Array, Array]:
    """Return the fixed effects and the target as numbers, or say what is wrong with them."""
    design, values = np.asarray(X, dtype=float), np.asarray(target, dtype=float)
    if design.ndim != 2 or len(design) != len(values) or values.ndim != 1:
        raise InputError(
            f"X has the shape {design.shape} and target {values.shape}; X must be a table with one "
            "row for each value of the target."
        )
    if not len(values):
        raise InputError("target is empty; give rows to fit.")
    if not (np.isfinite(design).all() and np.isfinite(values).all()):
        raise InputError("X or target holds missing or infinite numbers; fill or drop these rows.")
    return design, values


def as_codes(codes: Sequence[Any], n_rows: int) -> list[Codes]:
    """Return the groups of all levels as whole numbers from 0, or say what is wrong with them."""
    levels = [np.asarray(level) for level in codes]
    if not levels:
        raise InputError("codes is empty; give the groups of one level or more.")
    for position, level in enumerate(levels):
        if level.shape != (n_rows,) or level.dtype.kind not in "iu" or level.min() < 0:
            raise InputError(
                f"codes[{position}] must hold one whole number from 0 for each of the {n_rows} rows."
            )
    sizes = sorted(int(level.max()) + 1 for level in levels)
    if sizes[-1] * sum(sizes[:-1]) > MOST_CELLS:
        raise InputError(
            f"codes has levels of {', '.join(map(str, sizes[::-1]))} groups; the number of the "
            f"largest times that of all others may be {MOST_CELLS:,} at most. Leave the level out "
            "that matters least, or merge its groups."
        )
    return [level.astype(np.intp) for level in levels]


def whitened(design: Array) -> tuple[Array, Array]:
    """Return uncorrelated columns of mean square 1 that span the design, and the way back.

    With Q and T of the result, Q = X T; coefficients γ of Q are coefficients T γ of X. A column that
    others repeat takes no part, which leaves the shortest of the equivalent coefficients.
    """
    sizes = np.sqrt((design**2).mean(axis=0))
    sizes[sizes == 0] = 1.0
    unit = design / sizes
    values, vectors = np.linalg.eigh(unit.T @ unit / len(unit))
    kept = values > REPEATED * values.max(initial=1.0)
    back = vectors[:, kept] / np.sqrt(values[kept])
    return unit @ back, back / sizes[:, None]
