"""What the server gate reads: the server's own stores, never the server itself over HTTP."""

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from mlflow.server import constants, handlers

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.archive import Archive
from mlflow_b3.gating.policy import Policy
from mlflow_b3.refit.model_files import quoted

#: Where the files of a LoggedModel are, in every artifact store.
MODEL_ID = re.compile(r"(?:^|/)models/(m-[0-9a-f]{32})", re.IGNORECASE)
PAGE = 200


class Stores:
    """The server's stores of runs and of models, with the methods of `MlflowClient`.

    They have them under the same names. A client of its own would open the databases a second time,
    and make folders where the server was started.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a method of the store that has it."""
        registry = handlers._get_model_registry_store()
        if hasattr(registry, name):
            return getattr(registry, name)
        return getattr(handlers._get_tracking_store(), name)

    def search_runs(
        self,
        experiment_ids: list[str],
        filter_string: str = "",
        run_view_type: int = 1,
        **more: Any,
    ) -> Any:
        """Search runs, active ones by default as the client does; the store has no default."""
        store = handlers._get_tracking_store()
        return store.search_runs(experiment_ids, filter_string, run_view_type, **more)


def server_archive() -> Archive:
    """Return MLflow as a gate reads it, from inside of the server."""
    return Archive(client=Stores(), opener=open_own)


def open_own(uri: str) -> tuple[Any, str]:
    """Return the repository of an artifact location, and the path in it.

    What the server serves itself is read where it keeps it. Another host could show the gate other
    files than everybody else, and is not asked.
    """
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https", "mlflow-artifacts"):
        if parts.netloc not in _own_hosts() or not handlers._is_serving_proxied_artifacts():
            raise EvidenceError(f"the files at {uri!r} are not kept by this server")
        path = handlers._get_proxied_run_artifact_destination_path(uri)
        scoped = getattr(
            handlers, "_get_workspace_scoped_repo_path_if_enabled", lambda given: given
        )
        return handlers._get_artifact_repo_mlflow_artifacts(), str(scoped(path)).rstrip("/")
    return _direct_repository(uri), ""


def _own_hosts() -> set[str]:
    """Return the hosts that mean this server: none at all, or the one that it was started with."""
    return {"", urlsplit(os.environ.get(constants.ARTIFACT_ROOT_ENV_VAR, "")).netloc}


def _direct_repository(uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    opened = getattr(handlers, "_get_artifact_repository_for_uri", get_artifact_repository)
    return opened(uri)


def is_prompt_version(version: Any) -> bool:
    """Whether a version is a prompt, of which there are no files to load.

    Its source says so, which nobody can change; tags can be set by anybody.
    """
    from mlflow.prompt import constants as prompts

    known = getattr(prompts, "_PROMPT_SOURCE_PLACEHOLDERS", {"dummy-source", "prompt-template"})
    return version.source in known


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A version under guarded aliases or stages."""

    version: Any
    aliases: tuple[str, ...]
    stage: str | None

    @property
    def words(self) -> str:
        """What points at it."""
        stages = [] if self.stage is None else [self.stage]
        return ", ".join(map(repr, [*self.aliases, *stages]))


def guarded_versions(stores: Stores, policy: Policy, name: str) -> Iterator[Guarded]:
    """Give the versions of a registered model under guarded aliases or stages; prompts are none."""
    aliases = stores.get_registered_model(name).aliases
    named: dict[str, list[str]] = {}
    for alias, number in aliases.items():
        if policy.guards_alias(alias):
            named.setdefault(str(number), []).append(alias)
    versions = list(versions_of(stores, name)) if policy.stages else []
    staged = {
        str(found.version): found.current_stage
        for found in versions
        if policy.guards_stage(found.current_stage or "")
    }
    for number in sorted(named.keys() | staged.keys()):
        version = stores.get_model_version(name, number)
        if not is_prompt_version(version):
            yield Guarded(
                version=version,
                aliases=tuple(named.get(number, ())),
                stage=staged.get(number),
            )


def versions_of(stores: Stores, name: str) -> Iterator[Any]:
    """Give all versions of a registered model."""
    yield from _pages(
        lambda token: stores.search_model_versions(
            filter_string=f"name = {quoted(name)}", max_results=PAGE, page_token=token
        )
    )


def _pages(page: Any) -> Iterator[Any]:
    token = None
    while True:
        found = page(token)
        yield from found
        token = found.token
        if not token:
            return


def model_ids(path: str) -> list[str]:
    """Return the LoggedModels whose folders a path or URI runs through."""
    return [found.lower() for found in MODEL_ID.findall(posixpath.normpath(path))]


def guarded_users_of(stores: Stores, policy: Policy, model_id: str) -> Iterator[Guarded]:
    """Give the versions under guarded aliases or stages that are loaded from a LoggedModel's files."""
    for name in _names_using(stores, model_id):
        if policy.applies_to(name) and exists(stores.get_registered_model, name):
            for guarded in guarded_versions(stores, policy, name):
                if model_id in model_ids(location_of(stores, guarded.version)):
                    yield guarded


def location_of(stores: Stores, version: Any) -> str:
    """Return where MLflow loads a version from."""
    found = stores.get_model_version_download_uri(version.name, version.version)
    return f"/models/{found.removeprefix('models:/')}" if found.startswith("models:/m-") else found


def all_guarded(stores: Stores, policy: Policy) -> Iterator[Guarded]:
    """Give every version under a guarded alias or stage."""
    for name in _all_names(stores):
        if policy.applies_to(name):
            yield from guarded_versions(stores, policy, name)


def _all_names(stores: Stores) -> Iterator[str]:
    pages = _pages(
        lambda token: stores.search_registered_models(max_results=PAGE, page_token=token)
    )
    yield from (model.name for model in pages)


def _names_using(stores: Stores, model_id: str) -> list[str]:
    """Return registered models with versions that may be loaded from a LoggedModel's files.

    A copy names the version it was made from, which may have been renamed or deleted since, so that
    only the location helps. It cannot be searched for but in the database, by one query.
    """
    registry = handlers._get_model_registry_store()
    if not hasattr(registry, "ManagedSessionMaker"):
        return list(_all_names(stores))
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion as Row

    with registry.ManagedSessionMaker() as session:
        used = Row.storage_location.contains(model_id) | Row.source.contains(model_id)
        return [name for (name,) in session.query(Row.name).filter(used).distinct()]


def exists(lookup: Any, *arguments: Any) -> Any:
    """Return what is looked up, or None where MLflow does not have it."""
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

    try:
        return lookup(*arguments)
    except MlflowException as error:
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return None
        raise
