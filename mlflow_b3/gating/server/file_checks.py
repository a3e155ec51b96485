"""Checks of the routes that write, remove or resolve files: a guarded version's files stay unchanged.

A write is judged by the path that MLflow finally writes to, whichever run, model or route the request
names. A guarded alias or stage is resolved only while the files are those that were audited.
"""

import os
import posixpath
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync
from mlflow.exceptions import MlflowException
from mlflow.server import handlers
from mlflow.utils.uri import validate_path_is_safe

from mlflow_b3.errors import EvidenceError
from mlflow_b3.evidence.document import trusted_keys
from mlflow_b3.gating.archive import find_run, named_audit, open_evidence, signed_audits
from mlflow_b3.gating.checks import changed_files, measured
from mlflow_b3.gating.server.gate import LOGGER, Gate, Request, closed, unknown_route
from mlflow_b3.gating.server.record_checks import (
    check_new_job,
    check_record_files,
    names_record,
)
from mlflow_b3.gating.server.registry_checks import After, withdraw
from mlflow_b3.gating.server.routes import SAFE_METHODS
from mlflow_b3.gating.server.stores import (
    Guarded,
    below,
    exists,
    local_folder,
    places_of,
    served_location,
)
from mlflow_b3.refit.loading import ModelSource, resolve_source
from mlflow_b3.tracking.audits import runs_of

#: Part of the path of the routes with which clients write and remove files.
FILES = "/mlflow-artifacts/artifacts/"
#: MLflow first writes a file under a name with this prefix, and never lists such files.
UPLOADING = ".artifact.uploading."
#: A file that changed less than this many seconds ago may change again without a new timestamp.
SETTLED = 2.0


def check_files(gate: Gate, request: Request) -> After | None:
    """Keep the files of a guarded version from being replaced."""
    return _check_write(gate, request, *_served(_path_in_request()))


def check_files_in_parts(gate: Gate, request: Request) -> After | None:
    """Keep the files of a guarded version from being replaced by an upload in parts."""
    from flask import request as asked
    from mlflow.protos.mlflow_artifacts_pb2 import CompleteMultipartUpload, CreateMultipartUpload

    completes = (asked.endpoint or "").startswith("_complete")
    message = CompleteMultipartUpload() if completes else CreateMultipartUpload()
    name, folder = handlers._get_request_message(message).path, _path_in_request()
    # MLflow's stores use the last part of the name; other stores may use all of it.
    paths = [posixpath.join(folder, part) for part in (posixpath.basename(name), name.lstrip("/"))]
    return _check_write(gate, request, *_served(*paths))


def check_removal_of_files(gate: Gate, request: Request) -> After | None:
    """Keep the files of a guarded version, and the folders above them, from being removed."""
    return _check_write(gate, request, *_served(_path_in_request()), removes=True)


def check_files_by_address(gate: Gate, request: Request) -> After | None:
    """Refuse upload addresses for the files of a guarded version."""
    from mlflow.protos.service_pb2 import CreatePresignedUploadUrl

    asked = handlers._get_request_message(CreatePresignedUploadUrl())
    if asked.model_id:
        model = exists(gate.stores.get_logged_model, asked.model_id)
        place = None if model is None else model.artifact_location
    else:
        run = _run(gate, asked.run_id)
        place = None if run is None else run.info.artifact_uri
    if place is None:
        return None
    return _check_write(gate, request, asked.path, _locations(place, asked.path))


def check_files_of_run(gate: Gate, request: Request) -> After | None:
    """Keep a run from writing into the folder of a guarded version."""
    from flask import request as asked

    path = asked.args.get("path", "")
    run = _run(gate, asked.args.get("run_uuid", ""))
    if run is None:
        return None
    locations = _locations(run.info.artifact_uri, path)
    # Where artifacts are proxied, MLflow does not write to the run's own location.
    served = posixpath.join(run.info.experiment_id, run.info.run_id, "artifacts", path)
    locations += _served(served)[1]
    return _check_write(gate, request, path, locations)


def check_files_of_new_run(gate: Gate, request: Request) -> After | None:
    """Keep the server from creating a run, with files, in the folder of a guarded version."""
    experiment = handlers._get_request_json().get("experiment_id")
    found = exists(gate.stores.get_experiment, str(experiment)) if experiment else None
    if found is None:
        return None
    location = below(found.artifact_location, "new-run")
    return _check_write(gate, request, found.artifact_location, [location])


def _run(gate: Gate, run_id: str) -> Any:
    return exists(gate.stores.get_run, run_id) if run_id else None


def _path_in_request() -> str:
    from flask import request as asked

    return str((asked.view_args or {}).get("artifact_path", ""))


def _served(path: str, *more: str) -> tuple[str, list[str]]:
    """Return a path of the artifact routes, and the locations that MLflow may write to for it."""
    found = [served_location(each) for each in (path, *more)]
    return path, [location for location in found if location is not None]


def _locations(folder: str, path: str) -> list[str]:
    """Return the locations that MLflow may write to for a path in the folder of a run or model."""
    try:
        return [below(folder, str(validate_path_is_safe(path))), below(folder, path)]
    except (MlflowException, ValueError):
        return [below(folder, path)]


def _places(locations: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*map(places_of, locations))


def _check_write(
    gate: Gate, request: Request, path: str, locations: list[str], *, removes: bool = False
) -> After | None:
    """Refuse to change the files of a guarded version or of a record; check again afterwards."""
    if not locations:
        return None  # MLflow refuses the path
    places = _places(locations)
    for guarded in gate.guards.overlapping(places):
        raise _refuse_change(gate, request, path, guarded)
    check_record_files(gate, request, path, places, removes=removes)
    return lambda: _judge_again(gate, request, path, gate.guards.overlapping(places))


def _refuse_change(gate: Gate, request: Request, path: str, guarded: Guarded) -> MlflowException:
    text = (
        f"{path!r} belongs to {guarded.name!r} version {guarded.number}, which has "
        f"{guarded.words}, so its files must not change. Log the model again, and audit that one."
    )
    return gate.refuse(request, "files", path, text, model=guarded.name, version=guarded.number)


def _judge_again(gate: Gate, request: Request, path: str, promoted: list[Guarded]) -> None:
    """Judge versions that were promoted while files were written, and demote those that fail."""
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


# --- Resolving a guarded alias or stage

Fingerprint = frozenset[tuple[str, int, int, int, int]]


@dataclass
class Resolutions:
    """Checks that a guarded alias or stage leads to files that were audited.

    Each process confirms the digests of a version's files once. After that, a fingerprint of the
    files, which needs no reading, shows whether they must be confirmed again.
    """

    gate: Gate
    _confirmed: dict[tuple[str, str, str], Fingerprint] = field(default_factory=dict)

    def check(self, request: Request, name: str, number: str) -> None:
        """Refuse to resolve a guarded version whose files are not those that were audited."""
        guarded = self.gate.guards.find(name, number)
        folder = None if guarded is None else local_folder(guarded.location)
        if guarded is None or folder is None:
            return
        key = guarded.name, guarded.number, folder
        before = fingerprint(folder)
        if before is not None and self._confirmed.get(key) == before:
            return
        self._confirmed.pop(key, None)
        changes = self._changes(guarded)
        if changes:
            text = (
                f"{guarded.name!r} version {guarded.number}, which has {guarded.words}, cannot be loaded: "
                f"its files are not those that were audited ({'; '.join(changes[:5])}). Restore the "
                "files, or remove the alias or stage and promote a version that passes."
            )
            raise self.gate.refuse(request, "resolution", folder, text, model=name, version=number)
        if before is not None and before == fingerprint(folder) and _is_settled(before):
            self._confirmed[key] = before

    def _changes(self, guarded: Guarded) -> list[str]:
        """Return what has changed since the audit; nothing if no evidence can be read."""
        archive = self.gate.archive
        try:
            version = archive.client.get_model_version(guarded.name, guarded.number)
            source = resolve_source(archive.client, f"models:/{guarded.name}/{guarded.number}")
            audited = audited_files(self.gate, version, source)
        except EvidenceError as error:
            LOGGER.warning(
                "mlflow-b3 gate: the files of %r version %s were not compared with its evidence: %s",
                guarded.name,
                guarded.number,
                error,
            )
            return []
        if audited is None:
            return []
        try:
            return list(changed_files(audited, archive.digest(source)))
        except EvidenceError as error:
            return [str(error)]


def audited_files(gate: Gate, version: Any, source: ModelSource) -> dict[str, str] | None:
    """Return the digests of a version's files in its evidence; None if it was never audited.

    Whether the evidence passes the policy today does not matter here.
    """
    archive, trusted = gate.archive, trusted_keys(gate.policy.trusted_keys)
    runs = runs_of(archive.client, source.model_id or source.source)
    signed = signed_audits(archive, runs, trusted)
    if signed:
        newest = max(signed.values(), key=lambda opened: measured(opened.evidence))
        return dict(newest.evidence.model_files)
    audit = named_audit(archive.client, version, source)
    if audit is None:
        return None
    if gate.policy.signed:
        raise EvidenceError("its evidence is not signed")
    opened = open_evidence(archive, find_run(archive.client, audit), (), trusted)
    return dict(opened.evidence.model_files)


def fingerprint(folder: str) -> Fingerprint | None:
    """Return name, size, times and inode of all files in a folder; None if it cannot be read.

    Unlike the time of modification, the time of an inode's last change cannot be set by a program.
    """
    found = set()
    waiting = [folder]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(UPLOADING):
                        continue
                    info = entry.stat()  # follows links, as readers do
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(entry.path)
                    else:
                        times = info.st_mtime_ns, info.st_ctime_ns
                        found.add((entry.path, info.st_size, *times, info.st_ino))
    except OSError:
        return None
    return frozenset(found)


def _is_settled(files: Fingerprint) -> bool:
    newest = max((changed for _, _, _, changed, _ in files), default=0)
    return newest / 1e9 < time.time() - SETTLED


Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


#: Where jobs are started.
_JOBS = re.compile(r"/3\.0/jobs/?$")


class NativeRoutes:
    """Checks the routes that FastAPI serves itself and Flask never sees: files, jobs, unknown routes.

    It is plain ASGI, and costs any other request only a few comparisons.

    Parameters
    ----------
    app : ASGI application
    gate : Gate
    methods : frozenset of str
        The methods with which FastAPI itself accepts files.
    unknown : tuple of str
        Paths, with {parameters}, that FastAPI serves and that `routes` does not list.
    """

    def __init__(
        self, app: Any, gate: Gate, methods: frozenset[str], unknown: tuple[str, ...] = ()
    ) -> None:
        self.app, self.gate, self.methods = app, gate, methods
        patterns = [re.sub(r"\\{.*?\\}", ".+", re.escape(path)) for path in unknown]
        self.unknown = re.compile("|".join(patterns)) if patterns else None

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Check a request if necessary, and pass it on."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self.app(scope, receive, send)
        elif scope["method"] in self.methods and FILES in scope["path"]:
            await self._files(scope, receive, send)
        elif _JOBS.search(scope["path"]):
            await self._job(scope, receive, send)
        elif self.unknown is not None and self.unknown.search(scope["path"]):
            await _send(send, unknown_route(self.gate, _request_of(scope)))
        else:
            await self.app(scope, receive, send)

    async def _job(self, scope: Message, receive: Any, send: Send) -> None:
        """Check a job before it is started; its parameters are in the body of the request."""
        request, body, more = _request_of(scope), b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            await run_sync(closed, self.gate, request, check_new_job, self.gate, request, body)
        except MlflowException as error:
            await _send(send, error)
            return
        read = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(read, None) or await receive()

        await self.app(scope, receive_again, send)

    async def _files(self, scope: Message, receive: Any, send: Send) -> None:
        """Check an upload before it begins, and once it is complete."""
        request, path = _request_of(scope), str(scope["path"]).partition(FILES)[2]
        check = _Upload(self.gate, request, path, removes=scope["method"] == "DELETE")
        try:
            if not check.is_known_to_pass():
                await run_sync(closed, self.gate, request, check.before)
        except MlflowException as error:
            await _send(send, error)
            return
        answer: list[Message] = []
        refused = None
        try:
            await self.app(scope, receive, _collect_into(answer))
        finally:  # also if the client closed the connection, or it could avoid the check that way
            if not check.is_known_to_pass(again=True):
                with CancelScope(shield=True):
                    refused = await run_sync(_refused, self.gate, request, check.after)
        if refused is not None:
            await _send(send, refused)
            return
        for message in answer:
            await send(message)


class _Upload:
    """The checks before and after one request that writes or removes files.

    Most uploads touch nothing that is guarded, and often this is known without waiting. Such a request
    need not move to another thread, which would take longer than the check.
    """

    def __init__(self, gate: Gate, request: Request, path: str, *, removes: bool) -> None:
        self.gate, self.request, self.path, self.removes = gate, request, path, removes
        self._places: frozenset[str] | None = None

    def is_known_to_pass(self, *, again: bool = False) -> bool:
        """Whether it is known without waiting that the request is allowed."""
        try:
            if self._places is None:
                self._places = _places(_served(self.path)[1])
            if not again and (self.removes or names_record(self._places)):
                return False
            return self.gate.guards.overlapping_at_once(self._places) == []
        except Exception:  # the check itself reports it
            return False

    def before(self) -> None:
        """Raise if the request is refused."""
        path, locations = _served(self.path)
        _check_write(self.gate, self.request, path, locations, removes=self.removes)

    def after(self) -> None:
        """Raise if a version was promoted meanwhile and no longer passes."""
        places = self._places or _places(_served(self.path)[1])
        found = self.gate.guards.overlapping(places) if places else []
        _judge_again(self.gate, self.request, self.path, found)


def _refused(gate: Gate, request: Request, after: After) -> MlflowException | None:
    try:
        closed(gate, request, after)
    except MlflowException as error:
        return error
    return None


def _collect_into(answer: list[Message]) -> Send:
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
