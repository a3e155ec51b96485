"""The rows of every fold as a table, so that others can repeat a split."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.folds import Fold

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
