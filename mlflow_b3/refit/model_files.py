"""The files of a model, or of an audit, where MLflow keeps them: found, read and digested."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow_b3.errors import EvidenceError

#: A model of more files is not digested.
MOST_FILES = 20_000
MOST_COPIES = 20
CHUNK = 1 << 20

#: Gives the artifact repository of a location, and the path below it.
Opener = Callable[[str], tuple[Any, str]]


def open_location(uri: str) -> tuple[Any, str]:
    """Return the repository of an artifact location, as a client sees it."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri), ""


def digest_model(uri: str, opener: Opener = open_location) -> dict[str, str]:
    """Return the SHA-256 of every file of a model by its path."""
    repository, prefix = opener(uri)
    digests = {}
    for path in _walk(repository, prefix):
        with _fetched(repository, path) as local:
            digests[str(PurePosixPath(path).relative_to(prefix))] = _digest_file(local)
    if not digests:
        raise EvidenceError(f"there are no files at {uri!r}")
    return digests


def digest_of(files: dict[str, str]) -> str:
    """Return one digest of the paths and digests of files."""
    lines = (f"{content}  {path}\n" for path, content in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_artifact(uri: str, path: str, largest: int, opener: Opener = open_location) -> bytes:
    """Return the content of one file, if it is not larger than it should be."""
    repository, prefix = opener(uri)
    full = safe_path(f"{prefix}/{path}" if prefix else path)
    parent = str(PurePosixPath(full).parent)
    listed = {entry.path: entry for entry in repository.list_artifacts(parent) or ()}
    entry = listed.get(full)
    if entry is None or entry.is_dir:
        raise EvidenceError(f"there is no file {path!r}")
    if entry.file_size is not None and entry.file_size > largest:
        raise EvidenceError(f"the file {path!r} is larger than {largest} bytes")
    with _fetched(repository, full) as local, local.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise EvidenceError(f"the file {path!r} is larger than {largest} bytes")
    return content


def safe_path(path: str) -> str:
    """Return a path that stays where it is; others are refused."""
    parts = PurePosixPath(path).parts
    odd = "\\" in path or "\0" in path or path.startswith("/") or not parts
    if odd or any(part in ("..", ".") for part in path.split("/")) or ":" in parts[0]:
        raise EvidenceError(f"the artifact name {path!r} leaves its folder")
    return path


def _walk(repository: Any, prefix: str) -> Iterator[str]:
    found = 0
    waiting = [prefix]
    while waiting:
        folder = waiting.pop()
        for entry in repository.list_artifacts(folder or None) or ():
            found += 1
            if found > MOST_FILES:
                raise EvidenceError(f"the model has more than {MOST_FILES} files")
            path = safe_path(entry.path)
            if not path.startswith(f"{folder}/" if folder else ""):
                raise EvidenceError(f"the artifact name {path!r} is not in its folder")
            if entry.is_dir:
                waiting.append(path)
            else:
                yield path


@contextmanager
def _fetched(repository: Any, path: str) -> Iterator[Path]:
    """Give a file's place here, as short as it is needed; local stores are read in place."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    if isinstance(repository, LocalArtifactRepository):
        root = Path(repository.artifact_dir).resolve()
        local = (root / path).resolve()
        if not local.is_relative_to(root):
            raise EvidenceError(f"the artifact {path!r} is a link out of its store")
        yield local
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(repository.download_artifacts(path, folder))


def _digest_file(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where the files of a model are.

    Attributes
    ----------
    source : str
        "models:/m-…", "runs:/id/path", or what else a version was made from.
    location : str
        The artifact location that this stands for.
    model_id, run_id : str or None
    """

    source: str
    location: str
    model_id: str | None = None
    run_id: str | None = None


def resolve_source(client: Any, source: str) -> ModelSource:
    """Follow a model URI, or the source of a registered version, to the model's files.

    A version may be a copy of another one; the chain of copies is followed to its end.
    """
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    for _ in range(MOST_COPIES):
        if not source.startswith("models:/"):
            break
        found = get_model_name_and_version(client, source)
        if len(found) == 1:
            model = client.get_logged_model(found[0])
            return ModelSource(
                source=f"models:/{model.model_id}",
                location=model.artifact_location,
                model_id=model.model_id,
                run_id=model.source_run_id or None,
            )
        source = client.get_model_version(*map(str, found)).source
    else:
        raise EvidenceError(f"{source!r} is a copy of a copy of … more than {MOST_COPIES} times")
    if source.startswith("runs:/"):
        run_id, _, path = source.removeprefix("runs:/").partition("/")
        location = client.get_run(run_id).info.artifact_uri.rstrip("/")
        return ModelSource(source=source, location=f"{location}/{safe_path(path)}", run_id=run_id)
    return ModelSource(source=source, location=source)
