"""Lookups of one or a few rows, which the host makes without NumPy's index functions: the same elements as by many indices."""

import numpy as np
import pytest

import pumice as pm
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype

INDICES = (0, 1, 31, 32, 36, -1, -37, -40, 37, 1000)


@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_few_rows_of_a_quantised_table(quant: str, count: int) -> None:
    width = dtype(quant).block * 2
    table = quantize_rows(dtype(quant), np.random.default_rng(0).standard_normal((37, width)).astype(np.float32))

    def lookup(params, ids):
        return pm.embedding(params["table"], ids)

    with pm.compile(lookup, params={"table": pm.spec(37, width, dtype=quant)}, ids=pm.spec("N", dtype="i32"), device="host",
                    check_indices=False) as exe:  # fmt: skip
        exe.set_params({"table": table})
        many = exe.run(ids=np.int32(INDICES))
        for start in range(0, len(INDICES) - count + 1):
            few = exe.run(ids=np.int32(INDICES[start : start + count]))
            np.testing.assert_array_equal(few, many[start : start + count])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_index_along_any_axis(axis: int) -> None:
    shape = [3, 5, 4]
    shape[axis] = 37
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with pm.compile(lambda x, i: pm.take(x, i, axis=axis), x=pm.spec(*shape), i=pm.spec("N", dtype="i32"), device="host",
                    check_indices=False) as exe:  # fmt: skip
        many = exe.run(x=x, i=np.int32(INDICES))
        for k, index in enumerate(INDICES):
            one = exe.run(x=x, i=np.int32([index]))
            np.testing.assert_array_equal(one, np.take(many, [k], axis=axis))


@pytest.mark.parametrize("rows", [1, 4])
def test_one_element_of_each_of_a_few_rows(rows: int) -> None:
    x = np.random.default_rng(3).standard_normal((rows, 37)).astype(np.float32)
    with pm.compile(lambda x, i: pm.take_along_axis(x, i, axis=1), x=pm.spec(rows, 37), i=pm.spec(rows, "N", dtype="i32"),
                    device="host", check_indices=False) as exe:  # fmt: skip
        wanted = np.int32([INDICES[r:] + INDICES[:r] for r in range(rows)])
        many = exe.run(x=x, i=wanted)
        for k in range(len(INDICES)):
            np.testing.assert_array_equal(exe.run(x=x, i=wanted[:, k : k + 1]), many[:, k : k + 1])


def test_a_range_is_the_same_in_every_run() -> None:
    with pm.compile(lambda x: pm.cumsum(x + pm.arange(x.shape[0]), axis=0) * 2.0, x=pm.spec("N"), device="host") as exe:
        for _ in range(3):
            np.testing.assert_array_equal(exe.run(x=np.float32([1, 1, 1])), np.float32([2, 6, 12]))
