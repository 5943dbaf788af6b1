"""A calculator: expressions of numbers, parsed by Python's grammar and evaluated node by node, with bounds on size and time."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from pumice.assist.tool import ToolError

Number: TypeAlias = int | float

_MOST_CHARACTERS = 1000
# Numbers of more bits take long to multiply and to print.
_MOST_BITS = 4096

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{
        name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan")
    },
    **{name: getattr(math, name) for name in ("atan2", "hypot", "floor", "ceil", "gcd", "degrees", "radians")},
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
    "sum": lambda *numbers: sum(numbers),
}
_HINT = "numbers, + - * / // % **, parentheses, pi, e, tau and " + " ".join(sorted(_FUNCTIONS))


def calculate(expression: str) -> Number:
    """The value of an expression of numbers.

    >>> calculate("2 * (3 + 4) ** 2"), calculate("sqrt(2)"), calculate("7 // 2")
    (98, 1.4142135623730951, 3)
    >>> calculate("__import__('os')")
    Traceback (most recent call last):
    pumice.assist.tool.ToolError: [tool] the calculator does not know __import__
      hint: numbers, + - * / // % **, parentheses, pi, e, tau and abs acos asin atan ...
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ToolError(f"the expression has {len(expression)} characters", hint=f"at most {_MOST_CHARACTERS}")
    try:
        # Other signs for the same, as people and models write them.
        parsed = ast.parse(
            expression.strip().replace("×", "*").replace("÷", "/").replace("^", "**").replace("−", "-"), mode="eval"
        )
        return _value(parsed.body)
    except (SyntaxError, ValueError, TypeError, OverflowError, ZeroDivisionError, RecursionError, MemoryError) as e:
        raise ToolError(f"{expression!r:.80} has no value: {e}", hint=_HINT) from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int(value) | float(value)) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(a) for a in args)))
        case ast.Call(func=ast.Name(id=name)) | ast.Name(id=name):
            raise ToolError(f"the calculator does not know {name:.40}", hint=_HINT)
    raise ToolError(f"the calculator does not know {ast.unparse(node):.40}", hint=_HINT)


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and base.bit_length() * exponent > _MOST_BITS:
        raise ToolError(f"{base:.4g} ** {exponent:.4g} is too large", hint=f"results have at most {_MOST_BITS} bits")
    found = base**exponent
    if isinstance(found, complex):
        raise ToolError(f"{base} ** {exponent} is not a real number", hint=_HINT)
    return _bounded(found)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ToolError("a number is too large", hint=f"at most {_MOST_BITS} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError("a number is not finite", hint=_HINT)
    return value
