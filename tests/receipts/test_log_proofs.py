"""Proofs from a log: that a receipt is in it, that it continues an older checkpoint, and co-signing what continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pumice.errors import InputError
from pumice.receipts.cosigners import CosignerMemory
from pumice.receipts.errors import BadProof, BrokenLog, InvalidCheckpoint, ReceiptError
from pumice.receipts.log import CHECKPOINT, LINES, ReceiptLog
from pumice.receipts.log_proofs import read_request, verify_inclusion
from pumice.receipts.notes import read_checkpoint, sign_checkpoint
from pumice.receipts.receipt import example_receipt
from receipt_logs import KEY, OTHER, add, make_log

SEVEN = 7


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of seven lines, and its checkpoints after each of them, as 1.checkpoint and so on."""
    folder = tmp_path_factory.mktemp("log") / "receipts"
    for size in range(1, SEVEN + 1):
        make_log(folder, 1)
        shutil.copy(folder / CHECKPOINT, folder / f"{size}.checkpoint")
    return folder


def old(folder: Path, size: int) -> bytes:
    return (folder / f"{size}.checkpoint").read_bytes()


@pytest.fixture
def log(seven: Path) -> ReceiptLog:
    return ReceiptLog(seven, key=KEY)


def test_every_line_can_be_proved(log: ReceiptLog) -> None:
    lines = log.path.read_bytes().splitlines(keepends=True)
    for index, line in enumerate(lines):
        proof = log.prove(line)
        assert proof.decode().splitlines()[:2] == ["c2sp.org/tlog-proof@v1", f"index {index}"]
        assert verify_inclusion(line, proof).checkpoint.size == SEVEN
        for other in lines:
            if other != line:
                with pytest.raises(BadProof, match=f"of line {index + 1}"):
                    verify_inclusion(other, proof)


def test_every_byte_of_a_proof_that_is_changed_is_found(log: ReceiptLog) -> None:
    line = log.path.read_bytes().splitlines(keepends=True)[4]
    proof = log.prove(line)
    for at, byte in enumerate(proof):
        with pytest.raises(ReceiptError):
            verify_inclusion(line, proof[:at] + bytes([byte ^ (1 << at % 8)]) + proof[at + 1 :])
        with pytest.raises(ReceiptError):
            verify_inclusion(line, proof[:at])


def test_a_receipt_of_another_log_is_not_proved(log: ReceiptLog, tmp_path: Path) -> None:
    other = make_log(tmp_path / "short", 2)
    with pytest.raises(BadProof, match="another receipt"):
        log.prove(add(other, "different").line)
    longer = make_log(tmp_path / "long", SEVEN)
    with pytest.raises(BadProof, match="line 8, and the log has 7"):
        log.prove(add(longer).line)
    with pytest.raises(BadProof, match="in no log"):
        log.prove(example_receipt().sign(KEY))
    with pytest.raises(InputError, match="no checkpoint"):
        ReceiptLog(tmp_path / "none", key=KEY).prove(b"")


def test_a_log_that_was_changed_proves_nothing(seven: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(seven, tmp_path / "copy"))
    lines = (copy / LINES).read_bytes().splitlines(keepends=True)
    (copy / LINES).write_bytes(b"".join([*lines[:2], lines[2].replace(b"A", b"B", 1), *lines[3:]]))
    with pytest.raises(BadProof, match="does not lead"):
        ReceiptLog(copy, key=KEY).prove(lines[4])


def test_the_log_continues_each_of_its_checkpoints(log: ReceiptLog, seven: Path) -> None:
    for size in range(1, SEVEN + 1):
        request = read_request(log.prove_consistency(old(seven, size)))
        assert (request.old, request.signed.checkpoint.size) == (size, SEVEN)
        for other in range(1, SEVEN + 1):
            assert request.continues(read_checkpoint(old(seven, other))) == (other == size)
    with pytest.raises(BadProof, match="does not continue"):
        log.prove_consistency(sign_checkpoint(3, bytes(32), KEY))
    with pytest.raises(BrokenLog, match="lines 8 to 9 are missing"):
        log.prove_consistency(sign_checkpoint(9, bytes(32), KEY))


@pytest.mark.parametrize(
    "data", [b"", b"old 3\n", b"old 03\n\n", b"old 3\nAAAA\n\n", b"old 3\n" + b"A" * 43 + b"=\n\n", b"old \xff\n\n"]
)
def test_requests_have_one_form(data: bytes) -> None:
    with pytest.raises(InvalidCheckpoint):
        read_request(data)


def test_a_cosigner_signs_what_continues(log: ReceiptLog, seven: Path, tmp_path: Path) -> None:
    memory = CosignerMemory(tmp_path / "cosigned")
    first = memory.cosign(old(seven, 3), OTHER)
    assert (first.before, [c.signer.key for c in first.signed.cosignatures]) == (0, [OTHER.public])
    assert memory.cosign(old(seven, 3), OTHER).before == 3  # the same again says the same again
    with pytest.raises(BrokenLog, match="no proof that the log of 7 continues it") as refused:
        memory.cosign(old(seven, SEVEN), OTHER)
    assert "--since" in refused.value.hint
    with pytest.raises(BrokenLog, match="no proof"):  # a proof from another checkpoint
        memory.cosign(log.prove_consistency(old(seven, 4)), OTHER)
    assert memory.cosign(log.prove_consistency(old(seven, 3)), OTHER).before == 3
    with pytest.raises(BrokenLog, match="7 lines of this log was co-signed here, this one has 5"):
        memory.cosign(old(seven, 5), OTHER)


def test_a_cosigner_signs_one_history(log: ReceiptLog, seven: Path, tmp_path: Path) -> None:
    memory = CosignerMemory(tmp_path / "cosigned")
    memory.cosign(old(seven, 3), OTHER)
    rewritten = ReceiptLog(tmp_path / "anew", key=KEY)
    for _ in range(3):
        add(rewritten, "another history")
    with pytest.raises(BrokenLog, match="does not continue"):
        memory.cosign((tmp_path / "anew" / CHECKPOINT).read_bytes(), OTHER)
    other_three = (tmp_path / "anew" / CHECKPOINT).read_bytes()
    add(rewritten)
    with pytest.raises(BrokenLog, match="does not continue"):
        memory.cosign(rewritten.prove_consistency(other_three), OTHER)
    assert memory.cosign(log.prove_consistency(old(seven, 3)), OTHER).before == 3


def test_the_key_of_a_log_does_not_cosign_it(seven: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="own key"):
        CosignerMemory(tmp_path / "cosigned").cosign(old(seven, 3), KEY)
