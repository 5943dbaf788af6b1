"""The ternary family: where, clamp and cast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import PLAIN, DType
from pumice.errors import DTypeError, InputError
from pumice.ir.gradients import elementwise as gradients
from pumice.ir.ops._elementwise import INF, NAN, SPECIAL, draw, dtypes_of, extremes, kinds_of, reference_of
from pumice.ir.precision import rounded
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Sample, Scalar, Types, register
from pumice.ir.rules import broadcast, given, require_kind, same_dtype
from pumice.ir.traits import Traits, always
from pumice.ir.types import TensorType

_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("odd", (7,)),
    ("scalar", ()),
    ("matrix", (5, 13)),
    ("empty", (0, 3)),
    ("large", (3, 1031)),
)


# -- where --------------------------------------------------------------------------------------------------------------
def _where_infer(types: Types, attrs: Attrs) -> TensorType:
    cond, a, b = given(types)
    require_kind(cond, "bool")
    require_kind(a, "float", "int", "uint", "bool")
    return TensorType(same_dtype((a, b)), broadcast(cond.shape, a.shape, b.shape))


def _where_samples() -> Iterator[Sample]:
    cond = dtypes.bool_

    def case(label: str, d: DType, c: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> Sample:
        return Sample(label, (draw(cond, c, seed=2), draw(d, a), draw(d, b, seed=1)), {})

    for label, shape in _SHAPES:
        yield case(label, dtypes.f32, shape, shape, shape)
    yield case("all broadcast", dtypes.f32, (3, 1, 1), (4, 1), (5,))
    yield case("scalars under a mask", dtypes.f32, (5, 13), (), ())
    yield case("scalar condition", dtypes.f32, (), (5, 13), (5, 13))
    for d in PLAIN[1:]:
        yield case(d.name, d, (9, 5), (9, 5), (9, 5))
    values = np.array(SPECIAL, np.float32)
    yield Sample("special", (np.arange(len(SPECIAL)) % 2 == 0, values, values[::-1].copy()), {})


register(
    OpSpec(
        name="where",
        family="ternary",
        summary="a where cond holds, else b",
        operands=("cond", "a", "b"),
        infer=_where_infer,
        reference=reference_of(np.where),
        lowering=Scalar({"*": "select({2}, {1}, {0})"}, np.where),
        samples=_where_samples,
        gradient=gradients.where,
        rules="NaN and infinities on the side not taken have no effect",
        traits=Traits(condition="cond"),
    )
)

# -- clamp --------------------------------------------------------------------------------------------------------------
_CLAMP = {"f": "pm_clamp({0}, {lo}, {hi})", "i": "min(max({0}, {lo}), {hi})", "u": "min(max({0}, {lo}), {hi})"}


def _clamp_infer(types: Types, attrs: Attrs) -> TensorType:
    (x,) = given(types)
    require_kind(x, *kinds_of(_CLAMP))
    for name in ("lo", "hi"):
        bound = attrs[name]
        if bound is None:
            continue
        if math.isnan(bound):
            raise InputError(f"the bound {name} is NaN", hint="leave it out (None) for no bound", bound=name)
        if x.dtype.is_integer and math.isfinite(bound):
            _check_integer_bound(name, bound, x.dtype)
    return x


def _check_integer_bound(name: str, bound: float, d: DType) -> None:
    if bound != int(bound):
        raise DTypeError(f"the bound {name}={bound} is not a whole number, x is {d}", hint="cast x to a float dtype first")
    info = np.iinfo(d.np)
    if bound > info.max if name == "lo" else bound < info.min:
        raise DTypeError(f"no {d} is within the bound {name}={bound:g}", hint=f"{d} holds {info.min}…{info.max}")


def _clamp(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    lo, hi = attrs["lo"], attrs["hi"]
    if out.dtype.is_integer:
        # Bounds beyond the dtype do nothing, but NumPy would refuse them.
        info = np.iinfo(out.dtype.np)
        lo = None if lo is None or lo <= info.min else int(lo)
        hi = None if hi is None or hi >= info.max else int(hi)
    if lo is not None:
        x = np.maximum(x, lo)
    return np.asarray(x if hi is None else np.minimum(x, hi))


def _clamp_samples() -> Iterator[Sample]:
    both = {"lo": -1.5, "hi": 2.0}
    for label, shape in _SHAPES:
        yield Sample(label, (draw(dtypes.f32, shape),), both)
    matrix = draw(dtypes.f32, (5, 13))
    yield Sample("no upper bound", (matrix,), {"lo": 0.5, "hi": None})
    yield Sample("no lower bound", (matrix,), {"lo": None, "hi": 0.5})
    yield Sample("no bound", (matrix,), {"lo": None, "hi": None})
    yield Sample("crossed bounds", (matrix,), {"lo": 1.0, "hi": -1.0})
    yield Sample("special", (np.array(SPECIAL, np.float32),), both)
    yield Sample("infinite bounds", (np.array(SPECIAL, np.float32),), {"lo": -INF, "hi": INF})
    for d in dtypes_of(_CLAMP)[1:]:
        yield Sample(d.name, (draw(d, (9, 5)),), {"lo": 1.0, "hi": 3.0})
        if d.is_integer:
            yield Sample(f"{d.name} extremes", (extremes(d),), {"lo": -1000.0, "hi": 100.0})
            yield Sample(f"{d.name} no upper bound", (extremes(d),), {"lo": 5.0, "hi": None})


register(
    OpSpec(
        name="clamp",
        family="ternary",
        summary="x limited to lo…hi",
        operands=("x",),
        attrs={"lo": None, "hi": None},
        infer=_clamp_infer,
        reference=_clamp,
        lowering=Scalar(_CLAMP),
        samples=_clamp_samples,
        gradient=gradients.clamp,
        rules="None is no bound; NaN stays NaN; with lo > hi the result is hi; bounds of integers are whole numbers",
    )
)


# -- cast ---------------------------------------------------------------------------------------------------------------
def _cast_infer(types: Types, attrs: Attrs) -> TensorType:
    (x,) = given(types)
    target = dtypes.dtype(attrs["dtype"])
    require_kind(x, "float", "int", "uint", "bool")
    if target.is_quant:
        raise DTypeError(f"cast does not quantise to {target}", hint="quantise weights on the host before loading them")
    return TensorType(target, x.shape)


def _cast(x: Array, target: DType) -> Array:
    if target.kind == "bool":
        return np.asarray(x != 0)
    if target.is_integer and np.issubdtype(x.dtype, np.floating):
        info = np.iinfo(target.np)
        # In f64, as the greatest i32 and u32 have no f32.
        wide = np.trunc(np.asarray(x, np.float64))
        return np.clip(np.where(np.isnan(wide), 0, wide), info.min, info.max).astype(target.np)
    if target.is_float and np.issubdtype(x.dtype, np.floating):
        return x  # which the caller rounds
    if target.is_float and np.issubdtype(x.dtype, np.integer):
        x = x.astype(np.float32)  # 16-bit floats are reached through f32 on every backend
    return x.astype(target.np)


def _cast_reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    with np.errstate(all="ignore"):
        return _cast(np.asarray(arrays[0]), out.dtype)


def _cast_samples() -> Iterator[Sample]:
    for label, shape in _SHAPES:
        yield Sample(label, (draw(dtypes.f32, shape),), {"dtype": "i32"})
    for source in PLAIN:
        if source.is_float:
            x = draw(source, (5, 7), (-300.0, 300.0))
            x.flat[:10] = [NAN, INF, -INF, 0.0, -0.0, 0.999, -0.999, 127.5, 256.0, 30000.0]
        else:
            x = draw(source, (5, 7)) if source.kind == "bool" else extremes(source)
        for target in PLAIN:
            if source != target:
                yield Sample(f"{source} to {target}", (x,), {"dtype": target.name})
    yield Sample("f16 to f32, finite", (draw(dtypes.f16, (7, 11)),), {"dtype": "f32"})
    beyond = np.array([2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 4294967296.0, 3e38, -3e38, -1.0], np.float32)
    yield Sample("saturates i32", (beyond,), {"dtype": "i32"})
    yield Sample("saturates u32", (beyond,), {"dtype": "u32"})
    # Ties both ways, a carry into the exponent, the overflow border of f16, its subnormals.
    ties = np.array([2049, 2051, 4095.5, 65519, 65520, -65520, 257, 259, 511.5, 6.1e-5, 3.1e-5, 2.98e-8, 1e-9], np.float32)
    yield Sample("ties to f16", (ties,), {"dtype": "f16"})
    yield Sample("ties to bf16", (ties,), {"dtype": "bf16"})


register(
    OpSpec(
        name="cast",
        family="ternary",
        summary="x converted to another dtype",
        operands=("x",),
        attrs={"dtype": REQUIRED},
        infer=_cast_infer,
        reference=_cast_reference,
        lowering=Pull("cast", elementwise=True),
        samples=_cast_samples,
        error=rounded(0),
        gradient=gradients.cast,
        rules="float to integer truncates toward zero, saturates, and takes NaN to 0; integer to narrower integer wraps; "
        "to bool is != 0; to f16 and bf16 rounds to nearest even, integers by way of f32",
        traits=Traits(cheap=True, unchanged=always, converts=True),
    )
)
