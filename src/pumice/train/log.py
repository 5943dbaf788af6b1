"""The log of a run: one JSON object a line, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pumice.core.whole_file import replacing
from pumice.sources.disk import disk_errors

Record = Mapping[str, Any]


class Log:
    """Appends records to a file. Each line is flushed when `write` returns; None writes nothing.

    `resumed_at` is the train step that a run resumes from: what a killed run logged after it happens again, and is dropped. A run
    that starts over keeps an earlier log next to its own, as `.old`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Log(f"{folder}/log.jsonl") as log:
    ...         for step in (1, 2, 3):
    ...             log.write({"step": step, "loss": 1 / step})
    ...     with Log(f"{folder}/log.jsonl", resumed_at=2) as log:
    ...         log.write({"step": 3, "loss": float("nan")})
    ...     [(r["step"], r["loss"]) for r in read_log(f"{folder}/log.jsonl")]
    [(1, 1.0), (2, 0.5), (3, None)]
    """

    def __init__(self, path: str | Path | None, *, resumed_at: int = 0) -> None:
        self.path = None if path is None else Path(path)
        self._file = None
        if self.path is None:
            return
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                if resumed_at:
                    self._cut(self.path, resumed_at)
                elif self.path.stat().st_size:
                    os.replace(self.path, f"{self.path}.old")
            self._file = self.path.open("a", encoding="utf-8")

    def _cut(self, path: Path, step: int) -> None:
        with replacing(path, durable=True) as file:
            for record in read_log(path):
                if record.get("step", 0) <= step:
                    file.write((json.dumps(record) + "\n").encode())

    def write(self, record: Record) -> None:
        """Add one line."""
        if self._file is not None:
            with disk_errors(Path(self._file.name)):
                self._file.write(json.dumps(jsonable(record), allow_nan=False) + "\n")
                self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            # What the full disk did not take was reported by `write`.
            with suppress(OSError):
                self._file.close()


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a log; a line that a kill left unfinished ends it."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                return
            if isinstance(found, dict):
                yield found


def jsonable(value: Any) -> Any:
    """A value as JSON has it: no NaN and no infinity (None), NumPy's numbers as Python's.

    >>> jsonable({"a": float("inf"), "b": (1, 2)})
    {'a': None, 'b': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
