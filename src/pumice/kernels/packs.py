"""Kernels of packs in a plan: which nodes they compute, and the step that launches one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pumice.core.caps import Caps
from pumice.ir.graph import Graph, Node
from pumice.ir.pack_kernels import PackCall, PackKernel
from pumice.ir.registry import get_op
from pumice.ir.views import contiguous_strides
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext, below_views, find_view
from pumice.plan.plan import Binding


def pack_call(kernels: Sequence[PackKernel], caps: Caps, graph: Graph, node: Node, maxima: Mapping[str, int]) -> PackCall | None:
    """How the first kernel of a pack that fits a node is called; None if none does.

    Values in several parts, and states that an update would overwrite in place, are for the kernels of this engine.
    """
    spec = get_op(node.op)
    if len(node.args) != len(node.operands):  # any number of one operand
        return None
    updated = {v for _, v in graph.updates}
    if node.id in updated and spec.traits.in_place is not None:
        return None
    operands = {name: graph.nodes[i].type for name, i in node.operands.items()}
    results = list(zip(spec.results, node.results, strict=True))
    whole = min(caps.max_binding_bytes, caps.max_buffer_bytes)
    if caps.dispatches and any(t.max_nbytes(maxima) > whole for t in (*operands.values(), *node.results)):
        return None
    for kernel in kernels:
        call = kernel.match(node.op, operands, results, node.attr, caps, maxima)
        if call is not None and (not caps.dispatches or _fits(kernel, caps)):
            return call
    return None


def _fits(kernel: PackKernel, caps: Caps) -> bool:
    return (
        len(kernel.inputs) + len(kernel.outputs) <= caps.usable_bindings
        and kernel.workgroup <= min(caps.max_invocations, caps.max_workgroup_x)
        and kernel.shared_bytes <= caps.workgroup_memory
    )


def find_pack_calls(kernels: Sequence[PackKernel], caps: Caps, graph: Graph, maxima: Mapping[str, int]) -> dict[int, PackCall]:
    """The nodes of a graph that kernels of packs compute."""
    if not kernels:
        return {}
    ops = {k.op for k in kernels}
    found = ((n.id, pack_call(kernels, caps, graph, n, maxima)) for n in graph if n.op in ops)
    return {node: call for node, call in found if call is not None}


def stored_for_pack(graph: Graph, node: int) -> list[int]:
    """What must be in memory for a kernel of a pack: the node itself, and its operands without gaps."""
    return [node, *[_dense(graph, i) for i in graph.nodes[node].args]]


def _dense(graph: Graph, operand: int) -> int:
    """The value whose memory holds an operand element by element: what a reshape shows, else the operand itself."""
    base = below_views(graph, operand)
    view = find_view(graph, operand, {base})
    same = view is not None and view.offset == 0 and tuple(view.strides) == contiguous_strides(view.shape)
    return base if same and graph.nodes[base].type.numel == graph.nodes[operand].type.numel else operand


def lower_pack_call(ctx: LowerContext, group: Group, call: PackCall) -> Lowered:
    """The launch of a kernel of a pack: inputs, then outputs, then its parameters as the uniform block."""
    assert group.anchor is not None
    kernel, node = call.kernel, ctx.graph.nodes[group.anchor]
    reads = [Binding(_dense(ctx.graph, node.operands[p.name]), 0, "read") for p in kernel.inputs]
    wanted = ctx.wanted(group)
    # A kernel writes all of its results; those that nobody wants go to memory of the step's own.
    outs = [wanted[k] if k in wanted else ctx.temp(type) for k, type in enumerate(node.results)]
    return Lowered(
        kernel.wgsl,
        (*reads, *[Binding(v, 0, "write") for v in outs]),
        call.uniforms,
        call.groups,
        kernel.label,
        kernel.variant,
        kernel.workgroup,
        kernel.shared_bytes,
        kernel.features,
        "pack",
    )
