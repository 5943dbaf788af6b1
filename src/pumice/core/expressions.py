"""Expressions of kernel packs: sizes, conditions and parameters as text, read without running any of it.

The language: integers, floats and quoted words; names (`dim`, `attr.eps`, `caps.f16`); + - * // %; min, max and ceildiv of two;
== != < <= > >=; and, or, not. Dims may be symbolic: arithmetic of them is a dim, and a comparison that is not the same at all
sizes is unknown (None), which `and` and `or` pass on as far as it matters.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from pumice.core.dims import Dim, Expr, bounds, dim_max, dim_min
from pumice.core.records import dataclass
from pumice.errors import InputError

MAX_LENGTH = 256
MAX_DEPTH = 16
# A size is a u32 at most; what is larger is a mistake, and powers of such numbers would take all memory.
MAX_NUMBER = 2**53

# Like `1or 2`. Python reads it, with a warning on stderr, as it does unknown escapes.
_GLUED = re.compile(r"(?<!\w)[0-9.]++(?:[eE][-+]?[0-9]++)?+[A-Za-z_]")

# None: not the same at all sizes.
Value = Dim | float | bool | str | None


class ExpressionError(InputError):
    """An expression that is not one of the language, or that has no value for these names."""

    code = "expression"


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    >>> e = parse("ceildiv(rows, 4) * dim")
    >>> e.names, e.evaluate({"rows": 10, "dim": 64})
    (('dim', 'rows'), 192)
    >>> from pumice.core.dims import sym
    >>> str(e.evaluate({"rows": sym("T"), "dim": 64})), parse("rows <= 8").evaluate({"rows": sym("T")}, {"T": 32})
    ('64*floordiv(T+3,4)', None)
    """

    text: str
    names: tuple[str, ...]
    _tree: ast.expr = field(compare=False, repr=False)

    def evaluate(self, env: Mapping[str, Value], maxima: Mapping[str, int] | None = None) -> Value:
        """The value for these names; `maxima` of symbols decide comparisons of dims."""
        try:
            found = _evaluate(self._tree, env, maxima or {})
        except (ArithmeticError, TypeError, ValueError, InputError) as e:
            why = e.message if isinstance(e, InputError) else str(e)
            raise ExpressionError(f"{self.text!r} has no value: {why}", expression=self.text) from None
        if isinstance(found, float) and not math.isfinite(found):
            raise ExpressionError(f"{self.text!r} is {found}", expression=self.text)
        return found

    def size(self, env: Mapping[str, Value]) -> Dim:
        """The value as a dim; anything else is an error."""
        found = self.evaluate(env)
        if isinstance(found, bool) or not isinstance(found, int | Expr):
            raise ExpressionError(f"{self.text!r} is {found!r}, and must be a whole number", expression=self.text)
        return found


def parse(text: str) -> Expression:
    """The expression in a text; ExpressionError says what is no part of the language.

    >>> parse("__import__('os')")
    Traceback (most recent call last):
        ...
    pumice.core.expressions.ExpressionError: [expression] "__import__('os')": there is no function __import__
      hint: docs/packs.md has the language of expressions
    """
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise _refused(str(text)[:40] + "…", f"longer than {MAX_LENGTH} characters, or no text")
    if not (text.isascii() and text.isprintable()) or "\\" in text or _GLUED.search(text):
        raise _refused(text, "only printable ASCII without backslashes, and numbers apart from words, is allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text, "it cannot be read") from None
    names: set[str] = set()
    _check(text, tree, names, 0)
    return Expression(text, tuple(sorted(names)), tree)


def _refused(text: str, why: str) -> ExpressionError:
    return ExpressionError(f"{text!r}: {why}", hint="docs/packs.md has the language of expressions", expression=text)


def _check(text: str, node: ast.expr, names: set[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _refused(text, f"it nests deeper than {MAX_DEPTH}")
    inner: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | str()):
            pass
        case ast.Constant(value=int() | float() as number):
            if not (math.isfinite(number) and abs(number) <= MAX_NUMBER):
                raise _refused(text, f"{number} is too large")
        case ast.Name(id=name):
            names.add(name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            names.add(f"{owner}.{name}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            inner = [operand]
        case ast.BoolOp(values=values):
            inner = values
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=[a, b], keywords=[]) if name in _FUNCTIONS:
            inner = [a, b]
        case ast.Call(func=ast.Name(id=name)):
            wrong = f"{name} takes two arguments" if name in _FUNCTIONS else f"there is no function {name}"
            raise _refused(text, wrong)
        case _:
            raise _refused(text, f"{type(node).__name__} is no part of the language")
    for child in inner:
        _check(text, child, names, depth + 1)


def _evaluate(node: ast.expr, env: Mapping[str, Value], maxima: Mapping[str, int]) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return constant
        case ast.Name(id=name):
            return _named(name, env)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return _named(f"{owner}.{name}", env)
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_ARITHMETIC[type(op)](*_numbers(left, right, env, maxima)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _bounded(-_number(_evaluate(operand, env, maxima)))
        case ast.UnaryOp(operand=operand):
            truth = _truth(_evaluate(operand, env, maxima))
            return None if truth is None else not truth
        case ast.BoolOp(op=op, values=values):
            ends = isinstance(op, ast.Or)  # the value that decides the whole
            truths = [_truth(_evaluate(v, env, maxima)) for v in values]
            return ends if ends in truths else None if None in truths else not ends
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compare(type(op), _evaluate(left, env, maxima), _evaluate(right, env, maxima), maxima)
        case ast.Call(func=ast.Name(id=name), args=[a, b]):
            return _bounded(_FUNCTIONS[name](*_numbers(a, b, env, maxima)))
    raise TypeError(f"{type(node).__name__} has no value")


def _named(name: str, env: Mapping[str, Value]) -> Value:
    if name not in env:
        raise ValueError(f"there is no {name} here" + (", only " + " ".join(sorted(env)) if env else ""))
    return env[name]


def _number(value: Value) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Expr):
        raise TypeError(f"{value!r} is no number")
    return value


def _numbers(a: ast.expr, b: ast.expr, env: Mapping[str, Value], maxima: Mapping[str, int]) -> tuple[Any, Any]:
    x, y = _number(_evaluate(a, env, maxima)), _number(_evaluate(b, env, maxima))
    if any(isinstance(v, Expr) for v in (x, y)) and any(isinstance(v, float) for v in (x, y)):
        raise TypeError("a symbolic dim goes with whole numbers only")
    return x, y


def _bounded(value: Value) -> Value:
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ValueError(f"{value} is too large")
    return value


def _truth(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither true nor false")


def _compare(op: type[ast.cmpop], a: Value, b: Value, maxima: Mapping[str, int]) -> bool | None:
    if a is None or b is None:
        return None
    if isinstance(a, str) or isinstance(b, str) or isinstance(a, bool) or isinstance(b, bool):
        if op not in (ast.Eq, ast.NotEq):
            raise TypeError(f"{a!r} and {b!r} have no order")
        return (type(a) is type(b) and a == b) is (op is ast.Eq)
    x, y = _number(a), _number(b)
    if not (isinstance(x, Expr) or isinstance(y, Expr)):
        return bool(_COMPARISONS[op](x, y))
    if isinstance(x, float) or isinstance(y, float):
        raise TypeError("a symbolic dim goes with whole numbers only")
    # The difference, which may lie anywhere between its bounds.
    low, high = bounds(x - y, maxima)
    holds = {_COMPARISONS[op](v, 0) for v in {low, high, *([0] if low <= 0 <= high else [])}}
    exact = low == high or op in (ast.Lt, ast.LtE, ast.Gt, ast.GtE) or not low <= 0 <= high
    return holds.pop() if len(holds) == 1 and exact else None


def _ceildiv(a: Any, b: Any) -> Any:
    return (a + (b - 1)) // b


def _smaller(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, float) or isinstance(b, float) else dim_min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, float) or isinstance(b, float) else dim_max(a, b)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": _smaller, "max": _larger, "ceildiv": _ceildiv}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
