"""PyTorch networks: routes `fresh`, `hot-start` (from the logged weights) and `last-layer`."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

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

# --- Inspect a network: its width, its last layer, its initial weights

Array = NDArray[Any]
#: A function that runs a network on rows and returns its outputs, and the inputs, weight and bias of
#: the last linear layer, if there is one.
Trace = Callable[[Any, Any], tuple[Any, tuple[Any, Any, Any] | None]]


@contextmanager
def quiet(seed: int | None = None, device: str = "cpu") -> Iterator[None]:
    """Use one thread. With a seed, use separate random numbers and restore the user's state."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    devices = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class InspectedNetwork:
    """A network and the results of a trial run.

    Attributes
    ----------
    network : torch.nn.Module
        A copy in evaluation mode, on the CPU.
    width, columns : int
        Number of features and of output columns.
    outputs : numpy.ndarray
        Its outputs for some rows of random numbers.
    split : Split or None
        The network cut before its last linear layer, if that is possible.
    exported : bool
        Whether it is a graph of operations, as in MLflow's format pt2, which cannot be trained.
    dtype : numpy dtype
        Of its parameters.
    """

    network: Any
    width: int
    outputs: Array
    split: Split | None
    exported: bool
    dtype: Any

    @property
    def columns(self) -> int:
        """Number of output columns."""
        return int(self.outputs.shape[1])


def inspect_network(model: Any) -> InspectedNetwork:
    """Run a network on random rows and find its width and its last layer."""
    exported = isinstance(model, fx.GraphModule)
    # a graph has no mode to change, and is not modified
    network = model if exported else copy.deepcopy(model).cpu().eval()
    parameters = list(network.parameters())
    wide = bool(parameters) and parameters[0].dtype == torch.float64
    dtype = np.float64 if wide else np.float32
    trace = _trace_graph if exported else _trace_modules
    problems = []
    for width in dict.fromkeys(int(p.shape[-1]) for p in parameters if p.ndim):
        rows = torch.as_tensor(probe_rows(width).astype(dtype))
        try:
            with quiet(), torch.no_grad():
                outputs, last = trace(network, rows)
        except Exception as error:  # the width may be wrong, and custom code may raise anything
            problems.append(f": {type(error).__name__}: {error}")
            continue
        if isinstance(outputs, torch.Tensor):
            given = as_columns(outputs.numpy(), len(rows))
            split = _split(network, trace, given, last, width, dtype)
            return InspectedNetwork(
                network=network,
                width=width,
                outputs=given,
                split=split,
                exported=exported,
                dtype=dtype,
            )
    raise CannotRefit(
        f"{type(model).__name__} does not map one table of numbers to one table of numbers, "
        "which a refit needs" + "".join(problems[:1])
    )


def run(network: Any, matrix: Array, device: str = "cpu") -> Array:
    """Return the outputs of a network in evaluation mode."""
    with quiet(), torch.no_grad():
        outputs = network(torch.as_tensor(matrix, device=device))
    return as_columns(outputs.cpu().numpy(), len(matrix))


def _trace_modules(network: Any, rows: Any) -> tuple[Any, tuple[Any, Any, Any] | None]:
    seen = []
    hooks = [
        part.register_forward_pre_hook(lambda part, given: seen.append((part, given[0])))
        for part in network.modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        outputs = network(rows)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        return outputs, None
    part, features = seen[-1]
    return outputs, (features, part.weight, part.bias)


class _Tracer(fx.Interpreter):  # type: ignore[misc]
    """Runs an exported graph and records the arguments of its last linear operation."""

    last: tuple[Any, ...] | None = None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.linear.default:
            self.last = args
        return super().call_function(target, args, kwargs)


def _trace_graph(network: Any, rows: Any) -> tuple[Any, tuple[Any, Any, Any] | None]:
    tracer = _Tracer(network)
    outputs = tracer.run(rows)
    if tracer.last is None:
        return outputs, None
    features, weight, *bias = tracer.last
    return outputs, (features, weight, bias[0] if bias else None)


def _split(
    network: Any, trace: Trace, outputs: Array, last: Any, width: int, dtype: Any
) -> Split | None:
    """Return the network cut before its last linear layer, if it ends with one."""
    if last is None or last[0].ndim != 2 or len(last[0]) != len(outputs):
        return None
    weight = last[1].detach().numpy()
    bias = np.zeros(len(weight)) if last[2] is None else last[2].detach().numpy()
    link = find_link(outputs, last[0].numpy() @ weight.T + bias)
    if link is None:
        return None

    def features(matrix: Array) -> Array:
        with quiet(), torch.no_grad():
            _, traced = trace(network, torch.as_tensor(matrix))
        assert traced is not None
        given: Array = traced[0].numpy()
        return given

    return Split(features=features, weight=weight, bias=bias, link=link, width=width, dtype=dtype)


def require_resettable(network: Any) -> None:
    """Raise an error if a trainable parameter cannot be initialised again."""
    for name, part in network.named_modules():
        own = [key for key, p in part.named_parameters(recurse=False) if p.requires_grad]
        if own and not hasattr(part, "reset_parameters"):
            where = f"{name}.{own[0]}" if name else own[0]
            raise ModelError(
                f"refit='fresh' cannot initialise the parameter {where!r}: {type(part).__name__} has "
                "no reset_parameters. Add that method, or give a trainer."
            )


def unchanged_by_reset(network: Any) -> list[str]:
    """Return the parameters and buffers that `reset` leaves unchanged."""
    names = []
    for name, part in network.named_modules():
        resets = hasattr(part, "reset_parameters") and not _frozen(part)
        names += [
            f"{name}.{key}" if name else key
            for key, value in (
                *part.named_parameters(recurse=False),
                *part.named_buffers(recurse=False),
            )
            if not resets or (isinstance(value, nn.Parameter) and not value.requires_grad)
        ]
    return names


def reset(network: Any) -> None:
    """Initialise all parameters that are not frozen, in the order of the layers."""
    for part in network.children():
        reset(part)
    if not hasattr(network, "reset_parameters") or _frozen(network):
        return
    frozen = [
        (p, p.detach().clone()) for p in network.parameters(recurse=True) if not p.requires_grad
    ]
    network.reset_parameters()
    with torch.no_grad():
        for parameter, value in frozen:
            parameter.copy_(value)


def _frozen(part: Any) -> bool:
    own = list(part.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


# --- Train a network with a recipe

#: Training losses: the function, and the kinds of output it accepts.
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
#: Losses for more than one output column.
MULTI_COLUMN = ("cross_entropy", "nll")
ALIASES = {
    "binarycrossentropywithlogits": "bce_with_logits",
    "binarycrossentropy": "bce",
    "meansquarederror": "mse",
    "mae": "l1",
    "meanabsoluteerror": "l1",
}
LOSS_NAMES = {
    **{plain(name): name for name in LOSSES},
    **{f"{plain(name)}loss": name for name in LOSSES},  # names of PyTorch's classes and functions
    **ALIASES,
}
#: LBFGS needs a closure, and SparseAdam needs sparse gradients.
OPTIMIZERS = {
    plain(name): name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and issubclass(value, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


def output_kind(inspected: InspectedNetwork, loss: str) -> str:
    """Return the kind of the output columns of a network that was trained with this loss."""
    kinds = LOSSES[loss][1]
    several = inspected.columns > 1
    if (loss in MULTI_COLUMN) != several:
        fitting = [name for name in LOSSES if (name in MULTI_COLUMN) == several]
        raise ModelError(
            f"loss={loss!r} does not fit a network with {inspected.columns} output "
            f"column{'s' if several else ''}; use one of {', '.join(map(repr, fitting))}."
        )
    kind = infer_kind(inspected.outputs) if several else kinds[0]
    link = None if inspected.split is None else inspected.split.link
    # outputs of a linear layer may lie between 0 and 1 by chance
    within = link != "logits" and bool(((inspected.outputs >= 0) & (inspected.outputs <= 1)).all())
    if kind not in kinds or (loss == "bce" and not within):
        raise ModelError(
            f"loss={loss!r} needs outputs that are {kinds[0]}, but those of the network are not."
        )
    if loss == "bce_with_logits" and link == "probabilities":
        raise ModelError(
            "loss='bce_with_logits' is for outputs before the sigmoid, but the network ends with "
            "one; use 'bce'."
        )
    return kind


class TorchLearner(NetworkLearner):
    """Trains a PyTorch network with a recipe.

    Parameters
    ----------
    inspected : InspectedNetwork
    name : str
        The name of the network in reports.
    route : {"fresh", "hot-start"}
    recipe : Recipe
        Complete.
    device : str
        The device for training.

    Notes
    -----
    Batches are those of a `DataLoader`, in one thread. If the network has batch normalisation, a last
    batch of a single row is dropped, because it would raise an error.
    """

    def __init__(
        self,
        inspected: InspectedNetwork,
        name: str,
        route: str,
        recipe: Recipe,
        device: Any = "cpu",
    ) -> None:
        values = recipe.values
        super().__init__(
            route,
            kind=output_kind(inspected, values["loss"]),
            columns=inspected.columns,
            width=inspected.width,
            dtype=inspected.dtype,
        )
        self.name = name
        self._network = inspected.network
        self._loss, self._epochs = values["loss"], values["epochs"]
        self._batch, self._shuffle = values["batch_size"], values["shuffle"]
        self._optimizer = values["optimizer"]
        self._settings = {"lr": values["learning_rate"], **_optimizer_settings(recipe)}
        self._device = _device(device)
        self.parallel = self._device == "cpu"
        self.notes = (recipe.note(route), *self._further_notes(route))

    def _further_notes(self, route: str) -> tuple[str, ...]:
        notes = [
            f"other settings of {self._optimizer}, schedules, early stopping and class weights are not "
            "known: refits use PyTorch's defaults and none of these"
        ]
        if self._loss == "cross_entropy" and self._kind == "probabilities":
            notes.append("cross_entropy is applied to probabilities, as the network returns them")
        if route == "hot-start":
            return (*notes, HOT_START)
        notes += [
            FRESH,
            "initial weights are those of reset_parameters, even if the network's own code set others",
        ]
        unchanged = unchanged_by_reset(self._network)
        if unchanged:
            self.strength = "lower-bound"
            listed = ", ".join(unchanged[:5]) + (" and others" if len(unchanged) > 5 else "")
            notes.append(f"frozen parameters and buffers keep their logged values: {listed}")
        return tuple(notes)

    def forward(self, X: Any) -> NDArray[Any]:
        """Return the outputs of the logged network."""
        return run(self._network, X)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows. Without a seed, use seed 0."""
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
        several = self._loss in MULTI_COLUMN
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
        # indexes whole batches: same order as the default DataLoader, without its overhead per row
        sampler = BatchSampler(order, size, drop_last=alone and normalises)
        return DataLoader(rows, sampler=sampler, batch_size=None)


def _optimizer_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that the optimizer accepts. Raise an error for others from the user."""
    optimizer = recipe.values["optimizer"]
    known = inspect.signature(getattr(torch.optim, optimizer)).parameters
    settings = recipe.settings()
    for name in settings:
        if name not in known and recipe.origins[name] == GIVEN:
            raise InputError(
                f"refit_options {name!r} is not a setting of the optimizer {optimizer}."
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


# --- The flavour: routes `fresh`, `hot-start` and `last-layer`

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
    `shuffle`, `weight_decay`, `momentum`, `nesterov`) and `device`. The first five are required,
    from the options or from the run's parameters.
    """
    source.require_route(*ROUTES)
    if isinstance(model, torch.jit.ScriptModule) or not isinstance(model, nn.Module):
        raise CannotRefit(
            f"{type(model).__name__} is not a network of PyTorch modules that can be trained again"
        )
    inspected = inspect_network(model)
    name = "network" if inspected.exported else type(model).__name__
    if source.route == "last-layer":
        source.require_options()
        return _last_layer_learner(inspected, name)
    try:
        return _network_learner(inspected, name, source)
    except ModelError as error:
        if source.route is not None or source.options:
            raise
        note = f"it could not be trained from scratch: {str(error).removesuffix('.')}"
        return _last_layer_learner(inspected, name, note)


def _last_layer_learner(inspected: InspectedNetwork, name: str, *notes: str) -> LastLayerLearner:
    if inspected.split is None:
        raise CannotRefit(
            f"{name} does not end with a linear layer, plain or followed by a sigmoid, softmax or "
            "log-softmax, that could be refitted without a trainer"
            + "".join(f"; {note}" for note in notes)
        )
    return LastLayerLearner(inspected.split, name, notes)


def _network_learner(inspected: InspectedNetwork, name: str, source: Source) -> TorchLearner:
    """Return the learner of the whole network. Raise a `ModelError` if that is not possible."""
    route = source.require_route(*ROUTES)
    recipe = read_recipe(
        source,
        {
            "optimizer": lambda value: one_of(value, OPTIMIZERS),
            "loss": lambda value: one_of(value, LOSS_NAMES),
        },
        more=["device"],
    )
    if inspected.exported:
        raise ModelError(f"refit={route!r} is not possible: {EXPORTED}.")
    if route == "hot-start":
        recipe = recipe.without("epochs")
    if inspected.columns > 1 and infer_kind(inspected.outputs) != "probabilities":
        recipe = recipe.completed("from the network's output columns", loss="cross_entropy")
    missing = recipe.missing(REQUIRED)
    if missing:
        raise incomplete(route, missing, recipe)
    if not any(p.requires_grad for p in inspected.network.parameters()):
        raise ModelError(f"refit={route!r}: all parameters of {name} are frozen (requires_grad).")
    if route == "fresh":
        require_resettable(inspected.network)
    recipe = recipe.completed(DEFAULT, shuffle=True)
    device = source.options.get("device", "cpu")
    learner = TorchLearner(inspected, name, route, recipe, device=device)
    learner.notes += not_repeated(source.params)
    return learner
