"""Signs the audits of tests, whose numbers may be made up: `mlflow_b3.attest` would refuse them."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from mlflow import MlflowClient

from mlflow_b3.evidence.document import FILE, LARGEST, SIGNING_KEY, open_sealed, signing_key
from mlflow_b3.gating.archive import Archive
from mlflow_b3.gating.attesting import write_attestation
from mlflow_b3.tracking.audits import read_audit
from mlflow_b3.tracking.shown_on_models import courtesy, show_on_versions


def sign_audit(audit_run_id: str, key: Any = None, **changes: Any) -> str | None:
    """Sign the evidence of a recorded audit without any check; return the run of the attestation.

    The key is that of the environment by default. Without one nothing is signed.
    """
    if key is None and not os.environ.get(SIGNING_KEY):
        return None
    client = MlflowClient()
    run = client.get_run(audit_run_id)
    if run.data.tags.get("b3.evidence", "none") == "none":
        return None
    evidence = open_sealed(Archive(client=client).read(run, FILE, LARGEST), ()).evidence
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    signed = replace(evidence, **{"attested_at": now, **changes})
    subject = run.data.tags["b3.subject"]
    written = write_attestation(client, signed, subject, run, key or signing_key())
    report = read_audit(audit_run_id)
    courtesy(
        "the version", lambda: show_on_versions(client, report, audit_run_id, dict(signed.tags))
    )
    return written
