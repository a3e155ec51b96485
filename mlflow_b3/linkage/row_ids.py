"""Ids of linked records as row numbers of the audited table."""

from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Rows

EXAMPLES = 5


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
    return PairTable.of(i[keep], j[keep], np.asarray(probability)[keep], len(known))


def _row_numbers(known: pd.Index, labels: pd.Series) -> Rows:
    """Return the row of each label, -1 where there is none; 12 and "12" are one label."""
    codes, names = pd.factorize(labels)
    rows = known.get_indexer(pd.Index(names))
    if (rows < 0).any():
        texts = pd.Index([id_text(label) for label in known])
        if texts.is_unique:
            again = texts.get_indexer(pd.Index([id_text(name) for name in names]))
            rows = np.where(rows < 0, again, rows)
    return np.asarray(rows[codes], dtype=np.intp)


def id_text(label: Any) -> str:
    """Return an id as text: numbers without decimals where they are whole, gaps as nothing."""
    if label is None or label is pd.NA or label is pd.NaT or label != label:  # NaN
        return ""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label).strip()


def listed(names: Any, most: int = EXAMPLES) -> str:
    """Return a few names, quoted."""
    shown = [
        repr(name.item() if hasattr(name, "item") else name) for name in list(names)[:EXAMPLES]
    ]
    return ", ".join(shown) + (", …" if len(names) > most else "")
