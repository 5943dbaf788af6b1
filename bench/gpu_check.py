"""On a machine with a real GPU: every op's samples, random graphs and repeated runs against the reference.

python bench/gpu_check.py [--graphs 100] [--device webgpu|vulkan] [--jobs 4]
Most of the time goes into compiling kernels: with --jobs several processes share samples and graphs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / d) for d in ("src", "tests")]

import pumice as pm  # noqa: E402
from pumice.backends.base import Device  # noqa: E402
from pumice.backends.select import open_device  # noqa: E402
from pumice.ir.registry import all_ops  # noqa: E402


def check_ops(device: Device, job: int, jobs: int) -> int:
    """Number of samples that differ from the reference, of those that a job of several has."""
    import harness

    harness.device = lambda target: device
    wrong = checked = 0
    numbers = count()
    for spec in all_ops():
        for sample in spec.samples():
            if next(numbers) % jobs != job:
                continue
            for views in (False, True):
                checked += 1
                try:
                    problem = harness.check(harness.one_op(spec, sample, views=views), "webgpu")
                except Exception as e:
                    problem = f"{type(e).__name__}: {e}"
                if problem:
                    wrong += 1
                    print(f"  {spec.name} / {sample.label}{' (views)' if views else ''}: {problem[:300]}")
    print(f"ops: {checked} samples, {wrong} wrong")
    return wrong


def check_graphs(device: Device, seeds: range) -> int:
    """Number of random graphs that differ from the reference, fused or unfused."""
    import harness
    from fuzz.random_graphs import random_case

    harness.device = lambda target: device
    wrong = 0
    for seed in seeds:
        for options in ({"arena": True, "guard": 0}, {"fuse": False}):
            try:
                problem = harness.check(random_case(seed), "webgpu", **options)
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"
            if problem:
                wrong += 1
                print(f"  seed {seed} {options}: {problem[:300]}")
    print(f"graphs: {len(seeds)} seeds, {wrong} wrong")
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--device", default="webgpu", help="webgpu, vulkan, or one of several with :N or :NAME")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="processes")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)  # the number of one of them
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if args.job is None and args.jobs > 1:
        return check_in_processes(args.jobs)
    device, job = open_device(args.device), args.job or 0
    if job == 0:
        print(device.name, device.caps)
    wrong = check_ops(device, job, args.jobs) + check_graphs(device, range(1000 + job, 1000 + args.graphs, args.jobs))
    if job == 0:
        wrong += check_repeats(device)
    return 1 if wrong else 0


def check_in_processes(jobs: int) -> int:
    """This script in so many processes, each with its share; 1 if one of them found something wrong."""
    command = [sys.executable, *sys.argv, "--jobs", str(jobs)]
    running = [subprocess.Popen([*command, "--job", str(job)]) for job in range(jobs)]
    return int(any([p.wait() for p in running]))


if __name__ == "__main__":
    raise SystemExit(main())
