"""Nothing that one call of a kernel leaves is seen by the next, and a thousand traps leave nothing behind."""

# ruff: noqa: E501  one kernel a line

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pumice.packs import errors
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import COPY, INT_RESULT, OUT, PARAMS, entry, store_result, wat, word

pytest.importorskip("wasmtime")

X = np.arange(16, dtype=np.float32)


def bump(address: str) -> str:
    """Adds 1 to a word of memory, and writes what it is then to the output."""
    return f"(i32.store {address} (i32.add (i32.const 1) (i32.load {address}))) {store_result(f'(i32.load {address})')}"


# Body, what stands before it, whether instances are used again, and what the counter shows in a fresh instance.
COUNTERS = {
    "memory": (bump("(i32.const 1000)"), "", True, 1),
    "first byte": (bump("(i32.const 0)"), "", True, 1),
    "end of its own memory": (bump("(i32.const 65532)"), "", True, 1),
    "initialised data": (bump("(i32.const 512)"), '(data (i32.const 512) "\\07\\00\\00\\00") (data (i32.const 60000) "end")', True, 8),
    "unwritten output": (bump(f"(i32.add {word(OUT)} (i32.const 4))"), "", True, 0),
    "global": (
        f"(global.set $g (i32.add (global.get $g) (i32.const 1))) {store_result('(global.get $g)')}",
        "(global $g (mut i32) (i32.const 0))", True, 1,
    ),
    "globals of all types": (
        """(global.set $a (i64.add (global.get $a) (i64.const 1))) (global.set $b (f32.add (global.get $b) (f32.const 1)))
           (global.set $c (f64.add (global.get $c) (f64.const 1))) (global.set $v (i32x4.add (global.get $v) (v128.const i32x4 1 1 1 1)))
        """ + store_result("""(i32.add (i32.add (i32.wrap_i64 (global.get $a)) (i32.trunc_f32_s (global.get $b)))
           (i32.add (i32.trunc_f64_s (global.get $c)) (i32x4.extract_lane 2 (global.get $v))))"""),
        """(global $k i32 (i32.const 5)) (global $a (mut i64) (i64.const 0)) (global $b (mut f32) (f32.const 0))
           (global $c (mut f64) (f64.const 0)) (global $v (mut v128) (v128.const i32x4 0 0 0 0))""", True, 4,
    ),
    "table": (
        f"(local.set $i (call_indirect (result i32) (i32.const 0))) (table.copy (i32.const 0) (i32.const 1) (i32.const 1)) {store_result('(local.get $i)')}",
        "(func $one (result i32) (i32.const 1)) (func $two (result i32) (i32.const 2)) (table 2 funcref) (elem (i32.const 0) $one $two)",
        False, 1,
    ),
    "dropped data": (
        f"(memory.init $d (i32.const 0) (i32.const 0) (i32.const 4)) (data.drop $d) {store_result('(i32.load (i32.const 0))')}",
        '(data $d "\\05\\00\\00\\00")', False, 5,
    ),
    "dropped elements": (
        f"(table.init $e (i32.const 0) (i32.const 0) (i32.const 1)) (elem.drop $e) {store_result('(call_indirect (result i32) (i32.const 0))')}",
        "(func $one (result i32) (i32.const 1)) (table 2 funcref) (elem $e func $one)", False, 1,
    ),
    "grown memory": (f"(drop (memory.grow (i32.const 1))) {store_result('(memory.size)')}", "", True, 3),
}  # fmt: skip


def kernel_of(what: str) -> WasmKernel:
    body, extra, reusable, _ = COUNTERS[what]
    kernel = WasmKernel(entry(outputs=INT_RESULT), wat(body, extra=extra))
    assert kernel.module.reusable is reusable
    return kernel


@pytest.mark.parametrize("what", COUNTERS)
def test_state_is_wiped(what: str) -> None:
    kernel = kernel_of(what)
    call = kernel.prepare([X], {}, [np.zeros(2, np.int32)])
    seen = []
    for _ in range(5):
        out = np.zeros(2, np.int32)
        call([X], [out])
        seen.append(int(out[0]))
    assert seen == [COUNTERS[what][3]] * 5


@pytest.mark.parametrize("what", ["memory", "global"])
def test_state_is_wiped_after_an_error_and_between_shapes(what: str) -> None:
    body, extra, _, first = COUNTERS[what]
    # Returns 3 for the first element 9, after it has counted.
    body += f" (drop) (select (i32.const 3) (i32.const 0) (f32.eq (f32.load {word(0)}) (f32.const 9)))"
    kernel = WasmKernel(entry(outputs=INT_RESULT), wat(body, extra=extra))
    for n in (16, 8, 16, 1000, 8):
        x = np.zeros(n, np.float32)
        out = np.zeros(2, np.int32)
        kernel([x], {}, [out])
        assert out[0] == first
        with pytest.raises(errors.KernelCode):
            kernel([x + 9], {}, [out])
        kernel([x], {}, [out])
        assert out[0] == first


def test_init_state_is_wiped_too() -> None:
    kernel = WasmKernel(
        entry(outputs=INT_RESULT),
        wat(
            store_result("(global.get $g)"),
            extra="(global $g (mut i32) (i32.const 0))",
            init="(global.set $g (i32.add (global.get $g) (i32.const 1))) (i32.const 0)",
        ),
    )
    out = np.zeros(2, np.int32)
    for _ in range(3):
        kernel([X], {}, [out])
        assert out[0] == 1


def test_params_of_one_call_are_not_those_of_another() -> None:
    declared = {"p": {"type": "i32", "default": 1}}
    kernel = WasmKernel(entry(outputs=INT_RESULT, params=declared), wat(store_result(f"(i32.load {word(PARAMS)})")))
    out = np.zeros(2, np.int32)
    for value in (5, 6, 5, -7):
        kernel([X], {"p": value}, [out])
        assert out[0] == value


@pytest.mark.parametrize(
    ("start", "differing"),
    # Two bytes differ between 1.0 and 2.0, sixteen times: its own input, which is at the end.
    [("(i32.const 0)", 0), ("(i32.const 65536)", 0), ("(i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 1024))", 32)],
)
def test_a_kernel_cannot_keep_a_result_for_the_next_call(start: str, differing: int) -> None:
    """It writes its input where the module's memory is, and copies what it finds somewhere to its output."""
    everything = f"""(memory.copy {word(OUT)} {start} (i32.const 1024))
      (memory.copy (i32.const 100) {word(0)} (i32.const 64)) (memory.copy (i32.const 65636) {word(0)} (i32.const 64)) (i32.const 0)"""
    kernel = WasmKernel(entry(outputs=[{"name": "result", "dtype": "u8", "shape": [1024]}]), wat(everything))
    seen = []
    for value in (1.0, 2.0, 1.0):
        out = np.zeros(1024, np.uint8)
        kernel([np.full(16, value, np.float32)], {}, [out])
        seen.append(out)
    assert np.array_equal(seen[0], seen[2])
    assert np.count_nonzero(seen[0] != seen[1]) == differing


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts memory and file handles as Linux shows them")
def test_a_thousand_traps_leave_nothing() -> None:
    kernel = WasmKernel(entry(), wat("(unreachable)"))
    violator = WasmKernel(entry(), wat(f"(i32.store {word(0)} (i32.const 77)) {COPY}"))
    out = np.zeros_like(X)

    def trap(times: int) -> None:
        for _ in range(times):
            with pytest.raises(errors.Unreachable):
                kernel([X], {}, [out])
            with pytest.raises(errors.MemoryAccessViolation):
                violator([X], {}, [out])

    def left() -> tuple[int, int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(Path("/proc/self/maps").read_text().splitlines())

    trap(100)
    before, memory = left(), resident()
    trap(1000)
    after = left()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 50
    assert resident() - memory < 8 << 20
    assert kernel._instances == violator._instances == 0
    fine = WasmKernel(entry(), wat())
    fine([X], {}, [out])
    assert out.tolist() == X.tolist()


def test_params_that_compare_as_equal_are_not_the_same() -> None:
    declared = {"p": {"type": "f32", "default": 1.0}}
    kernel = WasmKernel(entry(params=declared), wat(store_result(f"(i32.load {word(PARAMS)})")))
    out = np.zeros_like(X)
    for value in (0.0, -0.0, 0.0):
        kernel([X], {"p": value}, [out])
        assert np.signbit(out[0]) == np.signbit(value)
    kernel([X], {"p": 1.0}, [out])
    for wrong in (True, [1.0], np.float32([1.0])):
        with pytest.raises(errors.InvalidParameters, match="the parameter p of little"):
            kernel([X], {"p": wrong}, [out])


def test_no_output_is_written_if_one_is_read_only() -> None:
    two = [{"name": name, "dtype": "f32", "shape": ["n"]} for name in ("first", "second")]
    kernel = WasmKernel(entry(outputs=two), wat("(i32.const 0)"))
    first, second = np.full_like(X, -1), np.full_like(X, -1)
    second.flags.writeable = False
    with pytest.raises(errors.InvalidParameters, match="the array for second of little is read-only"):
        kernel([X], {}, [first, second])
    assert (first == -1).all()


def test_arrays_in_another_byte_order_are_refused_by_name() -> None:
    other = X.astype(X.dtype.newbyteorder())
    with pytest.raises(errors.DTypeMismatch, match="not float32 in another byte order"):
        WasmKernel(entry(), wat())([other], {}, [np.zeros_like(X)])


_FORKS = """
import os, sys, threading
import numpy as np
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import entry, wat

kernel, x, out, stopped = WasmKernel(entry(), wat()), np.arange(16, dtype=np.float32), np.zeros(16, np.float32), []
def busy():
    mine = np.zeros_like(x)
    while not stopped:
        kernel([x], {}, [mine])
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads:
    t.start()
with kernel._lock:  # as a thread that prepares a call would
    pid = os.fork()
if pid == 0:
    for _ in range(40):  # more than there are instances
        kernel([x], {}, [out])
    os._exit(0 if (out == x).all() else 1)
status = os.waitpid(pid, 0)[1]
stopped.append(True)
for t in threads:
    t.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process, which this system cannot")
def test_a_fork_uses_the_kernel_that_other_threads_were_using() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "ignore"}
    assert subprocess.run([sys.executable, "-c", _FORKS], env=env, timeout=60).returncode == 0
