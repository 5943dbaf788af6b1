"""Gradients of scans. All of them are linear scans in the other direction, so nothing is divided and no zero is special."""

from __future__ import annotations

from typing import Any

from pumice.ir.gradient import Backward, Gradients, Val, in_f32


def _how(c: Backward, **changes: bool) -> dict[str, Any]:
    """The attributes of a scan along the same axis."""
    return {name: changes.get(name, c.attrs[name]) for name in ("axis", "exclusive", "reverse")}


def _of_terms(c: Backward, factors: Val) -> Val:
    """The gradient by each term b of y = a · (y before) + b, given that of y and the factors a."""
    back = _how(c, reverse=not c.attrs["reverse"], exclusive=True)
    if c.attrs["exclusive"]:
        return factors.op("linear_scan", c.dy, None, **back)
    return c.dy + factors.op("linear_scan", factors * c.dy, None, **back)


@in_f32
def linear(c: Backward) -> Gradients:
    a, b = c.operands["a"], c.operands["b"]
    initial = c.operands.get("initial")
    of_b = _of_terms(c, a)

    def of_a() -> Val:
        return of_b * a.op("linear_scan", b, initial, **_how(c, exclusive=True))

    def of_initial() -> Val:
        assert initial is not None
        # What reaches the value before the first: through all of a row.
        back = _how(c, reverse=not c.attrs["reverse"], exclusive=False)
        total = a.op("linear_scan", c.dy if c.attrs["exclusive"] else a * c.dy, None, **back)
        axis = c.attrs["axis"]
        size = a.shape[axis]
        if size == 0:
            return initial.full(0.0)
        first = total.slice_axis(axis, size - 1, size) if c.attrs["reverse"] else total.slice_axis(axis, 0, 1)
        return first.reshape(initial.shape)

    return c.each(a=of_a, b=lambda: of_b, initial=of_initial)


@in_f32
def product(c: Backward) -> Gradients:
    """y = x · (y before): linear in each element, with the product of those before it."""
    x = c.operands["x"]
    return {"x": _of_terms(c, x) * x.op("cumprod", **_how(c, exclusive=True))}


def extreme(op: str) -> Any:
    """To the latest of equal elements, and to the first NaN."""
    reaches = {"cummax": "ge", "cummin": "le"}[op]

    @in_f32
    def rule(c: Backward) -> Gradients:
        x = c.operands["x"]
        taken = x.op(reaches, x.op(op, **_how(c, exclusive=True))).op("logical_or", x.op("isnan"))
        # From one element that is the extreme to the next, all gradients belong to it.
        same = taken.choose(0.0, x.full(1.0))
        return {"x": taken.choose(_of_terms(c, same), 0.0)}

    return rule


@in_f32
def log_sum_exp(c: Backward) -> Gradients:
    """Each sum is a weighted mean of the one before and its element, in logarithms: the weights never overflow."""
    x = c.operands["x"]
    now, before = (x.op("logcumsumexp", **_how(c, exclusive=e)) for e in (False, True))
    nothing = now.op("isinf")

    def share(part: Val) -> Val:
        return nothing.choose(part.ge(now).cast(x.dtype), (part - now).op("exp"))

    first = before.op("isinf")
    kept = first.both(before.lt(0.0)).choose(0.0, share(before))
    return {"x": share(x) * _of_terms(c, kept)}
