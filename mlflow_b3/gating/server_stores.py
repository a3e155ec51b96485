"""What the server gate reads: the server's own stores, never the server itself over HTTP."""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from mlflow.server import constants, handlers

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.archive import Archive
from mlflow_b3.gating.policy import Policy

#: Where the files of a LoggedModel are, in every artifact store.
MODEL_ID = re.compile(r"(?:^|/)models/(m-[0-9a-f]{32})", re.IGNORECASE)


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
    """A version under guarded aliases or stages.

    Attributes
    ----------
    name, number : str
    aliases : tuple of str
    stage : str or None
    location : str
        Where MLflow loads it from.
    """

    name: str
    number: str
    aliases: tuple[str, ...]
    stage: str | None
    location: str

    @property
    def words(self) -> str:
        """What points at it."""
        stages = [] if self.stage is None else [self.stage]
        return ", ".join(map(repr, [*self.aliases, *stages]))


def is_only_prompts(stores: Stores, version: Any) -> bool:
    """Whether a version is a prompt among prompts; in a model it would be loaded as one."""
    return is_prompt_version(version) and all(
        is_prompt_version(other) for other in versions_of(stores, version.name)
    )


def guarded_versions(stores: Stores, policy: Policy, name: str) -> Iterator[Guarded]:
    """Give the versions of a registered model under guarded aliases or stages; prompts are none."""
    aliases = stores.get_registered_model(name).aliases
    versions = versions_of(stores, name)
    if all(is_prompt_version(version) for version in versions):
        return
    for version in versions:
        named = [alias for alias, number in aliases.items() if str(number) == str(version.version)]
        under = _under(policy, named, version.current_stage)
        if under is not None:
            location = stores.get_model_version_download_uri(name, version.version)
            yield Guarded(
                name=name,
                number=str(version.version),
                aliases=under[0],
                stage=under[1],
                location=location,
            )


def _under(
    policy: Policy, aliases: list[str], stage: str | None
) -> tuple[tuple[str, ...], str | None] | None:
    """Return those of a version's aliases and stage that are guarded; None if none is."""
    named = tuple(sorted(filter(policy.guards_alias, aliases)))
    staged = stage if stage and policy.guards_stage(stage) else None
    return (named, staged) if named or staged else None


def versions_of(_: Stores, name: str) -> list[Any]:
    """Return all versions of a registered model: name, version, current_stage and source.

    MLflow's search leaves out what anybody has tagged as a prompt, and takes names apart that have
    quotation marks in them.
    """
    store = handlers._get_model_registry_store()
    engine = getattr(store, "engine", None)
    if engine is None:
        path = store._get_registered_model_path(name)
        return list(store._list_file_model_versions_under_path(path))
    row = _tables()[0]
    columns = (row.name, row.version, row.current_stage, row.source)
    query = _versions(*columns).where(row.name == name).order_by(row.version)
    if hasattr(row, "workspace"):
        query = query.where(row.workspace == store._get_active_workspace())
    with engine.connect() as connection:
        return list(connection.execute(query).all())


def all_guarded(stores: Stores, policy: Policy) -> Iterator[Guarded]:
    """Give every version under a guarded alias or stage, of all workspaces."""
    from sqlalchemy import or_

    store = handlers._get_model_registry_store()
    engine = getattr(store, "engine", None)
    if engine is None:
        for path in store._get_all_registered_model_paths():
            name = store._get_registered_model_from_path(path).name
            if policy.applies_to(name):
                yield from guarded_versions(stores, policy, name)
        return
    row, alias = _tables()
    query = _with_aliases().where(or_(alias.alias.is_not(None), row.current_stage != "None"))
    with engine.connect() as connection:
        found = connection.execute(query).all()
    yield from _guarded_rows(policy, found)


def model_ids(path: str) -> list[str]:
    """Return the LoggedModels whose folders a path or URI runs through."""
    return [found.lower() for found in MODEL_ID.findall(posixpath.normpath(path))]


def guarded_users_of(stores: Stores, policy: Policy, model_id: str) -> Iterator[Guarded]:
    """Give the versions under guarded aliases or stages that are loaded from a LoggedModel's files.

    A copy names the version it was made from, which may have been renamed or deleted since, so that
    only the location helps. It can be searched for in the database only, by one query.
    """
    engine = getattr(handlers._get_model_registry_store(), "engine", None)
    if engine is None:
        yield from (g for g in all_guarded(stores, policy) if model_id in g.location)
        return
    with engine.connect() as connection:  # a session of MLflow's would take three times as long
        found = connection.execute(_users_query(), {"used": f"%{model_id}%"}).all()
    yield from _guarded_rows(policy, found)


def _guarded_rows(policy: Policy, rows: Sequence[Any]) -> Iterator[Guarded]:
    for (_, name, number, stage, location, source), aliases in _grouped(rows).items():
        under = _under(policy, aliases, stage) if policy.applies_to(name) else None
        if under is not None:
            yield Guarded(
                name=name,
                number=str(number),
                aliases=under[0],
                stage=under[1],
                location=location or source or "",
            )


def _tables() -> tuple[Any, Any]:
    """Return the tables of versions and of aliases."""
    from mlflow.store.model_registry.dbmodels import models

    return models.SqlModelVersion, models.SqlRegisteredModelAlias


def _versions(*columns: Any) -> Any:
    """Return the query for versions that have not been deleted."""
    from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
    from sqlalchemy import select

    row = _tables()[0]
    return select(*columns).select_from(row).where(row.current_stage != STAGE_DELETED_INTERNAL)


@cache
def _with_aliases() -> Any:
    """Return the query for versions with their aliases, one of them a row."""
    from sqlalchemy import literal

    row, alias = _tables()
    same = (alias.name == row.name) & (alias.version == row.version)
    workspace: Any = literal("")
    if hasattr(row, "workspace"):
        same &= alias.workspace == row.workspace
        workspace = row.workspace
    columns = (row.name, row.version, row.current_stage, row.storage_location, row.source)
    return _versions(workspace, *columns, alias.alias).outerjoin(alias, same)


@cache
def _users_query() -> Any:
    """Return the query for the versions that name a LoggedModel, with their aliases."""
    from sqlalchemy import bindparam, or_

    row, _ = _tables()
    used = [column.like(bindparam("used")) for column in (row.storage_location, row.source)]
    return _with_aliases().where(or_(*used))


def _grouped(rows: Sequence[Any]) -> dict[tuple[Any, ...], list[str]]:
    """Return the aliases of each version."""
    grouped: dict[tuple[Any, ...], list[str]] = {}
    for *version, alias in rows:
        grouped.setdefault(tuple(version), []).extend([] if alias is None else [alias])
    return grouped


def exists(lookup: Any, *arguments: Any) -> Any:
    """Return what is looked up, or None where MLflow does not have it."""
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

    try:
        return lookup(*arguments)
    except MlflowException as error:
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return None
        raise
