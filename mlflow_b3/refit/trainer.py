"""Route `trainer`: a function of the user's trains the model on rows."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import InputError, ModelError, PredictionError, closest
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Learner, Rows
from mlflow_b3.refit.predictors import FunctionPredictor, MethodPredictor, as_codes
from mlflow_b3.refit.stored_code import StoredCode

Trainer = Callable[..., Any]
#: What a trainer may ask for by the names of its arguments, beside X, y and sample_ids.
EXTRAS = ("sample_weight", "seed")


class TrainerLearner(Learner):
    """Trains by a function `(X, y, sample_ids) → predictor`.

    Parameters
    ----------
    trainer : "module:function", callable or StoredCode
        It is given the features as a DataFrame whose index are the row labels of the table, the
        targets, and those labels again, for data that are not in the table. Where it has arguments
        `sample_weight` or `seed`, it is given these by keyword. It returns an object with `predict`
        (and `predict_proba` or `decision_function`, and `classes_`, where it can), or a function
        `X → predictions`.

    Notes
    -----
    A function, or an object without `predict_proba`, may return a column of probabilities per
    class, classes in sorted order; then labels are the most probable classes. The classes are those
    of the rows it was trained on, or all of the table's where there are as many columns as these.
    """

    route = "trainer"
    inputs = ModelInputs(anything=True)
    _classes: NDArray[Any] | None = None

    def __init__(self, trainer: str | Trainer | StoredCode) -> None:
        self._trainer = trainer
        function = _function(trainer)
        arguments = _arguments(function)
        self.name = f"trainer {_name(trainer)}"
        self._extras = tuple(name for name in EXTRAS if name in arguments)
        self.weighted = "sample_weight" in self._extras
        self.stochastic = "seed" in self._extras
        self.notes = (f"trained by {_name(trainer)}",)
        if not self.stochastic:
            self.notes += ("it takes no seed: if it is random, another audit gives other numbers",)

    @property
    def code(self) -> Any:
        """What a refit runs: the function, its whole module where it was named, or stored code."""
        if isinstance(self._trainer, str):
            return sys.modules[self._trainer.partition(":")[0]]
        return self._trainer

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:
        """Give the rows the labels that they have in the table."""
        return X.set_axis(ids, axis=0) if hasattr(X, "set_axis") else X

    def with_target(self, target: NDArray[Any]) -> Self:
        """Learn the classes of the whole table, for which a model may have a column each."""
        other = self.copied()
        other._classes = None if self.task == "regression" else as_codes(target)[0]
        return other

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Call the function with these rows."""
        given = {"sample_weight": rows.weight, "seed": seed}
        extras = {name: given[name] for name in self._extras}
        if not isinstance(self._trainer, StoredCode):
            trained = _function(self._trainer)(rows.X, rows.target, rows.ids, **extras)
            return self._predictor(trained, rows.target)
        with self._trainer.at_home():
            trained = self._trainer.load()(rows.X, rows.target, rows.ids, **extras)
            return AtHome(self._predictor(trained, rows.target), self._trainer)

    def _predictor(self, trained: Any, target: NDArray[Any]) -> Predictor:
        name = _name(self._trainer)
        if self.task == "regression":
            return as_values(trained, name)
        known = as_codes(target)[0]
        return as_classifier(
            trained, known, known if self._classes is None else self._classes, name
        )


class AtHome:
    """A predictor of stored code, which may import more of it when it predicts."""

    def __init__(self, predictor: Predictor, code: StoredCode) -> None:
        self._predictor, self._code = predictor, code
        self.classes = predictor.classes

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        with self._code.at_home():
            given = self._predictor.predict(kind, X)
        self.classes = self._predictor.classes
        return given


def as_values(trained: Any, name: str) -> Predictor:
    """Return what a trainer returned as a predictor of values."""
    predict = _predict(trained, name)
    return FunctionPredictor({"value": lambda X: _flat(predict(X))}, name=name)


def as_classifier(trained: Any, known: NDArray[Any], table: NDArray[Any], name: str) -> Predictor:
    """Return what a trainer returned as a predictor of classes.

    Parameters
    ----------
    trained : object
    known, table : array
        The classes of the rows it was trained on, and of all rows.
    name : str
        What errors call the trainer.
    """
    predict = _predict(trained, name)
    if any(hasattr(trained, method) for method in ("predict_proba", "decision_function")):
        return LabelsAndMore(trained, known, table, name)
    return LabelsOrProbabilities(predict, known, table, name)


def _predict(trained: Any, name: str) -> Callable[[Any], Any]:
    predict = getattr(trained, "predict", trained)
    if not callable(predict):
        raise ModelError(
            f"{name} returned {type(trained).__name__}; a trainer returns an object with predict, "
            "or a function X → predictions."
        )
    found: Callable[[Any], Any] = predict
    return found


class LabelsAndMore(MethodPredictor):
    """An object of a trainer's with scikit-learn's methods; it may lack `classes_`."""

    def __init__(self, trained: Any, known: NDArray[Any], table: NDArray[Any], name: str) -> None:
        own = getattr(trained, "classes_", None)
        super().__init__(trained, known if own is None else np.asarray(own))
        self._silent = own is None
        self._table, self._name = table, name

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        given = super().predict(kind, X)
        if kind == "label":
            _require_labels(_flat(given), self._name, self._table)
        elif self._silent and given.ndim == 2 and given.shape[1] == len(self._table):
            self.classes = self._table
        return given


class LabelsOrProbabilities:
    """A function that predicts labels, or a probability for each class, as its output shows."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        classes: NDArray[Any],
        table: NDArray[Any],
        name: str,
    ) -> None:
        self.classes: NDArray[Any] | None = classes
        self._function, self._name = function, name
        self._table = table

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind."""
        assert self.classes is not None
        given = _flat(self._function(X))
        if given.ndim == 2 and given.shape[1] in (len(self.classes), len(self._table)):
            if given.shape[1] != len(self.classes):
                self.classes = self._table  # it has a column for classes that its rows lacked
            shared = FunctionPredictor.from_probabilities(
                lambda _: given, self.classes, name=self._name
            )
        else:
            _require_labels(given, self._name, self._table)
            shared = FunctionPredictor({"label": lambda _: given}, self.classes, name=self._name)
        return shared.predict(kind, X)


def _require_labels(given: NDArray[Any], name: str, classes: NDArray[Any]) -> None:
    """Refuse what cannot be labels of the table: it would count as wrong in every row."""
    if given.ndim > 1 or (given.dtype.kind == "f" and (given != np.round(given)).any()):
        raise PredictionError(
            f"what {name} returned predicts numbers of shape {given.shape} that are no classes; for "
            f"probabilities return a column for each of the {len(classes)} classes, in sorted order."
        )
    if len(given) and set(given.tolist()).isdisjoint(classes.tolist()):
        raise PredictionError(
            f"what {name} returned predicts {given.tolist()[0]!r}, which is no class of the table; they are "
            f"{', '.join(map(repr, classes[:10].tolist()))}. Return labels, not their numbers."
        )


def _flat(predictions: Any) -> NDArray[Any]:
    given = np.asarray(predictions)
    return given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given


def _name(trainer: str | Trainer | StoredCode) -> str:
    if isinstance(trainer, str):
        return trainer
    if isinstance(trainer, StoredCode):
        return f"{trainer.function} as stored with the run"
    module = getattr(trainer, "__module__", None)
    name = getattr(trainer, "__qualname__", type(trainer).__name__)
    return name if module in (None, "__main__") else f"{module}:{name}"


def _function(trainer: str | Trainer | StoredCode) -> Trainer:
    if isinstance(trainer, StoredCode):
        return trainer.load()
    return import_function(trainer) if isinstance(trainer, str) else trainer


def import_function(name: str) -> Trainer:
    """Import "module:function", from the current folder too."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise InputError(f"trainer={name!r} is not of the form 'module:function'.")
    if str(Path.cwd()) not in sys.path:  # as `python -m` has it, and the console script has not
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: Any = import_module(module)
        for part in function.split("."):
            value = getattr(value, part)
    except ImportError as error:
        raise InputError(
            f"trainer={name!r} cannot be imported: {error}. Modules are looked for in the current "
            f"folder, {str(Path.cwd())!r}, and where Python finds others (PYTHONPATH)."
        ) from error
    except AttributeError as error:
        raise InputError(
            f"trainer={name!r} cannot be imported: {error}.{closest(function, dir(value))}"
        ) from error
    trainer: Trainer = value
    return trainer


def _arguments(function: Any) -> set[str]:
    if not callable(function):
        raise InputError(
            f"trainer={function!r} is not callable; give 'module:function' or a function "
            "(X, y, sample_ids) → predictor."
        )
    try:
        signature = inspect.signature(function)
        signature.bind(None, None, None)
    except ValueError:  # some built-in functions do not say
        return set()
    except TypeError:
        # those with more arguments than three are fine where the rest are ours
        extras = {name: None for name in EXTRAS if name in signature.parameters}
        try:
            signature.bind(None, None, None, **extras)
        except TypeError as error:
            raise InputError(
                f"trainer {getattr(function, '__name__', function)!r} must take (X, y, sample_ids), "
                f"and may take sample_weight and seed by keyword: {error}."
            ) from error
    return set(signature.parameters)
