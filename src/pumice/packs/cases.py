"""Cases by which a kernel of a pack is judged: calls of its op that it is for, and whether results agree with the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.core.caps import Caps
from pumice.core.dtypes import dtype
from pumice.errors import PumiceError
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.pack_kernels import PREFIX, PackKernel, TensorPattern
from pumice.ir.registry import PACK, REQUIRED, Array, OpSpec, Packed, get_op
from pumice.ir.types import TensorType
from pumice.packs.ops import random_array
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch

# Cases of the op's own samples and random ones, each of at most so many elements.
_MOST_SAMPLES = 4
_RANDOM_CASES = 3
_MOST_ELEMENTS = 1 << 17
# Sizes that random cases take: odd ones, powers of two, those of small models.
_SIZES = (1, 2, 3, 4, 5, 8, 16, 31, 32, 64, 96, 128, 256, 576)
_TRIES = 400


@dataclass(frozen=True)
class KernelCase:
    """One call of a kernel's op: its operands by name and its attributes."""

    label: str
    operands: Mapping[str, Array]
    attrs: Mapping[str, Any]

    @property
    def signature(self) -> str:
        """Dtypes and shapes, as measured times are kept by."""
        return " ".join(f"{name}:{a.dtype}{list(a.shape)}" for name, a in self.operands.items())


def cases_for(kernel: PackKernel, caps: Caps, seed: int = 0) -> list[KernelCase]:
    """The op's samples that the kernel is for, and random ones of its patterns with the attributes of such samples."""
    spec = get_op(kernel.op)
    samples = [KernelCase(s.label, named, s.attrs) for s in spec.samples() if (named := _named(spec, s.inputs)) is not None]
    fitting = [c for c in samples if _fits(kernel, spec, caps, c)][:_MOST_SAMPLES]
    attrs = [c.attrs for c in (*fitting, *samples)] or [{}]
    rng = np.random.default_rng(seed)
    return [*fitting, *_random_cases(kernel, spec, caps, attrs, rng)]


def _named(spec: OpSpec, inputs: Sequence[Array | Packed | None]) -> dict[str, Array] | None:
    """The operands of a sample by name; None where one is packed, which kernels of packs do not take."""
    named = {}
    for name, value in zip(spec.operand_names, inputs, strict=False):
        if isinstance(value, Packed):
            return None
        if value is not None:
            named[name] = np.asarray(value)
    return named if len(named) == sum(i is not None for i in inputs) else None


def _random_cases(
    kernel: PackKernel, spec: OpSpec, caps: Caps, attrs: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> Iterator[KernelCase]:
    found = 0
    for k in range(_TRIES):
        if found == _RANDOM_CASES:
            return
        sizes: dict[str, Any] = {}
        arrays = {p.name: random_array(rng, p.dtype, _random_shape(p, sizes, rng)) for p in kernel.inputs}
        case = KernelCase(f"random {found}", arrays, attrs[k % len(attrs)])
        if sum(a.size for a in arrays.values()) <= _MOST_ELEMENTS and _fits(kernel, spec, caps, case):
            found += 1
            yield case


def _random_shape(p: TensorPattern, sizes: dict[str, Any], rng: np.random.Generator) -> tuple[int, ...]:
    shape: list[int] = []
    for d in p.shape:
        if isinstance(d, int):
            shape.append(d)
        elif d.endswith("..."):
            shape.extend(sizes.setdefault(d, tuple(int(n) for n in rng.choice(_SIZES[:8], rng.integers(0, 3)))))
        else:
            shape.append(sizes.setdefault(d, int(rng.choice(_SIZES))))
    return tuple(shape)


def _fits(kernel: PackKernel, spec: OpSpec, caps: Caps, case: KernelCase) -> bool:
    try:
        return bool(_packed_steps(case_plan(kernel, caps, case)))
    except PumiceError:
        return False  # no such call: shapes or attributes that the op refuses


def case_graph(op: str, case: KernelCase) -> Graph:
    """The graph that applies the op to the operands of a case."""
    spec, builder = get_op(op), GraphBuilder()
    ids = {
        name: builder.source("input", name, TensorType(dtype(str(a.dtype)), tuple(map(int, a.shape))))
        for name, a in case.operands.items()
    }
    attrs = {k: v for k, v in case.attrs.items() if v is not REQUIRED}
    results = builder.add_all(op, [ids.get(name) for name in spec.operand_names], attrs)
    return builder.build([(name, i) for name, i in zip(spec.results, results, strict=True)])


def case_plan(kernel: PackKernel | None, caps: Caps, case: KernelCase, op: str = "") -> Plan:
    """A plan for a case, with the kernel or, for None, by built-in ones."""
    kernels = () if kernel is None else (kernel,)
    return build_plan(case_graph(kernel.op if kernel else op, case), caps, PlanOptions(pack_kernels=kernels))


def _packed_steps(plan: Plan) -> list[str]:
    return [s.variant for s in plan.steps if s.variant.startswith(PREFIX)]


def wrong_results(graph: Graph, inputs: Mapping[str, Array], results: Sequence[Array], spec: OpSpec) -> str:
    """What is wrong with the results of a case's graph by the reference; "" if they agree with it."""
    bounds = bound_graph(graph, inputs).outputs
    for name, array, bound, (_, node) in zip(spec.results, results, bounds, graph.outputs, strict=True):
        type = graph.nodes[node].type
        if not type.dtype.is_float and array.shape == bound.value.shape:
            found = _off_by_one(array, bound.value, spec)
        else:
            found = mismatch(array, bound, type.dtype)
        if found:
            return f"{name}: {found}"
    return ""


def _off_by_one(got: Array, expected: Array, spec: OpSpec) -> str:
    """Integers of an op of a pack may be off by one where rounding was close; of other ops they are exact."""
    ours, theirs = got.astype(np.int64), expected.astype(np.int64)
    off = np.abs(ours - theirs)
    allowed = 1 if spec.family == PACK and spec.error is not None else 0
    if allowed and got.dtype == np.uint8:
        # A byte may hold two values of four bits, each of which may be off by one.
        off = np.minimum(off, np.maximum(np.abs((ours & 15) - (theirs & 15)), np.abs((ours >> 4) - (theirs >> 4))))
    if off.max(initial=0) > allowed or np.count_nonzero(off) > 0.01 * off.size + allowed:
        at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape)) if off.size else ()
        return f"{np.count_nonzero(off)} of {off.size} differ, by up to {int(off.max(initial=0))} at {at}"
    return ""


def largest_case(kernel: PackKernel, caps: Caps) -> KernelCase | None:
    """The case that times are measured with; None where there is none."""
    return max(cases_for(kernel, caps), key=lambda c: sum(a.size for a in c.operands.values()), default=None)
