"""exe.find_nan: the first node that makes a NaN or an infinity, found in a plan that fuses nothing and reuses no memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pumice.backends.base import resident_specs
from pumice.core.blocks import dequantize_rows
from pumice.core.dims import evaluate
from pumice.core.dtypes import DType
from pumice.ir.graph import Node
from pumice.ir.registry import Source, get_op
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions
from pumice.run.profile import kept_values

if TYPE_CHECKING:
    from pumice.backends.base import Array
    from pumice.run.executable import Executable

Kind = Literal["nan", "inf"]
# Elements that are looked at together.
_PIECE = 1 << 22
# Where the counts of a value begin: nothing seen.
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True)
class TensorStats:
    """The numbers in a value. `least`, `most` and `largest` (by size) are of the finite ones, None if there are none.

    `first` is the index of the first NaN or infinity.
    """

    node: int
    op: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    nan: int
    inf: int
    least: float | None
    most: float | None
    largest: float | None
    first: tuple[int, ...] | None

    @property
    def finite(self) -> bool:
        return not (self.nan or self.inf)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        counts = f"{self.nan} NaN, {self.inf} Inf" + (f", the first at {list(self.first)}" if self.first is not None else "")
        span = "nothing finite" if self.least is None else f"finite {self.least:.6g} … {self.most:.6g}"
        return f"%{self.node} {self.op}{f' {self.name!r}' if self.name else ''} {self.dtype} {shape}: {counts}, {span}"


@dataclass(frozen=True)
class NanReport:
    """What `exe.find_nan` found.

    `kind` is what `node` made: "nan" from operands without NaN, or "inf" from finite ones; None if no node made any, and
    those there are came in with the sources. `inputs` are the node's operands. `sources` are the inputs, params, states and
    constants that hold NaN or infinities themselves, as far as they were looked at: all inputs, and what feeds a bad node.
    """

    kind: Kind | None
    node: TensorStats | None
    where: str
    inputs: tuple[TensorStats, ...]
    sources: tuple[TensorStats, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        if self.node is not None:
            made = "NaN" if self.kind == "nan" else "an infinity"
            lines.append(f"{self.node.op} makes {made}" + (f" at {self.where}" if self.where else ""))
            lines.append(f"  {self.node}")
            lines += [f"    from {s}" for s in self.inputs]
        else:
            lines.append("no node makes a NaN or an infinity")
        return "\n".join([*lines, *[f"  came in with {s}" for s in self.sources]])


def find_nan(exe: Executable, given: Mapping[str, Any], memory: int) -> NanReport | None:
    """Looks at every float value of a run in order; None if all are finite. The executable's states stay as they are."""
    call = exe._call(given, (), False)

    def search(_: object) -> NanReport | None:
        exe._check_complete(call.states)
        with kept_values(call.states):
            exe.store._write(call.states)
            return _Search(exe, call.env, call.inputs, memory).run()

    return exe._in_turn(search)


def _is_computed(node: Node) -> bool:
    return not isinstance(get_op(node.op).lowering, Source)


class _Search:
    """One search. Values come from debug plans that borrow params and states and write neither."""

    def __init__(self, exe: Executable, env: Mapping[str, int], inputs: Mapping[str, Array], memory: int) -> None:
        self._exe, self._env, self._inputs = exe, env, inputs
        self._memory = memory
        self.graph = exe.graph
        self._names = {i: name for name, i in (*self.graph.outputs, *self.graph.captures)}
        self._counts: dict[int, tuple[int, int]] = {}
        self._sources: dict[int, TensorStats] = {}

    def run(self) -> NanReport | None:
        for n in self.graph.sources("input"):
            self._source(n)
        nodes = [n for n in self.graph if _is_computed(n) and n.type.dtype.is_float and not get_op(n.op).is_view]
        chunks = list(self._chunks(nodes))
        # A plan that keeps every value must fit; where it does not, others may share memory, but never what is looked at.
        whole = len(chunks) == 1 and self._nbytes(self.graph.nodes, self._exe.plan.maxima) <= self._memory
        for chunk in chunks:
            arrays = self._read([n.id for n in chunk], whole)
            for n in chunk:
                self._counts[n.id] = _count(arrays[n.id])
            for n in chunk:
                kind = self._made(n)
                if kind is not None:
                    return self._report(n, kind, arrays[n.id])
        if not self._sources:
            return None
        return NanReport(None, None, "", (), tuple(self._sources.values()))

    def _nbytes(self, nodes: Sequence[Node], env: Mapping[str, int]) -> int:
        return sum(n.type.at(env).max_nbytes({}) for n in nodes if _is_computed(n))

    def _chunks(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """Runs of nodes whose values fit the memory together."""
        chunk: list[Node] = []
        used = 0
        for n in nodes:
            size = self._nbytes([n], self._env)
            if chunk and used + size > self._memory:
                yield chunk
                chunk, used = [], 0
            chunk.append(n)
            used += size
        if chunk:
            yield chunk

    def _read(self, wanted: Sequence[int], whole: bool = False) -> dict[int, Array]:
        """The values of some nodes, by a debug plan that computes no more than they need."""
        graph = replace(self.graph, outputs=tuple((f"%{i}", i) for i in wanted), updates=(), captures=(), tree="")
        # Maxima decide on kernels: the executable's own where memory allows, else the sizes of this run.
        own = self._exe.plan.maxima
        fixed = set().union(*(n.type.symbols for op in ("param", "state") for n in graph.sources(op)))
        maxima = {s: own[s] if whole or s in fixed else max(1, self._env.get(s, own[s])) for s, _ in graph.symbols}
        plan = build_plan(graph, self._exe.plan.caps, PlanOptions(fuse=False, arena=not whole), max=maxima)
        known = {e.name: e for e in self._exe._nodes.values()}
        residents = {node: known[spec.name]._memory() for node, spec in resident_specs(plan).items()}
        session = self._exe.device.open(plan, residents)
        try:
            names = {n.name for n in plan.graph.sources("input")}
            inputs = {name: a for name, a in self._inputs.items() if name in names}
            arrays = session.run(self._env, inputs, [i for _, i in plan.graph.outputs])
        finally:
            session.close()
        return dict(zip(wanted, arrays, strict=True))

    def _made(self, node: Node) -> Kind | None:
        """What the node made that its operands did not hold."""
        nan, inf = self._counts[node.id]
        if not (nan or inf):
            return None
        before = [self._counts_of(i) for i in dict.fromkeys(self._computing(node).args)]
        if nan and not any(n for n, _ in before):
            return "nan"
        return "inf" if inf and not any(n or i for n, i in before) else None

    def _counts_of(self, i: int) -> tuple[int, int]:
        known = self._counts.get(i)
        if known is None:
            known = self._counts[i] = self._look(self.graph.nodes[i])
        return known

    def _look(self, node: Node) -> tuple[int, int]:
        if node.op == "pack_rows":
            counts = [self._counts_of(i) for i in node.args]
            return sum(nan for nan, _ in counts), sum(inf for _, inf in counts)
        if not _is_computed(node):
            stats = self._source(node)
            return _NOTHING if stats is None else (stats.nan, stats.inf)
        if not node.type.dtype.is_float:
            return _NOTHING
        # A view shows nothing that its base does not hold, but perhaps not all of it.
        return _count(self._read([node.id])[node.id]) if any(self._counts_of(node.args[0])) else _NOTHING

    def _source(self, node: Node) -> TensorStats | None:
        """The numbers of a source that holds NaN or infinities, noted; None if it does not."""
        if node.type.dtype.is_float or node.type.dtype.is_quant:
            stats = self._stats(node, self._source_array(node))
            # An infinite constant is as good as any other: masks are made of it.
            if not stats.finite and (node.op != "constant" or stats.nan):
                self._sources[node.id] = stats
            if not stats.finite:
                return stats
        return None

    def _source_array(self, node: Node) -> Array:
        if node.op == "input":
            return self._inputs[node.name]
        if node.op == "constant":
            found: Array = node.attr["data"].array(node.type.dtype.np, node.type.stored_shape)
            return found
        return self._exe._nodes[node.id]._read()

    def _report(self, node: Node, kind: Kind, array: Array) -> NanReport:
        operands = list(dict.fromkeys(j for i in self._computing(node).args for j in self._unpacked(i)))
        computed = [i for i in operands if _is_computed(self.graph.nodes[i])]
        arrays = self._read(computed) if computed else {}
        inputs = []
        for i in operands:
            operand = self.graph.nodes[i]
            inputs.append(self._stats(operand, arrays[i] if i in arrays else self._source_array(operand)))
        return NanReport(kind, self._stats(node, array), node.where, tuple(inputs), tuple(self._sources.values()))

    def _computing(self, node: Node) -> Node:
        """The node that computes a value: of a further result the one that it belongs to."""
        return self.graph.nodes[node.args[0]] if node.op == "result" else node

    def _unpacked(self, i: int) -> tuple[int, ...]:
        """The params that an operand consists of, where it is a pack of them; else itself."""
        return self.graph.nodes[i].args if self.graph.nodes[i].op == "pack_rows" else (i,)

    def _stats(self, node: Node, array: Array) -> TensorStats:
        shape = tuple(evaluate(d, {**self._exe.plan.maxima, **self._env}) for d in node.type.shape)
        nan = inf = 0
        least, most = np.inf, -np.inf
        first: tuple[int, ...] | None = None
        for at, piece in _pieces(array, node.type.dtype, shape):
            bad_nan, bad_inf = np.isnan(piece), np.isinf(piece)
            nan, inf = nan + int(bad_nan.sum()), inf + int(bad_inf.sum())
            bad = bad_nan | bad_inf
            if first is None and bad.any():
                first = tuple(int(k) for k in np.unravel_index(at + int(np.argmax(bad)), shape or (1,)))[: len(shape)]
            good = piece[~bad]
            if good.size:
                least, most = min(least, float(good.min())), max(most, float(good.max()))
        seen = most >= least
        return TensorStats(
            node=node.id,
            op=self._computing(node).op,
            name=node.name or self._names.get(node.id, ""),
            dtype=node.type.dtype.name,
            shape=shape,
            nan=nan,
            inf=inf,
            least=least if seen else None,
            most=most if seen else None,
            largest=max(abs(least), abs(most)) if seen else None,
            first=first,
        )


def _pieces(array: Array, dtype: DType, shape: tuple[int, ...]) -> Iterator[tuple[int, Array]]:
    """(position of its first element, flat numbers) piece by piece; quantised rows are unpacked."""
    if dtype.is_quant:
        rows = array.reshape(-1, array.shape[-1])
        each = max(1, _PIECE // max(1, shape[-1]))
        for r in range(0, len(rows), each):
            yield r * shape[-1], dequantize_rows(dtype, rows[r : r + each], shape[-1]).reshape(-1)
        return
    flat = array.reshape(-1)
    for at in range(0, flat.size, _PIECE):
        piece = flat[at : at + _PIECE]
        yield at, piece.astype(np.float32) if dtype.is_float and piece.itemsize < 4 else piece.astype(np.float64, copy=False)


def _count(array: Array) -> tuple[int, int]:
    """NaN and infinities in a float array."""
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    return int(np.isnan(array).sum()), int(np.isinf(array).sum())
