"""Ray: refits by actors, with the table in Ray's object store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.joblib.ray_backend import RayBackend
from ray.util.multiprocessing import Pool

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.refits import Outcome, Refitter, Task
from mlflow_b3.measurement.runner import ClusterError, Connection, Lost, run_in_turn, told_to_joblib

#: A refit takes a core. A worker that died comes back with what it was given, as Dask has it: a batch
#: that has cost four workers is lost.
ACTOR = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": 3}


@contextmanager
def connect(address: str | None, name: str) -> Iterator[Connection]:
    """Connect to Ray, or use the Ray of this process."""
    with _initialised(address, name):
        capacity = int(ray.cluster_resources().get("CPU", 0))
        if not capacity:
            raise ClusterError(f"{name}: this Ray has no CPU to run refits on; add a node.")

        def backend(refitter: Refitter) -> tuple[Any, Any, Callable[..., Any]]:
            return _Backend(), _Reference(ray.put(refitter)), run_stored

        yield Connection(capacity=capacity, backend=backend, alive=lambda: bool(_answers()))


@contextmanager
def _initialised(address: str | None, name: str) -> Iterator[None]:
    if ray.is_initialized():
        present = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", present) and not str(address).startswith("ray:"):
            raise InputError(
                f"{name}: this process is connected to the Ray at {present!r}, and can be to one "
                "only. Leave out the address, or call ray.shutdown() first."
            )
        yield
        return
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise ClusterError(
            f"{name}: no Ray answers: {error}. Give 'host:6379' or 'ray://host:10001', or 'local' to "
            "start one on this machine."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _answers() -> bool:
    try:
        return bool(ray.nodes())
    except Exception:  # Ray has many ways to say that it is gone
        return False


class _Reference:
    """Hides a reference from Ray, which would fetch the table anew for every call."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Refitter:
    refitter: Refitter = ray.get(reference)
    return refitter


def run_stored(shared: _Reference, tasks: Sequence[Task]) -> list[Outcome]:
    """Run a batch with the refitter that a reference stands for."""
    return run_in_turn(_fetch(shared.reference), tasks)


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's backend, made to give results as they come and to say which batches were lost.

    Its own `configure` runs a single worker's batches here, not on Ray, and changes joblib's pools
    for the whole process.
    """

    supports_return_generator = True

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self._pool = Pool(processes=n_jobs, ray_remote_args=ACTOR)
        self.parallel = parallel
        return told_to_joblib(n_jobs)

    def effective_n_jobs(self, n_jobs: int) -> int:
        return told_to_joblib(n_jobs)

    def retrieve_result_callback(self, out: Any) -> Any:
        if isinstance(out, RayError):
            return [Lost(f"{type(out).__name__}: {str(out).splitlines()[0]}")]
        return super().retrieve_result_callback(out)
