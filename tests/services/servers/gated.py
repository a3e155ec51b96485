"""A server with the gate, and what its tests do to it."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import mlflow
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from example_reports import changed
from logged_models import Logged, log_model
from mlflow import MlflowClient
from real_services import Server, mlflow_server, tracked_by
from signing import sign_audit

from mlflow_b3 import AuditReport, Clinic, record
from mlflow_b3.evidence.document import make_keys
from mlflow_b3.refit.loading import digest_model, digest_of

#: What the numbers of a small audit pass; the names that begin with "scratch" are not guarded.
POLICY = """
guard:
  aliases: [champion, production]
  stages: [production]
  models: ["clinic*"]
pins:
  "clinic*": {target: disease, cluster: patient_id}
limits:
  e0_high: 0.95
evidence:
  trusted_keys: [b3.pub]
  max_age_days: 30
"""


@dataclass(frozen=True)
class Answer:
    """What a server has said."""

    status: int
    body: str

    @property
    def error(self) -> dict[str, str]:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Return the text that clients and pages show; there must be one."""
        assert self.error["error_code"] == "PERMISSION_DENIED"
        assert self.status == 403
        return self.error["message"]


@dataclass(frozen=True)
class Gated:
    """A server with the gate, its folder, and the key whose signatures it trusts."""

    server: Server
    folder: Path
    client: MlflowClient
    report: AuditReport
    clinic: Clinic

    @property
    def key(self) -> Ed25519PrivateKey:
        return load_pem_private_key((self.folder / "b3.pem").read_bytes(), password=None)

    def send(
        self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request that is exactly this."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        request = Request(f"{self.server.url}{path}", data=body, method=method)
        request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read().decode())
        except HTTPError as error:
            return Answer(error.code, error.read().decode())

    def call(self, method: str, path: str, content: Any = None, prefix: str = "/api") -> Answer:
        """Call one of MLflow's routes."""
        return self.send(method, f"{prefix}/2.0/mlflow/{path}", content)

    def promote(self, name: str, version: str = "1", alias: str = "champion") -> Answer:
        asked = {"name": name, "alias": alias, "version": version}
        return self.call("POST", "registered-models/alias", asked)

    def aliases(self, name: str) -> dict[str, str]:
        return {k: str(v) for k, v in self.client.get_registered_model(name).aliases.items()}

    def register(self, name: str, logged: Logged | None = None) -> Logged:
        """Register a model, a new one if none is given."""
        if logged is None:
            with mlflow.start_run():
                logged = log_model(self.clinic)
            shutil.copytree(self.folder_of(logged), self.folder / "kept" / logged.model_id)
        mlflow.register_model(logged.uri, name)
        return logged

    def audit(self, name: str, *, signed: bool = True, **changes: Any) -> tuple[Logged, str]:
        """Register a new model under a name, and write an audit of it; return the audit's run."""
        logged = self.register(name)
        return logged, self.audited(logged, signed=signed, **changes)

    def audited(self, logged: Logged, *, signed: bool = True, **changes: Any) -> str:
        own = logged.own(self.report, **changes)
        found = digest_of(
            digest_model(self.client.get_logged_model(logged.model_id).artifact_location)
        )
        settings = {"uri": logged.uri, "model_digest": found}
        run = record(changed(own, settings=settings))
        if signed:
            sign_audit(run)
        return run

    def path(self, location: str) -> Path:
        """Return where the server keeps what is at an address."""
        return self.folder / "artifacts" / location.removeprefix("mlflow-artifacts:/")

    def model_path(self, logged: Logged) -> str:
        """Return the path of a model's files as the routes of artifacts want it."""
        location = self.client.get_logged_model(logged.model_id).artifact_location
        return str(location.removeprefix("mlflow-artifacts:/"))

    def folder_of(self, logged: Logged) -> Path:
        """Return where the server keeps a model's files."""
        return self.folder / "artifacts" / self.model_path(logged)

    def restore(self, logged: Logged) -> None:
        """Undo what was done to a model's files since they were registered."""
        shutil.rmtree(self.folder_of(logged))
        shutil.copytree(self.folder / "kept" / logged.model_id, self.folder_of(logged))

    def evidence_file(self, audit_run: str) -> Path:
        return self.path(self.client.get_run(audit_run).info.artifact_uri) / "b3" / "evidence.json"

    def envelope_file(self, audit_run: str) -> Path:
        """Return the signed evidence of an audit, in the run of its attestation."""
        experiment = self.client.get_run(audit_run).info.experiment_id
        found = self.client.search_runs([experiment], f"tags.`b3.attests` = '{audit_run}'")
        return self.path(found[0].info.artifact_uri) / "b3" / "evidence.dsse.json"

    def decisions(self) -> list[dict[str, Any]]:
        lines = (self.folder / "gate.log").read_text(encoding="ascii").splitlines()
        return [json.loads(line) for line in lines]


@contextmanager
def gated(
    folder: Path,
    report: AuditReport,
    clinic: Clinic,
    app: str = "b3-gate",
    settings: Mapping[str, str] | None = None,
    backend: str | None = None,
) -> Iterator[Gated]:
    """Run a server with the gate; audits of this process are signed with the key it trusts."""
    make_keys(folder)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    own = {
        "MLFLOW_B3_POLICY": str(policy),
        "MLFLOW_B3_GATE_LOG": str(folder / "gate.log"),
        **(settings or {}),
    }
    backend = backend or f"sqlite:///{folder}/mlflow.db"
    with (
        mlflow_server(folder, backend, app=app, settings=own) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("MLFLOW_B3_POLICY", str(policy))
        patch.setenv("MLFLOW_B3_SIGNING_KEY", str(folder / "b3.pem"))
        with tracked_by(server.url, "gate") as client:
            # so small an audit has too wide an interval to beat the real constant
            beaten = changed(report, constant_loss=0.95)
            yield Gated(server, folder, client, beaten, clinic)
