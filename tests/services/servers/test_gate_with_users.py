"""The gate beside MLflow's users, and a server that must not start."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from gated import Answer, Gated, gated
from mlflow import MlflowClient
from real_services import absent

pytestmark = pytest.mark.servers
PASSWORD = "a password of twelve"
USERS = {
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "not a secret",
    "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
}
ALIAS = "/api/2.0/mlflow/registered-models/alias"
NAME = "clinic"


@pytest.fixture(scope="module")
def gate(tmp_path_factory, report, clinic) -> Iterator[Gated]:
    try:
        import flask_wtf  # noqa: F401
    except ImportError:
        absent("mlflow[auth] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        folder = tmp_path_factory.mktemp("users")
        with gated(folder, report, clinic, "b3-gate-basic-auth", USERS) as running:
            yield running


@pytest.fixture(scope="module")
def logged(gate):
    return gate.register(NAME)


def ask(gate: Gated, method: str, path: str, content, password: str | None) -> Answer:
    headers = {}
    if password is not None:
        secret = base64.b64encode(f"admin:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {secret}"
    return gate.send(method, path, content, headers)


@pytest.mark.parametrize("password", [None, "guessed"])
def test_who_is_not_known_is_asked_for_a_password_before_anything_is_judged(gate, logged, password):
    before = len((gate.folder / "gate.log").read_text().splitlines())
    asked = {"name": NAME, "alias": "champion", "version": "1"}
    assert ask(gate, "POST", ALIAS, asked, password).status == 401
    path = f"/api/2.0/mlflow-artifacts/artifacts/{gate.model_path(logged)}/MLmodel"
    assert ask(gate, "PUT", path, b"x", password).status == 401
    assert len(gate.decisions()) == before


def test_administrators_are_refused_like_everybody_and_the_log_names_them(gate, logged):
    asked = {"name": NAME, "alias": "champion", "version": "1"}
    answer = ask(gate, "POST", ALIAS, asked, PASSWORD)
    assert "there is no audit of it" in answer.message
    assert gate.decisions()[-1]["actor"] == "admin"
    assert ask(gate, "POST", ALIAS, asked | {"alias": "candidate"}, PASSWORD).status == 200
    # as it was before the server had a gate
    MlflowClient(f"sqlite:///{gate.folder}/mlflow.db").set_registered_model_alias(
        NAME, "champion", "1"
    )
    path = f"/api/2.0/mlflow-artifacts/artifacts/{gate.model_path(logged)}/MLmodel"
    assert "its files must not change" in ask(gate, "PUT", path, b"x", PASSWORD).message
    assert gate.decisions()[-1]["actor"] == "admin"


def test_a_policy_that_cannot_be_read_stops_the_server_with_one_error(tmp_path):
    (tmp_path / "policy.yaml").write_text("guard:\n  alias: [champion]\nlimits:\n  e0_high: low\n")
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--port", "0", "--app-name", "b3-gate"),
        *("--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"),
    ]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"MLFLOW_B3_POLICY": str(tmp_path / "policy.yaml")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 0
    assert "Did you mean 'aliases'?" in ended.stderr
    assert "limits.e0_high: 'low' must be a number" in ended.stderr
    assert "Traceback" not in ended.stderr
