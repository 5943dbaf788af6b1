"""Packed copies of params: the same results as without, made anew whenever params are written, one for each param at most."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.host import program
from pumice.backends.host.native import dense, jit
from pumice.backends.host.prepacked import Form, Holder, held

KERNELS = jit.kernels()
pytestmark = pytest.mark.skipif(
    KERNELS is None or not KERNELS.is_wide, reason="the kernels need numba and a processor with AVX-512; others use BLAS"
)
# Rows, columns, depth: by columns and by rows, several blocks of k, and what is left of slabs and tiles.
SIZES = [
    (14, 32, 256),
    (128, 384, 384),
    (13, 33, 300),
    (5, 531, 517),
    (64, 64, 513),
    (130, 40, 16),
    (600, 8, 600),
    (128, 96, 1537),
]
Array = np.ndarray[Any, Any]


def floats(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def multiplied(x: Array, y: Array, holder: Holder | None) -> Array:
    """The matmul by the tasks, with the holder's copy of y or without one."""
    assert KERNELS is not None
    used: list[Form] = []

    def copies(operand: Array) -> Form | None:
        assert holder is not None
        form = holder.form(operand, 1 << 30)
        assert form is not None
        used.append(form)
        return form

    out = np.full((*x.shape[:-1], y.shape[1]), np.nan, np.float32)
    tasks = dense.matmul(x, y, out, None if holder is None else copies)
    assert tasks is not None and bool(used) == (holder is not None)
    for form in used:
        form.refresh()
    KERNELS.run(tasks)
    return out


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_matmuls_with_a_copy_are_the_same(size: tuple[int, int, int], turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_LEAST", 1)
    rows, columns, depth = size
    y = floats((columns, depth)).T if turned else floats((depth, columns))
    holder = Holder()
    for shape, again in itertools.product(((rows, depth), (3, rows // 3 + 5, depth)), range(2)):
        x = floats(shape, again)
        np.testing.assert_array_equal(multiplied(x, y, holder), multiplied(x, y, None))
    assert holder.nbytes == held([holder]) == dense.packed_bytes(y) >= y.nbytes


def test_a_copy_follows_what_is_written() -> None:
    holder, x, y = Holder(), floats((64, 96)), floats((96, 80))
    first = multiplied(x, y, holder)
    y *= 2
    np.testing.assert_array_equal(multiplied(x, y, holder), first)  # nobody has said that it was written
    holder.spoil()
    np.testing.assert_array_equal(multiplied(x, y, holder), 2 * first)


def test_one_layout_has_a_copy_if_there_is_room() -> None:
    w = floats((64, 64))
    assert Holder().form(w, dense.packed_bytes(w) - 1) is None
    holder = Holder()
    form = holder.form(w, dense.packed_bytes(w))
    assert form is not None and holder.form(w, 0) is form
    assert holder.form(w.T, 1 << 30) is None and holder.form(w[:32], 1 << 30) is None
    assert holder.nbytes == w.nbytes


def test_a_copy_goes_with_its_holder() -> None:
    holder = Holder()
    form = holder.form(floats((64, 64)), 1 << 30)
    assert form is not None
    memory = weakref.ref(form.memory)
    gc.disable()
    try:
        del holder, form
        assert memory() is None
    finally:
        gc.enable()


@pytest.fixture
def kernels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matmuls are worth the kernels too."""
    monkeypatch.setattr(dense, "is_worth_loading", lambda multiplications: True)


def copied(exe: pm.Executable) -> int:
    """Bytes of copies that a session holds."""
    session: Any = exe._session
    return held(session._holders.values())


W, B = floats((96, 65), 1), floats((96,), 2)
LAYER: dict[str, Any] = {"params": {"w": pm.spec(96, 65), "b": pm.spec(96)}, "x": pm.spec("T", 65)}


def layer(params: Any, x: Any) -> Any:
    return pm.gelu(x @ params["w"].T + params["b"])


def plain(params: Any, x: Any) -> Any:
    return x @ params["w"].T


def expected(w: Array, b: Array, x: Array) -> Array:
    found: Array = pm.interpret(lambda w, b, x: layer({"w": w, "b": b}, x), w, b, x)
    return found


@pytest.mark.usefixtures("kernels_at_once")
def test_params_are_packed_once_for_all_lengths_and_again_when_set() -> None:
    with pm.compile(layer, **LAYER, device="host", max={"T": 300}) as exe:
        before = exe.counters()["buffer_bytes"]
        for factor in (1, -2, 3):
            exe.set_params({"w": factor * W, "b": B})
            for length in (64, 13, 200, 3, 300):
                x = floats((length, 65), length)
                np.testing.assert_allclose(exe.run({"x": x}), expected(factor * W, B, x), rtol=1e-4, atol=1e-4)
            assert copied(exe) == dense.packed_bytes(W.T) > W.nbytes  # an odd depth is padded
        assert exe.counters()["buffer_bytes"] >= before + copied(exe)
        np.testing.assert_array_equal(exe.params()["w"], 3 * W)


@pytest.mark.usefixtures("kernels_at_once")
def test_part_of_the_params_may_be_set() -> None:
    x = floats((64, 65))
    with pm.compile(layer, **LAYER, device="host", max={"T": 64}) as exe:
        exe.set_params({"w": W, "b": B})
        exe.run({"x": x})
        exe.set_params({"w": -W}, partial=True)
        np.testing.assert_allclose(exe.run({"x": x}), expected(-W, B, x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels_at_once")
def test_sessions_that_share_a_param_share_its_copy() -> None:
    x = floats((64, 65))
    with pm.compile(layer, **LAYER, device="host", max={"T": 64}) as first:
        first.set_params({"w": W, "b": B})
        with pm.compile(layer, **LAYER, max={"T": 64}, store=first.store) as second:
            assert np.array_equal(first.run({"x": x}), second.run({"x": x}))
            assert copied(first) == copied(second) == dense.packed_bytes(W.T)
            for writer, sign in ((first, -1), (second, 2)):
                writer.set_params({"w": sign * W}, partial=True)
                for exe in (first, second):
                    np.testing.assert_allclose(exe.run({"x": x}), expected(sign * W, B, x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels_at_once")
def test_params_that_a_step_trains_have_no_copy_there_and_a_new_one_elsewhere() -> None:
    x, parts = floats((64, 65)), {"w": pm.spec(96, 65)}

    def step(params: Any, x: Any) -> Any:
        y = x @ params["w"].T
        pm.set_param(params["w"], params["w"] * 2.0)
        return y

    with pm.compile(plain, params=parts, x=pm.spec(64, 65), device="host") as reader:
        reader.set_params({"w": W})
        with pm.compile(step, params=parts, x=pm.spec(64, 65), store=reader.store) as writer:
            for factor in (1, 2, 4):
                want = x @ (factor * W).T
                np.testing.assert_allclose(reader.run({"x": x}), want, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(writer.run({"x": x}), want, rtol=1e-4, atol=1e-4)
    with pm.compile(step, params=parts, x=pm.spec(64, 65), device="host") as alone:
        alone.set_params({"w": W})
        alone.run({"x": x})
        assert copied(alone) == 0


@pytest.mark.usefixtures("kernels_at_once")
def test_what_gets_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(fn: Any, w: Array, x: Array) -> int:
        with pm.compile(fn, params={"w": pm.spec(*w.shape, dtype=w.dtype)}, x=pm.spec(*x.shape), device="host") as exe:
            exe.set_params({"w": w})
            np.testing.assert_allclose(exe.run({"x": x}), pm.interpret(lambda w, x: fn({"w": w}, x), w, x), rtol=1e-3, atol=1e-3)
            return copied(exe)

    square, x = floats((64, 64)), floats((32, 64))
    assert run(plain, square, x) == square.nbytes
    # Two layouts of one param: the first one has it.
    assert run(lambda params, x: x @ params["w"] @ params["w"].T, square, x) == square.nbytes
    # A copy of halves would be twice their size; many rows do not need one; computed weights change with each run.
    assert run(plain, square.astype(np.float16), x) == 0
    assert run(plain, square, floats((1025, 64))) == 0
    assert run(lambda params, x: x @ (params["w"] * x[0, 0]), square, x) == 0
    monkeypatch.setattr(program, "MOST_BYTES", square.nbytes - 1)
    assert run(plain, square, x) == 0


@pytest.mark.usefixtures("kernels_at_once")
def test_a_filled_buffer_is_packed_again() -> None:
    x = floats((64, 65))
    with pm.compile(plain, params={"w": pm.spec(96, 65)}, x=pm.spec(64, 65), device="host") as exe:
        exe.set_params({"w": W})
        exe.run({"x": x})
        session: Any = exe._session
        index = next(i for i, b in enumerate(exe.plan.buffers) if b.kind == "param")
        session.fill_buffer(index, int(np.float32(0.5).view(np.uint32)))
        want = np.broadcast_to(0.5 * x.sum(axis=1, keepdims=True), (64, 96))
        np.testing.assert_allclose(exe.run({"x": x}), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8])
def test_a_few_rows_have_a_copy_and_without_room_go_by_rows(rows: int) -> None:
    x, y = floats((rows, 320)), floats((200, 320)).T
    found = multiplied(x, y, Holder())
    np.testing.assert_allclose(found, x.astype(np.float64) @ y.astype(np.float64), rtol=1e-5, atol=1e-4)
    out = np.empty((rows, 200), np.float32)
    assert (dense.matmul(x, y, out, lambda _: None) is None) == (rows < 5)
    assert dense.matmul(x[:1], y, out[:1], lambda _: None) is None


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_many_small_matmuls_are_worth_the_kernels_together(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them would be alone; what params become is seen in the next run."""
    used = []
    real = program._is_heavy
    monkeypatch.setattr(program, "_is_heavy", lambda code: used.append(real(code)) or used[-1])
    count = -(-(1 << 26) // (rows * 256 * 256))
    weights = [floats((256, 256), k) / 16 for k in range(8)]

    def model(params: Any, x: Any) -> Any:
        for k in range(count):
            x = pm.tanh(x @ params[f"w{k % 8}"].T)
        return x

    def expected(x: Array) -> Array:
        for k in range(count):
            x = np.tanh(x @ weights[k % 8].T.astype(np.float64))
        return x

    x = floats((rows, 256), 9)
    params = {f"w{k}": w for k, w in enumerate(weights)}
    with pm.compile(model, params=params, x=pm.spec(rows, 256), device="host") as exe:
        np.testing.assert_allclose(exe.run(x=x), expected(x), atol=2e-4)
        weights[3] = weights[3] * 0.5
        exe.set_params({"w3": weights[3]}, partial=True)
        np.testing.assert_allclose(exe.run(x=x), expected(x), atol=2e-4)
    assert used and all(used)
