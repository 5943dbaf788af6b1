"""Dims: integers or integer expressions over named symbols, kept in a canonical form so that equal means equal."""

from __future__ import annotations

import ast
import functools
import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from pumice.core.records import dataclass
from pumice.errors import FormatError, SymbolError

# An atom is a symbol's name or a function of dims that does not simplify: ("floordiv", a, b), ("mod", a, b), ("max", …).
Atom = str | tuple[str, "Dim", "Dim"]
Monomial = tuple[tuple[Atom, int], ...]
Shape = tuple["Dim", ...]


@dataclass(frozen=True, slots=True, eq=True)
class Expr:
    """A polynomial over atoms with integer coefficients, in canonical order.

    Build with `sym` and arithmetic; results that are constant collapse to `int`.

    >>> t = sym("T")
    >>> t + t == 2 * t, (t + 1) - t, (6 * t) // 3, str(t * 2 + 1)
    (True, 1, Expr('2*T'), '2*T+1')
    """

    terms: tuple[tuple[Monomial, int], ...]
    # Dims are keys of most tables of planning.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.terms,)  # hashes of texts are others in another process

    # NumPy must hand `array * dim` over to Expr instead of making an array of dims.
    __array_ufunc__ = None

    # Integers keep a dim a dim, which is what the types say. A float, a quotient or a comparison makes it a traced scalar.

    def __add__(self, other: Dim) -> Dim:
        return _add(self, other, 1) if type(other) in _DIM_TYPES else _typed_arithmetic("add", self, other)

    def __radd__(self, other: Dim) -> Dim:
        return _typed_arithmetic("add", other, self)

    def __sub__(self, other: Dim) -> Dim:
        return _add(self, other, -1) if type(other) in _DIM_TYPES else _typed_arithmetic("subtract", self, other)

    def __rsub__(self, other: Dim) -> Dim:
        return _typed_arithmetic("subtract", other, self)

    def __neg__(self) -> Dim:
        return _mul(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __mul__(self, other: Dim) -> Dim:
        return _mul(self, other) if type(other) in _DIM_TYPES else _typed_arithmetic("multiply", self, other)

    def __rmul__(self, other: Dim) -> Dim:
        return _mul(other, self) if type(other) in _DIM_TYPES else _typed_arithmetic("multiply", other, self)

    def __floordiv__(self, other: Dim) -> Dim:
        return _typed_arithmetic("floor_divide", self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _typed_arithmetic("floor_divide", other, self)

    def __mod__(self, other: Dim) -> Dim:
        return _typed_arithmetic("mod", self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return _typed_arithmetic("mod", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _arithmetic("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return _arithmetic("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _arithmetic("power", other, self)

    def __lt__(self, other: Any) -> Any:
        return _arithmetic("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _arithmetic("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _arithmetic("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _arithmetic("greater_equal", self, other)

    # A request for the number while tracing raises an error that says how to compute with it instead.

    def _no_value(self, wanted: str, hint: str) -> NoReturn:
        raise SymbolError(f"the symbolic dim {self} has no {wanted} while tracing", hint=hint, dim=str(self))

    def __bool__(self) -> bool:
        self._no_value("truth value", "compare shapes with ints only where the dim is static; choose by value with pm.where")

    def __index__(self) -> int:
        self._no_value("int value", "count with pm.arange(dim); a Python loop or list needs a static dim")

    def __int__(self) -> int:
        self._no_value(
            "int value", "calculate with the dim itself (// divides it), or with its value as a traced scalar, pm.asarray(dim)"
        )

    def __float__(self) -> float:
        self._no_value(
            "float value", "calculate with the dim itself, or with pm.asarray(dim, 'f32'); pm.sqrt takes it, math.sqrt not"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._no_value("array value", "pm.asarray(dim) is its value as a traced scalar")

    def __str__(self) -> str:
        parts = []
        for mono, coef in self.terms:
            factors = [f"{_atom_text(a)}" for a, power in mono for _ in range(power)]
            if coef != 1 or not factors:
                factors.insert(0, str(coef))
            parts.append("*".join(factors))
        return "+".join(parts).replace("+-", "-")

    def __repr__(self) -> str:
        return f"Expr('{self}')"


Dim = int | Expr
# What most arithmetic of dims is with, which takes the short way.
_DIM_TYPES = (int, Expr)

# Functions of traced tensors by name, for arithmetic that leaves the integers; core has no tensors, so their module sets it.
traced_arithmetic: Callable[[str, Any, Any], Any] | None = None


def _arithmetic(name: str, a: Any, b: Any) -> Any:
    """An operator of which at least one side is an Expr."""
    x, y = _as_dim(a), _as_dim(b)
    if x is not None and y is not None and name in _ON_DIMS:
        found = _ON_DIMS[name](x, y)
        if found is not None:
            return found
    for value, dim in ((a, x), (b, y)):
        # Tensors have operators of their own; other types are for Python to refuse.
        if dim is None and not isinstance(value, float | np.generic | np.ndarray):
            return NotImplemented
    if traced_arithmetic is None:
        raise SymbolError(f"{name} of {a} and {b} is no dim", hint="inside a traced function it is a scalar tensor")
    return traced_arithmetic(name, a if x is None else x, b if y is None else y)


def _typed_arithmetic(name: str, a: Dim, b: Dim) -> Dim:
    """`_arithmetic` as types see it: of dims, it gives dims."""
    found: Dim = _arithmetic(name, a, b)
    return found


def _as_dim(value: Any) -> Dim | None:
    """A dim, with NumPy's integers as Python's; None for anything else."""
    if isinstance(value, Expr):
        return value
    return int(value) if isinstance(value, int | np.integer) else None


def _checked_division(divide: Callable[[Dim, Dim], Dim]) -> Callable[[Dim, Dim], Dim]:
    def run(a: Dim, b: Dim) -> Dim:
        if b == 0:
            raise SymbolError(f"the dim {a} is divided by 0", dim=str(a))
        return divide(a, b)

    return run


def _power(a: Dim, b: Dim) -> Dim | None:
    """A polynomial where the exponent is a small int; everything else is computed at run time."""
    return product([a] * b) if isinstance(b, int) and 0 <= b <= 8 else None


def sym(name: str) -> Expr:
    """The symbol `name` as a dim.

    >>> sym("T")
    Expr('T')
    """
    # ASCII only: Python's parser would change other letters, and a printed dim must parse back to itself.
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name in _FUNCTIONS:
        raise SymbolError(f"{name!r} cannot name a dim", hint="use an ASCII identifier such as 'T'")
    return Expr(((((name, 1),), 1),))


def _atom_text(atom: Atom) -> str:
    return atom if isinstance(atom, str) else f"{atom[0]}({atom[1]},{atom[2]})"


def _terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(d, Expr):
        return d.terms
    return (((), int(d)),) if d else ()


def _make(terms: dict[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    # Higher degree first, then by text: the order must not depend on how the expression was built.
    return Expr(tuple(sorted(kept.items(), key=_term_order)))


def _term_order(item: tuple[Monomial, int]) -> tuple[int, str]:
    mono = item[0]
    return -sum(p for _, p in mono), "*".join(f"{_atom_text(a)}^{p}" for a, p in mono)


@functools.lru_cache(1 << 12)  # the same few dims recur in every layer of a model
def _add(a: Dim, b: Dim, sign: int) -> Dim:
    out = dict(_terms(a))
    for m, c in _terms(b):
        out[m] = out.get(m, 0) + sign * c
    return _make(out)


@functools.lru_cache(1 << 12)
def _mul(a: Dim, b: Dim) -> Dim:
    out: dict[Monomial, int] = {}
    for ma, ca in _terms(a):
        for mb, cb in _terms(b):
            powers: dict[Atom, int] = dict(ma)
            for atom, p in mb:
                powers[atom] = powers.get(atom, 0) + p
            mono = tuple(sorted(powers.items(), key=lambda i: _atom_text(i[0])))
            out[mono] = out.get(mono, 0) + ca * cb
    return _make(out)


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """a / b where b is one term that divides every term of a, else None.

    >>> divide_exactly(sym("T") * 6, 3), divide_exactly(sym("T"), 2)
    (Expr('2*T'), None)
    """
    if b == 0:
        return None
    divisor = _terms(b)
    if len(divisor) != 1:
        return 1 if a == b else None
    (mono_b, coef_b), out = divisor[0], {}
    for mono, coef in _terms(a):
        powers: dict[Atom, int] = dict(mono)
        for atom, p in mono_b:
            powers[atom] = powers.get(atom, 0) - p
        if coef % coef_b or min(powers.values(), default=0) < 0:
            return None
        out[tuple((k, v) for k, v in powers.items() if v)] = coef // coef_b
    return _make(out)


def _call(name: str, a: Dim, b: Dim) -> Expr:
    atom: Atom = (name, a, b)
    return Expr(((((atom, 1),), 1),))


def _floordiv(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    if b == 0:
        return 0
    exact = divide_exactly(a, b)
    return _call("floordiv", a, b) if exact is None else exact


def _mod(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    if b == 0:
        return 0
    exact = divide_exactly(a, b)
    return _call("mod", a, b) if exact is None else 0


def dim_max(a: Dim, b: Dim) -> Dim:
    """The larger of two dims; symbolic when it is not known which that is.

    >>> dim_max(2, 3), str(dim_max(sym("T"), 1))
    (3, 'max(T,1)')
    """
    if a == b:
        return a
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else _call("max", a, b)


def dim_min(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims; symbolic when it is not known which that is."""
    if a == b:
        return a
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else _call("min", a, b)


def ceildiv(a: Dim, b: int) -> Dim:
    """a / b rounded up.

    >>> ceildiv(5, 2), str(ceildiv(sym("T"), 64))
    (3, 'floordiv(T+63,64)')
    """
    return (a + (b - 1)) // b


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 for none.

    >>> product((2, 3)), str(product((sym("B"), 4)))
    (6, '4*B')
    """
    out: Dim = 1
    for d in dims:
        out = out * d
    return out


def evaluate(d: Dim, env: Mapping[str, int]) -> int:
    """The value of a dim for given symbol values.

    >>> evaluate(sym("T") * 2 + 1, {"T": 5})
    11
    """
    if isinstance(d, int):
        return d
    total = 0
    for mono, coef in d.terms:
        value = coef
        for atom, p in mono:
            value *= _evaluate_atom(atom, env) ** p
        total += value
    return total


def _evaluate_atom(atom: Atom, env: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        if atom not in env:
            raise SymbolError(f"the symbol {atom} has no value", symbol=atom)
        return env[atom]
    value: int = _FUNCTIONS[atom[0]](evaluate(atom[1], env), evaluate(atom[2], env))
    return value


# What stays a dim under integers; a divisor that turns out 0 at run time gives 0, one that is 0 already is an error.
_ON_DIMS: dict[str, Callable[[Dim, Dim], Dim | None]] = {
    "add": lambda a, b: _add(a, b, 1),
    "subtract": lambda a, b: _add(a, b, -1),
    "multiply": lambda a, b: _mul(a, b),
    "floor_divide": _checked_division(_floordiv),
    "mod": _checked_division(_mod),
    "power": _power,
}
_FUNCTIONS: dict[str, Any] = {"floordiv": _floordiv, "mod": _mod, "max": dim_max, "min": dim_min}


def substitute(d: Dim, env: Mapping[str, Dim]) -> Dim:
    """A dim with symbols replaced by dims.

    >>> str(substitute(sym("rows") // 2 + 1, {"rows": sym("B") * 4})), substitute(sym("T") * 2, {"T": 3})
    ('2*B+1', 6)
    """
    if isinstance(d, int):
        return d
    total: Dim = 0
    for mono, coef in d.terms:
        value: Dim = coef
        for atom, p in mono:
            if isinstance(atom, str):
                if atom not in env:
                    raise SymbolError(f"the symbol {atom} has no value", symbol=atom)
                factor = env[atom]
            else:
                factor = _FUNCTIONS[atom[0]](substitute(atom[1], env), substitute(atom[2], env))
            value = value * product([factor] * p)
        total = total + value
    return total


def bounds(d: Dim, maxima: Mapping[str, int]) -> tuple[int, int]:
    """The least and greatest value of a dim when each symbol is in 0…its maximum (sound, perhaps not tight).

    >>> bounds(sym("T") * 2 - 1, {"T": 8})
    (-1, 15)
    """
    if isinstance(d, int):
        return d, d
    low = high = 0
    for mono, coef in d.terms:
        lo, hi = 1, 1
        for atom, p in mono:
            for _ in range(p):
                corners = [x * y for x in (lo, hi) for y in _atom_bounds(atom, maxima)]
                lo, hi = min(corners), max(corners)
        low += min(coef * lo, coef * hi)
        high += max(coef * lo, coef * hi)
    return low, high


def _atom_bounds(atom: Atom, maxima: Mapping[str, int]) -> tuple[int, int]:
    if isinstance(atom, str):
        if atom not in maxima:
            raise SymbolError(f"the symbol {atom} has no maximum", hint=f"pass max={{'{atom}': N}} to compile")
        return 0, maxima[atom]
    name, (alo, ahi), (blo, bhi) = atom[0], bounds(atom[1], maxima), bounds(atom[2], maxima)
    if name == "max":
        return max(alo, blo), max(ahi, bhi)
    if name == "min":
        return min(alo, blo), min(ahi, bhi)
    if name == "mod":
        return min(0, blo + 1), max(0, min(ahi, bhi - 1) if alo >= 0 else bhi - 1)
    divisors = [b for b in (blo, min(bhi, -1), max(blo, 1), bhi) if b and blo <= b <= bhi]
    corners = [a // b for a in (alo, ahi) for b in divisors] + ([0] if blo <= 0 <= bhi else [])
    return min(corners), max(corners)


def upper(d: Dim, maxima: Mapping[str, int]) -> int:
    """The greatest value a dim can take, never below 0."""
    return max(0, bounds(d, maxima)[1])


def symbols(d: Dim) -> set[str]:
    """The names of the symbols in a dim."""
    found: set[str] = set()
    for mono, _ in _terms(d):
        for atom, _p in mono:
            found |= {atom} if isinstance(atom, str) else symbols(atom[1]) | symbols(atom[2])
    return found


def parse_dim(text: str) -> Dim:
    """The dim that `str` of a dim printed.

    >>> parse_dim("2*T+1") == sym("T") * 2 + 1, parse_dim("7"), parse_dim("floordiv(T+63,64)")
    (True, 7, Expr('floordiv(T+63,64)'))
    """
    if len(text) > 2000:
        raise FormatError("a dim expression of over 2,000 characters")
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise FormatError(f"{text!r} is no dim expression", hint="such as 7, T or 2*T+1") from e


def _from_ast(node: ast.expr) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return 0 - _from_ast(node.operand)
    if isinstance(node, ast.BinOp):
        a, b = _from_ast(node.left), _from_ast(node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.FloorDiv):
            return a // b
        if isinstance(node.op, ast.Mod):
            return a % b
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        fn = _FUNCTIONS.get(node.func.id)
        if fn is not None:
            result: Dim = fn(_from_ast(node.args[0]), _from_ast(node.args[1]))
            return result
    raise ValueError(ast.dump(node))


def shape_text(shape: Iterable[Dim]) -> str:
    """A shape as users read it.

    >>> shape_text((2, sym("T")))
    '(2, T)'
    """
    dims = [str(d) for d in shape]
    return "(" + ", ".join(dims) + ("," if len(dims) == 1 else "") + ")"
