"""Run as a script: pulls in forked children that are killed, at every step and at random times, and checks what is left.

Arguments: the index's address, a scratch folder, how many random times (0 for every step). Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pumice import config
from pumice.sources import Cache, pip_client, resolve, wheel

SPEC = "pypi:tiny-model==1.0/tiny_model/tiny.gguf"
# What changes the disk, as Python reports it; `open` covers the start of every write.
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "shutil.copyfile", "fcntl.flock"}


def child(work: Callable[[], None]) -> int:
    """Runs `work` in a fork; the status it ended with."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def killed_at(step: int) -> None:
    """A pull that dies at its n-th change of the disk."""
    left = step

    def hook(event: str, args: object) -> None:
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    resolve(SPEC)


def killed_after(seconds: float) -> None:
    """A pull that dies after some time."""
    threading.Thread(target=lambda: (time.sleep(seconds), os.kill(os.getpid(), signal.SIGKILL)), daemon=True).start()
    resolve(SPEC)


def check(home: Path) -> bool:
    """Nothing half is accepted, the next pull succeeds and leaves nothing over; says whether the entry was there already."""
    entries = list(Cache(home).entries())
    assert all(not e.problem(full=True) for e in entries), entries
    found = resolve(SPEC, verify=True)
    assert found.path.read_bytes()[:4] == b"GGUF" and found.nbytes == found.path.stat().st_size
    if not entries:
        # Only a pull that does something cleans up.
        assert not list((home / "tmp").iterdir()), list((home / "tmp").iterdir())
    return bool(entries)


def at_every_step(home: Path) -> dict[str, int]:
    """Kills a pull at its first change of the disk, then one at its second, and so on until one gets through."""
    whole = 0
    for step in range(1, 10_000):
        shutil.rmtree(home, ignore_errors=True)
        status = child(lambda step=step: killed_at(step))
        whole += check(home)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return {"kills": step - 1, "whole": whole}
    raise AssertionError("the pull never ends")


def at_random_times(home: Path, count: int) -> dict[str, int]:
    """Kills pulls at any time; every second one goes on from where the one before was killed."""
    start = time.perf_counter()
    assert child(lambda: killed_after(1e6)) == 0
    lasts = time.perf_counter() - start
    rng = random.Random(11)
    kills = whole = 0
    for i in range(count):
        if i % 2 == 0:
            shutil.rmtree(home, ignore_errors=True)
        # Drawn here, as what a child draws is lost with it.
        seconds = rng.uniform(0, lasts)
        kills += os.WIFSIGNALED(child(lambda seconds=seconds: killed_after(seconds)))
        if i % 2:
            whole += check(home)
    return {"kills": kills, "whole": whole}


if __name__ == "__main__":
    address, scratch, times = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    settings = pip_client.PipSettings(indexes=(f"{address}/simple",))
    wheel.pip_client.settings = lambda: settings
    with config.override(home=scratch / "home"):
        print(json.dumps(at_random_times(scratch / "home", times) if times else at_every_step(scratch / "home")))
