"""`attest`: checks what an audit has left in MLflow, and signs it.

An audit runs code of the model that it audits, so it never holds the key. Signing is a step of its
own, in a process that loads no model: it reads the model's files, the table and the audit's files
again, draws every conclusion anew from the measured losses, and signs what it has confirmed.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_b3.auditing.conclusions import NOT_RECOMPUTED, recompute
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.auditing.subject import size_findings
from mlflow_b3.data.folds import digest_folds, summarize_folds
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, constant_loss, resolve_loss
from mlflow_b3.data.table import AuditData, ModelInputs, prepare, read_table
from mlflow_b3.errors import EvidenceError, InputError, TrackingError
from mlflow_b3.evidence.document import (
    ENVELOPE,
    FILE,
    FORMAT,
    LARGEST,
    SIGNING_KEY,
    Evidence,
    encode_public_key,
    key_id,
    open_sealed,
    seal,
    seal_token,
    signing_key,
    trusted_keys,
)
from mlflow_b3.evidence.policy import Policy
from mlflow_b3.evidence.verdict import FAIL, SKEW, Reason
from mlflow_b3.gating.archive import (
    LARGEST_REPORT,
    Archive,
    audits_with_evidence,
    changed_curves,
    find_run,
    measured,
    signed_audits,
)
from mlflow_b3.gating.gate import policy_in_force, ran, record_checks
from mlflow_b3.refit.loading import (
    ModelSource,
    digest_like_training,
    resolve_source,
    training_table,
)
from mlflow_b3.results import Result
from mlflow_b3.tracking.audits import runs_of, subject_of
from mlflow_b3.tracking.preregistration import confirm_preregistration
from mlflow_b3.tracking.runs import child_tags, new_run, remove_twins, tracking_errors
from mlflow_b3.tracking.showing import courtesy, show_on_versions
from mlflow_b3.tracking.writing import FOLDER, load_report, metrics_of, parameters_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


#: How far numbers may differ between machines. Solvers of another processor end elsewhere by less.
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Attestation(Result):
    """Whether an audit was confirmed and signed.

    Attributes
    ----------
    attested : bool
        Everything was confirmed, and the evidence is signed.
    checks : tuple of Reason
        What was checked, and what was found.
    model : str
        As it was given.
    audit_run_id : str
        The run of the audit.
    attestation_run_id : str or None
        The run that holds the signed evidence.
    key : str
        The id of the key that signed.
    attested_at : str

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

    def __str__(self) -> str:
        """Return what was checked and found, in plain words."""
        from mlflow_b3.gating.gate import attestation_text

        return attestation_text(self)


def attest(
    model: str,
    data: Any = None,
    *,
    audit: str | None = None,
    policy: Policy | str | PathLike[str] | None = None,
) -> Attestation:
    """Check a recorded audit, and sign its evidence with the key in MLFLOW_B3_SIGNING_KEY.

    Run it where the key is, and where no model is loaded. It reads the model's files, the table and
    the audit's files again and compares their digests; recomputes the facts about the table, the loss
    of the best constant and every conclusion from the recorded measurements; and then signs.

    Parameters
    ----------
    model : str
        The audited model, such as "models:/name/3".
    data : DataFrame or path, optional
        The audited table; by default the file that the audit has read it from.
    audit : str, optional
        The run of the audit; by default the newest of the model.
    policy : Policy or path, optional
        Says which keys are trusted beside the one that signs, for commitments and earlier audits.

    Returns
    -------
    Attestation
        With `attested` false, and nothing signed, where a check has failed.

    Notes
    -----
    The signature says: these files, this table and these measurements belong together, and the
    conclusions follow from them. It does not say that the refits were honest. Code of the model ran in
    the audit, and could have reported other losses; run audits in a container without secrets and
    without a network, and audit models whose code you would serve.

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
            f"{SIGNING_KEY} is not set: attest signs with it. Make a pair with 'mlflow-b3 keys'."
        )
    if not isinstance(model, str):
        raise InputError(f"model={type(model).__name__} must be the address of a model in MLflow.")
    trusted = (*trusted_keys(policy_in_force(policy).trusted_keys), encode_public_key(key))
    archive = Archive(client=MlflowClient())
    try:
        source = resolve_source(archive.client, model)
        subject = subject_of(archive.client, source.model_id, model, source.run_id)
        runs = runs_of(archive.client, subject)
        run = _chosen(archive, runs, audit, model)
    except (MlflowException, EvidenceError) as error:
        raise TrackingError(f"model={model!r}: {error}") from error
    now = datetime.now(UTC)
    inspection = _Inspection(archive, run, source, data, now)
    checks = inspection.checks(subject, trusted)
    attested = all(check.outcome != FAIL for check in checks)
    written = None
    if attested:
        with tracking_errors("the signed evidence"):
            earlier = signed_audits(archive, runs, trusted)
            signed = replace(
                inspection.evidence,
                attested_at=now.isoformat(timespec="milliseconds"),
                attested_checks=tuple(f"{check.check}: {check.text}" for check in checks),
                earlier_audits=tuple(sorted(set(earlier) - {run.info.run_id})),
                preregistration=inspection.preregistration,
            )
            written = write_attestation(archive.client, signed, subject, run, key)
        courtesy(
            "the registered version",
            lambda: show_on_versions(
                archive.client, inspection.report, run.info.run_id, dict(signed.tags)
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
    )


def _chosen(archive: Archive, runs: list[Any], audit: str | None, model: str) -> Any:
    """Return the run of the audit to sign: the one that was named, or the newest."""
    if audit is not None:
        return find_run(archive.client, audit)
    complete = [run for run in audits_with_evidence(runs) if run.info.lifecycle_stage == "active"]
    if not complete:
        raise EvidenceError(
            f"there is no complete audit of it; make one: mlflow-b3 audit --model-uri {model} …"
        )
    return complete[0]


def write_attestation(
    client: Any, evidence: Evidence, subject: str, audit: Any, key: "Ed25519PrivateKey"
) -> str:
    """Write signed evidence to a run of its own: those of audits are not changed any more."""
    experiment, tags = child_tags(client, evidence.run_id or audit.info.run_id, "b3 attestation")
    envelope = seal(evidence, key)
    child = new_run(client, experiment, tags)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ENVELOPE
        path.write_text(envelope, encoding="utf-8")
        client.log_artifact(child, str(path), FOLDER)
    # what it is comes first: a run with a subject alone is an audit, and stays one
    client.set_tag(child, "b3.attests", audit.info.run_id)
    client.set_tag(child, "b3.subject", subject)
    token = seal_token(child, audit.info.run_id, subject, envelope, key)
    client.set_tag(child, "b3.attestation", token)
    remove_twins(client, child)
    client.set_terminated(child)
    return child


class _Inspection:
    """Looks at everything that a signature will vouch for.

    Parameters
    ----------
    archive : Archive
    run : Run
        That of the audit.
    source : ModelSource
        The model, as it is now.
    data : DataFrame, path or None
    now : datetime
    """

    def __init__(
        self, archive: Archive, run: Any, source: ModelSource, data: Any, now: datetime
    ) -> None:
        self.archive, self.run, self.source, self.data, self.now = archive, run, source, data, now
        self.preregistration: dict[str, Any] | None = None
        self.training_digest: str | None = None
        self.evidence: Evidence
        self.report: AuditReport
        self.table: AuditData

    def checks(self, subject: str, trusted: tuple[str, ...]) -> tuple[Reason, ...]:
        """Return what was checked; the first failure of a stage ends it, as the next rests on it."""
        stages: list[Callable[[], Iterator[Reason]]] = [
            self._record,
            self._files,
            self._table,
            self._conclusions,
            lambda: self._terms(subject, trusted),
        ]
        found: list[Reason] = []
        for stage in stages:
            found += stage()
            if any(reason.outcome == FAIL for reason in found):
                break
        return tuple(found)

    def _record(self) -> Iterator[Reason]:
        def read() -> str:
            opened = open_sealed(self.archive.read(self.run, FILE, LARGEST), ())
            if opened.evidence.format != FORMAT:
                raise EvidenceError("it was recorded by an earlier version; audit the model again")
            self.evidence = opened.evidence
            return "it can be read"

        reason = ran("evidence", read)
        if reason.outcome == FAIL:
            yield reason
            return
        yield from record_checks(self.archive, self.run, self.source, self.evidence)
        yield ran("measured_at", self._time)

    def _time(self) -> str:
        if measured(self.evidence) > self.now + SKEW:
            raise EvidenceError(
                f"the audit claims to have been measured in the future, at {self.evidence.measured_at}"
            )
        return f"the audit's last refit ended at {self.evidence.measured_at}"

    def _files(self) -> Iterator[Reason]:
        """Read the report from the audit's files, which are those that it wrote."""

        def read() -> str:
            with tempfile.TemporaryDirectory() as folder:
                for name in self.evidence.files:
                    if name.endswith((".json", ".csv")):
                        path = Path(folder) / name
                        path.write_bytes(self.archive.read(self.run, name, LARGEST_REPORT))
                self.report = load_report(folder)
            self._refuse_other_numbers()
            return "what is recorded in MLflow is what the audit's files say"

        yield ran("report", read)

    def _refuse_other_numbers(self) -> None:
        report, evidence = self.report, self.evidence
        settings = report.settings
        wrong = [
            name
            for name, same in (
                ("results", dict(metrics_of(report)) == evidence.results),
                ("settings", parameters_of(report) == evidence.settings),
                ("data_digest", settings.data_digest == evidence.data_digest),
                ("rows_digest", settings.rows_digest == evidence.rows_digest),
                ("folds_digest", settings.folds_digest == evidence.folds_digest),
                ("model_digest", settings.model_digest == evidence.model_digest),
                ("measured_at", settings.measured_at == evidence.measured_at),
                ("partial", not report.partial),
                ("curves", not list(changed_curves(self.run, report))),
            )
            if not same
        ]
        if wrong:
            raise EvidenceError(f"the audit's files contradict its evidence: {', '.join(wrong)}")

    def _table(self) -> Iterator[Reason]:
        yield ran("data", self._read_table)
        if hasattr(self, "table"):
            yield ran("table_facts", self._compare_facts)
            yield ran("folds", self._compare_folds)

    def _read_table(self) -> str:
        settings = self.report.settings
        data = settings.data_source if self.data is None else self.data
        if data is None or (isinstance(data, (str, PathLike)) and not Path(data).exists()):
            raise EvidenceError(
                f"the audited table, {data!r}, is not here; give it: --data FILE, or data= in Python"
                if data is not None
                else "the audited table was in memory; save it, and give it: --data FILE, or data= "
                "in Python"
            )
        frame = read_table(data, settings.texts)
        self.training_digest = digest_like_training(frame, settings.run_id)
        self.table = prepare(
            frame,
            target=settings.target,
            cluster=settings.cluster,
            task=settings.task,
            inputs=ModelInputs(columns=settings.features, anything=True),
            sample_weight=settings.sample_weight,
        )
        if self.table.digest != settings.data_digest:
            digest = self.table.digest
            del self.table
            raise EvidenceError(
                f"the table has the digest {digest}, the audited one {settings.data_digest}; names, "
                "types, values and order of rows and columns all count"
            )
        return f"the table is the one that was audited, {settings.data_digest}"

    def _compare_facts(self) -> str:
        """Hold what follows from the table alone against the report."""
        settings, table = self.report.settings, self.table
        wrong = [
            name
            for name, same in (
                ("n_rows", table.n_rows == settings.n_rows),
                ("n_clusters", table.n_clusters == settings.n_clusters),
                ("n_repeated", table.n_repeated == settings.n_repeated),
                ("training_digest", self.training_digest == settings.training_digest),
                ("rows_digest", table.rows_digest == settings.rows_digest),
                ("constant_loss", self._same_constant()),
            )
            if not same
        ]
        reported = {finding.code for finding in self.report.findings}
        size = size_findings(training_table(settings.run_id).rows, table.n_rows)
        hidden = sorted({finding.code for finding in (*table.findings, *size)} - reported)
        wrong += [f"the finding {code} is missing" for code in hidden]
        if wrong:
            raise EvidenceError(f"the report contradicts the table: {', '.join(wrong)}")
        return (
            f"rows, clusters, the loss of the best constant and findings follow from the table "
            f"({table.n_rows} rows, {table.n_clusters} clusters)"
        )

    def _same_constant(self) -> bool:
        settings = self.report.settings
        known = CLASSIFICATION if settings.task == "classification" else REGRESSION
        if settings.loss not in known:  # a function of the user's
            return self.report.constant_loss is None
        loss = resolve_loss(settings.loss, settings.task)
        constant = constant_loss(loss, self.table.target, settings.task)
        if not settings.threshold_given and not _alike(self.report.threshold, constant):
            return False
        return _alike(self.report.constant_loss, constant)

    def _compare_folds(self) -> str:
        splits, settings = self.report.splits, self.report.settings
        if splits is None or digest_folds(splits) != settings.folds_digest:
            raise EvidenceError("the recorded folds are not those of the report")
        sizes = summarize_folds(splits, self.table)
        shown = tuple(replace(fold, loss=None) for fold in self.report.folds)
        if sizes != shown:
            raise EvidenceError("the sizes of the folds are not those of the recorded rows")
        return f"the {len(splits)} folds are those that were recorded"

    def _conclusions(self) -> Iterator[Reason]:
        yield ran("measurements", self._check_losses)
        yield ran("conclusions", self._recompute)

    def _check_losses(self) -> str:
        """Refuse losses that no rows of these folds can have had."""
        measured, splits = self.report.measurements, self.report.splits
        settings = self.report.settings
        if measured is None or splits is None:
            raise EvidenceError("the measured losses were not recorded")
        lengths = [len(losses) for losses in measured.row_losses]
        if lengths != [len(fold.validation) for fold in splits]:
            raise EvidenceError("there are not as many losses as validation rows")
        losses = np.concatenate(measured.row_losses)
        low = -math.inf if settings.loss_floor is None else settings.loss_floor
        high = math.inf if settings.loss_bound is None else settings.loss_bound
        if not np.isfinite(losses).all() or losses.min() < low or losses.max() > high:
            raise EvidenceError(f"there are losses that {settings.loss} cannot have")
        weights = np.array(lengths) / sum(lengths)
        means = np.array([values.mean() for values in measured.row_losses])
        if not _alike(measured.loco, float(weights @ means)):
            raise EvidenceError("the loss by the folds is not the mean of the recorded losses")
        return f"{len(losses)} losses of validation rows, each one that {settings.loss} can have"

    def _recompute(self) -> str:
        again, report = recompute(self.report), self.report
        wrong = [
            name
            for name, value in report.to_dict().items()
            if name not in NOT_RECOMPUTED and not _alike(value, again.to_dict()[name])
        ]
        cvc = report.cvc
        if (
            cvc is not None
            and cvc.cvc is not None
            and not _alike(cvc.cvc, cvc.cv + (cvc.bias or 0))
        ):
            wrong.append("cvc")
        if wrong:
            raise EvidenceError(f"these do not follow from the measurements: {', '.join(wrong)}")
        return (
            "e0, its interval, all curves, tipping points and the test follow from the measurements"
        )

    def _terms(self, subject: str, trusted: tuple[str, ...]) -> Iterator[Reason]:
        def confirm() -> str:
            self.preregistration = confirm_preregistration(
                self.archive.client, self.run, subject, self.evidence.preregistration, trusted
            )
            if self.preregistration is None:
                return "nothing was committed before the audit"
            when = self.preregistration["committed_at"]
            same = "its" if self.preregistration["matched"] else "other"
            return f"{same} settings were committed beforehand, at {when}"

        yield ran("preregistered", confirm)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same, but for the digits in which machines differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    numbers = (int, float, np.floating)
    if isinstance(one, numbers) and isinstance(other, numbers) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    if pd.api.types.is_scalar(one) and pd.api.types.is_scalar(other):
        return bool(one == other) or (one is None and other is None)
    return False
