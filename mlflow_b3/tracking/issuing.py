"""Issues the evidence of an audit: what a gate will rely on, bound to the model's files.

Nothing here signs. An audit runs code of the model, so the process that makes one holds no key;
`mlflow_b3.gating.attesting` checks the evidence and signs it elsewhere.
"""

import logging
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import environ
from typing import Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.evidence import Evidence, digest
from mlflow_b3.gating.keys import SIGNING_KEY
from mlflow_b3.refit.model_files import ModelSource, digest_model, digest_of, resolve_source
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.metrics import metrics_of, parameters_of

#: The path of the policy that gates and servers go by.
POLICY = "MLFLOW_B3_POLICY"
PACKAGES = ("mlflow-b3", "mlflow", "numpy", "scipy", "pandas", "scikit-learn", "cvxpy")
_LOG = logging.getLogger(__name__)


def warn_of_key() -> None:
    """Warn where the environment of an audit holds the signing key, which the model's code can read."""
    if environ.get(SIGNING_KEY):
        _LOG.warning(
            "%s is set where the model's own code runs, which can read it. It is not used here: sign "
            "afterwards, in another process, with 'mlflow-b3 attest'.",
            SIGNING_KEY,
        )


def issue_evidence(
    client: Any,
    report: AuditReport,
    *,
    audit_run_id: str,
    files: Mapping[str, str],
    tags: Mapping[str, str],
    earlier: tuple[str, ...] = (),
    preregistration: dict[str, Any] | None = None,
) -> Evidence | None:
    """Return the evidence of an audit; None where the model is not in MLflow, or has changed.

    Parameters
    ----------
    client : MlflowClient
    report : AuditReport
    audit_run_id : str
    files : mapping of str to str
        The audit's files by name.
    tags : mapping of str to str
        What the tags of a registered version will say.
    earlier : tuple of str
        Runs of earlier audits of the same model.
    preregistration : dict, optional
        What was committed before the audit ran.
    """
    found = _model_files(client, report)
    if found is None:
        return None
    source, present = found
    settings = report.settings
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Evidence(
        issued_at=now,
        measured_at=settings.measured_at or now,
        audit_run_id=audit_run_id,
        model_id=source.model_id,
        run_id=settings.run_id,
        source=source.source,
        model_digest=digest_of(present),
        model_files=present,
        data_digest=settings.data_digest,
        rows_digest=settings.rows_digest,
        folds_digest=settings.folds_digest,
        files={name: digest(text.encode()) for name, text in files.items()},
        settings=parameters_of(report),
        results=dict(metrics_of(report)),
        tags=dict(tags),
        packages=_packages(),
        preregistration=preregistration,
        earlier_audits=earlier,
    )


def _model_files(client: Any, report: AuditReport) -> tuple[ModelSource, dict[str, str]] | None:
    """Return the model's files, if they are still those that were audited."""
    from mlflow.exceptions import MlflowException

    settings = report.settings
    if settings.uri is None or settings.model_digest is None:
        return None
    try:
        source = resolve_source(
            client, f"models:/{settings.model_id}" if settings.model_id else settings.uri
        )
        present = digest_model(source.location)
    except (MlflowException, OSError, EvidenceError) as error:
        _LOG.warning("The audit has no evidence for gates: the model's files: %s", error)
        return None
    if digest_of(present) != settings.model_digest:
        _LOG.warning("The audit has no evidence for gates: the model's files have changed since.")
        return None
    return source, present


def _packages() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
