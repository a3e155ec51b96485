"""Fail a test if a split puts rows of one group on both sides."""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.folds import row_mask
from mlflow_b3.errors import InputError

#: How many folds, and groups of a fold, a message names.
SHOWN_FOLDS = 5
SHOWN_GROUPS = 3


def assert_no_group_leakage(X: Any, groups: Any, cv: Any, *, y: Any = None) -> None:
    """Raise an AssertionError if any fold has rows of one group in training and in validation.

    It is made for tests. The check is exact: it counts the rows of the splits themselves, and fits
    no model.

    Parameters
    ----------
    X : array-like or DataFrame
        The rows, as `cv.split` expects them.
    groups : array-like of shape (n_rows,)
        The group of each row, such as the patient. Missing values are refused.
    cv : splitter or iterable
        A scikit-learn splitter, or pairs of (training rows, validation rows), as row numbers or row
        masks. A splitter that draws at random without a `random_state` is checked on other splits
        than those that you use.
    y : array-like, optional
        The target, for splitters that stratify.

    Raises
    ------
    AssertionError
        The message says which folds share which groups, and how many rows they have on each side.
    InputError
        The arguments cannot be used.

    Notes
    -----
    Passing means that no *id* is on both sides. If ids are wrong, rows of one true group can still
    be; `mlflow_b3.audit` measures what that does to the score.

    Examples
    --------
    >>> import numpy as np
    >>> import mlflow_b3 as b3
    >>> from sklearn.model_selection import GroupKFold, KFold
    >>> X, patients = np.zeros((6, 1)), ["ann", "ann", "bob", "bob", "cid", "cid"]
    >>> b3.assert_no_group_leakage(X, patients, GroupKFold(3))
    >>> b3.assert_no_group_leakage(X, patients, KFold(2))
    Traceback (most recent call last):
        ...
    AssertionError: 2 of 2 folds have rows of one group in training and in validation.
      fold 0: 1 group, with 1 of 3 validation rows: 'bob' (1 row in training, 1 in validation)
      fold 1: 1 group, with 1 of 3 validation rows: 'bob' (1 row in training, 1 in validation)
    Keep the rows of a group together, for example with scikit-learn's GroupKFold.
    """
    __tracebackhide__ = True
    n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
    codes, labels = _coded(groups, n_rows)
    leaking, count = [], 0
    for number, split in enumerate(_splits(cv, X, y, groups)):
        count += 1
        training, validation = _sides(number, split, n_rows)
        told = _shared(codes, labels, training, validation)
        if told:
            leaking.append(f"  fold {number}: {told}")
    if not count:
        raise InputError(f"cv={cv!r} has no splits, so there is nothing to check.")
    if leaking:
        more = len(leaking) - SHOWN_FOLDS
        raise AssertionError(
            "\n".join(
                [
                    f"{len(leaking)} of {count} folds have rows of one group in training and in validation.",
                    *leaking[:SHOWN_FOLDS],
                    *([f"  and {more} more {_plural(more, 'fold')}"] if more > 0 else []),
                    "Keep the rows of a group together, for example with scikit-learn's GroupKFold.",
                ]
            )
        )


def _coded(groups: Any, n_rows: int) -> tuple[NDArray[np.intp], "pd.Index[Any]"]:
    """Return a number for the group of each row, and the labels of the groups."""
    column = pd.Series(groups).reset_index(drop=True)
    if len(column) != n_rows:
        raise InputError(
            f"groups has {len(column)} values, X has {n_rows} rows; give one group for each row."
        )
    codes, labels = pd.factorize(column)
    missing = int((codes < 0).sum())
    if missing:
        raise InputError(
            f"groups has {missing} missing {_plural(missing, 'value')}; rows without a group cannot "
            "be checked. Drop them, or give each a group of its own."
        )
    return codes, pd.Index(labels)


def _splits(cv: Any, X: Any, y: Any, groups: Any) -> Iterable[Any]:
    if hasattr(cv, "split") and not isinstance(cv, (str, bytes)):
        with warnings.catch_warnings():
            # that a splitter ignores groups is what is checked
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
            try:
                return list(cv.split(X, y, groups))
            except Exception as error:  # a custom splitter may raise anything
                raise InputError(
                    f"cv={cv!r} cannot split these rows: {type(error).__name__}: {error}"
                ) from error
    if isinstance(cv, Iterable) and not isinstance(cv, (str, bytes)):
        return cv
    raise InputError(
        f"cv={cv!r} must be a splitter such as KFold(5), or an iterable of (training rows, validation "
        "rows). A number of folds is not enough, because the splitter it stands for depends on the "
        "estimator."
    )


def _sides(number: int, split: Any, n_rows: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows a fold trains on, and which it validates on."""
    try:
        training, validation = split
        return row_mask(training, n_rows), row_mask(validation, n_rows)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"cv: fold {number} is not a pair of (training rows, validation rows): {error}"
        ) from error


def _shared(
    codes: NDArray[np.intp],
    labels: "pd.Index[Any]",
    training: NDArray[np.bool_],
    validation: NDArray[np.bool_],
) -> str:
    """Return which groups are on both sides, with their rows; nothing if there are none."""
    trained = np.bincount(codes[training], minlength=len(labels))
    validated = np.bincount(codes[validation], minlength=len(labels))
    both = np.flatnonzero((trained > 0) & (validated > 0))
    if not both.size:
        return ""
    # the groups with the most validation rows first; of equal ones, in the order of the table
    order = both[np.argsort(-validated[both], kind="stable")]
    named = [
        f"{labels[group]!r} ({trained[group]} {_plural(trained[group], 'row')} in training, "
        f"{validated[group]} in validation)"
        for group in order[:SHOWN_GROUPS].tolist()
    ]
    more = len(both) - SHOWN_GROUPS
    return (
        f"{len(both)} {_plural(len(both), 'group')}, with {validated[both].sum()} of "
        f"{validation.sum()} validation rows: {', '.join(named)}"
        + (f", and {more} more" if more > 0 else "")
    )


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
