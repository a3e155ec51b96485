"""`mlflow-b3 audit --scoring`: what MLflow then holds, what attests it, and what gates make of it."""

import mlflow
import pytest
from click.testing import CliRunner
from evidence_examples import lenient
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.policy import Pin

PINS = (Pin(models="*", loss=("roc_auc",)),)


@pytest.fixture
def version(mlflow_store):
    """Return a registered version whose AUC was audited from the command line."""
    assert mlflow_store
    frame = b3.make_clinic(patients=40, records=6, cluster_error=0.1, seed=1).frame
    frame.to_csv("visits.csv", index=False)
    with mlflow.start_run():
        model = KNeighborsClassifier(7).fit(frame[list(FEATURES)], frame["disease"])
        info = mlflow.sklearn.log_model(
            model,
            name="model",
            pip_requirements=["scikit-learn"],
            serialization_format="cloudpickle",
        )
    uri = f"models:/triage/{mlflow.register_model(info.model_uri, 'triage').version}"
    given = ["--model-uri", uri, "--data", "visits.csv", "--target", "disease", "--budget", "40"]
    given += ["--cluster", "patient_id", "--cluster-error", "0.05", "--scoring", "roc_auc"]
    result = CliRunner().invoke(main, ["audit", *given, "--n-jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "eported AUC " in result.output
    return uri


def test_the_audit_of_an_auc_is_recorded_signed_and_judged_in_its_units(version):
    client = mlflow.MlflowClient()
    tags = client.get_model_version("triage", "1").tags
    audit = client.get_run(tags["b3.audit_run_id"])
    assert (tags["b3.score"], audit.data.params["b3/scoring"]) == ("roc_auc", "roc_auc")
    metrics = audit.data.metrics
    assert 0.5 < metrics["b3/e0"] < metrics["b3/loco"] < metrics["b3/iid"] <= 1
    assert metrics["b3/e0_low"] < metrics["b3/e0"] < metrics["b3/e0_high"]
    text = mlflow.artifacts.load_text(f"{audit.info.artifact_uri}/b3/report.txt")
    assert "the AUC on new patients is about" in " ".join(text.split())

    low = metrics["b3/e0_low"]
    judged = b3.gate(version, lenient(e0_high=None, score_low=low - 0.01, pins=PINS))
    assert {reason.check: reason.outcome for reason in judged.reasons}["score_low"] == "PASS"
    strict = b3.gate(version, lenient(e0_high=None, score_low=0.999, pins=PINS))
    assert not strict.allowed
    other = b3.gate(version, lenient(e0_high=0.99, pins=PINS, inconclusive="allow"))
    assert not other.allowed
    assert "limits.e0_high is a limit on a loss" in str(other).replace("\n", " ")


def test_the_audit_of_an_auc_can_be_attested(version, tmp_path, monkeypatch):
    assert CliRunner().invoke(main, ["keys", "--output", str(tmp_path)]).exit_code == 0
    (private,) = tmp_path.glob("*.pem")
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", private.read_text())
    result = CliRunner().invoke(main, ["attest", version, "--data", "visits.csv"])
    assert result.exit_code == 0, result.output
    assert "values of roc_auc" in result.output.replace("\n", " ")
