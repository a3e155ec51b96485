"""Issues the evidence of an audit: what a gate will rely on, bound to the model's files."""

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import environ
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.evidence import Evidence, digest, seal
from mlflow_b3.gating.keys import signing_key
from mlflow_b3.gating.policy import Policy, load_policy
from mlflow_b3.gating.verdict import conclude_reasons, judge_results
from mlflow_b3.refit.model_files import ModelSource, digest_model, digest_of, resolve_source
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.metrics import metrics_of, parameters_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The path of the policy that audits and servers go by.
POLICY = "MLFLOW_B3_POLICY"
PACKAGES = ("mlflow-b3", "mlflow", "numpy", "scipy", "pandas", "scikit-learn", "cvxpy")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """Who vouches for an audit: the policy that holds, and the key that signs; both may be absent.

    Read before the first refit, so that a key or a policy that cannot be used costs nothing.
    """

    policy: Policy
    key: "Ed25519PrivateKey | None"

    @classmethod
    def from_environment(cls) -> "Issuer":
        """Read the policy and the key that the environment names."""
        return cls(policy=load_policy(environ.get(POLICY) or None), key=signing_key())

    def verdict(self, report: AuditReport) -> str:
        """Return what the policy says about the audit's numbers by themselves."""
        return conclude_reasons(judge_results(self.policy, report))

    def issue(
        self,
        client: Any,
        report: AuditReport,
        *,
        audit_run_id: str,
        files: Mapping[str, str],
        tags: Mapping[str, str],
        earlier: tuple[str, ...] = (),
        preregistration: dict[str, Any] | None = None,
    ) -> str | None:
        """Return the document of an audit; None where the model is not in MLflow, or has changed.

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
        evidence = Evidence(
            issued_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
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
            policy_hash=self.policy.hash,
            preregistration=preregistration,
            earlier_audits=earlier,
        )
        return seal(evidence, self.key)


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
