"""What neural networks of every library share: tables in, recipe, outputs, last layer."""

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

# --- What neural networks of every library share: tables in, output columns out as classes or values

Array = NDArray[Any]
Forward = Callable[[Any], Array]
ROUTES = ("fresh", "hot-start", "last-layer")
#: What the output columns of a network can be, and how each follows from a linear layer.
LINKS: dict[str, Callable[[Array], Array]] = {
    "logits": lambda linear: linear,
    "probabilities": lambda linear: expit(linear) if linear.shape[1] == 1 else softmax(linear, 1),
    "log-probabilities": lambda linear: log_softmax(linear, 1),
}
TOLERANCE = 1e-4
HOT_START = (
    "refits start from the logged weights, which have seen all rows, so the loss on new clusters is "
    "at least what is shown"
)
FRESH = (
    "refits draw their first weights anew; those of the logged network are not known, so that it is "
    "not reproduced bit for bit"
)


def probe_rows(width: int) -> NDArray[np.float32]:
    """Return rows of random numbers on which a network can be watched."""
    return np.random.default_rng(0).normal(size=(16, width)).astype(np.float32)


def find_link(outputs: Array, linear: Array) -> str | None:
    """Return how outputs follow from those of the last linear layer; None for no known way."""
    if linear.shape != outputs.shape:
        return None
    for name, link in LINKS.items():
        if np.allclose(link(linear.astype(float)), outputs, rtol=TOLERANCE, atol=TOLERANCE):
            return name
    return None


def seen_kind(outputs: Array) -> str:
    """Return what two or more columns of outputs are, as their rows show."""
    given = outputs.astype(float)
    if (given >= 0).all() and np.allclose(given.sum(axis=1), 1, atol=TOLERANCE):
        return "probabilities"
    if (given <= 0).all() and np.allclose(np.exp(given).sum(axis=1), 1, atol=TOLERANCE):
        return "log-probabilities"
    return "logits"


def as_matrix(X: Any, dtype: Any = np.float32) -> Array:
    """Return a table as the matrix of numbers that a network is given.

    Raises
    ------
    InputError
        For columns of words or with missing values, by name.
    """
    if isinstance(X, np.ndarray) and X.dtype == dtype:
        return np.require(X, requirements="W")
    frame = pd.DataFrame(X)
    words = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    if words:
        raise InputError(
            f"data: features {', '.join(map(repr, words))} are no numbers, which this network needs. "
            "Encode them as in its training."
        )
    gaps = [str(name) for name in frame.columns if frame[name].isna().any()]
    if gaps:
        raise InputError(
            f"data: features {', '.join(map(repr, gaps))} have missing values, of which a network "
            "makes more. Fill them as in its training, or drop the rows."
        )
    # pandas shares its values, and joblib its memory, as read-only, of which PyTorch warns
    return np.require(frame.to_numpy(dtype=dtype), requirements="W")


def as_columns(outputs: Array, n_rows: int) -> Array:
    """Return outputs with one row for each row, or say that they are not of that form."""
    if outputs.shape == (n_rows,):
        outputs = outputs[:, None]
    if outputs.ndim != 2 or len(outputs) != n_rows:
        raise ModelError(
            f"the network returns outputs of shape {outputs.shape} for {n_rows} rows; one row of "
            "numbers for each row is needed."
        )
    return outputs


def output_classes(target: Array, columns: int) -> tuple[Array, str | None]:
    """Return the class of each output column, and a note where it had to be worked out.

    One column is the second of two classes. Whole numbers from 0 are the numbers of columns; other
    classes, of which there must be as many as columns, stand for them in sorted order.
    """
    count = max(columns, 2)
    present = np.unique(target)
    if present.dtype.kind in "biuf" and np.isin(present, np.arange(count)).all():
        return np.arange(count).astype(present.dtype), None
    if len(present) != count:
        raise InputError(
            f"target: {len(present)} classes ({', '.join(map(str, present[:10]))}), but the network "
            f"tells {count} apart. Give classes as whole numbers from 0 to {count - 1}, or a table "
            "with all of them."
        )
    coded = ", ".join(f"{label} = {code}" for code, label in enumerate(present[:10]))
    return present, f"classes are taken to stand for output columns in sorted order: {coded}"


def as_predictor(
    forward: Forward, kind: str, classes: Array | None, name: str = "the network"
) -> Predictor:
    """Return a network as a predictor of classes or values.

    Parameters
    ----------
    forward : callable
        `X → outputs`, one or more columns.
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        What the columns are.
    classes : array or None
        The class of each column, for all but values.
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
    """Trains a network with a recipe, from new weights or from the logged ones.

    Parameters
    ----------
    route : {"fresh", "hot-start"}
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        What the output columns are.
    columns, width : int
        How many output columns and features there are.
    dtype : numpy dtype
        Of the matrix that the network is given.
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
        """Return the outputs of the network as it was logged."""
        raise NotImplementedError

    def represent(self, X: Any, ids: Array) -> Array:  # noqa: ARG002
        """Return the features as a matrix, on which the logged network must give numbers."""
        matrix = as_matrix(X, self._dtype)
        if not np.isfinite(self.forward(matrix)).all():
            raise ModelError("the network's outputs for the table are not finite numbers.")
        return matrix

    def with_target(self, target: Array) -> Self:
        """Learn which class each output column is, which resamples may not show."""
        other = self.copied()
        if self._kind != "values":
            other._classes, note = output_classes(target, self._columns)
            other.notes = self.notes if note is None else (*self.notes, note)
        other.original = other._predictor(self.forward, target)
        return other

    def _coded(self, target: Array) -> tuple[Array | None, Array]:
        """Return the classes, and the column of each row's class; or the values."""
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
    """Return sample weights of mean one, so that they do not change the learning rate."""
    return None if weight is None else (weight / weight.mean()).astype(np.float32)


# --- The training recipe of a neural network: given by the user, or logged with the run

#: How runs spell what a recipe needs: people, PyTorch Lightning's autologging, Keras' autologging.
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
#: What optimizers take beside the learning rate; where a recipe is silent, their own defaults hold.
OPTIMIZER_SETTINGS = ("weight_decay", "momentum", "nesterov")
EXAMPLE = (
    "refit_options={'epochs': 20, 'learning_rate': 0.001, 'batch_size': 32, 'optimizer': 'Adam', "
    "'loss': 'cross_entropy'}"
)
GIVEN, LOGGED = "from refit_options", "from the run's parameters"
DEFAULT = "by default"
#: What autologging writes about a training, and no recipe here repeats; and how it writes nothing.
OTHERS = ("class_weight", "validation_split", "steps_per_epoch", "patience")
NOTHING = ("None", "0", "0.0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is known about a training, and from where.

    Attributes
    ----------
    values : mapping of str to value
        By the names of `SPELLINGS`; a `batch_size` of None is all rows at once.
    origins : mapping of str to str
        Where each of them comes from, in words for the report.
    problems : tuple of str
        What was logged but could not be used.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def missing(self, required: Iterable[str]) -> list[str]:
        """Return what is required but not known."""
        return [name for name in required if name not in self.values]

    def completed(self, origin: str, **values: Any) -> "Recipe":
        """Return the recipe with values from another origin for what it does not say."""
        new = {name: value for name, value in values.items() if name not in self.values}
        return Recipe(
            values={**self.values, **new},
            origins={**self.origins, **dict.fromkeys(new, origin)},
            problems=self.problems,
        )

    def without(self, *names: str) -> "Recipe":
        """Return the recipe without what the user did not say about these."""
        gone = [name for name in names if self.origins.get(name) != GIVEN]
        return Recipe(
            values={name: value for name, value in self.values.items() if name not in gone},
            origins={name: origin for name, origin in self.origins.items() if name not in gone},
            problems=self.problems,
        )

    def settings(self) -> dict[str, Any]:
        """Return what the optimizer is given beside the learning rate."""
        return {name: self.values[name] for name in OPTIMIZER_SETTINGS if name in self.values}

    def note(self, route: str) -> str:
        """Return the sentence for the report."""
        known = [name for name in SPELLINGS if name in self.values]
        listed = ", ".join(f"{name}={_shown(name, self.values[name])}" for name in known)
        origins: dict[str, list[str]] = {}
        for name in known:
            origins.setdefault(self.origins[name], []).append(name)
        told = "; ".join(f"{', '.join(names)} {origin}" for origin, names in origins.items())
        return f"{route} training with {listed} ({told})"


def read_recipe(
    source: Source, names: Mapping[str, Callable[[Any], Any]], more: Iterable[str] = ()
) -> Recipe:
    """Return the recipe in the user's options and in the run's parameters; the options win.

    Parameters
    ----------
    source : Source
    names : mapping of str to callable
        What makes of the name of an `optimizer` or a `loss` one that the library knows; a
        `ValueError` says which there are.
    more : iterable of str
        Options beside those of a recipe.
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
        found = _logged(name, check, source.params)
        if isinstance(found, str):
            problems.append(found)
        elif found is not None:
            values[name], origins[name] = found[0], LOGGED
    return Recipe(values=values, origins=origins, problems=tuple(problems))


def not_repeated(params: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on what a run logs about its training that no recipe here has."""
    said = [f"{name}={params[name]}" for name in OTHERS if params.get(name) not in (None, *NOTHING)]
    return (f"not repeated, although the run logs it: {', '.join(said)}",) if said else ()


def one_of(value: Any, known: Mapping[str, str]) -> str:
    """Return the name that a value stands for, by names without case, spaces and underscores."""
    name = plain(value) if isinstance(value, str) else ""
    if name not in known:
        words = list(dict.fromkeys(known.values()))
        hint = closest(str(value), words).replace(" Did", " (did").replace("?", "?)")
        raise ValueError(f"one of {', '.join(map(repr, words))}{hint}")
    return known[name]


def plain(name: str) -> str:
    """Return a name in small letters and without what separates words."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _logged(
    name: str, check: Callable[[Any], Any], params: Mapping[str, str]
) -> tuple[Any] | str | None:
    """Return what the run says, in a tuple; or why it cannot be used; or None for nothing."""
    said = {spelling: params[spelling] for spelling in SPELLINGS[name] if spelling in params}
    understood: dict[str, Any] = {}
    refused = []
    for spelling, text in said.items():
        try:
            understood[spelling] = check(text)
        except ValueError as error:
            if text != "None":  # what autologging writes for an argument that was left out
                refused.append(f"the run's {spelling}={text!r} is not {error}")
    if len(set(understood.values())) > 1:
        both = " and ".join(f"{spelling}={said[spelling]!r}" for spelling in understood)
        return f"the run logs both {both}"
    if understood:
        return (next(iter(understood.values())),)
    return refused[0] if refused else None


def incomplete(route: str, missing: Iterable[str], recipe: Recipe) -> ModelError:
    """Return the error for a recipe that lacks something."""
    lacking = ", ".join(map(repr, missing))
    where = (
        "refit_options (the epochs logged with a run are those of its whole training)"
        if route == "hot-start"
        else "refit_options or the run's parameters"
    )
    logged = f" ({'; '.join(recipe.problems)})" if recipe.problems else ""
    return ModelError(
        f"refit={route!r} needs a complete training recipe, and {where} lack {lacking}{logged}. Give "
        f"what is missing, such as {EXAMPLE}; or use refit='last-layer' or a trainer."
    )


def _shown(name: str, value: Any) -> Any:
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


# --- Route `last-layer`: a network up to its last linear layer, which alone is trained again

NOTE = (
    "only its last layer was trained again, as a linear model on the features before it. These keep "
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
        Those of the last layer; a row of weights for each output column.
    link : str
        What makes of its outputs those of the network; one of `LINKS`.
    width : int
        How many features the network takes.
    dtype : numpy dtype
        Of the matrix that it takes.
    """

    features: Callable[[Array], Array]
    weight: Array
    bias: Array
    link: str
    width: int
    dtype: Any = np.float32

    def outputs(self, features: Array) -> Array:
        """Return the outputs of the logged network, from the features before its last layer."""
        return LINKS[self.link](features @ self.weight.T.astype(float) + self.bias)


class LastLayerLearner(Learner):
    """Refits the last layer of a network as a logistic or ridge regression.

    Parameters
    ----------
    split : Split
    name : str
        What the report calls the network.
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
        """Return the inputs of the last layer, for all rows."""
        assert self._split is not None
        matrix = as_matrix(X, self._split.dtype)
        return as_numbers(self._split.features(matrix), len(matrix))

    def with_target(self, target: Array) -> Self:
        """Learn which class each output column of the logged network is."""
        other = self.copied()
        assert self._split is not None
        if self.task == "regression":
            if self._columns > 1:
                raise ModelError(f"a network with {self._columns} output columns is no regressor.")
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
        """Leave the network behind: workers need its features only."""
        return {**super().__getstate__(), "_split": None}
