"""Appends by processes that are killed, and by several at once: no acknowledged receipt is lost, and there is one chain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_harness import environment
from pumice.receipts.log import ReceiptLog
from receipt_logs import KEY

KILLS = Path(__file__).with_name("log_kill_points.py")
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from receipt_logs import KEY, add
from pumice.receipts.log import ReceiptLog
log = ReceiptLog(Path(sys.argv[2]), key=KEY)
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    add(log, f"{sys.argv[4]}: {i}")
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which Windows does not have")


def kills(folder: Path, count: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, KILLS, folder, str(count)], capture_output=True, text=True, env=environment(), timeout=600
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@needs_fork
def test_a_kill_at_every_step_of_an_append(tmp_path: Path) -> None:
    seen = kills(tmp_path, 0)
    assert seen["kills"] > 80 and seen["unfinished"] >= 1 and seen["uncovered"] >= 1


@needs_fork
def test_thirty_kills_at_random_times(tmp_path: Path) -> None:
    assert kills(tmp_path, 30)["kills"] == 30


@needs_fork
@pytest.mark.slow
def test_two_hundred_kills_at_random_times(tmp_path: Path) -> None:
    assert kills(tmp_path, 200)["kills"] == 200


def test_four_processes_append_to_one_chain(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    arguments = [(sys.executable, "-c", WRITER, tests, str(tmp_path / "log"), "8", f"writer {i}") for i in range(4)]
    writers = [
        subprocess.Popen(a, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        for a in arguments
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline().strip() == b"ready"
    ended = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        ended.append((writer.communicate(timeout=120)[1], writer.returncode))
    assert ended == [(b"", 0)] * 4
    log = ReceiptLog(tmp_path / "log", key=KEY)
    assert log.verify([KEY.public]).receipts == 32
    notes = [e.predicate["pumice"]["note"] for e in log.receipts()]
    assert sorted(notes) == sorted(f"writer {w}: {i}" for w in range(4) for i in range(8))
    for w in range(4):  # each writer's own are in its order
        assert [n for n in notes if n.startswith(f"writer {w}")] == [f"writer {w}: {i}" for i in range(8)]
