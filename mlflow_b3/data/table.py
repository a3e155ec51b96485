"""Read a table, check it, report all problems at once, and compute its digest.

Columns that only the learner refuses, such as dates, are found in `auditing.subject`.
"""

import hashlib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaincinv, gammaln, xlogy

from mlflow_b3.data.losses import are_fractional
from mlflow_b3.data.memory import NUMERIC_KINDS, give_back, map_columns, mapped_files, trim
from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import Finding, Result, percent, shortened

# --- Copies of rows, in the memory layout that learners read

#: Bytes up to which a table may be copied once more.
SMALL = 32 * 2**20
#: Bytes that are copied at a time. They fit the processor's cache.
BLOCK = 2**20
#: After so many blocks, what was read of a mapped file is given back to the system.
BLOCKS_READ = 8


class RowCopies:
    """Copies rows of features.

    Rows of a large DataFrame or array with one numeric dtype are copied in C order. scikit-learn's
    linear models require that layout and would otherwise copy the rows again. Rows of other tables
    are copied by pandas or NumPy, with their dtypes and categories.

    Parameters
    ----------
    features : DataFrame, array, or anything that can be indexed by rows
        It is not copied itself.

    Attributes
    ----------
    mapped : tuple of mmap
        The files that it is mapped from, whose memory is given back after rows were copied.
    """

    def __init__(self, features: Any) -> None:
        self._features = features
        self._frame = type(features) is pd.DataFrame
        self._columns: list[NDArray[Any]] | None = None
        self._values: NDArray[Any] | None = None
        self.mapped = mapped_files(features)
        dtype = self._number_dtype()
        if dtype is None:
            return
        if features.shape[0] * features.shape[1] * dtype.itemsize <= SMALL:
            self._values = features.to_numpy() if self._frame else None
            return
        self._dtype = dtype
        if self._frame:
            places = range(features.shape[1])
            self._columns = [features.iloc[:, place].to_numpy() for place in places]
        elif not features.flags.c_contiguous:
            self._columns = list(features.T)

    def _number_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype that all columns share if it is numeric, else None."""
        if self._frame:
            dtypes = set(self._features.dtypes)
            dtype = dtypes.pop() if len(dtypes) == 1 else None
        else:
            array = isinstance(self._features, np.ndarray) and self._features.ndim == 2
            dtype = self._features.dtype if array else None
        return dtype if isinstance(dtype, np.dtype) and dtype.kind in NUMERIC_KINDS else None

    def whole(self) -> Any:
        """Return all rows in the layout of `take`. Copy them only if the layout differs."""
        if self._columns is None:
            return self._features
        return self.take(np.arange(len(self._features)))

    def take(self, rows: NDArray[np.integer]) -> Any:
        """Return a copy of these rows, in the given order."""
        taken = self._take(rows)
        give_back(self.mapped)
        return taken

    def _take(self, rows: NDArray[np.integer]) -> Any:
        frame = self._features
        if self._values is not None:  # same as pandas, in a third of the time
            taken = self._take_like_pandas(self._values, rows)
            return pd.DataFrame(taken, index=frame.index[rows], columns=frame.columns, copy=False)
        if self._columns is None:
            return (
                self._features.iloc[rows]
                if hasattr(self._features, "iloc")
                else self._features[rows]
            )
        taken = self._gather(self._columns, rows)
        if not self._frame:
            return taken
        return pd.DataFrame(taken, index=frame.index[rows], columns=frame.columns, copy=False)

    def _take_like_pandas(self, values: NDArray[Any], rows: NDArray[np.integer]) -> NDArray[Any]:
        """Copy rows with the memory order of pandas, which affects rounding in learners' sums."""
        return values[rows] if values.flags.c_contiguous else np.take(values.T, rows, axis=1).T

    def _gather(self, columns: Sequence[NDArray[Any]], rows: NDArray[np.integer]) -> NDArray[Any]:
        taken = np.empty((len(rows), len(columns)), dtype=self._dtype)
        step = max(1, BLOCK // (len(columns) * self._dtype.itemsize))
        for number, start in enumerate(range(0, len(rows), step), start=1):
            chosen, part = rows[start : start + step], taken[start : start + step]
            for place, column in enumerate(columns):
                part[:, place] = column[chosen]
            if number % BLOCKS_READ == 0:
                give_back(self.mapped)
        return taken


def select_columns(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return these columns. Columns of a large table are not copied."""
    if len(frame) * max(1, len(names)) * 8 <= SMALL:
        return frame[list(names)]
    places = frame.columns.get_indexer(pd.Index(names))
    if (np.diff(places) == 1).all():
        chosen = frame.iloc[:, places[0] : places[-1] + 1].copy(deep=False)
        if np.shares_memory(chosen.iloc[:, 0].to_numpy(), frame[names[0]].to_numpy()):
            return chosen  # pandas 2 copies
    return pd.DataFrame({name: frame[name] for name in names}, copy=False)


# --- Read a table, add its cluster column, compute its digest

#: Name of the cluster column if labels are given instead of a column name.
LABELLED = "cluster"
#: The name of a target without one.
TARGET = "target"
#: Rows that are processed at a time to save memory.
CHUNK = 100_000
#: A large file is read in this many parts.
PARTS = 16


def read_table(data: Any, texts: Sequence[str] = ()) -> pd.DataFrame:
    """Return `data` as a DataFrame.

    Parameters
    ----------
    data : DataFrame, array, path of a .csv or .parquet file, or an MLflow pandas dataset
        A DataFrame of pandas or Polars, an Arrow table; an array of two dimensions or a sparse matrix,
        whose columns are named x0, x1, ….
    texts : sequence of str
        Columns that hold text. If pandas reads them from a .csv file as numbers, they are read
        again.
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, (str, Path)):
        return _restore_texts(Path(data), _read_file(Path(data)), texts)
    frame = getattr(data, "df", None)  # mlflow.data.PandasDataset
    if isinstance(frame, pd.DataFrame):
        return frame
    if callable(getattr(data, "to_pandas", None)):  # Polars, Arrow
        converted = data.to_pandas()
        if isinstance(converted, pd.DataFrame):
            return converted
    if isinstance(data, np.ndarray) and data.ndim == 2:
        return pd.DataFrame(data, columns=_numbered(data.shape[1]))
    if sparse.issparse(data) and len(data.shape) == 2:  # type: ignore[attr-defined]
        return _from_sparse(data)
    raise InputError(
        f"data={type(data).__name__} cannot be read; give a DataFrame of pandas or Polars, an Arrow "
        "table, an array with two dimensions, the path of a .csv or .parquet file, or a dataset made by "
        "mlflow.data.from_pandas."
    )


def _from_sparse(matrix: Any) -> pd.DataFrame:
    accessor: Any = pd.DataFrame.sparse
    frame: pd.DataFrame = accessor.from_spmatrix(matrix.tocsc(), columns=_numbered(matrix.shape[1]))
    return frame


def _numbered(columns: int) -> list[str]:
    return [f"x{number}" for number in range(columns)]


def join_target(data: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """Return a table of features with the target as another column, and the name of that column.

    Parameters
    ----------
    data
        Features; see `read_table`.
    y : Series or sequence
        The target of each row. A Series keeps its name.
    """
    frame = read_table(data)
    values = y.to_numpy() if callable(getattr(y, "to_numpy", None)) else np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    column = y if isinstance(y, pd.Series) and values.ndim == 1 else values
    return _with_column(frame, column, y, argument="y", what="value", otherwise=TARGET)


def label_clusters(frame: pd.DataFrame, cluster: Any) -> tuple[pd.DataFrame, str]:
    """Return the table and the name of its cluster column.

    Labels become a new column, with the name of a Series that has one. So does a named level of the
    index.
    """
    if isinstance(cluster, str):
        in_index = cluster not in frame.columns and cluster in frame.index.names
        return frame.reset_index(level=cluster) if in_index else frame, cluster
    labels = np.asarray(getattr(cluster, "labels", cluster))
    return _with_column(
        frame, labels, cluster, argument="cluster", what="label", otherwise=LABELLED
    )


def _with_column(
    frame: pd.DataFrame, column: Any, given: Any, *, argument: str, what: str, otherwise: str
) -> tuple[pd.DataFrame, str]:
    """Return the table with another column, and its name.

    Parameters
    ----------
    frame : DataFrame
    column : Series or array
    given : object
        The argument that the column was made of; it keeps its name if it has one.
    argument, what : str
        Its name, and what it has for each row.
    otherwise : str
        The name of a column without one, which is also the option that takes the name of a column.
    """
    if column.shape != (len(frame),):
        raise InputError(
            f"{argument}={type(given).__name__} of shape {column.shape} is not usable; give one {what} "
            f"for each of the {len(frame)} rows, or the name of a column as {otherwise}."
        )
    if isinstance(given, pd.Series) and not given.index.equals(frame.index):
        raise InputError(
            f"{argument} is a Series whose index differs from that of the table, so its {what}s may belong "
            f"to other rows; give {argument}.to_numpy() if they are in the order of the rows."
        )
    name = str(getattr(given, "name", None) or otherwise)
    while name in frame.columns:
        name += "_"
    extended = frame.copy(deep=False)
    extended[name] = column
    return extended, name


def _restore_texts(path: Path, frame: pd.DataFrame, texts: Sequence[str]) -> pd.DataFrame:
    """Read text columns of a .csv file again that became numbers, such as "007" read as 7."""
    numbers = [
        name
        for name in texts
        if name in frame.columns and pd.api.types.is_numeric_dtype(frame[name])
    ]
    if not numbers or path.suffix.lower() != ".csv":
        return frame
    again = pd.read_csv(path, usecols=numbers, dtype=dict.fromkeys(numbers, str))
    return frame.assign(**{name: again[name].to_numpy() for name in numbers})


def _read_file(path: Path) -> pd.DataFrame:
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"data={str(path)!r} has an unknown file extension; use one of {list(readers)}."
        )
    if not path.is_file():
        raise InputError(
            f"data={str(path)!r} is not a file (the current folder is {str(Path.cwd())!r})."
        )
    try:
        return reader(path)
    except (ValueError, OSError) as error:  # pyarrow's and pandas' parser errors are ValueErrors
        raise InputError(f"data={str(path)!r} cannot be read: {error}") from error


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a file with the column names that it has; pandas would rename the second of two."""
    frame = pd.read_csv(path)
    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    if first.shape != (1, frame.shape[1]):  # the first column holds row labels
        return frame
    written = zip(first.iloc[0], frame.columns, strict=True)
    names = [name or given for name, given in written]
    if len(set(names)) < len(names):
        return frame.set_axis(names, axis=1)
    return map_columns(frame) if path.stat().st_size > SMALL else frame


def _read_parquet(path: Path) -> pd.DataFrame:
    """Read a file. Read a large one in parts: at once it would take three times its size."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    if path.stat().st_size <= SMALL:
        return pd.read_parquet(path)
    names = parquet.read_schema(path).names
    groups = [names[first::PARTS] for first in range(min(PARTS, len(names)))]
    if len(set(names)) < len(names) or any("." in name for name in names):
        return pd.read_parquet(path)  # column names are ambiguous
    parts = [map_columns(pd.read_parquet(path, columns=group)) for group in groups]
    pyarrow.default_memory_pool().release_unused()
    columns = {str(name): part[name] for part in parts for name in part.columns}
    read = pd.DataFrame({name: columns[name] for name in names if name in columns}, copy=False)
    read.columns = pd.Index(
        [columns[name].name for name in names if name in columns], name=parts[0].columns.name
    )
    return read


def digest_table(frame: pd.DataFrame) -> str:
    """Return a digest of 36 hexadecimal digits over names, dtypes, values and their order.

    Row labels are ignored. 36 is the longest digest that MLflow stores.
    """
    sha = hashlib.sha256()
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        sha.update(f"{name}\x1f{dtype}\x1e".encode())
    # pandas hashes row by row, but how it converts an Arrow column depends on whether any of its
    # rows is missing
    arrow = any(isinstance(dtype, pd.ArrowDtype) for dtype in frame.dtypes)
    step = len(frame) if arrow else CHUNK
    for start in range(0, len(frame), max(1, step)):
        part = frame.iloc[start : start + step]
        plain = part.assign(
            **{str(name): part[name].map(repr) for name in part if part[name].dtype == object}
        )  # pandas would mix up 1 and "1", and cannot hash lists
        sha.update(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return sha.hexdigest()[:36]


# --- Findings about a table that need no refit

#: A feature identifies clusters if it does so for this share of the rows that have mates.
IDENTIFYING = 0.9
#: A feature with fewer distinct values does not identify clusters.
FEWEST_IDENTIFIERS = 10
#: A feature gives away the target if it alone classifies this share of the rows correctly.
GIVEN_AWAY = 0.999
#: `GIVEN_AWAY` is not applied if the best constant is correct for more than this share.
BEST_CONSTANT = 0.99
#: A feature gives away a numeric target from this correlation on.
CORRELATION = 0.9999
#: Numeric targets with more values are tested by correlation instead of thresholds.
MOST_CLASSES = 20
#: Error probability, per table, of a finding about the target or about copies.
CHANCE = 0.001
#: Up to this many distinct values per row, the value itself may classify: ten rows share one.
FEW_VALUES = 0.1
#: Whole numbers up to this multiple of their count are counted, larger ones sorted.
MOST_GAPS = 10
#: Values are counted exactly unless more than this share of the rows differ for certain.
NEARLY_ALL = 0.75
#: Rows of a sample that rules out most features before all rows are sorted.
SAMPLE = 4000
#: Share of the rows, or correlation, from which a feature is examined on all rows.
ROUGHLY = 0.99
#: Smallest share of copied clusters to report. Fewer hardly change a score.
COPIED = 0.01


@dataclass(frozen=True, kw_only=True)
class TableFacts(Result):
    """Facts about a table, before any refit.

    Attributes
    ----------
    n_rows, n_clusters : int
    n_repeated : int
        Clusters with two rows or more.
    findings : tuple of Finding
    """

    n_rows: int
    n_clusters: int
    n_repeated: int
    findings: tuple[Finding, ...]


def table_facts(
    features: pd.DataFrame, target: NDArray[Any], clusters: NDArray[np.intp]
) -> TableFacts:
    """Return the facts about features, target and clusters, before any refit.

    Parameters
    ----------
    features : DataFrame
        The columns that the model receives.
    target : array
    clusters : array of int
        The cluster of each row as a whole number from 0, without gaps.
    """
    sizes = np.bincount(clusters)
    return TableFacts(
        n_rows=len(clusters),
        n_clusters=len(sizes),
        n_repeated=int((sizes > 1).sum()),
        findings=tuple(_findings(features, target, clusters, sizes)),
    )


def _findings(
    features: pd.DataFrame,
    target: NDArray[Any],
    clusters: NDArray[np.intp],
    sizes: NDArray[np.intp],
) -> list[Finding]:
    findings = []
    outcome = _Target(target, clusters)
    rows = _hashes(pd.Series(target, copy=False))
    names, revealing = [], []
    distinct: dict[str, int] = {}
    missing: dict[str, int] = {}
    first: dict[int, str] = {}
    repeated = []
    for name, column in features.items():
        name = str(name)
        hashes = _hashes(column)
        rows = rows * np.uint64(0x9E3779B97F4A7C15) + hashes  # sensitive to the order of columns
        if not is_plain(column):
            continue
        names.append(name)
        least = _fewest_values(hashes)
        distinct[name] = least if least > NEARLY_ALL * len(column) else _count_values(column)
        missing[name] = int(column.isna().sum())
        earlier = first.setdefault(int(hashes.sum()), name)
        if earlier != name and column.equals(features[earlier]):
            repeated.append(name)
        if outcome.is_given_away_by(column, distinct[name], features.shape[1]):
            revealing.append(name)
    constant = [name for name in names if distinct[name] == 1]
    if constant or repeated:
        parts = [f"constant: {shortened(constant)}"] if constant else []
        parts += [f"same values as an earlier column: {shortened(repeated)}"] if repeated else []
        findings.append(Finding(code="B309", message="; ".join(parts) + ". They are kept."))
    missing = {name: count for name, count in missing.items() if count}
    if missing:
        findings.append(
            Finding(
                code="B310",
                message=f"missing values are passed to the learner unchanged: {missing}.",
            )
        )
    mates = int(sizes[sizes > 1].sum())
    identifying = [
        name
        for name in names  # d distinct values of n: at most 2(n-d) rows share a value
        if 2 * (len(features) - distinct[name]) >= IDENTIFYING * (mates - missing.get(name, 0))
        and _identifies(features[name], clusters, sizes)
    ]
    if identifying:
        findings.append(
            Finding(
                code="B323",
                message=f"{shortened(identifying)}: values repeat within a cluster and hardly ever "
                "between clusters, as those of a name or a telephone number. They say nothing about "
                "new clusters and let the learner recognize known ones; consider leaving them out.",
            )
        )
    singles = int((sizes == 1).sum())
    if 2 * singles > len(sizes):
        findings.append(
            Finding(
                code="B311",
                message=f"{singles} of {len(sizes)} clusters have a single row. Such rows say "
                "nothing about dependence within clusters.",
            )
        )
    if revealing:
        findings.append(
            Finding(
                code="B343",
                message=f"{shortened(revealing)}: the value of one such feature alone determines the "
                "target. Check that it is known before the target is; leave it out if it is recorded "
                "later or derived from the target.",
            )
        )
    copies = _copies(rows, clusters)
    if copies is not None:
        findings.append(
            Finding(
                code="B344",
                message=f"{percent(copies)} of the rows equal a row of another cluster in all features "
                "and in the target, more than chance explains. Either rows were copied under new ids, "
                "or one cluster has several ids. Remove the copies or give them one id, then audit "
                "again.",
            )
        )
    return findings


class _Target:
    """The target, prepared once for all features.

    A feature gives away the target if its value alone determines the target. A target with at most
    `MOST_CLASSES` values, or one that is not numeric, is a set of classes. There are two tests:

    - By value. Each row is classified by the majority of the rows of *other* clusters with the same
      value or, if there are none, by the most frequent class. This detects copies of the target
      under any coding, even with several codes per class. A name or a row number classifies nothing:
      no other cluster has the same value. Missing counts as a value. Features with more than
      `FEW_VALUES` values per row are not tested: if rows were copied, their values would identify
      the copies and so classify them.
    - By thresholds, for numbers and dates. The axis is cut into at most one interval per class. Rows
      without a value are classified together.

    One of the two must classify all rows correctly. A share of `GIVEN_AWAY` suffices if the best
    constant is correct for `BEST_CONSTANT` at most; this is a tenth of the constant's errors or less.

    A numeric target with more values is given away by a Pearson or Spearman correlation of
    `CORRELATION`. This leaves 0.0002 of the variance unexplained, less than the rounding of most
    measurements.

    In small tables a feature may pass these tests by chance. Rows of one cluster may be alike, so a
    cluster counts once for each of its classes. If N such units have the class sizes n_1, …, n_k and
    the target is shuffled among them, all N! / (n_1! … n_k!) arrangements are equally likely. A rule
    with F possible forms that errs on m units fits at most F · C(N, m) · (k - 1)^m of them. F is k^d
    for a feature with d values, and C(d + k - 1, k - 1) · k! · k for thresholds with a class for
    missing values. The quotient, times the number of features, must not exceed `CHANCE`. Correlations
    need at least ten units: the probability that their order agrees is 2 / 10!.
    """

    def __init__(self, target: NDArray[Any], clusters: NDArray[np.intp]) -> None:
        values = pd.Series(target, copy=False)
        self.codes, classes = pd.factorize(values, use_na_sentinel=False)
        self.clusters = clusters
        self.n_classes = len(classes)
        sizes = np.bincount(self.codes, minlength=self.n_classes)
        self.majority = int(sizes.argmax())
        self.constant = sizes.max() / len(target)
        pairs = _distinct(clusters.astype(np.int64) * self.n_classes + self.codes)
        self.units = len(pairs)
        units = np.bincount(pairs % self.n_classes)
        self.log_arrangements = float(gammaln(self.units + 1) - gammaln(units + 1).sum())
        numeric = pd.api.types.is_numeric_dtype(values) and values.dtype != bool
        self.numbers = _as_numbers(values) if numeric else None
        rng = np.random.default_rng(0)
        few = len(target) <= SAMPLE
        self.sample = slice(None) if few else rng.choice(len(target), SAMPLE, replace=False)

    @cached_property
    def target_ranks(self) -> NDArray[np.float64]:
        assert self.numbers is not None
        return _ranks(self.numbers)

    def is_given_away_by(self, column: "pd.Series[Any]", n_values: int, n_features: int) -> bool:
        """Return whether a feature gives away the target.

        `n_values` is the number of its values, or a smaller one above `NEARLY_ALL` of the rows.
        """
        if n_values == 1 or self.n_classes == 1:
            return False
        numbers = _as_numbers(column)
        continuous = self.numbers is not None and self.n_classes > MOST_CLASSES
        if continuous and numbers is not None and self._correlates(numbers):
            return True
        n = len(column)
        k = self.n_classes
        if n_values <= FEW_VALUES * n:
            codes, _ = pd.factorize(column, use_na_sentinel=False)
            if self._may_classify(codes, n_values):
                errors = n - self._correct_by_value(codes, n_values)
                if self._is_enough(errors, n_values * np.log(k), n_features):
                    return True
        if numbers is None or k > MOST_CLASSES:
            return False
        some = numbers[self.sample]
        if self._correct_by_thresholds(some, self.codes[self.sample]) < ROUGHLY * len(some):
            return False
        n_values = _count_values(column)
        log_forms = float(gammaln(n_values + k) - gammaln(n_values + 1) + 2 * np.log(k))
        errors = n - self._correct_by_thresholds(numbers, self.codes)
        return self._is_enough(errors, log_forms, n_features)

    def _may_classify(self, codes: NDArray[np.intp], n_values: int) -> bool:
        """Return whether the majority class of each value classifies enough rows to test further."""
        n, k = len(codes), self.n_classes
        if n_values * k > 10 * n:
            return 2 * k <= n
        cells = np.bincount(codes * k + self.codes, minlength=n_values * k)
        return bool(cells.reshape(n_values, k).max(axis=1).sum() >= ROUGHLY * n)

    def _is_enough(self, errors: int, log_forms: float, n_features: int) -> bool:
        share = errors / len(self.codes)
        if errors and (share > 1 - GIVEN_AWAY or self.constant > BEST_CONSTANT):
            return False
        wrong = min(errors, self.units)
        log_misses = (
            gammaln(self.units + 1)
            - gammaln(wrong + 1)
            - gammaln(self.units - wrong + 1)
            + xlogy(wrong, self.n_classes - 1)
        )
        log_chance = np.log(n_features) + log_forms + log_misses - self.log_arrangements
        return bool(log_chance <= np.log(CHANCE))

    def _correct_by_value(self, codes: NDArray[np.intp], n_values: int) -> int:
        """Count rows that are classified correctly by rows of other clusters with the same value."""
        k = self.n_classes
        _, where = np.unique(codes.astype(np.int64) * k + self.codes, return_inverse=True)
        counts = np.bincount(where)
        n_clusters = int(self.clusters.max()) + 1
        _, own, sizes = np.unique(
            where.astype(np.int64) * n_clusters + self.clusters,
            return_inverse=True,
            return_counts=True,
        )
        _, mates_of, mates = np.unique(
            codes.astype(np.int64) * n_clusters + self.clusters,
            return_inverse=True,
            return_counts=True,
        )
        for_class = counts[where] - sizes[own]
        others = np.bincount(codes, minlength=n_values)[codes] - mates[mates_of]
        decided = np.where(others == 0, self.codes == self.majority, 2 * for_class > others)
        return int(decided.sum())

    def _correct_by_thresholds(self, numbers: NDArray[np.float64], codes: NDArray[np.intp]) -> int:
        """Count the rows that the best thresholds on a number classify correctly.

        Classes are ordered by their medians. `best[i]` is the number of correct rows among the
        first i values if the current class is the last one used.
        """
        k = self.n_classes
        known = ~np.isnan(numbers)
        right = int(np.bincount(codes[~known], minlength=1).max())
        numbers, codes = numbers[known], codes[known]
        if not len(numbers):
            return right
        order = np.argsort(numbers, kind="stable")
        numbers, codes = numbers[order], codes[order]
        ends = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]), len(numbers) - 1) + 1
        middle = [
            np.median(np.flatnonzero(codes == c)) if (codes == c).any() else -1 for c in range(k)
        ]
        best = np.zeros(len(ends) + 1)
        for c in np.argsort(middle, kind="stable"):
            upto = np.concatenate([[0], np.cumsum(codes == c)[ends - 1]])
            best = upto + np.maximum.accumulate(best - upto)
        return right + int(best[-1])

    def _correlates(self, numbers: NDArray[np.float64]) -> bool:
        assert self.numbers is not None
        known = np.isfinite(numbers)
        if self.units < 10 or known.mean() < GIVEN_AWAY:
            return False
        if known.all():
            ranks = self.target_ranks
            x, y = numbers, self.numbers
        else:
            x, y = numbers[known], self.numbers[known]
            ranks = _ranks(y)
        if _correlation(x, y) >= CORRELATION:
            return True
        rows = self.sample if known.all() else slice(None)
        if _correlation(_ranks(x[rows]), _ranks(y[rows])) < ROUGHLY:
            return False
        return _correlation(_ranks(x), ranks) >= CORRELATION


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(pd.Series(values).rank(), dtype=np.float64)


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the absolute correlation; 0 if one of the two is constant."""
    with np.errstate(all="ignore"):
        x, y = x / (np.abs(x).max() or 1.0), y / (np.abs(y).max() or 1.0)
        x, y = x - x.mean(), y - y.mean()
        found = abs(x @ y) / np.sqrt((x @ x) * (y @ y))
    return float(found) if np.isfinite(found) else 0.0


def _as_numbers(column: "pd.Series[Any]") -> NDArray[np.float64] | None:
    """Return numbers, booleans and times as floats; None for anything else."""
    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column) or kinds.is_timedelta64_dtype(column):
        numbers = column.astype("int64").to_numpy(dtype=float)
        return np.where(column.isna(), np.nan, numbers)
    if not kinds.is_numeric_dtype(column) or kinds.is_complex_dtype(column):
        return None
    return column.to_numpy(dtype=float, na_value=np.nan)


def _copies(rows: NDArray[np.uint64], clusters: NDArray[np.intp]) -> float | None:
    """Return the share of rows that equal a row of another cluster; None if chance explains it.

    In tables with few columns and few values, rows are equal by chance. How often depends on all
    columns together, but a bound is known. Represent each of the K clusters by its row with the
    smallest hash, which is the same row for a cluster and its copy. Without copies the
    representatives are independent draws from one distribution. If a row has the probability p_g,
    the expected number of rows that represent exactly r clusters is

        E N_r = C(K, r) · Σ_g p_g^r (1 - p_g)^(K - r).

    E N_r / C(K, r) are moments of the odds under a positive measure, so they are log-convex:

        (E N_r)² <= a_r · E N_(r-1) · E N_(r+1),   a_r = (r + 1)(K - r + 1) / (r (K - r)),

    for all p_g. If pairs occur by chance, single rows and triples do too. Copies violate this: if
    each cluster is copied once, there are pairs and nothing else. A violation is reported if it
    exceeds the noise of all three counts (Poisson limits, each with the error probability `CHANCE`)
    and concerns at least `COPIED` of the clusters. In a table without chance repetitions this detects
    a copied share of about 4 / sqrt(K).
    """
    representatives = np.full(int(clusters.max()) + 1, np.iinfo(rows.dtype).max)
    np.minimum.at(representatives, clusters, rows)
    _, counts = np.unique(representatives, return_counts=True)
    n_clusters = len(representatives)
    times = np.bincount(counts, minlength=2)
    if len(times) == 2 or not _exceeds_chance(times, n_clusters):
        return None
    _, where = np.unique(rows, return_inverse=True)
    pairs = np.unique(where.astype(np.int64) * n_clusters + clusters)
    owners = np.bincount(pairs // n_clusters)
    return float((owners[where] > 1).mean())


def _exceeds_chance(times: NDArray[np.intp], n_clusters: int) -> bool:
    """Return whether, for some r, too many rows occur exactly r times; `times[r]` counts them."""
    r = np.arange(2, min(len(times), n_clusters))
    padded = np.append(times, 0)
    allowed = (r + 1) * (n_clusters - r + 1) / (r * (n_clusters - r))
    bound = np.sqrt(allowed * _at_most(padded[r - 1]) * _at_most(padded[r + 1]))
    excess = padded[r] - bound
    certain = _at_least(padded[r]) > bound
    return bool((certain & (r * excess >= COPIED * n_clusters)).any())


def _at_most(count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the upper limit of a Poisson mean."""
    return np.asarray(gammaincinv(count + 1.0, 1 - CHANCE))


def _at_least(count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the lower limit of a Poisson mean."""
    return np.where(count > 0, gammaincinv(np.maximum(count, 1.0), CHANCE), 0.0)


def _identifies(
    column: "pd.Series[Any]", clusters: NDArray[np.intp], sizes: NDArray[np.intp]
) -> bool:
    """Return whether values of a feature repeat within clusters but hardly between them.

    Two clusters may share a value: record linkage may have split one cluster in two.
    """
    values, _ = pd.factorize(column, use_na_sentinel=True)
    if values.max() + 1 < FEWEST_IDENTIFIERS:
        return False
    judged = (values >= 0) & (sizes[clusters] > 1)
    repeated = np.bincount(values[values >= 0]) > 1
    if not judged.any() or repeated[values[judged]].mean() < IDENTIFYING:
        return False  # hardly any value repeats, as for measurements
    known = values >= 0
    pairs, where, counts = np.unique(
        values[known].astype(np.int64) * len(sizes) + clusters[known],
        return_inverse=True,
        return_counts=True,
    )
    owners = np.bincount(pairs // len(sizes))
    identified = (counts[where] > 1) & (owners[values[known]] <= 2)
    return bool(identified[judged[known]].mean() >= IDENTIFYING)


def _count_values(column: "pd.Series[Any]") -> int:
    """Return the number of different values; missing ones are one of them."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        return len(np.unique(column.to_numpy()))  # sorting takes half of the time of hashing
    return len(pd.factorize(column, use_na_sentinel=False)[1])


def _fewest_values(hashes: NDArray[np.uint64]) -> int:
    """Return a number that a column has different values at least: that of its different short hashes."""
    bits = (16 * len(hashes)).bit_length()
    occurs = np.zeros(2**bits, dtype=bool)
    occurs[hashes >> np.uint64(64 - bits)] = True
    return int(np.count_nonzero(occurs))


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the different ones among whole numbers from 0, in ascending order."""
    if numbers.max() <= MOST_GAPS * len(numbers):
        return np.flatnonzero(np.bincount(numbers))
    return np.unique(numbers)


def is_plain(column: "pd.Series[Any]") -> bool:
    """Return whether a column holds scalars, not lists or arrays."""
    return column.dtype != object or bool(column.map(pd.api.types.is_hashable).all())


def _hashes(column: "pd.Series[Any]") -> NDArray[np.uint64]:
    """Return a hash for each value. Equal values have equal hashes."""
    try:
        hashes = pd.util.hash_pandas_object(column, index=False)
    except (TypeError, ValueError):  # mixed types, or lists
        hashes = pd.util.hash_pandas_object(column.map(repr), index=False)
    return np.asarray(hashes, dtype=np.uint64)


# --- Check the columns of a table

MINIMUM_ROWS = 20
#: Part of all notes about dtypes, by which findings recognise them.
IN_TABLE = "in the table, and"


def require_names(**arguments: object) -> None:
    """Raise an `InputError` unless each argument is a string or None, which means no column."""
    problems = []
    for argument, value in arguments.items():
        if value is None or isinstance(value, str):
            continue
        shape = (len(value),) if isinstance(value, (list, tuple)) else getattr(value, "shape", None)
        told = f"{type(value).__name__} of shape {shape}" if shape else reprlib.repr(value)
        how = "; add the values to the table first" if shape else ""
        problems.append(f"{argument}={told} must be the name of a column, as a string{how}.")
    if problems:
        raise InputError.from_problems("data", problems)


def shape_problems(frame: pd.DataFrame, target: str, cluster: str) -> list[str]:
    """Return problems with missing columns and with the number of rows."""
    columns = [str(name) for name in frame.columns]
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:  # the checks below would be ambiguous
        raise InputError(f"data: column names {doubled} occur more than once; rename or drop them.")
    problems = []
    for argument, name in (("target", target), ("cluster", cluster)):
        if name not in frame.columns:
            problems.append(
                f"{argument}={name!r} is not a column.{closest(str(name), columns)} "
                f"The columns are {shortened(columns)}."
            )
    if target == cluster:
        problems.append(f"target and cluster are the same column, {target!r}.")
    if len(frame) < MINIMUM_ROWS:
        problems.append(
            f"{len(frame)} rows are too few to audit; at least {MINIMUM_ROWS} are needed."
        )
    return problems


def target_problems(frame: pd.DataFrame, target: str, task: str) -> list[str]:
    """Return problems with the target."""
    if target not in frame.columns:
        return []
    values = frame[target]
    if not is_plain(values):
        return [f"target {target!r} holds lists or arrays; one value per row is needed."]
    missing = int(values.isna().sum())
    if missing:
        return [f"target {target!r} is missing in {missing} rows; drop or fill them."]
    if values.nunique() < 2:
        return [f"target {target!r} has the same value in every row; there is nothing to predict."]
    if pd.api.types.is_complex_dtype(values):
        return [f"target {target!r} holds complex numbers; real ones or classes are needed."]
    if task == "regression" and not pd.api.types.is_numeric_dtype(values):
        return [f"target {target!r} has dtype {values.dtype}, but the model is a regressor."]
    if not pd.api.types.is_float_dtype(values):
        return []
    numbers = values.to_numpy(dtype=float)
    if not np.isfinite(numbers).all():
        return [f"target {target!r} has infinite values; drop those rows."]
    if task == "classification" and are_fractional(numbers):
        return [
            f"target {target!r} has fractional numbers, but the model is a classifier; name the "
            "column with the classes."
        ]
    return []


def cluster_problems(frame: pd.DataFrame, cluster: str) -> list[str]:
    """Return problems with the cluster ids."""
    if cluster not in frame.columns:
        return []
    if not is_plain(frame[cluster]):
        return [f"cluster {cluster!r} holds lists or arrays; one id per row is needed."]
    missing = int(frame[cluster].isna().sum())
    if missing:
        return [
            f"cluster {cluster!r} is missing in {missing} rows; give each such row an id of its "
            "own if its cluster is unknown, or drop the rows."
        ]
    different = frame[cluster].unique()
    blank = [value for value in different if isinstance(value, str) and not value.strip()]
    if blank:
        count = int(frame[cluster].isin(blank).sum())
        return [
            f"cluster {cluster!r} is empty text in {count} rows, which would be one cluster; give each "
            "such row an id of its own if its cluster is unknown, or drop the rows."
        ]
    if len(different) == 1:
        return [f"cluster {cluster!r} has a single value; at least two clusters are needed."]
    return []


def _column(
    frame: pd.DataFrame, argument: str, name: str, problems: list[str], hint: str = ""
) -> "pd.Series[Any] | None":
    """Return the column that an argument names. If it is missing, add a problem."""
    if name in frame.columns:
        return frame[name]
    columns = [str(column) for column in frame.columns]
    problems.append(f"{argument}={name!r} is not a column.{closest(str(name), columns)}{hint}")
    return None


def _floats(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return a column as floats; all NaN if it is not numeric."""
    try:
        return column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        return np.full(len(column), np.nan)


def read_weights(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
    """Return the sample weights. If they are not valid, add a problem."""
    column = _column(frame, "sample_weight", name, problems)
    if column is None:
        return None
    weight = _floats(column)
    if len(weight) and (not np.isfinite(weight).all() or weight.min() < 0 or weight.max() == 0):
        problems.append(
            f"sample_weight {name!r} must hold finite numbers from 0, not all of them 0."
        )
        return None
    return weight


def read_ids(frame: pd.DataFrame, row_id: str | None, problems: list[str]) -> NDArray[Any]:
    """Return the row ids: a column, or the index of the table."""
    column = None if row_id is None else _column(frame, "row_id", row_id, problems)
    if column is None:
        return frame.index.to_numpy()
    repeated, missing = int(column.duplicated().sum()), int(column.isna().sum())
    if repeated or missing:
        problems.append(
            f"row_id {row_id!r} is missing in {missing} rows and repeated in {repeated}; each row "
            "needs an id of its own."
        )
    return column.to_numpy()


def read_matches(frame: pd.DataFrame, name: str, problems: list[str]) -> NDArray[np.float64] | None:
    """Return, for each row, the probability that its cluster id is right."""
    hint = " Give a table of pairs as a DataFrame or as a .csv or .parquet file."
    column = _column(frame, "match_probability", name, problems, hint)
    if column is None:
        return None
    values = _floats(column)
    wrong = int((~((values >= 0) & (values <= 1))).sum())
    if wrong:
        problems.append(
            f"match_probability {name!r} must hold, for each row, the probability that its cluster "
            f"id is right; it is missing or outside [0, 1] in {wrong} rows."
        )
    return values


def value_problems(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return problems with feature values that no learner accepts."""
    problems = []
    for name in names:
        column = frame[name]
        if not is_plain(column):
            problems.append(f"feature {name!r} holds lists or arrays; split them into columns.")
        if pd.api.types.is_complex_dtype(column):
            problems.append(f"feature {name!r} holds complex numbers; split them into columns.")
        if pd.api.types.is_float_dtype(column):
            infinite = int(np.isinf(column.to_numpy(dtype=float, na_value=np.nan)).sum())
            if infinite:
                problems.append(f"feature {name!r} is infinite in {infinite} rows.")
    return problems


def is_text(dtype: str) -> bool:
    """Return whether a dtype of a signature means text."""
    return dtype in ("object", "str", "string")


def as_categories(
    features: pd.DataFrame, categories: Mapping[str, tuple[Any, ...]], notes: list[str]
) -> pd.DataFrame:
    """Restore the categories that the model was trained on. Add a note for each changed column.

    Text files do not store categories, and some learners recognise categories by their dtype.
    Numeric columns are left unchanged.
    """
    changed = {}
    for name, known in categories.items():
        if name not in features.columns:
            continue
        column = features[name]
        if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_numeric_dtype(column):
            continue
        others = sorted(set(column.dropna().unique()) - set(known), key=str)
        kept = [value for value in known if not pd.isna(value)]
        changed[name] = column.astype(pd.CategoricalDtype([*kept, *others]))
        notes.append(f"{name!r} is {column.dtype} {IN_TABLE} category again as in training")
    return _with_columns(features, changed)


def _with_columns(features: pd.DataFrame, changed: Mapping[str, Any]) -> pd.DataFrame:
    if not changed:
        return features
    columns = {name: changed.get(str(name), features[name]) for name in features.columns}
    return pd.DataFrame(columns, copy=False)  # without another copy


def cast_features(
    features: pd.DataFrame, dtypes: Mapping[str, str], problems: list[str], notes: list[str]
) -> pd.DataFrame:
    """Cast features to the dtypes of the model's signature. Add a problem if that is impossible.

    A signature has no categories: it calls them text or numbers. Categorical columns of the table
    are left unchanged, because some learners recognise categories by their dtype.
    """
    changed = {}
    for name, dtype in dtypes.items():
        if name not in features.columns or str(features[name].dtype) == dtype:
            continue
        if is_text(dtype) and is_text(str(features[name].dtype)):
            continue
        if isinstance(features[name].dtype, pd.CategoricalDtype):
            kind = "text" if is_text(dtype) else dtype
            notes.append(f"{name!r} is category {IN_TABLE} {kind} in the model's signature")
            continue
        if is_text(dtype) and _became_numbers(features[name]):
            problems.append(
                f"feature {name!r} has dtype {features[name].dtype}, but was text in training. Strings "
                "such as '007' become numbers when a file is read: read it again with "
                f"pd.read_csv(…, dtype={{{name!r}: str}}), or give the path of the file."
            )
            continue
        try:
            cast = features[name].astype(dtype)  # type: ignore[call-overload]
            if not _same_values(features[name], cast):
                raise ValueError("values would change")
            changed[name] = cast
        except (ValueError, TypeError) as error:
            problems.append(
                f"feature {name!r} has dtype {features[name].dtype}, which cannot become the "
                f"{dtype} of the model's signature: {error}"
            )
    return _with_columns(features, changed)


def _became_numbers(column: "pd.Series[Any]") -> bool:
    """Return whether a column holds numbers or booleans, not only missing values."""
    return pd.api.types.is_numeric_dtype(column) and bool(column.notna().any())


def _same_values(before: "pd.Series[Any]", after: "pd.Series[Any]") -> bool:
    """Return whether a cast kept the values of a column. Rounding to float32 is allowed."""
    if pd.api.types.is_bool_dtype(after):
        return bool(before.isin([0, 1]).all())
    if pd.api.types.is_integer_dtype(after) and pd.api.types.is_numeric_dtype(before):
        return bool((after.astype(float) == before.astype(float)).all())
    return True


# --- Check a table against a model and split it into features, target and clusters


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The inputs that a model expects, as far as it states them.

    Attributes
    ----------
    columns : tuple of str or None
        Names of the feature columns in the model's order; None if it does not store them.
    dtypes : mapping of str to str
        The dtype of each column in the model's signature. Without a signature, the text columns of
        the training dataset that its run logged.
    categories : mapping of str to tuple
        The categories of the categorical columns of the fitted model.
    count : int or None
        Number of features, known even for models trained on arrays.
    as_array : bool
        Whether the model was trained on an array without column names, and so expects one.
    anything : bool
        Whether any values are accepted, as for a user's own function. If `columns` are missing
        from the table, it receives all columns.
    """

    columns: tuple[str, ...] | None = None
    dtypes: Mapping[str, str] | None = None
    categories: Mapping[str, tuple[Any, ...]] | None = None
    count: int | None = None
    as_array: bool = False
    anything: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns that held text in training."""
        return tuple(name for name, dtype in (self.dtypes or {}).items() if is_text(dtype))


@dataclass(frozen=True, kw_only=True)
class AuditData:
    """A checked table: features, target and cluster of every row.

    Attributes
    ----------
    features : pandas.DataFrame or numpy.ndarray
        The features, one row per record.
    target : numpy.ndarray
        The values or classes to predict.
    clusters : numpy.ndarray
        The cluster of each row as a whole number from 0.
    labels : sequence
        The cluster id in the table, by that number.
    digest : str
        A digest of 36 characters over the values, names and order of the table.
    ids : numpy.ndarray
        The id of each row, from the column `row_id` or the index of the table.
    match_probability : numpy.ndarray or None
        For each row, the probability that its cluster id is right, if a column holds it.
    weight : numpy.ndarray or None
        The sample weight of each row, for training; losses are not weighted.
    dtypes : tuple of str
        Notes on columns whose dtype differs from that of the training.
    """

    features: Any
    target: NDArray[Any]
    clusters: NDArray[np.intp]
    labels: Any
    target_name: str
    cluster_name: str
    feature_names: tuple[str, ...]
    digest: str
    findings: tuple[Finding, ...]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None
    match_probability: NDArray[np.float64] | None = None
    dtypes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.target)

    @property
    def n_clusters(self) -> int:
        """Number of distinct cluster ids."""
        return len(self.labels)

    @property
    def n_repeated(self) -> int:
        """Number of clusters with two rows or more."""
        return int((np.bincount(self.clusters) > 1).sum())

    @property
    def names(self) -> tuple[str, ...]:
        """The cluster ids as strings, by their number."""
        return tuple(map(str, self.labels))

    @cached_property
    def rows_digest(self) -> str:
        """A digest of 16 digits over target, clusters and order. Comparable audits share it."""
        numeric = np.issubdtype(self.target.dtype, np.number) or self.target.dtype == bool
        sha = hashlib.sha256(np.asarray(self.clusters, dtype="<i8").tobytes())
        for start in range(0, self.n_rows, CHUNK):
            part = self.target[start : start + CHUNK]
            if numeric:  # each different value is turned into text once; as bits, -0.0 is not 0.0
                codes, bits = pd.factorize(part.astype(float).view(np.int64))
                different = np.array([*map(str, bits.view(float).tolist())], dtype=object)
                texts = different[codes].tolist()
            else:
                texts = [*map(str, part.tolist())]
            sha.update((("\x1f" if start else "") + "\x1f".join(texts)).encode())
        return sha.hexdigest()[:16]

    def take(self, rows: NDArray[np.integer]) -> Any:
        """Return a copy of the features of these rows, in the given order."""
        return self._copies.take(rows)

    def give_back(self) -> None:
        """Give memory back to the system that a large table does not need until rows are copied."""
        if self.is_large:
            give_back(self._copies.mapped)
            trim()

    @property
    def is_mapped(self) -> bool:
        """Whether the features are mapped from a file, for reading only."""
        return bool(self._copies.mapped)

    @cached_property
    def is_large(self) -> bool:
        """Whether the features should not be copied once more than needed."""
        return self.n_rows * max(1, len(self.feature_names)) * 8 > SMALL

    def as_taken(self) -> "AuditData":
        """Return all rows in the layout of `take`, which learners need not copy again."""
        return self.with_features(self._copies.whole())

    @cached_property
    def _copies(self) -> RowCopies:
        return RowCopies(self.features)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the cached row copies: their views of the features would be pickled as copies."""
        return {name: value for name, value in self.__dict__.items() if name != "_copies"}

    def with_features(self, features: Any) -> "AuditData":
        """Return the same rows with other features."""
        return replace(self, features=features)

    def regrouped(self, groups: NDArray[np.intp]) -> "AuditData":
        """Return the same rows with other clusters, given as whole numbers from 0."""
        return replace(self, clusters=groups, labels=range(int(groups.max()) + 1))


def prepare(
    frame: pd.DataFrame,
    *,
    target: str,
    cluster: str,
    task: str,
    inputs: ModelInputs,
    sample_weight: str | None = None,
    row_id: str | None = None,
    match_probability: str | None = None,
    others: Sequence[str] = (),
    used: Sequence[str] = (),
) -> AuditData:
    """Check a table against a model and split it into features, target and clusters.

    All problems with the columns are reported in one `InputError`.

    Parameters
    ----------
    frame : DataFrame
    target, cluster : str
        Names of the target column and of the (noisy) cluster id column. They are features only if
        the model's signature names them.
    task : {"classification", "regression"}
    inputs : ModelInputs
        The columns, order and dtypes that the model was trained with.
    sample_weight : str, optional
        Name of the column with sample weights. It is not a feature.
    row_id, match_probability : str, optional
        Names of the columns with the row ids and with the probability that a cluster id is right.
        They are not features.
    others : sequence of str
        Further columns that are features only if the model names them.
    used : sequence of str
        Columns that the learner needs as features, even if they have another role.
    """
    frame = frame.copy(deep=False)
    frame.columns = frame.columns.map(str)
    problems = shape_problems(frame, target, cluster)
    given = (sample_weight, row_id, match_probability)
    roles = [target, cluster, *others, *(name for name in given if name is not None)]
    roles = [name for name in roles if name not in used]
    names = _feature_names(frame, roles, inputs, problems)
    present = [name for name in names if name in frame.columns]
    problems += target_problems(frame, target, task) + cluster_problems(frame, cluster)
    problems += [] if inputs.anything else value_problems(frame, present)
    weight = None if sample_weight is None else read_weights(frame, sample_weight, problems)
    ids = read_ids(frame, row_id, problems)
    matches = (
        None if match_probability is None else read_matches(frame, match_probability, problems)
    )
    features = select_columns(frame, present)
    notes: list[str] = []
    if present:
        features = as_categories(features, inputs.categories or {}, notes)
        features = cast_features(features, inputs.dtypes or {}, problems, notes)
    if problems:
        raise InputError.from_problems("data", problems)
    features.index = pd.RangeIndex(len(frame))
    codes, labels = pd.factorize(frame[cluster], sort=False)
    target_values = frame[target].to_numpy()
    return AuditData(
        features=features.to_numpy() if inputs.as_array else features,
        target=target_values,
        clusters=np.asarray(codes, dtype=np.intp),
        labels=labels,
        target_name=target,
        cluster_name=cluster,
        feature_names=tuple(present),
        digest=digest_table(frame),
        findings=table_facts(features, target_values, codes).findings,
        ids=ids,
        weight=weight,
        match_probability=matches,
        dtypes=tuple(notes),
    )


def _feature_names(
    frame: pd.DataFrame, roles: Sequence[str], inputs: ModelInputs, problems: list[str]
) -> list[str]:
    others = [str(name) for name in frame.columns if name not in roles]
    absent = [name for name in inputs.columns or () if name not in frame.columns]
    if inputs.columns is not None and not (absent and inputs.anything):
        problems += [
            f"the model's feature {name!r} is not a column.{closest(name, others)}"
            for name in absent
        ]
        return list(inputs.columns)
    if inputs.anything:
        return others
    if inputs.count is not None and inputs.count != len(others):
        problems.append(
            f"the model was trained on {inputs.count} unnamed features, but the table has "
            f"{len(others)} columns besides target and cluster: {shortened(others)}. Keep only "
            "the features, in the order of training."
        )
    if not others:
        problems.append("there is no column besides target and cluster to predict from.")
    return others
