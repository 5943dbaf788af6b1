"""What lowering works on: a fused group of nodes, strided views of stored values, and the target's caps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, upper
from pumice.errors import LimitError, PlanError
from pumice.ir.graph import Graph
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType
from pumice.ir.views import View, contiguous_strides


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one kernel (or the few of one routine) and write one value, `root`.

    `anchor` is the row or routine node in it, if any: what it reads is computed on the fly or loaded (prologue), what
    follows it up to the root is elementwise on its result (epilogue). `leaves` are the stored values it reads.
    `inplace` names the leaf whose memory the root takes over. `store` is a temporary that takes the root's elements one per
    word where the root's own dtype packs several, which the threads of an anchor could not write without racing.
    """

    root: int
    anchor: int | None
    nodes: tuple[int, ...]
    leaves: tuple[int, ...]
    inplace: int | None = None
    store: int | None = None


class LowerContext:
    """Graph, caps and maxima for lowering; hands out temporaries."""

    def __init__(self, graph: Graph, caps: Caps, maxima: Mapping[str, int]) -> None:
        self.graph, self.caps, self.maxima = graph, caps, maxima
        self.temps: dict[int, TensorType] = {}
        self._parts: dict[int, tuple[int, ...]] = {}

    def type(self, value: int) -> TensorType:
        """Type of a node or temporary."""
        return self.graph.nodes[value].type if value < len(self.graph) else self.temps[value]

    def temp(self, type: TensorType) -> int:
        """A new temporary value."""
        value = len(self.graph) + len(self.temps)
        self.temps[value] = type
        return value

    def max(self, d: Dim) -> int:
        """The greatest value of a dim."""
        return upper(d, self.maxima)

    def label(self, group: Group) -> str:
        """The ops of a group as the name of its kernel."""
        return "+".join(dict.fromkeys(self.graph.nodes[i].op for i in group.nodes))

    def part_elements(self, value: int) -> tuple[int, ...]:
        """Elements in each part of a value: one part, or row shards of a param larger than a binding."""
        if value not in self._parts:
            self._parts[value] = self._shard(value)
        return self._parts[value]

    def _shard(self, value: int) -> tuple[int, ...]:
        t = self.type(value)
        limit = min(self.caps.max_binding_bytes, self.caps.max_buffer_bytes)
        nbytes = t.max_nbytes(self.maxima)
        total = self.max(t.numel)
        if nbytes <= limit:
            return (total,)
        node = self.graph.nodes[value] if value < len(self.graph) else None
        name = (node.name or f"%{node.id} {node.op}") if node else "a temporary"
        if node is None or node.op != "param" or t.rank == 0 or any(value == target for target, _ in self.graph.updates):
            raise LimitError(
                f"{name} ({t.describe()}) takes {nbytes} bytes, a binding on {self.caps.name} holds {limit}",
                hint="lower the maxima of its symbols, split the tensor, or use a device with larger bindings",
                where=node.where if node else "",
                tensor=name,
                nbytes=nbytes,
                limit=limit,
            )
        rows = self.max(t.shape[0])
        row = total // max(1, rows)
        # Whole words: parts must not split a 32-bit word, and 4 rows of anything are a multiple of 4 bytes.
        fit = limit // max(1, t.dtype.nbytes(row)) // 4 * 4
        if fit == 0:
            raise LimitError(
                f"four rows of the param {name} ({t.describe()}) exceed the binding limit of {self.caps.name}, {limit} bytes",
                tensor=name,
                nbytes=nbytes,
                limit=limit,
            )
        return tuple(min(fit, rows - start) * row for start in range(0, rows, fit))

    def view(self, node: int, leaves: Sequence[int]) -> View:
        """The node as a strided view of one of the stored `leaves`."""
        found = find_view(self.graph, node, set(leaves))
        if found is None:
            raise PlanError(f"%{node} is no strided view of a stored value")
        return found


def below_views(graph: Graph, node: int) -> int:
    """The value that a chain of views shows."""
    while get_op(graph.nodes[node].op).is_view:
        node = graph.nodes[node].args[0]
    return node


def find_view(graph: Graph, node: int, stored: set[int]) -> View | None:
    """Follow view ops from `node` down to a value in `stored`; None if that is not possible without a copy."""
    if node in stored:
        shape = graph.nodes[node].type.shape
        return View(node, shape, contiguous_strides(shape))
    n = graph.nodes[node]
    view = get_op(n.op).traits.view
    base = find_view(graph, n.args[0], stored) if view is not None else None
    return None if base is None or view is None else view(base, n.attr, n.type.shape)
