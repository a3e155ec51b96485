"""Review sheets: sampling rows for review, writing sheets, and reading them back."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mlflow_b3.errors import InputError, check_seed, closest
from mlflow_b3.linkage.leak import Floats, Rows, as_codes
from mlflow_b3.linkage.pairs import (
    EXAMPLES,
    PairTable,
    find_row,
    id_text,
    listed,
    reading,
    row_lookup,
)
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.results import not_percentage

# --- Ids of rows on a sheet

#: Words for a row without mates.
NONE_WORDS = ("none", "no", "-", "–", "—")


def id_texts(ids: Iterable[Any]) -> list[str]:
    """Return ids as text for a sheet; ids that could not be read back are an error."""
    texts = [id_text(name) for name in ids]
    index = pd.Index(texts)
    problems = []
    for wrong, what in (
        (
            [text for text in texts if re.search(r"[;\r\n]", text)],
            "contain a semicolon or line break",
        ),
        ([text for text in texts if text.lower() in (*NONE_WORDS, "")], "are empty or mean `none`"),
        (index[index.duplicated()].unique().tolist(), "occur more than once"),
    ):
        if wrong:
            some = ", ".join(repr(text) for text in wrong[:5]) + (" …" if len(wrong) > 5 else "")
            problems.append(f"{len(wrong)} ids {what}: {some}; number the rows instead.")
    if problems:
        raise InputError.from_problems("ids", problems)
    return texts


# --- Which rows to review, and how many

#: The strata of rows with positive scores, by increasing score.
SCORED = ("low", "middle", "high")
UNSCORED = "none"
UNIFORM = "all"
#: The part of the sample that is allocated to strata by size, regardless of scores.
PROPORTIONAL = 0.5
#: Smallest assumed leak rate of a stratum: scores miss leaks.
LEAST_RATE = 0.01
#: Fewest sampled rows of a stratum, if it has as many.
LEAST_ROWS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class ReviewSample:
    """Rows drawn for review, in random order.

    Attributes
    ----------
    rows : array of int
        Row numbers from 0.
    stratum : tuple of str
        The stratum of each sampled row.
    sizes : mapping of str to int
        Number of rows of the table in each stratum.
    n : int
        Number of rows of the table.
    """

    rows: Rows
    stratum: tuple[str, ...]
    sizes: Mapping[str, int]
    n: int

    def __len__(self) -> int:
        """Return the number of sampled rows."""
        return len(self.rows)

    @property
    def strata(self) -> tuple[tuple[str, ...], Mapping[str, int]]:
        """The `strata` of `leak_from_resolved_rows`."""
        return self.stratum, self.sizes


def rows_needed(split_rate: float, delta: float, *, level: float = 0.95) -> int:
    """Return how many rows to review to estimate a leak share within a relative error.

    Parameters
    ----------
    split_rate : float
        σ: an assumed share of rows whose entity has more than one predicted cluster.
    delta : float
        δ: the relative error, for example 0.25 for a quarter of the leak share.
    level : float
        Confidence.

    Returns
    -------
    int

    Notes
    -----
    B = (z/δ)²·(1 − σ)/σ for uniform samples, with the normal quantile z: 246 rows for σ = 0.2 and
    δ = 0.25, but 1168 for σ = 0.05.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> linkage.rows_needed(split_rate=0.2, delta=0.25)
    246
    """
    problems = []
    if not 0 < split_rate < 1:
        problems.append(
            f"split_rate={split_rate!r} must lie between 0 and 1.{not_percentage(split_rate)}"
        )
    if not 0 < delta < math.inf:
        problems.append(f"delta={delta!r} must be a positive relative error.")
    if not 0 < level < 1:
        problems.append(f"level={level!r} must lie between 0 and 1.")
    if problems:
        raise InputError.from_problems("rows_needed", problems)
    z = float(stats.norm.ppf((1 + level) / 2))
    return math.ceil((z / delta) ** 2 * (1 - split_rate) / split_rate)


def sample_rows(n: int, B: int, scores: Any = None, seed: int = 0) -> ReviewSample:
    """Draw rows for review, uniformly or with a preference for suspicious rows.

    Parameters
    ----------
    n : int
        Number of rows of the table.
    B : int
        Number of rows to review.
    scores : sequence of float, optional
        s_i ≥ 0: how likely each row is to leak, for example `LeakEstimate.row_probability`. Good
        scores make the estimate more precise, bad scores less precise; neither makes it biased.
    seed : int

    Returns
    -------
    ReviewSample
        Pass it to `review_sheet`. Its rows are in random order: the first rows are a random sample,
        too.

    Notes
    -----
    The rows without a score are one stratum. Rows with a score form three strata with equal sums of
    √s: N_h·√s̄_h, the criterion of Neyman's allocation, is then about equal in each, as for optimal
    strata (Dalenius and Hodges, doi:10.1080/01621459.1959.10501501). Half of the sample is allocated
    by size, because leaks hide among rows that scores do not suspect. The other half is allocated by
    N_h·√(s̄_h(1 − s̄_h)), with s̄_h at least 0.01.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> sample = linkage.sample_rows(n=1000, B=50)
    >>> len(sample), sample.sizes
    (50, {'all': 1000})

    With scores, suspicious rows are drawn more often:

    >>> sample = linkage.sample_rows(n=1000, B=50, scores=[0.5] * 100 + [0] * 900)
    >>> sample.sizes, sample.stratum.count("none")
    ({'none': 900, 'low': 100}, 39)
    """
    check_seed(seed)
    whole = [isinstance(count, (int, np.integer)) and count is not True for count in (n, B)]
    if not all(whole) or not 1 <= B <= n:
        raise InputError(f"B={B!r} rows of n={n!r} cannot be drawn; B must be in 1 … n.")
    rng = np.random.default_rng(seed)
    names, stratum, chance = _draw_strata(n, scores)
    sizes = np.bincount(stratum, minlength=len(names))
    counts = _allocation(sizes, chance, B)
    drawn = [
        rng.choice(np.flatnonzero(stratum == h), count, replace=False)
        for h, count in enumerate(counts.tolist())
    ]
    rows = rng.permutation(np.concatenate(drawn))
    return ReviewSample(
        rows=rows.astype(np.intp),
        stratum=tuple(names[h] for h in stratum[rows].tolist()),
        sizes=dict(zip(names, sizes.tolist(), strict=True)),
        n=int(n),
    )


def _draw_strata(n: int, scores: Any) -> tuple[list[str], Rows, Floats]:
    """Return the names of the strata, the stratum of each row, and the mean score of each."""
    if scores is None:
        return [UNIFORM], np.zeros(n, dtype=np.intp), np.ones(1)
    values = np.asarray(scores, dtype=float)
    if values.shape != (n,):
        raise InputError(
            f"scores has shape {values.shape}; one score for each of {n} rows is needed."
        )
    wrong = ~((values >= 0) & (values < np.inf))
    if wrong.any():
        raise InputError(f"scores: {int(wrong.sum())} are missing, negative or infinite.")
    stratum = np.zeros(n, dtype=np.intp)
    ranked = np.sort(values[values > 0])
    if len(ranked):
        mass = np.cumsum(np.sqrt(ranked))
        parts = np.arange(1, len(SCORED)) / len(SCORED)
        cuts = ranked[np.searchsorted(mass, mass[-1] * parts)]
        stratum[values > 0] = 1 + np.searchsorted(cuts, values[values > 0])
    used, stratum = np.unique(stratum, return_inverse=True)
    names = [(UNSCORED, *SCORED)[h] for h in used]
    means = np.bincount(stratum, values) / np.bincount(stratum)
    return names, stratum.astype(np.intp), means


def _allocation(sizes: Rows, chance: Floats, count: int) -> Rows:
    """Return how many rows of each stratum to sample."""
    rate = np.clip(chance, LEAST_RATE, 0.5)
    spread = sizes * np.sqrt(rate * (1 - rate))
    wanted = count * (
        PROPORTIONAL * sizes / sizes.sum() + (1 - PROPORTIONAL) * spread / spread.sum()
    )
    least = np.minimum(sizes, LEAST_ROWS if len(sizes) > 1 else 1)
    if least.sum() > count:
        raise InputError(
            f"B={count} rows are too few for {len(sizes)} strata; draw {int(least.sum())} or more, or "
            "leave out scores."
        )
    given: Rows = np.clip(np.floor(wanted).astype(np.intp), least, sizes)
    while given.sum() != count:
        step = 1 if given.sum() < count else -1
        free = given < sizes if step > 0 else given > least
        given[np.argmax(np.where(free, step * (wanted - given), -np.inf))] += step
    return given


# --- The sheet on which a reviewer enters the mates of sampled rows

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
    """Make a sheet on which a reviewer enters the mates of sampled rows.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table of records.
    sample : ReviewSample
        The result of `sample_rows`.
    pairs : PairTable, optional
        Scored pairs, for a list of candidates next to each record.
    cluster : str
        The column of predicted clusters.
    path : path, optional
        Where to write the sheet as CSV, for any spreadsheet.
    id : str, optional
        The column of ids; by default the table's index.
    columns : sequence of str, optional
        The columns to show to the reviewer; by default all others.
    most : int
        How many rows of the same cluster, and how many candidates, to list.

    Returns
    -------
    pandas.DataFrame
        One row per sampled record: `record` (its id), `stratum`, `rows_in_stratum`, `cluster`, the
        record's own columns, `same_cluster`, `candidates` with their probabilities, and the empty
        `mates` and `comment`.

    Notes
    -----
    In `mates`, the reviewer enters the ids of all other rows of the same person (or other entity),
    separated by `;`, or `none`. An empty cell means that the row is not reviewed yet. Rows of
    `same_cluster` may be left out unless folds split clusters. The reviewer must search the whole
    table: candidates are an aid, and mates that are not among them are the ones that leak. Review
    rows in the order of the sheet; see `parse_review`.

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> frame = pd.DataFrame(
    ...     {"name": ["Ann", "Ann B.", "A. B.", "Bob"], "patient_id": [1, 1, 2, 3]},
    ...     index=["r1", "r2", "r3", "r4"],
    ... )
    >>> sample = linkage.sample_rows(n=4, B=4)
    >>> sheet = linkage.review_sheet(frame, sample, cluster="patient_id")
    >>> sheet.columns.tolist()
    ['record', 'stratum', 'rows_in_stratum', 'cluster', 'name', 'same_cluster', 'candidates', 'mates', 'comment']
    >>> sheet.set_index("record")["same_cluster"].sort_index().to_dict()
    {'r1': 'r2', 'r2': 'r1', 'r3': '', 'r4': ''}
    """
    if len(frame) != sample.n or (pairs is not None and pairs.n != sample.n):
        rows = f"frame has {len(frame)} rows" + (f", pairs refer to {pairs.n}" if pairs else "")
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
        )  # Excel recognises UTF-8 by the byte order mark
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
    # column names of the sheet are case-insensitive when it is read
    taken = [column for column in shown if str(column).strip().lower() in BEFORE + AFTER]
    if taken:
        raise InputError(
            f"frame: the sheet has columns of its own named {', '.join(map(repr, taken))}. Rename "
            "those of the table, or select the columns to show with columns=."
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
    """Return the most likely mates in other clusters, best first."""
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


# --- Reading a completed sheet

STRATA = BEFORE[1:3]


def parse_review(
    source: Any, ids: Iterable[Any], *, allow_unfinished: bool = False
) -> ResolvedRows:
    """Read a completed review sheet.

    Parameters
    ----------
    source : path of a .csv file, or DataFrame
        A sheet made by `review_sheet`, with `mates` filled in. The columns `record`, `stratum`,
        `rows_in_stratum` and `mates` are required. Changes made by spreadsheets are accepted:
        columns separated by semicolons or tabs, and numbers that lost leading zeros or became 12.0.
        For rows that were not drawn by `sample_rows`, use `ResolvedRows.of`.
    ids : sequence
        The id of every row of the table, in its order.
    allow_unfinished : bool
        Use the reviewed rows if `mates` is empty in others. This is harmless if rows were reviewed
        in the order of the sheet, which is random. It causes bias if easy rows were reviewed first,
        or hard rows were skipped.

    Returns
    -------
    ResolvedRows
        With the strata and clusters of the sheet. Its method `leak(folds, clusters)` estimates the
        leak shares.

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> sheet = pd.DataFrame(
    ...     {
    ...         "record": ["r2", "r4"],
    ...         "stratum": ["all", "all"],
    ...         "rows_in_stratum": [4, 4],
    ...         "mates": ["r1; r3", "none"],
    ...     }
    ... )
    >>> resolved = linkage.parse_review(sheet, ids=["r1", "r2", "r3", "r4"])
    >>> [found.tolist() for found in resolved.mates]
    [[0, 2], []]
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
        _read_strata(table, done, len(texts)),
        tuple(table["cluster"][done]) if "cluster" in table else None,
    )


class _Cells:
    """Reader of the cells of `mates` that collects problems."""

    def __init__(self, lookup: dict[str, int], *, commas: bool) -> None:
        self._lookup = lookup
        self._between = r"[;,\n]" if commas else r"[;\n]"
        self._unknown: list[str] = []
        self._both: list[str] = []
        self._own: list[str] = []

    def read(self, record: str, row: int | None, cell: str) -> list[int] | None:
        """Return the rows listed in a cell, or None if it is empty."""
        # an id may contain a separator
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
        """Return a message for each kind of problem."""
        problems = []
        if self._unknown:
            some = ", ".join(self._unknown[:EXAMPLES])
            more = ", …" if len(self._unknown) > EXAMPLES else ""
            problems.append(f"{len(self._unknown)} mates are not in the table: {some}{more}.")
        if self._both:
            problems.append(
                f"{len(self._both)} records have both ids and `none` in `mates`: "
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
    text = f"{left} of {count} rows have nothing in `mates` yet; enter the ids of all mates, or `none`."
    if left == count:
        return text
    return (
        f"{text} If rows were reviewed in the order of the sheet, which is random, the reviewed rows "
        "are enough: delete the unfinished lines from its end, or in Python pass resolved_rows="
        "mlflow_b3.linkage.parse_review(path, ids, allow_unfinished=True)."
    )


def _table(source: Any) -> pd.DataFrame:
    """Return a completed sheet with its cells as text, without empty lines."""
    if isinstance(source, pd.DataFrame):
        table = source.copy()
    elif isinstance(source, (str, Path)):
        table = _read(Path(source))
    else:
        raise InputError(
            f"review sheet: {type(source).__name__} is not valid. Give a DataFrame or the path of a "
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
        text = content.decode("cp1252", errors="replace")  # the default of Excel
    header = text.split("\n", 1)[0]
    separator = max(",;\t", key=header.count)
    with reading("review sheet", path):
        return pd.read_csv(StringIO(text), sep=separator, dtype=str, keep_default_na=False)


def _read_strata(
    table: pd.DataFrame, done: list[bool], n: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    lost = [name for name in STRATA if name not in table]
    if lost:
        raise InputError(
            f"review sheet: it has lost {listed(lost)}. Without these columns, all rows would count as "
            "equally likely to be drawn. Copy the columns back from the original sheet. For rows "
            "that were drawn uniformly in another way, use mlflow_b3.linkage.ResolvedRows.of("
            "rows, mates, n)."
        )
    sizes: dict[str, int] = {}
    for label, text in zip(table["stratum"], table["rows_in_stratum"], strict=True):
        size = int(text) if text.isdecimal() else None
        if not label or size is None or sizes.setdefault(label, size) != size:
            raise InputError(
                f"review sheet: stratum {label!r} has {text!r} rows on one line, "
                f"{sizes.get(label)!r} on another; copy `stratum` and `rows_in_stratum` back from "
                "the original sheet."
            )
    if sum(sizes.values()) != n:
        raise InputError(
            f"review sheet: its strata {listed(sizes)} have {sum(sizes.values())} rows together; the "
            f"table has {n}. Either the sheet belongs to another table, or all lines of a stratum were "
            "deleted: copy them back, and review some of them."
        )
    return tuple(table["stratum"][done]), sizes


# --- Splink's labelling pages for the records to review


def splink_labelling_pages(
    linker: Any,
    ids: Iterable[Any],
    folder: str | Path,
    *,
    match_weight_threshold: float = -4.0,
) -> list[Path]:
    """Write Splink's labelling page for each record, which shows similar records.

    Parameters
    ----------
    linker : splink.Linker
        The linker of the table.
    ids : sequence
        Splink's unique ids of the records to review.
    folder : path
        Where to write the pages. It is created if necessary; existing pages are overwritten.
    match_weight_threshold : float
        Show records with a larger match weight, in bits. The record is compared with the whole
        table, regardless of blocking rules. A lower threshold shows more records.

    Returns
    -------
    list of Path
        One HTML page for each record, about 1.3 MB each.

    Notes
    -----
    A page replaces the list of candidates, but not the search: it does not show records below the
    threshold. Splink's predictions are hidden because they might bias the reviewer. Enter the mates
    that were found in the column `mates` of the sheet.
    """
    write = getattr(getattr(linker, "evaluation", None), "labelling_tool_for_specific_record", None)
    if write is None:
        raise InputError(
            f"linker={type(linker).__name__} has no evaluation.labelling_tool_for_specific_record; "
            "give the Linker of Splink 4 or later."
        )
    names = list(ids)
    quoted = [str(name) for name in names if "'" in str(name)]
    if quoted:
        raise InputError(
            f"ids: Splink cannot look up {len(quoted)} ids with a quote: {listed(quoted)}."
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    pages = []
    for place, name in enumerate(names, start=1):
        page = target / f"{place:04d}-{re.sub(r'[^A-Za-z0-9-]', '_', str(name))[:80]}.html"
        write(
            name,
            out_path=str(page),
            overwrite=True,
            match_weight_threshold=match_weight_threshold,
            show_splink_predictions_in_interface=False,
        )
        pages.append(page)
    return pages
