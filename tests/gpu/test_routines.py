"""The matrix routines beyond the registry's samples: choice of variant, epilogues, strided operands, symbolic sizes, shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.errors import LimitError
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.kernels.routines import attention, matmul, qmatmul
from pumice.kernels.routines.attention_blocks import AttentionBlocks
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions

import harness

H200, BASELINE, LAVAPIPE = (Caps.preset(n) for n in ("h200", "browser-baseline", "lavapipe"))
TARGETS = ("webgpu", "webgpu-baseline")
Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def variants(plan: Plan) -> list[str]:
    return [s.variant for s in plan.steps]


def planned(case: harness.Case, target: str, **options: Any) -> list[str]:
    """The variants of a case's steps, once it has been found right."""
    assert harness.check(case, target, **options) == ""
    maxima = options.pop("max", None)
    return variants(build_plan(case.graph, harness.device(target).caps, PlanOptions(**options), max=maxima))


def loads_pairs(graph: Any, caps: Caps) -> bool:
    """Whether a kernel's body takes words of two f16 apart, rather than a function that takes one element."""
    return any("unpack2x16float(w" in kernel.wgsl.split("fn main")[1] for kernel in build_plan(graph, caps).kernels)


@pytest.mark.parametrize(
    ("caps", "size", "start"),
    [
        (H200, (4096, 4096, 4096, 1), "tiled 128x128x16 8x8"),
        (H200, (512, 512, 512, 1), "tiled"),
        (H200, (1, 4096, 4096, 1), "matvec across"),
        (H200, (4096, 2, 4096, 1), "matvec along"),
        (H200, (8, 8, 64, 500), "naive"),
        (BASELINE, (4096, 4096, 4096, 1), "tiled"),
        (LAVAPIPE, (512, 512, 512, 1), "tiled"),
        (LAVAPIPE, (3, 3, 3, 1), "naive"),
    ],
)
def test_matmul_decides_by_size(caps: Caps, size: tuple[int, int, int, int], start: str) -> None:
    assert matmul.decide(caps, *size).name.startswith(start)


@pytest.mark.parametrize("caps", [H200, BASELINE, LAVAPIPE], ids=lambda c: c.name)
@pytest.mark.parametrize("m", [1, 7, 16, 33, 100, 5000])
@pytest.mark.parametrize("n", [1, 20, 64, 5000])
def test_every_choice_fits_the_target(caps: Caps, m: int, n: int) -> None:
    for choice in (matmul.decide(caps, m, n, 4096, 1), qmatmul.decide(caps, m, n, 4096)):
        assert choice.threads <= caps.max_invocations
        memory = choice.shared_bytes(m) if isinstance(choice, qmatmul.QMatvec) else getattr(choice, "shared_bytes", 0)
        assert memory <= caps.workgroup_memory
    for depth in (1, 40, 64, 128, 256):
        for stored in (True, False):
            flash = attention.decide(caps, m, n, depth, depth, 8, stored=stored)
            if isinstance(flash, AttentionBlocks):
                assert flash.memory(depth, depth) <= caps.workgroup_memory and (stored or flash.holds_queries)
                assert flash.divides(depth) and flash.threads <= caps.max_invocations
                continue
            assert flash.shared_bytes(depth) <= caps.workgroup_memory
            assert flash.rows * flash.keys * flash.splits == flash.threads * flash.per_thread


def test_a_depth_beyond_workgroup_memory_is_refused() -> None:
    with pytest.raises(LimitError, match="5000"):
        attention.decide(BASELINE, 1, 1, 5000, 64, 1)


def test_without_subgroups_the_choice_says_so() -> None:
    assert "subgroups" in matmul.decide(H200, 1, 4096, 4096, 1, b_along=True).name
    assert "subgroups" not in matmul.decide(H200.with_(subgroups=False), 1, 4096, 4096, 1, b_along=True).name


# Rows that make a naive kernel, a matvec, and tiles with ragged edges; the last two fold a batch into rows.
EPILOGUE_LEADS = [(6,), (1,), (70,), (3, 1), (2, 41)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lead", EPILOGUE_LEADS, ids=str)
def test_bias_activation_and_residual_run_in_the_matmul(target: str, lead: tuple[int, ...]) -> None:
    graph = pm.trace(
        lambda x, w, b, r: pm.relu(x @ w + b) + r, x=pm.spec(*lead, 48), w=pm.spec(48, 65), b=pm.spec(65), r=pm.spec(*lead, 65)
    )
    inputs = {"x": normal(*lead, 48), "w": normal(48, 65, seed=1), "b": normal(65, seed=2), "r": normal(*lead, 65, seed=3)}
    assert len(planned(harness.Case(graph, inputs, {}), target)) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("q", ["q4_0", "q5_1", "q8_0", "q2_k", "q4_k", "q6_k", "iq4_xs", "mxfp4", "nvfp4", "u8b_g64_bf16"])
def test_bias_and_residual_run_in_the_qmatmul(target: str, rows: int, q: str) -> None:
    b = GraphBuilder()
    quant = dtypes.dtype(q)
    k = 3 * quant.block
    x, w = b.source("input", "x", TensorType(dtypes.f32, (rows, k))), b.source("param", "w", TensorType(quant, (1030, k)))
    bias, r = (
        b.source("input", "b", TensorType(dtypes.f32, (1030,))),
        b.source("input", "r", TensorType(dtypes.f32, (rows, 1030))),
    )
    out = b.add("add", [b.add("silu", [b.add("add", [b.add("qmatmul", [x, w]), bias])]), r])
    inputs = {"x": normal(rows, k), "b": normal(1030, seed=1), "r": normal(rows, 1030, seed=2)}
    case = harness.Case(b.build([("out", out)]), inputs, {"w": quantize_rows(quant, normal(1030, k, seed=3))})
    assert len(planned(case, target)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_residual_runs_in_the_attention(target: str) -> None:
    graph = pm.trace(
        lambda q, k, v, r: pm.attention(q, k, v, layout="bhsd", causal=True) + r,
        q=pm.spec(2, 4, 5, 24),
        k=pm.spec(2, 2, 40, 24),
        v=pm.spec(2, 2, 40, 24),
        r=pm.spec(2, 4, 5, 24),
    )
    shapes = {"q": (2, 4, 5, 24), "k": (2, 2, 40, 24), "v": (2, 2, 40, 24), "r": (2, 4, 5, 24)}
    inputs = {name: normal(*s, seed=i) for i, (name, s) in enumerate(shapes.items())}
    assert len(planned(harness.Case(graph, inputs, {}), target)) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n"), [(1, 300), (300, 1), (2, 515), (70, 33), (130, 140)])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_transposed_operands_are_read_in_place(target: str, m: int, n: int, left: bool, right: bool) -> None:
    graph = pm.trace(
        lambda a, b: (a.T if left else a) @ (b.T if right else b),
        a=pm.spec(*((66, m) if left else (m, 66))),
        b=pm.spec(*((n, 66) if right else (66, n))),
    )
    a, b = normal(m, 66), normal(66, n, seed=1)
    inputs = {"a": np.ascontiguousarray(a.T) if left else a, "b": np.ascontiguousarray(b.T) if right else b}
    assert len(planned(harness.Case(graph, inputs, {}), target)) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_packed_halves_are_read_in_pairs_where_rows_are_even(target: str) -> None:
    for k in (66, 67):
        graph = pm.trace(lambda a, b: a @ b.T, a=pm.spec(2, k, dtype="f16"), b=pm.spec(300, k, dtype="f16"))
        a, b = (normal(rows, k, seed=rows).astype(np.float16) for rows in (2, 300))
        assert loads_pairs(graph, harness.device(target).caps) == (k == 66)
        assert harness.check(harness.Case(graph, {"a": a, "b": b}, {}), target) == ""


# Rows and columns that make a matvec of either kind and tiles, ragged and whole; which operand is half, transposed, or both.
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 66), (2, 301, 66), (70, 36, 66), (128, 128, 64), (70, 36, 67), (300, 1, 66)])
@pytest.mark.parametrize("right", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("dtypes_", [("f32", "f16"), ("bf16", "f32"), ("f16", "f16"), ("f16", "bf16")], ids="-".join)
def test_mixed_floats(target: str, m: int, n: int, k: int, right: bool, dtypes_: tuple[str, str]) -> None:
    left_type, right_type = (dtypes.dtype(d) for d in dtypes_)
    graph = pm.trace(
        lambda a, b: a @ (b.T if right else b),
        a=pm.spec(m, k, dtype=left_type),
        b=pm.spec(*((n, k) if right else (k, n)), dtype=right_type),
    )
    assert [x.op for x in graph.nodes if x.op == "cast"] == []
    a, b = normal(m, k).astype(left_type.np), normal(n, k, seed=1).astype(right_type.np)
    inputs = {"a": a, "b": b if right else np.ascontiguousarray(b.T)}
    assert harness.check(harness.Case(graph, inputs, {}), target) == ""


@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 66), (70, 36, 66)], ids=["matvec", "tiles"])
@pytest.mark.parametrize("right", [False, True], ids=["plain", "transposed"])
def test_half_weights_of_f32_rows_are_read_two_at_a_time(m: int, n: int, k: int, right: bool) -> None:
    def graph(columns: int, inner: int) -> Any:
        b = pm.spec(*((columns, inner) if right else (inner, columns)), dtype="f16")
        return pm.trace(lambda a, b: a @ (b.T if right else b), a=pm.spec(m, inner), b=b)

    assert loads_pairs(graph(n, k), BASELINE)
    assert not loads_pairs(graph(n + 1, k + 1), BASELINE)


@pytest.mark.parametrize("target", TARGETS)
def test_one_plan_serves_every_length(target: str) -> None:
    def block(x: Any, w: Any, k: Any, v: Any) -> Any:
        q = pm.reshape(x @ w, (1, 2, x.shape[0], 20))
        return pm.attention(q, k, v, layout="bhsd", causal=True)

    cache = pm.spec(1, 2, "S", 20)
    graph = pm.trace(block, x=pm.spec("T", 40), w=pm.spec(40, 40), k=cache, v=cache)
    for t, s in ((1, 1), (1, 70), (5, 33), (64, 128), (7, 3), (0, 9), (3, 0)):
        inputs = {
            "x": normal(t, 40),
            "w": normal(40, 40, seed=1),
            "k": normal(1, 2, s, 20, seed=2),
            "v": normal(1, 2, s, 20, seed=3),
        }
        assert harness.check(harness.Case(graph, inputs, {}), target, max={"T": 64, "S": 128}) == "", (t, s)


@pytest.mark.parametrize("target", TARGETS)
def test_a_symbolic_number_of_vectors_and_of_summands(target: str) -> None:
    graph = pm.trace(lambda x, w: x @ w, x=pm.spec("T", "K"), w=pm.spec("K", 300))
    for t, k in ((1, 64), (3, 50), (2, 0), (0, 64)):
        case = harness.Case(graph, {"x": normal(t, k), "w": normal(k, 300, seed=1)}, {})
        assert all(v.startswith("matvec") for v in planned(case, target, max={"T": 3, "K": 64})), (t, k)


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize(
    "weight", ["f32", "f16", "q4_0", "q5_0", "q8_0", "q3_k", "q4_k", "q6_k", "iq4_xs", "mxfp4", "u4z_g128_f16", "nvfp4_g256_f32"]
)
def test_weights_larger_than_a_binding_are_read_from_their_parts(rows: int, weight: str) -> None:
    from pumice.backends.webgpu.device import WebGpuDevice

    dtype = dtypes.dtype(weight)
    # Of the device itself: kernels go by the size of its subgroups.
    caps = harness.device("webgpu").caps.with_(max_binding_bytes=12 << 10 if dtype.is_quant else 16 << 10)
    b = GraphBuilder()
    x, w = b.source("input", "x", TensorType(dtypes.f32, (rows, 256))), b.source("param", "w", TensorType(dtype, (120, 256)))
    out = b.add("qmatmul", [x, w]) if dtype.is_quant else b.add("matmul", [x, b.add("transpose", [w], {"perm": (1, 0)})])
    values = normal(120, 256, seed=1)
    packed = quantize_rows(dtype, values) if dtype.is_quant else values.astype(dtype.np)
    case = harness.Case(b.build([("out", out)]), {"x": normal(rows, 256)}, {"w": packed})
    plan = build_plan(case.graph, caps)
    assert len(plan.values[w].parts) > 1
    results, _ = harness.run_plan(WebGpuDevice(caps=caps), plan, case, guarded=False)
    assert harness.wrong_outputs(case, results) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_attention_with_every_operand_binds_eight_buffers(target: str) -> None:
    r = np.random.default_rng(0)
    t, s = sym("T"), sym("S")
    shapes = {"q": (2, 4, t, 64), "k": (2, 2, s, 64), "v": (2, 2, s, 64), "mask": (2, 1, t, s), "bias": (4, 1, s)}
    b = GraphBuilder()
    ids = [b.source("input", n, TensorType(dtypes.bool_ if n == "mask" else dtypes.f32, shape)) for n, shape in shapes.items()]
    ids += [b.source("input", n, TensorType(dtypes.i32, (2,))) for n in ("offset", "kv_len")]
    out = b.add("attention", [*ids, None, None, None], {"causal": True, "window": 30, "softcap": 5.0})
    inputs = {"q": normal(2, 4, 5, 64), "k": normal(2, 2, 50, 64, seed=1), "v": normal(2, 2, 50, 64, seed=2)}
    inputs |= {"mask": r.random((2, 1, 5, 50)) < 0.7, "bias": normal(4, 1, 50, seed=3)}
    inputs |= {"offset": np.array([3, 44], np.int32), "kv_len": np.array([20, 50], np.int32)}
    case = harness.Case(b.build([("out", out)], maxima={"T": 8, "S": 64}), inputs, {})
    assert harness.check(case, target) == ""
    assert len(build_plan(case.graph, BASELINE).steps[0].bindings) == 8


@pytest.mark.parametrize("target", TARGETS)
def test_kv_index_picks_entries_of_a_shared_cache(target: str) -> None:
    n = sym("N")
    b = GraphBuilder()
    q = b.source("input", "q", TensorType(dtypes.f32, (sym("B"), 1, 4, 32)))
    k, v = (b.source("input", name, TensorType(dtypes.f16, (n, 40, 2, 32))) for name in "kv")
    ints = [b.source("input", name, TensorType(dtypes.i32, (sym("B"),))) for name in ("offset", "kv_len", "kv_index")]
    out = b.add("attention", [q, k, v, None, None, *ints, None, None], {"layout": "bshd", "causal": True})
    graph = b.build([("out", out)], maxima={"B": 4, "N": 6})
    assert len(build_plan(graph, BASELINE).steps[0].bindings) == 7
    for batch, entries in ((3, 5), (4, 1), (1, 6), (2, 0), (0, 3)):
        r = np.random.default_rng(batch)
        inputs = {"q": normal(batch, 1, 4, 32), "offset": r.integers(0, 40, batch).astype(np.int32)}
        inputs |= {name: normal(entries, 40, 2, 32, seed=i).astype(np.float16) for i, name in enumerate("kv")}
        inputs |= {"kv_len": inputs["offset"] + np.int32(1), "kv_index": r.integers(-7, 7, batch).astype(np.int32)}
        assert harness.check(harness.Case(graph, inputs, {}), target) == "", (batch, entries)


@pytest.mark.parametrize("target", TARGETS)
def test_keys_past_kv_len_may_hold_anything(target: str) -> None:
    b = GraphBuilder()
    q = b.source("input", "q", TensorType(dtypes.f32, (1, 2, 1, 16)))
    k, v = (b.source("input", n, TensorType(dtypes.f32, (1, 2, 40, 16))) for n in "kv")
    out = b.add("attention", [q, k, v, None, None, None, b.source("input", "n", TensorType(dtypes.i32, ())), *[None] * 3])
    inputs = {
        "q": normal(1, 2, 1, 16),
        "k": normal(1, 2, 40, 16, seed=1),
        "v": normal(1, 2, 40, 16, seed=2),
        "n": np.array(13, np.int32),
    }
    clean = harness.Case(b.build([("out", out)]), inputs, {})
    dirty = {n: a.copy() for n, a in inputs.items()}
    dirty["k"][:, :, 13:] = np.nan
    dirty["v"][:, :, 13:] = np.nan
    dev = harness.device(target)
    plan = build_plan(clean.graph, dev.caps)
    (want,), _ = harness.run_plan(dev, plan, clean, guarded=False)
    (got,), _ = harness.run_plan(dev, plan, harness.Case(clean.graph, dirty, {}), guarded=False)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("hide", [-np.inf, np.finfo(np.float32).min], ids=["infinite", "lowest"])
def test_an_additive_mask_hides(target: str, hide: float) -> None:
    bias = np.where(np.random.default_rng(0).random((6, 40)) < 0.5, 0, hide).astype(np.float32)
    bias[2] = hide
    graph = pm.trace(
        lambda q, k, v, b: pm.attention(q, k, v, layout="bhsd", bias=b),
        q=pm.spec(1, 2, 6, 32),
        k=pm.spec(1, 2, 40, 32),
        v=pm.spec(1, 2, 40, 32),
        b=pm.spec(6, 40),
    )
    inputs = {"q": normal(1, 2, 6, 32), "k": normal(1, 2, 40, 32, seed=1), "v": normal(1, 2, 40, 32, seed=2), "b": bias}
    assert harness.check(harness.Case(graph, inputs, {}), target) == ""
