"""Processes that compile kernels beside this one: numba holds the interpreter while it compiles, so that threads would not help.

They put what they make into the cache, from which this process reads it. What they do not make, this process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pumice import config
from pumice.backends.host.native.levels import Level
from pumice.core.threads import thread_count

# A process takes a second to import numba, and some hundred megabytes.
_MOST = 4
_KERNELS_EACH = 4
DONE = b"done\n"


def worthwhile(kernels: int) -> int:
    """How many processes to start for so many kernels to compile.

    >>> worthwhile(3)
    0
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return 0
    return max(0, min(_MOST, thread_count(), kernels // _KERNELS_EACH + 1) - 1) if kernels >= _KERNELS_EACH else 0


def compile_together(
    names: Sequence[str], level: Level, compile_here: Callable[[str], None], report: Callable[[int], None]
) -> None:
    """Compiles kernels in this process, by `compile_here`, and in others; `report` gets how many are done.

    Those of other processes are in the cache when this returns, unless a process failed.
    """
    left = deque(sorted(names, key=lambda name: not name.startswith("atten")))  # what takes longest is begun first
    done = 0

    def work(compile_one: Callable[[str], bool]) -> None:
        nonlocal done
        while left:
            try:
                name = left.popleft()
            except IndexError:  # another thread was faster
                return
            if not compile_one(name):
                left.append(name)
                return
            done += 1

    def here(name: str) -> bool:
        report(done)
        compile_here(name)
        return True

    with _started(worthwhile(len(names)), level) as others:
        threads = [threading.Thread(target=work, args=(other.compile,), daemon=True) for other in others]
        for thread in threads:
            thread.start()
        while True:
            work(here)
            for thread in threads:
                thread.join()
            if not left:  # else a process has failed
                return


class _Process:
    """A process that compiles one kernel after the other."""

    def __init__(self, level: Level) -> None:
        # Without the folder of a script, whose modules could have names of the library's.
        folders = os.pathsep.join(path for path in sys.path if path)
        env = {**os.environ, "PYTHONPATH": folders, "PUMICE_HOME": str(config.home), "PUMICE_CPU": level.name}
        command = [sys.executable, "-P", "-m", "pumice.backends.host.native.compiler_process"]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def compile(self, name: str) -> bool:
        """Whether the kernel is in the cache now."""
        given, said = self.child.stdin, self.child.stdout
        assert given is not None and said is not None
        try:
            given.write(f"{name}\n".encode())
            given.flush()
            return said.readline() == DONE
        except OSError:
            return False


@contextmanager
def _started(count: int, level: Level) -> Iterator[list[_Process]]:
    found: list[_Process] = []
    try:
        for _ in range(count):
            try:
                found.append(_Process(level))
            except OSError:  # this user may start no more processes
                break
        yield found
    finally:
        for process in found:
            process.child.kill()
            process.child.communicate()
