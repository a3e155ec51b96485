"""Clusters → folds, with their sizes and what they share."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import LeaveOneGroupOut

from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.findings import Finding
from mlflow_b3.results import Result

LEAVE_ONE_OUT_UP_TO = 10
DEFAULT_FOLDS = 5
BALANCED = "balanced"
MOST_BALANCED_FOLDS = 10
JITTER = 0.5

#: Numbers of rows, or of their clusters.
Rows = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One split: the rows of T̂ (training) and of V̂ (validation), as 32-bit numbers where they fit."""

    training: Rows
    validation: Rows

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


def _by_number(folds: list[Any], data: AuditData) -> list[tuple[Rows, Rows]]:
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


def _assignments(clusters: Rows, count: int, seed: int, repeats: int) -> list[tuple[Rows, Rows]]:
    """Return the folds of every assignment; where sizes leave no choice, later ones are less even."""
    splits: list[tuple[Rows, Rows]] = []
    known: set[frozenset[bytes]] = set()
    for number in range(repeats):
        made = balanced_splits(clusters, count, [seed, number])
        if _key(made) in known:
            made = balanced_splits(clusters, count, [seed, number], jitter=JITTER)
        known.add(_key(made))
        splits += made
    return splits


def _key(splits: list[tuple[Rows, Rows]]) -> frozenset[bytes]:
    return frozenset(validation.tobytes() for _, validation in splits)


def balanced_splits(
    clusters: Rows, count: int, seed: int | Sequence[int], *, jitter: float = 0.0
) -> list[tuple[Rows, Rows]]:
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


def _rows(side: Any, n_rows: int) -> Rows:
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
