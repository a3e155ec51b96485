"""Fixtures for every test: an MLflow store that nobody else sees."""

import os
import signal
import sqlite3
from contextlib import closing, contextmanager

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported

import mlflow
import pytest
from services import mlflow_server


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Return an MLflow database without runs; making its tables takes seconds, copying does not."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session", autouse=True)
def _default_store(empty_database, tmp_path_factory):
    """Give tests that name no store one of their worker's: two workers must not make one's tables."""
    path = tmp_path_factory.mktemp("default") / "mlflow.db"
    copy_database(empty_database, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        patch.setenv("MLFLOW_B3_JOURNALS", str(tmp_path_factory.mktemp("journals")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c():
    """Hear Ctrl-C also where tests run in the background of a shell, which switches it off."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def stop_at(monkeypatch):
    """Press Ctrl-C during a certain refit of naive Bayes."""
    from sklearn.naive_bayes import GaussianNB

    made, fit = [], GaussianNB.fit

    def choose(number):
        def pressed(self, X, y, sample_weight=None):
            made.append(len(X))
            if len(made) == number:
                os.kill(os.getpid(), signal.SIGINT)
            return fit(self, X, y, sample_weight)

        monkeypatch.setattr(GaussianNB, "fit", pressed)
        return made

    return choose


def copy_database(source, target):
    """Copy an SQLite database, whatever its journal holds."""
    with (
        closing(sqlite3.connect(source)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)


@contextmanager
def fresh_store(empty_database, folder, monkeypatch):
    """Point MLflow to a fresh sqlite store in a folder, artifacts included; yield its URI."""
    copy_database(empty_database, folder / "mlflow.db")
    uri, before = f"sqlite:///{folder}/mlflow.db", mlflow.get_tracking_uri()
    monkeypatch.chdir(folder)  # new experiments keep their artifacts in ./mlruns
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("test", artifact_location=(folder / "files").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", experiment)
    yield uri
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory):
    """Run MLflow's server on SQLite, for the tests of servers and those of the browser."""
    folder = tmp_path_factory.mktemp("sqlite-server")
    with mlflow_server(folder, f"sqlite:///{folder}/mlflow.db") as server:
        yield server


@pytest.fixture
def mlflow_store(empty_database, tmp_path, monkeypatch):
    """Point MLflow to a store of this test's own; yield its URI."""
    with fresh_store(empty_database, tmp_path, monkeypatch) as uri:
        yield uri


@pytest.fixture(scope="module")
def shared_store(empty_database, tmp_path_factory):
    """Point MLflow to a store that all tests of a module share; yield its URI."""
    with (
        pytest.MonkeyPatch.context() as patch,
        fresh_store(empty_database, tmp_path_factory.mktemp("store"), patch) as uri,
    ):
        yield uri


@pytest.fixture(scope="session", autouse=True)
def _small_forests():
    """Make the classifier of the bound on p0 small: most audits of the tests do not look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlflow_b3.estimation.p0.TREES", 4)
        yield
