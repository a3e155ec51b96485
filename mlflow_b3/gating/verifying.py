"""`verify`: a version's evidence against what is there now, part by part."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from typing import Any

from mlflow_b3.data import digest_table, read_table
from mlflow_b3.errors import B3Error, EvidenceError, InputError, TrackingError
from mlflow_b3.gating.archive import (
    LARGEST_REPORT,
    Archive,
    changed_files,
    changed_metrics,
    changed_tags,
    check_subject,
    check_version_tags,
    find_audit_of,
    find_run,
    named_audit,
    names_table,
    open_evidence,
    read_report,
)
from mlflow_b3.gating.evidence import FILE, LARGEST, Evidence, SignedEvidence, digest
from mlflow_b3.gating.judging import policy_in_force
from mlflow_b3.gating.keys import trusted_keys
from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.verdict import FAIL, PASS, Reason, judge_evidence
from mlflow_b3.refit.loading import registered_version
from mlflow_b3.refit.model_files import ModelSource, resolve_source
from mlflow_b3.results import Result
from mlflow_b3.tracking.audits import runs_of

#: How many of the things that were changed are named.
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Verification(Result):
    """Whether the evidence of a registered version holds.

    Attributes
    ----------
    holds : bool
        Everything that was checked is as the audit wrote it.
    checks : tuple of Reason
        What was checked, and what was found.
    model, version : str
    policy_hash : str
        The policy that says whose signatures count, and for how long.
    audit_run_id : str or None
        The audit that the version's tags name.
    checked_at : str
    """

    holds: bool
    checks: tuple[Reason, ...]
    model: str
    version: str
    policy_hash: str
    audit_run_id: str | None
    checked_at: str

    def __str__(self) -> str:
        """Return what was checked and found, in plain words."""
        from mlflow_b3.gating.outputs import verification_text

        return verification_text(self)


@dataclass(frozen=True, kw_only=True)
class _OnceRead(Archive):
    """An archive that fetches a model's files once, however often they are asked for."""

    read_already: dict[str, dict[str, str]] = field(default_factory=dict)

    def digest(self, source: ModelSource) -> dict[str, str]:
        """Return the digests of a model's files as they were at the first question."""
        if source.location not in self.read_already:
            self.read_already[source.location] = super().digest(source)
        return self.read_already[source.location]


def verify(
    model: str,
    policy: Policy | str | PathLike[str] | None = None,
    *,
    data: Any = None,
    now: datetime | None = None,
) -> Verification:
    """Check the evidence of a registered version against the files that are there now.

    Parameters
    ----------
    model : str
        "models:/name/3", or "models:/name@alias".
    policy : Policy or path, optional
        Says whose signatures count and how old an audit may be; as in `gate`. Its limits on the
        results play no part.
    data : DataFrame or path, optional
        A table that should be the audited one.
    now : datetime, optional
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    rules = policy_in_force(policy)
    if data is not None:
        read_table(data)  # one that cannot be read is an error, not a finding
    archive = _OnceRead(client=MlflowClient())
    when = now or datetime.now(UTC)
    try:
        found = registered_version(model)
        if found is None:
            raise InputError(
                f"model={model!r} is not a registered version; evidence is that of "
                "'models:/name/3' or 'models:/name@alias'."
            )
        version = archive.client.get_model_version(*found)
    except MlflowException as error:
        raise TrackingError(f"model={model!r}: {error}") from error
    audit_run_id, checks = _check(archive, rules, version, data, when)
    return Verification(
        holds=all(check.outcome != FAIL for check in checks),
        checks=checks,
        model=found[0],
        version=found[1],
        policy_hash=rules.hash,
        audit_run_id=audit_run_id,
        checked_at=when.isoformat(timespec="seconds"),
    )


def _check(
    archive: Archive, policy: Policy, version: Any, data: Any, now: datetime
) -> tuple[str | None, tuple[Reason, ...]]:
    """Return the run of the audit that was checked, and what was found."""
    named = None
    try:
        trusted = trusted_keys(policy.trusted_keys)
        source = resolve_source(archive.client, f"models:/{version.name}/{version.version}")
        named = named_audit(archive.client, version, source)
        if named is None:
            raise EvidenceError("there is no audit of it")
        run = find_run(archive.client, named)
        runs = runs_of(archive.client, source.model_id or source.source)
        opened = open_evidence(archive, run, runs, trusted)
    except InputError:
        raise  # a trusted key that cannot be read is the caller's
    except Exception as error:
        return named, (_failed("evidence", error),)
    evidence = opened.evidence
    checks = (
        *record_checks(archive, run, source, evidence),
        ran("tags", lambda: _tags(archive, run, version, evidence)),
        ran("data", lambda: _table(archive, run, evidence, data)),
    )
    tried, unsigned = len(evidence.earlier_audits) + 1, 0
    if all(check.outcome != FAIL for check in checks):
        # what a gate does, which looks at other audits too
        newest, tried, unsigned = _newest(archive, policy, version, trusted, opened)
        checks = (*checks, newest)
    judged = judge_evidence(policy, evidence, opened.signed_by, tried, now, unsigned=unsigned)
    return named, (*checks, *judged)


def record_checks(
    archive: Archive, run: Any, source: ModelSource, evidence: Evidence
) -> tuple[Reason, ...]:
    """Compare the evidence of an audit with its run and with the model's files.

    Parameters
    ----------
    archive : Archive
    run : Run
        The audit's own.
    source : ModelSource
        The model that the evidence should be of.
    evidence : Evidence
    """
    return (
        ran("evidence", lambda: _belongs(run, evidence, source)),
        ran("model_files", lambda: _model_files(archive, source, evidence)),
        ran("audit_files", lambda: _audit_files(archive, run, evidence)),
        ran("metrics", lambda: _metrics(archive, run, evidence)),
        ran("settings", lambda: _settings(run, evidence)),
    )


def ran(check: str, look: Callable[[], str]) -> Reason:
    """Make a check; whatever goes wrong is a failure of it."""
    try:
        return Reason(check=check, outcome=PASS, text=look())
    except Exception as error:
        return _failed(check, error)


def _failed(check: str, error: Exception) -> Reason:
    known = isinstance(error, B3Error)
    text = str(error) if known else f"it could not be read: {type(error).__name__}: {error}"
    return Reason(check=check, outcome=FAIL, text=text)


def _refuse(what: str, changes: Iterable[str]) -> None:
    found = list(changes)
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise EvidenceError(f"{what}: {'; '.join(found[:MOST_NAMED])}{more}")


def _belongs(run: Any, evidence: Evidence, source: ModelSource) -> str:
    check_subject(run, evidence, source)
    tool = evidence.packages.get("mlflow-b3", "of an unknown version")
    return f"it is of this model, measured at {evidence.measured_at} by mlflow-b3 {tool}"


def _model_files(archive: Archive, source: ModelSource, evidence: Evidence) -> str:
    present = archive.digest(source)
    _refuse(
        "the model is not the one that was audited", changed_files(evidence.model_files, present)
    )
    return f"all {len(present)} files of the model are as they were audited"


def _audit_files(archive: Archive, run: Any, evidence: Evidence) -> str:
    _refuse(
        "files of the audit are not as it wrote them", _changed_audit_files(archive, run, evidence)
    )
    return f"all {len(evidence.files)} files of the audit are as it wrote them"


def _changed_audit_files(archive: Archive, run: Any, evidence: Evidence) -> Iterator[str]:
    for name, written in sorted(evidence.files.items()):
        try:
            if digest(archive.read(run, name, LARGEST_REPORT)) != written:
                yield f"{name!r} was changed"
        except EvidenceError as error:
            yield str(error)


def _metrics(archive: Archive, run: Any, evidence: Evidence) -> str:
    _refuse("the audit's run shows other results than it wrote", changed_metrics(run, evidence))
    shown = _training_run(archive, evidence)
    known = {name: value for name, value in evidence.results.items() if value is not None}
    if shown is None:
        return f"all {len(known)} results are as the audit wrote them"
    others = [name for name, value in known.items() if shown.data.metrics.get(name) != value]
    _refuse(f"the model's run {shown.info.run_id} shows other results than the audit's", others)
    return f"all {len(known)} results are as the audit wrote them, also on the model's run"


def _training_run(archive: Archive, evidence: Evidence) -> Any:
    """Return the run that trained the model, where it shows this audit and not another one."""
    if evidence.run_id is None:
        return None
    run = archive.client.get_run(evidence.run_id)
    return run if run.data.tags.get("b3.audit_run_id") == evidence.audit_run_id else None


def _settings(run: Any, evidence: Evidence) -> str:
    present = {name: value for name, value in run.data.params.items() if name.startswith("b3/")}
    names = present.keys() | evidence.settings.keys()
    changed = [name for name in names if present.get(name) != evidence.settings.get(name)]
    _refuse("the audit's run shows other settings than it wrote", sorted(changed))
    return f"all {len(names)} settings are as the audit wrote them"


def _tags(archive: Archive, run: Any, version: Any, evidence: Evidence) -> str:
    check_version_tags(version, evidence)
    _refuse("tags of the audit's run were changed", changed_tags(run.data.tags, evidence))
    if run.data.tags.get("b3.evidence") != digest(archive.read(run, FILE, LARGEST)):
        raise EvidenceError("the tag 'b3.evidence' of the audit's run is not the evidence's digest")
    if evidence.model_id is not None:
        shown = archive.client.get_logged_model(evidence.model_id).tags
        if shown.get("b3.audit_run_id") == evidence.audit_run_id:
            _refuse("tags of the logged model were changed", changed_tags(shown, evidence))
    return (
        "those of the version, of its logged model and of the audit's run say what the audit found"
    )


def _table(archive: Archive, run: Any, evidence: Evidence, data: Any) -> str:
    if not names_table(run, evidence):
        raise EvidenceError("the audit's run does not name the audited table as its input")
    if data is None:
        return f"the audit's run names the table that was audited, {evidence.data_digest}"
    texts = read_report(archive, run, evidence).settings.texts
    table = digest_table(read_table(data, texts).rename(columns=str))
    if table != evidence.data_digest:
        raise EvidenceError(
            f"the given table has the digest {table}, the audited one {evidence.data_digest}; names, "
            "types, values and order of rows and columns all count"
        )
    return f"the given table is the one that was audited, {evidence.data_digest}"


def _newest(
    archive: Archive,
    policy: Policy,
    version: Any,
    trusted: tuple[str, ...],
    opened: SignedEvidence,
) -> tuple[Reason, int, int]:
    """Return whether a gate would rely on this audit, and how many audits count and do not."""
    tried = len(opened.evidence.earlier_audits) + 1
    try:
        audit = find_audit_of(archive, version, trusted, signed=policy.signed)
        if audit.evidence != opened.evidence:
            raise EvidenceError(f"there is a later audit, of run {audit.evidence.audit_run_id}")
    except Exception as error:
        return _failed("newest", error), tried, 0
    text = "no later audit of this model says anything else"
    return Reason(check="newest", outcome=PASS, text=text), audit.tried, audit.unsigned
