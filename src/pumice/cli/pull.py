"""`pumice pull`: fetch a model into the cache, with one progress bar on stderr, and say where it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pumice.sources import Progress, ProgressCallback, Resolved, resolve
from pumice.sources.files import size_text

_WORDS = {"find": "looking for it", "fetch": "fetching", "check": "checking", "unpack": "unpacking", "upload": "uploading",
          "embed": "embedding", "done": "done"}  # fmt: skip


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[ProgressCallback | None]:
    """A bar on stderr for `resolve`; nothing when `quiet` or when nobody is looking.

    >>> with progress_bar(quiet=True) as callback:
    ...     callback is None
    True
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        # Nothing is drawn for a model that is here already.
        task: list[Any] = []

        def show(now: Progress) -> None:
            if not task:
                task.append(bars.add_task("", total=None))
            bars.update(task[0], description=_WORDS.get(now.phase, now.phase), total=now.total, completed=now.done)

        yield show


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
