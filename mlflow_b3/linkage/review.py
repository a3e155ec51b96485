"""A sheet on which a person writes the mates of sampled rows, laid out and read back."""

import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError, closest
from mlflow_b3.linkage.files import reading
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.review_ids import NONE_WORDS, id_texts
from mlflow_b3.linkage.review_sample import ReviewSample
from mlflow_b3.linkage.row_ids import find_row, id_text, row_lookup
from mlflow_b3.linkage.splits import Rows, as_codes

BEFORE = ("record", "stratum", "rows_in_stratum", "cluster")
AFTER = ("same_cluster", "candidates", "mates", "comment")


def review_sheet(
    frame: pd.DataFrame,
    sample: ReviewSample,
    pairs: PairTable | None = None,
    *,
    cluster: str,
    path: str | Path | None = None,
    id: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    most: int = 10,
) -> pd.DataFrame:
    """Lay out sampled rows for a person to write the mates of each to it.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table of records.
    sample : ReviewSample
        What `sample_rows` drew from it.
    pairs : PairTable, optional
        Scored pairs, for a list of candidates beside each record.
    cluster : str
        The column of predicted clusters.
    path : path, optional
        Where to write the sheet as CSV, for any spreadsheet.
    id : str, optional
        The column of ids; by default the table's index.
    columns : sequence of str, optional
        The columns that show the reviewer who it is; by default all others.
    most : int
        How many rows of the same cluster, and candidates, to name.

    Returns
    -------
    pandas.DataFrame
        One row per sampled record: `record` (its id), `stratum`, `rows_in_stratum`, `cluster`, the
        record's own columns, `same_cluster`, `candidates` with their probabilities, and the empty
        `mates` and `comment`.

    Notes
    -----
    The reviewer writes into `mates` the ids of every other row of the same person (or whatever an
    entity is), separated by `;`, or `none`; an empty cell says that the row was not reviewed yet.
    Rows of `same_cluster` may be left out, but not where folds split clusters. The whole table must
    be searched, by whatever means: candidates are an aid, and leaks are what they do not hold. Rows
    should be reviewed in the order of the sheet; see `parse_review`.
    """
    if len(frame) != sample.n or (pairs is not None and pairs.n != sample.n):
        rows = f"frame has {len(frame)} rows" + (f", pairs are of {pairs.n}" if pairs else "")
        raise InputError(f"{rows}; the sample was drawn from {sample.n}.")
    shown = _columns(frame, cluster, id, columns)
    names = np.array(id_texts(frame.index if id is None else frame[id]), dtype=object)
    clusters = as_codes(f"cluster={cluster!r}", frame[cluster])
    sheet = frame.iloc[sample.rows][shown].reset_index(drop=True)
    sheet = sheet.set_axis([str(name) for name in shown], axis=1)
    before: tuple[Any, ...] = (
        names[sample.rows],
        sample.stratum,
        [sample.sizes[label] for label in sample.stratum],
        frame[cluster].iloc[sample.rows].to_numpy(),
    )
    for place, (name, values) in enumerate(zip(BEFORE, before, strict=True)):
        sheet.insert(place, name, values)
    after = (
        _same_cluster(sample.rows, clusters, names, most),
        _candidates(sample.rows, clusters, names, pairs, most),
        "",
        "",
    )
    sheet = sheet.assign(**dict(zip(AFTER, after, strict=True)))
    if path is not None:
        sheet.to_csv(
            path, index=False, encoding="utf-8-sig"
        )  # the mark tells Excel that it is UTF-8
    return sheet


def parse_review(
    source: Any, ids: Iterable[Any], *, allow_unfinished: bool = False
) -> ResolvedRows:
    """Read a sheet that was filled in.

    Parameters
    ----------
    source : path of a .csv file, or DataFrame
        What `review_sheet` laid out, with `mates` filled in; or any table with the columns `record`
        and `mates`. Files that went through a spreadsheet are understood: a semicolon or tab
        between columns, numbers that lost their leading zeros or became 12.0.
    ids : sequence
        The id of every row of the table, in its order.
    allow_unfinished : bool
        Take the rows that are finished where `mates` is empty in others. This is harmless if rows
        were reviewed in the order of the sheet, which is random, and biased if easy ones were
        picked out or hard ones passed over.

    Returns
    -------
    ResolvedRows
        With the strata of the sheet; `.leak(folds, clusters)` says what leaks.
    """
    texts = id_texts(ids)
    table = _table(source)
    lookup = row_lookup(texts)
    commas = not any("," in text for text in texts)
    problems: list[str] = []
    rows = [find_row(record, lookup) for record in table["record"]]
    strange = [
        record or "(empty)"
        for record, row in zip(table["record"], rows, strict=True)
        if row is None
    ]
    if strange:
        problems.append(f"records that are not among ids: {', '.join(strange)}.")
    mates = []
    for record, row, cell in zip(table["record"], rows, table["mates"], strict=True):
        mates.append(_mates(record, row, cell, lookup, commas, problems))
    repeated = table["record"][pd.Series(rows).duplicated() & pd.Series(rows).notna()]
    if len(repeated):
        problems.append(f"records that occur more than once: {', '.join(repeated.unique())}.")
    done = [found is not None for found in mates]
    left = len(done) - sum(done)
    if left and (not allow_unfinished or not any(done)):
        problems.append(
            f"{left} of {len(done)} rows have nothing in `mates` yet; write the ids of all mates, or "
            "`none`. parse_review(…, allow_unfinished=True) takes the finished rows, if it is by chance "
            "which they are."
        )
    if problems:
        raise InputError.from_problems("review", problems)
    return ResolvedRows.of(
        np.array([row for row, ready in zip(rows, done, strict=True) if ready], dtype=np.intp),
        [found for found in mates if found is not None],
        len(texts),
        _strata(table, done),
    )


def _columns(
    frame: pd.DataFrame, cluster: str, name: str | None, columns: Sequence[str] | None
) -> list[Any]:
    needed = [cluster, *([] if name is None else [name]), *(columns or [])]
    absent = [column for column in needed if column not in frame.columns]
    if absent:
        hints = "".join(closest(str(column), map(str, frame.columns)) for column in absent)
        raise InputError(f"frame has no columns {', '.join(map(repr, absent))}.{hints}")
    shown = [column for column in columns or frame.columns if column not in (cluster, name)]
    taken = [column for column in shown if str(column) in BEFORE + AFTER]
    if taken:
        raise InputError(
            f"frame: the sheet has columns of its own named {', '.join(map(repr, taken))}; rename "
            "those of the table, or say which ones to show with columns=."
        )
    return shown


def _same_cluster(rows: Rows, clusters: Rows, names: Any, most: int) -> list[str]:
    order = np.argsort(clusters, kind="stable")
    starts = np.searchsorted(clusters[order], np.arange(clusters.max() + 2))
    listed = []
    for row in rows.tolist():
        members = order[starts[clusters[row]] : starts[clusters[row] + 1]]
        others = names[members[members != row]].tolist()
        more = f"; … {len(others) - most} more" if len(others) > most else ""
        listed.append("; ".join(others[:most]) + more)
    return listed


def _candidates(
    rows: Rows, clusters: Rows, names: Any, pairs: PairTable | None, most: int
) -> list[str]:
    """Return the likeliest mates in other clusters, best first."""
    if pairs is None:
        return [""] * len(rows)
    here = np.concatenate([pairs.first, pairs.second])
    there = np.concatenate([pairs.second, pairs.first])
    chance = np.tile(pairs.probability, 2)
    keep = np.isin(here, rows) & (clusters[here] != clusters[there])
    table = pd.DataFrame({"row": here[keep], "mate": names[there[keep]], "chance": chance[keep]})
    best = table.sort_values("chance", ascending=False, kind="stable").groupby("row").head(most)
    best["text"] = [
        f"{mate} ({p:.2g})" for mate, p in zip(best["mate"], best["chance"], strict=True)
    ]
    texts = best.groupby("row")["text"].agg("; ".join)
    return [str(text) for text in texts.reindex(rows.tolist(), fill_value="")]


def _table(source: Any) -> pd.DataFrame:
    """Return a filled sheet with its cells as text, without empty lines."""
    if isinstance(source, pd.DataFrame):
        table = source.copy()
    elif isinstance(source, (str, Path)):
        table = _read(Path(source))
    else:
        raise InputError(
            f"source={type(source).__name__}: give a DataFrame or the path of a CSV file."
        )
    table.columns = pd.Index([str(name).strip().lower() for name in table.columns])
    absent = [name for name in ("record", "mates") if name not in table]
    if absent:
        raise InputError(
            f"review: the sheet has no columns {', '.join(map(repr, absent))}; it has "
            f"{', '.join(map(repr, table.columns))}."
        )
    doubled = table.columns[table.columns.duplicated()].intersection(["record", "mates", *BEFORE])
    if len(doubled):
        raise InputError(f"review: the sheet has columns {', '.join(map(repr, doubled))} twice.")
    kept = [name for name in ("record", "mates", *BEFORE[1:3]) if name in table]
    table = pd.DataFrame({name: [id_text(cell) for cell in table[name]] for name in kept})
    table = table[(table != "").any(axis=1)].reset_index(drop=True)
    if table.empty:
        raise InputError("review: the sheet has no rows.")
    return table


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"source={str(path)!r} is not a file here ({str(Path.cwd())!r}).")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")  # what Excel writes unless told otherwise
    header = text.split("\n", 1)[0]
    separator = max(",;\t", key=header.count)
    with reading("source", path):
        return pd.read_csv(StringIO(text), sep=separator, dtype=str, keep_default_na=False)


def _mates(
    record: str,
    row: int | None,
    cell: str,
    lookup: dict[str, int],
    commas: bool,
    problems: list[str],
) -> list[int] | None:
    """Return the rows that a cell names, nothing for an empty cell."""
    if cell in lookup:  # an id may hold what separates others
        parts = [cell]
    else:
        parts = [part.strip() for part in re.split(r"[;,\n]" if commas else r"[;\n]", cell)]
    parts = [part for part in parts if part]
    if not parts:
        return None
    named = [part for part in parts if part.lower() not in NONE_WORDS]
    found = [find_row(part, lookup) for part in named]
    strange = [part for part, mate in zip(named, found, strict=True) if mate is None]
    if strange:
        problems.append(f"mates of {record} that are not among ids: {', '.join(strange)}.")
    if named and len(named) < len(parts):
        problems.append(f"mates of {record} are ids and `none` at once: {cell!r}.")
    if row is not None and row in found:
        problems.append(f"{record} is listed as a mate of itself.")
    return [mate for mate in found if mate is not None]


def _strata(table: pd.DataFrame, done: list[bool]) -> tuple[tuple[str, ...], dict[str, int]] | None:
    lost = {"stratum", "rows_in_stratum"} - set(table.columns)
    if len(lost) == 1:
        raise InputError(
            f"review: the sheet has lost its column {lost.pop()!r}; without it the rows would count as "
            "if all had had the same chance to be drawn. Copy it back from the sheet as it was."
        )
    if lost:
        return None
    sizes: dict[str, int] = {}
    for label, text in zip(table["stratum"], table["rows_in_stratum"], strict=True):
        if not label or not text.isdigit() or sizes.setdefault(label, int(text)) != int(text):
            raise InputError(
                f"review: stratum {label!r} has {text!r} rows on one line, {sizes.get(label)!r} on "
                "another; copy `stratum` and `rows_in_stratum` back from the sheet as it was."
            )
    return tuple(table["stratum"][done]), sizes
