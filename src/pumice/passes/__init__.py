"""Graph → graph passes, each a named pure function; `optimize` runs them in order."""

from __future__ import annotations

from collections.abc import Callable

from pumice.ir.graph import Graph
from pumice.ir.verify import verify
from pumice.passes.cse import cse
from pumice.passes.dce import dce
from pumice.passes.fold import fold
from pumice.passes.simplify import simplify

PASSES: dict[str, Callable[[Graph], Graph]] = {"simplify": simplify, "fold": fold, "cse": cse, "dce": dce}


def optimize(graph: Graph, *, skip: tuple[str, ...] = (), check: bool = False) -> Graph:
    """The graph after all passes but those named in `skip`; `check` verifies it after each.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: (x * 1.0) + (x * 1.0), x=pm.spec(4))
    >>> [n.op for n in optimize(g)]
    ['input', 'add']
    """
    for name, run in PASSES.items():
        if name not in skip:
            graph = run(graph)
            if check:
                verify(graph)
    return graph
