"""What a graph asks of its symbols' values beyond their maxima: slices inside their axis, no more than an axis to select from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pumice.core.dims import Dim, Expr, evaluate
from pumice.errors import SymbolError
from pumice.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Requirement:
    """`small` ≤ `large` must hold unless `unless_empty` is 0; `text` says what for."""

    small: Dim
    large: Dim
    unless_empty: Dim
    text: str
    where: str


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


def check_requirements(needed: tuple[Requirement, ...], env: Mapping[str, int]) -> None:
    """Refuses symbol values for which a requirement does not hold."""
    for r in needed:
        if evaluate(r.unless_empty, env) > 0 and evaluate(r.small, env) > evaluate(r.large, env):
            values = ", ".join(f"{k} = {v}" for k, v in env.items())
            raise SymbolError(
                f"with {values}: {r.text}, which is out of range ({evaluate(r.small, env)} > {evaluate(r.large, env)})",
                hint="pass inputs of another size, or clamp the bound in the traced function",
                where=r.where,
                **dict(env),
            )
