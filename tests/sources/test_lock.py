"""Locks between processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pumice.sources.lock import exclusive


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork; run it on Linux")
def test_a_fork_does_not_keep_a_lock_that_its_parent_gave_back(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    here, there = os.pipe()
    with exclusive(path):
        if (child := os.fork()) == 0:
            with exclusive(path, wait=False) as held:
                os.write(there, b"held" if held else b"free")
            while not (tmp_path / "done").exists():
                time.sleep(0.01)
            os._exit(0)
        assert os.read(here, 4) == b"free", "the parent has it"
    try:
        with exclusive(path, wait=False) as held:
            assert held, "the child lives, and has no lock"
    finally:
        (tmp_path / "done").touch()
        os.waitpid(child, 0)
