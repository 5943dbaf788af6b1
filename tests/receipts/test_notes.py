"""Signed notes, checkpoints and co-signatures: the formats of c2sp.org, read strictly."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.receipts.errors import BadSignature, InvalidCheckpoint, ReceiptError
from pumice.receipts.log_proofs import read_request, verify_inclusion
from pumice.receipts.notes import (
    COSIGNATURE,
    LogCheckpoint,
    Verifier,
    cosign,
    cosigner,
    log_origin,
    read_checkpoint,
    read_note,
    sign_checkpoint,
)
from receipt_logs import KEY, OTHER

ROOT = hashlib.sha256(b"root").digest()
NOW = 1_794_000_000


def cosigned() -> bytes:
    return cosign(read_checkpoint(sign_checkpoint(10, ROOT, KEY)), OTHER, now=NOW)


def signature_line(signer: Verifier, signature: bytes) -> str:
    return f"— {signer.name} {base64.b64encode(signer.key_id + signature).decode()}\n"


def test_a_known_note() -> None:
    """The key and the note that implementations of signed notes test with."""
    signer = Verifier.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    signature = "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM="
    text, [(name, key_id, raw)] = read_note(f"This is an example message.\n\n— example.com/foo {signature}\n".encode())
    assert (text, name, key_id) == ("This is an example message.\n", "example.com/foo", signer.key_id)
    assert signer.check(text, raw) is None
    assert Verifier.parse(signer.text) == signer
    with pytest.raises(BadSignature, match=r"example\.com/foo is not of this text"):
        signer.check("This is another message.\n", raw)


def test_a_checkpoint_says_size_and_root() -> None:
    data = sign_checkpoint(10, ROOT, KEY)
    found = read_checkpoint(data)
    assert found.checkpoint == LogCheckpoint(log_origin(KEY.public), 10, ROOT)
    assert (found.key, found.cosignatures, found.data) == (KEY.public, (), data)
    origin, size, root, empty, signature, end = data.decode().split("\n")
    assert (origin, size, root) == (f"pumice.receipts/{KEY.public.raw.hex()}", "10", base64.b64encode(ROOT).decode())
    assert (empty, end) == ("", "") and signature.startswith(f"— {origin} ")


def test_a_cosignature_is_over_its_time_and_the_text() -> None:
    found = read_checkpoint(cosigned())
    [made] = found.cosignatures
    assert (made.signer, made.time) == (cosigner(OTHER.public), NOW)
    message = f"cosignature/v1\ntime {NOW}\n{found.checkpoint.text}".encode()
    raw = base64.b64decode(cosigned().decode().splitlines()[-1].split(" ")[2])
    assert raw[4:12] == NOW.to_bytes(8, "big")
    assert OTHER.public.verifies(raw[12:], message)
    with pytest.raises(InvalidCheckpoint, match="already"):
        cosign(found, OTHER)


def test_a_witness_of_another_name_needs_its_key() -> None:
    """Co-signers of the world have names of their own, and their keys come some other way."""
    witness = Verifier("witness.example.com/w1", OTHER.public, COSIGNATURE)
    signed = read_checkpoint(sign_checkpoint(10, ROOT, KEY))
    message = f"cosignature/v1\ntime {NOW}\n{signed.checkpoint.text}".encode()
    data = signed.data + signature_line(witness, NOW.to_bytes(8, "big") + OTHER.sign(message)).encode()
    with pytest.raises(InvalidCheckpoint, match=r"witness\.example\.com/w1 is not known") as refused:
        read_checkpoint(data)
    assert "--witness" in refused.value.hint
    assert read_checkpoint(data, [Verifier.parse(witness.text)]).cosignatures[0].signer == witness


def test_every_byte_that_is_changed_is_found() -> None:
    data = cosigned()
    for at, byte in enumerate(data):
        for changed in {byte ^ 1, byte ^ 0x20, 0, 10, 255} - {byte}:
            with pytest.raises(ReceiptError):
                read_checkpoint(data[:at] + bytes([changed]) + data[at + 1 :])
        with pytest.raises(ReceiptError):
            read_checkpoint(data[:at] + data[at + 1 :])
        if at and data[:at] != sign_checkpoint(10, ROOT, KEY):  # without its co-signature it is a checkpoint too
            with pytest.raises(ReceiptError):
                read_checkpoint(data[:at])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t + "more\n", "em dash"),
        (lambda t: t + "\n", "line end"),
        (lambda t: t[:-1], "line end"),
        (lambda t: t.replace("\n10\n", "\n010\n"), "plain number"),
        (lambda t: t.replace("\n10\n", "\n+10\n"), "plain number"),
        (lambda t: t.replace("\n10\n", "\n" + "9" * 16 + "\n"), "plain number"),
        (lambda t: t.replace("\n10\n", "\n10\nmore\n"), "3 lines"),
        (lambda t: t.replace("\n", "\r\n"), "control character"),
        (lambda t: t.replace("pumice.receipts/", "example.com/"), "origin"),
        (lambda t: t.replace(f"— {log_origin(KEY.public)}", f"— {log_origin(OTHER.public)}"), "not by the log"),
        (lambda t: t + t.splitlines()[-1] + "\n", "twice"),
        (lambda t: t.replace("— ", "- "), "em dash"),
        (lambda t: t.replace("— ", "—  "), "em dash"),
        (lambda t: "\n".join(t.splitlines()[:3]) + "\n", "no empty line"),
        (lambda t: "x" * (1 << 16) + t, "more than"),
    ],
)  # fmt: skip
def test_forms_that_are_not_ours_are_refused(change: object, said: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=said):
        read_checkpoint(change(sign_checkpoint(10, ROOT, KEY).decode()).encode())  # type: ignore[operator]


def test_too_many_signatures_are_refused() -> None:
    line = "— example.com/w{} AAAAAAA=\n"
    with pytest.raises(InvalidCheckpoint, match="65 signatures"):
        read_note(("text\n\n" + "".join(line.format(i) for i in range(65))).encode())
    assert len(read_note(("text\n\n" + "".join(line.format(i) for i in range(64))).encode())[1]) == 64


@given(st.data())
def test_whatever_is_read_gets_a_typed_error(data: st.DataObject) -> None:
    """Random bytes, and pieces of files that are right, put together at random."""
    pieces = [cosigned(), b"old 3\n", b"c2sp.org/tlog-proof@v1\n", b"index 1\n", b"A" * 43 + b"=\n", b"\n", b"\xff", b"\x00"]
    cut = (
        st.sampled_from(pieces)
        .flatmap(lambda p: st.tuples(st.just(p), st.integers(0, len(p))))
        .map(lambda pair: pair[0][: pair[1]])
    )
    made = b"".join(data.draw(st.lists(st.one_of(cut, st.sampled_from(pieces), st.binary(max_size=20)), max_size=8)))
    for read in (read_checkpoint, read_request, lambda found: verify_inclusion(b"{}\n", found)):
        try:
            found = read(made)
        except ReceiptError:
            continue
        assert getattr(found, "signed", found).checkpoint.size == 10


@pytest.mark.parametrize("text", ["", "name", "name+00000000+AAAA", "a b+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"])
def test_keys_of_witnesses_have_one_form(text: str) -> None:
    with pytest.raises(InvalidCheckpoint):
        Verifier.parse(text)
