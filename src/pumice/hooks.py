"""Hooks: functions of the user that are called when a model is loaded, answers, waits for its turn or fails.

A hook runs in the thread that reads the answer, or loads the model, and without any lock: it may call models itself. It should be
quick, as its caller waits for it. What it raises never reaches that caller.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.llm.answers import Generation

# No model of Pumice speaks or transcribes yet: those two are for programs that have such models beside it.
Operation: TypeAlias = Literal["generate", "json", "embed", "rerank", "classify", "load", "speak", "transcribe"]
OPERATIONS: tuple[str, ...] = get_args(Operation)
# Waits that `on_queue_wait` reports, in milliseconds, where nobody says.
LEAST_WAIT_MS = 100.0


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An operation that failed: `error` is what its caller gets.

    >>> ErrorEvent("embed", "minilm", ValueError("no text")).operation
    'embed'
    >>> ErrorEvent("sing", "minilm", ValueError("no text"))
    Traceback (most recent call last):
    pumice.errors.InputError: [input] there is no operation 'sing'
      hint: one of generate json embed rerank classify load speak transcribe
    """

    operation: Operation
    model: str
    error: Exception

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError(f"there is no operation {self.operation!r:.40}", hint="one of " + " ".join(OPERATIONS))


@dataclass(frozen=True, slots=True)
class GenerateEvent:
    """An answer that ended. `cached`: nothing ran for it. `queue_ms` is how long it waited for a slot of the engine."""

    model: str
    result: Generation
    cached: bool
    queue_ms: float


@dataclass(frozen=True, slots=True)
class ModelLoadEvent:
    """A model that was loaded, or could not be. `from_cache`: nothing was downloaded for it.

    `device` is the name of the device that it is on; where none could be opened, what was asked for.
    """

    model: str
    load_ms: float
    from_cache: bool
    device: str
    success: bool
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class QueueWaitEvent:
    """A request that waited for a slot of its engine: `wait_ms`, and how many sequences wait there now.

    `started` is False for one that ended before it got a slot: it was cancelled, or its deadline passed.
    """

    model: str
    wait_ms: float
    waiting: int
    started: bool


Event: TypeAlias = ErrorEvent | GenerateEvent | ModelLoadEvent | QueueWaitEvent


class Hook:
    """A function that is registered: `remove()` it, or leave its `with` block. Calling a hook calls its function.

    >>> with on_error(lambda event: print(event.error)) as hook:
    ...     emit(ErrorEvent("load", "smollm2", ValueError("no such file")))
    no such file
    >>> emit(ErrorEvent("load", "smollm2", ValueError("nobody listens any more")))
    """

    def __init__(self, kind: type[Event], function: Callable[[Any], object], least_ms: float = 0.0) -> None:
        self._kind, self._function, self._least_ms = kind, function, least_ms
        self._failed = False
        self.active = True

    def __call__(self, event: Event) -> object:
        return self._function(event)

    def __repr__(self) -> str:
        return f"<Hook {_NAMES[self._kind]} {_name_of(self._function)}{'' if self.active else ', removed'}>"

    def remove(self) -> None:
        """Call it no more; a call that runs in another thread goes on to its end. A second time does nothing."""
        with _lock:
            self.active = False
            _registered[self._kind] = tuple(hook for hook in _registered[self._kind] if hook is not self)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def _deliver(self, event: Event) -> None:
        """Calls the function, unless it runs in this thread already: what a hook does itself is no news to it."""
        running: set[Hook] = _thread.__dict__.setdefault("running", set())
        if not self.active or self in running or (isinstance(event, QueueWaitEvent) and event.wait_ms <= self._least_ms):
            return
        try:
            running.add(self)  # here, as an interrupt may come right after it
            self._function(event)
        except Exception as e:
            self._report(e)
        finally:
            running.discard(self)

    def _report(self, error: Exception) -> None:
        """Logs the first failure. A log and not a warning: where warnings are errors, one would end the caller's request."""
        with _lock:
            first, self._failed = not self._failed, True
        if first:
            import logging

            text = "the hook %s of %s failed, which the request does not notice; later failures of it are not logged"
            with contextlib.suppress(Exception):  # of a handler that the user wrote
                logging.getLogger("pumice.hooks").error(text, _name_of(self._function), _NAMES[self._kind], exc_info=error)


_lock = threading.Lock()
_thread = threading.local()
# Tuples, which are replaced as a whole: those who iterate over one need no lock.
_registered: dict[type[Event], tuple[Hook, ...]] = {ErrorEvent: (), GenerateEvent: (), ModelLoadEvent: (), QueueWaitEvent: ()}
_NAMES: dict[type[Event], str] = {
    ErrorEvent: "on_error",
    GenerateEvent: "on_generate",
    ModelLoadEvent: "on_model_load",
    QueueWaitEvent: "on_queue_wait",
}


def on_error(function: Callable[[ErrorEvent], object]) -> Hook:
    """Call a function with an `ErrorEvent` for each call that fails, of bad input too, and for each model that cannot be loaded.

    >>> hook = on_error(lambda event: print(event.operation, event.model))
    >>> emit(ErrorEvent("generate", "smollm2", ValueError()))
    generate smollm2
    >>> hook.remove()
    """
    return _register(ErrorEvent, function)


def on_generate(function: Callable[[GenerateEvent], object]) -> Hook:
    """Call a function with a `GenerateEvent` for each answer that ended, also for one that was cancelled. Works as a decorator.

    >>> @on_generate
    ... def count(event: GenerateEvent) -> None:
    ...     print(event.result.usage["completion_tokens"], "tokens", "from the cache" if event.cached else "")
    >>> count
    <Hook on_generate count>
    >>> count.remove()
    """
    return _register(GenerateEvent, function)


def on_model_load(function: Callable[[ModelLoadEvent], object]) -> Hook:
    """Call a function with a `ModelLoadEvent` for each `pm.load`, whether it succeeds or not.

    >>> with on_model_load(lambda event: print(f"{event.model}: {event.load_ms:.0f} ms on {event.device}")):
    ...     emit(ModelLoadEvent("smollm2", 312.4, True, "host", True))
    smollm2: 312 ms on host
    """
    return _register(ModelLoadEvent, function)


def on_queue_wait(function: Callable[[QueueWaitEvent], object], *, over_ms: float = LEAST_WAIT_MS) -> Hook:
    """Call a function with a `QueueWaitEvent` for each request that waited longer than `over_ms` for a slot.

    >>> with on_queue_wait(lambda event: print(event.wait_ms), over_ms=20):
    ...     emit(QueueWaitEvent("smollm2", 12.0, 3, started=True))
    ...     emit(QueueWaitEvent("smollm2", 31.0, 3, started=True))
    31.0
    """
    if isinstance(over_ms, bool) or not isinstance(over_ms, int | float) or not over_ms >= 0:
        raise InputError(f"over_ms is {over_ms!r:.40}", hint="give a number of milliseconds from 0 on", name="over_ms")
    return _register(QueueWaitEvent, function, float(over_ms))


def _register(kind: type[Event], function: Callable[[Any], object], least_ms: float = 0.0) -> Hook:
    if not callable(function):
        raise InputError(f"the hook is {function!r:.60}", hint="give a function that takes the event", name=_NAMES[kind])
    if inspect.iscoroutinefunction(function):
        hint = "give a plain function; from it, loop.call_soon_threadsafe(…) reaches an event loop"
        raise InputError(f"the hook {_name_of(function)} is a coroutine, which nobody would await", hint=hint, name=_NAMES[kind])
    hook = Hook(kind, function, least_ms)
    with _lock:
        _registered[kind] = (*_registered[kind], hook)
    return hook


def wanted(kind: type[Event]) -> bool:
    """Whether there is a hook for events of a class; without one, no event need be made.

    >>> wanted(GenerateEvent)
    False
    """
    return bool(_registered[kind])


def emit(event: Event) -> None:
    """Call the hooks of an event, in the order in which they were registered. Never raises what a hook raises."""
    for hook in _registered[type(event)]:
        hook._deliver(event)


class ReportErrors:
    """A `with` block whose exceptions are reported to the hooks of `on_error`, and raised as they are."""

    __slots__ = ("_model", "_operation")

    def __init__(self, operation: Operation, model: str) -> None:
        self._operation, self._model = operation, model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and wanted(ErrorEvent):
            emit(ErrorEvent(self._operation, self._model, error))


class ReportLoad:
    """A `with` block that loads a model: hooks of `on_model_load` get to know how that went, those of `on_error` of a failure."""

    def __init__(self, model: str, device: str) -> None:
        self.model, self.device, self.from_cache = model, device, True
        self._started = time.perf_counter()

    def __enter__(self) -> ReportLoad:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # interrupted: nobody waits for the model any more
        if wanted(ModelLoadEvent):
            load_ms = 1e3 * (time.perf_counter() - self._started)
            emit(ModelLoadEvent(self.model, load_ms, self.from_cache, self.device, error is None, error))
        if error is not None and wanted(ErrorEvent):
            emit(ErrorEvent("load", self.model, error))


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:60]
