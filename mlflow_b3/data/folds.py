"""Clusters → folds, with their sizes, what they share, and their rows as a table."""

import hashlib
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

# --- Clusters → folds, with their sizes and what they share

LEAVE_ONE_OUT_UP_TO = 10
DEFAULT_FOLDS = 5
BALANCED = "balanced"
MOST_BALANCED_FOLDS = 10
JITTER = 0.5

#: Numbers of rows, or of their clusters.
RowNumbers = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One split: the rows of T̂ (training) and of V̂ (validation), as 32-bit numbers where they fit."""

    training: RowNumbers
    validation: RowNumbers

    def __post_init__(self) -> None:
        """Make the numbers small."""
        for name in ("training", "validation"):
            side = np.asarray(getattr(self, name))
            if side.size and side.max() <= np.iinfo(np.int32).max:
                object.__setattr__(self, name, side.astype(np.int32, copy=False))


@dataclass(frozen=True, kw_only=True)
class FoldSummary(Result):
    """Sizes of one fold, and how far cluster ids are shared by its two sides.

    Attributes
    ----------
    n_training, n_validation : int
        Rows on either side.
    clusters_training, clusters_validation : int
        Distinct cluster ids on either side.
    shared_clusters : int
        Cluster ids with rows on both sides: 0 unless the folds were given by the user.
    shared_rows : float
        Share of the validation rows whose cluster id also has training rows.
    loss : float or None
        Mean loss on the validation rows, the fold as it is; None before it was measured.
    """

    n_training: int
    n_validation: int
    clusters_training: int
    clusters_validation: int
    shared_clusters: int
    shared_rows: float
    loss: float | None = None


def assigns_at_random(data: AuditData, folds: Any) -> bool:
    """Return whether chance decides which clusters share a fold, so that repeating it helps."""
    if folds is None:
        return data.n_clusters > LEAVE_ONE_OUT_UP_TO
    if isinstance(folds, str) and folds == BALANCED:
        return balanced_count(data) < data.n_clusters
    whole = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool)
    return whole and 2 <= folds < data.n_clusters


def count_folds(data: AuditData, folds: Any) -> int | None:
    """Return how many folds there will be, where that is known without a foreign splitter."""
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
    """Split the rows so that no cluster id has rows on both sides.

    Parameters
    ----------
    data : AuditData
    folds : int, "balanced", splitter, sequence, or None
        "balanced" leaves out several clusters at a time where their sizes differ much, as many
        folds as have at least half of the mean fold's rows, ten at most. None leaves out one cluster at a time up to ten clusters, and makes five folds of whole
        clusters, balanced by rows, beyond that. A number makes that many folds of whole
        clusters. A splitter has scikit-learn's `split(X, y, groups)`. A sequence holds
        (training rows, validation rows) of each fold, or the number of the fold of each row; such
        splits are audited as they are, shared clusters included.
    seed : int
        Decides which clusters of equal size go together.
    repeats : int
        How many times clusters are assigned to folds anew; all folds of the first assignment come
        before those of the second. The score of a single assignment depends on which clusters
        were trained on together: for k-nearest neighbours on a simulated clinic that was a third
        of its variance.
    """
    if folds is None:
        few = data.n_clusters <= LEAVE_ONE_OUT_UP_TO
        folds = LeaveOneGroupOut() if few else DEFAULT_FOLDS
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
        return _from_splits(_assignments(data.clusters, int(folds), seed, repeats), data)
    if hasattr(folds, "split") and not isinstance(folds, (str, bytes)):
        return _from_splits(_split(folds, data), data)
    if isinstance(folds, Iterable) and not isinstance(folds, (str, bytes)):
        splits = list(folds)
        return _from_splits(_by_number(splits, data) or splits, data)
    raise InputError(
        f"folds={folds!r} is not usable; give a number, 'balanced', a scikit-learn splitter or a "
        "list of (training rows, validation rows)."
    )


def _by_number(folds: list[Any], data: AuditData) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the splits of folds that are given as a number for each row; none for others."""
    if len(folds) != data.n_rows or not all(isinstance(f, (int, np.integer)) for f in folds):
        return []
    numbers = np.array(folds)
    return [
        (np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold))
        for fold in np.unique(numbers).tolist()
    ]


def balanced_count(data: AuditData) -> int:
    """Return the largest number of folds none of which has under half of the mean fold's rows.

    Small variance of |V̂| over the folds is what the papers advise for clusters of unequal sizes
    (UAI 2017, section 5).
    """
    for count in range(min(data.n_clusters, MOST_BALANCED_FOLDS), 2, -1):
        sizes = [len(validation) for _, validation in balanced_splits(data.clusters, count, [0, 0])]
        if min(sizes) >= data.n_rows / count / 2:
            return count
    return 2


def _split(splitter: Any, data: AuditData) -> list[Any]:
    with warnings.catch_warnings():
        # clusters are offered to every splitter; those that ignore them get finding B313
        warnings.filterwarnings("ignore", message="The groups parameter is ignored")
        try:
            return list(splitter.split(np.zeros((data.n_rows, 1)), data.target, data.clusters))
        except Exception as error:  # whatever a foreign splitter raises
            raise InputError(
                f"folds={splitter!r} cannot split this table: {type(error).__name__}: {error}"
            ) from error


def _assignments(
    clusters: RowNumbers, count: int, seed: int, repeats: int
) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the folds of every assignment; where sizes leave no choice, later ones are less even."""
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

    The largest cluster goes first, each to the fold with the fewest rows; chance decides among
    clusters of one size, or, with `jitter`, of sizes that differ by up to that share.

    Notes
    -----
    scikit-learn's `GroupKFold` fills folds in the same way, but leaves the order of clusters of one
    size to an unstable sort, whose result depends on the machine and the version of NumPy.
    """
    sizes = np.bincount(clusters)
    rng = np.random.default_rng(seed)
    lots = rng.permutation(len(sizes))
    blurred = sizes * (1 - jitter * rng.random(len(sizes)))
    rows = [0] * count
    fold_of = np.zeros(len(sizes), dtype=np.intp)
    for cluster in np.lexsort((lots, -blurred)).tolist():
        fold = rows.index(min(rows))
        fold_of[cluster] = fold
        rows[fold] += int(sizes[cluster])
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
            training, validation = (_rows(side, data.n_rows) for side in sides)
        except (TypeError, ValueError) as error:
            problems.append(f"fold {number}: {error}")
            continue
        if np.intersect1d(training, validation).size:
            problems.append(f"fold {number}: the same rows are on both sides.")
        made.append(Fold(training=training, validation=validation))
    if not problems and len(made) < 1:
        problems.append("no split was given.")
    if problems:
        raise InputError.from_problems("folds", problems)
    return tuple(made)


def _rows(side: Any, n_rows: int) -> RowNumbers:
    rows = np.asarray(side)
    if rows.dtype == bool:
        if rows.shape != (n_rows,):
            raise ValueError(f"a row mask must have {n_rows} values, not {rows.shape}.")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError("each side must be a non-empty list of row numbers or a row mask.")
    if rows.min() < 0 or rows.max() >= n_rows:
        raise ValueError(f"row numbers must lie in 0 … {n_rows - 1}.")
    if len(np.unique(rows)) != len(rows):
        raise ValueError("a row number occurs twice on one side.")
    return np.sort(rows).astype(np.intp)


def cross_validates(folds: tuple[Fold, ...]) -> bool:
    """Return whether every row that is trained on is validated in some other fold."""
    training, validation = (
        np.unique(np.concatenate([getattr(fold, side) for fold in folds]))
        for side in ("training", "validation")
    )
    return bool(np.isin(training, validation).all())


def summarize_folds(folds: tuple[Fold, ...], data: AuditData) -> tuple[FoldSummary, ...]:
    """Return sizes and cluster overlap of every fold."""
    summaries = []
    for fold in folds:
        training = np.unique(data.clusters[fold.training])
        validation = data.clusters[fold.validation]
        shared = np.intersect1d(training, validation)
        summaries.append(
            FoldSummary(
                n_training=len(fold.training),
                n_validation=len(fold.validation),
                clusters_training=len(training),
                clusters_validation=len(np.unique(validation)),
                shared_clusters=len(shared),
                shared_rows=float(np.isin(validation, shared).mean()),
            )
        )
    return tuple(summaries)


def fold_findings(folds: tuple[Fold, ...], data: AuditData, task: str) -> list[Finding]:
    """Return what the reader must know about the folds themselves."""
    found = []
    summaries = summarize_folds(folds, data)
    overlapping = [s for s in summaries if s.shared_clusters]
    if overlapping:
        worst = max(s.shared_rows for s in overlapping)
        found.append(
            Finding(
                code="B313",
                message=f"in {len(overlapping)} of {len(folds)} folds, clusters known to be one "
                f"have rows on both sides (up to {worst:.0%} of the validation rows). The score "
                "on these folds is inflated whatever the cluster error; split by cluster.",
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
        missing = [
            number
            for number, fold in enumerate(folds)
            if not set(data.target[fold.validation]) <= set(data.target[fold.training])
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


# --- The rows of every fold as a table, so that others can repeat a split

TRAINING, VALIDATION = "T", "V"
#: A row that takes no part in a fold.
NEITHER = "-"


def fold_table(folds: Sequence[Fold], n_rows: int) -> str:
    """Return a CSV table with a line for each row of the data and a column for each fold.

    A cell is T where the row is trained on, V where it is validated on, and - where it is neither.
    Rows are numbered from 0 in the order of the table.
    """
    sides = np.full((n_rows, len(folds)), NEITHER)
    for number, fold in enumerate(folds):
        sides[fold.training, number] = TRAINING
        sides[fold.validation, number] = VALIDATION
    frame = pd.DataFrame(sides, columns=[f"fold_{number + 1}" for number in range(len(folds))])
    return frame.to_csv(index_label="row", lineterminator="\n")


def digest_folds(folds: Sequence[Fold]) -> str:
    """Return 16 hexadecimal digits that change with any row of any fold."""
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
        """Return the file's name, for messages."""
        return repr(self.path)

    def split(self, X: Any, *_: Any) -> list[tuple[Any, Any]]:
        """Return the splits, as scikit-learn's splitters do."""
        if len(X) != self.n_rows:
            raise InputError(f"it is of {self.n_rows} rows, the data have {len(X)}.")
        return self.splits


def load_folds(folds: Any) -> Any:
    """Return folds as the audit was given them; the path of a .csv file as a `FoldTable`."""
    if isinstance(folds, Path) or (isinstance(folds, str) and folds.endswith(".csv")):
        return read_fold_table(folds)
    return folds


def read_fold_table(path: str | Path) -> FoldTable:
    """Read the folds of a table made by `fold_table`, such as the artifact b3/folds.csv."""
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


# --- Folds of single rows that ignore the clusters, as ordinary cross-validation has them


class RowParts(Sequence[Fold]):
    """Rows dealt to folds at random; what is kept is a number for each row, not the folds.

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
        """Return how many folds there are."""
        return self._count

    def __iter__(self) -> Iterator[Fold]:
        """Yield one fold after another."""
        return (self[number] for number in range(self._count))

    def __getitem__(self, number: Any) -> Any:
        """Return a fold."""
        own = self._part == range(self._count)[number]
        return Fold(training=np.flatnonzero(~own), validation=np.flatnonzero(own))
