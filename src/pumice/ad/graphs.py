"""Graph → graph: the gradients of a finished graph's loss as further outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pumice.ad.reverse import backward
from pumice.errors import GraphError, UnknownName
from pumice.ir.graph import Graph, GraphBuilder


def gradient_graph(graph: Graph, wrt: Sequence[str] | None = None, loss: str | None = None) -> Graph:
    """The graph with the gradients of one output as further outputs, named "grad." and the name of the source.

    `wrt` names params, inputs or states, all float params unless given; `loss` names the output, which must be a scalar and
    may be left out where there is only one. A run returns the outputs as before and a dict of gradients.

    >>> import pumice as pm
    >>> g = pm.trace(lambda params, x: ((x @ params["w"]) ** 2).mean(), params={"w": pm.spec(3, 2)}, x=pm.spec("B", 3))
    >>> [(name, str(d.type)) for name, d in ((n, d) for n, i in gradient_graph(g).outputs for d in [gradient_graph(g).nodes[i]])]
    [('out', 'f32[]'), ('grad.w', 'f32[3,2]')]
    """
    outputs = dict(graph.outputs)
    if loss is None:
        if len(outputs) != 1:
            raise GraphError(
                f"the graph has {len(outputs)} outputs, which one is the loss?", hint="loss='…', one of " + " ".join(outputs)
            )
        (loss,) = outputs
    if loss not in outputs:
        raise UnknownName(f"the graph has no output {loss!r}", hint="it has " + " ".join(outputs), name=loss)
    sources = {n.name: n for op in ("param", "input", "state") for n in graph.sources(op)}
    names = [n.name for n in graph.sources("param") if n.type.dtype.is_float] if wrt is None else list(wrt)
    for name in names:
        if name not in sources:
            raise UnknownName(f"the graph has no source {name!r}", hint="it has " + " ".join(sources), name=name)
    builder = GraphBuilder.of(graph)
    found = backward(builder, outputs[loss], [sources[name].id for name in names])
    further = [(f"grad.{name}", i) for name, i in zip(names, found, strict=True)]
    old = json.loads(graph.tree) if graph.tree else list(range(len(graph.outputs)))
    tree = [old, {name: len(graph.outputs) + k for k, name in enumerate(names)}]
    return builder.build(
        [*graph.outputs, *further],
        updates=graph.updates,
        captures=graph.captures,
        maxima=graph.maxima,
        tree=json.dumps(tree, separators=(",", ":")),
    )
