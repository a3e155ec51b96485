"""Shared by neural networks of all libraries: inputs, outputs, training recipe, last layer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import InputError, ModelError, closest
from mlflow_b3.refit.head import as_numbers, fit_head
from mlflow_b3.refit.learner import FunctionPredictor, Learner, Rows, Source

# --- Inputs and outputs: tables as matrices, output columns as classes or values

Array = NDArray[Any]
Forward = Callable[[Any], Array]
ROUTES = ("fresh", "hot-start", "last-layer")
#: What output columns can be, and how to compute each from a linear layer.
LINKS: dict[str, Callable[[Array], Array]] = {
    "logits": lambda linear: linear,
    "probabilities": lambda linear: expit(linear) if linear.shape[1] == 1 else softmax(linear, 1),
    "log-probabilities": lambda linear: log_softmax(linear, 1),
}
TOLERANCE = 1e-4
HOT_START = (
    "refits start from the logged weights, which were trained on all rows, so the loss on new "
    "clusters is at least what is shown"
)
FRESH = (
    "refits start from new random weights; the initial weights of the logged network are not known, "
    "so it is not reproduced exactly"
)


def probe_rows(width: int) -> NDArray[np.float32]:
    """Return rows of random numbers for a trial run of a network."""
    return np.random.default_rng(0).normal(size=(16, width)).astype(np.float32)


def find_link(outputs: Array, linear: Array) -> str | None:
    """Return the link from the last linear layer to the outputs; None if it is not known."""
    if linear.shape != outputs.shape:
        return None
    for name, link in LINKS.items():
        if np.allclose(link(linear.astype(float)), outputs, rtol=TOLERANCE, atol=TOLERANCE):
            return name
    return None


def infer_kind(outputs: Array) -> str:
    """Infer the kind of two or more output columns from their values."""
    given = outputs.astype(float)
    if (given >= 0).all() and np.allclose(given.sum(axis=1), 1, atol=TOLERANCE):
        return "probabilities"
    if (given <= 0).all() and np.allclose(np.exp(given).sum(axis=1), 1, atol=TOLERANCE):
        return "log-probabilities"
    return "logits"


def as_matrix(X: Any, dtype: Any = np.float32) -> Array:
    """Return a table as a numeric matrix.

    Raises
    ------
    InputError
        If columns are not numeric or have missing values.
    """
    if isinstance(X, np.ndarray) and X.dtype == dtype:
        return np.require(X, requirements="W")
    frame = pd.DataFrame(X)
    other = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    if other:
        raise InputError(
            f"data: features {', '.join(map(repr, other))} are not numeric, as this network needs. "
            "Encode them as in its training."
        )
    gaps = [str(name) for name in frame.columns if frame[name].isna().any()]
    if gaps:
        raise InputError(
            f"data: features {', '.join(map(repr, gaps))} have missing values, which a network "
            "cannot handle. Fill them as in its training, or drop the rows."
        )
    # values from pandas and memory from joblib are read-only, about which PyTorch warns
    return np.require(frame.to_numpy(dtype=dtype), requirements="W")


def as_columns(outputs: Array, n_rows: int) -> Array:
    """Return outputs as a matrix with one row per input row, or raise a `ModelError`."""
    if outputs.shape == (n_rows,):
        outputs = outputs[:, None]
    if outputs.ndim != 2 or len(outputs) != n_rows:
        raise ModelError(
            f"the network returns outputs of shape {outputs.shape} for {n_rows} rows; it must return "
            "one row of numbers for each."
        )
    return outputs


def output_classes(target: Array, columns: int) -> tuple[Array, str | None]:
    """Return the class of each output column, and a note if it was inferred.

    A single column is the second of two classes. Whole numbers from 0 are column numbers. Other
    classes are assigned to columns in sorted order; there must be as many as columns.
    """
    count = max(columns, 2)
    present = np.unique(target)
    if present.dtype.kind in "biuf" and np.isin(present, np.arange(count)).all():
        return np.arange(count).astype(present.dtype), None
    if len(present) != count:
        raise InputError(
            f"target: {len(present)} classes ({', '.join(map(str, present[:10]))}), but the network "
            f"has {count}. Give classes as whole numbers from 0 to {count - 1}, or a table "
            "with all of them."
        )
    coded = ", ".join(f"{label} = {code}" for code, label in enumerate(present[:10]))
    return present, f"output columns are assumed to be the classes in sorted order: {coded}"


def as_predictor(
    forward: Forward, kind: str, classes: Array | None, name: str = "the network"
) -> Predictor:
    """Return a network as a predictor of classes or values.

    Parameters
    ----------
    forward : callable
        `X → outputs`, one or more columns.
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        The kind of the columns.
    classes : array or None
        The class of each column; None for values.
    """
    if kind == "values":
        return FunctionPredictor({"value": lambda X: forward(X)[:, 0]}, name=name)
    assert classes is not None
    if kind == "probabilities":
        return FunctionPredictor.from_probabilities(forward, classes, name=name)

    def decision(X: Any) -> Array:
        given = forward(X).astype(float)
        if given.shape[1] == 1:
            return given[:, 0]
        return np.asarray(given[:, 1] - given[:, 0]) if given.shape[1] == 2 else given

    return FunctionPredictor.from_probabilities(
        lambda X: LINKS["probabilities"](forward(X).astype(float)),
        classes,
        name=name,
        decision=decision,
    )


class NetworkLearner(Learner):
    """Trains a network with a recipe, from new or from the logged weights.

    Parameters
    ----------
    route : {"fresh", "hot-start"}
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        The kind of the output columns.
    columns, width : int
        Number of output columns and of features.
    dtype : numpy dtype
        Of the input matrix.
    """

    stochastic = True
    weighted = True

    def __init__(
        self, route: str, *, kind: str, columns: int, width: int, dtype: Any = np.float32
    ) -> None:
        self.route = route
        self._kind, self._columns, self._dtype = kind, columns, dtype
        self.task = "regression" if kind == "values" else "classification"
        self.inputs = ModelInputs(count=width)
        self._classes: Array | None = None
        if route == "hot-start":
            self.strength = "lower-bound"

    def forward(self, X: Any) -> Array:
        """Return the outputs of the logged network."""
        raise NotImplementedError

    def represent(self, X: Any, ids: Array) -> Array:  # noqa: ARG002
        """Return the features as a matrix. The outputs of the logged network must be finite."""
        matrix = as_matrix(X, self._dtype)
        if not np.isfinite(self.forward(matrix)).all():
            raise ModelError("the network's outputs for the table are not finite numbers.")
        return matrix

    def with_target(self, target: Array) -> Self:
        """Determine the class of each output column. Resamples may lack classes."""
        other = self.copied()
        if self._kind != "values":
            other._classes, note = output_classes(target, self._columns)
            other.notes = self.notes if note is None else (*self.notes, note)
        other.original = other._predictor(self.forward, target)
        return other

    def _coded(self, target: Array) -> tuple[Array | None, Array]:
        """Return the classes and the column of each row's class; for values, None and the values."""
        if self._kind == "values":
            return None, np.asarray(target, dtype=self._dtype)
        classes = self._classes
        if classes is None:
            classes, _ = output_classes(target, self._columns)
        return classes, np.searchsorted(classes, target)

    def _predictor(self, forward: Forward, target: Array) -> Predictor:
        return as_predictor(
            lambda X: forward(as_matrix(X, self._dtype)), self._kind, self._coded(target)[0]
        )


def normalised(weight: NDArray[np.float64] | None) -> NDArray[np.float32] | None:
    """Return sample weights with mean one, which leave the effective learning rate unchanged."""
    return None if weight is None else (weight / weight.mean()).astype(np.float32)


# --- The training recipe of a network, from options or from the parameters of the run

#: Names of parameters in runs, as logged by users and by the autologging of Lightning and Keras.
SPELLINGS = {
    "epochs": ("epochs", "max_epochs", "num_epochs", "n_epochs"),
    "learning_rate": ("learning_rate", "lr", "opt_learning_rate", "optimizer_learning_rate"),
    "batch_size": ("batch_size", "train_batch_size"),
    "optimizer": ("optimizer", "optimizer_name", "opt_name"),
    "loss": ("loss", "loss_fn", "loss_function", "criterion"),
    "shuffle": ("shuffle",),
    "weight_decay": ("weight_decay", "opt_weight_decay", "optimizer_weight_decay"),
    "momentum": ("momentum", "opt_momentum", "optimizer_momentum"),
    "nesterov": ("nesterov", "opt_nesterov", "optimizer_nesterov"),
}
#: Settings of optimizers besides the learning rate. By default they are those of the optimizer.
OPTIMIZER_SETTINGS = ("weight_decay", "momentum", "nesterov")
EXAMPLE = (
    "refit_options={'epochs': 20, 'learning_rate': 0.001, 'batch_size': 32, 'optimizer': 'Adam', "
    "'loss': 'cross_entropy'}"
)
GIVEN, LOGGED = "from refit_options", "from the run's parameters"
DEFAULT = "by default"
#: Settings that autologging logs but refits do not repeat, and values that mean not set.
NOT_REPEATED = ("class_weight", "validation_split", "steps_per_epoch", "patience")
UNSET = ("None", "0", "0.0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Known settings of a training, and their origins.

    Attributes
    ----------
    values : mapping of str to value
        By the names of `SPELLINGS`. A `batch_size` of None means all rows at once.
    origins : mapping of str to str
        The origin of each, in words for the report.
    problems : tuple of str
        Logged settings that could not be used.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def missing(self, required: Iterable[str]) -> list[str]:
        """Return the required settings that are not known."""
        return [name for name in required if name not in self.values]

    def completed(self, origin: str, **values: Any) -> "Recipe":
        """Return the recipe with missing values filled from another origin."""
        new = {name: value for name, value in values.items() if name not in self.values}
        return Recipe(
            values={**self.values, **new},
            origins={**self.origins, **dict.fromkeys(new, origin)},
            problems=self.problems,
        )

    def without(self, *names: str) -> "Recipe":
        """Return the recipe without these settings, unless the user gave them."""
        gone = [name for name in names if self.origins.get(name) != GIVEN]
        return Recipe(
            values={name: value for name, value in self.values.items() if name not in gone},
            origins={name: origin for name, origin in self.origins.items() if name not in gone},
            problems=self.problems,
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings of the optimizer besides the learning rate."""
        return {name: self.values[name] for name in OPTIMIZER_SETTINGS if name in self.values}

    def note(self, route: str) -> str:
        """Return the sentence for the report."""
        known = [name for name in SPELLINGS if name in self.values]
        listed = ", ".join(f"{name}={_format(name, self.values[name])}" for name in known)
        origins: dict[str, list[str]] = {}
        for name in known:
            origins.setdefault(self.origins[name], []).append(name)
        sources = "; ".join(f"{', '.join(names)} {origin}" for origin, names in origins.items())
        return f"{route} training with {listed} ({sources})"


def read_recipe(
    source: Source, names: Mapping[str, Callable[[Any], Any]], more: Iterable[str] = ()
) -> Recipe:
    """Read a recipe from the options and the run's parameters. Options take precedence.

    Parameters
    ----------
    source : Source
    names : mapping of str to callable
        Functions that convert the name of an `optimizer` or a `loss` to the library's name, or
        raise a `ValueError` with the allowed names.
    more : iterable of str
        Further options.
    """
    checks = {**CHECKS, **names}
    options = source.require_options(*checks, *more)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    problems = []
    for name, check in checks.items():
        if name in options:
            try:
                values[name] = check(options[name])
            except ValueError as error:
                raise InputError(
                    f"refit_options {name}={options[name]!r} must be {error}."
                ) from error
            origins[name] = GIVEN
            continue
        found = _read_logged(name, check, source.params)
        if isinstance(found, str):
            problems.append(found)
        elif found is not None:
            values[name], origins[name] = found[0], LOGGED
    return Recipe(values=values, origins=origins, problems=tuple(problems))


def not_repeated(params: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on logged settings that refits do not repeat."""
    found = [
        f"{name}={params[name]}" for name in NOT_REPEATED if params.get(name) not in (None, *UNSET)
    ]
    return (f"not repeated, although the run logs it: {', '.join(found)}",) if found else ()


def one_of(value: Any, known: Mapping[str, str]) -> str:
    """Look up a name, ignoring case, spaces and underscores."""
    name = plain(value) if isinstance(value, str) else ""
    if name not in known:
        words = list(dict.fromkeys(known.values()))
        hint = closest(str(value), words).replace(" Did", " (did").replace("?", "?)")
        raise ValueError(f"one of {', '.join(map(repr, words))}{hint}")
    return known[name]


def plain(name: str) -> str:
    """Return a name in lower case, without separators."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _read_logged(
    name: str, check: Callable[[Any], Any], params: Mapping[str, str]
) -> tuple[Any] | str | None:
    """Return the logged value in a tuple; a string on why it cannot be used; or None."""
    logged = {spelling: params[spelling] for spelling in SPELLINGS[name] if spelling in params}
    parsed: dict[str, Any] = {}
    refused = []
    for spelling, text in logged.items():
        try:
            parsed[spelling] = check(text)
        except ValueError as error:
            if text != "None":  # autologged for an argument that was not given
                refused.append(f"the run's {spelling}={text!r} is not {error}")
    if len(set(parsed.values())) > 1:
        both = " and ".join(f"{spelling}={logged[spelling]!r}" for spelling in parsed)
        return f"the run logs both {both}"
    if parsed:
        return (next(iter(parsed.values())),)
    return refused[0] if refused else None


def incomplete(route: str, missing: Iterable[str], recipe: Recipe) -> ModelError:
    """Return the error for an incomplete recipe."""
    lacking = ", ".join(map(repr, missing))
    where = (
        "refit_options (the epochs logged with a run are those of its whole training)"
        if route == "hot-start"
        else "refit_options or the run's parameters"
    )
    logged = f" ({'; '.join(recipe.problems)})" if recipe.problems else ""
    return ModelError(
        f"refit={route!r} needs a complete training recipe, but {where} lack {lacking}{logged}. Give "
        f"the missing values, as in {EXAMPLE}; or use refit='last-layer' or a trainer."
    )


def _format(name: str, value: Any) -> Any:
    return "all" if name == "batch_size" and value is None else value


def _whole(value: Any) -> int:
    message = "a whole number from 1"
    if isinstance(value, bool):
        raise ValueError(message)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(message) from error
    if number != int(number) or number < 1:
        raise ValueError(message)
    return int(number)


def _batch(value: Any) -> int | None:
    try:
        return None if value == "all" else _whole(value)
    except ValueError as error:
        raise ValueError(f"{error}, or 'all'") from error


def _number(*, positive: bool) -> Callable[[Any], float]:
    message = "a number above 0" if positive else "a number from 0"

    def check(value: Any) -> float:
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError) as error:
            raise ValueError(message) from error
        if not 0 <= number < float("inf") or (positive and number == 0):
            raise ValueError(message)
        return number

    return check


def _flag(value: Any) -> bool:
    flags = {"true": True, "false": False}
    try:
        return flags[str(value).lower()]
    except KeyError as error:
        raise ValueError("true or false") from error


CHECKS: dict[str, Callable[[Any], Any]] = {
    "epochs": _whole,
    "learning_rate": _number(positive=True),
    "batch_size": _batch,
    "shuffle": _flag,
    "weight_decay": _number(positive=False),
    "momentum": _number(positive=False),
    "nesterov": _flag,
}


# --- Route `last-layer`: train only the last linear layer again

NOTE = (
    "only its last layer was retrained, as a linear model on the features before it. These keep "
    "what they learned from all rows, so the loss on new clusters is at least what is shown"
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """A network cut before its last linear layer.

    Attributes
    ----------
    features : callable
        `matrix → inputs of the last layer`.
    weight, bias : numpy.ndarray
        Of the last layer, with a row of weights for each output column.
    link : str
        Maps its outputs to those of the network; a key of `LINKS`.
    width : int
        Number of features of the network.
    dtype : numpy dtype
        Of the input matrix.
    """

    features: Callable[[Array], Array]
    weight: Array
    bias: Array
    link: str
    width: int
    dtype: Any = np.float32

    def outputs(self, features: Array) -> Array:
        """Return the outputs of the logged network from the inputs of its last layer."""
        return LINKS[self.link](features @ self.weight.T.astype(float) + self.bias)


class LastLayerLearner(Learner):
    """Refits the last layer of a network as a logistic or ridge regression.

    Parameters
    ----------
    split : Split
    name : str
        The name of the network in reports.
    notes : tuple of str
        Why it is not trained from scratch.
    """

    route = "last-layer"
    strength = "lower-bound"
    weighted = True

    def __init__(self, split: Split, name: str, notes: tuple[str, ...] = ()) -> None:
        self._split: Split | None = split
        self._columns, self._link = len(split.weight), split.link
        self.name = name
        self.inputs = ModelInputs(count=split.width)
        self.notes = (NOTE, *notes)
        if self._columns > 1 or split.link != "logits":
            self.task = "classification"

    def represent(self, X: Any, ids: Array) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the inputs of the last layer for all rows."""
        assert self._split is not None
        matrix = as_matrix(X, self._split.dtype)
        return as_numbers(self._split.features(matrix), len(matrix))

    def with_target(self, target: Array) -> Self:
        """Determine the class of each output column of the logged network."""
        other = self.copied()
        assert self._split is not None
        if self.task == "regression":
            if self._columns > 1:
                raise ModelError(
                    f"a network with {self._columns} output columns is not a regressor."
                )
            other.original = as_predictor(self._split.outputs, "values", None)
        else:
            classes, note = output_classes(target, self._columns)
            other.original = as_predictor(self._split.outputs, self._link, classes)
            other.notes = self.notes if note is None else (*self.notes, note)
        return other

    def train(self, rows: Rows, seed: int | None) -> Predictor:  # noqa: ARG002 - no randomness
        """Fit the last layer."""
        return fit_head(rows, self.task)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the network. Workers need only its features."""
        return {**super().__getstate__(), "_split": None}
