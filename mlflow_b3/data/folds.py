"""Split clusters into folds, describe the folds, and write and read them as a table."""

import hashlib
import heapq
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import KFold, LeaveOneGroupOut

from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.results import Finding, Result

# --- Split clusters into folds

LEAVE_ONE_OUT_UP_TO = 10
DEFAULT_FOLDS = 5
BALANCED = "balanced"
MOST_BALANCED_FOLDS = 10
JITTER = 0.5

#: Row numbers, or cluster numbers.
RowNumbers = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One split: the row numbers of T̂ (training) and V̂ (validation), as int32 if they fit."""

    training: RowNumbers
    validation: RowNumbers

    def __post_init__(self) -> None:
        """Convert row numbers to int32 if they fit."""
        for name in ("training", "validation"):
            side = np.asarray(getattr(self, name))
            if side.size and side.max() <= np.iinfo(np.int32).max:
                object.__setattr__(self, name, side.astype(np.int32, copy=False))


@dataclass(frozen=True, kw_only=True)
class FoldSummary(Result):
    """Sizes of one fold, and the cluster ids that both sides share.

    Attributes
    ----------
    n_training, n_validation : int
        Rows on each side.
    clusters_training, clusters_validation : int
        Distinct cluster ids on each side.
    shared_clusters : int
        Cluster ids with rows on both sides; 0 unless the user gave the folds.
    shared_rows : float
        Share of the validation rows whose cluster id also has training rows.
    loss : float or None
        Mean loss on the validation rows of the unmodified fold; None before it is measured, and for
        scores that are no mean over rows.
    """

    n_training: int
    n_validation: int
    clusters_training: int
    clusters_validation: int
    shared_clusters: int
    shared_rows: float
    loss: float | None = None


def assigns_at_random(data: AuditData, folds: Any) -> bool:
    """Return whether clusters are assigned to folds at random. If so, repeats help."""
    if folds is None:
        return data.n_clusters > LEAVE_ONE_OUT_UP_TO
    if isinstance(folds, str) and folds == BALANCED:
        return balanced_count(data) < data.n_clusters
    whole = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool)
    return whole and 2 <= folds < data.n_clusters


def count_folds(data: AuditData, folds: Any) -> int | None:
    """Return the number of folds; None if only a custom splitter knows it."""
    if folds is None:
        return data.n_clusters if data.n_clusters <= LEAVE_ONE_OUT_UP_TO else DEFAULT_FOLDS
    if isinstance(folds, str):
        return balanced_count(data) if folds == BALANCED else None
    if isinstance(folds, (int, np.integer)) and not isinstance(folds, bool):
        return int(folds)
    if isinstance(folds, (list, tuple)):
        return len(_by_number(list(folds), data)) or len(folds)
    return None


def make_folds(
    data: AuditData, folds: Any = None, *, seed: int = 0, repeats: int = 1
) -> tuple[Fold, ...]:
    """Split the rows by cluster. No cluster id has rows on both sides.

    Parameters
    ----------
    data : AuditData
    folds : int, "balanced", splitter, sequence, or None
        None leaves out one cluster at a time for up to ten clusters, and otherwise makes five
        folds of whole clusters, balanced by rows. An int makes that many folds of whole clusters.
        "balanced" makes as many folds, ten at most, as all have at least half the rows of the mean
        fold. A splitter has scikit-learn's `split(X, y, groups)`. A sequence holds
        (training rows, validation rows) for each fold, or a fold number for each row. These splits
        are used unchanged, even if clusters are shared.
    seed : int
        Decides which clusters of equal size share a fold.
    repeats : int
        Number of independent assignments of clusters to folds. All folds of the first assignment
        come before those of the second. The score of a single assignment depends on which
        clusters are trained on together. For k-nearest neighbours on a simulated clinic this was
        a third of its variance.
    """
    if folds is None:
        if data.n_clusters <= LEAVE_ONE_OUT_UP_TO:
            return _from_splits(_split(LeaveOneGroupOut(), data, data.clusters), data)
        folds = DEFAULT_FOLDS
    if isinstance(folds, str) and folds == BALANCED:
        folds = balanced_count(data)
    if isinstance(folds, bool) or (isinstance(folds, (int, np.integer)) and folds < 2):
        raise InputError(f"folds={folds!r}: at least two folds are needed.")
    if isinstance(folds, (int, np.integer)):
        if folds > data.n_clusters:
            raise InputError(
                f"folds={folds} is more than the {data.n_clusters} clusters of "
                f"{data.cluster_name!r}; use at most {data.n_clusters} folds."
            )
        made = _assignments(data.clusters, int(folds), seed, repeats)
        return tuple(Fold(training=t, validation=v) for t, v in made)
    if hasattr(folds, "split") and not isinstance(folds, (str, bytes)):
        return _from_splits(_split(folds, data, _sorted_clusters(data)), data)
    if isinstance(folds, Iterable) and not isinstance(folds, (str, bytes)):
        splits = list(folds)
        return _from_splits(_by_number(splits, data) or splits, data)
    raise InputError(
        f"folds={folds!r} is not usable; give a number, 'balanced', a scikit-learn splitter or a "
        "list of (training rows, validation rows)."
    )


def _by_number(folds: list[Any], data: AuditData) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the splits if `folds` holds a fold number for each row, else an empty list."""
    if len(folds) != data.n_rows or not all(isinstance(f, (int, np.integer)) for f in folds):
        return []
    numbers = np.array(folds)
    return [
        (np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold))
        for fold in np.unique(numbers).tolist()
    ]


def balanced_count(data: AuditData) -> int:
    """Return the largest number of folds that all have at least half the rows of the mean fold.

    For clusters of unequal sizes the papers advise a small variance of |V̂| over the folds
    (UAI 2017, section 5).
    """
    for count in range(min(data.n_clusters, MOST_BALANCED_FOLDS), 2, -1):
        sizes = [len(validation) for _, validation in balanced_splits(data.clusters, count, [0, 0])]
        if min(sizes) >= data.n_rows / count / 2:
            return count
    return 2


def _sorted_clusters(data: AuditData) -> RowNumbers:
    """Return the clusters, numbered in the order of their ids as scikit-learn's splitters sort them.

    Which of two clusters of one size comes first decides about folds. Ids that are numbers sort as such.
    """
    try:
        ids = np.array(data.labels, dtype=float)
    except ValueError:
        ids = np.array(data.labels)
    place = np.empty(len(ids), dtype=np.intp)
    place[np.argsort(ids, kind="stable")] = np.arange(len(ids))
    return np.asarray(place[data.clusters])


def _split(splitter: Any, data: AuditData, clusters: RowNumbers) -> list[Any]:
    with warnings.catch_warnings():
        # every splitter receives the clusters; finding B313 reports those that ignore them
        warnings.filterwarnings("ignore", message="The groups parameter is ignored")
        try:
            return list(splitter.split(np.zeros((data.n_rows, 1)), data.target, clusters))
        except Exception as error:  # a custom splitter may raise anything
            raise InputError(
                f"folds={splitter!r} cannot split this table: {type(error).__name__}: {error}"
            ) from error


def _assignments(
    clusters: RowNumbers, count: int, seed: int, repeats: int
) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the folds of all assignments. If sizes leave no choice, later ones are less even."""
    splits: list[tuple[RowNumbers, RowNumbers]] = []
    known: set[frozenset[bytes]] = set()
    for number in range(repeats):
        made = balanced_splits(clusters, count, [seed, number])
        if _key(made) in known:
            made = balanced_splits(clusters, count, [seed, number], jitter=JITTER)
        known.add(_key(made))
        splits += made
    return splits


def _key(splits: list[tuple[RowNumbers, RowNumbers]]) -> frozenset[bytes]:
    return frozenset(validation.tobytes() for _, validation in splits)


def balanced_splits(
    clusters: RowNumbers, count: int, seed: int | Sequence[int], *, jitter: float = 0.0
) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return folds of whole clusters, given as whole numbers from 0, balanced by rows.

    Clusters are assigned from the largest to the smallest, each to the fold with the fewest rows.
    The order is random among clusters of one size or, with `jitter`, of sizes that differ by up to
    that share.

    Notes
    -----
    scikit-learn's `GroupKFold` fills folds in the same way, but orders clusters of one size by an
    unstable sort, which depends on the machine and the version of NumPy.
    """
    sizes = np.bincount(clusters)
    rng = np.random.default_rng(seed)
    lots = rng.permutation(len(sizes))
    blurred = sizes * (1 - jitter * rng.random(len(sizes)))
    order = np.lexsort((lots, -blurred))
    folds = []
    fewest = [*range(count)]  # a heap of rows · count + fold: of equal numbers, the first fold
    for size in (count * sizes[order]).tolist():
        first = fewest[0]
        folds.append(first % count)
        heapq.heapreplace(fewest, first + size)
    fold_of = np.empty(len(sizes), dtype=np.intp)
    fold_of[order] = folds
    of_row = fold_of[clusters]
    return [(np.flatnonzero(of_row != f), np.flatnonzero(of_row == f)) for f in range(count)]


def _from_splits(splits: Iterable[Any], data: AuditData) -> tuple[Fold, ...]:
    made = []
    problems = []
    for number, split in enumerate(splits):
        try:
            sides = tuple(split)
            if len(sides) != 2:
                raise ValueError(f"{len(sides)} parts; give (training rows, validation rows).")
            training, validation = (row_mask(side, data.n_rows) for side in sides)
        except (TypeError, ValueError) as error:
            problems.append(f"fold {number}: {error}")
            continue
        if (training & validation).any():
            problems.append(f"fold {number}: the same rows are on both sides.")
        made.append(Fold(training=np.flatnonzero(training), validation=np.flatnonzero(validation)))
    if not problems and len(made) < 1:
        problems.append("no split was given.")
    if problems:
        raise InputError.from_problems("folds", problems)
    return tuple(made)


def row_mask(side: Any, n_rows: int) -> NDArray[np.bool_]:
    """Return which rows are on a side that the user gave as row numbers or as a row mask."""
    rows = np.asarray(side)
    if rows.dtype == bool:
        if rows.shape != (n_rows,):
            raise ValueError(f"a row mask must have {n_rows} values, not {rows.shape}.")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError("each side must be a non-empty list of row numbers or a row mask.")
    if rows.min() < 0 or rows.max() >= n_rows:
        raise ValueError(f"row numbers must lie in 0 … {n_rows - 1}.")
    mask = _mask(rows, n_rows)
    if mask.sum() != len(rows):
        raise ValueError("a row number occurs twice on one side.")
    return mask


def _mask(numbers: RowNumbers, count: int) -> NDArray[np.bool_]:
    """Return which of the numbers 0, 1, … below `count` occur."""
    mask = np.zeros(count, dtype=bool)
    mask[numbers] = True
    return mask


def cross_validates(folds: tuple[Fold, ...]) -> bool:
    """Return whether each training row is a validation row of some other fold."""
    n_rows = 1 + max(int(max(f.training.max(), f.validation.max())) for f in folds)
    validated = _mask(np.concatenate([fold.validation for fold in folds]), n_rows)
    return bool(validated.all() or all(validated[fold.training].all() for fold in folds))


def summarize_folds(folds: tuple[Fold, ...], data: AuditData) -> tuple[FoldSummary, ...]:
    """Return sizes and cluster overlap of every fold."""
    summaries = []
    count = data.n_clusters
    for fold in folds:
        owners = data.clusters[fold.validation]
        training, validation = _mask(data.clusters[fold.training], count), _mask(owners, count)
        summaries.append(
            FoldSummary(
                n_training=len(fold.training),
                n_validation=len(fold.validation),
                clusters_training=int(training.sum()),
                clusters_validation=int(validation.sum()),
                shared_clusters=int((training & validation).sum()),
                shared_rows=float(training[owners].mean()),
            )
        )
    return tuple(summaries)


def fold_findings(folds: tuple[Fold, ...], data: AuditData, task: str) -> list[Finding]:
    """Return the findings about the folds themselves."""
    found = []
    summaries = summarize_folds(folds, data)
    overlapping = [s for s in summaries if s.shared_clusters]
    if overlapping:
        worst = max(s.shared_rows for s in overlapping)
        found.append(
            Finding(
                code="B313",
                message=f"in {len(overlapping)} of {len(folds)} folds, known clusters "
                f"have rows on both sides (up to {worst:.0%} of the validation rows). The score "
                "on these folds is inflated even without wrong cluster ids; split by cluster.",
            )
        )
    scored = np.bincount(np.concatenate([f.validation for f in folds]), minlength=data.n_rows)
    if scored.min() == 0 or scored.min() != scored.max():
        found.append(
            Finding(
                code="B317",
                message=f"{int((scored == 0).sum())} rows are in no validation fold, others in "
                f"{scored[scored > 0].min()} to {scored.max()}.",
            )
        )
    if task == "classification":
        codes, classes = pd.factorize(data.target)
        missing = [
            number
            for number, fold in enumerate(folds)
            if (
                _mask(codes[fold.validation], len(classes))
                & ~_mask(codes[fold.training], len(classes))
            ).any()
        ]
        if missing:
            found.append(
                Finding(
                    code="B302",
                    message=f"in folds {missing} a class occurs in validation but not in "
                    "training: the learner cannot predict it there.",
                )
            )
    return found


# --- Folds as a table, for repeating a split

TRAINING, VALIDATION = "T", "V"
#: A row that is not part of a fold.
NEITHER = "-"


def fold_table(folds: Sequence[Fold], n_rows: int) -> str:
    """Return a CSV table with a line per row of the data and a column per fold.

    A cell is T for training, V for validation and - for neither.
    Rows are numbered from 0 in the order of the table.
    """
    sides = np.full((n_rows, len(folds)), NEITHER)
    for number, fold in enumerate(folds):
        sides[fold.training, number] = TRAINING
        sides[fold.validation, number] = VALIDATION
    frame = pd.DataFrame(sides, columns=[f"fold_{number + 1}" for number in range(len(folds))])
    return frame.to_csv(index_label="row", lineterminator="\n")


def digest_folds(folds: Sequence[Fold]) -> str:
    """Return a digest of 16 hexadecimal digits over the rows of all folds."""
    sha = hashlib.sha256()
    for fold in folds:
        for side in (fold.training, fold.validation):
            sha.update(len(side).to_bytes(8, "little") + np.asarray(side, dtype="<i8").tobytes())
    return sha.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldTable:
    """The folds of another audit, for a table with the same rows in the same order.

    Attributes
    ----------
    path : str
    n_rows : int
    splits : list of (training rows, validation rows)
    """

    path: str
    n_rows: int
    splits: list[tuple[Any, Any]]

    def __repr__(self) -> str:
        """Return the file name, for messages."""
        return repr(self.path)

    def split(self, X: Any, *_: Any) -> list[tuple[Any, Any]]:
        """Return the splits, as scikit-learn's splitters do."""
        if len(X) != self.n_rows:
            raise InputError(f"it has {self.n_rows} rows, the data have {len(X)}.")
        return self.splits


def load_folds(folds: Any) -> Any:
    """Read folds from the path of a .csv file. Return anything else unchanged."""
    if isinstance(folds, Path) or (isinstance(folds, str) and folds.endswith(".csv")):
        return read_fold_table(folds)
    return folds


def read_fold_table(path: str | Path) -> FoldTable:
    """Read a table made by `fold_table`, such as the artifact b3/folds.csv."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        frame = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise InputError(f"folds={str(path)!r} cannot be read: {error}") from error
    columns = [name for name in frame.columns if str(name).startswith("fold_")]
    if "row" not in frame.columns or not columns:
        raise InputError(
            f"folds={str(path)!r} has the columns {list(map(str, frame.columns))}; a table of folds "
            "has a column 'row' and columns 'fold_1', 'fold_2', …"
        )
    if frame["row"].tolist() != [str(number) for number in range(len(frame))]:
        raise InputError(
            f"folds={str(path)!r}: the column 'row' must count the rows of the data from 0, in order."
        )
    sides = frame[columns].to_numpy(dtype=str)
    unknown = sorted({*sides.ravel().tolist()} - {TRAINING, VALIDATION, NEITHER})
    if unknown:
        raise InputError(
            f"folds={str(path)!r} has cells {unknown[:5]}; allowed are T for training, V for "
            "validation and - for neither."
        )
    splits = [
        (np.flatnonzero(side == TRAINING), np.flatnonzero(side == VALIDATION)) for side in sides.T
    ]
    return FoldTable(path=str(path), n_rows=len(frame), splits=splits)


# --- Folds of single rows that ignore clusters, as in ordinary cross-validation


class RowParts(Sequence[Fold]):
    """Folds of random rows. Only the fold number of each row is stored.

    Parameters
    ----------
    n_rows, count : int
    seed : int
    """

    def __init__(self, n_rows: int, count: int, seed: int) -> None:
        self._count = count
        self._part = np.empty(n_rows, dtype=np.int8)
        splitter = KFold(count, shuffle=True, random_state=seed)
        for number, (_, rows) in enumerate(splitter.split(self._part)):
            self._part[rows] = number

    def __len__(self) -> int:
        """Return the number of folds."""
        return self._count

    def __iter__(self) -> Iterator[Fold]:
        """Iterate over the folds."""
        return (self[number] for number in range(self._count))

    def __getitem__(self, number: Any) -> Any:
        """Return one fold."""
        own = self._part == range(self._count)[number]
        return Fold(training=np.flatnonzero(~own), validation=np.flatnonzero(own))
