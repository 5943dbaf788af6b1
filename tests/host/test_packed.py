"""Packed weights in tiles: the bytes come back as they were, and every reader of a param finds its rows."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from host.plans import plan_of
from host.test_routines import problem_of
from pumice.backends.base import own_residents
from pumice.backends.host import HostDevice
from pumice.backends.host.memory.tile_layout import tile_format
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.ir.graph import GraphBuilder
from pumice.ir.registry import Packed, Sample, get_op
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan
from quant_params import QUANTS

Array = np.ndarray[Any, Any]
ROWS = (1, 31, 32, 33, 64, 95)
both_ways = pytest.mark.parametrize("with_numba", [True, False], ids=["numba", "numpy"])


def choose(with_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_numba:
        monkeypatch.setattr(jit, "kernels", functools.cache(lambda: None))
    elif not jit.available():
        pytest.skip("numba is not installed")


def packed(quant: dtypes.DType, rows: int, columns: int, seed: int = 0) -> Array:
    return quantize_rows(quant, np.random.default_rng(seed).standard_normal((rows, columns)).astype("f4"))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("quant", QUANTS)
def test_tiles_hold_the_same_bytes_in_another_order(quant: dtypes.DType, rows: int) -> None:
    data = packed(quant, rows, quant.block * 3)
    tiles = Tiles.of(quant, (rows, quant.block * 3), data)
    if tile_format(quant).bit_planes:  # single bits change places too
        assert np.unpackbits(tiles.data).sum() == np.unpackbits(data).sum()
    else:
        assert sorted(tiles.data.tolist()) == sorted(data.reshape(-1).tolist())
    np.testing.assert_array_equal(tiles.original(), data)
    picked = np.random.default_rng(1).integers(0, rows, 50)
    np.testing.assert_array_equal(tiles.take(picked), data[picked])
    for part in tiles.blocks(40 * quant.block * 3):
        out = np.empty((part.stop - part.start, quant.block * 3), np.float32)
        tiles.unpack(part, out)
        np.testing.assert_array_equal(out, dequantize_rows(quant, data[part], quant.block * 3))


def test_axes_before_the_last_are_rows() -> None:
    data = packed(dtypes.q4_0, 70, 64).reshape(7, 10, 36)
    tiles = Tiles.of(dtypes.q4_0, (7, 10, 64), data[:, ::-1])
    np.testing.assert_array_equal(tiles.original(), data[:, ::-1])


def tied(quant: dtypes.DType, rows: int) -> tuple[Plan, int, list[int]]:
    """One table that is looked up, multiplied by, unpacked and handed out, as models with tied embeddings do."""
    k = quant.block * 2
    b = GraphBuilder()
    ids = b.source("input", "ids", TensorType(dtypes.i32, (3,)))
    table = b.source("param", "table", TensorType(quant, (rows, k)))
    found = b.add("embedding", [table, ids])
    logits = b.add("qmatmul", [found, table])
    values = b.add("dequantize", [table])
    graph = b.build([("found", found), ("logits", logits), ("values", values), ("table", table)])
    return plan_of(graph, [(found,), (logits,), (values,)]), table, [found, logits, values, table]


@both_ways
@pytest.mark.parametrize("rows", [5, 32, 77])
@pytest.mark.parametrize("quant", QUANTS)
def test_every_reader_of_a_tied_table(quant: dtypes.DType, rows: int, with_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(with_numba, monkeypatch)
    plan, table, outputs = tied(quant, rows)
    session = HostDevice().open(plan)
    data = packed(quant, rows, quant.block * 2)
    session.write(table, data)
    np.testing.assert_array_equal(session.read(table), data)
    ids = np.int32([rows - 1, 0, -1])
    found, logits, values, back = session.run({}, {"ids": ids}, outputs)
    want = dequantize_rows(quant, data, quant.block * 2)
    np.testing.assert_array_equal(found, want[ids])
    np.testing.assert_allclose(logits, found.astype("f8") @ want.T.astype("f8"), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(back, data)


def test_shared_params_agree_on_the_layout() -> None:
    plan, table, outputs = tied(dtypes.q4_1, 77)
    residents = own_residents(plan, HostDevice().allocate)
    first, second = HostDevice().open(plan, residents), HostDevice().open(plan)
    ids = np.int32([0, 40, 76])
    second.run({}, {"ids": ids}, outputs)
    second.rebind(residents)
    data = packed(dtypes.q4_1, 77, 64, seed=3)
    first.write(table, data)
    np.testing.assert_array_equal(second.read(table), data)
    for mine, theirs in zip(first.run({}, {"ids": ids}, outputs), second.run({}, {"ids": ids}, outputs), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    again = packed(dtypes.q4_1, 77, 64, seed=4)
    second.write(table, again)
    first.close()
    np.testing.assert_array_equal(second.run({}, {"ids": ids}, outputs)[0], dequantize_rows(dtypes.q4_1, again[ids], 64))


def test_a_packed_tensor_may_be_an_input() -> None:
    b = GraphBuilder()
    w = b.source("input", "w", TensorType(dtypes.q8_0, (40, 32)))
    x = b.source("input", "x", TensorType(dtypes.f32, (2, 32)))
    y = b.add("qmatmul", [x, w])
    session = HostDevice().open(plan_of(b.build([("y", y), ("w", w)]), [(y,)]))
    g = np.random.default_rng(0)
    for seed in (0, 1):
        data, rows = packed(dtypes.q8_0, 40, 32, seed), g.standard_normal((2, 32)).astype("f4")
        got, back = session.run({}, {"w": data, "x": rows}, [y, w])
        np.testing.assert_allclose(got, rows @ dequantize_rows(dtypes.q8_0, data, 32).T, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(back, data)


@both_ways
@pytest.mark.parametrize("m", [1, 2, 3, 8, 17, 33])
@pytest.mark.parametrize("n", [1, 32, 75, 200])
@pytest.mark.parametrize(
    ("quant", "k"), [(dtypes.q4_0, 32), (dtypes.q4_1, 576), (dtypes.q8_0, 4160), (dtypes.q4_k, 2304), (dtypes.q6_k, 256)], ids=str
)
def test_matmuls_of_any_shape(
    quant: dtypes.DType, k: int, n: int, m: int, with_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles that are not full, rows of x that fill no block, and columns that are unpacked in several goes."""
    choose(with_numba, monkeypatch)
    g = np.random.default_rng(5)
    x = g.standard_normal((m, k)).astype("f4")
    assert not problem_of(get_op("qmatmul"), Sample("", (x, Packed(quant, (n, k), packed(quant, n, k))), {}))


@pytest.mark.skipif(not jit.available(), reason="numba is not installed")
def test_sessions_in_several_threads_share_the_workers() -> None:
    """Who finds them taken works alone; all get the right answer."""
    g = np.random.default_rng(6)
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (1, 512)))
    w = b.source("param", "w", TensorType(dtypes.q4_0, (3000, 512)))
    y = b.add("qmatmul", [x, w])
    plan = plan_of(b.build([("y", y)]), [(y,)])
    data = packed(dtypes.q4_0, 3000, 512)
    values = dequantize_rows(dtypes.q4_0, data, 512)
    wrong: list[float] = []

    def work(rows: Array) -> None:
        session = HostDevice().open(plan)
        session.write(w, data)
        for row in rows:
            (got,) = session.run({}, {"x": row[None]}, [y])
            wrong.append(float(np.abs(got[0] - values @ row).max()))

    threads = [threading.Thread(target=work, args=(g.standard_normal((60, 512)).astype("f4"),)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(wrong) == 180 and max(wrong) < 1e-3


@both_ways
def test_params_written_together_are_the_same_as_one_by_one(with_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(with_numba, monkeypatch)
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (1, 64)))
    large = b.source("param", "large", TensorType(dtypes.q8_0, (2050, 64)))
    small = b.source("param", "small", TensorType(dtypes.q8_0, (3, 64)))
    dense = b.source("param", "dense", TensorType(dtypes.f32, (1, 2050)))
    product = b.add("add", [b.add("qmatmul", [x, large]), dense])
    other = b.add("qmatmul", [x, small])
    plan = plan_of(b.build([("product", product), ("other", other)]), [(product - 1, product), (other,)])
    residents = own_residents(plan, HostDevice().allocate)
    session = HostDevice().open(plan, residents)
    arrays = {large: packed(dtypes.q8_0, 2050, 64), small: packed(dtypes.q8_0, 3, 64), dense: np.ones((1, 2050), "f4")}
    HostDevice().write_all((residents[node], array) for node, array in arrays.items())
    for node, array in arrays.items():
        np.testing.assert_array_equal(session.read(node), array)
    assert session.counters()["uploads_bytes"] == 0  # nothing went by the session
