"""Lowering: a group becomes the kernels that compute it on the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pumice.core.caps import Caps
from pumice.core.dims import ceildiv
from pumice.core.dtypes import f32, i32, u32
from pumice.errors import PlanError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import PACK, Routine, Row
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import lower_map, map_workgroup
from pumice.kernels.packs import lower_pack_call
from pumice.kernels.routines import ROUTINES, kernels_of
from pumice.kernels.rows import ROWS

_WIDE = {"f32": f32, "i32": i32, "u32": u32, "bool": u32}


def has_kernel(caps: Caps, graph: Graph, node: Node) -> bool:
    """Whether a target has a kernel for a node whose op could be composed of others instead; the host has routines for all."""
    if node.spec.family == PACK:
        return False  # kernels of packs are asked for before
    kernels = kernels_of(node) if caps.dispatches else None
    return kernels is None or kernels.fits is None or kernels.fits(caps, graph, node)


def lower_group(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The kernels of a group, in order; none for values without elements."""
    types = [ctx.type(v) for v in group.written]
    if all(t.numel == 0 for t in types):
        return []
    if group.anchor is None:
        return lower_map(ctx, group)
    if group.anchor in ctx.pack_calls:
        return [lower_pack_call(ctx, group, ctx.pack_calls[group.anchor])]
    lower = _lowering(ctx.graph.nodes[group.anchor])
    if all(t.dtype.per_word == 1 for t in types) or group.inplace is not None:  # in place, packed values are written by words
        return lower(ctx, group)
    kernels = kernels_of(ctx.graph.nodes[group.anchor])
    if kernels is not None and kernels.packs is not None and kernels.packs(ctx, group):
        return lower(ctx, group)
    store = tuple(
        v if t.dtype.per_word == 1 else ctx.temp(TensorType(_WIDE[t.dtype.compute], t.shape))
        for v, t in zip(group.written, types, strict=True)
    )
    packed = [_pack(ctx, wide, v) for v, wide in zip(group.written, store, strict=True) if wide != v and ctx.type(v).numel != 0]
    return [*lower(ctx, replace(group, store=store)), *packed]


def _lowering(node: Node) -> Callable[[LowerContext, Group], list[Lowered]]:
    lowering = node.spec.lowering
    if isinstance(lowering, Row) and lowering.rule in ROWS:
        return ROWS[lowering.rule]
    if isinstance(lowering, Routine) and lowering.rule in ROUTINES:
        return ROUTINES[lowering.rule].lower
    raise PlanError(f"there is no kernel for {node.op}")


def _pack(ctx: LowerContext, wide: int, root: int) -> Lowered:
    """Packs a one-element-a-word temporary into the root's dtype."""
    size = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=size)
    t = ctx.type(root)
    lanes = t.dtype.per_word
    source, target = kb.read(wide, ctx.type(wide).dtype), kb.write(root, t.dtype)
    total = kb.dim(t.numel)
    kb.emit(f"let w = wg * {size}u + lid;")
    kb.open(f"if (w * {lanes}u < {total})")
    values = []
    for lane in range(lanes):
        # Reading past the end of a partly filled last word is clamped by WebGPU; those lanes hold no element.
        v = source.load(f"min(w * {lanes}u + {lane}u, {total} - 1u)")
        values.append(f"({v} != 0u)" if t.dtype.kind == "bool" else v)
    kb.emit(target.store_word("w", values))
    kb.close()
    return kb.finish(groups=ceildiv(ceildiv(t.numel, lanes), size), label=f"pack {t.dtype}", variant=f"pack/{lanes}")
