"""Matmuls on matrix units, emulated on a device that has none: every tile, layout, kind of operand and ragged size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pumice as pm
from gpu.emulated_matrices import check, plan_of
from pumice.ad.graphs import gradient_graph
from pumice.core.dtypes import dtype
from pumice.ir.registry import get_op
from pumice.kernels.routines import attention_fragments, matmul, qmatmul
from pumice.kernels.routines.attention_strips import AttentionStrips
from pumice.kernels.routines.fragments import FragmentTile
from pumice.passes.precision import with_precision
from pumice.plan.build import build_plan

import harness

TILES = [tile for tile, _ in matmul.FRAGMENTS]
QUANTISED_TILES = [tile for tile, _ in qmatmul.FRAGMENTS]
KINDS = ("f16", "bf16")


def random(*shape: int, kind: str = "f32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype(kind).np)


def tiles(found: Sequence[Any]) -> list[Any]:
    """The tiles as parameters; an emulated tile of many results takes half a minute, so that only the smallest are quick."""
    return [pytest.param(t, id=t.name, marks=() if t.bm * t.bn <= 32 * 64 else pytest.mark.slow) for t in found]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests do not choose themselves is computed by the smallest tiles, which are quick to emulate."""
    monkeypatch.setattr(matmul, "FRAGMENTS", tuple((tile, 1e12) for tile in TILES[-2:]))
    monkeypatch.setattr(qmatmul, "FRAGMENTS", qmatmul.FRAGMENTS[-2:])


@pytest.mark.parametrize("tile", tiles(TILES))
@pytest.mark.parametrize("turned", [False, True], ids=["w", "w.T"])
def test_every_tile(monkeypatch: pytest.MonkeyPatch, tile: Any, turned: bool) -> None:
    monkeypatch.setattr(matmul, "FRAGMENTS", ((tile, 1e12),))
    m, n, k = tile.bm + 9, tile.bn + 12, 2 * tile.bk + 8
    x, w = random(m, k, kind="f16"), random(*((n, k) if turned else (k, n)), kind="f16", seed=1)
    graph = pm.trace(lambda x, w: x @ (w.T if turned else w), x=pm.spec(m, k, dtype="f16"), w=pm.spec(*w.shape, dtype="f16"))
    check(graph, {"x": x, "w": w}, tile.name)


# Sizes of which vectors of eight divide all, some or none; and the least that matrices take.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sizes", [(24, 72, 40), (33, 70, 65), (9, 17, 16)], ids=str)
def test_precisions(kind: str, left: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    x, w = random(m, k, kind=left), random(k, n, seed=1)
    graph = pm.trace(lambda x, w: pm.matmul(x, w), x=pm.spec(m, k, dtype=left), w=pm.spec(k, n))
    check(with_precision(graph, kind), {"x": x, "w": w}, f"fragments {kind}")  # type: ignore[arg-type]


@pytest.mark.parametrize("view", ["x.T", "w.T", "slices", "steps"])
def test_views(view: str) -> None:
    shapes = {
        "x.T": ((64, 48), (64, 40)),
        "w.T": ((48, 64), (40, 64)),
        "slices": ((50, 80), (80, 44)),
        "steps": ((96, 128), (64, 40)),
    }
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "x.T": lambda x, w: x.T @ w,
        "w.T": lambda x, w: x @ w.T,
        "slices": lambda x, w: x[1:49, 3:67] @ w[3:67, 2:42],
        "steps": lambda x, w: x[::2, ::2] @ w,
    }
    a, b = shapes[view]
    graph = with_precision(pm.trace(calls[view], x=pm.spec(*a), w=pm.spec(*b)), "f16")
    check(graph, {"x": random(*a), "w": random(*b, seed=1)}, "fragments")


def test_epilogue_batch_and_rows() -> None:
    def model(x: Any, w: Any, b: Any, r: Any) -> Any:
        return pm.gelu(x @ w + b) + r

    specs = {"x": pm.spec(3, 20, 40), "w": pm.spec(40, 48), "b": pm.spec(48), "r": pm.spec(3, 20, 48)}
    graph = with_precision(pm.trace(model, **specs), "bf16")
    check(graph, {name: random(*map(int, s.type.shape), seed=i) for i, (name, s) in enumerate(specs.items())}, "fragments bf16")
    batches = with_precision(pm.trace(lambda a, b: a @ b, a=pm.spec(2, 3, 17, 24), b=pm.spec(3, 24, 33)), "f16")
    check(batches, {"a": random(2, 3, 17, 24), "b": random(3, 24, 33, seed=1)}, "fragments f16")


def test_16_bit_results_are_packed_by_the_matmul_itself() -> None:
    graph = pm.trace(lambda x, w: x @ w + 1.0, x=pm.spec(40, 64, dtype="f16"), w=pm.spec(64, 72, dtype="f16"))
    check(graph, {"x": random(40, 64, kind="f16"), "w": random(64, 72, kind="f16", seed=1)}, "fragments")
    assert len(plan_of(graph).steps) == 1


def test_parts_of_k(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "FRAGMENTS", ((TILES[-1], 1e12),))
    graph = with_precision(pm.trace(lambda x, w: x @ w.T, x=pm.spec(24, 4096), w=pm.spec(40, 4096)), "f16")
    check(graph, {"x": random(24, 4096), "w": random(40, 4096, seed=1)}, f"{TILES[-1].name} in")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", ["q4_0", "q4_1", "q5_k", "q6_k", "q8_0", "q2_k", "iq4_nl", "mxfp4", "iq2_xs"])
def test_quantised_weights(kind: str, q: str) -> None:
    from pumice.core.blocks import quantize_rows

    k = 2 * max(64, dtype(q).block)
    w = quantize_rows(dtype(q), random(70, k, seed=1))
    graph = pm.trace(lambda x, params: pm.qmatmul(x, params["w"]), params={"w": pm.spec(70, k, dtype=q)}, x=pm.spec(33, k))
    check(with_precision(graph, kind), {"x": random(33, k)}, f"fragments {kind}", {"w": w})  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", tiles(QUANTISED_TILES))
def test_every_quantised_tile(monkeypatch: pytest.MonkeyPatch, tile: Any) -> None:
    from pumice.core.blocks import quantize_rows

    monkeypatch.setattr(qmatmul, "FRAGMENTS", ((tile, 1e12),))
    n, m = tile.bn + 4, tile.bm + 3
    w = quantize_rows(dtype("q4_0"), random(n, 96, seed=1))
    graph = pm.trace(lambda x, params: pm.qmatmul(x, params["w"]), params={"w": pm.spec(n, 96, dtype="q4_0")}, x=pm.spec(m, 96))
    check(with_precision(graph, "f16"), {"x": random(m, 96)}, tile.name, {"w": w})


# Parts of K that are alike, that end with a shorter one, and of which the last is empty; K ends inside a tile.
@pytest.mark.parametrize(("k", "bk"), [(2048, 64), (1120, 64), (1056, 128), (4 * 1024 + 32, 32)], ids=str)
def test_parts_of_quantised_weights(monkeypatch: pytest.MonkeyPatch, k: int, bk: int) -> None:
    from pumice.core.blocks import quantize_rows

    tile = FragmentTile(16, 64, bk, 16, 16)
    monkeypatch.setattr(qmatmul, "FRAGMENTS", ((tile, 1e9),))
    w = quantize_rows(dtype("q4_1"), random(70, k, seed=1))

    def model(x: Any, r: Any, params: Any) -> Any:
        return pm.gelu(pm.qmatmul(x, params["w"])) + r

    graph = pm.trace(model, params={"w": pm.spec(70, k, dtype="q4_1")}, x=pm.spec(2, 9, k), r=pm.spec(2, 9, 70))
    inputs = {"x": random(2, 9, k), "r": random(2, 9, 70, seed=2)}
    check(with_precision(graph, "f16"), inputs, f"{tile.name} in ", {"w": w})


# Groups without rows first, in between and last; rows of no group; sizes that end inside a tile; rows by columns.
GROUPS = [((0, 21, 0, 17, 0), 38), ((33, 9), 50), ((20, 20), 40)]


@pytest.mark.parametrize(("sizes", "rows"), GROUPS, ids=str)
@pytest.mark.parametrize(
    ("kind", "operands"),
    [("f16", "f32"), ("bf16", "f32"), ("exact", "f16"), ("exact", "bf16")],
    ids=["f16", "bf16", "f16s", "bf16s"],
)
def test_grouped(kind: str, operands: str, sizes: tuple[int, ...], rows: int) -> None:
    def model(x: Any, w: Any, sizes: Any) -> Any:
        return pm.tanh(pm.grouped_matmul(x, w, sizes)) * 2.0

    k, n, groups = (40, 48, len(sizes)) if rows != 50 else (37, 50, len(sizes))
    given = {"x": random(max(rows, 10 * groups), k, kind=operands), "w": random(groups, k, n, kind=operands, seed=1)}
    graph = pm.trace(
        model, **{name: pm.spec(*a.shape, dtype=operands) for name, a in given.items()}, sizes=pm.spec(groups, dtype="i32")
    )
    graph = with_precision(graph, kind)  # type: ignore[arg-type]
    check(graph, {**given, "sizes": np.array(sizes, "i4")}, f"fragments {operands if kind == 'exact' else kind}")


def test_grouped_rows_side_by_side_in_memory() -> None:
    specs = {"x": pm.spec(40, 48), "w": pm.spec(2, 24, 40), "sizes": pm.spec(2, dtype="i32")}
    graph = with_precision(pm.trace(lambda x, w, sizes: pm.grouped_matmul(x.T, w.swapaxes(1, 2), sizes), **specs), "f16")
    given = {"x": random(40, 48), "w": random(2, 24, 40, seed=1), "sizes": np.array((13, 30), "i4")}
    check(graph, given, "fragments f16")


@pytest.mark.parametrize("q", ["q4_0", "q6_k", "mxfp4"])
def test_grouped_quantised_weights(q: str) -> None:
    from pumice.core.blocks import quantize_rows

    k, sizes = max(64, dtype(q).block), (0, 21, 19, 0)
    w = quantize_rows(dtype(q), random(4, 70, k, seed=1))
    graph = pm.trace(
        lambda x, sizes, params: pm.grouped_qmatmul(x, params["w"], sizes),
        params={"w": pm.spec(4, 70, k, dtype=q)}, x=pm.spec(45, k), sizes=pm.spec(4, dtype="i32"),
    )  # fmt: skip
    inputs = {"x": random(45, k), "sizes": np.array(sizes, "i4")}
    check(with_precision(graph, "f16"), inputs, "fragments f16", {"w": w})


@pytest.mark.parametrize("tile", tiles(TILES))
def test_every_grouped_tile(monkeypatch: pytest.MonkeyPatch, tile: Any) -> None:
    monkeypatch.setattr(matmul, "FRAGMENTS", ((tile, 1e12),))
    k, n, sizes = 2 * tile.bk + 8, tile.bn + 12, (0, tile.bm + 9, 5)
    x, w = random(sum(sizes) + 20, k, kind="f16"), random(3, k, n, kind="f16", seed=1)
    specs = {"x": pm.spec(*x.shape, dtype="f16"), "w": pm.spec(*w.shape, dtype="f16"), "sizes": pm.spec(3, dtype="i32")}
    check(pm.trace(pm.grouped_matmul, **specs), {"x": x, "w": w, "sizes": np.array(sizes, "i4")}, tile.name)


@pytest.mark.parametrize("tile", tiles(QUANTISED_TILES))
def test_every_grouped_quantised_tile(monkeypatch: pytest.MonkeyPatch, tile: Any) -> None:
    from pumice.core.blocks import quantize_rows

    monkeypatch.setattr(qmatmul, "FRAGMENTS", ((tile, 1e12),))
    n, sizes = tile.bn + 4, (tile.bm + 3, 0, 17)
    w = quantize_rows(dtype("q4_0"), random(3, n, 96, seed=1))
    graph = pm.trace(
        lambda x, sizes, params: pm.grouped_qmatmul(x, params["w"], sizes),
        params={"w": pm.spec(3, n, 96, dtype="q4_0")}, x=pm.spec(sum(sizes) + 30, 96), sizes=pm.spec(3, dtype="i32"),
    )  # fmt: skip
    inputs = {"x": random(sum(sizes) + 30, 96), "sizes": np.array(sizes, "i4")}
    check(with_precision(graph, "f16"), inputs, tile.name, {"w": w})


# Sizes below zero, and beyond the rows that there are, as a router that counts wrongly would give them.
@pytest.mark.parametrize("sizes", [(-3, 20, -(2**31), 2**31 - 1), (0, 0, 0, 0), (2**31 - 1, 2**31 - 1, 1, 1)], ids=str)
def test_grouped_sizes_out_of_range(sizes: tuple[int, ...]) -> None:
    specs = {"x": pm.spec(45, 40), "w": pm.spec(4, 40, 24), "sizes": pm.spec(4, dtype="i32")}
    graph = with_precision(pm.trace(pm.grouped_matmul, **specs), "bf16")
    check(graph, {"x": random(45, 40), "w": random(4, 40, 24, seed=1), "sizes": np.array(sizes, "i4")}, "fragments bf16")


@pytest.mark.parametrize("sizes", [(40, 48, 24), (37, 41, 50)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_grouped_matmuls(kind: str, sizes: tuple[int, int, int]) -> None:
    rows, k, n = sizes

    def loss(x: Any, w: Any, sizes: Any) -> Any:
        return pm.sum(pm.tanh(pm.grouped_matmul(x, w, sizes)))

    specs = {"x": pm.spec(rows, k), "w": pm.spec(2, k, n), "sizes": pm.spec(2, dtype="i32")}
    graph = gradient_graph(with_precision(pm.trace(loss, **specs), kind), ["w", "x"])  # type: ignore[arg-type]
    assert [m.attr["precision"] for m in graph if m.op.startswith("grouped_matmul")] == [kind] * 3
    assert sum(s.variant.startswith("fragments") for s in plan_of(graph).steps) == 3
    given = {"x": random(rows, k), "w": 0.1 * random(2, k, n, seed=1), "sizes": np.array((rows - 21, 17), "i4")}
    check(graph, given, f"fragments {kind}")


def test_few_rows_a_group_stay_exact() -> None:
    specs = {"x": pm.spec(40, 64), "w": pm.spec(8, 64, 64), "sizes": pm.spec(8, dtype="i32")}
    graph = with_precision(pm.trace(pm.grouped_matmul, **specs), "f16")
    assert not any("fragments" in s.variant for s in plan_of(graph).steps)


# Depths of which blocks of both sizes are made; masks, windows, groups of heads and pages as the plain kernel has them.
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("GQA, bshd, window", "f16"),
        ("pages, i8", "bf16"),
        *(
            pytest.param(case, kind, marks=pytest.mark.slow)
            for case, kind in (
                ("causal", "f16"),
                ("causal", "bf16"),
                ("mask, deep", "f16"),
                ("softcap, sinks", "bf16"),
                ("pages, i8", "f16"),
            )
        ),
    ],
)
def test_attention(case: str, kind: str) -> None:
    r = np.random.default_rng(3)
    b, h, hkv, sq, sk, d, attrs, extra = 1, 2, 2, 40, 50, 16, {}, {}
    if case == "causal":
        sk, d, attrs = 40, 64, {"causal": True}
    elif case == "GQA, bshd, window":
        h, attrs = 4, {"causal": True, "window": 20, "layout": "bshd"}
    elif case == "mask, deep":
        d, extra = 128, {"mask": r.random((1, 1, 40, 50)) < 0.7}
    elif case == "softcap, sinks":
        attrs, extra = {"softcap": 3.0}, {"sinks": r.standard_normal(h).astype("f4")}
    shapes = {"q": (b, h, sq, d), "k": (b, hkv, sk, d), "v": (b, hkv, sk, d)}
    if attrs.get("layout") == "bshd":
        shapes = {n: (s[0], s[2], s[1], s[3]) for n, s in shapes.items()}
    given: dict[str, Any] = {n: r.standard_normal(s).astype("f4") for n, s in shapes.items()} | extra
    if case == "pages, i8":
        pages = {n: r.integers(-127, 128, (6, hkv, 32, d)).astype("i1") for n in "kv"}
        scales = {f"{n}_scale": (r.random((6, hkv, 32)) / 64).astype("f4") for n in "kv"}
        given |= pages | scales | {"kv_index": np.array([[4, 1]], "i4"), "kv_len": np.array([45], "i4")}
    graph = pm.trace(lambda **t: pm.attention(t.pop("q"), t.pop("k"), t.pop("v"), **t, **attrs), **{
        n: pm.spec(*a.shape, dtype=a.dtype) for n, a in given.items()
    })  # fmt: skip
    check(with_precision(graph, kind), given, f"fragments {kind}")  # type: ignore[arg-type]


# One and two rows a thread, several steps a block, blocks of two pages; a page of large keys makes the sums be rescaled.
@pytest.mark.parametrize(
    "strips",
    [(128, 64, 32, 32), (128, 64, 64, 16), (64, 64, 32, 16), (64, 64, 64, 32, False), (32, 16, 32, 32)],
    ids=str,
)
def test_attention_strips(monkeypatch: pytest.MonkeyPatch, strips: Any) -> None:
    monkeypatch.setattr(attention_fragments, "STRIPS", (AttentionStrips(*strips),))
    given: dict[str, Any] = {"q": 3 * random(1, 4, 20, 32), **{n: random(5, 2, 32, 32, kind="f16", seed=ord(n)) for n in "kv"}}
    given["k"][3] *= 4
    given |= {"kv_index": np.array([[4, 1, 3]], "i4"), "kv_len": np.array([85], "i4"), "offset": np.array([65], "i4")}
    graph = pm.trace(lambda **t: pm.attention(t.pop("q"), t.pop("k"), t.pop("v"), causal=True, **t), **{
        n: pm.spec(*a.shape, dtype=a.dtype) for n, a in given.items()
    })  # fmt: skip
    check(with_precision(graph, "f16"), given, AttentionStrips(*strips).name)


def test_gradients_keep_the_precision() -> None:
    def loss(params: Any, x: Any) -> Any:
        return pm.sum(pm.tanh(x @ params["w"]))

    forward = with_precision(pm.trace(loss, params={"w": pm.spec(48, 64)}, x=pm.spec(40, 48)), "bf16")
    backward = gradient_graph(forward, ["w", "x"])
    found = [n.attr["precision"] for n in backward if n.op == "matmul"]
    assert len(found) == 3 and set(found) == {"bf16"}


def test_small_matmuls_and_other_devices_stay_exact() -> None:
    spec = {"x": pm.spec(4, 64), "w": pm.spec(64, 64)}
    graph = with_precision(pm.trace(lambda x, w: x @ w, **spec), "f16")
    assert not any("fragments" in s.variant for s in plan_of(graph).steps)
    plain = build_plan(graph, harness.device("webgpu").caps)
    assert not any("fragments" in s.variant for s in plain.steps)
    exact = pm.trace(lambda x, w: x @ w, x=pm.spec(64, 64), w=pm.spec(64, 64))
    assert not any("fragments" in s.variant for s in plan_of(exact).steps)
    assert "f16" in get_op("matmul").traits.precisions
