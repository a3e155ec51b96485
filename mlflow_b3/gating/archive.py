"""Finds the evidence of a registered version in MLflow, and checks it against what is there now."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import EvidenceError
from mlflow_b3.estimation.influence import Influence
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
from mlflow_b3.refit.loading import (
    ModelSource,
    Opener,
    digest_model,
    digest_of,
    open_location,
    read_artifact,
    resolve_source,
)
from mlflow_b3.tracking.audits import NO_EVIDENCE, audits_among, runs_of
from mlflow_b3.tracking.showing import VERDICT
from mlflow_b3.tracking.writing import DATASET_DIGEST, FOLDER, curves_of

LARGEST_REPORT = 50_000_000
#: Audits of one model beyond these are counted, but not looked at.
MOST_AUDITS = 50


@dataclass(frozen=True, kw_only=True)
class Archive:
    """MLflow as a gate reads it.

    Attributes
    ----------
    client : MlflowClient
    opener : callable
        Gives the artifact repository of a location; a server that serves artifacts has them itself.
    """

    client: Any
    opener: Opener = open_location

    def digest(self, source: ModelSource) -> dict[str, str]:
        """Return the digests of a model's files as they are now."""
        return digest_model(source.location, self.opener)

    def read(self, run: Any, name: str, largest: int) -> bytes:
        """Return one of the files that an audit has left in its run."""
        return read_artifact(run.info.artifact_uri, f"{FOLDER}/{name}", largest, self.opener)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """An audit whose evidence was confirmed: of this model, and as it was written.

    Attributes
    ----------
    evidence : Evidence
    signed_by : str or None
        The trusted key that signed it; None without a signature.
    report : AuditReport
    tried : int
        How many audits of the model count: all signed ones, or, where none is, all that MLflow knows
        of, failed ones included.
    unsigned : int
        How many more MLflow knows of that nobody has signed.
    """

    evidence: Evidence
    signed_by: str | None
    report: AuditReport
    tried: int
    unsigned: int = 0


def find_audit_of(
    archive: Archive, version: Any, trusted: tuple[str, ...], *, signed: bool = True
) -> Audit:
    """Return the newest confirmed audit of a registered version.

    Of the audits that count, each must be readable and unchanged, however old it is: who could make
    a failed audit unreadable must not win by it.

    Parameters
    ----------
    archive : Archive
    version : ModelVersion
    trusted : tuple of str
        Public keys.
    signed : bool
        Only signed audits count, if there is one: all others can be made up by anybody.

    Raises
    ------
    EvidenceError
        Whatever keeps the evidence from being relied on, in words.
    """
    client = archive.client
    source = resolve_source(client, _uri(version))
    runs = runs_of(client, source.model_id or source.source)
    tried = audits_among(runs)
    counted = signed_audits(archive, runs, trusted)
    only_signed = signed and bool(counted)
    if not only_signed:
        unsigned = [run for run in audits_with_evidence(tried) if run.info.run_id not in counted]
        for run in unsigned[:MOST_AUDITS]:
            with _named(run):
                counted[run.info.run_id] = open_evidence(archive, run, (), trusted)
    present = cache(lambda: archive.digest(source))
    confirmed: list[SignedEvidence] = []
    other_files = None
    for run_id, opened in counted.items():
        with _named(run_id):
            run = find_run(client, run_id, deleted=True)  # deleting hides nothing
            _check_record(run, opened.evidence, source)
        changes = list(changed_files(opened.evidence.model_files, present()))
        if changes:  # of files that the model had then, which says nothing about those of today
            other_files = EvidenceError(
                f"the model is not the one that was audited: {'; '.join(changes[:5])}"
            )
        else:
            confirmed.append(opened)
    if not confirmed:
        raise other_files or EvidenceError("there is no audit of it")
    newest = max(confirmed, key=lambda found: (measured(found.evidence), issued(found.evidence)))
    check_version_tags(version, newest.evidence, known=set(counted) if only_signed else None)
    run = find_run(client, newest.evidence.audit_run_id)
    report = read_report(archive, run, newest.evidence)
    _refuse_changes(run, changed_curves(run, report))
    return Audit(
        evidence=newest.evidence,
        signed_by=newest.signed_by,
        report=report,
        tried=len(counted) if only_signed else len(tried),
        unsigned=len({run.info.run_id for run in tried} - set(counted)) if only_signed else 0,
    )


@contextmanager
def _named(run: Any) -> Iterator[None]:
    """Name the audit that an error is about."""
    name = run if isinstance(run, str) else run.info.run_id
    try:
        yield
    except EvidenceError as error:
        raise EvidenceError(f"the audit of run {name} cannot be relied on: {error}") from error


def signed_audits(
    archive: Archive, runs: Iterable[Any], trusted: tuple[str, ...]
) -> dict[str, SignedEvidence]:
    """Return the signed evidence among the runs of a model, by the run of the audit that it is of.

    Parameters
    ----------
    archive : Archive
    runs : iterable of Run
        All that say what they are about the model.
    trusted : tuple of str
        Public keys. Records that none of them has signed are passed over: anybody can make them up.

    Raises
    ------
    EvidenceError
        For a signed record that was removed or changed: it may have been one that fails.
    """
    known = list(runs)
    found: dict[str, SignedEvidence] = {}
    for run in known:
        token = open_token(run.data.tags.get("b3.attestation", ""), trusted)
        own = {"run": run.info.run_id, "subject": run.data.tags.get("b3.subject")}
        if token is None or {name: token[name] for name in own} != own:
            continue
        audit_run_id = token["audit"]
        with _named(audit_run_id):
            document = archive.read(run, ENVELOPE, LARGEST)
            if digest(document) != token["envelope"]:
                raise EvidenceError("its signed evidence was changed after it was written")
            opened = open_sealed(document, trusted)
            if opened.evidence.audit_run_id != audit_run_id:
                raise EvidenceError(f"it is that of run {opened.evidence.audit_run_id}")
        before = found.get(audit_run_id)
        if before is None or attested(opened) > attested(before):
            found[audit_run_id] = opened
    for run in audits_with_evidence(known):
        if run.info.run_id not in found:
            opened_once = _signed_by_an_earlier_version(archive, run, trusted)
            if opened_once is not None:
                found[run.info.run_id] = opened_once
    return found


def _signed_by_an_earlier_version(
    archive: Archive, run: Any, trusted: tuple[str, ...]
) -> SignedEvidence | None:
    """Return evidence that was signed in the audit's own run; None where there is none."""
    if not trusted:
        return None
    try:
        opened = open_sealed(archive.read(run, FILE, LARGEST), trusted)
    except EvidenceError:
        return None
    copied = opened.evidence.audit_run_id != run.info.run_id
    return None if opened.signed_by is None or copied else opened


def open_evidence(
    archive: Archive, run: Any, runs: Iterable[Any], trusted: tuple[str, ...]
) -> SignedEvidence:
    """Return the evidence of an audit's run: signed, or else as the audit has left it.

    Parameters
    ----------
    archive : Archive
    run : Run
        That of the audit.
    runs : iterable of Run
        Among which its attestation may be.
    trusted : tuple of str
    """
    own = [each for each in runs if each.data.tags.get("b3.attests") == run.info.run_id]
    signed = signed_audits(archive, own, trusted).get(run.info.run_id)
    return signed or open_sealed(archive.read(run, FILE, LARGEST), trusted)


def confirm_audit(
    archive: Archive, uri: str, audit_run_id: str, trusted: tuple[str, ...]
) -> SignedEvidence:
    """Return the evidence of one audit of a model or registered version, confirmed as for a verdict."""
    source = resolve_source(archive.client, uri)
    run = find_run(archive.client, audit_run_id)
    runs = runs_of(archive.client, source.model_id or source.source)
    opened = open_evidence(archive, run, runs, trusted)
    _check_record(run, opened.evidence, source)
    # the model's files, which may be large, come last: who has no evidence cannot make a server read
    changes = list(changed_files(opened.evidence.model_files, archive.digest(source)))
    if changes:
        raise EvidenceError(f"the model is not the one that was audited: {'; '.join(changes[:5])}")
    return opened


def _check_record(run: Any, evidence: Evidence, source: ModelSource) -> None:
    """Refuse evidence that is not of this model, or that the audit's run contradicts."""
    check_subject(run, evidence, source)
    table = [] if names_table(run, evidence) else ["the digest of the audited table"]
    tags = changed_tags(run.data.tags, evidence)
    _refuse_changes(run, [*changed_metrics(run, evidence), *tags, *table])
    measured(evidence)
    issued(evidence)


def _uri(version: Any) -> str:
    return f"models:/{version.name}/{version.version}"


def _claims_evidence(run: Any) -> bool:
    """Whether an audit was written to the end, on the model itself; see `recording`.

    A run that begins in the future is none, or whoever makes one could block a model for good.
    """
    tags = run.data.tags
    future = run.info.start_time / 1000 > time.time() + SKEW.total_seconds()
    return "b3.audit_run_id" in tags and tags.get("b3.evidence") != NO_EVIDENCE and not future


def audits_with_evidence(runs: Iterable[Any]) -> list[Any]:
    """Return those of a model's runs that are complete audits of the model itself."""
    return [run for run in audits_among(runs) if _claims_evidence(run)]


def named_audit(client: Any, version: Any, source: ModelSource) -> str | None:
    """Return the run of the audit that the version's tags name, or else of the newest one."""
    found = version.tags.get("b3.audit_run_id")
    if found is None:
        complete = audits_with_evidence(runs_of(client, source.model_id or source.source))
        found = next((run.info.run_id for run in complete), None)
    return None if found is None else str(found)


def find_run(client: Any, run_id: str, *, deleted: bool = False) -> Any:
    """Return a run that is there, and not deleted unless that is allowed."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise EvidenceError(f"the run {run_id!r} was not found") from error
    if run.info.lifecycle_stage != "active" and not deleted:
        raise EvidenceError(f"the audit's run {run_id} is deleted")
    return run


def check_subject(run: Any, evidence: Evidence, source: ModelSource) -> None:
    """Refuse evidence that is that of another run or of another model."""
    if evidence.audit_run_id != run.info.run_id:
        raise EvidenceError(
            f"the evidence in run {run.info.run_id} is that of run {evidence.audit_run_id}"
        )
    # without a LoggedModel equal files are the same model, whichever way they are named
    if evidence.model_id != source.model_id:
        raise EvidenceError(
            f"the evidence is of the model {evidence.model_id}, not of {source.model_id}"
        )
    if evidence.model_digest != digest_of(evidence.model_files):
        raise EvidenceError(
            "the digests of the model's files in the evidence contradict each other"
        )


def changed_files(audited: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """Yield what has become of a model's files since they were audited."""
    for path in sorted(audited.keys() | present.keys()):
        if path not in present:
            yield f"{path!r} is gone"
        elif path not in audited:
            yield f"{path!r} was added"
        elif audited[path] != present[path]:
            yield f"{path!r} was changed"


def changed_metrics(run: Any, evidence: Evidence) -> Iterator[str]:
    """Yield the metrics of an audit's run that are not its results."""
    shown = {name: value for name, value in run.data.metrics.items() if name.startswith("b3/")}
    for name in sorted(shown.keys() | evidence.results.keys()):
        if shown.get(name) != evidence.results.get(name):
            yield name


def changed_curves(run: Any, report: AuditReport) -> Iterator[str]:
    """Yield the curves of an audit's run that end elsewhere than those of the report."""
    for name, points in curves_of(report).items():
        if points and run.data.metrics.get(name) != max(points)[1]:
            yield name


def changed_tags(tags: Mapping[str, str], evidence: Evidence) -> Iterator[str]:
    """Yield the tags that say something else than the evidence; not all places have all of them."""
    for name, value in evidence.tags.items():
        if tags.get(name, value) != value:
            yield name


def names_table(run: Any, evidence: Evidence) -> bool:
    """Whether the audited table, and no other, is the input of an audit's run."""
    digests = {entry.dataset.digest for entry in run.inputs.dataset_inputs}
    return digests == {evidence.data_digest[:DATASET_DIGEST]}


def _refuse_changes(run: Any, changed: Iterable[str]) -> None:
    names = list(changed)
    if names:
        raise EvidenceError(
            f"the audit's run {run.info.run_id} was changed after it was written: {', '.join(names)}"
        )


def check_version_tags(
    version: Any, evidence: Evidence, known: Collection[str] | None = None
) -> None:
    """Refuse a version whose tags say something else than the evidence.

    Parameters
    ----------
    version : ModelVersion
    evidence : Evidence
        That of the newest audit.
    known : collection of str, optional
        Runs of the audits that count. Tags of another one are not about any that does.
    """
    tags = version.tags
    named = tags.get("b3.audit_run_id")
    if named is not None and known is not None and named not in known:
        return
    if named not in (None, evidence.audit_run_id):
        raise EvidenceError(
            f"the version's tags are those of the audit of run {named}, but there is a later one, of "
            f"run {evidence.audit_run_id}"
        )
    wrong = [
        name
        for name, value in tags.items()
        if name.startswith("b3.") and name != VERDICT and evidence.tags.get(name) != value
    ]
    if wrong:
        raise EvidenceError(
            f"tags of the version are not what the audit has found: {', '.join(sorted(wrong))}"
        )


def read_report(archive: Archive, run: Any, evidence: Evidence) -> AuditReport:
    """Return the report of an audit from its files, which must be as it wrote them."""
    content = _confirmed_file(archive, run, evidence, "audit.json")
    try:
        report = AuditReport.from_json(content.decode("utf-8"))
        if "influence.csv" in evidence.files:
            table = _confirmed_file(archive, run, evidence, "influence.csv").decode("utf-8")
            report = replace(report, influence=Influence.from_csv(table))
    except (ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"the audit's files cannot be read: {error}") from error
    return report


def _confirmed_file(archive: Archive, run: Any, evidence: Evidence, name: str) -> bytes:
    content = archive.read(run, name, LARGEST_REPORT)
    if digest(content) != evidence.files.get(name):
        raise EvidenceError(f"the audit's file {name!r} was changed after it was written")
    return content


def issued(evidence: Evidence) -> datetime:
    """Return when the evidence was written."""
    return _time(evidence.issued_at)


def measured(evidence: Evidence) -> datetime:
    """Return when the audit's last refit ended."""
    return _time(evidence.measured_at)


def attested(opened: SignedEvidence) -> datetime:
    """Return when evidence was signed."""
    return _time(opened.evidence.attested_at or opened.evidence.issued_at)


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise EvidenceError(f"the time of the audit, {text!r}, cannot be read") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)
