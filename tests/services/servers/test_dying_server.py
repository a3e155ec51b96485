"""A server that dies during an audit: what was measured is not lost."""

from dataclasses import replace

import mlflow
import pytest
from logged_models import log_model
from real_services import mlflow_server, tracked_by
from sklearn.naive_bayes import GaussianNB

from mlflow_b3 import TrackingError, record
from mlflow_b3.refit import load_model
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.servers


class Fatal(GaussianNB):
    """A learner whose first fit is the end of a server."""

    victim = None

    def fit(self, X, y):
        if Fatal.victim is not None:
            Fatal.victim.kill()
            Fatal.victim = None
        return super().fit(X, y)


def test_an_audit_outlives_its_server_and_can_be_written_when_it_is_back(
    tmp_path, clinic, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where the audit is saved
    backend = f"sqlite:///{tmp_path}/mlflow.db"
    with mlflow_server(tmp_path, backend) as server, tracked_by(server.url, "test") as client:
        with mlflow.start_run():
            logged = log_model(clinic)
        model = replace(load_model(Fatal()), run_id=logged.run_id, model_id=logged.model_id)
        monkeypatch.setattr(Fatal, "victim", server)
        with pytest.raises(TrackingError, match="could not be written to MLflow") as caught:
            audit_and_record(
                model,
                clinic.frame,
                target="disease",
                cluster="patient_id",
                cluster_error=0.1,
                budget=100,
                n_jobs=1,
            )
        report = caught.value.report
        assert report.e0 > 0
        with pytest.raises(TrackingError, match="the audit's run could not be created"):
            record(report)
        with mlflow_server(tmp_path, backend, port=server.port):
            child = client.get_run(record(report))
            assert child.data.metrics["b3/e0"] == report.e0
            rounded = pytest.approx(report.e0, rel=1e-3)
            assert client.get_run(logged.run_id).data.metrics["b3/e0"] == rounded
