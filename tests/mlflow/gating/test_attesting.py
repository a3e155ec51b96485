"""Signing is a step of its own: it checks everything again, and holds the key where no model runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest
import thief
from evidence_examples import lenient
from example_reports import changed
from gate_examples import audit_files
from mlflow import MlflowClient
from sklearn.naive_bayes import GaussianNB
from stores import kept_store

import mlflow_b3 as b3
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import digest, key_id, open_sealed, seal
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.newest

COLUMNS = {"target": "disease", "cluster": "patient_id"}


def log_and_register(clinic, name: str, model=None):
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            (model or GaussianNB()).fit(X, y), name="model", pip_requirements=["scikit-learn"]
        )
    version = mlflow.register_model(info.model_uri, name)
    return f"models:/{name}/{version.version}"


def audit_version(clinic, data, **changes):
    """Audit a version of its own; nobody signs that."""
    uri = log_and_register(clinic, "attested")
    clinic.frame.to_csv(data, index=False)
    options = {"cluster_error": 0.1, "budget": 100, **changes}
    report, run_id = audit_and_record(
        uri, str(data), **COLUMNS, **options, n_jobs=1, progress=False
    )
    return SimpleNamespace(uri=uri, data=data, report=report, run_id=run_id)


@pytest.fixture(scope="module")
def recorded(empty_database, clinic, tmp_path_factory):
    """Audit once; tests get the store back as it was."""
    with kept_store(empty_database, tmp_path_factory.mktemp("attested")) as store:
        audited = audit_version(clinic, store.folder / "visits.csv")
        store.keep("audited")
    return store, audited


@pytest.fixture
def audited(recorded, clinic, monkeypatch, request):
    """Return a registered version with a real audit, which nobody has signed."""
    store, audited = recorded
    with store.restored("audited", monkeypatch):
        clinic.frame.to_csv(audited.data, index=False)
        if hasattr(request, "param"):
            audited = audit_version(clinic, audited.data, **request.param)
        yield audited


def trusting(key: str, **changes):
    """Return a policy that asks for a signature, and for no limit: these audits are small."""
    return lenient(e0_high=None, signed=True, trusted_keys=(key,), **changes)


def failures(attestation) -> dict[str, str]:
    return {check.check: check.text for check in attestation.checks if check.outcome == "FAIL"}


def test_what_is_confirmed_is_signed_and_counts(audited, signing):
    unsigned = b3.gate(audited.uri, trusting(signing))
    assert [reason.check for reason in unsigned.decisive] == ["signed"]
    attestation = b3.attest(audited.uri)
    assert attestation.attested
    assert attestation.key == key_id(signing)
    names = [check.check for check in attestation.checks]
    assert names == [
        *("evidence", "model_files", "audit_files", "metrics", "settings", "measured_at"),
        *("report", "data", "table_facts", "folds", "measurements", "conclusions", "preregistered"),
    ]
    assert str(attestation).startswith("ATTESTED: the audit of models:/attested/")
    assert "does not cover what the model's own code did" in " ".join(str(attestation).split())
    verdict = b3.gate(audited.uri, trusting(signing))
    assert (verdict.outcome, verdict.audit_run_id) == ("PASS", audited.run_id)
    assert b3.Attestation.from_dict(attestation.to_dict()) == attestation


@pytest.mark.parametrize(
    "audited",
    [{"cluster_error": None, "split_rate": 0.2}, {"cluster_error": None}, {"method": "basis"}],
    indirect=True,
    ids=["split clusters", "nothing known", "a method of the papers"],
)
def test_every_kind_of_audit_can_be_attested(audited, signing):
    assert signing
    assert failures(b3.attest(audited.uri)) == {}


def test_the_key_must_be_there(audited):
    with pytest.raises(b3.InputError, match="MLFLOW_B3_SIGNING_KEY is not set"):
        b3.attest(audited.uri)


def test_a_model_without_an_audit_is_an_error_that_says_what_to_do(shared_store, clinic, signing):
    assert shared_store
    assert signing
    uri = log_and_register(clinic, "attested")
    with pytest.raises(b3.TrackingError, match="mlflow-b3 audit --model-uri"):
        b3.attest(uri)


def test_a_table_that_is_not_here_is_asked_for(audited, signing, clinic):
    assert signing
    audited.data.rename(audited.data.with_name("elsewhere.csv"))
    assert "give it: --data FILE" in failures(b3.attest(audited.uri))["data"]
    assert b3.attest(audited.uri, audited.data.with_name("elsewhere.csv")).attested
    other = clinic.frame.assign(age=clinic.frame["age"] + 1)
    assert "the audited table has" in failures(b3.attest(audited.uri, other))["data"]


def test_a_changed_model_is_not_signed_for(audited, signing):
    assert signing
    model = MlflowClient().get_logged_model(audited.report.settings.model_id)
    path = f"{model.artifact_location.removeprefix('file://')}/requirements.txt"
    with open(path, "a", encoding="utf-8") as file:
        file.write("evil\n")
    attestation = b3.attest(audited.uri)
    assert (attestation.attested, attestation.attestation_run_id) == (False, None)
    assert "'requirements.txt' was changed" in failures(attestation)["model_files"]
    assert str(attestation).startswith("NOT ATTESTED: one check")


def forged(audited, **changes) -> None:
    """Write another report over the recorded one, with all digests, metrics and tags to match."""
    from mlflow_b3.tracking.metrics_and_files import files_of, metrics_of, parameters_of

    client, folder = MlflowClient(), audit_files(audited.run_id)
    report = changed(audited.report, **changes)
    files = files_of(report)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    evidence = open_sealed((folder / "evidence.json").read_bytes(), ()).evidence
    text = seal(
        replace(
            evidence,
            files={name: digest(text.encode()) for name, text in files.items()},
            results=dict(metrics_of(report)),
            settings=parameters_of(report),
        ),
        None,
    )
    (folder / "evidence.json").write_text(text, encoding="utf-8")
    client.set_tag(audited.run_id, "b3.evidence", digest(text.encode()))
    for run_id in (audited.run_id, audited.report.settings.run_id):
        for name, value in metrics_of(report).items():
            if value is not None and value != metrics_of(audited.report)[name]:
                client.log_metric(run_id, name, value)


def test_conclusions_that_do_not_follow_from_the_measurements_are_not_signed_for(audited, signing):
    assert signing
    forged(audited, e0=0.1, e0_interval=(0.05, 0.15))
    found = failures(b3.attest(audited.uri))
    assert list(found) == ["conclusions"]
    assert "do not follow from the measurements: e0, e0_interval" in found["conclusions"]


def test_a_constant_that_does_not_follow_from_the_table_is_not_signed_for(audited, signing):
    """It is what every model must beat."""
    assert signing
    forged(audited, constant_loss=0.9)
    assert "constant_loss" in failures(b3.attest(audited.uri))["table_facts"]


def test_findings_that_the_table_shows_cannot_be_left_out(
    audited, signing, clinic, tmp_path, monkeypatch
):
    assert signing
    frame = clinic.frame.assign(age=clinic.frame["age"].where(clinic.frame.index > 3))
    frame.to_csv(tmp_path / "missing.csv", index=False)
    monkeypatch.setattr("mlflow_b3.gating.attesting.require_digest", lambda *_: None)
    monkeypatch.setattr(
        "mlflow_b3.gating.attesting._AuditToSign.table",
        property(lambda record: with_missing(record, frame)),
    )
    assert "the finding B310 is missing" in failures(b3.attest(audited.uri))["table_facts"]


def with_missing(record, frame: pd.DataFrame):
    from mlflow_b3.data.table import ModelInputs, prepare

    settings = record.report.settings
    inputs = ModelInputs(columns=settings.features, anything=True)
    return prepare(frame, **COLUMNS, task=settings.task, inputs=inputs)


def test_losses_that_the_loss_cannot_have_are_not_signed_for(audited, signing):
    assert signing
    measured = audited.report.measurements
    lower = tuple(losses - 0.5 for losses in measured.row_losses)
    forged(audited, measurements=replace(measured, row_losses=lower))
    assert (
        "values that the loss zero_one cannot have"
        in failures(b3.attest(audited.uri))["measurements"]
    )
    forged(audited, measurements=replace(measured, loco=measured.loco / 2))
    assert "not the mean of the recorded" in failures(b3.attest(audited.uri))["measurements"]


def test_an_audit_can_be_attested_again_and_is_one_try(audited, signing):
    for _ in range(2):
        assert b3.attest(audited.uri).attested
    verdict = b3.gate(audited.uri, trusting(signing, max_audits=1))
    assert verdict.outcome == "PASS"


# --- the key and the model ------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_command_keeps_the_key_from_the_model_and_signs_afterwards(
    shared_store, clinic, tmp_path, keys
):
    """`mlflow-b3 audit` with a key in its environment, as a job in CI may have it."""
    with mlflow.start_run():
        model = thief.Thief()
        os.environ["B3_THIEF"] = str(tmp_path / "first")
        model.fit(clinic.frame[list(FEATURES)], clinic.frame["disease"])
        info = mlflow.sklearn.log_model(
            model,
            name="thief",
            serialization_format="cloudpickle",
            code_paths=[thief.__file__],
            pip_requirements=["scikit-learn"],
        )
    mlflow.register_model(info.model_uri, "thief")
    data = tmp_path / "visits.csv"
    clinic.frame.to_csv(data, index=False)
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": shared_store,
        "MLFLOW_B3_SIGNING_KEY": keys.private.read_text(),
        "MLFLOW_B3_TRUSTED_KEYS": keys.public,
        "B3_THIEF": str(tmp_path / "seen"),
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    }
    command = [sys.executable, "-m", "mlflow_b3", "audit", "--model-uri", "models:/thief/1"]
    command += ["--data", str(data), "--target", "disease", "--cluster", "patient_id"]
    command += ["--cluster-error", "0.1", "--budget", "30", "--n-jobs", "2", "--backend", "loky"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ATTESTED: the audit of models:/thief/1" in done.stdout
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) >= 30
    assert all(found == {"environment": [], "parents": []} for found in seen)
    os.environ.pop("B3_THIEF")
    policy = trusting(keys.public)
    assert b3.gate("models:/thief/1", policy).outcome == "PASS"


def test_an_audit_in_python_never_signs_and_says_so(audited, signing, caplog, clinic):
    assert signing
    audit_and_record(
        audited.uri,
        clinic.frame,
        **COLUMNS,
        cluster_error=0.1,
        budget=100,
        n_jobs=1,
        progress=False,
    )
    assert "runs the model's own code, which can read it" in caplog.text
    verdict = b3.gate(audited.uri, trusting(signing))
    assert [reason.check for reason in verdict.decisive] == ["signed"]
