"""The graph verifier: every rule of the IR, each refusal naming the node, its op, the shapes, the rule and the user's line."""

from __future__ import annotations

import json
from typing import Any

from pumice.core.dims import Expr, symbols
from pumice.errors import GraphError, PumiceError
from pumice.ir.graph import ConstData, Graph, Node, result_types
from pumice.ir.registry import SOURCE_OPS, OpSpec, get_op

_INT_LIMIT = 1 << 63


def verify(graph: Graph) -> Graph:
    """The graph itself, or a GraphError for the first rule that it breaks.

    >>> from pumice.ir.text import parse_graph
    >>> g = parse_graph('pumice graph 1\\n%0 : f32[2] = input "x"\\n%1 : f32[3] = relu(%0)\\noutputs "y"=%1\\n')
    >>> verify(g)
    Traceback (most recent call last):
    pumice.errors.GraphError: [graph] node %1, relu of (2,) f32: its type is recorded as f32[3], by the op's rule it is f32[2]
    """
    table = _verify_symbols(graph)
    names: dict[str, Node] = {}
    # The rules look at nothing but an op, its attributes and types. Layers of a model share those objects where a plan file
    # made the graph, and the graph keeps them alive, so that an id stands for one.
    known: set[tuple[Any, ...]] = set()
    nodes = graph.nodes
    for position, node in enumerate(nodes):
        if node.id != position:
            raise GraphError(f"node %{node.id} ({node.op}) stands at position {position}", node=node.id, where=node.where)
        if node.inputs:
            _verify_operands(graph, node)
        key: tuple[Any, ...] = (node.op, id(node.attrs), id(node.type), id(node.further))
        key = (*key, *[None if i is None else id(nodes[i].type) for i in node.inputs])
        is_source = node.op in SOURCE_OPS
        if node.op == "result" or key not in known:
            _verify_type(graph, node)
            _verify_known(graph, node, table)
            if not is_source:
                _verify_op(graph, node)
            known.add(key)
        if is_source:
            _verify_source(graph, node, names)
    _verify_ends(graph)
    return graph


def _refuse(graph: Graph, node: Node, rule: str, hint: str = "") -> GraphError:
    shown = [graph.nodes[i].type.describe() if i is not None and 0 <= i < node.id else "-" for i in node.inputs]
    what = f"{node.op} {node.name!r}" if node.op in SOURCE_OPS and node.name else node.op
    return GraphError(
        f"node %{node.id}, {what}{' of ' + ', '.join(shown) if shown else ''}: {rule}",
        hint=hint,
        where=node.where,
        node=node.id,
        op=node.op,
        shapes=shown,
        rule=rule,
    )


def _verify_symbols(graph: Graph) -> set[str]:
    seen: set[str] = set()
    for name, maximum in graph.symbols:
        if name in seen:
            raise GraphError(f"the symbol {name} is in the table twice", symbol=name)
        if maximum is not None and (type(maximum) is not int or not 0 <= maximum < _INT_LIMIT):
            raise GraphError(f"the maximum {maximum!r} of the symbol {name} is no size", symbol=name)
        seen.add(name)
    return seen


def _verify_operands(graph: Graph, node: Node) -> None:
    for i in node.inputs:
        if i is not None and not 0 <= i < node.id:
            raise _refuse(graph, node, f"it reads %{i}, which does not come before it")


def _verify_type(graph: Graph, node: Node) -> None:
    for t in node.results:
        for d in t.shape:
            if not isinstance(d, Expr) and (type(d) is not int or not 0 <= d < _INT_LIMIT):
                raise _refuse(graph, node, f"{d!r} in its shape is no size")
        if not t.dtype.is_quant:
            continue
        block, last = t.dtype.block, t.shape[-1] if t.shape else 1
        if not isinstance(last, int) or last % block:
            raise _refuse(graph, node, f"the last axis of a {t.dtype} tensor must be a static multiple of {block}, not {last}")


def _verify_source(graph: Graph, node: Node, names: dict[str, Node]) -> None:
    if node.inputs or node.further:
        raise _refuse(graph, node, "a source has no operands and one result")
    if node.op != "input" and not node.type.is_static:
        raise _refuse(graph, node, f"the shape of a {node.op} is static, it is {node.type}", "only inputs bind symbols")
    _verify_contents(graph, node)
    if node.op == "constant":
        return
    if not node.name:
        raise _refuse(graph, node, f"a {node.op} needs a name")
    if node.name in names:
        raise _refuse(graph, node, f"the name is taken by the {names[node.name].op} %{names[node.name].id}")
    names[node.name] = node


def _verify_contents(graph: Graph, node: Node) -> None:
    """The bytes that a source may carry: a constant's value, a state's initial value."""
    key = {"constant": "data", "state": "init"}.get(node.op)
    if any(name != key for name, _ in node.attrs) or len(node.attrs) > 1:
        raise _refuse(graph, node, f"its attributes are {' '.join(name for name, _ in node.attrs)}, it takes {key or 'none'}")
    if not node.attrs and node.op != "constant":
        return
    data = node.attr.get(str(key))
    if not isinstance(data, ConstData):
        raise _refuse(graph, node, f"the attribute {key} must hold its bytes")
    expected = node.type.max_nbytes({})
    if len(data.data) != expected:
        raise _refuse(graph, node, f"{node.type} takes {expected} bytes, the attribute {key} has {len(data.data)}")


def _verify_op(graph: Graph, node: Node) -> None:
    keys = [key for key, _ in node.attrs]
    if keys != sorted(set(keys)):
        raise _refuse(graph, node, f"its attributes {' '.join(keys)} are not in order, each once")
    try:
        spec: OpSpec = get_op(node.op)
        full = spec.complete_attrs(node.attr)
        spec.check_arity(node.inputs)
        inferred = result_types(graph.nodes, node.op, node.inputs, full)
    except PumiceError as e:
        raise _refuse(graph, node, e.message, e.hint) from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as e:
        # A rule may trip over an attribute of the wrong type, which only text from elsewhere can hold.
        raise _refuse(graph, node, f"its attributes do not fit the op: {e}") from e
    absent = [key for key in full if key not in node.attr]
    if absent:
        raise _refuse(graph, node, f"the attribute {absent[0]} is not written out")
    implied = [key for key, value in node.attrs if spec.implied_attrs.get(key, spec) == value]
    if implied:
        raise _refuse(graph, node, f"the attribute {implied[0]} is written out, though it has its default")
    if inferred != node.results:
        recorded, right = (", ".join(map(str, types)) for types in (node.results, inferred))
        raise _refuse(graph, node, f"its type is recorded as {recorded}, by the op's rule it is {right}")


def _verify_known(graph: Graph, node: Node, table: set[str]) -> None:
    """Attributes hold only what text and hash can hold, and every symbol is in the table."""
    found = set().union(*(t.symbols for t in node.results))
    pending: list[Any] = [value for _, value in node.attrs]
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending += value
        elif isinstance(value, Expr):
            found |= symbols(value)
        elif type(value) is int and not -_INT_LIMIT <= value < _INT_LIMIT:
            raise _refuse(graph, node, f"the attribute value {value} is over 64 bits")
        elif not isinstance(value, int | float | str | ConstData | None):
            raise _refuse(graph, node, f"an attribute cannot hold {value!r} ({type(value).__name__})")
    if found - table:
        raise _refuse(graph, node, f"the symbol {min(found - table)} is not in the graph's table")


def _verify_ends(graph: Graph) -> None:
    for label, pairs in (("output", graph.outputs), ("capture", graph.captures)):
        seen: set[str] = set()
        for name, i in pairs:
            if not 0 <= i < len(graph):
                raise GraphError(f"the {label} {name!r} is %{i}, the graph ends at %{len(graph) - 1}", name=name, node=i)
            if name in seen:
                raise GraphError(f"two {label}s are named {name!r}", name=name, node=i, where=graph.nodes[i].where)
            seen.add(name)
    _verify_updates(graph)
    _verify_packs(graph)
    try:
        json.loads(graph.tree or "null")
    except (ValueError, RecursionError) as e:
        raise GraphError("the tree of the outputs is no JSON", tree=graph.tree[:100]) from e


def _verify_packs(graph: Graph) -> None:
    """A param has one place: in one pack at most. Updated params are in no pack."""
    updated, taken = {target for target, _ in graph.updates}, set[int]()
    for node in graph:
        for i in node.args if node.op == "pack_rows" else ():
            if graph.nodes[i].op != "param" or i in taken or i in updated:
                raise _refuse(graph, node, f"%{i} is no param, is packed twice, or is updated")
            taken.add(i)


def _verify_updates(graph: Graph) -> None:
    updated: set[int] = set()
    for target, value in graph.updates:
        for i in (target, value):
            if not 0 <= i < len(graph):
                raise GraphError(
                    f"the update of %{target} by %{value} names no node: the graph ends at %{len(graph) - 1}", node=i
                )
        state, new = graph.nodes[target], graph.nodes[value]
        if state.op not in ("state", "param") or state.type.dtype.is_quant or not state.type.is_static:
            rule = "only a state, or a param of a static shape and a plain dtype, can be updated"
            raise _refuse(graph, state, rule, f"the update is by %{value}")
        if target in updated:
            raise _refuse(graph, state, "a state or param is updated at most once per run")
        if state.type != new.type:
            raise _refuse(graph, state, f"it is {state.type}, the value %{value} for its update is {new.type}")
        updated.add(target)
