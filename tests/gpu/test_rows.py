"""Row kernels, scatters and sorts: what the registry's samples leave out: choices, fusion, symbols, large grids, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.core.dims import Dim, sym
from pumice.core.dtypes import DType
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.symbols import infer_env
from pumice.ir.types import TensorType
from pumice.kernels.routines import scatter, sort
from pumice.kernels.rows import layout, scan
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions
from pumice.reference.interpreter import evaluate_graph

from harness import GUARD, Case, device, run_plan, wrong_outputs

Array = np.ndarray[Any, Any]
H200, BASELINE, SOFTWARE = Caps.preset("h200"), Caps.preset("browser-baseline"), Caps.preset("lavapipe")
# A GPU's choices, made to run on the software driver.
GPU = H200.with_(name="small gpu", workgroup_memory=16 << 10, max_binding_bytes=128 << 20, max_buffer_bytes=1 << 28)
T, B = sym("T"), sym("B")


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(graph: Graph, inputs: Mapping[str, Array], caps: Caps, maxima: Mapping[str, int] | None = None) -> list[str]:
    """Compares a graph with the oracle under `caps`; gives the variants it took."""
    plan = build_plan(graph, caps, PlanOptions(guard=GUARD, arena=False), max=maxima)
    case = Case(graph, inputs, {})
    results, broken = run_plan(device("webgpu"), plan, case)
    assert not broken
    assert wrong_outputs(case, results) == ""
    return [s.variant for s in plan.steps]


def sources(b: GraphBuilder, shapes: Mapping[str, tuple[Dim, ...]], dtype: DType = dtypes.f32) -> list[int]:
    return [b.source("input", name, TensorType(dtype, shape)) for name, shape in shapes.items()]


# --- choices ---


def test_rows_get_a_thread_a_workgroup_or_several() -> None:
    assert layout.decide(H200, 100_000, 32, strided=False) == layout.RowTile(256, 1)
    assert layout.decide(H200, 1, 32, strided=False) == layout.RowTile(1, 32)
    assert layout.decide(H200, 4096, 4096, strided=False) == layout.RowTile(1, 256)
    assert layout.decide(H200, 8, 4096, strided=False) == layout.RowTile(1, 1024)
    assert layout.decide(BASELINE, 8, 4096, strided=False) == layout.RowTile(1, 256)
    assert layout.decide(BASELINE, 100, 10_000, strided=True) == layout.RowTile(32, 8)
    assert layout.decide(BASELINE, 10**6, 10_000, strided=True) == layout.RowTile(256, 1)


@pytest.mark.parametrize("caps", [H200, BASELINE, SOFTWARE], ids=lambda c: c.name)
def test_long_rows_never_get_one_thread_each(caps: Caps) -> None:
    for rows in (1, 10, 1000, 10**6):
        for length in (65, 1000, 10**6):
            assert layout.decide(caps, rows, length, strided=False).lanes > 1
            assert scan.decide(caps, rows, length, strided=False).lanes > 1
            tile = layout.decide(caps, rows, length, strided=True, split=True)
            assert tile.workgroup <= caps.max_invocations
            assert tile.lanes > 1 or rows >= layout.many_rows(caps)


def test_few_huge_rows_are_split() -> None:
    assert layout.decide(H200, 1, 10**7, strided=False, split=True).slices == 512
    assert layout.decide(H200, 1000, 10**6, strided=False, split=True).slices == 1
    assert layout.decide(H200, 1, 4096, strided=False, split=True).slices == 1


def test_sorts_choose_by_length_and_take() -> None:
    assert [sort.decide(BASELINE, n, n, 9).method for n in (2, 1024, 1025)] == ["block", "block", "merge"]
    assert [sort.decide(BASELINE, 10**5, k, 9).method for k in (1, 512, 513)] == ["rounds", "rounds", "merge"]
    assert [sort.decide(BASELINE, n, n, 1).method for n in (1 << 16, (1 << 16) + 1)] == ["merge", "digits"]


def test_scatters_choose_by_updates() -> None:
    assert scatter.decide(BASELINE, "inplace", 1, 64, 128).method == "thread"
    assert scatter.decide(BASELINE, "inplace", 100, 64, 128).method == "group"
    assert scatter.decide(BASELINE, "add", 10**6, 10, 1).method == "group"
    assert scatter.decide(BASELINE, "add", 10**6, 1000, 1).method == "sorted"
    assert scatter.decide(BASELINE, "integers", 10**6, 1000, 1).method == "bins"
    assert scatter.decide(BASELINE, "integers", 10**6, 10**6, 1).method == "sorted"
    assert scatter.decide(BASELINE, "set", 100, 64, 128).method == "table"


# --- fusion ---

_ROW_OPS: list[tuple[str, dict[str, Any]]] = [
    ("reduce_sum", {"axes": (1,), "keepdims": False}),
    ("reduce_mean", {"axes": (0,), "keepdims": True}),
    ("reduce_max", {"axes": (0, 1), "keepdims": False}),
    ("reduce_prod", {"axes": (), "keepdims": False}),
    ("softmax", {"axis": 1}),
    ("log_softmax", {"axis": 0}),
    ("rms_norm", {"axes": 1, "eps": 1e-5}),
    ("layer_norm", {"axes": 2, "eps": 1e-5}),
    ("cumsum", {"axis": 1, "reverse": True}),
]


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [GPU, BASELINE, SOFTWARE], ids=lambda c: c.name)
@pytest.mark.parametrize(("op", "attrs"), _ROW_OPS, ids=[o for o, _ in _ROW_OPS])
def test_one_kernel_with_prologue_and_epilogue(op: str, attrs: dict[str, Any], caps: Caps) -> None:
    b = GraphBuilder()
    x, y, w = sources(b, {"x": (3, 150), "y": (150,), "w": (150,)})
    inner = b.add("add", [b.add("tanh", [x]), y])
    extra = {"rms_norm": [w], "layer_norm": [None, None]}.get(op, [])
    node = b.add(op, [inner, *extra], attrs)
    half = b.add("mul", [node, b.constant(np.float32(0.5), dtypes.f32)])
    out = b.add("add", [half, node])
    graph = b.build([("out", out)])
    inputs = {"x": numbers(3, 150), "y": numbers(150, seed=1), "w": numbers(150, seed=2)}
    assert len(run(graph, inputs, caps)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["argmax", "sort", "top_k", "scatter_add", "scatter_set"])
def test_index_results_and_scatters_take_an_epilogue(op: str) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (4, 3000)})
    if op.startswith("scatter"):
        ids = b.constant(np.arange(-20, 20, dtype=np.int32), dtypes.i32)
        (updates,) = sources(b, {"u": (4, 40)})
        node = b.add(op, [x, ids, updates], {"axis": 1})
        out = b.add("exp", [node])
    else:
        attrs = {"argmax": {"keepdims": False}, "sort": {"descending": True}, "top_k": {"k": 40}}[op]
        node = b.add_all(op, [x], {"axis": 1, **attrs})[-1]
        out = b.add("mul", [node, node])
    graph = b.build([("out", out)])
    inputs = {"x": numbers(4, 3000)} | ({"u": numbers(4, 40, seed=1)} if op.startswith("scatter") else {})
    run(graph, inputs, GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bool_], ids=str)
def test_packed_results_go_through_a_wide_temporary(dtype: DType) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (3, 77)})
    out = b.add("cast", [b.add("softmax", [x], {"axis": 1})], {"dtype": dtype.name})
    assert len(run(b.build([("out", out)]), {"x": numbers(3, 77)}, GPU)) == 2


# --- several kernels, large grids ---


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [GPU, BASELINE, SOFTWARE], ids=lambda c: c.name)
def test_split_rows(caps: Caps) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (2, 60_001)})
    total = b.add("sqrt", [b.add("abs", [b.add("reduce_sum", [b.add("square", [x])], {"axes": (1,), "keepdims": True})])])
    best = b.add("argmin", [x], {"axis": 1, "keepdims": False})
    columns = b.add("reduce_max", [b.add("transpose", [x], {"perm": (1, 0)})], {"axes": (0,), "keepdims": False})
    data = numbers(2, 60_001)
    data[1, 50_000] = data[1, 40_000] = -9
    data[0, 59_999] = np.nan
    variants = run(b.build([("total", total), ("best", best), ("columns", columns)]), {"x": data}, caps)
    assert sum("split" in v for v in variants) == 3 and sum(v.startswith("combine") for v in variants) == 3


@pytest.mark.gpu
def test_more_workgroups_than_a_grid_has_in_one_dimension() -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (66_000, 66)})
    outs = [b.add("rms_norm", [x, None], {"axes": 1}), b.add("cumsum", [x], {"axis": 1})]
    outs.append(b.add("reduce_min", [x], {"axes": (1,), "keepdims": False}))
    variants = run(b.build([(f"o{k}", o) for k, o in enumerate(outs)]), {"x": numbers(66_000, 66)}, GPU)
    assert all(v.startswith("row/32") for v in variants)


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [GPU, SOFTWARE], ids=lambda c: c.name)
def test_long_sorts(caps: Caps) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (2, 9000, 2)})
    values, order = b.add_all("sort", [x], {"axis": 1, "descending": True})
    _, top = b.add_all("top_k", [x], {"axis": 1, "k": 200})
    data = np.round(numbers(2, 9000, 2) * 50)  # many ties
    data[0, ::1000, 1] = np.nan
    variants = run(b.build([("values", values), ("order", order), ("top", top)]), {"x": data}, caps)
    assert variants.count("rounds/1024") == 3  # 9 blocks leave 1,800 candidates, 2 blocks 400
    plan = build_plan(b.build([("order", order)]), caps)
    assert len(plan.steps) > 10 and len(plan.kernels) == 4  # the passes share their kernels


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["argmax", "top_k", "scatter_set"])
def test_helper_values_fit_the_fewest_bindings(op: str) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (2, 12_000)})
    ids, updates = b.constant(np.arange(40, dtype=np.int32), dtypes.i32), numbers(2, 40)
    if op == "argmax":
        node = b.add(op, [x], {"axis": 1, "keepdims": False})
    elif op == "top_k":
        node = b.add_all(op, [x], {"axis": 1, "k": 3})[1]
    else:
        node = b.add(op, [x, ids, b.constant(updates, dtypes.f32)], {"axis": 1})
    t = b.type(node)
    inputs: dict[str, Array] = {"x": numbers(2, 12_000)}
    for k in range(6 if op != "scatter_set" else 4):  # with x and the result as many as a browser allows by default
        y = b.source("input", f"y{k}", t)
        inputs[f"y{k}"] = np.full(t.static_shape, k + 1, t.dtype.np)
        node = b.add("add", [node, y])
    run(b.build([("out", node)]), inputs, BASELINE)


# --- symbols ---


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("length", [0, 1, 70, 2500])
@pytest.mark.parametrize("caps", [GPU, SOFTWARE], ids=lambda c: c.name)
def test_symbolic_rows_and_lengths(rows: int, length: int, caps: Caps) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (B, T)})
    outs = [b.add(op, [x], {"axes": (1,), "keepdims": True}) for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")]
    outs += [b.add("reduce_prod", [x], {"axes": (0,), "keepdims": False}), b.add("argmax", [x], {"axis": 1, "keepdims": False})]
    outs += [b.add("softmax", [x], {"axis": 1}), b.add("log_softmax", [x], {"axis": 0})]
    outs += [b.add("layer_norm", [x, None, None], {"axes": 1}), b.add("cumsum", [x], {"axis": 1, "exclusive": True})]
    outs += [i for a in (0, 1) for i in b.add_all("sort", [x], {"axis": a, "descending": False})]
    graph = b.build([(f"o{k}", o) for k, o in enumerate(outs)])
    run(graph, {"x": numbers(rows, length)}, caps, {"B": 5, "T": 20_000 if length > 70 else 80})


@pytest.mark.gpu
def test_a_symbolic_row_that_turns_out_empty_gives_the_identity() -> None:
    b = GraphBuilder()
    (i,) = sources(b, {"i": (2, T)}, dtypes.i8)
    (f,) = sources(b, {"f": (2, T)})
    (flags,) = sources(b, {"b": (2, T)}, dtypes.bool_)
    axes = {"axes": (1,), "keepdims": False}
    outs = [b.add(op, [i], axes) for op in ("reduce_max", "reduce_min", "reduce_sum", "reduce_prod")]
    outs += [b.add(op, [f], axes) for op in ("reduce_max", "reduce_mean")]
    outs += [b.add(op, [flags], axes) for op in ("reduce_any", "reduce_all")]
    graph = b.build([(f"o{k}", o) for k, o in enumerate(outs)])
    empty = {"i": np.zeros((2, 0), np.int8), "f": np.zeros((2, 0), np.float32), "b": np.zeros((2, 0), np.bool_)}
    for maximum in (8, 100_000):
        run(graph, empty, GPU, {"T": maximum})


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [GPU, BASELINE], ids=lambda c: c.name)
@pytest.mark.parametrize(("take", "axis"), [(1, 1), (64, 1), (65, 0), (512, 1)])
def test_many_long_rows_select_what_they_take(take: int, axis: int, caps: Caps) -> None:
    shape = (64, 8200) if axis else (8200, 64)
    b = GraphBuilder()
    (x,) = sources(b, {"x": shape})
    values, places = b.add_all("top_k", [x], {"axis": axis, "k": take})
    rows = np.random.default_rng(0).standard_normal((64, 8200)).astype(np.float32)
    # Rows of one number, of few, of both zeros, with NaN and infinities; the last one ends with the greatest.
    rows[1], rows[2], rows[3] = 5, np.round(rows[2]), np.where(rows[3] > 0, 0.0, -0.0)
    rows[4, ::9], rows[5, ::3], rows[6, ::3], rows[63, -1] = np.nan, np.inf, -np.inf, 99
    graph = b.build([("values", values), ("places", places)])
    assert run(graph, {"x": rows if axis else np.ascontiguousarray(rows.T)}, caps)[-1].startswith("select")


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [BASELINE, SOFTWARE], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("op", "attrs"), [("sort", {"descending": False}), ("sort", {"descending": True}), ("top_k", {"k": 700})]
)
def test_one_long_row_is_sorted_by_digits(op: str, attrs: dict[str, Any], caps: Caps) -> None:
    b = GraphBuilder()
    (x,) = sources(b, {"x": (1, 70_001)})
    values, places = b.add_all(op, [x], {"axis": 1, **attrs})
    # Many ties, both zeros, infinities and NaN.
    row = np.random.default_rng(0).integers(-9000, 9000, (1, 70_001)).astype(np.float32) / 7
    row[0, ::97], row[0, 1::997], row[0, 5], row[0, 70_000], row[0, 9] = -0.0, np.nan, np.inf, -np.inf, np.inf
    graph = b.build([("values", values), ("places", places)])
    assert run(graph, {"x": row}, caps)[-1].startswith("digits")


# --- scatters ---


def scatter_graph(op: str, count: Dim, shape: tuple[int, ...], axis: int) -> Graph:
    b = GraphBuilder()
    ids = b.source("input", "ids", TensorType(dtypes.i32, (count,)))
    x, u = sources(b, {"x": shape, "u": (*shape[:axis], count, *shape[axis + 1 :])})
    return b.build([("out", b.add(op, [x, ids, u], {"axis": axis}))])


def scatter_numbers(dtype: DType, count: int, shape: tuple[int, ...], axis: int) -> tuple[Graph, dict[str, Array]]:
    """A scatter_add of a dtype with an epilogue, into rows of which some are named often, some never, some do not exist."""
    b = GraphBuilder()
    updates = (*shape[:axis], count, *shape[axis + 1 :])
    x, u = sources(b, {"x": shape, "u": updates}, dtype)
    ids = b.source("input", "ids", TensorType(dtypes.i32, (count,)))
    out = b.add("neg", [b.add("scatter_add", [x, ids, u], {"axis": axis})])
    rng = np.random.default_rng(0)
    rows = rng.integers(-shape[axis] - 9, shape[axis] + 9, count)
    rows[: count // 4] = 3
    low, high = (-100, 100) if dtype != dtypes.i32 else (-(1 << 31), 1 << 31)
    drawn = [rng.integers(low, high, s).astype(dtype.np) for s in (shape, updates)]
    return b.build([("out", out)]), {"x": drawn[0], "u": drawn[1], "ids": rows.astype(np.int32)}


@pytest.mark.gpu
@pytest.mark.parametrize("caps", [GPU, BASELINE, SOFTWARE], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("dtype", "count", "shape", "axis", "steps"),
    [
        (dtypes.i32, 40_000, (1000,), 0, 2),  # wraps
        (dtypes.i32, 3000, (3, 1501, 2), 1, 2),  # more elements than one workgroup counts
        (dtypes.i8, 5000, (77,), 0, 3),  # and a kernel that packs
        (dtypes.i32, 8300, (70_000,), 0, 3 + 3 * 5),  # more than all workgroups count: sorted, 17 bits
        (dtypes.f32, 8300, (4100, 3), 0, 3 + 3 * 4),
        (dtypes.f32, 8300, (2, 4095), 1, 3 + 3 * 3),  # those that do not exist have the greatest number of 12 bits
    ],
)
def test_very_many_updates_are_counted_or_sorted(
    dtype: DType, count: int, shape: tuple[int, ...], axis: int, steps: int, caps: Caps
) -> None:
    graph, inputs = scatter_numbers(dtype, count, shape, axis)
    assert len(run(graph, inputs, caps)) == steps


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 5, 3000])
@pytest.mark.parametrize("op", ["scatter_add", "scatter_set"])
@pytest.mark.parametrize("caps", [GPU, SOFTWARE], ids=lambda c: c.name)
def test_scatters_with_many_updates_repeat_bit_for_bit(op: str, count: int, caps: Caps) -> None:
    shape, axis = (2, 9, 170), 1
    graph = scatter_graph(op, T, shape, axis)
    ids = np.random.default_rng(0).integers(-12, 12, count).astype(np.int32)
    inputs = {"ids": ids, "x": numbers(*shape), "u": numbers(2, count, 170, seed=1)}
    assert "thread" not in run(graph, inputs, caps, {"T": 4000})[-1]
    plan = build_plan(graph, caps, max={"T": 4000})
    first, second = (run_plan(device("webgpu"), plan, Case(graph, inputs, {}))[0][0] for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "maximum"), [(1, 7), (7, 7), (1, 64), (50, 64)])
def test_scatter_set_in_place_writes_only_the_named_rows(count: int, maximum: int) -> None:
    b = GraphBuilder()
    state = b.source("state", "s", TensorType(dtypes.f32, (2, 40, 300)))
    ids = b.source("input", "ids", TensorType(dtypes.i32, (T,)))
    (u,) = sources(b, {"u": (2, T, 300)})
    node = b.add("scatter_set", [state, ids, u], {"axis": 1})
    graph = b.build([("seen", ids)], updates=[(state, node)])
    plan = build_plan(graph, GPU, max={"T": maximum})
    assert not plan.copies and plan.steps[0].variant.startswith("thread" if maximum == 7 else "group")
    named = np.random.default_rng(count).integers(-50, 50, count).astype(np.int32)
    inputs = {"ids": named, "u": numbers(2, count, 300)}
    before = numbers(2, 40, 300, seed=3)
    session = device("webgpu").open(plan)
    try:
        session.write(state, before)
        session.run(infer_env(graph, {k: v.shape for k, v in inputs.items()}), inputs, [ids])
        after = session.read(state)
    finally:
        session.close()
    assert np.array_equal(after, evaluate_graph(graph, inputs, state={"s": before}).state["s"])


# dtype, shape, axis, whether the rows can be overwritten where they are
PACKED_ROWS = [
    (dtypes.f16, (40, 6, 9), 0, True),
    (dtypes.bf16, (40, 300), 0, True),
    (dtypes.f16, (3, 40, 10), 1, True),
    (dtypes.i8, (40, 8), 0, True),
    (dtypes.bool_, (2, 40, 12), 1, True),
    (dtypes.f16, (40, 7), 0, False),
    (dtypes.bf16, (6, 40), 1, False),
    (dtypes.u8, (40, 6), 0, False),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "shape", "axis", "in_place"), PACKED_ROWS, ids=str)
@pytest.mark.parametrize(("count", "maximum"), [(3, 7), (50, 64)])
@pytest.mark.parametrize("target", ["host", "webgpu"])
def test_packed_rows_are_overwritten_by_whole_words(
    target: str, count: int, maximum: int, dtype: dtypes.DType, shape: tuple[int, ...], axis: int, in_place: bool
) -> None:
    b = GraphBuilder()
    state = b.source("state", "s", TensorType(dtype, shape))
    ids = b.source("input", "ids", TensorType(dtypes.i32, (T,)))
    # The updates come as a transposed view.
    u = b.source("input", "u", TensorType(dtype, (*shape[axis + 1 :], *shape[:axis], T)))
    after = len(shape) - axis - 1
    moved = b.add("transpose", [u], {"perm": (*range(after, after + axis + 1), *range(after))})
    node = b.add("scatter_set", [state, ids, moved], {"axis": axis})
    graph = b.build([("seen", ids)], updates=[(state, node)])
    plan = build_plan(graph, device(target).caps, max={"T": maximum})
    assert bool(plan.copies) == (target == "webgpu" and not in_place)
    g = np.random.default_rng(count)
    inputs = {"ids": g.integers(-50, 50, count).astype(np.int32)}
    inputs["u"] = (g.standard_normal((*shape[axis + 1 :], *shape[:axis], count)) * 9).astype(dtype.np)
    before = (g.standard_normal(shape) * 9).astype(dtype.np)
    session = device(target).open(plan)
    try:
        session.write(state, before)
        session.run(infer_env(graph, {k: v.shape for k, v in inputs.items()}), inputs, [ids])
        result = session.read(state)
    finally:
        session.close()
    want = evaluate_graph(graph, inputs, state={"s": before}).state["s"]
    assert np.array_equal(result, np.asarray(want).astype(dtype.np))


# --- nearest points ---


@pytest.mark.gpu
@pytest.mark.parametrize("memory", [16, 32], ids=lambda m: f"{m} KiB")
@pytest.mark.parametrize(("n", "d", "k"), [(1, 3, 1), (300, 3, 15), (257, 37, 16), (130, 64, 47)])
def test_blocks_of_points_find_the_nearest_with_all_ties(n: int, d: int, k: int, memory: int) -> None:
    caps = GPU.with_(workgroup_memory=memory << 10)
    b = GraphBuilder()
    (x,) = sources(b, {"x": (n, d)})
    distances, indices = b.add_all("nearest", [x], {"k": k, "include_self": n == 1})
    points = np.random.default_rng(0).integers(-2, 3, (n, d)).astype(np.float32)
    if n > 9:
        points[5, 0], points[9, 1], points[7] = np.nan, np.inf, points[8]
    variants = run(b.build([("distances", distances), ("indices", indices)]), {"x": points}, caps)
    assert variants[0].startswith("blocks of ")
