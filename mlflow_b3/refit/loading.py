"""From a model URI or an estimator to a learner that can be refitted."""

import logging
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pandas.api.types import pandas_dtype

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import EvidenceError, InputError, ModelError, TrackingError
from mlflow_b3.refit import head
from mlflow_b3.refit.interface import AuditedModel, CannotRefit, Learner, Source
from mlflow_b3.refit.model_files import digest_model, digest_of, resolve_source
from mlflow_b3.refit.registry import find_flavour, flavour_of
from mlflow_b3.refit.stored_code import find_trainer
from mlflow_b3.refit.trainer import TrainerLearner
from mlflow_b3.refit.training_table import training_table

#: Seconds without an end after which we look whether MLflow answers, and after which we say that it is
#: slow.
PATIENCE, LONG_PATIENCE = 5.0, 20.0
SILENT = (
    "MLflow at %s does not answer (%s). Its client keeps trying, for minutes if need be "
    "(MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT); stop with Ctrl-C."
)
SLOW = (
    "MLflow at %s answers, but is not done yet. Its client tries lost requests again for minutes "
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
    """Load what is to be audited, and find out how it is trained again.

    Parameters
    ----------
    model : str, model or None
        An MLflow model URI; or a bare object: an estimator with scikit-learn's interface, fitted
        or not, or a model of another library that can be refitted; or None with a `trainer`.
    trainer : str or callable, optional
        "module:function" or `(X, y, sample_ids) → predictor`. A trainer that was stored with the
        run by `log_trainer` is found by itself. Who names a trainer means it: it goes before all
        that could be recovered from the model.
    refit : str
        The route; "auto" takes the first that is possible of clone, parameters, fresh, last-layer
        and head, as the flavour has them.
    options : mapping, optional
        Options of the route.

    Notes
    -----
    Loading a model from MLflow can run code that the model brings with it (pickle, custom modules,
    a stored trainer); `foreign_code.loading_notice` says what. MLflow's own restriction, the
    environment variable `MLFLOW_ALLOW_PICKLE_DESERIALIZATION`, is honoured. Audit models that you
    would also serve.
    """
    if isinstance(model, AuditedModel):
        return model
    if not isinstance(model, str):
        source = Source(options=options or {}, route=None if refit == "auto" else refit)
        learner = _bare_learner(model, source, trainer)
        return AuditedModel(learner=learner, inputs=learner.inputs, name=learner.name)
    with announced_waiting():
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
    """Return the digest of the files that are about to be loaded; evidence is bound to it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return digest_of(digest_model(resolve_source(MlflowClient(), uri).location))
    except (MlflowException, OSError, EvidenceError):
        return None  # the audit can do without; then there is no evidence of it


def _bare_learner(model: Any, source: Source, trainer: Any) -> Learner:
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
            f"refit='trainer', but none was given, and none is stored with the run of "
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


def _trainer_learner(trainer: Any, source: Source) -> Learner:
    if source.route not in (None, "trainer"):
        raise InputError(f"trainer and refit={source.route!r} contradict each other; give one.")
    source.require_options()
    return TrainerLearner(trainer)


def registered_version(uri: str | None) -> tuple[str, str] | None:
    """Return the registered model and version that a URI stands for now; None for other URIs."""
    from mlflow import MlflowClient
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    if uri is None or not uri.startswith("models:/"):
        return None
    found = get_model_name_and_version(MlflowClient(), uri)
    return (str(found[0]), str(found[1])) if len(found) == 2 else None


def _pinned(uri: str) -> str:
    """Return the URI of the version that an alias or a stage points to now; it may move later."""
    from mlflow.exceptions import MlflowException

    try:
        version = registered_version(uri)
    except (MlflowException, OSError) as error:
        raise_if_unreachable(error)
        return uri  # reading the model says better what is wrong
    return uri if version is None else "models:/" + "/".join(version)


def model_info(uri: str) -> Any:
    """Return what MLflow knows about a model, which reads its MLmodel file and runs nothing."""
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
    """Return the parameters logged with the run, then those logged with the model itself."""
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
        return params  # a model that outlived its run says less, but can still be loaded
    return params


def _with_signature(
    remembered: ModelInputs, signature: Any, texts: tuple[str, ...] = ()
) -> ModelInputs:
    """Let the signature decide on columns and dtypes where it names columns.

    Without one, the dataset that the training run logged says which columns held text.
    """
    schema = getattr(signature, "inputs", None)
    if schema is None or schema.is_tensor_spec() or not schema.has_input_names():
        known = [name for name in texts if name in (remembered.columns or ())]
        return replace(remembered, dtypes=dict.fromkeys(known, "object") or None)
    names = tuple(str(name) for name in schema.input_names())
    if remembered.columns is not None and set(remembered.columns) <= set(names):
        names = remembered.columns  # a signature may name more than the model makes use of
    dtypes = {}
    for column in schema.inputs:
        kind = column.type
        if hasattr(kind, "to_pandas"):  # not for arrays and objects
            dtypes[str(column.name)] = str(pandas_dtype(kind.to_pandas()))
    return replace(remembered, columns=names, dtypes=dtypes, count=len(names))


@contextmanager
def announced_waiting() -> Iterator[None]:
    """Log it if MLflow does not answer or is slow: its client tries for minutes without a word."""
    if not _WAITING.acquire(blocking=False):
        yield  # whoever called us says so
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
    """Return the addresses of the MLflow servers in use; databases and folders have none."""
    import mlflow

    uris = dict.fromkeys((mlflow.get_tracking_uri(), mlflow.get_registry_uri()))
    return [uri for uri in uris if urlsplit(uri).scheme in ("http", "https")]


def _unreachable(uri: str) -> str:
    """Return why no connection to a server can be made; nothing where one can."""
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def without_password(uri: str) -> str:
    """Return an address without the user and the password that it may contain."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def raise_if_unreachable(error: BaseException) -> None:
    """Raise a `TrackingError` for an error that says that a server did not answer.

    MLflow's errors of that kind look like those of things that are not there, and their texts may
    contain passwords.
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
            "MLFLOW_TRACKING_URI to one that runs."
        ) from error


@contextmanager
def without_autologging() -> Iterator[None]:
    """Keep refits from being logged as runs where MLflow's autologging is on."""
    if "mlflow" not in sys.modules:
        yield
        return
    from mlflow.utils.autologging_utils import disable_autologging

    with disable_autologging():
        yield
