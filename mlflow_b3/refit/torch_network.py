"""PyTorch networks watched and taken apart: their width, their last layer, their first weights."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import CannotRefit
from mlflow_b3.refit.last_layer import Split
from mlflow_b3.refit.network import as_columns, find_link, probe_rows

Array = NDArray[Any]
#: A function that runs a network on rows and returns its outputs and the inputs, weight and bias of
#: the last linear layer that was used, if one was.
Watch = Callable[[Any, Any], tuple[Any, tuple[Any, Any, Any] | None]]


@contextmanager
def quiet(seed: int | None = None, device: str = "cpu") -> Iterator[None]:
    """Use one thread and, with a seed, random numbers that leave the user's own as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    others = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=others):
            if seed is not None:
                torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A network and what was seen when it was run.

    Attributes
    ----------
    network : torch.nn.Module
        In the form in which it predicts, on the CPU; a copy of its own.
    width, columns : int
        How many features it takes and how many outputs it gives.
    outputs : numpy.ndarray
        Its outputs for some rows of random numbers.
    split : Split or None
        The network cut before its last linear layer, where that is possible.
    exported : bool
        It is a graph of operations, as in MLflow's format pt2, and cannot be trained.
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


def examine(model: Any) -> Examined:
    """Run a network on random rows and see what it is made of."""
    exported = isinstance(model, fx.GraphModule)
    # a graph has no mode to change, and is only read
    network = model if exported else copy.deepcopy(model).cpu().eval()
    parameters = list(network.parameters())
    wide = bool(parameters) and parameters[0].dtype == torch.float64
    dtype = np.float64 if wide else np.float32
    watch = _watch_graph if exported else _watch_modules
    problems = []
    for width in dict.fromkeys(int(p.shape[-1]) for p in parameters if p.ndim):
        rows = torch.as_tensor(probe_rows(width).astype(dtype))
        try:
            with quiet(), torch.no_grad():
                outputs, last = watch(network, rows)
        except Exception as error:  # foreign code, and a width that may be wrong
            problems.append(f": {type(error).__name__}: {error}")
            continue
        if isinstance(outputs, torch.Tensor):
            given = as_columns(outputs.numpy(), len(rows))
            split = _split(network, watch, given, last, width, dtype)
            return Examined(
                network=network,
                width=width,
                outputs=given,
                split=split,
                exported=exported,
                dtype=dtype,
            )
    raise CannotRefit(
        f"{type(model).__name__} does not turn one table of numbers into one table of numbers, "
        "which is what can be refitted here" + "".join(problems[:1])
    )


def run(network: Any, matrix: Array, device: str = "cpu") -> Array:
    """Return the outputs of a network that is in the form in which it predicts."""
    with quiet(), torch.no_grad():
        outputs = network(torch.as_tensor(matrix, device=device))
    return as_columns(outputs.cpu().numpy(), len(matrix))


def _watch_modules(network: Any, rows: Any) -> tuple[Any, tuple[Any, Any, Any] | None]:
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


class _Watcher(fx.Interpreter):  # type: ignore[misc]
    """Runs an exported graph and keeps the arguments of its last linear operation."""

    last: tuple[Any, ...] | None = None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.linear.default:
            self.last = args
        return super().call_function(target, args, kwargs)


def _watch_graph(network: Any, rows: Any) -> tuple[Any, tuple[Any, Any, Any] | None]:
    watcher = _Watcher(network)
    outputs = watcher.run(rows)
    if watcher.last is None:
        return outputs, None
    features, weight, *bias = watcher.last
    return outputs, (features, weight, bias[0] if bias else None)


def _split(
    network: Any, watch: Watch, outputs: Array, last: Any, width: int, dtype: Any
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
            _, seen = watch(network, torch.as_tensor(matrix))
        assert seen is not None
        given: Array = seen[0].numpy()
        return given

    return Split(features=features, weight=weight, bias=bias, link=link, width=width, dtype=dtype)


def require_resettable(network: Any) -> None:
    """Refuse a network with parameters that nobody knows how to initialise."""
    for name, part in network.named_modules():
        own = [key for key, p in part.named_parameters(recurse=False) if p.requires_grad]
        if own and not hasattr(part, "reset_parameters"):
            where = f"{name}.{own[0]}" if name else own[0]
            raise ModelError(
                f"refit='fresh' cannot initialise the parameter {where!r}: {type(part).__name__} has "
                "no reset_parameters. Give it one, or a trainer."
            )


def kept(network: Any) -> list[str]:
    """Return the parameters and buffers that a reset leaves as they were logged."""
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
    """Initialise all parameters but frozen ones, in the order in which layers are made."""
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
