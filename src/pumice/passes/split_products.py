"""split_products: long products with small results, as gradients of weights are, cut along K for devices with many cores."""

from __future__ import annotations

from pumice.core.caps import Caps
from pumice.core.dims import divide_exactly, upper
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op
from pumice.passes.rebuild import Rebuilder

# Workgroups that keep a GPU busy, the elements of a result that one has, and the least of K that is worth one.
_WANTED, _TILE, _LEAST = 640, 64, 128


def split_products(graph: Graph, caps: Caps) -> Graph:
    """Products of two activations whose result has too few tiles become batches of products over parts of K, and their sum.

    >>> import pumice as pm
    >>> g = pm.trace(lambda a, b: a.T @ b, a=pm.spec(4096, 64), b=pm.spec(4096, 64))
    >>> [n.op for n in split_products(g, Caps.preset("h200"))][-2:]
    ['matmul', 'reduce_sum']
    """
    if caps.target == "host" or caps.software:
        return graph
    maxima = {s: 1 if m is None else m for s, m in graph.symbols}
    parts = {n.id: p for n in graph if n.op == "matmul" and (p := _parts(graph, n, maxima)) > 1}
    if not parts:
        return graph
    r = Rebuilder(graph)
    for n in graph:
        if n.id in parts:
            r.ids[n.id] = _split(n, parts[n.id], r)
        else:
            r.keep(n)
    return r.finish()


def _parts(graph: Graph, n: Node, maxima: dict[str, int]) -> int:
    """Into how many parts to cut K, a power of two; 1 where the product is to stay as it is."""
    a, b = (graph.nodes[i].type for i in n.args)
    if a.rank != 2 or b.rank != 2 or a.dtype.kind != "float" or any(_reads_param(graph, i) for i in n.args):
        return 1
    rows, columns = (-(-upper(d, maxima) // _TILE) for d in n.type.shape)
    length, parts = upper(a.shape[1], maxima), 1
    while (
        rows * columns * 2 * parts <= _WANTED
        and length >= 2 * parts * _LEAST
        and divide_exactly(a.shape[1], 2 * parts) is not None
    ):
        parts *= 2
    return parts


def _reads_param(graph: Graph, value: int) -> bool:
    while get_op(graph.nodes[value].op).is_view:
        value = graph.nodes[value].args[0]
    return graph.nodes[value].op in ("param", "constant")


def _split(n: Node, parts: int, r: Rebuilder) -> int:
    a, b = (r.ids[i] for i in n.args)
    (m, k), columns = r.nodes[a].type.shape, r.nodes[b].type.shape[1]
    each = divide_exactly(k, parts)
    left = r.add("reshape", [a], {"shape": (m, parts, each)}, n.where)
    left = r.add("transpose", [left], {"perm": (1, 0, 2)}, n.where)
    right = r.add("reshape", [b], {"shape": (parts, each, columns)}, n.where)
    product = r.add("matmul", [left, right], {}, n.where)
    return r.add("reduce_sum", [product], {"axes": (0,), "keepdims": False}, n.where)
