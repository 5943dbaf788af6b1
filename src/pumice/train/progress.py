"""Progress of a training run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from pumice.train.log import Record

# Without a terminal, one line per interval is enough.
_SECONDS_BETWEEN_LINES = 10.0


class RunDisplay(Protocol):
    """Shows a run; open for as long as the run lasts."""

    def begin(self, done: int, total: int) -> None:
        """The run starts at train step `done` of `total`."""
        ...

    def step(self, record: Record) -> None:
        """A train step is done."""
        ...

    def note(self, text: str) -> None:
        """A message on its own line."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def choose(wanted: bool) -> RunDisplay:
    """The way to show a run on this machine's stderr."""
    if not wanted:
        return Silent()
    return LiveBar() if sys.stderr.isatty() else Lines()


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(59.6), duration(3723)
    ('1:00', '1:02:03')
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Silent:
    """Shows nothing."""

    def begin(self, done: int, total: int) -> None:
        pass

    def step(self, record: Record) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class _Speed:
    """Rate of train steps and remaining time; steps before a resume do not count."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total, self.samples = done, total, 0
        self.started = time.monotonic()

    def add(self, record: Record) -> tuple[float, float]:
        """Samples in a second, and seconds that are left."""
        self.samples += int(record.get("samples", 0))
        spent = max(time.monotonic() - self.started, 1e-9)
        made = max(int(record["step"]) - self.done, 1)
        return self.samples / spent, spent / made * (self.total - int(record["step"]))


class Lines(Silent):
    """Plain lines on stderr, for logs and pipes."""

    def __init__(self) -> None:
        self._speed = _Speed(0, 0)
        self._last = time.monotonic()

    def begin(self, done: int, total: int) -> None:
        self._speed = _Speed(done, total)

    def step(self, record: Record) -> None:
        rate, left = self._speed.add(record)
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self.note(step_line(record, self._speed.total, rate, left))

    def note(self, text: str) -> None:
        print(f"pumice: {text}", file=sys.stderr, flush=True)


def step_line(record: Record, total: int, rate: float, left: float) -> str:
    """A train step as a line of text.

    >>> step_line({"step": 5, "epoch": 0, "loss": 0.25, "lr": 0.001}, 10, 1234.5, 61)
    'step 5/10, epoch 1, loss 0.2500, lr 0.001, 1,234 samples/s, 1:01 left'
    """
    where = f"step {record['step']}/{total}, epoch {record['epoch'] + 1}"
    return f"{where}, loss {record['loss']:.4f}, lr {record['lr']:.3g}, {rate:,.0f} samples/s, {duration(left)} left"


class LiveBar(Silent):
    """A bar with loss, rate, speed and remaining time, redrawn in its place."""

    def __init__(self) -> None:
        self._speed = _Speed(0, 0)
        self._bar: Any = None

    def begin(self, done: int, total: int) -> None:
        from rich import progress as parts
        from rich.console import Console

        self._speed = _Speed(done, total)
        columns = (parts.BarColumn(), parts.MofNCompleteColumn(), parts.TextColumn("{task.description}"))
        self._bar = parts.Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._bar.add_task("", total=total, completed=done)

    def step(self, record: Record) -> None:
        rate, left = self._speed.add(record)
        line = f"loss {record['loss']:.4f}  lr {record['lr']:.3g}  {rate:,.0f} samples/s  {duration(left)} left"
        self._bar.update(self._bar.task_ids[0], completed=record["step"], description=line)

    def note(self, text: str) -> None:
        if self._bar is None:
            print(f"pumice: {text}", file=sys.stderr, flush=True)
        else:
            self._bar.console.print(f"pumice: {text}", markup=False, highlight=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
