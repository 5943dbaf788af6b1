"""A plan as the header and the blobs of a plan file; docs/plan-format.md is the specification."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pumice.core.dims import Dim, Expr
from pumice.core.json_file import canonical
from pumice.core.records import dataclass
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.registry import RESIDENT_OPS, SOURCE_OPS
from pumice.ir.requirements import index_inputs, requirements
from pumice.ir.types import TensorType
from pumice.plan.file_exprs import ExprTable, check_exact
from pumice.plan.file_symbols import solutions
from pumice.plan.needs import AT_LEAST, most_groups, needed_caps
from pumice.plan.plan import FEATURES, MATRIX_FEATURES, Access, Binding, DeviceCount, Grid, Kernel, Plan, Regime, Value

Json = Any
# Entries that are derived from the rest, for readers without an IR. Later releases may derive more, or tighter bounds, so a
# reader checks only their form and takes the rest of the header as the plan.
DERIVED = ("needs", "infer", "requirements", "index_inputs")
# Those of `PlanOptions` that decide what the plan is.
OPTIONS = ("fuse", "arena", "regimes", "guard", "default_max")
STEP_COLUMNS = "label variant kernel bindings access uniforms groups nodes root anchor"
# How the access of bindings is written.
ACCESS: Mapping[Access, str] = {"read": "r", "write": "w", "update": "u"}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A header and the blobs that it refers to."""

    header: dict[str, Json]
    blobs: tuple[bytes, ...]


def encode(plan: Plan, *, derived: bool = True) -> Encoded:
    """The plan as JSON and bytes, the same for equal plans in every process; without what is derived, if that is not needed."""
    return _Writer(plan).encode(derived)


def columns(names: str, rows: Iterable[Sequence[Json]]) -> dict[str, list[Json]]:
    """A table of rows as the file has it, column by column.

    >>> columns("name max", [("T", 8), ("S", 4)])
    {'name': ['T', 'S'], 'max': [8, 4]}
    """
    keys = names.split()
    return dict(zip(keys, map(list, zip(*rows)))) or {key: [] for key in keys}


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.exprs = ExprTable()
        self.blobs: dict[bytes, int] = {}
        self._types: dict[TensorType, int] = {}
        self._type_rows: list[Sequence[Json]] = []
        self._ops: dict[str, int] = {}
        self._op_rows: list[Sequence[Json]] = []
        # Plans share most types and attributes between layers. They live as long as the plan, so that an id names one.
        self._type_ids: dict[int, int] = {}
        self._op_ids: dict[tuple[str, int, int, int], int] = {}
        self._bindings: dict[int, tuple[list[int], str]] = {}
        self._sources = {n.id for op in RESIDENT_OPS for n in plan.graph.sources(op)}

    def encode(self, derived: bool) -> Encoded:
        plan, graph = self.plan, self.graph
        uniforms = list(dict.fromkeys(s.uniforms for r in plan.regimes for s in r.steps if s.uniforms))
        sources = [v for v in plan.values.values() if self.is_source(v)]
        named = self.named
        header: dict[str, Json] = {
            "format": "pumice-plan",
            "target": plan.caps.target,
            "options": {name: getattr(plan.options, name) for name in OPTIONS},
            "symbols": columns("name max", ((name, plan.maxima[name]) for name, _ in graph.symbols)),
            "inputs": named(graph.sources("input")),
            "params": columns("name value stored", ((n.name, n.id, list(n.type.stored_shape)) for n in graph.sources("param"))),
            "states": columns("name value init", ((n.name, n.id, self.contents(n)) for n in graph.sources("state"))),
            "constants": columns("value blob", ((n.id, self.contents(n)) for n in graph.sources("constant"))),
            "outputs": columns("name value", graph.outputs),
            "captures": columns("name value", graph.captures),
            "tree": graph.tree,
            "buffers": columns("kind nbytes name", ((b.kind, b.nbytes, b.name) for b in plan.buffers)),
            "values": self.values(sources),
            "kernels": columns(
                "name wgsl access words workgroup shared features",
                (self.kernel(k) for k in plan.kernels),
            ),
            "uniforms": [self.dims(words) for words in uniforms],
            "regimes": [self.regime(r, {u: i for i, u in enumerate(uniforms)}) for r in plan.regimes],
        }
        # Everything that readers evaluate is in the table by now; the graph may hold larger sizes that never run.
        for e in self.exprs.exprs:
            check_exact(e, plan.maxima)
        header["graph"] = self.encode_graph(graph)
        header["types"] = columns("dtype shape", self._type_rows)
        if derived:
            header |= self.derived()
        header["blobs"] = [len(b) for b in self.blobs]
        header["exprs"] = self.exprs.rows
        return Encoded(header, tuple(self.blobs))

    def kernel(self, k: Kernel) -> Sequence[Json]:
        launch = (k.uniform_words, k.workgroup, k.shared_bytes, " ".join(k.features))
        return (k.name, self.blob(k.wgsl.encode()), access_text(k.access), *launch)

    def derived(self) -> dict[str, Json]:
        plan, graph = self.plan, self.graph
        needs: dict[str, Json] = {}
        if plan.caps.dispatches:
            caps = needed_caps(plan)
            names = (*AT_LEAST, "storage_alignment", *FEATURES)
            needs = {name: getattr(caps, name) for name in names} | {"workgroups": most_groups(plan)}
            if caps.subgroup_fixed:
                needs["subgroup_size"] = caps.subgroup_size
            needs |= {name: True for name in MATRIX_FEATURES if getattr(caps, name)}
        exact = self.exact
        return {
            "needs": needs,
            "infer": columns(
                "symbol input axis slope rest",
                ((s.symbol, s.input, s.axis, exact(s.slope), exact(s.rest)) for s in solutions(graph)),
            ),
            "requirements": columns(
                "small large unless_empty text",
                ((exact(r.small), exact(r.large), exact(r.unless_empty), r.text) for r in requirements(graph)),
            ),
            "index_inputs": columns(
                "input size op", ((name, exact(size), op) for name, size, op in dict.fromkeys(index_inputs(graph)))
            ),
        }

    # -- pieces -----------------------------------------------------------------------------------------------------
    def exact(self, d: Dim) -> Json:
        check_exact(d, self.plan.maxima)
        return self.exprs.dim(d)

    def dims(self, dims: Iterable[Dim]) -> list[Json]:
        return [self.exprs.dim(d) for d in dims]

    def type(self, t: TensorType) -> int:
        found = self._type_ids.get(id(t))
        if found is None:
            found = self._type_ids[id(t)] = self._types.setdefault(t, len(self._type_rows))
            if found == len(self._type_rows):
                self._type_rows.append((t.dtype.name, self.dims(t.shape)))
        return found

    def named(self, nodes: Iterable[Node]) -> dict[str, list[Json]]:
        return columns("name value", ((n.name, n.id) for n in nodes))

    def value(self, v: Value) -> Sequence[Json]:
        return v.id, self.type(v.type), [word for p in v.parts for word in (p.buffer, p.offset, p.nbytes)]

    def blob(self, data: bytes) -> int:
        return self.blobs.setdefault(data, len(self.blobs))

    def contents(self, node: Node) -> int | None:
        """The blob of a constant or of a state's first value; states that start as zeros have none."""
        data = node.attr.get("data" if node.op == "constant" else "init")
        if not isinstance(data, ConstData) or (node.op == "state" and data.data.count(0) == len(data.data)):
            return None
        return self.blob(data.data)

    def is_source(self, v: Value) -> bool:
        return v.id in self._sources

    def values(self, values: Iterable[Value]) -> dict[str, list[Json]]:
        return columns("id type parts", (self.value(v) for v in sorted(values, key=lambda v: v.id)))

    def regime(self, r: Regime, uniforms: Mapping[Sequence[Dim], int]) -> dict[str, Json]:
        return {
            "bounds": columns("dim most", ((self.exprs.dim(d), most) for d, most in r.bounds)),
            "reason": r.reason,
            "values": self.values(v for v in r.values.values() if not self.is_source(v)),
            "steps": self.steps(r, uniforms),
            "copies": columns("to value", r.copies),
        }

    def steps(self, regime: Regime, uniforms: Mapping[Sequence[Dim], int]) -> dict[str, list[Json]]:
        steps, bindings = regime.steps, [self.bindings(s.bindings) for s in regime.steps]
        found: tuple[list[Json], ...] = (
            [s.label for s in steps],
            [s.variant for s in steps],
            [None if s.kernel < 0 else s.kernel for s in steps],
            [words for words, _ in bindings],
            [access for _, access in bindings],
            [uniforms[s.uniforms] if s.uniforms else None for s in steps],
            [self.grid(s.groups) for s in steps],
            [list(s.nodes) for s in steps],
            [s.root for s in steps],
            [s.anchor for s in steps],
        )
        return dict(zip(STEP_COLUMNS.split(), found, strict=True))

    def bindings(self, bindings: tuple[Binding, ...]) -> tuple[list[int], str]:
        """The values and parts of bindings, and what is done to them; regimes share them."""
        found = self._bindings.get(id(bindings))
        if found is None:
            words = [word for b in bindings for word in (b.value, b.part)]
            found = self._bindings[id(bindings)] = words, access_text(b.access for b in bindings)
        return found

    def grid(self, groups: Grid) -> Json:
        if isinstance(groups, DeviceCount):
            return {"value": groups.value, "word": groups.word, "most": self.exprs.dim(groups.most)}
        return self.exprs.dim(groups)

    # -- the graph --------------------------------------------------------------------------------------------------
    def encode_graph(self, graph: Graph) -> dict[str, Json]:
        nodes = [(self.op(n), list(n.inputs)) for n in graph.nodes]
        return {
            "nodes": columns("op in", nodes),
            "names": self.named(n for n in graph.nodes if n.name and n.op not in SOURCE_OPS),
            "updates": columns("to value", graph.updates),
            "ops": columns("op type further attrs", self._op_rows),
        }

    def op(self, n: Node) -> int:
        """The row of a node in the table of ops: what it computes, and the types of its results."""
        key = n.op, id(n.attrs), id(n.type), id(n.further)
        found = self._op_ids.get(key)
        if found is None:
            attrs = {name: self.attr(value) for name, value in n.attrs if not isinstance(value, ConstData)}
            row = n.op, self.type(n.type), [self.type(t) for t in n.further], attrs
            found = self._op_ids[key] = self._ops.setdefault(canonical(row), len(self._op_rows))
            if found == len(self._op_rows):
                self._op_rows.append(row)
        return found

    def attr(self, value: Any) -> Json:
        if isinstance(value, tuple):
            return [self.attr(v) for v in value]
        if isinstance(value, Expr):
            return self.exprs.dim(value)
        if isinstance(value, float):
            if math.isfinite(value):
                return {"f": float(value)}
            return {"f": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        return value


def access_text(access: Iterable[Access]) -> str:
    """What a step does to its bindings, one letter each.

    >>> access_text(["read", "update"])
    'ru'
    """
    return "".join(ACCESS[a] for a in access)
