"""Scores of groups of rows, such as women and men, and which differences are beyond the noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mlflow_b3.auditing.doses import ByDoses
from mlflow_b3.errors import InputError, closest
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.influence import Array, Reading
from mlflow_b3.measurement.collecting import (
    GroupLosses,
    Measurement,
    RowGroups,
    robust_covariance,
)
from mlflow_b3.results import Result, interval_words, number, shortened, signed

#: More groups than this would leave nothing beyond the noise.
MOST_GROUPS = 20
#: How many differences beyond the noise a sentence names.
NAMED_DIFFERENCES = 3
#: What a reader of e0 of groups must know.
SHRUNK = "e0 of small groups is shrunk towards LOCO"


@dataclass(frozen=True, kw_only=True)
class GroupScore(Result):
    """The scores of one group of rows, of models that are trained on all groups.

    Attributes
    ----------
    name : str
    rows : int
        Validated rows of the group.
    clusters : float
        The effective number of clusters that they are spread over.
    loco, loco_interval
        By the cluster ids as they are.
    e0, e0_interval
        On new clusters; None if nothing is known about the ids.
    inflation, inflation_interval
        How much better LOCO looks than e0.
    why_not : str
        Why the group has no scores, such as too few clusters; they are all None then.
    """

    name: str
    rows: int
    clusters: float
    loco: float | None = None
    loco_interval: tuple[float, float] | None = None
    e0: float | None = None
    e0_interval: tuple[float, float] | None = None
    inflation: float | None = None
    inflation_interval: tuple[float, float] | None = None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupDifference(Result):
    """The score of one group minus that of another.

    Attributes
    ----------
    first, second : str
    difference : float
    interval : tuple of float
        95% for all pairs of groups at once (Bonferroni).
    beyond_noise : bool
        Whether the interval excludes 0.
    """

    first: str
    second: str
    difference: float
    interval: tuple[float, float]
    beyond_noise: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class GroupScores(Result):
    """The scores of all groups: `report.groups` of an audit with `by`.

    Attributes
    ----------
    by : str
        What the groups are of.
    score : {"e0", "loco"}
        What the differences are of; `loco` if nothing is known about the ids.
    groups : tuple of GroupScore
    differences : tuple of GroupDifference
    """

    by: str
    score: str
    groups: tuple[GroupScore, ...]
    differences: tuple[GroupDifference, ...]

    @property
    def sentence(self) -> str:
        """The score of each group, and which differences are beyond the noise."""
        scores = [
            f"{group.name} {'not known' if value is None else number(value)}"
            for group in self.groups
            for value in [group.e0 if self.score == "e0" else group.loco]
        ]
        beyond = [
            f"{each.first} - {each.second} ({signed(each.difference)})"
            for each in self.differences
            if each.beyond_noise
        ]
        more = len(beyond) - NAMED_DIFFERENCES
        named = ", ".join(beyond[:NAMED_DIFFERENCES]) + f" and {more} more" * (more > 0)
        noise = f"beyond the noise: {named}" if beyond else "no difference beyond the noise"
        told = f"; {noise}" * bool(self.differences) + f"; {SHRUNK}" * (self.score == "e0")
        return f"By {self.by}, {self.score}: {', '.join(scores)}{told}"

    def __repr__(self) -> str:
        """Return the sentence, and a line for each group."""
        lines = [f"{self.sentence}."]
        for group in self.groups:
            if group.loco is None:
                told = group.why_not or "not known"
            else:
                told = f"loco={number(group.loco)} ({interval_words(group.loco_interval)})"
            if group.e0 is not None:
                told += f", e0={number(group.e0)} ({interval_words(group.e0_interval)})"
            lines.append(f"  {group.name}: {group.rows:,} rows, {told}")
        return "\n".join(lines)


def read_groups(by: Any, frame: "pd.DataFrame") -> RowGroups:
    """Return the groups of rows by a column of the table, or by labels of the rows.

    Parameters
    ----------
    by : str or sequence
    frame : DataFrame
    """
    if isinstance(by, str):
        if by not in frame.columns:
            columns = [str(name) for name in frame.columns]
            raise InputError(
                f"by={by!r} is not a column of the table.{closest(by, columns)} The columns are "
                f"{shortened(columns)}. Labels of the rows can be given as well."
            )
        values, name = frame[by], by
    else:
        values = pd.Series(by if isinstance(by, pd.Series) else list(by))
        name = "group" if values.name is None else str(values.name)
        if len(values) != len(frame):
            raise InputError(
                f"by has {len(values)} labels, but the table has {len(frame)} rows; give one for each, "
                "or the name of a column."
            )
    codes, labels = pd.factorize(values.to_numpy(), sort=False)
    order = np.argsort([str(label) for label in labels], kind="stable")
    place = np.empty(len(labels), dtype=np.intp)
    place[order] = np.arange(len(labels))
    if not 2 <= len(labels) <= MOST_GROUPS:
        raise InputError(
            f"by={name!r} has {len(labels)} different values; it needs 2 to {MOST_GROUPS}, such as those of "
            "a category. Cut numbers into ranges with pandas.cut first."
        )
    return RowGroups(
        by=name,
        names=tuple(str(labels[k]) for k in order),
        codes=np.where(codes < 0, -1, place[np.maximum(codes, 0)]),
    )


def conclude_groups(
    measured: Measurement, way: Callable[[Measurement], ByDoses]
) -> GroupScores | None:
    """Return the scores of the groups that were measured; None if there are none."""
    if not measured.groups:
        return None
    read = [_read(group, measured, way) for group in measured.groups]
    known = [found for found in read if found is not None]
    scored = [
        GroupScore(name=g.name, rows=g.rows, clusters=g.clusters, why_not=g.why_not)
        if found is None
        else found.shown(g)
        for g, found in zip(measured.groups, read, strict=True)
    ]
    e0 = bool(known) and all(found.reading is not None for found in known)
    return GroupScores(
        by=measured.groups[0].by,
        score="e0" if e0 else "loco",
        groups=tuple(scored),
        differences=_differences(known, e0=e0),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Read:
    """A group's scores with what each cluster adds to them."""

    name: str
    loco: float
    loco_interval: tuple[float, float]
    of_loco: Array
    degrees: float
    reading: Reading | None = None
    of_e0: Array | None = None
    e0: float | None = None
    e0_interval: tuple[float, float] | None = None

    def shown(self, group: GroupLosses) -> GroupScore:
        inflation, ends = None, None
        if self.e0 is not None and self.of_e0 is not None and self.reading is not None:
            inflation = self.e0 - self.loco
            ends = _ends(inflation, self.of_e0 - self.of_loco, self.reading.noise**2, self.degrees)
        return GroupScore(
            name=group.name,
            rows=group.rows,
            clusters=group.clusters,
            loco=self.loco,
            loco_interval=self.loco_interval,
            e0=self.e0,
            e0_interval=self.e0_interval,
            inflation=inflation,
            inflation_interval=ends,
        )


def _read(
    group: GroupLosses, measured: Measurement, way: Callable[[Measurement], ByDoses]
) -> _Read | None:
    if group.doses is None:
        return None
    found = way(replace(measured, doses=group.doses, groups=()))
    degrees = max(group.clusters - 1, 2.0)
    of_loco = found.fit.loco_influence[measured.units.ids]
    loco = found.fit.loco
    base: dict[str, Any] = {
        "name": group.name,
        "loco": loco,
        "loco_interval": found.possible(loco, _ends(loco, of_loco, 0.0, degrees))[1],
        "of_loco": of_loco,
        "degrees": degrees,
    }
    readings = found.read()
    if not readings or found.claim.excludes_nothing:
        return _Read(**base)
    middle, of_e0 = min(readings, key=lambda pair: abs(pair[0].leakage - found.claim.middle))
    e0, interval = found.possible(*found.estimate())
    return _Read(**base, reading=middle, of_e0=of_e0, e0=e0, e0_interval=interval)


def _ends(
    value: float, influence: Array, noise: float, degrees: float, pairs: int = 1
) -> tuple[float, float]:
    error = math.sqrt(float(robust_covariance(influence[:, None])[0, 0]) + noise)
    reach = float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / pairs, degrees)) * error
    return value - reach, value + reach


def _differences(known: Sequence[_Read], *, e0: bool) -> tuple[GroupDifference, ...]:
    pairs = list(combinations(known, 2))
    found = []
    for a, b in pairs:
        if e0:
            assert a.reading is not None
            assert b.reading is not None
            assert a.of_e0 is not None
            assert b.of_e0 is not None
            value, influence = a.reading.e0 - b.reading.e0, a.of_e0 - b.of_e0
            noise = a.reading.noise**2 + b.reading.noise**2
        else:
            value, influence, noise = a.loco - b.loco, a.of_loco - b.of_loco, 0.0
        ends = _ends(value, influence, noise, min(a.degrees, b.degrees), len(pairs))
        found.append(
            GroupDifference(
                first=a.name,
                second=b.name,
                difference=value,
                interval=ends,
                beyond_noise=ends[0] > 0 or ends[1] < 0,
            )
        )
    return tuple(found)


def turn_groups(found: GroupScores) -> GroupScores:
    """Return the scores of groups with 1 - score in place of each score."""

    def turn(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if ends is None else (1 - ends[1], 1 - ends[0])

    groups = tuple(
        replace(
            group,
            loco=None if group.loco is None else 1 - group.loco,
            loco_interval=turn(group.loco_interval),
            e0=None if group.e0 is None else 1 - group.e0,
            e0_interval=turn(group.e0_interval),
        )
        for group in found.groups
    )
    differences = tuple(
        replace(each, difference=-each.difference, interval=(-each.interval[1], -each.interval[0]))
        for each in found.differences
    )
    return replace(found, groups=groups, differences=differences)
