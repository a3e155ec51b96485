"""Where files really are: one canonical form for every way to write an artifact location.

Two locations are compared by the path that MLflow reads or writes in the end. Proxied paths are
mapped to the server's artifacts destination, local paths are made absolute and real, and
percent-encoding is removed as often as it was applied.
"""

import os
import posixpath
import re
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from mlflow.exceptions import MlflowException
from mlflow.server import constants, handlers
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import validate_path_is_safe

from mlflow_b3.errors import EvidenceError

PROXIED = ("http", "https", "mlflow-artifacts")
LOCAL = ("", "file")
#: MLflow decodes a path up to ten times, and local stores once more.
MOST_DECODED = 11
#: A relative path of which decoding and checking make nothing else.
_PLAIN = re.compile(r"[\w.-][\w./-]*", re.ASCII)

Item = TypeVar("Item")


def places_of(location: str) -> frozenset[str]:
    """Return every canonical place that a location may stand for.

    Readers differ in how often they decode, so each decoded form is a place of its own. A local
    path also has its real form, without symbolic links. Most locations have one or two places.
    """
    return frozenset(place for form in _decoded(location) for place in _places(form))


def kept_places_of(location: str) -> frozenset[str]:
    """Return `places_of` a location that stays in use, from memory."""
    return _remembered(location, _destination(), handlers._is_serving_proxied_artifacts())


@lru_cache(maxsize=20_000)
def _remembered(location: str, *_settings: object) -> frozenset[str]:
    return places_of(location)


def real_places_of(location: str) -> frozenset[str]:
    """Return the places of a location with symbolic links resolved."""
    return frozenset(os.path.realpath(p) if p.startswith("/") else p for p in places_of(location))


def served_location(path: str) -> str | None:
    """Return the location that MLflow writes for a path in a request; None if it refuses the path."""
    if _PLAIN.fullmatch(path) is None or ".." in path:  # MLflow's own check takes a while
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
        # A host in a file: URI is ignored, as MLflow does when it opens the folder.
        given = local_file_uri_to_path(location)
        path = os.path.abspath(given)
        yield path
        if ".." in given or _has_link(path):  # `link/..` is not where it seems to be
            yield os.path.realpath(given)
        return
    # Object stores take `a/../b` for a name of its own, gateways in front of them may not.
    host, _, path = location[len(scheme) + 1 :].lstrip("/").partition("/")
    yield f"{scheme}://{host}/{path}".rstrip("/")
    yield f"{scheme}://{host}{posixpath.normpath(f'/{path}')}".rstrip("/")


def _has_link(path: str) -> bool:
    """Whether a part of an absolute path is a symbolic link; faster than to resolve it."""
    end = 0
    while end != len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        try:
            if stat.S_ISLNK(os.lstat(path[:end]).st_mode):
                return True
        except FileNotFoundError:
            return False  # and neither is anything below it
        except OSError:  # such as a file in the place of a folder
            return True
    return False


def _served_path(location: str) -> str | None:
    try:
        return str(handlers._get_proxied_run_artifact_destination_path(location))
    except (AssertionError, IndexError):  # an address of something else than artifacts
        return None


def _destination() -> str:
    return os.environ.get(constants.ARTIFACTS_DESTINATION_ENV_VAR) or "./mlartifacts"


class PlaceIndex(Generic[Item]):
    """Finds the items that have files in, above or below a place.

    Upper and lower case are not told apart: some file systems do not.
    """

    def __init__(self, items: Iterable[tuple[str, Item]]) -> None:
        self._items: dict[str, list[Item]] = {}
        for location, item in items:
            for place in kept_places_of(location):
                self._items.setdefault(place.casefold(), []).append(item)
        self._sorted = sorted(self._items)

    def overlapping(self, places: Iterable[str]) -> list[Item]:
        """Return the items whose folder contains one of some places, or is in one of them."""
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


# --- the roots that a server may read -------------------------------------------------------------


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
    """Refuse a location outside of the allowed roots, before anything there is opened."""
    parts = urlsplit(uri)
    roots = allowed_roots(further)
    allowed = {place for root in roots for place in real_places_of(root)}
    foreign_host = parts.scheme.lower() == "file" and parts.netloc not in ("", "localhost")
    inside = all(any(is_within(place, root) for root in allowed) for place in real_places_of(uri))
    if foreign_host or not inside:
        raise EvidenceError(
            f"the files at {uri!r} are outside of the artifact roots of this server "
            f"({', '.join(map(repr, roots)) or 'it has none'}), and are not opened; log the model "
            "and its audit to an experiment with the server's own artifact location, or let the "
            "server's administrator add the root to guard.artifact_roots in the policy"
        )


def open_own(uri: str, further: Sequence[str] = ()) -> tuple[Any, str]:
    """Return the repository of an artifact location, and the path in it.

    Artifacts that the server serves are read from where it keeps them. Another host could show the
    gate other files than it shows everybody else, and is not asked.

    Parameters
    ----------
    uri : str
    further : sequence of str
        Roots that the policy allows beside the server's own.
    """
    parts = urlsplit(uri)
    if parts.scheme in PROXIED:
        if parts.netloc not in _own_hosts() or not handlers._is_serving_proxied_artifacts():
            raise EvidenceError(f"the files at {uri!r} are not kept by this server")
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
    """Return the hosts that mean this server: none at all, or the one that it was started with."""
    return {"", urlsplit(os.environ.get(constants.ARTIFACT_ROOT_ENV_VAR, "")).netloc}


def _direct_repository(uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    opened = getattr(handlers, "_get_artifact_repository_for_uri", get_artifact_repository)
    return opened(uri)
