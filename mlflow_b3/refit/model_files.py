"""The files of a model, or of an audit, where MLflow keeps them: found, read and digested."""

import hashlib
import json
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
LONGEST_PATH = 2000
CHUNK = 1 << 20
#: MLflow writes this file into a local store when a registered version is loaded from there.
MARK, LONGEST_MARK = "registered_model_meta", 2000

#: Gives the artifact repository of a location, and the path below it.
Opener = Callable[[str], tuple[Any, str]]


def open_location(uri: str) -> tuple[Any, str]:
    """Return the repository of an artifact location, as a client sees it."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri), ""


def digest_model(uri: str, opener: Opener = open_location) -> dict[str, str]:
    """Return the SHA-256 of every file of a model by its path.

    MLflow's own mark of the name that a model was last loaded by is left out.
    """
    repository, prefix = opener(uri)
    digests = {}
    for path in _walk(repository, prefix):
        name = str(PurePosixPath(path).relative_to(prefix))
        with _fetched(repository, path) as local:
            if not (name == MARK and _only_names_a_version(local)):
                digests[name] = _digest_file(local)
    if not digests:
        raise EvidenceError(f"there are no files at {uri!r}")
    return digests


def digest_of(files: dict[str, str]) -> str:
    """Return one digest of the paths and digests of files."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def read_artifact(uri: str, path: str, largest: int, opener: Opener = open_location) -> bytes:
    """Return the content of one file, if it is not larger than it should be."""
    repository, prefix = opener(uri)
    full = safe_path(f"{prefix}/{path}" if prefix else path)
    parent = str(PurePosixPath(full).parent)
    listed = {entry.path: entry for entry in _listed(repository, parent)}
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
    if len(path) > LONGEST_PATH:
        raise EvidenceError(
            f"the artifact name {path[:40]!r}… is longer than {LONGEST_PATH} letters"
        )
    parts = PurePosixPath(path).parts
    odd = "\\" in path or "\0" in path or path.startswith("/") or not parts
    if odd or any(part in ("..", ".") for part in path.split("/")) or ":" in parts[0]:
        raise EvidenceError(f"the artifact name {path!r} leaves its folder")
    return path


def _listed(repository: Any, folder: str) -> list[Any]:
    """Return what is in a folder; links that lead out of it, or round in circles, are refused."""
    from mlflow.exceptions import MlflowException

    try:
        return list(repository.list_artifacts(folder or None) or ())
    except (MlflowException, OSError) as error:
        raise EvidenceError(f"the folder {folder!r} cannot be listed: {error}") from error


def _walk(repository: Any, prefix: str) -> Iterator[str]:
    found = 0
    waiting = [prefix]
    while waiting:
        folder = waiting.pop()
        for entry in _listed(repository, folder):
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
        if not local.is_file():
            raise EvidenceError(f"the artifact {path!r} is not a file")
        yield local
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(repository.download_artifacts(path, folder))


def _only_names_a_version(path: Path) -> bool:
    """Whether a file says which registered version it belongs to, and nothing else."""
    import yaml

    if path.stat().st_size > LONGEST_MARK:
        return False
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.keys() == {"model_name", "model_version"}


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

    A version may be a copy of another one; the chain of copies is followed to its end. The location
    is where MLflow loads a version from, whatever has become of the one that it was copied from.
    """
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    location = run_id = None
    for _ in range(MOST_COPIES):
        if not source.startswith("models:/"):
            break
        found = get_model_name_and_version(client, source)
        if len(found) == 1:
            return _of_logged_model(client.get_logged_model(found[0]), location)
        name, number = map(str, found)
        version = client.get_model_version(name, number)
        location = location or client.get_model_version_download_uri(name, number)
        source, run_id = version.source, run_id or version.run_id
    else:
        raise EvidenceError(f"{source!r} is a copy of a copy of … more than {MOST_COPIES} times")
    if source.startswith("runs:/"):
        return _of_run(client, source, location)
    return ModelSource(source=source, location=location or source, run_id=run_id or None)


def _of_logged_model(model: Any, location: str | None) -> ModelSource:
    return ModelSource(
        source=f"models:/{model.model_id}",
        location=location or model.artifact_location,
        model_id=model.model_id,
        run_id=model.source_run_id or None,
    )


def _of_run(client: Any, source: str, location: str | None) -> ModelSource:
    """Return the LoggedModel of a run by its name; before MLflow 3 there were only its artifacts."""
    run_id, _, path = source.removeprefix("runs:/").partition("/")
    run = client.get_run(run_id)
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"name {matching(path)}"
    )
    own = [found for found in models if (found.source_run_id, found.name) == (run_id, path)]
    model = next(iter(own), None)
    if model is not None and location is None:
        return _of_logged_model(model, None)
    if model is not None:
        raise EvidenceError(
            f"{source!r} is the LoggedModel {model.model_id} and whatever else the run keeps under "
            f"that name; register 'models:/{model.model_id}' instead"
        )
    if location is None or location.startswith("runs:/"):
        location = f"{run.info.artifact_uri.rstrip('/')}/{safe_path(path)}"
    return ModelSource(source=source, location=location, run_id=run_id)


def matching(text: str) -> str:
    """Return the condition of a filter for a text; it may let others pass, so compare what it finds.

    MLflow's filters cannot hold a text with both kinds of quotation marks.
    """
    if "'" in text and '"' in text:
        return f"LIKE {quoted(text.replace(chr(39), '_'))}"
    return f"= {quoted(text)}"


def quoted(text: str) -> str:
    """Return a text as MLflow's filters want it."""
    return f'"{text}"' if "'" in text else f"'{text}'"
