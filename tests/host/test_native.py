"""Compiled kernels of the steps between matmuls: the same results as the routines they stand for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from host.plans import plan_of
from host.test_routines import problem, problem_of
from pumice.backends.host import HostDevice, program
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Task, packed_matmul
from pumice.backends.host.threads.pool import ThreadPool
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.threads import thread_count
from pumice.ir.graph import GraphBuilder
from pumice.ir.registry import OpSpec, Packed, Sample, get_op
from pumice.ir.types import TensorType
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were used; programs use them whatever they hold."""
    names: list[str] = []
    link = jit.Kernels.link

    def watched(self: jit.Kernels, tasks: Sequence[Task]) -> Any:
        names.extend(t.kernel for t in tasks)
        return link(self, tasks)

    monkeypatch.setattr(jit.Kernels, "link", watched)
    monkeypatch.setattr(program, "_is_heavy", lambda code: True)
    return names


NAMES = ("add", "sub", "mul", "silu", "gelu_tanh", "rms_norm", "layer_norm", "rope", "scatter_set", "attention", "matmul")


@pytest.mark.parametrize("spec", [get_op(n) for n in NAMES], ids=lambda s: s.name)
def test_ops_with_kernels_on_their_samples(spec: OpSpec, used: list[str]) -> None:
    found = []
    for sample in spec.samples():
        wrong = problem_of(spec, sample)
        if wrong:
            found.append(f"{sample.label}: {wrong}")
    assert not found, "\n".join(found)
    assert used or spec.name == "scatter_set"  # only where it updates a state


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_exponentials_over_the_whole_range(name: str, used: list[str]) -> None:
    special = np.float32([0, -0.0, np.inf, np.nan, 1e-40, -1e-40, 3e38, 100, 88.5, -20])
    x = np.concatenate([np.linspace(-80, 80, 5001, dtype=np.float32), special])
    if name == "gelu_tanh":
        x = x[np.abs(x) < 5].astype(np.float32)
    assert not problem_of(get_op(name), Sample("", (x,), {}))
    assert used == [f"map_{name}"]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 4096, 5000])
@pytest.mark.parametrize("name", ["add", "mul"])
def test_maps_of_any_length(name: str, size: int, used: list[str]) -> None:
    g = np.random.default_rng(0)
    a, b = (g.standard_normal(size).astype("f4") for _ in "ab")
    assert not problem_of(get_op(name), Sample("", (a, b), {}))
    assert used == [f"map_{name}"]


@pytest.mark.parametrize("columns", [1, 31, 64, 577])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_of_any_width(name: str, columns: int, used: list[str]) -> None:
    g = np.random.default_rng(1)
    x, w = g.standard_normal((5, columns)).astype("f4") + 3, g.standard_normal(columns).astype("f4")
    operands = (x, w) if name == "rms_norm" else (x, w, w[::-1].copy())
    assert not problem_of(get_op(name), Sample("", operands, {"axes": 1, "eps": 1e-5}))
    assert used == ["norm_f32"]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    "attrs",
    [{}, {"causal": True}, {"causal": True, "window": 700}, {"softcap": 5.0}, {"scale": 0.3, "causal": True, "window": 1}],
    ids=str,
)
@pytest.mark.parametrize("queries", [1, 3])
def test_attention_of_few_queries(layout: str, attrs: dict[str, Any], queries: int, used: list[str]) -> None:
    """Over a cache of which a part is filled, in more than one block of keys; one sequence has nothing to attend to."""
    g = np.random.default_rng(2)
    arrays = [g.standard_normal(s).astype("f4") for s in [(3, 6, queries, 64), (4, 2, 2500, 64), (4, 2, 2500, 32)]]
    if layout == "bshd":
        arrays = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays]
    ints = np.int32([[0, 2300, 1100], [queries, 2300 + queries, 0], [3, -4, 1]])
    b = GraphBuilder()
    q = b.source("input", "q", TensorType(dtypes.f32, arrays[0].shape))
    k, v = (b.source("param", n, TensorType(dtypes.f32, a.shape)) for n, a in zip("kv", arrays[1:]))
    rest = [b.source("input", f"i{n}", TensorType(dtypes.i32, (3,))) for n in range(3)]
    complete = get_op("attention").complete_attrs({"layout": layout, **attrs})
    out = b.add("attention", [q, k, v, None, None, *rest, None, None], complete)
    graph = b.build([("out", out)])
    inputs = {"q": arrays[0], **{f"i{n}": row for n, row in enumerate(ints)}}
    assert not problem(graph, plan_of(graph, [(out,)]), inputs, {"k": arrays[1], "v": arrays[2]})
    assert used == ["attend_f32"]


def paged(kind: str, page: int, batch: int, queries: int, **attrs: Any) -> str:
    """What is wrong with attention over a pool of which each entry has some pages, the last ones of some unused."""
    g, pages, dtype = np.random.default_rng(5), 2500 // page, dtypes.dtype(kind)
    shapes = [(batch, queries, 6, 64), (pages + 3, page, 2, 64), (pages + 3, page, 2, 96)]
    q, *cache = (g.standard_normal(s).astype("f4") for s in shapes)
    scales: list[Array | None] = [None, None]
    if kind == "i8":
        scales = [(np.abs(a).max(axis=-1) / 127).astype("f4") for a in cache]
        cache = [np.rint(a / s[..., None]) for a, s in zip(cache, scales) if s is not None]
    k, v = (a.astype(dtype.np) for a in cache)
    table = np.stack([g.permutation(pages + 3)[:pages] for _ in range(batch)]).astype(np.int32)
    table[-1, pages // 2 :] = 0
    offset = np.int32([2300, 40, 0][:batch])
    inputs = {"q": q, "offset": offset, "kv_len": offset + np.int32(queries), "kv_index": table}
    params = {"k": k, "v": v, **{n: a for n, a in zip(("k_scale", "v_scale"), scales) if a is not None}}
    b, spec = GraphBuilder(), get_op("attention")
    types = {n: TensorType(dtypes.dtype(a.dtype), a.shape) for n, a in {**inputs, **params}.items()}
    ids = {n: b.source("param" if n in params else "input", n, t) for n, t in types.items()}
    out = b.add(
        "attention", [ids.get(n) for n in spec.operand_names], spec.complete_attrs({"layout": "bshd", "causal": True, **attrs})
    )
    graph = b.build([("out", out)])
    return problem(graph, plan_of(graph, [(out,)]), inputs, params)


@pytest.mark.parametrize("page", [32, 25, 7])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i8"])
def test_attention_of_few_queries_through_pages(kind: str, page: int, used: list[str]) -> None:
    assert not paged(kind, page, 3, 2)
    assert not paged(kind, page, 1, 1, window=900, softcap=5.0)  # one head at a time, as it has few parts
    assert used == [f"attend_{kind}"] * 2


@pytest.mark.parametrize("page", [32, 7])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i8"])
def test_attention_of_many_queries_through_pages(kind: str, page: int, used: list[str]) -> None:
    assert not paged(kind, page, 3, 25)
    assert not paged(kind, page, 1, 60, window=333)
    assert set(used) == {f"attend_many_{kind}"}


def test_pools_are_written_in_place(used: list[str]) -> None:
    """New keys go where a page table says, and attention sees them; pages have no place of their own in between."""
    b, g = GraphBuilder(), np.random.default_rng(6)
    pool = b.source("state", "pool", TensorType(dtypes.f16, (5 * 32, 64)))
    at, start = (b.source("input", n, TensorType(dtypes.i32, (2,))) for n in ("at", "start"))
    table = b.source("input", "table", TensorType(dtypes.i32, (2, 2)))
    q = b.source("input", "q", TensorType(dtypes.f32, (2, 1, 2, 32)))
    new = b.source("input", "new", TensorType(dtypes.f16, (2, 64)))
    written = b.add("scatter_set", [pool, at, new], {"axis": 0})
    pages = b.add("reshape", [written], {"shape": (5, 32, 2, 32)})
    complete = get_op("attention").complete_attrs({"layout": "bshd", "causal": True})
    out = b.add("attention", [q, pages, pages, None, None, start, None, table, None, None], complete)
    graph = b.build([("out", out)], updates=[(pool, written)])
    session = HostDevice().open(plan_of(graph, [(written,), (pages, out)], {written: pool}))
    state = g.standard_normal((5 * 32, 64)).astype("f2")
    session.write(pool, state)
    for step in range(3):
        inputs = {
            "at": np.int32([[158, 159, 32][step], 64 + step]),
            "start": np.int32([30 + step, step]),
            "table": np.int32([[4, 1], [2, 0]]),
            "q": g.standard_normal((2, 1, 2, 32)).astype("f4"),
            "new": g.standard_normal((2, 64)).astype("f2"),
        }
        (got,) = session.run({}, inputs, [out])
        assert not mismatch(got, bound_graph(graph, inputs, {}, {"pool": state}).outputs[0], dtypes.f32)
        state[inputs["at"]] = inputs["new"]
        np.testing.assert_array_equal(session.read(pool), state)
    assert used == ["scatter_rows", "attend_f16"]


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.i32], ids=str)
def test_rows_replaced_in_place(dtype: dtypes.DType, used: list[str]) -> None:
    b = GraphBuilder()
    cache = b.source("state", "cache", TensorType(dtype, (6, 3)))
    at = b.source("input", "at", TensorType(dtypes.i32, (5,)))
    rows = b.source("input", "rows", TensorType(dtype, (5, 3)))
    new = b.add("scatter_set", [cache, at, rows], {"axis": 0})
    session = HostDevice().open(plan_of(b.build([("new", new)], updates=[(cache, new)]), [(new,)], {new: cache}))
    update = np.arange(15).reshape(5, 3).astype(dtype.np)
    (got,) = session.run({}, {"at": np.int32([1, 6, -1, 1, -7]), "rows": update}, [new])
    expected = np.zeros((6, 3), dtype.np)
    expected[1], expected[5] = update[3], update[2]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(session.read(cache), expected)
    assert used == ["scatter_rows"]


def layer(batch: int) -> tuple[Any, list[tuple[int, ...]], dict[int, int], dict[str, Array], list[int]]:
    """A block of a decoder: norm, packed projections, rotary embedding, cache, attention, gated feed-forward."""
    b = GraphBuilder()
    f32, i32 = dtypes.f32, dtypes.i32
    g = np.random.default_rng(3)
    params: dict[str, Array] = {}

    def weight(name: str, n: int, k: int) -> int:
        params[name] = quantize_rows(dtypes.q4_0, g.standard_normal((n, k)).astype("f4") / 8)
        return b.source("param", name, TensorType(dtypes.q4_0, (n, k)))

    x = b.source("input", "x", TensorType(f32, (1, batch, 64)))
    at = b.source("input", "at", TensorType(i32, (batch,)))
    start = b.source("input", "start", TensorType(i32, (1,)))
    cos, sin = (b.source("input", n, TensorType(f32, (1, batch, 1, 16))) for n in ("cos", "sin"))
    scale = b.source("param", "scale", TensorType(f32, (64,)))
    params["scale"] = g.standard_normal(64).astype("f4")
    wq, wk, wo, up, down = (
        weight(n, *s) for n, s in [("q", (64, 64)), ("k", (32, 64)), ("o", (64, 64)), ("up", (96, 64)), ("down", (64, 96))]
    )
    cache = b.source("state", "cache", TensorType(f32, (20, 32)))
    steps: list[tuple[int, ...]] = []

    def step(*nodes: int) -> int:
        steps.append(nodes)
        return nodes[-1]

    h = step(b.add("rms_norm", [x, scale], {"axes": 1, "eps": 1e-5}))
    q, k = step(b.add("qmatmul", [h, wq])), step(b.add("qmatmul", [h, wk]))
    split_q, split_k = (b.add("reshape", [v], {"shape": (1, batch, n, 32)}) for v, n in ((q, 2), (k, 1)))
    attrs = {"rotary_dim": 32, "interleaved": False}
    q, k = step(split_q, b.add("rope", [split_q, cos, sin], attrs)), step(split_k, b.add("rope", [split_k, cos, sin], attrs))
    flat = b.add("reshape", [k], {"shape": (batch, 32)})
    new = step(flat, b.add("scatter_set", [cache, at, flat], {"axis": 0}))
    keys = b.add("reshape", [new], {"shape": (1, 20, 1, 32)})
    complete = get_op("attention").complete_attrs({"layout": "bshd", "causal": True})
    seen = step(keys, b.add("attention", [q, keys, keys, None, None, start, None, None, None, None], complete))
    joined = b.add("reshape", [seen], {"shape": (1, batch, 64)})
    o = b.add("qmatmul", [joined, wo])
    h = step(joined, o, b.add("add", [x, o]))
    gate = step(b.add("qmatmul", [h, up]))
    act, other = b.add("silu", [gate]), b.add("qmatmul", [h, up])
    inner = step(act, other, b.add("mul", [act, other]))
    last = b.add("qmatmul", [inner, down])
    out = step(last, b.add("sub", [h, last]))
    graph = b.build([("out", out)], updates=[(cache, new)])
    inputs = {
        "x": g.standard_normal((1, batch, 64)).astype("f4"),
        "at": np.arange(5, 5 + batch, dtype=np.int32),
        "start": np.int32([5]),
        **{n: g.standard_normal((1, batch, 1, 16)).astype("f4") for n in ("cos", "sin")},
    }
    return graph, steps, {new: cache}, {**inputs, **params}, [out]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_block_of_a_decoder_is_one_call(batch: int) -> None:
    graph, steps, aliases, arrays, outputs = layer(batch)
    session = HostDevice().open(plan_of(graph, steps, aliases))
    for n in graph.sources("param"):
        session.write(n.id, arrays[n.name])
    inputs = {n.name: arrays[n.name] for n in graph.sources("input")}
    params = {n.name: arrays[n.name] for n in graph.sources("param")}
    state = {"cache": np.random.default_rng(4).standard_normal((20, 32)).astype("f4")}
    for _ in range(2):
        session.write(graph.sources("state")[0].id, state["cache"])
        (got,) = session.run({}, inputs, outputs)
        assert not mismatch(got, bound_graph(graph, inputs, params, state).outputs[0], dtypes.f32)
        inputs["x"] = inputs["x"] * 2
    (made,) = session._programs.values()
    assert len(made._calls) == 1  # nothing but the linked tasks


def test_large_inputs_and_outputs_stay_where_the_caller_has_them() -> None:
    """Arrays whose place changes from run to run are not for compiled calls."""
    g = np.random.default_rng(7)
    w = Packed(dtypes.q4_0, (96, 64), quantize_rows(dtypes.q4_0, g.standard_normal((96, 64))))
    x = g.standard_normal((500, 64)).astype("f4")
    assert not problem_of(get_op("qmatmul"), Sample("", (x, w), {}))


def test_workers_are_woken_again_in_the_middle_of_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that falls asleep during a long prompt must not miss the rest of it."""
    kernels = jit.kernels()
    assert kernels is not None
    monkeypatch.setattr(jit, "_MOST_WORK", 1 << 22)
    woken: list[bool] = []
    rouse = ThreadPool.rouse

    def watched(pool: ThreadPool, wanted: bool) -> None:
        woken.append(wanted)
        rouse(pool, wanted)

    monkeypatch.setattr(ThreadPool, "rouse", watched)
    g = np.random.default_rng(9)
    rows = quantize_rows(dtypes.q4_0, g.standard_normal((512, 256)))
    w = Tiles.of(dtypes.q4_0, (512, 256), rows)
    x = g.standard_normal((64, 256)).astype("f4")
    outs = [np.zeros((64, 512), np.float32) for _ in range(5)]
    kernels.link([t for out in outs for t in packed_matmul(x, w, out, kernels.is_wide, False)])()
    expected = x.astype("f8") @ dequantize_rows(dtypes.q4_0, rows, 256).astype("f8").T
    for out in outs:
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    assert len(woken) == (5 if thread_count() > 1 else 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_workers_of_its_own() -> None:
    g = np.random.default_rng(8)
    w = Packed(dtypes.q4_0, (4000, 256), quantize_rows(dtypes.q4_0, g.standard_normal((4000, 256))))
    sample = Sample("", (g.standard_normal((1, 256)).astype("f4"), w), {})
    assert not problem_of(get_op("qmatmul"), sample)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(1 if problem_of(get_op("qmatmul"), sample) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
