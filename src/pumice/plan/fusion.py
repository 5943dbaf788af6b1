"""Fusion: partitions a graph into groups that become one kernel each; everything between stored values is inlined."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Routine, Row, Source
from pumice.ir.tables import table_node
from pumice.kernels.context import Group, LowerContext, below_views, find_view
from pumice.kernels.packs import stored_for_pack
from pumice.kernels.routines import pulled_operands
from pumice.kernels.routines.scatter_kernel import words_after
from pumice.kernels.routines.vectors import is_norm_of_rows
from pumice.plan.append import merge_appends
from pumice.plan.gate_up import find_gate_up

_MAX_WEIGHT = 256  # rough count of scalar operations a kernel may inline; keeps shaders small and compile times short
_CHEAP_SUBTREE = 4
_MAX_RECOMPUTED = 8  # nodes that every workgroup of a matmul may recompute
# From this width on the gated activation is stored, so that the workgroups of the next matmul do not each recompute it.
WIDE_GATED = 4096


@dataclass
class _Draft:
    """A group while the graph is partitioned."""

    root: int
    anchor: int | None = None
    nodes: set[int] = field(default_factory=set)
    results: tuple[int, ...] = ()


@dataclass(frozen=True)
class Known:
    """What partitions of one graph for one target have found out that holds at all sizes, for the next one."""

    fitting: set[Group] = field(default_factory=set)  # groups that are not too big for a kernel
    memory: dict[int, int] = field(default_factory=dict)  # by operand of a routine: the value that it reads memory of


def partition(ctx: LowerContext, *, fuse: bool = True, known: Known | None = None) -> list[Group]:
    """Groups in execution order. With fuse=False every op is a group of its own. Wider sizes come before narrower ones."""
    graph, caps = ctx.graph, ctx.caps
    limit = caps.usable_bindings
    known = known or Known()
    forced: set[int] = set()
    for _ in range(len(graph) + 1):
        drafts = _Partition(ctx, fuse, forced, known).run()
        groups = [_finish(graph, d, caps) for d in drafts]
        crowded = [g for g in groups if g not in known.fitting and _too_big(ctx, g, limit)]
        known.fitting.update(groups)
        known.fitting.difference_update(crowded)
        if not crowded:
            groups = _mark_inplace(ctx, groups)
            if not (fuse and caps.generates_kernels):
                return groups
            return merge_appends(ctx, groups, lambda g: not _too_big(ctx, g, limit))
        for g in crowded:
            forced.add(_cut(ctx, g, limit))
    raise PlanError("fusion did not settle")


class _Partition:
    """Walks the graph from its results to its sources and decides for every node: stored, or inlined where it is read."""

    def __init__(self, ctx: LowerContext, fuse: bool, forced: set[int], known: Known) -> None:
        self.known = known
        self.ctx, self.graph, self.caps, self.fuse, self.forced = ctx, ctx.graph, ctx.caps, fuse, forced
        self.groups: dict[int, _Draft] = {}
        self.owners: dict[int, set[int]] = {}  # node → roots of the groups it is computed in
        self.results: set[int] = set()  # further results that are stored by their node's group
        self.identity: set[int] = set()  # nodes that are read only at the index of their group's root
        self.must_store = set(ctx.graph.roots) | forced | {i for n in ctx.pack_calls for i in stored_for_pack(ctx.graph, n)}
        self.recomputed: set[int] = set()  # nodes that every workgroup of a matmul recomputes
        self.pulled: dict[int, frozenset[str]] = {}  # by routine, as far as asked for

    def run(self) -> list[_Draft]:
        for n in reversed(self.graph.nodes):
            if not isinstance(n.spec.lowering, Source):
                self._place(n)
        return [self.groups[r] for r in sorted(self.groups)]

    def _place(self, n: Node) -> None:
        readers = set(self.graph.users[n.id])
        owners: set[int] = set().union(*[self.owners[c] for c in readers if c in self.owners])
        if not owners and n.id not in self.must_store:
            return  # dead
        if n.op == "result":
            self._place_result(n, readers, owners)
            return
        if n.further and any(self.graph.nodes[r].op == "result" for r in readers if r in self.owners):
            self._place_results(n, readers, owners)
            return
        if not self.fuse or n.id in self.must_store:
            self._store(n)
            return
        recomputed = self._is_recomputed(n)
        if not self._can_inline(n, readers, owners, recomputed):
            self._store(n)
            return
        self.owners[n.id] = owners
        for root in owners:
            self.groups[root].nodes.add(n.id)
        if len(owners) == 1 and all(self._reads_identically(c, n) for c in readers):
            self.identity.add(n.id)
        if recomputed:
            self.recomputed.add(n.id)
        elif _is_anchor(n):
            (root,) = owners
            self.groups[root].anchor = n.id
            self._require_operands(n)

    def _place_result(self, n: Node, readers: set[int], owners: set[int]) -> None:
        """Stored, unless it is the one result that is wanted and what reads it can be the epilogue of the node's kernel."""
        (node,) = n.args
        alone = self.fuse and self.must_store.isdisjoint((node, n.id)) and set(self.graph.users[node]) == {n.id}
        self.identity.add(n.id)
        if alone and len(owners) == 1 and all(self._reads_identically(c, n) for c in readers):
            (root,) = owners
            if self.groups[root].anchor is None:
                self.owners[n.id] = owners
                self.groups[root].nodes.add(n.id)
                self.groups[root].anchor = node
                return
        self.results.add(n.id)
        self.owners[n.id] = {n.id}

    def _place_results(self, n: Node, readers: set[int], owners: set[int]) -> None:
        """A node whose further results are wanted: one group stores all that are, or has an epilogue for the one that is."""
        others = sorted(r for r in readers if r in self.results)
        if others:
            first = n.id in self.must_store or any(self.graph.nodes[r].op != "result" for r in readers if r in self.owners)
            root, *further = [n.id, *others] if first else others
            self.groups[root] = _Draft(root, n.id, set(others), tuple(further))
            owners = {root}
        self.owners[n.id] = owners
        self.groups[next(iter(owners))].nodes.add(n.id)
        self._require_operands(n)

    def _store(self, n: Node) -> None:
        self.groups[n.id] = _Draft(n.id, n.id if _is_anchor(n) or n.id in self.ctx.pack_calls else None, {n.id})
        self.owners[n.id] = {n.id}
        self.identity.add(n.id)
        if _is_anchor(n):
            self._require_operands(n)

    def _require_operands(self, n: Node) -> None:
        """Routines read stored values through strided views: whatever is below the views must be stored."""
        if not isinstance(n.spec.lowering, Routine) or n.id in self.ctx.pack_calls:
            return
        pulled, memory = self._pulled(n), self.known.memory
        for name, arg in n.operands.items():
            if name in pulled:
                continue
            if arg not in memory:
                base = below_views(self.graph, arg)
                memory[arg] = arg if find_view(self.graph, arg, {base}) is None else base
            self.must_store.add(memory[arg])

    def _pulled(self, routine: Node) -> frozenset[str]:
        """Operands of a routine that may be computed where they are read; the host's routines read memory only."""
        found = self.pulled.get(routine.id)
        if found is None:
            found = pulled_operands(self.ctx, routine) if self.fuse and self.caps.generates_kernels else frozenset()
            self.pulled[routine.id] = found
        return found

    def _is_pulled(self, n: Node, routine: Node) -> bool:
        """Whether a routine reads n in such operands alone."""
        return {name for name, arg in routine.operands.items() if arg == n.id} <= self._pulled(routine)

    def _is_recomputed(self, n: Node) -> bool:
        """Whether all readers of n are matmuls with few vectors that pull it, or nodes that such matmuls pull."""
        readers = self.graph.users[n.id]
        for c in readers:
            if c not in self.recomputed:
                reader = self.graph.nodes[c]
                if not _computes_again(reader, n) or not self._is_pulled(n, reader):
                    return False
        return bool(readers) and n.id not in self.must_store

    def _recomputed_in(self, owners: set[int]) -> set[int]:
        return {i for root in owners for i in self.groups[root].nodes if i in self.recomputed}

    def _is_prologue_norm(self, n: Node) -> bool:
        """Whether n is a norm of the vectors that its readers multiply."""
        readers = [self.graph.nodes[c] for c in self.graph.users[n.id]]
        return is_norm_of_rows(n) and all(_computes_again(c, n) for c in readers)

    def _reads_identically(self, consumer: int, n: Node) -> bool:
        c = self.graph.nodes[consumer]
        return c.spec.is_elementwise and consumer in self.identity and c.type.shape == n.type.shape

    def _reads_gate_up(self, n: Node) -> bool:
        """Whether n is a gate/up matmul whose two slices are read at the index of the group's root."""
        slices = find_gate_up(self.ctx, n) if self.caps.generates_kernels else ()
        return bool(slices) and all(i in self.identity for i in slices)

    def _is_gated_activation(self, n: Node, readers: set[int]) -> bool:
        """Whether n is a gated activation, the only use of gate and up: their matmul's kernel can store n instead.

        Then the workgroups of the next matmul load n instead of recomputing it.
        """
        if not (n.spec.is_elementwise and self.caps.generates_kernels and n.type.shape):
            return False
        if not self.ctx.ask(_is_wide, n.type.shape[-1]):
            return False
        if all(self._reads_identically(c, n) for c in readers):
            return False
        graph, shown = self.graph, dict[int, set[int]]()
        for a in self._below_elementwise(n):
            if a.op == "slice":
                shown.setdefault(a.args[0], set()).add(a.id)
        return any(found == set(find_gate_up(self.ctx, graph.nodes[i])) for i, found in shown.items())

    def _is_epilogue_of_windows(self, n: Node, readers: set[int]) -> bool:
        """Whether a routine's kernel can store n instead of its own result, and windows that overlap would recompute it."""
        if not n.spec.is_elementwise or not any(_reads_again(self.graph.nodes[c], n) for c in readers):
            return False
        return any(isinstance(a.spec.lowering, Routine) for a in self._below_elementwise(n))

    def _below_elementwise(self, n: Node) -> Iterator[Node]:
        """What n is computed from by elementwise nodes alone: nodes of its shape that nothing else reads."""
        region, stack = {n.id}, [n]
        while stack:
            for arg in stack.pop().args:
                a = self.graph.nodes[arg]
                if a.type.shape != n.type.shape or not set(self.graph.users[arg]) <= region or arg in self.must_store:
                    continue
                if a.spec.is_elementwise:
                    region.add(arg)
                    stack.append(a)
                else:
                    yield a

    def _can_inline(self, n: Node, readers: set[int], owners: set[int], recomputed: bool) -> bool:
        if self._is_gated_activation(n, readers) or self._is_epilogue_of_windows(n, readers):
            return False
        if recomputed and not n.spec.is_view:
            if len(self._recomputed_in(owners)) >= _MAX_RECOMPUTED:
                return False
            if _is_anchor(n):
                return self._is_prologue_norm(n)
        elif _is_anchor(n):
            # As the anchor of its readers' group, which then runs as its epilogue.
            if len(owners) != 1 or not (all(self._reads_identically(c, n) for c in readers) or self._reads_gate_up(n)):
                return False
            return self.groups[next(iter(owners))].anchor is None
        if n.spec.is_view:
            return True
        routines = [c for c in map(self.graph.nodes.__getitem__, readers) if isinstance(c.spec.lowering, Routine)]
        if not all(self._is_pulled(n, c) for c in routines):
            return False  # it reads memory, see _require_operands
        if len(owners) == 1 and not any(self._spreads(n, self.graph.nodes[c]) for c in readers):
            return True
        return n.spec.traits.cheap and self._subtree(n, _CHEAP_SUBTREE) <= _CHEAP_SUBTREE

    def _spreads(self, n: Node, consumer: Node) -> bool:
        """Whether the consumer reads each element of n more than once, so that inlining would recompute it."""
        lowering = consumer.spec.lowering
        if isinstance(lowering, Routine):
            return False  # of what a routine may pull it reads each element once
        if isinstance(lowering, Row):
            # Rows are read once per pass; a per-row operand (a norm's weight) is read by every row.
            return n.id != consumer.args[0]
        own, read = n.type.numel, consumer.type.numel
        return own != read and self.ctx.ask(operator.lt, own, read) and not consumer.spec.traits.places

    def _subtree(self, n: Node, limit: int) -> int:
        """Number of inlinable ops below n that compute something, counted up to just over the limit."""
        total, stack = 0, [n.id]
        while stack and total <= limit:
            node = self.graph.nodes[stack.pop()]
            if isinstance(node.spec.lowering, Source):
                continue
            if not node.spec.traits.cheap:
                return limit + 1
            total += not node.spec.is_view
            stack.extend(node.args)
        return total


def _is_wide(columns: int) -> bool:
    return columns >= WIDE_GATED


def _computes_again(routine: Node, n: Node) -> bool:
    """Whether every workgroup of a routine's kernel would compute n for itself, if it computed it at all."""
    traits = routine.spec.traits
    return traits.pulls_again and any(routine.operands[name] == n.id for name in traits.pulls)


def _reads_again(consumer: Node, n: Node) -> bool:
    """Whether elements of n belong to several elements of its consumer."""
    again = consumer.spec.traits.reads_again
    return again is not None and consumer.args[0] == n.id and again(consumer.attr)


def _is_anchor(n: Node) -> bool:
    return n.spec.is_anchor


def is_inline_constant(graph: Graph, node: int) -> bool:
    """Whether a node is a scalar constant, which kernels write as a literal instead of loading it."""
    n = graph.nodes[node]
    return n.op == "constant" and n.type.numel == 1


def _finish(graph: Graph, d: _Draft, caps: Caps) -> Group:
    nodes = tuple(sorted(d.nodes))
    leaves: dict[int, None] = {}
    routine = d.anchor is not None and isinstance(graph.nodes[d.anchor].spec.lowering, Routine)
    # A routine reads memory, through views; a scalar that such a view spreads must be there like any other operand.
    loaded = {below_views(graph, a) for a in graph.nodes[d.anchor].args} if d.anchor is not None and routine else set()
    for i in nodes:
        for a in graph.nodes[i].args:
            literal = caps.generates_kernels and a not in loaded and is_inline_constant(graph, a)
            if a not in d.nodes and not literal:
                leaves[a] = None
    tables = [table_node(graph, graph.nodes[a].type.dtype) for a in leaves] if caps.generates_kernels else []
    leaves |= {table: None for table in tables if table is not None}
    return Group(d.root, d.anchor, nodes, tuple(leaves), results=d.results)


def _bindings(ctx: LowerContext, g: Group) -> int:
    """The fewest that a kernel of the group needs. Further results may have a kernel of their own, unless operands are pulled."""
    pulls = g.anchor is not None and bool(ctx.graph.nodes[g.anchor].spec.traits.pulls)
    written = len(g.written) if pulls else 1
    return written + sum(len(ctx.part_elements(v)) for v in g.leaves)


def _weight(ctx: LowerContext, g: Group) -> dict[int, int]:
    """For each node of the group, about how many scalar operations computing it takes."""
    out: dict[int, int] = {}
    for i in g.nodes:
        n = ctx.graph.nodes[i]
        out[i] = 1 + sum(out.get(a, 0) * (n.spec.traits.reads if k == 0 else 1) for k, a in enumerate(n.args))
    return out


def _too_big(ctx: LowerContext, g: Group, limit: int) -> bool:
    if g.anchor in ctx.pack_calls:
        return False  # its kernel is as it is, and fits
    if not ctx.caps.dispatches or sum(ctx.graph.nodes[i].op != "result" for i in g.nodes) == 1:
        if ctx.caps.dispatches and _bindings(ctx, g) > limit:
            raise PlanError(
                f"%{g.root} {ctx.graph.nodes[g.root].op} binds {_bindings(ctx, g)} buffers, {ctx.caps.name} allows {limit}",
                hint="use a device with larger bindings: its weights were split into too many parts"
                if any(len(ctx.part_elements(v)) > 1 for v in g.leaves)
                else "leave out optional operands, or use a device with more storage buffers",
                where=ctx.graph.nodes[g.root].where,
            )
        return False
    return _bindings(ctx, g) > limit or _weight(ctx, g)[g.root] > _MAX_WEIGHT


def _cut(ctx: LowerContext, g: Group, limit: int) -> int:
    """The inlined node to store instead: the one that takes most leaves with it while fitting a kernel itself."""
    graph = ctx.graph
    below: dict[int, set[int]] = {}
    for i in g.nodes:
        below[i] = set().union(*(below.get(a, {a}) for a in graph.nodes[i].args if a in below or a in g.leaves))
    weight = _weight(ctx, g)
    # A node with further results in the group is no value that could be stored without them.
    kept = {*g.written, *(a for i in g.nodes if graph.nodes[i].op == "result" for a in graph.nodes[i].args)}
    fits = [
        i
        for i in g.nodes
        if i not in kept and 1 + sum(len(ctx.part_elements(v)) for v in below[i]) <= limit and weight[i] <= _MAX_WEIGHT
    ]
    if not fits:
        raise PlanError(f"%{g.root} {graph.nodes[g.root].op} cannot be split to fit {limit} storage buffers")
    crowded = _bindings(ctx, g) > limit
    return max(fits, key=lambda i: (len(below[i]) if crowded else weight[i], i))


def _mark_inplace(ctx: LowerContext, groups: list[Group]) -> list[Group]:
    """States that a group may overwrite as it computes their next value, because nothing reads the old one later."""
    graph, caps = ctx.graph, ctx.caps
    by_root = {g.root: k for k, g in enumerate(groups) if g.anchor not in ctx.pack_calls}
    out = list(groups)
    updated = [v for _, v in graph.updates]
    for state, value in graph.updates:
        k = by_root.get(value)
        if k is None or updated.count(value) > 1 or state in graph.roots:
            continue
        if any(state in g.leaves for g in groups[k + 1 :]) or graph.nodes[state].type != graph.nodes[value].type:
            continue
        if _may_overwrite(graph, groups[k], state, caps):
            g = groups[k]
            out[k] = Group(g.root, g.anchor, g.nodes, g.leaves, inplace=state)
    return out


def _may_overwrite(graph: Graph, g: Group, state: int, caps: Caps) -> bool:
    root = graph.nodes[g.root]
    if state not in g.leaves:
        return False
    in_place = root.spec.traits.in_place
    if in_place is not None and not in_place.reads:
        # Only the operand that it changes may be the old value; updates and indices must not be views of it.
        others = any(_reaches(graph, i, state, set(g.nodes)) for i in g.nodes if i != g.root)
        alone = root.operands[in_place.operand] == state and root.args.count(state) == 1 and not others
        # Where a thread writes whole words, no two rows may share one.
        return alone and (not caps.word_stores or words_after(root.type, root.attr["axis"]) is not None)
    if g.anchor is not None and root.type.dtype.per_word != 1:
        return False  # such a group packs its result in a second kernel
    # Elementwise at the root's own index: the thread that overwrites an element is the only one to read it.
    for i in g.nodes:
        n = graph.nodes[i]
        if _reaches(graph, i, state, set(g.nodes)) and not (n.spec.is_elementwise and n.type.shape == root.type.shape):
            return False
    return True


def _reaches(graph: Graph, node: int, target: int, inside: set[int]) -> bool:
    stack = [node]
    while stack:
        for a in graph.nodes[stack.pop()].args:
            if a == target:
                return True
            if a in inside:
                stack.append(a)
    return False
