"""Attacks on a real server with the gate: each is tried, and refused."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

import mlflow
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gated import Gated, gated
from logged_models import Logged, log_model
from mlflow import MlflowException
from mlflow.entities import Metric
from signing import sign_audit

import mlflow_b3
from mlflow_b3.evidence.document import LARGEST
from mlflow_b3.evidence.policy import load_policy

pytestmark = pytest.mark.servers
FILES = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture(scope="module")
def gate(tmp_path_factory, report, clinic) -> Iterator[Gated]:
    with gated(tmp_path_factory.mktemp("gate"), report, clinic) as running:
        yield running


def new_name(kind: str = "clinic") -> str:
    return f"{kind} {uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def unaudited(gate) -> tuple[str, Logged]:
    """Register a model that nobody has audited."""
    name = new_name()
    return name, gate.register(name)


@pytest.fixture(scope="module")
def _audited(gate) -> tuple[str, Logged, str, bytes]:
    name = new_name()
    logged, run = gate.audit(name)
    return name, logged, run, gate.envelope_file(run).read_bytes()


@pytest.fixture
def audited(gate, _audited) -> Iterator[tuple[str, Logged, str]]:
    """Return a model whose audit passes; whatever a test does to it is undone."""
    name, logged, run, evidence = _audited
    yield name, logged, run
    gate.envelope_file(run).write_bytes(evidence)
    gate.restore(logged)
    for alias in gate.aliases(name):
        gate.client.delete_registered_model_alias(name, alias)


# --- what is allowed --------------------------------------------------------------------------------


def test_a_version_with_valid_evidence_is_promoted_by_alias_and_by_stage(gate, audited):
    name, _, _ = audited
    gate.client.set_registered_model_alias(name, "champion", "1")
    asked = {"name": name, "version": "1", "stage": "Production", "archive_existing_versions": True}
    assert gate.call("POST", "model-versions/transition-stage", asked).status == 200
    asked["stage"] = "None"
    assert (
        gate.call(
            "POST", "model-versions/transition-stage", asked | {"archive_existing_versions": False}
        ).status
        == 200
    )
    assert gate.aliases(name) == {"champion": "1"}
    assert mlflow.pyfunc.load_model(f"models:/{name}@champion").metadata.model_id


def test_a_copy_of_an_audited_version_is_one_too(gate, audited):
    name, _, run = audited
    copy = gate.client.copy_model_version(f"models:/{name}/1", new_name())
    assert copy.tags["b3.audit_run_id"] == run
    assert gate.promote(copy.name).status == 200
    gate.client.delete_registered_model(copy.name)  # whose files are those of the other


def test_other_aliases_tags_stages_and_models_are_nobodys_business(gate, unaudited):
    name, _ = unaudited
    client = gate.client
    client.set_registered_model_alias(name, "candidate", "1")
    client.delete_registered_model_alias(name, "candidate")
    client.set_model_version_tag(name, "1", "reviewed", "yes")
    client.delete_model_version_tag(name, "1", "reviewed")
    client.set_registered_model_tag(name, "team", "a")
    asked = {"name": name, "version": "1", "stage": "Staging", "archiveExistingVersions": False}
    assert gate.call("POST", "model-versions/transition-stage", asked).status == 200
    outside = new_name("scratch")
    gate.register(outside, unaudited[1])
    client.set_registered_model_alias(outside, "champion", "1")
    client.set_model_version_tag(outside, "1", "b3.verdict", "PASS")


def test_prompts_keep_their_aliases_and_their_tag_is_no_way_around(gate, unaudited):
    prompt = f"clinic-{uuid4().hex[:8]}"
    mlflow.genai.register_prompt(prompt, "Hello {{name}}")
    mlflow.genai.set_prompt_alias(prompt, "production", 1)
    assert mlflow.genai.load_prompt(f"prompts:/{prompt}@production").version == 1
    name = new_name()
    gate.register(name, unaudited[1])
    tag = {"name": name, "key": "mlflow.prompt.is_prompt", "value": "true"}
    assert gate.call("POST", "registered-models/set-tag", tag).status == 200
    assert gate.call("POST", "model-versions/set-tag", tag | {"version": "1"}).status == 200
    assert "there is no audit of it" in gate.promote(name).message


# --- every route to an alias or a stage --------------------------------------------------------------

ALIAS = "registered-models/alias"
STAGE = "model-versions/transition-stage"


@pytest.mark.parametrize("prefix", ["/api", "/ajax-api"])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (ALIAS, {"alias": "champion"}),
        (ALIAS, {"alias": "CHAMPION"}),
        (ALIAS, {"alias": "Production"}),
        (ALIAS, {"alias": "ｃhampion"}),
        (STAGE, {"stage": "Production", "archive_existing_versions": False}),
        (STAGE, {"stage": "pRODUCTION", "archiveExistingVersions": True}),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
@pytest.mark.parametrize("form", ["plain", "encoded twice", "version with zeros"])
def test_no_spelling_of_a_request_promotes_what_was_not_audited(
    gate, unaudited, prefix, path, asked, form
):
    name, _ = unaudited
    content: Any = {"name": name, "version": "001" if "zeros" in form else "1", **asked}
    if form == "encoded twice":
        content = json.dumps(content)
    answer = gate.call("POST", path, content, prefix)
    assert "there is no audit of it" in answer.message
    version = gate.client.get_model_version(name, "1")
    assert (version.aliases, version.current_stage == "Production") == ([], False)


def test_paths_that_lead_around_lead_nowhere(gate, unaudited):
    asked = {"name": unaudited[0], "alias": "champion", "version": "1"}
    for path in (
        "/api/2.0/mlflow//registered-models/alias",
        "/api/2.0/mlflow/registered-models/alias/",
        "/api/3.0/mlflow/registered-models/alias",
        "/api/2.0/mlflow/registered-models%2Falias",
        "/api/2.0/mlflow/Registered-Models/alias",
        "/api/2.0/preview/mlflow/registered-models/alias",
    ):
        gate.send("POST", path, asked)
    for method in ("PUT", "PATCH", "GET"):
        gate.send(method, "/api/2.0/mlflow/registered-models/alias", asked)
    assert gate.aliases(unaudited[0]) == {}


def test_graphql_promotes_nothing(gate, unaudited):
    query = 'mutation { setRegisteredModelAlias(name: "%s", alias: "champion", version: "1") }'
    answer = gate.send("POST", "/graphql", {"query": query % unaudited[0]})
    assert "Cannot query field" in answer.body
    assert gate.aliases(unaudited[0]) == {}


def test_clients_and_pages_show_why(gate, unaudited):
    name, _ = unaudited
    with pytest.raises(
        MlflowException, match=r"there is no audit of it.*mlflow-b3 audit"
    ) as caught:
        gate.client.set_registered_model_alias(name, "champion", "1")
    assert caught.value.error_code == "PERMISSION_DENIED"
    answer = gate.call(
        "POST", ALIAS, {"name": name, "alias": "champion", "version": "1"}, "/ajax-api"
    )
    assert answer.message.startswith(
        f"mlflow-b3 gate: alias 'champion' was refused for '{name}' version 1: FAIL, "
    )


def test_what_does_not_exist_is_an_error_of_mlflows_own(gate):
    assert gate.promote("clinic of nobody").error["error_code"] == "RESOURCE_DOES_NOT_EXIST"


# --- names ---------------------------------------------------------------------------------------------


def test_a_name_outside_the_policy_does_not_carry_an_alias_into_it(gate, unaudited):
    outside, inside = new_name("scratch"), new_name()
    gate.register(outside, unaudited[1])
    gate.client.set_registered_model_alias(outside, "champion", "1")
    for key in ("new_name", "newName"):
        answer = gate.call("POST", "registered-models/rename", {"name": outside, key: inside})
        assert "there is no audit of it" in answer.message
    gate.client.delete_registered_model_alias(outside, "champion")
    asked = {"name": outside, "version": "1", "stage": "Production"}
    assert gate.call("POST", STAGE, asked | {"archive_existing_versions": False}).status == 200
    answer = gate.call("POST", "registered-models/rename", {"name": outside, "new_name": inside})
    assert "there is no audit of it" in answer.message


def test_forged_tags_do_not_come_in_by_a_new_name_either(gate, unaudited):
    outside = new_name("scratch")
    gate.register(outside, unaudited[1])
    gate.client.set_model_version_tag(outside, "1", "b3.verdict", "PASS")
    asked = {"name": outside, "new_name": new_name()}
    assert "b3.verdict" in gate.call("POST", "registered-models/rename", asked).message


def test_an_audited_champion_may_be_renamed(gate, audited):
    name, _, _ = audited
    copy = gate.client.copy_model_version(f"models:/{name}/1", new_name())
    gate.client.set_registered_model_alias(copy.name, "champion", "1")
    renamed = new_name()
    gate.client.rename_registered_model(copy.name, renamed)
    assert gate.aliases(renamed) == {"champion": "1"}
    gate.client.delete_registered_model(renamed)


def test_a_copy_of_a_version_that_was_exchanged_is_what_it_was_copied_from(
    gate, audited, unaudited
):
    """MLflow loads a copy from where the copied version was, not from what has its name today."""
    _, good, _ = audited
    outside = new_name("scratch")
    gate.register(outside, unaudited[1])
    copy = gate.client.copy_model_version(f"models:/{outside}/1", new_name())
    gate.client.delete_registered_model(outside)
    gate.register(outside, good)  # the copied name now leads to a model that passes
    assert gate.promote(copy.name).status == 403


# --- tags -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["b3.verdict", "B3.verdict", "b3.audit_run_id", "b3.anything"])
def test_a_tag_of_an_audit_cannot_be_forged(gate, unaudited, key):
    name, _ = unaudited
    asked = {"name": name, "version": "1", "key": key, "value": "PASS"}
    assert "are refused" in gate.call("POST", "model-versions/set-tag", asked).message
    model = {"name": name, "key": key, "value": "PASS"}
    assert (
        "not of registered models" in gate.call("POST", "registered-models/set-tag", model).message
    )
    new = {"name": new_name(), "tags": [{"key": key, "value": "PASS"}]}
    assert "not of registered models" in gate.call("POST", "registered-models/create", new).message
    source = gate.client.get_model_version(name, "1").source
    version = {"name": name, "source": source, "modelId": source.removeprefix("models:/")}
    answer = gate.call("POST", "model-versions/create", version | {"tags": new["tags"]})
    assert "are refused" in answer.message
    assert len(gate.client.search_model_versions(f"name='{name}'")) == 1


def test_tags_of_another_models_audit_are_forged_too(gate, audited, unaudited):
    _, _, run = audited
    asked = {"name": unaudited[0], "version": "1", "key": "b3.audit_run_id", "value": run}
    assert (
        "the evidence belongs to the model"
        in gate.call("POST", "model-versions/set-tag", asked).message
    )


def test_an_audits_tags_cannot_be_changed_or_removed(gate, audited):
    name, _, _ = audited
    asked = {"name": name, "version": "1", "key": "b3.e0", "value": "0.001"}
    answer = gate.call("POST", "model-versions/set-tag", asked)
    assert "contradict the audit's evidence: b3.e0" in answer.message
    del asked["value"]
    assert "cannot be removed" in gate.call("DELETE", "model-versions/delete-tag", asked).message
    tags = gate.client.get_model_version(name, "1").tags
    key, shown = next((k, v) for k, v in tags.items() if k.startswith("b3.") and k != "b3.verdict")
    gate.client.set_model_version_tag(name, "1", key, shown)  # what it says may be said again


def test_an_older_audit_does_not_replace_a_later_one(gate):
    name = new_name()
    logged, first = gate.audit(name)
    second = gate.audited(logged, e0=0.5)
    assert gate.client.get_model_version(name, "1").tags["b3.audit_run_id"] == second
    asked = {"name": name, "version": "1", "key": "b3.audit_run_id", "value": first}
    assert (
        "already shows a later audit" in gate.call("POST", "model-versions/set-tag", asked).message
    )
    assert gate.promote(name).status == 200


def test_a_copy_with_forged_tags_is_refused(gate, unaudited):
    outside = new_name("scratch")
    gate.register(outside, unaudited[1])
    gate.client.set_model_version_tag(outside, "1", "b3.verdict", "PASS")
    with pytest.raises(MlflowException, match="are refused"):
        gate.client.copy_model_version(f"models:/{outside}/1", unaudited[0])
    assert len(gate.client.search_model_versions(f"name='{unaudited[0]}'")) == 1


# --- evidence --------------------------------------------------------------------------------------------


def test_a_logged_model_cannot_name_another_models_audit(gate, audited, unaudited):
    _, _, run = audited
    name, logged = unaudited
    for made_up in (run, "nobody"):
        with pytest.raises(MlflowException, match="must name the run of an audit of this model"):
            gate.client.set_logged_model_tags(logged.model_id, {"b3.audit_run_id": made_up})
    assert "there is no audit of it" in gate.promote(name).message


def test_evidence_copied_into_a_run_of_ones_own_is_foreign(gate, audited):
    name = new_name()
    logged = gate.register(name)
    with mlflow.start_run() as own:
        run_id, location = own.info.run_id, own.info.artifact_uri.partition(":/")[2]
    stolen = gate.evidence_file(audited[2]).read_bytes()
    assert gate.send("PUT", f"{FILES}/{location}/b3/evidence.json", stolen).status == 200
    for key, value in (("subject", logged.model_id), ("audit_run_id", run_id), ("evidence", "x")):
        gate.client.set_tag(run_id, f"b3.{key}", value)
    gate.client.set_logged_model_tags(logged.model_id, {"b3.audit_run_id": run_id})
    assert f"belongs to run {audited[2]}" in gate.promote(name).message


def test_expired_evidence_is_refused(gate):
    name = new_name()
    _, run = gate.audit(name, signed=False)
    sign_audit(run, measured_at=(datetime.now(UTC) - timedelta(days=31)).isoformat())
    assert "the audit is 31.0 days old" in gate.promote(name).message


def test_unsigned_evidence_is_refused_until_it_is_signed(gate):
    name = new_name()
    _, run = gate.audit(name, signed=False)
    assert "the evidence is not signed" in gate.promote(name).message
    assert "b3.e0" not in gate.client.get_model_version(name, "1").tags
    sign_audit(run, key=Ed25519PrivateKey.generate())
    assert "the evidence is not signed with a trusted key" in gate.promote(name).message
    sign_audit(run)
    assert gate.client.get_model_version(name, "1").tags["b3.audit_run_id"] == run
    assert gate.promote(name).status == 200


def test_audits_that_nobody_signed_do_not_block_a_model(gate):
    name = new_name()
    logged, _ = gate.audit(name)
    gate.audited(logged, signed=False, e0_interval=(0.96, 0.99))
    with mlflow.start_run() as made_up:
        pass
    for key, value in (("attests", "x"), ("subject", logged.model_id), ("attestation", "{}")):
        gate.client.set_tag(made_up.info.run_id, f"b3.{key}", value)
    assert gate.promote(name).status == 200


def test_a_made_up_audit_at_an_address_that_cannot_be_read_blocks_nobody(gate):
    name = new_name()
    logged, _ = gate.audit(name)
    made = gate.client.create_experiment(new_name(), artifact_location="foo://bar/x")
    tags = {"b3.subject": logged.model_id, "b3.evidence": "0" * 64}
    run = gate.client.create_run(made, tags=tags).info.run_id
    gate.client.set_tag(run, "b3.audit_run_id", run)
    assert mlflow_b3.gate(f"models:/{name}/1", gate.folder / "policy.yaml").allowed
    assert gate.promote(name).status == 200


def test_no_job_is_started_for_a_record(gate, audited):
    asked = {"job_name": "optimize_prompts", "params": {"run_id": audited[2]}}
    assert "a job cannot be started" in gate.send("POST", "/ajax-api/3.0/jobs/", asked).message


def test_the_envelope_of_a_signed_audit_is_kept(gate, audited):
    name, _, run = audited
    location = gate.envelope_file(run).relative_to(gate.folder / "artifacts")
    answer = gate.send("PUT", f"{FILES}/{location.as_posix()}", b"{}")
    assert "must not change" in answer.message
    assert gate.promote(name).status == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]" * 10,
        b"[" * 200_000,
        b'{"evidence": {}, "signature": null}',
        b'{"evidence": NaN, "signature": null}',
        b'{"evidence": {"a": 1, "a": 2}, "signature": null}',
        b" " * (LARGEST + 1),
    ],
    ids=["empty", "not text", "cut", "no object", "deep", "nothing", "NaN", "twice", "oversized"],
)
def test_malformed_and_oversized_evidence_is_refused(gate, audited, content):
    name, _, run = audited
    gate.envelope_file(run).write_bytes(content)
    assert f"the audit of run {run} cannot be relied on" in gate.promote(name).message
    assert gate.aliases(name) == {}


def test_an_edited_report_is_noticed(gate, audited):
    name, _, run = audited
    file = gate.evidence_file(run).with_name("audit.json")
    before = file.read_bytes()
    location = gate.client.get_run(run).info.artifact_uri.removeprefix("mlflow-artifacts:/")
    edited = before.replace(b'"e0": 0.', b'"e0": 0.0', 1)
    answer = gate.send("PUT", f"{FILES}/{location}/b3/audit.json", edited)
    assert "must not change" in answer.message
    file.write_bytes(edited)
    assert "was changed after it was written" in gate.promote(name).message
    file.write_bytes(before)


def test_a_metric_of_an_audit_is_kept(gate, audited):
    name, _, run = audited
    value = gate.client.get_run(run).data.metrics["b3/e0"]
    for key in ("b3/e0", "b3_curve/new", "b3/new"):
        with pytest.raises(MlflowException, match="which must not change"):
            gate.client.log_metric(run, key, 0.001)
        with pytest.raises(MlflowException, match="which must not change"):
            gate.client.log_batch(run, metrics=[Metric(key, 0.001, 1, 0)])
    (logged,) = gate.client.get_metric_history(run, "b3/e0")
    # as clients do whose request was not answered
    gate.client.log_metric(run, "b3/e0", value, timestamp=logged.timestamp, step=0)
    assert gate.promote(name).status == 200


def test_nothing_is_added_to_a_record(gate, audited):
    """One such request would break the evidence, and with that of the champion every comparison."""
    name, logged, run = audited
    dataset = {"name": "x", "digest": "deadbeef", "source_type": "local", "source": "x"}
    (attestation,) = gate.client.search_runs(
        [gate.client.get_run(run).info.experiment_id], f"tags.`b3.attests` = '{run}'"
    )
    for record in (run, attestation.info.run_id):
        for path, content in (
            ("log-inputs", {"datasets": [{"dataset": dataset}]}),
            ("log-parameter", {"key": "b3/other", "value": "x"}),
            ("log-batch", {"params": [{"key": "b3/other", "value": "x"}]}),
            ("outputs", {"models": [{"model_id": logged.model_id, "step": 0}]}),
            ("update", {"status": "FAILED", "run_name": "x", "end_time": 1}),
            ("set-tag", {"key": "b3.e0", "value": "0.001"}),
            ("delete-tag", {"key": "b3.e0"}),
        ):
            content = {"run_id": record, **content}
            if path != "delete-tag" or record == run:
                assert "must not change" in gate.call("POST", f"runs/{path}", content).message, path
    assert gate.promote(name).status == 200


def test_a_second_audit_supersedes_the_first_through_the_gate(gate):
    name = new_name()
    logged, first = gate.audit(name)
    second = gate.audited(logged)
    before, after = (gate.client.get_run(run) for run in (first, second))
    assert before.data.tags["b3.status"] == "superseded"
    assert before.data.tags["b3.superseded_by"] == second
    assert before.data.tags["mlflow.note.content"].startswith("**Superseded**")
    assert before.info.run_name.endswith("superseded")
    assert after.data.tags["b3.status"] == "current"
    assert after.data.tags["b3.supersedes"] == first
    assert {before.info.status, after.info.status} == {"FINISHED"}
    assert "mlflow.runColor" in after.data.tags
    assert gate.promote(name).status == 200
    verdict = mlflow_b3.gate(f"models:/{name}/1", gate.folder / "policy.yaml")
    runs = (second, gate.client.get_model_version(name, "1").run_id)
    shown = {gate.client.get_run(run).data.tags.get("b3.verdict") for run in runs}
    assert verdict.allowed
    assert [str(text).partition(",")[0] for text in shown] == ["PASS"]


def test_limits_hold_although_everything_is_signed(gate):
    name = new_name()
    gate.audit(name, e0_interval=(0.96, 0.99))
    assert "e0 is at least 0.96" in gate.promote(name).message


# --- files ------------------------------------------------------------------------------------------------


def test_swapped_model_files_are_noticed(gate, audited):
    name, logged, _ = audited
    path, folder = f"{FILES}/{gate.model_path(logged)}", gate.folder_of(logged)
    assert gate.send("PUT", f"{path}/MLmodel", b"flavors: {}\n").status == 200
    assert "'MLmodel' was changed" in gate.promote(name).message
    gate.restore(logged)
    assert gate.send("PUT", f"{path}/code/evil.py", b"import os").status == 200
    assert "'code/evil.py' was added" in gate.promote(name).message
    gate.restore(logged)
    assert gate.send("DELETE", f"{path}/requirements.txt").status == 200
    assert "'requirements.txt' is gone" in gate.promote(name).message
    assert not (folder / "requirements.txt").exists()


def test_files_of_a_champion_are_kept_as_they_are(gate, audited):
    name, logged, _ = audited
    gate.client.set_registered_model_alias(name, "champion", "1")
    model, file = gate.model_path(logged), "MLmodel"
    before = (gate.folder_of(logged) / file).read_bytes()
    experiment = model.partition("/")[0]
    twisted = model.replace("/models/", "//models/./")
    attempts = [
        ("PUT", f"{FILES}/{model}/{file}"),
        ("PUT", f"{FILES.replace('/api', '/ajax-api')}/{model}/{file}"),
        ("PUT", f"{FILES}/{twisted}/{file}"),
        ("PUT", f"{FILES}/{model.replace('m-', '%256d-')}/{file}"),
        ("PUT", f"{FILES}/{model}/new.py"),
        ("DELETE", f"{FILES}/{model}/{file}"),
        ("DELETE", f"{FILES}/{model}%3F"),
        ("DELETE", f"{FILES}/{model.removesuffix('/artifacts')}"),
        ("DELETE", f"{FILES}/{experiment}/models"),
        ("DELETE", f"{FILES}/{experiment}"),
    ]
    for method, path in attempts:
        assert "its files must not change" in gate.send(method, path, b"x").message, path
    path = f"/api/2.0/mlflow-artifacts/mpu/create/{model}"
    assert "its files must not change" in gate.send("POST", path, {"path": file}).message
    presigned = {"model_id": logged.model_id, "path": file}
    answer = gate.call("POST", "artifacts/presigned-upload-url", presigned)
    assert "its files must not change" in answer.message
    assert (gate.folder_of(logged) / file).read_bytes() == before


UPLOAD = "/ajax-api/2.0/mlflow/upload-artifact"


def test_a_run_cannot_write_to_a_champion_whose_folder_is_inside_its_own(gate):
    """The experiment of the champion was placed in the folder of a run of the attacker's."""
    with mlflow.start_run() as own:
        place = own.info.artifact_uri
    experiment = mlflow.create_experiment(new_name(), artifact_location=place)
    with mlflow.start_run(experiment_id=experiment):
        logged = log_model(gate.clinic)
    name = new_name()
    gate.register(name, logged)
    gate.audited(logged)
    assert gate.promote(name).status == 200
    file = gate.folder_of(logged) / "MLmodel"
    before = file.read_bytes()
    inner = f"models/{logged.model_id}/artifacts/MLmodel"
    for path in (inner, inner.replace("models", "%256dodels"), f"./x/../{inner}", f".//{inner}"):
        answer = gate.send("POST", f"{UPLOAD}?run_uuid={own.info.run_id}&path={path}", b"evil")
        assert answer.status in (400, 403), path
        assert file.read_bytes() == before
    answer = gate.send("POST", f"{UPLOAD}?run_uuid={own.info.run_id}&path={inner}", b"evil")
    assert "its files must not change" in answer.message
    assert gate.send("DELETE", f"{FILES}/{place.partition(':/')[2]}").status == 403
    free = gate.send("POST", f"{UPLOAD}?run_uuid={own.info.run_id}&path=plot.txt", b"mine")
    assert free.status == 200


def test_a_champion_among_the_artifacts_of_a_run_is_kept_too(gate):
    """Such a version has no LoggedModel, as before MLflow 3."""
    name = new_name("scratch")
    with mlflow.start_run() as run:
        mlflow.log_text("flavors: {}", "model/MLmodel")
    source = f"{run.info.artifact_uri}/model"
    gate.client.create_registered_model(name)
    gate.client.create_model_version(name, source, run.info.run_id)
    gate.client.set_registered_model_alias(name, "champion", "1")
    path = f"{FILES}/{source.partition(':/')[2]}/MLmodel"
    assert gate.send("PUT", path, b"not guarded").status == 200
    with _guarding(gate, name):
        assert "its files must not change" in gate.send("PUT", path, b"x").message
        assert "its files must not change" in gate.send("DELETE", path).message


@contextmanager
def _guarding(gate: Gated, name: str) -> Iterator[None]:
    """Bring a model under the policy as whoever has the database can, or as one from before the gate."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"sqlite:///{gate.folder}/mlflow.db")
    inside = new_name()
    store.rename_registered_model(name, inside)
    yield
    store.delete_registered_model_alias(inside, "champion")


def test_a_champion_whose_files_have_changed_is_not_given_out(gate, audited):
    """By whatever way they changed: here by one that does not lead through the server."""
    name, logged, _ = audited
    assert gate.promote(name).status == 200
    stage = {"name": name, "version": "1", "stage": "Production"}
    gate.call("POST", STAGE, stage | {"archive_existing_versions": False})
    file = gate.folder_of(logged) / "MLmodel"
    before = file.read_bytes()
    assert gate.client.get_model_version_by_alias(name, "champion").version == "1"
    file.write_bytes(before + b"\n")
    with pytest.raises(MlflowException, match=r"cannot be loaded.*'MLmodel' was changed"):
        gate.client.get_model_version_by_alias(name, "champion")
    latest = {"name": name, "stages": ["Production"]}
    answer = gate.call("POST", "registered-models/get-latest-versions", latest)
    assert "cannot be loaded" in answer.message
    assert gate.decisions()[-1]["event"] == "resolution"
    file.write_bytes(before)
    assert gate.client.get_model_version_by_alias(name, "champion").version == "1"
    assert gate.call("POST", "registered-models/get-latest-versions", latest).status == 200
    gate.call("POST", STAGE, stage | {"stage": "None", "archive_existing_versions": False})


def test_files_outside_of_the_servers_roots_are_not_promoted(gate, tmp_path):
    experiment = mlflow.create_experiment(new_name(), artifact_location=tmp_path.as_uri())
    with mlflow.start_run(experiment_id=experiment):
        logged = log_model(gate.clinic)
    name = new_name()
    gate.register(name, logged)
    gate.audited(logged)
    assert "outside the artifact roots" in gate.promote(name).message


def test_the_tag_of_a_verdict_is_what_this_gate_says(gate, audited):
    name, _, _ = audited
    policy, now = load_policy(gate.folder / "policy.yaml").hash[:12], datetime.now(UTC).isoformat()
    tag = {"name": name, "version": "1", "key": "b3.verdict"}

    def say(value):
        return gate.call("POST", "model-versions/set-tag", tag | {"value": value})

    for value in (
        "PASS",
        f"FAIL, policy {policy}, {now}",
        f"PASS, policy {'0' * 12}, {now}",
        f"PASS, policy {policy}, yesterday",
        f"PASS, policy {policy}, 2999-01-01T00:00:00+00:00",
    ):
        assert "are refused" in say(value).message, value
    assert gate.client.get_model_version(name, "1").tags.get("b3.verdict") is None
    assert say(f"PASS, policy {policy}, {now}").status == 200
    assert gate.call("DELETE", "model-versions/delete-tag", tag).status == 200


def test_records_of_audits_are_not_deleted(gate, audited):
    _, logged, run = audited
    assert "cannot be deleted" in gate.call("POST", "runs/delete", {"run_id": run}).message
    experiment = gate.client.get_run(run).info.experiment_id
    answer = gate.call("POST", "experiments/delete", {"experiment_id": experiment})
    assert "is the record of an audit" in answer.message
    name = audited[0]
    gate.client.set_registered_model_alias(name, "champion", "1")
    answer = gate.call("DELETE", f"logged-models/{logged.model_id}")
    assert "it is the model of" in answer.message


def test_records_of_audits_are_not_deleted_as_the_demo(gate, audited):
    """MLflow deletes the experiment that has the name of its demo, whatever is in it."""
    experiment = gate.client.get_run(audited[2]).info.experiment_id
    name = gate.client.get_experiment(experiment).name
    gate.client.rename_experiment(experiment, "MLflow Demo")
    try:
        answer = gate.send("POST", "/ajax-api/3.0/mlflow/demo/delete", {})
        assert "is the record of an audit" in answer.message
        assert gate.client.get_experiment(experiment).lifecycle_stage == "active"
    finally:
        if gate.client.get_experiment(experiment).lifecycle_stage != "active":
            gate.client.restore_experiment(experiment)
        gate.client.rename_experiment(experiment, name)


def test_a_demo_without_records_can_be_deleted(gate):
    made = gate.client.create_experiment("MLflow Demo")
    assert gate.send("POST", "/ajax-api/3.0/mlflow/demo/delete", {}).status == 200
    assert gate.client.get_experiment(made).lifecycle_stage == "deleted"
    gate.client.restore_experiment(made)
    gate.client.rename_experiment(made, uuid4().hex)


def test_the_demo_touches_no_model_that_has_the_name_of_its_prompts(tmp_path, report, clinic):
    """It deletes what is called so, and gives 'production' to the fourth version, whatever that is."""
    name = "mlflow-demo.prompts.customer-support"
    with gated(tmp_path, report, clinic, settings={"MLFLOW_B3_POLICY": ""}) as gate:
        logged = gate.register(name)
        for _ in range(3):
            gate.register(name, logged)
        gate.client.set_registered_model_tag(name, "mlflow.prompt.is_prompt", "true")
        answer = gate.send("POST", "/ajax-api/3.0/mlflow/demo/generate", {"features": ["prompts"]})
        found = gate.call(
            "GET", "registered-models/get?name=" + name
        )  # the client shows no prompts
        assert "production" not in found.body
        assert logged.model_id in found.body
        assert "is not a prompt" in answer.message


def test_a_champion_whose_logged_model_is_called_failed_is_loaded_all_the_same(gate, audited):
    name, logged, _ = audited
    gate.client.set_registered_model_alias(name, "champion", "1")
    asked = {"model_id": logged.model_id, "status": "LOGGED_MODEL_UPLOAD_FAILED"}
    gate.call("PATCH", f"logged-models/{logged.model_id}", asked)
    try:
        mlflow.sklearn.load_model(f"models:/{name}@champion")
        assert gate.promote(name).status == 200
    finally:
        asked["status"] = "LOGGED_MODEL_READY"
        gate.call("PATCH", f"logged-models/{logged.model_id}", asked)


@pytest.mark.parametrize("trick", ["..", "%2e%2e", "%252e%252e", "..%2f..", "/etc", "#"])
def test_artifact_names_do_not_leave_their_folder(gate, audited, trick):
    """MLflow refuses these names itself; the gate must not be what lets them pass."""
    name, logged, _ = audited
    gate.client.set_registered_model_alias(name, "champion", "1")
    model = gate.model_path(logged)
    before = sorted(gate.folder_of(logged).iterdir())
    for method in ("PUT", "DELETE"):
        path = f"{FILES}/{model}/x/{trick}/MLmodel"
        assert gate.send(method, path, b"x").status in (400, 403, 404), path
    assert sorted(gate.folder_of(logged).iterdir()) == before
    assert gate.promote(name).status == 200


def test_promoting_and_editing_at_once_never_both_succeed(gate, audited):
    name, logged, _ = audited
    path = f"{FILES}/{gate.model_path(logged)}/MLmodel"
    file = gate.folder_of(logged) / "MLmodel"
    original = file.read_bytes()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            edit = pool.submit(gate.send, "PUT", path, original + b"\n")
            promoted = pool.submit(gate.promote, name).result()
            edited = edit.result()
            changed = file.read_bytes() != original
            assert not (gate.aliases(name) and changed), (promoted, edited)
            gate.restore(logged)
            if gate.aliases(name):
                gate.client.delete_registered_model_alias(name, "champion")


def test_an_upload_that_ends_after_the_promotion_takes_the_alias_away(gate, audited):
    name, logged, _ = audited
    with closing(HTTPConnection("127.0.0.1", gate.server.port, timeout=60)) as slow:
        slow.putrequest("PUT", f"{FILES}/{gate.model_path(logged)}/MLmodel")
        slow.putheader("Content-Length", "2")
        slow.endheaders(b"x")
        assert gate.promote(name).status == 200
        slow.send(b"y")
        answer = slow.getresponse()
        said = json.loads(answer.read())
    assert (answer.status, said["error_code"]) == (403, "PERMISSION_DENIED")
    assert "was reverted" in said["message"]
    assert gate.aliases(name) == {}


# --- the server itself -----------------------------------------------------------------------------------


def test_the_server_works_on_when_evidence_cannot_be_read(gate, audited):
    name, _, run = audited
    folder = gate.evidence_file(run).parent
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("/etc")
    assert gate.promote(name).status == 403
    folder.unlink()
    folder.write_text("no folder")
    assert gate.promote(name).status == 403
    gate.client.set_registered_model_alias(name, "candidate", "1")
    gate.client.log_metric(gate.client.get_model_version(name, "1").run_id, "other", 1.0)
    assert gate.client.get_model_version_by_alias(name, "candidate").version == "1"
    folder.unlink()
    folder.with_name("elsewhere").rename(folder)
    assert gate.promote(name).status == 200


def test_every_decision_is_one_line_of_json(gate, audited):
    _, logged, run = audited
    odd = f"clinic \x1b[31m\nred {uuid4().hex[:8]}"
    gate.register(odd, logged)
    before = len(gate.decisions())
    gate.promote(odd)
    gate.promote(audited[0])
    refused, allowed = gate.decisions()[before:]
    assert refused["model"] == odd
    assert (allowed["outcome"], allowed["allowed"], allowed["audit_run_id"]) == ("PASS", True, run)
    assert allowed.keys() == refused.keys() >= {"timestamp", "actor", "remote", "route", "reasons"}
    assert refused["policy_hash"] == allowed["policy_hash"]
    printed = gate.server.log.read_text(encoding="utf-8", errors="replace").splitlines()
    assert json.dumps(allowed) in printed
    assert "\x1b[31m" not in "\n".join(line for line in printed if line.startswith('{"timestamp'))
