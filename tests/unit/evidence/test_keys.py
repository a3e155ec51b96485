"""Keys: who may sign is not a matter of luck with files and formats."""

import base64
import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mlflow_b3 import InputError
from mlflow_b3.evidence.document import (
    PREFIX,
    SIGNING_KEY,
    TRUSTED_KEYS,
    encode_public_key,
    key_id,
    make_keys,
    read_public_key,
    signing_key,
    trusted_keys,
)


def pem(key, password: bytes | None = None) -> str:
    locked = form.BestAvailableEncryption(password) if password else form.NoEncryption()
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, locked).decode()


def test_a_pair_is_written_for_its_owner_and_for_others(tmp_path):
    private, public, encoded = make_keys(tmp_path / "new", "audits")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert (private.name, public.name) == ("audits.pem", "audits.pub")
    assert read_public_key(str(public)) == encoded
    assert read_public_key(public.read_text()) == encoded, "PEM, as other tools read it"


@pytest.mark.parametrize("existing", ["b3.pem", "b3.pub"])
def test_a_key_that_exists_is_not_replaced(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    with pytest.raises(InputError, match="already exists"):
        make_keys(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "b3.pub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot be written"):
        make_keys(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        make_keys(tmp_path / "file")


def test_without_the_variable_nothing_is_signed(monkeypatch):
    assert signing_key() is None
    monkeypatch.setenv(SIGNING_KEY, "  ")
    assert signing_key() is None


def test_the_signing_key_may_be_a_file_or_its_text(keys, monkeypatch):
    for value in (str(keys.private), keys.private.read_text()):
        monkeypatch.setenv(SIGNING_KEY, value)
        assert encode_public_key(signing_key()) == keys.public


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_can_reach_is_refused(tmp_path, monkeypatch, mode):
    private, _, _ = make_keys(tmp_path)
    private.chmod(mode)
    monkeypatch.setenv(SIGNING_KEY, str(private))
    with pytest.raises(InputError, match="chmod 600"):
        signing_key()
    private.chmod(0o600)
    assert signing_key() is not None
    private.chmod(0o400)
    assert signing_key() is not None


@pytest.mark.parametrize("kind", ["folder", "nothing"])
def test_a_path_that_is_no_file_is_refused(tmp_path, monkeypatch, kind):
    path = tmp_path if kind == "folder" else tmp_path / "missing.pem"
    monkeypatch.setenv(SIGNING_KEY, str(path))
    with pytest.raises(InputError, match=SIGNING_KEY):
        signing_key()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (pem(rsa.generate_private_key(65537, 2048)), "not an Ed25519 key"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "not an Ed25519 key"),
        (pem(Ed25519PrivateKey.generate(), b"secret"), "without a password"),
        ("-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----", "does not hold"),
        ("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", "does not hold"),
    ],
    ids=["RSA", "EC", "locked", "garbage", "public"],
)
def test_other_keys_are_refused(monkeypatch, text, told):
    monkeypatch.setenv(SIGNING_KEY, text)
    with pytest.raises(InputError, match=told):
        signing_key()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        "ed25519:!!!",
        "ed25519:" + base64.b64encode(b"x" * 31).decode(),
        "ed25519:" + base64.b64encode(b"x" * 33).decode(),
        "rsa:" + base64.b64encode(b"x" * 32).decode(),
        base64.b64encode(b"x" * 32).decode(),
        "missing.pub",
        "a\0b",
    ],
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(InputError):
        read_public_key(text)


def test_a_public_key_is_looked_for_beside_the_policy(tmp_path):
    _, public, encoded = make_keys(tmp_path)
    assert read_public_key(public.name, tmp_path) == encoded


def test_a_file_with_something_else_is_no_public_key(tmp_path):
    (tmp_path / "b3.pub").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="nor the path of a readable"):
        read_public_key("b3.pub", tmp_path)
    (tmp_path / "b3.pub").write_text(base64.b64encode(b"x" * 32).decode())
    with pytest.raises(InputError, match=r"must be ed25519: followed by"):
        read_public_key("b3.pub", tmp_path)


def test_keys_of_the_environment_count_beside_those_of_the_policy(tmp_path, keys, monkeypatch):
    _, public, encoded = make_keys(tmp_path)
    monkeypatch.setenv(TRUSTED_KEYS, f" {public} , {keys.public},")
    assert trusted_keys((keys.public,)) == (keys.public, encoded)
    monkeypatch.setenv(TRUSTED_KEYS, "nonsense")
    with pytest.raises(InputError, match="a trusted key of 8 characters"):
        trusted_keys(())


def test_a_key_has_a_short_name_of_its_own(keys):
    other = encode_public_key(Ed25519PrivateKey.generate())
    assert other.startswith(PREFIX)
    assert len(key_id(keys.public)) == 16
    assert key_id(keys.public) != key_id(other)


def test_a_private_key_among_the_public_ones_is_called_what_it_is(keys):
    with pytest.raises(InputError, match="is a private key"):
        read_public_key(str(keys.private))


def body(text: str) -> str:
    return "".join(text.splitlines()[1:-1])


LEAKS = {
    "as it is": lambda text: text,
    "in quotes": lambda text: f'"{text}"',
    "with a mark": lambda text: "\ufeff" + text,
    "its body only": body,
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "cut off": lambda text: text[: len(text) // 2],
    "on one line": lambda text: text.replace("\n", " "),
    "with the lines' ends spelled out": lambda text: text.replace("\n", "\\n"),
    "as a prefixed key": lambda text: f"ed25519:{body(text)}",
}


@pytest.mark.parametrize("form_of", LEAKS.values(), ids=LEAKS)
def test_no_error_repeats_a_key(monkeypatch, keys, form_of):
    """Whatever a secret store, a shell or a person has made of it."""
    secret = body(keys.private.read_text())
    value = form_of(keys.private.read_text())
    texts = []
    monkeypatch.setenv(SIGNING_KEY, value)
    try:
        assert encode_public_key(signing_key()) == keys.public
    except InputError as error:
        texts.append(str(error))
    monkeypatch.setenv(TRUSTED_KEYS, value)
    for read in (read_public_key, lambda _: trusted_keys(())):
        with pytest.raises(InputError) as caught:
            read(value)
        texts.append(str(caught.value))
    for text in texts:
        assert not any(secret[at : at + 12] in text for at in range(16, len(secret) - 12)), text
        assert value not in text


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize(
    "y",
    [
        *(0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18),
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    ],
)
def test_a_key_of_small_order_is_refused(y, sign):
    """Under such a key one signature fits any message, and nobody needs a private key to make it."""
    raw = bytearray((y % 2**255).to_bytes(32, "little"))
    raw[31] |= sign
    with pytest.raises(InputError, match="small order"):
        read_public_key(PREFIX + base64.b64encode(bytes(raw)).decode())
