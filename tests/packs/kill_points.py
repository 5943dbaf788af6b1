"""Run as a script: upgrades a pack in forked children that are killed, at every step and at random times; checks what is left.

Arguments: a home with a trusted key and one pack installed, a folder with the zips of two versions of it, how many random times
(0 for every step). Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from pumice.packs.health import Finding
from pumice.packs.store import PackStore
from pumice.packs.trust import VerifiedPack

# What changes the disk, as Python reports it; `open` covers the start of every write.
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "fcntl.flock"}


def healthy(pack: VerifiedPack) -> Sequence[Finding]:
    return [Finding(kernel, "loads") for kernel in pack.manifest.kernel_ids]


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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def upgrade(home: Path, zips: list[Path]) -> None:
    """To the version that is not active; with no grace period, so that it also deletes."""
    store = PackStore(home, check=healthy, grace=0)
    active = store.installed()[0].version
    store.upgrade(next(path for path in zips if path.stem != active), older=True)


def killed_at(step: int, work: Callable[[], None]) -> None:
    """Work that dies at its n-th change of the disk."""
    left = step

    def hook(event: str, args: object) -> None:
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left == 0:
                die()

    sys.addaudithook(hook)
    work()


def killed_after(seconds: float, work: Callable[[], None]) -> None:
    """Work that dies after some time."""
    threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()
    work()


def check(home: Path) -> str:
    """Exactly one whole version is active, and the version before it is whole; gives the active one."""
    store = PackStore(home, check=healthy)
    (found,) = store.installed()
    pack = store.active("small")  # verifies signature and hashes of what is stored
    expected = f"version {found.version}\n".encode() * 10_000
    assert pack.manifest.version == found.version and pack.files["data.txt"] == expected
    if found.previous:
        assert store.previous("small").manifest.version == found.previous.version
    return found.version


def clean(home: Path) -> None:
    """The next change leaves nothing over but what the state names."""
    store = PackStore(home, check=healthy, grace=0)
    store.enable("small")
    (found,) = store.installed()
    blobs = {f"{stored.blob}.zip" for stored in (found.current, found.previous) if stored}
    assert {p.name for p in (home / "packs" / "blobs").iterdir()} == blobs
    assert {p.name for p in (home / "packs").iterdir()} == {"blobs", "trust", "lock", "state.json", "state.copy.json"}


def at_every_step(home: Path, zips: list[Path]) -> dict[str, object]:
    """Kills an upgrade at its first change of the disk, then one at its second, and so on until one gets through."""
    seen: Counter[str] = Counter()
    for step in range(1, 10_000):
        before = check(home)
        status = child(lambda step=step: killed_at(step, lambda: upgrade(home, zips)))
        after = check(home)
        seen["switched" if after != before else "as before"] += 1
        clean(home)
        if not os.WIFSIGNALED(status):
            assert status == 0 and after != before
            return {"kills": step - 1, **seen}
    raise AssertionError("the upgrade never ends")


def at_random_times(home: Path, zips: list[Path], count: int) -> dict[str, object]:
    """Kills upgrades at any time; every second one goes on from where the one before was killed, leftovers and all."""
    check(home)  # imports what children then have from the start
    lasts = []
    for _ in range(5):
        start = time.perf_counter()
        assert child(lambda: upgrade(home, zips)) == 0
        lasts.append(time.perf_counter() - start)
    rng = random.Random(15)
    seen: Counter[str] = Counter()
    attempts = 0
    while seen["kills"] < count:
        attempts += 1
        assert attempts < 20 * count, seen
        before = check(home)
        # Drawn here, as what a child draws is lost with it.
        seconds = rng.uniform(0, median(lasts))
        status = child(lambda seconds=seconds: killed_after(seconds, lambda: upgrade(home, zips)))
        seen["kills"] += os.WIFSIGNALED(status)
        after = check(home)
        seen["switched" if after != before else "as before"] += 1
        if attempts % 2:
            clean(home)
    return {**seen}


if __name__ == "__main__":
    home, folder, times = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    zips = sorted(folder.glob("*.zip"))
    print(json.dumps(at_random_times(home, zips, times) if times else at_every_step(home, zips)))
