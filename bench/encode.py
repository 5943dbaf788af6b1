"""Encoding speed: the raw loop of the webgpu backend against the wrapper's calls, alternately, for tiny dispatches.

Run: python bench/encode.py [--dispatches 400] [--rounds 30] [--device webgpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from pumice.backends.vulkan.device import VulkanDevice
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.plan.plan import Kernel

_WGSL = (
    "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n@compute @workgroup_size(1) fn main() {{ x[0] += {k}u; }}\n"
)


def measure_recorded(device: VulkanDevice, dispatches: int, rounds: int) -> dict[str, float]:
    """Median microseconds per dispatch on Vulkan: to record a list of them once, and to submit what is recorded."""
    gpu = device.gpu
    with gpu.lock:
        pipelines = gpu.pipelines.compile(
            [Kernel(f"add{k}", _WGSL.format(k=k), ("update",), 0, 1, origin="generated") for k in (1, 2)]
        )
        buffer = gpu.create_buffer(16, "bench")
        groups = [gpu.pipelines.bind(p, [(buffer, 0, 16)], "bench") for p in pipelines]
        prepared = [(pipelines[i % 2].handle, groups[i % 2].handle, 1, 1, 1) for i in range(dispatches)]
        recorded, submitted = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            commands = gpu.record([lambda commands: commands.steps(prepared)])
            recorded.append(time.perf_counter() - start)
            start = time.perf_counter()
            value = gpu.submit(commands)
            submitted.append(time.perf_counter() - start)
            gpu.wait_for(value)
            gpu.retire(commands.free)
        buffer.release()
    found = {"record_us": recorded, "submit_us": submitted}
    return {name: 1e6 * statistics.median(seconds) / dispatches for name, seconds in found.items()}


def measure(which: str, dispatches: int, rounds: int) -> dict[str, Any]:
    """Median microseconds per dispatch of both ways of encoding the same list: two pipelines, so each step sets one."""
    device = WebGpuDevice(which)
    gpu = device.gpu
    with gpu.lock:
        pipelines = gpu.pipelines.compile([Kernel(f"add{k}", _WGSL.format(k=k), ("update",), 0, 1) for k in (1, 2)])
        buffer = gpu.create_buffer(16, "bench")
        groups = [gpu.pipelines.bind(p, [(buffer, 0, 16)], "bench") for p in pipelines]
        pairs = [(pipelines[i % 2], groups[i % 2]) for i in range(dispatches)]
        prepared = [(p.handle, g.handle, 1, 1, 1) for p, g in pairs]

        def raw() -> float:
            commands = gpu.encode.Commands(gpu.raw._internal)
            handle = commands.begin_pass()
            start = time.perf_counter()
            gpu.encode.encode_steps(handle, prepared)
            spent = time.perf_counter() - start
            commands.end_pass(handle)
            gpu.encode.submit(gpu.queue._internal, commands.finish())
            return spent

        def wrapper() -> float:
            encoder = gpu.raw.create_command_encoder()
            compute = encoder.begin_compute_pass()
            start = time.perf_counter()
            for p, g in pairs:
                compute.set_pipeline(p.raw)
                compute.set_bind_group(0, g.raw)
                compute.dispatch_workgroups(1, 1, 1)
            spent = time.perf_counter() - start
            compute.end()
            gpu.queue.submit([encoder.finish()])
            return spent

        times: dict[str, list[float]] = {"raw": [], "wrapper": []}
        for i in range(rounds + 2):
            for name, encode in (("raw", raw), ("wrapper", wrapper)):
                spent = encode()
                if i >= 2:  # the first rounds pay for compilation and cold caches
                    times[name].append(spent / dispatches * 1e6)
        # Buffers must outlive the submits that name them.
        gpu.encode.wait_idle(gpu.raw._internal)
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
