"""No route of the registry or of runs is forgotten, of whatever version of MLflow is installed."""

import warnings

import anyio
import pytest
from flask import Flask
from mlflow.server import app as mlflow_app

from mlflow_b3 import InputError
from mlflow_b3.gating.server import app as server
from mlflow_b3.gating.server import routes
from mlflow_b3.gating.server.file_checks import NativeRoutes

pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def native():
    """Return MLflow's server as uvicorn runs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's way to serve Flask
        from mlflow.server.fastapi_app import create_fastapi_app
    return create_fastapi_app(mlflow_app)


def test_every_route_of_flask_that_touches_the_registry_or_a_run_is_classified():
    assert routes.unclassified_rules(mlflow_app) == []


def test_the_routes_that_write_to_a_run_are_guarded():
    found = {endpoint for endpoint, _, _ in routes.run_rules(mlflow_app)}
    written = {
        "tag",
        "batch",
        "metric",
        "parameter",
        "inputs",
        "outputs",
        "model",
        "traces",
        "update",
    }
    guarded = {routes.GUARDED[endpoint] for endpoint in found if endpoint in routes.GUARDED}
    assert {f"run_{name}" for name in written} <= guarded
    assert found - routes.GUARDED.keys() <= routes.HARMLESS.keys() | {"_search_runs"}


def test_every_route_of_fastapi_that_changes_the_registry_or_files_is_classified(native):
    assert routes.unclassified_native(native) == []


def test_every_mutation_of_graphql_is_classified():
    assert routes.unclassified_mutations() == []


def test_every_guarded_handler_is_there_and_has_a_check():
    assert routes.missing_handlers(mlflow_app) == []
    assert all(callable(check) for check in server.CHECKS.values())
    assert server.CHECKS.keys() == routes.GUARDED.keys()


def test_a_route_is_guarded_harmless_or_reading_and_never_two_of_these():
    classes = (routes.GUARDED.keys(), routes.HARMLESS.keys(), routes.READING)
    assert sum(map(len, classes)) == len(routes.KNOWN)


def test_what_only_reads_is_asked_for_by_get_with_one_exception():
    changing = {
        endpoint
        for endpoint, _, methods in routes.registry_rules(mlflow_app)
        if endpoint in routes.READING and methods - routes.SAFE_METHODS
    }
    assert changing == {"_get_latest_versions"}, "and searches for runs"


def test_the_enumeration_sees_routes_by_path_by_handler_and_by_what_they_use():
    app = Flask("other")

    def by_path(): ...

    def update_model_version_quietly(): ...

    def by_use():
        from mlflow.server.handlers import _get_model_registry_store

        _get_model_registry_store()

    app.add_url_rule("/api/4.0/mlflow/registered-models/crown", view_func=by_path, methods=["PUT"])
    app.add_url_rule("/api/4.0/x", view_func=update_model_version_quietly)
    app.add_url_rule("/api/4.0/mlflow/artifacts/put", endpoint="files", methods=["POST"])
    app.view_functions["files"] = by_path

    def by_run(asked):
        return asked.run_id

    app.add_url_rule("/api/4.0/y", view_func=by_use)
    app.add_url_rule("/api/4.0/z", view_func=by_run, methods=["POST"])
    app.add_url_rule("/api/4.0/mlflow/runs/x", endpoint="of_runs", methods=["POST"])
    app.view_functions["of_runs"] = by_path
    assert routes.unclassified_rules(app) == [
        *("by_path", "by_run", "by_use", "files", "of_runs", "update_model_version_quietly"),
    ]


def test_a_renamed_handler_keeps_the_server_from_starting():
    with pytest.raises(
        InputError, match=r"has no .*_set_registered_model_alias.* would not be safe"
    ):
        server.add_gate(Flask("other"), Flask("other"))


def _answer(app: NativeRoutes, method: str, path: str) -> list[dict]:
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "client": ("10.0.0.1", 1)}
    anyio.run(app, scope, None, send)
    return sent


def test_a_native_route_that_is_not_known_is_refused_and_others_are_passed_on():
    async def passed_on(scope, receive, send):  # noqa: ARG001
        await send({"status": 200})

    from mlflow_b3.evidence.policy import load_policy
    from mlflow_b3.gating.server.gate import Gate
    from mlflow_b3.gating.server.stores import server_archive

    gate = Gate(policy=load_policy(), archive=server_archive())
    unknown = ("/api/4.0/mlflow/registered-models/{name}/crown",)
    app = NativeRoutes(passed_on, gate, frozenset({"PUT"}), unknown)
    path = "/pre/api/4.0/mlflow/registered-models/clinic/crown"
    assert _answer(app, "POST", path)[0]["status"] == 403
    assert b"is unknown to this version" in _answer(app, "POST", path)[1]["body"]
    for method, other in (
        ("GET", path),
        ("POST", "/api/2.0/mlflow/registered-models/alias"),  # which is for Flask to answer
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/0123/artifacts/plot.png"),
    ):
        assert _answer(app, method, other) == [{"status": 200}]
