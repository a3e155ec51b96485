"""The gate as a Flask app, the form in which gunicorn and waitress serve it."""

from dataclasses import replace
from itertools import repeat

import mlflow
import pytest
from flask import Flask
from mlflow import MlflowClient
from mlflow.server import app as mlflow_app
from mlflow.server import constants, handlers
from sklearn.naive_bayes import GaussianNB
from werkzeug.test import Client

from mlflow_b3 import EvidenceError, InputError
from mlflow_b3.gating import routes, server, server_gate
from mlflow_b3.gating.decisions import GATE_LOG
from mlflow_b3.gating.policy import load_policy
from mlflow_b3.gating.server_stores import model_ids, open_own
from mlflow_b3.gating.verdict import FAIL, PASS, Reason, Verdict

ALIAS = "/api/2.0/mlflow/registered-models/alias"
STAGE = "/ajax-api/2.0/mlflow/model-versions/transition-stage"
RENAME = "/api/2.0/mlflow/registered-models/rename"


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
    assert aliases() == {"champion": "1"}


def test_the_gate_is_added_once_however_often_it_is_asked_for(app, verdicts):
    verdicts(PASS, PASS, FAIL)  # two verdicts for one promotion
    server.add_gate(app, app)
    server.add_gate(app, app)
    assert Client(app).post(ALIAS, json=promotion()).status_code == 200


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
