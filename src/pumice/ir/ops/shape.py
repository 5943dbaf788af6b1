"""Shape ops: they move elements and compute nothing; most become views of their operand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, Shape, ceildiv, dim_max, shape_text
from pumice.core.dtypes import DType
from pumice.errors import ShapeError
from pumice.ir.gradient import Rule
from pumice.ir.gradients import shape as gradients
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Sample, Types, register
from pumice.ir.rules import given, require_kind, rng
from pumice.ir.traits import Requirement, Shapes, Traits, always, not_negative
from pumice.ir.types import TensorType
from pumice.ir.views import View, reshape_strides

PLAIN_KINDS = ("float", "int", "uint", "bool")


def plain(types: Types) -> list[TensorType]:
    """The operands that are there, none of them quantised: blocks have no elements that could be moved one by one.

    >>> [str(t) for t in plain([TensorType(dtypes.i8, (2,)), None])]
    ['i8[2]']
    """
    found = given(types)
    for t in found:
        require_kind(t, *PLAIN_KINDS)
    return found


def canonical_axis(axis: int, rank: int) -> int:
    """`axis`, which must be 0…rank-1: the front end resolves negative axes, so that equal nodes have equal attributes.

    >>> canonical_axis(1, 2)
    1
    """
    if not 0 <= axis < rank:
        raise ShapeError(
            f"axis {axis} is not among the {rank} axes",
            hint=f"0…{rank - 1} in the IR" if rank else "a scalar has none",
            axis=axis,
        )
    return axis


def canonical_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`axes`, which must be ascending, without repeats and each 0…rank-1.

    >>> canonical_axes((0, 2), 3)
    (0, 2)
    """
    for axis in axes:
        canonical_axis(axis, rank)
    if list(axes) != sorted(set(axes)):
        raise ShapeError(f"axes {axes} are not ascending or name an axis twice", axes=axes)
    return axes


def without_axis(shape: Shape, axis: int) -> Shape:
    """The dims of all other axes.

    >>> without_axis((2, 3, 4), 1)
    (2, 4)
    """
    return shape[:axis] + shape[axis + 1 :]


def static_size(value: Any, what: str) -> int:
    """`value`, which must be an int of at least 0.

    >>> static_size(3, "k")
    3
    """
    if not isinstance(value, int) or value < 0:
        raise ShapeError(f"{what} must be an integer of at least 0, not {value}")
    return value


def span(start: Dim, stop: Dim) -> Dim:
    """How many integers are in start…stop-1; `max(…,0)` appears only where a symbol could make it negative.

    >>> from pumice.core.dims import sym
    >>> t = sym("T")
    >>> span(0, t), span(t - 1, t), span(t // 2, t) == t - t // 2, span(3, t), span(0, t - 3 % t)
    (Expr('T'), 1, True, Expr('max(T-3,0)'), Expr('T-1*mod(3,T)'))
    """
    count = stop - start
    return count if _never_negative(count) else dim_max(count, 0)


def _never_negative(d: Dim) -> bool:
    """Whether a dim is known to be at least 0 for all symbols; False where that is not known."""
    if isinstance(d, int):
        return d >= 0
    for mono, coef in d.terms:
        if coef > 0 and all(_atom_never_negative(atom) for atom, _ in mono):
            continue
        # What is subtracted may have a bound: T - mod(3, T) is at least T - T.
        lone = Expr(((mono, 1),)) if coef < 0 and mono else 1
        return any(_never_negative(d + lone * -coef - bound * -coef) for bound in _upper_bounds(lone))
    return True


def _atom_never_negative(atom: Any) -> bool:
    if isinstance(atom, str):
        return True
    name, a, b = atom
    if name == "mod":  # it has the divisor's sign
        return _never_negative(b)
    both = (_never_negative(a), _never_negative(b))
    return any(both) if name == "max" else all(both)


def _upper_bounds(d: Dim) -> list[Dim]:
    """Dims that a lone min, floordiv or mod cannot exceed."""
    if not isinstance(d, Expr) or len(d.terms) != 1 or d.terms[0][1] != 1 or len(d.terms[0][0]) != 1:
        return []
    atom, power = d.terms[0][0][0]
    if isinstance(atom, str) or power != 1:
        return []
    name, a, b = atom
    if name == "min":
        return [a, b]
    if name not in ("floordiv", "mod") or not _never_negative(b):
        return []
    return ([a] if _never_negative(a) else []) + ([b] if name == "mod" else [])


def sample_array(shape: Sequence[int], dtype: DType = dtypes.f32, seed: int = 0) -> Array:
    """Data for a sample: normal floats, small 32-bit ints, the whole range of 8-bit ints, fair bools.

    >>> sample_array((2, 2), dtypes.bool_).shape, sample_array((3,), dtypes.f16).dtype
    ((2, 2), dtype('float16'))
    """
    g = rng(seed)
    if dtype.is_float:
        return g.standard_normal(shape).astype(dtype.np)
    if dtype.kind == "bool":
        return g.random(shape) < 0.5
    low, high = {"i32": (-100, 100), "u32": (0, 200), "i8": (-128, 128), "u8": (0, 256)}[dtype.name]
    return g.integers(low, high, shape).astype(dtype.np)


def sample(label: str, inputs: Sequence[Any], **attrs: Any) -> Sample:
    """A Sample with its attributes as keywords.

    >>> sample("scalar", [np.float32(1)], axis=0).attrs
    {'axis': 0}
    """
    return Sample(label, tuple(inputs), attrs)


# --- reshape, expand ---


def _checked_shape(shape: Shape) -> Shape:
    for d in shape:
        if isinstance(d, int) and d < 0:
            raise ShapeError(f"the shape {shape_text(shape)} has a negative dim", hint="the IR has no -1: resolve it first")
    return shape


def _infer_reshape(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    out = TensorType(x.dtype, _checked_shape(attrs["shape"]))
    if x.numel != out.numel:
        raise ShapeError(
            f"{shape_text(x.shape)} has {x.numel} elements, {shape_text(out.shape)} has {out.numel}",
            hint="the number of elements must stay the same, as an expression where dims are symbolic",
            got=x.numel,
            wanted=out.numel,
        )
    return out


def _reshape(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.reshape(arrays[0], attrs["shape"])


def _reshape_samples() -> Iterator[Sample]:
    yield sample("merge", [sample_array((3, 5, 7))], shape=(15, 7))
    yield sample("split", [sample_array((6, 35), dtypes.i32)], shape=(2, 3, 5, 7))
    yield sample("regroup", [sample_array((6, 10), dtypes.f16)], shape=(4, 15))
    yield sample("add ones", [sample_array((9,), dtypes.bf16)], shape=(1, 9, 1))
    yield sample("to scalar", [sample_array((1, 1))], shape=())
    yield sample("from scalar", [sample_array((), dtypes.u32)], shape=(1,))
    yield sample("bytes", [sample_array((5, 7), dtypes.u8)], shape=(7, 5))
    yield sample("bools", [sample_array((3, 11), dtypes.bool_)], shape=(33,))
    yield sample("empty", [sample_array((0, 4))], shape=(2, 0, 7))


def _infer_expand(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    shape = _checked_shape(attrs["shape"])
    offset = len(shape) - x.rank
    fits = offset >= 0 and all(d == 1 or d == want for d, want in zip(x.shape, shape[offset:], strict=True))
    if not fits:
        raise ShapeError(
            f"{shape_text(x.shape)} does not expand to {shape_text(shape)}",
            hint="counted from the last axis each dim must be 1 or already the wanted one; new axes come in front",
        )
    return TensorType(x.dtype, shape)


def _expand(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.broadcast_to(arrays[0], attrs["shape"])


def _expand_samples() -> Iterator[Sample]:
    yield sample("last axis", [sample_array((5, 1))], shape=(5, 7))
    yield sample("first axis", [sample_array((1, 9), dtypes.i32)], shape=(4, 9))
    yield sample("new axes", [sample_array((3,), dtypes.bf16)], shape=(2, 5, 3))
    yield sample("scalar", [sample_array((), dtypes.f16)], shape=(3, 11))
    yield sample("two axes", [sample_array((1, 6, 1), dtypes.i8)], shape=(5, 6, 3))
    yield sample("same", [sample_array((2, 3), dtypes.bool_)], shape=(2, 3))
    yield sample("to empty", [sample_array((1, 4))], shape=(0, 4))


# --- transpose, flip ---


def _infer_transpose(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    perm: tuple[int, ...] = attrs["perm"]
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"perm {perm} does not name each of the {x.rank} axes once", perm=perm)
    return TensorType(x.dtype, tuple(x.shape[p] for p in perm))


def _transpose(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.transpose(arrays[0], attrs["perm"])


def _transpose_samples() -> Iterator[Sample]:
    yield sample("matrix", [sample_array((33, 65))], perm=(1, 0))
    yield sample("heads", [sample_array((2, 5, 3, 7), dtypes.f16)], perm=(0, 2, 1, 3))
    yield sample("rotate", [sample_array((3, 4, 5), dtypes.i32)], perm=(2, 0, 1))
    yield sample("bytes", [sample_array((7, 13), dtypes.u8)], perm=(1, 0))
    yield sample("bf16 column", [sample_array((9, 1), dtypes.bf16)], perm=(1, 0))
    yield sample("scalar", [sample_array(())], perm=())
    yield sample("empty", [sample_array((0, 3), dtypes.bool_)], perm=(1, 0))


def _infer_flip(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    canonical_axes(attrs["axes"], x.rank)
    return x


def _flip(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return np.flip(arrays[0], attrs["axes"])


def _flip_samples() -> Iterator[Sample]:
    yield sample("vector", [sample_array((67,))], axes=(0,))
    yield sample("middle", [sample_array((3, 5, 4), dtypes.i32)], axes=(1,))
    yield sample("all", [sample_array((3, 5, 4), dtypes.f16)], axes=(0, 1, 2))
    yield sample("bytes", [sample_array((2, 9), dtypes.i8)], axes=(1,))
    yield sample("bf16", [sample_array((4, 3), dtypes.bf16)], axes=(0,))
    yield sample("size one", [sample_array((1,), dtypes.bool_)], axes=(0,))
    yield sample("none", [sample_array((2, 3), dtypes.u32)], axes=())
    yield sample("empty", [sample_array((0, 3))], axes=(0, 1))


# --- slice ---


def _taken(dim: Dim, start: Dim, stop: Dim, step: int, axis: int) -> Dim:
    """How many elements of an axis a slice takes."""
    low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
    in_order = not (isinstance(low, int) and isinstance(high, int)) or low <= high
    in_range = not isinstance(low, int) or low >= 0
    in_range &= not (isinstance(high, int) and isinstance(dim, int)) or high <= dim
    if step == 0 or not in_order or not in_range:
        raise ShapeError(
            f"slice {start}:{stop}:{step} of axis {axis} is not within 0…{dim}",
            hint="starts and stops are resolved and clamped before they enter the IR; the step is not 0",
            axis=axis,
        )
    return ceildiv(span(low, high), abs(step))


def _infer_slice(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
    if not len(starts) == len(stops) == len(steps) == x.rank:
        raise ShapeError(
            f"needs a start, stop and step for each of {x.rank} axes; {len(starts)}, {len(stops)}, {len(steps)} given"
        )
    rows = enumerate(zip(x.shape, starts, stops, steps, strict=True))
    return TensorType(x.dtype, tuple(_taken(*row, axis) for axis, row in rows))


def _slice(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    rows = zip(attrs["starts"], attrs["stops"], attrs["steps"], out.static_shape, strict=True)
    # A stop of -1 means "down to the first element"; Python would read it as the last one.
    index = tuple(slice(a, None if b < 0 else b, step) if count else slice(0, 0) for a, b, step, count in rows)
    result: Array = arrays[0][index]
    return result


def _slice_sample(label: str, x: Array, *index: slice) -> Sample:
    bounds = [s.indices(n) for s, n in zip(index, x.shape, strict=True)]
    starts, stops, steps = zip(*bounds, strict=True)
    # Slices that take nothing are written start == stop.
    stops = tuple(a if len(range(a, b, c)) == 0 else b for a, b, c in bounds)
    return sample(label, [x], starts=starts, stops=stops, steps=steps)


def _slice_samples() -> Iterator[Sample]:
    every = slice(None)
    yield _slice_sample("narrow", sample_array((7, 13)), every, slice(3, 10))
    yield _slice_sample("rows", sample_array((9, 5), dtypes.i32), slice(2, 7), every)
    yield _slice_sample("step 2", sample_array((67,)), slice(1, None, 2))
    yield _slice_sample("step 3, ragged", sample_array((4, 11), dtypes.f16), slice(None, None, 2), slice(0, 8, 3))
    yield _slice_sample("backwards", sample_array((10,), dtypes.bf16), slice(None, None, -1))
    yield _slice_sample("backwards by 3", sample_array((5, 17)), slice(4, 0, -2), slice(15, None, -3))
    yield _slice_sample("one element", sample_array((3, 5, 7), dtypes.u32), slice(1, 2), slice(4, 5), slice(6, 7))
    yield _slice_sample("odd byte offset", sample_array((3, 9), dtypes.u8), slice(1, 3), slice(1, 8))
    yield _slice_sample("bools", sample_array((13,), dtypes.bool_), slice(1, 12, 5))
    yield _slice_sample("nothing", sample_array((4, 6)), slice(2, 2), every)
    yield _slice_sample("nothing backwards", sample_array((4,), dtypes.i8), slice(0, 3, -1))
    yield _slice_sample("of empty, backwards", sample_array((0, 3)), slice(None, None, -1), every)


# --- the views that they make of their operand ---


def _view_reshape(base: View, attrs: Attrs, shape: Shape) -> View | None:
    strides = reshape_strides(base.shape, base.strides, shape)
    return None if strides is None else View(base.leaf, shape, strides, base.offset)


def _view_expand(base: View, attrs: Attrs, shape: Shape) -> View:
    pad = len(shape) - len(base.shape)
    kept = [d >= pad and base.shape[d - pad] == shape[d] and shape[d] != 1 for d in range(len(shape))]
    return View(base.leaf, shape, tuple(base.strides[d - pad] if k else 0 for d, k in enumerate(kept)), base.offset)


def _view_transpose(base: View, attrs: Attrs, shape: Shape) -> View:
    return View(base.leaf, shape, tuple(base.strides[p] for p in attrs["perm"]), base.offset)


def _view_flip(base: View, attrs: Attrs, shape: Shape) -> View:
    offset, strides = base.offset, list(base.strides)
    for axis in attrs["axes"]:
        offset = offset + (base.shape[axis] - 1) * base.strides[axis]
        strides[axis] = strides[axis] * -1
    return View(base.leaf, shape, tuple(strides), offset)


def _view_slice(base: View, attrs: Attrs, shape: Shape) -> View:
    offset = base.offset
    for start, stride in zip(attrs["starts"], base.strides, strict=True):
        offset = offset + start * stride
    return View(base.leaf, shape, tuple(s * k for s, k in zip(base.strides, attrs["steps"], strict=True)), offset)


def _expand_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    return not_negative("expand makes axis", out.shape, maxima)


def _slice_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    found = []
    axes = zip(attrs["starts"], attrs["stops"], attrs["steps"], of["x"], out.shape, strict=True)
    for axis, (start, stop, step, size, taken) in enumerate(axes):
        first, end = (start, stop) if step > 0 else (stop + 1, start + 1)
        found.append(Requirement(0, first, taken, f"slice takes elements from {first} of axis {axis}"))
        found.append(Requirement(end, size, taken, f"slice takes elements up to {end - 1} of axis {axis}"))
    return [r for r in found if r.small != r.large]


def _takes_all(attrs: Attrs) -> bool:
    return all(s == 0 for s in attrs["starts"]) and all(k == 1 for k in attrs["steps"])


def _second(first: Attrs, second: Attrs) -> Attrs:
    """The shape of the second is what counts."""
    return second


def shape_op(
    name: str,
    summary: str,
    infer: Callable[[Types, Attrs], TensorType],
    reference: Callable[[Sequence[Any], Attrs, TensorType], Array],
    samples: Callable[[], Iterator[Sample]],
    attrs: dict[str, Any],
    rules: str,
    gradient: Rule,
    traits: Traits,
    *,
    operands: tuple[str, ...] = ("x",),
    cost: Literal["free", "memory"] = "free",
) -> None:
    """Register an op of this family."""
    register(
        OpSpec(
            name,
            "shape",
            summary,
            operands,
            infer,
            reference,
            Pull(name),
            samples,
            attrs,
            cost=cost,
            rules=rules,
            gradient=gradient,
            traits=traits,
        )
    )


shape_op(
    "reshape",
    "the same elements in row-major order under another shape",
    _infer_reshape,
    _reshape,
    _reshape_samples,
    {"shape": REQUIRED},
    "The shape is fully resolved (no -1); element counts must be equal as canonical expressions.",
    gradients.reshape,
    Traits(view=_view_reshape, cheap=True, unchanged=always, merged=_second),
)
shape_op(
    "expand",
    "repeat dims of size 1 and add axes in front, as broadcasting does",
    _infer_expand,
    _expand,
    _expand_samples,
    {"shape": REQUIRED},
    "A dim of 1 expands to anything, 0 and symbols included; other dims must already be the wanted ones.",
    gradients.expand,
    Traits(view=_view_expand, cheap=True, unchanged=always, merged=_second, requires=_expand_requires),
)
shape_op(
    "transpose",
    "reorder the axes: axis i of the result is axis perm[i] of x",
    _infer_transpose,
    _transpose,
    _transpose_samples,
    {"perm": REQUIRED},
    "perm names every axis once.",
    gradients.transpose,
    Traits(
        view=_view_transpose,
        cheap=True,
        unchanged=lambda attrs: attrs["perm"] == tuple(range(len(attrs["perm"]))),
        merged=lambda first, second: {"perm": tuple(first["perm"][p] for p in second["perm"])},
    ),
)
shape_op(
    "flip",
    "reverse the order of elements along axes",
    _infer_flip,
    _flip,
    _flip_samples,
    {"axes": REQUIRED},
    "axes are ascending and non-negative; none gives x.",
    gradients.flip,
    Traits(view=_view_flip, cheap=True, unchanged=lambda attrs: not attrs["axes"]),
)
shape_op(
    "slice",
    "every step-th element between start and stop, per axis",
    _infer_slice,
    _slice,
    _slice_samples,
    {"starts": REQUIRED, "stops": REQUIRED, "steps": REQUIRED},
    "Bounds are resolved, never negative from the end. A negative step takes start first and goes down to above stop, which may"
    " be -1. A symbolic range that turns out reversed takes nothing (NumPy).",
    gradients.slice_,
    Traits(view=_view_slice, cheap=True, unchanged=_takes_all, leaves_out=True, requires=_slice_requires),
)
