"""Keras networks: trained afresh, from their logged weights, or in their last layer only."""

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit.learner import CannotRefit, Learner, Rows, Source, load_native
from mlflow_b3.refit.networks import (
    DEFAULT,
    FRESH,
    GIVEN,
    HOT_START,
    ROUTES,
    LastLayerLearner,
    NetworkLearner,
    Recipe,
    Split,
    as_columns,
    as_matrix,
    find_link,
    incomplete,
    normalised,
    not_repeated,
    one_of,
    plain,
    probe_rows,
    read_recipe,
    seen_kind,
)

# --- Keras networks run, and given what training itself does not give them

Array = NDArray[Any]


def forward(model: Any, matrix: Array) -> Array:
    """Return the outputs of a network."""
    with _hushed():
        outputs = np.asarray(model.predict(matrix, batch_size=4096, verbose=0))
    return as_columns(outputs, len(matrix))


def _parts(model: Any) -> list[Any]:
    """Return the layers, those of networks within included."""
    return [
        part
        for layer in model.layers
        for part in (_parts(layer) if hasattr(layer, "layers") else [layer])
    ]


def _adapts(layer: Any) -> bool:
    """Return whether a layer has looked at data before training, or may have."""
    return hasattr(layer, "adapt") and getattr(layer, "input_mean", None) is None


def _again(layer: Any, model: Any) -> bool:
    """Return whether a layer can be adapted again: a normalisation of the table itself."""
    fed = any(layer is part for part in model.layers) and layer.input is model.inputs[0]
    return fed and _adapts(layer) and isinstance(layer, keras.layers.Normalization)


def adapted(model: Any) -> list[str]:
    """Return the layers that are adapted to the rows of each refit."""
    return [part.name for part in _parts(model) if _again(part, model)]


def kept(model: Any) -> list[str]:
    """Return the layers that keep what they were logged with."""
    return [part.name for part in _parts(model) if _stays(part, model)]


def _stays(layer: Any, model: Any) -> bool:
    """Return whether a layer keeps its logged weights: frozen, or adapted to what is not known."""
    frozen = bool(layer.weights) and not layer.trainable
    return frozen or (_adapts(layer) and not _again(layer, model))


def copied(model: Any) -> Any:
    """Return a copy with the same weights, and an optimizer that remembers nothing."""
    copy = keras.models.clone_model(model)
    for part, before in zip(_parts(copy), _parts(model), strict=True):
        _copy_weights(part, before)
    return copy


def renewed(model: Any, matrix: Array) -> Any:
    """Return a copy with new weights, but for what training itself would not give it.

    Layers that are adapted to data are adapted to these rows; frozen layers stay as they are.
    """
    copy = keras.models.clone_model(model)
    for part, before in zip(_parts(copy), _parts(model), strict=True):
        if _stays(before, model):
            _copy_weights(part, before)
        elif _adapts(before):
            part.adapt(matrix)
    return copy


def _copy_weights(layer: Any, before: Any) -> None:
    layer.set_weights(before.get_weights())
    if isinstance(layer, keras.layers.Normalization):  # works with what follows from its weights
        layer.finalize_state()


@contextmanager
def _hushed() -> Iterator[None]:
    """Leave out a warning of NumPy's about Keras' own code, which no user can do anything about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use random numbers, and with PyTorch one thread, that leave the user's own as they were."""
    own, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - Keras uses it
    with ExitStack() as stack:
        stack.callback(random.setstate, own)
        stack.callback(np.random.set_state, legacy)
        stack.enter_context(_hushed())
        if keras.backend.backend() == "torch":
            from mlflow_b3.refit.pytorch import quiet

            stack.enter_context(quiet())
        keras.utils.set_random_seed(seed)
        yield


# --- How a Keras network is trained with a recipe

COMPILED = "from the compiled model"
#: The losses a network can be trained with, and the form in which each takes the target.
TARGETS = {
    "binary_crossentropy": "column",
    "binary_focal_crossentropy": "column",
    "sparse_categorical_crossentropy": "codes",
    "categorical_crossentropy": "one-hot",
    "categorical_focal_crossentropy": "one-hot",
    "mean_squared_error": "values",
    "mean_absolute_error": "values",
    "huber": "values",
    "log_cosh": "values",
}
LOSS_NAMES = {
    **{plain(name): name for name in TARGETS},
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
}
OPTIMIZERS = {
    plain(name): name
    for name in (
        *("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor"),
        *("Nadam", "Ftrl", "Lion", "Lamb"),
    )
}


def compiled_with(compiled: dict[str, Any]) -> dict[str, Any]:
    """Return optimizer, learning rate and loss of a compiled model, for the report."""
    optimizer = compiled["optimizer"]
    rate = optimizer["config"].get("learning_rate", "that of the optimizer within")
    if isinstance(rate, dict):  # a schedule, which is repeated as it is
        rate = rate["class_name"]
    loss = _only(compiled["loss"])
    return {
        "optimizer": optimizer["class_name"],
        "learning_rate": rate,
        "loss": _loss_name(loss),
    }


def _only(loss: Any) -> Any:
    """Return the loss of the one output, which may stand in a list."""
    return loss[0] if isinstance(loss, list) and len(loss) == 1 else loss


def _loss_name(loss: Any) -> str:
    try:
        found = keras.losses.get(loss)
        own = getattr(found, "__name__", type(found).__name__)
    except (TypeError, ValueError) as error:
        raise ModelError(f"its loss {loss!r} cannot be restored: {error}") from error
    if plain(own) not in LOSS_NAMES:
        raise ModelError(
            f"it was compiled with the loss {own!r}, for which the form of the target is not known; "
            f"known are {', '.join(TARGETS)}. Give a trainer."
        )
    return LOSS_NAMES[plain(own)]


def _output_kind(model: Any, outputs: Array, loss: Any) -> str:
    """Return what the output columns are for a network trained with a loss."""
    name = _loss_name(loss)
    several, form = outputs.shape[1] > 1, TARGETS[name]
    if several != (form in ("codes", "one-hot")):
        raise ModelError(
            f"loss={name!r} does not fit a network with {outputs.shape[1]} output "
            f"column{'s' if several else ''}."
        )
    if form == "values":
        return "values"
    found = keras.losses.get(loss)
    settings = found.get_config() if hasattr(found, "get_config") else {}
    logits = bool(settings.get("from_logits", False))
    last = getattr(model.layers[-1], "activation", None)
    if several:
        served = seen_kind(outputs) == "probabilities"
    else:
        # numbers of a linear layer may lie between 0 and 1 by chance
        served = bool(((outputs >= 0) & (outputs <= 1)).all()) and (
            last is keras.activations.sigmoid or not (logits or last is keras.activations.linear)
        )
    if logits == served:
        raise ModelError(
            f"loss={name!r} with from_logits={logits} does not fit the outputs of the network, which "
            f"are {'probabilities' if served else 'no probabilities'}. Compile it with the other."
        )
    return "logits" if logits else "probabilities"


class KerasLearner(NetworkLearner):
    """Trains a Keras network with a recipe.

    Parameters
    ----------
    model : keras.Model
    name : str
        What the report calls the network.
    route : {"fresh", "hot-start"}
    recipe : Recipe
        Complete.
    compiled : mapping
        The configuration that it was compiled with; empty if it was not.
    outputs : numpy.ndarray
        Its outputs for some rows of random numbers.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        route: str,
        recipe: Recipe,
        compiled: dict[str, Any],
        outputs: Array,
    ) -> None:
        values = recipe.values
        loss = values["loss"] if recipe.origins["loss"] != COMPILED else _only(compiled["loss"])
        super().__init__(
            route,
            kind=_output_kind(model, outputs, loss),
            columns=outputs.shape[1],
            width=model.input_shape[-1],
        )
        self.name = name
        with seeded(0):
            self._model = copied(model)
        self._form = TARGETS[values["loss"]]
        self._fit = {
            "epochs": values["epochs"],
            "batch_size": values["batch_size"],
            "shuffle": values["shuffle"],
            "verbose": 0,
        }
        self._compiled = {
            **compiled,
            "optimizer": _optimizer(recipe, compiled),
            "loss": loss,
            "metrics": [],  # None would leave those of the copy
        }
        self.notes = (
            recipe.note(route),
            "callbacks such as early stopping, if there were any, are not known and not repeated",
            *((HOT_START,) if route == "hot-start" else self._fresh_notes()),
        )

    def _fresh_notes(self) -> tuple[str, ...]:
        notes = [FRESH]
        again, same = adapted(self._model), kept(self._model)
        if again:
            notes.append(f"adapted anew to the rows of each refit: {', '.join(again)}")
        if same:
            self.strength = "lower-bound"
            notes.append(f"layers that keep what they were logged with: {', '.join(same)}")
        return tuple(notes)

    def forward(self, X: Any) -> Array:
        """Return the outputs of the logged network."""
        return forward(self._model, X)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows; without a seed, with seed 0."""
        matrix = as_matrix(rows.X, self._dtype)
        _, coded = self._coded(rows.target)
        if self._form == "one-hot":
            coded = np.eye(self._columns, dtype=np.float32)[coded]
        elif self._form == "column":
            coded = coded.astype(np.float32)
        with seeded(0 if seed is None else seed):
            fresh = self.route == "fresh"
            model = renewed(self._model, matrix) if fresh else copied(self._model)
            model.compile_from_config(self._compiled)
            size = self._fit["batch_size"] or len(matrix)
            model.fit(
                matrix,
                coded,
                sample_weight=normalised(rows.weight),
                **{**self._fit, "batch_size": size},
            )
        return self._predictor(lambda X: forward(model, X), rows.target)


def _optimizer(recipe: Recipe, compiled: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a new optimizer: the compiled one's where there is nothing else."""
    values, origins = recipe.values, recipe.origins
    if origins["optimizer"] == COMPILED:
        made = dict(compiled["optimizer"])
    else:
        made = keras.optimizers.serialize(keras.optimizers.get(values["optimizer"]))
    new = recipe.settings()
    if origins["learning_rate"] != COMPILED:
        new["learning_rate"] = values["learning_rate"]
    elif origins["optimizer"] != COMPILED:
        new["learning_rate"] = compiled["optimizer"]["config"]["learning_rate"]
    wrong = [name for name in new if name not in made["config"]]
    if wrong and origins[wrong[0]] == GIVEN:
        raise InputError(
            f"refit_options {wrong[0]!r} is nothing that the optimizer {values['optimizer']} takes."
        )
    known = {name: value for name, value in new.items() if name in made["config"]}
    return {**made, "config": {**made["config"], **known}}


# --- Keras networks: trained afresh, from their logged weights, or in their last layer only

REQUIRED = ("epochs", "batch_size", "optimizer", "learning_rate", "loss")


def load(source: Source) -> Any:
    """Load the network, logged by `mlflow.keras` or by `mlflow.tensorflow`."""
    return load_native("keras" if "keras" in source.flavours else "tensorflow", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a network.

    The options are those of a recipe (`epochs`, `learning_rate`, `batch_size`, `optimizer`, `loss`,
    `shuffle`, `weight_decay`, `momentum`, `nesterov`). Optimizer and loss are those that the
    network was compiled with, where it was; epochs and batch size have to be given or logged.
    """
    source.require_route(*ROUTES)
    name = _require_layers(model)
    outputs = forward(model, probe_rows(model.input_shape[-1]))
    if source.route == "last-layer":
        source.require_options()
        return _last_layer(model, name, outputs)
    try:
        return _trained(model, name, outputs, source)
    except ModelError as error:
        if source.route is not None or source.options:
            raise
        note = f"it could not be trained afresh: {str(error).removesuffix('.')}"
        return _last_layer(model, name, outputs, note)


def _require_layers(model: Any) -> str:
    """Refuse what is no chain or graph of layers from one table to one table."""
    # those in code of their own, or not built yet, have no inputs
    known = isinstance(model, keras.Model) and getattr(model, "inputs", None)
    shapes = (model.input_shape, model.output_shape) if known else ()
    if not shapes or not all(isinstance(shape, tuple) and len(shape) == 2 for shape in shapes):
        raise CannotRefit(
            f"{type(model).__name__} is no built Sequential or functional Keras model from one table of "
            "numbers to one"
        )
    name: str = model.name
    return name


def _last_layer(model: Any, name: str, outputs: Array, *notes: str) -> LastLayerLearner:
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    if dense and len(dense[-1].input.shape) == 2:
        below = keras.Model(model.inputs, dense[-1].input)
        kernel, *bias = map(keras.ops.convert_to_numpy, dense[-1].weights[:2])
        weight, shift = kernel.T, bias[0] if bias else np.zeros(kernel.shape[1])
        width = model.input_shape[-1]
        link = find_link(outputs, forward(below, probe_rows(width)) @ kernel + shift)
        if link is not None:
            split = Split(
                features=lambda matrix: forward(below, matrix),
                weight=weight,
                bias=shift,
                link=link,
                width=width,
            )
            return LastLayerLearner(split, name, notes)
    raise CannotRefit(
        f"{name} does not end with a dense layer, plain or followed by a sigmoid, softmax or "
        "log-softmax, that could be refitted without a trainer"
        + "".join(f"; {note}" for note in notes)
    )


def _trained(model: Any, name: str, outputs: Array, source: Source) -> KerasLearner:
    """Return the learner that trains the whole network, or say what keeps it from that."""
    route = source.require_route(*ROUTES)
    recipe = read_recipe(
        source,
        {
            "optimizer": lambda value: one_of(value, OPTIMIZERS),
            "loss": lambda value: one_of(value, LOSS_NAMES),
        },
    )
    compiled = model.get_compile_config() if model.compiled else None
    if compiled:  # it knows better than the names that a run logs
        recipe = recipe.without("optimizer", "loss", "weight_decay", "momentum", "nesterov")
        recipe = recipe.completed(COMPILED, **compiled_with(compiled))
    if route == "hot-start":
        recipe = recipe.without("epochs")
    if source.params.get("batch_size") == "None":
        recipe = recipe.completed("as Keras has it where it is left open", batch_size=32)
    missing = recipe.missing(REQUIRED)
    if missing:
        raise incomplete(route, missing, recipe)
    recipe = recipe.completed(DEFAULT, shuffle=True)
    made = KerasLearner(model, name, route, recipe, compiled or {}, outputs)
    made.notes += not_repeated(source.params)
    return made
