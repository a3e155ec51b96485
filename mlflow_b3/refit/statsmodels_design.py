"""From the columns of a table to the rows of a statsmodels model: a matrix or a formula."""

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError

#: What the column of ones is called; other constant columns are features like any other.
CONSTANTS = {"const", "constant", "intercept", "ones"}


@dataclass(frozen=True, kw_only=True)
class MatrixDesign:
    """Features in columns, as they are.

    Attributes
    ----------
    columns : tuple of str or None
        The features in the model's order, the constant included; None for an array.
    count : int
        Their number.
    constant : int or None
        The position of the column of ones, which a table need not have.
    """

    columns: tuple[str, ...] | None
    count: int
    constant: int | None

    def inputs(self, extras: Iterable[str]) -> ModelInputs:
        """Return what the table must hold: all but the constant, and some columns more."""
        count = self.count - (self.constant is not None)
        if self.columns is None:
            return ModelInputs(count=count, as_array=True)
        names = [name for at, name in enumerate(self.columns) if at != self.constant]
        return ModelInputs(columns=tuple(dict.fromkeys([*names, *extras])), count=count)

    def features(self, X: Any) -> Any:
        """Return the matrix for some rows."""
        if self.columns is None:
            X = np.asarray(X, dtype=float)
            if self.constant is None or X.shape[1] == self.count:
                return X
            return np.insert(X, self.constant, 1.0, axis=1)
        if self.constant is not None:
            X = X.assign(**{self.columns[self.constant]: 1.0})
        # statsmodels takes pandas' nullable numbers for objects
        return X[list(self.columns)].reset_index(drop=True).astype(float)

    def model(self, model_class: Any, X: Any, target: NDArray[Any], **keywords: Any) -> Any:
        """Return the model with these rows."""
        return model_class(target, self.features(X), **keywords)


@dataclass(frozen=True, kw_only=True)
class FormulaDesign:
    """Columns that a formula makes features of.

    Transformations that learn from the rows (splines, standardising, the levels of a category)
    learn anew in every refit.

    Attributes
    ----------
    formula : str
        With the bare target on its left side.
    target : str
        The target's name in it.
    columns : tuple of str
        The columns that its right side uses.
    """

    formula: str
    target: str
    columns: tuple[str, ...]

    def inputs(self, extras: Iterable[str]) -> ModelInputs:
        """Return what the table must hold: the columns of the formula, and some more."""
        return ModelInputs(columns=tuple(dict.fromkeys([*self.columns, *extras])))

    def features(self, X: Any) -> Any:
        """Return the columns for some rows."""
        return X[list(self.columns)].reset_index(drop=True)

    def model(self, model_class: Any, X: Any, target: NDArray[Any], **keywords: Any) -> Any:
        """Return the model with these rows.

        A formula may say `np.log(age)`: statsmodels looks for `np` here.
        """
        frame = self.features(X).assign(**{self.target: target})
        return model_class.from_formula(self.formula, frame, **keywords)


Design = MatrixDesign | FormulaDesign


def read_design(model: Any, *, classify: bool) -> Design:
    """Return how a model got its features."""
    formula = getattr(model, "formula", None)
    if formula is not None:
        return _read_formula(formula, model.data.frame, classify=classify)
    exog = model.data.orig_exog
    named = isinstance(exog, pd.DataFrame)
    columns = tuple(str(name) for name in exog.columns) if named else None
    at = model.data.const_idx
    if at is not None and not (
        (model.exog[:, at] == 1).all() and (columns is None or columns[at].lower() in CONSTANTS)
    ):
        at = None
    return MatrixDesign(columns=columns, count=model.exog.shape[1], constant=at)


def _read_formula(formula: Any, frame: Any, *, classify: bool) -> FormulaDesign:
    if not isinstance(formula, str) or not isinstance(frame, pd.DataFrame):
        raise ModelError(
            f"the formula of this model is a {type(formula).__name__} on a "
            f"{type(frame).__name__}; only texts on a DataFrame can be refitted. Give a trainer."
        )
    left, _, right = formula.partition("~")
    name = _bare_name(left.strip(), classify=classify)
    if name is None:
        raise ModelError(
            f"the formula predicts {left.strip()!r}, not a column: its predictions are on another "
            "scale than the target of the table. Add a column with the transformed target, train "
            "with its name on the left side of the formula, and audit that column."
        )
    used = [str(column) for column in frame.columns if str(column) in _names(right)]
    if name in used:
        raise ModelError(f"the formula {formula!r} predicts {name!r} from itself.")
    quoted = name if name.isidentifier() else left.strip()
    return FormulaDesign(formula=f"{quoted} ~ {right.strip()}", target=name, columns=tuple(used))


def _bare_name(left: str, *, classify: bool) -> str | None:
    """Return the column that the left side of a formula is, or None for a transformation of one."""
    category = re.fullmatch(r"C\((.+)\)", left)
    if category and classify:  # the classes stay what they are
        return _bare_name(category[1].strip(), classify=False)
    quoted = re.fullmatch(r"""Q\((["'])(.+)\1\)|`(.+)`""", left)
    if quoted:
        return quoted[2] or quoted[3]
    return left if left.isidentifier() else None


def _names(right: str) -> set[str]:
    """Return every name and quoted name in the right side of a formula."""
    found = set(re.findall(r"`([^`]+)`", right))
    for token in tokenize.generate_tokens(io.StringIO(right.replace("`", " ")).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING:
            found.add(token.string.strip("\"'"))
    return found
