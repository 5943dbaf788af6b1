"""The OpSpec registry: one entry per primitive, read by tracing, tests, docs, backends and the fuzzer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.errors import GraphError, UnknownName
from pumice.ir.precision import ErrorModel
from pumice.ir.traits import USUAL, Traits
from pumice.ir.types import TensorType

Array = np.ndarray[Any, Any]
Types = Sequence[TensorType | None]
Attrs = Mapping[str, Any]
SOURCE_OPS = ("input", "param", "constant", "state")
# Ops whose values are there before a run: no step computes them.
RESIDENT_OPS = (*SOURCE_OPS, "pack_rows")


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class Scalar:
    """Elementwise with NumPy broadcasting: a WGSL expression per compute kind, operands as {0}, {1}, ….

    Keys: "f" (computes in f32), "i" (i32), "u" (u32), "b" (bool), "*" for all; chosen by the compute kind of the first operand.
    Attributes are available by name ({lo}); functions named pm_* come from the kernels' WGSL library. `function` is the op over
    arrays, written in NumPy's functions alone: the host calls it with arrays, and with vectors that emit machine code.
    None if the op needs its attributes.
    """

    wgsl: Mapping[str, str]
    function: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Each output element is a cheap function of elements of the inputs; `rule` names the kernels' index rule.

    `elementwise`: as in Scalar, of the elements at its own index.
    """

    rule: str
    elementwise: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel that reduces, scans or normalises along axes; its input may be computed on the fly (prologue)."""

    rule: str


@dataclass(frozen=True, slots=True)
class Routine:
    """A hand-written kernel family with variants; inputs must be materialised (strided views allowed where it says so)."""

    rule: str


@dataclass(frozen=True, slots=True)
class Source:
    """Input, param, constant or state: no kernel."""


@dataclass(frozen=True, slots=True)
class FurtherResult:
    """A further result of the node it reads: no kernel of its own, that node's writes it."""


Lowering = Scalar | Pull | Row | Routine | Source | FurtherResult


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised sample operand: logical shape and raw block bytes [..., bytes per row]."""

    dtype: DType
    shape: tuple[int, ...]
    data: Array


@dataclass(frozen=True)
class Sample:
    """One concrete call of an op for the tests: inputs (None = absent operand) and attributes."""

    label: str
    inputs: tuple[Array | Packed | None, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class OpSpec:
    """One primitive operation, in one place.

    `operands`: names; a trailing `?` marks an optional one, a trailing `*` (last only) any number of at least one.
    `attrs`: attribute names with defaults, REQUIRED where there is none. `implied`: those that a node has only where they are not
    the default; so an op can get another attribute, and graphs, plans and hashes from before stay as they are.
    `infer(types, attrs)`: the output type, or a ShapeError/DTypeError stating the rule that is broken.
    `reference(arrays, attrs, out)`: the NumPy meaning. Float arrays come as float64 from the oracle and as float32 from the
    host backend, so it must not fix a precision; `out` is the static output type; the caller casts to `out.dtype`.
    `results`: names of the results. Where there are several, `infer`, `reference`, `error` and `composed` give a tuple, `out` is
    one too, and the gradient rule sees a gradient for each result. A node of such an op is its first result; nodes of the
    op `result` are the others. `result_types` and `evaluate` hide the difference.
    `lowering`: how kernels make it. `samples()`: concrete cases for the tests, deterministic.
    `cost`: free (a view), memory or compute bound.
    `error`: the op's error model (see ir/precision.py), by which results are judged; None where it only moves or picks elements.
    `rules`: where systems differ (out of range, ties, empty, rounding), what this op does.
    `gradient`: the reverse-mode rule (see ir/gradient.py); an op without one says why in `no_gradient`. Where `differentiable` is
    False the derivative is zero or means nothing, and nothing flows back; elsewhere asking for a missing rule is an error.
    `traits`: what planning, checks and reports know of it beyond its meaning (see ir/traits.py).
    `composed(attrs, operands)`: the same in other ops, from the operands that are there by name, for targets without a kernel of
    this one; it has that one's gradient.

    >>> get_op("relu").family
    'unary'
    """

    name: str
    family: str
    summary: str
    operands: tuple[str, ...]
    infer: Callable[[Types, Attrs], TensorType | tuple[TensorType, ...]]
    reference: Callable[[Sequence[Any], Attrs, Any], Array | tuple[Array, ...]]
    lowering: Lowering
    samples: Callable[[], Iterable[Sample]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    implied: tuple[str, ...] = ()
    cost: Literal["free", "memory", "compute"] = "memory"
    error: ErrorModel | None = None
    rules: str = ""
    gradient: Callable[..., Any] | None = None
    no_gradient: str = ""
    differentiable: bool = True
    composed: Callable[..., Any] | None = None
    results: tuple[str, ...] = ("result",)
    traits: Traits = USUAL

    def result_types(self, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        """The types of all results."""
        found = self.infer(types, attrs)
        return found if isinstance(found, tuple) else (found,)

    def evaluate(self, arrays: Sequence[Any], attrs: Attrs, outs: tuple[TensorType, ...]) -> tuple[Array, ...]:
        """All results by the reference; what is packed blocks stays so."""
        if len(self.results) == 1:
            found: Any = self.reference(arrays, attrs, outs[0])
            return (found,) if outs[0].dtype.is_quant else (np.asarray(found),)
        return tuple(np.asarray(a) for a in self.reference(arrays, attrs, outs))

    def complete_attrs(self, given: Attrs) -> dict[str, Any]:
        """`given` with defaults filled in; unknown and missing names are errors."""
        table = self.attrs
        for name in given:
            if name not in table:
                raise UnknownName(f"{self.name} has no attribute {name!r}", hint="it has " + (" ".join(table) or "none"))
        full = {k: given.get(k, default) for k, default in table.items()}
        for name, value in full.items():
            if value is REQUIRED:
                raise GraphError(f"{self.name} needs the attribute {name!r}")
        return full

    def written_attrs(self, full: Attrs) -> tuple[tuple[str, Any], ...]:
        """Of all attributes those that a node has, in order.

        >>> spec = get_op("qmatmul")
        >>> spec.written_attrs({"precision": "exact"}), spec.written_attrs({"precision": "fast"})
        ((), (('precision', 'fast'),))
        """
        return tuple(sorted((k, v) for k, v in full.items() if k not in self.implied or v != self.attrs[k]))

    @cached_property
    def implied_attrs(self) -> dict[str, Any]:
        """The attributes that a node has without being written, with their values."""
        return {name: self.attrs[name] for name in self.implied}

    def complete_operands(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """`given` with None for the optional operands at the end that were left out."""
        left_out = self.operands[len(given) :]
        return (*given, *[None] * len(left_out)) if all(o.endswith("?") for o in left_out) else tuple(given)

    def check_arity(self, inputs: Sequence[Any]) -> None:
        """Whether the operand list fits."""
        variadic = bool(self.operands) and self.operands[-1].endswith("*")
        fits = len(inputs) >= len(self.operands) if variadic else len(inputs) == len(self.operands)
        if not fits:
            raise GraphError(f"{self.name} takes {', '.join(self.operands) or 'no operands'}; {len(inputs)} were given")
        for i, value in enumerate(inputs):
            operand = self.operands[min(i, len(self.operands) - 1)]
            if value is None and not operand.endswith("?"):
                raise GraphError(f"{self.name}: the operand {operand} is missing")

    @cached_property
    def operand_names(self) -> tuple[str, ...]:
        """The operands' names without the signs for optional ones and for any number.

        >>> get_op("rms_norm").operand_names
        ('x', 'weight')
        """
        return tuple(name.rstrip("?*") for name in self.operands)

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether an element of the result follows from those at its own index, by broadcasting."""
        return isinstance(self.lowering, Scalar) or (isinstance(self.lowering, Pull) and self.lowering.elementwise)

    @cached_property
    def is_view(self) -> bool:
        return self.cost == "free" and not isinstance(self.lowering, (Source, FurtherResult))

    @cached_property
    def is_anchor(self) -> bool:
        """Whether it has a kernel of its own kind, which others join, rather than an expression that joins any kernel."""
        return isinstance(self.lowering, (Row, Routine))


_REGISTRY: dict[str, OpSpec] = {}
# The family, and the rule of lowering, of ops that kernel packs bring.
PACK = "pack"
# Ops of kernel packs by their full names, PACK.NAME: those of the packs in use, which may be replaced.
_FROM_PACKS: dict[str, OpSpec] = {}
_MEANINGS: dict[str, str] = {}
_offering = threading.Lock()


def register(spec: OpSpec) -> OpSpec:
    """Add an op; a second one of the same name is an error."""
    if spec.name in _REGISTRY:
        raise GraphError(f"the op {spec.name!r} is registered twice")
    _REGISTRY[spec.name] = spec
    return spec


def offer_op(spec: OpSpec, meaning: str) -> OpSpec:
    """Add an op of a pack; `meaning` is a digest of all that says what it computes.

    The first meaning of a name has it. Another one, as of another version of the pack, goes by the name and its digest: graphs
    that were traced with the first keep what they mean.
    """
    if "." not in spec.name:
        raise GraphError(f"the op {spec.name!r} of a pack has no pack in its name", hint="PACK.NAME")
    own = f"{spec.name}__{meaning[:16]}"
    with _offering:
        if _MEANINGS.setdefault(spec.name, meaning) == meaning:
            _FROM_PACKS[spec.name] = spec
        else:
            spec = replace(spec, name=own)
        _FROM_PACKS[own] = spec  # for plans of processes in which it was not the first
    return spec


def get_op(name: str) -> OpSpec:
    """The OpSpec of that name."""
    spec = _REGISTRY.get(name)
    if spec is None:
        _load()
        spec = _REGISTRY.get(name)
    if spec is None and "." in name:
        spec = _FROM_PACKS.get(name)
        if spec is None:
            pack, op = name.split(".", 1)
            raise UnknownName(f"there is no op {op!r} of a pack {pack!r} in use", hint="load the pack first: pm.load_pack")
    if spec is None:
        import difflib

        near = difflib.get_close_matches(name, _REGISTRY, 1)
        raise UnknownName(f"there is no op {name!r}", hint=f"did you mean {near[0]!r}?" if near else "see docs/ops.md")
    return spec


def all_ops() -> tuple[OpSpec, ...]:
    """Every registered op that computes something, by family and name."""
    _load()
    found = [s for s in _REGISTRY.values() if not isinstance(s.lowering, (Source, FurtherResult))]
    return tuple(sorted(found, key=lambda s: (s.family, s.name)))


def _load() -> None:
    import pumice.ir.ops  # noqa: F401  registers every family on first use
