"""Pair tables of linkage tools, read in."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.files import reading
from mlflow_b3.linkage.pair_columns import (
    COLUMNS,
    SPLINK_ID,
    given_columns,
    id_columns,
    numbers_of,
    probability_of,
    splink_id,
)
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.row_ids import id_text, listed, pairs_by_id

SOURCES = ("source_dataset_l", "source_dataset_r")


def read_pairs(
    source: Any, ids: Any, *, id_column: str | None = None, ignore_unknown: bool = False
) -> PairTable:
    """Read scored pairs, whatever they come as.

    Parameters
    ----------
    source : PairTable, path, table or scores
        Checked pairs; a CSV or Parquet file; a table of Splink or any other table of pairs (see
        `from_pairs`); scores of recordlinkage; scored pairs of dedupe.
    ids : sequence
        The id of each row of the audited table, as the linkage tool knew it.
    id_column : str, optional
        The name of the column of ids, where Splink may have been told it (`unique_id_column_name`):
        then the pairs are in the columns of that name with _l and _r. Nothing is wrong if they are
        not there.
    ignore_unknown : bool
        Leave out pairs with ids that the audited table does not have, instead of refusing them:
        right where the audited rows are some of the rows that were linked.
    """
    if isinstance(source, PairTable):
        if source.n != len(ids):
            raise InputError(f"pairs refer to {source.n} rows; the audited table has {len(ids)}.")
        return source
    if isinstance(source, np.ndarray) and source.dtype.names:
        return from_dedupe(source, ids, ignore_unknown=ignore_unknown)
    if isinstance(getattr(source, "index", None), pd.MultiIndex):
        return from_recordlinkage(source, ids, ignore_unknown=ignore_unknown)
    frame = _frame(source)
    name = splink_id(frame, id_column)
    if name is not None:
        return from_splink(frame, ids, id_column=name, ignore_unknown=ignore_unknown)
    return from_pairs(frame, ids, ignore_unknown=ignore_unknown)


def from_pairs(
    frame: Any,
    ids: Any,
    columns: Sequence[str] | None = None,
    *,
    ignore_unknown: bool = False,
) -> PairTable:
    """Read any table of pairs.

    Parameters
    ----------
    frame : DataFrame, path of a CSV or Parquet file, or anything that becomes a DataFrame
        One row for each pair.
    ids, ignore_unknown
        As in `read_pairs`.
    columns : (first id, second id, probability), optional
        By default the columns are looked for under the names that linkage tools give them; a
        `match_weight` w stands for the probability 2^w/(1 + 2^w).
    """
    table = _frame(frame)
    if columns is None:
        first, second = id_columns(table)
        probability = probability_of(table)
    else:
        first, second, name = given_columns(table, columns)
        probability = numbers_of(table, name)
    return pairs_by_id(table[first], table[second], probability, ids, ignore_unknown)


def from_splink(
    frame: Any, ids: Any, *, id_column: str = SPLINK_ID, ignore_unknown: bool = False
) -> PairTable:
    """Read the predictions of Splink.

    Parameters
    ----------
    frame : SplinkDataFrame, DataFrame or path
        What `linker.inference.predict()` returned. Predict without a threshold, or with a low one:
        pairs that are not in the table count as no match.
    ids : sequence
        The unique id of each row of the audited table. Where several datasets that share ids were
        linked: (source dataset, unique id) of each row.
    id_column : str
        Splink's `unique_id_column_name`.
    ignore_unknown : bool
        As in `read_pairs`.
    """
    table = _frame(frame)
    names = [f"{id_column}_l", f"{id_column}_r"]
    if not set(names) <= set(table.columns):
        raise InputError(
            f"Splink's table has no columns {names[0]!r} and {names[1]!r}; it has "
            f"{listed(table.columns, COLUMNS)}. Give id_column, the unique_id_column_name of the settings."
        )
    left, right = (table[name] for name in names)
    if _is_paired(ids):
        if not set(SOURCES) <= set(table.columns):
            raise InputError(
                "ids hold (source dataset, unique id), but Splink's table has no columns "
                f"{SOURCES[0]!r} and {SOURCES[1]!r}; give the unique ids alone."
            )
        ids = _joined(*zip(*ids, strict=True))
        left, right = (
            pd.Series(_joined(table[source], side), dtype=object)
            for source, side in zip(SOURCES, (left, right), strict=True)
        )
    else:
        _require_one_source(table, left, right)
    return pairs_by_id(left, right, probability_of(table), ids, ignore_unknown)


def from_dedupe(scored: Any, ids: Any, *, ignore_unknown: bool = False) -> PairTable:
    """Read the scored pairs of dedupe.

    Parameters
    ----------
    scored : structured array with the fields pairs and score
        What `deduper.score(deduper.pairs(data))` returned.
    ids, ignore_unknown
        As in `read_pairs`.
    """
    names = getattr(getattr(scored, "dtype", None), "names", None) or ()
    if not {"pairs", "score"} <= set(names):
        raise InputError(
            f"scored={type(scored).__name__} is no array with the fields 'pairs' and 'score'. Give "
            "deduper.score(deduper.pairs(data)); the clusters of deduper.partition() carry "
            "confidences of rows, not probabilities of pairs."
        )
    pairs = np.asarray(scored["pairs"])
    probability = np.asarray(scored["score"], dtype=float)
    return pairs_by_id(
        pd.Series(pairs[:, 0]), pd.Series(pairs[:, 1]), probability, ids, ignore_unknown
    )


def from_recordlinkage(scores: Any, ids: Any, *, ignore_unknown: bool = False) -> PairTable:
    """Read the probabilities of the Python Record Linkage Toolkit.

    Parameters
    ----------
    scores : Series, or DataFrame of one column, with a MultiIndex of record pairs
        What `classifier.prob(features)` returned.
    ids : sequence
        The index of the table that was linked, for each row of the audited table.
    ignore_unknown : bool
        As in `read_pairs`.
    """
    index = getattr(scores, "index", None)
    if not isinstance(index, pd.MultiIndex) or index.nlevels != 2:
        raise InputError(
            f"scores={type(scores).__name__} has no MultiIndex of two records; give "
            "classifier.prob(features)."
        )
    if isinstance(scores, pd.DataFrame):
        if scores.shape[1] != 1:
            raise InputError(
                f"scores has {scores.shape[1]} columns ({listed(scores.columns)}). Similarities of "
                "fields are no probabilities; give classifier.prob(features)."
            )
        scores = scores.iloc[:, 0]
    first, second = (pd.Series(index.get_level_values(level)) for level in (0, 1))
    return pairs_by_id(first, second, np.asarray(scores, dtype=float), ids, ignore_unknown)


def _frame(source: Any) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        return source
    for method in ("as_pandas_dataframe", "to_pandas"):  # Splink; Arrow and Polars
        if hasattr(source, method):
            return _frame(getattr(source, method)())
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"pairs={type(source).__name__} is not usable; give a table, the path of a CSV or "
            "Parquet file, or what a linkage tool returned."
        )
    path = Path(source)
    if not path.is_file():
        raise InputError(f"pair table: there is no file {str(path)!r}.")
    with reading("pair table", path):
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        # as text: an id such as 007 must not become a number
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])


def _require_one_source(table: pd.DataFrame, left: pd.Series, right: pd.Series) -> None:
    """Refuse unique ids that stand for rows of several datasets."""
    if not set(SOURCES) <= set(table.columns):
        return
    known = pd.DataFrame(
        {
            "source": pd.concat([table[name] for name in SOURCES]).to_numpy(),
            "id": pd.concat([left, right]).to_numpy(),
        }
    ).drop_duplicates()
    shared = int(known["id"].duplicated().sum())
    if shared:
        raise InputError(
            f"{shared} unique ids occur in several source datasets of Splink's table "
            f"({listed(known['source'].unique())}); give ids as (source dataset, unique id)."
        )


def _is_paired(ids: Any) -> bool:
    if isinstance(ids, pd.MultiIndex):
        return True
    return len(ids) > 0 and isinstance(next(iter(ids)), (tuple, list))


def _joined(sources: Any, ids: Any) -> list[str]:
    return [
        f"{id_text(source)}\x1f{id_text(key)}" for source, key in zip(sources, ids, strict=True)
    ]
