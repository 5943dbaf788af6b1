"""Ops that packs bring: an OpSpec whose shape rule is the kernel's patterns and whose meaning is a graph of existing ops."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.core.dims import Dim, product, substitute
from pumice.core.dtypes import dtype
from pumice.errors import DTypeError, PumiceError, ShapeError
from pumice.ir.gradient import Val
from pumice.ir.graph import Graph, GraphBuilder, bind_attrs
from pumice.ir.pack_kernels import TensorPattern
from pumice.ir.precision import Evaluation
from pumice.ir.registry import PACK, SOURCE_OPS, Array, Attrs, OpSpec, Routine, Sample, Types
from pumice.ir.text import parse_graph
from pumice.ir.types import TensorType
from pumice.ir.verify import verify
from pumice.packs.errors import InvalidManifest

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry
    from pumice.packs.manifest_extension import NewOp


def new_op(pack: str, entry: KernelEntry, op: NewOp) -> OpSpec:
    """The OpSpec of an op that a kernel brings; InvalidManifest if its reference does not fit the patterns."""
    inputs, outputs = patterns(entry)
    name = f"{pack}.{op.name}"
    reference = _reference(name, op, inputs, outputs)
    meaning = _Meaning(name, reference, inputs, outputs, dict(op.attrs))
    return OpSpec(
        name=name,
        family=PACK,
        summary=f"{entry.name}, from the pack {pack}",
        operands=tuple(op.operands),
        infer=meaning.infer,
        reference=meaning.evaluate,
        lowering=Routine(PACK),
        samples=lambda: samples(inputs, op),
        attrs=dict(op.attrs),
        cost="compute",
        error=_within(op.tolerance),
        composed=meaning.composed,
        results=tuple(p.name for p in outputs),
    )


def meaning_of(entry: KernelEntry) -> str:
    """A digest of what the op that a kernel brings computes, and for which types; samples and tolerance are no part of it."""
    op = entry.pumice.op
    assert op is not None
    inputs, outputs = (repr(some) for some in patterns(entry))
    return hashlib.sha256(repr((op.operands, sorted(op.attrs.items()), op.reference, inputs, outputs)).encode()).hexdigest()


def patterns(entry: KernelEntry) -> tuple[tuple[TensorPattern, ...], tuple[TensorPattern, ...]]:
    """The inputs and outputs of a manifest's kernel as graphs see them: packed q8 are i8, packed q4 are bytes."""
    stored = {"q8": "i8", "q4": "u8"}

    def seen(tensors: Iterable[Any]) -> tuple[TensorPattern, ...]:
        return tuple(TensorPattern(t.name, stored.get(t.dtype, t.dtype), tuple(t.shape)) for t in tensors)

    return seen(entry.inputs), seen(entry.outputs)


def _reference(name: str, op: NewOp, inputs: Sequence[TensorPattern], outputs: Sequence[TensorPattern]) -> Graph:
    where = f"the reference of {name}"
    try:
        graph = parse_graph(op.reference if op.reference.endswith("\n") else op.reference + "\n")
        verify(graph)
    except PumiceError as e:
        raise InvalidManifest(f"{where}: {e.message}", hint="print(graph) of a traced function gives its text", op=name) from None
    given = {n.name for n in graph.sources("input")}
    wanted = {p.name for p in inputs} | {f"attr.{a}" for a in op.attrs}
    if not given <= wanted or list(graph.sources("param")) or list(graph.sources("state")) or graph.updates or graph.captures:
        raise InvalidManifest(
            f"{where} has inputs {', '.join(sorted(given - wanted)) or 'as it should'}, params, states or captures",
            hint="its only sources are inputs named like the op's operands and attr.NAME, and constants",
            op=name,
        )
    if len(graph.outputs) != len(outputs):
        raise InvalidManifest(f"{where} has {len(graph.outputs)} outputs, the kernel {len(outputs)}", op=name)
    if any("." in n.op for n in graph):
        raise InvalidManifest(f"{where} uses an op of a pack", hint="a reference is a graph of Pumice's own ops", op=name)
    return graph


class _Meaning:
    """An op of a pack in terms of its reference: dims that a pattern leaves open (`rows...`) are one dim in it."""

    def __init__(
        self, name: str, graph: Graph, inputs: Sequence[TensorPattern], outputs: Sequence[TensorPattern], attrs: Mapping[str, Any]
    ) -> None:
        self.name, self.graph, self.inputs, self.outputs, self.attrs = name, graph, inputs, outputs, attrs

    def _dims(self, types: Types) -> dict[str, Any]:
        dims: dict[str, Any] = {}
        for p, t in zip(self.inputs, types, strict=True):
            if t is None or not p.match(t, dims):
                error = DTypeError if t is not None and str(t.dtype) != p.dtype else ShapeError
                wanted = f"{p.dtype} [{', '.join(map(str, p.shape))}]"
                raise error(
                    f"{self.name}: {p.name} is {t.describe() if t else 'missing'}, and must be {wanted}",
                    hint="a name stands for one size wherever it occurs, one with ... for any number of dims",
                    op=self.name,
                )
        return dims

    def infer(self, types: Types, attrs: Attrs) -> tuple[TensorType, ...] | TensorType:
        """The types of the results by the patterns."""
        found = self._results(self._dims(types))
        return found if len(found) > 1 else found[0]

    def _results(self, dims: Mapping[str, Any]) -> tuple[TensorType, ...]:
        shapes = [p.shape_for(dims) for p in self.outputs]
        return tuple(TensorType(dtype(p.dtype), s) for p, s in zip(self.outputs, shapes, strict=True) if s is not None)

    def composed(self, attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, ...] | Val:
        """The reference's nodes over these operands."""
        builder = next(iter(operands.values())).builder
        dims = self._dims([operands[p.name].type for p in self.inputs])
        sizes: dict[str, Dim] = {}
        for name, size in dims.items():
            sizes[name.removesuffix("...")] = product(size) if isinstance(size, tuple) else size
        flat = {p.name: _flat(p, operands[p.name], sizes) for p in self.inputs}
        values: dict[int, int] = {}
        several: dict[int, tuple[int, ...]] = {}
        for n in self.graph.nodes:
            if n.op == "input":
                values[n.id] = flat[n.name].id if n.name in flat else self._attr(builder, n.name, n.type, attrs)
            elif n.op in SOURCE_OPS:
                values[n.id] = builder.source(n.op, "", n.type, attrs=n.attr)
            elif n.op == "result":
                values[n.id] = several[n.args[0]][n.attr["index"]]
            else:
                inputs = [None if i is None else values[i] for i in n.inputs]
                several[n.id] = tuple(builder.add_all(n.op, inputs, bind_attrs(n.attr, sizes, substitute)))
                values[n.id] = several[n.id][0]
        outs = [Val(builder, values[i]) for _, i in self.graph.outputs]
        results = self._results(dims)
        for p, out, type in zip(self.outputs, outs, results, strict=True):
            if out.type.dtype != type.dtype or product(out.shape) != product(type.shape):
                raise ShapeError(
                    f"the reference of {self.name} gives {out.type.describe()} for {p.name}, its pattern {type.describe()}",
                    op=self.name,
                )
        shaped = tuple(o if o.shape == t.shape else o.op("reshape", shape=t.shape) for o, t in zip(outs, results, strict=True))
        return shaped if len(shaped) > 1 else shaped[0]

    def _attr(self, builder: GraphBuilder, name: str, type: TensorType, attrs: Attrs) -> int:
        return builder.constant(np.full(type.static_shape, attrs[name.removeprefix("attr.")], type.dtype.np), type.dtype)

    def evaluate(self, arrays: Sequence[Any], attrs: Attrs, out: Any) -> Any:
        """The reference's meaning for arrays."""
        from pumice.reference.interpreter import evaluate_graph

        builder = GraphBuilder()
        operands = {}
        for p, array in zip(self.inputs, arrays, strict=True):
            type = TensorType(dtype(p.dtype), np.shape(array))
            operands[p.name] = Val(builder, builder.source("input", p.name, type))
        found = self.composed(attrs, operands)
        outs = found if isinstance(found, tuple) else (found,)
        graph = builder.build([(f"out{k}", v.id) for k, v in enumerate(outs)])
        given = {n.name for n in graph.sources("input")}
        named = {p.name: a for p, a in zip(self.inputs, arrays, strict=True) if p.name in given}
        results = tuple(evaluate_graph(graph, named, env={}).outputs)
        return results if isinstance(out, tuple) else results[0]


def _flat(p: TensorPattern, operand: Val, sizes: Mapping[str, Dim]) -> Val:
    """An operand with the dims that its pattern leaves open as one."""
    shape = tuple(d if isinstance(d, int) else sizes[d.removesuffix("...")] for d in p.shape)
    return operand if operand.shape == shape else operand.op("reshape", shape=shape)


def samples(inputs: Sequence[TensorPattern], op: NewOp) -> Iterable[Sample]:
    """The manifest's samples with numbers in them, the same at every call."""
    for k, shapes in enumerate(op.samples):
        rng = np.random.default_rng(k)
        arrays = tuple(random_array(rng, p.dtype, tuple(shapes[p.name])) for p in inputs)
        yield Sample(f"sample {k}", arrays, dict(op.attrs))


def random_array(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Numbers of a dtype as kernels meet them: floats around 0, bytes of all values."""
    kind = dtype(name)
    if kind.is_float:
        return rng.standard_normal(shape).astype(kind.np)
    limits = np.iinfo(kind.np)
    low, high = (max(int(limits.min), -128), min(int(limits.max), 255))
    return rng.integers(low, high + 1, shape).astype(kind.np)


def _within(tolerance: float) -> Any:
    """The manifest's tolerance as an error model: a part of the largest result."""

    def model(e: Evaluation) -> Any:
        bounds = []
        for result in e.results:
            finite = np.abs(result[np.isfinite(result)]) if result.dtype.kind == "f" else np.zeros(0)
            bounds.append(np.full(result.shape, tolerance * max(1.0, float(finite.max(initial=0.0)))))
        return tuple(bounds) if len(bounds) > 1 else bounds[0]

    return model
