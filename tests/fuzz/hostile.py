"""What all fuzzers of hostile input share: seeded cases, ways to damage them, and the contract that is held.

A fuzzer is two functions: `make(rng)` makes a case from a `random.Random`, and `attempt(case)` uses it as a program would.

    def test_hostile_gguf_files(request, tmp_path):
        fuzz(request, make=lambda rng: damaged(rng, VALID), attempt=lambda data: read(write(tmp_path, data)))

The contract: a case is accepted or gives a PumiceError. Another exception, a hang or much memory is a failure, which names
the seed. `pytest tests/fuzz --fuzz-cases 20000` runs more, `--fuzz-seed 42 --fuzz-cases 1 -k NAME` repeats one.
"""

from __future__ import annotations

import copy
import faulthandler
import random
import signal
import sys
import threading
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from formats.mutate import NUMBERS, mutated
from pumice.errors import PumiceError

CASES = 300  # of each fuzzer in `make test`
SECONDS = 20.0  # that one case may take; far above what any needs, so that a busy machine is no failure
MEMORY = 256 << 20  # bytes that one case may take

Case = TypeVar("Case")


class Hang(BaseException):
    """A case took too long. No Exception, so that no code under test catches it."""


class MemoryTaken(AssertionError):
    """A case took too much memory."""


def fuzz(
    request: pytest.FixtureRequest,
    make: Callable[[random.Random], Case],
    attempt: Callable[[Case], object],
    *,
    cases: int = CASES,
    allowed: type[Exception] | tuple[type[Exception], ...] = PumiceError,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> None:
    """Attempts `cases` cases (or as many as the option says); fails at the first that breaks the contract."""
    first = request.config.getoption("--fuzz-seed")
    count = request.config.getoption("--fuzz-cases")
    for seed in range(first, first + (cases if count is None else count)):
        case = make(random.Random(seed))
        problem = broken(attempt, case, allowed=allowed, seconds=seconds, memory=memory)
        if problem:
            pytest.fail(
                f"seed {seed}: {problem}\ncase: {_shown(case)}\n"
                f"repeat with: pytest {request.node.nodeid} --fuzz-seed {seed} --fuzz-cases 1",
                pytrace=False,
            )


def broken(
    attempt: Callable[[Case], object],
    case: Case,
    *,
    allowed: type[Exception] | tuple[type[Exception], ...] = PumiceError,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> str:
    """How `attempt(case)` breaks the contract; empty if it holds."""
    try:
        with bounded_time(seconds), bounded_memory(memory), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the suite makes errors of them; to warn of odd input is right
            attempt(case)
    except allowed as error:
        return unreadable(error)
    except (Exception, Hang):
        return traceback.format_exc()
    return ""


def unreadable(error: Exception) -> str:
    """What is wrong with an error's own text: hostile input must not fill or steer a terminal."""
    text = str(error)
    if len(text) > 8000:
        return f"the message has {len(text)} characters: {text[:500]}…"
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return f"the message hands control characters on: {text!r}"
    return ""


@contextmanager
def bounded_time(seconds: float) -> Iterator[None]:
    """Raises Hang if the enclosed code takes longer; where native code never returns, ends the process with a traceback."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def expire(*_: object) -> None:
        raise Hang(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(6 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded_memory(limit: int) -> Iterator[None]:
    """Raises MemoryTaken if the enclosed code allocates more at any time; native allocations count too where Linux tells."""
    before = _reset_peak()
    if before is None:
        tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] if before is None else _status("VmHWM") - before
    finally:
        if before is None:
            tracemalloc.stop()
    if peak > limit:
        raise MemoryTaken(f"{peak} bytes at the peak, more than {limit}")


def _reset_peak() -> int | None:
    """The bytes resident now, with the kernel's record of the peak set back to them; None where it keeps none."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return None


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"no {field}")


def damaged(rng: random.Random, data: bytes, changes: int = 4) -> bytes:
    """`data` with one to `changes` random changes: bytes, numbers, cuts, insertions, deletions, reversals."""
    kinds = ("byte", "byte", "u32", "u64", "cut", "insert", "delete", "swap")
    values = [rng.randrange(256), rng.choice(NUMBERS), rng.getrandbits(64)]
    return mutated(
        data, [(rng.choice(kinds), rng.randint(0, len(data)), rng.choice(values)) for _ in range(rng.randint(1, changes))]
    )


# Where code goes wrong that trusts what it reads: wrong types, limits of integers, odd texts, depth.
_ODD_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308)
_ODD_TEXTS = ("", "a", "\0", "\x1b[2J", "\ud800", "é", "../..", "/etc/passwd", "{{ x }}", "%s" * 9, "0", "null", "x" * 5000)


def odd_value(rng: random.Random, depth: int = 3) -> Any:
    """A JSON value that a reader did not expect."""
    kind = rng.randrange(9 if depth else 7)
    if kind < 3:
        return rng.choice(_ODD_NUMBERS)
    if kind < 5:
        return rng.choice(_ODD_TEXTS)
    if kind < 7:
        return rng.choice((None, True, False, float("nan"), float("inf"), [], {}))
    if kind == 7:
        return [odd_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_ODD_TEXTS): odd_value(rng, depth - 1) for _ in range(rng.randrange(4))}


def nested(depth: int, leaf: Any = 0) -> Any:
    """A list in a list in a list …"""
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def damaged_json(rng: random.Random, value: Any, changes: int = 3) -> Any:
    """A copy of a JSON value with some parts replaced, removed, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, changes)):
        value = _damage_one(rng, value)
    return value


def _damage_one(rng: random.Random, value: Any) -> Any:
    places = list(_places(value))
    if not places:
        return odd_value(rng)
    holder, key = rng.choice(places)
    action = rng.randrange(6)
    if action < 3:
        holder[key] = odd_value(rng)
    elif action == 3:
        del holder[key]
    elif action == 4:
        other, name = rng.choice(places)
        if _has(other, name):
            holder[key] = copy.deepcopy(other[name])
    elif isinstance(holder, dict):
        holder[rng.choice(_ODD_TEXTS)] = holder.pop(key)
    else:
        holder.extend([copy.deepcopy(holder[key])] * rng.choice((1, 2, 50)))
    return value


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a value, as the list or dict that holds it and its key."""
    if isinstance(value, dict | list):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(part)


def _shown(case: object) -> str:
    text = repr(case)
    return text if len(text) <= 4000 else text[:4000] + f"… ({len(text)} characters)"
