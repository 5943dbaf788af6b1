"""Runs that are killed at any moment and resumed end exactly where an undisturbed run does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_training.py")


def killed(folder: Path, kills: int, seed: int) -> dict:
    # One thread: the children fork, and are many.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PUMICE_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), str(kills), str(seed)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3000)
    assert found.returncode == 0, found.stderr[-4000:]
    return json.loads(found.stdout)


def test_a_few_kills(tmp_path):
    found = killed(tmp_path, 6, seed=1)
    assert found["kills"] == 6 and found["runs"] >= 1 and found["checkpoints"] > 0


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    found = killed(tmp_path, 50, seed=2)
    assert found["kills"] == 50 and found["checkpoints"] > 50
