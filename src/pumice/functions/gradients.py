"""Gradients of traced functions: grad and value_and_grad, and what steers them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal

from pumice.ad import CustomGradient, backward
from pumice.errors import DTypeError, InputError, PumiceError, ShapeError
from pumice.functions.build import TensorLike, as_tensor, call_site, convert, emit, fail, tracer_for
from pumice.functions.tree import leaves, map_leaves
from pumice.tensor import Tensor, active_tracer

Argnums = int | Sequence[int]


def grad(fn: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The function that gives the gradient of fn's scalar result with respect to one argument, or to several.

    The argument may be a nesting of dicts, lists and tuples; the gradient is nested in the same way, with None for leaves
    that are no floats and zeros for those that the result does not depend on. It is for use inside a traced function, or as
    one; gradients of gradients are taken by applying it again.

    >>> import pumice as pm
    >>> pm.interpret(pm.grad(lambda x: (x ** 3).sum()), [1.0, 2.0])
    array([ 3., 12.], dtype=float32)
    >>> pm.interpret(pm.grad(pm.grad(lambda x: x ** 3)), 2.0)
    array(12., dtype=float32)
    """
    both = value_and_grad(fn, argnums)

    @wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def value_and_grad(fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives fn's scalar result and its gradient, see `grad`.

    With `has_aux` fn returns the scalar and auxiliary values: ((result, aux), gradient).

    >>> import pumice as pm
    >>> def loss(params, x):
    ...     return ((x @ params["w"] + params["b"]) ** 2).mean()
    >>> shapes = {"w": pm.spec(3, 2), "b": pm.spec(2)}
    >>> g = pm.trace(pm.value_and_grad(loss), params=shapes, x=pm.spec("B", 3))
    >>> [(name, str(g.nodes[i].type)) for name, i in g.outputs]
    [('0', 'f32[]'), ('1.w', 'f32[3,2]'), ('1.b', 'f32[2]')]
    """

    @wraps(fn)
    def both(*args: Any, **kwargs: Any) -> Any:
        tracer = tracer_for(*[t for t in leaves([args, kwargs]) if isinstance(t, Tensor)])
        listed = [argnums] if isinstance(argnums, int) else list(argnums)
        where = [_place(fn, n, args, kwargs) for n in listed]
        positional, named = list(args), dict(kwargs)
        marked: list[Any] = []
        for place in where:
            held: Any = named if isinstance(place, str) else positional
            held[place] = _marked(held[place], _text(place))
            marked.append(held[place])
        result = fn(*positional, **named)
        loss, aux = _split(result) if has_aux else (result, None)
        if isinstance(loss, dict | list | tuple | None):
            raise fail(
                InputError,
                f"the function returned {type(loss).__name__}, gradients are taken of a scalar",
                hint="return the loss alone, or (loss, something) with has_aux=True",
            )
        value = as_tensor(loss)
        wrt = [t for t in leaves(marked) if _is_marked(t)]
        try:
            found = iter(backward(tracer.builder, value.id, [t.id for t in wrt], tracer.custom_gradients))
        except PumiceError as e:
            raise e if e.where else type(e)(e.message, hint=e.hint, where=call_site(), **e.fields) from None
        gradients = [map_leaves(lambda t: Tensor(tracer, next(found)) if _is_marked(t) else None, tree) for tree in marked]
        return (value, aux) if has_aux else value, gradients[0] if isinstance(argnums, int) else tuple(gradients)

    return both


def _split(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise fail(InputError, f"with has_aux the function returns (loss, something), not {type(result).__name__}")
    return result[0], result[1]


def _text(place: int | str) -> str:
    return repr(place) if isinstance(place, str) else f"number {place}"


def _place(fn: Callable[..., Any], number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Where the argument of that number was passed: a position, or a keyword."""
    if 0 <= number < len(args):
        return number
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have no signature
        names = []
    if 0 <= number < len(names) and names[number] in kwargs:
        return names[number]
    raise fail(
        InputError,
        f"argnums names argument {number}, {len(args) + len(kwargs)} were given",
        hint="arguments are counted from 0 in the order of the function's signature",
        argnum=number,
    )


def _marked(value: Any, which: str) -> Any:
    """An argument as values of its own, so that other uses of the same tensors do not count."""
    found = map_leaves(lambda leaf: _mark(as_tensor(leaf)), value)
    if not any(_is_marked(t) for t in leaves(found)):
        types = ", ".join(str(t.type) for t in leaves(found)) or "nothing"
        raise fail(
            DTypeError, f"argument {which} holds no floats to differentiate by: {types}", hint="choose others with argnums"
        )
    return found


def _mark(t: Tensor) -> Tensor:
    return emit("mark", [t], role="argument", region=len(t.tracer.builder.nodes)) if t.dtype.is_float else t


def _is_marked(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype.is_float


def stop_gradient(x: TensorLike) -> Tensor:
    """x itself, as something that does not depend on anything: no gradient flows back through it.

    >>> import pumice as pm
    >>> pm.interpret(pm.grad(lambda x: x * pm.stop_gradient(x)), 3.0)
    array(3., dtype=float32)
    """
    t = as_tensor(x)
    return t if t.dtype.is_quant else emit("stop_gradient", [t])


def checkpoint(fn: Callable[..., Any], *, save: Literal["nothing", "compute"] = "nothing") -> Callable[..., Any]:
    """fn, whose inner values are not kept for the backward pass but recomputed there, from its arguments.

    It trades time for memory. With save="compute" the results of compute-bound ops (matmuls, attention, convolutions) are kept
    and only cheap ops are recomputed. At least one argument is a tensor.

    >>> import pumice as pm
    >>> block = pm.checkpoint(lambda x: pm.tanh(pm.sin(x)))
    >>> pm.interpret(pm.grad(lambda x: block(x)), 0.0)
    array(1., dtype=float32)
    """
    if save not in ("nothing", "compute"):
        raise fail(InputError, f"save is 'nothing' or 'compute', not {save!r}")

    @wraps(fn)
    def saving(*args: Any, **kwargs: Any) -> Any:
        plain = [t for t in leaves([args, kwargs]) if isinstance(t, Tensor) and not t.dtype.is_quant]
        if not plain:
            raise fail(
                InputError, "a checkpointed function takes at least one tensor", hint="pass what it computes from as arguments"
            )
        region = len(tracer_for(*plain).builder.nodes)

        def border(role: str) -> Callable[[Any], Any]:
            def mark(t: Any) -> Any:
                if not isinstance(t, Tensor) or t.dtype.is_quant:
                    return t
                return emit("mark", [t], role=role, region=region, save=save if save == "compute" else "")

            return mark

        inside, named = map_leaves(border("begin"), (args, kwargs))
        return map_leaves(border("end"), fn(*inside, **named))

    return saving


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a custom gradient: fn returns its result and a function from the result's gradient to the arguments'.

    That function gives one gradient for each argument, nested as the argument is, or None for none; for a single argument it may
    give the gradient alone.

    >>> import pumice as pm
    >>> @pm.custom_gradient
    ... def round_through(x):
    ...     return pm.round(x), lambda dy: dy
    >>> pm.interpret(pm.grad(lambda x: (round_through(x) * 3.0).sum()), [0.2, 1.7])
    array([3., 3.], dtype=float32)
    """

    @wraps(fn)
    def wrapped(*args: Any) -> Any:
        held = tuple(map_leaves(as_tensor, a) for a in args)
        tracer = tracer_for(*leaves(held))
        result = fn(*held)
        if not isinstance(result, tuple) or len(result) != 2 or not callable(result[1]):
            raise fail(InputError, "a custom_gradient function returns its result and a function of the result's gradient")
        value, back = map_leaves(as_tensor, result[0]), result[1]
        region = len(tracer.builder.nodes)
        wanted = [t for t in leaves(held) if t.dtype.is_float]

        def call(given: Sequence[int | None]) -> list[int | None]:
            ids = iter(given)
            token = active_tracer.set(tracer)
            try:
                return _own_gradients(back(map_leaves(lambda t: _or_zeros(t, next(ids)), value)), held)
            finally:
                active_tracer.reset(token)

        tracer.custom_gradients[region] = CustomGradient(tuple(t.id for t in wanted), call)
        return map_leaves(lambda t: emit("mark", [t], role="custom", region=region), value)

    return wrapped


def _or_zeros(like: Tensor, found: int | None) -> Tensor:
    if found is not None:
        return Tensor(like.tracer, found)
    from pumice.functions.index import zeros_like

    return zeros_like(like)


def _own_gradients(given: Any, held: tuple[Any, ...]) -> list[int | None]:
    """What a user's backward function gave, one id or None for each float leaf of the arguments."""
    if not isinstance(given, tuple) or (len(held) == 1 and not isinstance(held[0], tuple)):
        given = given if isinstance(given, tuple) and len(given) == 1 else (given,)
    if len(given) != len(held):
        raise fail(
            InputError, f"the gradient function gave {len(given)} gradients for {len(held)} arguments", hint="None is none"
        )
    found: list[int | None] = []
    for gradient, argument in zip(given, held, strict=True):
        floats = [t for t in leaves(argument) if t.dtype.is_float]
        # None inside a nesting would be lost among the leaves, so both trees are walked together.
        parts = _matching_parts(argument, gradient)
        for t, part in zip(floats, parts, strict=True):
            found.append(None if part is None else _fitting(part, t))
    return found


def _matching_parts(argument: Any, gradient: Any) -> list[Any]:
    """For each float leaf of an argument, the gradient at the same path."""
    if isinstance(argument, Tensor):
        return [gradient] if argument.dtype.is_float else []
    if argument is None:
        return []
    keys = list(argument) if isinstance(argument, dict) else range(len(argument))
    return [part for k in keys for part in _matching_parts(argument[k], None if gradient is None else gradient[k])]


def _fitting(gradient: Any, argument: Tensor) -> int:
    t = as_tensor(gradient, argument.dtype, near=argument)
    if t.shape != argument.shape:
        raise fail(
            ShapeError,
            f"the gradient function gave {t.type.describe()} for an argument {argument.type.describe()}",
            hint="sum it",
        )
    return convert(t, argument.dtype).id
