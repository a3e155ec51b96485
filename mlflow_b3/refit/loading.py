"""Resolve a model URI, compute the digest of its files, and load it as a learner."""

import hashlib
import json
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
from pandas.api.types import pandas_dtype

from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import CannotRefit, EvidenceError, InputError, ModelError, TrackingError
from mlflow_b3.refit import head
from mlflow_b3.refit.flavours import BUILT_IN, find_flavour, flavour_of
from mlflow_b3.refit.learner import AuditedModel, Learner, Source
from mlflow_b3.refit.trainer import TrainerLearner, find_trainer

# --- The training table that a run logged

CONTEXTS = ("train", "training")


@dataclass(frozen=True, kw_only=True)
class TrainingTable:
    """A table that a run logged for its training.

    Attributes
    ----------
    rows : int or None
        Number of rows; None if it was not logged.
    texts : tuple of str
        Names of the columns that held text.
    """

    rows: int | None = None
    texts: tuple[str, ...] = ()


def training_table(run_id: str | None) -> TrainingTable:
    """Return what a run logged about its training table.

    Autologging and `mlflow.log_input(..., context="training")` log it.
    """
    tables = {
        TrainingTable(rows=_rows(dataset.profile), texts=_texts(dataset.schema))
        for dataset in _datasets(run_id)
    }
    counts = {table.rows for table in tables}
    return TrainingTable(  # with several tables, it is not known which one was used
        rows=counts.pop() if len(counts) == 1 else None,
        texts=tables.pop().texts if len(tables) == 1 else (),
    )


def digest_like_training(frame: pd.DataFrame, run_id: str | None) -> str | None:
    """Return MLflow's digest of a table if a run logged a dataset with the same number of rows.

    The digest is slow for large tables, so it is computed only if it can match.
    """
    sizes = {_rows(dataset.profile) for dataset in _datasets(run_id)}
    if not sizes & {len(frame), None}:
        return None
    from mlflow.data.digest_utils import compute_pandas_digest

    try:
        return str(compute_pandas_digest(frame))
    except (TypeError, ValueError):
        return None  # MLflow cannot digest such values, so no run logged this table


def training_datasets(run: Any) -> list[Any]:
    """Return the training datasets of a run."""
    return [given.dataset for given in run.inputs.dataset_inputs if _context(given) in CONTEXTS]


def _datasets(run_id: str | None) -> list[Any]:
    if not run_id:
        return []
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return training_datasets(MlflowClient().get_run(run_id))
    except (MlflowException, OSError):
        return []  # the run may have been deleted


def _context(given: Any) -> str | None:
    return next((tag.value for tag in given.tags if tag.key == "mlflow.data.context"), None)


def _rows(profile: str | None) -> int | None:
    try:
        values = json.loads(profile or "{}")
        rows = values.get("num_rows") or values.get("features_shape", [None])[0]
        return None if rows is None else int(rows)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _texts(schema: str | None) -> tuple[str, ...]:
    try:
        columns = json.loads(schema or "{}").get("mlflow_colspec") or []
        return tuple(str(column["name"]) for column in columns if column["type"] == "string")
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


# --- The files of a model or an audit in MLflow: find, read, digest

#: No digest is computed for a model with more files.
MOST_FILES = 20_000
MOST_COPIES = 20
LONGEST_PATH = 2000
CHUNK = 1 << 20
#: MLflow writes this file into a local store when a registered version is loaded.
MARK, LONGEST_MARK = "registered_model_meta", 2000

#: Returns the artifact repository of a location, and the path inside it.
Opener = Callable[[str], tuple[Any, str]]


def open_location(uri: str) -> tuple[Any, str]:
    """Return the artifact repository of a location."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri), ""


def digest_model(uri: str, opener: Opener = open_location) -> dict[str, str]:
    """Return the SHA-256 of each file of a model, by path.

    The file in which MLflow notes the registered version is left out.
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
    """Return one digest over the paths and digests of files."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def read_artifact(uri: str, path: str, largest: int, opener: Opener = open_location) -> bytes:
    """Return the content of a file of at most `largest` bytes."""
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
    """Return the path if it stays inside its folder, else raise an `EvidenceError`."""
    if len(path) > LONGEST_PATH:
        raise EvidenceError(
            f"the artifact name {path[:40]!r}… is longer than {LONGEST_PATH} characters"
        )
    parts = PurePosixPath(path).parts
    odd = "\\" in path or "\0" in path or path.startswith("/") or not parts
    if odd or any(part in ("..", ".") for part in path.split("/")) or ":" in parts[0]:
        raise EvidenceError(f"the artifact name {path!r} leaves its folder")
    return path


def _listed(repository: Any, folder: str) -> list[Any]:
    """List a folder. Links that leave it or form a cycle raise an error."""
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
    """Yield a local path of a file. Files of remote stores are downloaded and then deleted."""
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
    """Return whether a file names a registered version and contains nothing else."""
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
    """The location of the files of a model.

    Attributes
    ----------
    source : str
        "models:/m-…", "runs:/id/path", or another source of a version.
    location : str
        The artifact location of the source.
    model_id, run_id : str or None
    """

    source: str
    location: str
    model_id: str | None = None
    run_id: str | None = None


def resolve_source(client: Any, source: str) -> ModelSource:
    """Resolve a model URI, or the source of a registered version, to the model's files.

    A version may be a copy of another one; the chain of copies is followed to its end. The location
    is where MLflow loads the first version from, even if the version it was copied from has changed.
    """
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    location = run_id = None
    for _ in range(MOST_COPIES):
        if not source.startswith("models:/"):
            break
        found = get_model_name_and_version(client, source)
        if len(found) == 1:
            return _from_logged_model(client.get_logged_model(found[0]), location)
        name, number = map(str, found)
        version = client.get_model_version(name, number)
        location = location or client.get_model_version_download_uri(name, number)
        source, run_id = version.source, run_id or version.run_id
    else:
        raise EvidenceError(f"{source!r} is a copy of a copy of … more than {MOST_COPIES} times")
    if source.startswith("runs:/"):
        return _from_run(client, source, location)
    return ModelSource(source=source, location=location or source, run_id=run_id or None)


def _from_logged_model(model: Any, location: str | None) -> ModelSource:
    return ModelSource(
        source=f"models:/{model.model_id}",
        location=location or model.artifact_location,
        model_id=model.model_id,
        run_id=model.source_run_id or None,
    )


def _from_run(client: Any, source: str, location: str | None) -> ModelSource:
    """Return the LoggedModel of a run by name, or its artifacts, as before MLflow 3."""
    run_id, _, path = source.removeprefix("runs:/").partition("/")
    run = client.get_run(run_id)
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"name {matching(path)}"
    )
    own = [found for found in models if (found.source_run_id, found.name) == (run_id, path)]
    model = next(iter(own), None)
    if model is not None and location is None:
        return _from_logged_model(model, None)
    if model is not None:
        raise EvidenceError(
            f"{source!r} is the LoggedModel {model.model_id} and any other artifacts of the run under "
            f"that name; register 'models:/{model.model_id}' instead"
        )
    if location is None or location.startswith("runs:/"):
        location = f"{run.info.artifact_uri.rstrip('/')}/{safe_path(path)}"
    return ModelSource(source=source, location=location, run_id=run_id)


def matching(text: str) -> str:
    """Return a filter condition for a string. It may match others, so compare the results.

    MLflow's filters cannot express a string with both kinds of quotation marks.
    """
    if "'" in text and '"' in text:
        return f"LIKE {quoted(text.replace(chr(39), '_'))}"
    return f"= {quoted(text)}"


def quoted(text: str) -> str:
    """Quote a string for MLflow's filters."""
    return f'"{text}"' if "'" in text else f"'{text}'"


# --- Load a model URI or an estimator as a learner

#: Seconds of waiting before we check that MLflow answers, and before we warn that it is slow.
PATIENCE, LONG_PATIENCE = 5.0, 20.0
SILENT = (
    "MLflow at %s does not answer (%s). Its client keeps trying, possibly for minutes "
    "(MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT); stop with Ctrl-C."
)
SLOW = (
    "MLflow at %s answers, but the request is still running. Its client retries lost requests for minutes "
    "(MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT)."
)
_LOG = logging.getLogger(__name__)
URI_FORMS = "'models:/name/3', 'models:/name@alias', 'models:/m-…' or 'runs:/run_id/path'"


def load_model(
    model: Any,
    *,
    trainer: Any = None,
    refit: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> AuditedModel:
    """Load the model to audit and determine how to refit it.

    Parameters
    ----------
    model : str, model or None
        An MLflow model URI; or a model object: an estimator with scikit-learn's interface, fitted
        or not, or a model of another supported library; or None with a `trainer`.
    trainer : str or callable, optional
        "module:function" or `(X, y, sample_ids) → predictor`. It takes precedence over anything
        recovered from the model. A trainer stored with the run by `log_trainer` is found
        automatically.
    refit : str
        The route; "auto" takes the first possible one of clone, parameters, fresh, last-layer and
        head that the flavour has.
    options : mapping, optional
        Options of the route.

    Notes
    -----
    Loading a model from MLflow can run code of the model (pickle, custom modules, a stored
    trainer); see `safety.loading_notice`. The environment variable
    `MLFLOW_ALLOW_PICKLE_DESERIALIZATION` is honoured. Audit only models that you would also
    serve.
    """
    if isinstance(model, AuditedModel):
        return model
    if not isinstance(model, str):
        source = Source(options=options or {}, route=None if refit == "auto" else refit)
        learner = _object_learner(model, source, trainer)
        return AuditedModel(learner=learner, inputs=learner.inputs, name=learner.name)
    with announced_waiting(), without_bytecode():
        return _load(model, trainer, refit, options)


def _load(model: str, trainer: Any, refit: str, options: Mapping[str, Any] | None) -> AuditedModel:
    route = None if refit == "auto" else refit
    uri = _pinned(model)
    info = model_info(uri)
    model_digest = _digest(uri)
    source = Source(
        uri=uri,
        flavours=info.flavors,
        params=_logged_parameters(info),
        options=options or {},
        route=route,
    )
    if trainer is None and route in (None, "trainer"):
        trainer = find_trainer(info.run_id)
    learner = _logged_learner(source, trainer)
    trained_on = training_table(info.run_id)
    learner.notes = tuple(dict.fromkeys((*source.notes, *learner.notes)))
    return AuditedModel(
        learner=learner,
        inputs=_with_signature(learner.inputs, info.signature, trained_on.texts),
        name=f"{model} ({learner.name})",
        uri=uri,
        run_id=info.run_id or None,
        model_id=info.model_id,
        training_rows=trained_on.rows,
        model_digest=model_digest,
    )


def declared_texts(info: Any) -> tuple[str, ...]:
    """Return the columns that a model's signature declares as text, without loading the model."""
    return _with_signature(ModelInputs(), info.signature).texts


def _digest(uri: str) -> str | None:
    """Return the digest of the model's files before loading. Evidence is bound to it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return digest_of(digest_model(resolve_source(MlflowClient(), uri).location))
    except (MlflowException, OSError, EvidenceError):
        return None  # the audit continues, but without evidence


def _object_learner(model: Any, source: Source, trainer: Any) -> Learner:
    if trainer is not None:
        return _trainer_learner(trainer, source)
    if source.route == "trainer":
        raise InputError("refit='trainer' needs trainer='module:function' or a callable.")
    if source.route == "head":
        return head.learner(model, source)
    name = flavour_of(model)
    if name is None and hasattr(model, "fit") and hasattr(model, "get_params"):
        name = "sklearn"
    found = find_flavour([name] if name else [])
    if found is None:
        raise ModelError(
            f"model={type(model).__name__} cannot be refitted; give {URI_FORMS}, an estimator with "
            "scikit-learn's fit and get_params, or a trainer."
        )
    learner: Learner = found[1].learner(model, source)
    return learner


def _logged_learner(source: Source, trainer: Any) -> Learner:
    if trainer is not None:
        return _trainer_learner(trainer, source)
    if source.route == "trainer":
        raise ModelError(
            f"refit='trainer', but no trainer was given, and none is stored with the run of "
            f"{source.uri!r}. Give trainer='module:function', or store it with "
            "mlflow_b3.log_trainer(function, run_id=…)."
        )
    found = None if source.route == "head" else find_flavour(source.flavours)
    if found is None and "python_function" not in source.flavours:
        raise ModelError(
            f"model={source.uri!r} has the flavours {sorted(source.flavours)}, which cannot be loaded "
            "in Python. Give trainer='module:function' that trains it on rows, or store one with "
            "mlflow_b3.log_trainer."
        )
    if found is None:
        return head.learner(head.load(source), source)
    _require_served(found[0], source)
    model = found[1].load(source)
    try:
        learner: Learner = found[1].learner(model, source)
    except CannotRefit as error:
        if source.route is not None:
            raise
        learner = head.learner(head.load(source), source)
        note = f"as a {found[0]} model it cannot be refitted: {error}"
        learner.notes = (note, *learner.notes)
    return learner


#: Under which names flavours say from which files they load a model.
MODEL_FILES = {
    *("data", "model_path", "model_data", "model_binary", "pickled_model", "saved_model_dir"),
}


def _require_served(flavour: str, source: Source) -> None:
    """Refuse a model whose flavour for serving is another model than the one that is audited.

    `mlflow.pyfunc.load_model`, and so a server, loads what the flavour `python_function` names. MLflow
    saves both flavours from one object. An MLmodel file that was edited can name two.
    """
    served = source.flavours.get("python_function")
    if served is None:
        return
    loader = served.get("loader_module")
    if flavour in BUILT_IN and loader != f"mlflow.{flavour}":
        raise ModelError(
            f"model={source.uri!r} is served by {loader!r}, but its flavour {flavour!r} would be audited. "
            "Log the model again, by one flavour."
        )
    own = _model_files(source.flavours[flavour])
    other = sorted(_model_files(served) - own)
    if other:
        raise ModelError(
            f"model={source.uri!r} is served from {', '.join(map(repr, other))}, which its flavour "
            f"{flavour!r} does not name: another model may be served than would be audited. Log the model "
            "again."
        )


def _model_files(flavour: Mapping[str, Any]) -> set[str]:
    return {str(flavour[name]) for name in MODEL_FILES & flavour.keys() if flavour[name]}


def _trainer_learner(trainer: Any, source: Source) -> Learner:
    if source.route not in (None, "trainer"):
        raise InputError(f"trainer and refit={source.route!r} contradict each other; give one.")
    source.require_options()
    return TrainerLearner(trainer)


def registered_version(uri: str | None) -> tuple[str, str] | None:
    """Return the registered model and version that a URI refers to now; None for other URIs."""
    from mlflow import MlflowClient
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    if uri is None or not uri.startswith("models:/"):
        return None
    found = get_model_name_and_version(MlflowClient(), uri)
    return (str(found[0]), str(found[1])) if len(found) == 2 else None


def _pinned(uri: str) -> str:
    """Return the URI of the version that an alias or a stage points to now."""
    from mlflow.exceptions import MlflowException

    try:
        version = registered_version(uri)
    except (MlflowException, OSError) as error:
        raise_if_unreachable(error)
        return uri  # reading the model gives a better error
    return uri if version is None else "models:/" + "/".join(version)


def model_info(uri: str) -> Any:
    """Return MLflow's information about a model. Reads the MLmodel file and runs no code."""
    import mlflow
    from mlflow.exceptions import MlflowException

    if not uri.startswith(("models:/", "runs:/")):
        raise ModelError(f"model={uri!r} is not a model URI; use {URI_FORMS}.")
    try:
        with announced_waiting():
            return mlflow.models.get_model_info(uri)
    except (MlflowException, OSError) as error:
        raise_if_unreachable(error)
        raise ModelError(
            f"model={uri!r} was not found in {mlflow.get_tracking_uri()!r}: {error}"
        ) from error


def _logged_parameters(info: Any) -> dict[str, str]:
    """Return the parameters of the run, updated with those of the model itself."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    params: dict[str, str] = {}
    try:
        if info.run_id:
            params.update(client.get_run(info.run_id).data.params)
        if info.model_id:
            params.update(client.get_logged_model(info.model_id).params or {})
    except (MlflowException, OSError):
        return params  # the run may have been deleted; the model can still be loaded
    return params


def _with_signature(
    remembered: ModelInputs, signature: Any, texts: tuple[str, ...] = ()
) -> ModelInputs:
    """Take columns and dtypes from the signature if it names columns.

    Without one, the training dataset that the run logged determines the text columns.
    """
    schema = getattr(signature, "inputs", None)
    if schema is None or schema.is_tensor_spec() or not schema.has_input_names():
        known = [name for name in texts if name in (remembered.columns or ())]
        return replace(remembered, dtypes=dict.fromkeys(known, "object") or None)
    names = tuple(str(name) for name in schema.input_names())
    if remembered.columns is not None and set(remembered.columns) <= set(names):
        names = remembered.columns  # a signature may name unused columns
    dtypes = {}
    for column in schema.inputs:
        kind = column.type
        if hasattr(kind, "to_pandas"):  # not for arrays and objects
            dtypes[str(column.name)] = str(pandas_dtype(kind.to_pandas()))
    return replace(remembered, columns=names, dtypes=dtypes, count=len(names))


@contextmanager
def announced_waiting() -> Iterator[None]:
    """Warn if MLflow does not answer or is slow. Its client retries silently for minutes."""
    if not _WAITING.acquire(blocking=False):
        yield  # the caller already warns
        return
    done = threading.Event()
    servers = _servers()

    def watch() -> None:
        if done.wait(PATIENCE):
            return
        for uri in servers:
            problem = _unreachable(uri)
            if problem:
                _LOG.warning(SILENT, without_password(uri), problem)
                return
        if servers and not done.wait(LONG_PATIENCE - PATIENCE):
            _LOG.warning(SLOW, without_password(servers[0]))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        _WAITING.release()


_WAITING = threading.Lock()


def _servers() -> list[str]:
    """Return the addresses of the MLflow servers in use, without databases and folders."""
    import mlflow

    uris = dict.fromkeys((mlflow.get_tracking_uri(), mlflow.get_registry_uri()))
    return [uri for uri in uris if urlsplit(uri).scheme in ("http", "https")]


def _unreachable(uri: str) -> str:
    """Return why a server cannot be reached, or an empty string."""
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def without_password(uri: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def raise_if_unreachable(error: BaseException) -> None:
    """Raise a `TrackingError` if an error was caused by a server that does not answer.

    MLflow's own errors look like those for missing objects, and their messages may contain
    passwords.
    """
    from requests import exceptions

    cause: BaseException | None = error
    found, last = False, error
    while cause is not None:
        found |= isinstance(cause, (exceptions.ConnectionError, exceptions.Timeout))
        last, cause = cause, cause.__cause__ or cause.__context__
    if found:
        import mlflow

        where = " and ".join(map(without_password, _servers() or [mlflow.get_tracking_uri()]))
        reason = getattr(last, "strerror", None) or type(last).__name__
        raise TrackingError(
            f"MLflow at {where} does not answer ({reason}). Start the server, or set "
            "MLFLOW_TRACKING_URI to a running one."
        ) from error


@contextmanager
def without_bytecode() -> Iterator[None]:
    """Keep Python from writing bytecode, here and in processes started meanwhile.

    A model can bring modules of its own. From a local store they are imported where they are, and a
    `__pycache__` beside them would change the files that evidence is bound to.
    """
    name, written = "PYTHONDONTWRITEBYTECODE", sys.dont_write_bytecode
    inherited = os.environ.get(name)
    sys.dont_write_bytecode, os.environ[name] = True, "1"
    try:
        yield
    finally:
        sys.dont_write_bytecode = written
        if inherited is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = inherited


@contextmanager
def without_autologging() -> Iterator[None]:
    """Disable MLflow's autologging, which would log each refit as a run."""
    if "mlflow" not in sys.modules:
        yield
        return
    from mlflow.utils.autologging_utils import disable_autologging

    with disable_autologging():
        yield
