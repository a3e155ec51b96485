"""The interface of all flavours: learners, predictors, the registry, agreement with the logged model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Predictor
from mlflow_b3.data.table import AuditData, ModelInputs
from mlflow_b3.errors import InputError, ModelError, PredictionError, closest

# --- The interface of all flavours

#: What a refit means for the result. `full`: the whole training is repeated on other rows, so the
#: audit sees all of the bias. `lower-bound`: part of the model keeps what it learned from all rows,
#: including validation rows, so the audit sees only part of the bias.
STRENGTHS = ("full", "lower-bound")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that a learner is trained on.

    Attributes
    ----------
    X : DataFrame or array
        The features, in the form that the learner's `represent` returns.
    target : numpy.ndarray
        The values or classes to predict.
    ids : numpy.ndarray
        The labels of the rows in the index of the table; row numbers for a file.
    weight : numpy.ndarray or None
        Sample weights, if a column was named for them.
    """

    X: Any
    target: NDArray[Any]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None


class Learner(ABC):
    """A training procedure that can be run again on other rows.

    A flavour derives from it and implements `train`. Learners are sent to worker processes. They
    must be picklable by joblib unless `parallel` is False.

    Attributes
    ----------
    route : str
        How the refit is done: `clone`, `parameters`, `trainer`, `fresh`, `hot-start`,
        `last-layer`, `head`, or a name defined by another package.
    name : str
        The name of the model in reports.
    task : {"classification", "regression"} or None
        None if the model does not state it. It is then inferred from the loss and the target.
    inputs : ModelInputs
        The columns that the model expects.
    stochastic : bool
        Whether the result depends on `seed` as well as on the rows.
    seed_untried : bool
        Whether `stochastic` was inferred from a parameter such as `random_state`, which may have no
        effect.
    strength : {"full", "lower-bound"}
        What the refit means for the result; see `STRENGTHS`.
    used : tuple of str
        Columns that it needs as features even if they have another role in the audit, such as
        groups.
    weighted : bool
        Whether `train` uses sample weights.
    weight_required : bool
        Whether sample weights must be given, because the model was trained with them.
    parallel : bool
        False if refits must run one after another in one process.
    notes : tuple of str
        Sentences for the report: what was recovered, from where, and what was not.
    assumed : str or None
        A sentence on what was assumed about the training, and how to specify it. If set, the audit
        continues only if a refit on all rows reproduces the logged model.
    original : Predictor or None
        The logged model, to compare refits with. It takes what `represent` returns.
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
        """Train on these rows. `seed=None` keeps the seed of the logged model.

        Classifiers receive rows of at least two classes.
        """

    def fit(self, rows: Rows, seed: int | None = None) -> Predictor:
        """Train on these rows, which may have a single class."""
        if self.task == "classification" and (rows.target == rows.target[0]).all():
            return ConstantPredictor(rows.target[0])
        return self.train(rows, seed)

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - for those who need it
        """Return the features in the form that `train` and its predictors expect.

        Called once with all rows, for work that does not depend on the training rows.
        """
        return X

    def with_task(self, task: str) -> Self:
        """Return the same learner with its task set. It must not contradict the model's own."""
        other = self.copied()
        other.task = task
        return other

    def copied(self) -> Self:
        """Return a shallow copy, which shares the logged model."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def with_target(self, target: NDArray[Any]) -> Self:  # noqa: ARG002 - for those who need it
        """Return the same learner for the target of the whole table.

        Called once, after `with_task`. Resamples may lack some of its classes.
        """
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Drop the logged model, which workers do not need."""
        return {**self.__dict__, "original": None}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The origin of a model, and what is known about its training.

    Attributes
    ----------
    uri : str or None
        Its URI in MLflow; None for a model object.
    flavours : mapping
        The flavours in its MLmodel file, with their settings.
    params : mapping of str to str
        The parameters that were logged with its run and with the model itself.
    options : mapping
        The user's `refit_options`.
    route : str or None
        The route that the user requested; None leaves the choice to the flavour.
    notes : list of str
        Sentences about loading, added to the learner's notes.
    """

    uri: str | None = None
    flavours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    route: str | None = None
    notes: list[str] = field(default_factory=list)

    def require_route(self, *routes: str) -> str:
        """Return the requested route, by default the first. Raise an error for unknown ones."""
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
        """Return the options. Raise an error for options that are not allowed."""
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
    """A learner and its origin.

    Attributes
    ----------
    learner : Learner
    inputs : ModelInputs
        The columns that the model expects.
    name : str
        The name of the model in reports.
    uri, run_id, model_id : str or None
        Its URI in MLflow, its run and its LoggedModel; None for an estimator object.
    training_rows : int or None
        Number of rows it was trained on, if its run logged it.
    model_digest : str or None
        Digest of the model's files before loading; None if they cannot be listed.
    before_first_refit : callable or None
        Called after the audit has checked its input, before the first refit.
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
    """The classifier learned from rows of a single class."""

    def __init__(self, label: Any) -> None:
        self.classes: NDArray[Any] | None = np.array([label])

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Predict the one label with probability 1. There are no decision values."""
        assert self.classes is not None
        if kind == "label":
            return np.repeat(self.classes, len(X))
        if kind == "probability":
            return np.ones((len(X), 1))
        raise ModelError("a resample of a single class gives no decision values.")


# --- Predictors: labels, values, probabilities or decision values of a trained model

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
        With `predict`, and optionally `predict_proba` or `decision_function`.
    classes : array, optional
        Its labels, if it has no `classes_`.
    codes : bool
        Whether the model predicts positions in `classes` instead of labels.
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
    """A trained model, given as one function per kind of prediction.

    Parameters
    ----------
    functions : mapping of str to callable
        `X → predictions`, by kind.
    classes : array or None
        The labels, in the order of the probability columns.
    name : str
        The name of the model in error messages.
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
        """Build a predictor from the probabilities of all classes, or of the second of two.

        The label is the most probable class. A tie between two classes goes to the second.
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
    """Return the error for a loss that needs a prediction the model lacks."""
    known = set(kinds)
    losses = CLASSIFICATION if known & {"label", "probability", "decision"} else REGRESSION
    possible = [name for name, loss in losses.items() if loss.kind in known]
    return PredictionError(f"{problem}; losses that work with it: {possible}.")


def as_codes(target: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the classes of some rows, sorted, and each row's position among them."""
    classes, codes = np.unique(target, return_inverse=True)
    return classes, codes.reshape(len(target))


# --- Trial refits before an audit: is it the same model, and does its seed matter?

Shares = NDArray[np.float64]
#: All orders are tried for up to this many classes.
MOST_ORDERED = 4
#: Begins a recorded note. Reports recognise it, so its wording must not change.
CLASSES_READ = "its classes were read as those of the table with which it agrees best"
#: Share of the rows used to test whether the seed of a learner matters.
TRIED_SHARE = 0.8
#: Rows used to test which columns a learner accepts.
TRIED_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of a refit on all rows with the original model.

    Attributes
    ----------
    value : float or None
        For classes, the mean overlap of predicted probabilities, Σ_k min(p_k, q_k); for labels alone
        this is the share of equal labels. For values, the share of the variance of the original
        predictions that the refit explains, 1 - mean((a - b)²)/var(b). None if there is no original,
        or if it has other classes.
    reading : str
        A sentence on how classes of the model were matched to those of the table, if their names
        differ.
    """

    value: float | None = None
    reading: str = ""


def measure_agreement(learner: Learner, table: AuditData) -> Agreement:
    """Train on all rows of the table and compare the predictions with the logged model.

    A correctly recovered training procedure reproduces the original on its training rows. Other
    rows, randomness or lost parameters give another model.

    Parameters
    ----------
    learner : Learner
    table : AuditData
        The rows as returned by `represent`, which `original` takes as well.

    Returns
    -------
    Agreement
    """
    logged = learner.original
    if logged is None:
        return Agreement()
    if table.is_mapped:  # for reading only, and some models write into what they are given
        table = table.with_features(table.features.copy())
    rows = table.as_taken().features  # for a large table a copy, freed after the fit
    refitted = learner.fit(Rows(X=rows, target=table.target, ids=table.ids, weight=table.weight))
    del rows
    X = table.features
    if learner.task == "regression":
        explained = _explained_variance(
            np.asarray(refitted.predict("value", X), dtype=float).ravel(),
            np.asarray(logged.predict("value", X), dtype=float).ravel(),
        )
        return Agreement(value=explained)
    for kind in ("probability", "label"):
        try:
            before = _class_probabilities(logged, kind, X)
            after = _class_probabilities(refitted, kind, X)
        except PredictionError:
            continue  # labels only
        if before is None or after is None or before.shape != after.shape:
            return Agreement()
        return _overlap(before, after, logged, refitted)
    return Agreement()


def _classes(predictor: Predictor) -> set[Any]:
    return set() if predictor.classes is None else set(predictor.classes.tolist())


def _overlap(before: Shares, after: Shares, logged: Predictor, refitted: Predictor) -> Agreement:
    """Return the mean overlap of probabilities.

    Some libraries code classes as 0, 1, … and do not store which label had which code. The order
    with the best agreement is used. It is reported, because swapped labels agree as well.
    """
    if _classes(logged) == _classes(refitted):
        return Agreement(value=_mean_overlap(before, after))
    if before.shape[1] > MOST_ORDERED:
        return Agreement()
    assert logged.classes is not None
    assert refitted.classes is not None
    orders = list(permutations(range(before.shape[1])))
    best = max(orders, key=lambda order: _mean_overlap(before[:, list(order)], after))
    codes, names = np.sort(logged.classes).tolist(), np.sort(refitted.classes).tolist()
    pairs = [f"{codes[code]!r} as {name!r}" for code, name in zip(best, names, strict=True)]
    return Agreement(
        value=_mean_overlap(before[:, list(best)], after),
        reading=f"{CLASSES_READ}, {', '.join(pairs)}: check that the labels are not swapped",
    )


def _mean_overlap(before: Shares, after: Shares) -> float:
    return float(np.minimum(before, after).sum(axis=1).mean())


def refused_columns(learner: Learner, table: AuditData) -> dict[str, str]:
    """Return the columns that make training fail.

    Only text, dates and categories are tested, on a few rows. The result is empty if the learner
    accepts them or fails for other reasons.

    Returns
    -------
    dict of str to str
        The dtype of each column.
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
        except Exception:  # learners may raise anything
            return True
        return False

    every = len(suspects) == features.shape[1]
    if not fails([]) or (not every and fails(suspects)):
        return {}
    alone = [name for name in suspects if fails([other for other in suspects if other != name])]
    return {str(name): str(features[name].dtype) for name in alone or suspects}


def seed_matters(learner: Learner, table: AuditData) -> bool:
    """Train twice on the same rows with different seeds. Return whether predictions differ.

    A parameter `random_state` does not imply randomness: most solvers of logistic regression ignore
    it. Refits that differ only in an unused seed are identical. Training uses four fifths of the
    rows, as in most folds, because some learners are random only for large tables. All rows are
    predicted.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(table.n_rows)[: int(TRIED_SHARE * table.n_rows)])
    if learner.task == "classification" and (table.target[rows] == table.target[rows[0]]).all():
        return True  # nothing to learn from one class
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


def _explained_variance(refitted: NDArray[np.float64], logged: NDArray[np.float64]) -> float | None:
    variance = float(np.var(logged))
    return None if variance == 0 else float(1 - np.mean((refitted - logged) ** 2) / variance)


def _class_probabilities(predictor: Predictor, kind: str, X: Any) -> Shares | None:
    """Return the probability of each class, in sorted order; 0 or 1 for labels."""
    given = np.asarray(predictor.predict(kind, X))
    classes = predictor.classes
    if classes is None:
        return None
    order = np.argsort(classes)
    if kind == "label":
        equal = np.equal.outer(given.reshape(len(X)), classes[order])
        return np.asarray(equal, dtype=float)
    return np.asarray(given[:, order], dtype=float)
