"""`pumice receipt log`, and receipts that are saved into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pumice import config
from pumice.cli.main import app
from pumice.errors import PumiceError
from pumice.receipts.envelope import read_envelope
from pumice.receipts.errors import BrokenLog
from pumice.receipts.keys import own_key, trusted_keys
from pumice.receipts.log import LINES, ReceiptLog
from pumice.receipts.receipt import example_receipt
from receipt_logs import OTHER


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A folder with the receipts r0.json to r2.json, which are in the log of its home."""
    with config.override(home=tmp_path / "home"):
        for i in range(3):
            example_receipt().save(tmp_path / f"r{i}.json", private=i == 2)
        yield tmp_path


def pumice(*args: object) -> Result:
    return CliRunner().invoke(app, ["receipt", *map(str, args)])


def ok(*args: object) -> Any:
    """The JSON that a command prints."""
    done = pumice(*args, "--json")
    assert done.exit_code == 0, done.exception or done.output
    return json.loads(done.stdout)


def refused(*args: object) -> PumiceError:
    """The error of a command whose exit code is 4."""
    error = pumice(*args).exception
    assert isinstance(error, PumiceError) and error.exit_code == 4
    return error


def test_saved_receipts_are_listed(place: Path) -> None:
    rows = ok("log")["receipts"]
    assert [r["index"] for r in rows] == [0, 1, 2]
    assert {(r["task"], r["model"], r["device"], r["status"]) for r in rows} == {("generate", "tiny", "processor", "fallback")}
    assert [r["digest"] for r in rows] == [read_envelope((place / f"r{i}.json").read_bytes()).digest for i in range(3)]
    shown = pumice("log").stdout.splitlines()
    assert len(shown) == 3 and shown[0].split()[0] == "0" and shown[2].endswith("fallback")


def test_hostile_names_do_not_reach_the_terminal(place: Path) -> None:
    from receipt_logs import sign_envelope

    def hostile(index: int, previous: str) -> bytes:
        section = {"log": {"index": index, "previous": previous}, "task": "\x1b[2J", "device": ["?"]}
        return sign_envelope({"pumice": section, "model": 3}, [], own_key())

    ReceiptLog().append(hostile)
    done = pumice("log")
    assert done.exit_code == 0 and "\x1b" not in done.stdout and "\\x1b[2J" in done.stdout
    assert ok("log")["receipts"][3]["model"] is None


def test_an_empty_log_says_how_to_begin(tmp_path: Path) -> None:
    with config.override(home=tmp_path):
        assert "empty" in pumice("log").stdout
        assert ok("log") == {"receipts": []} and ok("log", "verify")["receipts"] == 0
        assert "empty" in str(pumice("log", "checkpoint").exception)


def test_a_log_verifies_and_continues_its_checkpoints(place: Path) -> None:
    old = place / "old.checkpoint"
    assert ok("log", "checkpoint", "-o", old)["size"] == 3
    example_receipt().save(place / "r3.json")
    found = ok("log", "verify", "--checkpoint", old)
    assert (found["ok"], found["receipts"], found["checkpoint"]["size"]) == (True, 4, 4)
    assert [c["size"] for c in found["continues"]] == [3] and found["signers"] == [own_key().public.text]
    said = pumice("log", "verify", "--checkpoint", old).stdout
    assert "continues   the checkpoint of 3" in said and said.endswith("the log is whole\n")


def test_a_broken_log_has_the_exit_code_4(place: Path) -> None:
    lines = ReceiptLog().path.read_bytes().splitlines(keepends=True)
    ReceiptLog().path.write_bytes(lines[0] + lines[2])
    assert "line 2 says that it is line 3" in refused("log", "verify").message
    done = pumice("log", "verify", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"], found["error"]["code"], found["error"]["fields"]["line"]) == (4, False, "broken-log", 2)
    assert isinstance(refused("log"), BrokenLog)


def test_a_receipt_that_the_log_does_not_take_is_saved_all_the_same(place: Path) -> None:
    ReceiptLog().path.write_bytes(b"")
    with pytest.raises(BrokenLog, match="missing"):
        example_receipt().save(place / "late.json")
    assert read_envelope((place / "late.json").read_bytes()).predicate["pumice"]["log"] is None
    example_receipt().save(place / "without.json", log=False)


def test_a_receipt_is_proved_to_be_in_the_log(place: Path) -> None:
    proof = place / "r1.tlog-proof"
    assert ok("log", "prove", place / "r1.json", "-o", proof)["size"] == 3
    checks = {c["check"]: c["found"] for c in ok("verify", place / "r1.json", "--proof", proof)["checks"]}
    assert checks["log"] == "line 2 of 3 in the log of this machine's own key"
    done = pumice("verify", place / "r0.json", "--proof", proof)
    assert done.exit_code == 4 and "log        FAILED" in done.output


def test_a_proof_counts_by_the_key_of_the_log(place: Path) -> None:
    proof = place / "proof"
    proof.write_bytes(ReceiptLog().prove((place / "r1.json").read_bytes()))
    key = own_key().public.text
    with config.override(home=place / "elsewhere"):
        assert pumice("verify", place / "r1.json", "--proof", proof).exit_code == 4
        assert pumice("verify", place / "r1.json", "--proof", proof, "--key", key).exit_code == 0
        assert pumice("verify", place / "r1.json", "--proof", proof, "--any-key").exit_code == 0


def test_a_copy_is_verified_and_cosigned_elsewhere(place: Path) -> None:
    copy, key, old = place / "copy.jsonl", own_key().public, place / "old.checkpoint"
    ok("log", "export", copy)
    ok("log", "checkpoint", "-o", old)
    example_receipt().save(place / "r3.json")
    with config.override(home=place / "elsewhere"):
        assert "not a key that you trust" in refused("log", "verify", copy).message
        assert ok("log", "verify", copy, "--key", key.text)["receipts"] == 3
        trusted_keys().add(key, "a friend")
        assert ok("log", "verify", copy)["receipts"] == 3
        assert ok("log", "cosign", old, "-o", place / "seen.checkpoint")["before"] == 0
        cosigner = own_key().public.text
    request = place / "request"
    assert ok("log", "checkpoint", "--since", place / "seen.checkpoint", "-o", request)["size"] == 4
    with config.override(home=place / "elsewhere"):
        made = ok("log", "cosign", request, "-o", place / "new.checkpoint")
        assert (made["before"], made["size"], [c["key"] for c in made["cosignatures"]]) == (3, 4, [cosigner])
    found = ok("log", "verify", "--checkpoint", place / "new.checkpoint")
    assert [c["key"] for c in found["continues"][0]["cosignatures"]] == [cosigner]


def test_a_copy_without_its_checkpoint_is_refused(place: Path) -> None:
    copy = place / "copy.jsonl"
    ok("log", "export", copy)
    (place / "copy.checkpoint").unlink()
    assert "3 lines, and there is no checkpoint" in refused("log", "verify", copy).message


def test_a_revoked_key_does_not_count(place: Path) -> None:
    copy, key = place / "copy.jsonl", own_key().public
    ok("log", "export", copy)
    with config.override(home=place / "elsewhere"):
        trusted_keys().add(key, "a friend")
        trusted_keys().revoke("a friend")
        assert pumice("log", "verify", copy).exception is not None
        error = pumice("log", "verify", copy, "--key", key.text).exception
        assert isinstance(error, PumiceError) and error.code == "key-revoked" and error.exit_code == 4
        done = pumice("log", "verify", copy, "--key", key.text, "--json")
        assert (done.exit_code, json.loads(done.stdout)["error"]["code"]) == (4, "key-revoked")


def test_the_log_of_another_key_is_not_continued(place: Path) -> None:
    for path in (place / "home" / "receipts" / "keys").glob("receipts.*"):
        path.unlink()
    with pytest.raises(BrokenLog, match="belongs to the key"):
        example_receipt().save(place / "new.json")
    with pytest.raises(BrokenLog, match="belongs to the key"):
        ReceiptLog(place / "home" / "receipts", key=OTHER).checkpoint()
    assert (place / "home" / "receipts" / LINES).read_bytes().count(b"\n") == 3
