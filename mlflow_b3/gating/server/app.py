"""MLflow's server with the gate: `mlflow server --app-name b3-gate`.

The policy and the keys are read when this module is imported, which `mlflow server` does before it
starts its workers. An error in them therefore stops the server once, and not every worker again and
again.
"""

import os
from typing import Any

from flask import Flask, Response, g
from flask import request as asked
from mlflow.environment_variables import _MLFLOW_SGI_NAME
from mlflow.server import app as mlflow_app
from mlflow.server import handlers

from mlflow_b3.errors import B3Error, InputError
from mlflow_b3.evidence.document import TRUSTED_KEYS, trusted_keys
from mlflow_b3.evidence.policy import Policy, load_policy, odd_rules
from mlflow_b3.gating.server import file_checks, record_checks, registry_checks, routes
from mlflow_b3.gating.server.gate import (
    LOGGER,
    Gate,
    Request,
    check_log_file,
    closed,
    log_to_stderr,
    unknown_route,
)
from mlflow_b3.gating.server.registry_checks import Check
from mlflow_b3.gating.server.stores import server_archive
from mlflow_b3.tracking.metrics_and_files import POLICY

NAME = "mlflow-b3-gate"
CHECKS: dict[str, Check] = {
    endpoint: next(
        getattr(module, f"check_{check}")
        for module in (registry_checks, file_checks, record_checks)
        if hasattr(module, f"check_{check}")
    )
    for endpoint, check in routes.GUARDED.items()
}


def read_rules() -> Policy:
    """Return the policy that MLFLOW_B3_POLICY names, after checking its keys and the log file."""
    policy = load_policy(os.environ.get(POLICY) or None)
    trusted_keys(policy.trusted_keys)
    check_log_file()
    return policy


try:
    read_rules()
except B3Error as error:
    raise SystemExit(f"mlflow-b3 gate: {error}") from error


def create_app(app: Flask = mlflow_app) -> Any:
    """Return MLflow's app with the gate, as `mlflow server --app-name b3-gate` starts it."""
    if _MLFLOW_SGI_NAME.get() != "uvicorn":
        return add_gate(app, app)
    from mlflow.server.fastapi_app import create_fastapi_app

    return add_gate(create_fastapi_app(app), app)


def create_app_with_auth(app: Flask = mlflow_app) -> Any:
    """Return MLflow's app with its users and the gate: `--app-name b3-gate-basic-auth`.

    Users log in first. The gate applies to all of them, administrators included.
    """
    from mlflow.server import auth

    return add_gate(auth.create_app(app), app, with_users=True)


def add_gate(app: Any, flask_app: Flask = mlflow_app, *, with_users: bool = False) -> Any:
    """Add the gate to another app of MLflow's server.

    Parameters
    ----------
    app : FastAPI or Flask
        The app that the other factory returned. Its own checks run before the gate's.
    flask_app : Flask
        MLflow's Flask app: `app` itself, or the one inside it.
    with_users : bool
        The app checks names and passwords, so the name in a request is that of the user.

    Returns
    -------
    FastAPI or Flask
        The same app.

    Raises
    ------
    InputError
        If the policy or a key cannot be read, or if this version of MLflow has other names for the
        guarded routes.
    """
    missing = routes.missing_handlers(flask_app)
    if missing:
        raise InputError(
            f"this version of MLflow has no {', '.join(missing)}, so the gate would not be safe; "
            "use a newer mlflow-b3 or an older MLflow."
        )
    policy = read_rules()
    archive = server_archive(policy.artifact_roots)
    gate = Gate(policy=policy, archive=archive, with_users=with_users)
    log_to_stderr()
    if gate.policy.signed and not trusted_keys(gate.policy.trusted_keys):
        LOGGER.warning(
            "mlflow-b3 gate: the policy requires signed evidence, but no key is trusted; add one to "
            "evidence.trusted_keys or %s.",
            TRUSTED_KEYS,
        )
    for warning in odd_rules(gate.policy):
        LOGGER.warning("mlflow-b3 gate: %s", warning)
    if NAME not in flask_app.extensions:
        flask_app.extensions[NAME] = gate
        _add_hooks(flask_app, gate)
    if app is not flask_app and hasattr(app, "user_middleware"):
        _add_middleware(app, gate)
    return app


def _add_hooks(app: Flask, gate: Gate) -> None:
    """Check requests before MLflow's handlers, and again after them."""
    mutations = routes.unclassified_mutations()
    resolutions = file_checks.Resolutions(gate)

    def before() -> None:
        check = CHECKS.get(asked.endpoint or "")
        if check is not None:
            request = _request(gate)
            after = closed(gate, request, check, gate, request)
            if after is not None:
                g.b3_after = request, after
        elif _is_unknown(mutations):
            raise unknown_route(gate, _request(gate))

    def after(response: Response) -> Response:
        pending = g.pop("b3_after", None)
        refused: Response | None = None
        if pending is not None:
            request, check = pending
            refused = with_error_response(closed)(gate, request, check)
        elif asked.endpoint in routes.RESOLVING and response.status_code == 200:
            refused = with_error_response(check_resolved)(response)
        return refused or response

    def check_resolved(response: Response) -> None:
        content = response.get_json(force=True)
        found = content.get("model_versions") or [content.get("model_version")]
        request = _request(gate)
        for version in filter(None, found):
            name, number = version["name"], str(version["version"])
            closed(gate, request, resolutions.check, request, name, number)

    with_error_response = handlers.catch_mlflow_exception  # turns MLflow's errors into responses
    app.before_request(with_error_response(before))
    app.after_request(after)


def _is_unknown(mutations: list[str]) -> bool:
    """Whether a request may change the registry or a run in a way that is not classified."""
    if asked.endpoint == "_graphql":  # also with GET
        return any(name.encode() in asked.get_data() for name in mutations)
    changes = asked.method not in routes.SAFE_METHODS and asked.endpoint not in routes.KNOWN
    return changes and routes.is_guarded_path(asked.path)


def _request(gate: Gate) -> Request:
    actor = getattr(g, "mlflow_authenticated_user", None)
    if actor is None and gate.with_users and asked.authorization is not None:
        actor = asked.authorization.username
    return Request(
        actor=actor,
        remote=asked.remote_addr,
        route=f"{asked.method} {asked.path}",
    )


def _add_middleware(app: Any, gate: Gate) -> None:
    """Check the routes that FastAPI serves itself, as the last of its middleware."""
    from starlette.middleware import Middleware

    methods = frozenset(
        method
        for path, found in routes.native_routes(app)
        if file_checks.FILES in path
        for method in found - routes.SAFE_METHODS
    )
    unknown = tuple(routes.unclassified_native(app))
    app.user_middleware.append(
        Middleware(file_checks.NativeRoutes, gate=gate, methods=methods, unknown=unknown)
    )
