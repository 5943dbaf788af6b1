"""Signed receipts have one form, and every change of any byte is refused with an error that names what broke."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

import pytest

from pumice.packs.json_text import MAX_DEPTH
from pumice.packs.keys import GROUP_ORDER, SigningKey
from pumice.receipts import envelope as envelopes
from pumice.receipts.artifacts import json_bytes
from pumice.receipts.envelope import PAYLOAD_TYPE, pae, read_envelope, sign_envelope, signed_envelope
from pumice.receipts.errors import BadSignature, InvalidEnvelope, ReceiptError
from pumice.receipts.receipt import example_receipt
from pumice.receipts.verify import verify_receipt

KEY = SigningKey.from_seed(bytes(range(32)))
SUBJECT = [{"name": "text", "digest": {"sha256": "ab" * 32}}]
# Words of messages: what an error calls the part that broke.
PARTS = ("payload", "payloadType", "signature", "sig", "keyid", "envelope", "file")


def signed() -> bytes:
    return example_receipt().sign(KEY)


def forged(payload: bytes, *, payload_type: str = PAYLOAD_TYPE, signed_type: str = PAYLOAD_TYPE) -> bytes:
    """An envelope around any payload, signed rightly: what a hostile signer can make."""
    sig = KEY.sign(pae(signed_type, payload))
    entry = {"keyid": KEY.public.text, "sig": base64.b64encode(sig).decode()}
    return json_bytes({"payload": base64.b64encode(payload).decode(), "payloadType": payload_type, "signatures": [entry]}) + b"\n"


def statement(**changes: object) -> dict[str, object]:
    predicate: dict[str, object] = {"schema": "x"}
    found: dict[str, object] = {"_type": envelopes.STATEMENT_TYPE, "subject": SUBJECT}
    return {**found, "predicateType": envelopes.PREDICATE_TYPE, "predicate": predicate, **changes}


def test_every_byte_changed_in_turn_is_refused_and_named() -> None:
    line = signed()
    kinds: set[str] = set()
    for i in range(len(line)):
        # One bit of each, and in turn others: another case, no ASCII, what JSON and base64 give a meaning to.
        others = (line[i] ^ 0x20, line[i] ^ 0x80, 0x00, ord("A"), ord("="), ord(" "), ord("\n"))
        for value in {line[i] ^ 1, others[i % len(others)]} - {line[i]}:
            changed = line[:i] + bytes([value]) + line[i + 1 :]
            with pytest.raises(ReceiptError) as caught:
                verify_receipt(changed, key=KEY.public)
            assert caught.value.code in ("invalid-envelope", "bad-signature", "untrusted-signer"), (i, value)
            assert any(part in caught.value.message for part in PARTS), caught.value.message
            kinds.add(caught.value.code)
    assert {"invalid-envelope", "bad-signature"} <= kinds


def test_an_error_names_the_part_whose_byte_was_changed() -> None:
    line = signed()
    for part, wanted in (("payload", "payload"), ("payloadType", "payloadType"), ("keyid", "key"), ("sig", "sig")):
        start = line.index(f'"{part}":"'.encode()) + len(part) + 6
        with pytest.raises(ReceiptError, match=wanted):
            read_envelope(line[:start] + (b"A" if line[start : start + 1] != b"A" else b"B") + line[start + 1 :])


def test_a_byte_taken_out_or_put_in_is_refused() -> None:
    line = signed()
    for i in range(0, len(line), 7):
        for changed in (line[:i] + line[i + 1 :], line[:i] + b"A" + line[i:], line[:i] + b" " + line[i:]):
            if changed != line:
                with pytest.raises(ReceiptError):
                    read_envelope(changed)


@pytest.mark.parametrize("end", [b"", b"\n", b" ", b"{}", b"\n{}\n", b"\0"])
def test_cut_off_or_extended_files_are_refused(end: bytes) -> None:
    line = signed()
    if end:
        with pytest.raises(InvalidEnvelope, match=r"file|envelope"):
            read_envelope(line + end)
    for cut in (0, 1, 10, len(line) // 2, len(line) - 1):
        with pytest.raises(InvalidEnvelope, match=r"file|envelope"):
            read_envelope(line[:cut] + end if end != b"\n" else line[:cut])


def test_another_keys_signature_does_not_pass_for_this_ones() -> None:
    other = SigningKey.generate()
    line = signed().replace(KEY.public.text.encode(), other.public.text.encode())
    with pytest.raises(BadSignature, match="keyid was changed"):
        read_envelope(line)


@pytest.mark.parametrize("raw", [bytes(32), b"\1" + bytes(31), bytes.fromhex("ec" + "ff" * 30 + "7f")])
def test_keys_of_small_order_sign_nothing(raw: bytes) -> None:
    keyid = "ed25519:" + base64.b64encode(raw).decode()
    with pytest.raises(InvalidEnvelope, match="keyid: a key of small order"):
        read_envelope(signed().replace(KEY.public.text.encode(), keyid.encode()))


def test_a_second_signature_made_from_the_first_is_refused() -> None:
    line = signed()
    sig = base64.b64decode(json.loads(line)["signatures"][0]["sig"])
    twin = sig[:32] + (int.from_bytes(sig[32:], "little") + GROUP_ORDER).to_bytes(32, "little")
    with pytest.raises(BadSignature, match="sig holds no canonical signature"):
        read_envelope(line.replace(base64.b64encode(sig), base64.b64encode(twin)))


def test_a_signature_of_the_same_payload_with_another_type_is_refused() -> None:
    payload = json_bytes(statement())
    read_envelope(forged(payload))
    with pytest.raises(InvalidEnvelope, match="payloadType is not"):
        read_envelope(forged(payload, payload_type="text/plain", signed_type="text/plain"))
    with pytest.raises(BadSignature, match="not of this payload"):
        read_envelope(forged(payload, signed_type="text/plain"))


REWRITTEN: dict[str, Callable[[dict[str, object]], bytes]] = {
    "spaces": lambda found: json.dumps(found, sort_keys=True).encode(),
    "order of keys": lambda found: json.dumps(dict(reversed(found.items())), separators=(",", ":")).encode(),
    "escapes": lambda found: json_bytes(found).replace(b"signatures", b"\\u0073ignatures"),
    "indent": lambda found: json.dumps(found, sort_keys=True, indent=1).encode(),
    "byte order mark": lambda found: b"\xef\xbb\xbf" + json_bytes(found),
    "duplicate key": lambda found: json_bytes(found)[:-1] + b',"signatures":[]}',
    "one field more": lambda found: json_bytes({**found, "x": 1}),
    "two signatures": lambda found: json_bytes({**found, "signatures": [*found["signatures"]] * 2}),  # type: ignore[misc]
    "no signature": lambda found: json_bytes({**found, "signatures": []}),
    "a payload that is a number": lambda found: json_bytes({**found, "payload": 3}),
    "line breaks in base64": lambda found: json_bytes({**found, "payload": f"{found['payload']}\n"}),
    "a list": lambda found: json_bytes([found]),
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_the_same_content_in_another_form_is_refused(how: str) -> None:
    found = json.loads(signed())
    with pytest.raises(InvalidEnvelope):
        read_envelope(REWRITTEN[how](found) + b"\n")


def test_base64_in_another_form_is_refused() -> None:
    lines = [forged(json_bytes(statement(predicate={"x": "y" * n}))) for n in range(3)]
    line = next(line for line in lines if b'==","payloadType' in line)
    end = line.index(b'==","payloadType')
    with pytest.raises(InvalidEnvelope, match="payload is not base64"):
        read_envelope(line[:end] + line[end + 2 :])
    # Four bits of the last character mean nothing: the next one decodes to the same bytes.
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = alphabet[alphabet.index(line[end - 1]) + 1]
    with pytest.raises(InvalidEnvelope, match="payload is not plain base64"):
        read_envelope(line[: end - 1] + bytes([twin]) + line[end:])


HOSTILE_PAYLOADS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"\x00\xff", "payload"),
    "spaces": (json.dumps(statement(), sort_keys=True).encode(), "payload is not canonical"),
    "a number in another form": (json_bytes(statement(predicate={"a": 10.5})).replace(b"10.5", b"1.05e1"), "not canonical"),
    "duplicate keys": (json_bytes(statement())[:-1] + b',"subject":[]}', "payload: the key .* occurs twice"),
    "NaN": (json_bytes(statement(predicate={"a": 1})).replace(b'{"a":1}', b'{"a":NaN}'), "NaN"),
    "a huge number": (json_bytes(statement(predicate={"a": 1})).replace(b'{"a":1}', b'{"a":1' + b"0" * 5000 + b"}"), "digits"),
    "deep nesting": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nests deeper"),
    "half of a surrogate pair": (json_bytes(statement()).replace(b'"x"', b'"\\ud800"'), "surrogate"),
    "many values": (json_bytes(statement(predicate={"a": [0] * 500_001})), "more than 500000 values"),
    "one field more": (json_bytes(statement(x=1)), "has not the fields"),
    "another _type": (json_bytes(statement(_type="https://in-toto.io/Statement/v0.1")), "_type is not"),
    "another predicateType": (json_bytes(statement(predicateType="urn:x")), "predicateType is not"),
    "a predicate that is a list": (json_bytes(statement(predicate=[])), "predicate is not an object"),
    "a subject of texts": (json_bytes(statement(subject=["text"])), "subject is not a list of objects"),
}


@pytest.mark.parametrize("what", HOSTILE_PAYLOADS)
def test_hostile_payloads_are_refused_even_with_a_right_signature(what: str) -> None:
    payload, message = HOSTILE_PAYLOADS[what]
    with pytest.raises(InvalidEnvelope, match=message):
        read_envelope(forged(payload))


def test_a_file_of_more_bytes_than_receipts_have_is_refused_before_it_is_parsed() -> None:
    data = b"[" * (envelopes.MAX_ENVELOPE + 2) + b"\n"
    with pytest.raises(InvalidEnvelope, match="bytes, more than"):
        read_envelope(data)


def test_a_document_without_a_signature_is_called_so() -> None:
    with pytest.raises(InvalidEnvelope, match="a receipt without a signature"):
        read_envelope(example_receipt().to_json().encode())


def test_a_signer_cannot_make_what_readers_refuse() -> None:
    with pytest.raises(InvalidEnvelope, match="nests deeper"):
        deep: dict[str, object] = {}
        for _ in range(20):
            deep = {"a": deep}
        sign_envelope(deep, SUBJECT, KEY)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (10**20, "more than 20 digits"),
        (-(10**20), "more than 20 digits"),
        ({1: 2}, "a name that is no text"),
        ((1, 2), "type tuple"),
        ([0] * 500_001, "more than 500000 values"),
        ("x" * (12 << 20), "bytes, more than"),
        ("\ud800", "surrogates not allowed"),
        (float("inf"), "not JSON compliant"),
    ],
    ids=["whole", "negative", "name", "tuple", "many", "long", "surrogate", "infinity"],
)
def test_values_that_readers_refuse_are_not_signed(value: object, said: str) -> None:
    with pytest.raises(ReceiptError, match=said):
        sign_envelope({"a": value}, SUBJECT, KEY)


def test_what_is_signed_is_what_is_read() -> None:
    """At the limits too: signing does not read its own line again."""
    deep: dict[str, object] = {"end": [10**20 - 1, -(10**20) + 1, 1e308, -0.0, True, None, "\u00e9"]}
    for _ in range(MAX_DEPTH - 4):
        deep = {"a": deep}
    for predicate in (deep, {}, {"empty": [{}, []], "many": [0] * 1000}):
        made = signed_envelope(predicate, SUBJECT, KEY)
        assert read_envelope(made.line) == made


def test_the_digest_is_what_sha256sum_says_of_the_file() -> None:
    line = signed()
    assert read_envelope(line).digest == hashlib.sha256(line).hexdigest()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")


def test_signing_is_deterministic_and_dsse_as_specified() -> None:
    receipt = example_receipt()
    line = receipt.sign(KEY)
    assert receipt.sign(KEY) == line
    found = json.loads(line)
    payload = base64.b64decode(found["payload"])
    message = b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    assert KEY.public.verifies(base64.b64decode(found["signatures"][0]["sig"]), message)
