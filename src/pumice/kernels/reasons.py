"""Why a kernel variant was chosen, as text: the sizes that its `decide` saw, and the strength of the variant."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pumice.core.dims import Shape, upper
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Routine, Row, get_op
from pumice.kernels.routines import ROUTINES
from pumice.kernels.rows.layout import ROW_VARIANTS


def reason(graph: Graph, anchor: int | None, variant: str, maxima: Mapping[str, int]) -> str:
    """Why a step's variant was chosen, at the greatest sizes of its symbols; "" for a variant without a description.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x, w: x @ w, x=pm.spec(1, 64), w=pm.spec(64, 256))
    >>> reason(g, 2, "matvec across 32x8", {})
    'M 1, N 256, K 64; few vectors, weights contiguous along N: neighbouring threads take neighbouring columns'
    """
    if not variant:
        fast = anchor is not None and graph.nodes[anchor].attr.get("precision") == "fast"
        return "the host runs the op itself" + (", activations rounded to 8 bits: precision fast" if fast else "")
    if variant.startswith("pack/"):
        return "threads write one element a word first; this packs them by whole words"
    if anchor is None:
        return "elementwise and index arithmetic only: one thread for each 32-bit word" if variant.startswith("map/") else ""
    node = graph.nodes[anchor]
    text = next((why for start, why in _variants(node).items() if variant.startswith(start)), "")
    sizes = _sizes(graph, node, maxima)
    split = variant.partition("/split")[2]
    if text and split:
        text += f"; so few rows that {split.split('/')[0]} workgroups share each"
    return "; ".join(t for t in (sizes, text) if t)


def _variants(node: Node) -> Mapping[str, str]:
    lowering = get_op(node.op).lowering
    return (
        ROUTINES[lowering.rule].variants if isinstance(lowering, Routine) else ROW_VARIANTS if isinstance(lowering, Row) else {}
    )


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
