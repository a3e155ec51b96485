"""How clusters are broken on purpose: how many rows break off, and which part is scored."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, choose
from mlflow_b3.folds import Rows

NAMES = ("uniform", "halves", "singles")
#: Of seven broken clusters, four are broken as stated; the others show what the dose does.
MAIN_PART = 4


@dataclass(frozen=True, kw_only=True)
class FragmentSizes:
    """How many rows of a cluster break off.

    Attributes
    ----------
    law : {"uniform", "halves", "singles", "sizes", "shares"}
        A cut drawn uniformly, half of the rows, a single row, or one of `values`.
    values : tuple of float
        Numbers of rows (`sizes`) or shares of the cluster's rows (`shares`), each as likely as
        the others. A size applies to clusters with more rows than that; clusters to which none
        applies are left whole. A share is rounded at random, and leaves a row on either side.
    """

    law: str = "uniform"
    values: tuple[float, ...] = ()

    def draw(self, rows: int, rng: np.random.Generator) -> int:
        """Return how many of a cluster's rows break off; 0 when it cannot be broken like this."""
        if not self.applies(rows):
            return 0
        if self.law == "uniform":
            return int(rng.integers(1, rows))
        sizes, chances = self._outcomes(rows)
        return int(rng.choice(sizes, p=chances))

    def breaks_again(self, rows: int) -> float:
        """Return the share of a cluster's rows whose part could be broken a second time."""
        if not self.applies(rows):
            return 0.0
        sizes, chances = self._outcomes(rows)
        parts = ((size * self.applies(size), rows - size) for size in sizes)
        lasting = [part + rest * self.applies(rest) for part, rest in parts]
        return float(np.dot(lasting, chances)) / rows

    def _outcomes(self, rows: int) -> tuple[list[int], NDArray[np.float64]]:
        """Return the numbers of rows that can break off a cluster, and their chances."""
        if self.law == "shares":
            shares = np.array(self.values) * rows
            below = np.floor(shares)
            ends = np.concatenate([below, below + 1])
            sizes = np.clip(ends, 1, rows - 1).astype(int).tolist()
            chances = np.concatenate([1 - (shares - below), shares - below])
        else:
            if self.law == "sizes":
                sizes = [int(size) for size in self.values if size < rows]
            else:
                sizes = {"halves": [rows // 2], "singles": [1]}.get(self.law, [*range(1, rows)])
            chances = np.ones(len(sizes))
        return sizes, chances / chances.sum()

    def applies(self, rows: int) -> bool:
        """Return whether a cluster of this many rows can be broken."""
        return rows > (min(self.values) if self.law == "sizes" else 1)

    def __str__(self) -> str:
        """Return the text that `parse_fragments` reads."""
        return ",".join(f"{value:g}" for value in self.values) if self.values else self.law


UNIFORM = FragmentSizes()


def parse_fragments(value: Any) -> FragmentSizes:
    """Read the `fragments` argument: a name, or the sizes or shares of known fragments.

    Parameters
    ----------
    value : {"uniform", "halves", "singles"}, or sequence of numbers, or such numbers as text
        Whole numbers from 1 are numbers of rows, numbers between 0 and 1 shares of a cluster's
        rows.
    """
    if isinstance(value, str):
        parts = [part for part in value.split(",") if part.strip()]
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            return FragmentSizes(law=choose("fragments", value, NAMES))
    else:
        try:
            items = list(value) if isinstance(value, Iterable) else [value]
            numbers = [math.nan if isinstance(item, bool) else float(item) for item in items]
        except (TypeError, ValueError):
            numbers = []
    if numbers and all(0 < number < 1 for number in numbers):
        return FragmentSizes(law="shares", values=tuple(numbers))
    if numbers and all(number >= 1 and number.is_integer() for number in numbers):
        return FragmentSizes(law="sizes", values=tuple(numbers))
    raise InputError(
        f"fragments={value!r} is not usable; use one of {', '.join(map(repr, NAMES))}, or give the "
        "sizes of known fragments: whole numbers of rows from 1, or else shares of a cluster's rows "
        "between 0 and 1."
    )


def breakable(clusters: NDArray[np.intp], sizes: FragmentSizes = UNIFORM) -> NDArray[np.intp]:
    """Return the clusters that can be broken: with two rows or, for known sizes, enough of them."""
    labels, counts = np.unique(clusters, return_counts=True)
    keep = np.array([sizes.applies(count) for count in counts.tolist()], dtype=bool)
    return np.asarray(labels[keep], dtype=np.intp)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of breaking clusters within a refit.

    Attributes
    ----------
    sizes : FragmentSizes
    again : bool
        Break the scored part once more, as happens when a cluster of V̂ is already a fragment.
    """

    sizes: FragmentSizes
    again: bool = False

    def split(
        self,
        rows: Rows,
        rng: np.random.Generator,
        second: np.random.Generator,
        *,
        swapped: bool,
    ) -> tuple[Rows, Rows]:
        """Break the rows of one cluster; return those given to training and those scored.

        A cluster split in (a, m-a) has a rows that meet m-a mates in training, and m-a rows that
        meet a. So either part is scored with the same chance, and the other one when `swapped` with
        `rng` in the same state: then every row is scored once, which weights the doses as the rows
        of truly split clusters are.
        """
        training, scored = self._parts(rows, rng)
        if swapped:
            training, scored = scored, training
        if self.again:
            if self.sizes.applies(len(scored)):
                more, scored = self._parts(scored, second)
                training = np.concatenate([training, more])
            elif second.random() < 0.5:  # as rarely scored as rows that are broken again
                scored = scored[:0]
        return training, scored

    def _parts(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        order = rng.permutation(rows)
        size = self.sizes.draw(len(rows), rng)
        parts = order[:size], order[size:]
        return parts if rng.random() < 0.5 else parts[::-1]


def arms_of(sizes: FragmentSizes) -> tuple[Arm, ...]:
    """Return the ways of breaking: as stated, the same again, and the smallest and largest dose.

    Of all splits in two, that of a single row leaves the rows of a cluster the fewest mates in
    training on average, 2(m-1)/m, and that in halves the most, m/2.
    """
    others = [FragmentSizes(law=law) for law in ("singles", "halves") if law != sizes.law]
    return (Arm(sizes=sizes), Arm(sizes=sizes, again=True), *(Arm(sizes=s) for s in others))


def arm_number(breaking: int, arms: int) -> int:
    """Return the arm of the n-th broken cluster of a fold; the first few are broken as stated."""
    place = breaking % (MAIN_PART + arms - 1)
    return max(0, place - MAIN_PART + 1)
