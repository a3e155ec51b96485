"""Numbers of reviewed rows and of their mates, checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.splits import Rows


def checked_rows(rows: Any, n: int) -> Rows:
    """Return the numbers of reviewed rows, each once."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or not len(numbers):
        raise InputError("rows must hold the numbers of the reviewed rows; it holds none.")
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError("rows must be whole numbers from 0; parse_review turns ids into them.")
    problems = []
    if numbers.min() < 0 or numbers.max() >= n:
        problems.append(f"row numbers must lie in 0 … {n - 1}.")
    twice = len(numbers) - len(np.unique(numbers))
    if twice:
        problems.append(f"{twice} are given more than once; a row can be reviewed once only.")
    if problems:
        raise InputError.from_problems("rows", problems)
    return numbers.astype(np.intp)


def checked_mates(rows: Rows, mates: Any, n: int) -> tuple[Rows, ...]:
    """Return the mates of each reviewed row, sorted; nobody having looked is an error."""
    if isinstance(mates, Mapping):
        listed: Sequence[Any] = [mates.get(row) for row in rows.tolist()]
    else:
        listed = list(mates)
    if len(listed) != len(rows):
        raise InputError(
            f"mates has {len(listed)} entries for {len(rows)} rows; give one for each."
        )
    missing = sum(isinstance(item, str) or not isinstance(item, Iterable) for item in listed)
    if missing:
        raise InputError(
            f"mates is missing, or is no list, for {missing} of {len(rows)} rows. An empty list says "
            "that somebody looked and found none; leave out rows that nobody looked at, if they were "
            "left over by chance."
        )
    lists = [list(item) for item in listed]
    flat = np.asarray([mate for found in lists for mate in found])
    if len(flat) and not (flat.ndim == 1 and np.issubdtype(flat.dtype, np.integer)):
        raise InputError("mates must be whole numbers from 0; parse_review turns ids into them.")
    flat = flat.astype(np.intp)
    places = np.repeat(np.arange(len(rows)), [len(found) for found in lists])
    problems = []
    outside = len(np.unique(places[(flat < 0) | (flat >= n)]))
    if outside:
        problems.append(f"{outside} rows have mates outside 0 … {n - 1}.")
    own = len(np.unique(places[flat == rows[places]]))
    if own:
        problems.append(f"{own} rows are listed as mates of themselves; list other rows only.")
    if problems:
        raise InputError.from_problems("mates", problems)
    pairs = np.unique(np.column_stack([places, flat]), axis=0)
    ends = np.cumsum(np.bincount(pairs[:, 0], minlength=len(rows)))[:-1]
    return tuple(np.split(pairs[:, 1], ends))


def count_unreturned(rows: Rows, places: Rows, mates: Rows, home: Rows) -> int:
    """Return how many reviewed rows are listed by others that they do not list themselves.

    `places` and `mates` are the pairs of `ResolvedRows`; rows of one `home` need not be listed.
    """
    order = np.argsort(rows)
    found = order[np.minimum(np.searchsorted(rows, mates, sorter=order), len(rows) - 1)]
    both = rows[found] == mates
    here, there = places[both], found[both]
    returned = np.isin(here * len(rows) + there, there * len(rows) + here)
    return len(np.unique(there[~returned & (home[here] != home[there])]))
