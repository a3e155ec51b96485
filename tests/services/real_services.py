"""Real services for tests: MLflow's server, and databases that nobody else sees."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import mlflow
import pytest
from mlflow import MlflowClient

REQUIRED = "MLFLOW_B3_REQUIRE_SERVICES"
PATIENCE = 120  # seconds; a server needs ten of them on a machine with nothing else to do


def absent(what: str) -> None:
    """Skip a test for which something is not installed; fail where it must be, as in CI."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{what}, and {REQUIRED}=1 says that it must be there", pytrace=False)
    pytest.skip(what)


@dataclass(frozen=True)
class Server:
    """MLflow's server: its port, its process and what it has said."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End the server and its workers at once, as a crash does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def mlflow_server(
    folder: Path,
    backend: str,
    port: int | None = None,
    *,
    app: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `mlflow server`, which also serves the artifacts it keeps in a folder.

    `app` is one of the apps that plugins offer, and `settings` are variables of its environment.
    """
    port = port or _free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", backend),
        *("--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")),
        *(() if app is None else ("--app-name", app)),
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_ended_with_us(), *command],
            cwd=folder,
            env=os.environ | quiet | dict(settings or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its workers can be ended with it
        )
    server = Server(port, process, log)
    try:
        _wait(lambda: _healthy(server.url), process, log)
        yield server
    finally:
        server.kill()


@contextmanager
def tracked_by(url: str, experiment: str) -> Iterator[MlflowClient]:
    """Send everything to a server, as MLFLOW_TRACKING_URI does, into an experiment of its own."""
    before = mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", url)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # and not for minutes
        mlflow.set_tracking_uri(url)
        made = mlflow.create_experiment(experiment)
        patch.setenv("MLFLOW_EXPERIMENT_ID", made)
        patch.setattr("mlflow.tracking.fluent._active_experiment_id", made)
        yield MlflowClient()
        mlflow.set_tracking_uri(before)


@contextmanager
def postgresql() -> Iterator[str]:
    """Run PostgreSQL on a socket in a temporary folder; yield the address of its database."""
    programs = _postgresql_programs()
    if programs is None:
        absent("PostgreSQL is not installed")
    owner = _unprivileged("postgres")
    # not in pytest's folder, which only its owner may enter, and whose path is long for a socket
    with tempfile.TemporaryDirectory(prefix="b3-postgresql-") as name:
        folder = Path(name)
        if owner is not None:
            shutil.chown(folder, owner)
        as_owner: dict[str, Any] = {"cwd": folder, "user": owner}
        initdb = [programs / "initdb", "--pgdata", "data", "--username", "mlflow", "--no-sync"]
        subprocess.run([*initdb, "--auth", "trust"], check=True, capture_output=True, **as_owner)
        # no network, no care for crashes
        options = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_ended_with_us(), programs / "postgres", "-D", "data", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                **as_owner,
            )
        try:
            ready = [programs / "pg_isready", "-q", "-h", folder]
            _wait(lambda: subprocess.run(ready, check=False).returncode == 0, process, log)
            yield f"postgresql+psycopg2://mlflow@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGINT)  # disconnects whoever is left
            process.wait()


@contextmanager
def mariadb() -> Iterator[str]:
    """Run MariaDB on a socket in a temporary folder; yield the address of its database."""
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
    install = shutil.which("mariadb-install-db")
    if server is None or install is None:
        absent("MariaDB is not installed")
    if importlib.util.find_spec("pymysql") is None:
        absent("PyMySQL is not installed")
    owner = _unprivileged("mysql")
    with tempfile.TemporaryDirectory(prefix="b3-mariadb-") as name:
        folder = Path(name)
        if owner is not None:
            shutil.chown(folder, owner)
        as_owner: dict[str, Any] = {"cwd": folder, "user": owner}
        own = ["--no-defaults", f"--datadir={folder}/data"]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([install, *own, *options], check=True, capture_output=True, **as_owner)
        address = folder / "socket"
        # no network, no care for crashes
        options = [f"--socket={address}", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"]
        first = folder / "first.sql"
        first.write_text("CREATE DATABASE mlflow CHARACTER SET utf8mb4;\n", encoding="ascii")
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_ended_with_us(), server, *own, *options, f"--init-file={first}"],
                stdout=output,
                stderr=subprocess.STDOUT,
                **as_owner,
            )
        try:
            _wait(lambda: _answers(address), process, log)
            yield f"mysql+pymysql://root@localhost/mlflow?unix_socket={address}"
        finally:
            process.terminate()
            process.wait()


def _answers(address: Path) -> bool:
    """Whether something takes connections at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(address)) == 0


def _postgresql_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; Debian keeps some of them out of the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def _unprivileged(name: str) -> str | None:
    """Return the user to run a database as, which refuses to be run by root; None for oneself."""
    if os.geteuid() != 0:
        return None
    import pwd

    users = {user.pw_name for user in pwd.getpwall()}
    return name if name in users else "nobody"


def _ended_with_us() -> list[str]:
    """Return what makes a command end when these tests are killed, where there is such a thing."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _free_port() -> int:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        return int(connection.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            pytest.fail(f"a service did not start; it said:\n{said}", pytrace=False)
        time.sleep(0.1)
