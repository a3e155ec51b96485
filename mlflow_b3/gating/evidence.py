"""The evidence of an audit: one document that binds model, data, settings and results, signed."""

import base64
import binascii
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.keys import PREFIX, encode_public_key, key_id
from mlflow_b3.results import Result

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "mlflow-b3 evidence 1"
ALGORITHM = "Ed25519"
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


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def seal(evidence: Evidence, key: "Ed25519PrivateKey | None") -> str:
    """Return evidence as a document, signed where there is a key.

    Notes
    -----
    The signature is over the bytes of the evidence as JSON with sorted keys and no spaces, behind
    the name of the format, so that no other document signed with the same key can pass for one.
    """
    content = evidence.to_dict()
    signature = None
    if key is not None:
        signature = {
            "algorithm": ALGORITHM,
            "key": key_id(encode_public_key(key)),
            "value": base64.b64encode(key.sign(_signed_bytes(content))).decode(),
        }
    document = {"evidence": content, "signature": signature}
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"


def open_sealed(document: bytes, trusted: tuple[str, ...]) -> SignedEvidence:
    """Read a document and confirm its signature.

    Raises
    ------
    EvidenceError
        For what is not evidence, and for a signature that none of the trusted keys has made.
        A document without a signature is read; whether it counts is for the policy to say.
    """
    if len(document) > LARGEST:
        raise EvidenceError(f"the evidence is larger than {LARGEST} bytes")
    content, signature = _split(document)
    try:
        evidence = Evidence.from_dict(content)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EvidenceError(f"the evidence has not the content of one: {error}") from error
    _check_kinds(evidence)
    return SignedEvidence(evidence=evidence, signed_by=_confirmed(content, signature, trusted))


def _split(document: bytes) -> tuple[dict[str, Any], Any]:
    try:
        parsed = json.loads(
            document.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_small_int,
        )
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"the evidence is not JSON: {error}") from error
    if not isinstance(parsed, dict) or set(parsed) != {"evidence", "signature"}:
        raise EvidenceError("the evidence must have the parts 'evidence' and 'signature'")
    if not isinstance(parsed["evidence"], dict):
        raise EvidenceError("the part 'evidence' must be an object")
    return parsed["evidence"], parsed["signature"]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is given twice")
    return values


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _small_int(text: str) -> int:
    if len(text) > 18:
        raise ValueError(f"{text[:20]}… is too large")
    return int(text)


_TEXTS = ("issued_at", "audit_run_id", "source", "model_digest", "data_digest", "policy_hash")
_TEXT_MAPS = ("model_files", "files", "settings", "tags", "packages")


def _check_kinds(evidence: Evidence) -> None:
    if evidence.format != FORMAT:
        raise EvidenceError(f"the evidence is of the format {evidence.format!r}, not {FORMAT!r}")
    wrong = [name for name in _TEXTS if not isinstance(getattr(evidence, name), str)]
    for name in _TEXT_MAPS:
        values = getattr(evidence, name)
        whole = isinstance(values, dict) and all(isinstance(v, str) for v in values.values())
        wrong += [] if whole else [name]
    wrong += [name for name in ("results",) if not isinstance(getattr(evidence, name), dict)]
    if wrong:
        raise EvidenceError(f"the evidence has values of the wrong kind: {', '.join(wrong)}")
    digests = [evidence.model_digest, *evidence.model_files.values(), *evidence.files.values()]
    if not all(_DIGEST.fullmatch(value) for value in digests):
        raise EvidenceError("the evidence has digests that are none")


def _confirmed(content: dict[str, Any], signature: Any, trusted: tuple[str, ...]) -> str | None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signature is None:
        return None
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "key", "value"}:
        raise EvidenceError("the signature must have algorithm, key and value")
    if signature["algorithm"] != ALGORITHM:
        raise EvidenceError(
            f"the signature's algorithm is {signature['algorithm']!r}; only {ALGORITHM} counts"
        )
    try:
        value = base64.b64decode(signature["value"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise EvidenceError(f"the signature is not base64: {error}") from error
    matching = [key for key in trusted if key_id(key) == signature["key"]]
    if not matching:
        raise EvidenceError(
            f"the evidence is signed with the key {signature['key']!r}, which is not trusted here"
        )
    raw = base64.b64decode(matching[0].removeprefix(PREFIX))
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(value, _signed_bytes(content))
    except InvalidSignature:
        raise EvidenceError(
            "the signature is not of this content: it was changed, or is that of other evidence"
        ) from None
    return matching[0]


def _signed_bytes(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{FORMAT}\n{text}".encode()
