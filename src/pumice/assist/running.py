"""Running a tool: in a thread of its own, for a limited time, with a result of limited size."""

from __future__ import annotations

import contextvars
import json
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.assist.tool import Tool, ToolError
from pumice.errors import PumiceError

# Calls that did not end in time go on in their threads, which Python cannot end; more of them are not started.
_MOST_ABANDONED = 16
_abandoned: list[threading.Thread] = []
_lock = threading.Lock()


@dataclass(frozen=True)
class ToolResult:
    """What a call gave, as the model reads it; `failed` marks errors, `size` is the length of the whole in characters."""

    text: str
    failed: bool = False
    size: int = 0
    seconds: float = 0.0

    @property
    def cut(self) -> bool:
        """Whether only the beginning is there."""
        return self.size > len(self.text)


def run_tool(tool: Tool, arguments: Mapping[str, Any], *, seconds: float, most: int) -> ToolResult:
    """Calls a tool, and waits for at most `seconds`; errors are results as well. At most `most` characters are kept.

    >>> from pumice.assist.tool import tool
    >>> run_tool(tool(name="repeat")(lambda: "ab" * 1000), {}, seconds=5, most=3)
    ToolResult(text='aba', failed=False, size=2000, seconds=...)
    """
    seconds = min(seconds, tool.seconds or seconds)
    if not _may_start():
        return ToolResult(f"error: {_MOST_ABANDONED} calls that never ended are still running, so no other is started", True)
    done: queue.SimpleQueue[ToolResult] = queue.SimpleQueue()
    started = time.monotonic()
    context = contextvars.copy_context()  # spans and switches of the caller hold in the thread

    def work() -> None:
        try:
            text, size = as_text(tool.call(arguments), most)
            done.put(ToolResult(text, False, size, time.monotonic() - started))
        except BaseException as e:
            said = _error_text(e)
            done.put(ToolResult(said[:most], True, len(said), time.monotonic() - started))

    thread = threading.Thread(target=lambda: context.run(work), name=f"tool {tool.name}", daemon=True)
    thread.start()
    try:
        return done.get(timeout=max(0.0, seconds))
    except queue.Empty:
        with _lock:
            _abandoned.append(thread)
        return ToolResult(f"error: {tool.name} did not end within {seconds:g} s", True, seconds=seconds)


def _may_start() -> bool:
    with _lock:
        _abandoned[:] = [t for t in _abandoned if t.is_alive()]
        return len(_abandoned) < _MOST_ABANDONED


def _error_text(error: BaseException) -> str:
    if isinstance(error, PumiceError):
        return f"error: {error.message}" + (f" ({error.hint})" if error.hint else "")
    return f"error: {type(error).__name__}: {error}"


def as_text(value: Any, most: int) -> tuple[str, int]:
    """A value as a model reads it, at most `most` characters of it, and the length of the whole as far as it is known.

    Texts stay as they are, all else is JSON. Of a large object no more is written than is kept.

    >>> as_text({"a": [1, 2]}, 100), as_text("abc", 2)
    (('{"a": [1, 2]}', 13), ('ab', 3))
    """
    if isinstance(value, str):
        return value[:most], len(value)
    if isinstance(value, bytes):
        raise ToolError(f"the tool gave {len(value)} bytes", hint="give a text")
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    kept, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        if size < most:
            kept.append(piece[: most - size])
        size += len(piece)
        if size > most:
            break
    return "".join(kept), size
