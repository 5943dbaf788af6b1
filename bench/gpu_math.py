"""Groups of the GPU table: square matmuls, matvecs with plain and quantised weights, and what a dispatch costs the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from encode import measure as measure_encoding
from encode import measure_recorded
from gpu_bench import Bench, Group, Peers, Repeated, Sizes, precision_option
from measure import medians
from random_models import generate, random_engine
from report import Row
from shapes import CAUSAL

import pumice as pm
from pumice.backends.null.device import NullDevice
from pumice.backends.vulkan.device import VulkanDevice
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype as get_dtype

# The share of a copy's bandwidth that matvecs should reach: on Vulkan, and on WebGPU where there is a goal.
MATVECS = {"f16": (0.85, 0.85), "q8_0": (0.8, 0.6), "q6_k": (0.7, None), "q4_k": (0.7, 0.6), "q5_k": (0.7, None)}
# Rows of a weight that are made; the others repeat them.
_ROWS = 32


def matmul_rows(bench: Bench) -> list[Row]:
    """Square matmuls."""
    n, unit = bench.sizes.matmul, "TFLOP/s"

    def rates(dtype: str, **options: Any) -> dict[str, float]:
        return {name: 1e-12 * rate for name, rate in bench.matmul_rates(dtype, **options).items()}

    f32, f16, bf16 = rates("float32"), rates("float16"), rates("bfloat16")
    title = f"matmul {n}³"
    rows = [
        Row("matmul f32", f"f32 {title}", unit, f32["ours"], f32.get("peer"), "torch f32, TF32 off", bench.goal(0.8, webgpu=0.8)),
        Row("matmul f16", f"f16 {title}", unit, f16["ours"], f32["ours"], "our f32", bench.goal(5, webgpu=1.3)),
    ]
    for name, found in (("f16", f16), ("bf16", bf16)):
        goal = bench.goal(250, unit=unit) if name == "f16" else None
        rows.append(Row(f"matmul {name} torch", f"{name} {title}", unit, found["ours"], found.get("peer"), f"torch {name}", goal))
    return rows


def rounded_matmul_rows(bench: Bench) -> list[Row]:
    """The square matmul of f32 arrays, rounded to a lower precision on the way."""
    if bench.precision == "exact":
        return []  # among the others
    rate = bench.matmul_rates("float32", **precision_option(pm.compile, bench.precision))
    ours, peer = (None if side not in rate else 1e-12 * rate[side] for side in ("ours", "peer"))
    assert ours is not None
    return [Row("matmul f32", f"f32 matmul {bench.sizes.matmul}³", "TFLOP/s", ours, peer, "torch f32, TF32 off")]


def matvec_rows(bench: Bench) -> list[Row]:
    """A vector times a matrix, whose bytes per second are compared with those of a copy."""
    sizes, rng = bench.sizes, np.random.default_rng(0)
    outputs, inputs = sizes.outputs, sizes.inputs
    names = [f"w{k}" for k in range(sizes.weights)]
    block = rng.standard_normal((_ROWS, inputs), np.float32) * np.float32(0.02)
    # Each weight meets another vector each time, or the products would be found to be the same.
    count = sizes.weights * sizes.rounds_of_weights
    vectors = {f"x{k}" if k else "x": rng.standard_normal((1, inputs), np.float32) for k in range(count + 1)}
    rows = []
    for kind, (bound, webgpu) in MATVECS.items():
        quantised = kind != "f16"
        stored = quantize_rows(get_dtype(kind), block) if quantised else block.astype(np.float16)
        weight = np.tile(stored, (outputs // _ROWS, 1))
        types = {name: pm.spec(outputs, inputs, dtype=kind) for name in names} if quantised else {}

        def apply(p: Any, last: Any, k: int, quantised: bool = quantised) -> Any:
            x, w = p[f"x{k}" if k else "x"], p[names[k % len(names)]]
            y = pm.qmatmul(x, w) if quantised else x @ w.T
            return y if k == 0 else pm.maximum(last, y)

        params = {**vectors, **dict.fromkeys(names, weight)}
        with Repeated(bench.device, apply, count, params, types=types) as ours:
            bench.warm()
            rate = medians({"": [weight.nbytes / ours.seconds() for _ in range(bench.rounds)]})[""]
        title, goal = f"{kind} matvec {outputs} × {inputs}, rotating weights", bench.goal(bound, webgpu=webgpu)
        rows.append(Row(f"matvec {kind}", title, "TB/s", rate / 1e12, bench.copy_bandwidth / 1e12, "device copy", goal))
    return rows


def encoding_rows(bench: Bench) -> list[Row]:
    """What a decode step costs the host."""

    def steps(layers: int) -> int:
        engine, _ = random_engine({**CAUSAL["tiny"], "num_hidden_layers": layers}, NullDevice(bench.device.caps), context=64)
        generate(engine, 4, 4, seed=layers)
        return next(int(v["steps"][0]) for k, v in engine.report().items() if k.startswith("(True"))

    each, unit = (steps(6) - steps(2)) / 4, "dispatches"
    rows = [Row("dispatches", "decode dispatches per layer", unit, each, goal=bench.goal(5, webgpu=7, least=False, unit=unit))]
    if isinstance(bench.device, VulkanDevice):
        spent = measure_recorded(bench.device, 400, 30)
        return [
            *rows,
            Row("record", "host time to record a dispatch, once", "µs", spent["record_us"]),
            Row("submit", "host time to submit it as it is recorded, of 400", "µs", spent["submit_us"]),
        ]
    raw = measure_encoding("", 400, 30)["raw_us"]
    goal = bench.goal(2.5, webgpu=2.5, least=False, unit="µs")
    return [*rows, Row("encode", "host time to encode a dispatch", "µs", raw, goal=goal)]


def _start(peers: Peers, sizes: Sizes) -> None:
    peers.get("math")


GROUPS = {
    "matmul": Group(matmul_rows, prepare=_start),
    "rounded": Group(rounded_matmul_rows, prepare=_start, precise=True),
    "matvec": Group(matvec_rows, prepare=_start),
    "encode": Group(encoding_rows),
}
