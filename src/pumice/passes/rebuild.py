"""Rebuilder: used by all passes to make a new graph from an old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pumice.ir.graph import ConstData, Graph, Node, result_types
from pumice.ir.registry import Array, get_op
from pumice.ir.types import TensorType


class Rebuilder:
    """Copies nodes one by one; `ids` maps old ids to new ones. Types are kept, new nodes infer theirs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.ids: dict[int, int] = {}

    def keep(self, node: Node) -> int:
        """Copy a node, its inputs mapped."""
        inputs = tuple(None if i is None else self.ids[i] for i in node.inputs)
        # Built directly: `replace` costs several times as much, and every pass copies every node.
        new = Node(len(self.nodes), node.op, inputs, node.attrs, node.type, node.name, node.where, node.further)
        self.nodes.append(new)
        self.ids[node.id] = new.id
        return new.id

    def append(self, node: Node) -> int:
        """Append a node whose inputs are new ids."""
        self.nodes.append(replace(node, id=len(self.nodes)))
        return len(self.nodes) - 1

    def add(self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any], where: str = "") -> int:
        """A new node on new ids."""
        spec = get_op(op)
        full = spec.complete_attrs(attrs)
        type, *further = result_types(self.nodes, op, inputs, full)
        return self.append(Node(0, op, tuple(inputs), tuple(sorted(full.items())), type, "", where, tuple(further)))

    def constant(self, array: Array, type: TensorType, where: str = "") -> int:
        """A new constant."""
        return self.append(Node(0, "constant", (), (("data", ConstData.of(array)),), type, "", where))

    def finish(self) -> Graph:
        """The new graph with outputs, updates and captures mapped."""
        g = self.graph
        return Graph(
            tuple(self.nodes),
            tuple((name, self.ids[i]) for name, i in g.outputs),
            tuple((self.ids[s], self.ids[v]) for s, v in g.updates),
            tuple((name, self.ids[i]) for name, i in g.captures),
            g.symbols,
            g.tree,
        )
