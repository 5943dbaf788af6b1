"""Optimizer updates: elementwise updates of states in place, gathered into few dispatches instead of many.

The updates of one parameter (its moments, then itself) read mostly the same values and become a chain: one thread computes it
for one element, plus values used only by these updates, such as a clipped gradient. Chains of several parameters share a kernel
as long as it has bindings left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pumice.ir.graph import Graph
from pumice.kernels.context import Group, LowerContext

Chain = list[Group]
_MAX_NODES = 200  # of a kernel: more would take long to compile


def gather_updates(ctx: LowerContext, groups: Sequence[Group]) -> Iterator[Group | list[Chain]]:
    """The groups in an order that keeps all dependencies, with updates gathered into kernels of several chains."""
    readers: dict[int, list[Group]] = {}
    for g in groups:
        for leaf in g.leaves:
            readers.setdefault(leaf, []).append(g)
    waiting: list[Group] = []
    for g in groups:
        if _is_update(ctx, g) or _feeds_only_updates(ctx, g, readers.get(g.root, ())):
            waiting.append(g)
            continue
        if any(u.root in g.leaves or not set(g.taken_over.values()).isdisjoint(u.leaves) for u in waiting):
            yield from _kernels(ctx, waiting, readers)
            waiting = []
        yield g
    yield from _kernels(ctx, waiting, readers)


def _is_update(ctx: LowerContext, g: Group) -> bool:
    """Whether a group changes a state or param in place, one element per thread."""
    return g.anchor is None and g.inplace is not None and ctx.type(g.root).dtype.per_word == 1


def _feeds_only_updates(ctx: LowerContext, g: Group, readers: Sequence[Group]) -> bool:
    """Whether only updates read the group's value, each at its own element."""
    graph = ctx.graph
    if g.anchor is not None or g.root in graph.roots or ctx.type(g.root).dtype.per_word != 1:
        return False
    return all(_is_update(ctx, r) and reads_own_element(graph, r, g.root) for r in readers)


def _kernels(ctx: LowerContext, waiting: Sequence[Group], readers: Mapping[int, list[Group]]) -> Iterator[Group | list[Chain]]:
    """Kernels of as many chains as fit each; before them, feeders that no single chain can contain."""
    limit = ctx.caps.usable_bindings
    updates = [g for g in waiting if g.inplace is not None]
    feeders = {g.root: g for g in waiting if g.inplace is None}
    chains = _chains(ctx.graph, updates, feeders, limit)
    while split := _read_by_another_chain(chains, readers):
        # Another chain may already have overwritten what such a group reads.
        yield feeders.pop(split)
        chains = _chains(ctx.graph, updates, feeders, limit)
    kernel: list[Chain] = []
    for chain in chains:
        if kernel and not _fits_kernel(kernel, chain, limit):
            yield _single(kernel)
            kernel = []
        kernel.append(chain)
    if kernel:
        yield _single(kernel)


def _read_by_another_chain(chains: Sequence[Chain], readers: Mapping[int, list[Group]]) -> int | None:
    """The first value that is computed in a chain and read in another one too."""
    for chain in chains:
        for g in chain:
            if g.inplace is None and any(r not in chain for r in readers.get(g.root, ())):
                return g.root
    return None


def _single(kernel: list[Chain]) -> Group | list[Chain]:
    return kernel[0][0] if len(kernel) == 1 and len(kernel[0]) == 1 else kernel


def _chains(graph: Graph, updates: Sequence[Group], feeders: Mapping[int, Group], limit: int) -> list[Chain]:
    chains: list[Chain] = []
    for g in updates:
        last = chains[-1] if chains else []
        if not last or not _continues(graph, last, _with_feeders(last, g, feeders), limit):
            chains.append(last := [])
        last += _with_feeders(last, g, feeders)
    return chains


def _with_feeders(chain: Chain, g: Group, feeders: Mapping[int, Group]) -> Chain:
    """The group, after its feeders that are not in the chain yet."""
    return [*(feeders[leaf] for leaf in g.leaves if leaf in feeders and feeders[leaf] not in chain), g]


def _continues(graph: Graph, chain: Chain, more: Chain, limit: int) -> bool:
    """Whether a thread that computed a chain for an element can go on with `more`, and reuses values that it read."""
    shape = graph.nodes[chain[0].root].type.shape
    if any(graph.nodes[g.root].type.shape != shape for g in more) or not _fits([[*chain, *more]], limit):
        return False
    known = {v for u in chain for v in (u.root, *u.leaves)}
    if all(known.isdisjoint(g.leaves) for g in more):
        return False
    pairs = [(u, g) for u in chain for g in more]
    same_element = all(reads_own_element(graph, g, u.root) for u, g in pairs if u.root in g.leaves)
    return same_element and all(reads_own_element(graph, u, g.inplace) for u, g in pairs if g.inplace in u.leaves)


def reads_own_element(graph: Graph, g: Group, value: int | None) -> bool:
    """Whether the group reads a value only at the element that it computes."""
    assert value is not None
    shape, reading = graph.nodes[g.root].type.shape, {value}
    for i in g.nodes:
        n = graph.nodes[i]
        if reading.isdisjoint(n.args):
            continue
        if n.type.shape != shape or not n.spec.is_elementwise:
            return False
        reading.add(i)
    return graph.nodes[value].type.shape == shape


def _fits_kernel(kernel: list[Chain], chain: Chain, limit: int) -> bool:
    """Whether a chain is independent of the kernel's others in both directions, and bindings suffice for all."""
    others = [u for c in kernel for u in c]
    written = {v for u in others if u.inplace is not None for v in (u.root, u.inplace)}
    independent = all(written.isdisjoint(g.leaves) and not any(g.inplace in u.leaves for u in others) for g in chain)
    return independent and _fits([*kernel, chain], limit)


def _fits(kernel: list[Chain], limit: int) -> bool:
    groups = [g for chain in kernel for g in chain]
    bound = {v for g in groups for v in (*g.leaves, g.inplace)} - {g.root for g in groups} - {None}
    return len(bound) <= limit and sum(len(g.nodes) for g in groups) <= _MAX_NODES
