"""Checks of a recorded audit, shared by gate, verify, attest and the server.

A check takes a `Record` and returns a `Reason`. The lists at the end say who runs which checks;
`attesting` adds those that recompute every conclusion. Evidence that passes is judged by a policy in
`mlflow_b3.evidence.verdict`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.data.table import digest_table, read_table
from mlflow_b3.errors import B3Error, EvidenceError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.evidence.document import FILE, LARGEST, Evidence, SignedEvidence, digest
from mlflow_b3.evidence.verdict import FAIL, PASS, Reason
from mlflow_b3.refit.loading import ModelSource, digest_of
from mlflow_b3.tracking.metrics_and_files import DATASET_DIGEST, curves_of, is_answer, worth
from mlflow_b3.tracking.shown_on_models import VERDICT

if TYPE_CHECKING:
    from mlflow_b3.gating.archive import Archive

LARGEST_REPORT = 50_000_000
#: The most changes that an error message lists.
MOST_NAMED = 5


# --- Records and checks


@dataclass(frozen=True, kw_only=True)
class Record:
    """An audit as currently stored in MLflow.

    Attributes
    ----------
    archive : Archive
    run : Run
        The run of the audit.
    source : ModelSource
        The model that the evidence should belong to.
    evidence : Evidence
    version : ModelVersion, optional
        The registered version, whose tags show the audit.
    counted : collection of str, optional
        Runs of the audits that count. Tags of a version that name another run are ignored.
    data : DataFrame or path, optional
        A table that should be the audited one.
    """

    archive: "Archive"
    run: Any
    source: ModelSource
    evidence: Evidence
    version: Any = None
    counted: Collection[str] | None = None
    data: Any = None

    def read(self, name: str) -> bytes:
        """Return a file of the audit; raise an `EvidenceError` if it was changed."""
        content = self.archive.read(self.run, name, LARGEST_REPORT)
        if digest(content) != self.evidence.files.get(name):
            raise EvidenceError(f"the audit's file {name!r} was changed after it was written")
        return content

    @cached_property
    def report(self) -> AuditReport:
        """The report of the audit, with only the parts that a verdict needs."""
        content = self.read("audit.json")
        try:
            report = AuditReport.from_json(content.decode("utf-8"))
            if "influence.csv" in self.evidence.files:
                table = self.read("influence.csv").decode("utf-8")
                report = replace(report, influence=Influence.from_csv(table))
        except (ValueError, TypeError, KeyError) as error:
            raise EvidenceError(f"the audit's files cannot be read: {error}") from error
        return report


R = TypeVar("R", bound=Record, contravariant=True)


@dataclass(frozen=True)
class Check(Generic[R]):
    """One check of a record.

    Attributes
    ----------
    name : str
        The name of the reason.
    find : callable
        Returns what was found, in words; raises an error if the check fails.
    """

    name: str
    find: Callable[[R], str]

    def __call__(self, record: R) -> Reason:
        """Return what was found; any error is a failure of the check."""
        try:
            return Reason(check=self.name, outcome=PASS, text=self.find(record))
        except Exception as error:
            return failed(self.name, error)


def check(name: str) -> Callable[[Callable[[R], str]], Check[R]]:
    """Turn a function into a check; `name` is the name of its reason."""
    return lambda find: Check(name, find)


def failed(name: str, error: Exception) -> Reason:
    """Return the reason of a check that raised an error."""
    known = isinstance(error, B3Error)
    text = str(error) if known else f"it could not be read: {type(error).__name__}: {error}"
    return Reason(check=name, outcome=FAIL, text=text)


def require(record: Record, checks: Iterable[Check[Record]]) -> None:
    """Run checks; raise the error of the first one that fails."""
    for each in checks:
        each.find(record)


def _raise_if_changed(what: str, changes: Iterable[str], separator: str = ", ") -> None:
    found = list(changes)
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise EvidenceError(f"{what}: {separator.join(found[:MOST_NAMED])}{more}")


def _raise_if_run_changed(record: Record, changes: Iterable[str]) -> None:
    run_id = record.run.info.run_id
    _raise_if_changed(f"the audit's run {run_id} was changed after it was written", changes)


# --- The evidence itself


@check("evidence")
def subject(record: Record) -> str:
    """Check that the evidence belongs to this run and this model."""
    run, evidence, source = record.run, record.evidence, record.source
    if evidence.audit_run_id != run.info.run_id:
        raise EvidenceError(
            f"the evidence in run {run.info.run_id} belongs to run {evidence.audit_run_id}"
        )
    # without a LoggedModel, equal files are the same model, whatever their URI
    if evidence.model_id != source.model_id:
        raise EvidenceError(
            f"the evidence belongs to the model {evidence.model_id}, not to {source.model_id}"
        )
    if evidence.model_digest != digest_of(evidence.model_files):
        raise EvidenceError(
            "the digests of the model's files in the evidence contradict each other"
        )
    tool = evidence.packages.get("mlflow-b3", "of an unknown version")
    return f"it belongs to this model, measured at {evidence.measured_at} by mlflow-b3 {tool}"


@check("times")
def times(record: Record) -> str:
    """Check that the times of the evidence can be read; they determine which audit is newest."""
    return f"measured at {measured(record.evidence)}, written at {issued(record.evidence)}"


def issued(evidence: Evidence) -> datetime:
    """Return when the evidence was written."""
    return _parse_time(evidence.issued_at)


def measured(evidence: Evidence) -> datetime:
    """Return when the audit's last refit ended."""
    return _parse_time(evidence.measured_at)


def attested(opened: SignedEvidence) -> datetime:
    """Return when evidence was signed."""
    return _parse_time(opened.evidence.attested_at or opened.evidence.issued_at)


def _parse_time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise EvidenceError(f"the time of the audit, {text!r}, cannot be read") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)


# --- Files of the model and of the audit


@check("model_files")
def model_files(record: Record) -> str:
    """Check that the model's files have not changed since the audit."""
    _raise_if_changed("the model is not the one that was audited", changed_model(record), "; ")
    count = len(record.evidence.model_files)
    return f"all {count} files of the model are unchanged since the audit"


def changed_model(record: Record) -> list[str]:
    """Return the changes of a model's files since the audit."""
    present = record.archive.digest(record.source)
    return list(changed_files(record.evidence.model_files, present))


def changed_files(audited: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that were removed, added or changed."""
    for path in sorted(audited.keys() | present.keys()):
        if path not in present:
            yield f"{path!r} is gone"
        elif path not in audited:
            yield f"{path!r} was added"
        elif audited[path] != present[path]:
            yield f"{path!r} was changed"


@check("audit_files")
def audit_files(record: Record) -> str:
    """Check that the audit's files have not changed."""
    _raise_if_changed("files of the audit were changed", _changed_audit_files(record), "; ")
    return f"all {len(record.evidence.files)} files of the audit are unchanged"


def _changed_audit_files(record: Record) -> Iterator[str]:
    for name, written in sorted(record.evidence.files.items()):
        try:
            if digest(record.archive.read(record.run, name, LARGEST_REPORT)) != written:
                yield f"{name!r} was changed"
        except EvidenceError as error:
            yield str(error)


# --- Runs, their metrics and settings


@check("evidence")
def active_run(record: Record) -> str:
    """Check that the audit's run is not deleted."""
    require_active(record.run)
    return "the audit's run exists"


def require_active(run: Any) -> None:
    """Raise an `EvidenceError` for a run that is deleted."""
    if run.info.lifecycle_stage != "active":
        raise EvidenceError(f"the audit's run {run.info.run_id} is deleted")


@check("metrics")
def run_metrics(record: Record) -> str:
    """Check that the metrics of the audit's run are exactly the results in the evidence."""
    logged, results = record.run.data.metrics, record.evidence.results
    shown = {name: value for name, value in logged.items() if name.startswith("b3/")}
    names = sorted(shown.keys() | results.keys())
    _raise_if_run_changed(record, [name for name in names if shown.get(name) != results.get(name)])
    known = sum(value is not None for value in results.values())
    return f"all {known} results are unchanged"


@check("metrics")
def metrics(record: Record) -> str:
    """Check the metrics of the audit's run, and of the model's run if it shows this audit."""
    found, evidence = run_metrics.find(record), record.evidence
    if evidence.run_id is None:
        return found
    shown = record.archive.client.get_run(evidence.run_id)
    if shown.data.tags.get("b3.audit_run_id") != evidence.audit_run_id:
        return found  # the model's run shows another audit
    answers = {
        name: (value, worth(value))  # as the run shows it, or MLflow and earlier versions wrote it
        for name, value in evidence.results.items()
        if value is not None and is_answer(name)
    }
    _raise_if_changed(
        f"the model's run {evidence.run_id} shows results that are not those of the audit",
        [name for name, right in answers.items() if shown.data.metrics.get(name) not in right],
    )
    return f"{found}, also on the model's run"


@check("curves")
def curves(record: Record) -> str:
    """Check that the last points of the run's curves are those of the report."""
    shown = record.run.data.metrics
    _raise_if_run_changed(record, changed_curves(shown, record.report))
    return "the last points of the curves are those of the report"


def changed_curves(shown: Mapping[str, float], report: AuditReport) -> Iterator[str]:
    """Yield the curves among a run's metrics whose last point differs from the report."""
    for name, points in curves_of(report).items():
        if points and shown.get(name) != max(points)[1]:
            yield name


@check("settings")
def settings(record: Record) -> str:
    """Check that the parameters of the audit's run are exactly the settings in the evidence."""
    params, written = record.run.data.params, record.evidence.settings
    shown = {name: value for name, value in params.items() if name.startswith("b3/")}
    names = sorted(shown.keys() | written.keys())
    _raise_if_run_changed(record, [name for name in names if shown.get(name) != written.get(name)])
    return f"all {len(names)} settings are unchanged"


# --- Tags


@check("tags")
def run_tags(record: Record) -> str:
    """Check that the tags of the audit's run agree with the evidence."""
    _raise_if_run_changed(record, _changed_tags(record.run.data.tags, record.evidence))
    return "the tags of the audit's run agree with the evidence"


@check("tags")
def version_tags(record: Record) -> str:
    """Check that the version's tags are those of this audit."""
    shown, evidence = record.version.tags, record.evidence
    named = shown.get("b3.audit_run_id")
    if named is not None and record.counted is not None and named not in record.counted:
        return "the tags of the version belong to an audit that does not count"
    if named not in (None, evidence.audit_run_id):
        raise EvidenceError(
            f"the version's tags belong to the audit of run {named}, but there is a later one, of run "
            f"{evidence.audit_run_id}"
        )
    wrong = [
        name
        for name, value in shown.items()
        if name.startswith("b3.") and name != VERDICT and evidence.tags.get(name) != value
    ]
    _raise_if_changed("tags of the version contradict the audit", sorted(wrong))
    return "the tags of the version agree with the audit"


@check("tags")
def tags(record: Record) -> str:
    """Check the tags of the version, the audit's run and the logged model, and the evidence's digest."""
    require(record, (version_tags, run_tags))
    evidence = record.evidence
    written = digest(record.archive.read(record.run, FILE, LARGEST))
    if record.run.data.tags.get("b3.evidence") != written:
        raise EvidenceError("the tag 'b3.evidence' of the audit's run is not the evidence's digest")
    if evidence.model_id is not None:
        shown = record.archive.client.get_logged_model(evidence.model_id).tags
        if shown.get("b3.audit_run_id") == evidence.audit_run_id:
            _raise_if_changed(
                "tags of the logged model were changed", _changed_tags(shown, evidence)
            )
    return "the tags of the version, its logged model and the audit's run agree with the evidence"


def _changed_tags(shown: Mapping[str, str], evidence: Evidence) -> Iterator[str]:
    """Yield the tags that contradict the evidence; missing tags are fine."""
    for name, value in evidence.tags.items():
        if shown.get(name, value) != value:
            yield name


# --- The table


@check("data")
def input_table(record: Record) -> str:
    """Check that the audited table is the only input of the audit's run."""
    digests = {entry.dataset.digest for entry in record.run.inputs.dataset_inputs}
    audited = record.evidence.data_digest
    if digests != {audited[:DATASET_DIGEST]}:
        _raise_if_run_changed(record, ["the digest of the audited table"])
    return f"the input of the audit's run is the audited table, {audited}"


@check("data")
def table(record: Record) -> str:
    """Check the input of the audit's run, and that the given table, if any, is the audited one."""
    found = input_table.find(record)
    if record.data is None:
        return found
    frame = read_table(record.data, record.report.subject.texts).rename(columns=str)
    require_digest("the given table", digest_table(frame), record.evidence.data_digest)
    return f"the given table is the audited one, {record.evidence.data_digest}"


def require_digest(name: str, found: str, audited: str) -> None:
    """Raise an `EvidenceError` for a table that is not the audited one."""
    if found != audited:
        raise EvidenceError(
            f"{name} has the digest {found}, the audited table has {audited}; names, types, values "
            "and the order of rows and columns must all be the same"
        )


# --- Who runs which checks

#: Run by a gate on every audit that counts, and by a server before it accepts an audit's tags. The
#: model's files, which may be large, are read only afterwards, so that nobody can make a server read
#: them without evidence.
CONFIRMED = (subject, run_metrics, run_tags, input_table, times)
#: Those of them that need only the signed evidence: all that counts about an older signed audit.
SIGNED = (subject, times)
#: Run by a gate on the audit that it relies on, in addition to `model_files`.
RELIED_ON = (version_tags, active_run, curves)
#: Run by `attest` before it reads the report.
WRITTEN = (subject, model_files, audit_files, metrics, settings)
#: Run by `verify`.
VERIFIED = (*WRITTEN, tags, table)
