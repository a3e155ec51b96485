"""Keras networks: routes `fresh`, `hot-start` (from the logged weights) and `last-layer`."""

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.errors import CannotRefit, InputError, ModelError
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import Learner, Rows, Source
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
    infer_kind,
    normalised,
    not_repeated,
    one_of,
    plain,
    probe_rows,
    read_recipe,
)

# --- Run a network, copy it, and initialise it again

Array = NDArray[Any]


def forward(model: Any, matrix: Array) -> Array:
    """Return the outputs of a network."""
    with _ignore_warnings():
        outputs = np.asarray(model.predict(matrix, batch_size=4096, verbose=0))
    return as_columns(outputs, len(matrix))


def _parts(model: Any) -> list[Any]:
    """Return all layers, including those of nested networks."""
    return [
        part
        for layer in model.layers
        for part in (_parts(layer) if hasattr(layer, "layers") else [layer])
    ]


def _adapts(layer: Any) -> bool:
    """Return whether a layer may have been adapted to data before training."""
    return hasattr(layer, "adapt") and getattr(layer, "input_mean", None) is None


def _can_adapt_again(layer: Any, model: Any) -> bool:
    """Return whether a layer can be adapted again: only a normalisation of the inputs can."""
    fed = any(layer is part for part in model.layers) and layer.input is model.inputs[0]
    return fed and _adapts(layer) and isinstance(layer, keras.layers.Normalization)


def adapted(model: Any) -> list[str]:
    """Return the layers that are adapted to the rows of each refit."""
    return [part.name for part in _parts(model) if _can_adapt_again(part, model)]


def unchanged(model: Any) -> list[str]:
    """Return the layers that keep their logged weights."""
    return [part.name for part in _parts(model) if _keeps_weights(part, model)]


def _keeps_weights(layer: Any, model: Any) -> bool:
    """Return whether a layer keeps its logged weights: frozen, or adapted to unknown data."""
    frozen = bool(layer.weights) and not layer.trainable
    return frozen or (_adapts(layer) and not _can_adapt_again(layer, model))


def copied(model: Any) -> Any:
    """Return a copy with the same weights and without optimizer state."""
    copy = keras.models.clone_model(model)
    for part, before in zip(_parts(copy), _parts(model), strict=True):
        _copy_weights(part, before)
    return copy


def reinitialised(model: Any, matrix: Array) -> Any:
    """Return a copy with new weights.

    Layers that are adapted to data are adapted to these rows. Frozen layers keep their weights.
    """
    copy = keras.models.clone_model(model)
    for part, before in zip(_parts(copy), _parts(model), strict=True):
        if _keeps_weights(before, model):
            _copy_weights(part, before)
        elif _adapts(before):
            part.adapt(matrix)
    return copy


def _copy_weights(layer: Any, before: Any) -> None:
    layer.set_weights(before.get_weights())
    if isinstance(layer, keras.layers.Normalization):  # caches values computed from its weights
        layer.finalize_state()


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Suppress a NumPy warning about Keras' own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use separate random numbers, and one thread with PyTorch. Restore the user's state."""
    own, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - Keras uses it
    with ExitStack() as stack:
        stack.callback(random.setstate, own)
        stack.callback(np.random.set_state, legacy)
        stack.enter_context(_ignore_warnings())
        if keras.backend.backend() == "torch":
            from mlflow_b3.refit.pytorch import quiet

            stack.enter_context(quiet())
        keras.utils.set_random_seed(seed)
        yield


# --- Train a network with a recipe

COMPILED = "from the compiled model"
#: Training losses, and the form of the target that each needs.
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
    """Return the optimizer, learning rate and loss of a compiled model, for the report."""
    optimizer = compiled["optimizer"]
    rate = optimizer["config"].get("learning_rate", "that of the inner optimizer")
    if isinstance(rate, dict):  # a schedule, which is repeated unchanged
        rate = rate["class_name"]
    loss = _only(compiled["loss"])
    return {
        "optimizer": optimizer["class_name"],
        "learning_rate": rate,
        "loss": _loss_name(loss),
    }


def _only(loss: Any) -> Any:
    """Return the loss of the single output, which may be in a list."""
    return loss[0] if isinstance(loss, list) and len(loss) == 1 else loss


def _loss_name(loss: Any) -> str:
    try:
        found = keras.losses.get(loss)
        own = getattr(found, "__name__", type(found).__name__)
    except (TypeError, ValueError) as error:
        raise ModelError(f"its loss {loss!r} cannot be restored: {error}") from error
    if plain(own) not in LOSS_NAMES:
        raise ModelError(
            f"it was compiled with the loss {own!r}, whose form of the target is not known; "
            f"known are {', '.join(TARGETS)}. Give a trainer."
        )
    return LOSS_NAMES[plain(own)]


def _output_kind(model: Any, outputs: Array, loss: Any) -> str:
    """Return the kind of the output columns of a network that was trained with this loss."""
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
        probabilities = infer_kind(outputs) == "probabilities"
    else:
        # outputs of a linear layer may lie between 0 and 1 by chance
        probabilities = bool(((outputs >= 0) & (outputs <= 1)).all()) and (
            last is keras.activations.sigmoid or not (logits or last is keras.activations.linear)
        )
    if logits == probabilities:
        raise ModelError(
            f"loss={name!r} with from_logits={logits} does not fit the outputs of the network, which "
            f"are {'probabilities' if probabilities else 'no probabilities'}. Compile it with "
            f"from_logits={not logits}."
        )
    return "logits" if logits else "probabilities"


class KerasLearner(NetworkLearner):
    """Trains a Keras network with a recipe.

    Parameters
    ----------
    model : keras.Model
    name : str
        The name of the network in reports.
    route : {"fresh", "hot-start"}
    recipe : Recipe
        Complete.
    compiled : mapping
        The configuration that it was compiled with; empty if it was not compiled.
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
            "metrics": [],  # None would keep those of the copy
        }
        self.notes = (
            recipe.note(route),
            "callbacks such as early stopping are not known and not repeated",
            *((HOT_START,) if route == "hot-start" else self._fresh_notes()),
        )

    def _fresh_notes(self) -> tuple[str, ...]:
        notes = [FRESH]
        again, same = adapted(self._model), unchanged(self._model)
        if again:
            notes.append(f"adapted again to the rows of each refit: {', '.join(again)}")
        if same:
            self.strength = "lower-bound"
            notes.append(f"layers that keep their logged weights: {', '.join(same)}")
        return tuple(notes)

    def forward(self, X: Any) -> Array:
        """Return the outputs of the logged network."""
        return forward(self._model, X)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows. Without a seed, use seed 0."""
        matrix = as_matrix(rows.X, self._dtype)
        _, coded = self._coded(rows.target)
        if self._form == "one-hot":
            coded = np.eye(self._columns, dtype=np.float32)[coded]
        elif self._form == "column":
            coded = coded.astype(np.float32)
        with seeded(0 if seed is None else seed):
            fresh = self.route == "fresh"
            model = reinitialised(self._model, matrix) if fresh else copied(self._model)
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
    """Return the configuration of a new optimizer, by default the compiled one."""
    values, origins = recipe.values, recipe.origins
    if origins["optimizer"] == COMPILED:
        optimizer = dict(compiled["optimizer"])
    else:
        optimizer = keras.optimizers.serialize(keras.optimizers.get(values["optimizer"]))
    new = recipe.settings()
    if origins["learning_rate"] != COMPILED:
        new["learning_rate"] = values["learning_rate"]
    elif origins["optimizer"] != COMPILED:
        new["learning_rate"] = compiled["optimizer"]["config"]["learning_rate"]
    wrong = [name for name in new if name not in optimizer["config"]]
    if wrong and origins[wrong[0]] == GIVEN:
        raise InputError(
            f"refit_options {wrong[0]!r} is not a setting of the optimizer {values['optimizer']}."
        )
    known = {name: value for name, value in new.items() if name in optimizer["config"]}
    return {**optimizer, "config": {**optimizer["config"], **known}}


# --- The flavour: routes `fresh`, `hot-start` and `last-layer`

REQUIRED = ("epochs", "batch_size", "optimizer", "learning_rate", "loss")


def load(source: Source) -> Any:
    """Load the network, logged by `mlflow.keras` or by `mlflow.tensorflow`."""
    return load_native("keras" if "keras" in source.flavours else "tensorflow", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a network.

    The options are those of a recipe (`epochs`, `learning_rate`, `batch_size`, `optimizer`, `loss`,
    `shuffle`, `weight_decay`, `momentum`, `nesterov`). The optimizer and the loss default to those
    that the network was compiled with. Epochs and batch size must be given or logged.
    """
    source.require_route(*ROUTES)
    name = _require_layers(model)
    outputs = forward(model, probe_rows(model.input_shape[-1]))
    if source.route == "last-layer":
        source.require_options()
        return _last_layer_learner(model, name, outputs)
    try:
        return _network_learner(model, name, outputs, source)
    except ModelError as error:
        if source.route is not None or source.options:
            raise
        note = f"it could not be trained from scratch: {str(error).removesuffix('.')}"
        return _last_layer_learner(model, name, outputs, note)


def _require_layers(model: Any) -> str:
    """Return the name of a model that maps one table to one table; raise an error for others."""
    # subclassed models and models that are not built have no inputs
    known = isinstance(model, keras.Model) and getattr(model, "inputs", None)
    shapes = (model.input_shape, model.output_shape) if known else ()
    if not shapes or not all(isinstance(shape, tuple) and len(shape) == 2 for shape in shapes):
        raise CannotRefit(
            f"{type(model).__name__} is not a built Sequential or functional Keras model that maps one "
            "table of numbers to one table of numbers"
        )
    name: str = model.name
    return name


def _last_layer_learner(model: Any, name: str, outputs: Array, *notes: str) -> LastLayerLearner:
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


def _network_learner(model: Any, name: str, outputs: Array, source: Source) -> KerasLearner:
    """Return the learner of the whole network. Raise a `ModelError` if that is not possible."""
    route = source.require_route(*ROUTES)
    recipe = read_recipe(
        source,
        {
            "optimizer": lambda value: one_of(value, OPTIMIZERS),
            "loss": lambda value: one_of(value, LOSS_NAMES),
        },
    )
    compiled = model.get_compile_config() if model.compiled else None
    if compiled:  # more reliable than the names that a run logs
        recipe = recipe.without("optimizer", "loss", "weight_decay", "momentum", "nesterov")
        recipe = recipe.completed(COMPILED, **compiled_with(compiled))
    if route == "hot-start":
        recipe = recipe.without("epochs")
    if source.params.get("batch_size") == "None":
        recipe = recipe.completed("by Keras' default", batch_size=32)
    missing = recipe.missing(REQUIRED)
    if missing:
        raise incomplete(route, missing, recipe)
    recipe = recipe.completed(DEFAULT, shuffle=True)
    learner = KerasLearner(model, name, route, recipe, compiled or {}, outputs)
    learner.notes += not_repeated(source.params)
    return learner
