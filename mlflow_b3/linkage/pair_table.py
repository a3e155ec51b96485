"""A table of scored pairs of rows, checked once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.splits import Floats, Rows
from mlflow_b3.wording import not_percentage


@dataclass(frozen=True, kw_only=True, eq=False)
class PairTable:
    """Pairs of rows with the probability that they belong to one entity.

    It unpacks into the arrays that the functions of this package take:
    `leak_from_pairs(*pairs, folds, clusters)`.

    Attributes
    ----------
    first, second : array of int
        Row numbers from 0; every pair once, the smaller number first.
    probability : array of float
        π_ij.
    n : int
        Number of rows of the table that the numbers refer to.
    left_out : int
        How many pairs of the source have an id that is not in the table, and are not here.
    """

    first: Rows
    second: Rows
    probability: Floats
    n: int
    left_out: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Unpack into first rows, second rows and probabilities."""
        return iter(self.arrays)

    @property
    def arrays(self) -> tuple[Rows, Rows, Floats]:
        """First rows, second rows and probabilities."""
        return self.first, self.second, self.probability

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.first)

    @classmethod
    def of(cls, first: Any, second: Any, probability: Any, n: int | None = None) -> Self:
        """Check pairs of row numbers: no row with itself, probabilities in [0, 1].

        A pair that occurs twice, in whatever order, counts once with its larger probability.
        """
        i, j = (np.asarray(side) for side in (first, second))
        p = np.asarray(probability, dtype=float)
        problems = []
        if not (i.ndim == j.ndim == p.ndim == 1 and len(i) == len(j) == len(p)):
            raise InputError(
                f"pairs: {i.shape}, {j.shape} and {p.shape} values; three lists of equal length are "
                "needed: first row, second row, probability."
            )
        if len(i) and not all(np.issubdtype(side.dtype, np.integer) for side in (i, j)):
            raise InputError("pairs: rows must be whole numbers from 0; see from_pairs for ids.")
        i, j = i.astype(np.intp), j.astype(np.intp)
        count = n if n is not None else (int(max(i.max(), j.max())) + 1 if len(i) else 0)
        if len(i) and (min(i.min(), j.min()) < 0 or max(i.max(), j.max()) >= count):
            problems.append(f"row numbers must lie in 0 … {count - 1}.")
        if (i == j).any():
            problems.append(f"{int((i == j).sum())} pairs hold the same row twice.")
        wrong = ~((p >= 0) & (p <= 1))
        if wrong.any():
            problems.append(
                f"{int(wrong.sum())} match probabilities are missing or outside [0, 1]."
                f"{not_percentage(p)}"
            )
        if problems:
            raise InputError.from_problems("pairs", problems)
        frame = pd.DataFrame({"i": np.minimum(i, j), "j": np.maximum(i, j), "p": p})
        if frame.duplicated(["i", "j"]).any():
            frame = frame.sort_values("p", ascending=False).drop_duplicates(["i", "j"]).sort_index()
        return cls(
            first=frame["i"].to_numpy(dtype=np.intp),
            second=frame["j"].to_numpy(dtype=np.intp),
            probability=frame["p"].to_numpy(dtype=float),
            n=count,
        )
