"""Evidence: whatever is done to a document, it is not taken for another one."""

import base64
import json
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from evidence_examples import EVIDENCE, evidence
from hypothesis import given
from hypothesis import strategies as st

from mlflow_b3 import EvidenceError
from mlflow_b3.evidence.document import (
    FORMAT_1,
    LARGEST,
    PAYLOAD_TYPE,
    Evidence,
    canonical,
    encode_public_key,
    key_id,
    open_sealed,
    open_token,
    seal,
    seal_content,
    seal_token,
    sign_payload,
)

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUSTED = (encode_public_key(KEY),)
NEW = ("measured_at", "attested_at", "attested_checks")
CONTENT = {name: value for name, value in EVIDENCE.to_dict().items() if name not in NEW}
CONTENT["format"] = FORMAT_1
STATEMENT = EVIDENCE.to_statement()


def document(content=None, signature=None) -> bytes:
    """Return evidence as earlier versions wrote it."""
    parts = {"evidence": CONTENT if content is None else content, "signature": signature}
    return json.dumps(parts).encode()


def signed_once() -> dict:
    """Return evidence as earlier versions signed it."""
    return json.loads(seal_content("evidence", FORMAT_1, CONTENT, KEY))


def signed() -> dict:
    return json.loads(seal(EVIDENCE, KEY))


def in_envelope(statement, key=KEY, payload_type=PAYLOAD_TYPE) -> bytes:
    return sign_payload(canonical(statement).encode(), payload_type, key).encode()


# --- signed evidence: an in-toto statement in a DSSE envelope ------------------------------------------


def test_what_was_sealed_is_opened_again():
    opened = open_sealed(seal(EVIDENCE, KEY).encode(), TRUSTED)
    assert opened.evidence == EVIDENCE
    assert opened.signed_by == TRUSTED[0]


def test_evidence_without_a_key_is_read_as_unsigned():
    for trusted in ((), TRUSTED):
        opened = open_sealed(seal(EVIDENCE, None).encode(), trusted)
        assert (opened.evidence, opened.signed_by) == (EVIDENCE, None)


def test_order_and_spaces_of_the_document_do_not_matter():
    shuffled = json.dumps(dict(reversed(signed().items())), indent=7).encode()
    assert open_sealed(shuffled, TRUSTED).signed_by == TRUSTED[0]


def test_it_is_a_statement_about_the_files_of_the_model():
    statement = json.loads(base64.b64decode(signed()["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]} == (
        EVIDENCE.model_files
    )
    assert statement["predicateType"] == "urn:mlflow-b3:audit:2"
    assert statement["predicate"]["results"] == EVIDENCE.results
    assert signed()["payloadType"] == "application/vnd.in-toto+json"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_another_implementation_confirms_the_signature(tmp_path):
    """By the text of DSSE's protocol and OpenSSL, without any library of ours."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    envelope = signed()
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    message = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    for name, content in (("key", public), ("message", message), ("signature", signature)):
        (tmp_path / name).write_bytes(content)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key", "-rawin"]
    command += ["-in", "message", "-sigfile", "signature"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "message").write_bytes(message.replace(b"m-1", b"m-2"))
    changed = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)
    assert changed.returncode != 0


@pytest.mark.parametrize("name", sorted(STATEMENT["predicate"]))
def test_any_changed_field_breaks_the_signature(name):
    statement = {**STATEMENT, "predicate": {**STATEMENT["predicate"], name: "changed"}}
    parts = signed() | {"payload": base64.b64encode(canonical(statement).encode()).decode()}
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(parts).encode(), TRUSTED)


def test_the_signature_of_other_evidence_does_not_fit():
    other = json.loads(seal(evidence(run_id="r2"), KEY))["signatures"]
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(signed() | {"signatures": other}).encode(), TRUSTED)


@pytest.mark.parametrize(
    "signatures",
    [
        [],
        None,
        {},
        "signed",
        [{}],
        [None],
        [{"keyid": key_id(TRUSTED[0])}],
        [{"keyid": key_id(TRUSTED[0]), "sig": ""}],
        [{"keyid": key_id(TRUSTED[0]), "sig": "!"}],
        [{"keyid": key_id(TRUSTED[0]), "sig": 7}],
        [{"keyid": key_id(TRUSTED[0]), "sig": base64.b64encode(b"x" * 64).decode()}],
        [{"keyid": TRUSTED[0], "sig": ""}],
        [{"keyid": key_id(TRUSTED[0]), "sig": "AA=="}] * 2,
    ],
)
def test_an_envelope_without_a_valid_signature_is_refused(signatures):
    with pytest.raises(EvidenceError):
        open_sealed(json.dumps(signed() | {"signatures": signatures}).encode(), TRUSTED)


def test_an_envelope_of_another_type_signed_with_the_same_key_does_not_pass():
    with pytest.raises(EvidenceError, match="the envelope holds 'application/json'"):
        open_sealed(in_envelope(STATEMENT, payload_type="application/json"), TRUSTED)
    with pytest.raises(EvidenceError, match=r"type .* is 'https://slsa\.dev/provenance/v1'"):
        open_sealed(
            in_envelope(STATEMENT | {"predicateType": "https://slsa.dev/provenance/v1"}), TRUSTED
        )


def test_a_token_says_that_there_is_signed_evidence_and_cannot_be_made_up():
    envelope = seal(EVIDENCE, KEY)
    token = seal_token("c" * 32, "a" * 32, "m-1", envelope, KEY)
    assert len(token) < 1000
    found = open_token(token, TRUSTED)
    assert (found["run"], found["audit"], found["subject"]) == ("c" * 32, "a" * 32, "m-1")
    assert open_token(token, ()) is None
    assert open_token(seal_token("c" * 32, "a" * 32, "m-1", envelope, OTHER), TRUSTED) is None
    for other in ("", "{}", "[]", envelope, token[:-5], token.replace("payload", "pay")):
        assert open_token(other, TRUSTED) is None


# --- evidence that earlier versions have signed -------------------------------------------------------


def test_evidence_of_the_first_format_is_still_read():
    opened = open_sealed(json.dumps(signed_once()).encode(), TRUSTED)
    assert opened.signed_by == TRUSTED[0]
    assert opened.evidence.measured_at == EVIDENCE.issued_at
    assert opened.evidence.results == EVIDENCE.results


@pytest.mark.parametrize("name", [name for name in CONTENT if name != "format"])
def test_any_changed_field_breaks_the_signature_of_the_first_format(name):
    parts = signed_once()
    value = parts["evidence"][name]
    parts["evidence"][name] = {
        str: lambda: value[:-1] + ("0" if value[-1] != "0" else "1"),
        dict: lambda: {**value, next(iter(value)): "0" * 64 if name != "results" else 0.1},
        list: lambda: ["another"],
        type(None): lambda: {"matched": True},
    }[type(value)]()
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(parts).encode(), TRUSTED)


def test_a_removed_signature_makes_unsigned_evidence():
    parts = signed_once() | {"signature": None}
    assert open_sealed(json.dumps(parts).encode(), TRUSTED).signed_by is None


def test_a_key_that_is_not_trusted_does_not_count():
    with pytest.raises(EvidenceError, match="not trusted here"):
        open_sealed(seal(EVIDENCE, OTHER).encode(), TRUSTED)
    with pytest.raises(EvidenceError, match="not trusted here"):
        open_sealed(seal(EVIDENCE, KEY).encode(), ())


def test_to_claim_the_id_of_a_trusted_key_is_not_enough():
    parts = json.loads(seal(EVIDENCE, OTHER))
    parts["signatures"][0]["keyid"] = key_id(TRUSTED[0])
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(parts).encode(), TRUSTED)
    parts = json.loads(seal_content("evidence", FORMAT_1, CONTENT, OTHER))
    parts["signature"]["key"] = key_id(TRUSTED[0])
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(parts).encode(), TRUSTED)


def test_a_document_of_another_format_signed_with_the_same_key_does_not_pass():
    other = json.loads(seal_content("evidence", "another format", CONTENT, KEY))
    with pytest.raises(EvidenceError, match="signature does not match the content"):
        open_sealed(json.dumps(other).encode(), TRUSTED)


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS256", "ed25519", "", None, 7])
def test_only_one_algorithm_counts(algorithm):
    parts = signed_once()
    parts["signature"]["algorithm"] = algorithm
    with pytest.raises(EvidenceError, match="only Ed25519 is accepted"):
        open_sealed(json.dumps(parts).encode(), TRUSTED)


@pytest.mark.parametrize(
    "signature",
    [
        False,
        0,
        "",
        [],
        {},
        "signed",
        {"algorithm": "Ed25519", "key": key_id(TRUSTED[0])},
        {"algorithm": "Ed25519", "key": key_id(TRUSTED[0]), "value": "", "more": 1},
        *(
            {"algorithm": "Ed25519", "key": key_id(TRUSTED[0]), "value": value}
            for value in ("", "!", None, 7, [1], {}, "é", base64.b64encode(b"x" * 64).decode())
        ),
        *({"algorithm": "Ed25519", "key": key, "value": ""} for key in (None, [], {}, TRUSTED[0])),
    ],
)
def test_what_is_no_signature_is_refused_and_not_read_as_unsigned(signature):
    with pytest.raises(EvidenceError):
        open_sealed(document(signature=signature), TRUSTED)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"not JSON",
        b"null",
        b"[]",
        b"{}",
        b'{"evidence": {}, "signature": null}',
        b'{"evidence": [], "signature": null}',
        b'{"evidence": {}, "signature": null, "more": 1}',
        b'{"evidence": {}, "evidence": {}, "signature": null}',
        b'{"evidence": {"a": NaN}, "signature": null}',
        b'{"evidence": {"a": 1e999}, "signature": null}',
        b'{"evidence": {"a": ' + b"9" * 5000 + b'}, "signature": null}',
        b'{"evidence": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b', "signature": null}',
        b"[" * 100_000,
        b" " * (LARGEST + 1),
    ],
    ids=lambda text: text[:40].decode(errors="replace"),
)
def test_what_is_no_evidence_is_refused(text):
    with pytest.raises(EvidenceError):
        open_sealed(text, TRUSTED)


def test_nesting_that_can_be_read_but_not_signed_is_refused():
    """Reading and signing go through different depths; neither may end in another error."""
    for depth in range(100, 3000, 100):
        nested = "[" * depth + "]" * depth
        text = json.dumps(
            {
                "evidence": {**CONTENT, "preregistration": {"a": "DEEP"}},
                "signature": signed_once()["signature"],
            }
        ).replace('"DEEP"', nested)
        with pytest.raises(EvidenceError):
            open_sealed(text.encode(), TRUSTED)


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": 1},
        {"issued_at": None},
        {"issued_at": 20260101},
        {"audit_run_id": ["a"]},
        {"model_id": 7},
        {"run_id": {}},
        {"source": None},
        {"model_digest": "0" * 63},
        {"model_digest": "Z" * 64},
        {"model_files": {"a": "b"}},
        {"model_files": ["a"]},
        {"model_files": {"a": None}},
        {"files": {"audit.json": "x"}},
        {"settings": {"a": 1}},
        {"results": []},
        {"results": {"b3/e0": "0.1"}},
        {"results": {"b3/e0": True}},
        {"tags": {"b3.verdict": True}},
        {"packages": None},
        {"policy_hash": 1},
        {"rows_digest": None},
        {"preregistration": "yes"},
        {"preregistration": [True]},
        {"earlier_audits": 3},
        {"earlier_audits": [3]},
        {"earlier_audits": None},
    ],
    ids=str,
)
def test_content_of_the_wrong_kind_is_refused_even_if_signed(changes):
    content = {**CONTENT, **changes}
    for key in (None, KEY):
        text = seal_content("evidence", FORMAT_1, content, key)
        with pytest.raises(EvidenceError):
            open_sealed(text.encode(), TRUSTED)
    if "model_files" not in changes:
        statement = {**STATEMENT, "predicate": {**STATEMENT["predicate"], **changes}}
        for text in (json.dumps(statement).encode(), in_envelope(statement)):
            with pytest.raises(EvidenceError):
                open_sealed(text, TRUSTED)


@pytest.mark.parametrize(
    "subject",
    [
        *(None, [], {}, [{}], ["a"], [{"name": "a"}]),
        [{"name": "a", "digest": {"sha1": "0" * 40}}],
        [{"name": "a", "digest": {"sha256": "0" * 64}}] * 2,
    ],
    ids=str,
)
def test_a_statement_without_proper_files_is_refused(subject):
    statement = STATEMENT | {"subject": subject}
    if subject == []:
        assert open_sealed(in_envelope(statement), TRUSTED).evidence.model_files == {}
        return  # the digest of all files contradicts it, which the archive notices
    with pytest.raises(EvidenceError):
        open_sealed(in_envelope(statement), TRUSTED)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CONTENT
        if name not in ("preregistration", "earlier_audits", "policy_hash", "unsigned_audits")
    ],
)
def test_content_that_lacks_a_field_is_refused(name):
    with pytest.raises(EvidenceError):
        open_sealed(
            document({key: value for key, value in CONTENT.items() if key != name}), TRUSTED
        )


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_evidence_error(text):
    with pytest.raises(EvidenceError):
        open_sealed(text, TRUSTED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    content=st.dictionaries(st.sampled_from(sorted(CONTENT)), JSON, max_size=4),
    signature=st.none() | st.just(signed_once()["signature"]) | JSON,
)
def test_arbitrary_content_is_read_as_what_it_is_or_refused(content, signature):
    text = json.dumps({"evidence": {**CONTENT, **content}, "signature": signature}).encode()
    try:
        opened = open_sealed(text, TRUSTED)
    except EvidenceError:
        return
    assert isinstance(opened.evidence, Evidence)
    assert opened.signed_by is None or opened.evidence.results == EVIDENCE.results
