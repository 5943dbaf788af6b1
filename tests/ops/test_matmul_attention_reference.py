"""The matmul and attention families: types, refusals, and references checked against slow definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows
from pumice.core.dims import sym
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, GraphError, InputError, PumiceError, ShapeError
from pumice.ir.ops import matmul as matmul_module
from pumice.ir.registry import OpSpec, Packed, Sample, get_op
from pumice.ir.types import TensorType

OPS = ("matmul", "qmatmul", "dequantize", "rope", "attention")
B, S, T = sym("B"), sym("S"), sym("T")


def _cases() -> list[Any]:
    return [pytest.param(get_op(op), s, id=f"{op}: {s.label}") for op in OPS for s in get_op(op).samples()]


def _cases_of(op: str) -> list[Any]:
    return [pytest.param(s, id=s.label) for s in get_op(op).samples()]


def _type_of(value: Any) -> TensorType | None:
    if value is None:
        return None
    return TensorType(value.dtype if isinstance(value, Packed) else dtypes.dtype(value.dtype), tuple(value.shape))


def _compute(value: Any, precision: Any) -> Any:
    if value is None or isinstance(value, Packed):
        return value
    return value.astype(precision) if dtypes.dtype(value.dtype).is_float else value


def _run(spec: OpSpec, sample: Sample, precision: Any = np.float64) -> tuple[np.ndarray[Any, Any], TensorType]:
    attrs = spec.complete_attrs(sample.attrs)
    spec.check_arity(sample.inputs)
    outs = spec.result_types([_type_of(v) for v in sample.inputs], attrs)
    (result,) = spec.evaluate([_compute(v, precision) for v in sample.inputs], attrs, outs)
    return result, outs[0]


def _infer(op: str, *types: TensorType | None, **attrs: Any) -> TensorType:
    spec = get_op(op)
    padded = (*types, *[None] * (len(spec.operands) - len(types)))
    return spec.result_types(padded, spec.complete_attrs(attrs))[0]


def _f32(*shape: Any) -> TensorType:
    return TensorType(dtypes.f32, shape)


def _typed(dtype: DType, *shape: Any) -> TensorType:
    return TensorType(dtype, shape)


@pytest.mark.parametrize("op", OPS)
def test_labels_are_unique_and_samples_repeat(op: str) -> None:
    first, second = list(get_op(op).samples()), list(get_op(op).samples())
    assert len({s.label for s in first}) == len(first)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if x is not None:
                left, right = (v.data if isinstance(v, Packed) else v for v in (x, y))
                np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(("spec", "sample"), _cases())
def test_reference_has_the_inferred_type_in_both_precisions(spec: OpSpec, sample: Sample) -> None:
    exact, out = _run(spec, sample, np.float64)
    single, _ = _run(spec, sample, np.float32)
    assert exact.shape == single.shape == out.static_shape
    if out.dtype.is_float:
        assert single.dtype == np.float32
        assert exact.dtype == (np.float32 if spec.name == "dequantize" else np.float64)
        np.testing.assert_allclose(single, exact, rtol=2e-3, atol=1e-4)
        assert np.isfinite(exact).all()
    else:
        np.testing.assert_array_equal(exact, single)


@pytest.mark.parametrize("sample", _cases_of("matmul"))
def test_matmul_sums_products(sample: Sample) -> None:
    got, out = _run(get_op("matmul"), sample)
    a, b = (_compute(v, np.float64) for v in sample.inputs)
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    # Products side by side and one sum: no BLAS, no matmul.
    products = left[..., :, :, None] * right[..., None, :, :]
    expected = products.sum(axis=-2, dtype=None if out.dtype.is_float else products.dtype)
    np.testing.assert_allclose(got, expected.reshape(out.static_shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sample", _cases_of("qmatmul"))
def test_qmatmul_is_matmul_of_the_dequantised_weight(sample: Sample) -> None:
    got, _ = _run(get_op("qmatmul"), sample)
    x, w = sample.inputs
    assert isinstance(w, Packed)
    dense = dequantize_rows(w.dtype, w.data, w.shape[1]).astype(np.float64)
    left = _compute(x, np.float64)
    if sample.attrs.get("precision") == "fast":
        left = np.array([_in_eight_bits(row) for row in left.reshape(-1, 32)]).reshape(left.shape)
    np.testing.assert_allclose(got, np.einsum("...k,nk->...n", left, dense), rtol=1e-10, atol=1e-10)


def _in_eight_bits(block: Any) -> list[float]:
    """A block as precision="fast" has it, number by number; Python rounds halves to even too."""
    step = max(abs(float(v)) for v in block) / 127
    return [0.0 if step < 2.0**-126 else step * round(float(v) / step) for v in block]


def test_qmatmul_unpacks_in_slices_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(s for s in get_op("qmatmul").samples() if "(130, 96)" in s.label)
    whole, _ = _run(get_op("qmatmul"), sample)
    monkeypatch.setattr(matmul_module, "_UNPACK_ELEMENTS", 7 * 96)
    sliced, _ = _run(get_op("qmatmul"), sample)
    np.testing.assert_allclose(sliced, whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((B, T, 8), (8, 5), (B, T, 5)),
        ((T,), (T,), ()),
        ((T, 4), (4,), (T,)),
        ((4,), (B, 4, S), (B, S)),
        ((B, 1, T, S), (7, S, 3), (B, 7, T, 3)),
        ((2 * T, T + 1), (1 + T, 2), (2 * T, 2)),
    ],
    ids=str,
)
def test_matmul_types_with_symbols(a: Any, b: Any, expected: Any) -> None:
    assert _infer("matmul", _f32(*a), _f32(*b)) == _f32(*expected)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (_f32(2, 3), _f32(4, 5), ("3", "4", "(2, 3)", "(4, 5)", "last axis but one")),
        (_f32(2, 3), _f32(4), ("(2, 3)", "(4,)", "only axis")),
        (_f32(2, T), _f32(S, 2), ("(2, T)", "(S, 2)")),
        (_f32(), _f32(3), ("rank 1", "()", "(3,)")),
        (_f32(2, 3, 4), _f32(3, 4, 5), ("broadcast", "(2, 3, 4)", "(3, 4, 5)")),
    ],
    ids=str,
)
def test_matmul_refuses_shapes(a: TensorType, b: TensorType, words: tuple[str, ...]) -> None:
    with pytest.raises(ShapeError) as e:
        _infer("matmul", a, b)
    assert all(w in e.value.message for w in words)


@pytest.mark.parametrize("dtype", [dtypes.i8, dtypes.u8, dtypes.bool_, dtypes.q4_0], ids=str)
def test_matmul_refuses_dtypes(dtype: DType) -> None:
    with pytest.raises(DTypeError, match=dtype.name):
        _infer("matmul", _typed(dtype, 32, 32), _typed(dtype, 32, 32))
    with pytest.raises(DTypeError, match="differ"):
        _infer("matmul", _f32(32, 32), _typed(dtype, 32, 32))


def test_matmul_of_two_floats_is_f32() -> None:
    f16, bf16 = (_typed(d, 32, 8) for d in (dtypes.f16, dtypes.bf16))
    for right in (f16, bf16):
        assert _infer("matmul", _f32(T, 32), right) == _f32(T, 8)
        assert _infer("matmul", right, _f32(8, 4)) == _f32(32, 4)
    assert _infer("matmul", _typed(dtypes.bf16, T, 32), f16) == _f32(T, 8)
    with pytest.raises(DTypeError, match="differ"):
        _infer("matmul", f16, _typed(dtypes.i32, 8, 4))


@pytest.mark.parametrize("q", dtypes.QUANT, ids=str)
def test_quantised_types(q: DType) -> None:
    k, odd = 2 * q.block, q.block + 8
    w = _typed(q, 10, k)
    assert _infer("qmatmul", _typed(dtypes.f16, B, T, k), w) == _typed(dtypes.f16, B, T, 10)
    assert _infer("qmatmul", _f32(k), w) == _f32(10)
    assert _infer("dequantize", _typed(q, T, 3, k)) == _f32(T, 3, k)
    bad: list[tuple[TensorType, TensorType, type[PumiceError]]] = [
        (_f32(2, q.block), w, ShapeError),
        (_f32(), w, ShapeError),
        (_f32(2, k), _typed(q, 2, 10, k), ShapeError),
        (_f32(2, T), _typed(q, 10, T), ShapeError),
        (_f32(2, odd), _typed(q, 10, odd), ShapeError),
        (_typed(dtypes.i32, 2, k), w, DTypeError),
        (_f32(2, k), _f32(10, k), DTypeError),
    ]
    for x, weight, error in bad:
        with pytest.raises(error):
            _infer("qmatmul", x, weight)
    for wrong in (_typed(q), _typed(q, odd), _typed(q, 3, T)):
        with pytest.raises(ShapeError, match=f"multiple of {q.block}"):
            _infer("dequantize", wrong)
    with pytest.raises(DTypeError):
        _infer("dequantize", _f32(q.block))


@pytest.mark.parametrize("sample", _cases_of("rope"))
def test_rope_rotates_pairs_as_complex_numbers(sample: Sample) -> None:
    got, _ = _run(get_op("rope"), sample)
    x, cos, sin = (_compute(v, np.float64) for v in sample.inputs)
    r = sample.attrs["rotary_dim"]
    first = list(range(0, r, 2)) if sample.attrs["interleaved"] else list(range(r // 2))
    second = [i + 1 for i in first] if sample.attrs["interleaved"] else [i + r // 2 for i in first]
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)
    np.testing.assert_allclose(got[..., first], turned.real, atol=1e-12)
    np.testing.assert_allclose(got[..., second], turned.imag, atol=1e-12)
    np.testing.assert_array_equal(got[..., r:], x[..., r:])


def test_rope_types() -> None:
    x = _typed(dtypes.f16, B, 4, T, 64)
    assert _infer("rope", x, _f32(T, 16), _f32(B, 1, T, 16), rotary_dim=32) == x
    assert _infer("rope", _f32(B, T, 4, 8), _f32(T, 1, 4), _f32(T, 1, 4), rotary_dim=8) == _f32(B, T, 4, 8)
    table = _f32(T, 16)
    with pytest.raises(GraphError, match="rotary_dim"):
        _infer("rope", x, table, table)
    for rotary in (0, 33, 66):
        with pytest.raises(ShapeError, match="rotary_dim"):
            _infer("rope", x, table, table, rotary_dim=rotary)
    for wrong in (_f32(T, 32), _f32(S, 16), _f32(1, 1, 1, 1, 16), _f32(3, T, 16)):
        with pytest.raises(ShapeError, match="cos must broadcast"):
            _infer("rope", x, wrong, table, rotary_dim=32)
    with pytest.raises(ShapeError, match="static D"):
        _infer("rope", _f32(4, T), table, table, rotary_dim=2)
    with pytest.raises(ShapeError, match="static D"):
        _infer("rope", _f32(4), table, table, rotary_dim=2)
    with pytest.raises(DTypeError, match="sin takes float"):
        _infer("rope", x, table, _typed(dtypes.i32, T, 16), rotary_dim=32)
    with pytest.raises(DTypeError, match="differ"):
        _infer("rope", x, table, _typed(dtypes.f16, T, 16), rotary_dim=32)


def _slow_attention(sample: Sample) -> np.ndarray[Any, Any]:
    """One query at a time, over the list of the keys it may see."""
    computed = (_compute(x, np.float64) for x in sample.inputs)
    q, k, v, mask, bias, offset, kv_len, kv_index, k_scale, v_scale, sinks = computed
    if k_scale is not None:
        k, v = k * k_scale[..., None], v * v_scale[..., None]
    attrs = sample.attrs
    swap = attrs["layout"] == "bshd"
    if swap:
        q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    (nb, nh, sq, d), (hkv, page) = q.shape, k.shape[1:3]
    table = np.arange(nb)[:, None] if kv_index is None else kv_index.astype(int).reshape(nb, *kv_index.shape[1:] or (1,))
    sk = page * table.shape[1]
    full = (nb, nh, sq, sk)
    mask = np.ones(full, bool) if mask is None else np.broadcast_to(mask, full)
    bias = np.zeros(full) if bias is None else np.broadcast_to(bias, full)
    offset = np.broadcast_to(sk - sq if offset is None else offset, (nb,))
    kv_len = np.broadcast_to(sk if kv_len is None else kv_len, (nb,))
    entries = np.clip(np.where(table < 0, table + len(k), table), 0, len(k) - 1)
    scale = 1 / math.sqrt(d) if attrs["scale"] is None else attrs["scale"]
    out = np.zeros((nb, nh, sq, v.shape[3]))
    for b, h, i in np.ndindex(nb, nh, sq):
        position = int(offset[b]) + i
        keys, scores = [], []
        for j in range(min(sk, int(kv_len[b]))):
            late = attrs["causal"] and j > position
            early = attrs["window"] is not None and j <= position - attrs["window"]
            if late or early or not mask[b, h, i, j]:
                continue
            s = scale * math.fsum(q[b, h, i] * k[entries[b, j // page], h * hkv // nh, j % page])
            if attrs["softcap"] is not None:
                s = attrs["softcap"] * math.tanh(s / attrs["softcap"])
            keys.append((entries[b, j // page], h * hkv // nh, j % page))
            scores.append(s + bias[b, h, i, j])
        if keys:
            weights = np.exp(np.array(scores) - max(scores))
            sunk = 0.0 if sinks is None else math.exp(sinks[h] - max(scores))
            out[b, h, i] = weights @ v[tuple(np.array(keys).T)] / (weights.sum() + sunk)
    return out.transpose(0, 2, 1, 3) if swap else out


@pytest.mark.parametrize("sample", _cases_of("attention"))
def test_attention_against_the_slow_definition(sample: Sample) -> None:
    got, _ = _run(get_op("attention"), sample)
    np.testing.assert_allclose(got, _slow_attention(sample), rtol=1e-9, atol=1e-9)


def test_attention_rows_without_keys_are_zeros() -> None:
    for label, rows in (("a row masked in full gives zeros", (slice(None), slice(None), 2)), ("kv_len 0 gives zeros", (0,))):
        sample = next(s for s in get_op("attention").samples() if s.label == label)
        got, _ = _run(get_op("attention"), sample)
        assert not got[rows].any() and got.any()


def test_a_bias_of_minus_infinity_hides_keys() -> None:
    spec = get_op("attention")
    plain = next(s for s in spec.samples() if s.label == "MHA")
    hide = np.zeros((2, 1, 6, 6), np.bool_)
    hide[0, :, :, 3:] = True
    hide[1, :, 4] = True
    bias = np.where(hide, -np.inf, 0).astype(np.float32)
    by_bias, _ = _run(spec, Sample("", (*plain.inputs[:4], bias, *[None] * 6), plain.attrs))
    by_mask, _ = _run(spec, Sample("", (*plain.inputs[:3], ~hide, *[None] * 7), plain.attrs))
    np.testing.assert_array_equal(by_bias, by_mask)
    assert not by_bias[1, :, 4].any()


def test_attention_types_with_symbols() -> None:
    q, k, v = _f32(B, 8, S, 64), _f32(B, 2, T, 64), _f32(B, 2, T, 32)
    i32 = dtypes.i32
    assert _infer("attention", q, k, v, causal=True) == _f32(B, 8, S, 32)
    mask, bias = _typed(dtypes.bool_, B, 1, 1, T), _typed(dtypes.f16, S, T)
    assert _infer("attention", q, k, v, mask, bias, _typed(i32, B), _typed(i32)) == _f32(B, 8, S, 32)
    bshd = [_typed(dtypes.bf16, B, S, 8, 64), _typed(dtypes.bf16, B, T, 4, 64), _typed(dtypes.bf16, B, T, 4, 64)]
    assert _infer("attention", *bshd, layout="bshd") == _typed(dtypes.bf16, B, S, 8, 64)
    assert _infer("attention", _f32(B, S, 8, 64), *bshd[1:], layout="bshd") == _f32(B, S, 8, 64)
    cache = _f32(sym("N"), 2, T, 64)
    assert _infer("attention", q, cache, cache, None, None, None, None, _typed(i32, B), None, None) == q


GOOD = (_f32(2, 8, 5, 64), _f32(2, 2, 7, 64), _f32(2, 2, 7, 32))


@pytest.mark.parametrize(
    ("position", "wrong", "error", "words"),
    [
        (0, _f32(8, 5, 64), ShapeError, "rank 4"),
        (0, _f32(3, 8, 5, 64), ShapeError, "without kv_index q and k must agree"),
        (0, _f32(2, 8, 5, 32), ShapeError, "q and k must agree"),
        (0, _f32(2, 7, 5, 64), ShapeError, "multiple"),
        (0, _f32(2, T, 5, 64), ShapeError, "static"),
        (0, _typed(dtypes.i32, 2, 8, 5, 64), DTypeError, "q takes float"),
        (1, _typed(dtypes.f16, 2, 2, 7, 64), DTypeError, "differ"),
        (1, _f32(2, 0, 7, 64), ShapeError, "k and v must agree"),
        (2, _f32(2, 2, 6, 32), ShapeError, "k and v must agree"),
        (2, _f32(2, 2, 7, T), ShapeError, "static"),
        (3, _f32(5, 7), DTypeError, "mask takes bool"),
        (3, _typed(dtypes.bool_, 5, 6), ShapeError, "mask must broadcast"),
        (3, _typed(dtypes.bool_, 1, 2, 8, 5, 7), ShapeError, "mask must broadcast"),
        (4, _typed(dtypes.bool_, 5, 7), DTypeError, "bias takes float"),
        (4, _f32(2, 2, 5, 7), ShapeError, "bias must broadcast"),
        (5, _typed(dtypes.u32, 2), DTypeError, "offset takes i32"),
        (5, _typed(dtypes.i32, 3), ShapeError, "offset must broadcast"),
        (6, _typed(dtypes.i32, 2, 1), ShapeError, "kv_len must broadcast"),
        (7, _typed(dtypes.u32, 2), DTypeError, "kv_index takes i32"),
        (7, _typed(dtypes.i32, 1), ShapeError, "kv_index must be"),
    ],
    ids=str,
)
def test_attention_refuses_operands(position: int, wrong: TensorType, error: type[PumiceError], words: str) -> None:
    operands: list[TensorType | None] = [*GOOD, *[None] * 7]
    operands[position] = wrong
    with pytest.raises(error, match=words):
        _infer("attention", *operands)


@pytest.mark.parametrize(
    "attrs",
    [{"layout": "sbhd"}, {"window": 0}, {"softcap": 0.0}, {"softcap": math.inf}, {"scale": math.nan}],
    ids=str,
)
def test_attention_refuses_attributes(attrs: dict[str, Any]) -> None:
    (name,) = attrs
    with pytest.raises(InputError, match=name):
        _infer("attention", *GOOD, **attrs)
