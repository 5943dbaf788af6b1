"""What a step costs by its shapes: the fewest bytes it must move and, for products, the arithmetic it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from pumice.core.dims import evaluate
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Routine, Row, get_op
from pumice.plan.plan import Plan, Regime, Step

Env = Mapping[str, int]
# Ops that pick elements of their first operand: they read as many as they give.
_SELECTS = ("gather", "take_along_axis", "embedding")
_SCATTERS = ("scatter_set", "scatter_add")


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that a step reads and writes at least, and its floating-point operations, None where nobody counts them."""

    read: int
    written: int
    flops: int | None

    @property
    def moved(self) -> int:
        return self.read + self.written


def step_costs(plan: Plan, env: Env) -> list[Cost]:
    """The cost of every step that a plan takes at given sizes.

    Each stored value counts once per step, and only what the step needs of it: an embedding reads the rows it looks up, an
    update in place writes the rows it changes. Caches are not thought of, nor is a length that only the data knows.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> from pumice.plan.build import build_plan
    >>> g = pm.trace(lambda a, b: a @ b, a=pm.spec("B", 8), b=pm.spec(8, 4))
    >>> step_costs(build_plan(g, Caps.preset("h200")), {"B": 2})
    [Cost(read=192, written=32, flops=128)]
    """
    counted: set[int] = set()
    out = []
    regime = plan.regime(env)
    for step in regime.steps:
        demand = _demand(plan.graph, regime, step, env)
        read = written = 0
        for value in {b.value for b in step.bindings if b.access == "read"}:
            read += _bytes(regime, value, demand.get(value), env)
        for b in step.bindings:
            if b.access == "write" and b.part == 0:
                written += _bytes(regime, b.value, None, env)
            elif b.access == "update":
                touched = _touched(plan.graph, regime, step, b.value, env)
                written += touched
                read += touched if _reads_what_it_updates(plan.graph, step) else 0
        # A routine of several kernels does its arithmetic once.
        flops = None if step.root in counted else _sum_flops(plan.graph, step, env)
        counted.add(step.root)
        out.append(Cost(read, written, flops))
    return out


def node_flops(graph: Graph, node: Node, env: Env) -> int | None:
    """Multiplications and additions of a product, convolution or attention; None for every other op."""
    if node.op in ("matmul", "qmatmul", "grouped_matmul"):
        depth = graph.nodes[node.args[0]].type.shape[-1]
        return 2 * evaluate(node.type.numel, env) * evaluate(depth, env)
    if node.op == "grouped_matmul_grad_weight":
        x, dy = (graph.nodes[i].type for i in node.args[:2])
        return 2 * evaluate(x.numel, env) * evaluate(dy.shape[1], env)
    if node.op == "conv":
        weight = graph.nodes[node.args[1]].type.at(env).static_shape
        return 2 * evaluate(node.type.numel, env) * prod(weight[1:])
    if node.op in ("conv_grad_input", "conv_grad_weight"):
        first, second = (graph.nodes[i] for i in node.args)
        grad, filters = (first, second) if node.op == "conv_grad_input" else (second, node)
        return 2 * evaluate(grad.type.numel, env) * prod(filters.type.at(env).static_shape[1:])
    if node.op in ("attention", "attention_gradient"):
        return _attention_flops(graph, node, env)
    return None


def _attention_flops(graph: Graph, node: Node, env: Env) -> int:
    q, k, v = (graph.nodes[i].type.at(env).static_shape for i in node.args[:3])
    head, seq = (2, 1) if node.attr["layout"] == "bshd" else (1, 2)
    queries, keys = q[seq], k[seq]
    pairs = queries * keys
    gradient = node.op == "attention_gradient"
    if node.attr["causal"] and node.inputs[6 if gradient else 5] is None:  # an offset that is given is data
        first = keys - queries + 1
        pairs = sum(max(0, min(keys, first + i)) for i in (0, queries - 1)) * queries // 2 if queries else 0
    depths = 3 * q[3] + 2 * v[3] if gradient else q[3] + v[3]
    return 2 * q[0] * q[head] * pairs * depths


def _sum_flops(graph: Graph, step: Step, env: Env) -> int | None:
    found = [f for i in step.nodes if (f := node_flops(graph, graph.nodes[i], env)) is not None]
    return sum(found) if found else None


def _demand(graph: Graph, regime: Regime, step: Step, env: Env) -> dict[int, int]:
    """How many elements of each value the step needs, walking from its results to what it reads."""
    inside = set(step.nodes)
    # A step that updates several states in place has a result for each.
    updated = {regime.values[b.value].parts for b in step.bindings if b.access == "update"}
    results = {step.root, *(i for i in step.nodes if i in regime.values and regime.values[i].parts in updated)}
    need = {i: evaluate(graph.nodes[i].type.numel, env) for i in results}
    for i in sorted(inside, reverse=True):
        node = graph.nodes[i]
        wanted = need.get(i, 0)
        for position, a in enumerate(node.inputs):
            if a is None:
                continue
            size = evaluate(graph.nodes[a].type.numel, env)
            part = _operand_demand(graph, node, position, wanted, size, env)
            need[a] = min(size, need.get(a, 0) + part)
    return need


def _operand_demand(graph: Graph, node: Node, position: int, wanted: int, size: int, env: Env) -> int:
    if node.op == "attention" and position in (1, 2) and node.inputs[7] is not None:
        entries = evaluate(graph.nodes[node.args[position]].type.shape[0], env)
        return size // max(1, entries) * evaluate(node.type.shape[0], env)
    if isinstance(get_op(node.op).lowering, (Row, Routine)) and node.op not in _SELECTS:
        return size
    return min(size, wanted)


def _bytes(regime: Regime, value: int, elements: int | None, env: Env) -> int:
    """Bytes of a value, or of so many of its elements."""
    type = regime.values[value].type
    whole = evaluate(type.numel, env)
    return type.dtype.nbytes(whole) * (whole if elements is None else min(elements, whole)) // whole if whole else 0


def _touched(graph: Graph, regime: Regime, step: Step, value: int, env: Env) -> int:
    """Bytes that an update in place writes: the updates of a scatter, else the whole value."""
    root = graph.nodes[step.root]
    if root.op in _SCATTERS:
        return _bytes(regime, value, evaluate(graph.nodes[root.args[2]].type.numel, env), env)
    return _bytes(regime, value, None, env)


def _reads_what_it_updates(graph: Graph, step: Step) -> bool:
    return graph.nodes[step.root].op != "scatter_set"
