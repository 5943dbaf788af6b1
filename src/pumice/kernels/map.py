"""Map kernels: one thread per 32-bit word of the output, which pulls its operands from stored values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import ZERO, Index, Puller, minus

# From this many elements on, a thread of a short kernel takes several, whose loads are in flight together.
_MANY, _FEW_NODES, _TOGETHER = 1 << 20, 8, 4


def map_workgroup(caps: Caps) -> int:
    """Threads per workgroup of simple kernels."""
    return caps.workgroup(256)


def lower_map(ctx: LowerContext, group: Group) -> list[Lowered]:
    """A group without anchor as one kernel."""
    size = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=size)
    p = Puller(ctx, group, kb)
    t = ctx.type(group.root)
    lanes = t.dtype.per_word
    total = kb.dim(t.numel)
    if lanes == 1 and _many(ctx, group):
        return [_lower_many(p, group)]
    kb.emit(f"let w = wg * {size}u + lid;")
    if lanes == 1:
        kb.open(f"if (w < {total})")
        value = p.value(group.root, p.split("w", t.shape))
        kb.emit(p.out().store("w", value))
        kb.close()
    else:
        kb.open(f"if (w * {lanes}u < {total})")
        names = []
        for lane in range(lanes):
            name = kb.fresh("lane")
            names.append(name)
            kb.emit(f"var {name}: {t.dtype.compute} = {ZERO[t.dtype.compute]};")
            i = kb.let(f"w * {lanes}u + {lane}u", "i")
            kb.open(f"if ({i} < {total})")
            p.push()
            kb.emit(f"{name} = {p.value(group.root, p.split(i, t.shape))};")
            p.pop()
            kb.close()
        kb.emit(p.out().store_word("w", names))
        kb.close()
    return [kb.finish(groups=ceildiv(ceildiv(t.numel, lanes), size), label=ctx.label(group), variant=f"map/{size}x{lanes}")]


def _many(ctx: LowerContext, group: Group) -> bool:
    """Whether the kernel is bound by memory, so that a thread should load several elements at once."""
    if not ctx.caps.unrolls or len(group.nodes) > _FEW_NODES:
        return False
    return ctx.choose(group.root, _are_many, ctx.type(group.root).numel)


def _are_many(elements: int) -> bool:
    return elements >= _MANY


def _lower_many(p: Puller, group: Group) -> Lowered:
    """Several elements a thread, a workgroup's size apart; past the end the last one repeats, which is not stored."""
    kb, ctx, t = p.kb, p.ctx, p.ctx.type(group.root)
    size, total = kb.workgroup, kb.dim(t.numel)
    kb.emit(f"let first = wg * {size * _TOGETHER}u + lid;")
    last = kb.let(f"{total} - 1u", "last")
    places = [kb.let(f"first + {u * size}u" if u else "first", "w") for u in range(_TOGETHER)]

    def value(place: str) -> str:
        p.push()
        found = p.value(group.root, p.split(kb.let(f"min({place}, {last})", "i"), t.shape))
        p.pop()
        return found

    for place, found in zip(places, kb.in_turn([partial(value, place) for place in places]), strict=True):
        kb.emit(f"if ({place} < {total}) {{ {p.out().store(place, found)} }}")
    groups = ceildiv(t.numel, size * _TOGETHER)
    return kb.finish(groups=groups, label=ctx.label(group), variant=f"map/{size} by {_TOGETHER}")


def lower_updates(ctx: LowerContext, chains: Sequence[Sequence[Group]]) -> Lowered:
    """Chains of groups that update states in place as one kernel: some workgroups a chain, one thread an element.

    The groups of a chain have one shape and read each other at their own element only; those without a state are not stored.
    Chains do not depend on each other.
    """
    size = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=size)
    states = {g.root: kb.update(g.inplace, ctx.type(g.root).dtype) for chain in chains for g in chain if g.inplace is not None}
    first: Dim = 0
    for chain in chains:
        t = ctx.type(chain[0].root)
        start, first = first, first + ceildiv(t.numel, size)
        # Sizes are uniforms: parameters of all shapes share one text, and one pipeline.
        begin = "0u" if start == 0 else kb.size(start)
        kb.open(f"if (wg < {kb.size(first)})" if start == 0 else f"if (wg >= {begin} && wg < {kb.size(first)})")
        kb.emit(f"let w = {minus('wg', begin)} * {size}u + lid;")
        kb.open(f"if (w < {kb.size(t.numel)})")
        found: dict[int, str] = {}
        for g in chain:
            p = Puller(ctx, g, kb)
            p.rules = {root: partial(_known, name) for root, name in found.items()}
            found[g.root] = p.value(g.root, p.split("w", t.shape))
        for g in chain:
            if g.inplace is not None:
                kb.emit(states[g.root].store("w", found[g.root]))
        kb.close()
        kb.close()
    label = "update " + "+".join(dict.fromkeys(ctx.graph.nodes[i].op for chain in chains for g in chain for i in g.nodes))
    return kb.finish(groups=first, label=label, variant=f"update/{size}x{len(chains)}", any_size=True)


def _known(name: str, _: Index) -> str:
    return name
