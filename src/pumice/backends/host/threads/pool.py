"""Threads that share one task by its numbered parts, without waiting for one another to wake up.

Waking Python's own thread pool takes longer than most matmuls of a token step. Here workers that had work a moment
ago spin on a word of memory, in code that holds no lock of the interpreter, and those that have long been idle sleep.
Any thread that is awake claims the next part, so a late or descheduled worker delays no other.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from pumice.ir.registry import Array

# The words of the control block, on cache lines of their own. CLAIM holds the number of the task in its upper half, and in its
# lower one, 16 bits each, the first chunk of parts that is left and the one after the last. The caller takes chunks from the
# front, workers from the back: with two threads each has the same half of every task, so that most of what it reads is what it
# has written itself, and is in its own cache. DONE counts parts that are finished; BUSY says that more tasks follow at once.
# ALONE is the number of tasks that are not shared, as other programs had the cores when some were: a worker that is stopped in
# the middle of its part delays all. It is longer each time, by BACKOFF. ASLEEP is what the function `sleepers` answers.
LINE = 8
CLAIM, DONE, TOTAL, CHUNK, KERNEL, JOB, BUSY, ALONE, BACKOFF, ASLEEP, THREADS = 0, LINE, *range(2 * LINE, 2 * LINE + 9)
PARKED = 4 * LINE  # one line for each worker: 1 while it sleeps or is about to
# The words of a task's record: the kernel's address, that of the task's words, the number of parts, of those of a chunk, and
# of looks that the last one may take.
RECORD = 5
# How long a worker stays awake without work: as long as Python may take between two tokens. To wake it costs a tenth of one.
_AWAKE_SECONDS = 2e-3

# A compiled function as Python calls it; other threads of Python run meanwhile.
Compiled = Callable[[int, int, int], None]
compiled_at: Callable[[int], Compiled] = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)


class ThreadPool:
    """The caller's thread and up to 31 workers. Hold `lock` to give it tasks."""

    def __init__(self, threads: int, serve: Compiled, sleepers: Compiled) -> None:
        self.workers = min(threads, 32) - 1
        self.lock = threading.Lock()
        self.control = 0
        self._serve, self._sleepers = serve, sleepers
        self._process = -1

    def rouse(self, wanted: bool) -> None:
        """Wakes the workers that sleep, also those that were left out if they are `wanted` in any case.

        They are started on first use, and in a forked process, which has none of its parent's.
        """
        if self._process != os.getpid():
            self._start()
        try:
            self._sleepers(self.control, self.workers, int(wanted))
            asleep = int(self._words[ASLEEP])
            for w in range(asleep.bit_length()):
                if asleep >> w & 1:
                    self._gates[w].put(None)
        except BaseException:
            # Which of them were woken is unknown, and one that is taken for awake would sleep for ever. One too many
            # wakes for nothing.
            for gate in self._gates:
                gate.put(None)
            raise

    def _start(self) -> None:
        memory = np.zeros((5 + self.workers) * LINE, np.int64)
        skip = -memory.ctypes.data % 64 // 8
        self._words = memory[skip:]
        self._words[THREADS] = self.workers + 1
        self.control = self._words.ctypes.data
        self._gates: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(self.workers)]
        patience = _spins(self._serve)
        for me, gate in enumerate(self._gates):
            # The thread holds the memory, as it may still look at it when this object is gone.
            args = (self._serve, self._words, me, patience, gate)
            threading.Thread(target=_work, args=args, name=f"pumice-host-{me}", daemon=True).start()
        # Last: threads of a start that was interrupted sleep for good, and the next call starts others.
        self._process = os.getpid()


def _work(serve: Compiled, words: Array, me: int, patience: int, gate: SimpleQueue[None]) -> None:
    control = words.ctypes.data
    while True:
        serve(control, me, patience)
        gate.get()


def _spins(serve: Compiled) -> int:
    """How many looks at a control block fill the time that a worker stays awake: pauses differ a lot between processors."""
    tries, fastest = 200, 1.0
    empty = np.zeros(5 * LINE, np.int64)
    for _ in range(3):
        start = time.perf_counter()
        serve(empty.ctypes.data, 0, tries)
        fastest = min(fastest, max(1e-9, time.perf_counter() - start))
    return max(100, int(tries * _AWAKE_SECONDS / fastest))
