"""Ed25519 keys: made, read with care, and told apart."""

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_b3.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The signing key itself (PEM), or the path of a file that only its owner can read.
SIGNING_KEY = "MLFLOW_B3_SIGNING_KEY"
#: Public keys or .pub files, with commas between them, that count beside those of the policy.
TRUSTED_KEYS = "MLFLOW_B3_TRUSTED_KEYS"
PREFIX = "ed25519:"


def make_keys(folder: Path, name: str = "b3") -> tuple[Path, Path, str]:
    """Write a new pair to NAME.pem (for its owner only) and NAME.pub; return both and the public key.

    Files that exist are not replaced: evidence signed with a lost key can no longer be renewed.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    existing = [str(path) for path in (private, public) if path.exists()]
    if existing:
        raise InputError(f"{' and '.join(existing)} exists already; choose another name or folder.")
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    encoded = encode_public_key(key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        with public.open("x", encoding="utf-8") as readable:
            readable.write(f"{encoded}\n")
    except OSError as error:
        raise InputError(f"the keys cannot be written to {str(folder)!r}: {error}") from error
    return private, public, encoded


def encode_public_key(key: "Ed25519PrivateKey") -> str:
    """Return the public key of a pair as text."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def key_id(public_key: str) -> str:
    """Return a short name of a public key."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:16]


def read_public_key(text: str, folder: Path | None = None) -> str:
    """Return a public key given as "ed25519:…" or as the path of a file that holds it."""
    found = text.strip()
    if not found.startswith(PREFIX):
        path = (folder or Path()) / found
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise InputError(
                f"{text!r} is neither a public key ({PREFIX}…) nor a file that can be read: {error}"
            ) from error
    if "PRIVATE KEY" in found:
        raise InputError(
            f"{text!r} is the private key, which belongs to nobody but those who audit; the public one "
            "is in the .pub file beside it."
        )
    try:
        raw = base64.b64decode(found.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{text!r} is not a public key: {error}") from error
    if not found.startswith(PREFIX) or len(raw) != 32:
        raise InputError(f"{text!r} is not an Ed25519 public key of the form {PREFIX}….")
    return PREFIX + base64.b64encode(raw).decode()


def trusted_keys(of_policy: Sequence[str]) -> tuple[str, ...]:
    """Return the keys whose signatures count: the policy's, and those of the environment."""
    named = [part for part in os.environ.get(TRUSTED_KEYS, "").split(",") if part.strip()]
    return tuple(dict.fromkeys([*of_policy, *map(read_public_key, named)]))


def signing_key() -> "Ed25519PrivateKey | None":
    """Return the key that evidence is signed with; None where the environment names none."""
    value = os.environ.get(SIGNING_KEY, "").strip()
    if not value:
        return None
    text = value.encode() if value.startswith("-----BEGIN") else _read_private(Path(value))
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{SIGNING_KEY} does not hold a private key without a password: {error}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{SIGNING_KEY} holds a key of another algorithm than Ed25519; make one with "
            "'mlflow-b3 keys'."
        )
    return key


def _read_private(path: Path) -> bytes:
    """Read a key file that nobody but its owner could have read or written."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise InputError(f"{SIGNING_KEY}={str(path)!r} is not a file.")
            if os.name == "posix":
                if stat.S_IMODE(state.st_mode) & 0o077:
                    raise InputError(
                        f"{SIGNING_KEY}={str(path)!r} can be read or written by others; run: chmod "
                        f"600 {path}"
                    )
                if state.st_uid not in (os.geteuid(), 0):
                    raise InputError(f"{SIGNING_KEY}={str(path)!r} belongs to another user.")
            return file.read(20_000)
    except OSError as error:
        raise InputError(f"{SIGNING_KEY}={str(path)!r} cannot be read: {error}") from error
