"""The mates that a person wrote on a sheet, read back."""

import re
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.files import reading
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.review_ids import NONE_WORDS, id_texts
from mlflow_b3.linkage.row_ids import EXAMPLES, find_row, id_text, listed, row_lookup
from mlflow_b3.linkage.sheet_layout import BEFORE

STRATA = BEFORE[1:3]


def parse_review(
    source: Any, ids: Iterable[Any], *, allow_unfinished: bool = False
) -> ResolvedRows:
    """Read a sheet that was filled in.

    Parameters
    ----------
    source : path of a .csv file, or DataFrame
        What `review_sheet` laid out, with `mates` filled in; of its columns `record`, `stratum`,
        `rows_in_stratum` and `mates` must be there still. Files that went through a spreadsheet are
        understood: a semicolon or tab between columns, numbers that lost their leading zeros or
        became 12.0. Rows that were drawn in another way than by `sample_rows` go through
        `ResolvedRows.of`.
    ids : sequence
        The id of every row of the table, in its order.
    allow_unfinished : bool
        Take the rows that are finished where `mates` is empty in others. This is harmless if rows
        were reviewed in the order of the sheet, which is random, and biased if easy ones were
        picked out or hard ones passed over.

    Returns
    -------
    ResolvedRows
        With the strata and the clusters of the sheet; `.leak(folds, clusters)` says what leaks.
    """
    texts = id_texts(ids)
    table = _table(source)
    lookup = row_lookup(texts)
    rows = [find_row(record, lookup) for record in table["record"]]
    cells = _Cells(lookup, commas=not any("," in text for text in texts))
    mates = [
        cells.read(record, row, cell)
        for record, row, cell in zip(table["record"], rows, table["mates"], strict=True)
    ]
    done = [found is not None for found in mates]
    problems = [*_record_problems(table["record"], rows, texts), *cells.problems()]
    left = done.count(False)
    if left and (not allow_unfinished or left == len(done)):
        problems.append(_unfinished(left, len(done)))
    if problems:
        raise InputError.from_problems("review sheet", problems)
    return ResolvedRows.of(
        np.array([row for row, ready in zip(rows, done, strict=True) if ready], dtype=np.intp),
        [found for found in mates if found is not None],
        len(texts),
        _strata(table, done, len(texts)),
        tuple(table["cluster"][done]) if "cluster" in table else None,
    )


class _Cells:
    """Cells of mates, read one by one, and what is wrong with them."""

    def __init__(self, lookup: dict[str, int], *, commas: bool) -> None:
        self._lookup = lookup
        self._between = r"[;,\n]" if commas else r"[;\n]"
        self._unknown: list[str] = []
        self._both: list[str] = []
        self._own: list[str] = []

    def read(self, record: str, row: int | None, cell: str) -> list[int] | None:
        """Return the rows that a cell names, nothing for an empty cell."""
        # an id may hold what separates others
        parts = [cell] if cell in self._lookup else re.split(self._between, cell)
        parts = [part.strip() for part in parts if part.strip()]
        if not parts:
            return None
        named = [part for part in parts if part.lower() not in NONE_WORDS]
        found = [find_row(part, self._lookup) for part in named]
        self._unknown += [
            f"{part!r} of {record!r}"
            for part, mate in zip(named, found, strict=True)
            if mate is None
        ]
        if named and len(named) < len(parts):
            self._both.append(record)
        if row is not None and row in found:
            self._own.append(record)
        return [mate for mate in found if mate is not None]

    def problems(self) -> list[str]:
        """Return a sentence for each kind of problem."""
        problems = []
        if self._unknown:
            some = ", ".join(self._unknown[:EXAMPLES])
            more = ", …" if len(self._unknown) > EXAMPLES else ""
            problems.append(f"{len(self._unknown)} mates are not in the table: {some}{more}.")
        if self._both:
            problems.append(
                f"{len(self._both)} records have ids and `none` in `mates` at once: "
                f"{listed(self._both)}."
            )
        if self._own:
            problems.append(
                f"{len(self._own)} records are listed as mates of themselves: {listed(self._own)}."
            )
        return problems


def _record_problems(records: pd.Series, rows: list[int | None], texts: list[str]) -> list[str]:
    problems = []
    found = pd.Series(rows, dtype=object)
    strange = records[found.isna()].replace("", "(empty)")
    if len(strange):
        cause = ""
        if 2 * len(strange) > len(records):
            cause = (
                f" Ids of the table are like {listed(texts, 2)}: wrong row_id, or the sheet of "
                "another table?"
            )
        problems.append(
            f"{len(strange)} of {len(records)} records are not in the table: "
            f"{listed(strange)}.{cause}"
        )
    repeated = records[found.duplicated() & found.notna()].unique()
    if len(repeated):
        problems.append(f"{len(repeated)} records occur more than once: {listed(repeated)}.")
    return problems


def _unfinished(left: int, count: int) -> str:
    text = f"{left} of {count} rows have nothing in `mates` yet; write the ids of all mates, or `none`."
    if left == count:
        return text
    return (
        f"{text} Only if rows were done in the order of the sheet, which is random, the finished ones "
        "will do: delete the unfinished lines from its end, or in Python give resolved_rows="
        "mlflow_b3.linkage.parse_review(path, ids, allow_unfinished=True)."
    )


def _table(source: Any) -> pd.DataFrame:
    """Return a filled sheet with its cells as text, without empty lines."""
    if isinstance(source, pd.DataFrame):
        table = source.copy()
    elif isinstance(source, (str, Path)):
        table = _read(Path(source))
    else:
        raise InputError(
            f"review sheet: {type(source).__name__} is not usable; give a DataFrame or the path of a "
            "CSV file."
        )
    table.columns = pd.Index([str(name).strip().lower() for name in table.columns])
    absent = [name for name in ("record", "mates") if name not in table]
    if absent:
        raise InputError(
            f"review sheet: it has no columns {listed(absent)}; it has {listed(table.columns, 20)}."
        )
    doubled = table.columns[table.columns.duplicated()].intersection(["record", "mates", *BEFORE])
    if len(doubled):
        raise InputError(f"review sheet: it has columns {listed(doubled)} twice.")
    kept = [name for name in ("record", "mates", *BEFORE[1:]) if name in table]
    table = pd.DataFrame({name: [id_text(cell) for cell in table[name]] for name in kept})
    table = table[(table != "").any(axis=1)].reset_index(drop=True)
    if table.empty:
        raise InputError("review sheet: it has no rows.")
    return table


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"review sheet: {str(path)!r} is not a file here ({str(Path.cwd())!r}).")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")  # what Excel writes unless told otherwise
    header = text.split("\n", 1)[0]
    separator = max(",;\t", key=header.count)
    with reading("review sheet", path):
        return pd.read_csv(StringIO(text), sep=separator, dtype=str, keep_default_na=False)


def _strata(
    table: pd.DataFrame, done: list[bool], n: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    lost = [name for name in STRATA if name not in table]
    if lost:
        raise InputError(
            f"review sheet: it has lost {listed(lost)}; without, the rows would count as if all had "
            "had the same chance to be drawn. Copy the columns back from the sheet as it was. Rows "
            "that were drawn uniformly in another way go through mlflow_b3.linkage.ResolvedRows.of("
            "rows, mates, n)."
        )
    sizes: dict[str, int] = {}
    for label, text in zip(table["stratum"], table["rows_in_stratum"], strict=True):
        size = int(text) if text.isdecimal() else None
        if not label or size is None or sizes.setdefault(label, size) != size:
            raise InputError(
                f"review sheet: stratum {label!r} has {text!r} rows on one line, "
                f"{sizes.get(label)!r} on another; copy `stratum` and `rows_in_stratum` back from "
                "the sheet as it was."
            )
    if sum(sizes.values()) != n:
        raise InputError(
            f"review sheet: its strata {listed(sizes)} have {sum(sizes.values())} rows together; the "
            f"table has {n}. Either the sheet is of another table, or all lines of a stratum were "
            "deleted: copy them back, and review some of them."
        )
    return tuple(table["stratum"][done]), sizes
