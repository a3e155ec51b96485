"""Evidence in MLflow: whatever is changed after an audit is noticed, and told."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import mlflow
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from evidence_examples import lenient
from example_reports import changed
from gate_examples import audit_files, register
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from mlflow_b3 import gate, record
from mlflow_b3.evidence.document import digest, make_keys, open_sealed, seal, seal_content
from mlflow_b3.gating.archive import Archive
from mlflow_b3.gating.gate import judge_version
from mlflow_b3.refit.loading import digest_model, digest_of
from mlflow_b3.tracking.audits import runs_of

pytestmark = pytest.mark.newest


def edit(path, old: str, new: str) -> None:
    """Replace some text of a file that has it."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_an_audited_version_passes(audited):
    verdict = audited.judge()
    assert (verdict.outcome, verdict.allowed) == ("PASS", True)
    assert verdict.audit_run_id == audited.audit_run_id
    assert "belongs to this model and is unchanged" in verdict.reasons[0].text


def test_a_version_without_an_audit_does_not(fresh):
    assert fresh.refusal() == "there is no audit of it"


# --- the model's files ----------------------------------------------------------------------------


def test_a_changed_model_file_is_noticed(audited):
    edit(audited.files / "MLmodel", "sklearn", "skleorn")
    assert audited.refusal() == ("the model is not the one that was audited: 'MLmodel' was changed")


def test_an_added_model_file_is_noticed(audited):
    (audited.files / "code").mkdir()
    (audited.files / "code" / "patch.py").write_text("")
    assert "'code/patch.py' was added" in audited.refusal()


def test_a_removed_model_file_is_noticed(audited):
    (audited.files / "requirements.txt").unlink()
    assert "'requirements.txt' is gone" in audited.refusal()


def test_model_files_that_are_swapped_for_those_of_another_model_are_noticed(audited):
    shutil.rmtree(audited.files)
    audited.files.mkdir()
    (audited.files / "MLmodel").write_text("another")
    assert "'MLmodel' was changed; 'conda.yaml' is gone" in audited.refusal()


def test_a_model_whose_files_are_gone_is_refused(audited):
    shutil.rmtree(audited.files)
    assert "there are no files" in audited.refusal()


def test_loading_a_version_does_not_look_like_tampering(audited):
    """MLflow leaves a mark in local stores."""
    mlflow.pyfunc.load_model(audited.uri)
    assert audited.judge().allowed


# --- what the audit's run says --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b3/e0", "b3/e0_high", "b3/fits", "b3_curve/loss"])
def test_a_changed_metric_is_noticed(audited, name):
    audited.client.log_metric(audited.audit_run_id, name, 0.001, step=1000)
    assert f"was changed after it was written: {name}" in audited.refusal()


def test_an_added_metric_is_noticed(audited):
    audited.client.log_metric(audited.audit_run_id, "b3/seen_share", 0.0)
    audited.client.log_metric(audited.audit_run_id, "b3/e0_certified", 0.0)
    assert "b3/e0_certified, b3/seen_share" in audited.refusal()


def test_metrics_of_others_are_theirs(audited):
    audited.client.log_metric(audited.audit_run_id, "seconds", 1.0)
    assert audited.judge().allowed


def test_a_changed_tag_of_the_audits_run_is_noticed(audited):
    audited.client.set_tag(audited.audit_run_id, "b3.refit", "trainer")
    assert "was changed after it was written: b3.refit" in audited.refusal()


@pytest.mark.parametrize("length", [1, 12])
def test_another_dataset_is_noticed(audited, length):
    """Inputs cannot be changed in MLflow, but added; a beginning of the digest is not the digest."""
    digest = audited.report.settings.data_digest
    other = digest[:length] if length == 1 else "0" * length
    dataset = Dataset(name="t", digest=other, source_type="local", source="{}")
    audited.client.log_inputs(audited.audit_run_id, datasets=[DatasetInput(dataset, [])])
    assert "the digest of the audited table" in audited.refusal()


@pytest.mark.parametrize("name", ["audit.json", "influence.csv"])
def test_an_edited_file_of_the_audit_is_noticed(audited, name):
    edit(audited.audit_files / name, "0.", "0.0")
    assert audited.refusal() == f"the audit's file {name!r} was changed after it was written"


def test_a_removed_file_of_the_audit_is_noticed(audited):
    (audited.audit_files / "audit.json").unlink()
    assert audited.refusal() == "there is no file 'b3/audit.json'"


# --- tags of the version --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("b3.e0", "0.001"), ("b3.refit", "trainer"), ("b3.approved", "yes")],
)
def test_a_forged_tag_of_the_version_is_noticed(audited, name, value):
    audited.client.set_model_version_tag(audited.name, audited.version, name, value)
    assert audited.refusal() == f"tags of the version contradict the audit: {name}"


def test_tags_alone_are_no_audit(fresh):
    fresh.client.set_model_version_tag(fresh.name, fresh.version, "b3.verdict", "PASS")
    assert fresh.refusal() == "there is no audit of it"
    for value in ("0" * 32, "../x", ""):
        fresh.client.set_model_version_tag(fresh.name, fresh.version, "b3.audit_run_id", value)
        assert fresh.refusal() == "there is no audit of it"


def test_other_tags_of_the_version_are_free(audited):
    audited.client.set_model_version_tag(audited.name, audited.version, "owner", "cardiology")
    audited.client.delete_model_version_tag(audited.name, audited.version, "b3.e0")
    assert audited.judge().allowed


# --- evidence of something else -------------------------------------------------------------------


@pytest.fixture
def other(saved, complete, audited):
    """Return another version with an audit of its own."""
    assert audited
    return register(saved, complete).record()


def test_the_audit_of_another_version_does_not_count(audited, other):
    client = audited.client
    for name, value in client.get_model_version(other.name, other.version).tags.items():
        client.set_model_version_tag(audited.name, audited.version, name, value)
    assert f"tags belong to the audit of run {other.audit_run_id}" in audited.refusal()


def test_evidence_that_is_copied_over_does_not_count(audited, other):
    shutil.copy(other.audit_files / "evidence.json", audited.audit_files / "evidence.json")
    assert audited.refusal() == (
        f"the audit of run {audited.audit_run_id} cannot be relied on: the evidence in run "
        f"{audited.audit_run_id} belongs to run {other.audit_run_id}"
    )


def test_evidence_that_is_copied_to_another_run_does_not_count(audited):
    client = audited.client
    experiment = client.get_run(audited.audit_run_id).info.experiment_id
    copy = client.create_run(experiment).info.run_id
    client.log_artifacts(copy, str(audited.audit_files), "b3")
    client.set_model_version_tag(audited.name, audited.version, "b3.audit_run_id", copy)
    assert f"tags belong to the audit of run {copy}" in audited.refusal()
    client.set_tag(copy, "b3.subject", audited.model_id)
    client.set_tag(copy, "b3.audit_run_id", copy)
    assert f"the evidence in run {copy} belongs to run {audited.audit_run_id}" in audited.refusal()


def test_an_audit_whose_run_is_deleted_does_not_count(audited):
    audited.client.delete_run(audited.audit_run_id)
    assert f"the audit's run {audited.audit_run_id} is deleted" in audited.refusal()
    audited.client.restore_run(audited.audit_run_id)
    assert audited.judge().allowed


# --- several audits -------------------------------------------------------------------------------


def restored(version, earlier) -> None:
    """Point the tags of a version and of its model at an earlier audit again."""
    client = version.client
    tags = open_sealed((audit_files(earlier) / "evidence.json").read_bytes(), ()).evidence.tags
    for name, value in tags.items():
        client.set_model_version_tag(version.name, version.version, name, value)
    client.set_logged_model_tags(version.model_id, tags)


def test_the_newest_audit_counts(audited):
    failing = audited.record(e0=0.95, e0_interval=(0.92, 0.99))
    verdict = failing.judge()
    assert (verdict.outcome, verdict.audit_run_id) == ("FAIL", failing.audit_run_id)
    tried = [reason for reason in verdict.reasons if reason.check == "max_audits"]
    assert "2 audits of this model" in tried[0].text
    assert audited.record().judge().allowed


def test_an_older_audit_does_not_come_back_by_its_tags(audited):
    failing = audited.record(e0_interval=(0.92, 0.99))
    restored(audited, audited.audit_run_id)
    assert audited.refusal() == (
        f"the version's tags belong to the audit of run {audited.audit_run_id}, but there is a later "
        f"one, of run {failing.audit_run_id}"
    )


@pytest.mark.parametrize("how", ["edited", "removed", "untagged", "deleted"])
def test_an_older_audit_does_not_come_back_when_the_newer_one_cannot_be_read(audited, how):
    failing = audited.record(e0_interval=(0.92, 0.99))
    restored(audited, audited.audit_run_id)
    document = failing.audit_files / "evidence.json"
    if how == "edited":
        document.write_text("{}")
    if how in ("removed", "untagged"):
        document.unlink()
    if how == "untagged":
        audited.client.delete_tag(failing.audit_run_id, "b3.evidence")
    if how == "deleted":
        audited.client.delete_run(failing.audit_run_id)
    assert failing.audit_run_id in audited.refusal()


def test_an_earlier_audit_that_cannot_be_read_is_refused_too(audited):
    """It may have failed: of two audits that overlap, the one that began first can end last."""
    newer = audited.record()
    (audited.audit_files / "evidence.json").write_text("{}")
    assert audited.audit_run_id in newer.refusal()


def test_an_audit_that_is_written_to_another_run_leaves_the_version_alone(audited):
    with mlflow.start_run() as run:
        pass
    record(changed(audited.report, e0_interval=(0.92, 0.99)), run_id=run.info.run_id)
    assert audited.judge().audit_run_id == audited.audit_run_id


def test_an_audit_in_another_experiment_is_found(audited):
    """As `mlflow.models.evaluate` in an experiment of its own leaves one."""
    client = audited.client
    elsewhere = client.create_experiment(f"elsewhere {audited.version}")
    failing = audited.record(e0_interval=(0.92, 0.99))
    run = client.get_run(failing.audit_run_id)
    copy = client.create_run(elsewhere, tags=dict(run.data.tags)).info.run_id
    client.set_tag(copy, "b3.audit_run_id", copy)
    assert copy in failing.refusal(), "it claims to be a later audit, and has no evidence"


# --- who signed -----------------------------------------------------------------------------------


def test_signed_evidence_counts_where_the_key_is_trusted(fresh, signing):
    audited = fresh.record()
    verdict = audited.judge(signed=True, trusted_keys=(signing,))
    assert verdict.outcome == "PASS"
    assert "signed with the trusted key" in verdict.reasons[1].text
    assert [reason.check for reason in audited.judge(signed=True).decisive] == ["signed"]
    assert audited.judge(signed=False).allowed


def test_unsigned_evidence_counts_where_the_policy_does_not_ask(audited):
    assert audited.judge().allowed
    verdict = audited.judge(signed=True)
    assert verdict.outcome == "FAIL"
    assert [reason.check for reason in verdict.decisive] == ["signed"]


def rewritten(audited, **changes) -> None:
    """Change evidence as somebody with access to the files, but without the key, can."""
    path = audited.audit_files / "evidence.json"
    content = open_sealed(path.read_bytes(), ()).evidence
    text = seal(replace(content, **changes), None)
    path.write_text(text)
    audited.client.set_tag(audited.audit_run_id, "b3.evidence", digest(text.encode()))


def attestation_of(audited):
    """Return the run in which the audit was signed, and its file."""
    (run,) = [
        run
        for run in runs_of(audited.client, audited.model_id)
        if run.data.tags.get("b3.attests") == audited.audit_run_id
    ]
    return run, audit_files(run.info.run_id) / "evidence.dsse.json"


@pytest.mark.parametrize("how", ["edited", "removed"])
def test_a_signed_audit_that_cannot_be_read_refuses_all_others(fresh, signing, how):
    """Who could remove the one that fails must not win by it."""
    failing = fresh.record(e0_interval=(0.92, 0.99))
    passing = fresh.record()
    run, document = attestation_of(failing)
    if how == "edited":
        document.write_text(json.dumps(json.loads(document.read_text()) | {"signatures": []}))
    else:
        document.unlink()
    fresh.client.delete_run(run.info.run_id)
    assert failing.audit_run_id in passing.refusal(signed=True, trusted_keys=(signing,))


def broken(audited) -> None:
    """Add an input to the run of an audit, as anybody can without a gate in the server."""
    dataset = Dataset(name="x", digest="deadbeef", source_type="local", source="x")
    audited.client.log_inputs(audited.audit_run_id, datasets=[DatasetInput(dataset, [])])


def test_a_newer_signed_audit_takes_the_place_of_one_whose_run_was_changed(fresh, signing):
    rules = {"signed": True, "trusted_keys": (signing,)}
    older = fresh.record()
    broken(older)
    assert "was changed after it was written" in older.refusal(**rules)
    newer = fresh.record()
    verdict = newer.judge(**rules)
    assert (verdict.outcome, verdict.audit_run_id) == ("PASS", newer.audit_run_id)
    verdict = newer.judge(**rules, max_audits=1)
    assert [reason.check for reason in verdict.decisive] == ["max_audits"], "it still counts"


def test_a_signed_audit_that_fails_is_not_hidden_by_changing_its_run(fresh, signing):
    fresh.record()
    failing = fresh.record(e0_interval=(0.92, 0.99))
    broken(failing)
    assert failing.audit_run_id in fresh.refusal(signed=True, trusted_keys=(signing,))


def test_an_unsigned_audit_whose_run_was_changed_refuses_newer_ones_too(audited):
    """Its evidence could have been written by anybody, so that only the run speaks for it."""
    broken(audited)
    assert audited.audit_run_id in audited.record().refusal()


def made_up_audit(audited, location: str) -> str:
    """Claim, without a signature, an audit whose files are at an address."""
    client = audited.client
    experiment = client.create_experiment(location, artifact_location=location)
    tags = {"b3.subject": audited.model_id, "b3.evidence": "0" * 64}
    run_id = client.create_run(experiment, tags=tags).info.run_id
    client.set_tag(run_id, "b3.audit_run_id", run_id)
    return run_id


@pytest.mark.parametrize(
    "location", ["foo://bar/x", "mlflow-artifacts://127.0.0.1:9/x", "file:///nobody"]
)
def test_a_made_up_audit_that_cannot_be_read_does_not_block_a_signed_one(fresh, signing, location):
    audited = fresh.record()
    made_up_audit(audited, location)
    assert audited.judge(signed=True, trusted_keys=(signing,)).outcome == "PASS"


@pytest.mark.parametrize("error", [MlflowException("away"), OSError("away"), ValueError("away")])
def test_a_store_that_does_not_answer_lets_no_version_pass(fresh, signing, monkeypatch, error):
    """What cannot be read there may be an audit that an earlier version signed."""
    audited = fresh.record()
    made_up = made_up_audit(audited, str(fresh.files.parent / "made-up"))
    read = Archive.read

    def away(archive, run, name, largest):
        if run.info.run_id == made_up:
            raise error
        return read(archive, run, name, largest)

    monkeypatch.setattr(Archive, "read", away)
    assert "away" in audited.refusal(signed=True, trusted_keys=(signing,))
    gone = MlflowException("no such file", error_code=RESOURCE_DOES_NOT_EXIST)
    error = gone
    assert audited.judge(signed=True, trusted_keys=(signing,)).allowed


def test_audits_that_nobody_signed_neither_block_a_model_nor_count(fresh, signing, monkeypatch):
    audited = fresh.record()
    monkeypatch.delenv("MLFLOW_B3_SIGNING_KEY")
    client = audited.client
    fresh.record(e0_interval=(0.92, 0.99))
    experiment = client.get_run(audited.audit_run_id).info.experiment_id
    tags = {"b3.subject": audited.model_id, "b3.evidence": "0" * 64}
    copied = attestation_of(audited)[0].data.tags["b3.attestation"]
    for token in (None, "{}", copied):
        more = {} if token is None else {"b3.attests": "x", "b3.attestation": token}
        made_up = client.create_run(experiment, tags=tags | more).info.run_id
        client.set_tag(made_up, "b3.audit_run_id", made_up)
    verdict = audited.judge(signed=True, trusted_keys=(signing,), max_audits=1)
    assert (verdict.outcome, verdict.audit_run_id) == ("PASS", audited.audit_run_id)
    (tries,) = [reason for reason in verdict.reasons if reason.check == "max_audits"]
    assert "2 more are unsigned and do not count" in tries.text


def test_an_old_report_that_is_recorded_again_is_as_old_as_it_is(fresh, signing):
    long_ago = (datetime.now(UTC) - timedelta(days=200)).isoformat(timespec="seconds")
    again = fresh.record(settings={"measured_at": long_ago})
    verdict = again.judge(signed=True, trusted_keys=(signing,))
    assert [reason.check for reason in verdict.decisive] == ["max_age_days"]


def test_an_older_report_does_not_replace_a_newer_one_by_being_recorded_later(fresh):
    failing = fresh.record(e0_interval=(0.92, 0.99))
    earlier = (datetime.now(UTC) - timedelta(days=2)).isoformat(timespec="seconds")
    older = fresh.record(settings={"measured_at": earlier})
    assert failing.audit_run_id in older.refusal()


def test_evidence_that_an_earlier_version_signed_still_counts(fresh, signing, keys):
    audited = fresh.record()
    run, _ = attestation_of(audited)
    audited.client.delete_tag(run.info.run_id, "b3.subject")
    path = audited.audit_files / "evidence.json"
    content = open_sealed(path.read_bytes(), ()).evidence.to_dict()
    for name in ("measured_at", "attested_at", "attested_checks"):
        del content[name]
    content["format"] = "mlflow-b3 evidence 1"
    key = load_pem_private_key(keys.private.read_bytes(), password=None)
    text = seal_content("evidence", "mlflow-b3 evidence 1", content, key)
    path.write_text(text)
    verdict = audited.judge(signed=True, trusted_keys=(signing,))
    assert (verdict.outcome, verdict.audit_run_id) == ("PASS", audited.audit_run_id)
    path.write_text(text.replace('"b3/seed": "0"', '"b3/seed": "1"'))
    verdict = audited.judge(signed=True, trusted_keys=(signing,))
    assert verdict.outcome == "FAIL"


def test_evidence_signed_again_with_another_key_does_not_count(
    fresh, signing, tmp_path, monkeypatch
):
    private, _, _ = make_keys(tmp_path)
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(private))
    verdict = fresh.record().judge(signed=True, trusted_keys=(signing,))
    assert [reason.check for reason in verdict.decisive] == ["signed"]


def test_evidence_that_contradicts_itself_is_refused(audited):
    rewritten(audited, model_digest="0" * 64)
    assert "contradict each other" in audited.refusal()


def test_unsigned_evidence_without_a_time_is_refused(audited):
    rewritten(audited, measured_at="once upon a time")
    assert "'once upon a time', cannot be read" in audited.refusal()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[" * 100_000, b" " * 5_000_000],
    ids=["empty", "bytes", "deep", "large"],
)
def test_evidence_that_is_none_is_refused(audited, content):
    (audited.audit_files / "evidence.json").write_bytes(content)
    assert "the evidence" in audited.refusal() or "larger than" in audited.refusal()


def test_a_report_that_is_none_is_refused_even_if_its_digest_is_right(audited):
    path = audited.audit_files / "audit.json"
    path.write_text('{"e0": 0}')
    document = (audited.audit_files / "evidence.json").read_bytes()
    files = open_sealed(document, ()).evidence.files
    rewritten(audited, files={**files, "audit.json": digest(path.read_bytes())})
    assert "the audit's files cannot be read" in audited.refusal()


def test_expired_evidence_does_not_count(audited):
    later = datetime.now(UTC) + timedelta(days=181)
    archive = Archive(client=MlflowClient())
    verdict = judge_version(archive, lenient(), audited.name, audited.version, now=later)
    assert [reason.check for reason in verdict.decisive] == ["max_age_days"]


# --- other ways to be a version -------------------------------------------------------------------


def test_a_copy_of_an_audited_version_is_as_good(audited):
    copy = audited.client.copy_model_version(audited.uri, f"copy-{audited.version}")
    assert gate(f"models:/{copy.name}/{copy.version}", lenient()).allowed


def test_a_version_that_is_registered_after_the_audit_is_as_good(audited):
    late = mlflow.register_model(f"models:/{audited.model_id}", "late")
    assert late.tags == {}
    assert gate(f"models:/late/{late.version}", lenient()).allowed


def test_an_audit_of_a_model_without_a_run_is_found(audited, saved):
    """MLflow 3 logs models outside of runs too."""
    client = audited.client
    experiment = client.get_run(audited.run_id).info.experiment_id
    model = client.create_logged_model(experiment, name="alone")
    client.log_model_artifacts(model.model_id, str(saved))
    settings = {"uri": f"models:/{model.model_id}", "run_id": None, "model_id": model.model_id}
    record(changed(audited.report, settings=settings))
    version = mlflow.register_model(f"models:/{model.model_id}", "alone")
    uri = f"models:/alone/{version.version}"
    assert gate(uri, lenient()).outcome == "PASS"
    record(changed(audited.report, settings=settings, e0_interval=(0.92, 0.99)))
    assert gate(uri, lenient()).outcome == "FAIL"


@pytest.mark.parametrize("by", ["path", "runs"])
def test_an_audit_of_a_model_of_mlflow_2_is_found(audited, saved, by):
    client, name = audited.client, f"mlflow-2-{by}"
    with mlflow.start_run() as run:
        mlflow.log_artifacts(str(saved), "old")
    source = f"runs:/{run.info.run_id}/old"
    if by == "path":
        version = mlflow.register_model(source, name)
    else:
        client.create_registered_model(name)
        version = client.create_model_version(name, source, run.info.run_id)
    settings = {
        "uri": f"models:/{name}/{version.version}",
        "run_id": run.info.run_id,
        "model_id": None,
        "model_digest": digest_of(digest_model(saved.as_uri())),
    }
    record(changed(audited.report, settings=settings))
    assert gate(f"models:/{name}/1", lenient()).outcome == "PASS"
    copy = client.create_model_version(name, version.source, run.info.run_id)
    assert gate(f"models:/{name}/{copy.version}", lenient()).outcome == "PASS", (
        "made after the audit"
    )
    record(changed(audited.report, settings=settings, e0_interval=(0.92, 0.99)))
    assert gate(f"models:/{name}/1", lenient()).outcome == "FAIL"
    client.log_text(run.info.run_id, "", "old/added")
    (reason,) = gate(f"models:/{name}/1", lenient()).reasons
    assert "'added' was added" in reason.text


# --- who would keep a model from being promoted ---------------------------------------------------


def test_a_run_that_begins_in_the_future_does_not_block_a_model(audited):
    client = audited.client
    experiment = client.get_run(audited.audit_run_id).info.experiment_id
    tags = {"b3.subject": audited.model_id, "b3.evidence": "0" * 64}
    century = 4_102_444_800_000  # milliseconds until 2100
    run_id = client.create_run(experiment, start_time=century, tags=tags).info.run_id
    client.set_tag(run_id, "b3.audit_run_id", run_id)
    assert audited.judge().allowed


def test_files_are_not_read_for_who_has_no_evidence(audited, monkeypatch):
    """A model may be large, and a server is asked by anybody."""
    (audit_files(audited.audit_run_id) / "evidence.json").write_text("{}")

    def read(*_):
        raise AssertionError("the model's files were read")

    monkeypatch.setattr("mlflow_b3.gating.archive.digest_model", read)
    assert "the type of the evidence is None" in audited.refusal()
