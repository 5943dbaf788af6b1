"""Times of steps on a GPU: timestamp queries inside the run's own pass where the adapter has them, else other clocks.

Timestamps inside the pass do not change the run: one pass, the same barriers, one timestamp after each dispatch, taken when
all earlier work is done. Without that feature each step gets a pass of its own with a timestamp at either end, and without
timestamps a submit of its own that the host waits for. Each way makes steps look longer by about the same amount, as they no
longer overlap: this overhead is measured once per device on a chain of tiny kernels, and subtracted.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pumice.backends.gpu.memory import GRAIN
from pumice.backends.gpu.parts import with_pipelines
from pumice.backends.timing import COPIES, Clock, StepTime, Stopwatch, Timing
from pumice.plan.plan import Kernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pumice.backends.base import Array
    from pumice.backends.gpu.interface import AnyCommands, Dispatch, Gpu
    from pumice.backends.gpu.session import GpuSession

# Empty measurements, of which the median is taken.
_BLANKS = 33
# The chain of tiny kernels that shows what measuring adds: its length, and how often it runs.
_CHAIN, _CHAINS = 64, 7
_TICK = Kernel(
    "tick",
    "@group(0) @binding(0) var<storage, read_write> count: array<u32>;\n"
    "@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) i: u32) { count[i % 4u] += 1u; }\n",
    ("update",),
    0,
    32,
    origin="generated",
)


class Timer(ABC):
    """Measures one run of a session: it encodes the steps instead of the session. Subclasses take the time.

    `count` is the number of steps, for those that measure the whole that of its parts. `cut` says whether they take the parts
    one by one, and not all steps at once.
    """

    method = ""
    cut = False
    clock: Clock = "timestamps"

    def __init__(self, gpu: Gpu, count: int) -> None:
        self.gpu, self.count = gpu, count

    @abstractmethod
    def encode(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        """Record the steps."""

    def finish(self, commands: AnyCommands) -> None:  # noqa: B027  most have nothing to add
        """Called when all else is recorded."""

    @abstractmethod
    def spans(self) -> tuple[list[tuple[float, float]], float]:
        """Once the run is done: start and seconds of each step, then of the copies if they are measured; and of the whole."""

    def close(self) -> None:  # noqa: B027  most took nothing
        """Free what the measurement took."""


class _Stamps(Timer):
    """Timestamps: the last three are the start of the steps, their end, and the end of the copies."""

    def __init__(self, gpu: Gpu, count: int, extra: int = 0) -> None:
        super().__init__(gpu, count)
        self.queries = gpu.queries(extra + 3)
        self.begin, self.end, self.copied = extra, extra + 1, extra + 2

    def _at(self, commands: AnyCommands, index: int) -> None:
        """A timestamp between passes."""
        commands.steps((), self.queries.writes(index, None))

    def encode(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        self._at(commands, self.begin)
        self._steps(commands, dispatches)
        self._at(commands, self.end)

    def _steps(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        commands.steps(dispatches)

    def finish(self, commands: AnyCommands) -> None:
        self._at(commands, self.copied)
        self.queries.resolve(commands)

    def spans(self) -> tuple[list[tuple[float, float]], float]:
        at = self.queries.seconds(self.begin)
        steps = self._split(at)
        return [*steps, (at[self.end], max(0.0, at[self.copied] - at[self.end]))] if steps else [], at[self.copied]

    def _split(self, at: list[float]) -> list[tuple[float, float]]:
        return []

    def close(self) -> None:
        self.queries.close()


class Whole(_Stamps):
    """The unchanged run, with a timestamp before and after each part of it; between parts the device may wait for the host."""

    method = "timestamps around the run"

    def __init__(self, gpu: Gpu, parts: int) -> None:
        super().__init__(gpu, parts, 2 * (parts - 1))
        self.cut = parts > 1
        self._next = 0

    def encode(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        self._next += 1
        if self._next == self.count:
            super().encode(commands, dispatches)
            return
        first = 2 * (self._next - 1)
        self._at(commands, first)
        self._steps(commands, dispatches)
        self._at(commands, first + 1)

    def spans(self) -> tuple[list[tuple[float, float]], float]:
        at = self.queries.seconds(self.begin)
        parts = sum(at[2 * k + 1] - at[2 * k] for k in range(self.count - 1))
        return [], parts + at[self.copied]


class InsidePass(_Stamps):
    """A timestamp after each step, inside the one pass."""

    method = "timestamps between the steps of one pass"

    def __init__(self, gpu: Gpu, count: int) -> None:
        super().__init__(gpu, count, count)

    def _steps(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        handle = commands.begin_pass()
        for i, dispatch in enumerate(dispatches):
            commands.more_steps(handle, (dispatch,))
            self.queries.write(commands, handle, i)
        commands.end_pass(handle)

    def _split(self, at: list[float]) -> list[tuple[float, float]]:
        return [(a, b - a) for a, b in zip([0.0, *at], at[: self.count], strict=False)]


class PassEach(_Stamps):
    """A pass of its own for each step, with timestamps at both ends."""

    method = "timestamps around a pass for each step"

    def __init__(self, gpu: Gpu, count: int) -> None:
        super().__init__(gpu, count, 2 * count)

    def _steps(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        for i, d in enumerate(with_pipelines(dispatches)):
            commands.steps((d,), self.queries.writes(2 * i, 2 * i + 1))

    def _split(self, at: list[float]) -> list[tuple[float, float]]:
        return [(at[2 * i], at[2 * i + 1] - at[2 * i]) for i in range(self.count)]


class HostClock(Timer):
    """The host's clock around a submit and a wait for each step."""

    method = "host clock, a wait after each step"
    clock = "host"

    def __init__(self, gpu: Gpu, count: int) -> None:
        super().__init__(gpu, count)
        self._times: list[tuple[float, float]] = []

    def encode(self, commands: AnyCommands, dispatches: Sequence[Dispatch]) -> None:
        self.gpu.flush()  # uploads that wait for a submit are not the first step's
        self.gpu.wait_idle()
        self._times = [self._time(d) for d in self._batches(with_pipelines(dispatches))]
        self.gpu.mark("steps")

    def _batches(self, dispatches: Sequence[Dispatch]) -> list[Sequence[Dispatch]]:
        return [(d,) for d in dispatches]

    def _time(self, dispatches: Sequence[Dispatch]) -> tuple[float, float]:
        run = self.gpu.run_alone(dispatches)
        start = time.perf_counter()
        run()
        return start, time.perf_counter() - start

    def spans(self) -> tuple[list[tuple[float, float]], float]:
        begin = self._times[0][0] if self._times else 0.0
        return [(at - begin, took) for at, took in self._times], sum(took for _, took in self._times)


class HostClockWhole(HostClock):
    """The host's clock around one submit of all steps."""

    method = "host clock around the run"

    def _batches(self, dispatches: Sequence[Dispatch]) -> list[Sequence[Dispatch]]:
        return [dispatches]

    def spans(self) -> tuple[list[tuple[float, float]], float]:
        blank = statistics.median(self._time(())[1] for _ in range(_BLANKS))
        return [], max(0.0, sum(took for _, took in self._times) - blank)


def _overhead(gpu: Gpu, kind: type[Timer], whole: type[Timer]) -> float:
    """What measuring each step by `kind` adds to it: a chain of tiny dependent kernels, measured so and as a whole."""
    known = gpu.overheads.get(kind.__name__)
    if known is None:
        (pipeline,) = gpu.pipelines.compile([_TICK])
        buffer = gpu.create_buffer(GRAIN, "ticks")
        try:
            group = gpu.pipelines.bind(pipeline, [(buffer, 0, GRAIN)], "ticks")
            chain: list[Dispatch] = [(None if k else pipeline.handle, group.handle, 1, 1, 1) for k in range(_CHAIN)]
            found = []
            for _ in range(_CHAINS + 1):
                steps, _ = _measure(gpu, kind(gpu, _CHAIN), chain)
                _, total = _measure(gpu, whole(gpu, 1), chain)
                found.append((sum(took for _, took in steps[:_CHAIN]) - total) / _CHAIN)
        finally:
            buffer.release()
        # The first warms up. Measuring makes no step shorter: less than nothing is noise.
        known = gpu.overheads[kind.__name__] = max(0.0, statistics.median(found[1:]))
    return known


def _measure(gpu: Gpu, timer: Timer, dispatches: Sequence[Dispatch]) -> tuple[list[tuple[float, float]], float]:
    try:

        def record(commands: AnyCommands) -> None:
            timer.encode(commands, dispatches)
            timer.finish(commands)

        gpu.execute((), [record])
        return timer.spans()
    finally:
        timer.close()


def choose_timers(session: GpuSession) -> tuple[type[Timer], type[Timer]]:
    """The best timers that the device offers, for each step and for the whole run.

    A plan for a target without timestamps is measured as that target could.
    """
    gpu = session._gpu
    if not (gpu.caps.timestamps and session.plan.caps.timestamps):
        return HostClock, HostClockWhole
    return (InsidePass if gpu.stamps_between_steps else PassEach), Whole


def profile_run(
    session: GpuSession, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool
) -> tuple[list[Array], Timing]:
    """A run of the session with a timer in it."""
    gpu = session._gpu
    with gpu.lock:
        session._check_open()
        with gpu.guard("a measured run"):
            steps = session._steps_at(env)
            steps.prepare(env, session._type)
            numbers = steps.steps_with_work()
            kind, whole = choose_timers(session)
            overhead = _overhead(gpu, kind, whole) if each else 0.0
            timer = kind(gpu, len(numbers)) if each else whole(gpu, session.submits(steps) if outputs else 1)
            watch, before = Stopwatch(), gpu.mark
            # Large uploads have submits of their own, whose phases are of no interest.
            session._timer, gpu.mark = timer, lambda name: watch.sum_up(name) if name == "upload" else watch.mark(name)
            try:
                results = session.run(env, inputs, outputs)
                if not outputs:
                    gpu.wait_idle()
                    watch.mark("wait")
                session._timer, gpu.mark = None, before
                spans, total = timer.spans()
            finally:
                session._timer, gpu.mark = None, before
                timer.close()
    times = [StepTime(n, at, max(0.0, took - overhead)) for n, (at, took) in zip(numbers, spans, strict=False)]
    times += [StepTime(COPIES, at, took) for at, took in spans[len(numbers) :]]
    return results, Timing(timer.clock, timer.method, tuple(times), total, watch.spans(), overhead)
