"""Selection: places in a sorted vector, extremes by index, and the nearest of all points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, shape_text
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradients import select as gradients
from pumice.ir.ops.reduce import NUMBERS
from pumice.ir.ops.scatter import WRITE_RULE, infer_scatter
from pumice.ir.ops.shape import plain, sample, sample_array, static_size
from pumice.ir.precision import ULP, Evaluation, growth
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import require_kind, rng, same_dtype
from pumice.ir.traits import Requirement, Shapes, Sizes, Traits
from pumice.ir.types import TensorType

# --- searchsorted ---


def _infer_search(types: Types, attrs: Attrs) -> TensorType:
    ordered, x = plain(types)
    require_kind(ordered, *NUMBERS)
    same_dtype(types)
    if ordered.rank != 1:
        raise ShapeError(f"searches one sorted vector, not {shape_text(ordered.shape)}", shape=ordered.shape)
    return TensorType(dtypes.i32, x.shape)


def _search(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    ordered, x = arrays
    return np.asarray(np.searchsorted(ordered, x, "right" if attrs["right"] else "left"), np.int32)


def _search_samples() -> Iterator[Sample]:
    def case(label: str, n: int, shape: tuple[int, ...], right: bool, dtype: Any = dtypes.f32) -> Sample:
        return sample(label, [np.sort(sample_array((n,), dtype)), sample_array(shape, dtype, 1)], right=right)

    yield case("left", 9, (7,), False)
    yield case("right", 100, (5, 13), True)
    yield case("ties", 70, (3, 50), False, dtypes.i8)
    yield case("ties, right", 70, (150,), True, dtypes.u8)
    yield case("i32", 33, (9,), False, dtypes.i32)
    yield case("f16", 65, (9,), True, dtypes.f16)
    yield case("one", 1, (), False)
    yield case("in nothing", 0, (4,), True)
    yield case("nothing", 4, (0, 3), True)
    odd = np.array([-np.inf, -1, -0.0, 0.0, 2, np.inf, np.nan], np.float32)
    yield sample("NaN, infinities, signed zeros", [odd, odd], right=False)
    yield sample("NaN, infinities, signed zeros, right", [odd, odd], right=True)


# --- the extreme of what comes to a place ---


def _infer_extreme(types: Types, attrs: Attrs) -> TensorType:
    found = infer_scatter(types, attrs)
    require_kind(found, *NUMBERS)
    return found


def _extreme(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, indices, updates = arrays
    axis, size = attrs["axis"], x.shape[attrs["axis"]]
    places = indices.astype(np.int64)
    places = np.where(places < 0, places + size, places)
    inside = (places >= 0) & (places < size)
    result = np.moveaxis(np.array(x), axis, 0)
    rows = np.moveaxis(updates, axis, 0)[inside]
    with np.errstate(all="ignore"):
        (np.maximum if attrs["largest"] else np.minimum).at(result, places[inside], rows)
    return np.moveaxis(result, 0, axis)


def _extreme_samples() -> Iterator[Sample]:
    def case(label: str, shape: tuple[int, ...], count: int, axis: int, dtype: Any = dtypes.f32, **ids: Any) -> Sample:
        low, high = ids.get("low", 0), ids.get("high", shape[axis])
        places = rng(count).integers(low, high, count).astype(np.int32)
        updates = sample_array((*shape[:axis], count, *shape[axis + 1 :]), dtype, 1)
        return sample(label, [sample_array(shape, dtype), places, updates], axis=axis, largest=ids.get("largest", True))

    yield case("rows", (7, 5), 9, 0)
    yield case("columns, least", (4, 9), 5, 1, largest=False)
    yield case("many of one vector", (5,), 257, 0)
    yield case("negative and out of range", (4, 3), 40, 0, low=-9, high=9)
    yield case("i32, least", (3, 7), 20, 0, dtypes.i32, largest=False)
    yield case("u8", (2, 9), 30, 1, dtypes.u8)
    yield case("f16", (5, 3), 70, 0, dtypes.f16)
    yield case("no updates", (4, 3), 0, 0)
    odd = np.array([[1, np.nan], [np.inf, -np.inf], [-0.0, 2]], np.float32)
    yield sample("NaN, infinities", [odd, np.array([0, 0, 2], np.int32), odd], axis=0, largest=True)


# --- nearest points ---


def _candidates(n: Dim, attrs: Attrs) -> Dim:
    return n if attrs["include_self"] else n - 1


def _infer_nearest(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = plain(types)
    if x.dtype != dtypes.f32 or x.rank != 2:
        raise DTypeError(
            f"takes points as f32[n, d], not {x}", hint="cast with .astype('f32'), one point a row", dtype=x.dtype.name
        )
    k, most = static_size(attrs["k"], "k"), _candidates(x.shape[0], attrs)
    if not isinstance(x.shape[1], int):
        raise ShapeError(f"takes points of a static number of coordinates, not {x}")
    if k < 1 or (isinstance(most, int) and k > most):
        raise ShapeError(f"k = {k} is not in 1…{most}, the points that each has to choose from", k=k, points=x.shape[0])
    return TensorType(dtypes.f32, (x.shape[0], k)), TensorType(dtypes.i32, (x.shape[0], k))


def _nearest(arrays: Sequence[Any], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    (x,), k = arrays, attrs["k"]
    order, distances = np.empty((len(x), k), np.int32), np.empty((len(x), k), x.dtype)
    # Blocks of rows bound the memory of the differences.
    rows = max(1, (1 << 22) // max(1, x.size))
    with np.errstate(all="ignore"):
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            squares = np.square(x[part, None, :] - x[None]).sum(-1)
            squares = np.where(np.isnan(squares), np.inf, squares)
            own = np.arange(len(x))[part, None] == np.arange(len(x))
            # Behind all others, infinite ones too.
            ranked = np.lexsort((squares, own & (not attrs["include_self"])), axis=-1)
            order[part] = ranked[:, :k]
            distances[part] = np.sqrt(np.take_along_axis(squares, order[part], -1))
    return distances, order


def _nearest_error(e: Evaluation) -> tuple[Array, ...]:
    distances, order = e.results
    finite = np.where(np.isfinite(distances), distances, 0)
    return (growth(e.arrays[0].shape[1]) + 4) * ULP * finite, np.zeros(order.shape)


def _nearest_samples() -> Iterator[Sample]:
    yield sample("five of nine", [sample_array((9, 3))], k=5)
    yield sample("all but itself", [sample_array((6, 2))], k=5)
    yield sample("itself too", [sample_array((70, 5))], k=3, include_self=True)
    yield sample("more than a tile", [sample_array((333, 7))], k=10)
    yield sample("many coordinates, in parts", [sample_array((100, 300))], k=3)
    yield sample("one coordinate", [sample_array((65, 1), seed=2)], k=1)
    grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), -1).reshape(-1, 2).astype(np.float32)
    yield sample("ties, where neighbours jump", [grid], k=6)
    spread = np.random.default_rng(5).integers(0, 6, (300, 3)).astype(np.float32)
    yield sample("ties between blocks of points", [spread], k=15, include_self=True)
    odd = np.array([[0, 1], [np.nan, 0], [np.inf, 0], [0, 1], [3, 4]], np.float32)
    yield sample("NaN, infinities, equal points", [odd], k=4)
    wide = np.zeros((60, 200), np.float32)
    wide[:, 0], wide[7, 3], wide[9, 4] = np.arange(60), np.nan, np.inf
    yield sample("ties, NaN and infinities in parts", [wide], k=58)


def _nearest_requires(of: Shapes, attrs: Attrs, out: TensorType, maxima: Mapping[str, int]) -> list[Requirement]:
    return [Requirement(attrs["k"], _candidates(of["x"][0], attrs), 1, f"nearest takes {attrs['k']} neighbours")]


def _nearest_flops(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> int:
    n, d = of["x"]
    return 3 * n * n * d


register(
    OpSpec(
        "searchsorted",
        "select",
        "where each element belongs in a sorted vector",
        ("sorted", "x"),
        _infer_search,
        _search,
        Routine("searchsorted"),
        _search_samples,
        {"right": False},
        no_gradient="it gives positions",
        differentiable=False,
        rules="The first place that keeps the order, or with `right` the last. NaN belongs behind infinity. A vector that is not"
        " sorted gives some place from 0 to its length.",
    )
)
register(
    OpSpec(
        "scatter_extreme",
        "select",
        "x with each slice of updates joined to its index along an axis by the greater or the lesser",
        ("x", "indices", "updates"),
        _infer_extreme,
        _extreme,
        Routine("scatter_extreme"),
        _extreme_samples,
        {"axis": REQUIRED, "largest": True},
        rules=WRITE_RULE + " NaN wins. Gradients go to all that equal the result, in equal parts.",
        gradient=gradients.scatter_extreme,
    )
)
register(
    OpSpec(
        "nearest",
        "select",
        "for each point the k nearest others and their distances, nearest first",
        ("x",),
        _infer_nearest,
        _nearest,
        Routine("nearest"),
        _nearest_samples,
        {"k": REQUIRED, "include_self": False},
        cost="compute",
        error=_nearest_error,
        results=("distances", "indices"),
        rules="x f32[n, d] gives Euclidean distances f32[n, k] and indices i32[n, k]. All pairs are compared. Ties: the smaller"
        " index first. A NaN distance counts as infinite. A k beyond the number of candidates is an error.",
        gradient=gradients.nearest,
        traits=Traits(requires=_nearest_requires, flops=_nearest_flops),
    )
)
