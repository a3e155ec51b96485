"""Policies, evidence and registered versions that tests of gates may change."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
from evidence_examples import lenient
from example_reports import changed
from mlflow import MlflowClient
from signing import sign_audit

from mlflow_b3 import AuditReport, Verdict, gate, record
from mlflow_b3.refit.loading import digest_model, digest_of


@dataclass(frozen=True)
class Registered:
    """A registered version with an audit, in a store where tests can change everything."""

    name: str
    version: str
    model_id: str
    run_id: str
    files: Path
    report: AuditReport
    audit_run_id: str = ""

    @property
    def client(self) -> MlflowClient:
        return MlflowClient()

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/{self.version}"

    @property
    def audit_files(self) -> Path:
        """The folder with the files of the audit."""
        return audit_files(self.audit_run_id)

    def record(self, **changes: Any) -> "Registered":
        """Write another audit of this model, with some of its numbers changed.

        It is signed where the environment has a key.
        """
        written = replace(self, audit_run_id=record(changed(self.report, **changes)))
        sign_audit(written.audit_run_id)
        return written

    def judge(self, **changes: Any) -> Verdict:
        """Hold it against a policy that it passes where nothing was changed."""
        return gate(self.uri, lenient(**changes))

    def refusal(self, **changes: Any) -> str:
        """Return the one reason why the evidence is refused."""
        verdict = self.judge(**changes)
        assert (verdict.outcome, verdict.allowed) == ("FAIL", False)
        (reason,) = verdict.reasons
        assert reason.check == "evidence"
        return reason.text


def audit_files(audit_run_id: str) -> Path:
    uri = MlflowClient().get_run(audit_run_id).info.artifact_uri
    return Path(uri.removeprefix("file://")) / "b3"


def register(saved: Path, report: AuditReport, name: str = "clinic") -> Registered:
    """Log the files of a model to a run of its own, and register it."""
    client = MlflowClient()
    with mlflow.start_run() as run:
        model = client.create_logged_model(
            run.info.experiment_id, name="model", source_run_id=run.info.run_id
        )
    client.log_model_artifacts(model.model_id, str(saved))
    client.finalize_logged_model(model.model_id, "READY")
    version = mlflow.register_model(f"models:/{model.model_id}", name)
    settings = {
        "uri": f"models:/{name}/{version.version}",
        "run_id": run.info.run_id,
        "model_id": model.model_id,
        "model_digest": digest_of(digest_model(model.artifact_location)),
    }
    return Registered(
        name=name,
        version=str(version.version),
        model_id=model.model_id,
        run_id=run.info.run_id,
        files=Path(model.artifact_location.removeprefix("file://")),
        report=changed(report, settings=settings),
    )
