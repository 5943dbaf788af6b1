"""What kernels of packs could not do in this process: each failure is counted; those of installed packs are kept when it ends."""

from __future__ import annotations

import atexit
import functools
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any

# A pack has at most 256 kernels, and a kernel fails in a handful of ways: beyond this only what is known is counted.
_MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class Degraded:
    """A kernel that failed in one way: how often, and what the first error said. Something else did its work."""

    pack: str
    kernel: str
    code: str
    count: int
    message: str

    def to_dict(self) -> dict[str, Any]:
        """As reports in JSON show it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.pack}/{self.kernel}: {self.code} × {self.count}: {self.message}"


_lock = threading.Lock()
_noted: dict[tuple[str, str, str], Degraded] = {}


def note(pack: str, kernel: str, code: str, message: str) -> None:
    """Counts a failure of a kernel.

    >>> note("demo", "fast", "unreachable", "fast trapped")
    >>> note("demo", "fast", "unreachable", "fast trapped again")
    >>> [str(d) for d in degraded() if d.pack == "demo"]
    ['demo/fast: unreachable × 2: fast trapped']
    >>> forget("demo")
    """
    key = pack, kernel, code
    with _lock:
        found = _noted.get(key)
        if found is not None:
            _noted[key] = replace(found, count=found.count + 1)
        elif len(_noted) < _MAX_ENTRIES:
            _noted[key] = Degraded(pack, kernel, code, 1, message)
            _keep_at_exit()


@functools.cache
def _keep_at_exit() -> None:
    """Lets this process add its counts to those of others when it ends."""

    def add() -> None:
        from pumice.packs.degraded_file import add_own_counts

        add_own_counts()

    atexit.register(add)


def degraded() -> tuple[Degraded, ...]:
    """Everything that failed since the process began, by pack and kernel."""
    with _lock:
        return tuple(_noted[key] for key in sorted(_noted))


def forget(pack: str | None = None) -> None:
    """Forgets the failures of a pack, such as one that was replaced, or of all."""
    with _lock:
        for key in [k for k in _noted if pack is None or k[0] == pack]:
            del _noted[key]
