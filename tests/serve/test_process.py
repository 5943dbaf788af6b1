"""A worker's process, as the server's process sees it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pumice.serve.process import WorkerProcess

PIPE = asyncio.subprocess.PIPE


async def _codes(text: str, count: int) -> list[int]:
    """The exit codes of workers that run a text, some at a time."""
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", text, stdin=PIPE, stdout=PIPE) for _ in range(count)
    ]
    return await asyncio.gather(*(WorkerProcess(process, lambda frame: None).ended for process in started))


def test_the_exit_code_is_the_one_that_the_worker_ended_with() -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert asyncio.run(_codes(killed, 12)) == [-9] * 12
    assert asyncio.run(_codes("raise SystemExit(3)", 12)) == [3] * 12


def test_a_worker_that_closes_its_pipe_and_stays_is_killed() -> None:
    stays = "import os, time; os.close(1); time.sleep(600)"
    assert asyncio.run(_codes(stays, 1)) == [-9]


def test_a_worker_that_sends_no_frames_is_killed() -> None:
    with pytest.raises(Exception, match="frame"):
        asyncio.run(_codes("import time; print('x' * 64, flush=True); time.sleep(600)", 1))
