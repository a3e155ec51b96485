"""A sheet on which a person writes the mates of sampled rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError, closest
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.review_ids import id_texts
from mlflow_b3.linkage.review_sample import ReviewSample
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


def _columns(
    frame: pd.DataFrame, cluster: str, name: str | None, columns: Sequence[str] | None
) -> list[Any]:
    needed = [cluster, *([] if name is None else [name]), *(columns or [])]
    absent = [column for column in needed if column not in frame.columns]
    if absent:
        hints = "".join(closest(str(column), map(str, frame.columns)) for column in absent)
        raise InputError(f"frame has no columns {', '.join(map(repr, absent))}.{hints}")
    shown = [column for column in columns or frame.columns if column not in (cluster, name)]
    # the sheet is read back without regard to capitals
    taken = [column for column in shown if str(column).strip().lower() in BEFORE + AFTER]
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
