"""Finds the evidence of a registered version in MLflow, and checks it against what is there now."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.gating.evidence import FILE, LARGEST, Evidence, SignedEvidence, digest, open_sealed
from mlflow_b3.gating.verdict import SKEW
from mlflow_b3.refit.model_files import (
    ModelSource,
    Opener,
    digest_model,
    digest_of,
    open_location,
    read_artifact,
    resolve_source,
)
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.audits import DATASET_DIGEST, NO_EVIDENCE, tried_audits
from mlflow_b3.tracking.metrics import curves_of
from mlflow_b3.tracking.writing import FOLDER

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
        How many audits of the model MLflow knows of, whatever became of them.
    """

    evidence: Evidence
    signed_by: str | None
    report: AuditReport
    tried: int


def find_audit_of(archive: Archive, version: Any, trusted: tuple[str, ...]) -> Audit:
    """Return the newest confirmed audit of a registered version.

    The audit that MLflow's tags name must be confirmed, and so must every one that was begun later:
    who could make a failed audit unreadable must not win by it.

    Raises
    ------
    EvidenceError
        Whatever keeps the evidence from being relied on, in words.
    """
    client = archive.client
    source = resolve_source(client, _uri(version))
    tried = tried_audits(client, source.model_id or source.source)
    named = named_audit(client, version, source)
    if named is None:
        raise EvidenceError("there is no audit of it")
    present = cache(lambda: archive.digest(source))
    first = find_run(client, named)
    confirmed = {named: _confirm(archive, first, source, present, trusted)}
    complete = [run for run in tried if _claims_evidence(run) and run.info.run_id != named]
    for run in complete[:MOST_AUDITS]:
        try:
            confirmed[run.info.run_id] = _confirm(archive, run, source, present, trusted)
        except EvidenceError as error:
            if run.info.start_time >= first.info.start_time:
                raise EvidenceError(
                    f"a later audit, of run {run.info.run_id}, cannot be relied on: {error}"
                ) from error
    newest = max(confirmed.values(), key=lambda found: _issued(found.evidence))
    check_version_tags(version, newest.evidence)
    run = find_run(client, newest.evidence.audit_run_id)
    report = _report(archive, run, newest.evidence)
    _refuse_changes(run, changed_curves(run, report))
    return Audit(
        evidence=newest.evidence,
        signed_by=newest.signed_by,
        report=report,
        tried=len(tried),
    )


def confirm_audit(
    archive: Archive, uri: str, audit_run_id: str, trusted: tuple[str, ...]
) -> SignedEvidence:
    """Return the evidence of one audit of a model or registered version, confirmed as for a verdict."""
    source = resolve_source(archive.client, uri)
    run = find_run(archive.client, audit_run_id)
    return _confirm(archive, run, source, lambda: archive.digest(source), trusted)


def _uri(version: Any) -> str:
    return f"models:/{version.name}/{version.version}"


def _claims_evidence(run: Any) -> bool:
    """Whether an audit was written to the end, on the model itself; see `recording`.

    A run that begins in the future is none, or whoever makes one could block a model for good.
    """
    tags = run.data.tags
    future = run.info.start_time / 1000 > time.time() + SKEW.total_seconds()
    return "b3.audit_run_id" in tags and tags.get("b3.evidence") != NO_EVIDENCE and not future


def named_audit(client: Any, version: Any, source: ModelSource) -> str | None:
    """Return the run of the audit that the version's tags name, or else the model's, or the newest."""
    found = version.tags.get("b3.audit_run_id")
    if found is None and source.model_id is not None:
        found = client.get_logged_model(source.model_id).tags.get("b3.audit_run_id")
    if found is None:
        tried = tried_audits(client, source.model_id or source.source)
        found = next((run.info.run_id for run in tried if _claims_evidence(run)), None)
    return None if found is None else str(found)


def find_run(client: Any, run_id: str) -> Any:
    """Return a run that is there and not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise EvidenceError(f"the run {run_id!r} was not found") from error
    if run.info.lifecycle_stage != "active":
        raise EvidenceError(f"the audit's run {run_id} is deleted")
    return run


def _confirm(
    archive: Archive,
    run: Any,
    source: ModelSource,
    present: Callable[[], Mapping[str, str]],
    trusted: tuple[str, ...],
) -> SignedEvidence:
    """Return the evidence of a run, if all of it is of this model and as it was written.

    The model's files, which may be large, are read last: who has no evidence cannot make a server
    read them.
    """
    opened = open_sealed(archive.read(run, FILE, LARGEST), trusted)
    evidence = opened.evidence
    check_subject(run, evidence, source)
    table = [] if names_table(run, evidence) else ["the digest of the audited table"]
    tags = changed_tags(run.data.tags, evidence)
    _refuse_changes(run, [*changed_metrics(run, evidence), *tags, *table])
    _issued(evidence)
    changes = list(changed_files(evidence.model_files, present()))
    if changes:
        raise EvidenceError(f"the model is not the one that was audited: {'; '.join(changes[:5])}")
    return opened


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


def check_version_tags(version: Any, evidence: Evidence) -> None:
    """Refuse a version whose tags say something else than the evidence."""
    tags = version.tags
    if tags.get("b3.audit_run_id") not in (None, evidence.audit_run_id):
        raise EvidenceError(
            f"the version's tags are those of the audit of run {tags['b3.audit_run_id']}, but there is "
            f"a later one, of run {evidence.audit_run_id}"
        )
    wrong = [
        name
        for name, value in tags.items()
        if name.startswith("b3.") and evidence.tags.get(name) != value
    ]
    if wrong:
        raise EvidenceError(
            f"tags of the version are not what the audit has found: {', '.join(sorted(wrong))}"
        )


def _report(archive: Archive, run: Any, evidence: Evidence) -> AuditReport:
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


def _issued(evidence: Evidence) -> datetime:
    try:
        when = datetime.fromisoformat(evidence.issued_at)
    except ValueError as error:
        text = f"the time of the audit, {evidence.issued_at!r}, cannot be read"
        raise EvidenceError(text) from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)
