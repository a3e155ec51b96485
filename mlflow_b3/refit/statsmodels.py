"""Route `parameters`: results of statsmodels, of matrices and of formulas."""

import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import CannotRefit, Learner, Rows, Source
from mlflow_b3.refit.predictors import FunctionPredictor, as_codes
from mlflow_b3.refit.registry import load_native
from mlflow_b3.refit.statsmodels_design import FormulaDesign, read_design
from mlflow_b3.refit.statsmodels_recipe import ROW_KEYWORDS, recover

WEIGHTS = ("weights", "freq_weights", "var_weights")
SYMMETRIC_LINKS = ("Logit", "Probit", "Cauchy")
COLUMNS = ("offset", "exposure", "groups")
#: The largest difference of predictions, in units of their range, that still is the same training.
TOLERANCE = 1e-4


def load(source: Source) -> Any:
    """Load the results."""
    return load_native("statsmodels", source)


def learner(model: Any, source: Source) -> "StatsmodelsLearner":
    """Return the learner of some results.

    The option `fit` is a mapping of arguments of `fit` or `fit_regularized` that the results have
    forgotten; the options `offset`, `exposure` and `groups` name the columns that hold these.
    """
    source.require_route("parameters")
    options = source.require_options("fit", *COLUMNS)
    if not hasattr(model, "model") or not hasattr(model, "params"):
        raise CannotRefit(
            f"{type(model).__name__} is no result of a statsmodels fit; give what fit() returned."
        )
    columns = {name: options[name] for name in COLUMNS if name in options}
    for name, column in columns.items():
        if not isinstance(column, str):
            raise InputError(f"refit_options {name}={column!r} must be the name of a column.")
    return StatsmodelsLearner(model, source, columns)


class StatsmodelsLearner(Learner):
    """Builds the same model on other rows and fits it in the same way.

    Parameters
    ----------
    results : statsmodels results
        With the data they were trained on: what is recovered is tried on these, and has to give the
        same predictions again.
    source : Source
    columns : mapping of str to str
        The columns that hold the offset, the exposure or the groups of the rows.
    """

    route = "parameters"

    def __init__(self, results: Any, source: Source, columns: Mapping[str, str]) -> None:
        model = results.model
        self._recipe = recover(results, source)
        kind = type(model).__name__
        family = self._recipe.keywords.get("family")
        self.name = kind if family is None else f"{kind} ({type(family).__name__})"
        classes = _classes(model)
        self.task = "regression" if classes is None else "classification"
        self._multiclass = kind == "MNLogit"
        self._positive = _positive_level(model.endog_names) if kind == "GLM" else None
        self._symmetric = family is None or type(family.link).__name__ in SYMMETRIC_LINKS
        self._design = read_design(model, classify=classes is not None)
        self._columns = dict(columns)
        own = _row_keywords(model)
        self._weight, self._same_weight = _weight_keyword(model, own)
        self.weighted = self._weight is not None
        self.weight_required = self._weight in own and self._weight not in self._same_weight
        self._require_columns(own)
        self.inputs = self._design.inputs(self._columns.values())
        self.notes = (*self._recipe.notes, *self._own_notes(), self._check(results, own))
        self.original = self._predictor(results, classes)

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002
        """Check that the table brought what a signature may not name."""
        missing = [name for name in self._columns.values() if name not in X]
        if missing:
            raise InputError(
                f"refit_options name the columns {missing}, which the model's signature leaves out. "
                "Log the model with a signature that has them, or without one."
            )
        return X

    def train(self, rows: Rows, seed: int | None) -> Predictor:  # noqa: ARG002 - no randomness
        """Fit the model to these rows."""
        classes, target = self._coded(rows.target)
        keywords: dict[str, Any] = {
            name: np.full(len(target), value) for name, value in self._same_weight.items()
        }
        if self._weight is not None and rows.weight is not None:
            keywords[self._weight] = rows.weight
        for name, column in self._columns.items():
            keywords[name] = rows.X[column].to_numpy()
        return self._predictor(self._fit(rows.X, target, keywords), classes)

    def _fit(self, X: Any, target: NDArray[Any], keywords: Mapping[str, Any]) -> Any:
        recipe = self._recipe
        keywords = {**deepcopy(dict(recipe.keywords)), **keywords}  # families remember their rows
        return recipe.fit(self._design.model(recipe.model_class, X, target, **keywords))

    def _coded(self, target: NDArray[Any]) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        if self.task == "regression":
            return None, np.asarray(target, dtype=float)
        classes, codes = as_codes(target)
        if self._multiclass:
            return classes, codes
        if len(classes) > 2:
            raise ModelError(f"{self.name} has two classes; the target has {list(classes)}.")
        if self._positive in _texts(classes[0]):
            return classes[::-1], 1 - codes
        known = classes.dtype.kind in "biuf" or self._positive in _texts(classes[1])
        if not self._symmetric and not known:
            raise ModelError(
                f"{self.name} has a link that treats its two classes differently, and which of "
                f"{list(classes)} it called 1 is not known. Code the target as 0 and 1."
            )
        return classes, codes

    def _predictor(self, results: Any, classes: NDArray[Any] | None) -> Predictor:
        def predict(X: Any, **options: Any) -> NDArray[Any]:
            for name in ("offset", "exposure"):
                if name in self._columns:
                    options[name] = X[self._columns[name]].to_numpy()
            return np.asarray(results.predict(self._design.features(X), **options))

        if classes is None:
            return FunctionPredictor({"value": predict}, name=self.name)

        def decide(X: Any) -> NDArray[Any]:
            return predict(X, which="linear")

        return FunctionPredictor.from_probabilities(
            predict, classes, name=self.name, decision=None if self._multiclass else decide
        )

    def _require_columns(self, own: Mapping[str, Any]) -> None:
        """Refuse to drop an offset, an exposure or groups, and to invent them."""
        for name in COLUMNS:
            if name in own and name not in self._columns:
                raise ModelError(
                    f"{self.name} was trained with {name}, one value per row, which the table must "
                    f"hold. Name its column: refit_options={{{name!r}: '…'}}."
                )
            if name in self._columns and name not in own:
                raise InputError(
                    f"refit_options {name}={self._columns[name]!r}: {self.name} was trained "
                    f"without {name}. Leave it out."
                )
        if self._columns and self._design.inputs(()).as_array:
            raise ModelError(
                f"{self.name} was trained on an array, whose columns have no names, so that none can "
                f"be the {' or '.join(self._columns)}. Train it on a DataFrame, or give a trainer."
            )

    def _own_notes(self) -> list[str]:
        notes = []
        if getattr(self._design, "constant", None) is not None:
            notes.append("a column of ones is added to the features, as the model had one")
        if self.task == "classification":
            notes.append(
                f"the model gives the probability of {self._positive!r}"
                if self._positive is not None
                else "classes are coded 0, 1, … in sorted order"
            )
        for name, column in self._columns.items():
            notes.append(f"{name} of the rows is taken from column {column!r}")
        if self.weight_required:
            notes.append(f"sample weights stand for the {self._weight} that the model had")
        return notes

    def _check(self, results: Any, own: Mapping[str, Any]) -> str:
        """Try the training on the model's own rows: what is not known may not matter."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = self._fit_own_rows(results.model, own)
        except Exception as error:  # numerical failures of all kinds
            raise ModelError(
                f"{self.name} cannot be trained again even on its own rows: "
                f"{type(error).__name__}: {error}"
            ) from error
        before, after = np.asarray(results.predict()), np.asarray(again.predict())
        scale = max(np.ptp(before), 1e-9 * np.abs(before).max(), 1e-300)
        gap = float(np.abs(before - after).max() / scale)
        if not gap <= TOLERANCE:
            raise ModelError(
                f"{self.name}, trained again on its own rows by what is known of its training, "
                f"predicts other values (largest difference {gap:.2g} of their range). Give the "
                "arguments of fit that are not known, as in refit_options={'fit': {'maxiter': 100}}, "
                "or a trainer."
            )
        return "trained again on its own rows it predicts the same" + (
            "" if gap == 0 else f", up to {gap:.1g} of the range of its predictions"
        )

    def _fit_own_rows(self, model: Any, own: Mapping[str, Any]) -> Any:
        if isinstance(self._design, FormulaDesign):
            frame = model.data.frame
            used = [name for name in (self._design.target, *self._design.columns) if name in frame]
            complete = frame[frame[used].notna().all(axis=1).to_numpy()]
            if len(complete) == len(model.endog):
                return self._fit(complete, model.endog, own)
        keywords = {**deepcopy(dict(self._recipe.keywords)), **own}
        return self._recipe.fit(type(model)(model.endog, model.exog, **keywords))


def _classes(model: Any) -> NDArray[Any] | None:
    """Return the classes of a classifier, None for a model of numbers."""
    kind = type(model).__name__
    if kind == "MNLogit":
        return _as_numbers([model._ynames_map[code] for code in sorted(model._ynames_map)])
    binomial = type(getattr(model, "family", None)).__name__ == "Binomial"
    if not (kind in ("Logit", "Probit") or (kind == "GLM" and binomial)):
        return None
    if not np.isin(model.endog, (0, 1)).all():
        return None  # shares, which are numbers
    if _positive_level(model.endog_names) is None:
        return np.array([0, 1])
    return _as_numbers([_level(name) for name in reversed(model.endog_names)])


def _as_numbers(labels: Sequence[str]) -> NDArray[Any]:
    """Return labels that statsmodels made texts of as what they were, where they were numbers."""
    try:
        return np.array(labels, dtype=float).astype(int)
    except ValueError:
        return np.array(labels)


def _texts(label: Any) -> tuple[str, ...]:
    """Return what a formula may call a class: 0 and 1 may have been truth values."""
    return (str(label), str(bool(label))) if label in (0, 1) else (str(label),)


def _positive_level(names: Any) -> str | None:
    """Return the class whose probability is modelled where a formula made columns of a category."""
    return _level(names[0]) if isinstance(names, list) and len(names) == 2 else None


def _level(name: str) -> str:
    found = re.fullmatch(r".*\[(?:T\.)?(.*)\]", name)
    return found[1] if found else name


def _row_keywords(model: Any) -> dict[str, NDArray[Any]]:
    """Return the keywords that hold one value per row and matter."""
    found = {}
    for name, value in model._get_init_kwds().items():
        if name in ROW_KEYWORDS and value is not None:
            array = np.asarray(value)
            neutral = 0 if name == "offset" else 1
            if name == "groups" or np.any(array != neutral):
                found[name] = array
    return found


def _weight_keyword(
    model: Any, own: Mapping[str, NDArray[Any]]
) -> tuple[str | None, dict[str, float]]:
    """Return the keyword that sample weights stand for, and weights that are the same for all rows.

    Frequency and variance weights of a GLM give the same predictions; they differ in the errors.
    """
    possible = [name for name in WEIGHTS if name in model._get_init_kwds()]
    varying = [name for name in possible if name in own and np.ptp(own[name]) > 0]
    if len(varying) > 1:
        raise ModelError(
            f"{type(model).__name__} was trained with {' and '.join(varying)}; one column of sample "
            "weights can only stand for one of them. Give a trainer."
        )
    same = {name: own[name].flat[0] for name in possible if name in own and name not in varying}
    return next(iter([*varying, *possible]), None), same
