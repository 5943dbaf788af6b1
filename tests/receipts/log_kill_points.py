"""Run as a script: appends to a log in forked children that are killed, at every step and at random times; checks what is left.

Arguments: an empty folder, how many random times (0 for every step). Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pumice.receipts.log import ReceiptLog
from receipt_logs import KEY, add

# What changes the disk; a write can also be cut in its middle.
CALLS = ("write", "fsync", "replace", "ftruncate", "open")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(step: int) -> None:
    """This process dies before, in the middle of, or after its n-th call that changes the disk."""
    left = step

    def dying(call: Callable[..., Any], cut: bool) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                die()
            if cut:
                left -= 1
                if left == 0:
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                    die()
            result = call(*args, **named)
            left -= 1
            if left == 0:
                die()
            return result

        return called

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name), name == "write"))


def killed_after(seconds: float) -> None:
    threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()


def child(folder: Path, count: int, prepare: Callable[[], None], *, later: bool = False) -> tuple[int, bool]:
    """Appends in a fork that may be killed; how many appends returned, and whether it was killed. `later`: a thread finishes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            acknowledge = os.write
            prepare()
            log = ReceiptLog(folder, key=KEY)
            for i in range(count):
                add(log, f"receipt {i} of {os.getpid()}", meanwhile=(lambda line: None) if later else None)
                acknowledge(writing, b".")
            log.settle()
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        returned = len(pipe.read())
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return returned, os.WIFSIGNALED(status)


def check(folder: Path, before: bytes, returned: int, seen: Counter[str]) -> bytes:
    """Nothing that was there or acknowledged is gone, the log is whole, and the next append needs no help."""
    log = ReceiptLog(folder, key=KEY)
    found = log.verify([KEY.public])
    data = log.path.read_bytes() if log.path.exists() else b""
    assert data.startswith(before)
    added = found.receipts - before.count(b"\n")
    assert returned <= added <= returned + 1, (returned, added)
    seen["unfinished"] += found.torn > 0
    seen["uncovered"] += found.uncovered
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        appended = add(log, "after the kill")
    assert (appended.index, appended.cut) == (found.receipts, found.torn)
    assert bool(said) == (found.torn > 0)
    after = log.verify([KEY.public])
    assert (after.receipts, after.torn, after.uncovered) == (found.receipts + 1, 0, 0)
    return log.path.read_bytes()


def at_every_step(folder: Path) -> dict[str, int]:
    seen: Counter[str] = Counter()
    before = b""
    for first, later in ((True, False), (False, False), (True, True), (False, True)):
        for step in range(1, 1000):
            # The first line of a log makes its files.
            place = folder / (f"first {step} {later}" if first else f"more {later}")
            returned, killed = child(place, 1, lambda step=step: killed_at(step), later=later)
            before = check(place, b"" if first else before, returned, seen)
            if not killed:
                break
            seen["kills"] += 1
        before = b""
    return {**seen}


def at_random_times(folder: Path, count: int) -> dict[str, int]:
    rng, seen, before = random.Random(16), Counter[str](), b""
    start = time.perf_counter()
    assert child(folder / "timed", 5, lambda: None) == (5, False)
    lasts = time.perf_counter() - start
    attempts = 0
    while seen["kills"] < count:
        place, attempts = folder / f"log {seen['kills'] // 25}", attempts + 1
        before = before if place.exists() else b""  # a long log takes long to check
        assert attempts < 20 * count, seen
        seconds = rng.uniform(0, lasts)
        returned, killed = child(place, 5, lambda seconds=seconds: killed_after(seconds), later=attempts % 2 == 0)
        before = check(place, before, returned, seen)
        seen["kills"] += killed
        seen["acknowledged"] += returned
    return {**seen}


if __name__ == "__main__":
    place, times = Path(sys.argv[1]), int(sys.argv[2])
    print(json.dumps(at_random_times(place, times) if times else at_every_step(place)))
