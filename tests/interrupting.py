"""Ctrl-C at every bytecode: runs a call once for each bytecode that it executes in some files, with SIGINT pending there.

The interrupt goes the way that a real one goes: only the flag is set, by a C function that the interpreter calls as its trace
function, and CPython raises KeyboardInterrupt where it next looks. A trace function in Python would see the interrupt itself.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pumice

SOURCE = Path(pumice.__file__).parent
Site = tuple[CodeType, int]
# Where CPython looks for signals, and calls that may wait: a flag set between two of them is seen at the second.
_LOOKS = {"RESUME", "PRECALL", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "BEFORE_WITH", "SEND", "FOR_ITER", "YIELD_VALUE"}


class _Trace:
    """Sees every bytecode of the wanted files in this thread; sets the flag at one of them, when it is first reached."""

    def __init__(self, files: set[str], wanted: Site | None = None) -> None:
        self.seen: dict[Site, None] = {}
        self.struck = False

        def at(frame: FrameType) -> ctypes.c_int:
            if frame.f_code.co_filename not in files:
                return ctypes.c_int(-1)
            if frame.f_trace is None:
                frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self.call, True, False
            site = frame.f_code, frame.f_lasti
            self.seen.setdefault(site)
            if site != wanted or self.struck:
                return ctypes.c_int(-1)  # no signal has this number
            self.struck = True
            sys.settrace(None)  # or the next call of this function would be interrupted
            return ctypes.c_int(signal.SIGINT)

        prototype = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self.call: Any = prototype(("PyErr_SetInterruptEx", ctypes.pythonapi))
        self.call.argtypes = [_converter(at), _converter(lambda _: ctypes.c_void_p()), _converter(lambda _: ctypes.c_void_p())]


def _converter(convert: Callable[[Any], Any]) -> Any:
    return type("Converter", (), {"from_param": staticmethod(convert)})


def sites(work: Callable[[], object], *names: str, every: bool = True) -> list[Site]:
    """The bytecodes of the named files that a call executes; without `every`, those at which an interrupt can show."""
    trace = _Trace({str(SOURCE / name) for name in names})
    _traced(trace, work)
    looks = {code: {i.offset for i in dis.get_instructions(code) if i.opname in _LOOKS} for code in {c for c, _ in trace.seen}}
    return [(code, at) for code, at in trace.seen if every or at in looks[code]]


def _traced(trace: _Trace, work: Callable[[], object]) -> None:
    before = sys.gettrace()
    try:
        sys.settrace(trace.call)
        work()
    finally:
        sys.settrace(before)


def interrupted(work: Callable[[], object], site: Site) -> tuple[bool, KeyboardInterrupt | None]:
    """Whether a call comes to a bytecode, where the flag is set, and what it raises; None if it ends before CPython looks."""
    trace = _Trace({site[0].co_filename}, site)
    try:
        _traced(trace, work)
    except KeyboardInterrupt as error:
        return trace.struck, error
    return trace.struck, None


def interrupts(work: Callable[[], object], found: list[Site]) -> Iterator[tuple[str, KeyboardInterrupt]]:
    """Interrupts a call at each of some bytecodes; the error, with its traceback, lives until the next one."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    reached = raised = 0
    for code, at in found:
        struck, error = interrupted(work, (code, at))
        reached += struck
        if error is not None:
            raised += 1
            yield f"{Path(code.co_filename).name}:{code.co_name}+{at}", error
    # Interrupts may come late for the last few bytecodes; nearly all must have struck. A call that waited for a device when its
    # bytecodes were listed, and does not have to now, comes to fewer of them.
    assert raised > reached * 0.9 and reached > len(found) * 0.2, f"{raised} of {reached} interrupts came, at {len(found)} places"


def elsewhere(work: Callable[[], Any], where: str, seconds: float = 60.0) -> Any:
    """What a call gives in another thread; one that waits for ever fails the test."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"after an interrupt at {where} another thread waits for ever"
    if isinstance(found[0], BaseException):
        raise AssertionError(f"after an interrupt at {where} another thread fails") from found[0]
    return found[0]
