"""The gate as a Flask app, the form in which gunicorn and waitress serve it."""

import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import anyio
import mlflow
import pytest
from flask import Flask
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.server import app as mlflow_app
from mlflow.server import constants, handlers
from sklearn.naive_bayes import GaussianNB
from werkzeug.test import Client

from mlflow_b3 import EvidenceError, InputError
from mlflow_b3.evidence.policy import load_policy
from mlflow_b3.evidence.verdict import FAIL, PASS, Reason, Verdict
from mlflow_b3.gating.server import app as server
from mlflow_b3.gating.server import file_checks, record_checks, routes
from mlflow_b3.gating.server import gate as server_gate
from mlflow_b3.gating.server.file_checks import NativeRoutes
from mlflow_b3.gating.server.gate import GATE_LOG, Gate
from mlflow_b3.gating.server.stores import (
    check_root,
    is_within,
    open_own,
    places_of,
    server_archive,
)
from mlflow_b3.refit.loading import digest_model

ALIAS = "/api/2.0/mlflow/registered-models/alias"
STAGE = "/ajax-api/2.0/mlflow/model-versions/transition-stage"
RENAME = "/api/2.0/mlflow/registered-models/rename"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
RUNS = "/api/2.0/mlflow/runs"


@pytest.fixture(scope="module")
def store(shared_store):
    """Register two versions of a model, `clinic`."""
    uri = mlflow.sklearn.log_model(
        GaussianNB().fit([[0.0], [1.0]], [0, 1]), name="model", pip_requirements=[]
    ).model_uri
    for _ in range(2):
        mlflow.register_model(uri, "clinic")
    return shared_store


@pytest.fixture
def verdicts(monkeypatch):
    """Let the gate come to these verdicts, one after the other."""

    def come(*outcomes: str) -> None:
        coming = iter(outcomes) if len(outcomes) > 1 else repeat(outcomes[0])

        def judge(archive, policy, name, version):  # noqa: ARG001
            outcome = next(coming)
            return Verdict(
                outcome=outcome,
                allowed=outcome == PASS,
                reasons=(Reason(check="evidence", outcome=outcome, text="as the test says"),),
                model=name,
                version=version,
                policy_hash=policy.hash,
                audit_run_id=None,
                judged_at="",
            )

        monkeypatch.setattr(server_gate, "judge_version", judge)

    return come


@pytest.fixture
def app(store, monkeypatch):
    """Return an app of MLflow's own handlers with the gate; its models are as they were afterwards."""
    monkeypatch.setenv(constants.BACKEND_STORE_URI_ENV_VAR, store)
    monkeypatch.setattr(handlers, "_tracking_store", None)
    monkeypatch.setattr(handlers, "_model_registry_store", None)
    # a server sets these for all of its process
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store)
    monkeypatch.setattr("mlflow.tracking._model_registry.utils._registry_uri", store)
    own = Flask("mlflow", static_folder=None)
    for rule in mlflow_app.url_map.iter_rules():
        view = mlflow_app.view_functions[rule.endpoint]
        own.add_url_rule(rule.rule, rule.endpoint, view, methods=rule.methods)
    yield own
    client = MlflowClient()
    for alias in client.get_registered_model("clinic").aliases:
        client.delete_registered_model_alias("clinic", alias)


@pytest.fixture
def call(app):
    assert server.create_app(app) is app
    client = Client(app)

    def send(path, content, method="POST"):
        return client.open(path, method=method, json=content)

    send.raw = lambda path, body: client.post(path, data=body, content_type="application/json")
    return send


@pytest.fixture
def served(store, monkeypatch):
    """Let the server serve the folder that the model is in; return the model's path there."""
    assert store
    model_id = MlflowClient().get_model_version("clinic", "1").source.removeprefix("models:/")
    location = MlflowClient().get_logged_model(model_id).artifact_location
    root, models, rest = location.rpartition("/models/")
    root, _, experiment = root.rpartition("/")
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, root)
    monkeypatch.setattr(handlers, "_artifact_repo", None)
    return f"{experiment}{models}{rest}"


def promotion(version: str = "1", alias: str = "champion") -> dict:
    return {"name": "clinic", "alias": alias, "version": version}


def aliases() -> dict[str, str]:
    found = MlflowClient().get_registered_model("clinic").aliases
    return {alias: str(version) for alias, version in found.items()}


def test_without_uvicorn_flask_itself_is_served_with_the_gate(call, verdicts):
    verdicts(FAIL)
    refused = call(ALIAS, promotion())
    assert (refused.status_code, refused.json["error_code"]) == (403, "PERMISSION_DENIED")
    assert "as the test says" in refused.json["message"]
    assert call(ALIAS, promotion(alias="candidate")).status_code == 200
    verdicts(PASS)
    assert call(ALIAS, promotion()).status_code == 200
    assert aliases() == {"champion": "1", "candidate": "1"}


def test_files_sent_to_flask_are_guarded_too(call, verdicts, served):
    verdicts(PASS)
    call(ALIAS, promotion())
    assert (
        "its files must not change" in call(f"{FILES}/{served}/MLmodel", {}, "PUT").json["message"]
    )
    for step in ("create", "complete"):
        path = f"/api/2.0/mlflow-artifacts/mpu/{step}/{served}"
        assert "its files must not change" in call(path, {"path": "x/MLmodel"}).json["message"]
        above = path.removesuffix("/artifacts")
        assert "its files must not change" in call(above, {"path": "artifacts"}).json["message"]
        assert "its files" not in call(above, {"path": "plot.png"}).json["message"]


@pytest.mark.parametrize("before", [None, "2"])
def test_an_alias_goes_back_to_where_it_was_if_its_version_changed_meanwhile(
    call, verdicts, before
):
    if before:
        MlflowClient().set_registered_model_alias("clinic", "champion", before)
    verdicts(PASS, FAIL)
    answer = call(ALIAS, promotion())
    assert answer.status_code == 403
    assert "was reverted" in answer.json["message"]
    assert aliases() == ({"champion": before} if before else {})


def test_an_alias_that_somebody_else_has_moved_since_is_left_there(call, verdicts, monkeypatch):
    verdicts(PASS, FAIL)
    judge = server_gate.judge_version

    def moved(archive, policy, name, version):
        if aliases():
            MlflowClient().set_registered_model_alias("clinic", "champion", "2")
        return judge(archive, policy, name, version)

    monkeypatch.setattr(server_gate, "judge_version", moved)
    assert call(ALIAS, promotion()).status_code == 403
    assert aliases() == {"champion": "2"}


def test_stages_go_back_with_those_that_were_archived(call, verdicts):
    verdicts(PASS)
    asked = {"name": "clinic", "stage": "Production", "archive_existing_versions": True}
    assert call(STAGE, asked | {"version": "2"}).status_code == 200
    verdicts(PASS, FAIL)
    assert "was reverted" in call(STAGE, asked | {"version": "1"}).json["message"]
    found = MlflowClient().search_model_versions("name='clinic'")
    assert {str(v.version): v.current_stage for v in found} == {"1": "None", "2": "Production"}
    verdicts(PASS)
    back = {"version": "2", "stage": "None", "archive_existing_versions": False}
    assert call(STAGE, asked | back).status_code == 200


def test_a_name_goes_back_if_the_champion_under_it_changed_meanwhile(call, verdicts):
    verdicts(PASS)
    call(ALIAS, promotion())
    verdicts(PASS, FAIL)
    answer = call(RENAME, {"name": "clinic", "new_name": "other"})
    assert "was reverted" in answer.json["message"]
    assert aliases() == {"champion": "1"}


def test_whatever_goes_wrong_in_the_gate_is_a_refusal_and_ordinary_calls_go_on(
    call, monkeypatch, caplog
):
    def broken(*_):
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(server_gate, "judge_version", broken)
    answer = call(ALIAS, promotion())
    assert answer.status_code == 403
    assert "RuntimeError: the disk is gone" in answer.json["message"]
    assert aliases() == {}
    assert call(ALIAS, promotion(alias="candidate")).status_code == 200
    assert "the disk is gone" in caplog.text


def test_if_judging_again_goes_wrong_the_alias_is_taken_back(call, verdicts, monkeypatch, caplog):
    verdicts(PASS)
    judge, calls = server_gate.judge_version, []

    def second_breaks(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise RuntimeError("the disk is gone")
        return judge(*arguments)

    monkeypatch.setattr(server_gate, "judge_version", second_breaks)
    assert call(ALIAS, promotion()).status_code == 403
    assert aliases() == {}
    assert "the disk is gone" in caplog.text


def test_a_route_that_is_not_known_is_refused(app, call):
    app.add_url_rule(
        "/api/2.0/mlflow/registered-models/crown", "crown", lambda: "", methods=["POST", "GET"]
    )
    answer = call("/api/2.0/mlflow/registered-models/crown", {})
    assert "is unknown to this version" in answer.json["message"]
    assert call("/api/2.0/mlflow/registered-models/crown", None, "GET").status_code == 200


def test_a_mutation_that_is_not_known_is_refused(app, monkeypatch):
    monkeypatch.setattr(routes, "unclassified_mutations", lambda: ["crownModel"])
    server.create_app(app)
    query = {"query": "mutation { crownModel(name: 1) }"}
    for method in ("POST", "GET"):
        answer = Client(app).open("/graphql", method=method, json=query)
        assert "is unknown to this version" in answer.json["message"]


def test_a_champion_that_others_are_held_against_cannot_be_taken_away(
    app, store, verdicts, monkeypatch
):
    assert store
    policy = replace(load_policy(), champion="not_worse")
    monkeypatch.setattr(server, "read_rules", lambda: policy)
    verdicts(PASS)
    server.create_app(app)
    client = Client(app)
    assert client.post(ALIAS, json=promotion()).status_code == 200
    registry = "/api/2.0/mlflow"
    for path, asked in (
        ("registered-models/alias", {"name": "clinic", "alias": "champion"}),
        ("registered-models/alias", {"name": "clinic", "alias": "Champion"}),
        ("model-versions/delete", {"name": "clinic", "version": "1"}),
        ("registered-models/delete", {"name": "clinic"}),
    ):
        answer = client.delete(f"{registry}/{path}", json=asked)
        assert "give the alias to another version" in answer.json["message"], path
    answer = client.post(RENAME, json={"name": "clinic", "new_name": "away"})
    assert "the model cannot be renamed" in answer.json["message"]
    assert aliases() == {"champion": "1"}


def test_the_gate_is_added_once_however_often_it_is_asked_for(app, verdicts):
    verdicts(PASS, PASS, FAIL)  # two verdicts for one promotion
    server.add_gate(app, app)
    server.add_gate(app, app)
    assert Client(app).post(ALIAS, json=promotion()).status_code == 200


# --- what hides from a search, and what happens meanwhile -------------------------------------------------


@pytest.fixture
def scratch(store):
    """Register a model that is called `scratch`, and remove it under whatever name it has then."""
    assert store
    client = MlflowClient()
    source = client.get_model_version("clinic", "1").source
    client.create_registered_model("scratch")
    client.create_model_version("scratch", source)
    yield client
    own = client._get_registry_client().store  # a client keeps what is tagged as a prompt
    for name in ("scratch", "guarded", 'it\'s" and name != "'):
        with suppress(MlflowException):
            own.delete_registered_model(name)


@pytest.fixture
def only_clinic(monkeypatch):
    """Guard all names but those that begin with s or i."""
    policy = replace(load_policy(), models=("clinic", "guarded"))
    monkeypatch.setattr(server, "read_rules", lambda: policy)


def names() -> set[str]:
    store = handlers._get_model_registry_store()
    return {model.name for model in store.search_registered_models(max_results=100)}


@pytest.mark.parametrize("stage", [False, True])
@pytest.mark.usefixtures("only_clinic")
def test_a_tag_of_prompts_hides_no_version_from_a_rename(scratch, call, verdicts, stage):
    if stage:
        asked = {"name": "scratch", "version": "1", "archive_existing_versions": False}
        assert call(STAGE, asked | {"stage": "Production"}).status_code == 200
    else:
        scratch.set_registered_model_alias("scratch", "champion", "1")
    scratch.set_model_version_tag("scratch", "1", "mlflow.prompt.is_prompt", "true")
    verdicts(FAIL)
    assert call(RENAME, {"name": "scratch", "new_name": "guarded"}).status_code == 403


def test_a_tag_of_prompts_hides_no_model_from_a_removal(scratch, call, verdicts, served):
    verdicts(PASS)
    asked = {"name": "scratch", "alias": "champion", "version": "1"}
    assert call(ALIAS, asked).status_code == 200
    scratch.set_registered_model_tag("scratch", "mlflow.prompt.is_prompt", "true")
    answer = call(f"{FILES}/{served.partition('/')[0]}", None, "DELETE")
    assert "belongs to 'scratch' version 1" in answer.json["message"]


@pytest.mark.usefixtures("only_clinic")
def test_quotation_marks_in_a_name_are_part_of_the_name(scratch, call, verdicts):
    name = 'it\'s" and name != "'
    scratch.rename_registered_model("scratch", name)
    scratch.set_registered_model_alias(name, "champion", "1")
    verdicts(FAIL)
    assert "was refused" in call(RENAME, {"name": name, "new_name": "guarded"}).json["message"]


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.usefixtures("only_clinic")
def test_an_alias_that_is_set_during_a_rename_is_not_carried_along(
    scratch, app, verdicts, monkeypatch, taken
):
    renamed = app.view_functions["_rename_registered_model"]

    def meanwhile():
        scratch.set_registered_model_alias("scratch", "champion", "1")
        answer = renamed()
        if taken:
            scratch.create_registered_model("scratch")
        return answer

    monkeypatch.setitem(app.view_functions, "_rename_registered_model", meanwhile)
    verdicts(FAIL)
    server.create_app(app)
    answer = Client(app).post(RENAME, json={"name": "scratch", "new_name": "guarded"})
    assert "was reverted" in answer.json["message"]
    if taken:
        assert scratch.get_registered_model("guarded").aliases == {}
    else:
        assert "guarded" not in names()


@pytest.mark.usefixtures("only_clinic")
def test_a_rename_to_a_name_that_is_taken_leaves_the_other_model_alone(scratch, call, verdicts):
    assert scratch
    verdicts(PASS)
    assert call(ALIAS, promotion()).status_code == 200
    verdicts(FAIL)
    assert call(RENAME, {"name": "scratch", "new_name": "clinic"}).status_code == 400
    assert aliases() == {"champion": "1"}


def test_who_is_promoted_twice_loses_the_alias_if_the_second_judgement_fails(call, verdicts):
    verdicts(PASS)
    assert call(ALIAS, promotion()).status_code == 200
    verdicts(PASS, FAIL)
    assert call(ALIAS, promotion()).status_code == 403
    assert aliases() == {}


def test_who_is_staged_twice_loses_the_stage_if_the_second_judgement_fails(call, verdicts):
    asked = {"name": "clinic", "version": "1", "stage": "Production"}
    asked["archive_existing_versions"] = False
    verdicts(PASS)
    assert call(STAGE, asked).status_code == 200
    verdicts(PASS, FAIL)
    assert call(STAGE, asked).status_code == 403
    assert MlflowClient().get_model_version("clinic", "1").current_stage == "None"


def test_a_prompt_among_models_is_judged_as_a_model(scratch, call, verdicts):
    scratch.create_model_version("scratch", "prompt-template")
    verdicts(FAIL)
    asked = {"name": "scratch", "version": "2"}
    assert call(ALIAS, asked | {"alias": "champion"}).status_code == 403
    staged = asked | {"stage": "Production", "archive_existing_versions": True}
    assert call(STAGE, staged).status_code == 403
    scratch.delete_model_version("scratch", "1")
    assert call(ALIAS, asked | {"alias": "champion"}).status_code == 200  # prompts only


def test_a_removal_that_ends_after_the_promotion_takes_the_alias_away(
    app, verdicts, monkeypatch, served
):
    verdicts(PASS)

    def meanwhile(**_):
        MlflowClient().set_registered_model_alias("clinic", "champion", "1")
        verdicts(FAIL)
        return "removed"

    monkeypatch.setitem(app.view_functions, "_delete_artifact_mlflow_artifacts", meanwhile)
    server.create_app(app)
    answer = Client(app).delete(f"{FILES}/{served}/MLmodel")
    assert "was reverted" in answer.json["message"]
    assert aliases() == {}


def test_a_folder_is_removed_in_the_workspace_of_the_request(
    scratch, call, served, monkeypatch, tmp_path
):
    assert served
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path))
    source = "mlflow-artifacts:/workspaces/w2/7/model"
    version = scratch.create_model_version("scratch", source).version
    scratch.set_registered_model_alias("scratch", "champion", version)
    scoped = "_get_workspace_scoped_repo_path_if_enabled"
    monkeypatch.setattr(handlers, scoped, lambda path: f"workspaces/w2/{path}", raising=False)
    assert "its files must not change" in call(f"{FILES}/7", None, "DELETE").json["message"]
    monkeypatch.setattr(handlers, scoped, lambda path: f"workspaces/w3/{path}")
    assert call(f"{FILES}/7", None, "DELETE").status_code != 403


@pytest.mark.parametrize("trick", ["{0}/code:%2F%2Fx.py", "{0}/x.py", "{0}%3F"])
def test_a_path_is_decoded_whatever_else_is_in_it(call, verdicts, served, trick):
    verdicts(PASS)
    call(ALIAS, promotion())
    path = trick.format(served.replace("/models/", "/%256Dodels/"))
    assert "its files must not change" in call(f"{FILES}/{path}", {}, "PUT").json["message"]


UPLOAD = "/ajax-api/2.0/mlflow/upload-artifact"


@pytest.mark.parametrize("spelling", ["{0}", "file://{0}", "file://other{0}", "file://{1}", "{2}"])
def test_a_run_does_not_write_to_a_guarded_version_by_any_spelling_of_its_location(
    call, verdicts, served, spelling, tmp_path
):
    assert served
    verdicts(PASS)
    call(ALIAS, promotion())
    client = MlflowClient()
    folder = client.get_model_version_download_uri("clinic", "1").removeprefix("file://")
    (tmp_path / "link").symlink_to(folder)
    place = spelling.format(folder, folder.replace("models", "%6Dodels"), tmp_path / "link")
    made = client.create_experiment(f"twisted {tmp_path}", "/elsewhere")
    run = client.create_run(made).info.run_id
    _move_run(run, f"{place}/{run}/artifacts")
    path = f"{UPLOAD}?run_uuid={run}&path=x.py"
    assert "its files must not change" in call(path, {"a": 1}).json["message"]


def _move_run(run_id, location):
    """Give a run a location that MLflow's client would have written in another way."""
    from mlflow.store.tracking.dbmodels.models import SqlRun
    from sqlalchemy import update

    change = update(SqlRun).where(SqlRun.run_uuid == run_id).values(artifact_uri=location)
    with handlers._get_tracking_store().engine.begin() as connection:
        connection.execute(change)


def test_a_model_among_the_artifacts_of_a_run_is_guarded_too(scratch, call, served):
    assert served
    run = scratch.create_run("0")
    location = run.info.artifact_uri
    version = scratch.create_model_version("scratch", f"{location}/model").version
    scratch.set_registered_model_alias("scratch", "champion", version)
    upload = f"{UPLOAD}?run_uuid={run.info.run_id}&path="
    assert "its files must not change" in call(f"{upload}model/MLmodel", {"a": 1}).json["message"]
    assert "its files must not change" in call(f"{upload}model/%2e/x", {"a": 1}).json["message"]
    assert call(f"{upload}other/x", {"a": 1}).status_code == 200


def test_no_run_with_files_is_made_in_the_folder_of_a_guarded_version(call, verdicts, tmp_path):
    verdicts(PASS)
    call(ALIAS, promotion())
    client = MlflowClient()
    inside = client.get_model_version_download_uri("clinic", "1")
    path = "/ajax-api/2.0/mlflow/runs/create-promptlab-run"
    for place, status in ((inside, 403), (str(tmp_path), 400)):
        made = client.create_experiment(f"prompts {tmp_path} {status}", place)
        assert call(path, {"experiment_id": made}).status_code == status


def test_what_another_process_promotes_is_guarded_at_once(call, served, store):
    """What is guarded is kept in memory, and used only while the database has not changed."""
    assert store
    path = f"{UPLOAD}?run_uuid={MlflowClient().create_run('0').info.run_id}&path=x"
    assert call(path, {"a": 1}).status_code == 200
    with sqlite3.connect(store.removeprefix("sqlite:///")) as other:
        row = ("default", "clinic", "champion", 1)
        names = "workspace, name, alias, version"
        other.execute(f"INSERT INTO registered_model_aliases ({names}) VALUES (?, ?, ?, ?)", row)
    other.close()
    assert "its files must not change" in call(f"{FILES}/{served}/new", {}, "PUT").json["message"]
    MlflowClient().delete_registered_model_alias("clinic", "champion")
    assert call(f"{FILES}/{served}/new", {"a": 1}, "PUT").status_code == 200
    assert call(f"{FILES}/{served}/new", None, "DELETE").status_code == 200


# --- resolving ------------------------------------------------------------------------------------------


@pytest.fixture
def champion(call, store, monkeypatch):
    """Promote a model; return how to resolve it, how often its files were read, and their folder."""
    assert store
    client, reads = MlflowClient(), []
    client.set_registered_model_alias("clinic", "champion", "1")
    folder = Path(client.get_model_version_download_uri("clinic", "1").removeprefix("file://"))
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setenv(constants.ARTIFACT_ROOT_ENV_VAR, str(folder.parents[2]))
    monkeypatch.setattr(file_checks, "SETTLED", -60.0)  # although the files are new
    audited = digest_model(str(folder))

    def evidence(*_):
        reads.append(1)
        return audited

    monkeypatch.setattr(file_checks, "audited_files", evidence)
    yield lambda: call(f"{ALIAS}?name=clinic&alias=champion", None, "GET"), reads, folder
    for path, content in kept.items():
        path.write_bytes(content)


def test_files_are_read_again_only_where_they_may_have_changed(champion):
    resolve, reads, folder = champion
    for _ in range(3):
        assert resolve().status_code == 200
    assert len(reads) == 1
    os.utime(folder / "MLmodel")
    assert resolve().status_code == 200
    assert len(reads) == 2
    (folder / "MLmodel").write_bytes(b"flavors: {}")
    for _ in range(2):
        assert "'MLmodel' was changed" in resolve().json["message"]
    assert len(reads) == 4


def test_new_and_missing_files_are_noticed_too(champion):
    resolve, _, folder = champion
    assert resolve().status_code == 200
    (folder / "evil.py").write_text("import os")
    assert "'evil.py' was added" in resolve().json["message"]
    (folder / "evil.py").unlink()
    (folder / "MLmodel").unlink()
    assert "'MLmodel' is gone" in resolve().json["message"]


def test_a_file_that_changed_a_moment_ago_is_not_taken_for_settled(champion, monkeypatch):
    resolve, reads, _ = champion
    monkeypatch.setattr(file_checks, "SETTLED", 1e9)
    assert resolve().status_code == resolve().status_code == 200
    assert len(reads) == 2


def test_a_version_without_evidence_is_given_out(champion, monkeypatch):
    resolve, _, folder = champion
    monkeypatch.setattr(file_checks, "audited_files", lambda *_: None)
    (folder / "MLmodel").write_bytes(b"flavors: {}")
    assert resolve().status_code == 200


# --- tags of audits' runs -------------------------------------------------------------------------------


@pytest.fixture
def audit_run(store):
    """Return a run with the tags of an audit."""
    assert store
    client = MlflowClient()
    run_id = client.create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    client.set_tag(run_id, "b3.audit_run_id", run_id)
    client.set_tag(run_id, "b3.evidence", "abc")
    return run_id


def run_tags(run_id: str) -> dict[str, str]:
    found = MlflowClient().get_run(run_id).data.tags
    return {key: value for key, value in found.items() if "b3." in key.lower()}


@pytest.mark.parametrize(
    "key",
    [
        *("b3.subject", "b3.audit_run_id", "b3.evidence", "B3.Subject "),
        *("b3.commitment", "b3.attests", "b3.attestation"),
    ],
)
def test_what_an_audits_run_says_of_itself_is_written_once(call, audit_run, key):
    before = run_tags(audit_run)
    asked = {"run_id": audit_run, "key": key, "value": "other"}
    escaped = json.dumps(asked).replace("b3.", r"\u00623.").encode()
    tags = [{"key": "note", "value": "x"}, {"key": key, "value": "other"}]
    answers = [
        call(f"{RUNS}/set-tag", asked),
        call(f"{RUNS}/set-tag", {"run_uuid": audit_run, "run_id": audit_run, **asked}),
        call(f"{RUNS}/log-batch", {"run_id": audit_run, "tags": tags}),
        call.raw(f"{RUNS}/set-tag", escaped),
        call.raw(f"{RUNS}/set-tag", json.dumps(asked).encode("utf-16")),
    ]
    if key.strip().lower() in before:
        answers.append(call(f"{RUNS}/delete-tag", {"run_id": audit_run, "key": key}))
    assert {answer.status_code for answer in answers} == {403}
    said = "writes it once" if key.islower() else "as equal to a key that only audits may write"
    assert said in answers[0].json["message"]
    assert run_tags(audit_run) == before


def test_an_audit_and_everybody_else_write_their_tags(call, audit_run):
    def tag(key, value, run_id=audit_run):
        asked = {"run_id": run_id, "key": key, "value": value}
        return call(f"{RUNS}/set-tag", asked).status_code

    assert tag("b3.subject", "m-1") == tag("b3.status", "current") == 200
    tags = [{"key": "b3.evidence", "value": "abc"}, {"key": "b3.status", "value": "current"}]
    assert call(f"{RUNS}/log-batch", {"run_id": audit_run, "tags": tags}).status_code == 200
    client = MlflowClient()
    trained = client.create_run("0").info.run_id  # shows the latest audit of its model
    assert tag("né", "b3.x", trained) == 200
    for number in ("a", "b"):
        tags = [{"key": f"b3.{key}", "value": number} for key in ("audit_run_id", "subject")]
        assert call(f"{RUNS}/log-batch", {"run_id": trained, "tags": tags}).status_code == 200
    assert run_tags(trained) == {"b3.audit_run_id": "b", "b3.subject": "b"}
    for kind in ("commitment", "attests"):
        other = client.create_run("0").info.run_id
        assert tag(f"b3.{kind}", "c", other) == tag("b3.subject", "m-1", other) == 200
        assert tag("b3.audit_run_id", other, other) == tag("b3.evidence", "abc", other) == 403
    assert tag("b3.attestation", "token", other) == 200


@pytest.mark.parametrize("key", ["b3.commitment", "b3.attests", "b3.attestation"])
def test_an_audit_that_has_begun_cannot_become_something_else(call, store, key):
    """Else it would not be counted among the audits that were tried."""
    assert store
    begun = MlflowClient().create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    asked = {"run_id": begun, "key": key, "value": "c"}
    assert "writes it once" in call(f"{RUNS}/set-tag", asked).json["message"]


def test_records_and_experiments_with_records_are_not_deleted(call, audit_run):
    client = MlflowClient()
    other = client.create_experiment("records")
    begun = client.create_run(other, tags={"b3.subject": "m-1"}).info.run_id
    for run_id in (audit_run, begun):
        answer = call(f"{RUNS}/delete", {"run_id": run_id})
        assert "cannot be deleted" in answer.json["message"]
    experiments = "/api/2.0/mlflow/experiments"
    answer = call(f"{experiments}/delete", {"experiment_id": other})
    assert "is the record of an audit" in answer.json["message"]
    trained = client.create_run("0", tags={"b3.subject": "m-1", "b3.audit_run_id": begun})
    assert call(f"{RUNS}/delete", {"run_id": trained.info.run_id}).status_code == 200
    empty = client.create_experiment("no records")
    assert call(f"{experiments}/delete", {"experiment_id": empty}).status_code == 200


def test_the_unused_twin_of_a_record_may_be_deleted(call, store):
    """MLflow's client repeats a request whose answer is lost, and then there are two runs."""
    assert store
    client = MlflowClient()
    tags = {"b3.subject": "m-1", "mlflow.b3.request": "0123abcd"}
    used, twin = (client.create_run("0", tags=tags).info.run_id for _ in range(2))
    assert call(f"{RUNS}/delete", {"run_id": twin}).status_code == 403
    client.set_tag(used, "b3.audit_run_id", used)
    assert call(f"{RUNS}/delete", {"run_id": used}).status_code == 403
    assert call(f"{RUNS}/delete", {"run_id": twin}).status_code == 200


def test_a_logged_model_names_audits_of_its_own_only(call, store):
    assert store
    client = MlflowClient()
    model_id = client.get_model_version("clinic", "1").source.removeprefix("models:/")
    own = client.create_run("0", tags={"b3.subject": model_id}).info.run_id
    client.set_tag(own, "b3.audit_run_id", own)
    path = f"/api/2.0/mlflow/logged-models/{model_id}/tags"

    def name(run_id, key="b3.audit_run_id"):
        tags = [{"key": "b3.e0", "value": "0.1"}, {"key": key, "value": run_id}]
        return call(path, {"tags": tags}, "PATCH")

    foreign = client.create_run("0", tags={"b3.subject": "m-2"}).info.run_id
    for made_up in ("nobody", foreign):
        assert "must name the run of an audit" in name(made_up).json["message"]
    assert name(own, "B3.audit_run_id").status_code == 403
    assert name(own).status_code == 200
    assert call(f"{path}/b3.audit_run_id", None, "DELETE").status_code == 403
    assert call(f"{path}/b3.e0", None, "DELETE").status_code == 200
    new = {"experiment_id": "0", "tags": [{"key": "b3.audit_run_id", "value": own}]}
    assert call("/api/2.0/mlflow/logged-models", new).status_code == 403


def test_a_logged_model_of_a_champion_is_not_deleted(call, verdicts):
    verdicts(PASS)
    call(ALIAS, promotion())
    model_id = MlflowClient().get_model_version("clinic", "1").source.removeprefix("models:/")
    answer = call(f"/api/2.0/mlflow/logged-models/{model_id}", None, "DELETE")
    assert "it is the model of" in answer.json["message"]


def test_files_of_a_complete_record_are_kept(call, served):
    client, (root, _, model_id, _) = MlflowClient(), served.split("/")
    experiment = client.get_logged_model(model_id).experiment_id
    run_id = client.create_run(experiment, tags={"b3.subject": "m-1"}).info.run_id
    folder = f"{root}/{run_id}"
    upload = f"{UPLOAD}?run_uuid={run_id}&path=b3/evidence.json"
    assert call(upload, {"a": 1}).status_code == 200  # the audit writes its files
    client.set_tag(run_id, "b3.audit_run_id", run_id)
    client.set_tag(run_id, "b3.evidence", "abc")
    for method, path in (
        ("PUT", f"{FILES}/{folder}/artifacts/b3/evidence.json"),
        ("PUT", f"{FILES}/{folder}/artifacts/B3/new.json"),
        ("DELETE", f"{FILES}/{folder}/artifacts/b3/evidence.json"),
        ("DELETE", f"{FILES}/{folder}/artifacts/b3"),
        ("DELETE", f"{FILES}/{folder}"),
        ("DELETE", f"{FILES}/{root}"),
        ("POST", upload),
    ):
        answer = call(path, {"a": 1}, method)
        assert "which must not change" in answer.json["message"], path
    assert call(f"{FILES}/{folder}/artifacts/other.png", {"a": 1}, "PUT").status_code == 200


def test_an_audit_that_failed_cannot_be_given_to_another_run(call, store):
    assert store
    failed = MlflowClient().create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    asked = {"run_id": failed, "key": "b3.audit_run_id", "value": "other"}
    assert call(f"{RUNS}/set-tag", asked).status_code == 403
    assert call(f"{RUNS}/set-tag", asked | {"value": failed}).status_code == 200


def test_bodies_that_name_neither_a_complete_record_nor_such_a_tag_are_not_parsed(
    call, audit_run, monkeypatch
):
    def parsed(*_):
        raise AssertionError

    monkeypatch.setattr(record_checks, "_check", parsed)
    other = MlflowClient().create_run("0").info.run_id
    asked = {"key": "note", "value": "plain"}
    assert call(f"{RUNS}/set-tag", {"run_id": other, **asked}).status_code == 200
    assert call(f"{RUNS}/set-tag", {"run_id": audit_run, **asked}).status_code == 403


# --- complete records ----------------------------------------------------------------------------------

DATASET = {"name": "x", "digest": "deadbeef", "source_type": "local", "source": "x"}
MODEL = {"artifact_path": "m", "flavors": {}, "utc_time_created": "2026", "run_id": "r"}
METRIC = {"key": "other", "value": 1.0, "timestamp": 1, "step": 0}
#: Whatever writes to a run, by the end of its route.
WRITES = {
    "log-inputs": {"datasets": [{"dataset": DATASET, "tags": []}]},
    "log-parameter": {"key": "other", "value": "x"},
    "log-metric": METRIC,
    "log-batch with a metric": {"metrics": [METRIC]},
    "log-batch with a parameter": {"params": [{"key": "b3/other", "value": "x"}]},
    "log-batch with a tag": {"tags": [{"key": "other", "value": "x"}]},
    "log-model": {"model_json": json.dumps(MODEL)},
    "outputs": {"models": [{"model_id": "m-1", "step": 0}]},
    "traces/link-to-run": {"trace_ids": ["tr-1"]},
    "update with a status": {"status": "FAILED", "end_time": 1},
    "update with a name": {"run_name": "x"},
    "set-tag": {"key": "b3.e0", "value": "0.001"},
    "set-tag of a name": {"key": "mlflow.runName", "value": "x"},
    "set-tag of a description": {"key": "mlflow.note.content", "value": "e0 is 0"},
    "set-tag of a status": {"key": "b3.status", "value": "superseded"},
    "set-tag of a successor": {"key": "b3.superseded_by", "value": "0" * 32},
    "delete-tag": {"key": "b3.e0_interval"},
    "delete": {},
}


def written(call, run_id: str) -> dict[str, str]:
    """Write to a run by every route; return what was refused, and why."""
    answers = {}
    for route, content in WRITES.items():
        base = "/api/2.0/mlflow" if route.startswith("traces") else RUNS
        answers[route] = call(f"{base}/{route.split()[0]}", {"run_id": run_id, **content})
    return {
        route: answer.json["message"]
        for route, answer in answers.items()
        if answer.status_code == 403
    }


def complete_record(kind: str) -> str:
    """Return the run of a complete audit, commitment or attestation."""
    client = MlflowClient()
    run_id = client.create_run("0", tags={"b3.subject": "m-1", "b3.e0_interval": "0"}).info.run_id
    tags = {
        "audit": {"b3.audit_run_id": run_id, "b3.evidence": "abc", "b3.status": "current"},
        "commitment": {"b3.commitment": "abc"},
        "attestation": {"b3.attests": "0" * 32, "b3.attestation": "token"},
    }[kind]
    for key, value in tags.items():
        client.set_tag(run_id, key, value)
    client.set_terminated(run_id)
    return run_id


@pytest.mark.parametrize("kind", ["audit", "commitment", "attestation"])
def test_nothing_is_written_to_a_complete_record(call, store, kind):
    assert store
    run_id = complete_record(kind)
    before = MlflowClient().get_run(run_id).to_dictionary()
    refused = written(call, run_id)
    assert refused.keys() == WRITES.keys()
    assert "cannot be deleted" in refused.pop("delete")
    assert all("which must not change" in message for message in refused.values())
    assert MlflowClient().get_run(run_id).to_dictionary() == before


def test_everything_is_written_to_a_record_that_is_not_complete(call, store):
    """As the audit does; only who and what it is cannot be changed any more."""
    assert store
    run_id = MlflowClient().create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    assert written(call, run_id).keys() == {"delete"}


@pytest.mark.newest  # MLflow 3.10 itself refuses a NaN that is logged again
def test_requests_that_clients_repeat_are_answered_as_before(call, store):
    assert store
    client = MlflowClient()
    run_id = client.create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    evidence = {
        "run_id": run_id,
        "metrics": [METRIC, {**METRIC, "key": "b3/e0", "value": "NaN"}],
        "params": [{"key": "b3/folds", "value": "5"}],
        "tags": [{"key": f"b3.{key}", "value": run_id} for key in ("audit_run_id", "evidence")],
    }
    end = {"run_id": run_id, "status": "FINISHED", "end_time": 5}
    for _ in range(2):
        assert call(f"{RUNS}/log-batch", evidence).status_code == 200
        assert call(f"{RUNS}/update", end).status_code == 200
        status = {"run_id": run_id, "key": "b3.status", "value": "current"}
        assert call(f"{RUNS}/set-tag", status).status_code == 200
    for wrong in ({"value": 2.0}, {"timestamp": 2}, {"step": 1}):
        answer = call(f"{RUNS}/log-metric", {"run_id": run_id, **METRIC, **wrong})
        assert "cannot get the metric 'other'" in answer.json["message"]


def test_a_later_audit_supersedes_a_complete_one(call, store):
    assert store
    client = MlflowClient()
    older, newer = complete_record("audit"), complete_record("audit")
    name = client.get_run(older).info.run_name
    note = f"**Superseded** by the audit of run `{newer}`.\n\n"
    superseded = {"key": "b3.status", "value": "superseded"}
    for path, asked in (
        ("set-tag", {"key": "b3.superseded_by", "value": newer}),
        ("set-tag", {"key": "mlflow.note.content", "value": note}),
        ("update", {"run_name": f"{name} superseded"}),
        ("set-tag", superseded),
        ("set-tag", {"key": "mlflow.runColor", "value": "#0072b2"}),
    ):
        assert call(f"{RUNS}/{path}", {"run_id": older, **asked}).status_code == 200, asked
    asked = {"run_id": newer, "key": "b3.supersedes", "value": older}
    assert call(f"{RUNS}/set-tag", asked).status_code == 200
    for path, asked in (
        ("set-tag", {"key": "mlflow.note.content", "value": f"{note}e0 is 0"}),
        ("set-tag", {"key": "b3.status", "value": "current"}),
        ("update", {"run_name": "better"}),
    ):
        assert call(f"{RUNS}/{path}", {"run_id": older, **asked}).status_code == 403, asked


def test_a_deleted_record_is_not_restored(call, store):
    assert store
    client = MlflowClient()
    experiment = client.create_experiment("with a deleted record")
    run_id = complete_record("audit")
    moved = client.create_run(experiment, tags={"b3.subject": "m-1", "b3.commitment": "c"})
    for deleted in (run_id, moved.info.run_id):
        client.delete_run(deleted)
    assert "cannot be restored" in call(f"{RUNS}/restore", {"run_id": run_id}).json["message"]
    client.delete_experiment(experiment)
    restore = "/api/2.0/mlflow/experiments/restore"
    answer = call(restore, {"experiment_id": experiment})
    assert "cannot be restored" in answer.json["message"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_job_that_names_a_record_does_not_end_or_delete_it(call, store, monkeypatch, method):
    """A job's run is one of its parameters, which anybody can write."""
    assert store
    run_id = complete_record("audit")
    handlers_job = type("Job", (), {"run_id": run_id})
    jobs = type("Jobs", (), {"get_job": lambda _, job_id: job_id})
    monkeypatch.setattr(handlers, "_get_job_store", jobs, raising=False)
    name = "_build_prompt_optimization_job_from_entity"
    monkeypatch.setattr(handlers, name, lambda _: handlers_job, raising=False)
    path = "/api/3.0/mlflow/prompt-optimization/jobs/1"
    answer = call(f"{path}/cancel" if method == "POST" else path, None, method)
    assert "is the record of an audit" in answer.json["message"]


@pytest.mark.usefixtures("app")
def test_no_job_is_started_for_a_record():
    """Jobs of MLflow write to its database themselves, so that no other check would see them."""
    gate = Gate(policy=load_policy(), archive=server_archive())
    other = MlflowClient().create_run("0").info.run_id

    async def jobs(scope, receive, send):  # noqa: ARG001
        await send({"status": 200, "body": (await receive())["body"]})

    def start(run_id: str, path: str = "/ajax-api/3.0/jobs/") -> list[dict]:
        sent: list[dict] = []
        asked = {"job_name": "optimize_prompts", "params": {"run_id": run_id}}
        body = json.dumps(asked).encode()
        parts = [{"body": body[:9], "more_body": True}, {"body": body[9:]}]

        async def receive():
            return parts.pop(0)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "client": None}
        anyio.run(NativeRoutes(jobs, gate, frozenset()), scope, receive, send)
        return sent

    record = complete_record("audit")
    for run_id in (record, f" {record.upper()}", record.translate({ord("0"): "\uff10"})):
        assert start(run_id)[0]["status"] == 403
        assert b"a job cannot be started" in start(run_id, "/pre/ajax-api/3.0/jobs")[1]["body"]
    (answer,) = start(other)
    assert answer["status"] == 200
    assert json.loads(answer["body"])["params"] == {"run_id": other}


def test_a_route_of_runs_that_is_not_known_is_refused(app, call):
    app.add_url_rule("/api/4.0/mlflow/runs/rewrite", view_func=lambda: "", methods=["POST"])
    answer = call("/api/4.0/mlflow/runs/rewrite", {})
    assert "is unknown to this version" in answer.json["message"]


def test_runs_show_the_verdict_that_a_version_shows_and_logged_models_none(call, store):
    assert store
    client = MlflowClient()
    source = client.get_model_version("clinic", "1").source
    client.create_registered_model("judged")
    run = client.create_run("0")
    version = client.create_model_version("judged", source, run.info.run_id)
    text = "PASS, policy 0123456789ab, 2026-03-02T09:14:07+00:00"
    verdict = {"key": "b3.verdict", "value": text}
    answer = call(f"{RUNS}/set-tag", {"run_id": version.run_id, **verdict})
    assert "must be the verdict that a guarded version" in answer.json["message"]
    other = {"key": "B3.Verdict", "value": text}
    assert call(f"{RUNS}/set-tag", {"run_id": version.run_id, **other}).status_code == 403
    new = {"experiment_id": "0", "tags": [verdict]}
    assert call(f"{RUNS}/create", new).status_code == 403
    models = "/api/2.0/mlflow/logged-models"
    assert call(models, new).status_code == 403
    model_id = version.source.removeprefix("models:/")
    answer = call(f"{models}/{model_id}/tags", {"tags": [verdict]}, "PATCH")
    assert "gates judge registered versions" in answer.json["message"]
    client.set_model_version_tag("judged", "1", "b3.verdict", text)  # as the server's gate did
    assert call(f"{RUNS}/set-tag", {"run_id": version.run_id, **verdict}).status_code == 200
    removal = {"run_id": version.run_id, "key": "b3.verdict"}
    assert call(f"{RUNS}/delete-tag", removal).status_code == 200


# --- where files are read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "mlflow-artifacts://elsewhere:5000/1/models/m-1/artifacts",
        "https://elsewhere/api/2.0/mlflow-artifacts/artifacts/1/models/m-1/artifacts",
    ],
)
def test_files_on_another_host_are_not_asked_for(uri, monkeypatch):
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    with pytest.raises(EvidenceError, match="are not on this server"):
        open_own(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "mlflow-artifacts:/1/run/artifacts",
        "https://own/api/2.0/mlflow-artifacts/artifacts/1/run/artifacts",
    ],
)
def test_files_that_the_server_serves_are_read_where_it_keeps_them(uri, monkeypatch, tmp_path):
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path))
    monkeypatch.setenv(
        constants.ARTIFACT_ROOT_ENV_VAR, "https://own/api/2.0/mlflow-artifacts/artifacts"
    )
    monkeypatch.setattr(handlers, "_artifact_repo", None)
    repository, path = open_own(uri)
    assert (repository.artifact_dir, path) == (str(tmp_path), "1/run/artifacts")


@pytest.fixture
def roots(monkeypatch, tmp_path):
    """Let the server serve one folder, and have another one as its default artifact root."""
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path / "artifacts"))
    monkeypatch.setenv(constants.ARTIFACT_ROOT_ENV_VAR, f"file://{tmp_path}/default")
    for name in ("artifacts", "default", "artifacts-evil", "further"):
        (tmp_path / name).mkdir()
    (tmp_path / "artifacts" / "link").symlink_to(tmp_path / "further")
    return tmp_path


@pytest.mark.parametrize(
    "uri",
    [
        "{0}/artifacts/1/run",
        "file://{0}/artifacts/1",
        "file://localhost{0}/default/1",
        "{0}/further/../default/1",
        "mlflow-artifacts:/1/run/artifacts",
    ],
)
def test_the_server_opens_what_is_in_its_roots(roots, uri):
    check_root(uri.format(roots))


@pytest.mark.parametrize(
    "uri",
    [
        "{0}",
        "{0}/artifacts-evil/1",
        "{0}/artifacts/../artifacts-evil",
        "{0}/artifacts/%2e%2e/artifacts-evil",
        "{0}/artifacts/%252e%252e/artifacts-evil",
        "{0}/artifacts/link/1",
        "file://{0}/further",
        "file://elsewhere{0}/artifacts/1",
        "mlflow-artifacts:/../further",
        "mlflow-artifacts:/link/1",
        "s3://bucket/models",
        "gs://bucket",
        "relative/folder",
    ],
)
def test_the_server_does_not_open_what_is_elsewhere(roots, uri):
    with pytest.raises(EvidenceError, match=r"outside the artifact roots.*guard.artifact_roots"):
        open_own(uri.format(roots))


def test_a_policy_allows_further_roots(roots):
    further = [f"{roots}/further", "s3://bucket/models"]
    for uri in (f"{roots}/further/1", f"{roots}/artifacts/link/1", "s3://bucket/models/1"):
        check_root(uri, further)
    for uri in ("s3://bucket2/models/1", "s3://bucket/models2", "s3://bucket/models/../x", "s3://"):
        with pytest.raises(EvidenceError, match="outside the artifact roots"):
            check_root(uri, further)


def test_without_proxied_artifacts_the_served_folder_is_no_root(roots, monkeypatch):
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "false")
    check_root(f"{roots}/default/1")
    with pytest.raises(EvidenceError, match="outside the artifact roots"):
        check_root(f"{roots}/artifacts/1")


def test_all_spellings_of_a_location_have_a_place_in_common(roots):
    expected = f"{roots}/artifacts/1/model"
    for uri in (
        "mlflow-artifacts:/1/model",
        "mlflow-artifacts://host:5000/1/model",
        "https://host/api/2.0/mlflow-artifacts/artifacts/1/model",
        "mlflow-artifacts:/1//./x/../model/",
        "mlflow-artifacts:/1/%256dodel",
        f"file://{roots}/artifacts/1/model",
        f"file://anywhere{roots}/artifacts/1/model",
        f"{roots}/default/../artifacts/1/model",
    ):
        assert expected in places_of(uri), uri


def test_a_link_is_followed_before_the_folder_above_it(roots):
    assert f"{roots}/x" in places_of(f"{roots}/artifacts/link/../x")
    with pytest.raises(EvidenceError, match="outside the artifact roots"):
        check_root(f"{roots}/artifacts/link/../x")


def test_a_name_that_only_begins_alike_is_not_within():
    assert is_within("/srv/artifacts/1", "/srv/artifacts")
    assert is_within("/srv", "/")
    assert not is_within("/srv/artifacts-evil", "/srv/artifacts")


def test_a_log_that_cannot_be_written_stops_the_server(monkeypatch, tmp_path):
    monkeypatch.setenv(GATE_LOG, str(tmp_path / "nowhere" / "gate.log"))
    with pytest.raises(InputError, match="cannot be written"):
        server.read_rules()


def test_a_trusted_key_that_cannot_be_read_stops_the_server(monkeypatch):
    monkeypatch.setenv("MLFLOW_B3_TRUSTED_KEYS", "nowhere.pub")
    with pytest.raises(InputError, match=r"'nowhere\.pub', is neither"):
        server.read_rules()
