"""Why a kernel variant was chosen, as text: the sizes that its `decide` saw, and the strength of the variant."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pumice.core.dims import Shape, upper
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Row, get_op

# By how a variant's name begins; the longer beginnings first.
_MATMUL = {
    "matvec groups": "few vectors, weights contiguous along K: thread groups take several rows each",
    "matvec along": "few vectors, weights contiguous along K: threads share each row's sum",
    "matvec across": "few vectors, weights contiguous along N: neighbouring threads take neighbouring columns",
    "matvec": "few vectors: the weights are read once, thread groups share each row's blocks",
    "tiled": "the largest tile that keeps the device busy without much padding",
    "naive": "too small or too short a K for tiles: one thread for each result",
}
_GROUPED = {"table": "works out which rows each group has, for the matmul over them", "tiled": _MATMUL["tiled"]}
_ROWS = {
    "combine": "adds up what several workgroups found for a row",
    "thread": "short rows, or very many side by side: one thread for each",
    "tile": "neighbours in memory are of different rows: a workgroup takes several rows side by side",
    "row": "rows long enough for a workgroup each",
    "window": "small windows: one thread for each result",
}
_SORT = {
    "block": "a row fits the workgroup memory",
    "rounds": "few of many wanted: rounds that keep the best of each block",
    "merge": "rows longer than the workgroup memory: blocks are sorted, then merged",
}
_SCATTER = {
    "thread": "few updates: every thread scans all indices",
    "group": "many updates: the threads of a workgroup look through the indices together",
    "table": "many updates of a fresh result: a first kernel finds the last update of every row",
    **_ROWS,
}
_ATTENTION = {
    "flash": "blocks of queries and keys that fit the workgroup memory and give enough workgroups",
    "join": "joins what several workgroups found for their part of the keys",
}
_CONV = {
    "tiled": "windows gathered into tiles, as a matmul",
    "direct": "few channels or results: one thread for each result",
    "dot": "few results of long sums: a thread group for each",
    "combine": "adds up what several workgroups found for a result",
}
_TABLES = {
    "conv": _CONV,
    "conv_grad_input": _CONV,
    "conv_grad_weight": _CONV,
    "matmul": _MATMUL,
    "qmatmul": _MATMUL,
    "grouped_matmul": _GROUPED,
    "grouped_matmul_grad_weight": _GROUPED,
    "attention": _ATTENTION,
    "sort": _SORT,
    "top_k": _SORT,
    "scatter_set": _SCATTER,
    "scatter_add": _SCATTER,
}


def reason(graph: Graph, anchor: int | None, variant: str, maxima: Mapping[str, int]) -> str:
    """Why a step's variant was chosen, at the greatest sizes of its symbols; "" for a variant without a description.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x, w: x @ w, x=pm.spec(1, 64), w=pm.spec(64, 256))
    >>> reason(g, 2, "matvec across 32x8", {})
    'M 1, N 256, K 64; few vectors, weights contiguous along N: neighbouring threads take neighbouring columns'
    """
    if not variant:
        return "the host runs the op itself"
    if variant.startswith("pack/"):
        return "threads write one element a word first; this packs them by whole words"
    if anchor is None:
        return "elementwise and index arithmetic only: one thread for each 32-bit word" if variant.startswith("map/") else ""
    node = graph.nodes[anchor]
    table = _TABLES.get(node.op, _ROWS if isinstance(get_op(node.op).lowering, Row) else {})
    text = next((why for start, why in table.items() if variant.startswith(start)), "")
    sizes = _sizes(graph, node, maxima)
    split = variant.partition("/split")[2]
    if text and split:
        text += f"; so few rows that {split.split('/')[0]} workgroups share each"
    return "; ".join(t for t in (sizes, text) if t)


def _sizes(graph: Graph, node: Node, maxima: Mapping[str, int]) -> str:
    """The problem's sizes, as the kernel's choice depends on them."""

    def at(shape: Shape) -> tuple[int, ...]:
        return tuple(upper(d, maxima) for d in shape)

    spec = get_op(node.op)
    of = {name: at(graph.nodes[i].type.shape) for name, i in node.operands.items()}
    if spec.traits.sizes is not None:
        return spec.traits.sizes(of, node.attr, at(node.type.shape))
    if isinstance(spec.lowering, Row) and ("axis" in node.attr or "axes" in node.attr):
        rows = at(graph.nodes[node.args[0]].type.shape)
        length = _row_length(node, rows)
        return f"{prod(rows) // max(1, length)} rows of {length}"
    return ""


def _row_length(node: Node, shape: tuple[int, ...]) -> int:
    axes = node.attr.get("axes", node.attr.get("axis"))
    if isinstance(axes, tuple):
        return prod(shape[a] for a in axes)
    if "axes" in node.attr:  # a norm counts its trailing axes
        return prod(shape[len(shape) - int(node.attr["axes"]) :])
    return shape[axes] if isinstance(axes, int) else 1
