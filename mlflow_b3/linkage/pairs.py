"""Scored pairs of rows, read from Splink, dedupe, recordlinkage or any table."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import expit

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.leak import Floats, Rows
from mlflow_b3.results import not_percentage

# --- A checked table of scored pairs of rows


@dataclass(frozen=True, kw_only=True, eq=False)
class PairTable:
    """Pairs of rows, each with the probability that they belong to one entity.

    It unpacks into three arrays, as in `leak_from_pairs(*pairs, folds, clusters)`.

    Attributes
    ----------
    first, second : array of int
        Row numbers from 0; every pair once, the smaller number first.
    probability : array of float
        π_ij.
    n : int
        Number of rows of the table.
    left_out : int
        Number of pairs that were left out because an id is not in the table.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> pairs = linkage.PairTable.of([0, 1, 3], [1, 2, 4], [0.99, 0.6, 0.95], n=6)
    >>> len(pairs), pairs.n
    (3, 6)
    >>> i, j, p = pairs
    >>> p.tolist()
    [0.99, 0.6, 0.95]
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

        A pair that occurs twice, in either order, counts once, with its larger probability.
        """
        i, j = (np.asarray(side) for side in (first, second))
        p = np.asarray(probability, dtype=float)
        problems = []
        if not (i.ndim == j.ndim == p.ndim == 1 and len(i) == len(j) == len(p)):
            raise InputError(
                f"pairs: the shapes are {i.shape}, {j.shape} and {p.shape}. Give three lists of equal "
                "length: first row, second row, probability."
            )
        if len(i) and not all(np.issubdtype(side.dtype, np.integer) for side in (i, j)):
            raise InputError("pairs: rows must be whole numbers from 0; see from_pairs for ids.")
        i, j = i.astype(np.intp), j.astype(np.intp)
        count = n if n is not None else (int(max(i.max(), j.max())) + 1 if len(i) else 0)
        if len(i) and (min(i.min(), j.min()) < 0 or max(i.max(), j.max()) >= count):
            problems.append(f"row numbers must lie in 0 … {count - 1}.")
        if (i == j).any():
            problems.append(f"{int((i == j).sum())} pairs consist of the same row twice.")
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


# --- Ids of linked records, and the rows of the audited table

EXAMPLES = 5
#: A number that may have gained or lost leading zeros or decimals in a spreadsheet or file.
NUMBER = re.compile(r"0*(\d+)(?:\.0+)?")


def pairs_by_id(
    first: pd.Series, second: pd.Series, probability: Any, ids: Any, ignore_unknown: bool
) -> PairTable:
    """Convert pairs of ids to pairs of row numbers; see `read_pairs`."""
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
            "that ids are those of the linked table. If only some of the linked rows are audited, "
            "set ignore_unknown=True."
        )
    i, j = rows[: len(first)], rows[len(first) :]
    keep = (i >= 0) & (j >= 0)
    if len(keep) and not keep.any():
        raise InputError(
            f"pairs: none of {len(keep)} has both of its ids in the audited table, with ids such as "
            f"{listed(known, 2)}; the pairs have ids such as {listed(pd.unique(both), 2)}. Name the "
            "column of the table with the ids that were linked (row_id)."
        )
    pairs = PairTable.of(i[keep], j[keep], np.asarray(probability)[keep], len(known))
    return replace(pairs, left_out=int((~keep).sum()))


def _row_numbers(known: pd.Index, labels: pd.Series) -> Rows:
    """Return the row of each label, or -1; 12, "12" and "0012" are the same label.

    If one table was read as numbers, it lost the leading zeros that the other may still have.
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
    """Return an id as text: whole numbers without decimals, missing values as an empty string."""
    if label is None or label is pd.NA or label is pd.NaT or label != label:  # NaN
        return ""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label).strip()


def label_texts(labels: Iterable[Any]) -> list[str]:
    """Return labels as text, with numbers in a form that survives a spreadsheet."""
    return [_number(id_text(label)) for label in labels]


def row_lookup(texts: list[str]) -> dict[str, int]:
    """Return the row of each id, and of each number as a spreadsheet may change it, if unique."""
    exact = {text: row for row, text in enumerate(texts)}
    changed: dict[str, list[int]] = {}
    for text, row in exact.items():
        changed.setdefault(_number(text), []).append(row)
    return {name: rows[0] for name, rows in changed.items() if len(rows) == 1} | exact


def _number(text: str) -> str:
    match = NUMBER.fullmatch(text)
    return match.group(1) if match else text


def find_row(text: str, lookup: dict[str, int]) -> int | None:
    """Return the row of an id, or None if it is unknown."""
    return lookup.get(text, lookup.get(_number(text)))


def listed(names: Any, most: int = EXAMPLES) -> str:
    """Return the first few names, quoted."""
    shown = [repr(name.item() if hasattr(name, "item") else name) for name in list(names)[:most]]
    return ", ".join(shown) + (", …" if len(names) > most else "")


# --- The columns of a pair table: two ids and a probability

#: Names that tools use for the two ids of a pair, most specific first.
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
#: How many columns an error message lists.
COLUMNS = 20


def splink_id(table: pd.DataFrame, id_column: str | None = None) -> str | None:
    """Return Splink's `unique_id_column_name`, or None if the table is not from Splink.

    Parameters
    ----------
    table : pandas.DataFrame
    id_column : str, optional
        A possible name; it is used if the columns with _l and _r exist. Splink's default is tried
        next, and then a unique pair of columns X_l and X_r next to a match probability or weight.
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
            f"pairs: several columns with _l and _r may hold the ids: {listed(pairs, COLUMNS)}. Name "
            "the right one: id_column, or row_id if the audited table uses the same name."
        )
    return pairs[0] if pairs else None


def _sides(name: str) -> set[str]:
    return {f"{name}_l", f"{name}_r"}


def id_columns(table: pd.DataFrame) -> tuple[str, str]:
    """Find the columns with the ids of a pair, by the names that tools use."""
    for first, second in ID_COLUMNS:
        if {first, second} <= set(table.columns):
            return first, second
    tried = ", ".join(f"{first}/{second}" for first, second in ID_COLUMNS)
    raise InputError(
        f"pairs: none of the columns {tried} exists; the table has {listed(table.columns, COLUMNS)}. "
        "Rename the columns, or name them in Python: from_pairs(table, ids, (first id, second id, probability))."
    )


def given_columns(table: pd.DataFrame, columns: Sequence[str]) -> tuple[str, str, str]:
    """Check the columns that the user named, and return them."""
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
    """Return the match probability, computed from match weights if necessary."""
    for name in PROBABILITY_COLUMNS:
        if name in table.columns:
            return numbers_of(table, name)
    if WEIGHT_COLUMN in table.columns:
        return expit(numbers_of(table, WEIGHT_COLUMN) * np.log(2))
    raise InputError(
        f"pairs: no probability under {', '.join(PROBABILITY_COLUMNS)} nor {WEIGHT_COLUMN}; the "
        f"table has {listed(table.columns, COLUMNS)}. Rename the column, or name it in Python: from_pairs(table, ids, "
        "(first id, second id, probability))."
    )


def numbers_of(table: pd.DataFrame, name: str) -> Any:
    """Return a column as numbers; any other text is an error."""
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if np.isnan(values).any():
        raise InputError(
            f"pairs: {int(np.isnan(values).sum())} values of {name!r} are not numbers."
        )
    return values


# --- Files of linkage tools and reviewers


@contextmanager
def reading(name: str, path: Path) -> Iterator[None]:
    """Convert errors of pandas about a broken file to an `InputError`."""
    try:
        yield
    except (ValueError, OSError) as error:  # pyarrow's and pandas' parser errors are ValueErrors
        raise InputError(f"{name}: {str(path)!r} cannot be read: {error}") from error


# --- Readers of the pair tables of linkage tools

SOURCES = ("source_dataset_l", "source_dataset_r")


def read_pairs(
    source: Any, ids: Any, *, id_column: str | None = None, ignore_unknown: bool = False
) -> PairTable:
    """Read scored pairs from a linkage tool, a table or a file.

    Parameters
    ----------
    source : PairTable, path, table or scores
        Checked pairs; the path of a CSV or Parquet file; predictions of Splink or any other table
        of pairs (see `from_pairs`); probabilities of recordlinkage; scored pairs of dedupe.
    ids : sequence
        The id of each row of the audited table, as in the linkage.
    id_column : str, optional
        Splink's `unique_id_column_name`. The pairs are then in the columns of that name with _l and
        _r. It is ignored if these columns do not exist.
    ignore_unknown : bool
        Leave out pairs with ids that are not in the audited table, instead of raising an error. Use
        it if only some of the linked rows are audited.

    Returns
    -------
    PairTable

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> table = pd.DataFrame({"id_1": ["a", "b"], "id_2": ["b", "c"], "probability": [0.99, 0.6]})
    >>> pairs = linkage.read_pairs(table, ids=["a", "b", "c", "d"])
    >>> pairs.first.tolist(), pairs.second.tolist(), pairs.probability.tolist()
    ([0, 1], [1, 2], [0.99, 0.6])
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
    """Read scored pairs from any table.

    Parameters
    ----------
    frame : DataFrame, path of a CSV or Parquet file, or anything that becomes a DataFrame
        One row for each pair.
    ids, ignore_unknown
        As in `read_pairs`.
    columns : (first id, second id, probability), optional
        By default the columns are found by the names that linkage tools use. A `match_weight` w is
        converted to the probability 2^w/(1 + 2^w).

    Returns
    -------
    PairTable

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> table = pd.DataFrame({"one": ["a", "b"], "two": ["b", "c"], "chance": [0.99, 0.6]})
    >>> pairs = linkage.from_pairs(table, ["a", "b", "c", "d"], ("one", "two", "chance"))
    >>> pairs.first.tolist(), pairs.second.tolist(), pairs.probability.tolist()
    ([0, 1], [1, 2], [0.99, 0.6])
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
        The result of `linker.inference.predict()`. Predict without a threshold, or with a low one:
        pairs that are not in the table count as no match.
    ids : sequence
        The unique id of each row of the audited table. If several datasets with overlapping ids
        were linked: (source dataset, unique id) of each row.
    id_column : str
        Splink's `unique_id_column_name`.
    ignore_unknown : bool
        As in `read_pairs`.

    Returns
    -------
    PairTable

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> predictions = pd.DataFrame(
    ...     {"unique_id_l": [7, 8], "unique_id_r": [8, 9], "match_probability": [0.99, 0.6]}
    ... )
    >>> pairs = linkage.from_splink(predictions, ids=[7, 8, 9])
    >>> pairs.first.tolist(), pairs.second.tolist(), pairs.probability.tolist()
    ([0, 1], [1, 2], [0.99, 0.6])
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
    """Read scored pairs of dedupe.

    Parameters
    ----------
    scored : structured array with the fields pairs and score
        The result of `deduper.score(deduper.pairs(data))`.
    ids, ignore_unknown
        As in `read_pairs`.
    """
    names = getattr(getattr(scored, "dtype", None), "names", None) or ()
    if not {"pairs", "score"} <= set(names):
        raise InputError(
            f"scored={type(scored).__name__} is not an array with the fields 'pairs' and 'score'. "
            "Give deduper.score(deduper.pairs(data)); the clusters of deduper.partition() have "
            "confidences of rows, not probabilities of pairs."
        )
    pairs = np.asarray(scored["pairs"])
    probability = np.asarray(scored["score"], dtype=float)
    return pairs_by_id(
        pd.Series(pairs[:, 0]), pd.Series(pairs[:, 1]), probability, ids, ignore_unknown
    )


def from_recordlinkage(scores: Any, ids: Any, *, ignore_unknown: bool = False) -> PairTable:
    """Read probabilities of the Python Record Linkage Toolkit.

    Parameters
    ----------
    scores : Series, or DataFrame of one column, with a MultiIndex of record pairs
        The result of `classifier.prob(features)`.
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
                "fields are not probabilities; give classifier.prob(features)."
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
            f"pairs={type(source).__name__} is not valid. Give a table, the path of a CSV or "
            "Parquet file, or the result of a linkage tool."
        )
    path = Path(source)
    if not path.is_file():
        raise InputError(f"pair table: there is no file {str(path)!r}.")
    with reading("pair table", path):
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        # read as text: an id such as 007 must not become a number
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])


def _require_one_source(table: pd.DataFrame, left: pd.Series, right: pd.Series) -> None:
    """Raise an error if a unique id occurs in several datasets."""
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
