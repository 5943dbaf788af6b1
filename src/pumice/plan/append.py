"""Appends: a kernel that reads a state right after some rows of it were written writes these rows itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines import kernels_of


def merge_appends(ctx: LowerContext, groups: Sequence[Group], fits: Callable[[Group], bool]) -> list[Group]:
    """The groups, with those that write rows of a state inside the group that reads them first, if its kernel can do both.

    `fits`: whether a group is small enough for a kernel.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> from pumice.plan.build import build_plan
    >>> def decode(q, new, row, start):
    ...     cache = pm.state("cache", (64, 32), "f16")
    ...     held = pm.scatter_set(cache, row, new.astype("f16"))
    ...     pm.set_state(cache, held)
    ...     both = held.reshape(1, 64, 2, 1, 16)
    ...     return pm.attention(q, both[:, :, 0], both[:, :, 1], offset=start, causal=True, layout="bshd")
    >>> one = pm.spec(1, dtype="i32")
    >>> g = pm.trace(decode, q=pm.spec(1, 1, 4, 16), new=pm.spec(1, 32), row=one, start=one)
    >>> [s.label for s in build_plan(g, Caps.preset("h200")).steps]
    ['cast+scatter_set+reshape+slice+attention']
    """
    writers = {g.root: k for k, g in enumerate(groups) if _writes_rows(ctx, g)}
    first_readers: dict[int, int] = {}
    for k, g in enumerate(groups):
        for leaf in g.leaves:
            first_readers.setdefault(leaf, k)
    out: list[Group | None] = list(groups)
    for k, g in enumerate(groups):
        kernels = None if g.anchor is None or g.anchor in ctx.pack_calls else kernels_of(ctx.graph.nodes[g.anchor])
        if kernels is None or kernels.appends is None or g.inplace is not None:
            continue
        found = [writers[v] for v in g.leaves if v in writers and first_readers[v] == k]
        found = [j for j in found if _may_wait(groups[j], groups[j + 1 : k])]
        if not found:
            continue
        merged = _joined(g, [groups[j] for j in found])
        if kernels.appends(ctx, merged) and fits(merged):
            out[k] = merged
            for j in found:
                out[j] = None
    return [g for g in out if g is not None]


def _writes_rows(ctx: LowerContext, g: Group) -> bool:
    """Whether a group does nothing but write some rows of a state, in its memory and without reading it."""
    in_place = ctx.graph.nodes[g.root].spec.traits.in_place
    return g.inplace is not None and g.root == g.anchor and in_place is not None and not in_place.reads


def _may_wait(g: Group, others: Sequence[Group]) -> bool:
    """Whether a group may run after others that do not read what it stores: none overwrites what it reads."""
    return all(set(other.taken_over.values()).isdisjoint(g.leaves) for other in others)


def _joined(g: Group, writers: Sequence[Group]) -> Group:
    nodes = {i for w in (g, *writers) for i in w.nodes}
    leaves = dict.fromkeys(v for w in (g, *writers) for v in w.leaves if v not in nodes)
    states = tuple(w.inplace for w in writers if w.inplace is not None)
    appended = tuple(w.root for w in writers)
    return replace(g, nodes=tuple(sorted(nodes)), leaves=tuple(leaves), appended=appended, states=states)
