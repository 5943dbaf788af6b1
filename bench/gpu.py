"""On a machine with a real GPU: every op's samples and random graphs against the reference, then a few speeds against torch.

python bench/gpu.py [--graphs 100] [--skip-check]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / d) for d in ("src", "tests")]

import pumice as pm  # noqa: E402
from pumice.backends.base import Device  # noqa: E402
from pumice.backends.webgpu.device import WebGpuDevice  # noqa: E402
from pumice.ir.registry import all_ops  # noqa: E402


def check_ops(device: Device) -> int:
    """Number of samples that differ from the reference."""
    import harness

    harness.device = lambda target: device
    wrong = count = 0
    for spec in all_ops():
        for sample in spec.samples():
            for views in (False, True):
                count += 1
                try:
                    problem = harness.check(harness.one_op(spec, sample, views=views), "webgpu", tolerance=spec.tolerance)
                except Exception as e:
                    problem = f"{type(e).__name__}: {e}"
                if problem:
                    wrong += 1
                    print(f"  {spec.name} / {sample.label}{' (views)' if views else ''}: {problem[:300]}")
    print(f"ops: {count} samples, {wrong} wrong")
    return wrong


def check_graphs(device: Device, count: int) -> int:
    """Number of random graphs that differ from the reference, fused or unfused."""
    import harness
    from fuzz.random_graphs import random_case

    harness.device = lambda target: device
    wrong = 0
    for seed in range(1000, 1000 + count):
        for options in ({"arena": True, "guard": 0}, {"fuse": False}):
            try:
                problem = harness.check(random_case(seed), "webgpu", chain=True, **options)
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"
            if problem:
                wrong += 1
                print(f"  seed {seed} {options}: {problem[:300]}")
    print(f"graphs: {count} seeds, {wrong} wrong")
    return wrong


def check_repeats(device: Device) -> int:
    """Runs that are not bit-equal to the first one: what differs on equal inputs is a race."""
    rng = np.random.default_rng(0)

    def model(params: Any, x: Any, ids: Any) -> Any:
        h = pm.rms_norm(x @ params["w"] + pm.embedding(params["t"], ids), params["n"])
        q = h.reshape(1, -1, 4, 32)
        a = pm.attention(q, q, q, causal=True, layout="bshd").reshape(-1, 128)
        s = pm.scatter_add(pm.zeros((50, 128)), ids, a)
        return pm.softmax(a @ a.T).sum(axis=0), pm.cumsum(s, axis=0), pm.top_k(a, 5)[0], pm.sort(h, axis=0)

    params = {
        "w": rng.normal(size=(300, 128)).astype("f4"),
        "t": rng.normal(size=(50, 128)).astype("f4"),
        "n": np.ones(128, "f4"),
    }
    inputs = {"x": rng.normal(size=(257, 300)).astype("f4"), "ids": rng.integers(0, 50, 257).astype("i4")}
    wrong = 0
    with pm.compile(
        model, params=params, x=pm.spec("T", 300), ids=pm.spec("T", dtype="i32"), max={"T": 257}, device=device
    ) as exe:
        first = exe.run(inputs)
        for _ in range(50):
            wrong += any(not np.array_equal(a, b) for a, b in zip(first, exe.run(inputs), strict=True))
    print(f"repeats: 50 runs, {wrong} not bit-equal")
    return wrong


def median_seconds(run: Callable[[], object], repeats: int = 15) -> float:
    times = []
    run()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def chained(device: Device, fn: Callable[..., Any], links: int, **arrays: Any) -> float:
    """Seconds per application of fn(x, w) on the device: `links` applications in one submit, less the cost of one."""

    def chain(n: int) -> float:
        def model(x: Any, w: Any) -> Any:
            for _ in range(n):
                x = fn(x, w)
            return x[:1, :1]

        specs = {k: pm.spec(*v.shape, dtype=v.dtype) for k, v in arrays.items()}
        with pm.compile(model, device=device, **specs) as exe:
            return median_seconds(lambda: exe.run(arrays), 7)

    return (chain(links) - chain(1)) / (links - 1)


def speeds(device: Device) -> None:
    rng = np.random.default_rng(0)
    for n in (512, 1024, 2048, 4096):
        w = (rng.normal(size=(n, n)) / np.sqrt(n)).astype("f4")
        x = rng.normal(size=(n, n)).astype("f4")
        ours = chained(device, lambda x, w: x @ w, 9, x=x, w=w)
        line = f"matmul f32 {n}³: {2 * n**3 / ours / 1e12:.1f} TFLOP/s"
        peer = torch_matmul(n)
        print(line + (f", torch {2 * n**3 / peer / 1e12:.1f}, ratio {peer / ours:.2f}" if peer else ""))


def torch_matmul(n: int) -> float | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda")

    def run() -> None:
        for _ in range(8):
            a @ b
        torch.cuda.synchronize()

    return median_seconds(run) / 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--skip-check", action="store_true")
    args = parser.parse_args()
    device = WebGpuDevice()
    print(device.name, device.caps)
    wrong = 0
    if not args.skip_check:
        wrong = check_ops(device) + check_graphs(device, args.graphs) + check_repeats(device)
    speeds(device)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
