"""The checks of routes that write or remove files: those of a guarded version are kept as they are."""

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any
from urllib.parse import unquote

from anyio import CancelScope
from anyio.to_thread import run_sync
from mlflow.exceptions import MlflowException
from mlflow.server import handlers
from mlflow.utils.uri import validate_path_is_safe

from mlflow_b3.gating.decisions import Request
from mlflow_b3.gating.routes import SAFE_METHODS
from mlflow_b3.gating.server_checks import After, withdraw
from mlflow_b3.gating.server_gate import Gate, closed, unknown_route
from mlflow_b3.gating.server_stores import (
    Guarded,
    all_guarded,
    exists,
    guarded_users_of,
    model_ids,
)

#: In the path of the routes by which clients write and remove files.
FILES = "/mlflow-artifacts/artifacts/"
#: How often MLflow decodes at most.
DECODED = 11


def check_files(gate: Gate, request: Request) -> After | None:
    """Keep the files of a guarded version from being replaced."""
    return _check_path(gate, request, _path_in_request())


def check_removal_of_files(gate: Gate, request: Request) -> After | None:
    """Keep the files of a guarded version, and the folders above them, from being removed."""
    return _check_removal(gate, request, _path_in_request())


def check_files_by_address(gate: Gate, request: Request) -> After | None:
    """Give no address to write to where the files of a guarded version are."""
    from mlflow.protos.service_pb2 import CreatePresignedUploadUrl

    asked = handlers._get_request_message(CreatePresignedUploadUrl())
    if asked.model_id:
        model = exists(gate.stores.get_logged_model, asked.model_id)
        place = "" if model is None else model.artifact_location
    else:
        place = _place_of_run(gate, asked.run_id)
    return _check_location(gate, request, f"{place}/{asked.path}")


def check_files_of_run(gate: Gate, request: Request) -> After | None:
    """Keep a run from writing into the folder of a guarded version."""
    from flask import request as asked

    return _check_location(gate, request, _place_of_run(gate, asked.args.get("run_uuid", "")))


def _place_of_run(gate: Gate, run_id: str) -> str:
    run = exists(gate.stores.get_run, run_id) if run_id else None
    return "" if run is None else str(run.info.artifact_uri)


def _path_in_request() -> str:
    from flask import request as asked

    return str((asked.view_args or {}).get("artifact_path", ""))


def _check_path(gate: Gate, request: Request, path: str) -> After | None:
    """Refuse to change the files of a guarded version, by a path in the server's own store."""
    return _check_models(gate, request, path, model_ids(_as_mlflow_reads_it(path)))


def _check_location(gate: Gate, request: Request, location: str) -> After | None:
    """Refuse to change the files of a guarded version, by where a run or a model keeps its own."""
    found = [each for form in _forms_of(location) for each in model_ids(form)]
    return _check_models(gate, request, location, list(dict.fromkeys(found)))


def _check_models(gate: Gate, request: Request, path: str, found: list[str]) -> After | None:
    """Refuse to change the files of guarded versions; look again once the change is complete.

    Only a path through the folder of a LoggedModel costs a look into the registry.
    """
    for model_id in found:
        for guarded in guarded_users_of(gate.stores, gate.policy, model_id):
            raise _kept(gate, request, path, guarded)
    if not found:
        return None
    return lambda: _withdraw(gate, request, path, found)


def _check_removal(gate: Gate, request: Request, path: str) -> After | None:
    """Refuse to remove the files of a guarded version, also by a folder that they are in."""
    below = _check_path(gate, request, path)
    removed = posixpath.normpath(_in_workspace(_as_mlflow_reads_it(path))).strip("/")
    for guarded in _stored_in(gate, removed):
        raise _kept(gate, request, path, guarded)

    def after() -> None:
        _judge_again(gate, request, path, list(_stored_in(gate, removed)))
        if below is not None:
            below()

    return after


def _in_workspace(path: str) -> str:
    """Return a path as the server's store has it, which may keep workspaces apart."""
    scoped = getattr(handlers, "_get_workspace_scoped_repo_path_if_enabled", lambda given: given)
    return str(scoped(path))


def _stored_in(gate: Gate, removed: str) -> Iterator[Guarded]:
    """Give the guarded versions with files in a folder, or around it."""
    for guarded in all_guarded(gate.stores, gate.policy):
        kept = _own_path(guarded.location)
        if kept is not None and (
            removed in ("", ".")
            or f"{kept}/".startswith(f"{removed}/")
            or f"{removed}/".startswith(f"{kept}/")
        ):
            yield guarded


def _own_path(location: str) -> str | None:
    """Return the path of a location in the store that the server serves; None if it is elsewhere."""
    if not handlers._is_servable_proxied_run_artifact_root(location):
        return None
    return str(handlers._get_proxied_run_artifact_destination_path(location)).strip("/")


def _as_mlflow_reads_it(path: str) -> str:
    """Decode a path as MLflow does; what MLflow refuses leads nowhere."""
    try:
        return str(validate_path_is_safe(path))
    except (MlflowException, ValueError):
        return ""


def _forms_of(location: str) -> Iterator[str]:
    """Give a location as it is and decoded, as often as it can be: stores differ in this."""
    for _ in range(DECODED):
        yield location
        location = unquote(location)


def _kept(gate: Gate, request: Request, path: str, guarded: Guarded) -> MlflowException:
    text = (
        f"{path!r} belongs to {guarded.name!r} version {guarded.number}, which is under "
        f"{guarded.words}: its files are kept as they are. Log the model again, and audit that one."
    )
    return gate.refuse(request, "files", path, text, model=guarded.name, version=guarded.number)


def _withdraw(gate: Gate, request: Request, path: str, changed: list[str]) -> None:
    """Take guarded aliases and stages from versions that were promoted while a file was written."""
    for model_id in changed:
        users = list(guarded_users_of(gate.stores, gate.policy, model_id))
        _judge_again(gate, request, path, users)


def _judge_again(gate: Gate, request: Request, path: str, promoted: list[Guarded]) -> None:
    """Take guarded aliases and stages from those that do not pass any more."""
    refused = None
    for guarded in promoted:
        verdict = gate.judge(guarded.name, guarded.number)
        if not verdict.allowed:
            withdraw(gate, guarded)
            try:
                gate.take_back(request, "files", path, verdict)
            except MlflowException as error:
                refused = error
    if refused is not None:
        raise refused


Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class NativeRoutes:
    """Checks what FastAPI serves itself and Flask never sees: files, and what is not known.

    It is plain ASGI, and for every other request two comparisons.

    Parameters
    ----------
    app : ASGI application
    gate : Gate
    methods : frozenset of str
        Those by which FastAPI itself takes files.
    unknown : tuple of str
        Paths, with {parameters}, that FastAPI serves and that are not classified.
    """

    def __init__(
        self, app: Any, gate: Gate, methods: frozenset[str], unknown: tuple[str, ...] = ()
    ) -> None:
        self.app, self.gate, self.methods = app, gate, methods
        patterns = [re.sub(r"\\{.*?\\}", ".+", re.escape(path)) for path in unknown]
        self.unknown = re.compile("|".join(patterns)) if patterns else None

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Check a request if it must be, and pass it on."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self.app(scope, receive, send)
        elif scope["method"] in self.methods and FILES in scope["path"]:
            await self._files(scope, receive, send)
        elif self.unknown is not None and self.unknown.search(scope["path"]):
            await _send(send, unknown_route(self.gate, _request_of(scope)))
        else:
            await self.app(scope, receive, send)

    async def _files(self, scope: Message, receive: Any, send: Send) -> None:
        """Check an upload before it begins, and where it concerns a model once it is complete."""
        path, removes = str(scope["path"]).partition(FILES)[2], scope["method"] == "DELETE"
        if not removes and not model_ids(_as_mlflow_reads_it(path)):
            await self.app(scope, receive, send)
            return
        check = _check_removal if removes else _check_path
        request = _request_of(scope)
        try:
            after = await run_sync(closed, self.gate, request, check, self.gate, request, path)
        except MlflowException as error:
            await _send(send, error)
            return
        answer: list[Message] = []
        refused = None
        try:
            await self.app(scope, receive, _collected(answer))
        finally:  # who ends the connection at the right moment must not be spared
            if after is not None:
                with CancelScope(shield=True):
                    refused = await run_sync(_refused, self.gate, request, after)
        if refused is not None:
            await _send(send, refused)
            return
        for message in answer:
            await send(message)


def _refused(gate: Gate, request: Request, after: After) -> MlflowException | None:
    try:
        closed(gate, request, after)
    except MlflowException as error:
        return error
    return None


def _collected(answer: list[Message]) -> Send:
    async def collect(message: Message) -> None:
        answer.append(message)

    return collect


def _request_of(scope: Message) -> Request:
    state, client = scope.get("state") or {}, scope.get("client")
    return Request(
        actor=state.get("username"),
        remote=None if not client else str(client[0]),
        route=f"{scope['method']} {scope['path']}",
    )


async def _send(send: Send, error: MlflowException) -> None:
    body = error.serialize_as_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    status = error.get_http_status_code()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
