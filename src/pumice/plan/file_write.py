"""A plan as the header and the blobs of a plan file; docs/plan-format.md is the specification."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.core.dims import Dim, Expr
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.requirements import index_inputs, requirements
from pumice.ir.types import TensorType
from pumice.plan.file_exprs import ExprTable, check_exact
from pumice.plan.file_symbols import solutions
from pumice.plan.needs import AT_LEAST, most_groups, needed_caps
from pumice.plan.plan import Plan, Step

Json = Any
# What the header derives from the rest for readers without an IR. Later releases may derive more of it or do so more
# sharply, so a reader checks the form of these and takes the rest of the header as the plan.
DERIVED = ("needs", "infer", "requirements", "index_inputs", "exprs")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A header, the blobs that it refers to, and how many of its expressions belong to what is not derived."""

    header: dict[str, Json]
    blobs: tuple[bytes, ...]
    plain_exprs: int


def canonical(value: Json) -> str:
    """The one way to write a JSON value: sorted keys, no spaces, ASCII.

    >>> canonical({"b": [1, 2.5], "a": "é"})
    '{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(plan: Plan) -> Encoded:
    """The plan as JSON and bytes, the same for equal plans in every process."""
    return _Writer(plan).encode()


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.exprs = ExprTable()
        self.blobs: dict[bytes, int] = {}

    def encode(self) -> Encoded:
        plan, graph = self.plan, self.graph
        uniforms = list(dict.fromkeys(s.uniforms for s in plan.steps if s.uniforms))
        header: dict[str, Json] = {
            "format": "pumice-plan",
            "target": plan.caps.target,
            "planned_for": plan.caps.name,
            "symbols": [{"name": name, "max": plan.maxima[name]} for name, _ in graph.symbols],
            "inputs": [self.named(n.name, n.id) for n in graph.sources("input")],
            "params": [{**self.named(n.name, n.id), "stored": list(n.type.stored_shape)} for n in graph.sources("param")],
            "states": [{**self.named(n.name, n.id), "init": self.contents(n)} for n in graph.sources("state")],
            "constants": [{"value": n.id, "blob": self.contents(n)} for n in graph.sources("constant")],
            "outputs": [self.named(name, i) for name, i in graph.outputs],
            "captures": [self.named(name, i) for name, i in graph.captures],
            "tree": graph.tree,
            "buffers": [{"kind": b.kind, "nbytes": b.nbytes, "name": b.name} for b in plan.buffers],
            "values": [
                {"id": i, **self.type(v.type), "parts": [[p.buffer, p.offset, p.nbytes] for p in v.parts]}
                for i, v in sorted(plan.values.items())
            ],
            "kernels": [
                {"name": k.name, "wgsl": self.blob(k.wgsl.encode()), "access": list(k.access), "words": k.uniform_words}
                for k in plan.kernels
            ],
            "uniforms": [self.dims(words) for words in uniforms],
            "steps": [self.step(s, {u: i for i, u in enumerate(uniforms)}) for s in plan.steps],
            "copies": [list(pair) for pair in plan.copies],
        }
        # Everything that readers evaluate is in the table by now; the graph may hold larger sizes that never run.
        for e in self.exprs.exprs:
            check_exact(e, plan.maxima)
        header["graph"] = self.encode_graph(graph)
        plain = len(self.exprs.rows)
        header |= self.derived()
        header["blobs"] = [len(b) for b in self.blobs]
        header["exprs"] = self.exprs.rows
        return Encoded(header, tuple(self.blobs), plain)

    def derived(self) -> dict[str, Json]:
        plan, graph = self.plan, self.graph
        needs: dict[str, Json] = {}
        if plan.caps.target == "webgpu":
            caps = needed_caps(plan)
            names = (*AT_LEAST, "storage_alignment", "f16", "subgroups")
            needs = {name: getattr(caps, name) for name in names} | {"workgroups": most_groups(plan), "dialect": caps.dialect}
        exact = self.exact
        return {
            "needs": needs,
            "infer": [
                {"symbol": s.symbol, "input": s.input, "axis": s.axis, "slope": exact(s.slope), "rest": exact(s.rest)}
                for s in solutions(graph)
            ],
            "requirements": [
                {"small": exact(r.small), "large": exact(r.large), "unless_empty": exact(r.unless_empty), "text": r.text}
                for r in requirements(graph)
            ],
            "index_inputs": [
                {"input": name, "size": exact(size), "op": op} for name, size, op in dict.fromkeys(index_inputs(graph))
            ],
        }

    # -- pieces -----------------------------------------------------------------------------------------------------
    def dim(self, d: Dim) -> Json:
        return self.exprs.dim(d)

    def exact(self, d: Dim) -> Json:
        check_exact(d, self.plan.maxima)
        return self.exprs.dim(d)

    def dims(self, dims: Iterable[Dim]) -> list[Json]:
        return [self.exprs.dim(d) for d in dims]

    def type(self, t: TensorType) -> dict[str, Json]:
        return {"dtype": t.dtype.name, "shape": self.dims(t.shape)}

    def named(self, name: str, node: int) -> dict[str, Json]:
        return {"name": name, "value": node, **self.type(self.graph.nodes[node].type)}

    def blob(self, data: bytes) -> int:
        return self.blobs.setdefault(data, len(self.blobs))

    def contents(self, node: Node) -> int | None:
        """The blob of a constant or of a state's first value; states that start as zeros have none."""
        data = node.attr.get("data" if node.op == "constant" else "init")
        if not isinstance(data, ConstData) or (node.op == "state" and data.data.count(0) == len(data.data)):
            return None
        return self.blob(data.data)

    def step(self, s: Step, uniforms: dict[Sequence[Dim], int]) -> dict[str, Json]:
        return {
            "label": s.label,
            "variant": s.variant,
            "kernel": None if s.kernel < 0 else s.kernel,
            "bindings": [[b.value, b.part, b.access] for b in s.bindings],
            "uniforms": uniforms[s.uniforms] if s.uniforms else None,
            "groups": self.dim(s.groups),
            "nodes": list(s.nodes),
            "root": s.root,
            "anchor": s.anchor,
        }

    def encode_graph(self, graph: Graph) -> dict[str, Json]:
        return {"nodes": [self.node(n) for n in graph.nodes], "updates": [list(pair) for pair in graph.updates]}

    def node(self, n: Node) -> dict[str, Json]:
        row: dict[str, Json] = {"op": n.op, **self.type(n.type)}
        if n.name:
            row["name"] = n.name
        if n.inputs:
            row["in"] = list(n.inputs)
        attrs = {name: self.attr(value) for name, value in n.attrs if not isinstance(value, ConstData)}
        return row | ({"attrs": attrs} if attrs else {})

    def attr(self, value: Any) -> Json:
        if isinstance(value, tuple):
            return [self.attr(v) for v in value]
        if isinstance(value, Expr):
            return self.dim(value)
        if isinstance(value, float):
            if math.isfinite(value):
                return {"f": float(value)}
            return {"f": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        return value
