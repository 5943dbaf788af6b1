"""The shape, index, random, reduce, norm, scan and sort ops: references against plain NumPy facts, and their infer rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.dims import Dim, dim_min, evaluate, sym
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, GraphError, InputError, ShapeError
from pumice.ir.graph import bind_attrs
from pumice.ir.ops.shape import span
from pumice.ir.registry import OpSpec, Packed, Sample, all_ops, get_op
from pumice.ir.types import TensorType

FAMILIES = ("shape", "index", "random", "reduce", "norm", "scan", "sort")
OPS = [s for s in all_ops() if s.family in FAMILIES]
T, B = sym("T"), sym("B")
NAN, INF = np.nan, np.inf


def tt(*shape: Dim, dtype: DType = dtypes.f32) -> TensorType:
    return TensorType(dtype, shape)


def infer(op: str, *types: TensorType | None, **attrs: Any) -> TensorType:
    spec = get_op(op)
    spec.check_arity(types)
    return spec.result_types(types, spec.complete_attrs(attrs))[0]


def shape_of(op: str, *types: TensorType | None, **attrs: Any) -> tuple[Dim, ...]:
    return infer(op, *types, **attrs).shape


def type_of(value: Any) -> TensorType | None:
    if value is None:
        return None
    return TensorType(value.dtype if isinstance(value, Packed) else dtypes.dtype(value.dtype), tuple(value.shape))


def call(op: str, *inputs: Any, wide: bool = True, **attrs: Any) -> np.ndarray[Any, Any]:
    """The reference as the oracle (float64) or the host backend (float32) calls it, cast to the output dtype."""
    (found,) = call_all(op, *inputs, wide=wide, **attrs)
    return found


def call_all(op: str, *inputs: Any, wide: bool = True, **attrs: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """All results of an op."""
    spec = get_op(op)
    full = spec.complete_attrs(attrs)
    arrays = [np.asarray(i) if isinstance(i, list | float | int) else i for i in inputs]
    outs = spec.result_types([type_of(a) for a in arrays], full)
    results = spec.evaluate([_upcast(a, wide) for a in arrays], full, outs)
    assert len(results) == len(outs) == len(spec.results) and all(a.shape == t.static_shape for a, t in zip(results, outs))
    return tuple(a.astype(t.dtype.np) for a, t in zip(results, outs, strict=True))


def _upcast(value: Any, wide: bool) -> Any:
    if value is None or isinstance(value, Packed) or not dtypes.dtype(value.dtype).is_float:
        return value
    return value.astype(np.float64 if wide else np.float32)


def ids(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def floats(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


# --- every sample ---


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_samples_agree_in_both_precisions(spec: OpSpec) -> None:
    samples = list(spec.samples())
    assert len({s.label for s in samples}) == len(samples) >= 6
    for s in samples:
        before = [None if i is None else (i.data if isinstance(i, Packed) else i).copy() for i in s.inputs]
        both = [call_all(spec.name, *s.inputs, wide=w, **s.attrs) for w in (True, False)]
        for array, copy in zip(s.inputs, before, strict=True):
            data = array.data if isinstance(array, Packed) else array
            np.testing.assert_array_equal(data, copy, err_msg=f"{s.label}: a reference may not write into its operands")
        assert _elements(s) < 100_000, s.label
        for wide, narrow in zip(*both, strict=True):
            tolerance = 0.02 if wide.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(_f64(wide), _f64(narrow), rtol=tolerance, atol=tolerance, err_msg=s.label)


def _elements(s: Sample) -> int:
    return sum(int(np.prod(i.shape)) for i in s.inputs if i is not None)


def _f64(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.astype(np.float64)


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_samples_repeat(spec: OpSpec) -> None:
    for a, b in zip(spec.samples(), spec.samples(), strict=True):
        assert a.label == b.label and a.attrs == b.attrs
        for x, y in zip(a.inputs, b.inputs, strict=True):
            first, second = (v.data if isinstance(v, Packed) else v for v in (x, y))
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_rules_are_written_and_half_floats_sampled(spec: OpSpec) -> None:
    assert spec.rules and spec.summary
    if spec.family in ("norm", "scan", "sort"):
        found = {t.dtype.name for s in spec.samples() for i in s.inputs if (t := type_of(i))}
        assert {"f32", "f16", "bf16"} <= found


# --- shape ---


def test_symbolic_shapes() -> None:
    assert shape_of("reshape", tt(B, T, 6), shape=(B * T, 2, 3)) == (B * T, 2, 3)
    assert shape_of("transpose", tt(B, T, 6), perm=(2, 0, 1)) == (6, B, T)
    assert shape_of("expand", tt(1, 4), shape=(T, 4)) == (T, 4)
    assert shape_of("expand", tt(T, 1), shape=(B, T, B)) == (B, T, B)
    assert shape_of("concat", tt(T, 4), tt(3, 4), axis=0) == (T + 3, 4)
    assert shape_of("concat", tt(T), tt(B), tt(T), axis=0) == (2 * T + B,)
    assert shape_of("pad", tt(T, 4), lo=(1, B), hi=(2, 0), value=0.0) == (T + 3, B + 4)
    assert shape_of("flip", tt(T, 4), axes=(0,)) == (T, 4)


def test_symbolic_slices() -> None:
    def one(start: Dim, stop: Dim, step: int) -> Dim:
        return shape_of("slice", tt(T), starts=(start,), stops=(stop,), steps=(step,))[0]

    assert one(0, T, 1) == T
    assert one(T - 1, T, 1) == 1
    assert one(T - 1, -1, -1) == T
    assert one(0, dim_min(T, 3), 1) == dim_min(T, 3)
    assert str(one(0, T, 2)) == "floordiv(T+1,2)"
    assert str(one(3, T, 1)) == "max(T-3,0)"
    for t in range(12):
        x = np.arange(t)
        assert evaluate(one(0, T, 5), {"T": t}) == len(x[::5])
        assert evaluate(one(3, T, 2), {"T": t}) == len(x[3::2])
        assert evaluate(one(T - 1, -1, -4), {"T": t}) == len(x[::-4])
        assert evaluate(one(dim_min(2, T), T, 1), {"T": t}) == len(x[2:])


def test_span_needs_no_max_where_the_range_cannot_be_reversed() -> None:
    assert span(dim_min(T, 4), T) == T - dim_min(T, 4)
    assert span(T // 2, T) == T - T // 2
    assert span(T % 8, T) == T - T % 8
    assert span(T, T + 5) == 5
    assert span(2, 1) == 0
    assert [evaluate(span(B, T), {"B": b, "T": 3}) for b in (0, 2, 5)] == [3, 1, 0]


def test_symbolic_slice_runs_at_every_length() -> None:
    spec = get_op("slice")
    attrs = {"starts": (2,), "stops": (T,), "steps": (1,)}
    out = spec.infer([tt(T)], attrs)
    for t in (0, 1, 2, 3, 9):
        x = np.arange(float(t))
        np.testing.assert_array_equal(spec.reference([x], bind_attrs(attrs, {"T": t}), out.at({"T": t})), x[2:])


@pytest.mark.parametrize(
    "index", [slice(None, None, -1), slice(5, 1, -2), slice(1, 7, 3), slice(4, 4), slice(0, 3, -1), slice(6, None, -6)]
)
def test_slice_is_numpys(index: slice) -> None:
    x = np.arange(7, dtype=np.int32)
    start, stop, step = index.indices(7)
    stop = stop if len(range(start, stop, step)) else start
    np.testing.assert_array_equal(call("slice", x, starts=(start,), stops=(stop,), steps=(step,)), x[index])


def test_pad_is_numpys() -> None:
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    got = call("pad", x, lo=(1, 0), hi=(0, 2), value=-3)
    np.testing.assert_array_equal(got, np.pad(x, ((1, 0), (0, 2)), constant_values=-3))


SHAPE_ERRORS: list[tuple[str, Sequence[TensorType | None], dict[str, Any], type[Exception], str]] = [
    ("reshape", [tt(2, 3)], {"shape": (4,)}, ShapeError, r"\(2, 3\) has 6 elements, \(4,\) has 4"),
    ("reshape", [tt(T, 2)], {"shape": (T,)}, ShapeError, r"2\*T elements"),
    ("reshape", [tt(6)], {"shape": (-1, 2)}, ShapeError, "negative dim"),
    ("reshape", [tt(2, 32, dtype=dtypes.q4_0)], {"shape": (64,)}, DTypeError, "not q4_0"),
    ("transpose", [tt(2, 3)], {"perm": (0, 0)}, ShapeError, "each of the 2 axes once"),
    ("expand", [tt(2, 3)], {"shape": (4, 3)}, ShapeError, "does not expand"),
    ("expand", [tt(2, 3)], {"shape": (3,)}, ShapeError, "does not expand"),
    ("expand", [tt(T)], {"shape": (B,)}, ShapeError, "does not expand"),
    ("concat", [tt(2, 3), tt(2, 4)], {"axis": 0}, ShapeError, "operand 1 .* along axis 0"),
    ("concat", [tt(2, 3), tt(2)], {"axis": 0}, ShapeError, "operand 1"),
    ("concat", [tt(2), tt(2, dtype=dtypes.i32)], {"axis": 0}, DTypeError, "f32 and i32 differ"),
    ("concat", [tt(2)], {"axis": -1}, ShapeError, "axis -1"),
    ("concat", [tt()], {"axis": 0}, ShapeError, "0 axes"),
    ("flip", [tt(2, 3)], {"axes": (1, 0)}, ShapeError, "ascending"),
    ("flip", [tt(2, 3)], {"axes": (1, 1)}, ShapeError, "twice"),
    ("slice", [tt(4)], {"starts": (0,), "stops": (5,), "steps": (1,)}, ShapeError, "axis 0 is not within 0…4"),
    ("slice", [tt(4)], {"starts": (3,), "stops": (1,), "steps": (1,)}, ShapeError, "slice 3:1:1"),
    ("slice", [tt(4)], {"starts": (-1,), "stops": (4,), "steps": (1,)}, ShapeError, "slice -1:4:1"),
    ("slice", [tt(4)], {"starts": (4,), "stops": (-1,), "steps": (-1,)}, ShapeError, "slice 4:-1:-1"),
    ("slice", [tt(4)], {"starts": (0,), "stops": (4,), "steps": (0,)}, ShapeError, "slice 0:4:0"),
    ("slice", [tt(4, 2)], {"starts": (0,), "stops": (4,), "steps": (1,)}, ShapeError, "each of 2 axes"),
    ("pad", [tt(2)], {"lo": (-1,), "hi": (0,)}, ShapeError, "remove elements"),
    ("pad", [tt(2)], {"lo": (1, 1), "hi": (0,)}, ShapeError, "each of 1 axes"),
    ("pad", [tt(2, dtype=dtypes.u8)], {"lo": (1,), "hi": (0,), "value": 256.0}, DTypeError, "256.0 is no value of u8"),
    ("pad", [tt(2, dtype=dtypes.i32)], {"lo": (1,), "hi": (0,), "value": -INF}, DTypeError, "no value of i32"),
    ("gather", [tt(2, 3), tt(2)], {"axis": 0}, DTypeError, "takes int or uint, not f32"),
    ("gather", [tt(0, 3), tt(2, dtype=dtypes.i32)], {"axis": 0}, ShapeError, "axis 0 is empty"),
    ("take_along_axis", [tt(2, 3), tt(3, 1, dtype=dtypes.i32)], {"axis": 1}, ShapeError, "do not match x"),
    ("take_along_axis", [tt(2, 3), tt(2, dtype=dtypes.i32)], {"axis": 1}, ShapeError, "do not match x"),
    ("embedding", [tt(4), tt(2, dtype=dtypes.i32)], {}, ShapeError, "entries, width"),
    ("embedding", [tt(4, 2, dtype=dtypes.i32), tt(2, dtype=dtypes.i32)], {}, DTypeError, "float or quant"),
    ("embedding", [tt(4, 33, dtype=dtypes.q8_0), tt(2, dtype=dtypes.i32)], {}, ShapeError, "q8_0 blocks of 32"),
    ("one_hot", [tt(4)], {"depth": 3}, DTypeError, "int or uint"),
    ("one_hot", [tt(4, dtype=dtypes.i32)], {"depth": -1}, ShapeError, "depth must be"),
    ("one_hot", [tt(4, dtype=dtypes.i32)], {"depth": 32, "dtype": "q4_0"}, DTypeError, "not q4_0"),
    ("arange", [], {"stop": 3, "step": 0}, ShapeError, "step"),
    ("arange", [], {"stop": 3, "step": 0.5}, DTypeError, "fractions need a float dtype"),
    ("arange", [], {"stop": T, "step": 0.5, "dtype": "f32"}, DTypeError, "static ends"),
    ("arange", [], {"stop": 3, "dtype": "bool"}, DTypeError, "not in bool"),
    ("scatter_add", [tt(4, 3), tt(2, dtype=dtypes.i32), tt(3, 3)], {"axis": 0}, ShapeError, "updates and x"),
    ("scatter_add", [tt(4, 3), tt(2, 1, dtype=dtypes.i32), tt(2, 3)], {"axis": 0}, ShapeError, "1-D"),
    ("scatter_set", [tt(4), tt(2, dtype=dtypes.i32), tt(2, dtype=dtypes.f16)], {"axis": 0}, DTypeError, "f32 and f16"),
    (
        "scatter_add",
        [tt(4, dtype=dtypes.bool_), tt(2, dtype=dtypes.i32), tt(2, dtype=dtypes.bool_)],
        {"axis": 0},
        DTypeError,
        "not bool",
    ),
    ("random_bits", [tt(2)], {"shape": (3,)}, DTypeError, "key must be u32"),
    ("random_uniform", [tt(3, dtype=dtypes.u32)], {"shape": (3,)}, ShapeError, r"shape \(2,\)"),
    ("random_normal", [tt(2, dtype=dtypes.u32)], {"shape": (-3,)}, ShapeError, "negative dim"),
    ("random_bernoulli", [tt(2, dtype=dtypes.u32)], {"shape": (3,), "p": 1.5}, InputError, "probability"),
    ("reduce_sum", [tt(2, 3)], {"axes": (-1,)}, ShapeError, "axis -1"),
    ("reduce_sum", [tt(2, 3)], {"axes": (0, 0)}, ShapeError, "twice"),
    ("reduce_mean", [tt(2, dtype=dtypes.i32)], {"axes": (0,)}, DTypeError, "takes float, not i32"),
    ("reduce_max", [tt(2, 0)], {"axes": (1,)}, ShapeError, "axis 1 is empty"),
    ("reduce_min", [tt(2, dtype=dtypes.bool_)], {"axes": (0,)}, DTypeError, "not bool"),
    ("reduce_any", [tt(2)], {"axes": (0,)}, DTypeError, "takes bool"),
    ("argmax", [tt(0)], {"axis": 0}, ShapeError, "axis 0 is empty"),
    ("argmin", [tt()], {"axis": 0}, ShapeError, "0 axes"),
    ("softmax", [tt(3, dtype=dtypes.i32)], {"axis": 0}, DTypeError, "takes float"),
    ("softmax", [tt(3)], {"axis": 1}, ShapeError, "axis 1"),
    ("layer_norm", [tt(3, 4), tt(3), None], {}, ShapeError, "weight and the last 1 dims"),
    ("layer_norm", [tt(3, 4), tt(4), tt(4, dtype=dtypes.f16)], {}, DTypeError, "f32 and f16"),
    ("layer_norm", [tt(3, 4), None, tt(3)], {}, ShapeError, "bias and the last 1 dims"),
    ("rms_norm", [tt(3, 4), None], {"axes": 3}, ShapeError, "last 3 of 2 axes"),
    ("rms_norm", [tt(3, 4), None], {"axes": 0}, ShapeError, "last 0 of 2 axes"),
    ("rms_norm", [tt(3, 4), None], {"eps": -1.0}, InputError, "eps"),
    ("cumsum", [tt(3, dtype=dtypes.i8)], {"axis": 0}, DTypeError, "cast|wrap"),
    ("cumsum", [tt(3, dtype=dtypes.bool_)], {"axis": 0}, DTypeError, "not bool"),
    ("sort", [tt(3, dtype=dtypes.bool_)], {"axis": 0}, DTypeError, "not bool"),
    ("top_k", [tt(3)], {"k": 4, "axis": 0}, ShapeError, "k = 4 is more than the 3"),
    ("top_k", [tt(3)], {"k": -1, "axis": 0}, ShapeError, "k must be"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "error", "message"), SHAPE_ERRORS)
def test_bad_operands_are_refused_by_rule(
    op: str, types: Sequence[TensorType | None], attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        infer(op, *types, **attrs)


def test_required_attributes_are_asked_for() -> None:
    with pytest.raises(GraphError, match="needs the attribute 'axis'"):
        infer("softmax", tt(3))


# --- index ---


def test_symbolic_index_ops() -> None:
    i = tt(B, T, dtype=dtypes.i32)
    assert shape_of("gather", tt(5, T, 4), tt(B, 2, dtype=dtypes.u8), axis=1) == (5, B, 2, 4)
    assert shape_of("take_along_axis", tt(B, 9), i, axis=1) == (B, T)
    assert infer("embedding", tt(100, 64, dtype=dtypes.q4_1), i) == tt(B, T, 64)
    assert infer("embedding", tt(T, 8, dtype=dtypes.bf16), i) == tt(B, T, 8, dtype=dtypes.bf16)
    assert infer("one_hot", i, depth=7, dtype="u8") == tt(B, T, 7, dtype=dtypes.u8)
    assert shape_of("scatter_add", tt(T, 4), tt(B, dtype=dtypes.i32), tt(B, 4), axis=0) == (T, 4)
    assert shape_of("arange", stop=T) == (T,)
    assert shape_of("arange", start=B, stop=B + T) == (T,)
    assert shape_of("arange", start=T, stop=0, step=-1) == (T,)
    assert str(shape_of("arange", stop=T, step=3)[0]) == "floordiv(T+2,3)"


def test_reads_out_of_range_clamp() -> None:
    x = np.arange(5, dtype=np.int32) * 10
    index = ids(-1, -5, -6, -1000, 4, 5, 1000, 0)
    wanted = [40, 0, 0, 0, 40, 40, 40, 0]
    np.testing.assert_array_equal(call("gather", x, index, axis=0), wanted)
    np.testing.assert_array_equal(call("take_along_axis", x, index, axis=0), wanted)
    np.testing.assert_array_equal(call("embedding", x[:, None].astype(np.float32), index)[:, 0], wanted)


def test_narrow_indices_reach_the_end_of_long_axes() -> None:
    x = np.arange(300, dtype=np.int32)
    np.testing.assert_array_equal(call("gather", x, np.array([-1, 127], np.int8), axis=0), [299, 127])
    np.testing.assert_array_equal(call("gather", x, np.array([2**32 - 1, 7], np.uint32), axis=0), [299, 7])


def test_reads_of_an_axis_that_turns_out_empty_give_zeros() -> None:
    zeros = get_op("gather").reference([np.zeros((0, 2)), ids(0, 3)], {"axis": 0}, tt(2, 2))
    np.testing.assert_array_equal(zeros, np.zeros((2, 2)))


def test_gather_is_take() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 4, 3)
    index = ids([3, 0], [1, 1])
    np.testing.assert_array_equal(call("gather", x, index, axis=1), np.take(x, index, axis=1))


def test_one_hot_edges() -> None:
    got = call("one_hot", ids(1, -1, 3, -4), depth=3, dtype="i32")
    np.testing.assert_array_equal(got, [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("args", [(0, 5, 1), (5, 0, -2), (0, 5, 2), (3, 3, 1), (5, 1, 1), (0.25, 1.5, 0.5)])
def test_arange_is_numpys(args: tuple[float, float, float]) -> None:
    start, stop, step = args
    kind = "i32" if all(isinstance(a, int) for a in args) else "f32"
    np.testing.assert_array_equal(call("arange", start=start, stop=stop, step=step, dtype=kind), np.arange(*args))


def test_arange_reaches_the_end_of_u32() -> None:
    got = call("arange", start=2**32 - 2, stop=2**32, dtype="u32")
    np.testing.assert_array_equal(got, np.array([2**32 - 2, 2**32 - 1], np.uint32))


def test_scatter_drops_what_is_out_of_range_and_orders_duplicates() -> None:
    x = np.zeros(4, np.int32)
    index, updates = ids(1, -1, 1, 4, -5, 1), ids(1, 2, 4, 8, 16, 32)
    np.testing.assert_array_equal(call("scatter_add", x, index, updates, axis=0), [0, 37, 0, 2])
    np.testing.assert_array_equal(call("scatter_set", x, index, updates, axis=0), [0, 32, 0, 2])


def test_scatter_along_the_last_axis() -> None:
    x = np.ones((2, 3), np.float32)
    updates = floats([1, 2], [3, 4])
    np.testing.assert_array_equal(call("scatter_add", x, ids(2, 2), updates, axis=1), [[1, 1, 4], [1, 1, 8]])
    np.testing.assert_array_equal(call("scatter_set", x, ids(0, 2), updates, axis=1), [[1, 1, 2], [3, 1, 4]])


def test_scatter_add_of_bytes_wraps() -> None:
    got = call("scatter_add", np.array([200], np.uint8), ids(0, 0), np.array([50, 10], np.uint8), axis=0)
    assert got.tolist() == [4]


# --- random ---

KEY = np.array([7, 9], np.uint32)


def test_random_elements_depend_on_their_flat_index_only() -> None:
    for op in ("random_bits", "random_uniform", "random_normal"):
        flat = call(op, KEY, shape=(100,))
        np.testing.assert_array_equal(call(op, KEY, shape=(4, 5)).ravel(), flat[:20])
        assert not np.array_equal(call(op, KEY[::-1].copy(), shape=(100,)), flat)


def test_random_bits_are_the_published_threefry() -> None:
    # Known-answer vector of Threefry-2x32-20 for key 0, counter 0.
    assert call("random_bits", np.zeros(2, np.uint32), shape=()) == 0x6B200159


def test_random_distributions() -> None:
    u = call("random_uniform", KEY, shape=(20_000,))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01
    assert np.array_equal(u * 2**24, np.floor(u * 2**24))
    z = call("random_normal", KEY, shape=(20_000,))
    assert np.isfinite(z).all() and abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.03
    assert abs(call("random_bernoulli", KEY, shape=(20_000,), p=0.2).mean() - 0.2) < 0.01
    np.testing.assert_array_equal(call("random_bernoulli", KEY, shape=(20_000,), p=0.2), u < np.float32(0.2))
    assert not call("random_bernoulli", KEY, shape=(999,), p=0.0).any()
    assert call("random_bernoulli", KEY, shape=(999,), p=1.0).all()


def test_random_types() -> None:
    key = tt(2, dtype=dtypes.u32)
    assert infer("random_bits", key, shape=(T, 3)) == tt(T, 3, dtype=dtypes.u32)
    assert infer("random_bernoulli", key, shape=(), p=0.5) == tt(dtype=dtypes.bool_)


# --- reduce ---


def test_symbolic_reductions() -> None:
    assert shape_of("reduce_sum", tt(B, T, 4), axes=(1,)) == (B, 4)
    assert shape_of("reduce_max", tt(B, T, 4), axes=(0, 1), keepdims=True) == (1, 1, 4)
    assert infer("argmax", tt(B, T), axis=1) == tt(B, dtype=dtypes.i32)
    assert infer("argmin", tt(B, T), axis=0, keepdims=True) == tt(1, T, dtype=dtypes.i32)


@pytest.mark.parametrize(("source", "wanted"), [("i8", "i32"), ("u8", "u32"), ("bool", "i32"), ("i32", "i32"), ("f16", "f16")])
def test_sums_and_products_widen_narrow_integers(source: str, wanted: str) -> None:
    for op in ("reduce_sum", "reduce_prod"):
        assert infer(op, tt(3, dtype=dtypes.dtype(source)), axes=(0,)).dtype.name == wanted


def test_sums_of_narrow_integers_do_not_wrap_and_of_wide_ones_do() -> None:
    assert call("reduce_sum", np.full(1000, 127, np.int8), axes=(0,)) == 127_000
    assert call("reduce_sum", np.full(300, 255, np.uint8), axes=(0,)) == 76_500
    assert call("reduce_sum", np.full(2, 2**31 - 1, np.int32), axes=(0,)) == -2
    assert call("reduce_sum", np.ones(70, np.bool_), axes=(0,)) == 70


@pytest.mark.parametrize(("op", "wanted"), [("reduce_sum", 0), ("reduce_prod", 1), ("reduce_mean", NAN)])
def test_reductions_of_nothing(op: str, wanted: float) -> None:
    np.testing.assert_array_equal(call(op, np.zeros((2, 0), np.float32), axes=(1,)), [wanted, wanted])


def test_logic_of_nothing() -> None:
    nothing = np.zeros((0,), np.bool_)
    assert not call("reduce_any", nothing, axes=(0,)) and call("reduce_all", nothing, axes=(0,))


@pytest.mark.parametrize(
    ("op", "dtype", "wanted"),
    [
        ("reduce_max", "f32", -INF),
        ("reduce_min", "f32", INF),
        ("reduce_max", "i32", -(2**31)),
        ("reduce_min", "i8", 127),
        ("reduce_max", "u32", 0),
        ("reduce_min", "u32", 2**32 - 1),
    ],
)
def test_extremes_of_an_axis_that_turns_out_empty(op: str, dtype: str, wanted: float) -> None:
    kind = dtypes.dtype(dtype)
    got = get_op(op).reference([np.zeros((2, 0), kind.np)], {"axes": (1,), "keepdims": False}, tt(2, dtype=kind))
    np.testing.assert_array_equal(got, [wanted, wanted])


def test_extremes_propagate_nan() -> None:
    x = floats([1, NAN, 3], [4, 5, 6])
    np.testing.assert_array_equal(call("reduce_max", x, axes=(1,)), [NAN, 6])
    np.testing.assert_array_equal(call("reduce_min", x, axes=(1,)), [NAN, 4])


def test_arg_extremes_take_the_first() -> None:
    x = floats([2, 7, 7, 1, 1], [5, NAN, 9, NAN, -INF], [3, 3, 3, 3, 3])
    np.testing.assert_array_equal(call("argmax", x, axis=1), [1, 1, 0])
    np.testing.assert_array_equal(call("argmin", x, axis=1), [3, 1, 0])
    assert call("argmax", x, axis=0, keepdims=True).shape == (1, 5)


# --- norm ---


def test_softmax_is_stable_and_sums_to_one() -> None:
    x = floats([1e4, 1e4 - 1, -1e4], [-1e4, -1e4, -1e4], [-INF, 0, 0])
    got = call("softmax", x, wide=False, axis=1)
    e = np.exp(-1.0)
    np.testing.assert_allclose(got, [[1 / (1 + e), e / (1 + e), 0], [1 / 3] * 3, [0, 0.5, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(call("log_softmax", x, axis=1)), got, rtol=1e-6)
    np.testing.assert_allclose(call("softmax", x[:2], axis=0).sum(0), 1, rtol=1e-6)


def test_softmax_of_minus_infinity_only_is_nan() -> None:
    assert np.isnan(call("softmax", floats(-INF, -INF), axis=0)).all()


def test_norms_by_hand() -> None:
    x = floats([[1, 2], [3, 6]])
    np.testing.assert_allclose(
        call("layer_norm", x, None, None, axes=2, eps=0.5).ravel(), ([-2, -1, 0, 3] / np.sqrt(4.0)), rtol=1e-6
    )
    weight, bias = floats(2, 3), floats(10, 20)
    np.testing.assert_allclose(call("layer_norm", x[0], weight, bias, eps=0.0), [[8, 23], [8, 23]], rtol=1e-6)
    np.testing.assert_allclose(call("rms_norm", floats([3, 4]), weight, eps=0.0), [[6 / 12.5**0.5, 12 / 12.5**0.5]], rtol=1e-6)
    np.testing.assert_array_equal(call("rms_norm", floats([0, 0]), None, eps=1e-6), [[0, 0]])


def test_symbolic_norms() -> None:
    assert shape_of("layer_norm", tt(B, T, 8), tt(T, 8), None, axes=2) == (B, T, 8)
    assert shape_of("rms_norm", tt(B, T, 8), tt(8)) == (B, T, 8)
    assert shape_of("softmax", tt(B, T), axis=1) == (B, T)


# --- scan ---


def test_cumsum_modes() -> None:
    x = ids(1, 2, 3, 4)
    np.testing.assert_array_equal(call("cumsum", x, axis=0), [1, 3, 6, 10])
    np.testing.assert_array_equal(call("cumsum", x, axis=0, exclusive=True), [0, 1, 3, 6])
    np.testing.assert_array_equal(call("cumsum", x, axis=0, reverse=True), [10, 9, 7, 4])
    np.testing.assert_array_equal(call("cumsum", x, axis=0, exclusive=True, reverse=True), [9, 7, 4, 0])
    np.testing.assert_array_equal(call("cumsum", ids([1, 2], [3, 4]), axis=0, reverse=True), [[4, 6], [3, 4]])


def test_cumsum_wraps_and_keeps_infinities_apart() -> None:
    np.testing.assert_array_equal(call("cumsum", np.full(2, 2**31 - 1, np.int32), axis=0), [2**31 - 1, -2])
    np.testing.assert_array_equal(call("cumsum", floats(1, INF, 2), axis=0, exclusive=True), [0, 1, INF])


# --- sort ---


def test_sort_is_stable_with_nan_last_both_ways() -> None:
    x = floats(2, NAN, 1, 2, -INF, NAN, 1)
    for descending, order in ((False, [4, 2, 6, 0, 3, 1, 5]), (True, [0, 3, 2, 6, 4, 1, 5])):
        values, indices = call_all("sort", x, axis=0, descending=descending)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, x[order])


def test_sort_of_integer_ends() -> None:
    low, high = -(2**31), 2**31 - 1
    np.testing.assert_array_equal(call_all("sort", ids(0, low, high, low), axis=0, descending=True)[1], [2, 0, 1, 3])
    values, indices = call_all("sort", np.array([0, 255, 0], np.uint8), axis=0, descending=True)
    np.testing.assert_array_equal(indices, [1, 0, 2])
    np.testing.assert_array_equal(values, [255, 0, 0])


def test_top_k_prefers_nan_then_small_indices() -> None:
    x = floats(2, NAN, 7, 2, 7, NAN)
    values, indices = call_all("top_k", x, k=6, axis=0)
    np.testing.assert_array_equal(indices, [1, 5, 2, 4, 0, 3])
    np.testing.assert_array_equal(values, x[indices])
    np.testing.assert_array_equal(call_all("top_k", x, k=1, axis=0)[1], [1])
    np.testing.assert_array_equal(call_all("top_k", floats([1, 5], [3, 5], [2, 9]), k=2, axis=0)[1], [[1, 2], [2, 0]])


def test_top_k_refuses_a_symbolic_axis_that_turns_out_too_short() -> None:
    spec, attrs = get_op("top_k"), {"k": 4, "axis": 0}
    outs = spec.result_types([tt(T)], attrs)
    assert outs == (tt(4), tt(4, dtype=dtypes.i32))
    with pytest.raises(ShapeError, match="k = 4 is more than the 3"):
        spec.evaluate([np.zeros(3)], attrs, outs)
