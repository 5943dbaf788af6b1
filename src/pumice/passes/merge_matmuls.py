"""merge_matmuls: matmuls of one operand with several weights as one matmul with all of them, and slices of its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.ir.graph import Graph, Node
from pumice.ir.ops.pack_rows import TILE_ROWS
from pumice.ir.registry import Routine
from pumice.passes.dce import dce
from pumice.passes.rebuild import Rebuilder

# For params that have memory already: the names of those in the same pack, in order.
Packs = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Matmul:
    """A matmul of a param: the node, its weight [rows, K], and the bias that is added to it, if any, with that addition."""

    node: Node
    weight: Node
    bias: Node | None
    add: Node | None

    @property
    def rows(self) -> int:
        return self.weight.type.static_shape[0]

    @property
    def result(self) -> int:
        return self.node.id if self.add is None else self.add.id


def merge_matmuls(graph: Graph, caps: Caps, packs: Packs | None = None) -> Graph:
    """The graph with fewer, larger matmuls: of q, k and v, of gate and up, and wherever else weights meet one operand.

    Fewer steps read the same weights. The weights stay params of their own names; a `pack_rows` node puts them next to each
    other in memory. Left alone are weights that something else reads or updates, weights of other dtypes, and results that
    a run hands out or reads in a way that would have to copy them. `packs` says how params that have memory already are packed.

    >>> import pumice as pm
    >>> def gated(params, x):
    ...     return pm.silu(x @ params["gate"].T) * (x @ params["up"].T)
    >>> weight = pm.spec(64, 32)
    >>> g = pm.trace(gated, params={"gate": weight, "up": weight}, x=pm.spec("B", 32))
    >>> [n.op for n in merge_matmuls(g, Caps.preset("h200"))]
    ['param', 'param', 'input', 'pack_rows', 'transpose', 'matmul', 'slice', 'silu', 'slice', 'mul']
    """
    groups = list(_groups(graph, caps, packs or {}))
    if not groups:
        return graph
    first = {group[0].node.id: group for group in groups}
    replaced = {m.node.id for group in groups for m in group}
    slices: dict[int, _Slice] = {}  # what takes the place of a node
    r = Rebuilder(graph)
    for n in graph:
        if n.id in first:
            slices |= _merge(graph, r, first[n.id], caps, packs or {})
        if n.id in slices:
            r.ids[n.id] = slices[n.id].add(r)
        elif n.id not in r.ids and n.id not in replaced:
            r.keep(n)
    return dce(r.finish())


@dataclass(frozen=True, slots=True)
class _Slice:
    """`size` elements from `start` on of an axis of a value, under the shape of the node whose place they take."""

    of: int
    axis: int
    start: int
    size: int
    node: Node

    def add(self, r: Rebuilder) -> int:
        shape = r.nodes[self.of].type.shape
        starts = [0] * len(shape)
        starts[self.axis] = self.start
        stops = [*shape[: self.axis], self.start + self.size, *shape[self.axis + 1 :]]
        attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
        found = r.add("slice", [self.of], attrs, self.node.where)
        if r.nodes[found].type == self.node.type:
            return found
        return r.add("reshape", [found], {"shape": self.node.type.shape}, self.node.where)


def _groups(graph: Graph, caps: Caps, packs: Packs) -> Iterator[list[_Matmul]]:
    """Matmuls to merge, of one operand, one precision and weights of one dtype, in the order of the graph."""
    exposed = {*graph.roots, *(target for target, _ in graph.updates)}
    found: dict[tuple[object, ...], list[_Matmul]] = {}
    for n in graph:
        m = _matmul_of_param(graph, n, exposed)
        if m is not None and _slices_are_free(graph, m.result, exposed):
            found.setdefault((n.op, n.args[0], n.attrs, m.weight.type.dtype, n.type.dtype), []).append(m)
    limit = min(caps.max_binding_bytes, caps.max_buffer_bytes)
    parts: list[list[_Matmul]] = []
    for matmuls in found.values():
        group: list[_Matmul] = []
        size = 0
        for m in matmuls:
            nbytes = m.weight.type.max_nbytes({})
            if group and (size + nbytes > limit or not _may_be_followed(group[-1].weight, caps)):
                parts.append(group)
                group, size = [], 0
            group.append(m)
            size += nbytes
        parts.append(group)
    for part in parts:
        if len(part) > 1 and _pack_together([m.weight for m in part], caps, packs):
            yield part


def _may_be_followed(weight: Node, caps: Caps) -> bool:
    """Whether another param may begin where this one ends: there it could be bound by itself, and a tile of rows begins."""
    rows, nbytes = weight.type.static_shape[0], weight.type.max_nbytes({})
    return nbytes > 0 and nbytes % caps.storage_alignment == 0 and not (weight.type.dtype.is_quant and rows % TILE_ROWS)


def _matmul_of_param(graph: Graph, n: Node, exposed: set[int]) -> _Matmul | None:
    """The node as a matmul with a weight that is read here alone, and the addition of a bias that is its only reader."""
    if n.op not in ("matmul", "qmatmul"):
        return None
    weight = graph.nodes[n.args[1]]
    if n.op == "matmul":
        if weight.op != "transpose" or weight.attr["perm"] != (1, 0) or not _only_reader(graph, weight.id, exposed):
            return None
        weight = graph.nodes[weight.args[0]]
    if weight.op != "param" or weight.type.rank != 2 or not _only_reader(graph, weight.id, exposed):
        return None
    readers = graph.users[n.id]
    add = graph.nodes[readers[0]] if len(readers) == 1 and n.id not in exposed else None
    if add is not None and add.op == "add" and add.type == n.type and add.args[0] != add.args[1]:
        bias = graph.nodes[next(i for i in add.args if i != n.id)]
        rows = weight.type.shape[0]
        if bias.op == "param" and bias.type.shape == (rows,) and _only_reader(graph, bias.id, exposed):
            return _Matmul(n, weight, bias, add)
    return _Matmul(n, weight, None, None)


def _only_reader(graph: Graph, node: int, exposed: set[int]) -> bool:
    return len(graph.users[node]) == 1 and node not in exposed


def _slices_are_free(graph: Graph, result: int, exposed: set[int]) -> bool:
    """Whether all readers of a result can read a slice of a wider one in place, so that nothing is copied.

    Kernels that compute elements can. Routines read memory by strides: views before them must keep the rows apart.
    """
    rows = tuple(d for d in graph.nodes[result].type.shape[:-1] if d != 1)
    pending = [(result, True)]
    while pending:
        node, strided = pending.pop()
        if node in exposed:
            return False
        for reader in (graph.nodes[i] for i in set(graph.users[node])):
            spec = reader.spec
            if spec.is_view:
                kept = reader.op != "reshape" or tuple(d for d in reader.type.shape if d != 1)[: len(rows)] == rows
                pending.append((reader.id, strided and kept))
            elif isinstance(spec.lowering, Routine) and not strided:
                return False
    return True


def _head_size(result: Node, reader: Node) -> int | None:
    """The size of the heads into which a reshape cuts the last axis of a result, if that and axes of size 1 are all it makes."""
    rows, new = result.type.shape[:-1], reader.type.shape
    *outer, last = new[len(rows) :] or (None,)
    if reader.op != "reshape" or new[: len(rows)] != rows or not outer or not isinstance(last, int):
        return None
    return last if last > 1 and sum(d != 1 for d in outer) <= 1 else None


def _merge(graph: Graph, r: Rebuilder, group: list[_Matmul], caps: Caps, packs: Packs) -> dict[int, _Slice]:
    """Adds the merged matmul, with its biases where they can be packed too; gives what takes the place of which node."""
    node = group[0].node
    for m in group:
        for source in (m.weight, m.bias):
            if source is not None and source.id not in r.ids:
                r.keep(source)
    weight = r.add("pack_rows", [r.ids[m.weight.id] for m in group], {}, node.where)
    if node.op == "matmul":
        weight = r.add("transpose", [weight], {"perm": (1, 0)}, node.where)
    y = r.add(node.op, [r.ids[node.args[0]], weight], node.attr, node.where)
    results = [m.node for m in group]
    biases = [m.bias for m in group if m.bias is not None]
    if len(biases) == len(group) and _pack_together(biases, caps, packs):
        y = r.add("add", [y, r.add("pack_rows", [r.ids[b.id] for b in biases], {}, node.where)], {}, node.where)
        results = [m.add for m in group if m.add is not None]
    slices: dict[int, _Slice] = {}
    by_heads: dict[int, int] = {}
    start = 0
    for m, n in zip(group, results, strict=True):
        slices[n.id] = _Slice(y, n.type.rank - 1, start, m.rows, n)
        # Heads are cut first and picked then: attention reads such slices as it reads whole results.
        for reader in (graph.nodes[i] for i in graph.users[n.id]):
            size = _head_size(n, reader)
            if size is None or any(other.rows % size for other in group):
                continue
            if size not in by_heads:
                shape = (*r.nodes[y].type.shape[:-1], sum(other.rows for other in group) // size, size)
                by_heads[size] = r.add("reshape", [y], {"shape": shape}, reader.where)
            slices[reader.id] = _Slice(by_heads[size], n.type.rank - 1, start // size, m.rows // size, reader)
        start += m.rows
    return slices


def _pack_together(params: Sequence[Node], caps: Caps, packs: Packs) -> bool:
    """Whether params of one kind may be adjacent."""
    names = tuple(p.name for p in params)
    alike = len({p.type.dtype for p in params}) == 1 and all(_may_be_followed(p, caps) for p in params[:-1])
    return alike and all(packs.get(name, names) == names for name in names)
