"""The correlation structure of rows, by groups or by locations in regions, and the options of CVc."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import Result

# --- The correlation structure: groups of several kinds, or locations in regions

Array = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Level:
    """One grouping factor: rows of the same group share a random intercept.

    Attributes
    ----------
    name : str
        Name of the column.
    codes : array of int
        The group of each row, from 0 without gaps.
    new : bool
        Whether the model will be used on new groups; otherwise on groups seen in training.
    """

    name: str
    codes: Codes
    new: bool = True

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.codes.max()) + 1


@dataclass(frozen=True, kw_only=True)
class Field:
    """A Gaussian random field over locations, observed in regions.

    Attributes
    ----------
    coordinates : array (n, d)
        The location of each row.
    regions : Level
        The regions. The model will be used on a new region.
    kernel : {"exponential", "gaussian"}
        How covariance falls with distance, where it is estimated.
    """

    coordinates: Array
    regions: Level
    kernel: str = "exponential"


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The correlation structure of rows: random intercepts of levels, or a field with regions.

    Attributes
    ----------
    levels : tuple of Level
        Empty if there is a field.
    field : Field or None
    """

    levels: tuple[Level, ...] = ()
    field: Field | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.grouping[0].codes)

    @property
    def grouping(self) -> tuple[Level, ...]:
        """The levels, or the regions of the field."""
        return self.levels if self.field is None else (self.field.regions,)

    @property
    def new(self) -> tuple[Level, ...]:
        """The levels of which the model will meet new groups."""
        return tuple(level for level in self.grouping if level.new)


@dataclass(frozen=True, kw_only=True)
class WorkingModel:
    """The model that simulates correlated rows.

    y_i | δ ~ Bernoulli(g(f_i + δ_i)) with the logistic g for two classes, or f_i + δ_i + ε_i for
    regression. δ is the sum of independent normal intercepts of the levels, or a field with the
    exponential kernel σ² exp(-d/r) or the Gaussian σ² exp(-(d/r)²). For more than two classes, chances
    are softmax(f_i + δ_i), and the intercepts of a group are independent with variance σ²/2 for each
    class, so the log odds of any two classes have the standard deviation σ.

    Attributes
    ----------
    task : {"classification", "regression"}
    mean : array (n,)
        f; on the log odds scale for classification. (n, C) for more than two classes, in their sorted
        order.
    sd : tuple of float
        Standard deviations of the intercepts, one for each level; σ alone for a field.
    sd_low, sd_high : tuple of float
        95% profile likelihood intervals of `sd`.
    noise : float or None
        Standard deviation of ε, for regression.
    reach : float or None
        r, for a field.
    kernel : {"exponential", "gaussian"}
        The kernel of a field.
    source : {"score", "glmm", "given"}
        The origin of f.
    coefficients : tuple of float
        Coefficients of the fixed effects; for "score" the intercept and the slope of the score.
    levels : tuple of str
        The levels of the standard deviations, in their order; for a field, its region.
    rows : str
        Digest of the target and the groups that it was estimated from; "" for a hand-written model.
    problems : tuple of (str, str)
        Reasons not to use the model, as finding codes and messages; empty if it can be used.
    warnings : tuple of (str, str)
        Warnings for the reader, in the same form.
    """

    task: str
    mean: Array
    sd: tuple[float, ...]
    sd_low: tuple[float, ...]
    sd_high: tuple[float, ...]
    noise: float | None = None
    reach: float | None = None
    kernel: str = "exponential"
    source: str = "given"
    coefficients: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    rows: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for regression."""
        if self.task != "classification":
            return 0
        return 2 if np.ndim(self.mean) == 1 else int(np.shape(self.mean)[1])


def is_within(level: Level, other: Level) -> bool:
    """Return whether each group of a level lies within one group of another."""
    pairs = np.unique(np.column_stack([level.codes, other.codes]), axis=0)
    return len(pairs) == level.n_groups


def centred_in_groups(values: Array, level: Level) -> Array:
    """Return columns minus their means in the groups of a level."""
    sums = np.empty((level.n_groups, values.shape[1]))
    for place, column in enumerate(values.T):
        sums[:, place] = np.bincount(level.codes, weights=column)
    means = sums / np.bincount(level.codes)[:, None]
    return np.asarray(values - means[level.codes])


def digest_rows(target: Any, structure: Structure) -> str:
    """Return a digest of targets, groups and locations that ignores the order of columns."""
    sha = hashlib.sha256("\x1f".join(map(str, np.asarray(target).tolist())).encode())
    for level in sorted(structure.grouping, key=lambda level: level.name):
        sha.update(level.name.encode() + np.asarray(level.codes, dtype="<i8").tobytes())
    if structure.field is not None:
        sha.update(np.ascontiguousarray(structure.field.coordinates, dtype="<f8").tobytes())
    return sha.hexdigest()[:16]


def as_level(name: str, values: Any, *, new: bool = True) -> Level:
    """Return the level of a column, with groups numbered in order of appearance."""
    import pandas as pd

    codes, _ = pd.factorize(np.asarray(values), sort=False)
    return Level(name=name, codes=np.asarray(codes, dtype=np.intp), new=new)


# --- The options of corrected cross-validation; checks report all problems at once

ENGINES = ("auto", "fast", "joint", "full", "hot", "last_layer")
#: Engines that are known to underestimate or overestimate the bias.
LOWER_QUALITY = ("hot", "last_layer")
WORKING = ("auto", "score", "glmm")
KERNELS = ("exponential", "gaussian")
DRAWS = 400
LEAST_DRAWS = 20


@dataclass(frozen=True, kw_only=True)
class CvcOptions(Result):
    """How the bias of cross-validation is computed.

    Attributes
    ----------
    groups : tuple of str
        Columns whose groups correlate the rows; with coordinates, the column of the region.
    new : tuple of str
        The groups of which the model will meet new values; all by default.
    coordinates : tuple of str
        Columns with the locations of rows, for a random field.
    kernel : {"exponential", "gaussian"}
        How the covariance of the field falls with distance.
    engine : {"auto", "fast", "joint", "full", "hot", "last_layer"}
    working : {"auto", "score", "glmm"}
    draws : int
        Number of simulated samples.
    epochs : int or None
        For the engine "hot": number of epochs of a network on a simulated sample.
    """

    groups: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    kernel: str = "exponential"
    engine: str = "auto"
    working: str = "auto"
    draws: int = DRAWS
    epochs: int | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None, cluster: str | None = None) -> Any:
        """Build options from user input, and report all problems at once.

        Parameters
        ----------
        given : mapping
            Values by attribute name; a list may be given as a single string.
        cluster : str, optional
            A column that is always one of the groups, and new.
        """
        values, known = dict(given or {}), [field.name for field in fields(cls)]
        problems = [
            f"{name!r} is not an option of method 'cvc'; use {', '.join(known)}.{closest(name, known)}"
            for name in values
            if name not in known
        ]
        names = {
            name: _names(name, values.get(name), problems)
            for name in ("groups", "new", "coordinates")
        }
        groups = names["groups"]
        if cluster is not None and cluster not in groups:
            groups = (cluster, *groups)
        new = groups if values.get("new") is None else names["new"]
        if not new and groups:
            problems.append(
                "new=[] would mean that the model meets no new groups, so there is nothing to "
                f"correct; leave it out for all of {list(groups)}, or name some of them."
            )
        if cluster is not None and new and cluster not in new:
            problems.append(
                f"new={list(new)} must contain the audited cluster {cluster!r}: the audit asks for the "
                "loss on new ones. Name another column as cluster, or use mlflow_b3.cvc."
            )
        problems += _problems(groups, new, names["coordinates"], values)
        if problems:
            raise InputError.from_problems("cvc", problems)
        return cls(
            groups=groups,
            new=new,
            coordinates=names["coordinates"],
            kernel=values.get("kernel", KERNELS[0]),
            engine=values.get("engine", "auto"),
            working=values.get("working", "auto"),
            draws=int(values.get("draws", DRAWS)),
            epochs=None if values.get("epochs") is None else int(values["epochs"]),
        )


def _names(option: str, value: Any, problems: list[str]) -> tuple[str, ...]:
    """Return columns from a list, or from a string with names between commas."""
    if value is None:
        return ()
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(listed, Sequence) or not all(
        isinstance(name, str) and name for name in listed
    ):
        problems.append(f"{option}={value!r} must be a list of column names.")
        return ()
    repeated = sorted({name for name in listed if list(listed).count(name) > 1})
    if repeated:
        problems.append(f"{option} names {', '.join(map(repr, repeated))} more than once.")
    return tuple(dict.fromkeys(listed))


def _problems(
    groups: tuple[str, ...],
    new: tuple[str, ...],
    coordinates: tuple[str, ...],
    values: Mapping[str, Any],
) -> list[str]:
    found = []
    if not groups:
        found.append(
            "groups=[] names no column; give the columns whose groups correlate the rows, such as "
            "groups=['patient', 'day']."
        )
    unknown = [name for name in new if name not in groups]
    if unknown and groups:
        found.append(f"new={list(new)} must be among groups={list(groups)}.")
    if coordinates and len(groups) > 1:
        found.append(
            f"coordinates={list(coordinates)} need a single group, the column of the region; "
            f"groups={list(groups)}."
        )
    if set(coordinates) & set(groups):
        found.append(
            f"coordinates={list(coordinates)} and groups={list(groups)} share columns; use each in "
            "one of them only."
        )
    for name, allowed in (("engine", ENGINES), ("working", WORKING), ("kernel", KERNELS)):
        value = values.get(name, allowed[0])
        if value not in allowed:
            found.append(
                f"{name}={value!r} is unknown; use one of {', '.join(allowed)}."
                + (closest(value, allowed) if isinstance(value, str) else "")
            )
    if values.get("kernel", KERNELS[0]) != KERNELS[0] and not coordinates:
        found.append(f"kernel={values['kernel']!r} is for a field; give coordinates, too.")
    draws = values.get("draws", DRAWS)
    if not _is_whole(draws) or draws < LEAST_DRAWS:
        found.append(f"draws={draws!r} must be a whole number from {LEAST_DRAWS}.")
    epochs = values.get("epochs")
    if epochs is not None and (not _is_whole(epochs) or epochs < 1):
        found.append(f"epochs={epochs!r} must be a whole number from 1.")
    if epochs is not None and values.get("engine") != "hot":
        found.append(f"epochs={epochs!r} is for engine='hot' only.")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


# --- Groups and coordinates from the columns of a table; checks report all problems at once


def read_structure(frame: pd.DataFrame, options: CvcOptions) -> Structure:
    """Return the correlation structure of a table's rows.

    Raises
    ------
    InputError
        For columns that do not exist or have missing values, and coordinates that are not numbers.
    """
    columns = [str(name) for name in frame.columns]
    problems = []
    for role, names in (("groups", options.groups), ("coordinates", options.coordinates)):
        for name in names:
            if name not in columns:
                problems.append(f"{role}: {name!r} is not a column.{closest(name, columns)}")
            elif frame[name].isna().any():
                gaps = int(frame[name].isna().sum())
                problems.append(
                    f"{role}: {name!r} has {gaps} missing values; fill them, or drop these rows."
                )
            elif role == "coordinates" and not pd.api.types.is_numeric_dtype(frame[name]):
                problems.append(
                    f"{role}: {name!r} has dtype {frame[name].dtype}; coordinates must be numbers."
                )
    if problems:
        raise InputError.from_problems("data", problems)
    levels = tuple(as_level(name, frame[name], new=name in options.new) for name in options.groups)
    if not options.coordinates:
        return Structure(levels=levels)
    places = frame[list(options.coordinates)].to_numpy(dtype=float)
    if not np.isfinite(places).all():
        raise InputError("data: coordinates must be finite numbers.")
    return Structure(field=Field(coordinates=places, regions=levels[0], kernel=options.kernel))
