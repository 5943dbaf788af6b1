"""How the symbols of a plan follow from the shapes of its inputs, as formulas that a reader evaluates without algebra."""

from __future__ import annotations

from pumice.core.dims import Dim, Expr, symbols
from pumice.core.records import dataclass
from pumice.errors import PlanError
from pumice.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Solution:
    """`symbol` = (size of `axis` of `input` - `rest`) / `slope`, where slope and rest hold symbols solved before it."""

    symbol: str
    input: str
    axis: int
    slope: Dim
    rest: Dim


def solutions(graph: Graph) -> tuple[Solution, ...]:
    """One line per symbol, in an order in which they can be worked out; the same rule as `ir.symbols.infer_env`.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x, y: pm.concat([x, y]).sum() + y.sum(), x=pm.spec("T"), y=pm.spec("2*T+S"))
    >>> [(s.symbol, s.input, str(s.slope), str(s.rest)) for s in solutions(g)]
    [('T', 'x', '1', '0'), ('S', 'y', '1', '2*T')]
    """
    facts = [(n.name, i, d) for n in graph.sources("input") for i, d in enumerate(n.type.shape) if isinstance(d, Expr)]
    found: dict[str, Solution] = {}
    while True:
        candidates = [s for name, axis, d in facts if (s := _solve(name, axis, d, found)) is not None]
        if not candidates:
            break
        # A plain symbol is the best witness, and a slope of symbols may turn out 0: those come last.
        best = min(candidates, key=lambda s: (isinstance(s.slope, Expr), s.slope != 1, s.rest != 0))
        found[best.symbol] = best
    missing = [name for name, _ in graph.symbols if name not in found]
    if missing:
        raise PlanError(
            f"the value of the symbol {missing[0]} does not follow from the input shapes",
            hint=f"declare an input with {missing[0]} as a dim of its own",
            symbol=missing[0],
        )
    return tuple(found.values())


def _solve(name: str, axis: int, d: Expr, known: dict[str, Solution]) -> Solution | None:
    """The one unknown symbol of a dim, where the dim is linear in it."""
    unknown = symbols(d) - known.keys()
    if len(unknown) != 1:
        return None
    symbol = unknown.pop()
    slope: Dim = 0
    rest: Dim = 0
    for mono, coef in d.terms:
        others = tuple((atom, power) for atom, power in mono if atom != symbol)
        power = sum(p for atom, p in mono if atom == symbol)
        factor: Dim = Expr(((others, coef),)) if others else coef
        if power > 1 or symbol in symbols(factor):
            return None
        slope, rest = (slope + factor, rest) if power else (slope, rest + factor)
    return None if slope == 0 else Solution(symbol, name, axis, slope, rest)
