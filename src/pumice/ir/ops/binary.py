"""The binary, compare, logical and bitwise families: elementwise functions of two operands; an op is one row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pumice.core import dtypes, special
from pumice.core.dtypes import DType
from pumice.ir.gradients.elementwise import BINARY
from pumice.ir.ops._elementwise import BOOLS, INF, NAN, SPECIAL, STEPS, Domain, draw, dtypes_of, extremes, kinds_of, reference_of
from pumice.ir.precision import ErrorModel, rounded
from pumice.ir.registry import Array, Attrs, OpSpec, Sample, Scalar, Types, register
from pumice.ir.rules import broadcast, given, require_kind, same_dtype
from pumice.ir.traits import USUAL, Traits
from pumice.ir.types import TensorType

Wgsl = Mapping[str, str]
_ERRORS: dict[str, ErrorModel] = {
    "add": rounded(0),
    "sub": rounded(0),
    "mul": rounded(0),
    "div": rounded(2.5),
    "mod": rounded(0),
    "pow": rounded(4, 2),
    "atan2": rounded(4, 2.5),
}
_WITHOUT = {"compare": BOOLS, "logical": BOOLS, "bitwise": "it takes integers"}
_SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("odd", (7,), (7,)),
    ("scalar", (), ()),
    ("matrix", (5, 13), (5, 13)),
    ("empty", (0, 3), (0, 3)),
    ("empty by broadcast", (0, 3), (1, 1)),
    ("large", (3, 1031), (3, 1031)),
    ("broadcast both", (3, 1, 5), (4, 1)),
    ("scalar with matrix", (), (5, 13)),
    ("row on matrix", (5, 13), (13,)),
)


def _op(
    family: str,
    name: str,
    summary: str,
    fn: Callable[..., Any],
    wgsl: Wgsl,
    a: Domain = (-4.0, 4.0),
    b: Domain = (-4.0, 4.0),
    special: tuple[float, ...] = SPECIAL,
    *,
    rules: str = "",
    traits: Traits = USUAL,
) -> None:
    """Register an op; `a` and `b` are the domains of the samples, `special` is crossed with itself."""
    kinds, allowed = kinds_of(wgsl), dtypes_of(wgsl)

    def infer(types: Types, attrs: Attrs) -> TensorType:
        x, y = given(types)
        require_kind(x, *kinds)
        dtype = same_dtype(types)
        return TensorType(dtypes.bool_ if family in ("compare", "logical") else dtype, broadcast(x.shape, y.shape))

    def pair(d: DType, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Array, Array]:
        return draw(d, left, a), draw(d, right, b, seed=1)

    def samples() -> Iterator[Sample]:
        for label, left, right in _SHAPES:
            yield Sample(label, pair(allowed[0], left, right), {})
        for d in allowed:
            if d != allowed[0]:
                yield Sample(d.name, pair(d, (9, 5), (9, 5)), {})
            if d.is_integer:
                yield Sample(f"{d.name} extremes", (extremes(d)[:, None], extremes(d)), {})
            elif d == dtypes.f32:
                values = np.array(special, d.np)
                yield Sample("special", (values[:, None], values), {})

    register(
        OpSpec(
            name=name,
            family=family,
            summary=summary,
            operands=("a", "b"),
            infer=infer,
            reference=reference_of(fn),
            lowering=Scalar(wgsl, fn),
            samples=samples,
            gradient=BINARY.get(name),
            no_gradient="" if name in BINARY else _WITHOUT.get(family, STEPS),
            differentiable=name in BINARY,
            rules=rules,
            error=_ERRORS.get(name),
            traits=traits,
        )
    )


def _power(a: Array, b: Array) -> Array:
    return special.int_power(a, b) if np.issubdtype(a.dtype, np.integer) else np.power(a, b)


def _all(keys: str, template: str) -> Wgsl:
    return dict.fromkeys(keys, template)


_WRAPS = "integers wrap"
_SHIFT = "a negative b, or one beyond the width, shifts everything out"
_NONZERO = (0.5, 4.0)
_ZERO = "integers: division by 0 gives 0, the least value by -1 wraps"

_SUM = Traits(cheap=True, neutral={"a": 0.0, "b": 0.0})
_DIFFERENCE = Traits(cheap=True, neutral={"b": 0.0})
_PRODUCT = Traits(cheap=True, neutral={"a": 1.0, "b": 1.0})
_QUOTIENT = Traits(neutral={"b": 1.0}, divisor="b")
_op("binary", "add", "a + b", np.add, _all("fiu", "({0} + {1})"), rules=_WRAPS, traits=_SUM)
_op("binary", "sub", "a - b", np.subtract, _all("fiu", "({0} - {1})"), rules=_WRAPS, traits=_DIFFERENCE)
_op("binary", "mul", "a * b", np.multiply, _all("fiu", "({0} * {1})"), rules=_WRAPS, traits=_PRODUCT)
_op(
    "binary",
    "div",
    "a / b",
    np.divide,
    {"f": "({0} / {1})"},
    b=_NONZERO,
    special=(NAN, INF, -INF, 0.0, 1.0, -3.0),
    traits=_QUOTIENT,
)
_op(
    "binary",
    "floor_div",
    "a / b rounded down",
    np.floor_divide,
    {"f": "pm_floor_div({0}, {1})", "i": "pm_floor_div_i({0}, {1})", "u": "pm_floor_div_u({0}, {1})"},
    (-50.0, 50.0),
    special=(NAN, INF, -INF, 0.0, 1.0, -3.0, 1e6),
    rules=_ZERO,
)
_op(
    "binary",
    "mod",
    "a - b * floor(a / b)",
    np.mod,
    {"f": "pm_mod({0}, {1})", "i": "pm_mod_i({0}, {1})", "u": "pm_mod_u({0}, {1})"},
    (-50.0, 50.0),
    special=(NAN, INF, -INF, 0.0, 1.0, -3.0, 0.1, 1e6, 1e20),
    rules="the sign is the divisor's; " + _ZERO + "; floats: exact for any quotient, division by 0 gives NaN",
)
_op(
    "binary",
    "pow",
    "a to the power b",
    _power,
    {"f": "pm_pow({0}, {1})", "i": "pm_pow_i({0}, {1})", "u": "pm_pow_u({0}, {1})"},
    (0.2, 4.0),
    special=(NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5),
    rules="0**0 is 1; a negative base needs a whole exponent, else NaN; integers wrap, and a negative exponent gives 0 "
    "unless the base is 1 or -1",
    traits=Traits(neutral={"b": 1.0}),
)
_op(
    "binary",
    "max",
    "the greater of a and b",
    np.maximum,
    {"f": "pm_max({0}, {1})", "i": "max({0}, {1})", "u": "max({0}, {1})"},
    rules="NaN on either side gives NaN",
)
_op(
    "binary",
    "min",
    "the lesser of a and b",
    np.minimum,
    {"f": "pm_min({0}, {1})", "i": "min({0}, {1})", "u": "min({0}, {1})"},
    rules="NaN on either side gives NaN",
)
_op("binary", "atan2", "the angle of the point (b, a)", np.arctan2, {"f": "pm_atan2({0}, {1})"})


def _compare(name: str, summary: str, fn: Callable[..., Any], sign: str, of_bools: str, of_floats: str = "") -> None:
    wgsl = {**_all("fiu", f"({{0}} {sign} {{1}})"), "b": of_bools}
    if of_floats:
        wgsl["f"] = of_floats
    rules = "with NaN only ne holds; False is less than True"
    _op("compare", name, summary, fn, wgsl, rules=rules)


_compare("eq", "whether a equals b", np.equal, "==", "({0} == {1})")
_compare("ne", "whether a differs from b", np.not_equal, "!=", "({0} != {1})", "pm_ne({0}, {1})")
_compare("lt", "whether a is less than b", np.less, "<", "(!{0} && {1})")
_compare("le", "whether a is at most b", np.less_equal, "<=", "(!{0} || {1})")
_compare("gt", "whether a is greater than b", np.greater, ">", "({0} && !{1})")
_compare("ge", "whether a is at least b", np.greater_equal, ">=", "({0} || !{1})")

_op("logical", "logical_and", "whether both hold", np.logical_and, {"b": "({0} && {1})"})
_op("logical", "logical_or", "whether at least one holds", np.logical_or, {"b": "({0} || {1})"})
_op("logical", "logical_xor", "whether exactly one holds", np.logical_xor, {"b": "({0} != {1})"})

_op("bitwise", "bit_and", "the bits set in both", np.bitwise_and, _all("iu", "({0} & {1})"))
_op("bitwise", "bit_or", "the bits set in at least one", np.bitwise_or, _all("iu", "({0} | {1})"))
_op("bitwise", "bit_xor", "the bits set in exactly one", np.bitwise_xor, _all("iu", "({0} ^ {1})"))
_op(
    "bitwise",
    "shift_left",
    "a shifted up by b bits",
    np.left_shift,
    {"i": "pm_shift_left_i({0}, {1})", "u": "pm_shift_left_u({0}, {1})"},
    rules=_SHIFT,
)
_op(
    "bitwise",
    "shift_right",
    "a shifted down by b bits, keeping the sign",
    np.right_shift,
    {"i": "pm_shift_right_i({0}, {1})", "u": "pm_shift_right_u({0}, {1})"},
    rules=_SHIFT,
)
