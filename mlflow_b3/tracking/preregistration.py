"""`preregister`: the settings of an audit, committed before it runs."""

import dataclasses
import logging
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_b3.auditing.extension import EXTENSIONS, find_extension
from mlflow_b3.auditing.leakage import EVIDENCE, MATCH_COLUMN, TABLES, LeakageClaim, make_claim
from mlflow_b3.auditing.report import DOSE, AuditReport, SubjectSummary
from mlflow_b3.data.folds import digest_folds, make_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.scores import resolve_scoring
from mlflow_b3.data.table import AuditData, digest_table, label_clusters, read_table
from mlflow_b3.errors import EvidenceError, InputError, ModelError
from mlflow_b3.evidence.document import (
    canonical,
    digest,
    key_id,
    open_content,
    seal_content,
    signing_key,
    trusted_keys,
)
from mlflow_b3.evidence.policy import load_policy
from mlflow_b3.measurement.design import parse_budget, parse_levels
from mlflow_b3.measurement.refits import parse_fragments
from mlflow_b3.options import check_names, committed_options, flat_options
from mlflow_b3.refit.learner import AuditedModel
from mlflow_b3.refit.loading import (
    URI_FORMS,
    declared_texts,
    digest_model,
    digest_of,
    model_info,
    read_artifact,
    resolve_source,
)
from mlflow_b3.refit.trainer import StoredCode, find_trainer, import_function
from mlflow_b3.results import Result, read_number, read_share
from mlflow_b3.tracking.audits import runs_of, subject_of
from mlflow_b3.tracking.metrics_and_files import FOLDER, POLICY
from mlflow_b3.tracking.runs import child_tags, new_run, remove_twins, tracking_errors

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


# --- The arguments of an audit as plain values, equal if the audits would be the same

#: Committed separately, by their digests.
APART = ("model", "data")
#: Longer lists are committed by their digest.
LONGEST_LIST = 50


def commit_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an audit that affect its numbers, including defaults.

    Files and tables are represented by their content. The cluster labels are part of the table.

    Parameters
    ----------
    arguments : mapping
        Arguments of `mlflow_b3.audit` by name, without model and data; `cluster` is a column name.

    Raises
    ------
    InputError
        If values have no content to compare later, such as functions; reports all of them at once.
    """
    check_names(arguments)
    options = [option for option in committed_options() if option.name not in APART]
    values = _normalize(
        {option.name: arguments.get(option.name, option.default) for option in options}
    )
    for name in ("scoring", "by"):
        if values[name] is None:  # settings of earlier versions keep their hash
            del values[name]
    committed, problems = {}, []
    for name, value in values.items():
        try:
            committed[name] = _to_plain(_resolve_content(name, value))
        except (_NoContentError, OSError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise InputError.from_problems("the settings of the audit cannot be committed", problems)
    return committed


class _NoContentError(Exception):
    """A value has no content that can be compared later."""


def _normalize(values: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in one form, if they can be written in several."""
    options, name, cluster = (values.pop(key) for key in ("method_options", "method", "cluster"))
    by_doses = isinstance(name, str) and name == DOSE  # which has no options
    method = {"name": DOSE} if by_doses else find_extension(name, options or {}).describe(cluster)
    fragments, p0 = values["fragments"], read_share(values["p0"])
    return {
        **values,
        "cluster_error": read_share(values["cluster_error"]),
        "split_rate": read_share(values["split_rate"]),
        "p0_validation": read_number(values["p0_validation"]),
        "threshold": read_number(values["threshold"]),
        "method": method,
        "budget": parse_budget(values["budget"]),
        "levels": parse_levels(values["levels"]),
        "fragments": None if fragments is None else str(parse_fragments(fragments)),
        "p0": None if isinstance(p0, str) and p0 == "grid" else p0,
        "refit_options": values["refit_options"] or None,
    }


def _resolve_content(name: str, value: Any) -> Any:
    """Replace the name of a file or function by its content."""
    if name == "trainer" and isinstance(value, str):
        import_function(value)
        path = getattr(sys.modules[value.partition(":")[0]], "__file__", None)
        if path is None:
            raise _NoContentError(f"{value!r} has no source file.")
        return {"function": value, "code": Path(path)}
    if isinstance(value, StoredCode):
        return {"function": value.function, "code": dict(value.files)}
    always = name in ("resolved_rows", "partition_samples")
    by_ending = {"match_probability": TABLES, "folds": (".csv",)}.get(name, ())
    if isinstance(value, str) and (always or Path(value).suffix.lower() in by_ending):
        return Path(value)
    return value


def _to_plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    if isinstance(value, Path):
        return {"sha256": digest(value.read_bytes())}
    if isinstance(value, (pd.DataFrame, pd.Series)):
        labels = value.index.to_frame(index=False)
        table = value.to_frame() if isinstance(value, pd.Series) else value
        return {"table": digest_table(table.rename(columns=str)), "labels": digest_table(labels)}
    if isinstance(value, Mapping):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {type(value).__name__: _to_plain(named)}
    if isinstance(value, (list, tuple)):
        items = [_to_plain(item) for item in value]
        if len(items) <= LONGEST_LIST:
            return items
        return {"items": len(items), "sha256": digest(canonical(items).encode())}
    raise _NoContentError(
        f"{value!r} has no content that can be compared later; give a name, a number, a table or a "
        "file."
    )


# --- `preregister`

KIND, FORMAT = "commitment", "mlflow-b3 commitment 1"
FILE = "commitment.json"
#: Larger documents are not read.
LARGEST = 1_000_000
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Commitment(Result):
    """The settings of one audit of one model on one table.

    Attributes
    ----------
    subject : str
        The model, as the tag `b3.subject` names it.
    model_digest, data_digest : str
    settings : dict
        All arguments of the audit that affect its numbers.
    committed_at : str
        In UTC; not part of the hash.
    """

    subject: str
    model_digest: str
    data_digest: str
    settings: dict[str, Any]
    committed_at: str = ""
    format: str = FORMAT

    @property
    def hash(self) -> str:
        """SHA-256 of everything but the time."""
        content = self.to_dict()
        del content["committed_at"]
        return digest(canonical(content).encode())


def preregister(model: str, data: Any, *, target: str, cluster: Any, **arguments: Any) -> str:
    """Commit the settings of an audit before it runs, so that nobody can choose them by the result.

    The commitment is written to a child run of the model's run, and signed if the environment names a
    key (MLFLOW_B3_SIGNING_KEY). The evidence of an audit with the same settings refers to it; a policy
    can require that.

    Parameters
    ----------
    model : str
        A model in MLflow, as in `mlflow_b3.audit`. It is not loaded.
    data : DataFrame or path
    target, cluster, **arguments
        As in `mlflow_b3.audit`. Files and tables are committed by their content. Functions cannot be
        committed: give a trainer as "module:function", and a loss by its name.

    Returns
    -------
    str
        The hash of the settings, the model's files and the table.

    Examples
    --------
    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    >>> with mlflow.start_run():
    ...     logged = mlflow.sklearn.log_model(
    ...         GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
    ...     )
    >>> committed = b3.preregister(
    ...     logged.model_uri,
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> len(committed)
    64
    """
    from mlflow import MlflowClient

    if not isinstance(model, str):
        raise InputError(
            f"model={type(model).__name__} cannot be committed; log it to MLflow and give {URI_FORMS}."
        )
    key, client = signing_key(), MlflowClient()
    info = model_info(model)
    with tracking_errors("the commitment"):
        try:
            source = resolve_source(client, model)
            model_digest = digest_of(digest_model(source.location))
        except EvidenceError as error:
            raise ModelError(f"model={model!r}: its files cannot be committed: {error}") from error
        commitment = make_commitment(
            subject_of(client, source.model_id, model, source.run_id),
            model_digest,
            info.run_id,
            data,
            {"target": target, "cluster": cluster, **arguments},
            texts=declared_texts(info),
            committed_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        _write_commitment(client, commitment, source.run_id, source.model_id, key)
    return commitment.hash


def make_commitment(
    subject: str,
    model_digest: str,
    run_id: str | None,
    data: Any,
    arguments: Mapping[str, Any],
    *,
    texts: Sequence[str] = (),
    committed_at: str = "",
) -> Commitment:
    """Return the commitment to an audit of a model with given arguments.

    Parameters
    ----------
    subject, model_digest : str
    run_id : str or None
        The run that may hold a trainer.
    data : DataFrame or path
    arguments : mapping
        Arguments of `mlflow_b3.audit` by name.
    texts : sequence of str
        Columns that the model reads as text.
    committed_at : str
    """
    given = flat_options(arguments)
    if given.get("trainer") is None and given.get("refit", "auto") in ("auto", "trainer"):
        given["trainer"] = find_trainer(run_id)
    frame, cluster = label_clusters(read_table(data, texts), given["cluster"])
    settings = commit_arguments({**given, "cluster": cluster})
    return Commitment(
        subject=subject,
        model_digest=model_digest,
        data_digest=digest_table(frame.rename(columns=str)),
        settings={**settings, "cluster": cluster},
        committed_at=committed_at,
    )


def _write_commitment(
    client: Any,
    commitment: Commitment,
    run_id: str | None,
    model_id: str | None,
    key: "Ed25519PrivateKey | None",
) -> None:
    """Write a commitment to a new run, and to tags of the model and its run."""
    experiment, tags = child_tags(client, run_id, "b3 commitment")
    if run_id is None and model_id is not None:
        experiment = client.get_logged_model(model_id).experiment_id
    document = seal_content(KIND, FORMAT, commitment.to_dict(), key)
    child = new_run(client, experiment, tags)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        path.write_text(document, encoding="utf-8")
        client.log_artifact(child, str(path), FOLDER)
    # first, because a run with only a subject counts as an audit, and that cannot be undone
    client.set_tag(child, "b3.commitment", commitment.hash)
    client.set_tag(child, "b3.subject", commitment.subject)
    remove_twins(client, child)
    client.set_terminated(child)
    shown = f"{commitment.hash} {commitment.committed_at}"
    if run_id is not None:
        client.set_tag(run_id, "b3.preregistered", shown)
    if model_id is not None:
        client.set_logged_model_tags(model_id, {"b3.preregistered": shown})


@dataclass(frozen=True, kw_only=True)
class Preregistration:
    """What was committed for a model before an audit of it began.

    Attributes
    ----------
    hash : str or None
        Of the audit's own settings; None if they cannot be committed.
    data_digest : str or None
        Of the table for which the commitments were compared.
    committed_at, commitment_run_id : str or None
        The earliest commitment to these settings, or else the newest to others; None if none can be
        verified.
    matched : bool
    signed_by : str or None
        The id of the trusted key that signed it.
    commitments : int
        Number of different settings committed for the model.
    """

    hash: str | None
    data_digest: str | None
    committed_at: str | None
    commitment_run_id: str | None
    matched: bool
    signed_by: str | None
    commitments: int

    def as_evidence(self, report: AuditReport) -> dict[str, Any]:
        """Return the entry `preregistration` of an audit's evidence."""
        same_table = self.data_digest == report.subject.data_digest
        return {
            "hash": self.hash,
            "committed_at": self.committed_at,
            "commitment_run_id": self.commitment_run_id,
            "matched": self.matched and same_table,
            "signed_by": self.signed_by,
            "commitments": self.commitments,
            "same_table": same_table,
        }


@dataclass(frozen=True, kw_only=True)
class _VerifiedCommitment:
    """A verified commitment and its run."""

    commitment: Commitment
    run_id: str
    signed_by: str | None


def find_preregistration(
    client: Any,
    audited: AuditedModel,
    audit_run_id: str,
    data: Any,
    arguments: Mapping[str, Any],
) -> Preregistration | None:
    """Return what was committed before an audit began; None if nothing was.

    Parameters
    ----------
    client : MlflowClient
    audited : AuditedModel
    audit_run_id : str
        The audit's own run, which has started.
    data, arguments
        The data and arguments of the audit.
    """
    with tracking_errors("what was committed beforehand"):
        subject = subject_of(client, audited.model_id, audited.uri, audited.run_id)
        runs = [run for run in runs_of(client, subject) if "b3.commitment" in run.data.tags]
        if not runs:
            return None
        began = client.get_run(audit_run_id).info.start_time
        trusted = trusted_keys(load_policy(environ.get(POLICY) or None).trusted_keys)
        found = [
            f for run in runs if (f := _read_commitment(trusted, run, subject, began)) is not None
        ]
    own = None
    try:
        if audited.model_digest is not None:
            own = make_commitment(
                *(subject, audited.model_digest, audited.run_id, data, arguments),
                texts=audited.inputs.texts,
            )
    except InputError as error:
        _LOG.warning("The audit's settings differ from the committed ones: %s", error)
    if own is None:
        return _compare_commitments(runs, found, None, None)
    return _compare_commitments(runs, found, own.hash, own.data_digest)


def _compare_commitments(
    runs: list[Any], found: list[_VerifiedCommitment], hashed: str | None, data_digest: str | None
) -> Preregistration:
    """Compare the commitments of a model with the settings of an audit, given by their hash."""
    matching = [each for each in found if each.commitment.hash == hashed]
    # signed ones first
    matching.sort(key=lambda each: (each.signed_by is None, each.commitment.committed_at))
    shown = next(iter([*matching, *found]), None)
    return Preregistration(
        hash=hashed,
        data_digest=data_digest,
        committed_at=None if shown is None else shown.commitment.committed_at,
        commitment_run_id=None if shown is None else shown.run_id,
        matched=bool(matching),
        signed_by=None if shown is None else shown.signed_by,
        commitments=len({run.data.tags["b3.commitment"] for run in runs}),
    )


def confirm_preregistration(
    client: Any,
    audit: Any,
    subject: str,
    claimed: dict[str, Any] | None,
    trusted: tuple[str, ...],
    *,
    report: AuditReport,
    table: AuditData,
) -> dict[str, Any] | None:
    """Check again what was committed before an audit; None if nothing was.

    The audit's evidence says which commitment its settings are, by their hash. That counts only if
    the model, the table and the settings of the report are those of the commitment.

    Parameters
    ----------
    client : MlflowClient
    audit : Run
        The run of the audit.
    subject : str
        The audited model.
    claimed : dict or None
        The entry in the audit's evidence. Only the hash of the settings is taken from it.
    trusted : tuple of str
        Public keys.
    report : AuditReport
    table : AuditData
        The audited table.

    Returns
    -------
    dict or None
        As in the evidence of the audit, with the settings that the report contradicts, and those that
        it does not show.
    """
    runs = [run for run in runs_of(client, subject) if "b3.commitment" in run.data.tags]
    if not runs:
        return None
    began = audit.info.start_time
    found = [f for run in runs if (f := _read_commitment(trusted, run, subject, began)) is not None]
    confirmed = _compare_commitments(runs, found, (claimed or {}).get("hash"), None)
    contradicted: list[str] = []
    not_compared: list[str] = []
    if confirmed.matched:
        (commitment,) = (f.commitment for f in found if f.run_id == confirmed.commitment_run_id)
        contradicted = list(_contradicted(commitment, report, table))
        not_compared = _not_compared(commitment.settings)
    return {
        "hash": confirmed.hash,
        "committed_at": confirmed.committed_at,
        "commitment_run_id": confirmed.commitment_run_id,
        "matched": confirmed.matched and not contradicted,
        "signed_by": confirmed.signed_by,
        "commitments": confirmed.commitments,
        "contradicted": contradicted,
        "not_compared": not_compared,
    }


#: The name under which the method "auto" is committed, which solves by doses if it can.
USUAL = "power"
#: What is known about the leakage, as plain values and as evidence.
RATES = ("p0", "p0_validation", "cluster_error", "split_rate")
EVIDENCE_OF_RATES = (
    *("match_probability", "resolved_rows", "linkage_quality", "partition_samples"),
)
#: Settings that leave no trace in a report that could be compared, with the value without effect.
UNSEEN: dict[str, Any] = {
    "by": None,
    "budget": [None, None],
    "fit_timeout": None,
    "levels": "optimal",
    "distribution": False,
    "refit_options": None,
    "reviewer": None,
    "row_id": None,
}
#: Settings that are committed by the digest of a file or table, of which a report shows only the use.
BY_DIGEST = ("trainer", *EVIDENCE_OF_RATES)


def _not_compared(settings: Mapping[str, Any]) -> list[str]:
    """Return the committed settings that a report does not show, without those of no effect."""
    unseen = [name for name, usual in UNSEEN.items() if settings.get(name, usual) != usual]
    by_digest = [name for name in BY_DIGEST if settings.get(name) is not None]
    folds = ["folds"] if _are_given(settings["folds"]) else []
    return [*unseen, *by_digest, *folds]


def _contradicted(commitment: Commitment, report: AuditReport, table: AuditData) -> Iterator[str]:
    """Yield what was committed and is otherwise in the report."""
    settings, subject, plan = commitment.settings, report.subject, report.plan
    named = {
        "target": subject.target,
        "cluster": subject.cluster,
        "sample_weight": subject.sample_weight,
        "seed": plan.seed,
        "scheme": plan.scheme,
        "n_train": plan.n_train,
        "fold_threshold": plan.fold_threshold,
        "purge_threshold": plan.purge_threshold,
        "threshold": plan.threshold if plan.threshold_given else None,
        "test": report.test.method,
    }
    if commitment.model_digest != subject.model_digest:
        yield "the model's files"
    if commitment.data_digest != subject.data_digest:
        yield "the table"
    yield from (name for name, found in named.items() if settings[name] != found)
    yield from _contradicted_score(settings, subject)
    if not _claims_agree(settings, report.claim):
        yield "what was known about the ids"
    if not _folds_agree(settings, report, table):
        yield "folds"
    if settings["repeats"] not in (None, plan.repeats):
        yield "repeats"
    if settings["fragments"] not in (None, plan.fragment_sizes):
        yield "fragments"
    if settings["refit"] not in ("auto", report.refit.route):
        yield "refit"
    if (settings["trainer"] is not None) != (report.refit.route == "trainer"):
        yield "trainer"
    if not _methods_agree(settings["method"], report):
        yield "method"


def _contradicted_score(settings: Mapping[str, Any], subject: SubjectSummary) -> Iterator[str]:
    scoring = settings.get("scoring")
    if scoring is None:
        if resolve_loss(settings["loss"], subject.task).name != subject.loss:
            yield "loss"
        return
    score = resolve_scoring(scoring)
    if (score if isinstance(score, str) else score.name) != subject.loss:
        yield "scoring"


def _claims_agree(settings: Mapping[str, Any], found: LeakageClaim) -> bool:
    """Whether a report's statement about the ids is the committed one."""
    rates = {name: settings[name] for name in RATES}
    nothing = all(value is None for value in rates.values())
    if nothing and any(settings[name] is not None for name in EVIDENCE_OF_RATES):
        return found.source in (*EVIDENCE, MATCH_COLUMN)
    if nothing and find_extension(settings["method"]["name"], {}).takes_ids_as_right:
        rates["cluster_error"] = 0.0
    claim = make_claim(**rates)
    said = claim.summary()
    same_rates = claim.asks_rows or said.range == found.range
    return same_rates and all(
        getattr(said, name) == getattr(found, name)
        for name in ("source", "p0_validation", "split_range")
    )


def _folds_agree(settings: Mapping[str, Any], report: AuditReport, table: AuditData) -> bool:
    """Whether a report's folds are those that the committed settings make."""
    folds, plan = settings["folds"], report.plan
    if _are_given(folds) or plan.folds_given:
        return _are_given(folds) and plan.folds_given
    if plan.fold_threshold is not None or plan.purge_threshold is not None:
        return True  # they depend on the scored pairs
    made = make_folds(table, folds, seed=plan.seed, repeats=plan.repeats)
    return digest_folds(made) == plan.folds_digest


def _are_given(folds: Any) -> bool:
    """Whether the folds themselves were committed, not how to make them."""
    return folds is not None and not isinstance(folds, (int, str))


def _methods_agree(committed: Mapping[str, Any], report: AuditReport) -> bool:
    name, plan = committed["name"], report.plan
    if name in EXTENSIONS or report.extensions:
        return name in EXTENSIONS and bool(report.extensions)
    if name == USUAL:
        return plan.method in (USUAL, DOSE)
    return plan.method == name and plan.method_options == {
        key: value for key, value in committed.items() if key != "name"
    }


def _read_commitment(
    trusted: tuple[str, ...], run: Any, subject: str, began: int
) -> _VerifiedCommitment | None:
    """Return the commitment of a run, if it is for this model and was made before the audit."""
    try:
        content = read_artifact(run.info.artifact_uri, f"{FOLDER}/{FILE}", LARGEST)
        values, signed_by = open_content(KIND, FORMAT, content, LARGEST, trusted)
        commitment = Commitment.from_dict(values)
        if commitment.hash != run.data.tags["b3.commitment"] or commitment.subject != subject:
            raise EvidenceError("it is not the commitment that the tags of its run name")
        if run.info.lifecycle_stage != "active":
            raise EvidenceError("its run is deleted")
        when = datetime.fromisoformat(commitment.committed_at)
        if max(when.timestamp() * 1000, run.info.start_time) >= began:
            raise EvidenceError("it was not made before the audit began")
    except (EvidenceError, TypeError, ValueError, AttributeError) as error:
        _LOG.warning("The commitment of run %s does not count: %s", run.info.run_id, error)
        return None
    signer = None if signed_by is None else key_id(signed_by)
    return _VerifiedCommitment(commitment=commitment, run_id=run.info.run_id, signed_by=signer)
