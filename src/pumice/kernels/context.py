"""What lowering works on: a fused group of nodes, strided views of stored values, and the target's caps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, divide_exactly, product, upper
from pumice.errors import LimitError, PlanError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType


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


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on a stored value: element at idx lies at offset + Σ idx·strides, in elements."""

    leaf: int
    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim = 0


def contiguous_strides(shape: Shape) -> tuple[Dim, ...]:
    """Row-major strides in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    out: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        out.append(step)
        step = step * d
    return tuple(reversed(out))


def reshape_strides(shape: Shape, strides: tuple[Dim, ...], new: Shape) -> tuple[Dim, ...] | None:
    """Strides of the same elements under a new shape, or None if that needs a copy.

    >>> reshape_strides((2, 3, 4), (12, 4, 1), (6, 4)), reshape_strides((3, 2), (1, 3), (6,))
    ((4, 1), None)
    """
    if product(shape) == 0:
        return contiguous_strides(new)
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    out: list[Dim] = [0] * len(new)
    i, j = 0, 0
    while i < len(old) or j < len(new):
        if i == len(old):  # only dims of size 1 can be left
            if any(d != 1 for d in new[j:]):
                return None
            break
        have, want, i0, j0 = old[i][0], new[j] if j < len(new) else 1, i, j
        i, j = i + 1, j + 1
        while have != want:
            if divide_exactly(have, want) is not None and j < len(new):
                want, j = want * new[j], j + 1
            elif divide_exactly(want, have) is not None and i < len(old):
                have, i = have * old[i][0], i + 1
            else:
                return None
        for a in range(i0, i - 1):
            if old[a][1] != old[a + 1][0] * old[a + 1][1]:
                return None
        step = old[i - 1][1]
        for b in range(j - 1, j0 - 1, -1):
            out[b] = step
            step = step * new[b]
    return tuple(out)


def transform_view(node: Node, base: View) -> View | None:
    """The view that a view op makes of `base`, or None if it is none."""
    if node.op == "reshape":
        strides = reshape_strides(base.shape, base.strides, node.type.shape)
        return None if strides is None else View(base.leaf, node.type.shape, strides, base.offset)
    if node.op == "transpose":
        return View(base.leaf, node.type.shape, tuple(base.strides[p] for p in node.attr["perm"]), base.offset)
    if node.op == "slice":
        offset = base.offset
        for start, stride in zip(node.attr["starts"], base.strides, strict=True):
            offset = offset + start * stride
        strides = tuple(s * k for s, k in zip(base.strides, node.attr["steps"], strict=True))
        return View(base.leaf, node.type.shape, strides, offset)
    if node.op == "flip":
        offset, flipped = base.offset, list(base.strides)
        for axis in node.attr["axes"]:
            offset = offset + (base.shape[axis] - 1) * base.strides[axis]
            flipped[axis] = flipped[axis] * -1
        return View(base.leaf, node.type.shape, tuple(flipped), offset)
    if node.op == "expand":
        new, pad = node.type.shape, len(node.type.shape) - len(base.shape)
        spread = tuple(
            base.strides[d - pad] if d >= pad and base.shape[d - pad] == new[d] and new[d] != 1 else 0 for d in range(len(new))
        )
        return View(base.leaf, new, spread, base.offset)
    return None


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
    if n.op not in ("reshape", "transpose", "slice", "flip", "expand"):
        return None
    base = find_view(graph, n.args[0], stored)
    return None if base is None else transform_view(n, base)
