"""Symbol inference: the values of a graph's symbols from the shapes of the arrays that a run is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pumice.core.dims import Dim, Expr, evaluate, shape_text, symbols
from pumice.core.records import dataclass
from pumice.errors import MissingName, ShapeError, SymbolError, UnknownName
from pumice.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class _Fact:
    """One axis of one given array: the dim that the graph declares and the size that came."""

    source: str
    axis: int
    dim: Expr
    size: int

    def __str__(self) -> str:
        return f"{self.source} axis {self.axis} ({self.dim} = {self.size})"


def infer_env(graph: Graph, shapes: Mapping[str, Sequence[int]], *, maxima: Mapping[str, int] | None = None) -> dict[str, int]:
    """The value of every symbol, from the shapes of the inputs (params and states may be given too).

    A dim that is a plain symbol binds it; an expression that is linear in one unknown symbol is solved for it; all
    others are checked once their symbols are known. `maxima` are the graph's own unless given.

    >>> from pumice.core import dims, dtypes
    >>> from pumice.ir.graph import GraphBuilder
    >>> from pumice.ir.types import TensorType
    >>> b, t = GraphBuilder(), dims.sym("T")
    >>> x = b.source("input", "x", TensorType(dtypes.f32, (2 * t + 1, 4)))
    >>> infer_env(b.build([("x", x)]), {"x": (7, 4)})
    {'T': 3}
    """
    facts: list[_Fact] = []
    for node in _named_sources(graph, shapes):
        facts += _facts(node, tuple(int(d) for d in shapes[node.name]))
    env, origin = _solve(facts)
    for fact in facts:
        _check(fact, env, origin)
    _check_maxima(graph, env, origin, graph.maxima if maxima is None else maxima)
    return {name: env[name] for name, _ in graph.symbols}


def _named_sources(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> list[Node]:
    found = {n.name: n for op in ("input", "param", "state") for n in graph.sources(op)}
    inputs = [n.name for n in graph.sources("input")]
    for name in shapes:
        if name not in found:
            raise UnknownName(f"the graph has no input {name!r}", hint="it has " + (" ".join(inputs) or "none"), name=name)
    missing = [name for name in inputs if name not in shapes]
    if missing:
        raise MissingName(f"the input {missing[0]!r} was not given", hint="needed: " + " ".join(inputs), names=missing)
    return [found[name] for name in shapes]


def _facts(node: Node, shape: tuple[int, ...]) -> list[_Fact]:
    expected = node.type.shape
    wrong = next((i for i, (d, size) in enumerate(zip(expected, shape)) if isinstance(d, int) and d != size), None)
    if len(shape) != len(expected) or wrong is not None:
        why = f"rank {len(shape)}, not {len(expected)}"
        if len(shape) == len(expected) and wrong is not None:
            why = f"axis {wrong} is {shape[wrong]}, not {expected[wrong]}"
        raise ShapeError(
            f"{node.op} {node.name!r} must have shape {shape_text(expected)}, got {shape_text(shape)}: {why}",
            where=node.where,
            name=node.name,
            expected=expected,
            got=shape,
        )
    return [_Fact(f"{node.op} {node.name!r}", i, d, shape[i]) for i, d in enumerate(expected) if isinstance(d, Expr)]


def _solve(facts: list[_Fact]) -> tuple[dict[str, int], dict[str, _Fact]]:
    """Symbol values and, for the error messages, the fact that each came from."""
    env: dict[str, int] = {}
    origin: dict[str, _Fact] = {}
    # Plain symbols first: an input that states a symbol outright is the better witness in a contradiction.
    pending = sorted(facts, key=lambda f: len(f.dim.terms) > 1 or f.dim.terms[0][1] != 1)
    progress = True
    while progress:
        progress = False
        for fact in list(pending):
            unknown = symbols(fact.dim) - env.keys()
            if len(unknown) > 1:
                continue
            if not unknown:
                pending.remove(fact)
            elif (value := _solve_linear(fact, next(iter(unknown)), env)) is not None:
                name = unknown.pop()
                env[name], origin[name] = value, fact
                pending.remove(fact)
                progress = True
    return env, origin


def _solve_linear(fact: _Fact, unknown: str, env: Mapping[str, int]) -> int | None:
    """The value of `unknown` that makes the fact true; None where the dim is not linear in it."""
    slope, rest = 0, 0
    for mono, coef in fact.dim.terms:
        here = [(atom, power) for atom, power in mono if unknown in symbols(Expr(((((atom, power),), 1),)))]
        if here and here != [(unknown, 1)]:
            return None
        others = tuple((atom, power) for atom, power in mono if (atom, power) not in here)
        value = evaluate(Expr(((others, coef),)), env)
        slope, rest = (slope + value, rest) if here else (slope, rest + value)
    if slope == 0:
        return None
    value, remainder = divmod(fact.size - rest, slope)
    if remainder or value < 0:
        raise SymbolError(
            f"{fact}: no {unknown} ≥ 0 makes {_with(fact.dim, env)} equal {fact.size}", symbol=unknown, got=fact.size
        )
    return value


def _with(dim: Dim, env: Mapping[str, int]) -> str:
    known = ", ".join(f"{name} = {env[name]}" for name in sorted(symbols(dim)) if name in env)
    return f"{dim} (with {known})" if known else str(dim)


def _check(fact: _Fact, env: Mapping[str, int], origin: Mapping[str, _Fact]) -> None:
    names = sorted(symbols(fact.dim))
    if any(name not in env for name in names):
        return  # reported by `_check_maxima`, which knows every symbol
    value = evaluate(fact.dim, env)
    if value == fact.size:
        return
    others = "; ".join(dict.fromkeys(f"{n} is {env[n]} by {origin[n]}" for n in names))
    raise SymbolError(
        f"{fact.source} axis {fact.axis} is {fact.size}, but {fact.dim} must be {value}: {others}",
        hint="inputs that share a symbol must agree on its value",
        symbols={n: env[n] for n in names},
        got=fact.size,
    )


def _check_maxima(graph: Graph, env: Mapping[str, int], origin: Mapping[str, _Fact], maxima: Mapping[str, int]) -> None:
    for name, _ in graph.symbols:
        if name not in env:
            raise SymbolError(
                f"the value of the symbol {name} does not follow from the input shapes",
                hint=f"declare an input with {name} as a dim of its own",
                symbol=name,
            )
        if name in maxima and env[name] > maxima[name]:
            raise SymbolError(
                f"{name} is {env[name]} by {origin[name]}, over its maximum {maxima[name]}",
                hint=f'compile with max={{"{name}": {env[name]}}} or more',
                symbol=name,
                value=env[name],
                max=maxima[name],
            )
