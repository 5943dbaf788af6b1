"""Encoding speed: the raw loop of the webgpu backend against the wrapper's calls, alternately, for tiny dispatches.

Run: python bench/encode.py [--dispatches 400] [--rounds 30] [--device webgpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from pumice.backends.webgpu.device import WebGpuDevice
from pumice.plan.plan import Kernel

_WGSL = (
    "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n@compute @workgroup_size(1) fn main() {{ x[0] += {k}u; }}\n"
)


def measure(which: str, dispatches: int, rounds: int) -> dict[str, Any]:
    """Median microseconds per dispatch of both ways of encoding the same list: two pipelines, so each step sets one."""
    device = WebGpuDevice(which)
    gpu = device.gpu
    with gpu.lock:
        pipelines = gpu.compile([Kernel(f"add{k}", _WGSL.format(k=k), ("update",), 0) for k in (1, 2)])
        buffer = gpu.create_buffer(16, "bench")
        groups = [gpu.bind(p, [(buffer, 0, 16)], "bench") for p in pipelines]
        pairs = [(pipelines[i % 2], groups[i % 2]) for i in range(dispatches)]
        prepared = [(p.handle, g._internal, 1, 1, 1) for p, g in pairs]

        def raw(compute: Any) -> None:
            gpu.encode.encode_steps(compute._internal, prepared)

        def wrapper(compute: Any) -> None:
            for p, g in pairs:
                compute.set_pipeline(p.raw)
                compute.set_bind_group(0, g)
                compute.dispatch_workgroups(1, 1, 1)

        times: dict[str, list[float]] = {"raw": [], "wrapper": []}
        ways: list[tuple[str, Callable[[Any], None]]] = [("raw", raw), ("wrapper", wrapper)]
        for i in range(rounds + 2):
            for name, encode in ways:
                spent = 0.0

                def record(encoder: Any, encode: Callable[[Any], None] = encode) -> None:
                    nonlocal spent
                    compute = encoder.begin_compute_pass()
                    start = time.perf_counter()
                    encode(compute)
                    spent = time.perf_counter() - start
                    compute.end()

                gpu.execute(before=record)
                if i >= 2:  # the first rounds pay for compilation and cold caches
                    times[name].append(spent / dispatches * 1e6)
        buffer.release()
    median = {name: statistics.median(t) for name, t in times.items()}
    return {
        "device": device.name,
        "dispatches": dispatches,
        "rounds": rounds,
        "raw_us": round(median["raw"], 3),
        "wrapper_us": round(median["wrapper"], 3),
        "ratio": round(median["wrapper"] / median["raw"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dispatches", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="webgpu", help="webgpu, webgpu:N or webgpu:NAME")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.device.partition(":")[2], args.dispatches, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{result['device']}: {result['dispatches']} dispatches, medians of {result['rounds']} rounds")
    print(f"  raw loop {result['raw_us']:.2f} µs a dispatch, wrapper {result['wrapper_us']:.2f} µs, ratio {result['ratio']:.2f}")


if __name__ == "__main__":
    main()
