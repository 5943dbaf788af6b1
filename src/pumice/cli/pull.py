"""`pumice pull`: fetch a model into the cache, with one progress bar on stderr, and say where it is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pumice.sources import Progress, ProgressCallback, Resolved, resolve
from pumice.sources.files import size_text

_WORDS = {"find": "looking for it", "fetch": "fetching", "check": "checking", "unpack": "unpacking", "upload": "uploading",
          "compile": "compiling kernels for this processor, once", "embed": "embedding", "score": "scoring",
          "index": "indexing files", "plan": "planning", "write": "writing weights", "done": "done"}  # fmt: skip
# Phases that count pieces; the others count bytes.
_PIECES = ("compile", "plan", "embed", "score", "index")
# Phases that are reported without a terminal.
_LINES = ("compile", "plan", "write")
# What is over sooner needs no bar, and none of the time that it takes to get ready to draw one.
_BAR_AFTER_SECONDS = 0.5


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[ProgressCallback | None]:
    """A bar on stderr for `resolve` and `load`; without a terminal, a line for long phases that move no bytes.

    >>> with progress_bar(quiet=True) as callback:
    ...     callback is None
    True
    """
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _report_once()
    else:
        with ExitStack() as stack:
            yield _draw(stack)


def _report_once() -> ProgressCallback:
    """Says what is compiled or exported, in a line of its own, when it begins."""
    reported: set[str] = set()

    def report(now: Progress) -> None:
        if now.phase in _LINES and now.phase not in reported:
            reported.add(now.phase)
            size = f", {size_text(now.total)}" if now.phase == "write" and now.total else ""
            print(f"pumice: {_WORDS[now.phase]}{size}", file=sys.stderr, flush=True)

    return report


def _draw(stack: ExitStack) -> ProgressCallback:
    """Draws one bar, for as long as the stack is open."""
    started = time.monotonic()
    bars: Any = None
    drawn = ""

    def show(now: Progress) -> None:
        nonlocal bars, drawn
        from rich import progress as parts
        from rich.console import Console

        if bars is None:
            bars = stack.enter_context(parts.Progress(console=Console(stderr=True), transient=True))
            bars.add_task("", total=None)
        if drawn != now.phase:
            drawn = now.phase
            count = [parts.MofNCompleteColumn()]
            amount = [parts.DownloadColumn(binary_units=True), parts.TransferSpeedColumn()]
            numbers = count if drawn in _PIECES else amount
            bars.columns = (parts.TextColumn("{task.description}"), parts.BarColumn(), *numbers, parts.TimeRemainingColumn())
        words = _WORDS.get(now.phase, now.phase)
        bars.update(bars.task_ids[0], description=words, total=now.total, completed=now.done)

    def show_if_long(now: Progress) -> None:
        if bars is not None or now.phase == "compile" or time.monotonic() - started > _BAR_AFTER_SECONDS:
            show(now)

    return show_if_long


def describe(model: Resolved) -> dict[str, Any]:
    """What is printed, as data."""
    return {
        "name": model.name,
        "spec": model.spec,
        "path": str(model.path),
        "bytes": model.nbytes,
        "revision": model.revision or None,
        "files": [{"path": f.path, "bytes": f.size, "sha256": f.sha256} for f in model.files],
    }


def run(model: str, *, as_json: bool, verify: bool) -> None:
    """Fetch a model, or find that it is here, and print where."""
    with progress_bar(quiet=as_json) as progress:
        found = resolve(model, progress=progress, refresh=True, verify=verify)
    if as_json:
        print(json.dumps(describe(found)))
        return
    count = f"{len(found.files)} files" if len(found.files) > 1 else "1 file"
    print(f"{found.path}\n{found.name}: {size_text(found.nbytes)} in {count}" + (", hashes verified" if verify else ""))
