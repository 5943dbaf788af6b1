"""What a call of a WASM kernel costs beside the kernel's own work, in turns with Wasmtime's Python wrapper.

python bench/packs.py [--rounds 9] [--calls 2000] [--results FOLDER]
A warm call with 4 KB in and 4 KB out, of a kernel that does nothing: copying in, region checks, wiping, copying out. The wrapper
copies in and out and calls, with none of the checks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import in_turns
from report import RESULTS, Goal, Row, publish, this_machine

from pumice.packs.manifest import KernelEntry
from pumice.packs.wasm.kernel import WasmKernel

FLOATS = 1024
TABLE = "Calls of WASM kernels"
GOAL = Goal(10, least=False, unit="µs")

NOTHING = """(module (memory (export "memory") 1) {extra}
  (global (mut i32) (i32.const 65536))
  (func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "kernel_info") (param i32) (result i32) (i32.const 0))
  (func (export "kernel_cleanup") (result i32) (i32.const 0))
  (func $f (export "kernel_forward") (param i32) (result i32) (i32.const 0)))"""


def module(extra: str = "") -> bytes:
    """A kernel that does nothing, with a stack pointer as compilers make it."""
    from wasmtime import wat2wasm

    return bytes(wat2wasm(NOTHING.format(extra=extra)))


def entry(inputs: int) -> KernelEntry:
    """The manifest's entry of a kernel with so many inputs."""
    tensors = [{"name": f"x{i}", "dtype": "f32", "shape": ["n"]} for i in range(inputs + 1)]
    return KernelEntry.model_validate({
        "id": "nothing", "name": "Nothing", "path": "nothing.wasm", "hash": "sha256:" + "0" * 64,
        "entry_point": "kernel_forward", "inputs": tensors[:-1], "outputs": tensors[-1:], "resource_limits": {},
        "params": {"eps": {"type": "f32", "default": 1e-5}},
    })  # fmt: skip


def ours(inputs: int = 1, extra: str = "") -> Callable[[], None]:
    """A prepared call of ours."""
    kernel = WasmKernel(entry(inputs), module(extra))
    arrays = [np.ones(FLOATS, np.float32) for _ in range(inputs)]
    out = [np.zeros(FLOATS, np.float32)]
    call = kernel.prepare(arrays, {}, out)
    return lambda: call(arrays, out)


def wrapper() -> Callable[[], None]:
    """The same by Wasmtime's wrapper."""
    import wasmtime

    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    exports = wasmtime.Instance(store, wasmtime.Module(engine, module()), []).exports(store)
    memory: Any = exports["memory"]
    forward: Any = exports["kernel_forward"]
    data, out = np.ones(FLOATS, np.float32), np.zeros(FLOATS, np.float32)

    def call() -> None:
        memory.write(store, data.tobytes(), 1024)
        forward(store, 16)
        out[...] = np.frombuffer(memory.read(store, 8192, 8192 + out.nbytes), np.float32)

    return call


SIDES: dict[str, Callable[[], Callable[[], None]]] = {
    "one input": ours,
    "two inputs": lambda: ours(2),
    "data of its own": lambda: ours(extra='(data (i32.const 1024) "0123456789abcdef")'),
    "a table, thus a new instance each": lambda: ours(extra="(table 1 funcref) (elem (i32.const 0) $f)"),
    "wasmtime's wrapper": wrapper,
}


def times(call: Callable[[], None], calls: int) -> Sequence[float]:
    """Microseconds of each call."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - begin) / 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    calls = {name: make() for name, make in SIDES.items()}

    def side(call: Callable[[], None]) -> Callable[[int], Sequence[float]]:
        return lambda i: times(call, args.calls)

    found = in_turns({name: side(call) for name, call in calls.items()}, args.rounds)
    everything = {name: sorted(t for some in rounds for t in some) for name, rounds in found.items()}
    medians = {name: statistics.median(ts) for name, ts in everything.items()}
    *names, peer = SIDES
    rows = []
    for name in names:
        ts = everything[name]
        p99 = ts[len(ts) * 99 // 100]
        goal = None if "new instance" in name else GOAL
        key, work = f"packs.call.{names.index(name)}", f"warm call, 4 KB, {name}"
        note, data = f"p99 {p99:.1f} µs", {"p99": p99, "calls": len(ts)}
        rows.append(Row(key, work, "µs", medians[name], medians[peer], peer, goal, note, data))
    publish(this_machine(), TABLE, rows, folder=args.results)


if __name__ == "__main__":
    main()
