"""One progress bar on stderr for everything that takes a while: download, upload, batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Report = Any  # (phase: str, done: int, total: int) -> None


@contextmanager
def progress_bar(*, enabled: bool = True) -> Iterator[Report]:
    """A callback (phase, done, total) that draws a bar once two seconds have passed; silent where stderr is no terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()
    bar: Any = None
    tasks: dict[str, Any] = {}

    def report(phase: str, done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - started < 0.5 or done >= total:
                return
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total)
        bar.update(tasks[phase], completed=done, total=total)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()
