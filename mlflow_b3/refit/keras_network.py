"""Keras networks run, and given what training itself does not give them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.refit.network import as_columns

Array = NDArray[Any]


def forward(model: Any, matrix: Array) -> Array:
    """Return the outputs of a network."""
    return as_columns(np.asarray(model.predict(matrix, batch_size=4096, verbose=0)), len(matrix))


def _parts(model: Any) -> list[Any]:
    """Return the layers, those of networks within included."""
    return [
        part
        for layer in model.layers
        for part in (_parts(layer) if hasattr(layer, "layers") else [layer])
    ]


def _adapts(layer: Any) -> bool:
    """Return whether a layer has looked at data before training, and not been told what to know."""
    return hasattr(layer, "adapt") and getattr(layer, "input_mean", None) is None


def _on_input(layer: Any, model: Any) -> bool:
    return any(layer is part for part in model.layers) and layer.input is model.inputs[0]


def adapted(model: Any) -> list[str]:
    """Return the layers that are adapted to the rows of each refit."""
    return [part.name for part in _parts(model) if _adapts(part) and _on_input(part, model)]


def kept(model: Any) -> list[str]:
    """Return the layers that keep what they were logged with."""
    return [part.name for part in _parts(model) if _stays(part, model)]


def _stays(layer: Any, model: Any) -> bool:
    """Return whether a layer keeps its logged weights: frozen, or adapted to what is not known."""
    frozen = bool(layer.weights) and not layer.trainable
    return frozen or (_adapts(layer) and not _on_input(layer, model))


def settle(model: Any, logged: Any, matrix: Array) -> None:
    """Give a new copy what training itself would not: adapted layers and frozen weights."""
    for part, before in zip(_parts(model), _parts(logged), strict=True):
        if _stays(before, logged):
            part.set_weights(before.get_weights())
        elif _adapts(before):
            part.adapt(matrix)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use random numbers, and with PyTorch one thread, that leave the user's own as they were."""
    own, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - Keras uses it
    try:
        if keras.backend.backend() == "torch":
            from mlflow_b3.refit.torch_network import quiet

            with quiet():
                keras.utils.set_random_seed(seed)
                yield
        else:
            keras.utils.set_random_seed(seed)
            yield
    finally:
        random.setstate(own)
        np.random.set_state(legacy)  # noqa: NPY002
