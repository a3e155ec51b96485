"""The interface of every flavour: learners, predictors, the registry, agreement with the logged model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from itertools import permutations
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from packaging.version import Version

from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Predictor
from mlflow_b3.data.table import AuditData, ModelInputs
from mlflow_b3.errors import InputError, ModelError, PredictionError, closest

# --- The one interface through which every flavour is refitted

#: What a refit means for the result. `full`: the training is repeated on other rows, so the audit
#: sees all of the bias. `lower-bound`: part of the model keeps what it learned from all rows,
#: validation rows included, so the audit can only show part of the bias.
STRENGTHS = ("full", "lower-bound")


class CannotRefit(ModelError):  # noqa: N818 - reads as what it says
    """Nothing in this model can be trained again; its predictions can still be corrected."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that a learner is trained on.

    Attributes
    ----------
    X : DataFrame or array
        Their features, as the learner's `represent` returned them.
    target : numpy.ndarray
        What is predicted.
    ids : numpy.ndarray
        The labels of the rows in the table's index; row numbers for a file.
    weight : numpy.ndarray or None
        Sample weights, where a column with them was named.
    """

    X: Any
    target: NDArray[Any]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None


class Learner(ABC):
    """A training procedure that can be run again on other rows.

    A flavour derives from it and writes `train`. Learners travel to worker processes, so that they
    must be picklable by joblib, unless `parallel` is False.

    Attributes
    ----------
    route : str
        How the refit is done: `clone`, `parameters`, `trainer`, `fresh`, `hot-start`,
        `last-layer`, `head`, or a word of a third party's.
    name : str
        What the report calls the model.
    task : {"classification", "regression"} or None
        None where the model does not say; then the loss and the target do.
    inputs : ModelInputs
        The columns that the model remembers.
    stochastic : bool
        Whether the result depends on `seed` as well as on the rows.
    seed_untried : bool
        `stochastic` was read from a parameter such as `random_state`, which may be without effect.
    strength : {"full", "lower-bound"}
        What the refit means for the result; see `STRENGTHS`.
    used : tuple of str
        Columns that it needs as features, whatever else they are in an audit: groups, for instance.
    weighted : bool
        Whether `train` makes use of sample weights.
    weight_required : bool
        Whether it cannot do without: the model was trained with weights that the rows must bring.
    parallel : bool
        False where refits must stay in one process and run one after another.
    notes : tuple of str
        Sentences for the report: what was recovered from where, and what was not.
    assumed : str or None
        A sentence on what had to be assumed about the training, and how to give it. Then the audit
        goes on only if a refit on the table's rows gives the logged model again.
    original : Predictor or None
        The model as it was logged, to compare refits with; it takes what `represent` returns.
    """

    route: str
    name: str = "model"
    task: str | None = None
    inputs: ModelInputs = ModelInputs()
    stochastic: bool = False
    seed_untried: bool = False
    strength: str = "full"
    used: tuple[str, ...] = ()
    weighted: bool = False
    weight_required: bool = False
    parallel: bool = True
    notes: tuple[str, ...] = ()
    assumed: str | None = None
    original: Predictor | None = None

    @abstractmethod
    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train on these rows; `seed=None` keeps the seed that the model was logged with.

        Classifiers are given rows of at least two classes.
        """

    def fit(self, rows: Rows, seed: int | None = None) -> Predictor:
        """Train on these rows, of however many classes."""
        if self.task == "classification" and (rows.target == rows.target[0]).all():
            return ConstantPredictor(rows.target[0])
        return self.train(rows, seed)

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - for those who need it
        """Return the features in the form that `train` and its predictors are given.

        Called once with all rows, for work that does not depend on the training rows.
        """
        return X

    def with_task(self, task: str) -> Self:
        """Return the same learner for a task, which a model that says its own must agree with."""
        other = self.copied()
        other.task = task
        return other

    def copied(self) -> Self:
        """Return a copy that shares everything, the logged model included."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def with_target(self, target: NDArray[Any]) -> Self:  # noqa: ARG002 - for those who need it
        """Return the same learner, told what is predicted in all rows of the table.

        Called once, after `with_task`, for classes that a resample may lack.
        """
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave the logged model behind: workers do not need it."""
        return {**self.__dict__, "original": None}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model comes from, and what is known about its training.

    Attributes
    ----------
    uri : str or None
        Its address in MLflow; None for a bare object.
    flavours : mapping
        The flavours in its MLmodel file, with their settings.
    params : mapping of str to str
        The parameters that were logged with its run and with the model itself.
    options : mapping
        The user's `refit_options`.
    route : str or None
        The route that the user asked for; None leaves the choice to the flavour.
    notes : list of str
        Sentences for the report that loading adds to those of the learner.
    """

    uri: str | None = None
    flavours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    route: str | None = None
    notes: list[str] = field(default_factory=list)

    def require_route(self, *routes: str) -> str:
        """Return the route asked for, or the first of those there are; others are an error."""
        if self.route is None:
            return routes[0]
        if self.route not in routes:
            raise InputError(
                f"refit={self.route!r} does not fit this model; use one of "
                f"{', '.join(map(repr, (*routes, 'trainer', 'head')))}."
                + closest(self.route, (*routes, "trainer", "head"))
            )
        return self.route

    def require_options(self, *allowed: str) -> Mapping[str, Any]:
        """Return the options, all of which must be among those allowed."""
        unknown = [name for name in self.options if name not in allowed]
        if unknown:
            raise InputError(
                f"refit_options {', '.join(map(repr, unknown))} not known for this model; "
                + (f"use {', '.join(map(repr, allowed))}." if allowed else "there are none.")
                + "".join(closest(name, allowed) for name in unknown[:1])
            )
        return self.options


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A learner and what is known about where it came from.

    Attributes
    ----------
    learner : Learner
    inputs : ModelInputs
        The columns that the model wants.
    name : str
        What the report calls it.
    uri, run_id, model_id : str or None
        Its address in MLflow, the run and the LoggedModel it belongs to; None for a bare estimator.
    training_rows : int or None
        How many rows it was trained on, where its run says so.
    model_digest : str or None
        Digest of the model's files before they were loaded; None where they cannot be listed.
    before_first_refit : callable or None
        Called when the audit has checked its input, right before its first refit.
    """

    learner: Learner
    inputs: ModelInputs
    name: str
    uri: str | None = None
    run_id: str | None = None
    model_id: str | None = None
    training_rows: int | None = None
    model_digest: str | None = None
    before_first_refit: Callable[[], None] | None = None


class ConstantPredictor:
    """What a classifier can learn from rows of a single class: that class."""

    def __init__(self, label: Any) -> None:
        self.classes: NDArray[Any] | None = np.array([label])

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Predict the one label, with certainty; it has no decision values."""
        assert self.classes is not None
        if kind == "label":
            return np.repeat(self.classes, len(X))
        if kind == "probability":
            return np.ones((len(X), 1))
        raise ModelError("a resample of a single class gives no decision values.")


# --- Trained models of every kind, asked for labels, values, probabilities or decision values

Array = NDArray[Any]
METHODS = {
    "label": "predict",
    "value": "predict",
    "probability": "predict_proba",
    "decision": "decision_function",
}


class MethodPredictor:
    """A trained model with scikit-learn's methods.

    Parameters
    ----------
    model : object
        With `predict`, and `predict_proba` or `decision_function` where it has them.
    classes : array, optional
        Its labels, where it has no `classes_`.
    codes : bool
        The model predicts positions in `classes` instead of the labels themselves.
    """

    def __init__(self, model: Any, classes: Array | None = None, *, codes: bool = False) -> None:
        self._model = model
        self._codes = codes
        self.classes: Array | None = (
            classes if classes is not None else getattr(model, "classes_", None)
        )

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind, or say which losses would work."""
        method = getattr(self._model, METHODS[kind], None)
        if method is None:
            kinds = [kind for kind, name in METHODS.items() if hasattr(self._model, name)]
            name = type(self._model).__name__
            raise cannot_give(f"{name} has no {METHODS[kind]}, which this loss needs", kinds)
        if kind == "decision" and self.classes is not None and len(self.classes) > 2:
            self._require_column_per_class()
        predicted = np.asarray(method(X))
        if kind == "label" and self._codes:
            assert self.classes is not None
            return np.asarray(self.classes[predicted.astype(int).reshape(len(predicted))])
        return predicted

    def _require_column_per_class(self) -> None:
        if not hasattr(self._model, "get_params"):
            return
        for name, value in self._model.get_params(deep=True).items():
            if name.rsplit("__", 1)[-1] == "decision_function_shape" and value == "ovo":
                raise PredictionError(
                    f"{name}='ovo' gives a decision value per pair of classes; this loss needs one "
                    "per class. Train the model with 'ovr'."
                )


class FunctionPredictor:
    """A trained model as one function per kind of prediction.

    Parameters
    ----------
    functions : mapping of str to callable
        `X → predictions`, by kind.
    classes : array or None
        The labels, in the order of the columns of probabilities.
    name : str
        What errors call the model.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Any], Array]],
        classes: Array | None = None,
        *,
        name: str = "the model",
    ) -> None:
        self._functions = dict(functions)
        self._name = name
        self.classes = classes

    @classmethod
    def from_probabilities(
        cls,
        function: Callable[[Any], Array],
        classes: Array,
        *,
        name: str = "the model",
        decision: Callable[[Any], Array] | None = None,
    ) -> "FunctionPredictor":
        """Take a function that gives the probability of each class, or of the second of two.

        The label is the most probable class; for two, the second from one half on.
        """

        def probability(X: Any) -> Array:
            given = np.asarray(function(X), dtype=float)
            if given.ndim == 2 and given.shape[1] == 1:
                given = given[:, 0]
            return np.column_stack([1 - given, given]) if given.ndim == 1 else given

        def label(X: Any) -> Array:
            given = probability(X)
            if given.shape[1] == 2:
                return np.asarray(classes[(given[:, 1] >= given[:, 0]).astype(int)])
            return np.asarray(classes[given.argmax(axis=1)])

        functions: dict[str, Callable[[Any], Array]] = {"label": label, "probability": probability}
        if decision is not None:
            functions["decision"] = decision
        return cls(functions, classes, name=name)

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind, or say which losses would work."""
        if kind not in self._functions:
            raise cannot_give(
                f"{self._name} gives no {kind}, which this loss needs", self._functions
            )
        return np.asarray(self._functions[kind](X))


def cannot_give(problem: str, kinds: Iterable[str]) -> PredictionError:
    """Return the error for a loss that needs a prediction the model does not have."""
    known = set(kinds)
    losses = CLASSIFICATION if known & {"label", "probability", "decision"} else REGRESSION
    possible = [name for name, loss in losses.items() if loss.kind in known]
    return PredictionError(f"{problem}; losses that work with it: {possible}.")


def as_codes(target: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the classes of some rows, sorted, and each row's position among them."""
    classes, codes = np.unique(target, return_inverse=True)
    return classes, codes.reshape(len(target))


# --- Which module refits which flavour; other packages add theirs by an entry point
#
# A flavour is a module, or any object, with two functions:
#
# `load(source) → model`
#     Load the model from `source.uri`.
# `learner(model, source) → Learner`
#     Say how it is trained again.
#
# Another package adds one in its pyproject.toml::
#
#     [project.entry-points."mlflow_b3.refit"]
#     myflavour = "my_package.my_module"
#
# where `myflavour` is the name of the flavour in MLmodel files.

GROUP = "mlflow_b3.refit"
#: Flavour, our module for it, and its library, which the extra of the module's name installs.
BUILT_IN = {
    "sklearn": ("mlflow_b3.refit.sklearn", "sklearn"),
    "xgboost": ("mlflow_b3.refit.xgboost", "xgboost"),
    "lightgbm": ("mlflow_b3.refit.lightgbm", "lightgbm"),
    "catboost": ("mlflow_b3.refit.catboost", "catboost"),
    "statsmodels": ("mlflow_b3.refit.statsmodels", "statsmodels"),
    "keras": ("mlflow_b3.refit.keras", "keras"),  # before torch, of which its models may be part
    "tensorflow": ("mlflow_b3.refit.keras", "keras"),
    "pytorch": ("mlflow_b3.refit.pytorch", "torch"),
    "spark": ("mlflow_b3.refit.spark", "pyspark"),
}
#: The oldest versions that refits are right with: older ones forget more, and do not say so.
OLDEST = {
    "catboost": "1.2.10",
    "keras": "3.10",
    "lightgbm": "4.7",
    "pyspark": "4.0",
    "statsmodels": "0.14.5",
    "torch": "2.6",
    "xgboost": "3.1",
}


def find_flavour(names: Iterable[str]) -> tuple[str, Any] | None:
    """Return the first flavour among some names that can be refitted, and its module.

    Ours come first, then those of other packages by name.
    """
    present = set(names)
    for name, (module, library) in BUILT_IN.items():
        if name in present:
            require_library(library, module.rsplit(".", 1)[-1])
            return name, import_module(module)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in present:
            try:
                return entry.name, entry.load()
            except Exception as error:  # foreign code
                raise ModelError(
                    f"the entry point {entry.value!r} for the flavour {entry.name!r} cannot be "
                    f"loaded: {type(error).__name__}: {error}"
                ) from error
    return None


def flavour_of(model: Any) -> str | None:
    """Return the flavour that a bare object would be logged with, by the library of its class."""
    libraries = libraries_of(model)
    for name, (_, library) in BUILT_IN.items():
        if library in libraries:
            return name
    return None


def libraries_of(model: Any) -> set[str]:
    """Return the packages that the class of an object and its bases come from."""
    return {cls.__module__.split(".")[0] for cls in type(model).__mro__}


def require_library(library: str, extra: str) -> Any:
    """Import an optional library, or say which extra installs it, or a newer version of it."""
    try:
        found = import_module(library)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != library:
            backend = " Keras may want another backend: set KERAS_BACKEND." * (library == "keras")
            raise ModelError(
                f"{library!r} is installed, but cannot be imported: {error}.{backend}"
            ) from error
        raise ModelError(
            f"refitting this model needs {library!r}, which is not installed here: {error}. "
            f"Install it with: pip install 'mlflow-b3[{extra}]'"
        ) from error
    oldest, present = OLDEST.get(library), str(getattr(found, "__version__", ""))
    if oldest and present and Version(present) < Version(oldest):
        raise ModelError(
            f"{library} {present} is installed here, but refits need {oldest} or newer: older ones "
            f"do not keep all of a training. Install it with: pip install 'mlflow-b3[{extra}]'"
        )
    return found


def load_native(flavour: str, source: Source) -> Any:
    """Load a model of a flavour: by skops with types that we trust, or else by MLflow."""
    from mlflow_b3.refit.safety import load_skops, stored_by_skops

    if stored_by_skops(flavour, source.flavours.get(flavour, {})):
        return load_skops(flavour, source)
    return load_by_mlflow(flavour, source)


def load_by_mlflow(flavour: str, source: Source) -> Any:
    """Load a model with MLflow's own loader of a flavour, which honours MLflow's restrictions."""
    try:
        return import_module(f"mlflow.{flavour}").load_model(source.uri)
    except Exception as error:  # loading runs foreign code, which may raise anything
        raise cannot_load(source, error) from error


def cannot_load(source: Source, error: Exception) -> ModelError:
    """Return the error for a model whose loading failed, with what helps where that is known."""
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        advice = (
            f". The model needs the module {error.name!r}: audit where it can be imported "
            "(PYTHONPATH, or --env-manager for packages), or log the model with code_paths="
        )
    return ModelError(
        f"model={source.uri!r} could not be loaded: {type(error).__name__}: {error}{advice}"
    )


# --- What a few refits tell before an audit: is it the same model, and does its seed matter?

Shares = NDArray[np.float64]
#: Classes up to which all orders are tried.
MOST_ORDERED = 4
CLASSES_READ = "its classes were read as those of the table with which it agrees best"
#: Share of the rows on which it is tried out whether the seed of a learner matters.
TRIED_SHARE = 0.8
#: Rows on which it is tried out which columns a learner takes.
TRIED_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a refit on all rows is the original model.

    Attributes
    ----------
    value : float or None
        For classes the mean overlap of the predicted probabilities, Σ_k min(p_k, q_k), which for
        labels alone is the share of equal ones; for values the share of the original predictions'
        variance that the refit's explain, 1 - mean((a - b)²)/var(b). None where the original is not
        at hand, or speaks of other classes.
    reading : str
        A sentence on which class of the model was taken for which one of the table, where their
        names differ.
    """

    value: float | None = None
    reading: str = ""


def measure_agreement(learner: Learner, table: AuditData) -> Agreement:
    """Train on all rows of the table and compare with the logged model there.

    A training procedure that was recovered rightly, given the rows of the original training, gives
    the original again. Other rows, chance, or parameters that were lost make it another model.

    Parameters
    ----------
    learner : Learner
    table : AuditData
        The rows in the learner's form, which its `original` takes as well.

    Returns
    -------
    Agreement
    """
    logged = learner.original
    if logged is None:
        return Agreement()
    rows = table.as_taken().features  # of a large table a copy, which is gone after the fit
    again = learner.fit(Rows(X=rows, target=table.target, ids=table.ids, weight=table.weight))
    del rows
    X = table.features
    if learner.task == "regression":
        explained = _explained(
            np.asarray(again.predict("value", X), dtype=float).ravel(),
            np.asarray(logged.predict("value", X), dtype=float).ravel(),
        )
        return Agreement(value=explained)
    for kind in ("probability", "label"):
        try:
            before, after = _shares(logged, kind, X), _shares(again, kind, X)
        except PredictionError:
            continue  # it gives labels only
        if before is None or after is None or before.shape != after.shape:
            return Agreement()
        return _overlap(before, after, logged, again)
    return Agreement()


def _classes(predictor: Predictor) -> set[Any]:
    return set() if predictor.classes is None else set(predictor.classes.tolist())


def _overlap(before: Shares, after: Shares, logged: Predictor, again: Predictor) -> Agreement:
    """Return the mean overlap of probabilities.

    A library that wants classes coded knows them as 0, 1, … where the table has words. Which word
    had which code is not stored: the order in which the two models agree best is taken, and named,
    because labels that were swapped agree as well.
    """
    if _classes(logged) == _classes(again):
        return Agreement(value=_mean_overlap(before, after))
    if before.shape[1] > MOST_ORDERED:
        return Agreement()
    assert logged.classes is not None
    assert again.classes is not None
    orders = list(permutations(range(before.shape[1])))
    best = max(orders, key=lambda order: _mean_overlap(before[:, list(order)], after))
    codes, names = np.sort(logged.classes).tolist(), np.sort(again.classes).tolist()
    pairs = [f"{codes[code]!r} as {name!r}" for code, name in zip(best, names, strict=True)]
    return Agreement(
        value=_mean_overlap(before[:, list(best)], after),
        reading=f"{CLASSES_READ}, {', '.join(pairs)}: check that the labels are not swapped",
    )


def _mean_overlap(before: Shares, after: Shares) -> float:
    return float(np.minimum(before, after).sum(axis=1).mean())


def refused_columns(learner: Learner, table: AuditData) -> dict[str, str]:
    """Return the columns without which a learner can be trained and with which it cannot.

    Only texts, dates and categories are suspected, and tried on few rows. Nothing is returned where the
    learner takes them, or fails for other reasons.

    Returns
    -------
    dict of str to str
        The dtype of each such column.
    """
    features = table.features
    if not isinstance(features, pd.DataFrame):
        return {}
    suspects = [
        name for name in features.columns if not pd.api.types.is_numeric_dtype(features[name])
    ]
    if not suspects:
        return {}
    rows = np.sort(np.random.default_rng(0).permutation(table.n_rows)[:TRIED_ROWS])
    if learner.task == "classification" and (table.target[rows] == table.target[rows[0]]).all():
        rows = np.arange(table.n_rows)

    def fails(dropped: list[str]) -> bool:
        kept = features.iloc[rows].drop(columns=dropped)
        try:
            weight = None if table.weight is None else table.weight[rows]
            learner.fit(
                Rows(X=kept, target=table.target[rows], ids=table.ids[rows], weight=weight), 0
            )
        except Exception:  # whatever a learner raises
            return True
        return False

    every = len(suspects) == features.shape[1]
    if not fails([]) or (not every and fails(suspects)):
        return {}
    alone = [name for name in suspects if fails([other for other in suspects if other != name])]
    return {str(name): str(features[name].dtype) for name in alone or suspects}


def seed_matters(learner: Learner, table: AuditData) -> bool:
    """Train twice on the same rows with different seeds; return whether predictions differ.

    A parameter `random_state` is not randomness: most solvers of logistic regression, for example,
    make no use of it. Where it has no effect, refits that differ by it alone are copies. Four fifths of
    the rows are trained on, as in most folds, because some learners draw at random from a number of
    rows on; all are predicted.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(table.n_rows)[: int(TRIED_SHARE * table.n_rows)])
    if learner.task == "classification" and (table.target[rows] == table.target[rows[0]]).all():
        return True  # of one class nothing is learned
    weight = None if table.weight is None else table.weight[rows]
    first, second = (
        learner.fit(
            Rows(X=table.take(rows), target=table.target[rows], ids=table.ids[rows], weight=weight),
            seed,
        )
        for seed in (1, 2)
    )
    kinds = ("value",) if learner.task == "regression" else ("probability", "decision", "label")
    for kind in kinds:
        try:
            a, b = (np.asarray(p.predict(kind, table.features)) for p in (first, second))
        except PredictionError:
            continue
        if a.dtype.kind in "fiu" and b.dtype.kind in "fiu":
            return not np.allclose(a, b, rtol=1e-9, atol=1e-12)
        return not np.array_equal(a, b)
    return True


def _explained(again: NDArray[np.float64], logged: NDArray[np.float64]) -> float | None:
    variance = float(np.var(logged))
    return None if variance == 0 else float(1 - np.mean((again - logged) ** 2) / variance)


def _shares(predictor: Predictor, kind: str, X: Any) -> Shares | None:
    """Return the probability of each class, in sorted order; certainty where there are labels."""
    given = np.asarray(predictor.predict(kind, X))
    classes = predictor.classes
    if classes is None:
        return None
    order = np.argsort(classes)
    if kind == "label":
        equal = np.equal.outer(given.reshape(len(X)), classes[order])
        return np.asarray(equal, dtype=float)
    return np.asarray(given[:, order], dtype=float)
