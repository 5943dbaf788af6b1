"""Every op of the registry, run by the host backend on the op's own samples, against its reference in float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from host.plans import plan_of
from pumice.backends.host import HostDevice
from pumice.core import dtypes
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.registry import OpSpec, Packed, Sample, all_ops, get_op
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan
from quant_params import QUANTS

from harness import Case, one_op, operands, wrong_outputs

Array = np.ndarray[Any, Any]


def run(plan: Plan, inputs: dict[str, Array], params: dict[str, Array]) -> list[Array]:
    session = HostDevice().open(plan)
    for n in plan.graph.sources("param"):
        session.write(n.id, params[n.name])
    results = session.run({}, inputs, [i for _, i in plan.graph.outputs])
    again = session.run({}, inputs, [i for _, i in plan.graph.outputs])
    for first, second in zip(results, again, strict=True):
        assert first is not second
        assert first.tobytes() == second.tobytes()
    return results


def problem(graph: Graph, plan: Plan, inputs: dict[str, Array], params: dict[str, Array]) -> str:
    before = {k: v.tobytes() for k, v in inputs.items()}
    got = run(plan, inputs, params)
    for k, v in inputs.items():
        assert v.tobytes() == before[k], f"the input {k} was written to"
    return wrong_outputs(Case(graph, inputs, params), got)


def problem_of(spec: OpSpec, sample: Sample) -> str:
    """What is wrong with an op that is a step of its own."""
    case = one_op(spec, sample)
    results = tuple(i for _, i in case.graph.outputs)
    return problem(case.graph, plan_of(case.graph, [results]), dict(case.inputs), dict(case.params))


@pytest.mark.parametrize("spec", all_ops(), ids=lambda s: s.name)
def test_every_op_on_its_samples(spec: OpSpec) -> None:
    found = []
    for sample in spec.samples():
        wrong = problem_of(spec, sample)
        if wrong:
            found.append(f"{sample.label}: {wrong}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("spec", [s for s in all_ops() if s.family != "shape" and s.operands], ids=lambda s: s.name)
def test_every_op_inside_a_fused_step(spec: OpSpec) -> None:
    """Operands as strided views, and an elementwise node after the op, or after its last result: all of it one step."""
    found = []
    for sample in spec.samples():
        graph, inputs, params = _fused(spec, sample)
        sources = {n.id for n in graph.nodes if n.op in ("input", "param")}
        plan = plan_of(graph, [tuple(n.id for n in graph.nodes if n.id not in sources)])
        wrong = problem(graph, plan, inputs, params)
        if wrong:
            found.append(f"{sample.label}: {wrong}")
    assert not found, "\n".join(found)


def _transposed(b: GraphBuilder, name: str, a: Array, inputs: dict[str, Array]) -> int:
    stored = np.ascontiguousarray(a.T) if a.ndim > 1 else a
    inputs[name] = stored
    node = b.source("input", name, TensorType(dtypes.dtype(a.dtype), stored.shape))
    return b.add("transpose", [node], {"perm": tuple(range(a.ndim))[::-1]})


def _fused(spec: OpSpec, sample: Sample) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    b = GraphBuilder()
    ids, inputs, params = operands(b, sample, _transposed)
    out = b.add_all(spec.name, ids, sample.attrs)[-1]
    if b.type(out).dtype.kind in ("float", "int"):
        out = b.add("neg", [out])
    return b.build([("out", out)]), inputs, params


def chain(shape: tuple[int, ...], *others: tuple[int, ...], dtype: dtypes.DType = dtypes.f32) -> tuple[Graph, dict[str, Array]]:
    """tanh(x * a + b …) over operands that broadcast."""
    b = GraphBuilder()
    generator = np.random.default_rng(0)
    inputs = {}
    value = None
    for k, s in enumerate((shape, *others)):
        inputs[f"x{k}"] = generator.standard_normal(s).astype(dtype.np)
        leaf = b.source("input", f"x{k}", TensorType(dtype, s))
        if value is None:
            value = leaf
        else:
            value = b.add("mul" if k % 2 else "add", [value, leaf])
    assert value is not None
    value = b.add("silu", [b.add("tanh", [value])])
    return b.build([("out", value)]), inputs


@pytest.mark.parametrize(
    "shapes",
    [
        ((300_001,), (300_001,)),
        ((300_001,), ()),
        ((700, 301), (301,), (700, 1)),
        ((70, 1, 3001), (1, 1, 3001), ()),
        ((5, 70, 601), (70, 1), (5, 1, 601)),
        ((3, 200_003), (3, 1), (200_003,)),
        ((2, 3, 40_000), (1, 3, 1), (2, 1, 40_000)),
        ((200_000, 1), (200_000, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_large_regions_run_in_chunks(shapes: tuple[tuple[int, ...], ...], dtype: dtypes.DType) -> None:
    graph, inputs = chain(*shapes, dtype=dtype)
    plan = plan_of(graph, [tuple(n.id for n in graph.nodes if n.op != "input")])
    (got,) = run(plan, inputs, {})
    assert wrong_outputs(Case(graph, inputs, {}), [got]) == ""


def test_views_in_large_regions() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (301, 500)))
    y = b.source("input", "y", TensorType(dtypes.f32, (500, 1)))
    t = b.add("transpose", [x], {"perm": (1, 0)})
    out = b.add("exp", [b.add("mul", [t, y])])
    graph = b.build([("out", out)])
    g = np.random.default_rng(1)
    inputs = {"x": g.standard_normal((301, 500)).astype("f4"), "y": g.standard_normal((500, 1)).astype("f4")}
    assert not problem(graph, plan_of(graph, [(t, out - 1, out)]), inputs, {})


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "cumsum"])
def test_long_sums_keep_float32_accuracy(name: str) -> None:
    """A million equal numbers added one after the other in float32 are off by a percent."""
    x = np.full((1_000_000, 2), 0.1, np.float32)
    attrs = {"axis": 0, "exclusive": False, "reverse": False} if name == "cumsum" else {"axes": (0,), "keepdims": False}
    assert not problem_of(get_op(name), Sample("long", (x,), attrs))


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("with_numba", [True, False], ids=["numba", "numpy"])
def test_quantised_matmuls(rows: int, quant: dtypes.DType, with_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.host.native import jit
    from pumice.core.blocks import quantize_rows

    if not with_numba:
        monkeypatch.setattr(jit, "kernels", functools.cache(lambda: None))
    elif not jit.available():
        pytest.skip("numba is not installed")
    g = np.random.default_rng(2)
    w = Packed(quant, (1100, 1024), quantize_rows(quant, g.standard_normal((1100, 1024))))
    x = g.standard_normal((rows, 1024)).astype(np.float32)
    x.flags.writeable = False
    assert not problem_of(get_op("qmatmul"), Sample("", (x, w), {}))


def test_fast_matmuls_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.host.native import jit

    monkeypatch.setattr(jit, "kernels", functools.cache(lambda: None))
    samples = [s for s in get_op("qmatmul").samples() if s.attrs.get("precision") == "fast"]
    assert samples and not [wrong for s in samples if (wrong := problem_of(get_op("qmatmul"), s))]


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("other", [dtypes.f32, None], ids=["by f32", "by itself"])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("x_shape", [(1300,), (1, 1300), (5, 1300), (2, 30, 1300)], ids=str)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("with_numba", [True, False], ids=["numba", "numpy"])
def test_large_half_weights_are_widened_in_tiles(
    dtype: dtypes.DType,
    other: dtypes.DType | None,
    transposed: bool,
    x_shape: tuple[int, ...],
    left: bool,
    with_numba: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pumice.backends.host.native import jit
    from pumice.backends.host.routines import linear

    if not with_numba:
        monkeypatch.setattr(jit, "kernels", functools.cache(lambda: None))
    widened: list[int] = []
    monkeypatch.setattr(linear, "scratch", lambda name, size: widened.append(size) or np.empty(size, np.float32))
    g = np.random.default_rng(3)
    b = GraphBuilder()
    w_shape = (900, 1300) if transposed == (not left) else (1300, 900)
    x_dtype = other or dtype
    x_stored = x_shape if not left or len(x_shape) == 1 else (*x_shape[:-2], x_shape[-1], x_shape[-2])
    x = b.source("input", "x", TensorType(x_dtype, x_stored))
    w = b.source("input", "w", TensorType(dtype, w_shape))
    nodes = []
    if transposed:
        w = b.add("transpose", [w], {"perm": (1, 0)})
        nodes.append(w)
    out = b.add("matmul", [w, x] if left else [x, w])
    graph = b.build([("out", out)])
    inputs = {"x": g.standard_normal(x_stored).astype(x_dtype.np), "w": g.standard_normal(w_shape).astype(dtype.np)}
    assert not problem(graph, plan_of(graph, [(*nodes, out)]), inputs, {})
    assert all(size <= 1 << 20 for size in widened)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize(("a", "b"), [((9, 3, 500), (9, 500, 400)), ((3, 500), (9, 500, 400)), ((2, 5, 1, 2000), (5, 2000, 300))])
def test_large_batches_of_half_weights(dtype: dtypes.DType, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    g = np.random.default_rng(3)
    arrays = (g.standard_normal(a).astype(np.float32), g.standard_normal(b).astype(dtype.np))
    assert not problem_of(get_op("matmul"), Sample("", arrays, {}))


def test_attention_does_not_read_keys_past_kv_len_or_before_the_window() -> None:
    """Reading, or even widening, them would warn about invalid values, which the tests make an error."""
    from pumice.backends.host.routines import linear

    g = np.random.default_rng(6)
    q = g.standard_normal((2, 4, 3, 16)).astype(np.float32)
    k, v = (g.standard_normal((3, 2, 4000, 16)).astype(np.float16) for _ in "kv")
    starts, lengths, index = (np.array(a, np.int32) for a in ([5, 300], [8, 303], [2, 0]))
    attrs = {"layout": "bhsd", "causal": True, "window": 20}
    seen = np.zeros(4000, np.bool_)
    seen[:8] = seen[281:303] = True
    k[:, :, ~seen], v[:, :, ~seen] = np.nan, np.nan
    sample = Sample("", (q, k, v, None, None, starts, lengths, index, None, None, None), attrs)
    clean = Sample("", (q, np.nan_to_num(k), np.nan_to_num(v), *sample.inputs[3:]), attrs)
    widened: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = linear.as_f32
        patch.setattr(linear, "as_f32", lambda x: widened.append(x.shape[1]) or plain(x) if x.dtype == np.float16 else x)
        assert not problem_of(get_op("attention"), clean)
    assert widened and max(widened) <= 22
    full = get_op("attention").complete_attrs(attrs)
    run = linear._Attention(full, q.shape, k.shape).run
    got, want = np.empty_like(q), np.empty_like(q)
    run(list(sample.inputs), got)
    run(list(clean.inputs), want)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("extra", [{}, {"causal": True}, {"causal": True, "window": 300}], ids=str)
def test_attention_in_several_blocks(layout: str, extra: dict[str, Any]) -> None:
    g = np.random.default_rng(4)
    shapes = [(1, 4, 900, 16), (1, 2, 1100, 16), (1, 2, 1100, 16)]
    if layout == "bshd":
        shapes = [(b, s, h, d) for b, h, s, d in shapes]
    arrays = tuple(g.standard_normal(s).astype(np.float32) for s in shapes)
    sample = Sample("", (*arrays, None, None, None, None, None), {"layout": layout, **extra})
    assert not problem_of(get_op("attention"), sample)


def test_selecting_the_best_of_many() -> None:
    g = np.random.default_rng(5)
    x = g.integers(-50, 50, (3, 4000)).astype(np.float32)
    x[1, 7] = x[1, 3000] = np.nan
    x[2, :9] = [-np.inf, np.inf, -0.0, 0.0, -np.nan, np.inf, 0.0, -0.0, -np.inf]
    for k in (60, 3000, 4000):
        assert not problem_of(get_op("top_k"), Sample("", (x,), {"k": k, "axis": 1}))
