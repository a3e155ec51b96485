"""Find the audits of a registered version in MLflow, and the one that a gate relies on."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlsplit

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import EvidenceError
from mlflow_b3.evidence.document import (
    ENVELOPE,
    FILE,
    LARGEST,
    Evidence,
    SignedEvidence,
    digest,
    open_sealed,
    open_token,
)
from mlflow_b3.evidence.verdict import SKEW
from mlflow_b3.gating.checks import (
    CONFIRMED,
    RELIED_ON,
    SIGNED,
    Record,
    attested,
    changed_model,
    issued,
    measured,
    model_files,
    require,
    require_active,
)
from mlflow_b3.refit.loading import (
    ModelSource,
    Opener,
    digest_model,
    open_location,
    read_artifact,
    resolve_source,
)
from mlflow_b3.tracking.audits import MODEL_ID, NO_EVIDENCE, audits_among, runs_of
from mlflow_b3.tracking.metrics_and_files import FOLDER

#: Further audits of a model are counted but not read.
MOST_AUDITS = 50


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Runs and artifacts in MLflow, as a gate reads them.

    Attributes
    ----------
    client : MlflowClient
    opener : callable
        Returns the artifact repository of a location. A server that proxies artifacts opens its own.
    """

    client: Any
    opener: Opener = open_location

    def digest(self, source: ModelSource) -> dict[str, str]:
        """Return the current digests of a model's files."""
        return digest_model(source.location, self.opener)

    def read(self, run: Any, name: str, largest: int) -> bytes:
        """Return a file of an audit's run."""
        return read_artifact(run.info.artifact_uri, f"{FOLDER}/{name}", largest, self.opener)

    def at_once(self) -> "Archive":
        """Return an archive for one decision, which reads a model's files only once."""
        return _CachedArchive(client=self.client, opener=self.opener)


@dataclass(frozen=True, kw_only=True)
class _CachedArchive(Archive):
    _digests: dict[str, dict[str, str]] = field(default_factory=dict)

    def digest(self, source: ModelSource) -> dict[str, str]:
        """Return the digests of a model's files at the first call."""
        if source.location not in self._digests:
            self._digests[source.location] = super().digest(source)
        return self._digests[source.location]

    def at_once(self) -> Self:
        """Return the archive itself."""
        return self


@dataclass(frozen=True, kw_only=True)
class Audit:
    """An audit with verified evidence: it belongs to this model and is unchanged.

    Attributes
    ----------
    evidence : Evidence
    signed_by : str or None
        The trusted key that signed it; None without a signature.
    report : AuditReport
    tried : int
        Number of audits of the model that count: the signed ones or, if none is signed, all that
        MLflow knows of, failed ones included.
    unsigned : int
        Number of further, unsigned audits.
    """

    evidence: Evidence
    signed_by: str | None
    report: AuditReport
    tried: int
    unsigned: int = 0


def find_audit_of(
    archive: Archive, version: Any, trusted: tuple[str, ...], *, signed: bool = True
) -> Audit:
    """Return the newest verified audit of a registered version.

    Evidence that counts must be readable, however old it is. Otherwise one could get rid of a failed
    audit by making it unreadable. Runs must still show what the evidence says, with one exception:
    the run of an older signed audit. Its signed evidence says everything that counts, that there was
    an audit and when, so that a change of its run hides nothing.

    Parameters
    ----------
    archive : Archive
    version : ModelVersion
    trusted : tuple of str
        Public keys.
    signed : bool
        If there are signed audits, only they count: anybody can forge the others.

    Raises
    ------
    EvidenceError
        With the reason, if the evidence cannot be relied on.
    """
    archive, client = archive.at_once(), archive.client
    source = resolve_source(client, f"models:/{version.name}/{version.version}")
    runs = runs_of(client, source.model_id or source.source)
    tried = audits_among(runs)
    counted = signed_audits(archive, runs, trusted)
    only_signed = signed and bool(counted)
    if not only_signed:
        unsigned = [run for run in audits_with_evidence(tried) if run.info.run_id not in counted]
        for run in unsigned[:MOST_AUDITS]:
            with _name_run(run):
                counted[run.info.run_id] = open_evidence(archive, run, (), trusted)
    confirmed: list[tuple[SignedEvidence, Record]] = []
    others: list[Record] = []
    for run_id, opened in counted.items():
        with _name_run(run_id):
            run = find_run(client, run_id, deleted=True)  # deleting a run must not hide its audit
            record = Record(archive=archive, run=run, source=source, evidence=opened.evidence)
            require(record, SIGNED if opened.signed_by else CONFIRMED)
        if changed_model(record):  # an audit of earlier files of the model
            others.append(record)
        else:
            confirmed.append((opened, record))
    if not confirmed:
        for record in others[-1:]:
            require(record, [model_files])
        raise EvidenceError("there is no audit of it")
    newest, record = max(confirmed, key=_audit_time)
    with _name_run(record.run):
        require(record, CONFIRMED)
    known = set(counted) if only_signed else None
    record = replace(record, version=version, counted=known)
    require(record, RELIED_ON)
    return Audit(
        evidence=newest.evidence,
        signed_by=newest.signed_by,
        report=record.report,
        tried=len(counted) if only_signed else len(tried),
        unsigned=len({run.info.run_id for run in tried} - set(counted)) if only_signed else 0,
    )


def _audit_time(found: tuple[SignedEvidence, Record]) -> tuple[datetime, datetime]:
    evidence = found[0].evidence
    return measured(evidence), issued(evidence)


@contextmanager
def _name_run(run: Any) -> Iterator[None]:
    """Add the run of the audit to errors."""
    name = run if isinstance(run, str) else run.info.run_id
    try:
        yield
    except EvidenceError as error:
        raise EvidenceError(f"the audit of run {name} cannot be relied on: {error}") from error


def signed_audits(
    archive: Archive, runs: Iterable[Any], trusted: tuple[str, ...]
) -> dict[str, SignedEvidence]:
    """Return the signed evidence among the runs of a model, by the run of its audit.

    Parameters
    ----------
    archive : Archive
    runs : iterable of Run
        All runs with the model as their subject.
    trusted : tuple of str
        Public keys. Records not signed with one of them are ignored: anybody can forge them.

    Raises
    ------
    EvidenceError
        If a signed record was removed or changed: it may have belonged to a failed audit.
    """
    known = list(runs)
    found: dict[str, SignedEvidence] = {}
    for run in known:
        token = open_token(run.data.tags.get("b3.attestation", ""), trusted)
        own = {"run": run.info.run_id, "subject": run.data.tags.get("b3.subject")}
        if token is None or {name: token[name] for name in own} != own:
            continue
        audit_run_id = token["audit"]
        with _name_run(audit_run_id):
            document = archive.read(run, ENVELOPE, LARGEST)
            if digest(document) != token["envelope"]:
                raise EvidenceError("its signed evidence was changed after it was written")
            opened = open_sealed(document, trusted)
            if opened.evidence.audit_run_id != audit_run_id:
                raise EvidenceError(f"it belongs to run {opened.evidence.audit_run_id}")
        before = found.get(audit_run_id)
        if before is None or attested(opened) > attested(before):
            found[audit_run_id] = opened
    stores: set[tuple[str, str]] | None = None
    for run in audits_with_evidence(known) if trusted else ():
        if run.info.run_id in found:
            continue
        stores = stores or _stores_of_model(archive, run.data.tags["b3.subject"])
        if _store_of(run.info.artifact_uri) in stores:
            opened_once = _signed_by_an_earlier_version(archive, run, trusted)
            if opened_once is not None:
                found[run.info.run_id] = opened_once
    return found


def _stores_of_model(archive: Archive, subject: str) -> set[tuple[str, str]]:
    """Return the artifact stores in which a model and the run that trained it have their files.

    Earlier versions wrote audits there. Nothing is read from other stores without a signature: anybody
    can create an experiment with an address that cannot be read, or that answers slowly.
    """
    source = resolve_source(archive.client, _uri_of(subject))
    locations = [source.location]
    if source.run_id is not None:
        locations.append(archive.client.get_run(source.run_id).info.artifact_uri)
    return set(map(_store_of, locations))


def _uri_of(subject: str) -> str:
    return f"models:/{subject}" if MODEL_ID.fullmatch(subject) else subject


def _store_of(location: str) -> tuple[str, str]:
    """Return the scheme and host of an artifact location; all local folders are one store."""
    parts = urlsplit(location)
    local = location.startswith("/") or len(parts.scheme) < 2 or parts.scheme.lower() == "file"
    return ("file", "") if local else (parts.scheme.lower(), parts.netloc.lower())


def _signed_by_an_earlier_version(
    archive: Archive, run: Any, trusted: tuple[str, ...]
) -> SignedEvidence | None:
    """Return evidence that is signed in the audit's own run, or None.

    If the store does not answer, the evidence may be signed, so that the error is raised.
    """
    from mlflow.exceptions import MlflowException

    try:
        content = archive.read(run, FILE, LARGEST)
    except EvidenceError as error:
        if error.__cause__ is None or _is_final(error.__cause__):
            return None
        raise EvidenceError(
            f"the audit of run {run.info.run_id} could not be read: {error}"
        ) from error
    except (MlflowException, OSError) as error:
        if _is_final(error):
            return None
        raise
    try:
        opened = open_sealed(content, trusted)
    except EvidenceError:
        return None
    copied = opened.evidence.audit_run_id != run.info.run_id
    return None if opened.signed_by is None or copied else opened


def _is_final(error: BaseException) -> bool:
    """Whether a store has answered that there is no such file, rather than failed to answer."""
    from mlflow.exceptions import MlflowException
    from requests import HTTPError

    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
    elif isinstance(error, HTTPError) and error.response is not None:
        status = error.response.status_code
    else:
        return False
    return 400 <= status < 500 and status not in (408, 429)


def open_evidence(
    archive: Archive, run: Any, runs: Iterable[Any], trusted: tuple[str, ...]
) -> SignedEvidence:
    """Return the signed evidence of an audit's run, or else the unsigned evidence.

    Parameters
    ----------
    archive : Archive
    run : Run
        The run of the audit.
    runs : iterable of Run
        Runs that may include its attestation.
    trusted : tuple of str
    """
    own = [each for each in runs if each.data.tags.get("b3.attests") == run.info.run_id]
    signed = signed_audits(archive, own, trusted).get(run.info.run_id)
    return signed or open_sealed(archive.read(run, FILE, LARGEST), trusted)


def is_audited(
    archive: Archive, version: Any, trusted: tuple[str, ...], *, signed: bool = True
) -> bool:
    """Whether a registered version has an audit that counts, even one that cannot be relied on.

    Where signatures are required, an unsigned audit does not count: anybody can forge it.
    """
    source = resolve_source(archive.client, f"models:/{version.name}/{version.version}")
    runs = runs_of(archive.client, source.model_id or source.source)
    try:
        if signed_audits(archive, runs, trusted):
            return True
    except EvidenceError:
        return True
    return not signed and ("b3.audit_run_id" in version.tags or bool(audits_with_evidence(runs)))


def confirm_audit(
    archive: Archive, uri: str, audit_run_id: str, trusted: tuple[str, ...]
) -> SignedEvidence:
    """Return the evidence of one audit of a model or version, verified as for a verdict."""
    source = resolve_source(archive.client, uri)
    run = find_run(archive.client, audit_run_id)
    runs = runs_of(archive.client, source.model_id or source.source)
    opened = open_evidence(archive, run, runs, trusted)
    record = Record(archive=archive, run=run, source=source, evidence=opened.evidence)
    require(record, (*CONFIRMED, model_files))
    return opened


def _claims_evidence(run: Any) -> bool:
    """Whether a run is a complete audit of the model itself; see `recording`.

    Runs that start in the future are ignored. Otherwise one such run could block a model forever.
    """
    tags = run.data.tags
    future = run.info.start_time / 1000 > time.time() + SKEW.total_seconds()
    return "b3.audit_run_id" in tags and tags.get("b3.evidence") != NO_EVIDENCE and not future


def audits_with_evidence(runs: Iterable[Any]) -> list[Any]:
    """Return the runs that are complete audits of the model itself."""
    return [run for run in audits_among(runs) if _claims_evidence(run)]


def named_audit(client: Any, version: Any, source: ModelSource) -> str | None:
    """Return the run of the audit that the version's tags name, or else of the newest audit."""
    found = version.tags.get("b3.audit_run_id")
    if found is None:
        complete = audits_with_evidence(runs_of(client, source.model_id or source.source))
        found = next((run.info.run_id for run in complete), None)
    return None if found is None else str(found)


def find_run(client: Any, run_id: str, *, deleted: bool = False) -> Any:
    """Return a run; raise an `EvidenceError` if it is missing, or deleted unless that is allowed."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise EvidenceError(f"the run {run_id!r} was not found") from error
    if not deleted:
        require_active(run)
    return run
