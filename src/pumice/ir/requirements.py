"""Requirements of a graph on its inputs beyond their types: slices and indices inside what they select from, sizes that are not
negative, values of dims inside their dtype, no quotient by 0 that a state would keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from pumice.core.dims import Dim, Expr, evaluate
from pumice.errors import SymbolError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op
from pumice.ir.traits import Requirement

_NO_DIVISOR = "one value has no variance: pass a larger batch, or leave out a short last one (Batches(..., drop_last=True))"

_OTHER_BATCH = "one value has no variance: choose a batch size that leaves no batch so small (--set data.batch=…)"


def requirements(graph: Graph) -> tuple[Requirement, ...]:
    """The requirements that depend on symbols; those on ints were checked when the graph was built.

    >>> import pumice as pm
    >>> [r.text for r in requirements(pm.trace(lambda x: x[2], x=pm.spec("T")))]
    ['slice takes elements up to 2 of axis 0']
    """
    found: list[Requirement] = []
    for n in graph:
        traits = get_op(n.op).traits
        if traits.requires is not None:
            shapes = {name: graph.nodes[i].type.shape for name, i in n.operands.items()}
            found += [replace(r, where=n.where) for r in traits.requires(shapes, n.attr, n.type, graph.maxima)]
        if traits.divisor and graph.updates and isinstance(divisor := dim_value(graph, n.operands[traits.divisor]), Expr):
            found += _kept_quotient(graph, n, divisor)
    return tuple(r for r in found if any(isinstance(d, Expr) for d in (r.small, r.large)))


def dim_value(graph: Graph, node: int) -> Dim | None:
    """The dim whose value a node holds as a number; None where it holds anything else.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: x / (x.shape[0] - 1), x=pm.spec("T"))
    >>> div = g.nodes[-1]
    >>> str(dim_value(g, div.args[1])), dim_value(g, div.args[0])
    ('T-1', None)
    """
    n = graph.nodes[node]
    while (spec := get_op(n.op)).traits.converts or spec.is_view:
        n = graph.nodes[n.args[0]]
    return None if spec.traits.dim_value is None else spec.traits.dim_value(n.attr, n.type)


def _kept_quotient(graph: Graph, quotient: Node, divisor: Dim) -> list[Requirement]:
    """A quotient by a dim that reaches a state or a param: 0 would leave NaN there for good, where no later run mends it.

    A variance over one value is such a quotient (0 / 0). A `where` on dims alone guards what it chooses from.
    """
    updated = {value: graph.nodes[target].name for target, value in graph.updates}
    seen, pending = {quotient.id}, [quotient.id]
    while pending:
        node = pending.pop()
        if node in updated:
            text = f"the next value of {updated[node]!r} is divided by {divisor}"
            return [Requirement(1, divisor, 1, text, quotient.where, _NO_DIVISOR, _OTHER_BATCH, "0")]
        for user in graph.users[node]:
            if user not in seen and not _guards(graph, graph.nodes[user]):
                seen.add(user)
                pending.append(user)
    return []


def _guards(graph: Graph, node: Node) -> bool:
    """Whether a node chooses by a condition that follows from dims and constants."""
    condition = get_op(node.op).traits.condition
    if not condition:
        return False
    pending, seen = [node.operands[condition]], {node.operands[condition]}
    while pending:
        n = graph.nodes[pending.pop()]
        if n.op in ("input", "param", "state"):
            return False
        fresh = set(n.args) - seen
        seen |= fresh
        pending += fresh
    return True


def check_requirements(needed: tuple[Requirement, ...], env: Mapping[str, int]) -> None:
    """Refuses symbol values for which a requirement does not hold."""
    for r in needed:
        small, large = evaluate(r.small, env), evaluate(r.large, env)
        if small > large and evaluate(r.unless_empty, env) > 0:
            values = ", ".join(f"{k} = {v}" for k, v in env.items())
            raise SymbolError(
                f"with {values}: {r.text}, which is {r.problem.format(small=small, large=large)}",
                hint=r.hint,
                cli_hint=r.cli_hint,
                where=r.where,
                **dict(env),
            )


def index_inputs(graph: Graph) -> Iterator[tuple[str, Dim, str]]:
    """Inputs that are used whole and as they come to select from an axis: (name, size of the axis, op).

    >>> import pumice as pm
    >>> g = pm.trace(lambda t, ids: pm.embedding(t, ids), t=pm.spec(9, 4), ids=pm.spec("T", dtype="i32"))
    >>> list(index_inputs(g))
    [('ids', 9, 'embedding')]
    """
    for n in graph:
        selects = get_op(n.op).traits.selects
        if selects is None:
            continue
        source = graph.nodes[n.operands[selects.indices]]
        # A slice may leave out, and a cast to fewer bits wrap, what would be out of range.
        while _shows_all(graph, source):
            source = graph.nodes[source.args[0]]
        if source.op == "input" and source.type.dtype.is_integer:
            axis = n.attr["axis"] if selects.axis is None else selects.axis
            yield source.name, graph.nodes[n.operands[selects.operand]].type.shape[axis], n.op


def _shows_all(graph: Graph, node: Node) -> bool:
    """Whether a node has every value of its operand: it is a view of all elements, or a cast of integers to wider ones."""
    spec = get_op(node.op)
    if not spec.traits.converts:
        return spec.is_view and not spec.traits.leaves_out
    source = graph.nodes[node.args[0]].type.dtype
    return source.is_integer and node.type.dtype.is_integer and np.can_cast(source.np, node.type.dtype.np)
