"""Fixtures with an MLflow store that nobody else sees; `conftest.py` of a folder imports them."""

import shutil
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlflow
import pytest
from mlflow.store.db import utils as database_utils
from sqlalchemy import event
from sqlalchemy.engine import Engine

__all__ = ["_default_store", "_quick_stores", "empty_database", "mlflow_store", "shared_store"]


@pytest.fixture(scope="session", autouse=True)
def _quick_stores():
    """Leave out what MLflow does for every new store and what no test looks at.

    Nobody needs a test's database after a power failure, so that writes need not wait for the disk.
    And MLflow imports all of its migrations to learn the newest, which is the same for all stores.
    """

    def no_waiting(connection, _):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    newest = cache(database_utils._get_latest_schema_revision)
    event.listen(Engine, "connect", no_waiting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_utils, "_get_latest_schema_revision", newest)
        yield
    event.remove(Engine, "connect", no_waiting)


@pytest.fixture(scope="session")
def empty_database(_quick_stores, tmp_path_factory):
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
        yield


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
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("test", (folder / "files").as_uri())
    with pointed_to(folder, experiment, monkeypatch) as uri:
        yield uri


@contextmanager
def pointed_to(folder, experiment, monkeypatch):
    """Point MLflow to an experiment of the sqlite store in a folder; yield the URI of the store."""
    uri, before = f"sqlite:///{folder}/mlflow.db", mlflow.get_tracking_uri()
    monkeypatch.chdir(folder)  # new experiments keep their artifacts in ./mlruns
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", experiment)
    yield uri
    mlflow.set_tracking_uri(before)


@dataclass(frozen=True)
class KeptStore:
    """A store whose states are kept: tests get one back, which is quicker than making it again."""

    folder: Path
    experiment: str

    def keep(self, state: str) -> None:
        """Keep the database and the files as they are now."""
        copy_database(self.folder / "mlflow.db", self.folder / f"{state}.db")
        shutil.copytree(self.folder / "files", self.folder / state)

    def restore(self, state: str) -> None:
        """Make the store what it was."""
        shutil.rmtree(self.folder / "files")
        shutil.copytree(self.folder / state, self.folder / "files")
        copy_database(self.folder / f"{state}.db", self.folder / "mlflow.db")

    @contextmanager
    def restored(self, state, monkeypatch):
        """Make the store what it was, and point MLflow to it; yield its URI."""
        self.restore(state)
        with pointed_to(self.folder, self.experiment, monkeypatch) as uri:
            yield uri


@contextmanager
def kept_store(empty_database, folder):
    """Point MLflow to a fresh store, to make the states that shall be kept; yield the store."""
    with pytest.MonkeyPatch.context() as patch, fresh_store(empty_database, folder, patch) as uri:
        experiment = mlflow.MlflowClient(uri).get_experiment_by_name("test").experiment_id
        yield KeptStore(folder=folder, experiment=experiment)


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
