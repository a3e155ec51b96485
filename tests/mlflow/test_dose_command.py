"""`mlflow-b3 audit --method dose`, and what MLflow then holds."""

from types import SimpleNamespace

import mlflow
import pytest
from click.testing import CliRunner
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES

RATES = ("--cluster-error", "0.1", "--split-rate", "0.2")


@pytest.fixture
def clinic(mlflow_store) -> SimpleNamespace:
    """Return a store with a logged model, and the options that say what is audited."""
    assert mlflow_store
    frame = b3.make_clinic(patients=30, records=5, cluster_error=0.1).frame
    frame.to_csv("visits.csv", index=False)
    with mlflow.start_run() as run:
        info = mlflow.sklearn.log_model(
            KNeighborsClassifier().fit(frame[list(FEATURES)], frame["disease"]),
            name="model",
            pip_requirements=["scikit-learn"],
            serialization_format="cloudpickle",
        )
    options = ["--model-uri", info.model_uri, "--data", "visits.csv", "--target", "disease"]
    options += ["--cluster", "patient_id", "--budget", "40", "--n-jobs", "1"]
    return SimpleNamespace(run_id=run.info.run_id, options=options)


def test_an_audit_by_doses_is_recorded_with_its_curve_by_rows(clinic):
    result = CliRunner().invoke(
        main, ["audit", *clinic.options, *RATES, "--method", "dose", "--full"]
    )
    assert result.exit_code == 0, result.output
    assert "Of the variance of e0" in result.output
    client = mlflow.MlflowClient()
    shown = client.get_run(clinic.run_id)
    audit = client.get_run(shown.data.tags["b3.audit_run_id"])
    text = mlflow.artifacts.load_text(f"{audit.info.artifact_uri}/b3/audit.json")
    report = b3.AuditReport.from_json(text)
    history = client.get_metric_history(audit.info.run_id, "b3_curve/dose")
    points = sorted((metric.step, metric.value) for metric in history)
    assert [step for step, _ in points] == list(report.dose.d)
    assert [value for _, value in points] == pytest.approx(report.dose.loss)
    assert audit.data.params["b3/method"] == "dose"
    assert (audit.data.params["b3/claim"], audit.data.params["b3/split_rate"]) == ("0.1", "0.2")
    assert "b3_curve/dose" not in shown.data.metrics
    plots = [file.path for file in client.list_artifacts(audit.info.run_id, "b3/plots")]
    assert "b3/plots/dose.svg" in plots


def test_a_setting_that_doses_do_not_know_is_refused_with_its_name(clinic):
    result = CliRunner().invoke(
        main, ["audit", *clinic.options, *RATES[:2], "--method", "dose", "--scheme", "replace"]
    )
    assert result.exit_code != 0
    assert "scheme='replace' belongs to the loss curve" in " ".join(result.output.split())
