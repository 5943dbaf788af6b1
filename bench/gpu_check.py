"""On a machine with a real GPU: every op's samples, random graphs and repeated runs against the reference.

python bench/gpu_check.py [--graphs 100] [--device webgpu|vulkan]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / d) for d in ("src", "tests")]

import pumice as pm  # noqa: E402
from pumice.backends.base import Device  # noqa: E402
from pumice.backends.select import open_device  # noqa: E402
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
                    problem = harness.check(harness.one_op(spec, sample, views=views), "webgpu")
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
                problem = harness.check(random_case(seed), "webgpu", **options)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--device", default="webgpu", help="webgpu, vulkan, or one of several with :N or :NAME")
    args = parser.parse_args()
    device = open_device(args.device)
    print(device.name, device.caps)
    wrong = check_ops(device) + check_graphs(device, args.graphs) + check_repeats(device)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
