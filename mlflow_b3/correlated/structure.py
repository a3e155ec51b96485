"""By what rows are correlated: groups of several kinds, or places in regions."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Level:
    """One grouping factor: rows of the same group share a random intercept.

    Attributes
    ----------
    name : str
        The column.
    codes : array of int
        The group of each row, from 0 without gaps.
    new : bool
        Rows that the model will be used on belong to new groups; else to groups seen in training.
    """

    name: str
    codes: Codes
    new: bool = True

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return int(self.codes.max()) + 1


@dataclass(frozen=True, kw_only=True)
class Field:
    """A Gaussian random field over places, observed in regions.

    Attributes
    ----------
    coordinates : array (n, d)
        Where each row was taken.
    regions : Level
        Rows that the model will be used on belong to a new region.
    """

    coordinates: Array
    regions: Level


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What correlates the rows: random intercepts of levels, or a field with regions.

    Attributes
    ----------
    levels : tuple of Level
        Empty where there is a field.
    field : Field or None
    """

    levels: tuple[Level, ...] = ()
    field: Field | None = None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.grouping[0].codes)

    @property
    def grouping(self) -> tuple[Level, ...]:
        """The levels, or the regions of the field."""
        return self.levels if self.field is None else (self.field.regions,)

    @property
    def new(self) -> tuple[Level, ...]:
        """Those of which the model will meet new groups."""
        return tuple(level for level in self.grouping if level.new)


@dataclass(frozen=True, kw_only=True)
class WorkingModel:
    """The model by which correlated rows are simulated.

    y_i | δ ~ Bernoulli(g(f_i + δ_i)) with the logistic g, or f_i + δ_i + ε_i for numbers; δ is the sum of
    independent normal intercepts of the levels, or a field with the exponential kernel
    σ² exp(-d/r).

    Attributes
    ----------
    task : {"classification", "regression"}
    mean : array (n,)
        f, on the scale of log odds for classes.
    sd : tuple of float
        Standard deviations of the intercepts, one for each level; σ alone for a field.
    sd_low, sd_high : tuple of float
        95 % profile-likelihood intervals of these.
    noise : float or None
        Standard deviation of ε, for numbers.
    reach : float or None
        r, for a field.
    source : {"score", "glmm", "given"}
        Where f comes from.
    coefficients : tuple of float
        Of the fixed effects; for "score" the intercept and the slope of the score.
    levels : tuple of str
        What the standard deviations are of, in their order; for a field its region alone.
    rows : str
        Digest of the target and the groups that it was estimated from; "" for one made by hand.
    problems : tuple of (str, str)
        Why it must not be used: finding code and words; empty where it can be.
    warnings : tuple of (str, str)
        What the reader must know, in the same form.
    """

    task: str
    mean: Array
    sd: tuple[float, ...]
    sd_low: tuple[float, ...]
    sd_high: tuple[float, ...]
    noise: float | None = None
    reach: float | None = None
    source: str = "given"
    coefficients: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    rows: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()


def is_within(level: Level, other: Level) -> bool:
    """Whether each group of a level lies within one group of another."""
    pairs = np.unique(np.column_stack([level.codes, other.codes]), axis=0)
    return len(pairs) == level.n_groups


def digest_rows(target: Any, structure: Structure) -> str:
    """Return 16 digits that change with any target, group or place, not with the order of columns."""
    sha = hashlib.sha256("\x1f".join(map(str, np.asarray(target).tolist())).encode())
    for level in sorted(structure.grouping, key=lambda level: level.name):
        sha.update(level.name.encode() + np.asarray(level.codes, dtype="<i8").tobytes())
    if structure.field is not None:
        sha.update(np.ascontiguousarray(structure.field.coordinates, dtype="<f8").tobytes())
    return sha.hexdigest()[:16]


def as_level(name: str, values: Any, *, new: bool = True) -> Level:
    """Return the level of a column, its groups numbered in the order in which they appear."""
    import pandas as pd

    codes, _ = pd.factorize(np.asarray(values), sort=False)
    return Level(name=name, codes=np.asarray(codes, dtype=np.intp), new=new)
