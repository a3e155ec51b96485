"""The evidence of an audit: one document that binds model, data, settings and results, signed.

It is an in-toto statement (https://in-toto.io/Statement/v1). Its subjects are the model's files; its
predicate is what was measured and found. An audit leaves it unsigned. `attest` checks it and signs it
in a DSSE envelope, which any DSSE verifier reads.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.sealing import (
    canonical,
    digest,
    open_content,
    open_envelope,
    parse_strictly,
    sign_payload,
)
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
    "open_token",
    "seal",
    "seal_token",
]

KIND = "evidence"
#: The format of earlier versions, which is still read, and today's.
FORMAT_1, FORMAT = "mlflow-b3 evidence 1", "mlflow-b3 evidence 2"
STATEMENT_TYPE, PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "urn:mlflow-b3:audit:2"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
TOKEN_TYPE = "application/vnd.mlflow-b3.attested+json"
#: Its name among the files of an audit, and that of the signed envelope among those of an attestation.
FILE, ENVELOPE = "evidence.json", "evidence.dsse.json"
#: A document that is larger is not read.
LARGEST = 4_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Evidence(Result):
    """What an audit found, of what, and how: everything that a gate relies on.

    Attributes
    ----------
    issued_at : str
        When the audit was written to MLflow, in UTC.
    measured_at : str
        When its last refit ended. Evidence of the first format does not say; then it is `issued_at`.
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
        In evidence of the first format: the policy that held when the audit was made.
    preregistration : dict or None
        What was committed before the audit ran.
    earlier_audits : tuple of str
        Runs of audits of the same model that were there before; in signed evidence those among them
        that are signed.
    attested_at : str or None
        When it was checked and signed; None in evidence that an audit has left.
    attested_checks : tuple of str
        What was checked for it, in words.
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
    policy_hash: str = ""
    preregistration: dict[str, Any] | None = None
    earlier_audits: tuple[str, ...] = ()
    format: str = FORMAT
    measured_at: str = ""
    attested_at: str | None = None
    attested_checks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take the time of writing for that of measuring, where nothing else is known."""
        if not self.measured_at:
            object.__setattr__(self, "measured_at", self.issued_at)

    def to_statement(self) -> dict[str, Any]:
        """Return the evidence as an in-toto statement."""
        predicate = self.to_dict()
        files = predicate.pop("model_files")
        return {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": value}} for name, value in sorted(files.items())
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }

    @classmethod
    def from_statement(cls, statement: dict[str, Any]) -> "Evidence":
        """Build the evidence from an in-toto statement."""
        if (statement.get("_type"), statement.get("predicateType")) != (
            STATEMENT_TYPE,
            PREDICATE_TYPE,
        ):
            raise EvidenceError(
                f"the evidence is of the type {statement.get('predicateType')!r}, not {PREDICATE_TYPE!r}"
            )
        if not isinstance(statement["subject"], list):
            raise EvidenceError("the evidence has no list of the model's files")
        files = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
        if len(files) != len(statement["subject"]):
            raise EvidenceError("the evidence names a file of the model twice")
        return cls.from_dict({**statement["predicate"], "model_files": files})


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
    """Return evidence as a document: a bare statement, or a signed envelope where there is a key."""
    statement = evidence.to_statement()
    if key is None:
        return json.dumps(statement, indent=2, sort_keys=True, allow_nan=False) + "\n"
    return sign_payload(canonical(statement).encode(), PAYLOAD_TYPE, key)


def open_sealed(document: bytes, trusted: tuple[str, ...]) -> SignedEvidence:
    """Read a document and confirm its signature.

    Raises
    ------
    EvidenceError
        For what is not evidence, and for a signature that none of the trusted keys has made.
        A document without a signature is read; whether it counts is for the policy to say.
    """
    parsed = parse_strictly(KIND, document, LARGEST)
    signed_by = None
    try:
        if KIND in parsed:
            content, signed_by = open_content(KIND, FORMAT_1, document, LARGEST, trusted)
            evidence = Evidence.from_dict(content)
        else:
            if "payload" in parsed:
                payload, signed_by = open_envelope(parsed, PAYLOAD_TYPE, trusted)
                parsed = parse_strictly(KIND, payload, LARGEST)
            evidence = Evidence.from_statement(parsed)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EvidenceError(f"the evidence has not the content of one: {error}") from error
    _check_kinds(evidence)
    return SignedEvidence(evidence=evidence, signed_by=signed_by)


def seal_token(
    run_id: str, audit_run_id: str, subject: str, envelope: str, key: "Ed25519PrivateKey"
) -> str:
    """Return the tag of an attestation's run: that there is an envelope, signed.

    It is short enough for a tag, which a server keeps as it is. Who removes the envelope leaves behind
    that there was one; who has no key cannot claim that there is one, nor copy the claim to another
    run.
    """
    content = {
        "run": run_id,
        "audit": audit_run_id,
        "subject": subject,
        "envelope": digest(envelope.encode()),
    }
    signed = sign_payload(canonical(content).encode(), TOKEN_TYPE, key)
    return canonical(json.loads(signed))


def open_token(token: str, trusted: tuple[str, ...]) -> dict[str, str] | None:
    """Return run, audit, subject and envelope digest of a token; None unless a trusted key signed it."""
    try:
        parsed = parse_strictly("token", token.encode(), LARGEST)
        payload, _ = open_envelope(parsed, TOKEN_TYPE, trusted)
        content = parse_strictly("token", payload, LARGEST)
    except EvidenceError:
        return None
    return {name: str(content.get(name)) for name in ("run", "audit", "subject", "envelope")}


_TEXTS = (
    *("issued_at", "measured_at", "audit_run_id", "source", "model_digest", "policy_hash"),
    *("data_digest", "rows_digest", "folds_digest"),
)
_TEXT_MAPS = ("model_files", "files", "settings", "tags", "packages")


def _check_kinds(evidence: Evidence) -> None:
    whole = {name: _is_text(getattr(evidence, name)) for name in _TEXTS}
    for name in ("model_id", "run_id", "attested_at"):
        value = getattr(evidence, name)
        whole[name] = value is None or _is_text(value)
    for name in _TEXT_MAPS:
        values = getattr(evidence, name)
        whole[name] = isinstance(values, dict) and all(map(_is_text, values.values()))
    results, committed = evidence.results, evidence.preregistration
    whole["results"] = isinstance(results, dict) and all(map(_is_result, results.values()))
    whole["preregistration"] = committed is None or isinstance(committed, dict)
    for name in ("earlier_audits", "attested_checks"):
        whole[name] = all(map(_is_text, getattr(evidence, name)))
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
