"""`preregister`: the settings of an audit, committed before it runs."""

import dataclasses
import logging
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_b3.auditing.extension import find_extension
from mlflow_b3.auditing.leakage import TABLES
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.data.table import digest_table, label_clusters, read_table
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


# --- The arguments of an audit as plain values, equal where the audits would be the same

#: What is committed apart: the model and the table, by their digests.
APART = ("model", "data")
#: Longer lists are committed by their digest.
LONGEST_LIST = 50


def commit_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an audit that change its numbers, defaults filled in.

    Files and tables stand for their content. The cluster labels are part of the table.

    Parameters
    ----------
    arguments : mapping
        Those of `mlflow_b3.audit` by name, without the model and the data; `cluster` is the name of
        the column.

    Raises
    ------
    InputError
        For what has no content that could be compared later, such as a function; all at once.
    """
    check_names(arguments)
    options = [option for option in committed_options() if option.name not in APART]
    values = _alike({option.name: arguments.get(option.name, option.default) for option in options})
    committed, problems = {}, []
    for name, value in values.items():
        try:
            committed[name] = _plain(_contents(name, value))
        except (_NoContentError, OSError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise InputError.from_problems("the settings of the audit cannot be committed", problems)
    return committed


class _NoContentError(Exception):
    """A value has no content that could be compared with another one."""


def _alike(values: dict[str, Any]) -> dict[str, Any]:
    """Write in one way what can be written in several."""
    options = values.pop("method_options") or {}
    method = find_extension(values.pop("method"), options).describe(values.pop("cluster"))
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


def _contents(name: str, value: Any) -> Any:
    """Let a text that names a file, or a function, stand for what is in there."""
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


def _plain(value: Any) -> Any:
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
        return {str(name): _plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {type(value).__name__: _plain(named)}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        if len(items) <= LONGEST_LIST:
            return items
        return {"items": len(items), "sha256": digest(canonical(items).encode())}
    raise _NoContentError(
        f"{value!r} has no content that could be compared later; give a name, a number, a table or a "
        "file."
    )


# --- `preregister`: the settings of an audit, committed before it runs

KIND, FORMAT = "commitment", "mlflow-b3 commitment 1"
FILE = "commitment.json"
#: A document that is larger is not read.
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
        All arguments of the audit that change its numbers.
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
        """SHA-256 of all but the time."""
        content = self.to_dict()
        del content["committed_at"]
        return digest(canonical(content).encode())


def preregister(model: str, data: Any, *, target: str, cluster: Any, **arguments: Any) -> str:
    """Commit the settings of an audit before it runs, so that nobody can choose them by the result.

    The commitment is written to a run of its own below the model's, signed where the environment
    names a key (MLFLOW_B3_SIGNING_KEY). An audit with the same settings finds it, and its evidence
    says so; a policy may ask for that.

    Parameters
    ----------
    model : str
        A model in MLflow, as in `mlflow_b3.audit`. It is not loaded.
    data : DataFrame or path
    target, cluster, **arguments
        As in `mlflow_b3.audit`. Files and tables are committed by their content. A function cannot be
        committed: name a trainer as "module:function", a loss by its name.

    Returns
    -------
    str
        The hash of the settings, of the model's files and of the table.

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
        _write(client, commitment, source.run_id, source.model_id, key)
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
    """Return the commitment to an audit of a model with some arguments.

    Parameters
    ----------
    subject, model_digest : str
    run_id : str or None
        The run that may hold a trainer.
    data : DataFrame or path
    arguments : mapping
        Those of `mlflow_b3.audit` by name.
    texts : sequence of str
        Columns that the model takes as text.
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


def _write(
    client: Any,
    commitment: Commitment,
    run_id: str | None,
    model_id: str | None,
    key: "Ed25519PrivateKey | None",
) -> None:
    """Write a commitment to a run of its own, and where people will look for it."""
    experiment, tags = child_tags(client, run_id, "b3 commitment")
    if run_id is None and model_id is not None:
        experiment = client.get_logged_model(model_id).experiment_id
    document = seal_content(KIND, FORMAT, commitment.to_dict(), key)
    child = new_run(client, experiment, tags)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        path.write_text(document, encoding="utf-8")
        client.log_artifact(child, str(path), FOLDER)
    # first that it is a commitment: a run with a subject alone is an audit, and stays one
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
        Of the audit's own settings; None where they cannot be committed.
    data_digest : str or None
        Of the table that was looked at for it.
    committed_at, commitment_run_id : str or None
        The earliest commitment to these settings, or else the newest to others; None where none can
        be confirmed.
    matched : bool
    signed_by : str or None
        The id of the trusted key that signed it.
    commitments : int
        How many different settings were committed for the model.
    """

    hash: str | None
    data_digest: str | None
    committed_at: str | None
    commitment_run_id: str | None
    matched: bool
    signed_by: str | None
    commitments: int

    def as_evidence(self, report: AuditReport) -> dict[str, Any]:
        """Return what the evidence of an audit says about it."""
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
class _Found:
    """A commitment that was confirmed, and where."""

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
    """Return what was committed before an audit began; None where nothing was.

    Parameters
    ----------
    client : MlflowClient
    audited : AuditedModel
    audit_run_id : str
        The audit's own run, which has begun.
    data, arguments
        What the audit is about to be run with.
    """
    with tracking_errors("what was committed beforehand"):
        subject = subject_of(client, audited.model_id, audited.uri, audited.run_id)
        runs = [run for run in runs_of(client, subject) if "b3.commitment" in run.data.tags]
        if not runs:
            return None
        began = client.get_run(audit_run_id).info.start_time
        trusted = trusted_keys(load_policy(environ.get(POLICY) or None).trusted_keys)
        found = [f for run in runs if (f := _read(trusted, run, subject, began)) is not None]
    own = None
    try:
        if audited.model_digest is not None:
            own = make_commitment(
                *(subject, audited.model_digest, audited.run_id, data, arguments),
                texts=audited.inputs.texts,
            )
    except InputError as error:
        _LOG.warning("The audit's settings are not the committed ones: %s", error)
    if own is None:
        return _compared(runs, found, None, None)
    return _compared(runs, found, own.hash, own.data_digest)


def _compared(
    runs: list[Any], found: list[_Found], hashed: str | None, data_digest: str | None
) -> Preregistration:
    """Return what commitments say about an audit whose own settings have a hash."""
    matching = [each for each in found if each.commitment.hash == hashed]
    # one that is signed goes before one that is not
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
) -> dict[str, Any] | None:
    """Look up again what an audit says was committed before it; None where nothing was.

    Parameters
    ----------
    client : MlflowClient
    audit : Run
        That of the audit.
    subject : str
        The audited model.
    claimed : dict or None
        What the audit says; of this only the hash of its own settings is believed, and whether they
        were committed for the table that was audited.
    trusted : tuple of str
        Public keys.
    """
    runs = [run for run in runs_of(client, subject) if "b3.commitment" in run.data.tags]
    if not runs:
        return None
    began = audit.info.start_time
    found = [f for run in runs if (f := _read(trusted, run, subject, began)) is not None]
    said = claimed or {}
    confirmed = _compared(runs, found, said.get("hash"), None)
    return {
        "hash": confirmed.hash,
        "committed_at": confirmed.committed_at,
        "commitment_run_id": confirmed.commitment_run_id,
        "matched": confirmed.matched and said.get("same_table") is True,
        "signed_by": confirmed.signed_by,
        "commitments": confirmed.commitments,
    }


def _read(trusted: tuple[str, ...], run: Any, subject: str, began: int) -> _Found | None:
    """Return the commitment of a run, if it is of this model and was there in time."""
    try:
        content = read_artifact(run.info.artifact_uri, f"{FOLDER}/{FILE}", LARGEST)
        values, signed_by = open_content(KIND, FORMAT, content, LARGEST, trusted)
        commitment = Commitment.from_dict(values)
        if commitment.hash != run.data.tags["b3.commitment"] or commitment.subject != subject:
            raise EvidenceError("it is not the one that its run names")
        if run.info.lifecycle_stage != "active":
            raise EvidenceError("its run is deleted")
        when = datetime.fromisoformat(commitment.committed_at)
        if max(when.timestamp() * 1000, run.info.start_time) >= began:
            raise EvidenceError("it was not made before the audit began")
    except (EvidenceError, TypeError, ValueError, AttributeError) as error:
        _LOG.warning("The commitment of run %s does not count: %s", run.info.run_id, error)
        return None
    signer = None if signed_by is None else key_id(signed_by)
    return _Found(commitment=commitment, run_id=run.info.run_id, signed_by=signer)
