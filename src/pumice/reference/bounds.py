"""Bounds of a graph's values on a backend: each element's least and greatest, from the ops' error models.

A node whose operands are exact is bounded by its own model, element by element. Errors of earlier nodes are not bounded in
theory but probed: the graph is evaluated again with every node off by its bound, all upward once and up or down at random
twice, and what a node then moves by, at most within its row (of `ROW` elements at least), is added
to its own bound, `SPREAD` times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.core.dtypes import DType
from pumice.ir.graph import Graph, Node, bind_attrs
from pumice.ir.precision import Evaluation, U
from pumice.ir.registry import Array, Packed, get_op
from pumice.reference.interpreter import apply_node, round_value, walk

PROBES = 3
ROW = 32
SPREAD = 2.0
# A stored result is off by half a step of its dtype, relative to its size; f16 and bf16 may also be kept in f32 within a kernel.
_HALF_STEP = {"f32": U, "f16": 2.0**-11, "bf16": 2.0**-8}
_LEAST_NORMAL = {"f32": 2.0**-126, "f16": 2.0**-24, "bf16": 2.0**-126}


@dataclass(frozen=True)
class Bounds:
    """A value by the oracle, and the least and greatest that a backend may give, in the value's dtype but held in float64."""

    value: Array
    low: Array
    high: Array

    @classmethod
    def exact(cls, value: Array) -> Bounds:
        """Bounds that only the value itself keeps."""
        return cls(value, value, value)


@dataclass(frozen=True)
class GraphBounds:
    """Bounds of what a run gives: `outputs` in order, `nodes` by id, and states and params after their updates by name."""

    outputs: list[Bounds]
    nodes: dict[int, Bounds]
    state: dict[str, Bounds]
    params: dict[str, Bounds]


@dataclass(frozen=True, slots=True)
class _Value:
    """A node's value, its values in the probes (None where it is exact), and its bounds."""

    value: Any
    probes: tuple[Any, ...] | None
    bounds: Bounds | None


def bound_graph(
    graph: Graph,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    env: Mapping[str, int] | None = None,
    *,
    nodes: Iterable[int] = (),
) -> GraphBounds:
    """The bounds of a graph's outputs, updates and the given nodes; arguments as for `evaluate_graph`.

    >>> from pumice.ir.text import parse_graph
    >>> g = parse_graph('pumice graph 1\\n%0 : f32[2] = input "x"\\n%1 : f32[2] = neg(%0)\\noutputs "y"=%1\\n')
    >>> (y,) = bound_graph(g, {"x": [1, 2]}).outputs
    >>> y.low, y.high
    (array([-1., -2.]), array([-1., -2.]))
    """
    wanted = {*graph.roots, *nodes, *(n.id for n in graph.sources("state"))}

    def source(value: Any) -> _Value:
        return _Value(value, None, None)

    def evaluate(node: Node, operands: Sequence[_Value | None], env: Mapping[str, int]) -> tuple[_Value, ...]:
        # Users of a node with several results may be those results.
        names = (node.id, *graph.users[node.id]) if node.further else (node.id,)
        return _evaluate(node, operands, env, not wanted.isdisjoint(names))

    found = walk(graph, inputs, params, state, env, wanted, source, evaluate)
    after = {n.id: n.id for n in graph.sources("state")} | dict(graph.updates)

    def bounds(i: int) -> Bounds:
        v = found[i]
        return v.bounds or Bounds.exact(v.value.data if isinstance(v.value, Packed) else v.value)

    return GraphBounds(
        outputs=[bounds(i) for _, i in graph.outputs],
        nodes={i: bounds(i) for i in wanted},
        state={n.name: bounds(after[n.id]) for n in graph.sources("state")},
        params={n.name: bounds(after[n.id]) for n in graph.sources("param") if n.id in after},
    )


def _evaluate(node: Node, operands: Sequence[_Value | None], env: Mapping[str, int], wanted: bool) -> tuple[_Value, ...]:
    spec, plain = get_op(node.op), [None if o is None else o.value for o in operands]
    results = apply_node(node, plain, env)
    own: Sequence[Any] = [None] * len(results)
    if spec.error is not None and any(t.dtype.is_float for t in node.results):
        outs, attrs = tuple(t.at(env) for t in node.results), bind_attrs(node.attr, env)
        wide = tuple(r.astype(np.float64) for r in results)
        found = spec.error(Evaluation(plain, attrs, outs, wide, spec.evaluate))
        own = found if node.further else [found]
    moved: list[tuple[Array, ...]] | None = None
    if any(o is not None and o.probes is not None for o in operands):
        moved = [apply_node(node, [_probe(o, p) for o in operands], env) for p in range(PROBES)]
    out = []
    for k, (t, result, error) in enumerate(zip(node.results, results, own, strict=True)):
        out.append(_value((node.id, k), t.dtype, result, error, None if moved is None else [m[k] for m in moved], wanted))
    return tuple(out)


def _value(seed: tuple[int, int], dtype: DType, result: Array, error: Any, moved: list[Array] | None, wanted: bool) -> _Value:
    """One result, of which the op's error model gives the own error, if it has one."""
    value = round_value(result, dtype)
    if dtype.is_quant:
        return _Value(value, None, None)
    if not dtype.is_float:
        # Integers are equal or wrong, so probes go on with the ones that are right.
        return _Value(value, None, Bounds.exact(value))
    own = np.zeros(result.shape)
    if error is not None:
        own = np.broadcast_to(np.nan_to_num(np.asarray(error, np.float64), nan=0.0), result.shape)
    bounds = _interval(result, value, own, moved, dtype) if wanted else None
    if error is None and moved is None:
        return _Value(value, None, bounds)
    off = own if error is None else own + _HALF_STEP[dtype.name] * np.abs(np.where(np.isfinite(value), value, 0))
    starts = moved or [result] * PROBES
    return _Value(value, tuple(round_value(r + _signs(seed, p, off.shape) * off, dtype) for p, r in enumerate(starts)), bounds)


def _probe(operand: _Value | None, p: int) -> Any:
    if operand is None:
        return None
    return operand.value if operand.probes is None else operand.probes[p]


def _signs(seed: tuple[int, int], probe: int, shape: tuple[int, ...]) -> Any:
    return 1.0 if probe == 0 else np.random.default_rng((*seed, probe)).choice((-1.0, 1.0), shape)


def _row_maxima(a: Array) -> Array:
    """The greatest of each element's row; of rows shorter than `ROW`, of the next ones too, as probes may miss a single one."""
    width = a.shape[-1] if a.ndim and a.shape[-1] >= ROW else ROW
    if not a.size:
        return a
    starts = np.arange(0, a.size, width)
    maxima = np.maximum.reduceat(a.reshape(-1), starts)
    return np.repeat(maxima, width)[: a.size].reshape(a.shape)


def _interval(result: Array, value: Array, own: Array, moved: Sequence[Array] | None, dtype: DType) -> Bounds:
    off = np.array(own)
    if moved is not None:
        drift = np.max([np.abs(m - result) for m in moved], axis=0)
        drift = np.where(np.isfinite(drift), drift, 0.0)
        off = off + SPREAD * _row_maxima(drift)
    finite = np.isfinite(result)
    low, high = (np.where(finite, result + s * off, result) for s in (-1, 1))
    # The dtype's rounding keeps order, so a result within the bounds rounds to a number between the rounded bounds.
    low, high = (a.astype(dtype.np).astype(np.float64) for a in (low, high))
    # Devices may flush numbers below the least normal one to zero.
    tiny = _LEAST_NORMAL[dtype.name]
    low, high = np.where((low > 0) & (low < tiny), 0.0, low), np.where((high < 0) & (high > -tiny), 0.0, high)
    return Bounds(value, low, high)
