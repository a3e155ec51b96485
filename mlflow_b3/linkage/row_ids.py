"""Ids of linked records as row numbers of the audited table."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Rows

EXAMPLES = 5
#: A number as spreadsheets and readers of files change it: without leading zeros, or with decimals.
NUMBER = re.compile(r"0*(\d+)(?:\.0+)?")


def pairs_by_id(
    first: pd.Series, second: pd.Series, probability: Any, ids: Any, ignore_unknown: bool
) -> PairTable:
    """Return pairs of row numbers for pairs of ids; see `read_pairs` of the adapters."""
    known = pd.Index(np.asarray(ids, dtype=object) if isinstance(ids, list) else ids)
    problems = []
    if known.hasnans:
        problems.append(f"ids is missing in {int(known.isna().sum())} rows.")
    if not known.is_unique:
        double = known[known.duplicated()].unique()
        problems.append(
            f"ids must be unique; {len(double)} occur more than once: {listed(double)}."
        )
    gaps = int(first.isna().sum() + second.isna().sum())
    if gaps:
        problems.append(f"{gaps} ids of the pair table are missing.")
    if problems:
        raise InputError.from_problems("pairs", problems)
    both = pd.concat([first, second], ignore_index=True)
    rows = _row_numbers(known, both)
    unknown = rows < 0
    if unknown.any() and not ignore_unknown:
        names = pd.unique(both[unknown])
        raise InputError(
            f"pairs: {len(names)} ids are in no row of the audited table: {listed(names)}. Check "
            "that ids are those of the linked table; where the audited rows are some of the linked "
            "ones, say ignore_unknown=True."
        )
    i, j = rows[: len(first)], rows[len(first) :]
    keep = (i >= 0) & (j >= 0)
    if len(keep) and not keep.any():
        raise InputError(
            f"pairs: none of {len(keep)} has both of its ids in the audited table, where ids are like "
            f"{listed(known, 2)}; those of the pairs are like {listed(pd.unique(both), 2)}. Name the "
            "column of the table that holds the ids which were linked (row_id)."
        )
    pairs = PairTable.of(i[keep], j[keep], np.asarray(probability)[keep], len(known))
    return replace(pairs, left_out=int((~keep).sum()))


def _row_numbers(known: pd.Index, labels: pd.Series) -> Rows:
    """Return the row of each label, -1 where there is none; 12, "12" and "0012" are one label.

    Tables that were read as numbers have lost the leading zeros that the other one may still have.
    """
    codes, names = pd.factorize(labels)
    rows = known.get_indexer(pd.Index(names))
    strange = rows < 0
    if strange.any():
        texts = [id_text(label) for label in known]
        if pd.Index(texts).is_unique:
            lookup = row_lookup(texts)
            found = [find_row(id_text(name), lookup) for name in names[strange]]
            rows[strange] = [-1 if row is None else row for row in found]
    return np.asarray(rows[codes], dtype=np.intp)


def id_text(label: Any) -> str:
    """Return an id as text: numbers without decimals where they are whole, gaps as nothing."""
    if label is None or label is pd.NA or label is pd.NaT or label != label:  # NaN
        return ""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label).strip()


def label_texts(labels: Iterable[Any]) -> list[str]:
    """Return labels as text that is the same when a spreadsheet has changed their numbers."""
    return [_number(id_text(label)) for label in labels]


def row_lookup(texts: list[str]) -> dict[str, int]:
    """Return the row of each id, also of numbers as spreadsheets change them, where that is unique."""
    exact = {text: row for row, text in enumerate(texts)}
    changed: dict[str, list[int]] = {}
    for text, row in exact.items():
        changed.setdefault(_number(text), []).append(row)
    return {name: rows[0] for name, rows in changed.items() if len(rows) == 1} | exact


def _number(text: str) -> str:
    match = NUMBER.fullmatch(text)
    return match.group(1) if match else text


def find_row(text: str, lookup: dict[str, int]) -> int | None:
    """Return the row of an id, None if there is no such id."""
    return lookup.get(text, lookup.get(_number(text)))


def listed(names: Any, most: int = EXAMPLES) -> str:
    """Return a few names, quoted."""
    shown = [repr(name.item() if hasattr(name, "item") else name) for name in list(names)[:most]]
    return ", ".join(shown) + (", …" if len(names) > most else "")
