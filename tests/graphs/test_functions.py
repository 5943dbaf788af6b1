"""Each function of the front end, traced and run by the reference interpreter, against NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pumice as pm
from pumice.core import dtypes
from pumice.errors import DTypeError, GraphError, IndexRangeError, InputError, ShapeError
from pumice.functions.build import promote_dtypes
from pumice.reference.interpreter import evaluate_graph

rng = np.random.default_rng(0)
X = rng.standard_normal((3, 4)).astype(np.float32)
Y = rng.standard_normal((3, 4)).astype(np.float32)
P = np.abs(X) + 0.1
U = np.tanh(X)
V = rng.standard_normal(4).astype(np.float32)
N = rng.integers(-9, 9, (3, 4)).astype(np.int32)
J = rng.integers(1, 5, (3, 4)).astype(np.int32)
B = N > 0
ODD = np.array([0.0, -0.0, 0.5, 1.5, -2.5, np.nan, np.inf, -np.inf], np.float32)

erf = np.vectorize(math.erf)


def same(got: Any, want: Any, tol: float = 1e-5) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol)
    else:
        np.testing.assert_array_equal(got, want)


UNARY: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("negative", np.negative, X),
    ("absolute", np.absolute, N),
    ("abs", np.abs, X),
    ("sign", np.sign, N),
    ("square", np.square, X),
    ("relu", lambda x: np.maximum(x, 0), X),
    ("exp", np.exp, X),
    ("exp2", np.exp2, X),
    ("expm1", np.expm1, X),
    ("log", np.log, P),
    ("log2", np.log2, P),
    ("log1p", np.log1p, P),
    ("sqrt", np.sqrt, P),
    ("rsqrt", lambda x: 1 / np.sqrt(x), P),
    ("reciprocal", lambda x: 1 / x, P),
    ("sin", np.sin, X),
    ("cos", np.cos, X),
    ("tan", np.tan, X),
    ("arcsin", np.arcsin, U),
    ("arccos", np.arccos, U),
    ("arctan", np.arctan, X),
    ("sinh", np.sinh, X),
    ("cosh", np.cosh, X),
    ("tanh", np.tanh, X),
    ("erf", erf, X),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), X),
    ("silu", lambda x: x / (1 + np.exp(-x)), X),
    ("softplus", lambda x: np.log1p(np.exp(x)), X),
    ("gelu", lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, X),
    ("round", np.round, ODD),
    ("floor", np.floor, ODD),
    ("ceil", np.ceil, ODD),
    ("trunc", np.trunc, ODD),
    ("floor", lambda x: x, N),
    ("sqrt", lambda x: np.sqrt(x.astype(np.float32)), J),
    ("isnan", np.isnan, ODD),
    ("isinf", np.isinf, ODD),
    ("isnan", np.isnan, N),
    ("logical_not", np.logical_not, N),
    ("invert", np.invert, N),
    ("invert", np.invert, J.astype(np.uint8)),
    ("invert", np.invert, B),
    ("ravel", np.ravel, X),
    ("flatten", np.ravel, X),
    ("transpose", np.transpose, X),
    ("permute_dims", np.transpose, X),
    ("zeros_like", np.zeros_like, N),
    ("ones_like", np.ones_like, X),
    ("sort", np.sort, X),
    ("argsort", lambda x: np.argsort(x, kind="stable"), N),
    ("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), X),
    ("log_softmax", lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)), X),
]


@pytest.mark.parametrize(("name", "want", "x"), UNARY, ids=[f"{i}-{row[0]}" for i, row in enumerate(UNARY)])
def test_functions_of_one_tensor(name: str, want: Callable[[Any], Any], x: Any) -> None:
    same(pm.interpret(getattr(pm, name), x), want(x))


def divided(a: Any, b: Any) -> Any:
    return np.divide(a, b).astype(np.float32)


BINARY: list[tuple[str, Callable[[Any, Any], Any], Any, Any]] = [
    ("add", np.add, X, V),
    ("add", np.add, B, ~B),
    ("subtract", np.subtract, N, J),
    ("multiply", np.multiply, X, Y),
    ("multiply", np.multiply, B, B),
    ("divide", divided, X, P),
    ("divide", divided, N, J),
    ("floor_divide", np.floor_divide, N, J),
    ("mod", np.mod, N, J),
    ("mod", np.mod, X, P),
    ("power", np.power, P, X),
    ("maximum", np.maximum, X, Y),
    ("maximum", np.maximum, B, ~B),
    ("minimum", np.minimum, N, J),
    ("arctan2", np.arctan2, X, Y),
    ("equal", np.equal, N, J),
    ("not_equal", np.not_equal, N, J),
    ("less", np.less, X, Y),
    ("less_equal", np.less_equal, N, J),
    ("greater", np.greater, X, V),
    ("greater_equal", np.greater_equal, N, J),
    ("logical_and", np.logical_and, N, B),
    ("logical_or", np.logical_or, N, B),
    ("logical_xor", np.logical_xor, N, B),
    ("bitwise_and", np.bitwise_and, N, J),
    ("bitwise_or", np.bitwise_or, B, ~B),
    ("bitwise_xor", np.bitwise_xor, N, J),
    ("left_shift", np.left_shift, J, J),
    ("right_shift", np.right_shift, N, J),
    ("matmul", np.matmul, X, Y.T),
    ("matmul", np.matmul, X, V),
    ("matmul", lambda a, b: a.astype(np.int32) @ b, J.astype(np.int8), J.T.astype(np.int8)),
    ("take", lambda x, i: np.take(x, i), X, np.int32([0, 11, -1])),
    ("gather", lambda x, i: np.take(x, i, axis=0), X, np.int32([[2, 0], [1, 1]])),
    ("take_along_axis", lambda x, i: np.take_along_axis(x, i, -1), X, np.int32([[0], [3], [1]])),
    ("embedding", lambda t, i: t[i], X, np.int32([[0, 2]])),
]


@pytest.mark.parametrize(("name", "want", "a", "b"), BINARY, ids=[f"{i}-{row[0]}" for i, row in enumerate(BINARY)])
def test_functions_of_two_tensors(name: str, want: Callable[[Any, Any], Any], a: Any, b: Any) -> None:
    same(pm.interpret(getattr(pm, name), a, b), want(a, b))


Z = rng.standard_normal((2, 3, 4)).astype(np.float32)

# The same expression, with the names of pumice and with NumPy's.
WITH_ARGUMENTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
    "gelu tanh": (
        lambda x: pm.gelu(x, approximate=True),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        X,
    ),
    "clip both": (lambda x: pm.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), X),
    "clip ints by ints": (lambda x: pm.clip(x, min=-2), lambda x: np.clip(x, -2, None), N),
    "clip ints by floats": (lambda x: pm.clip(x, 0.5, 2.5), lambda x: np.clip(x.astype(np.float32), 0.5, 2.5), N),
    "clip by arrays": (lambda x: x.clip(V - 1, V), lambda x: np.clip(x, V - 1, V), X),
    "where": (lambda x: pm.where(x > 0, x, -1), lambda x: np.where(x > 0, x, np.float32(-1)), X),
    "where of numbers": (lambda x: pm.where(x > 0, 1, 0), lambda x: np.where(x > 0, 1, 0), X),
    "astype": (lambda x: x.astype("i32").astype("bool"), lambda x: x.astype(np.int32).astype(bool), X),
    "sum all": (lambda x: x.sum(), lambda x: x.sum(), Z),
    "sum axes": (lambda x: x.sum((0, -1)), lambda x: x.sum((0, -1)), Z),
    "sum keepdims": (lambda x: x.sum(1, keepdims=True), lambda x: x.sum(1, keepdims=True), Z),
    "sum of no axes": (lambda x: x.sum(()), lambda x: x.sum(()), Z),
    "sum of bools": (lambda x: x.sum(0), lambda x: x.sum(0), B),
    "sum of bytes": (lambda x: x.sum(0), lambda x: x.sum(0, dtype=np.int32), N.astype(np.int8)),
    "scalar sum": (lambda x: x[0, 0].sum(), lambda x: x[0, 0].sum(), X),
    "mean of ints": (lambda x: x.mean(0), lambda x: x.mean(0).astype(np.float32), N),
    "max": (lambda x: x.max(1), lambda x: x.max(1), N),
    "max of bools": (lambda x: x.max(1), lambda x: x.max(1), B),
    "min": (lambda x: x.min(), lambda x: x.min(), X),
    "prod": (lambda x: x.prod(0), lambda x: x.prod(0), J),
    "any": (lambda x: x.any(1), lambda x: x.any(1), B),
    "all": (lambda x: x.all(1), lambda x: x.all(1), N),
    "var": (lambda x: x.var((1, 2)), lambda x: x.var((1, 2)), Z),
    "std ddof": (lambda x: x.std(1, ddof=1, keepdims=True), lambda x: x.std(1, ddof=1, keepdims=True), Z),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1), N),
    "argmax flat": (lambda x: x.argmax(keepdims=True), lambda x: x.argmax(keepdims=True), X),
    "argmin": (lambda x: x.argmin(-1, keepdims=True), lambda x: x.argmin(-1, keepdims=True), N),
    "argmax of bools": (lambda x: x.argmax(1), lambda x: x.argmax(1), B),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1), X),
    "cumsum flat": (lambda x: x.cumsum(), lambda x: x.cumsum(), N),
    "cumsum reverse": (
        lambda x: pm.cumsum(x, -1, exclusive=True, reverse=True),
        lambda x: x[..., ::-1].cumsum(-1)[..., ::-1] - x,
        N,
    ),
    "reshape": (lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1), Z),
    "reshape tuple": (lambda x: x.reshape((6, 4)), lambda x: x.reshape(6, 4), Z),
    "transpose": (lambda x: x.transpose(1, 2, 0), lambda x: x.transpose(1, 2, 0), Z),
    "transpose tuple": (lambda x: x.transpose((0, 2, 1)), lambda x: x.transpose(0, 2, 1), Z),
    "T": (lambda x: x.T, lambda x: x.T, Z),
    "swapaxes": (lambda x: x.swapaxes(0, -1), lambda x: x.swapaxes(0, -1), Z),
    "moveaxis": (lambda x: pm.moveaxis(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0)), Z),
    "squeeze": (lambda x: x[:, :1].squeeze(1), lambda x: x[:, :1].squeeze(1), X),
    "expand_dims": (lambda x: pm.expand_dims(x, (0, -1)), lambda x: np.expand_dims(x, (0, -1)), X),
    "broadcast_to": (lambda x: pm.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), X),
    "concatenate": (lambda x: pm.concatenate([x, x, Y], 1), lambda x: np.concatenate([x, x, Y], 1), X),
    "concatenate promotes": (lambda x: pm.concat([x, N]), lambda x: np.concatenate([x, N.astype(np.float32)]), X),
    "concatenate flat": (lambda x: pm.concatenate([x, V], None), lambda x: np.concatenate([x, V], None), X),
    "stack": (lambda x: pm.stack([x, Y], -1), lambda x: np.stack([x, Y], -1), X),
    "split": (lambda x: pm.split(x, 2, 1)[1], lambda x: np.split(x, 2, 1)[1], X),
    "split at": (lambda x: pm.split(x, [1, 3], -1)[1], lambda x: np.split(x, [1, 3], -1)[1], X),
    "narrow": (lambda x: pm.narrow(x, 1, 1, 3), lambda x: x[:, 1:3], X),
    "pad one": (lambda x: pm.pad(x, 1), lambda x: np.pad(x, 1), X),
    "pad pairs": (
        lambda x: pm.pad(x, ((0, 2), (1, 0)), constant_values=7),
        lambda x: np.pad(x, ((0, 2), (1, 0)), constant_values=7),
        N,
    ),
    "pad nothing": (lambda x: pm.pad(x, 0), lambda x: x, X),
    "flip": (lambda x: pm.flip(x, -1), lambda x: np.flip(x, -1), X),
    "flip all": (lambda x: pm.flip(x), lambda x: np.flip(x), X),
    "roll": (lambda x: pm.roll(x, -1, 1), lambda x: np.roll(x, -1, 1), X),
    "roll flat": (lambda x: pm.roll(x, 17), lambda x: np.roll(x, 17), X),
    "roll round": (lambda x: pm.roll(x, 4, 1), lambda x: np.roll(x, 4, 1), X),
    "repeat": (lambda x: pm.repeat(x, 3, 1), lambda x: np.repeat(x, 3, 1), X),
    "repeat flat": (lambda x: pm.repeat(x, 2), lambda x: np.repeat(x, 2), X),
    "tile": (lambda x: pm.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), X),
    "take axis": (lambda x: x.take([1, -1], 1), lambda x: x.take([1, -1], 1), X),
    "one_hot": (lambda x: pm.one_hot(x, 6, "i32"), lambda x: np.eye(6, dtype=np.int32)[x], J),
    "arange": (lambda x: x[0] + pm.arange(1, 9, 2), lambda x: x[0] + np.arange(1, 9, 2), N),
    "arange of floats": (lambda x: x[0] + pm.arange(0.0, 1.0, 0.25), lambda x: x[0] + np.arange(0, 1, 0.25, np.float32), X),
    "full": (lambda x: pm.full((2, 3), x.max()), lambda x: np.full((2, 3), x.max()), X),
    "full of a dtype": (lambda x: pm.full(3, 2, "u8"), lambda x: np.full(3, 2, np.uint8), X),
    "full_like": (lambda x: pm.full_like(x, 1.5), lambda x: np.full(x.shape, 1.5, np.float32), X),
    "scatter_set": (
        lambda x: pm.scatter_set(x, [2, 0], 5.0),
        lambda x: np.stack([np.full(4, 5), x[1], np.full(4, 5)]).astype(np.float32),
        X,
    ),
    "scatter_add": (
        lambda x: pm.scatter_add(x, [1, 1, 3], V[:3], axis=-1),
        lambda x: x + np.float32([0, V[0] + V[1], 0, V[2]]),
        X,
    ),
    "sort descending": (lambda x: pm.sort(x, 0, descending=True), lambda x: -np.sort(-x, 0), X),
    "top_k values": (lambda x: pm.top_k(x, 2)[0], lambda x: -np.sort(-x)[:, :2], X),
    "top_k places": (lambda x: pm.top_k(x, 2, 0)[1], lambda x: np.argsort(-x, 0, kind="stable")[:2], X),
    "layer_norm": (
        lambda x: pm.layer_norm(x, V, V + 1),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * V + V + 1,
        Z,
    ),
    "rms_norm": (
        lambda x: pm.rms_norm(x, Y, axes=2),
        lambda x: x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-6) * Y,
        Z,
    ),
}


@pytest.mark.parametrize("case", WITH_ARGUMENTS)
def test_functions_with_arguments(case: str) -> None:
    ours, numpy, x = WITH_ARGUMENTS[case]
    same(pm.interpret(ours, x), numpy(x))


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b * 2 - 1,
    lambda a, b: 3 - a,
    lambda a, b: 2 * a + 1.5 * b,
    lambda a, b: a // b + a % b,
    lambda a, b: 7 // b + 7 % b,
    lambda a, b: a**2 + 2**b,
    lambda a, b: -a + +b + abs(a),
    lambda a, b: (a < b) & (a <= b) | (a > 3) ^ (a >= b),
    lambda a, b: ~(a == b) | (a != 0),
    lambda a, b: (a & 6) | (b ^ 3),
    lambda a, b: (a << 2) + (b >> 1) + (1 << b) + (64 >> b),
    lambda a, b: a @ b.T,
    lambda a, b: np.arange(4, dtype=np.int32) + a,
    lambda a, b: 5 & a | 1 ^ b,
]


@pytest.mark.parametrize("number", range(len(OPERATORS)))
def test_operators_as_numpy(number: int) -> None:
    fn = OPERATORS[number]
    same(pm.interpret(fn, N, J), fn(N, J))


def test_true_division_of_ints_is_f32() -> None:
    assert pm.interpret(lambda a: 1 / a, J).dtype == np.float32
    assert pm.interpret(lambda a: a / 2, J).dtype == np.float32


# --- dtypes ---


def result_dtype(fn: Callable[[Any], Any], dtype: str) -> str:
    graph = pm.trace(fn, x=pm.spec(2, dtype=dtype))
    return graph.nodes[graph.outputs[0][1]].type.dtype.name


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        ("f16", 1, "f16"),
        ("f16", 1.5, "f16"),
        ("bf16", np.float64(1.5), "bf16"),
        ("f16", np.float32(1.5), "f32"),
        ("i8", 1, "i8"),
        ("i8", True, "i8"),
        ("u8", np.int64(3), "u8"),
        ("i32", 1.5, "f32"),
        ("bool", 1, "i32"),
        ("bool", 1.5, "f32"),
        ("i8", np.uint8([1, 2]), "i32"),
        ("f32", np.zeros(2), "f32"),
    ],
)
def test_scalars_are_weak_and_arrays_are_not(dtype: str, value: Any, want: str) -> None:
    assert result_dtype(lambda x: x + value, dtype) == want
    assert result_dtype(lambda x: value + x, dtype) == want


def test_promotion_is_a_lattice() -> None:
    for a, b, c in itertools.product(dtypes.PLAIN, repeat=3):
        assert promote_dtypes(a, b) == promote_dtypes(b, a)
        assert promote_dtypes(promote_dtypes(a, b), c) == promote_dtypes(a, promote_dtypes(b, c))
        assert promote_dtypes(a, promote_dtypes(a, b)) == promote_dtypes(a, b)


def test_values_that_fit_no_dtype_are_refused() -> None:
    with pytest.raises(DTypeError, match="300 does not fit u8"):
        pm.interpret(lambda x: x + 300, np.zeros(2, np.uint8))
    with pytest.raises(DTypeError, match="do not fit i32"):
        pm.interpret(lambda x: x + np.array([2**40]), N)
    with pytest.raises(DTypeError, match="a list with tensors") as caught:
        pm.interpret(lambda x: pm.add(x, [x, x]), X)
    assert "test_functions.py" in caught.value.where
    with pytest.raises(DTypeError, match="do not mix"):
        pm.trace(lambda x, w: x + w, x=pm.spec(32), w=pm.spec(32, dtype="q4_0"))


# --- indexing ---

INDICES: list[Any] = [
    0,
    -1,
    np.int64(1),
    slice(1, None),
    slice(None, -1),
    slice(-2, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(10, -10, -2),
    slice(2, 1),
    slice(5, 9),
    None,
    ...,
    (..., 0),
    (0, ..., None),
    (slice(1, 3), None, 2),
    (None, slice(None), slice(3, 0, -1), 1),
    (1, 2, 3),
    np.int32([2, 0, -1]),
    [1, 1],
    (slice(None), [0, -1]),
    (slice(None), slice(1), np.int32([[0, 1], [2, 3]])),
    (0, [1, 2]),
    ([1, 2, 0], 1),
    (..., None, [3, 0]),
    (slice(None), []),
]


@pytest.mark.parametrize("number", range(len(INDICES)))
def test_indexing_as_numpy(number: int) -> None:
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    index = INDICES[number]
    same(pm.interpret(lambda t: t[index], x), x[index])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_basic_index_as_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    bound = st.none() | st.integers(-6, 6)
    parts = []
    for size in shape:
        part = st.builds(slice, bound, bound, st.none() | st.integers(-3, 3).filter(bool))
        parts.append(data.draw(part | st.integers(-size, size - 1) if size else part))
    index = tuple(parts)
    same(pm.interpret(lambda t: t[index], x), x[index])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_indexing_of_symbolic_axes(size: int) -> None:
    def cuts(x: Any) -> Any:
        n = x.shape[0]
        return {
            "tail": x[1:],
            "head": x[:-1],
            "last": x[-1],
            "last kept": x[-1:],
            "first": x[0],
            "most": x[:2],
            "back": x[::-1],
            "odd": x[1::2],
            "half": x[: n // 2],
            "from": x[n - 1],
            "from end": x[-n:],
        }

    graph = pm.trace(cuts, x=pm.spec("T", 3))
    x = rng.standard_normal((size, 3)).astype(np.float32)
    got = dict(zip([name for name, _ in graph.outputs], evaluate_graph(graph, {"x": x}).outputs))
    for name, want in cuts(x).items():
        same(got[name], want)
    types = {name: graph.nodes[i].type for name, i in graph.outputs}
    assert types["tail"] == types["head"]
    assert str(types["last kept"]) == "f32[1,3]"


def test_a_symbol_slices_a_table() -> None:
    table = rng.standard_normal((8, 2)).astype(np.float32)
    graph = pm.trace(lambda x: x + pm.reshape(table, (8, 2))[: x.shape[0]], x=pm.spec("T", 2))
    assert str(graph.nodes[-1].type) == "f32[T,2]"
    same(evaluate_graph(graph, {"x": np.zeros((5, 2), np.float32)}).outputs[0], table[:5])


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (3, IndexRangeError, "index 3 is out of range for axis 0 of size 3"),
        ((0, -5), IndexRangeError, "index -5 is out of range for axis 1 of size 4"),
        ((0, 0, 0), IndexRangeError, "3 indices"),
        ([0, 7], IndexRangeError, "index 7"),
        (slice(None, None, 0), ShapeError, "step"),
        (([0], None, [1]), ShapeError, "between them"),
        ((..., ...), IndexRangeError, "2 ellipses"),
        (np.array([True, False]), IndexRangeError, "a mask of shape"),
        (1.5, DTypeError, "indices must be integers"),
        (slice(0.5, None), ShapeError, "0.5 is no dim"),
    ],
)
def test_bad_indices_are_named(index: Any, error: type[InputError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        pm.trace(lambda x: x[index], x=pm.spec(3, 4))
    assert "test_functions.py" in caught.value.where


def test_an_int_and_a_tensor_index_apart_are_refused() -> None:
    with pytest.raises(ShapeError, match="slice between"):
        pm.trace(lambda x: x[0, :, [1, 2]], x=pm.spec(2, 3, 4))


# --- refusals ---

REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "reshape": (lambda x: x.reshape(5, -1), ShapeError, r"does not reshape to \(5, -1\)"),
    "reshape twice open": (lambda x: x.reshape(-1, -1), ShapeError, "does not reshape"),
    "transpose": (lambda x: x.transpose(0, 0), ShapeError, "twice"),
    "transpose rank": (lambda x: pm.transpose(x, (0,)), ShapeError, "each of the 2 axes"),
    "axis": (lambda x: x.sum(2), ShapeError, "axis 2 is out of range"),
    "squeeze": (lambda x: x.squeeze(0), ShapeError, "only 1 can be squeezed"),
    "split": (lambda x: pm.split(x, 2), ShapeError, "does not split into 2"),
    "pad": (lambda x: pm.pad(x, ((1, 1), (1, 1), (1, 1))), ShapeError, "pad_width"),
    "moveaxis": (lambda x: pm.moveaxis(x, (0, 1), 0), ShapeError, "cannot move"),
    "broadcast": (lambda x: x + np.zeros(5), ShapeError, "broadcast"),
    "tensor dim": (lambda x: pm.zeros((x.sum(),)), ShapeError, "is no dim"),
    "tensor range": (lambda x: pm.arange(x), ShapeError, "no number"),
    "float indices": (lambda x: pm.take(x, x), DTypeError, "indices must be integers"),
    "no operands": (lambda x: pm.concatenate([]), ShapeError, "at least one"),
    "bits of floats": (lambda x: ~x, DTypeError, "takes"),
    "iteration over a scalar": (lambda x: list(x[0, 0]), ShapeError, "no length"),
    "truth": (lambda x: 1 if x[0, 0] > 0 else 0, GraphError, "no truth value"),
    "float": (lambda x: float(x[0, 0]), GraphError, "no float value"),
    "int": (lambda x: int(x[0, 0]), GraphError, "no int value"),
    "index": (lambda x: range(x[0, 0]), GraphError, "no int value"),
    "array": (lambda x: np.asarray(x), GraphError, "no array value"),
    "operand": (lambda x: x + "text", DTypeError, "'text' is no tensor"),
    "axis that is no int": (lambda x: pm.sum(x, axis=1.0), ShapeError, "1.0 is no axis"),  # type: ignore[arg-type]
    "arange to infinity": (lambda x: pm.arange(float("inf")), ShapeError, "no number of elements"),
    "arange to NaN": (lambda x: pm.arange(0.5, float("nan")), ShapeError, "no number of elements"),
    "ragged list": (lambda x: pm.add(x, [[1], [1, 2]]), DTypeError, "is no tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_rule_and_the_line(case: str) -> None:
    fn, error, text = REFUSED[case]
    with pytest.raises(error, match=text) as caught:
        pm.trace(fn, x=pm.spec(3, 4))
    assert "graphs/test_functions.py:" in caught.value.where  # type: ignore[attr-defined]


def test_iteration_and_length_of_static_axes() -> None:
    same(pm.interpret(lambda x: sum(row * len(x) for row in x), X), X.sum(0) * 3, 1e-4)


def test_every_public_function_is_reachable_from_the_package() -> None:
    import pumice.functions

    names = {name for name, home in pm._HOME_OF.items() if home == "pumice.functions"}
    assert names == set(pumice.functions.__all__)
