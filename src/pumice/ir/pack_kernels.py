"""PackKernel: what planning knows of a kernel from a pack: which op it computes, for which types, and how it is called."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, TypeGuard

import numpy as np

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Expr, bounds, product
from pumice.core.expressions import Expression, ExpressionError, Value, parse
from pumice.core.records import dataclass
from pumice.ir.types import TensorType

# Types of parameters as NumPy knows them; a bool takes a word.
PARAM_TYPES: Mapping[str, str] = {
    "f32": "<f4",
    "f64": "<f8",
    "i32": "<i4",
    "i64": "<i8",
    "u32": "<u4",
    "u64": "<u8",
    "bool": "<u4",
}
# What expressions may ask of a device, as `caps.NAME`.
CAPS_NAMES = ("f16", "subgroups", "subgroup_size", "max_invocations", "workgroup_memory", "software")
# What a step that runs a pack's kernel has before its identity in `variant`.
PREFIX = "pack "


@dataclass(frozen=True, slots=True)
class TensorPattern:
    """The dtype and shape that an operand or result must have.

    A dim is a number, a name (one dim, the same wherever the name occurs) or a name with `...`: any number of dims.

    >>> from pumice.core.dtypes import f32
    >>> dims = {}
    >>> TensorPattern("x", "f32", ("rows...", "dim")).match(TensorType(f32, (2, 3, 64)), dims), dims
    (True, {'rows...': (2, 3), 'dim': 64})
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def match(self, type: TensorType, dims: dict[str, Any]) -> bool:
        """Whether a type fits; names that `dims` lacks are added."""
        if str(type.dtype) != self.dtype:
            return False
        spread = next((k for k, d in enumerate(self.shape) if isinstance(d, str) and d.endswith("...")), None)
        shape = list(type.shape)
        if spread is None:
            if len(shape) != len(self.shape):
                return False
            return all(_agree(d, found, dims) for d, found in zip(self.shape, shape, strict=True))
        after = len(self.shape) - spread - 1
        if len(shape) < spread + after:
            return False
        end = len(shape) - after
        pairs = [*zip(self.shape[:spread], shape[:spread], strict=True), *zip(self.shape[spread + 1 :], shape[end:], strict=True)]
        return _agree(self.shape[spread], tuple(shape[spread:end]), dims) and all(_agree(d, s, dims) for d, s in pairs)

    def shape_for(self, dims: Mapping[str, Any]) -> tuple[Dim, ...] | None:
        """The shape for the sizes of the names; None if one has none."""
        found: list[Dim] = []
        for d in self.shape:
            if isinstance(d, int):
                found.append(d)
            elif d not in dims:
                return None
            elif d.endswith("..."):
                found.extend(dims[d])
            else:
                found.append(dims[d])
        return tuple(found)


def _agree(wanted: int | str, found: Any, dims: dict[str, Any]) -> bool:
    return wanted == found if isinstance(wanted, int) else bool(dims.setdefault(wanted, found) == found)


@dataclass(frozen=True, slots=True)
class PackParam:
    """A parameter of a kernel: an expression of sizes and attributes, else a fixed value; never outside its range."""

    name: str
    type: str
    expression: str = ""
    default: int | float | bool = 0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PackKernel:
    """A kernel of a verified pack that computes an op, for host (WASM) or webgpu (WGSL).

    `pack_digest` is the SHA-256 of the manifest, which names every file by its hash, so that it and `id` say all there is to
    know: equality and hashes go by them. `inputs` and `outputs` are named like the op's operands and results. `when` holds
    conditions over sizes, `rank.NAME`, `attr.NAME` and `caps.NAME`; all must hold at all sizes of the graph.
    """

    pack: str
    version: str
    pack_digest: str
    id: str
    target: Literal["host", "webgpu"] = field(compare=False)
    op: str = field(compare=False)
    digest: str = field(repr=False, compare=False)
    inputs: tuple[TensorPattern, ...] = field(repr=False, compare=False)
    outputs: tuple[TensorPattern, ...] = field(repr=False, compare=False)
    params: tuple[PackParam, ...] = field(default=(), repr=False, compare=False)
    when: tuple[str, ...] = field(default=(), repr=False, compare=False)
    wgsl: str = field(default="", repr=False, compare=False)
    workgroup: int = field(default=1, repr=False, compare=False)
    shared_bytes: int = field(default=0, repr=False, compare=False)
    features: tuple[str, ...] = field(default=(), repr=False, compare=False)
    groups: str = field(default="1", repr=False, compare=False)
    time_limit_ms: int = field(default=2000, repr=False, compare=False)

    @property
    def label(self) -> str:
        """As reports show it."""
        return f"{self.pack}/{self.id}"

    @property
    def variant(self) -> str:
        """The identity that a step of a plan has: pack, version, kernel and the manifest's digest."""
        return f"{PREFIX}{self.pack}@{self.version}/{self.id} {self.pack_digest}"

    @cached_property
    def _conditions(self) -> tuple[Expression, ...]:
        return tuple(parse(text) for text in self.when)

    def match(
        self,
        op: str,
        operands: Mapping[str, TensorType],
        results: Sequence[tuple[str, TensorType]],
        attrs: Mapping[str, Any],
        caps: Caps,
        maxima: Mapping[str, int] | None = None,
    ) -> PackCall | None:
        """How the kernel is called for a node of these types; None if it is not for them."""
        if op != self.op or caps.target != self.target or set(operands) != {p.name for p in self.inputs}:
            return None
        if [p.name for p in self.outputs] != [name for name, _ in results]:
            return None
        dims: dict[str, Any] = {}
        if not all(p.match(operands[p.name], dims) for p in self.inputs):
            return None
        if not all(p.match(type, dims) for p, (_, type) in zip(self.outputs, results, strict=True)):
            return None
        if self.lacking(caps):
            return None
        env = environment(dims, attrs, caps)
        try:
            if not all(c.evaluate(env, maxima) is True for c in self._conditions):
                return None
            groups = parse(self.groups).size(env)
            params = tuple(self._param(p, env, maxima or {}) for p in self.params)
        except ExpressionError:
            return None  # such as a condition on an attribute that this op leaves open
        if any(v is None for v in params) or bounds(groups, maxima or {})[0] < 0:
            return None
        return PackCall(self, params, groups)

    def lacking(self, caps: Caps) -> str:
        """Which of the features that it needs a device does not have, in words; "" if it has all."""
        missing = [feature for feature in self.features if not getattr(caps, feature, False)]
        return f"the device has no {', '.join(missing)}" if missing else ""

    def _param(self, p: PackParam, env: Mapping[str, Value], maxima: Mapping[str, int]) -> Value:
        """The value of a parameter, None where it is outside its type or range, be it at one size of several."""
        value = parse(p.expression).evaluate(env) if p.expression else p.default
        if isinstance(value, Expr):
            return value if p.type[0] in "iu" and all(fits_param(p, end) for end in bounds(value, maxima)) else None
        return value if fits_param(p, value) else None


def is_of_type(value: object, type: str) -> TypeGuard[bool | int | float]:
    """Whether a value is a number of this type of parameters: finite, in its range, and no bool unless it is for those.

    >>> is_of_type(2**32, "u32"), is_of_type(1e39, "f32"), is_of_type(1, "f32"), is_of_type(True, "i32")
    (False, False, True, False)
    """
    if type == "bool" or isinstance(value, bool):
        return type == "bool" and isinstance(value, bool)
    if not isinstance(value, int if type[0] in "iu" else int | float):
        return False
    if type[0] in "iu":
        whole = np.iinfo(PARAM_TYPES[type])
        return whole.min <= value <= whole.max
    return abs(value) <= float(np.finfo(PARAM_TYPES[type]).max)  # which NaN is not


def fits_param(p: PackParam, value: Value) -> bool:
    """Whether a number is of the parameter's type and in its range.

    >>> fits_param(PackParam("n", "u32"), -1), fits_param(PackParam("eps", "f32", low=0, high=1), 1e-5)
    (False, True)
    """
    if is_of_type(value, p.type):
        return not (p.low is not None and value < p.low) and not (p.high is not None and value > p.high)
    return False


def environment(dims: Mapping[str, Any], attrs: Mapping[str, Any], caps: Caps) -> dict[str, Value]:
    """The names that expressions of a kernel may use: of `rows...`, `rows` is the product and `rank.rows` the number of dims.

    >>> env = environment({"rows...": (2, 3), "dim": 64}, {"eps": 1e-5}, Caps.preset("host"))
    >>> env["rows"], env["rank.rows"], env["dim"], env["attr.eps"], env["caps.f16"]
    (6, 2, 64, 1e-05, False)
    """
    env: dict[str, Value] = {}
    for name, size in dims.items():
        if isinstance(size, tuple):
            spread = name.removesuffix("...")
            env[spread], env[f"rank.{spread}"] = product(size), len(size)
        else:
            env[name] = size
    for name, value in attrs.items():
        # One axis is as good as a tuple of one.
        single = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if isinstance(single, bool | int | float | str | Expr):
            env[f"attr.{name}"] = single
        elif single is None:
            env[f"attr.{name}"] = "none"
    for name in CAPS_NAMES:
        env[f"caps.{name}"] = getattr(caps, name)
    return env


@dataclass(frozen=True, slots=True)
class PackCall:
    """One use of a kernel: its parameters in order, of which sizes may be symbolic, and its number of workgroups."""

    kernel: PackKernel
    params: tuple[Value, ...]
    groups: Dim

    @property
    def uniforms(self) -> tuple[Dim, ...]:
        """The parameters as words of a uniform block: floats by their bits, so that sizes can change from run to run."""
        return tuple(_word(p.type, v) for p, v in zip(self.kernel.params, self.params, strict=True))


def _word(type: str, value: Any) -> Dim:
    if isinstance(value, Expr):
        return value
    if type == "f32":
        bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
        return bits
    return int(value) % 2**32


# How the variants of steps begin that a kernel of a pack runs.
PACK_VARIANT = "pack "
_VARIANT = re.compile(PACK_VARIANT + r"([^@/ ]+)@([^/ ]+)/([^/ ]+) ([0-9a-f]{64})")


def read_variant(variant: str) -> tuple[str, str, str] | None:
    """Pack, kernel id and digest of the manifest in the variant of a step; None if it is no kernel of a pack.

    >>> read_variant("pack core@1.0.0/rope_f32 " + "0" * 64)[:2], read_variant("tile/64x64")
    (('core', 'rope_f32'), None)
    """
    found = _VARIANT.fullmatch(variant)
    return None if found is None else (found[1], found[3], found[4])


def names_in(patterns: Sequence[TensorPattern]) -> Iterator[str]:
    """The names of dims in patterns, as expressions have them."""
    for p in patterns:
        for d in p.shape:
            if isinstance(d, str):
                yield d.removesuffix("...")
