"""PyTorch networks: trained afresh, from their logged weights, or in their last layer only."""

from typing import Any

import torch
from torch import nn

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import CannotRefit, Learner, Source
from mlflow_b3.refit.last_layer import LastLayerLearner
from mlflow_b3.refit.network import ROUTES, seen_kind
from mlflow_b3.refit.recipe import DEFAULT, incomplete, not_repeated, one_of, read_recipe
from mlflow_b3.refit.registry import load_native
from mlflow_b3.refit.torch_network import Examined, examine, require_resettable
from mlflow_b3.refit.torch_training import LOSS_NAMES, OPTIMIZERS, TorchLearner

REQUIRED = ("epochs", "learning_rate", "batch_size", "optimizer", "loss")
EXPORTED = (
    "it was logged in MLflow's format pt2, a graph of operations that cannot be trained. Log it with "
    "serialization_format='pickle', or give a trainer"
)


def load(source: Source) -> Any:
    """Load the network."""
    return load_native("pytorch", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a network.

    The options are those of a recipe (`epochs`, `learning_rate`, `batch_size`, `optimizer`, `loss`,
    `shuffle`, `weight_decay`, `momentum`, `nesterov`) and `device`; all have to be known, from the
    run's parameters if not given, but the last four.
    """
    source.require_route(*ROUTES)
    if isinstance(model, torch.jit.ScriptModule) or not isinstance(model, nn.Module):
        raise CannotRefit(
            f"{type(model).__name__} is no network of PyTorch modules that could be trained again"
        )
    seen = examine(model)
    name = "network" if seen.exported else type(model).__name__
    if source.route == "last-layer":
        source.require_options()
        return _last_layer(seen, name)
    try:
        return _trained(seen, name, source)
    except ModelError as error:
        if source.route is not None or source.options:
            raise
        return _last_layer(
            seen, name, f"it could not be trained afresh: {str(error).removesuffix('.')}"
        )


def _last_layer(seen: Examined, name: str, *notes: str) -> LastLayerLearner:
    if seen.split is None:
        raise CannotRefit(
            f"{name} does not end with a linear layer, plain or followed by a sigmoid, softmax or "
            "log-softmax, that could be refitted without a trainer"
            + "".join(f"; {note}" for note in notes)
        )
    return LastLayerLearner(seen.split, name, notes)


def _trained(seen: Examined, name: str, source: Source) -> TorchLearner:
    """Return the learner that trains the whole network, or say what keeps it from that."""
    route = source.require_route(*ROUTES)
    recipe = read_recipe(
        source,
        {
            "optimizer": lambda value: one_of(value, OPTIMIZERS),
            "loss": lambda value: one_of(value, LOSS_NAMES),
        },
        more=["device"],
    )
    if seen.exported:
        raise ModelError(f"refit={route!r} is not possible: {EXPORTED}.")
    if route == "hot-start":
        recipe = recipe.without("epochs")
    if seen.columns > 1 and seen_kind(seen.outputs) != "probabilities":
        recipe = recipe.completed("from the network's output columns", loss="cross_entropy")
    missing = recipe.missing(REQUIRED)
    if missing:
        raise incomplete(route, missing, recipe)
    if not any(p.requires_grad for p in seen.network.parameters()):
        raise ModelError(f"refit={route!r}: all parameters of {name} are frozen (requires_grad).")
    if route == "fresh":
        require_resettable(seen.network)
    recipe = recipe.completed(DEFAULT, shuffle=True)
    made = TorchLearner(seen, name, route, recipe, device=source.options.get("device", "cpu"))
    made.notes += not_repeated(source.params)
    return made
