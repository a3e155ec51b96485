"""The gate as a Flask app, the form in which gunicorn and waitress serve it."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import repeat

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
from mlflow_b3.gating import routes, server, server_files, server_gate, server_runs
from mlflow_b3.gating.decisions import GATE_LOG
from mlflow_b3.gating.policy import load_policy
from mlflow_b3.gating.server_stores import model_ids, open_own
from mlflow_b3.gating.verdict import FAIL, PASS, Reason, Verdict

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


def test_files_sent_to_flask_are_guarded_too(call, verdicts, monkeypatch, tmp_path):
    monkeypatch.setenv(constants.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setenv(constants.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path))
    verdicts(PASS)
    call(ALIAS, promotion())
    model_id = MlflowClient().get_model_version("clinic", "1").source.removeprefix("models:/")
    path = f"/api/2.0/mlflow-artifacts/artifacts/1/models/{model_id}/artifacts/MLmodel"
    assert "its files are kept" in call(path, {}, "PUT").json["message"]


@pytest.mark.parametrize("before", [None, "2"])
def test_an_alias_goes_back_to_where_it_was_if_its_version_changed_meanwhile(
    call, verdicts, before
):
    if before:
        MlflowClient().set_registered_model_alias("clinic", "champion", before)
    verdicts(PASS, FAIL)
    answer = call(ALIAS, promotion())
    assert answer.status_code == 403
    assert "was taken back" in answer.json["message"]
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
    assert "was taken back" in call(STAGE, asked | {"version": "1"}).json["message"]
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
    assert "was taken back" in answer.json["message"]
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
    assert "is not known to this version" in answer.json["message"]
    assert call("/api/2.0/mlflow/registered-models/crown", None, "GET").status_code == 200


def test_a_mutation_that_is_not_known_is_refused(app, monkeypatch):
    monkeypatch.setattr(routes, "unclassified_mutations", lambda: ["crownModel"])
    server.create_app(app)
    query = {"query": "mutation { crownModel(name: 1) }"}
    for method in ("POST", "GET"):
        answer = Client(app).open("/graphql", method=method, json=query)
        assert "is not known to this version" in answer.json["message"]


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
    assert "it keeps its name" in answer.json["message"]
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


def test_a_tag_of_prompts_hides_no_model_from_a_removal(scratch, call, verdicts, monkeypatch):
    verdicts(PASS)
    asked = {"name": "scratch", "alias": "champion", "version": "1"}
    assert call(ALIAS, asked).status_code == 200
    scratch.set_registered_model_tag("scratch", "mlflow.prompt.is_prompt", "true")
    monkeypatch.setattr(server_files, "_own_path", lambda _: "7/models/m-1")
    answer = call(f"{FILES}/7", None, "DELETE")
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
    assert "was taken back" in answer.json["message"]
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
    app, verdicts, monkeypatch, store
):
    assert store
    verdicts(PASS)
    monkeypatch.setattr(server_files, "_own_path", lambda _: "7/models/m-1")

    def meanwhile(**_):
        MlflowClient().set_registered_model_alias("clinic", "champion", "1")
        verdicts(FAIL)
        return "removed"

    monkeypatch.setitem(app.view_functions, "_delete_artifact_mlflow_artifacts", meanwhile)
    server.create_app(app)
    answer = Client(app).delete(f"{FILES}/7")
    assert "was taken back" in answer.json["message"]
    assert aliases() == {}


def test_a_folder_is_removed_in_the_workspace_of_the_request(call, verdicts, monkeypatch):
    verdicts(PASS)
    call(ALIAS, promotion())
    monkeypatch.setattr(server_files, "_own_path", lambda _: "workspaces/w2/7/models/m-1")
    scoped = "_get_workspace_scoped_repo_path_if_enabled"
    monkeypatch.setattr(handlers, scoped, lambda path: f"workspaces/w2/{path}", raising=False)
    assert "its files are kept" in call(f"{FILES}/7", None, "DELETE").json["message"]
    monkeypatch.setattr(handlers, scoped, lambda path: f"workspaces/w3/{path}")
    assert call(f"{FILES}/7", None, "DELETE").status_code != 403


@pytest.mark.parametrize("trick", ["{0}/code:%2F%2Fx.py", "{0}/x.py"])
def test_a_path_is_decoded_whatever_else_is_in_it(call, verdicts, trick):
    verdicts(PASS)
    call(ALIAS, promotion())
    model_id = MlflowClient().get_model_version("clinic", "1").source.removeprefix("models:/")
    path = trick.format(f"7/%256Dodels/{model_id}/artifacts")
    assert "its files are kept" in call(f"{FILES}/{path}", {}, "PUT").json["message"]


def test_the_location_of_a_run_is_decoded(call, verdicts, store, tmp_path):
    assert store
    verdicts(PASS)
    call(ALIAS, promotion())
    client = MlflowClient()
    model_id = client.get_model_version("clinic", "1").source.removeprefix("models:/")
    place = f"file://{tmp_path}/%6Dodels/{model_id}/artifacts"
    run = client.create_run(client.create_experiment(f"twisted {tmp_path}", place))
    path = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run.info.run_id}&path=x.py"
    assert "its files are kept" in call(path, {"a": 1}).json["message"]


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
    "key", ["b3.subject", "b3.audit_run_id", "b3.evidence", "b3.commitment", "B3.Subject "]
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
    if key != "b3.commitment":
        answers.append(call(f"{RUNS}/delete-tag", {"run_id": audit_run, "key": key}))
    assert {answer.status_code for answer in answers} == {403}
    assert "is written once" in answers[0].json["message"]
    assert run_tags(audit_run) == before


def test_an_audit_and_everybody_else_write_their_tags(call, audit_run):
    def tag(key, value, run_id=audit_run):
        asked = {"run_id": run_id, "key": key, "value": value}
        return call(f"{RUNS}/set-tag", asked).status_code

    assert tag("b3.subject", "m-1") == tag("b3.status", "superseded") == tag("né", "b3.x") == 200
    tags = [{"key": "b3.evidence", "value": "abc"}, {"key": "b3.status", "value": "current"}]
    assert call(f"{RUNS}/log-batch", {"run_id": audit_run, "tags": tags}).status_code == 200
    client = MlflowClient()
    trained = client.create_run("0").info.run_id  # shows the latest audit of its model
    for number in ("a", "b"):
        tags = [{"key": f"b3.{key}", "value": number} for key in ("audit_run_id", "subject")]
        assert call(f"{RUNS}/log-batch", {"run_id": trained, "tags": tags}).status_code == 200
    assert run_tags(trained) == {"b3.audit_run_id": "b", "b3.subject": "b"}
    committed = client.create_run("0").info.run_id
    assert tag("b3.subject", "m-1", committed) == tag("b3.commitment", "c", committed) == 200
    assert tag("b3.audit_run_id", committed, committed) == 403


def test_an_audit_that_failed_cannot_be_given_to_another_run(call, store):
    assert store
    failed = MlflowClient().create_run("0", tags={"b3.subject": "m-1"}).info.run_id
    asked = {"run_id": failed, "key": "b3.audit_run_id", "value": "other"}
    assert call(f"{RUNS}/set-tag", asked).status_code == 403
    assert call(f"{RUNS}/set-tag", asked | {"value": failed}).status_code == 200


def test_bodies_that_cannot_name_such_a_tag_are_not_parsed(call, audit_run, monkeypatch):
    def parsed(*_):
        raise AssertionError

    monkeypatch.setattr(server_runs, "_check", parsed)
    asked = {"run_id": audit_run, "key": "note", "value": "plain"}
    assert call(f"{RUNS}/set-tag", asked).status_code == 200


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
    with pytest.raises(EvidenceError, match="are not kept by this server"):
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


MODEL = "m-" + "0a" * 16


@pytest.mark.parametrize(
    "path",
    [
        f"1/models/{MODEL}/artifacts/MLmodel",
        f"1//models/./{MODEL}",
        f"models/{MODEL.upper()}/x",
        f"s3://bucket/deep/models/{MODEL}/artifacts",
        f"workspaces/a/1/models/{MODEL}?",
    ],
)
def test_a_path_through_a_models_folder_is_recognized(path):
    assert model_ids(path) == [MODEL]


@pytest.mark.parametrize("path", ["1/run/artifacts/model.pkl", "1/models/m-1/artifacts", ""])
def test_other_paths_are_not_looked_up(path):
    assert model_ids(path) == []


def test_a_log_that_cannot_be_written_stops_the_server(monkeypatch, tmp_path):
    monkeypatch.setenv(GATE_LOG, str(tmp_path / "nowhere" / "gate.log"))
    with pytest.raises(InputError, match="cannot be written"):
        server.read_rules()


def test_a_trusted_key_that_cannot_be_read_stops_the_server(monkeypatch):
    monkeypatch.setenv("MLFLOW_B3_TRUSTED_KEYS", "nowhere.pub")
    with pytest.raises(InputError, match=r"nowhere.pub.* is neither a public key"):
        server.read_rules()
