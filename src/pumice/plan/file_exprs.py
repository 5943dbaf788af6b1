"""Dims in plan files: sums of products over symbols as nested JSON arrays, of bounded size and exact in doubles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pumice.core.dims import Atom, Dim, Expr, Monomial, dim_max, dim_min, sym
from pumice.errors import FormatError, PlanError

# Bounds on one expression, so that the work of a reader is proportional to the file's length.
MAX_ITEMS = 512
MAX_DEPTH = 32
# The largest integers that a JavaScript number counts exactly.
EXACT = 1 << 53

_OPERATORS = {"floordiv": "//", "mod": "%", "max": "max", "min": "min"}
_FUNCTIONS: dict[str, Callable[[Any, Any], Dim]] = {
    "//": lambda a, b: a // b if b != 0 else 0,
    "%": lambda a, b: a % b if b != 0 else 0,
    "max": dim_max,
    "min": dim_min,
}


class ExprTable:
    """The expressions of a file in the order of their first use; what refers to them is `{"e": index}`."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.exprs: list[Expr] = []
        self._index: dict[Expr, int] = {}
        self._by_id: dict[int, int] = {}

    def dim(self, d: Dim) -> Any:
        """A dim as the file has it: a number, or a reference to an expression.

        >>> table = ExprTable()
        >>> table.dim(3), table.dim(sym("T") * 2 + 1), table.rows
        (3, {'e': 0}, [['+', ['*', 2, 'T'], 1]])
        """
        if not isinstance(d, Expr):
            return int(d)
        found = self._by_id.get(id(d))
        if found is not None:
            return {"e": found}
        if d not in self._index:
            row = encode_dim(d)
            _count(row, 0, [MAX_ITEMS], lambda what: PlanError(f"the size {str(d)[:80]} {what}", rule="expression"))
            self._index[d] = len(self.rows)
            self.rows.append(row)
            self.exprs.append(d)
        # Equal expressions may be several objects, of which those here are kept.
        if self.exprs[self._index[d]] is d:
            self._by_id[id(d)] = self._index[d]
        return {"e": self._index[d]}


def encode_dim(d: Dim) -> Any:
    """A dim as JSON: an int, a symbol's name, or an operator with its operands.

    >>> t = sym("T")
    >>> encode_dim((t + 63) // 64), encode_dim(t * t - 1)
    (['//', ['+', 'T', 63], 64], ['+', ['*', 'T', 'T'], -1])
    """
    if not isinstance(d, Expr):
        return int(d)
    terms = [_encode_term(mono, coef) for mono, coef in d.terms]
    return terms[0] if len(terms) == 1 else ["+", *terms]


def _encode_term(mono: Monomial, coef: int) -> Any:
    factors = [_encode_atom(atom) for atom, power in mono for _ in range(power)]
    if coef != 1 or not factors:
        factors.insert(0, coef)
    return factors[0] if len(factors) == 1 else ["*", *factors]


def _encode_atom(atom: Atom) -> Any:
    if isinstance(atom, str):
        return atom
    return [_OPERATORS[atom[0]], encode_dim(atom[1]), encode_dim(atom[2])]


def decode_dim(row: Any, symbols: Collection[str]) -> Dim:
    """The dim that `encode_dim` wrote; anything else, and any other way to write it, is a FormatError.

    >>> str(decode_dim(["//", ["+", "T", 63], 64], {"T"}))
    'floordiv(T+63,64)'
    """
    _count(row, 0, [MAX_ITEMS], lambda what: FormatError(f"an expression {what}"))
    found = _decode(row, symbols)
    if encode_dim(found) != row:
        raise FormatError("an expression is not in its normal form")
    return found


def _count(row: Any, depth: int, left: list[int], error: Callable[[str], Exception]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise error(f"has more than {MAX_ITEMS} parts")
    if depth > MAX_DEPTH:
        raise error(f"nests deeper than {MAX_DEPTH}")
    if isinstance(row, list):
        for item in row:
            _count(item, depth + 1, left, error)


def _decode(row: Any, symbols: Collection[str]) -> Dim:
    if isinstance(row, list) and row and row[0] == "+":
        return _balanced([_decode_term(item, symbols) for item in row[1:]], lambda a, b: a + b, 0)
    return _decode_term(row, symbols)


def _decode_term(row: Any, symbols: Collection[str]) -> Dim:
    # A product of sums would multiply out to more terms than the file has bytes.
    if isinstance(row, list) and row and row[0] == "*":
        return _balanced([_decode_factor(item, symbols) for item in row[1:]], lambda a, b: a * b, 1)
    return _decode_factor(row, symbols)


def _decode_factor(row: Any, symbols: Collection[str]) -> Dim:
    if type(row) is int:
        if abs(row) >= EXACT:
            raise FormatError("an expression has a number of over 53 bits")
        return row
    if isinstance(row, str):
        if row not in symbols:
            raise FormatError(f"an expression names {row[:40]!r}, which is no symbol of the plan")
        return sym(row)
    if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and row[0] in _FUNCTIONS:
        return _FUNCTIONS[row[0]](_decode(row[1], symbols), _decode(row[2], symbols))
    raise FormatError("an expression has a part that is no number, symbol or operation")


def _balanced(items: list[Dim], join: Callable[[Dim, Dim], Dim], empty: Dim) -> Dim:
    """All items joined in pairs: one after the other would sort the growing result each time."""
    if not items:
        return empty
    while len(items) > 1:
        items = [join(*items[i : i + 2]) if i + 1 < len(items) else items[i] for i in range(0, len(items), 2)]
    return items[0]


def check_exact(d: Dim, maxima: Mapping[str, int]) -> int:
    """The greatest magnitude that evaluating a dim can pass through; refused from 2^53 on, which doubles cannot count.

    >>> check_exact(sym("T") * 4 - 1, {"T": 8})
    33
    """
    total = abs(d) if isinstance(d, int) else sum(_term_size(mono, coef, maxima) for mono, coef in d.terms)
    if total >= EXACT:
        raise PlanError(
            f"the size {str(d)[:80]} may reach {total}, a plan file counts to 2^53",
            hint="lower the maxima of symbolic dims",
            rule="expression",
        )
    return total


def _term_size(mono: Monomial, coef: int, maxima: Mapping[str, int]) -> int:
    size = abs(coef)
    for atom, power in mono:
        for _ in range(power):
            size *= _atom_size(atom, maxima)
    return size


def _atom_size(atom: Atom, maxima: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return maxima[atom]
    a, b = check_exact(atom[1], maxima), check_exact(atom[2], maxima)
    return a if atom[0] == "floordiv" else b if atom[0] == "mod" else max(a, b)
