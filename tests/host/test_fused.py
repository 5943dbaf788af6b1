"""Regions and attention as compiled kernels: against the oracle, at sizes that the kernels are used for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.host.native import dense, jit
from pumice.backends.host.native.fused import native_region
from pumice.backends.host.native.region_kernel import Operation
from pumice.backends.host.routines import attention, region
from pumice.core import dtypes
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")


def is_wide() -> bool:
    kernels = jit.kernels()
    return kernels is not None and kernels.is_wide


UNARY = [
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "square",
    "reciprocal",
    "exp",
    "tanh",
    "erf",
    "sigmoid",
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
]
BINARY = ["add", "sub", "mul", "div", "max", "min"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-38, 1e38, -1e38, 3e38, -3e38, 88.6, -88.0, -90.0, -100.0]


def numbers(count: int, seed: int = 0) -> Any:
    """Numbers of all sizes; none of the counts is a multiple of a vector."""
    r = np.random.default_rng(seed)
    return np.concatenate([r.standard_normal(count) * 10 ** r.uniform(-3, 1.5, count), SPECIAL]).astype(np.float32)


def compiled(op: str, *arrays: Any, dtype: str = "float32", **limits: Any) -> Any:
    kernels = jit.kernels()
    assert kernels is not None
    out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), dtype)
    make = native_region([a.dtype for a in arrays], [Operation(op, tuple(range(len(arrays))), dtype, **limits)])
    tasks = make(arrays, out)
    assert tasks is not None
    kernels.run(tasks)
    return out


def expected(op: str, *arrays: Any, dtype: str = "float32", **attrs: Any) -> Any:
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    with np.errstate(all="ignore"):
        return get_op(op).reference(wide, attrs, TensorType(dtypes.dtype(np.dtype(dtype)), shape)).astype(dtype)


@pytest.mark.parametrize("op", UNARY)
def test_unary_ops(op: str) -> None:
    x = numbers(5003)
    got, want = compiled(op, x), expected(op, x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("op", UNARY)
def test_nan_stays_whatever_its_bits(op: str) -> None:
    bits = np.uint32([0x7F800001, 0x7FC00000, 0x7FC00155, 0x7FFFFFFF])
    x = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    assert np.isnan(compiled(op, x)).all()


@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh"])
def test_functions_down_to_denormal_results(op: str) -> None:
    """As near to float64 as NumPy in float32, which runs the same definition, give or take two units in the last place."""
    function = get_op(op).lowering.function
    x = np.linspace(-110, 95, 100_001, dtype=np.float32)
    with np.errstate(all="ignore"):
        got, plain, want = compiled(op, x), function(x), function(x.astype(np.float64))
        finite = np.isfinite(want.astype(np.float32))
    np.testing.assert_array_equal(np.isfinite(got), finite)
    unit = np.spacing(np.abs(want[finite].astype(np.float32))).astype(np.float64)
    ours, numpys = (np.max(np.abs(y[finite] - want[finite]) / unit) for y in (got, plain))
    assert ours <= numpys + 2


def test_functions_without_instructions_are_refused() -> None:
    from llvmlite import ir

    from pumice.backends.host.native.codegen.vectors import Vector

    x = Vector(ir.IRBuilder(), ir.Constant(ir.VectorType(ir.FloatType(), 4), [1.0] * 4))
    for function in (np.sin, np.sum):
        with pytest.raises(TypeError):
            function(x)


@pytest.mark.parametrize("op", BINARY)
def test_binary_ops(op: str) -> None:
    x, y = numbers(5003), numbers(5003, 1)[::-1].copy()
    np.testing.assert_allclose(compiled(op, x, y), expected(op, x, y), rtol=1e-6)


@pytest.mark.parametrize("op", COMPARE)
def test_comparisons(op: str) -> None:
    x, y = numbers(5003), numbers(5003)
    y[::3] += 1
    assert np.array_equal(compiled(op, x, y, dtype="bool"), expected(op, x, y, dtype="bool"))
    ints = np.arange(-50, 57, dtype=np.int32)
    assert np.array_equal(compiled(op, ints, ints[::-1].copy(), dtype="bool"), expected(op, ints, ints[::-1], dtype="bool"))


def test_choices_limits_and_casts() -> None:
    x, y = numbers(5003), numbers(5003, 1)
    condition = np.random.default_rng(2).random(x.shape) < 0.5
    assert np.array_equal(compiled("where", condition, x, y), np.where(condition, x, y), equal_nan=True)
    assert np.array_equal(compiled("clamp", x, low=-1.0, high=2.0), np.clip(x, -1, 2), equal_nan=True)
    assert np.array_equal(compiled("cast", condition), condition.astype(np.float32))
    assert np.array_equal(compiled("logical_not", condition, dtype="bool"), ~condition)


@pytest.mark.parametrize("shape", [(), (1,), (130,), (7, 1), (7, 130), (1, 130)])
def test_operands_spread(shape: tuple[int, ...]) -> None:
    r = np.random.default_rng(0)
    x, y = r.standard_normal((7, 130)).astype(np.float32), r.standard_normal(shape).astype(np.float32)
    assert np.array_equal(compiled("sub", x, y), x - y)


def run(fn: Callable[..., Any], **arrays: Any) -> Any:
    specs: dict[str, Any] = {name: pm.spec(*a.shape) for name, a in arrays.items()}
    with pm.compile(fn, device="host", **specs) as exe:
        return exe.run(arrays)


def test_a_region_of_a_plan() -> None:
    r = np.random.default_rng(0)
    x, w, b = (r.standard_normal(s).astype(np.float32) for s in ((300, 257), (257,), (300, 1)))

    def fn(x: Any, w: Any, b: Any) -> Any:
        return pm.where(x * w > b, pm.gelu(x) * w + b, pm.tanh(x - b)), pm.sum(x * w, axis=-1), pm.mean(x * w, axis=0)

    for got, want in zip(run(fn, x=x, w=w, b=b), pm.interpret(fn, x, w, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


@pytest.mark.skipif(not is_wide(), reason="dense matmuls are tasks where the processor has AVX-512")
@pytest.mark.parametrize("shape", [(96,), (1,), (64, 96), (64, 1)], ids=str)
def test_a_small_region_keeps_the_calls_around_it_together(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "is_worth_loading", lambda multiplications: True)
    r = np.random.default_rng(0)
    x, w, b = (r.standard_normal(s).astype(np.float32) for s in ((64, 200), (200, 96), shape))

    def fn(w: Any, b: Any, x: Any) -> Any:
        return pm.gelu(x @ w + b) @ pm.transpose(w, (1, 0))

    params = {"w": pm.spec(200, 96), "b": pm.spec(*shape)}
    with pm.compile(lambda params, x: fn(params["w"], params["b"], x), params=params, x=pm.spec(64, 200), device="host") as exe:
        exe.set_params({"w": w, "b": b})
        np.testing.assert_allclose(exe.run({"x": x}), pm.interpret(fn, w, b, x), rtol=1e-4, atol=2e-3)
        session: Any = exe._session
        (program,) = session._programs.values()
        assert len(program._calls) == 1


def test_a_small_region_of_simple_ops_needs_no_kernel_of_its_own() -> None:
    made = region.Region((64, 64))
    for name in (0, 1):
        made.add_leaf(region.RegionLeaf(name, name, (64, 64), np.dtype("f4"), True))
    assert made._is_simple()
    made.add_leaf(region.RegionLeaf(2, 2, (64,), np.dtype("f4"), True))
    assert not made._is_simple()


CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "all keys": {},
    "window, grouped": {"causal": True, "window": 37, "kv_heads": 2},
    "more keys than queries": {"causal": True, "keys": 170},
    "fewer keys than queries": {"causal": True, "keys": 90},
    "several blocks of queries": {"causal": True, "batch": 1, "queries": 300, "keys": 300},
    "scale, heads first": {"causal": True, "layout": "bhsd", "scale": -0.4},
    "depths that no kernel takes": {"causal": True, "depth": 24, "value_depth": 40},
    "softcap": {"causal": True, "softcap": 2.0},
}


@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradient(case: str) -> None:
    settings = {"layout": "bshd", **CASES[case]}
    batch, queries, depth = settings.pop("batch", 3), settings.pop("queries", 131), settings.pop("depth", 64)
    keys, kv_heads, value_depth = settings.pop("keys", 131), settings.pop("kv_heads", 4), settings.pop("value_depth", 32)
    shapes = [(batch, 4, queries, depth), (batch, kv_heads, keys, depth), (batch, kv_heads, keys, value_depth)]
    r = np.random.default_rng(0)
    arrays = [r.standard_normal(s).astype(np.float32) for s in shapes]
    if settings["layout"] == "bshd":
        arrays = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in arrays]

    def loss(q: Any, k: Any, v: Any) -> Any:
        y = pm.attention(q, k, v, **settings)
        return pm.sum(y * y), y

    both = pm.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, got), got_gradients = run(both, **dict(zip("qkv", arrays, strict=True)))
    (_, want), want_gradients = pm.interpret(both, *arrays)
    for a, b in zip([got, *got_gradients], [want, *want_gradients], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * np.abs(b).max())


PLACES: dict[str, dict[str, Any]] = {
    "lengths": {"kv_len": [131, 1, 64]},
    "one length": {"kv_len": [77]},
    "no keys at all": {"kv_len": [0, 200, -3]},
    "offsets": {"offset": [0, 40, -20], "causal": True},
    "one offset, lengths": {"offset": [-50], "kv_len": [131, 7, 100], "causal": True},
    "window": {"offset": [0, 300, 90], "kv_len": [131, 131, 50], "causal": True, "window": 33},
    "window, not causal": {"offset": [60], "window": 20},
}


@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("queries", [131, 40, 9])
def test_attention_by_offsets_and_lengths(case: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_LEAST_SCORES", 1)
    settings = dict(PLACES[case])
    places: dict[str, Any] = {name: np.array(settings.pop(name), np.int32) for name in ("offset", "kv_len") if name in settings}
    r = np.random.default_rng(0)
    q, k, v = (r.standard_normal((3, n, heads, 32)).astype(np.float32) for n, heads in ((queries, 12), (131, 4), (131, 4)))

    def fn(q: Any, k: Any, v: Any, offset: Any = None, kv_len: Any = None) -> Any:
        # Elementwise around it, so that it is amid other tasks.
        y = pm.attention(q * 2.0, k, v, offset=offset, kv_len=kv_len, **settings, layout="bshd")
        return y + pm.arange(32, dtype="f32")

    arrays: dict[str, Any] = {"q": q, "k": k, "v": v, **places}
    specs: dict[str, Any] = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}
    wanted = pm.interpret(lambda *a: fn(**dict(zip(arrays, a, strict=True))), *arrays.values())
    with pm.compile(fn, device="host", **specs) as exe:
        for _ in range(2):
            np.testing.assert_allclose(exe.run(arrays), wanted, rtol=1e-4, atol=1e-4)
