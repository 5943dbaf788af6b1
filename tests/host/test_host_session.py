"""Sessions of the host backend: memory, state, symbols, sharing and errors, on plans made by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice
from host.plans import plan_of
from pumice.backends.base import own_residents
from pumice.backends.host import HostDevice, HostSession
from pumice.backends.host.native import levels
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.errors import ClosedError, DTypeError, PlanError, ShapeError, UnknownName
from pumice.ir.graph import ConstData, GraphBuilder
from pumice.ir.types import TensorType
from pumice.plan.plan import Binding, DeviceCount, Plan, Regime
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch

F32 = dtypes.f32


def f32(*shape: Any) -> TensorType:
    return TensorType(F32, shape)


def linear() -> tuple[Plan, int, int]:
    """relu(x @ w + 1) with x [T, 3]; gives the plan, the param and the output."""
    b = GraphBuilder()
    x = b.source("input", "x", f32(sym("T"), 3))
    w = b.source("param", "w", f32(3, 2))
    one = b.constant(np.float32(1), F32)
    product = b.add("matmul", [x, w])
    shifted = b.add("add", [product, one])
    out = b.add("relu", [shifted])
    graph = b.build([("out", out)], maxima={"T": 8})
    return plan_of(graph, [(product, shifted, out)]), w, out


W = np.arange(6, dtype="f4").reshape(3, 2)


def opened(plan: Plan) -> HostSession:
    return HostDevice().open(plan)


def test_one_plan_serves_every_length() -> None:
    plan, w, out = linear()
    session = opened(plan)
    session.write(w, W)
    for length in (3, 8, 1, 0, *range(1, 8), 3):
        x = np.full((length, 3), float(length), "f4")
        (got,) = session.run({"T": length}, {"x": x}, [out])
        np.testing.assert_allclose(got, np.maximum(x @ W + 1, 0))
    assert len(session._programs) <= 8
    counters = session.counters()
    assert counters["submits"] == counters["dispatches"] == 12
    assert counters["pipelines"] == 0 and counters["buffer_bytes"] > 0


def test_a_length_beyond_the_maximum_is_refused() -> None:
    plan, _w, out = linear()
    with pytest.raises(PlanError, match="maximum"):
        opened(plan).run({"T": 9}, {"x": np.zeros((9, 3), "f4")}, [out])


def test_results_are_fresh_and_inputs_untouched() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", f32(4))
    y = b.add("neg", [x])
    z = b.add("exp", [y])
    session = opened(plan_of(b.build([("x", x), ("y", y), ("z", z)]), [(y,), (z,)]))
    given = np.arange(4, dtype="f4")
    given.flags.writeable = False
    first = session.run({}, {"x": given}, [x, y, y, z])
    second = session.run({}, {"x": given + 1}, [x, y, y, z])
    assert len({a.ctypes.data for a in (*first, *second, given)}) == 9
    np.testing.assert_array_equal(first[1], -given)
    np.testing.assert_array_equal(first[1], first[2])
    np.testing.assert_allclose(second[3], np.exp(-given - 1), rtol=1e-6)
    # Values that are not asked for still reach the steps that read them.
    np.testing.assert_allclose(session.run({}, {"x": given}, [z])[0], np.exp(-given), rtol=1e-6)


def test_inputs_of_any_layout() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", f32(3, 5))
    y = b.add("neg", [x])
    session = opened(plan_of(b.build([("y", y)]), [(y,)]))
    base = np.arange(60, dtype="f4").reshape(6, 10)
    for given in (base[::2, ::2], base[:5:, :3].T, np.asfortranarray(base[:3, :5]), base[:3, :5][:, ::-1]):
        np.testing.assert_array_equal(session.run({}, {"x": given}, [y])[0], -given)


def test_views_of_inputs_and_results_that_need_no_step() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", f32(2, 3))
    flat = b.add("reshape", [x], {"shape": (6,)})
    y = b.add("neg", [flat])
    back = b.add("reshape", [y], {"shape": (3, 2)})
    z = b.add("square", [back])
    plan = plan_of(b.build([("y", y), ("back", back), ("z", z), ("flat", flat)]), [(y,), (z,)], {flat: x, back: y})
    given = np.arange(6, dtype="f4").reshape(2, 3)
    got = opened(plan).run({}, {"x": given}, [y, back, z, flat])
    np.testing.assert_array_equal(got[0], -given.reshape(6))
    np.testing.assert_array_equal(got[1], -given.reshape(3, 2))
    np.testing.assert_array_equal(got[2], given.reshape(3, 2) ** 2)
    np.testing.assert_array_equal(got[3], given.reshape(6))


def test_reshaping_a_transposed_value_follows_its_changes() -> None:
    b = GraphBuilder()
    x = b.source("input", "x", f32(3, 4))
    y = b.add("neg", [x])
    turned = b.add("transpose", [y], {"perm": (1, 0)})
    flat = b.add("reshape", [turned], {"shape": (2, 6)})
    z = b.add("square", [flat])
    session = opened(plan_of(b.build([("z", z)]), [(y,), (turned, flat, z)]))
    for k in (1, 2):
        given = np.arange(12, dtype="f4").reshape(3, 4) * k
        np.testing.assert_array_equal(session.run({}, {"x": given}, [z])[0], (given.T.reshape(2, 6)) ** 2)


# --- state ---


def test_states_start_from_zeros_or_their_initial_value() -> None:
    b = GraphBuilder()
    a = b.source("state", "a", f32(3))
    c = b.source("state", "c", f32(3), attrs={"init": ConstData.of(np.float32([1, 2, 3]))})
    y = b.add("add", [a, c])
    session = opened(plan_of(b.build([("y", y)], updates=[(a, y)]), [(y,)]))
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(session.run({}, {}, [y])[0], np.float32([1, 2, 3]) * turn)
    np.testing.assert_array_equal(session.read(a), [3, 6, 9])
    session.write(a, np.zeros(3, "f4"))
    np.testing.assert_array_equal(session.run({}, {}, [y])[0], [1, 2, 3])


def test_states_that_swap_see_the_values_from_before() -> None:
    b = GraphBuilder()
    a = b.source("state", "a", f32(2), attrs={"init": ConstData.of(np.float32([1, 1]))})
    c = b.source("state", "c", f32(2), attrs={"init": ConstData.of(np.float32([2, 2]))})
    y = b.add("add", [a, c])
    session = opened(plan_of(b.build([("y", y)], updates=[(a, c), (c, a)]), [(y,)]))
    session.run({}, {}, [y])
    np.testing.assert_array_equal(session.read(a), [2, 2])
    np.testing.assert_array_equal(session.read(c), [1, 1])


@pytest.mark.parametrize("op", ["scatter_set", "scatter_add"])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_scatters_update_a_state_in_place(op: str, dtype: dtypes.DType) -> None:
    b = GraphBuilder()
    cache = b.source("state", "cache", TensorType(dtype, (2, 6, 3)))
    at = b.source("input", "at", TensorType(dtypes.i32, (4,)))
    rows = b.source("input", "rows", TensorType(dtype, (2, 4, 3)))
    new = b.add(op, [cache, at, rows], {"axis": 1})
    session = opened(plan_of(b.build([("new", new)], updates=[(cache, new)]), [(new,)], {new: cache}))
    filled = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(dtype.np)
    session.write(cache, filled)
    update = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(dtype.np)
    (got,) = session.run({}, {"at": np.int32([1, 9, -1, 1]), "rows": update}, [new])
    expected = filled.astype("f4")
    wide = update.astype("f4")
    if op == "scatter_set":
        expected[:, 1], expected[:, 5] = wide[:, 3], wide[:, 2]
    else:
        expected[:, 1] += wide[:, 0] + wide[:, 3]
        expected[:, 5] += wide[:, 2]
    np.testing.assert_allclose(got.astype("f4"), expected.astype(dtype.np).astype("f4"), rtol=1e-6)
    np.testing.assert_array_equal(session.read(cache).view(np.uint8), got.view(np.uint8))


def test_an_update_in_place_copies_nothing_large() -> None:
    import tracemalloc

    b = GraphBuilder()
    cache = b.source("state", "cache", f32(1 << 20, 4))
    at = b.source("input", "at", TensorType(dtypes.i32, (1,)))
    rows = b.source("input", "rows", f32(1, 4))
    new = b.add("scatter_set", [cache, at, rows], {"axis": 0})
    last = b.add("slice", [new], {"starts": (7, 0), "stops": (8, 4), "steps": (1, 1)})
    session = opened(plan_of(b.build([("last", last)], updates=[(cache, new)]), [(new,), (last,)], {new: cache}))
    inputs = {"at": np.int32([7]), "rows": np.ones((1, 4), "f4")}
    session.run({}, inputs, [last])
    tracemalloc.start()
    (got,) = session.run({}, inputs, [last])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(got, np.ones((1, 4)))
    assert peak < 100_000


@pytest.mark.parametrize("size", [10, 200_000])
def test_elementwise_updates_in_place(size: int) -> None:
    b = GraphBuilder()
    s = b.source("state", "s", f32(size))
    x = b.source("input", "x", f32(size))
    kept = b.add("mul", [s, s])
    new = b.add("add", [b.add("silu", [kept]), b.add("mul", [x, s])])
    graph = b.build([("new", new)], updates=[(s, new)])
    session = opened(plan_of(graph, [(kept, kept + 1, kept + 2, new)], {new: s}))
    g = np.random.default_rng(0)
    state, given = g.standard_normal(size).astype("f4"), g.standard_normal(size).astype("f4")
    session.write(s, state)
    (got,) = session.run({}, {"x": given}, [new])
    square = state.astype("f8") ** 2
    np.testing.assert_allclose(got, square / (1 + np.exp(-square)) + given * state.astype("f8"), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(session.read(s), got)


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("op", ["silu", "gelu", "where"])
def test_kernels_that_read_twice_never_write_over_their_operand(op: str, size: int) -> None:
    """As an update in place, and as the last op of a step whose routine left its result in the step's target."""
    b = GraphBuilder()
    s = b.source("state", "s", f32(size))
    positive = b.add("gt", [s, b.constant(np.float32(0), F32)])
    new = b.add("where", [positive, b.add("neg", [s]), s]) if op == "where" else b.add(op, [s])
    total = b.add("cumsum", [new], {"axis": 0, "exclusive": False, "reverse": False})
    last = b.add("silu", [total])
    steps = [tuple(range(positive, new + 1)) if op == "where" else (new,), (total, last)]
    graph = b.build([("new", new), ("last", last)], updates=[(s, new)])
    session = opened(plan_of(graph, steps, {new: s}))
    state = np.random.default_rng(0).standard_normal(size).astype("f4")
    session.write(s, state)
    want = bound_graph(graph, {}, state={"s": state}).outputs
    for got, expected in zip(session.run({}, {}, [new, last]), want, strict=True):
        assert not mismatch(got, expected, F32)


@pytest.mark.parametrize("size", [6, 300])
def test_an_update_that_reads_other_elements_is_staged(size: int) -> None:
    """The state turned round plus its transpose: writing while reading would mix old and new."""
    b = GraphBuilder()
    s = b.source("state", "s", f32(size, size))
    turned = b.add("flip", [s], {"axes": (0, 1)})
    crossed = b.add("transpose", [s], {"perm": (1, 0)})
    new = b.add("add", [turned, crossed])
    session = opened(plan_of(b.build([("new", new)], updates=[(s, new)]), [(turned, crossed, new)], {new: s}))
    state = np.random.default_rng(0).standard_normal((size, size)).astype("f4")
    session.write(s, state)
    np.testing.assert_array_equal(session.run({}, {}, [new])[0], state[::-1, ::-1] + state.T)


# --- params and buffers ---


def test_params_are_shared_by_reference() -> None:
    plan, w, out = linear()
    residents = own_residents(plan, HostDevice().allocate)
    first, second = HostDevice().open(plan, residents), opened(plan)
    x = np.ones((2, 3), "f4")
    second.run({"T": 2}, {"x": x}, [out])
    second.rebind(residents)
    first.write(w, W)
    np.testing.assert_array_equal(second.run({"T": 2}, {"x": x}, [out])[0], x @ W + 1)
    first.close()
    np.testing.assert_array_equal(second.read(w), W)


def test_writes_are_checked() -> None:
    plan, w, out = linear()
    session = opened(plan)
    with pytest.raises(ShapeError, match="'w'"):
        session.write(w, np.zeros((2, 3), "f4"))
    with pytest.raises(DTypeError, match="'w'"):
        session.write(w, np.zeros((3, 2), "f8"))
    with pytest.raises(UnknownName):
        session.write(out, np.zeros((3, 2), "f4"))
    with pytest.raises(UnknownName):
        session.read(99)
    session.write(w, np.asfortranarray(W))
    np.testing.assert_array_equal(session.read(w), W)


def test_quantised_params_are_block_bytes() -> None:
    b = GraphBuilder()
    w = b.source("param", "w", TensorType(dtypes.q8_0, (4, 64)))
    y = b.add("dequantize", [w])
    session = opened(plan_of(b.build([("y", y), ("w", w)]), [(y,)]))
    packed = np.random.default_rng(0).integers(0, 50, (4, 68)).astype(np.uint8)
    session.write(w, packed)
    np.testing.assert_array_equal(session.read(w), packed)
    got = session.run({}, {}, [y, w])
    assert got[0].shape == (4, 64)
    np.testing.assert_array_equal(got[1], packed)


def test_buffers_can_be_poisoned_and_read() -> None:
    plan, w, out = linear()
    session = opened(plan)
    session.write(w, W)
    arena = next(k for k, b in enumerate(plan.buffers) if b.kind == "arena")
    session.fill_buffer(arena, 0xFFFFFFFF)
    assert set(session.dump_buffer(arena).tolist()) == {255}
    x = np.ones((2, 3), "f4")
    np.testing.assert_array_equal(session.run({"T": 2}, {"x": x}, [out])[0], x @ W + 1)


def test_a_closed_session_says_so() -> None:
    plan, w, out = linear()
    session = opened(plan)
    session.close()
    session.close()
    for use in (lambda: session.run({"T": 1}, {}, [out]), lambda: session.read(w), lambda: session.write(w, W)):
        with pytest.raises(ClosedError):
            use()


def test_plans_for_other_targets_are_refused() -> None:
    plan, *_ = linear()
    with pytest.raises(PlanError, match="lavapipe"):
        HostDevice().open(replace(plan, caps=Caps.preset("lavapipe")))


def test_description() -> None:
    found = HostDevice().describe()
    assert found["cores"] >= 1 and found["memory_bytes"] > 0 and found["cpu"] and found["blas"]
    assert found["level"] == (levels.current().name if found["numba"] else None)
    json.dumps(found)


def test_numba_is_not_imported_until_it_is_needed() -> None:
    code = (
        "import sys, numpy as np\n"
        "from pumice.backends.host import HostDevice\n"
        "HostDevice().describe()\n"
        "print('numba' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(pumice.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "False\n" and done.stderr == ""


def counted() -> Plan:
    """y = exp(-x), whose second step runs if word 1 of the input n is not 0, clamped to T."""
    b = GraphBuilder()
    n = b.source("input", "n", TensorType(dtypes.i32, (2,)))
    x = b.source("input", "x", f32(sym("T")))
    negative = b.add("neg", [x])
    y = b.add("exp", [negative])
    plan = plan_of(b.build([("y", y)], maxima={"T": 8}), [(negative,), (y,)])
    first, second = plan.steps
    made = (
        replace(first, bindings=(Binding(x, 0, "read"), Binding(negative, 0, "write"))),
        replace(
            second,
            bindings=(Binding(n, 0, "read"), Binding(negative, 0, "read"), Binding(y, 0, "write")),
            groups=DeviceCount(n, 1, sym("T")),
        ),
    )
    return replace(plan, regimes=(Regime(made, plan.values, plan.copies),))


def test_a_count_in_memory_decides_when_its_step_is_due() -> None:
    plan = counted()
    assert Plan.load_bytes(plan.to_bytes()).steps == plan.steps
    session = opened(plan)
    x = np.arange(4, dtype="f4")

    def run(word: int, x: Any) -> Any:
        return session.run(
            {"T": len(x)}, {"n": np.array([7, word], np.uint32).view(np.int32), "x": x}, [plan.graph.outputs[0][1]]
        )

    np.testing.assert_allclose(run(1, x)[0], np.exp(-x), rtol=1e-6)
    # Nothing writes the result: it is still that of the run before.
    np.testing.assert_allclose(run(0, x + 5)[0], np.exp(-x), rtol=1e-6)
    np.testing.assert_allclose(run(0xFFFFFFFF, x + 5)[0], np.exp(-x - 5), rtol=1e-6)
    assert run(3, x[:0])[0].shape == (0,)
    results, timing = session.profile({"T": 4}, {"n": np.int32([7, 2]), "x": x}, [plan.graph.outputs[0][1]])
    np.testing.assert_allclose(results[0], np.exp(-x), rtol=1e-6)
    assert [t.step for t in timing.steps] == [0, 1]
