"""How a PyTorch network is trained with a recipe."""

import copy
import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Rows
from mlflow_b3.refit.network import (
    FRESH,
    HOT_START,
    NetworkLearner,
    as_matrix,
    normalised,
    seen_kind,
)
from mlflow_b3.refit.recipe import GIVEN, Recipe, plain
from mlflow_b3.refit.torch_network import Examined, kept, quiet, reset, run

#: The losses a network can be trained with, each with its function and what it makes of outputs.
LOSSES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "cross_entropy": (F.cross_entropy, ("logits", "log-probabilities", "probabilities")),
    "nll": (F.nll_loss, ("log-probabilities",)),
    "bce_with_logits": (F.binary_cross_entropy_with_logits, ("logits",)),
    "bce": (F.binary_cross_entropy, ("probabilities",)),
    "mse": (F.mse_loss, ("values",)),
    "l1": (F.l1_loss, ("values",)),
    "huber": (F.huber_loss, ("values",)),
    "smooth_l1": (F.smooth_l1_loss, ("values",)),
}
SEVERAL = ("cross_entropy", "nll")  # those for more than one output column
ALIASES = {
    "binarycrossentropywithlogits": "bce_with_logits",
    "binarycrossentropy": "bce",
    "meansquarederror": "mse",
    "mae": "l1",
    "meanabsoluteerror": "l1",
}
LOSS_NAMES = {
    **{plain(name): name for name in LOSSES},
    **{f"{plain(name)}loss": name for name in LOSSES},  # as PyTorch's classes and functions
    **ALIASES,
}
#: LBFGS wants a function instead of a step, and SparseAdam sparse gradients.
OPTIMIZERS = {
    plain(name): name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and issubclass(value, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


def output_kind(seen: Examined, loss: str) -> str:
    """Return what the output columns are for a network trained with a loss."""
    kinds = LOSSES[loss][1]
    if (loss in SEVERAL) != (seen.columns > 1):
        fitting = [name for name in LOSSES if (name in SEVERAL) == (seen.columns > 1)]
        raise ModelError(
            f"loss={loss!r} does not fit a network with {seen.columns} output "
            f"column{'s' if seen.columns > 1 else ''}; use one of {', '.join(map(repr, fitting))}."
        )
    kind = seen_kind(seen.outputs) if seen.columns > 1 else kinds[0]
    # numbers of a linear layer may lie between 0 and 1 by chance
    linear = seen.split is not None and seen.split.link == "logits"
    within = not linear and bool(((seen.outputs >= 0) & (seen.outputs <= 1)).all())
    doubled = seen.split is not None and seen.split.link == "probabilities"
    if kind not in kinds or (loss == "bce" and not within):
        raise ModelError(
            f"loss={loss!r} needs outputs that are {kinds[0]}, which those of the network are not."
        )
    if loss == "bce_with_logits" and doubled:
        raise ModelError(
            "loss='bce_with_logits' is for outputs before the sigmoid, but the network ends with "
            "one; use 'bce'."
        )
    return kind


class TorchLearner(NetworkLearner):
    """Trains a PyTorch network with a recipe.

    Parameters
    ----------
    seen : Examined
    name : str
        What the report calls the network.
    route : {"fresh", "hot-start"}
    recipe : Recipe
        Complete.
    device : str
        Where it is trained.

    Notes
    -----
    Rows come in batches as from a `DataLoader`, with one thread. A last batch of a single row is
    left out where the network has batch normalisation, which it would break.
    """

    def __init__(
        self, seen: Examined, name: str, route: str, recipe: Recipe, device: Any = "cpu"
    ) -> None:
        values = recipe.values
        super().__init__(
            route,
            kind=output_kind(seen, values["loss"]),
            columns=seen.columns,
            width=seen.width,
            dtype=seen.dtype,
        )
        self.name = name
        self._network = seen.network
        self._loss, self._epochs = values["loss"], values["epochs"]
        self._batch, self._shuffle = values["batch_size"], values["shuffle"]
        self._optimizer = values["optimizer"]
        self._settings = {"lr": values["learning_rate"], **_accepted(recipe)}
        self._device = _device(device)
        self.parallel = self._device == "cpu"
        self.notes = (recipe.note(route), *self._further_notes(route))

    def _further_notes(self, route: str) -> tuple[str, ...]:
        notes = [
            f"other settings of {self._optimizer}, and schedules, early stopping and class weights "
            "if there were any, are not known: PyTorch's own defaults and none"
        ]
        if self._loss == "cross_entropy" and self._kind == "probabilities":
            notes.append("cross_entropy is applied to probabilities, as the network returns them")
        if route == "hot-start":
            return (*notes, HOT_START)
        notes += [
            FRESH,
            "first weights are those of reset_parameters, whatever the network's own code did",
        ]
        same = kept(self._network)
        if same:
            self.strength = "lower-bound"
            listed = ", ".join(same[:5]) + (" and others" if len(same) > 5 else "")
            notes.append(f"frozen parameters and buffers keep their logged values: {listed}")
        return tuple(notes)

    def forward(self, X: Any) -> NDArray[Any]:
        """Return the outputs of the logged network."""
        return run(self._network, X)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows; without a seed, with seed 0."""
        matrix = as_matrix(rows.X, self._dtype)
        _, coded = self._coded(rows.target)
        with quiet(0 if seed is None else seed, self._device):
            network = copy.deepcopy(self._network)
            if self.route == "fresh":
                reset(network)
            network.to(self._device).train()
            self._fit(network, matrix, coded, normalised(rows.weight))
        network.eval()
        return self._predictor(lambda X: run(network, X, self._device), rows.target)

    def _fit(
        self,
        network: Any,
        matrix: NDArray[Any],
        coded: NDArray[Any],
        weight: NDArray[np.float32] | None,
    ) -> None:
        several = self._loss in SEVERAL
        truth = coded if several else coded.astype(self._dtype)
        tensors = [torch.as_tensor(part, device=self._device) for part in (matrix, truth)]
        if weight is not None:
            tensors.append(torch.as_tensor(weight, device=self._device))
        trainable = [p for p in network.parameters() if p.requires_grad]
        optimizer = getattr(torch.optim, self._optimizer)(trainable, **self._settings)
        batches = self._batches(network, TensorDataset(*tensors))
        function = LOSSES[self._loss][0]
        for _ in range(self._epochs):
            for X, y, *w in batches:
                optimizer.zero_grad()
                outputs = network(X)
                given = outputs if several else outputs.reshape(len(y))
                loss = (
                    (function(given, y, reduction="none") * w[0]).mean()
                    if w
                    else function(given, y)
                )
                loss.backward()
                optimizer.step()

    def _batches(self, network: Any, rows: Any) -> Any:
        size = self._batch or len(rows)
        alone = len(rows) > size and len(rows) % size == 1
        normalises = any(
            isinstance(part, nn.modules.batchnorm._BatchNorm) for part in network.modules()
        )
        order = RandomSampler(rows) if self._shuffle else SequentialSampler(rows)
        # whole batches at once: the order of a usual DataLoader, without its work on single rows
        sampler = BatchSampler(order, size, drop_last=alone and normalises)
        return DataLoader(rows, sampler=sampler, batch_size=None)


def _accepted(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that the optimizer takes; the user's must all be among them."""
    optimizer = recipe.values["optimizer"]
    known = inspect.signature(getattr(torch.optim, optimizer)).parameters
    settings = recipe.settings()
    for name in settings:
        if name not in known and recipe.origins[name] == GIVEN:
            raise InputError(
                f"refit_options {name!r} is nothing that the optimizer {optimizer} takes."
            )
    return {name: value for name, value in settings.items() if name in known}


def _device(name: Any) -> str:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InputError(
            f"refit_options device={name!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    return str(name)
