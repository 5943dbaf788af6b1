"""Tables that kernels read beside quantised weights: the grids of which the codes of some formats are rows.

A table is a constant of the graph that no node reads. The pass that adds it comes last, so that none takes it away.
"""

from __future__ import annotations

from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.core.dtypes import DType
from pumice.core.grids import grid_rows
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.types import TensorType


def with_tables(graph: Graph) -> Graph:
    """The graph with a table for each grid of its dtypes.

    >>> import pumice as pm
    >>> graph = pm.trace(lambda x: x * 2.0, x=pm.spec(8))
    >>> with_tables(graph) is graph
    True
    """
    found = {data: None for n in graph if (data := _table(n.type.dtype)) is not None}
    if not found:
        return graph
    count, types = len(graph), (TensorType(dtypes.u32, (len(d.data) // 4,)) for d in found)
    more = (Node(count + i, "constant", (), (("data", d),), t) for i, (d, t) in enumerate(zip(found, types, strict=True)))
    return Graph((*graph.nodes, *more), graph.outputs, graph.updates, graph.captures, graph.symbols, graph.tree)


def table_node(graph: Graph, dtype: DType) -> int | None:
    """The constant that kernels read beside values of a dtype; None where they read none."""
    data = _table(dtype)
    if data is None:
        return None
    return next(n.id for n in graph.sources("constant") if n.attr["data"] == data)


def _table(dtype: DType) -> ConstData | None:
    """The rows of a dtype's grid, a byte for each number."""
    layout = LAYOUTS.get(dtype)
    return None if layout is None or layout.grid is None else ConstData.of(grid_rows(layout.grid.grid))
