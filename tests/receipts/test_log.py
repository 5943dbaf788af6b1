"""The log of receipts: appending, and everything that can be done to a log without its key is found and named."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from pumice.errors import InputError, PumiceError, PumiceWarning
from pumice.packs.keys import PublicKey, SigningKey
from pumice.receipts import log_chain, log_verify
from pumice.receipts.errors import BrokenLog, InvalidReceipt, LogNotWritten, ReceiptError, UntrustedSigner
from pumice.receipts.log import CHECKPOINT, LINES, STATE, ReceiptLog, _finishing
from pumice.receipts.log_chain import digest_of, position_of
from pumice.receipts.log_verify import LogReport, verify_copy
from pumice.receipts.merkle import Frontier, leaf_hash
from pumice.receipts.notes import cosign, log_origin, read_checkpoint, sign_checkpoint
from pumice.receipts.receipt import example_receipt
from pumice.receipts.section import NO_LINE
from pumice.sources.errors import NoSpace
from receipt_logs import KEY, OTHER, add, line_at, make_log

TEN = 10


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log of ten lines, whose checkpoint is co-signed, and the checkpoint that it had at line five."""
    folder = tmp_path_factory.mktemp("log") / "receipts"
    log = make_log(folder, 5)
    shutil.copy(folder / CHECKPOINT, folder / "five.checkpoint")
    for i in range(5, TEN):
        add(log, f"receipt {i}")
    (folder / CHECKPOINT).write_bytes(cosign(read_checkpoint((folder / CHECKPOINT).read_bytes()), OTHER))
    return folder


@pytest.fixture
def copy(ten: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ten, tmp_path / "receipts"))


def verify(folder: Path, *older: bytes, keys: tuple[PublicKey, ...] = (KEY.public,)) -> LogReport:
    return verify_copy(folder / LINES, (folder / CHECKPOINT).read_bytes(), keys, older=older)


def lines_of(folder: Path) -> list[bytes]:
    return (folder / LINES).read_bytes().splitlines(keepends=True)


def rewritten(folder: Path, lines: list[bytes]) -> None:
    (folder / LINES).write_bytes(b"".join(lines))


def chained(count: int, note: str, key: SigningKey = KEY) -> list[bytes]:
    """A chain that is right in itself."""
    lines, last = [], NO_LINE
    for index in range(count):
        lines.append(line_at(index, last, key, note))
        last = digest_of(lines[-1])
    return lines


# -- appending ----------------------------------------------------------------------------------------------------------
def test_lines_name_their_index_and_the_line_before(ten: Path) -> None:
    lines = lines_of(ten)
    found = [position_of(e) for e in ReceiptLog(ten, key=KEY).receipts()]
    assert found == list(zip(range(TEN), [NO_LINE, *map(digest_of, lines[:-1])]))
    tree = Frontier()
    for line in lines:
        tree.add(leaf_hash(line))
    checkpoint = read_checkpoint((ten / CHECKPOINT).read_bytes()).checkpoint
    assert (checkpoint.origin, checkpoint.size, checkpoint.root) == (log_origin(KEY.public), TEN, tree.root())
    assert verify(ten).receipts == TEN and verify(ten).signers == (KEY.public,)


def test_only_the_owner_can_read_the_log(ten: Path) -> None:
    assert oct(ten.stat().st_mode & 0o777) == "0o700"
    assert {oct((ten / name).stat().st_mode & 0o777) for name in (LINES, CHECKPOINT, STATE)} == {"0o600"}


def test_a_folder_that_others_can_write_is_refused(copy: Path) -> None:
    copy.chmod(0o777)
    with pytest.raises(InputError, match="can be written by other users"):
        add(ReceiptLog(copy, key=KEY))


def test_a_log_that_is_a_link_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / LINES).rename(tmp_path / "elsewhere")
    (copy / LINES).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PumiceError):
        add(ReceiptLog(copy, key=KEY))
    with pytest.raises(InputError, match="cannot be read"):
        ReceiptLog(copy, key=KEY).verify()


def test_a_log_that_cannot_be_written_can_be_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("pumice.receipts.log.exclusive", refused)
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    log = ReceiptLog(copy, key=KEY)
    assert len(list(log.receipts())) == 10 and log.verify()
    with pytest.raises(PumiceError):
        add(log)


def test_receipts_are_lines(tmp_path: Path) -> None:
    log, receipt = ReceiptLog(tmp_path, key=KEY), example_receipt()
    added = log.append(lambda index, previous: receipt.sign(KEY, position={"index": index, "previous": previous}))
    assert (tmp_path / LINES).read_bytes() == added.line
    assert [e.predicate["pumice"]["task"] for e in log.receipts()] == ["generate"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda index, previous: line_at(index + 1, previous), "says that it is line"),
        (lambda index, previous: line_at(index, NO_LINE), "does not belong"),
        (lambda index, previous: line_at(index, previous) + b"\n", "line 11"),
        (lambda index, previous: b"", "line 11"),
        (lambda index, previous: example_receipt().sign(KEY), "no log"),
    ],
)
def test_a_line_that_does_not_belong_there_is_not_written(copy: Path, make: Callable[[int, str], bytes], said: str) -> None:
    before = (copy / LINES).read_bytes()
    with pytest.raises(InvalidReceipt, match=said):
        ReceiptLog(copy, key=KEY).append(make)
    assert (copy / LINES).read_bytes() == before and verify(copy).receipts == TEN


def test_a_receipt_that_cannot_be_made_leaves_the_log_as_it_was(copy: Path) -> None:
    def fail(index: int, previous: str) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ReceiptLog(copy, key=KEY).append(fail)
    assert verify(copy).receipts == TEN and add(ReceiptLog(copy, key=KEY)).index == TEN


def test_threads_and_logs_share_one_chain(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(3):
            add(ReceiptLog(tmp_path, key=KEY), threading.current_thread().name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ReceiptLog(tmp_path, key=KEY).verify([KEY.public]).receipts == 12


def test_appending_reads_only_the_last_line(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    read = log_chain.read_envelope
    monkeypatch.setattr(log_chain, "read_envelope", lambda line: seen.append(line) or read(line))
    made = add(ReceiptLog(copy, key=KEY))
    assert seen == [made.line]


@pytest.mark.parametrize("state", [None, b"", b"{}", b"[" * 60_000, b"\xff", "older", "other last", "wrong nodes", "longer"])
def test_a_state_that_disagrees_is_made_again(copy: Path, tmp_path: Path, state: bytes | str | None) -> None:
    file = copy / STATE
    if state is None:
        file.unlink()
    elif isinstance(state, bytes):
        file.write_bytes(state)
    elif state == "older":
        make_log(tmp_path / "five", 5)
        shutil.copy(tmp_path / "five" / STATE, file)  # the first five lines are the same: signatures have no random part
    else:
        kept = json.loads(file.read_bytes())
        kept |= {
            "other last": {"last": "ab" * 32},
            "wrong nodes": {"nodes": ["cd" * 32] * len(kept["nodes"])},
            "longer": {"bytes": kept["bytes"] + 1},
        }[state]
        file.write_text(json.dumps(kept))
    assert add(ReceiptLog(copy, key=KEY)).index == TEN
    assert verify(copy).receipts == TEN + 1
    kept = json.loads(file.read_bytes())
    assert (kept["size"], kept["bytes"]) == (TEN + 1, (copy / LINES).stat().st_size)


# -- a thread that finishes appends ---------------------------------------------------------------------------------------
def test_the_line_is_there_meanwhile_and_readers_wait_for_its_checkpoint(tmp_path: Path) -> None:
    log, seen = ReceiptLog(tmp_path, key=KEY), []
    for i in range(3):
        added = add(log, f"receipt {i}", meanwhile=lambda line: seen.append((line, (tmp_path / LINES).read_bytes())))
        assert seen[-1][0] == added.line and seen[-1][1].endswith(added.line)
        found = ReceiptLog(tmp_path, key=KEY).verify([KEY.public])
        assert (found.receipts, found.uncovered) == (i + 1, 0)
    assert add(log).index == 3


def test_the_disk_has_begun_when_the_caller_goes_on(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python lets a thread that computes go on for the switch interval: one that has not begun by then would be late by that.
    begun, synced = [], threading.Event()
    log = ReceiptLog(copy, key=KEY)
    add(log, meanwhile=lambda line: None)  # starts the thread, which then waits for work
    log.settle()

    def sync(fd: int, fsync: Callable[[int], None] = os.fsync) -> None:
        synced.wait(30)
        fsync(fd)

    def go_on(line: bytes) -> None:
        begun.append(_finishing[copy].running())
        synced.set()

    monkeypatch.setattr(os, "fsync", sync)
    switched = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        add(log, meanwhile=go_on)
    finally:
        sys.setswitchinterval(switched)
    assert begun == [True] and log.verify().receipts == TEN + 2


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, NoSpace), (errno.EIO, LogNotWritten)])
def test_a_line_that_a_thread_cannot_put_on_the_disk_is_taken_back(
    copy: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[PumiceError]
) -> None:
    before, seen = (copy / LINES).read_bytes(), []

    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error, match=str(copy)):
        add(ReceiptLog(copy, key=KEY), meanwhile=seen.append)
    monkeypatch.undo()
    assert len(seen) == 1 and (copy / LINES).read_bytes() == before
    assert add(ReceiptLog(copy, key=KEY)).index == TEN and verify(copy).receipts == TEN + 1


def test_an_error_meanwhile_leaves_the_line_in_the_log(copy: Path) -> None:
    def fail(line: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(ReceiptLog(copy, key=KEY), meanwhile=fail)
    assert ReceiptLog(copy, key=KEY).verify().receipts == TEN + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which Windows does not have")
def test_a_fork_appends_with_a_thread_of_its_own(copy: Path) -> None:
    log = ReceiptLog(copy, key=KEY)
    add(log, meanwhile=lambda line: None)
    log.settle()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            add(log, "of the fork", meanwhile=lambda line: None)
            log.settle()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert add(log).index == TEN + 2 and verify(copy).receipts == TEN + 3


# -- what a killed process leaves -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tail", [b"{", b'{"payload":"', b"\0" * 700, b'{"payload":"' + b"\0" * 100 + b'"}\n'])
def test_an_unfinished_last_line_is_cut_off_and_reported(copy: Path, tail: bytes) -> None:
    with (copy / LINES).open("ab") as file:
        file.write(tail)
    found = verify(copy)
    assert (found.receipts, found.torn) == (TEN, len(tail))
    with pytest.warns(PumiceWarning, match=f"unfinished last line of {len(tail)} bytes was cut off"):
        added = add(ReceiptLog(copy, key=KEY))
    assert (added.index, added.cut) == (TEN, len(tail))
    assert (verify(copy).receipts, verify(copy).torn) == (TEN + 1, 0)


def test_a_whole_line_that_the_checkpoint_does_not_cover_is_kept(copy: Path) -> None:
    """Its writer was killed before it wrote the checkpoint."""
    line = line_at(TEN, digest_of(lines_of(copy)[-1]), note="the last")
    with (copy / LINES).open("ab") as file:
        file.write(line)
    found = verify(copy)
    assert (found.receipts, found.uncovered, found.torn) == (TEN + 1, 1, 0)
    assert ReceiptLog(copy, key=KEY).checkpoint().checkpoint.size == TEN + 1  # type: ignore[union-attr]
    assert add(ReceiptLog(copy, key=KEY)).index == TEN + 1
    assert lines_of(copy)[TEN] == line
    assert (verify(copy).receipts, verify(copy).uncovered) == (TEN + 2, 0)


def test_a_first_line_without_a_checkpoint_is_kept(tmp_path: Path) -> None:
    (tmp_path / LINES).write_bytes(line_at(0, NO_LINE))
    (tmp_path / LINES).chmod(0o600)
    assert ReceiptLog(tmp_path, key=KEY).verify().uncovered == 1
    assert add(ReceiptLog(tmp_path, key=KEY)).index == 1


# -- what somebody without the key can do -------------------------------------------------------------------------------------
def broken(folder: Path, *older: bytes) -> ReceiptError:
    with pytest.raises(ReceiptError) as found:
        verify(folder, *older)
    return found.value


def test_every_byte_of_the_log_that_is_changed_is_found_and_named(
    ten: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_byte((ten / LINES).read_bytes(), (ten / CHECKPOINT).read_bytes(), tmp_path, monkeypatch)


@pytest.mark.slow
def test_every_byte_of_ten_whole_receipts_that_is_changed_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, receipt = ReceiptLog(tmp_path, key=KEY), example_receipt()
    for _ in range(TEN):
        log.append(lambda index, previous: receipt.sign(KEY, position={"index": index, "previous": previous}))
    every_byte((tmp_path / LINES).read_bytes(), (tmp_path / CHECKPOINT).read_bytes(), tmp_path, monkeypatch)


def every_byte(data: bytes, checkpoint: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The checkpoint and the other lines are the same in all cases: their signatures are checked once.
    monkeypatch.setattr(log_chain, "read_envelope", lru_cache(64)(log_chain.read_envelope))
    monkeypatch.setattr(log_verify, "read_checkpoint", lru_cache(log_verify.read_checkpoint))
    path, number = folder / "copy.jsonl", 1
    for at, byte in enumerate(data):
        path.write_bytes(data[:at] + bytes([byte ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(BrokenLog) as found:
            verify_copy(path, checkpoint, [KEY.public])
        assert found.value.fields["line"] == number and f"line {number}" in found.value.message.replace("lines", "line")
        assert found.value.fields["what"] in {"invalid-envelope", "bad-signature", "truncated"}
        number += byte == 10
    assert number == TEN + 1


def test_every_byte_of_the_checkpoint_that_is_changed_is_found(ten: Path) -> None:
    data = (ten / CHECKPOINT).read_bytes()
    for at, byte in enumerate(data):
        with pytest.raises(ReceiptError) as found:
            verify_copy(ten / LINES, data[:at] + bytes([byte ^ (1 << at % 8)]) + data[at + 1 :], [KEY.public])
        assert found.value.exit_code == 4 and found.value.message


@pytest.mark.parametrize("kept", range(TEN))
def test_lines_cut_off_at_the_end_are_found(copy: Path, kept: int) -> None:
    rewritten(copy, lines_of(copy)[:kept])
    problem = broken(copy)
    assert problem.message == f"lines {kept + 1} to 10 are missing: the checkpoint covers 10 lines, the log has {kept}"
    with pytest.raises(BrokenLog, match="missing"):  # a new checkpoint would make it look whole
        add(ReceiptLog(copy, key=KEY))


@pytest.mark.parametrize("kept", [1, 300, -2, -1])
def test_a_log_cut_in_the_middle_of_a_line_is_found(copy: Path, kept: int) -> None:
    lines = lines_of(copy)
    cut = lines[7][:kept]
    rewritten(copy, [*lines[:7], cut])
    assert "lines 8 to 10 are missing" in broken(copy).message
    with pytest.raises(BrokenLog, match="missing"):
        add(ReceiptLog(copy, key=KEY))
    assert (copy / LINES).read_bytes() == b"".join([*lines[:7], cut])  # nothing is cut off from a log that was tampered with


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (lambda x: [*x[:3], x[4], x[3], *x[5:]], 4, "index"),
        (lambda x: x[::-1], 1, "index"),
        (lambda x: [*x[:4], x[3], *x[4:]], 5, "index"),
        (lambda x: [*x, x[-1]], 11, "index"),
        (lambda x: [*x[:4], *x[5:]], 5, "index"),
        (lambda x: x[1:], 1, "index"),
        (lambda x: [*x[:4], example_receipt().sign(KEY), *x[4:]], 5, "no-position"),
        (lambda x: [*x[:4], line_at(4, digest_of(x[3]), note="put in"), *x[4:]], 6, "index"),
        (lambda x: [*x[:4], line_at(4, digest_of(x[3]), note="replaced"), *x[5:]], 6, "previous"),
        (lambda x: [*x[:4], line_at(4, NO_LINE, note="replaced"), *x[5:]], 5, "previous"),
        (lambda x: [*x[:4], b"\n", *x[4:]], 5, "invalid-envelope"),
        (lambda x: [*x[:4], b" " + x[4], *x[5:]], 5, "invalid-envelope"),
        (lambda x: [*x[:9], line_at(9, digest_of(x[8]), note="replaced")], None, "root"),
        (lambda x: chained(TEN, "all replaced"), None, "root"),
        (lambda x: [*x, *(line_at(10 + i, digest_of(x[-1])) for i in range(2))], 12, "previous"),
    ],
    ids=["swapped", "reversed", "doubled", "last doubled", "one taken out", "first taken out", "of no log", "put in", "replaced",
         "replaced first", "empty line", "space", "last replaced", "all replaced", "two after it"],
)  # fmt: skip
def test_lines_moved_put_in_or_replaced_are_found(
    copy: Path, change: Callable[[list[bytes]], list[bytes]], line: int | None, what: str
) -> None:
    """Even by somebody who has the key that signs lines, as long as the checkpoint stays."""
    rewritten(copy, change(lines_of(copy)))
    problem = broken(copy)
    assert isinstance(problem, BrokenLog)
    assert (problem.fields.get("line"), problem.fields["what"]) == (line, what)


def test_an_older_checkpoint_in_the_place_of_the_new_one_is_found(copy: Path) -> None:
    shutil.copy(copy / "five.checkpoint", copy / CHECKPOINT)
    assert "covers 5 lines, the log has 10: an older checkpoint" in broken(copy).message
    with pytest.raises(BrokenLog, match="older checkpoint"):
        add(ReceiptLog(copy, key=KEY))


def test_an_older_log_with_its_checkpoint_is_found_by_a_newer_one(copy: Path) -> None:
    newer = (copy / CHECKPOINT).read_bytes()
    rewritten(copy, lines_of(copy)[:5])
    shutil.copy(copy / "five.checkpoint", copy / CHECKPOINT)
    assert verify(copy).receipts == 5  # nothing is wrong with it, if nothing else is known
    assert "lines 6 to 10 are missing" in broken(copy, newer).message


def test_a_log_continues_its_older_checkpoints(copy: Path, tmp_path: Path) -> None:
    five = (copy / "five.checkpoint").read_bytes()
    assert [o.checkpoint.size for o in verify(copy, five).older] == [5]
    # Another history that is right in itself, by the same key.
    other = chained(TEN, "another history")
    rewritten(copy, other)
    tree = Frontier()
    for line in other:
        tree.add(leaf_hash(line))
    (copy / CHECKPOINT).write_bytes(sign_checkpoint(TEN, tree.root(), KEY))
    assert verify(copy).receipts == TEN
    assert "lines 1 to 5 are not those that the checkpoint covers" in broken(copy, five).message
    make_log(tmp_path / "new", 1)
    assert "of the log pumice.receipts/" in broken(copy, sign_checkpoint(5, bytes(32), OTHER)).message


def test_a_checkpoint_that_was_kept_elsewhere_is_enough(copy: Path) -> None:
    ten, five = ((copy / name).read_bytes() for name in (CHECKPOINT, "five.checkpoint"))
    assert verify_copy(copy / LINES, None, [KEY.public], older=[five, ten]).receipts == TEN
    with pytest.raises(BrokenLog, match="covers 5 lines, the log has 10"):
        verify_copy(copy / LINES, None, [KEY.public], older=[five])


def test_the_keys_must_be_trusted(copy: Path) -> None:
    with pytest.raises(UntrustedSigner, match="the checkpoint is signed by"):
        verify(copy, keys=(OTHER.public,))
    add(ReceiptLog(copy, key=KEY), key=OTHER)
    with pytest.raises(UntrustedSigner, match="line 11 is signed by"):
        verify(copy)
    assert verify(copy, keys=(KEY.public, OTHER.public)).signers == (KEY.public, OTHER.public)


def test_a_log_of_another_key_is_not_appended_to(copy: Path) -> None:
    with pytest.raises(BrokenLog, match="belongs to the key SHA256:"):
        add(ReceiptLog(copy, key=OTHER), key=OTHER)


@pytest.mark.parametrize("gone", [LINES, CHECKPOINT])
def test_a_file_that_is_gone_is_not_begun_anew(copy: Path, gone: str) -> None:
    (copy / gone).unlink()
    with pytest.raises(BrokenLog):
        add(ReceiptLog(copy, key=KEY))
    with pytest.raises(BrokenLog):
        ReceiptLog(copy, key=KEY).verify()


def test_moved_away_a_new_log_begins(copy: Path, tmp_path: Path) -> None:
    for name in (LINES, CHECKPOINT):
        (copy / name).rename(tmp_path / name)
    assert add(ReceiptLog(copy, key=KEY)).index == 0


# -- disks --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "ftruncate"])
@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, NoSpace), (errno.EIO, LogNotWritten)])
def test_a_failing_disk_gives_a_typed_error_and_loses_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[PumiceError]
) -> None:
    before = (copy / LINES).read_bytes()
    real_write, calls = os.write, []

    def fail(*args: object, **_: object) -> int:
        if call == "write" and not calls:  # a part of the line gets there
            calls.append(args)
            return real_write(args[0], bytes(args[1])[:100])  # type: ignore[arg-type]
        raise OSError(code, os.strerror(code))

    if call == "ftruncate":  # the line cannot be taken back either
        monkeypatch.setattr(os, "write", fail)
        calls.append(())
    monkeypatch.setattr(os, call, fail)
    if call == "replace":  # the line is there, and only the checkpoint is not
        with pytest.warns(PumiceWarning, match="checkpoint"):
            add(ReceiptLog(copy, key=KEY))
        with pytest.raises(error):  # two lines that no checkpoint covers would look like an older checkpoint
            add(ReceiptLog(copy, key=KEY))
    else:
        with pytest.raises(error) as found:
            add(ReceiptLog(copy, key=KEY))
        assert str(copy) in found.value.message and found.value.hint
    monkeypatch.undo()
    kept = TEN + (call == "replace")
    assert (copy / LINES).read_bytes().startswith(before)
    assert verify(copy).receipts == kept
    assert add(ReceiptLog(copy, key=KEY)).index == kept
    assert verify(copy).receipts == kept + 1 and not [p for p in copy.iterdir() if p.name.startswith(".")]


# -- copies, and large logs ---------------------------------------------------------------------------------------------------
def test_a_copy_is_verified_elsewhere_with_public_keys(ten: Path, tmp_path: Path) -> None:
    ReceiptLog(ten, key=KEY).export(tmp_path / "copy.jsonl")
    found = verify_copy(tmp_path / "copy.jsonl", (tmp_path / "copy.checkpoint").read_bytes(), [PublicKey(KEY.public.raw)])
    assert found.receipts == TEN and found.checkpoint is not None
    assert [c.signer.key for c in found.checkpoint.cosignatures] == [OTHER.public]


def test_a_log_is_read_line_by_line(tmp_path: Path) -> None:
    """A long log takes no more memory than a short one."""
    count, note = 80, "x" * 50_000
    lines, last = tmp_path / "log.jsonl", NO_LINE
    tree = Frontier()
    with lines.open("wb") as file:
        for index in range(count):
            line = line_at(index, last, note=note)
            file.write(line)
            tree.add(leaf_hash(line))
            last = digest_of(line)
    tracemalloc.start()
    try:
        assert verify_copy(lines, sign_checkpoint(count, tree.root(), KEY), [KEY.public]).receipts == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < lines.stat().st_size / 5


def test_an_empty_log_is_whole(tmp_path: Path) -> None:
    log = ReceiptLog(tmp_path / "none", key=KEY)
    assert (log.verify().receipts, log.checkpoint(), list(log.receipts())) == (0, None, [])
    assert not (tmp_path / "none").exists()
