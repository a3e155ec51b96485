"""Signed JSON: written, and read from sources that nobody vouches for.

Evidence is signed as a DSSE envelope, which other tools can check too. Commitments, and the evidence of
earlier versions, are a document of two parts, its content and a signature.
"""

import base64
import binascii
import hashlib
import json
import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import EvidenceError
from mlflow_b3.gating.keys import PREFIX, encode_public_key, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "Ed25519"


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def canonical(content: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal contents are equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seal_content(
    kind: str, form: str, content: dict[str, Any], key: "Ed25519PrivateKey | None"
) -> str:
    """Return a document of two parts, its content and the signature, which is null without a key.

    Parameters
    ----------
    kind : str
        What the content is, "evidence"; its part has this name.
    form : str
        The name of the format. It is signed along, so that no document of another format that was
        signed with the same key can pass for one.
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
    """Return the content of a document and the trusted key that signed it, None without signature.

    Raises
    ------
    EvidenceError
        For what is no such document, and for a signature that none of the trusted keys has made.
    """
    try:
        content, signature = _split(kind, parse_strictly(kind, document, largest))
        if content.get("format") != form:
            raise EvidenceError(
                f"the {kind} is of the format {content.get('format')!r}, not {form!r}"
            )
        return content, _confirmed(kind, form, content, signature, trusted)
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
    """Return the payload of a DSSE envelope, and the trusted key that signed it.

    Parameters
    ----------
    content : dict
        The envelope, parsed.
    payload_type : str
        The only type that counts.
    trusted : tuple of str
        Public keys.

    Raises
    ------
    EvidenceError
        Unless one of the trusted keys has signed the payload.
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
            "the signature is not of this content: it was changed, or is that of another envelope"
        ) from None
    return envelope.payload, keys[next(iter(accepted))]


def parse_strictly(kind: str, document: bytes, largest: int) -> dict[str, Any]:
    """Return the JSON object in a document, if it has no key twice, no NaN and no endless number."""
    if len(document) > largest:
        raise EvidenceError(f"the {kind} is larger than {largest} bytes")
    try:
        parsed = json.loads(
            document.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_small_int,
        )
    except ValueError as error:
        raise EvidenceError(f"the {kind} is not JSON: {error}") from error
    except RecursionError as error:
        raise EvidenceError(f"the {kind} is nested too deeply") from error
    if not isinstance(parsed, dict):
        raise EvidenceError(f"the {kind} is not a JSON object")
    return parsed


def _split(kind: str, parsed: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    if set(parsed) != {kind, "signature"}:
        raise EvidenceError(f"the {kind} must have the parts {kind!r} and 'signature'")
    if not isinstance(parsed[kind], dict):
        raise EvidenceError(f"the part {kind!r} must be an object")
    return parsed[kind], parsed["signature"]


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


def _confirmed(
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
            f"the signature's algorithm is {signature['algorithm']!r}; only {ALGORITHM} counts"
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
            f"the signature is not of this content: it was changed, or is that of another {kind}"
        ) from None
    return matching[0]


def _signed_bytes(form: str, content: dict[str, Any]) -> bytes:
    return f"{form}\n{canonical(content)}".encode()
