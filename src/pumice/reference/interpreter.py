"""The oracle: runs a graph node by node over the ops' NumPy references, floats in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from pumice.core.dtypes import DType
from pumice.errors import DTypeError, GraphError, MissingName, PumiceError, ShapeError, UnknownName
from pumice.ir.graph import ConstData, Graph, Node, bind_attrs
from pumice.ir.registry import Array, Packed, get_op
from pumice.ir.symbols import infer_env
from pumice.ir.types import TensorType

T = TypeVar("T")


@dataclass(frozen=True)
class ReferenceResult:
    """What a run gives. Floats are float64, those of f16 and bf16 nodes rounded to their dtype; quantised values are bytes.

    `state` holds every state after the updates, `params` those params that have updates; `values` every node's value,
    where they were requested.
    """

    outputs: list[Array]
    captures: dict[str, Array]
    state: dict[str, Array]
    params: dict[str, Array]
    values: list[Array] | None = None


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    env: Mapping[str, int] | None = None,
    *,
    keep_values: bool = False,
) -> ReferenceResult:
    """The meaning of a graph for given arrays; states that are not given have their initial value, else zeros.

    f32 nodes keep float64 precision; f16 and bf16 nodes are rounded to their dtype, as every backend stores them so.
    `env` holds symbol values, inferred from the input shapes if absent. Quantised params are uint8 block bytes.

    >>> from pumice.ir.text import parse_graph
    >>> g = parse_graph('pumice graph 1\\n%0 : f32[2] = input "x"\\n%1 : f32[2] = neg(%0)\\noutputs "y"=%1\\n')
    >>> evaluate_graph(g, {"x": [1, 2]}).outputs[0]
    array([-1., -2.])
    """
    kept = set(range(len(graph))) if keep_values else {*graph.roots, *(n.id for n in graph.sources("state"))}
    values = walk(graph, inputs, params, state, env, kept, lambda value: value, evaluate_node)
    after = {n.id: n.id for n in graph.sources("state")} | dict(graph.updates)
    return ReferenceResult(
        outputs=[_plain(values[i]) for _, i in graph.outputs],
        captures={name: _plain(values[i]) for name, i in graph.captures},
        state={n.name: _plain(values[after[n.id]]) for n in graph.sources("state")},
        params={n.name: _plain(values[after[n.id]]) for n in graph.sources("param") if n.id in after},
        values=[_plain(values[n.id]) for n in graph.nodes] if keep_values else None,
    )


def walk(
    graph: Graph,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    env: Mapping[str, int] | None,
    kept: Collection[int],
    from_source: Callable[[Any], T],
    evaluate: Callable[[Node, Sequence[T | None], Mapping[str, int]], tuple[T, ...]],
) -> dict[int, T]:
    """Evaluates a graph node by node and gives the values of the nodes in `kept`; others are dropped after their last use.

    `evaluate` gives all results of a node; nodes of the op `result` pick theirs.
    """
    given = {"input": dict(inputs), "param": dict(params or {}), "state": dict(state or {})}
    _check_names(graph, given)
    if env is None:
        env = infer_env(graph, {name: np.shape(a) for name, a in given["input"].items()})
    last_use = [max(graph.users[n.id], default=n.id) for n in graph.nodes]
    values: dict[int, T] = {}
    several: dict[int, tuple[T, ...]] = {}
    # Overflow, 0/0 and so on are results to compare, not warnings.
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op in _SOURCES:
                values[node.id] = from_source(_source(node, given, env))
            elif node.op == "result":
                values[node.id] = several[node.args[0]][node.attr["index"]]
            else:
                found = evaluate(node, [None if i is None else values[i] for i in node.inputs], env)
                values[node.id] = found[0]
                if node.further:
                    several[node.id] = found
            for i in {*node.args, node.id}:
                if last_use[i] <= node.id:
                    several.pop(i, None)
                    if i not in kept:
                        del values[i]
    return values


def _check_names(graph: Graph, given: Mapping[str, Mapping[str, Any]]) -> None:
    for op, arrays in given.items():
        names = [n.name for n in graph.sources(op)]
        for name in arrays:
            if name not in names:
                raise UnknownName(f"the graph has no {op} {name!r}", hint="it has " + (" ".join(names) or "none"), name=name)
        missing = [name for name in names if name not in arrays]
        if missing and op != "state":
            raise MissingName(f"the {op} {missing[0]!r} was not given", hint="needed: " + " ".join(names), names=missing)


_SOURCES = ("input", "param", "state", "constant")


def _source(node: Node, given: Mapping[str, Mapping[str, Any]], env: Mapping[str, int]) -> Any:
    out = node.type.at(env)
    own: ConstData | None = node.attr.get("data" if node.op == "constant" else "init")
    if node.op != "constant" and node.name in given[node.op]:
        return _load(node, np.asarray(given[node.op][node.name]), out)
    if own is not None:
        return _load(node, own.array(out.dtype.np, out.stored_shape), out)
    return _load(node, np.zeros(out.stored_shape, out.dtype.np), out)


def _load(node: Node, array: Array, out: TensorType) -> Any:
    """An array as references take it."""
    shape = out.stored_shape
    if out.dtype.is_quant:
        if array.dtype != np.uint8:
            raise DTypeError(f"{node.op} {node.name!r} is {out.dtype} and takes block bytes as uint8, not {array.dtype}")
        if array.size != np.prod(shape, dtype=np.int64):
            raise ShapeError(f"{node.op} {node.name!r} takes the bytes {shape}, got {array.shape}", name=node.name)
        return Packed(out.dtype, out.static_shape, array.reshape(shape))
    if array.shape != shape:
        raise ShapeError(
            f"{node.op} {node.name!r} must have shape {shape}, got {array.shape}", name=node.name, expected=shape, got=array.shape
        )
    # What is not exact in the declared dtype never reaches a device either.
    return round_value(array.astype(out.dtype.np), out.dtype)


def evaluate_node(node: Node, operands: Sequence[Any], env: Mapping[str, int]) -> tuple[Array, ...]:
    """One node's results from its operands' values, as `evaluate_graph` holds them: floats in float64."""
    found = apply_node(node, operands, env)
    return tuple(round_value(a, t.dtype) for a, t in zip(found, node.results, strict=True))


def apply_node(node: Node, operands: Sequence[Any], env: Mapping[str, int]) -> tuple[Array, ...]:
    """One node's results before they are rounded to the node's dtypes."""
    outs = tuple(t.at(env) for t in node.results)
    try:
        results = get_op(node.op).evaluate(operands, bind_attrs(node.attr, env), outs)
    except PumiceError as e:
        raise type(e)(f"node %{node.id}, {node.op}: {e.message}", hint=e.hint, where=node.where or e.where, **e.fields) from e
    if tuple(a.shape for a in results) != tuple(t.static_shape for t in outs):
        raise GraphError(
            f"node %{node.id}: the reference of {node.op} gave the shape {', '.join(str(a.shape) for a in results)}, "
            f"its type says {', '.join(map(str, outs))}",
            where=node.where,
            node=node.id,
            op=node.op,
        )
    return results


def round_value(array: Array, dtype: DType) -> Array:
    """A value in the precision that the oracle keeps for its dtype; packed blocks stay as they are."""
    if dtype.is_quant:
        return array
    if not dtype.is_float:
        return array.astype(dtype.np)
    if dtype.name != "f32":
        array = array.astype(dtype.np)
    return array.astype(np.float64)


def _plain(value: Any) -> Array:
    data: Array = value.data if isinstance(value, Packed) else value
    return data
