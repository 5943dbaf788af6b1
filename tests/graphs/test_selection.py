"""Selections beside NumPy's: unique, nonzero, bins, segments and nearest neighbours, at their edges and on WebGPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import DTypeError, InputError, PumiceError, ShapeError

rng = np.random.default_rng(5)
IDS = rng.integers(-2, 9, 40).astype(np.int32)
X = rng.standard_normal((40, 3)).astype(np.float32)
ODD = np.array([2, np.nan, -0.0, np.inf, 2, np.nan, 0.0, -np.inf], np.float32)


@pytest.mark.parametrize(
    "x", [IDS, IDS.reshape(5, 8), ODD, IDS > 3, np.float32([7])], ids=["ints", "matrix", "odd", "bools", "one"]
)
def test_unique_is_numpys_with_a_maximum(x: Any) -> None:
    values, inverse, counts = np.unique(x, return_counts=True, return_inverse=True)
    got = pm.interpret(lambda a: tuple(pm.unique(a)), x)
    n = len(values)
    assert got[3].tolist() == [n] and got[0].dtype == x.dtype
    np.testing.assert_array_equal(got[0][:n], values)
    np.testing.assert_array_equal(got[1], np.pad(counts, (0, x.size - n)))
    np.testing.assert_array_equal(got[2], inverse.reshape(x.shape))


def test_more_unique_values_than_asked_for_are_counted_and_left_out() -> None:
    values, counts, _, number = pm.interpret(lambda a: tuple(pm.unique(a, size=2, fill_value=-1)), np.int32([3, 1, 2, 1]))
    assert values.tolist() == [1, 2] and counts.tolist() == [2, 1] and number.tolist() == [3]
    values, counts, _, number = pm.interpret(lambda a: tuple(pm.unique(a, size=3, fill_value=-1)), np.int32([5, 5]))
    assert values.tolist() == [5, -1, -1] and counts.tolist() == [2, 0, 0] and number.tolist() == [1]
    empty = pm.interpret(lambda a: tuple(pm.unique(a[:0], size=2)), IDS)
    assert [v.tolist() for v in empty] == [[0, 0], [0, 0], [], [0]]


def test_nonzero_is_numpys_with_a_maximum() -> None:
    m = (IDS.reshape(5, 8) > 4) * IDS.reshape(5, 8)
    want = np.argwhere(m)
    places, number = pm.interpret(pm.nonzero, m)
    assert number.tolist() == [len(want)] and (places[len(want) :] == -1).all()
    np.testing.assert_array_equal(places[: len(want)], want)
    places, number = pm.interpret(lambda a: pm.nonzero(a, size=2), m)
    np.testing.assert_array_equal(places, want[:2])
    assert number.tolist() == [len(want)]


def test_bins_count_what_is_in_range() -> None:
    inside = IDS[(IDS >= 0) & (IDS < 5)]
    np.testing.assert_array_equal(pm.interpret(lambda a: pm.bincount(a, length=5), IDS), np.bincount(inside, minlength=5))
    edges = np.float32([-1, -0.5, 0.25, 2])
    for bins, extent in ((edges, None), (7, (-1.0, 1.5))):
        got, where = pm.interpret(lambda a, b=bins, r=extent: pm.histogram(a, b, r), X)
        want, theirs = np.histogram(X, bins, extent)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(where, theirs, rtol=1e-6)
    np.testing.assert_array_equal(pm.interpret(lambda a: pm.histogram(a, edges)[0], np.float32([np.nan, 2, -9, 9])), [0, 0, 1])
    assert pm.interpret(lambda a: pm.bincount(a[:0], length=2), IDS).tolist() == [0, 0]


def test_segments_drop_what_is_out_of_range() -> None:
    def fn(x: Any, i: Any) -> Any:
        return pm.segment_sum(x, i, 9), pm.segment_mean(x, i, 9), pm.segment_max(x, i, 9), pm.segment_min(x, i, 9)

    ids = np.where(IDS == 4, 5, IDS).astype(np.int32)  # 4 is empty
    total, mean, high, low = pm.interpret(fn, X, ids)
    for s in range(9):
        rows = X[ids == s]
        np.testing.assert_allclose(total[s], rows.sum(0), atol=1e-5)
        if len(rows):
            np.testing.assert_allclose(mean[s], rows.mean(0), atol=1e-5)
            np.testing.assert_array_equal(high[s], rows.max(0))
            np.testing.assert_array_equal(low[s], rows.min(0))
    assert np.isnan(mean[4]).all() and (high[4] == -np.inf).all() and (low[4] == np.inf).all()


def test_segment_max_of_integers_has_their_ends_where_empty() -> None:
    got = pm.interpret(lambda x, i: pm.segment_max(x, i, 2), np.int8([1, 5]), np.int32([1, 1]))
    assert got.tolist() == [-128, 5]


@pytest.mark.parametrize("include_self", [False, True])
def test_neighbours_of_points_and_of_distances_are_the_same(include_self: bool) -> None:
    table = np.sqrt(np.square(X[:, None] - X[None]).sum(-1))
    ranked = np.argsort(table + (0 if include_self else np.diag([np.inf] * 40)), axis=1, kind="stable")[:, :6]
    for fn, data in (
        (lambda x: pm.knn_graph(x, 6, include_self=include_self), X),
        (lambda d: pm.knn_graph(distances=d, k=6, include_self=include_self), table),
    ):
        indices, distances = pm.interpret(fn, data)
        np.testing.assert_array_equal(indices, ranked)
        np.testing.assert_allclose(distances, np.take_along_axis(table, ranked, 1), atol=1e-5)


def test_neighbours_have_a_gradient() -> None:
    def fn(x: Any) -> Any:
        return pm.sum(pm.knn_graph(x, 3)[1] ** 2)

    got, step = pm.interpret(pm.grad(fn), X), np.float32(1e-3)
    direction = rng.standard_normal(X.shape).astype(np.float32)
    up, down = (float(pm.interpret(fn, (X + s * step * direction).astype(np.float32))) for s in (1, -1))
    want = (up - down) / (2 * float(step))
    assert abs(float((got * direction).sum()) - want) < 0.02 * (1 + abs(want))


def test_too_many_neighbours_are_refused_when_sizes_are_known() -> None:
    exe = pm.compile(lambda x: pm.knn_graph(x, 5), x=pm.spec("N", 2), device="host", max={"N": 40})
    assert exe.run(x=X[:6, :2])[0].shape == (6, 5)
    with pytest.raises(PumiceError, match="5 neighbours"):
        exe.run(x=X[:5, :2])


def test_masked_rows_are_packed() -> None:
    rows, number = pm.interpret(lambda x: pm.masked_rows(x, x[:, 0] > 0, size=50, fill_value=-1), X)
    n = int(number[0])
    np.testing.assert_array_equal(rows[:n], X[X[:, 0] > 0])
    assert rows.shape == (50, 3) and (rows[n:] == -1).all()


@pytest.mark.gpu
def test_selections_run_on_webgpu() -> None:
    def fn(x: Any, i: Any) -> Any:
        return (*pm.unique(i), pm.histogram(x, 8, (-2.0, 2.0))[0], pm.segment_max(x, i, 9), *pm.knn_graph(x, 4), pm.median(x, 0))

    want = pm.interpret(fn, X, IDS)
    got = pm.compile(fn, x=pm.spec(40, 3), i=pm.spec(40, dtype="i32"), device="webgpu").run(x=X, i=IDS)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "k larger than n": (lambda x: pm.knn_graph(x, 3), ShapeError, "k = 3 is not in 1…2"),
    "k larger than n, distances": (lambda x: pm.knn_graph(distances=x[:, :3], k=4, include_self=True), ShapeError, "k = 4"),
    "points and distances": (lambda x: pm.knn_graph(x, 1, distances=x), InputError, "either"),
    "bins without a range": (lambda x: pm.histogram(x, 4), InputError, "range"),
    "one edge": (lambda x: pm.histogram(x, [1.0]), ShapeError, "at least two"),
    "float bins": (lambda x: pm.bincount(x[0], length=3), DTypeError, "integers"),
    "segments of another length": (lambda x: pm.segment_sum(x, [0, 1], 2), ShapeError, "ids"),
    "side": (lambda x: pm.searchsorted(x[0], x, "middle"), InputError, "side"),
    "search in a matrix": (lambda x: pm.searchsorted(x, x), ShapeError, "one sorted vector"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_rule(case: str) -> None:
    fn, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        pm.trace(fn, x=pm.spec(3, 4))


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_bools_are_sorted_as_0_and_1(axis: int | None, descending: bool) -> None:
    flags = IDS.reshape(5, 8) > 3
    ordered, places = pm.interpret(lambda x: (pm.sort(x, axis, descending), pm.argsort(x, axis, descending)), flags)
    assert ordered.dtype == np.bool_
    np.testing.assert_array_equal(ordered, np.sort(~flags if descending else flags, axis, kind="stable") ^ descending)
    np.testing.assert_array_equal(places, np.argsort(~flags if descending else flags, axis, kind="stable"))


@pytest.mark.parametrize("values", [[-np.inf, 1], [1, np.inf], [-np.inf, np.inf], [-np.inf, -np.inf], [-np.inf, 2, 3, 4]])
def test_the_middle_of_two_is_their_mean_where_one_is_infinite(values: list[float]) -> None:
    x = np.float32(values)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(pm.interpret(pm.median, x), np.median(x))
