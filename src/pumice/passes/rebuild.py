"""Rebuilder: used by all passes to make a new graph from an old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.ir.graph import ConstData, Graph, Inference, Node
from pumice.ir.registry import Array
from pumice.ir.types import TensorType


class Rebuilder:
    """Copies nodes one by one; `ids` maps old ids to new ones. Types are kept, new nodes infer theirs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.ids: dict[int, int] = {}
        self._inference = Inference()

    def keep(self, node: Node) -> int:
        """Copy a node, its inputs mapped."""
        ids, new, inputs = self.ids, len(self.nodes), node.inputs
        self.nodes.append(node.moved(new, tuple([None if i is None else ids[i] for i in inputs]) if inputs else inputs))
        ids[node.id] = new
        return new

    def append(self, node: Node) -> int:
        """Append a node whose inputs are new ids."""
        self.nodes.append(node.moved(len(self.nodes), node.inputs))
        return len(self.nodes) - 1

    def add(self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any], where: str = "") -> int:
        """A new node on new ids."""
        items, types = self._inference.complete(self.nodes, op, inputs, attrs)
        return self.append(Node(0, op, tuple(inputs), items, types[0], "", where, types[1:]))

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
