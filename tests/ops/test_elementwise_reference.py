"""The elementwise references against facts: closed forms, NaN, integer rules, conversions; and the WGSL they map to."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pumice.core import dims, dtypes, special
from pumice.errors import DTypeError, InputError, PlanError, ShapeError
from pumice.ir.registry import OpSpec, Scalar, all_ops, get_op
from pumice.ir.types import TensorType
from pumice.kernels.library import library_source

FAMILIES = ("unary", "binary", "compare", "logical", "bitwise", "ternary")
OPS = [spec for spec in all_ops() if spec.family in FAMILIES]


def types_of(*arrays: Any) -> list[TensorType]:
    return [TensorType(dtypes.dtype(a.dtype), a.shape) for a in arrays]


def apply(name: str, *arrays: Any, **attrs: Any) -> Any:
    """The reference as the oracle calls it: floats in f64."""
    spec = get_op(name)
    full = spec.complete_attrs(attrs)
    out = spec.infer(types_of(*arrays), full)
    wide = [a.astype(np.float64) if t.dtype.is_float else a for a, t in zip(arrays, types_of(*arrays), strict=True)]
    return spec.reference(wide, full, out)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


# -- every op -----------------------------------------------------------------------------------------------------------
def test_the_families_hold_the_agreed_ops() -> None:
    names = {spec.name for spec in OPS}
    agreed = """neg abs exp exp2 expm1 log log2 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh tanh erf
    sigmoid relu gelu gelu_tanh silu softplus round floor ceil trunc sign logical_not isnan isinf add sub mul div floor_div mod
    pow max min atan2 eq ne lt le gt ge logical_and logical_or logical_xor bit_and bit_or bit_xor shift_left shift_right
    where clamp cast log10 asinh acosh atanh isfinite signbit next_after"""
    assert names == set(agreed.split())


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_samples_are_typed_labelled_and_f32_agrees_with_f64(spec: OpSpec) -> None:
    labels = []
    for sample in spec.samples():
        labels.append(sample.label)
        attrs = spec.complete_attrs(sample.attrs)
        inputs: list[Any] = list(sample.inputs)
        types = types_of(*inputs)
        out = spec.infer(types, attrs)
        narrow = spec.reference([a.astype(t.dtype.compute_np) for a, t in zip(inputs, types, strict=True)], attrs, out)
        wide = apply(spec.name, *inputs, **sample.attrs)
        assert narrow.shape == wide.shape == out.static_shape, sample.label
        if not out.dtype.is_float:
            assert narrow.dtype == wide.dtype == out.dtype.np, sample.label
            np.testing.assert_array_equal(narrow, wide, sample.label)
        else:
            finite = np.isfinite(wide) & (np.abs(wide.astype(np.float64)) < 3e38)
            np.testing.assert_array_equal(np.isnan(narrow), np.isnan(wide), sample.label)
            np.testing.assert_allclose(
                narrow[finite].astype(np.float64), wide[finite].astype(np.float64), rtol=3e-5, atol=1e-6, err_msg=sample.label
            )
    assert len(set(labels)) == len(labels) and {"odd", "scalar", "matrix", "empty", "large"} <= set(labels)


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_wgsl_templates_resolve_to_library_functions(spec: OpSpec) -> None:
    if not isinstance(spec.lowering, Scalar):
        assert spec.name == "cast"
        return
    names = ["x", "y", "z"][: len(spec.operands)]
    for template in spec.lowering.wgsl.values():
        text = template.format(*names, **dict.fromkeys(spec.attrs, "w"))
        assert all(re.search(rf"\b{n}\b", text) for n in (*names, *["w"] * len(spec.attrs)))
        # An operator at the outermost level would bind differently inside another expression.
        assert re.fullmatch(r"\w+|\w*\(.*\)", text)
        library_source(re.findall(r"pm_\w+(?=\()", text))


@pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
def test_symbolic_shapes_pass_through(spec: OpSpec) -> None:
    shape = (dims.sym("T"), 4)
    sample = next(s for s in spec.samples() if s.label == "matrix")
    types = [TensorType(t.dtype, shape) for t in types_of(*sample.inputs)]
    assert spec.infer(types, spec.complete_attrs(sample.attrs)).shape == shape


# -- special functions --------------------------------------------------------------------------------------------------
def test_erf_and_erfc_against_the_c_library() -> None:
    x = np.concatenate([np.linspace(-6, 6, 4001), np.geomspace(1e-300, 1, 50)])
    want = np.array([math.erf(v) for v in x])
    assert np.max(np.abs(special.erf(x) - want)) < 5e-16
    np.testing.assert_allclose(special.erf(x), want, rtol=1e-15)
    y = np.linspace(-5, 26, 3001)
    np.testing.assert_allclose(special.erfc(y), [math.erfc(v) for v in y], rtol=1e-13)


def test_erf_in_f32_stays_f32_and_accurate() -> None:
    x = np.linspace(-5, 5, 4001, dtype=np.float32)
    got = special.erf(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, [math.erf(float(v)) for v in x], rtol=2.5e-7)
    np.testing.assert_array_equal(special.erf(f32(np.inf, -np.inf, np.nan)), f32(1, -1, np.nan))


def test_gelu_follows_its_definition_into_the_tail() -> None:
    x = np.array([-8.0, -3.0, -0.5, 0.0, 0.5, 3.0, 8.0])
    np.testing.assert_allclose(special.gelu(x), [v * math.erfc(-v / math.sqrt(2)) / 2 for v in x], rtol=1e-13)
    tanh = [v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x[1:]]
    np.testing.assert_allclose(special.gelu_tanh(x[1:]), tanh, rtol=1e-11)


def test_activations_do_not_overflow() -> None:
    x = f32(-1e4, -1, 0, 1, 1e4)
    e = math.e
    np.testing.assert_allclose(apply("sigmoid", x), [0, 1 / (1 + e), 0.5, e / (1 + e), 1])
    np.testing.assert_allclose(apply("silu", x), [0, -1 / (1 + e), 0, e / (1 + e), 1e4])
    np.testing.assert_allclose(apply("softplus", x), [0, math.log1p(1 / e), math.log(2), math.log1p(e), 1e4])
    np.testing.assert_allclose(apply("tanh", x), [-1, math.tanh(-1), 0, math.tanh(1), 1])


def test_threefry_known_answers() -> None:
    top = 0xFFFFFFFF
    assert [int(w) for w in special.threefry2x32(0, 0, 0, 0)] == [0x6B200159, 0x99BA4EFE]
    assert [int(w) for w in special.threefry2x32(top, top, top, top)] == [0x1CB996FC, 0xBB002BE7]
    pi = special.threefry2x32(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)
    assert [int(w) for w in pi] == [0xC4923A9C, 0x483DF7A0]


def test_threefry_is_vectorised_over_counters() -> None:
    counters = np.arange(6, dtype=np.uint32).reshape(2, 3)
    w0, w1 = special.threefry2x32(7, 9, counters, 0)
    assert w0.shape == w1.shape == (2, 3) and w0.dtype == np.uint32
    assert int(w0[1, 2]) == int(special.threefry2x32(7, 9, 5, 0)[0])


def test_one_threefry_word_is_that_of_the_arrays() -> None:
    for words in np.random.default_rng(0).integers(0, 1 << 32, (50, 4), np.uint64).tolist():
        assert special.threefry_word(*words) == int(special.threefry2x32(*words)[0])


# -- NaN ----------------------------------------------------------------------------------------------------------------
_TESTS = ("isnan", "isinf", "isfinite", "signbit", "logical_not")


@pytest.mark.parametrize("name", [s.name for s in OPS if s.family == "unary" and s.name not in _TESTS])
def test_unary_ops_propagate_nan(name: str) -> None:
    assert np.isnan(apply(name, f32(np.nan))).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_div", "mod", "max", "min", "atan2"])
def test_binary_ops_propagate_nan_from_either_side(name: str) -> None:
    assert np.isnan(apply(name, f32(np.nan, 2, np.nan), f32(2, np.nan, np.nan))).all()


def test_nan_in_pow_compare_clamp_where_and_tests() -> None:
    nan = f32(np.nan)
    assert apply("pow", nan, f32(0))[0] == 1 and apply("pow", f32(1), nan)[0] == 1
    assert [bool(apply(n, nan, nan)[0]) for n in ("eq", "ne", "lt", "le", "gt", "ge")] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert np.isnan(apply("clamp", nan, lo=0.0, hi=1.0))[0]
    assert apply("where", np.array([True]), f32(1), nan)[0] == 1
    assert apply("isnan", f32(np.nan, np.inf, 0)).tolist() == [True, False, False]
    assert apply("isinf", f32(np.nan, np.inf, -np.inf)).tolist() == [False, True, True]
    assert apply("logical_not", f32(np.nan, 0, -0.0)).tolist() == [False, True, True]


# -- arithmetic rules ---------------------------------------------------------------------------------------------------
def test_round_goes_to_even() -> None:
    assert apply("round", f32(0.5, 1.5, 2.5, -0.5, -1.5)).tolist() == [0, 2, 2, 0, -2]


def test_mod_has_the_divisors_sign_and_matches_python() -> None:
    a, b = f32(7, -7, 7, -7, 0.3, 1e20), f32(3, 3, -3, -3, 0.1, 3)
    got = apply("mod", a, b)
    assert got.tolist() == [float(x) % float(y) for x, y in zip(a, b, strict=True)]
    assert apply("floor_div", a, b).tolist()[:5] == [float(x) // float(y) for x, y in zip(a[:5], b[:5], strict=True)]


def test_integer_division_rules() -> None:
    low = -(2**31)
    a, b = i32(7, -7, 7, -7, 5, low), i32(3, 3, -3, -3, 0, -1)
    assert apply("floor_div", a, b).tolist() == [2, -3, -3, 2, 0, low]
    assert apply("mod", a, b).tolist() == [1, 2, -2, -1, 0, 0]


def test_integer_powers() -> None:
    assert apply("pow", i32(2, -3, 0, 2, 1, -1, -1, 0), i32(10, 3, 0, -1, -5, -3, -4, -1)).tolist() == [
        1024,
        -27,
        1,
        0,
        1,
        -1,
        1,
        0,
    ]
    assert apply("pow", i32(3), i32(41)).tolist() == [(3**41 + 2**31) % 2**32 - 2**31]


def test_float_powers_of_negative_bases() -> None:
    got = apply("pow", f32(-2, -2, -2, 0, -0.0), f32(3, -2, 0.5, -1, -3))
    assert got[:2].tolist() == [-8, 0.25] and np.isnan(got[2]) and got[3:].tolist() == [math.inf, -math.inf]


def test_eight_bit_arithmetic_wraps() -> None:
    a, b = np.array([127, -128, 100], np.int8), np.array([1, 1, 100], np.int8)
    assert apply("add", a, b).tolist() == [-128, -127, -56]
    assert apply("sub", b, a).tolist() == [-126, -127, 0]
    assert apply("mul", a, b).tolist() == [127, -128, 16]
    assert apply("neg", a).tolist() == [-127, -128, -100] and apply("abs", a).tolist() == [127, -128, 100]
    u = np.array([0, 200, 255], np.uint8)
    assert apply("neg", u).tolist() == [0, 56, 1] and apply("square", u).tolist() == [0, 64, 1]


def test_shifts_beyond_the_width() -> None:
    a, n = i32(-8, -8, -8, 1), i32(1, 32, -1, 31)
    assert apply("shift_right", a, n).tolist() == [-4, -1, -1, 0]
    assert apply("shift_left", a, n).tolist() == [-16, 0, 0, -(2**31)]


def test_sign_and_relu() -> None:
    assert apply("sign", f32(-3, 0, 5)).tolist() == [-1, 0, 1] and apply("sign", i32(-3, 0, 5)).tolist() == [-1, 0, 1]
    assert apply("relu", i32(-3, 0, 5)).tolist() == [0, 0, 5]


# -- clamp --------------------------------------------------------------------------------------------------------------
def test_clamp_bounds() -> None:
    x = f32(-2, 0.5, 3)
    assert apply("clamp", x, lo=0.0, hi=1.0).tolist() == [0, 0.5, 1]
    assert apply("clamp", x, hi=1.0).tolist() == [-2, 0.5, 1] and apply("clamp", x).tolist() == x.tolist()
    assert apply("clamp", x, lo=1.0, hi=-1.0).tolist() == [-1, -1, -1]
    assert apply("clamp", np.array([0, 200], np.uint8), lo=-5.0, hi=1000.0).tolist() == [0, 200]
    assert apply("clamp", i32(-(2**31), 7), lo=-math.inf, hi=3.0).tolist() == [-(2**31), 3]


def test_clamp_refuses_bounds_without_a_meaning() -> None:
    with pytest.raises(InputError, match="lo is NaN"):
        apply("clamp", f32(1), lo=math.nan)
    with pytest.raises(DTypeError, match="whole number"):
        apply("clamp", i32(1), lo=0.5)
    with pytest.raises(DTypeError, match="no i8 is within"):
        apply("clamp", np.array([1], np.int8), lo=200.0)


# -- cast ---------------------------------------------------------------------------------------------------------------
def cast(x: Any, dtype: str) -> Any:
    """Rounded to the dtype, as every caller of a reference does."""
    found = apply("cast", x, dtype=dtype)
    with np.errstate(over="ignore"):
        return found.astype(dtypes.dtype(dtype).np)


def test_float_to_integer_truncates_saturates_and_drops_nan() -> None:
    x = f32(1.9, -1.9, math.nan, math.inf, -math.inf, 300, -300)
    assert cast(x, "i32").tolist() == [1, -1, 0, 2**31 - 1, -(2**31), 300, -300]
    assert cast(x, "u32").tolist() == [1, 0, 0, 2**32 - 1, 0, 300, 0]
    assert cast(x, "i8").tolist() == [1, -1, 0, 127, -128, 127, -128]
    assert cast(x, "u8").tolist() == [1, 0, 0, 255, 0, 255, 0]


def test_integer_to_integer_wraps_and_to_bool_tests() -> None:
    x = i32(300, -1, 0, 128)
    assert cast(x, "i8").tolist() == [44, -1, 0, -128] and cast(x, "u8").tolist() == [44, 255, 0, 128]
    assert cast(x, "u32").tolist() == [300, 2**32 - 1, 0, 128]
    assert cast(x, "bool").tolist() == [True, True, False, True]
    assert cast(f32(math.nan, -0.0, 1e-3), "bool").tolist() == [True, False, True]
    assert cast(np.array([True, False]), "f16").tolist() == [1, 0]


def test_narrow_floats_round_to_even() -> None:
    assert cast(f32(2049, 2051, 65519, 65520), "f16").astype(np.float64).tolist() == [2048, 2052, 65504, math.inf]
    assert cast(f32(257, 259), "bf16").astype(np.float64).tolist() == [256, 260]
    assert cast(f32(1), "bf16").dtype == ml_dtypes.bfloat16


def test_cast_refuses_quantised_targets() -> None:
    with pytest.raises(DTypeError, match="q4_0"):
        cast(f32(1), "q4_0")


# -- refusals -----------------------------------------------------------------------------------------------------------
def test_kinds_dtypes_and_shapes_are_refused_by_rule() -> None:
    with pytest.raises(DTypeError, match="takes float, not i32"):
        apply("exp", i32(1))
    with pytest.raises(DTypeError, match="takes float, not i32"):
        apply("div", i32(1), i32(1))
    with pytest.raises(DTypeError, match="takes bool"):
        apply("logical_and", i32(1), i32(1))
    with pytest.raises(DTypeError, match="not f32"):
        apply("bit_and", f32(1), f32(1))
    with pytest.raises(DTypeError, match="differ"):
        apply("add", f32(1), i32(1))
    with pytest.raises(DTypeError, match="takes bool"):
        apply("where", f32(1), f32(1), f32(1))
    with pytest.raises(ShapeError, match="broadcast"):
        apply("add", f32(1, 2), f32(1, 2, 3))


# -- WGSL text ----------------------------------------------------------------------------------------------------------
def test_library_lists_callees_first_and_refuses_unknown_names() -> None:
    text = "\n".join(library_source(["pm_gelu_tanh"]))
    assert text.index("fn pm_exp(") < text.index("fn pm_sigmoid(") < text.index("fn pm_gelu_tanh(") and "//" not in text
    with pytest.raises(PlanError, match="pm_nothing"):
        library_source(["pm_nothing"])
