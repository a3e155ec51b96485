"""Keras networks: trained afresh, from their logged weights, or in their last layer only."""

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import CannotRefit, Learner, Source
from mlflow_b3.refit.keras_network import forward
from mlflow_b3.refit.keras_training import (
    COMPILED,
    LOSS_NAMES,
    OPTIMIZERS,
    KerasLearner,
    compiled_with,
)
from mlflow_b3.refit.last_layer import LastLayerLearner, Split
from mlflow_b3.refit.network import ROUTES, find_link, probe_rows
from mlflow_b3.refit.recipe import DEFAULT, incomplete, not_repeated, one_of, read_recipe
from mlflow_b3.refit.registry import load_native

Array = NDArray[Any]
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
