"""The evidence of an audit: one document that binds model, data, settings and results, signed."""

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.sealing import digest, open_content, seal_content
from mlflow_b3.results import Result

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "FILE",
    "FORMAT",
    "LARGEST",
    "Evidence",
    "SignedEvidence",
    "digest",
    "open_sealed",
    "seal",
]

KIND, FORMAT = "evidence", "mlflow-b3 evidence 1"
#: Its name among the files of an audit.
FILE = "evidence.json"
#: A document that is larger is not read.
LARGEST = 4_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Evidence(Result):
    """What an audit found, of what, and how: everything that a gate relies on.

    Attributes
    ----------
    issued_at : str
        When the audit was written, in UTC.
    audit_run_id : str
        The audit's own MLflow run.
    model_id, run_id : str or None
        The audited LoggedModel, and the run that trained it.
    source : str
        Where the model's files are, "models:/m-…" or "runs:/…".
    model_digest : str
        SHA-256 over the paths and contents of the model's files.
    model_files : dict of str to str
        SHA-256 of each of them.
    data_digest, rows_digest, folds_digest : str
        Of the audited table and its folds, as in the report's settings.
    files : dict of str to str
        SHA-256 of the audit's own files; `audit.json` holds all settings and results.
    settings : dict of str to str
        What was audited and how, as the parameters of the audit's run.
    results : dict
        The results that metrics show.
    tags : dict of str to str
        What the model version's tags say about this audit.
    packages : dict of str to str
        Versions of the packages that the audit ran with.
    policy_hash : str
        The policy that held when the audit was made.
    preregistration : dict or None
        What was committed before the audit ran.
    earlier_audits : tuple of str
        Runs of audits of the same model that were there before.
    """

    issued_at: str
    audit_run_id: str
    model_id: str | None
    run_id: str | None
    source: str
    model_digest: str
    model_files: dict[str, str]
    data_digest: str
    rows_digest: str
    folds_digest: str
    files: dict[str, str]
    settings: dict[str, str]
    results: dict[str, Any]
    tags: dict[str, str]
    packages: dict[str, str]
    policy_hash: str
    preregistration: dict[str, Any] | None = None
    earlier_audits: tuple[str, ...] = ()
    format: str = FORMAT


@dataclass(frozen=True, kw_only=True)
class SignedEvidence:
    """Evidence as it was read: its content, and the key that signed it.

    Attributes
    ----------
    evidence : Evidence
    signed_by : str or None
        The trusted public key whose signature was confirmed; None without a signature.
    """

    evidence: Evidence
    signed_by: str | None


def seal(evidence: Evidence, key: "Ed25519PrivateKey | None") -> str:
    """Return evidence as a document, signed where there is a key."""
    return seal_content(KIND, FORMAT, evidence.to_dict(), key)


def open_sealed(document: bytes, trusted: tuple[str, ...]) -> SignedEvidence:
    """Read a document and confirm its signature.

    Raises
    ------
    EvidenceError
        For what is not evidence, and for a signature that none of the trusted keys has made.
        A document without a signature is read; whether it counts is for the policy to say.
    """
    content, signed_by = open_content(KIND, FORMAT, document, LARGEST, trusted)
    try:
        evidence = Evidence.from_dict(content)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EvidenceError(f"the evidence has not the content of one: {error}") from error
    _check_kinds(evidence)
    return SignedEvidence(evidence=evidence, signed_by=signed_by)


_TEXTS = (
    *("issued_at", "audit_run_id", "source", "model_digest", "policy_hash"),
    *("data_digest", "rows_digest", "folds_digest"),
)
_TEXT_MAPS = ("model_files", "files", "settings", "tags", "packages")


def _check_kinds(evidence: Evidence) -> None:
    whole = {name: _is_text(getattr(evidence, name)) for name in _TEXTS}
    for name in ("model_id", "run_id"):
        value = getattr(evidence, name)
        whole[name] = value is None or _is_text(value)
    for name in _TEXT_MAPS:
        values = getattr(evidence, name)
        whole[name] = isinstance(values, dict) and all(map(_is_text, values.values()))
    results, committed = evidence.results, evidence.preregistration
    whole["results"] = isinstance(results, dict) and all(map(_is_result, results.values()))
    whole["preregistration"] = committed is None or isinstance(committed, dict)
    whole["earlier_audits"] = all(map(_is_text, evidence.earlier_audits))
    wrong = [name for name, right in whole.items() if not right]
    if wrong:
        raise EvidenceError(f"the evidence has values of the wrong kind: {', '.join(wrong)}")
    digests = [evidence.model_digest, *evidence.model_files.values(), *evidence.files.values()]
    if not all(_DIGEST.fullmatch(value) for value in digests):
        raise EvidenceError("the evidence has digests that are none")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_result(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (number and math.isfinite(value))  # type: ignore[arg-type]
