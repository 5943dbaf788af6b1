"""Loops over a traced body: the body is traced once for each round, and rounds beyond the end leave the values as they are.

Rounds that do the same are compiled once: kernels do not depend on which values they are bound to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pumice.core import dtypes
from pumice.core.dims import Expr, shape_text
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.functions.binary import where
from pumice.functions.build import TensorLike, as_tensor, fail
from pumice.functions.tree import leaves, map_leaves
from pumice.tensor import Tensor

# A graph grows with the rounds; more than these are a mistake, or work for a scan.
MOST_ROUNDS = 4096


def fori_loop(count: TensorLike, body: Callable[[int, Any], Any], carry: Any, max: int | None = None) -> Any:
    """carry = body(i, carry) for i = 0 … count - 1; gives the last carry.

    - `count`: an int; or a dim or an integer scalar whose value the run decides, and then `max` is the most rounds there are
    - `body(i, carry)`: i is an int; it gives a carry of the same nesting, shapes and dtypes
    - `carry`: a tensor, or dicts, lists and tuples of tensors

    Beyond `max` the loop ends. It is differentiable; what the body computes in rounds beyond the count must be finite for that.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fori_loop(3, lambda i, y: y * x + i, x), 2.0)
    array(20., dtype=float32)
    >>> halved = lambda x, n: pm.fori_loop(n, lambda i, y: y / 2, x, max=10)
    >>> pm.interpret(halved, 8.0, 2)
    array(2., dtype=float32)
    """
    state = map_leaves(as_tensor, carry)
    if isinstance(count, int):
        for i in range(_rounds(count, "count")):
            state = _next(body(i, state), state)
        return state
    if max is None:
        raise fail(
            InputError,
            "a loop whose count is not known while tracing needs max, the most rounds there are",
            hint="pm.fori_loop(n, body, carry, max=16)",
        )
    limit = as_tensor(count)
    _scalar(limit, "the count", integer=True)
    for i in range(_rounds(max, "max")):
        state = _where(i < limit, _next(body(i, state), state), state)
    return state


def while_loop(condition: Callable[[Any], TensorLike], body: Callable[[Any], Any], carry: Any, max: int) -> Any:
    """carry = body(carry) while condition(carry) holds, `max` times at most; gives the last carry.

    - `condition(carry)`: a bool scalar
    - `body(carry)`: a carry of the same nesting, shapes and dtypes
    - `max`: rounds after which the loop ends, whether the condition holds or not

    All rounds run; those after the condition failed change nothing. It is differentiable, if what the body computes there
    is finite.

    >>> import pumice as pm
    >>> double = lambda x: pm.while_loop(lambda y: y < 100, lambda y: y * 2, x, max=10)
    >>> pm.interpret(double, 3.0), pm.interpret(double, 0.001)
    (array(192., dtype=float32), array(1.024, dtype=float32))
    """
    state, runs = map_leaves(as_tensor, carry), None
    for _ in range(_rounds(max, "max")):
        holds = as_tensor(condition(state))
        _scalar(holds, "the condition", integer=False)
        # A condition that failed once has ended the loop, even if it would hold again.
        runs = holds if runs is None else runs & holds
        state = _where(runs, _next(body(state), state), state)
    return state


def _rounds(count: int, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, Expr | bool) or not 0 <= count <= MOST_ROUNDS:
        raise fail(
            InputError,
            f"{name} is {count!r:.40}, it must be an int in 0…{MOST_ROUNDS}",
            hint="a recurrence over many steps is pm.scan or pm.linear_scan",
        )
    return count


def _scalar(x: Tensor, what: str, *, integer: bool) -> None:
    fits = x.dtype.is_integer if integer else x.dtype == dtypes.bool_
    if not fits:
        raise fail(
            DTypeError, f"{what} is {x.dtype}, it must be {'an integer' if integer else 'a bool'}", hint="cast or compare it"
        )
    if x.shape != ():
        raise fail(ShapeError, f"{what} has the shape {shape_text(x.shape)}, it must be a scalar", hint="reduce it first")


def _next(found: Any, state: Any) -> Any:
    """What a body gave, as tensors, if it has the form of what it was given."""
    made = map_leaves(as_tensor, found)
    before, after = leaves(state), leaves(made)
    if map_leaves(lambda t: 0, made) != map_leaves(lambda t: 0, state):
        raise fail(InputError, "the body gives another nesting of values than it takes", hint="return all that the carry holds")
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise fail(
                ShapeError,
                f"the body makes {new.type.describe()} of {old.type.describe()}; a carry keeps its shapes and dtypes",
                hint="cast or broadcast the first carry to what the body gives",
            )
    return made


def _where(condition: Any, chosen: Any, other: Any) -> Any:
    """Nested values, each from one of two nestings of the same form."""
    rest = iter(leaves(other))
    return map_leaves(lambda t: where(condition, t, next(rest)), chosen)
