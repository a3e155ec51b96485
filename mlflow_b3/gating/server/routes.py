"""The routes of MLflow that can change what a guarded alias or stage points to, or a record.

Flask's endpoints are MLflow's handlers: the same one serves `/api`, `/ajax-api` and every prefix. A
route of the registry or of runs that is not listed here is refused if it can change anything.
"""

import re
from collections.abc import Iterator
from typing import Any

#: Handlers that are checked first, and by what: `check_<name>` in one of the `*_checks` modules.
GUARDED = {
    "_set_registered_model_alias": "alias",
    "_transition_stage": "stage",
    "_rename_registered_model": "rename",
    "_create_model_version": "new_version",
    "_create_registered_model": "new_model",
    "_set_model_version_tag": "version_tag",
    "_delete_model_version_tag": "version_tag_removal",
    "_set_registered_model_tag": "model_tag",
    "_delete_registered_model_tag": "model_tag_removal",
    "_delete_registered_model_alias": "alias_removal",
    "_delete_model_version": "version_removal",
    "_delete_registered_model": "model_removal",
    "_upload_artifact": "files",
    "_delete_artifact_mlflow_artifacts": "removal_of_files",
    "_create_multipart_upload_artifact": "files_in_parts",
    "_complete_multipart_upload_artifact": "files_in_parts",
    "_create_presigned_upload_url": "files_by_address",
    "serve_upload_artifact": "files_of_run",
    "_set_tag": "run_tag",
    "_delete_tag": "run_tag_removal",
    "_log_batch": "run_batch",
    "_log_metric": "run_metric",
    "_log_param": "run_parameter",
    "_log_inputs": "run_inputs",
    "_log_outputs": "run_outputs",
    "_log_model": "run_model",
    "_link_traces_to_run": "run_traces",
    "_update_run": "run_update",
    "_create_run": "new_run",
    "_delete_run": "run_removal",
    "_restore_run": "run_restoration",
    "_delete_experiment": "experiment_removal",
    "_restore_experiment": "experiment_restoration",
    "_cancel_prompt_optimization_job": "job_of_run",
    "_delete_prompt_optimization_job": "job_of_run",
    "_generate_demo": "demo",
    "_delete_demo": "demo",
    "serve_create_promptlab_run": "files_of_new_run",
    "_create_logged_model": "new_logged_model",
    "_set_logged_model_tags": "logged_model_tags",
    "_delete_logged_model_tag": "logged_model_tag_removal",
    "_delete_logged_model": "logged_model_removal",
}
#: Of these, handlers that the oldest supported MLflow does not have.
NEWER = frozenset(
    {
        "_create_presigned_upload_url",
        "_generate_demo",
        "_delete_demo",
        "_cancel_prompt_optimization_job",
        "_delete_prompt_optimization_job",
    }
)

_WEBHOOK = "only reports changes after they were made"
_NEW_RUN = "writes to a run that it has just created"
HARMLESS = {
    "_update_registered_model": "changes the description only",
    "_update_model_version": "changes the description only",
    "_create_webhook": _WEBHOOK,
    "_update_webhook": _WEBHOOK,
    "_delete_webhook": _WEBHOOK,
    "_test_webhook": _WEBHOOK,
    "_abort_multipart_upload_artifact": "leaves the files as they are",
    "_create_presigned_download_url": "returns an address to read from",
    "_create_issue": "names the run in which the issue was found",
    "_create_prompt_optimization_job": _NEW_RUN,
    "_invoke_genai_evaluate_handler": _NEW_RUN,
    "_invoke_issue_detection_handler": _NEW_RUN,
}
READING = frozenset(
    {
        "_get_registered_model",
        "_search_registered_models",
        "_get_latest_versions",  # also with POST
        "_get_model_version",
        "_get_model_version_by_alias",
        "_get_model_version_download_uri",
        "_search_model_versions",
        "serve_model_version_artifact",
        "_get_webhook",
        "_list_webhooks",
        "_download_artifact",
        "_list_artifacts_mlflow_artifacts",
        "_get_presigned_download_url",
        "_search_runs",  # also with POST
    }
)
#: Of these, the ones with which clients resolve an alias or a stage: their response is checked before it
#: is sent.
RESOLVING = frozenset({"_get_latest_versions", "_get_model_version_by_alias"})
KNOWN = GUARDED.keys() | HARMLESS.keys() | READING

#: Routes that FastAPI serves before Flask sees them, by the end of their path.
NATIVE = {
    "mlflow-artifacts/artifacts/{artifact_path:path}": "files",
}
#: GraphQL's mutations, none of which writes.
MUTATIONS = {
    "mlflowSearchRuns": "only reads",
    "mlflowSearchDatasets": "only reads",
    "testMutation": "returns its argument",
}

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: What the paths of the registry's routes contain.
WORDS = ("registered-models", "model-versions")
#: What the paths of the routes of runs contain.
RUNS = "mlflow/runs/"
#: How handlers and messages name the run that they write to.
_RUN_IDS = frozenset({"run_id", "run_uuid", "run_ids", "source_run_id"})
_NAMED = re.compile(r"registered.?model|model.?version|transition.?stage|webhook", re.IGNORECASE)
#: Other things in MLflow that have versions and aliases but are not models.
_OTHERS = ("mcp-servers",)


def is_guarded_path(path: str) -> bool:
    """Whether a path is one of the registry's or of runs."""
    return RUNS in path or any(word in path for word in WORDS)


def registry_rules(app: Any) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the endpoint, path and methods of each route of a Flask app that touches the registry.

    These are routes whose path or handler is named after the registry, whose handler uses the
    registry's store, or which write files, because these may belong to a model.
    """
    for rule in app.url_map.iter_rules():
        methods = frozenset(rule.methods or ())
        named = _NAMED.search(rule.rule) or _NAMED.search(rule.endpoint)
        writes_files = methods - SAFE_METHODS and "artifact" in rule.rule
        if named or writes_files or _uses_registry(app.view_functions[rule.endpoint]):
            yield rule.endpoint, rule.rule, methods


def _uses_registry(handler: Any) -> bool:
    import inspect

    code = getattr(inspect.unwrap(handler), "__code__", None)
    return code is not None and "_get_model_registry_store" in code.co_names


def run_rules(app: Any) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the endpoint, path and methods of each route of a Flask app that may write to a run.

    These are routes that change something and whose path is one of runs, or whose handler reads or
    names the id of a run.
    """
    for rule in app.url_map.iter_rules():
        methods = frozenset(rule.methods or ())
        if methods - SAFE_METHODS and (
            RUNS in rule.rule or _names_run(app.view_functions[rule.endpoint])
        ):
            yield rule.endpoint, rule.rule, methods


def _names_run(handler: Any) -> bool:
    import inspect

    code = getattr(inspect.unwrap(handler), "__code__", None)
    return code is not None and not _RUN_IDS.isdisjoint((*code.co_names, *code.co_consts))


def unclassified_rules(app: Any) -> list[str]:
    """Return the endpoints of a Flask app that touch the registry or runs and are not listed here."""
    found = {endpoint for rules in (registry_rules, run_rules) for endpoint, _, _ in rules(app)}
    return sorted(found - KNOWN)


def missing_handlers(app: Any) -> list[str]:
    """Return the guarded endpoints that a Flask app does not have, because MLflow renamed them."""
    return sorted(GUARDED.keys() - NEWER - app.view_functions.keys())


def native_routes(app: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield path and methods of the routes that a FastAPI app serves itself."""
    yield from _walk(app.routes, "")


def _walk(routes: Any, prefix: str) -> Iterator[tuple[str, frozenset[str]]]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:  # recent versions of FastAPI keep routers separate
            context = getattr(route, "include_context", None)
            yield from _walk(included.routes, prefix + str(getattr(context, "prefix", "")))
        elif getattr(route, "methods", None):
            yield f"{prefix}{route.path}", frozenset(route.methods)


def unclassified_native(app: Any) -> list[str]:
    """Return the paths that FastAPI serves itself, that may change the registry or runs, unlisted."""
    return sorted(
        {
            path
            for path, methods in native_routes(app)
            if methods - SAFE_METHODS
            and (_NAMED.search(path) or "artifact" in path or "alias" in path or RUNS in path)
            and not any(path.endswith(known) for known in NATIVE)
            and not any(word in path for word in _OTHERS)
        }
    )


def unclassified_mutations() -> list[str]:
    """Return the mutations of MLflow's GraphQL that are not listed here."""
    from mlflow.server.graphql.graphql_schema_extensions import schema

    mutation = schema.graphql_schema.mutation_type
    return [] if mutation is None else sorted(mutation.fields.keys() - MUTATIONS.keys())
