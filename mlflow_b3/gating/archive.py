"""Finds the evidence of a registered version in MLflow, and checks it against what is there now."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.gating.evidence import LARGEST, Evidence, SignedEvidence, digest, open_sealed
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
from mlflow_b3.tracking.audits import audits_of

FOLDER = "b3"
FILE = "evidence.json"
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
    """An audit whose evidence was confirmed: of this model, signed, and as it was written."""

    evidence: Evidence
    signed_by: str | None
    report: AuditReport
    tried: int


def find_audit_of(archive: Archive, version: Any, trusted: tuple[str, ...]) -> Audit:
    """Return the newest confirmed audit of a registered version.

    The audit that MLflow's tags name must be one of them, and no later one may be unreadable: what
    is wrong with either is raised.

    Raises
    ------
    EvidenceError
        Whatever keeps the evidence from being relied on, in words.
    """
    source = resolve_source(archive.client, _uri(version))
    present = archive.digest(source)
    runs = audits_of(archive.client, source.model_id or source.source, source.run_id)
    named = named_audit(archive.client, version, source)
    if named is None:
        raise EvidenceError("there is no audit of it")
    confirmed = [_confirm(archive, find_run(archive.client, named), source, present, trusted)]
    for run in runs[:MOST_AUDITS]:
        if run.info.run_id != named and "b3.evidence" in run.data.tags:
            try:
                confirmed.append(_confirm(archive, run, source, present, trusted))
            except EvidenceError as error:
                if _started(run) > _issued(confirmed[0].evidence):
                    raise EvidenceError(
                        f"a later audit, of run {run.info.run_id}, cannot be relied on: {error}"
                    ) from error
    newest = max(confirmed, key=lambda found: _issued(found.evidence))
    check_version_tags(version, newest.evidence)
    return Audit(
        evidence=newest.evidence,
        signed_by=newest.signed_by,
        report=_report(
            archive, find_run(archive.client, newest.evidence.audit_run_id), newest.evidence
        ),
        tried=len(runs),
    )


def _uri(version: Any) -> str:
    return f"models:/{version.name}/{version.version}"


def named_audit(client: Any, version: Any, source: ModelSource) -> str | None:
    """Return the run of the audit that the version's tags name, or else the model's."""
    found = version.tags.get("b3.audit_run_id")
    if found is None and source.model_id is not None:
        found = client.get_logged_model(source.model_id).tags.get("b3.audit_run_id")
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
    present: Mapping[str, str],
    trusted: tuple[str, ...],
) -> SignedEvidence:
    """Return the evidence of a run, if all of it is of this model and as it was written."""
    opened = open_sealed(archive.read(run, FILE, LARGEST), trusted)
    evidence = opened.evidence
    if evidence.audit_run_id != run.info.run_id:
        raise EvidenceError(
            f"the evidence in run {run.info.run_id} is that of run {evidence.audit_run_id}"
        )
    if evidence.model_id != source.model_id:
        raise EvidenceError(
            f"the evidence is of the model {evidence.model_id}, not of {source.model_id}"
        )
    if evidence.model_digest != digest_of(evidence.model_files):
        raise EvidenceError(
            "the digests of the model's files in the evidence contradict each other"
        )
    changes = list(changed_files(evidence.model_files, present))
    if changes:
        raise EvidenceError(f"the model is not the one that was audited: {'; '.join(changes[:5])}")
    _check_record(run, evidence)
    return opened


def changed_files(audited: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """Yield what has become of each file that is not as it was."""
    for path in sorted(audited.keys() | present.keys()):
        if path not in present:
            yield f"{path!r} is gone"
        elif path not in audited:
            yield f"{path!r} was added"
        elif audited[path] != present[path]:
            yield f"{path!r} was changed"


def changed_metrics(run: Any, evidence: Evidence) -> list[str]:
    """Return the results that a run shows other than the evidence has them."""
    metrics = run.data.metrics
    known = {name: value for name, value in evidence.results.items() if value is not None}
    return [
        *(name for name, value in known.items() if metrics.get(name) != value),
        *(name for name in metrics if name.startswith("b3/") and name not in known),
    ]


def changed_tags(tags: Mapping[str, str], evidence: Evidence) -> list[str]:
    """Return the tags that say something else than the evidence; absent ones say nothing."""
    return [name for name, value in evidence.tags.items() if name in tags and tags[name] != value]


def names_table(run: Any, evidence: Evidence) -> bool:
    """Whether a run names the audited table as its input."""
    digests = [entry.dataset.digest for entry in run.inputs.dataset_inputs]
    return any(evidence.data_digest.startswith(found) for found in digests if found)


def _check_record(run: Any, evidence: Evidence) -> None:
    """Refuse an audit whose own run says something else than its evidence."""
    wrong = [*changed_metrics(run, evidence), *changed_tags(run.data.tags, evidence)]
    if not names_table(run, evidence):
        wrong.append("the digest of the audited table")
    if wrong:
        raise EvidenceError(
            f"the audit's run {run.info.run_id} was changed after it was written: {', '.join(wrong)}"
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
    with suppress(ValueError):
        when = datetime.fromisoformat(evidence.issued_at)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    raise EvidenceError(f"the time of the audit, {evidence.issued_at!r}, cannot be read")


def _started(run: Any) -> datetime:
    return datetime.fromtimestamp(run.info.start_time / 1000, UTC)
