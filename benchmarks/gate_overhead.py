"""What the gate costs a server: ordinary calls with and without it, in one run.

Two real servers answer the same requests in turns, so that whatever else the machine does meets both
alike. A third one without the gate says how much two equal servers differ, which is the noise. Times
are lower quartiles: what else the machine does can only make a call slower. A second table has the
processor time of the servers, which other programs disturb less (Linux only).

    python benchmarks/gate_overhead.py --rounds 300
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "services"))

from real_services import mlflow_server

SERVERS = {"without": None, "with": "b3-gate", "without, again": None}
MODEL = b"flavors: {}\n"


class Caller:
    """One connection to a server, and what is called on it."""

    def __init__(self, port: int, group: int, backend: str) -> None:
        self.processes = [
            path for path in Path("/proc").glob("[0-9]*") if os.getpgid(int(path.name)) == group
        ]
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)
        made = self.call("POST", "experiments/create", {"name": uuid4().hex})
        self.experiment = made["experiment_id"]
        run = self.call("POST", "runs/create", {"experiment_id": self.experiment})
        self.run = run["run"]["info"]["run_id"]
        self.call("POST", "registered-models/create", {"name": "clinic"})
        logged = self.call("POST", "logged-models", {"experiment_id": self.experiment, "name": "m"})
        self.model = logged["model"]["info"]["model_id"]
        version = {"name": "clinic", "source": f"models:/{self.model}", "model_id": self.model}
        self.call("POST", "model-versions/create", version)
        self._register_champion(backend)
        self.connection.close()  # servers end connections that wait; it is opened again by itself

    def _register_champion(self, backend: str) -> None:
        """Register a model with files under a guarded alias, as if it had been there before the gate."""
        logged = self.call("POST", "logged-models", {"experiment_id": self.experiment, "name": "c"})
        model = logged["model"]["info"]["model_id"]
        for name in ("MLmodel", "model.skops", "conda.yaml", "python_env.yaml", "requirements.txt"):
            folder = f"{self.experiment}/models/{model}/artifacts"
            self.send("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{folder}/{name}", MODEL)
        self.call("POST", "registered-models/create", {"name": "served"})
        version = {"name": "served", "source": f"models:/{model}", "model_id": model}
        self.call("POST", "model-versions/create", version)
        SqlAlchemyStore(backend).set_registered_model_alias("served", "champion", "1")

    def call(self, method: str, path: str, content: Any) -> Any:
        """Return the answer of one of MLflow's routes."""
        return json.loads(
            self.send(method, f"/api/2.0/mlflow/{path}", json.dumps(content).encode())
        )

    def worked(self) -> float:
        """Return how many seconds the server has kept a processor busy."""
        tasks = (task for path in self.processes for task in path.glob("task/*/schedstat"))
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return what a server answers, which must be a success."""
        headers = {"Content-Type": "application/json"}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content


def get_version(caller: Caller) -> None:
    caller.send("GET", "/api/2.0/mlflow/model-versions/get?name=clinic&version=1")


def resolve_alias(caller: Caller) -> None:
    caller.send("GET", "/api/2.0/mlflow/registered-models/alias?name=served&alias=champion")


def search_versions(caller: Caller) -> None:
    caller.send("GET", "/ajax-api/2.0/mlflow/model-versions/search?filter=name%3D%27clinic%27")


def log_batch(caller: Caller) -> None:
    now = int(time.time() * 1000)
    metrics = [{"key": f"m{i}", "value": i, "timestamp": now, "step": 0} for i in range(20)]
    caller.call("POST", "runs/log-batch", {"run_id": caller.run, "metrics": metrics})


def set_alias(caller: Caller) -> None:
    asked = {"name": "clinic", "alias": "candidate", "version": "1"}
    caller.call("POST", "registered-models/alias", asked)


def set_tag(caller: Caller) -> None:
    asked = {"name": "clinic", "version": "1", "key": "reviewed", "value": "yes"}
    caller.call("POST", "model-versions/set-tag", asked)


def upload(caller: Caller) -> None:
    folder = f"{caller.experiment}/{caller.run}/artifacts"
    caller.send("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{folder}/plot.png", MODEL)


def upload_of_a_model(caller: Caller) -> None:
    folder = f"{caller.experiment}/models/{caller.model}/artifacts"
    caller.send("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{folder}/MLmodel", MODEL)


CALLS: dict[str, Callable[[Caller], None]] = {
    "get a version": get_version,
    "resolve a guarded alias": resolve_alias,
    "search versions": search_versions,
    "log a batch": log_batch,
    "set an unguarded alias": set_alias,
    "set a tag": set_tag,
    "upload a file": upload,
    "upload a model's file": upload_of_a_model,
}


Times = dict[str, dict[str, list[float]]]


def measure(callers: dict[str, Caller], rounds: int) -> tuple[Times, Times]:
    """Return the seconds of each call on each server, by the clock and of the processor."""
    order = random.Random(0)
    times: Times = {n: {s: [] for s in callers} for n in CALLS}
    work: Times = {n: {s: [] for s in callers} for n in CALLS}
    for number in range(rounds + 20):
        for name, call in CALLS.items():
            for server in order.sample(sorted(callers), len(callers)):
                before, start = callers[server].worked(), time.perf_counter()
                call(callers[server])
                seconds = time.perf_counter() - start
                if number >= 20:  # the first ones fill caches
                    times[name][server].append(seconds)
                    work[name][server].append(callers[server].worked() - before)
    return times, work


def log_model(
    callers: dict[str, Caller], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds that MLflow's client takes to log a whole model, and those of the server."""
    import mlflow
    from sklearn.naive_bayes import GaussianNB

    model = GaussianNB().fit([[0.0], [1.0]], [0, 1])
    order = random.Random(1)
    times: dict[str, list[float]] = {server: [] for server in callers}
    work: dict[str, list[float]] = {server: [] for server in callers}
    for number in range(rounds + 2):
        for server in order.sample(sorted(callers), len(callers)):
            mlflow.set_tracking_uri(f"http://127.0.0.1:{callers[server].connection.port}")
            mlflow.set_experiment(experiment_id=callers[server].experiment)
            with redirect_stdout(StringIO()), mlflow.start_run():
                before, start = callers[server].worked(), time.perf_counter()
                mlflow.sklearn.log_model(model, name="model", pip_requirements=[])
                seconds = time.perf_counter() - start
                if number >= 2:
                    times[server].append(seconds)
                    work[server].append(callers[server].worked() - before)
    return times, work


def rows(times: Times) -> Iterator[tuple[str, float, float, float, float]]:
    """Give the times and the ratios of each call, and of all of them."""
    quartiles = {
        name: {server: statistics.quantiles(found, n=4)[0] for server, found in by.items()}
        for name, by in times.items()
    }
    of_models = ("upload a model's file", "log a whole model")
    of_models = tuple(name for name in of_models if name in quartiles)
    ordinary = {name: found for name, found in quartiles.items() if name not in of_models}
    together = {s: sum(found[s] for found in ordinary.values()) for s in SERVERS}
    shown = {
        **ordinary,
        "these together": together,
        **{name: quartiles[name] for name in of_models},
    }
    for name, found in shown.items():
        plain, gated, again = (found[server] for server in SERVERS)
        both = (plain + again) / 2
        yield name, 1000 * both, 1000 * gated, gated / both, again / plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        callers = {}
        for name, app in SERVERS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            backend = f"sqlite:///{folder}/mlflow.db"
            server = stack.enter_context(mlflow_server(folder, backend, app=app))
            callers[name] = Caller(server.port, server.process.pid, backend)
        times, work = measure(callers, arguments.rounds)
        whole = "log a whole model"
        times[whole], work[whole] = log_model(callers, max(arguments.rounds // 3, 5))
        for caller in callers.values():
            caller.connection.close()
    for title, found in (("By the clock", times), ("Processor time of the server", work)):
        print(f"\n{title}:\n")
        print("| call | without (ms) | with (ms) | ratio | two servers without |")
        print("|---|---|---|---|---|")
        for name, plain, gated, ratio, noise in rows(found):
            print(f"| {name} | {plain:.2f} | {gated:.2f} | {ratio:.3f} | {noise:.3f} |")


if __name__ == "__main__":
    main()
