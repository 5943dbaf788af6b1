"""What a step costs by its shapes: the fewest bytes it must move and, for matmuls and the like, its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pumice.core.dims import evaluate
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Routine, Row
from pumice.ir.traits import InPlace, Sizes
from pumice.plan.plan import Plan, Regime, Step

Env = Mapping[str, int]
# Floating-point operations in the time of moving a byte, roughly, on current devices.
FLOPS_A_BYTE = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that a step reads and writes at least, and its floating-point operations, None where they are not counted."""

    read: int
    written: int
    flops: int | None

    @property
    def moved(self) -> int:
        return self.read + self.written

    @property
    def work(self) -> int:
        """About how long it takes, in floating-point operations: a byte counts as many."""
        return FLOPS_A_BYTE * self.moved + (self.flops or 0)

    def between(self, start: int, end: int, total: int) -> Cost:
        """What of it workgroups `start` to `end` of a total cost."""
        read, written, flops = (
            None if n is None else n * end // total - n * start // total for n in (self.read, self.written, self.flops)
        )
        return Cost(read or 0, written or 0, flops)


def step_costs(plan: Plan, env: Env) -> list[Cost]:
    """The cost of every step that a plan takes at given sizes.

    Each stored value counts once per step, and only what the step needs of it: an embedding reads the rows it looks up, an
    update in place writes the rows it changes. It ignores caches, and lengths that only the data determines.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> from pumice.plan.build import build_plan
    >>> g = pm.trace(lambda a, b: a @ b, a=pm.spec("B", 8), b=pm.spec(8, 4))
    >>> step_costs(build_plan(g, Caps.preset("h200")), {"B": 2})
    [Cost(read=192, written=32, flops=128)]
    """
    counted: set[int] = set()
    out: list[Cost] = []
    regime = plan.regime(env)
    for pieces in in_pieces(regime.steps):
        # A routine of several kernels does its arithmetic once.
        cost = _step_cost(plan.graph, regime, pieces[0], env, arithmetic=pieces[0].root not in counted)
        counted.add(pieces[0].root)
        sizes = [max(0, evaluate(s.most_groups, env)) for s in pieces]
        total = max(1, sum(sizes))
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        out += [cost] if len(pieces) == 1 else [cost.between(at, at + n, total) for at, n in zip(starts, sizes, strict=True)]
    return out


def step_work(plan: Plan, env: Env) -> list[int]:
    """About how long each step takes, in floating-point operations, as if each kernel of a routine did all its arithmetic."""
    regime = plan.regime(env)
    return [_step_cost(plan.graph, regime, step, env, arithmetic=True).work for step in regime.steps]


def in_pieces(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """The steps in order, those that are pieces of one together."""
    at = 0
    while at < len(steps):
        step = steps[at]
        count = step.piece[1] if step.piece is not None and step.piece[0] == 1 else 1
        found = steps[at : at + count]
        # Variants are for people: what a file says there is not relied on.
        same = all(s.piece == (k, count) and (s.root, s.kernel) == (step.root, step.kernel) for k, s in enumerate(found, 1))
        if count > 1 and not (same and len(found) == count):
            found = steps[at : at + 1]
        yield found
        at += len(found)


def _step_cost(graph: Graph, regime: Regime, step: Step, env: Env, *, arithmetic: bool) -> Cost:
    demand = _demand(graph, regime, step, env)
    read = written = 0
    for value in {b.value for b in step.bindings if b.access == "read"}:
        read += _bytes(regime, value, demand.get(value), env)
    for b in step.bindings:
        if b.access == "write" and b.part == 0:
            written += _bytes(regime, b.value, None, env)
        elif b.access == "update":
            changed = _changes_rows(graph, step, b.value)
            if changed is None:
                read, written = (n + _bytes(regime, b.value, None, env) for n in (read, written))
                continue
            node, how = changed
            touched = _bytes(regime, b.value, evaluate(graph.nodes[node.operands[how.updates]].type.numel, env), env)
            written += touched
            read += touched if how.reads else 0
            if node.id != step.root:  # what else the step reads of the value
                read += _bytes(regime, b.value, demand.get(node.id), env)
    return Cost(read, written, _sum_flops(graph, step, env) if arithmetic else None)


def node_flops(graph: Graph, node: Node, env: Env) -> int | None:
    """Multiplications and additions of a matmul, convolution or attention; None for every other op."""
    flops = node.spec.traits.flops
    return None if flops is None else flops(_sizes(graph, node, env), node.attr, node.type.at(env).static_shape)


def _sizes(graph: Graph, node: Node, env: Env) -> Sizes:
    return {name: graph.nodes[i].type.at(env).static_shape for name, i in node.operands.items()}


def _sum_flops(graph: Graph, step: Step, env: Env) -> int | None:
    found = [f for i in step.nodes if (f := node_flops(graph, graph.nodes[i], env)) is not None]
    return sum(found) if found else None


def _demand(graph: Graph, regime: Regime, step: Step, env: Env) -> dict[int, int]:
    """How many elements of each value the step needs, walking from its results to what it reads."""
    inside = set(step.nodes)
    # A step that updates several states in place has a result for each.
    updated = {regime.values[b.value].parts for b in step.bindings if b.access == "update"}
    results = {step.root, *(i for i in step.nodes if i in regime.values and regime.values[i].parts in updated)}
    # What changes some rows of a state needs none of it; of the whole, the step needs what it reads besides.
    changed = (_changes_rows(graph, step, b.value) for b in step.bindings if b.access == "update")
    results -= {found[0].id for found in changed if found is not None and found[0].id != step.root}
    need = {i: evaluate(graph.nodes[i].type.numel, env) for i in results}
    for i in sorted(inside, reverse=True):
        node = graph.nodes[i]
        wanted = need.get(i, 0)
        for name, a in _reads(node):
            size = evaluate(graph.nodes[a].type.numel, env)
            need[a] = min(size, need.get(a, 0) + _operand_demand(graph, node, name, wanted, size, env))
    return need


def _reads(node: Node) -> list[tuple[str, int]]:
    """The operands that are there with their names; all operands of an op that takes any number have its last name."""
    names = node.spec.operand_names
    return [(names[min(k, len(names) - 1)], a) for k, a in enumerate(node.inputs) if a is not None]


def _operand_demand(graph: Graph, node: Node, operand: str, wanted: int, size: int, env: Env) -> int:
    spec = node.spec
    if spec.traits.demand is not None:
        return spec.traits.demand(operand, _sizes(graph, node, env), node.attr, node.type.at(env).static_shape)
    return size if isinstance(spec.lowering, (Row, Routine)) else min(size, wanted)


def _bytes(regime: Regime, value: int, elements: int | None, env: Env) -> int:
    """Bytes of a value, or of a number of its elements."""
    type = regime.values[value].type
    whole = evaluate(type.numel, env)
    return type.dtype.nbytes(whole) * (whole if elements is None else min(elements, whole)) // whole if whole else 0


def _changes_rows(graph: Graph, step: Step, state: int) -> tuple[Node, InPlace] | None:
    """The node of a step that changes some rows of a state in place, and how; None where the whole state is made anew."""
    for i in step.nodes:
        node = graph.nodes[i]
        in_place = node.spec.traits.in_place
        if in_place is not None and node.operands[in_place.operand] == state:
            return node, in_place
    return None
