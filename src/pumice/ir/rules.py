"""Shape and dtype rules that many ops share; each refuses by stating the rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pumice.core.dims import Dim, Shape, shape_text
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, ShapeError
from pumice.ir.registry import Types
from pumice.ir.types import TensorType


def given(types: Types) -> list[TensorType]:
    """The operands that are there."""
    return [t for t in types if t is not None]


def broadcast(*shapes: Shape) -> Shape:
    """NumPy's broadcast of shapes; a symbol fits itself and 1.

    >>> broadcast((2, 1), (3,))
    (2, 3)
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for axis in range(rank):
        dim: Dim = 1
        for s in shapes:
            d = s[axis - rank + len(s)] if axis >= rank - len(s) else 1
            if d == 1 or d == dim:
                continue
            if dim != 1:
                raise ShapeError(
                    f"shapes {' and '.join(map(shape_text, shapes))} do not broadcast: at axis {axis - rank} {dim} is not {d}",
                    hint="dims must be equal, or 1; insert a dim with reshape or expand_dims",
                )
            dim = d
        out.append(dim)
    return tuple(out)


def same_dtype(types: Types) -> DType:
    """The one dtype that all operands have."""
    found = given(types)
    for t in found[1:]:
        if t.dtype != found[0].dtype:
            raise DTypeError(f"dtypes {found[0].dtype} and {t.dtype} differ", hint="cast one of them with .astype(...)")
    return found[0].dtype


def require_kind(t: TensorType, *kinds: str) -> None:
    """Refuses an operand whose dtype kind (float, int, uint, bool, quant) is not among `kinds`."""
    if t.dtype.kind not in kinds:
        raise DTypeError(f"takes {' or '.join(kinds)}, not {t.dtype}", hint="cast with .astype(...)", dtype=t.dtype.name)


def axis_index(axis: int, rank: int) -> int:
    """A possibly negative axis as 0…rank-1.

    >>> axis_index(-1, 3)
    2
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}", hint=f"it must be in {-rank}…{rank - 1}")
    return axis % rank


def axes_tuple(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes as a sorted tuple without repeats; None means all.

    >>> axes_tuple((-1, 0), 3), axes_tuple(None, 2)
    ((0, 2), (0, 1))
    """
    if axes is None:
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else list(axes)
    found = sorted(axis_index(a, rank) for a in listed)
    if len(set(found)) != len(found):
        raise ShapeError(f"axes {tuple(listed)} name an axis twice")
    return tuple(found)


def same_shape(a: Shape, b: Shape, what: str) -> None:
    """Refuses two shapes that differ; `what` names them."""
    if a != b:
        raise ShapeError(f"{what}: shapes {shape_text(a)} and {shape_text(b)} differ")


def rng(seed: int = 0) -> np.random.Generator:
    """The generator that samples draw from: fixed, so that failures repeat."""
    return np.random.default_rng(seed)
