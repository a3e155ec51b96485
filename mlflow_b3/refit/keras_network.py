"""Keras networks run, and given what training itself does not give them."""

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.refit.network import as_columns

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
            from mlflow_b3.refit.torch_network import quiet

            stack.enter_context(quiet())
        keras.utils.set_random_seed(seed)
        yield
