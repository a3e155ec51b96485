"""The evidence of an audit: one signed document that binds model, data, settings and results.

It is an in-toto statement (https://in-toto.io/Statement/v1). Its subjects are the model's files, its
predicate the measurements and results. An audit writes it unsigned. `attest` checks it and signs it
in a DSSE envelope, which any DSSE verifier can read.
"""

import base64
import binascii
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError, InputError
from mlflow_b3.results import Result

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


# --- Ed25519 keys

#: The signing key itself (PEM), or the path of a file that only its owner can read.
SIGNING_KEY = "MLFLOW_B3_SIGNING_KEY"
#: Names the file to which an audit writes its run and digest, for the process that signs it.
RECORDED = "MLFLOW_B3_RECORDED"
#: Public keys or .pub files, separated by commas, trusted in addition to those of the policy.
TRUSTED_KEYS = "MLFLOW_B3_TRUSTED_KEYS"
PREFIX = "ed25519:"
EXPECTED = (
    "Set it to the path of the .pem file that 'mlflow-b3 keys' wrote, or to the full text of that "
    "file, from -----BEGIN to the end of the line -----END, without quotation marks."
)
LONGEST_KEY_FILE = 20_000
#: The prime of Curve25519's field, and the y coordinates of its points of order 1, 2, 4 and 8.
FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = frozenset({0, 1, FIELD - 1, _ORDER_8, FIELD - _ORDER_8})


def make_keys(folder: Path, name: str = "b3") -> tuple[Path, Path, str]:
    """Write a new key pair to NAME.pem (readable by its owner only) and NAME.pub.

    Returns both paths and the public key. Existing files are never overwritten: evidence signed with
    a lost key cannot be renewed.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    existing = [str(path) for path in (private, public) if path.exists()]
    if existing:
        verb = "exist" if len(existing) > 1 else "exists"
        raise InputError(f"{' and '.join(existing)} already {verb}; choose another name or folder.")
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    encoded = encode_public_key(key)
    readable_text = key.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        with public.open("xb") as readable:
            readable.write(readable_text)
    except OSError as error:
        raise InputError(f"the keys cannot be written to {str(folder)!r}: {error}") from error
    return private, public, encoded


def encode_public_key(key: "Ed25519PrivateKey") -> str:
    """Return the public key of a key pair as text."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def key_id(public_key: str) -> str:
    """Return a short id of a public key."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:16]


def read_public_key(text: str, folder: Path | None = None) -> str:
    """Return a public key as "ed25519:" followed by base64.

    Parameters
    ----------
    text : str
        "ed25519:…", a public key in PEM form, or the path of a file that holds either.
    folder : Path, optional
        The folder that relative paths start from.

    Raises
    ------
    InputError
        For anything else. The message does not repeat the text, which may be a misplaced private
        key.
    """
    found = _strip_quotes(text)
    shown = "the value (not shown)"
    if "-----BEGIN" not in found and not found.startswith(PREFIX):
        path = (folder or Path()) / found
        found = _strip_quotes(_read_public_file(path))
        shown = f"the file {str(path)!r}"
    if "PRIVATE KEY" in found:
        raise InputError(
            f"{shown} is a private key. Keep it only where audits are attested; give the public key "
            "instead, which is in the .pub file beside it."
        )
    if "-----BEGIN" in found:
        return _from_pem(found, shown)
    try:
        raw = base64.b64decode(found.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{shown} is not a public key: it is not base64.") from None
    if not found.startswith(PREFIX) or len(raw) != 32:
        raise InputError(
            f"{shown} is not an Ed25519 public key: it must be {PREFIX} followed by the base64 form "
            "of 32 bytes, or a PEM file."
        )
    return _encode_point(raw, shown)


def _strip_quotes(text: str) -> str:
    """Strip white space, byte order marks and quotation marks from around a value."""
    return text.strip().lstrip("\ufeff").strip().strip("'\"").strip()


def _read_public_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_KEY_FILE).decode()
    except (OSError, ValueError):  # the error's text repeats the name, which may be a key
        raise InputError(
            f"a trusted key{_describe_path(path)} is neither {PREFIX}… nor the path of a readable public key "
            "file."
        ) from None


def _describe_path(path: Path) -> str:
    """Return a path for an error message, or only its length if it might be a key."""
    name = str(path)
    if path.suffix in (".pem", ".pub", ".key") and len(name) < 500 and "\n" not in name:
        return f", {name!r},"
    return f" of {len(name)} characters (not shown)"


def _from_pem(text: str, shown: str) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{shown} is not a public key in PEM form.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{shown} is not an Ed25519 key.")
    return _encode_point(key.public_bytes_raw(), shown)


def _encode_point(raw: bytes, shown: str) -> str:
    """Return a public key as text; reject points for which one signature fits any message."""
    y = (int.from_bytes(raw, "little") & (2**255 - 1)) % FIELD
    if y in SMALL_ORDER:
        raise InputError(
            f"{shown} is a point of small order: signatures for it can be made without a private key. "
            "Make a key pair with 'mlflow-b3 keys'."
        )
    return PREFIX + base64.b64encode(raw).decode()


def trusted_keys(of_policy: Sequence[str]) -> tuple[str, ...]:
    """Return the trusted keys: those of the policy and those of the environment."""
    named = [part for part in os.environ.get(TRUSTED_KEYS, "").split(",") if part.strip()]
    return tuple(dict.fromkeys([*of_policy, *map(read_public_key, named)]))


def signing_key() -> "Ed25519PrivateKey | None":
    """Return the key that signs evidence, or None if the environment names none.

    Error messages never repeat the value, because it often is a key.
    """
    value = _strip_quotes(os.environ.get(SIGNING_KEY, ""))
    if not value:
        return None
    text = value.encode() if "-----BEGIN" in value else _read_private_file(Path(value))
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{SIGNING_KEY} does not hold a private key in PEM form without a password. {EXPECTED}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{SIGNING_KEY} holds a key that is not an Ed25519 key; make one with 'mlflow-b3 keys'."
        )
    return key


def _read_private_file(path: Path) -> bytes:
    """Read a key file that only its owner can read and write."""
    try:
        with path.open("rb") as file:
            state, text = os.fstat(file.fileno()), file.read(LONGEST_KEY_FILE)
    except (OSError, ValueError):  # the error's text repeats the name, which may be a key
        raise InputError(
            f"{SIGNING_KEY}: its value{_describe_path(path)} is neither a private key nor the path of a "
            f"readable file. {EXPECTED}"
        ) from None
    if os.name == "posix":
        if stat.S_IMODE(state.st_mode) & 0o077:
            raise InputError(
                f"{SIGNING_KEY}={str(path)!r} can be read or written by others; run: chmod 600 {path}"
            )
        if state.st_uid not in (os.geteuid(), 0):
            raise InputError(f"{SIGNING_KEY}={str(path)!r} belongs to another user.")
    return text


# --- Signed JSON, read from untrusted sources
#
# Evidence is signed as a DSSE envelope, which other tools can verify. Commitments, and the evidence of
# earlier versions, are a document of two parts: the content and a signature.

ALGORITHM = "Ed25519"


def digest(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def canonical(content: Any) -> str:
    """Return JSON with sorted keys and no spaces, the same text for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seal_content(
    kind: str, form: str, content: dict[str, Any], key: "Ed25519PrivateKey | None"
) -> str:
    """Return a document of two parts: the content and its signature (null without a key).

    Parameters
    ----------
    kind : str
        The name of the part that holds the content, such as "evidence".
    form : str
        The name of the format. It is part of what is signed: a document of another format, signed
        with the same key, is not accepted.
    content : dict
    key : Ed25519PrivateKey or None
    """
    signature = None
    if key is not None:
        signature = {
            "algorithm": ALGORITHM,
            "key": key_id(encode_public_key(key)),
            "value": base64.b64encode(key.sign(_signed_bytes(form, content))).decode(),
        }
    document = {kind: content, "signature": signature}
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"


def open_content(
    kind: str, form: str, document: bytes, largest: int, trusted: tuple[str, ...]
) -> tuple[dict[str, Any], str | None]:
    """Return the content of a document and the trusted key that signed it (None if unsigned).

    Raises
    ------
    EvidenceError
        If the document is malformed, or its signature is not by a trusted key.
    """
    try:
        content, signature = _split_parts(kind, parse_strictly(kind, document, largest))
        if content.get("format") != form:
            raise EvidenceError(
                f"the format of the {kind} is {content.get('format')!r}, not {form!r}"
            )
        return content, _verify_signature(kind, form, content, signature, trusted)
    except RecursionError as error:
        raise EvidenceError(f"the {kind} is nested too deeply") from error


def sign_payload(payload: bytes, payload_type: str, key: "Ed25519PrivateKey") -> str:
    """Return a payload in a signed DSSE envelope (https://github.com/secure-systems-lab/dsse)."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner, SSlibKey

    public = SSlibKey.from_crypto(key.public_key(), keyid=key_id(encode_public_key(key)))
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(CryptoSigner(key, public))
    return json.dumps(envelope.to_dict(), indent=2, sort_keys=True) + "\n"


def open_envelope(
    content: dict[str, Any], payload_type: str, trusted: tuple[str, ...]
) -> tuple[bytes, str]:
    """Return the payload of a DSSE envelope and the trusted key that signed it.

    Parameters
    ----------
    content : dict
        The envelope, parsed.
    payload_type : str
        The type that the payload must have.
    trusted : tuple of str
        Public keys.

    Raises
    ------
    EvidenceError
        Unless a trusted key signed the payload.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error as LibraryError
    from securesystemslib.signer import Key, SSlibKey

    if content.get("payloadType") != payload_type:
        raise EvidenceError(
            f"the envelope holds {content.get('payloadType')!r}, not {payload_type!r}"
        )
    keys = {key_id(key): key for key in trusted}
    try:
        envelope = Envelope.from_dict(deepcopy(content))
        named = sorted(envelope.signatures)
        known: list[Key] = [
            SSlibKey.from_crypto(
                Ed25519PublicKey.from_public_bytes(base64.b64decode(key.removeprefix(PREFIX))), name
            )
            for name, key in keys.items()
            if name in named
        ]
        if not known:
            raise EvidenceError(
                f"the envelope is signed with the key {', '.join(map(repr, named)) or 'none'}, which "
                "is not trusted here"
            )
        accepted = envelope.verify(known, 1)
    except EvidenceError:
        raise
    except (LibraryError, KeyError, TypeError, ValueError, AttributeError):
        raise EvidenceError(
            "the signature does not match the content: the content was changed, or the signature "
            "belongs to another envelope"
        ) from None
    return envelope.payload, keys[next(iter(accepted))]


def parse_strictly(kind: str, document: bytes, largest: int) -> dict[str, Any]:
    """Parse a JSON object; reject duplicate keys, NaN and numbers that are too large."""
    if len(document) > largest:
        raise EvidenceError(f"the {kind} is larger than {largest} bytes")
    try:
        parsed = json.loads(
            document.decode("utf-8"),
            object_pairs_hook=_reject_duplicates,
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
            parse_int=_parse_small_int,
        )
    except ValueError as error:
        raise EvidenceError(f"the {kind} is not JSON: {error}") from error
    except RecursionError as error:
        raise EvidenceError(f"the {kind} is nested too deeply") from error
    if not isinstance(parsed, dict):
        raise EvidenceError(f"the {kind} is not a JSON object")
    return parsed


def _split_parts(kind: str, parsed: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    if set(parsed) != {kind, "signature"}:
        raise EvidenceError(f"the {kind} must have the parts {kind!r} and 'signature'")
    if not isinstance(parsed[kind], dict):
        raise EvidenceError(f"the part {kind!r} must be an object")
    return parsed[kind], parsed["signature"]


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice")
    return values


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _parse_small_int(text: str) -> int:
    if len(text) > 18:
        raise ValueError(f"{text[:20]}… is too large")
    return int(text)


def _verify_signature(
    kind: str, form: str, content: dict[str, Any], signature: Any, trusted: tuple[str, ...]
) -> str | None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signature is None:
        return None
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "key", "value"}:
        raise EvidenceError("the signature must have algorithm, key and value")
    if signature["algorithm"] != ALGORITHM:
        raise EvidenceError(
            f"the signature's algorithm is {signature['algorithm']!r}; only {ALGORITHM} is accepted"
        )
    try:
        value = base64.b64decode(signature["value"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise EvidenceError(f"the signature is not base64: {error}") from error
    matching = [key for key in trusted if key_id(key) == signature["key"]]
    if not matching:
        raise EvidenceError(
            f"the {kind} is signed with the key {signature['key']!r}, which is not trusted here"
        )
    raw = base64.b64decode(matching[0].removeprefix(PREFIX))
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(value, _signed_bytes(form, content))
    except InvalidSignature:
        raise EvidenceError(
            "the signature does not match the content: the content was changed, or the signature "
            f"belongs to another {kind}"
        ) from None
    return matching[0]


def _signed_bytes(form: str, content: dict[str, Any]) -> bytes:
    return f"{form}\n{canonical(content)}".encode()


# --- The evidence of an audit

KIND = "evidence"
#: The format of earlier versions, which is still read, and the current one.
FORMAT_1, FORMAT = "mlflow-b3 evidence 1", "mlflow-b3 evidence 2"
STATEMENT_TYPE, PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "urn:mlflow-b3:audit:2"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
TOKEN_TYPE = "application/vnd.mlflow-b3.attested+json"
#: The file of an audit that holds the evidence, and that of an attestation with the signed envelope.
FILE, ENVELOPE = "evidence.json", "evidence.dsse.json"
#: Larger documents are not read.
LARGEST = 4_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Evidence(Result):
    """The results of an audit, with its model, data and settings: everything a gate relies on.

    Attributes
    ----------
    issued_at : str
        When the audit was written to MLflow, in UTC.
    measured_at : str
        When the last refit ended. Evidence of the first format lacks it; then it is `issued_at`.
    audit_run_id : str
        The audit's own MLflow run.
    model_id, run_id : str or None
        The audited LoggedModel and the run that trained it.
    source : str
        Where the model's files are: "models:/m-…" or "runs:/…".
    model_digest : str
        SHA-256 over the paths and contents of the model's files.
    model_files : dict of str to str
        SHA-256 of each file.
    data_digest, rows_digest, folds_digest : str
        Digests of the audited table and its folds, as in the report's settings.
    files : dict of str to str
        SHA-256 of the audit's own files; `audit.json` holds all settings and results.
    settings : dict of str to str
        The parameters of the audit's run.
    results : dict
        The metrics of the audit.
    tags : dict of str to str
        The tags that describe this audit on the model version.
    packages : dict of str to str
        Versions of the packages that the audit ran with.
    policy_hash : str
        In evidence of the first format: the policy at the time of the audit.
    preregistration : dict or None
        What was committed before the audit ran.
    earlier_audits : tuple of str
        Runs of earlier audits of the same model. In signed evidence only the signed ones.
    attested_at : str or None
        When the evidence was checked and signed; None before.
    attested_checks : tuple of str
        The checks that were made before signing, in words.
    unsigned_audits : int or None
        Other complete audits of the model that were not signed at that time; None before.
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
    unsigned_audits: int | None = None

    def __post_init__(self) -> None:
        """Use the time of writing if the time of measuring is unknown."""
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
                f"the type of the evidence is {statement.get('predicateType')!r}, not {PREDICATE_TYPE!r}"
            )
        if not isinstance(statement["subject"], list):
            raise EvidenceError("the evidence has no list of the model's files")
        files = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
        if len(files) != len(statement["subject"]):
            raise EvidenceError("the evidence names a file of the model twice")
        return cls.from_dict({**statement["predicate"], "model_files": files})


@dataclass(frozen=True, kw_only=True)
class SignedEvidence:
    """Evidence and the key that signed it.

    Attributes
    ----------
    evidence : Evidence
    signed_by : str or None
        The trusted public key whose signature was verified; None without a signature.
    """

    evidence: Evidence
    signed_by: str | None


def seal(evidence: Evidence, key: "Ed25519PrivateKey | None") -> str:
    """Return evidence as a document: a signed envelope, or a bare statement without a key."""
    statement = evidence.to_statement()
    if key is None:
        return json.dumps(statement, indent=2, sort_keys=True, allow_nan=False) + "\n"
    return sign_payload(canonical(statement).encode(), PAYLOAD_TYPE, key)


def open_sealed(document: bytes, trusted: tuple[str, ...]) -> SignedEvidence:
    """Read a document and verify its signature.

    Raises
    ------
    EvidenceError
        If the document is not evidence, or its signature is not by a trusted key. A document without
        a signature is read; the policy decides whether it counts.
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
        raise EvidenceError(f"the content of the evidence is malformed: {error}") from error
    _check_types(evidence)
    return SignedEvidence(evidence=evidence, signed_by=signed_by)


def seal_token(
    run_id: str, audit_run_id: str, subject: str, envelope: str, key: "Ed25519PrivateKey"
) -> str:
    """Return the tag of an attestation's run: a signed statement that there is an envelope.

    It fits into a tag, which a server stores unchanged. If the envelope is removed, the tag still
    proves that there was one. Without the key, nobody can forge the tag or copy it to another run.
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
    """Return run, audit, subject and envelope digest of a token; None if it is not trusted."""
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


def _check_types(evidence: Evidence) -> None:
    valid = {name: _is_text(getattr(evidence, name)) for name in _TEXTS}
    for name in ("model_id", "run_id", "attested_at"):
        value = getattr(evidence, name)
        valid[name] = value is None or _is_text(value)
    for name in _TEXT_MAPS:
        values = getattr(evidence, name)
        valid[name] = isinstance(values, dict) and all(map(_is_text, values.values()))
    results, committed = evidence.results, evidence.preregistration
    valid["results"] = isinstance(results, dict) and all(map(_is_result, results.values()))
    valid["preregistration"] = committed is None or isinstance(committed, dict)
    unsigned = evidence.unsigned_audits
    valid["unsigned_audits"] = unsigned is None or type(unsigned) is int
    for name in ("earlier_audits", "attested_checks"):
        valid[name] = all(map(_is_text, getattr(evidence, name)))
    wrong = [name for name, right in valid.items() if not right]
    if wrong:
        raise EvidenceError(f"the evidence has values of the wrong type: {', '.join(wrong)}")
    digests = [evidence.model_digest, *evidence.model_files.values(), *evidence.files.values()]
    if not all(_DIGEST.fullmatch(value) for value in digests):
        raise EvidenceError("the evidence has invalid digests")


def is_digest(value: str) -> bool:
    """Whether a text is a SHA-256."""
    return _DIGEST.fullmatch(value.lower()) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_result(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (number and math.isfinite(value))  # type: ignore[arg-type]
