"""Feeds: states that take the value of an output after each run, as a rewrite of the graph."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping

from pumice.errors import DTypeError, InputError, ShapeError, UnknownName
from pumice.ir.graph import Graph, Node


def feed_states(graph: Graph, feeds: Mapping[str, int | str]) -> Graph:
    """The graph in which, after each run, each named state has the value of the output that `feeds` gives it.

    An input may be named too: it becomes a state, zeros at first. An output is named as in the result, or by its position.

    >>> import pumice as pm
    >>> g = feed_states(pm.trace(lambda x, kv: x + kv, x=pm.spec(2), kv=pm.spec(2)), {"kv": 0})
    >>> [(n.op, n.name) for n in g.nodes[:2]], g.updates
    ([('input', 'x'), ('state', 'kv')], ((1, 2),))
    """
    nodes = list(graph.nodes)
    updates = list(graph.updates)
    for name, output in feeds.items():
        target = _target(graph, name)
        value = nodes[_output(graph, name, output)]
        if target.op == "input":
            if not target.type.is_static or target.type.dtype.is_quant:
                raise ShapeError(
                    f"the input {name!r} is {target.type.describe()}, a state has a static shape and a plain dtype",
                    hint="use the largest shape and slice it",
                    name=name,
                )
            nodes[target.id] = dataclasses.replace(target, op="state")
        elif target.id in {t for t, _ in updates}:
            raise InputError(f"the state {name!r} is set by the graph already", hint="leave one of the two out", name=name)
        if value.type != target.type:
            kind = DTypeError if value.type.shape == target.type.shape else ShapeError
            raise kind(
                f"the state {name!r} is {target.type.describe()}, the output {output!r} is {value.type.describe()}",
                hint="a state is fed by an output of its own type",
                name=name,
            )
        updates.append((target.id, value.id))
    return dataclasses.replace(graph, nodes=tuple(nodes), updates=tuple(updates))


def _target(graph: Graph, name: str) -> Node:
    known = {n.name: n for n in graph.nodes if n.op in ("state", "input")}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "states and inputs: " + (" ".join(known) or "none")
        raise UnknownName(f"there is no state {name!r} to feed", hint=hint, name=name)
    return known[name]


def _output(graph: Graph, state: str, output: int | str) -> int:
    names = [name for name, _ in graph.outputs]
    if isinstance(output, str) and output in names:
        return graph.outputs[names.index(output)][1]
    if isinstance(output, int) and not isinstance(output, bool) and -len(names) <= output < len(names):
        return graph.outputs[output][1]
    raise UnknownName(
        f"there is no output {output!r} to feed the state {state!r}", hint=f"outputs: {' '.join(names)}", name=str(output)
    )
