"""What a call of a WASM kernel costs beside the kernel's own work, and how fast kernels of the core pack are.

python bench/packs.py [calls|kernels] [--rounds 9] [--calls 2000] [--results FOLDER]
calls: a warm call with 4 KB in and 4 KB out, of a kernel that does nothing: copying in, region checks, wiping, copying out. It
goes in turns with Wasmtime's Python wrapper, which copies in and out and calls, with none of the checks.
kernels: steps of a plan that run a kernel of packs/core, in turns with the built-in one, both on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, in_turns
from report import RESULTS, Goal, Row, publish, this_machine

from pumice import config
from pumice.cli.pack_bench import measure_pack, open_pack
from pumice.packs.manifest import KernelEntry
from pumice.packs.wasm.kernel import WasmKernel
from pumice.run.device import open_device

FLOATS = 1024
TABLE = "Calls of WASM kernels"
GOAL = Goal(10, least=False, unit="µs")
KERNEL_TABLE = "WASM kernels of the core pack"
KERNEL_GOAL, GOAL_KERNELS = Goal(0.5), ("rms_norm_f32", "softmax_f32")
# Below this a call is mostly what it takes to make one.
LARGE_SECONDS = 100e-6

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


def kernel_rows() -> Iterator[Row]:
    """The core pack's WASM kernels beside the built-in ones, a copy in and out of the sandbox included."""
    with config.override(threads=1):
        for t in measure_pack(open_pack(str(ROOT / "packs" / "core")), open_device("host")):
            goal = KERNEL_GOAL if t.kernel in GOAL_KERNELS and t.seconds > LARGE_SECONDS else None
            key, work = f"packs.kernel.{t.kernel}.{t.label}", f"{t.kernel}, {t.label.replace('_', ' ')}"
            rates = t.flops / t.seconds / 1e9, t.flops / t.built_in / 1e9
            note, data = f"{t.seconds * 1e6:.0f} µs", {"seconds": t.seconds, "built_in": t.built_in}
            yield Row(key, work, "GFLOP/s", *rates, "built-in", goal, note, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("calls", "kernels"), nargs="?", default="calls")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.what == "kernels":
        publish(this_machine(), KERNEL_TABLE, list(kernel_rows()), folder=args.results)
    else:
        publish(this_machine(), TABLE, call_rows(args.rounds, args.calls), folder=args.results)


def call_rows(rounds: int, count: int) -> list[Row]:
    """What a call costs, by what the kernel needs."""
    calls = {name: make() for name, make in SIDES.items()}

    def side(call: Callable[[], None]) -> Callable[[int], Sequence[float]]:
        return lambda i: times(call, count)

    found = in_turns({name: side(call) for name, call in calls.items()}, rounds)
    everything = {name: sorted(t for some in turns for t in some) for name, turns in found.items()}
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
    return rows


if __name__ == "__main__":
    main()
