"""What the tests of servers share: two servers, a report, and a model to audit."""

import importlib.util
from collections.abc import Iterator
from itertools import count

import mlflow
import pytest
from logged_models import Logged, log_model
from mlflow import MlflowClient
from real_services import Server, absent, mlflow_server, postgresql, tracked_by
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport

NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run MLflow's server on PostgreSQL."""
    if importlib.util.find_spec("psycopg2") is None:
        absent("psycopg2 is not installed")
    with (
        postgresql() as backend,
        mlflow_server(tmp_path_factory.mktemp("postgresql-server"), backend) as server,
    ):
        yield server


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Server:
    """Return one server after the other."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def tracking(server: Server) -> Iterator[MlflowClient]:
    """Return a client of the server; the active experiment is new."""
    with tracked_by(server.url, f"test {next(NUMBERS)}") as client:
        yield client


@pytest.fixture(scope="session")
def clinic() -> mlflow_b3.Clinic:
    return mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)


@pytest.fixture(scope="session")
def report(clinic: mlflow_b3.Clinic) -> AuditReport:
    """Audit a bare estimator; no server has heard of it."""
    return mlflow_b3.audit(
        GaussianNB(),
        clinic.frame,
        target="disease",
        cluster="patient_id",
        cluster_error=0.1,
        budget=100,
        n_jobs=1,
    )


@pytest.fixture
def logged(tracking: MlflowClient, clinic: mlflow_b3.Clinic) -> Logged:
    """Log a model to a run that is finished."""
    assert tracking
    with mlflow.start_run():
        return log_model(clinic)


@pytest.fixture
def sqlite_tracking(mlflow_store: str) -> MlflowClient:
    """Return a client of a store without a server."""
    return MlflowClient(mlflow_store)


@pytest.fixture
def sqlite_logged(sqlite_tracking: MlflowClient) -> Logged:
    """Return a run and a LoggedModel without files: enough for a report to be written to."""
    experiment = sqlite_tracking.search_experiments()[0].experiment_id
    run_id = sqlite_tracking.create_run(experiment).info.run_id
    model = sqlite_tracking.create_logged_model(experiment, name="model", source_run_id=run_id)
    sqlite_tracking.set_terminated(run_id)
    return Logged(run_id, model.model_id, f"models:/{model.model_id}")
