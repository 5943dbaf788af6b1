"""A graph in parts: every node belongs to the layer whose params it uses, and repeated layers share one drawing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.registry import SOURCE_OPS
from pumice.ir.text import print_value

# Neighbours without a number are shown as one part up to this many nodes.
_SMALL = 48


@dataclass(frozen=True)
class Segment:
    """Nodes that belong together. `alike` numbers what they compute: segments of one number differ in their params only."""

    name: str
    nodes: tuple[int, ...]
    alike: int


@dataclass(frozen=True)
class Stack:
    """One segment, or several in a row that are numbered, as the layers of a model are."""

    name: str
    segments: tuple[int, ...]


def split(graph: Graph) -> tuple[tuple[Segment, ...], tuple[Stack, ...]]:
    """The segments of a graph in the order of their work, and how they stack.

    >>> import pumice as pm
    >>> def net(params, x):
    ...     for layer in params["layers"]:
    ...         x = pm.relu(x @ layer["w"])
    ...     return x @ params["head"]["w"]
    >>> layers = [{"w": pm.spec(4, 4)} for _ in range(3)]
    >>> g = pm.trace(net, params={"layers": layers, "head": {"w": pm.spec(4, 2)}}, x=pm.spec(1, 4))
    >>> segments, stacks = split(g)
    >>> [(s.name, len(s.segments)) for s in stacks]
    [('layers.0 … layers.2', 3), ('head', 1)]
    >>> [s.alike for s in segments]
    [0, 0, 0, 1]
    """
    names, members = _by_scope(graph)
    names, members = _merged(*_without_tails(graph, names, members))
    kinds: dict[object, int] = {}
    segments = tuple(
        Segment(name, nodes, kinds.setdefault(_signature(graph, nodes), len(kinds)))
        for name, nodes in zip(names, members, strict=True)
    )
    return segments, _stacks(segments)


def scope(path: str) -> str:
    """The part of a param's path that names its layer: up to the first number, else the first name.

    >>> scope("layers.3.qkv.weight"), scope("embed.weight"), scope("w")
    ('layers.3', 'embed', 'w')
    """
    parts = path.split(".")
    number = next((k for k, p in enumerate(parts) if p.isdigit()), 0)
    return ".".join(parts[: number + 1])


def _by_scope(graph: Graph) -> tuple[list[str], list[tuple[int, ...]]]:
    """Every node in the latest part that its operands come from, or in a later one that its own params name.

    A new part begins where params are used again after other parts: by a tied head, or in the backward pass.
    """
    scopes = ["inputs"]
    of: dict[int, int] = {}
    prepared = _prepared(graph)
    for n in graph:
        if n.op in SOURCE_OPS or n.id in prepared:
            continue
        at = max((of[i] for i in n.args if i in of), default=0)
        own = [s for i in n.args for s in prepared.get(i, ())]
        if own and scopes[at] not in own:
            later = next((k for k in range(at + 1, len(scopes)) if scopes[k] in own), None)
            if later is None:
                scopes.append(own[0])
                later = len(scopes) - 1
            at = later
        of[n.id] = at
    # Sources, and values computed from params alone, are placed with the first node that uses them.
    for n in reversed(graph.nodes):
        if n.id not in of:
            of[n.id] = min((of[u] for u in graph.users[n.id]), default=0)
    members: list[list[int]] = [[] for _ in scopes]
    for n in graph:
        members[of[n.id]].append(n.id)
    kept = [k for k, nodes in enumerate(members) if nodes]
    return [scopes[k] for k in kept], [tuple(members[k]) for k in kept]


def _prepared(graph: Graph) -> dict[int, tuple[str, ...]]:
    """Params, and nodes that depend on params and constants only, such as a transposed weight; with the layers they name."""
    found: dict[int, tuple[str, ...]] = {}
    for n in graph:
        if n.op == "param":
            found[n.id] = (scope(n.name),)
        elif n.args and all(i in found or graph.nodes[i].op == "constant" for i in n.args):
            own = tuple(dict.fromkeys(s for i in n.args for s in found.get(i, ())))
            if own:
                found[n.id] = own
    return found


def _without_tails(
    graph: Graph, names: Sequence[str], members: Sequence[tuple[int, ...]]
) -> tuple[list[str], list[tuple[int, ...]]]:
    """What follows the last of several layers without params of its own as a part of its own: it is no part of that layer.

    It is known by what the layer before it lacks.
    """
    out: list[tuple[str, tuple[int, ...]]] = []
    for k, (name, nodes) in enumerate(zip(names, members, strict=True)):
        follows = k > 0 and _is_numbered(name) and _pattern(names[k - 1]) == _pattern(name)
        last = k + 1 == len(names) or _pattern(names[k + 1]) != _pattern(name)
        work = [n for n in nodes if graph.nodes[n].op not in SOURCE_OPS]
        before = sum(graph.nodes[n].op not in SOURCE_OPS for n in members[k - 1]) if follows and last else len(work)
        if 0 < before < len(work):
            layer = tuple(n for n in nodes if n <= work[before - 1] or graph.nodes[n].op == "param")
            if _signature(graph, layer) == _signature(graph, members[k - 1]):
                out += [(name, layer), ("outputs", tuple(n for n in nodes if n not in layer))]
                continue
        out.append((name, nodes))
    return [name for name, _ in out], [nodes for _, nodes in out]


def _is_numbered(name: str) -> bool:
    return name.rpartition(".")[2].isdigit()


def _merged(names: Sequence[str], members: Sequence[tuple[int, ...]]) -> tuple[list[str], list[tuple[int, ...]]]:
    """Small neighbours that are no layers as one."""
    out: list[tuple[list[str], tuple[int, ...]]] = []
    for name, nodes in zip(names, members, strict=True):
        if out and not _is_numbered(name) and not _is_numbered(out[-1][0][0]) and len(out[-1][1]) + len(nodes) <= _SMALL:
            before, held = out[-1]
            out[-1] = ([*before, name], tuple(sorted((*held, *nodes))))
        else:
            out.append(([name], nodes))
    return [", ".join(dict.fromkeys(found)) for found, _ in out], [nodes for _, nodes in out]


def _signature(graph: Graph, nodes: Sequence[int]) -> object:
    """A key of what the nodes compute, independent of their ids and of the names of their params.

    Sources count by their types alone: one that several layers use is placed with the first of them.
    """
    work = [n for n in nodes if graph.nodes[n].op not in SOURCE_OPS]
    place = {n: k for k, n in enumerate(work)}

    def operand(i: int | None) -> object:
        return None if i is None else place.get(i, str(graph.nodes[i].type))

    def attrs(n: Node) -> str:
        return ",".join(f"{k}={print_value(v)}" for k, v in n.attrs if not isinstance(v, ConstData))

    found = (graph.nodes[i] for i in work)
    return tuple((n.op, str(n.type), attrs(n), tuple(operand(i) for i in n.inputs)) for n in found)


def _stacks(segments: Sequence[Segment]) -> tuple[Stack, ...]:
    out: list[Stack] = []
    for k, s in enumerate(segments):
        before = segments[k - 1] if k else None
        if before is not None and _is_numbered(s.name) and _pattern(before.name) == _pattern(s.name):
            first = segments[out[-1].segments[0]].name
            out[-1] = Stack(f"{first} … {s.name}", (*out[-1].segments, k))
        else:
            out.append(Stack(s.name, (k,)))
    return tuple(out)


def _pattern(name: str) -> str:
    return re.sub(r"\d+$", "#", name)
