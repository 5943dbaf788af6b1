"""The searching encoders: how much each format loses on each kind of row, and never more than plain rounding does."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.formats.encode import ENCODERS, encode_rows

Array = np.ndarray[Any, Any]
ALL = pytest.mark.parametrize("dtype", ENCODERS, ids=str)
# The formats that the PyPI package can write as well.
PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4")
# The most that each format may lose, relative to the size of the values: of normal and uniform numbers, and of small normal
# ones with a number a hundred times larger in every row of 512.
BOUNDS = {
    "q4_0": (0.085, 0.061, 0.061),
    "q4_1": (0.073, 0.056, 0.069),
    "q5_0": (0.042, 0.029, 0.059),
    "q5_1": (0.035, 0.027, 0.054),
    "q8_0": (0.0055, 0.004, 0.014),
    "iq4_nl": (0.077, 0.064, 0.071),
    "iq4_xs": (0.078, 0.065, 0.075),
    "mxfp4": (0.116, 0.103, 0.075),
    "tq2_0": (0.45, 0.45, 0.8),
    "tq1_0": (0.45, 0.45, 0.8),
    "q2_k": (0.284, 0.234, 0.189),
    "q3_k": (0.152, 0.124, 0.104),
    "q4_k": (0.075, 0.057, 0.068),
    "q5_k": (0.037, 0.028, 0.054),
    "q6_k": (0.018, 0.013, 0.033),
}


def rows(kind: str) -> Array:
    rng = np.random.default_rng(7)
    shape = (24, 512)
    normal = rng.normal(size=shape)
    with_outlier = normal.copy()
    with_outlier[:, 100] = 100
    made = {
        "normal": normal,
        "uniform": rng.uniform(-1, 1, shape),
        "outlier": with_outlier,
        "positive": rng.uniform(3, 4, shape),
        "constant": np.repeat([[0.37], [-1.5], [2.0]], 512, axis=1),
        "zero": np.zeros((2, 512)),
        "tiny": normal * 1e-6,
        "large": normal * 1e3,
        "one": np.eye(1, 512, 77) * -3,
        "mixed": np.where(np.arange(512) % 64 < 32, normal, 0),
    }
    return made[kind].astype(np.float32)


KINDS = ("normal", "uniform", "outlier", "positive", "constant", "zero", "tiny", "large", "one", "mixed")


def decoded(dtype: DType, x: Array) -> Array:
    return dequantize_rows(dtype, encode_rows(dtype, x), x.shape[-1])


def relative(got: Array, x: Array) -> float:
    exact = x.astype(np.float64)
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


@ALL
def test_what_a_format_loses(dtype: DType) -> None:
    for kind, bound in zip(("normal", "uniform", "outlier"), BOUNDS[dtype.name]):
        x = rows(kind)
        assert relative(decoded(dtype, x), x) < bound, kind


@ALL
def test_zeros_stay_zeros(dtype: DType) -> None:
    assert not decoded(dtype, rows("zero")).any()


@ALL
def test_constant_rows_stay_constant(dtype: DType) -> None:
    """Exact up to the rounding of a scale, or of a power of two where that is all the format has."""
    x = rows("constant")
    got = decoded(dtype, x)
    assert (np.ptp(got, axis=1) == 0).all()
    assert np.abs(got / x - 1).max() < (0.15 if dtype.name == "mxfp4" else 0.04 if dtype.name == "q2_k" else 0.01)


@ALL
@pytest.mark.parametrize("kind", KINDS)
def test_the_package_reads_the_same_values(dtype: DType, kind: str) -> None:
    x = rows(kind)
    packed = encode_rows(dtype, x)
    code = gguf.GGMLQuantizationType[dtype.name.upper()]
    np.testing.assert_array_equal(quants.dequantize(packed, code), dequantize_rows(dtype, packed, x.shape[-1]))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_no_block_is_worse_than_the_package_makes_it(name: str, kind: str) -> None:
    x, code = rows(kind), gguf.GGMLQuantizationType[name.upper()]

    def errors(values: Array) -> Array:
        return np.square(values.astype(np.float64) - x).reshape(-1, 32).sum(axis=1)

    plain = errors(quants.dequantize(quants.quantize(x, code), code))
    ours = errors(decoded(dtypes.dtype(name), x))
    # Ties are decided in float32; where the two agree the last digits may not.
    assert (ours <= plain * (1 + 1e-5) + 1e-30).all()
    if kind == "normal":
        assert ours.sum() < 0.98 * plain.sum()


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q6_k", "iq4_xs"])
@pytest.mark.parametrize("kind", ["normal", "uniform", "outlier", "mixed"])
def test_k_formats_lose_no_more_than_the_plain_encoders(name: str, kind: str) -> None:
    x, dtype = rows(kind), dtypes.dtype(name)
    plain = dequantize_rows(dtype, quantize_rows(dtype, x), x.shape[-1])
    assert relative(decoded(dtype, x), x) <= 1.01 * relative(plain, x)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([d.name for d in ENCODERS]),
    st.lists(st.floats(-6e4, 6e4, width=32), min_size=1, max_size=12),
    st.integers(-12, 0),
)
def test_any_numbers(name: str, values: list[float], power: int) -> None:
    """Whatever the numbers, nothing overflows, and no element is off by more than the block's extent allows."""
    dtype = dtypes.dtype(name)
    x = np.resize(np.array(values, np.float32) * np.float32(10.0**power), (1, 512))
    got = decoded(dtype, x)
    assert np.isfinite(got).all()
    steps = {"q2_k": 3, "q3_k": 4, "mxfp4": 6, "q8_0": 127, "tq2_0": 1, "tq1_0": 1}.get(name, 7)
    # Twice the plain step, and what is lost below f16's least number.
    assert np.abs(got - x).max() <= 2 * np.ptp([*x[0], 0.0]) / steps + 1e-4


def test_any_shape_and_source_dtype() -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 64)).astype(np.float16)
    packed = encode_rows(dtypes.q8_0, x)
    assert packed.shape == (2, 3, 68)
    assert relative(dequantize_rows(dtypes.q8_0, packed, 64), x) < 0.006
    assert encode_rows(dtypes.q4_0, np.zeros((0, 32), np.float32)).shape == (0, 18)


def test_rows_longer_than_a_slice_are_the_same_in_parts() -> None:
    x = np.random.default_rng(2).normal(size=(5, 1 << 15)).astype(np.float32)
    whole = encode_rows(dtypes.q4_k, x)
    np.testing.assert_array_equal(whole, np.concatenate([encode_rows(dtypes.q4_k, row[None]) for row in x]))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_floats_are_cast(name: str) -> None:
    x = np.array([[1.0, 1 / 3, -65504.0]], np.float32)
    got = encode_rows(dtypes.dtype(name), x)
    assert got.dtype == dtypes.dtype(name).np
    np.testing.assert_array_equal(got, x.astype(dtypes.dtype(name).np))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q4_0", "q4_k", "mxfp4", "f16", "f32"])
def test_broken_values_are_refused(name: str, bad: float) -> None:
    x = rows("normal")
    x[3, 5] = bad
    with pytest.raises(InputError, match="NaN or infinite"):
        encode_rows(dtypes.dtype(name), x)


@pytest.mark.parametrize("dtype", [d for d in ENCODERS if d.name != "mxfp4"], ids=str)
def test_values_beyond_the_scale_are_refused(dtype: DType) -> None:
    with pytest.raises(InputError, match="does not fit in f16"):
        encode_rows(dtype, np.full((1, 256), 1e38, np.float32))


def test_mxfp4_holds_any_magnitude() -> None:
    for value in (1e30, 1e-30):
        assert relative(decoded(dtypes.mxfp4, rows("normal") * np.float32(value)), rows("normal") * value) < 0.12


def test_refusals_name_the_thing() -> None:
    with pytest.raises(DTypeError, match="q8_k: it is the format of activations"):
        encode_rows(dtypes.q8_k, np.zeros((1, 256), np.float32))
    with pytest.raises(DTypeError, match="iq2_xs: so few bits need weights") as e:
        encode_rows(dtypes.iq2_xs, np.zeros((1, 256), np.float32))
    assert e.value.hint == "take q2_k"
    with pytest.raises(DTypeError, match="i32"):
        encode_rows(dtypes.i32, np.zeros((1, 256), np.float32))
    with pytest.raises(ShapeError, match="576 elements are no whole number of q4_k blocks"):
        encode_rows(dtypes.q4_k, np.zeros((1, 576), np.float32))
    with pytest.raises(InputError, match="f16 cannot hold: the largest is 7e"):
        encode_rows(dtypes.f16, np.full((1, 2), 7e4, np.float32))
