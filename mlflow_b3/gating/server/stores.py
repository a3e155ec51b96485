"""The server's own stores, and where the files of guarded versions are."""

import os
import posixpath
import re
import sqlite3
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from threading import Lock
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote, urlsplit

from mlflow.exceptions import MlflowException
from mlflow.server import constants, handlers
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import validate_path_is_safe

from mlflow_b3.errors import EvidenceError
from mlflow_b3.evidence.policy import Policy
from mlflow_b3.gating.archive import Archive
from mlflow_b3.refit.loading import resolve_source

# --- Where files really are: a canonical form of artifact locations
#
# Two locations are compared by the path that MLflow finally reads or writes. Proxied paths are
# mapped to the server's artifacts destination, local paths are made absolute and real, and
# percent-encoding is removed as often as it was applied.

PROXIED = ("http", "https", "mlflow-artifacts")
LOCAL = ("", "file")
#: MLflow decodes a path up to ten times, and local stores once more.
MOST_DECODED = 11
#: A relative path that decoding and checking leave as it is.
_PLAIN = re.compile(r"[\w.-][\w./-]*", re.ASCII)

Item = TypeVar("Item")


def places_of(location: str) -> frozenset[str]:
    """Return every canonical place that a location may refer to.

    Readers differ in how often they decode, so each decoded form is a separate place. A local path
    also has a form with symbolic links resolved. Most locations have one or two places.
    """
    return frozenset(place for form in _decoded(location) for place in _places(form))


def kept_places_of(location: str) -> frozenset[str]:
    """Return `places_of` a location, cached because the location stays in use."""
    return _remembered(location, _destination(), handlers._is_serving_proxied_artifacts())


@lru_cache(maxsize=20_000)
def _remembered(location: str, *_settings: object) -> frozenset[str]:
    return places_of(location)


def real_places_of(location: str) -> frozenset[str]:
    """Return the places of a location with symbolic links resolved."""
    return frozenset(os.path.realpath(p) if p.startswith("/") else p for p in places_of(location))


def served_location(path: str) -> str | None:
    """Return where MLflow writes the path of a request; None if it refuses the path."""
    if _PLAIN.fullmatch(path) is None or ".." in path:  # MLflow's own check is slow
        try:
            path = str(validate_path_is_safe(path))
        except (MlflowException, ValueError):
            return None
    scoped = getattr(handlers, "_get_workspace_scoped_repo_path_if_enabled", lambda given: given)
    return below(_destination(), str(scoped(path)))


def below(location: str, *paths: str) -> str:
    """Return the location of a path below another one."""
    return "/".join([location.rstrip("/"), *(path.strip("/") for path in paths if path)])


def is_within(place: str, folder: str) -> bool:
    """Whether a place is a folder or something in it."""
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


def _decoded(location: str) -> Iterator[str]:
    for _ in range(MOST_DECODED + 1):
        yield location
        decoded = unquote(location)
        if decoded == location:
            return
        location = decoded


def _places(location: str) -> Iterator[str]:
    scheme = "" if location.startswith("/") else urlsplit(location).scheme
    if scheme in PROXIED and handlers._is_serving_proxied_artifacts():
        path = _served_path(location)
        if path is not None:
            yield from _places(below(_destination(), path))
            return
    if scheme in LOCAL:
        # The host of a file: URI is ignored, as it is when MLflow opens the folder.
        given = local_file_uri_to_path(location)
        path = os.path.abspath(given)
        yield path
        if ".." in given or _has_link(path):  # `link/..` is not where it seems to be
            yield os.path.realpath(given)
        return
    # To object stores `a/../b` is a name like any other, but gateways in front of them may resolve it.
    host, _, path = location[len(scheme) + 1 :].lstrip("/").partition("/")
    yield f"{scheme}://{host}/{path}".rstrip("/")
    yield f"{scheme}://{host}{posixpath.normpath(f'/{path}')}".rstrip("/")


def _has_link(path: str) -> bool:
    """Whether a part of an absolute path is a symbolic link; faster than resolving the path."""
    end = 0
    while end != len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        try:
            if stat.S_ISLNK(os.lstat(path[:end]).st_mode):
                return True
        except FileNotFoundError:
            return False  # and neither is anything below it
        except OSError:  # such as a file where a folder should be
            return True
    return False


def _served_path(location: str) -> str | None:
    try:
        return str(handlers._get_proxied_run_artifact_destination_path(location))
    except (AssertionError, IndexError):  # not the address of artifacts
        return None


def _destination() -> str:
    return os.environ.get(constants.ARTIFACTS_DESTINATION_ENV_VAR) or "./mlartifacts"


class PlaceIndex(Generic[Item]):
    """Finds the items that have files in, above or below a place.

    Case is ignored, because some file systems ignore it.
    """

    def __init__(self, items: Iterable[tuple[str, Item]]) -> None:
        self._items: dict[str, list[Item]] = {}
        for location, item in items:
            for place in kept_places_of(location):
                self._items.setdefault(place.casefold(), []).append(item)
        self._sorted = sorted(self._items)

    def overlapping(self, places: Iterable[str]) -> list[Item]:
        """Return the items whose folder contains one of the places or is in one of them."""
        if not self._items:
            return []
        found: list[Item] = []
        for place in map(str.casefold, places):
            for folder in _and_parents(place):
                found += self._items.get(folder, ())
            prefix = f"{place.rstrip('/')}/"
            for inner in self._sorted[bisect_left(self._sorted, prefix) :]:
                if not inner.startswith(prefix):
                    break
                found += self._items[inner]
        return list(dict.fromkeys(found))


def _and_parents(place: str) -> Iterator[str]:
    while True:
        yield place
        parent = place.rpartition("/")[0]
        if not parent:
            return
        place = parent


# --- The roots that a server may read


def allowed_roots(further: Sequence[str] = ()) -> list[str]:
    """Return the roots whose artifacts the server may open.

    These are its artifacts destination if it serves artifacts, its default artifact root, and the
    policy's `guard.artifact_roots`.
    """
    served = [_destination()] if handlers._is_serving_proxied_artifacts() else []
    default = os.environ.get(constants.ARTIFACT_ROOT_ENV_VAR)
    if default is None:
        default = getattr(handlers._get_tracking_store(), "artifact_root_uri", None)
    return [*served, *([default] if default else []), *further]


def check_root(uri: str, further: Sequence[str] = ()) -> None:
    """Refuse a location outside the allowed roots before anything there is opened."""
    parts = urlsplit(uri)
    roots = allowed_roots(further)
    allowed = {place for root in roots for place in real_places_of(root)}
    foreign_host = parts.scheme.lower() == "file" and parts.netloc not in ("", "localhost")
    inside = all(any(is_within(place, root) for root in allowed) for place in real_places_of(uri))
    if foreign_host or not inside:
        raise EvidenceError(
            f"the files at {uri!r} are outside the artifact roots of this server "
            f"({', '.join(map(repr, roots)) or 'it has none'}) and are not opened; log the model "
            "and its audit to an experiment with the server's own artifact location, or ask the "
            "server's administrator to add the root to guard.artifact_roots in the policy"
        )


def open_own(uri: str, further: Sequence[str] = ()) -> tuple[Any, str]:
    """Return the repository of an artifact location, and the path in it.

    Artifacts that the server serves are read from where it keeps them. Another host is not asked: it
    could show the gate other files than everybody else.

    Parameters
    ----------
    uri : str
    further : sequence of str
        Roots that the policy allows in addition to the server's own.
    """
    parts = urlsplit(uri)
    if parts.scheme in PROXIED:
        if parts.netloc not in _own_hosts() or not handlers._is_serving_proxied_artifacts():
            raise EvidenceError(f"the files at {uri!r} are not on this server")
        check_root(uri, further)
        path = handlers._get_proxied_run_artifact_destination_path(uri)
        scoped = getattr(
            handlers, "_get_workspace_scoped_repo_path_if_enabled", lambda given: given
        )
        return handlers._get_artifact_repo_mlflow_artifacts(), str(scoped(path)).rstrip("/")
    check_root(uri, further)
    return _direct_repository(uri), ""


def local_folder(location: str) -> str | None:
    """Return the folder of a location in the server's file system.

    None if it is elsewhere, or if the location can be read in several ways.
    """
    return _folder(location, _destination(), handlers._is_serving_proxied_artifacts())


@lru_cache(maxsize=20_000)
def _folder(location: str, *_settings: object) -> str | None:
    forms = list(_decoded(location))
    found = next(_places(forms[0]))
    return found if len(forms) == 1 and found.startswith("/") else None


def _own_hosts() -> set[str]:
    """Return the host names of this server: the empty one, and the one that it was started with."""
    return {"", urlsplit(os.environ.get(constants.ARTIFACT_ROOT_ENV_VAR, "")).netloc}


def _direct_repository(uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    opened = getattr(handlers, "_get_artifact_repository_for_uri", get_artifact_repository)
    return opened(uri)


# --- What the server gate reads: the server's own stores, never the server itself over HTTP

#: Databases that compare text exactly. All others use a collation, for which `champıon` may equal
#: `champion`.
EXACT = ("sqlite", "postgresql")


class Stores:
    """The server's stores of runs and of models, with the methods of `MlflowClient`.

    The stores have methods with the same names. A separate client would open the databases a second
    time, and create folders in the server's working directory.
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
        """Search runs, by default active ones as the client does; the store has no default."""
        store = handlers._get_tracking_store()
        return store.search_runs(experiment_ids, filter_string, run_view_type, **more)


def server_archive(roots: Sequence[str] = ()) -> Archive:
    """Return MLflow as a gate reads it from inside the server.

    Parameters
    ----------
    roots : sequence of str
        Artifact roots that may be opened in addition to the server's own.
    """
    return Archive(client=Stores(), opener=partial(open_own, further=tuple(roots)))


def registry_is_exact() -> bool:
    """Whether the registry's database compares text exactly."""
    return _is_exact(handlers._get_model_registry_store())


def tracking_is_exact() -> bool:
    """Whether the database of runs compares text exactly."""
    return _is_exact(handlers._get_tracking_store())


def _is_exact(store: Any) -> bool:
    engine = getattr(store, "engine", None)
    return engine is None or engine.dialect.name in EXACT


def is_plain(text: str) -> bool:
    """Whether text is printable ASCII, in which collations ignore only case and spaces."""
    return text.isascii() and text.isprintable()


def equal_tag_key(key: str, names: Sequence[str]) -> str | None:
    """Return which of the names the database of runs treats as equal to a tag key, if any."""
    from mlflow.store.tracking.dbmodels.models import SqlTag
    from sqlalchemy import false, literal, select, union_all

    # The empty part gives the other parts the collation of the column.
    column = select(SqlTag.key.label("name")).where(false())
    known = union_all(column, *(select(literal(name)) for name in names)).subquery()
    query = select(known.c.name).where(known.c.name == key)
    with handlers._get_tracking_store().engine.connect() as connection:
        found = connection.execute(query).first()
    return None if found is None else str(found[0])


def is_prompt_version(version: Any) -> bool:
    """Whether a version is a prompt, which has no files to load.

    This is read from its source, which nobody can change. Anybody can set tags.
    """
    return version.source in _prompt_sources()


@cache
def _prompt_sources() -> frozenset[str]:
    from mlflow.prompt import constants as prompts

    known = {"dummy-source", "prompt-template"}
    return frozenset(getattr(prompts, "_PROMPT_SOURCE_PLACEHOLDERS", known))


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A version that has a guarded alias or stage.

    Attributes
    ----------
    name, number : str
    aliases : tuple of str
    stage : str or None
    location : str
        Where MLflow loads it from.
    source : str
        What it was registered from.
    workspace : str
    """

    name: str
    number: str
    aliases: tuple[str, ...]
    stage: str | None
    location: str
    source: str = ""
    workspace: str = ""

    @property
    def words(self) -> str:
        """The guarded aliases and stage, in words."""
        aliases = [f"the alias {alias!r}" for alias in self.aliases]
        stages = [] if self.stage is None else [f"the stage {self.stage!r}"]
        return ", ".join([*aliases, *stages])


def is_only_prompts(stores: Stores, version: Any) -> bool:
    """Whether all versions of a version's model are prompts; otherwise it could be loaded as a model."""
    return is_prompt_version(version) and all(
        is_prompt_version(other) for other in versions_of(stores, version.name)
    )


def guarded_versions(stores: Stores, policy: Policy, name: str) -> Iterator[Guarded]:
    """Yield the versions of a registered model that have a guarded alias or stage; prompts never do."""
    aliases = stores.get_registered_model(name).aliases
    versions = versions_of(stores, name)
    if all(is_prompt_version(version) for version in versions):
        return
    for version in versions:
        named = [alias for alias, number in aliases.items() if str(number) == str(version.version)]
        under = _guarded_among(policy, named, version.current_stage)
        if under is not None:
            location = stores.get_model_version_download_uri(name, version.version)
            yield Guarded(
                name=name,
                number=str(version.version),
                aliases=under[0],
                stage=under[1],
                location=location,
            )


def _guarded_among(
    policy: Policy, aliases: list[str], stage: str | None
) -> tuple[tuple[str, ...], str | None] | None:
    """Return the guarded ones among a version's aliases and stage; None if none is guarded."""
    named = tuple(sorted(filter(policy.guards_alias, aliases)))
    staged = stage if stage and policy.guards_stage(stage) else None
    return (named, staged) if named or staged else None


def versions_of(_: Stores, name: str) -> list[Any]:
    """Return all versions of a registered model: name, version, current_stage and source.

    MLflow's search omits versions that are tagged as prompts, which anybody can do, and misreads names
    with quotation marks.
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


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """The guarded versions at one moment, indexed by place and by name."""

    rows: Sequence[Any]
    index: PlaceIndex[Guarded]
    by_name: dict[tuple[str, str], list[Guarded]]


class Guards:
    """The versions with a guarded alias or stage, in all workspaces, as the database has them now.

    Several processes may share the database, so nothing is reused without asking it. SQLite says
    whether anything has been committed since the last read; if not, that result is reused. Other
    databases cannot say so and are read each time.

    Parameters
    ----------
    policy : Policy
    applies_to : callable
        Whether a registered model is guarded.
    """

    def __init__(self, policy: Policy, applies_to: Callable[[str], bool]) -> None:
        self._policy, self._applies_to = policy, applies_to
        self._lock = Lock()
        self._sqlite: tuple[Any, sqlite3.Connection] | None = None
        self._version: int | None = None
        self._last = _Snapshot(rows=(), index=PlaceIndex([]), by_name={})
        self._confirmed = self._last  # belongs to `_version` of a SQLite file

    def overlapping(self, places: frozenset[str]) -> list[Guarded]:
        """Return the versions with files in, above or below the places; see `places_of`."""
        return self._read().index.overlapping(places)

    def overlapping_at_once(self, places: frozenset[str]) -> list[Guarded] | None:
        """Return `overlapping` if it is known without waiting for a database, else None."""
        found = self._read_sqlite()
        return None if found is None else found.index.overlapping(places)

    def find(self, name: str, number: str) -> Guarded | None:
        """Return a version of the active workspace if it is guarded."""
        found = self._read().by_name.get((name, number), [])
        if len(found) > 1 or (found and found[0].workspace):
            active = getattr(handlers._get_model_registry_store(), "_get_active_workspace", str)()
            found = [guarded for guarded in found if guarded.workspace == active]
        return found[0] if found else None

    def made_of(self, model_id: str) -> list[Guarded]:
        """Return the versions of a LoggedModel, copies included."""
        model = exists(handlers._get_tracking_store().get_logged_model, model_id)
        if model is None:
            return []
        return self.overlapping(places_of(model.artifact_location))

    def _read(self) -> _Snapshot:
        found = self._read_sqlite()
        if found is not None:
            return found
        store = handlers._get_model_registry_store()
        engine = getattr(store, "engine", None)
        if engine is None:
            return self._snapshot(list(_rows_of_file_store(store)))
        with engine.connect() as connection:
            return self._snapshot(connection.exec_driver_sql(self._query(engine)).all())

    def _read_sqlite(self) -> _Snapshot | None:
        """Read a SQLite file if it changed; return None if that would have to wait."""
        engine = getattr(handlers._get_model_registry_store(), "engine", None)
        if engine is None or engine.dialect.name != "sqlite":
            return None
        with self._lock:
            try:
                connection = self._connection(engine)
                if connection is None:
                    return None
                ((version,),) = connection.execute("PRAGMA data_version").fetchall()
                if version != self._version:
                    rows = connection.execute(self._query(engine)).fetchall()
                    self._version, self._confirmed = version, self._snapshot(rows)
            except sqlite3.Error as error:
                if "locked" not in str(error):  # locked: another process is writing
                    self._close()
                return None
            return self._confirmed

    def _connection(self, engine: Any) -> sqlite3.Connection | None:
        """Return a separate connection: `data_version` reports commits of other connections only."""
        owner = engine, os.getpid()
        if self._sqlite is not None and self._sqlite[0] == owner:
            return self._sqlite[1]
        self._close()
        path = engine.url.database
        if not path or path == ":memory:" or path.startswith("file:"):
            return None
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )
        self._sqlite = owner, connection
        return connection

    def _close(self) -> None:
        if self._sqlite is not None:
            with suppress(sqlite3.Error):
                self._sqlite[1].close()
        self._sqlite, self._version = None, None

    def _query(self, engine: Any) -> str:
        return _guarded_query(engine.dialect, self._stages)

    @cached_property
    def _stages(self) -> tuple[str, ...]:
        from mlflow.entities.model_registry.model_version_stages import ALL_STAGES

        return tuple(filter(self._policy.guards_stage, ALL_STAGES))

    def _snapshot(self, rows: Sequence[Any]) -> _Snapshot:
        last = self._last
        if rows == last.rows:
            return last
        by_name: dict[tuple[str, str], list[Guarded]] = {}
        found = list(self._guarded(rows))
        for guarded in found:
            by_name.setdefault((guarded.name, guarded.number), []).append(guarded)
        index = PlaceIndex((guarded.location, guarded) for guarded in found)
        made = self._last = _Snapshot(rows=rows, index=index, by_name=by_name)
        return made

    def _guarded(self, rows: Sequence[Any]) -> Iterator[Guarded]:
        for (workspace, name, number, stage, location, source), aliases in _grouped(rows).items():
            under = _guarded_among(self._policy, aliases, stage) if self._applies_to(name) else None
            if under is not None and source not in _prompt_sources():
                yield Guarded(
                    name=name,
                    number=str(number),
                    aliases=under[0],
                    stage=under[1],
                    location=_location(location or source or ""),
                    source=source or "",
                    workspace=workspace,
                )


def _location(location: str) -> str:
    """Return the location of the files if a location names a run or another version instead."""
    if location.startswith(("runs:/", "models:/")):
        with suppress(MlflowException, EvidenceError):  # what cannot be found cannot be loaded
            return resolve_source(Stores(), location).location
    return location


def _rows_of_file_store(store: Any) -> Iterator[tuple[Any, ...]]:
    for path in store._get_all_registered_model_paths():
        model = store._get_registered_model_from_path(path)
        aliases: dict[str, list[str]] = {}
        for alias, number in store.get_registered_model(model.name).aliases.items():
            aliases.setdefault(str(number), []).append(alias)
        for version in store._list_file_model_versions_under_path(path):
            location = store.get_model_version_download_uri(model.name, version.version)
            row = ("", model.name, version.version, version.current_stage, location, version.source)
            for alias in [None, *aliases.get(str(version.version), [])]:
                yield (*row, alias)


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
def _guarded_query(dialect: Any, stages: tuple[str, ...]) -> str:
    """Return SQL for the versions with aliases, one row per alias, and for those in the stages.

    It is plain text because it runs for every upload: SQLAlchemy would need longer to prepare it than
    the database to answer.
    """
    from sqlalchemy import literal, null, union_all

    row, alias = _tables()
    same = (alias.name == row.name) & (alias.version == row.version)
    workspace: Any = literal("")
    if hasattr(row, "workspace"):
        same &= alias.workspace == row.workspace
        workspace = row.workspace
    columns = (row.name, row.version, row.current_stage, row.storage_location, row.source)
    query: Any = _versions(workspace, *columns, alias.alias).join(alias, same)
    if stages:
        staged = _versions(workspace, *columns, null()).where(row.current_stage.in_(stages))
        query = union_all(query, staged)
    return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _grouped(rows: Sequence[Any]) -> dict[tuple[Any, ...], list[str]]:
    """Return the aliases of each version."""
    grouped: dict[tuple[Any, ...], list[str]] = {}
    for *version, alias in rows:
        grouped.setdefault(tuple(version), []).extend([] if alias is None else [alias])
    return grouped


def exists(lookup: Any, *arguments: Any) -> Any:
    """Return the result of a lookup, or None if MLflow does not have it."""
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

    try:
        return lookup(*arguments)
    except MlflowException as error:
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return None
        raise
