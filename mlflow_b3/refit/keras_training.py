"""How a Keras network is trained with a recipe."""

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Rows
from mlflow_b3.refit.keras_network import adapted, copied, forward, kept, renewed, seeded
from mlflow_b3.refit.network import (
    FRESH,
    HOT_START,
    NetworkLearner,
    as_matrix,
    normalised,
    seen_kind,
)
from mlflow_b3.refit.recipe import GIVEN, Recipe, plain

Array = NDArray[Any]
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
