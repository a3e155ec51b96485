"""`attest`: check the evidence of a recorded audit and sign it.

An audit runs the model's code, so it never has the key. Signing is a separate step in a process
that loads no model. It reads the model's files, the table and the audit's files again, recomputes
every conclusion from the measured losses, and signs the evidence if everything agrees.
"""

import math
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_b3.auditing.conclusions import recompute
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.auditing.subject import size_findings
from mlflow_b3.data.folds import Fold, digest_folds, summarize_folds
from mlflow_b3.data.losses import constant_loss, named_loss, resolve_loss
from mlflow_b3.data.scores import named_score
from mlflow_b3.data.table import AuditData, ModelInputs, prepare, read_table
from mlflow_b3.errors import EvidenceError, InputError, TrackingError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.evidence.document import (
    ENVELOPE,
    FILE,
    FORMAT,
    LARGEST,
    SIGNING_KEY,
    Evidence,
    encode_public_key,
    is_digest,
    key_id,
    open_sealed,
    seal,
    seal_token,
    signing_key,
    trusted_keys,
)
from mlflow_b3.evidence.document import digest as digest_bytes
from mlflow_b3.evidence.policy import Policy
from mlflow_b3.evidence.verdict import FAIL, SKEW, Reason
from mlflow_b3.gating.archive import Archive, audits_with_evidence, find_run, signed_audits
from mlflow_b3.gating.checks import (
    WRITTEN,
    Check,
    Record,
    changed_curves,
    check,
    failed,
    measured,
    require_digest,
)
from mlflow_b3.gating.gate import policy_in_force
from mlflow_b3.measurement.collecting import Measurement, by_pass
from mlflow_b3.measurement.doses import cluster_means
from mlflow_b3.refit.loading import (
    digest_like_training,
    resolve_source,
    training_table,
)
from mlflow_b3.results import Result
from mlflow_b3.tracking.audits import runs_of, subject_of
from mlflow_b3.tracking.metrics_and_files import FOLDER, load_report, metrics_of, parameters_of
from mlflow_b3.tracking.preregistration import confirm_preregistration
from mlflow_b3.tracking.runs import child_tags, new_run, remove_twins, tracking_errors
from mlflow_b3.tracking.shown_on_models import courtesy, forget_verdicts, show_on_versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


#: Allowed difference between numbers from two machines; solvers differ by less.
TOLERANCE = 1e-4
#: The same for the influence of a cluster, as a multiple of the largest. Derivatives differ by more.
INFLUENCE_TOLERANCE = 1e-2
#: The most unsigned audits that an error message lists.
MOST_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class Attestation(Result):
    """Whether an audit passed all checks and was signed.

    Attributes
    ----------
    attested : bool
        All checks passed, and the evidence is signed.
    checks : tuple of Reason
        The checks and their results.
    model : str
        The model as given.
    audit_run_id : str
        The run of the audit.
    attestation_run_id : str or None
        The run that holds the signed evidence.
    key : str
        The id of the key that signed.
    attested_at : str
    digest_demanded : bool
        The record is the very one that the audit handed on.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from mlflow_b3.evidence.verdict import Reason
    >>> attestation = b3.Attestation(
    ...     attested=False,
    ...     checks=(Reason(check="data", outcome="FAIL", text="it is another table"),),
    ...     model="models:/triage/3",
    ...     audit_run_id="241a118098d54359",
    ...     attestation_run_id=None,
    ...     key="5f0c8a",
    ...     attested_at="2026-01-31T12:00:00+00:00",
    ... )
    >>> [check.text for check in attestation.checks if check.outcome == "FAIL"]
    ['it is another table']
    """

    attested: bool
    checks: tuple[Reason, ...]
    model: str
    audit_run_id: str
    attestation_run_id: str | None
    key: str
    attested_at: str
    digest_demanded: bool = False

    def __str__(self) -> str:
        """Return the checks and their results in plain words."""
        from mlflow_b3.gating.gate import attestation_text

        return attestation_text(self)


def attest(
    model: str,
    data: Any = None,
    *,
    audit: str | None = None,
    digest: str | None = None,
    policy: Policy | str | PathLike[str] | None = None,
) -> Attestation:
    """Check a recorded audit and sign its evidence with the key in MLFLOW_B3_SIGNING_KEY.

    Run it where the key is and no model is loaded. It reads the model's files, the table and the
    audit's files again and compares their digests. It recomputes the facts about the table, the loss
    of the best constant prediction and every conclusion from the recorded measurements. Then it signs.

    Parameters
    ----------
    model : str
        The audited model, such as "models:/name/3".
    data : DataFrame or path, optional
        The audited table; by default the file that the audit read.
    audit : str, optional
        The run of the audit. By default the only complete audit of the model that is not signed yet;
        if there are several, it must be named.
    digest : str, optional
        With `audit`: the SHA-256 of `b3/evidence.json` as the audit wrote it, which
        `mlflow-b3 audit --handover` gives. A record that was changed since then is not signed.
    policy : Policy or path, optional
        Lists further keys that are trusted for commitments and earlier audits.

    Returns
    -------
    Attestation
        If a check fails, `attested` is False and nothing is signed.

    Notes
    -----
    The signature says that these files, this table and these measurements belong together, and that
    the conclusions follow from them. It does not say that the measurements came from this model.
    Anybody who can write to MLflow can record an audit with the losses of another model: give `audit`
    and `digest`, as the process that ran the audit handed them on. And the model's code ran in the
    audit, and could have reported other losses. Run audits in a container without secrets and without
    network access, and audit only models whose code you would also serve.

    Examples
    --------
    `MLFLOW_B3_SIGNING_KEY` names the key.

    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    >>> with mlflow.start_run():
    ...     logged = mlflow.sklearn.log_model(
    ...         GaussianNB().fit(X, y),
    ...         name="model",
    ...         registered_model_name="attested",
    ...         pip_requirements=["scikit-learn"],
    ...     )
    >>> report = b3.audit(
    ...     "models:/attested/1",
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> run_id = b3.record(report)
    >>> attestation = b3.attest("models:/attested/1", clinic.frame)
    >>> attestation.attested, attestation.audit_run_id == run_id
    (True, True)
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    key = signing_key()
    if key is None:
        raise InputError(
            f"{SIGNING_KEY} is not set, and attest needs a key to sign with. Make a key pair with "
            "'mlflow-b3 keys'."
        )
    if not isinstance(model, str):
        raise InputError(
            f"model={type(model).__name__} must be the URI of a model in MLflow, such as "
            "'models:/name/3'."
        )
    _check_digest(digest, audit)
    trusted = (*trusted_keys(policy_in_force(policy).trusted_keys), encode_public_key(key))
    archive = Archive(client=MlflowClient())
    try:
        source = resolve_source(archive.client, model)
        subject = subject_of(archive.client, source.model_id, model, source.run_id)
        runs = runs_of(archive.client, subject)
        earlier = signed_audits(archive, runs, trusted)
        run = _select_audit(archive, runs, earlier, audit, model)
    except (MlflowException, EvidenceError) as error:
        raise TrackingError(f"model={model!r}: {error}") from error
    now = datetime.now(UTC)
    try:
        evidence = _read_evidence(archive, run, digest)
    except Exception as error:
        checks: tuple[Reason, ...] = (failed("evidence", error),)
    else:
        record = _AuditToSign(
            archive=archive,
            run=run,
            source=source,
            evidence=evidence,
            data=data,
            subject=subject,
            trusted=trusted,
            now=now,
        )
        checks = _run_checks(record)
    attested = all(reason.outcome != FAIL for reason in checks)
    written = None
    if attested:
        with tracking_errors("the signed evidence"):
            others = {other.info.run_id for other in _unsigned(runs, earlier)} - {run.info.run_id}
            signed = replace(
                record.evidence,
                attested_at=now.isoformat(timespec="milliseconds"),
                attested_checks=tuple(f"{reason.check}: {reason.text}" for reason in checks),
                earlier_audits=tuple(sorted(set(earlier) - {run.info.run_id})),
                preregistration=record.preregistration,
                unsigned_audits=len(others),
            )
            written = write_attestation(archive.client, signed, subject, run, key)
        courtesy(
            "the registered version",
            lambda: show_on_versions(
                archive.client, record.report, run.info.run_id, dict(signed.tags)
            ),
        )
        courtesy(
            "the removal of an older verdict",
            lambda: forget_verdicts(
                archive.client, (record.report.subject.run_id, run.info.run_id)
            ),
        )
    return Attestation(
        attested=attested,
        checks=checks,
        model=model,
        audit_run_id=run.info.run_id,
        attestation_run_id=written,
        key=key_id(encode_public_key(key)),
        attested_at=now.isoformat(timespec="seconds"),
        digest_demanded=digest is not None,
    )


def _check_digest(found: str | None, audit: str | None) -> None:
    if found is None:
        return
    if audit is None:
        raise InputError("digest needs audit: give the run whose evidence has this digest.")
    if not is_digest(found):
        raise InputError(
            f"digest={found!r} must be a SHA-256, 64 hexadecimal digits, as 'mlflow-b3 audit "
            "--handover FILE' writes it."
        )


def _select_audit(
    archive: Archive, runs: list[Any], signed: Collection[str], audit: str | None, model: str
) -> Any:
    """Return the run of the audit to sign: the given one, or the only one that is not signed.

    Nothing tells an audit that somebody forged from a real one, neither its time nor who wrote it. So
    nothing is chosen among several. Deleted ones count: whoever forged one could delete the others.
    """
    if audit is not None:
        return find_run(archive.client, audit)
    unsigned, complete = _unsigned(runs, signed), audits_with_evidence(runs)
    active = [run for run in complete if run.info.lifecycle_stage == "active"]
    if not active:
        raise EvidenceError(
            f"there is no complete audit of it; run one: mlflow-b3 audit --model-uri {model} …"
        )
    if len(unsigned) > 1:
        listed = [f"  {_describe_run(run)}" for run in unsigned[:MOST_LISTED]]
        more = len(unsigned) - len(listed)
        raise EvidenceError(
            f"{len(unsigned)} complete audits of it are not signed. Anybody who can write to MLflow can "
            "record one, so none is chosen. Name the one to sign, with the run and the digest that the "
            f"process that audited handed on: mlflow-b3 attest {model} --audit RUN --digest SHA256\n"
            + "\n".join([*listed, *([f"  and {more} more"] if more else [])])
        )
    return next((run for run in unsigned if run in active), active[0])


def _unsigned(runs: list[Any], signed: Collection[str]) -> list[Any]:
    """Return the complete audits that are not signed, deleted ones included."""
    return [run for run in audits_with_evidence(runs) if run.info.run_id not in signed]


def _describe_run(run: Any) -> str:
    began = datetime.fromtimestamp(run.info.start_time / 1000, UTC).isoformat(timespec="seconds")
    deleted = "" if run.info.lifecycle_stage == "active" else ", deleted"
    return f"{run.info.run_id}  began at {began}{deleted}"


def write_attestation(
    client: Any, evidence: Evidence, subject: str, audit: Any, key: "Ed25519PrivateKey"
) -> str:
    """Write signed evidence to a new run: the run of an audit does not change once it is written."""
    experiment, tags = child_tags(client, evidence.run_id or audit.info.run_id, "b3 attestation")
    envelope = seal(evidence, key)
    child = new_run(client, experiment, tags)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ENVELOPE
        path.write_text(envelope, encoding="utf-8")
        client.log_artifact(child, str(path), FOLDER)
    # first, because a run with only a subject counts as an audit, and that cannot be undone
    client.set_tag(child, "b3.attests", audit.info.run_id)
    client.set_tag(child, "b3.subject", subject)
    token = seal_token(child, audit.info.run_id, subject, envelope, key)
    client.set_tag(child, "b3.attestation", token)
    remove_twins(client, child)
    client.set_terminated(child)
    return child


# --- Checks before signing, in addition to the shared ones


@dataclass(frozen=True, kw_only=True)
class _AuditToSign(Record):
    """An audit to be signed.

    Attributes
    ----------
    subject : str
        The value of the tag `b3.subject` on the model's runs.
    trusted : tuple of str
        Public keys whose commitments count.
    now : datetime
    """

    subject: str
    trusted: tuple[str, ...]
    now: datetime

    @cached_property
    def report(self) -> AuditReport:
        """The report of the audit, including the parts that grow with the rows."""
        with tempfile.TemporaryDirectory() as folder:
            for name in self.evidence.files:
                if name.endswith((".json", ".csv")):
                    (Path(folder) / name).write_bytes(self.read(name))
            return load_report(folder)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The given table, or the one that the audit read."""
        subject = self.report.subject
        data = subject.data_source if self.data is None else self.data
        if data is None:
            raise EvidenceError(
                "the audited table was in memory; save it and give it: --data FILE, or data= in Python"
            )
        if isinstance(data, (str, PathLike)) and not Path(data).exists():
            raise EvidenceError(
                f"the audited table {data!r} was not found; give it: --data FILE, or data= in Python"
            )
        return read_table(data, self.report.subject.texts)

    @cached_property
    def table(self) -> AuditData:
        """The table as the audit prepared it."""
        subject = self.report.subject
        return prepare(
            self.frame,
            target=subject.target,
            cluster=subject.cluster,
            task=subject.task,
            inputs=ModelInputs(columns=subject.features, anything=True),
            sample_weight=subject.sample_weight,
        )

    @cached_property
    def preregistration(self) -> dict[str, Any] | None:
        """What was committed before the audit."""
        return confirm_preregistration(
            self.archive.client,
            self.run,
            self.subject,
            self.evidence.preregistration,
            self.trusted,
            report=self.report,
            table=self.table,
        )


def _read_evidence(archive: Archive, run: Any, demanded: str | None) -> Evidence:
    """Return the unsigned evidence of the audit; refuse it if it is not the demanded one.

    It has the digests of all files of the audit, which `audit_files` compares. So no number can change
    without another digest of the evidence.
    """
    document = archive.read(run, FILE, LARGEST)
    found = digest_bytes(document)
    if demanded is not None and found != demanded.lower():
        raise EvidenceError(
            f"the record of run {run.info.run_id} is not the one that the audit handed on: the digest of "
            f"b3/{FILE} is {found}, not {demanded.lower()}. Somebody changed it afterwards, or the run "
            "is another one"
        )
    opened = open_sealed(document, ())
    if opened.evidence.format != FORMAT:
        raise EvidenceError("it was recorded by an earlier version; audit the model again")
    return opened.evidence


@check("measured_at")
def measured_at(record: _AuditToSign) -> str:
    """Check that the audit was not measured in the future."""
    if measured(record.evidence) > record.now + SKEW:
        raise EvidenceError(
            f"the time of the audit's last refit, {record.evidence.measured_at}, is in the future"
        )
    return f"the audit's last refit ended at {record.evidence.measured_at}"


@check("report")
def report(record: _AuditToSign) -> str:
    """Check that the report agrees with the evidence and with the audit's run."""
    report, evidence = record.report, record.evidence
    wrong = [
        name
        for name, same in (
            ("results", dict(metrics_of(report)) == evidence.results),
            ("settings", parameters_of(report) == evidence.settings),
            ("data_digest", report.subject.data_digest == evidence.data_digest),
            ("rows_digest", report.subject.rows_digest == evidence.rows_digest),
            ("folds_digest", report.plan.folds_digest == evidence.folds_digest),
            ("model_digest", report.subject.model_digest == evidence.model_digest),
            ("measured_at", report.measured.measured_at == evidence.measured_at),
            ("partial", not report.partial),
            ("curves", not list(changed_curves(record.run.data.metrics, report))),
        )
        if not same
    ]
    if wrong:
        raise EvidenceError(f"the audit's files contradict its evidence: {', '.join(wrong)}")
    return "MLflow's records agree with the audit's files"


@check("data")
def audited_table(record: _AuditToSign) -> str:
    """Check that the table is the audited one."""
    audited = record.report.subject.data_digest
    require_digest("the table", record.table.digest, audited)
    return f"the table is the audited one, {audited}"


@check("table_facts")
def table_facts(record: _AuditToSign) -> str:
    """Check the facts that follow from the table alone."""
    subject, table = record.report.subject, record.table
    training_digest = digest_like_training(record.frame, subject.run_id)
    wrong = [
        name
        for name, same in (
            ("n_rows", table.n_rows == subject.n_rows),
            ("n_clusters", table.n_clusters == subject.n_clusters),
            ("n_repeated", table.n_repeated == subject.n_repeated),
            ("training_digest", training_digest == subject.training_digest),
            ("rows_digest", table.rows_digest == subject.rows_digest),
            ("constant_loss", _constant_agrees(record.report, table)),
        )
        if not same
    ]
    reported = {finding.code for finding in record.report.findings}
    size = size_findings(training_table(subject.run_id).rows, table.n_rows)
    hidden = sorted({finding.code for finding in (*table.findings, *size)} - reported)
    wrong += [f"the finding {code} is missing" for code in hidden]
    if wrong:
        raise EvidenceError(f"the report contradicts the table: {', '.join(wrong)}")
    return (
        "rows, clusters, the loss of the best constant prediction and the findings agree with the table "
        f"({table.n_rows} rows, {table.n_clusters} clusters)"
    )


def _constant_agrees(report: AuditReport, table: AuditData) -> bool:
    subject = report.subject
    score = named_score(subject.loss)
    if score is None and named_loss(subject.loss) is None:  # the user's own function
        return report.constant_loss is None
    if score is None:
        loss = resolve_loss(subject.loss, subject.task)
        constant = constant_loss(loss, table.target, subject.task)
    else:
        constant = score.constant_score(table.target)
    if not report.plan.threshold_given and not _nearly_equal(report.threshold, constant):
        return False
    return _nearly_equal(report.constant_loss, constant)


@check("folds")
def folds(record: _AuditToSign) -> str:
    """Check that the recorded folds match the report."""
    splits = record.report.splits
    if splits is None or digest_folds(splits) != record.report.plan.folds_digest:
        raise EvidenceError("the recorded folds do not match the report")
    sizes = summarize_folds(splits, record.table)
    shown = tuple(replace(fold, loss=None) for fold in record.report.folds)
    if sizes != shown:
        raise EvidenceError("the sizes of the folds do not match the recorded rows")
    return f"the {len(splits)} folds match the recorded rows"


@check("measurements")
def measurements(record: _AuditToSign) -> str:
    """Check that the recorded losses are possible for the rows of these folds."""
    subject = record.report.subject
    found, splits = record.report.measurements, record.report.splits
    if found is None or splits is None:
        raise EvidenceError("the measured losses were not recorded")
    lengths = [len(losses) for losses in found.row_losses]
    if lengths != [len(fold.validation) for fold in splits]:
        raise EvidenceError("the number of losses differs from the number of validation rows")
    losses = np.concatenate(found.row_losses)
    low = -math.inf if subject.loss_floor is None else subject.loss_floor
    high = math.inf if subject.loss_bound is None else subject.loss_bound
    if named_score(subject.loss) is not None:  # what a row adds to a score has no such limits
        low, high = -math.inf, math.inf
    if not np.isfinite(losses).all() or losses.min() < low or losses.max() > high:
        raise EvidenceError(f"there are values that the loss {subject.loss} cannot have")
    if not _nearly_equal(found.loco, _loco_again(record, found, splits)):
        raise EvidenceError("LOCO is not the mean of the recorded losses")
    return f"all {len(losses)} losses of validation rows are possible values of {subject.loss}"


def _loco_again(record: _AuditToSign, found: Measurement, splits: Sequence[Fold]) -> float:
    """Return LOCO by the recorded losses of rows."""
    if record.report.plan.n_train is not None:  # measured with many samples of that size
        return found.curve.loss[0]
    if found.doses is None:
        return float(np.concatenate(found.row_losses).mean())
    table, doses = record.table, found.doses
    whole, _ = by_pass([fold.validation for fold in splits], found.row_losses, table.n_rows)
    means = cluster_means(whole, table.clusters)
    same_clusters = np.array_equal(np.bincount(table.clusters), doses.sizes)
    if not (same_clusters and means.shape == doses.loco.shape) or not np.allclose(
        means, doses.loco, rtol=TOLERANCE, atol=TOLERANCE**2, equal_nan=True
    ):
        raise EvidenceError("the losses of clusters are not the means of the recorded losses")
    # clusters count by all of their rows, as in e0
    rows = np.where(np.isfinite(means).any(axis=0), doses.sizes, 0)
    return float(rows @ doses.mean_loco / rows.sum())


@check("conclusions")
def conclusions(record: _AuditToSign) -> str:
    """Check that the conclusions follow from the measurements."""
    again, report = recompute(record.report), record.report
    wrong = [
        name
        for recorded, found in (
            (report.measured.to_dict(), again.measured.to_dict()),
            (report.conclusion.to_dict(), again.conclusion.to_dict()),
        )
        for name, value in recorded.items()
        if not _nearly_equal(value, found[name])
    ]
    if not _influence_agrees(report.influence, again.influence):
        wrong.append("the influence of each cluster")
    for part in report.extensions:
        wrong += [name for name, equal in part.sums().items() if not _nearly_equal(*equal)]
    if wrong:
        raise EvidenceError(f"results do not follow from the measurements: {', '.join(wrong)}")
    return "e0, its interval, all curves, tipping points and the test follow from the measurements"


def _influence_agrees(recorded: Influence | None, found: Influence | None) -> bool:
    """Whether the table by which models are compared in pairs follows from the measurements."""
    if recorded is None or found is None:
        return recorded is found
    if recorded.unit != found.unit or not np.array_equal(recorded.ids, found.ids):
        return False
    return all(
        one.shape == other.shape
        and np.allclose(one, other, rtol=0, atol=INFLUENCE_TOLERANCE * np.abs(other).max(initial=0))
        for one, other in (
            (recorded.share, found.share),
            (recorded.loco, found.loco),
            (recorded.e0, found.e0),
        )
    )


@check("preregistered")
def preregistered(record: _AuditToSign) -> str:
    """Check what was committed before the audit."""
    committed = record.preregistration
    if committed is None:
        return "nothing was committed before the audit"
    when = committed["committed_at"]
    if when is None:
        return "there are commitments for this model, but none that can be verified and is older"
    if committed["contradicted"]:
        return (
            f"the audit claims the settings that were committed at {when}, but its report contradicts "
            f"them: {', '.join(committed['contradicted'])}. So they do not count as committed beforehand"
        )
    if committed["hash"] is None:
        return f"settings were committed at {when}, but the audit's record does not say that it has them"
    if not committed["matched"]:
        return f"other settings were committed beforehand, at {when}"
    unseen = committed["not_compared"]
    claimed = f"; only the audit itself says so of {', '.join(unseen)}" if unseen else ""
    return f"its settings were committed beforehand, at {when}{claimed}"


#: In stages: after a failure, the results of later stages would mean nothing.
STAGES: tuple[tuple[Check[_AuditToSign], ...], ...] = (
    (*WRITTEN, measured_at),
    (report,),
    (audited_table,),
    (table_facts, folds),
    (measurements, conclusions),
    (preregistered,),
)


def _run_checks(record: _AuditToSign) -> tuple[Reason, ...]:
    found: list[Reason] = []
    for stage in STAGES:
        found += [each(record) for each in stage]
        if any(reason.outcome == FAIL for reason in found):
            break
    return tuple(found)


def _nearly_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same within the tolerance between machines."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _nearly_equal(one[name], other[name]) for name in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_nearly_equal, one, other))
    numbers = (int, float, np.floating)
    if isinstance(one, numbers) and isinstance(other, numbers) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    if pd.api.types.is_scalar(one) and pd.api.types.is_scalar(other):
        return bool(one == other) or (one is None and other is None)
    return False
