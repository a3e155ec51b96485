"""The columns of a pair table: where its two ids are, and its probability."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.row_ids import listed

#: Names under which tools write the two rows of a pair, most specific first.
ID_COLUMNS = (
    ("unique_id_l", "unique_id_r"),
    ("id_1", "id_2"),
    ("id1", "id2"),
    ("id_l", "id_r"),
    ("id_left", "id_right"),
    ("left_id", "right_id"),
    ("ltable_id", "rtable_id"),
    ("record_id_1", "record_id_2"),
    ("rec_id_1", "rec_id_2"),
    ("row_1", "row_2"),
    ("i", "j"),
)
PROBABILITY_COLUMNS = (
    "match_probability",
    "probability",
    "prob",
    "p",
    "score",
    "confidence",
)
WEIGHT_COLUMN = "match_weight"
SPLINK_ID = "unique_id"
#: How many columns of an unusable table an error shows.
COLUMNS = 20


def splink_id(table: pd.DataFrame, id_column: str | None = None) -> str | None:
    """Return Splink's `unique_id_column_name`, None where the table is not Splink's.

    Parameters
    ----------
    table : pandas.DataFrame
    id_column : str, optional
        A name that it may have; taken where the columns with _l and _r are there. Splink's own
        default comes next, and then the only columns X_l and X_r beside a match probability or
        weight.
    """
    for name in (id_column, SPLINK_ID):
        if name is not None and _sides(name) <= set(table.columns):
            return name
    if not {PROBABILITY_COLUMNS[0], WEIGHT_COLUMN} & set(table.columns) or any(
        {first, second} <= set(table.columns) for first, second in ID_COLUMNS
    ):
        return None
    names = [str(name)[:-2] for name in table.columns if str(name).endswith("_l")]
    pairs = [
        name for name in names if _sides(name) <= set(table.columns) and name != "source_dataset"
    ]
    if len(pairs) > 1:
        raise InputError(
            f"pairs: the ids may be in any of the columns with _l and _r, {listed(pairs, COLUMNS)}. Name "
            "the one that holds them: id_column, or row_id if the table of rows calls it the same."
        )
    return pairs[0] if pairs else None


def _sides(name: str) -> set[str]:
    return {f"{name}_l", f"{name}_r"}


def id_columns(table: pd.DataFrame) -> tuple[str, str]:
    """Return the columns with the ids of a pair, under the names that tools give them."""
    for first, second in ID_COLUMNS:
        if {first, second} <= set(table.columns):
            return first, second
    tried = ", ".join(f"{first}/{second}" for first, second in ID_COLUMNS)
    raise InputError(
        f"pairs: none of the columns {tried} is there; the table has {listed(table.columns, COLUMNS)}. "
        "Rename them, or name them in Python: from_pairs(table, ids, (first id, second id, probability))."
    )


def given_columns(table: pd.DataFrame, columns: Sequence[str]) -> tuple[str, str, str]:
    """Return columns that were named, if they are there."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if len(names) != 3:
        raise InputError(f"columns={columns!r} must name (first id, second id, probability).")
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise InputError(
            f"columns={columns!r}: the table has no {listed(missing)}; it has "
            f"{listed(table.columns, COLUMNS)}."
        )
    return names[0], names[1], names[2]


def probability_of(table: pd.DataFrame) -> Any:
    """Return the match probability, also from match weights."""
    for name in PROBABILITY_COLUMNS:
        if name in table.columns:
            return numbers_of(table, name)
    if WEIGHT_COLUMN in table.columns:
        return expit(numbers_of(table, WEIGHT_COLUMN) * np.log(2))
    raise InputError(
        f"pairs: no probability under {', '.join(PROBABILITY_COLUMNS)} nor {WEIGHT_COLUMN}; the "
        f"table has {listed(table.columns, COLUMNS)}. Rename it, or name it in Python: from_pairs(table, ids, "
        "(first id, second id, probability))."
    )


def numbers_of(table: pd.DataFrame, name: str) -> Any:
    """Return the numbers of a column; text that is none is an error."""
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if np.isnan(values).any():
        raise InputError(f"pairs: {int(np.isnan(values).sum())} values of {name!r} are no numbers.")
    return values
