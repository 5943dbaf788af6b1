"""How the benchmarks measure: sides in processes of their own, taken in turns, medians of what they tell."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
# Threads of BLAS and OpenMP stay awake for a moment after their work, which would slow down whoever comes next.
_REST_SECONDS = 0.1


def seconds_of(run: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def median_seconds(run: Callable[[], object], repeats: int = 15, warm: int = 1) -> float:
    """The median time of a call, after `warm` that are not counted."""
    for _ in range(warm):
        run()
    return statistics.median(seconds_of(run) for _ in range(repeats))


def in_turns(
    sides: Mapping[str, Callable[[int], T]], rounds: int, *, warm: int = 1, rest: float = _REST_SECONDS
) -> dict[str, list[T]]:
    """What each side answers in each round: all sides one after the other, another one first each time.

    So a drifting clock rate or a busy neighbour meets all sides alike. Sides are called with the number of the round; the
    first `warm` rounds are not counted: they compile, and find cold caches.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(rounds + warm):
        at = i % len(names) if names else 0
        for name in (*names[at:], *names[:at]):
            time.sleep(rest)
            answer = sides[name](i)
            if i >= warm:
                found[name].append(answer)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each side."""
    return {name: statistics.median(values) for name, values in found.items()}


def some_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes some of these names, separated by commas.

    >>> some_of(["decode", "embed"])("embed")
    ['embed']
    """
    known = list(names)

    def choose(text: str) -> list[str]:
        wanted = text.split(",")
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{','.join(unknown)} is not among {','.join(known)}")
        return wanted

    return choose


def checkout(text: str) -> Path:
    """The type of an option that names a folder with a checkout."""
    folder = Path(text).resolve()
    if not (folder / "src" / "pumice").is_dir() or not (folder / "bench").is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no checkout: src/pumice or bench is missing")
    return folder


# -- processes ----------------------------------------------------------------------------------------------------------
class Worker:
    """A process that measures one side: a script that calls `serve`."""

    def __init__(self, python: str, script: Path, *args: str, environment: Mapping[str, str] | None = None) -> None:
        env = {**os.environ, **(environment or {})}
        command = [python, str(script), *args]
        self.name = f"{script.name} {' '.join(args)}"
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, work: str, **options: Any) -> Any:
        """What the script answers to one request."""
        self.send(work, **options)
        return self.answer()

    def send(self, work: str, **options: Any) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"work": work, **options}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideError(f"{self.name} ended: its last words are above") from None

    def answer(self) -> Any:
        """The answer to the oldest request that was sent."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"{self.name} ended: its last words are above")
        found = json.loads(line)
        if "error" in found:
            raise SideError(f"{self.name}: {found['error']}")
        return found["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it read all that was sent
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SideError(RuntimeError):
    """A side could not be measured."""


def serve(works: Mapping[str, Callable[..., Any]]) -> None:
    """The loop of a worker: one request a line on stdin, one answer a line on stdout; `ready` says that it began."""
    # Libraries print where they like: stdout belongs to the answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    works = {"ready": lambda: True, **works}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": works[request.pop("work")](**request)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def thread_settings(threads: int) -> dict[str, str]:
    """The environment that gives a process so many threads; libraries read it when they are loaded."""
    names = ("PUMICE_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def has_modules(python: str, *modules: str) -> bool:
    """Whether a Python can find modules."""
    code = f"import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in {modules!r}))"
    done = subprocess.run([python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def has_cuda(python: str) -> bool:
    """Whether the torch of a Python has a GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


def require_native() -> None:
    """Refuses to measure the processor without numba: NumPy would do the work, many times slower than what users have."""
    from pumice.backends.host.native.jit import available

    if not available():
        raise SystemExit(
            f"{sys.executable} has no numba: it would not measure Pumice as it is installed; run our side with another"
        )


# -- what a process costs -----------------------------------------------------------------------------------------------
def cpu_seconds() -> float:
    """User and system time of this process, all threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mib() -> tuple[float, float]:
    """Resident memory of this process now, and the most there has been."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    now, peak = (int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, peak


@dataclass(frozen=True)
class Life:
    """One process from start to end: seconds to the first byte on stdout, seconds of processor time, memory at most."""

    first_byte: float
    cpu: float
    peak_mib: float


def live(command: Sequence[str], environment: Mapping[str, str]) -> Life:
    """Runs a process to its end.

    The kernel counts what the process that starts it has resident as the first memory of the new one: measure from a small
    process.
    """
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert child.stdout is not None
    first = child.stdout.read(1)
    seconds = time.perf_counter() - start
    child.stdout.read()
    child.stdout.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not first:
        raise SideError(f"{' '.join(command[:4])} … printed nothing, or ended with {child.returncode}")
    return Life(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@contextmanager
def start_environment(threads: int) -> Iterator[dict[str, str]]:
    """The environment of a start: bytecode is kept as for an installed package, whatever the shell that runs this says."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, **thread_settings(threads), "PYTHONPYCACHEPREFIX": bytecode}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield environment
