"""Fixtures of tests with real services."""

import pytest
from real_services import mlflow_server
from stores import *  # noqa: F403 - fixtures


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory):
    """Run MLflow's server on SQLite, for the tests of servers and those of the browser."""
    folder = tmp_path_factory.mktemp("sqlite-server")
    with mlflow_server(folder, f"sqlite:///{folder}/mlflow.db") as server:
        yield server
