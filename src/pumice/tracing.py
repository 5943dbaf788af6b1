"""Tracing: a function of tensors, called once with the types of its arguments, becomes a Graph."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.collection import without_collection
from pumice.core.dims import Dim, Expr, parse_dim
from pumice.core.records import dataclass
from pumice.errors import (
    DTypeError,
    GraphError,
    InputError,
    MissingName,
    ShapeError,
    SymbolError,
    UnknownName,
)
from pumice.functions.build import TensorLike, as_shape, as_tensor, call_site, checked, fail, tracer_for
from pumice.ir.graph import ConstData, Graph
from pumice.ir.registry import Packed
from pumice.ir.types import TensorType
from pumice.tensor import Tensor, Tracer, active_tracer


@dataclass(frozen=True, slots=True)
class Spec:
    """The type of an argument, and how large its symbols may become."""

    type: TensorType
    maxima: Mapping[str, int] = field(default_factory=dict)


def spec(*dims: int | str | Expr, dtype: Any = "f32", max: int | Mapping[str, int] | None = None) -> Spec:
    """The type of an argument of a traced function; dims are ints or expressions over symbols such as "B" and "T+1".

    `max` bounds the symbols: a mapping, or an int where there is one symbol.

    >>> s = spec("B", 64, dtype="f16", max=256)
    >>> str(s.type), s.maxima
    ('f16[B,64]', {'B': 256})
    """
    shape = tuple(_spec_dim(d) for d in dims)
    type = TensorType(dtypes.dtype(dtype), shape)
    last = shape[-1] if shape else 1
    if type.dtype.is_quant and (not isinstance(last, int) or last % type.dtype.block):
        raise fail(ShapeError, f"{type}: the last dim must be a static multiple of {type.dtype.block}")
    names = sorted(type.symbols)
    if max is None:
        return Spec(type)
    if not isinstance(max, Mapping):
        if len(names) != 1:
            raise fail(SymbolError, f"max={max} for {len(names)} symbols", hint="pass a mapping, such as max={'B': 256}")
        max = {names[0]: max}
    for name, limit in max.items():
        if name not in names:
            raise fail(UnknownName, f"max names the symbol {name!r}, which {type} does not have", hint=_near(name, names))
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise fail(SymbolError, f"the maximum of {name} must be an int of at least 1, not {limit!r}", symbol=name)
    return Spec(type, dict(max))


def _spec_dim(d: Any) -> Dim:
    if isinstance(d, tuple | list):
        raise fail(ShapeError, f"{d!r} is no dim", hint="give dims one by one: pm.spec(2, 3) or pm.spec(*shape)")
    dim = parse_dim(d) if isinstance(d, str) else as_shape(d)[0]
    if isinstance(dim, int) and dim < 0:
        raise fail(ShapeError, f"the dim {d} is negative")
    return dim


def _near(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"did you mean {found[0]!r}?" if found else "known: " + (" ".join(known) or "none")


def spec_of(value: Any, name: str = "the argument") -> Spec:
    """The spec of an example: of a Spec itself, an array, a number, or packed blocks.

    >>> str(spec_of(np.zeros((2, 3))).type)
    'f32[2,3]'
    """
    if isinstance(value, Spec):
        return value
    if isinstance(value, Packed):
        return Spec(TensorType(value.dtype, value.shape))
    try:
        if isinstance(value, np.ndarray):
            return Spec(TensorType(dtypes.dtype(value.dtype), value.shape))
        array, dtype = checked(value)
    except DTypeError as e:
        raise fail(DTypeError, f"{name} is neither a spec nor an array: {e.message}", hint=e.hint) from None
    return Spec(TensorType(dtype, array.shape))


# --- trace ---


@without_collection
def trace(fn: Callable[..., Any], /, params: Any = None, **inputs: Any) -> Graph:
    """The graph of a function of tensors.

    The function is called once, with a Tensor for each input (a spec, or an example array whose shape is then fixed) and,
    if given, with `params`: the same nested dicts, lists and tuples with Tensors for their arrays or specs, named by
    their paths ("layers.0.w"). It returns a tensor, or tensors nested in tuples, lists and dicts; numbers and arrays in
    between become constants.

    >>> g = trace(lambda params, x: x @ params["w"] + 1, params={"w": np.zeros((3, 2))}, x=spec("B", 3, max=8))
    >>> [(n.op, n.name) for n in g.nodes[:2]], str(g.nodes[-1].type), g.maxima
    ([('param', 'w'), ('input', 'x')], 'f32[B,2]', {'B': 8})
    """
    tracer = Tracer()
    maxima: dict[str, int] = {}
    arguments: dict[str, Any] = {}
    if params is not None:
        arguments["params"] = _params(tracer, params, (), maxima)
    for name, value in inputs.items():
        arguments[name] = _source(tracer, "input", name, value, maxima)
    args, kwargs = _bound(fn, arguments)
    token = active_tracer.set(tracer)
    try:
        tree, leaves = _flatten(fn(*args, **kwargs))
        outputs = [(name, as_tensor(value).id) for name, value in leaves]
    finally:
        active_tracer.reset(token)
        tracer.open = False
    if not (outputs or tracer.updates or tracer.captures):
        raise fail(GraphError, f"{_name(fn)} returned no tensor and set no state", hint="return what the graph should compute")
    return tracer.builder.build(
        outputs,
        updates=list(tracer.updates.items()),
        captures=list(tracer.captures.items()),
        maxima=maxima,
        tree=json.dumps(tree, separators=(",", ":")),
    )


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _source(tracer: Tracer, op: str, name: str, value: Any, maxima: dict[str, int]) -> Tensor:
    s = spec_of(value, f"{op} {name!r}")
    for symbol, limit in s.maxima.items():
        if maxima.setdefault(symbol, limit) != limit:
            raise fail(
                SymbolError,
                f"the symbol {symbol} has the maxima {maxima[symbol]} and {limit}",
                hint="give it once",
                symbol=symbol,
                name=name,
            )
    return Tensor(tracer, tracer.builder.source(op, name, s.type, where=call_site()))


def _params(tracer: Tracer, value: Any, path: tuple[str, ...], maxima: dict[str, int]) -> Any:
    if isinstance(value, Mapping):
        return {k: _params(tracer, v, (*path, str(k)), maxima) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [_params(tracer, v, (*path, str(i)), maxima) for i, v in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if value is None:
        return None
    if not path:
        raise fail(
            InputError, f"params must be a dict, list or tuple, not {type(value).__name__}", hint="pass one tensor as an input"
        )
    return _source(tracer, "param", ".".join(path), value, maxima)


def _bound(fn: Callable[..., Any], arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as fn takes them; names that it lacks, or needs and were not given, are errors."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return [], arguments
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in arguments:
        if name not in named and not open_ended:
            raise fail(UnknownName, f"{_name(fn)} has no argument {name!r}", hint=_near(name, list(named)), name=name)
    missing = [n for n, p in named.items() if n not in arguments and p.default is p.empty]
    if missing:
        raise fail(
            MissingName,
            f"{_name(fn)} needs the argument {missing[0]!r}, which was not given",
            hint=f"pass {missing[0]}=" + ("{...}" if missing[0] == "params" else "pm.spec(...)"),
            names=missing,
        )
    positional = [n for n, p in named.items() if p.kind is p.POSITIONAL_ONLY and n in arguments]
    return [arguments[n] for n in positional], {n: v for n, v in arguments.items() if n not in positional}


def _flatten(value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The nesting as JSON (an int is the position of a leaf, a list a tuple, an object a dict) and the named leaves."""
    leaves: list[tuple[str, Any]] = []

    def walk(v: Any, path: tuple[str, ...]) -> Any:
        if v is None:
            return None
        if isinstance(v, Mapping):
            if not all(isinstance(k, str) for k in v):
                raise fail(InputError, f"an output dict has keys that are no strings: {list(v)!r:.60}")
            return {k: walk(item, (*path, k)) for k, item in v.items()}
        if isinstance(v, tuple | list):
            return [walk(item, (*path, str(i))) for i, item in enumerate(v)]
        name = ".".join(path) or "out"
        if any(name == other for other, _ in leaves):
            raise fail(InputError, f"two outputs have the name {name!r}", hint="use keys without dots")
        leaves.append((name, v))
        return len(leaves) - 1

    return walk(value, ()), leaves


def unflatten_outputs(tree: str, arrays: Sequence[Any]) -> Any:
    """Outputs nested as the traced function returned them, from `Graph.tree`; lists come back as tuples.

    The tree is JSON: an int is the position of an output, null is None, a list a tuple, an object a dict.

    >>> unflatten_outputs('{"loss":0,"rest":[1,2]}', "abc")
    {'loss': 'a', 'rest': ('b', 'c')}
    """

    def build(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: build(v) for k, v in node.items()}
        if isinstance(node, list):
            return tuple(build(v) for v in node)
        return None if node is None else arrays[node]

    # Graphs that were built by hand have no tree.
    return build(_parsed(tree)) if tree else tuple(arrays)


@functools.cache
def _parsed(tree: str) -> Any:
    """A graph's tree, which every run needs: nobody changes it."""
    return json.loads(tree)


# --- inside a traced function ---


def state(name: str, shape: Any, dtype: Any = "f32", init: Any = None) -> Tensor:
    """The value, before this run, of a tensor that stays on the device between runs; zeros at first, or `init`.

    >>> def count(x):
    ...     n = state("n", (), "i32")
    ...     set_state(n, n + 1)
    ...     return x + n
    >>> g = trace(count, x=spec(2, dtype="i32"))
    >>> [(g.nodes[s].name, g.nodes[v].op) for s, v in g.updates]
    [('n', 'add')]
    """
    tracer = tracer_for()
    type = TensorType(dtypes.dtype(dtype), as_shape(shape))
    if type.dtype.is_quant or not type.is_static:
        raise fail(
            ShapeError,
            f"the state {name!r} is {type}, it must have a static shape and a plain dtype",
            hint="use the largest shape and slice it",
        )
    if name in tracer.states:
        known = Tensor(tracer, tracer.states[name])
        if known.type != type or init is not None:
            raise fail(
                GraphError,
                f"the state {name!r} is declared twice, as {known.type} and {type}",
                hint="keep the tensor, or repeat name, shape and dtype alone",
            )
        return known
    attrs = {} if init is None else {"init": _initial(name, type, init)}
    node = tracer.builder.source("state", name, type, where=call_site(), attrs=attrs)
    tracer.states[name] = node
    return Tensor(tracer, node)


def _initial(name: str, type: TensorType, init: Any) -> ConstData:
    array = checked(init)[0]
    if not _keeps_values(array, type.dtype.np):
        raise fail(DTypeError, f"the initial value {array.dtype} of the state {name!r} does not fit {type}", name=name)
    try:
        return ConstData.of(np.broadcast_to(array, type.static_shape).astype(type.dtype.np))
    except ValueError:
        raise fail(ShapeError, f"the initial value {array.shape} of the state {name!r} does not fit {type}", name=name) from None


def _keeps_values(array: Any, dtype: Any) -> bool:
    """Whether a cast changes no value by more than rounding a float."""
    if array.dtype.kind == "f" and np.dtype(dtype).kind in "fV":
        return True
    with np.errstate(invalid="ignore"):
        return bool(np.array_equal(array, array.astype(dtype)))


def set_state(state: str | Tensor, value: TensorLike) -> None:
    """Give a state the value that it takes after this run; once per state and trace.

    >>> g = trace(lambda x: set_state(state("last", (2,)), x), x=spec(2))
    >>> g.updates
    ((1, 0),)
    """
    tracer = tracer_for(state, value)
    if isinstance(state, str):
        if state not in tracer.states:
            raise fail(UnknownName, f"there is no state {state!r}", hint=_near(state, list(tracer.states)), name=state)
        node = tracer.states[state]
    else:
        node = state.id
        if node not in tracer.states.values():
            raise fail(GraphError, f"{state!r} is no state", hint="pass what pm.state returned, or its name")
    _update(tracer, node, value)


def set_param(param: Tensor, value: TensorLike) -> None:
    """Give a param the value that it takes after this run: how a train step updates its weights in place.

    >>> def step(params, g):
    ...     set_param(params["w"], params["w"] - 0.1 * g)
    >>> g = trace(step, params={"w": np.zeros(3)}, g=spec(3))
    >>> [(g.nodes[p].name, g.nodes[v].op) for p, v in g.updates]
    [('w', 'sub')]
    """
    tracer = tracer_for(param, value)
    node = tracer.builder.nodes[param.id]
    if node.op != "param":
        raise fail(GraphError, f"{param!r} is no param", hint="pass a tensor of the params argument as it came")
    if node.type.dtype.is_quant or not node.type.is_static:
        raise fail(
            DTypeError,
            f"the param {node.name!r} is {node.type}, only params of a static shape and a plain dtype can be set",
            hint="train an adapter beside it, or a dequantised copy",
            name=node.name,
        )
    _update(tracer, param.id, value)


def _update(tracer: Tracer, node: int, value: TensorLike) -> None:
    """Record the next value of a state or param, which must keep its type."""
    old = Tensor(tracer, node)
    new = as_tensor(value, old.dtype, near=old)
    source = tracer.builder.nodes[node]
    what = f"the {source.op} {source.name!r}"
    if node in tracer.updates:
        raise fail(GraphError, f"{what} is set twice in one trace", hint="combine the updates into one value", name=source.name)
    if new.dtype != old.dtype:
        raise fail(DTypeError, f"{what} is {old.type}, its new value {new.type}", hint="cast with .astype(...)", name=source.name)
    if new.shape != old.shape:
        raise fail(
            ShapeError, f"{what} is {old.type}, its new value {new.type}", hint=f"a {source.op} keeps its shape", name=source.name
        )
    tracer.updates[node] = new.id


def capture(name: str, x: TensorLike) -> Tensor:
    """x itself, remembered under a name so that a run can read it back though it is no output.

    >>> g = trace(lambda x: capture("hidden", x + 1) * 2, x=spec(2))
    >>> [(name, g.nodes[i].op) for name, i in g.captures]
    [('hidden', 'add')]
    """
    t = as_tensor(x)
    if name in t.tracer.captures:
        raise fail(GraphError, f"two captures have the name {name!r}", hint="number them: 'layer.0', 'layer.1'", name=name)
    t.tracer.captures[name] = t.id
    return t


# --- without a device ---


def interpret(fn: Callable[..., Any], /, *arrays: Any) -> Any:
    """What a function of tensors gives for arrays, by the reference interpreter: slow, exact, for examples and tests.

    >>> interpret(lambda x, y: {"sum": x + y}, [1, 2], [10, 20])
    {'sum': array([11, 22], dtype=int32)}
    """
    from pumice.reference.interpreter import evaluate_graph

    given = {f"x{i}": checked(a)[0] for i, a in enumerate(arrays)}
    graph = trace(lambda **tensors: fn(*tensors.values()), **given)
    found = evaluate_graph(graph, given).outputs
    results = [a.astype(graph.nodes[i].type.dtype.np) for a, (_, i) in zip(found, graph.outputs, strict=True)]
    return unflatten_outputs(graph.tree, results)
