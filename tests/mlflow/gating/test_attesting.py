"""Signing is a step of its own: it checks everything again, and holds the key where no model runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest
import thief
from click.testing import CliRunner
from evidence_examples import lenient
from example_reports import changed
from gate_examples import audit_files
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from stores import kept_store

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import digest, key_id, open_sealed, seal
from mlflow_b3.tracking.recording import audit_and_record
from mlflow_b3.tracking.shown_on_models import courtesy

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


def folds_without_some_rows(kept=lambda rows: rows.index % 3 > 0):
    """Return four folds of whole clusters, with some rows of each in no validation fold."""
    frame = b3.make_clinic(patients=30, records=4, cluster_error=0.1).frame
    fold = frame["patient_id"].rank(method="dense").astype(int) % 4
    scored = kept(frame)
    return [
        (np.flatnonzero(fold != one).tolist(), np.flatnonzero((fold == one) & scored).tolist())
        for one in range(4)
    ]


@pytest.mark.parametrize(
    "audited",
    [
        {"cluster_error": None, "split_rate": 0.2},
        {"cluster_error": None},
        {"method": "basis"},
        {"folds": folds_without_some_rows()},
        {"scheme": "replace", "n_train": 60, "budget": 120},
    ],
    indirect=True,
    ids=[
        *("split clusters", "nothing known", "a method of the papers", "rows left out"),
        "small training sets",
    ],
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


def test_influence_that_does_not_follow_from_the_measurements_is_not_signed_for(audited, signing):
    """By it a model is compared in pairs with the champion."""
    assert signing
    influence = audited.report.influence
    forged(audited, influence=replace(influence, e0=influence.e0 / 2))
    assert "the influence of each cluster" in failures(b3.attest(audited.uri))["conclusions"]


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
    doses = replace(measured.doses, loco=measured.doses.loco / 2)
    forged(audited, measurements=replace(measured, doses=doses))
    assert "are not the means of the recorded" in failures(b3.attest(audited.uri))["measurements"]


def test_an_audit_can_be_attested_again_and_is_one_try(audited, signing):
    for _ in range(2):
        assert b3.attest(audited.uri).attested
    verdict = b3.gate(audited.uri, trusting(signing, max_audits=1))
    assert verdict.outcome == "PASS"


# --- which audit is signed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def better(clinic):
    """Return the audit of another learner on the same table."""
    options = {"cluster_error": 0.1, "budget": 100}
    return b3.audit(
        LogisticRegression(), clinic.frame, **COLUMNS, **options, n_jobs=1, progress=False
    )


def forged_audit(audited, better) -> str:
    """Record the losses of another learner as those of this model, as any writer of MLflow can."""
    return b3.record(replace(better, subject=audited.report.subject))


def digest_of_record(run_id: str) -> str:
    return digest((audit_files(run_id) / "evidence.json").read_bytes())


def test_of_several_unsigned_audits_none_is_chosen(audited, better, signing):
    assert signing
    forged = forged_audit(audited, better)
    with pytest.raises(b3.TrackingError, match="2 complete audits of it are not signed") as refused:
        b3.attest(audited.uri)
    told = str(refused.value)
    assert all(f"{run}  began at 20" in told for run in (forged, audited.run_id))
    assert f"mlflow-b3 attest {audited.uri} --audit RUN --digest SHA256" in told
    done = CliRunner().invoke(main, ["attest", audited.uri])
    assert (done.exit_code, audited.run_id in done.output) == (2, True)
    MlflowClient().delete_run(audited.run_id)  # by whoever forged the other
    with pytest.raises(b3.TrackingError, match=f"{audited.run_id} .*, deleted"):
        b3.attest(audited.uri)


def test_signed_audits_leave_the_choice_to_the_only_unsigned_one(audited, better, signing):
    """A model that is audited anew is attested as before; the statement tells of the others."""
    other = forged_audit(audited, better)
    assert b3.attest(audited.uri, audit=audited.run_id).attested
    verdict = b3.gate(audited.uri, trusting(signing, max_audits=1))
    counted = next(reason for reason in verdict.reasons if reason.check == "max_audits")
    assert counted.text.endswith("1 more is unsigned and does not count")
    MlflowClient().delete_tag(other, "b3.subject")  # hidden, but the signed statement counted it
    verdict = b3.gate(audited.uri, trusting(signing, max_audits=1))
    counted = next(reason for reason in verdict.reasons if reason.check == "max_audits")
    assert counted.text.endswith("when it was signed, 1 more was unsigned")
    MlflowClient().set_tag(other, "b3.subject", audited.report.subject.model_id)
    assert b3.attest(audited.uri).audit_run_id == other


def test_with_its_digest_only_the_record_that_the_audit_wrote_is_signed(audited, better, signing):
    assert signing
    right = digest_of_record(audited.run_id)
    attestation = b3.attest(audited.uri, audit=audited.run_id, digest=right)
    assert (attestation.attested, attestation.digest_demanded) == (True, True)
    other = forged_audit(audited, better)
    refused = b3.attest(audited.uri, audit=other, digest=right)
    assert "is not the one that the audit handed on" in failures(refused)["evidence"]
    # without a digest nothing tells: all numbers follow from the losses of the other learner
    assert b3.attest(audited.uri, audit=other).attested


def test_a_record_that_was_replaced_in_its_own_run_is_not_signed(audited, better, signing):
    assert signing
    right = digest_of_record(audited.run_id)
    parts = ("measured", "conclusion", "influence", "measurements")
    forged(audited, **{name: getattr(better, name) for name in parts})
    refused = b3.attest(audited.uri, audit=audited.run_id, digest=right)
    assert list(failures(refused)) == ["evidence"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"digest": "d" * 64}, "digest needs audit"),
        ({"audit": "a" * 32, "digest": "abc"}, "must be a SHA-256, 64 hexadecimal digits"),
    ],
)
def test_a_digest_is_one_of_a_named_audit(audited, signing, given, told):
    assert signing
    with pytest.raises(b3.InputError, match=told):
        b3.attest(audited.uri, **given)


def test_the_command_hands_over_the_run_and_its_digest(audited, tmp_path):
    handover = tmp_path / "handover.json"
    command = ["audit", "--model-uri", audited.uri, "--data", str(audited.data), "--target"]
    command += ["disease", "--cluster", "patient_id", "--budget", "40", "--n-jobs", "1"]
    done = CliRunner().invoke(main, [*command, "--handover", str(handover)])
    assert done.exit_code == 0, done.output
    handed = json.loads(handover.read_text())
    assert handed["digest"] == digest_of_record(handed["audit_run_id"])
    for wrong in (["--handover", "run.txt"], ["--handover", str(handover), "--no-record"]):
        assert CliRunner().invoke(main, [*command, *wrong]).exit_code == 2


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
    assert "nor that nobody replaced the record" not in done.stdout, "it passes the digest on"
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) >= 30
    assert all(found == {"environment": [], "parents": []} for found in seen)
    os.environ.pop("B3_THIEF")
    policy = trusting(keys.public)
    assert b3.gate("models:/thief/1", policy).outcome == "PASS"


@pytest.mark.parametrize(
    ("recorded", "told"),
    [("", "run 'mlflow-b3 attest' where the signing key is."), ("x", "this one is signed next.")],
)
def test_what_a_server_refuses_is_signed_here_or_elsewhere(monkeypatch, caplog, recorded, told):
    """An audit that the command signs right afterwards is not told to be signed by hand."""

    def refused():
        raise MlflowException("not signed", error_code=PERMISSION_DENIED)

    monkeypatch.setenv("MLFLOW_B3_RECORDED", recorded)
    courtesy("the registered version", refused)
    assert caplog.text.rstrip().endswith(told)


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
