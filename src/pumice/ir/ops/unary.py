"""The unary family: elementwise functions of one operand; an op is one row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pumice.core import dtypes, special
from pumice.ir.gradients.elementwise import UNARY
from pumice.ir.ops._elementwise import BOOLS, INF, NAN, SPECIAL, STEPS, Domain, draw, dtypes_of, extremes, kinds_of, reference_of
from pumice.ir.precision import ErrorModel, rounded
from pumice.ir.registry import Attrs, OpSpec, Sample, Scalar, Types, register
from pumice.ir.rules import given, require_kind
from pumice.ir.traits import USUAL, Traits
from pumice.ir.types import TensorType

Wgsl = Mapping[str, str]

# In ulp of the result, and in ulp of the operand; functions that are not listed pick a value or round to a whole number.
_ERRORS: dict[str, ErrorModel] = {
    "square": rounded(0),
    "exp": rounded(3, 2),
    "exp2": rounded(3, 2),
    "expm1": rounded(4, 2),
    "log": rounded(3, 4),
    "log2": rounded(3, 4),
    "log10": rounded(4, 4),
    "log1p": rounded(4, 1),
    "sqrt": rounded(2.5),
    "rsqrt": rounded(2),
    "reciprocal": rounded(2.5),
    "sin": rounded(3, 0.5),
    "cos": rounded(3, 0.5),
    "tan": rounded(6, 0.5),
    "asin": rounded(4, 1),
    "acos": rounded(4, 1),
    "atan": rounded(4, 1),
    "sinh": rounded(6, 2),
    "cosh": rounded(6, 2),
    "tanh": rounded(6, 2),
    "asinh": rounded(6, 2),
    "acosh": rounded(6, 2),
    "atanh": rounded(6, 2),
    "erf": rounded(4, 1),
    "sigmoid": rounded(6, 2),
    "gelu": rounded(8, 2),
    "gelu_tanh": rounded(8, 4),
    "silu": rounded(6, 2),
    "softplus": rounded(6, 2),
}


def _op(
    name: str,
    summary: str,
    fn: Callable[..., Any],
    wgsl: Wgsl | str,
    domain: Domain = (-4.0, 4.0),
    special: tuple[float, ...] = SPECIAL,
    *,
    near_zero: bool = False,
    to_bool: bool = False,
    rules: str = "",
    traits: Traits = USUAL,
) -> None:
    """Register an op. A string is the WGSL of a float op; `near_zero` samples where results are as small as arguments."""
    table = {"f": wgsl} if isinstance(wgsl, str) else wgsl
    kinds = kinds_of(table)

    def infer(types: Types, attrs: Attrs) -> TensorType:
        (x,) = given(types)
        require_kind(x, *kinds)
        return TensorType(dtypes.bool_, x.shape) if to_bool else x

    def samples() -> Iterator[Sample]:
        f32 = dtypes.f32
        for label, shape in (("odd", (7,)), ("scalar", ()), ("matrix", (5, 13)), ("empty", (0, 3)), ("large", (3, 1031))):
            yield Sample(label, (draw(f32, shape, domain),), {})
        yield Sample("special", (np.array(special, f32.np),), {})
        if near_zero:
            yield Sample("near zero", (draw(f32, (3, 11), (-1e-5, 1e-5)),), {})
        for d in dtypes_of(table)[1:]:
            yield Sample(d.name, (draw(d, (9, 5), domain),), {})
            if d.is_integer:
                yield Sample(f"{d.name} extremes", (extremes(d),), {})

    register(
        OpSpec(
            name=name,
            family="unary",
            summary=summary,
            operands=("x",),
            infer=infer,
            reference=reference_of(fn),
            lowering=Scalar(table, fn),
            samples=samples,
            gradient=UNARY.get(name),
            no_gradient="" if name in UNARY else BOOLS if to_bool else STEPS,
            differentiable=name in UNARY,
            rules=rules,
            error=_ERRORS.get(name),
            traits=traits,
        )
    )


_BOUNDED = (NAN, INF, -INF, 0.0, -0.0, 50.0, -50.0)
_WIDE = (NAN, INF, -INF, 0.0, -0.0, 1e-20, -3e10, 1e30)
_POSITIVE = (NAN, INF, 0.0, 1.0)
_AT_ZERO = (NAN, 0.0, -0.0)
_TIES = (NAN, INF, -INF, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 8388609.0, -16777217.0)
_GATED = (NAN, INF, -INF, 0.0, -0.0, 50.0, -50.0)
_GATE = "-inf gives NaN, as in PyTorch: it is multiplied by 0"
_WRAPS = "integers wrap"
_REDUCED = "on a GPU accurate for |x| up to 131,072; beyond, as good as the driver"
_NAN_BELOW = "below 0 gives NaN"

_op(
    "neg",
    "the negative",
    np.negative,
    {"f": "(-{0})", "i": "(-{0})", "u": "(0u - {0})"},
    rules=_WRAPS,
    traits=Traits(cheap=True),
)
_op("abs", "the absolute value", np.abs, {"f": "abs({0})", "i": "abs({0})", "u": "{0}"}, rules=_WRAPS)
_op("square", "x * x", np.square, {k: "({0} * {0})" for k in "fiu"}, rules=_WRAPS)
_op(
    "sign",
    "-1, 0 or 1",
    np.sign,
    {"f": "pm_sign({0})", "i": "sign({0})", "u": "min({0}, 1u)"},
    rules="NaN gives NaN",
)
_op(
    "relu",
    "x where it is positive, else 0",
    lambda x: np.maximum(x, 0),
    # NVIDIA's compiler turns a plain comparison and select into a max that drops NaN.
    {"f": "pm_max({0}, 0.0)", "i": "max({0}, 0)", "u": "{0}"},
    rules="NaN gives NaN",
)
_op("exp", "e to the power x", np.exp, "pm_exp({0})", (-8.0, 8.0))
_op("exp2", "2 to the power x", np.exp2, "pm_exp2({0})", (-8.0, 8.0))
_op("expm1", "exp(x) - 1, exact near 0", np.expm1, "pm_expm1({0})", near_zero=True)
_op("log", "the natural logarithm", np.log, "pm_log({0})", (0.01, 10.0), (*_POSITIVE, -1.0), rules=_NAN_BELOW)
_op("log2", "the logarithm to base 2", np.log2, "pm_log2({0})", (0.01, 10.0), (*_POSITIVE, -1.0), rules=_NAN_BELOW)
_op("log10", "the logarithm to base 10", np.log10, "pm_log10({0})", (0.01, 10.0), (*_POSITIVE, -1.0), rules=_NAN_BELOW)
_op("log1p", "log(1 + x), exact near 0", np.log1p, "pm_log1p({0})", (-0.9, 5.0), (*_POSITIVE, -1.0, -2.0), near_zero=True)
_op("sqrt", "the square root", np.sqrt, "pm_sqrt({0})", (0.01, 10.0), (*_POSITIVE, -1.0), rules=_NAN_BELOW)
_op("rsqrt", "1 / sqrt(x)", lambda x: 1 / np.sqrt(x), "pm_rsqrt({0})", (0.01, 10.0), (*_POSITIVE, -1.0), rules=_NAN_BELOW)
_op("reciprocal", "1 / x", np.reciprocal, "(1.0 / {0})", (0.25, 8.0))
_op("sin", "the sine", np.sin, "pm_sin({0})", (-100.0, 100.0), _AT_ZERO, near_zero=True, rules=_REDUCED)
_op("cos", "the cosine", np.cos, "pm_cos({0})", (-100.0, 100.0), _AT_ZERO, rules=_REDUCED)
_op("tan", "the tangent", np.tan, "pm_tan({0})", (-1.4, 1.4), _AT_ZERO, near_zero=True, rules=_REDUCED)
_op("asin", "the inverse sine", np.arcsin, "pm_asin({0})", (-1.0, 1.0), (NAN, 0.0, 1.0, -1.0, 2.0), near_zero=True)
_op("acos", "the inverse cosine", np.arccos, "pm_acos({0})", (-1.0, 1.0), (NAN, 0.0, 1.0, -1.0, -2.0))
_op("atan", "the inverse tangent", np.arctan, "pm_atan({0})", (-8.0, 8.0), near_zero=True)
_op("sinh", "the hyperbolic sine", np.sinh, "pm_sinh({0})", near_zero=True)
_op("cosh", "the hyperbolic cosine", np.cosh, "pm_cosh({0})")
_op("tanh", "the hyperbolic tangent", np.tanh, "pm_tanh({0})", special=_BOUNDED, near_zero=True)
_op("asinh", "the inverse hyperbolic sine", np.arcsinh, "pm_asinh({0})", special=_WIDE, near_zero=True)
_op(
    "acosh",
    "the inverse hyperbolic cosine",
    np.arccosh,
    "pm_acosh({0})",
    (1.0, 9.0),
    (NAN, INF, 1.0, 0.5, 1e30),
    rules="below 1 gives NaN",
)
_op(
    "atanh",
    "the inverse hyperbolic tangent",
    np.arctanh,
    "pm_atanh({0})",
    (-0.95, 0.95),
    (NAN, 0.0, -0.0, 1.0, -1.0, 2.0),
    near_zero=True,
    rules="1 and -1 give infinities, beyond them NaN",
)
_op("erf", "the error function", special.erf, "pm_erf({0})", special=_BOUNDED, near_zero=True)
_op("sigmoid", "1 / (1 + exp(-x))", special.sigmoid, "pm_sigmoid({0})", special=_BOUNDED)
_op("gelu", "x times the normal distribution function of x", special.gelu, "pm_gelu({0})", special=_GATED, rules=_GATE)
_op("gelu_tanh", "the tanh approximation of gelu", special.gelu_tanh, "pm_gelu_tanh({0})", special=_GATED, rules=_GATE)
_op("silu", "x * sigmoid(x)", lambda x: x * special.sigmoid(x), "pm_silu({0})", special=_GATED, rules=_GATE)
_op("softplus", "log(1 + exp(x))", special.softplus, "pm_softplus({0})", special=_BOUNDED)
_op(
    "round",
    "the nearest integer",
    np.rint,
    "round({0})",
    special=_TIES,
    rules="halves go to the even neighbour",
)
_op("floor", "the greatest integer not above x", np.floor, "floor({0})", special=_TIES)
_op("ceil", "the least integer not below x", np.ceil, "ceil({0})", special=_TIES)
_op("trunc", "the integer part", np.trunc, "trunc({0})", special=_TIES)
_op(
    "logical_not",
    "whether x is 0",
    np.logical_not,
    {"f": "(!pm_f32_to_bool({0}))", "i": "({0} == 0)", "u": "({0} == 0u)", "b": "(!{0})"},
    to_bool=True,
    rules="NaN counts as true, so it gives False",
)
_op("isnan", "whether x is NaN", np.isnan, "pm_isnan({0})", to_bool=True)
_op("isinf", "whether x is an infinity", np.isinf, "pm_isinf({0})", to_bool=True)
_op(
    "isfinite",
    "whether x is neither NaN nor an infinity",
    np.isfinite,
    "((bitcast<u32>({0}) & 0x7fffffffu) < 0x7f800000u)",
    to_bool=True,
)
_op(
    "signbit",
    "whether the sign of x is set",
    np.signbit,
    "((bitcast<u32>({0}) >> 31u) != 0u)",
    to_bool=True,
    rules="-0 has it; that of a NaN is as the operand came, and arithmetic may change it",
)
