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
EXPECTED = (
    "Set it to the path of the .pem file that 'mlflow-b3 keys' wrote, or to the whole text of that "
    "file, from -----BEGIN to the end of the line -----END, without quotation marks."
)
LONGEST_KEY_FILE = 20_000
#: The prime of Curve25519's field, and the y coordinates of its points of order 1, 2, 4 and 8.
FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = frozenset({0, 1, FIELD - 1, _ORDER_8, FIELD - _ORDER_8})


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
    """Return the public key of a pair as text."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def key_id(public_key: str) -> str:
    """Return a short name of a public key."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:16]


def read_public_key(text: str, folder: Path | None = None) -> str:
    """Return a public key as "ed25519:" and base64.

    Parameters
    ----------
    text : str
        "ed25519:…", a public key in PEM form, or the path of a file that holds either.
    folder : Path, optional
        What a relative path is relative to.

    Raises
    ------
    InputError
        For anything else. The text is not repeated: it may be a private key in the wrong place.
    """
    found = _unquoted(text)
    shown = "the value (not shown)"
    if "-----BEGIN" not in found and not found.startswith(PREFIX):
        path = (folder or Path()) / found
        found = _unquoted(_read_public(path))
        shown = f"the file {str(path)!r}"
    if "PRIVATE KEY" in found:
        raise InputError(
            f"{shown} holds a private key. It belongs only where audits are attested; give the "
            "public key, which is in the .pub file beside it."
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
    return _checked_point(raw, shown)


def _unquoted(text: str) -> str:
    """Return a value without what editors, shells and secret stores put around it."""
    return text.strip().lstrip("\ufeff").strip().strip("'\"").strip()


def _read_public(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_KEY_FILE).decode()
    except (OSError, ValueError):  # whose texts repeat the name, which may be a key
        raise InputError(
            f"a trusted key{_shown(path)} is neither {PREFIX}… nor the path of a public key file that "
            "can be read."
        ) from None


def _shown(path: Path) -> str:
    """Return a path for an error; nothing of it unless it is plainly one, and no key."""
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
        raise InputError(f"{shown} is a key of another algorithm than Ed25519.")
    return _checked_point(key.public_bytes_raw(), shown)


def _checked_point(raw: bytes, shown: str) -> str:
    """Return a public key as text, unless one signature under it would fit any message."""
    y = (int.from_bytes(raw, "little") & (2**255 - 1)) % FIELD
    if y in SMALL_ORDER:
        raise InputError(
            f"{shown} is a point of small order, under which signatures can be made without a "
            "private key. Make a pair with 'mlflow-b3 keys'."
        )
    return PREFIX + base64.b64encode(raw).decode()


def trusted_keys(of_policy: Sequence[str]) -> tuple[str, ...]:
    """Return the keys whose signatures count: the policy's, and those of the environment."""
    named = [part for part in os.environ.get(TRUSTED_KEYS, "").split(",") if part.strip()]
    return tuple(dict.fromkeys([*of_policy, *map(read_public_key, named)]))


def signing_key() -> "Ed25519PrivateKey | None":
    """Return the key that evidence is signed with; None where the environment names none.

    The value is never repeated in an error: most mistakes leave a key in it.
    """
    value = _unquoted(os.environ.get(SIGNING_KEY, ""))
    if not value:
        return None
    text = value.encode() if "-----BEGIN" in value else _read_private(Path(value))
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
            f"{SIGNING_KEY} holds a key of another algorithm than Ed25519; make one with "
            "'mlflow-b3 keys'."
        )
    return key


def _read_private(path: Path) -> bytes:
    """Read a key file that nobody but its owner could have read or written."""
    try:
        with path.open("rb") as file:
            state, text = os.fstat(file.fileno()), file.read(LONGEST_KEY_FILE)
    except (OSError, ValueError):  # whose texts repeat the name, which may be a key
        raise InputError(
            f"{SIGNING_KEY}: its value{_shown(path)} is neither a private key nor the path of a file "
            f"that can be read. {EXPECTED}"
        ) from None
    if os.name == "posix":
        if stat.S_IMODE(state.st_mode) & 0o077:
            raise InputError(
                f"{SIGNING_KEY}={str(path)!r} can be read or written by others; run: chmod 600 {path}"
            )
        if state.st_uid not in (os.geteuid(), 0):
            raise InputError(f"{SIGNING_KEY}={str(path)!r} belongs to another user.")
    return text
