"""What a graph asks of its inputs beyond their types: slices and indices inside what they select from, sizes that are not
negative, values of dims inside their dtype, no quotient by 0 that a state would keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pumice.core.dims import Dim, Expr, bounds, evaluate, symbols
from pumice.errors import SymbolError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op

_OUT_OF_RANGE = "pass inputs of another size, or clamp the bound in the traced function"
_NO_DIVISOR = "one value has no variance: pass a larger batch, or leave out a short last one (Batches(..., drop_last=True))"

_OTHER_BATCH = "one value has no variance: choose a batch size that leaves no batch so small (--set data.batch=…)"


@dataclass(frozen=True, slots=True)
class Requirement:
    """`small` ≤ `large` must hold unless `unless_empty` is 0; `text` says what for."""

    small: Dim
    large: Dim
    unless_empty: Dim
    text: str
    where: str
    hint: str = _OUT_OF_RANGE
    cli_hint: str = ""
    problem: str = "out of range ({small} > {large})"


def requirements(graph: Graph) -> tuple[Requirement, ...]:
    """The requirements that depend on symbols; those on ints were checked when the graph was built.

    >>> import pumice as pm
    >>> [r.text for r in requirements(pm.trace(lambda x: x[2], x=pm.spec("T")))]
    ['slice takes elements up to 2 of axis 0']
    """
    found: list[Requirement] = []
    for n in graph:
        if n.op == "slice":
            found += _slice_requirements(graph, n)
        elif n.op == "argtopk":
            size = graph.nodes[n.args[0]].type.shape[n.attr["axis"]]
            found.append(Requirement(n.attr["k"], size, 1, f"argtopk takes {n.attr['k']} of axis {n.attr['axis']}", n.where))
        elif n.op == "upsample":
            sizes = zip(graph.nodes[n.args[0]].type.shape[2:], n.type.shape[2:], strict=True)
            found += [Requirement(1, old, new, f"upsample takes from axis {k}", n.where) for k, (old, new) in enumerate(sizes, 2)]
        elif n.op == "expand":
            found += _sizes(graph, n, "expand makes axis", n.type.shape)
        elif n.op == "pad":
            found += _sizes(graph, n, "pad adds before axis", n.attr["lo"]) + _sizes(
                graph, n, "pad adds after axis", n.attr["hi"]
            )
        elif n.op == "arange" and n.type.dtype.is_integer:
            found += _arange_requirements(graph, n)
        elif n.op == "div" and graph.updates and isinstance(divisor := dim_value(graph, n.args[1]), Expr):
            found += _kept_quotient(graph, n, divisor)
    return tuple(r for r in found if any(isinstance(d, Expr) for d in (r.small, r.large)))


def _slice_requirements(graph: Graph, n: Node) -> list[Requirement]:
    found = []
    shape = graph.nodes[n.args[0]].type.shape
    axes = zip(n.attr["starts"], n.attr["stops"], n.attr["steps"], shape, n.type.shape, strict=True)
    for axis, (start, stop, step, size, taken) in enumerate(axes):
        first, end = (start, stop) if step > 0 else (stop + 1, start + 1)
        text = f"slice takes elements from {first} of axis {axis}"
        found.append(Requirement(0, first, taken, text, n.where))
        found.append(Requirement(end, size, taken, f"slice takes elements up to {end - 1} of axis {axis}", n.where))
    return [r for r in found if r.small != r.large]


def _sizes(graph: Graph, n: Node, text: str, sizes: tuple[Dim, ...]) -> list[Requirement]:
    """Sizes that a difference of dims makes: kernels and buffers would take a negative one for something else each."""
    doubtful = [(k, d) for k, d in enumerate(sizes) if isinstance(d, Expr) and _bounds(graph, d)[0] < 0]
    return [Requirement(0, d, 1, f"{text} {k} of size {d}", n.where, problem="negative ({large})") for k, d in doubtful]


def _bounds(graph: Graph, d: Dim) -> tuple[int, int]:
    return bounds(d, {s: graph.maxima.get(s, 2**31 - 1) for s in symbols(d)})


def _arange_requirements(graph: Graph, n: Node) -> list[Requirement]:
    """Both ends inside the dtype, where the symbols' maxima leave a doubt; a dim's value as a scalar is such a range too."""
    info, (count,) = np.iinfo(n.type.dtype.np), n.type.shape
    low, high = int(info.min), int(info.max)
    found = []
    for value in (n.attr["start"], n.attr["start"] + (count - 1) * n.attr["step"]):
        least, greatest = _bounds(graph, value)
        text = f"{value} is a value of {n.type.dtype}"
        if least < low:
            found.append(Requirement(low, value, count, text, n.where))
        if greatest > high:
            found.append(Requirement(value, high, count, text, n.where))
    return list(dict.fromkeys(found))


def dim_value(graph: Graph, node: int) -> Dim | None:
    """The dim whose value a node holds as a number; None where it holds anything else.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: x / (x.shape[0] - 1), x=pm.spec("T"))
    >>> div = g.nodes[-1]
    >>> str(dim_value(g, div.args[1])), dim_value(g, div.args[0])
    ('T-1', None)
    """
    n = graph.nodes[node]
    while n.op == "cast" or get_op(n.op).is_view:
        n = graph.nodes[n.args[0]]
    return n.attr["start"] if n.op == "arange" and n.type.shape == (1,) else None


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
    """Whether a node is a `where` whose condition follows from dims and constants."""
    if node.op != "where":
        return False
    pending, seen = [node.args[0]], {node.args[0]}
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
    position = {"gather": 1, "take_along_axis": 1, "embedding": 1}
    for n in graph:
        if n.op not in position:
            continue
        source = graph.nodes[n.args[1]]
        # A slice may leave out, and a cast to fewer bits wrap, what would be out of range.
        while source.op != "slice" and (get_op(source.op).is_view or _widens(graph, source)):
            source = graph.nodes[source.args[0]]
        if source.op == "input" and source.type.dtype.is_integer:
            axis = 0 if n.op == "embedding" else n.attr["axis"]
            yield source.name, graph.nodes[n.args[0]].type.shape[axis], n.op


def _widens(graph: Graph, node: Node) -> bool:
    """Whether a node is a cast of integers that keeps every value."""
    if node.op != "cast" or not node.type.dtype.is_integer:
        return False
    source = graph.nodes[node.args[0]].type.dtype
    return source.is_integer and np.can_cast(source.np, node.type.dtype.np)
