"""Values put into tensors of another dtype: floats may round, everything that would change a value is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import DTypeError
from pumice.tensor import Tensor


def _scatter(op: str, updates: Any) -> Callable[[Tensor], Any]:
    return lambda x: getattr(pm, op)(x, [1, 0], updates)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "scatter_add floats": (_scatter("scatter_add", np.array([0.5, 1.5], np.float32)), "i32"),
    "scatter_set floats": (_scatter("scatter_set", np.array([0.5, 1.5], np.float32)), "i32"),
    "scatter_add a float": (_scatter("scatter_add", 0.5), "i32"),
    "scatter_set a float": (_scatter("scatter_set", 0.5), "u8"),
    "scatter_add wider ints": (_scatter("scatter_add", np.array([300, 1], np.int32)), "i8"),
    "scatter_set ints in bools": (_scatter("scatter_set", np.array([2, 1], np.int32)), "bool"),
    "scatter_add a large int": (_scatter("scatter_add", 300), "i8"),
    "full_like": (lambda x: pm.full_like(x, 0.5), "i32"),
    "full_like a tensor": (lambda x: pm.full_like(x, x.sum() * 0.5), "i32"),
    "full": (lambda x: x + pm.full(x.shape, 1.5, "i32"), "i32"),
    "full NaN": (lambda x: x + pm.full(x.shape, float("nan"), "i32"), "i32"),
    "full out of range": (lambda x: x + pm.full(x.shape, 300, "i8"), "i8"),
    "asarray": (lambda x: x + pm.asarray(2.5, "i32"), "i32"),
    "pad": (lambda x: pm.pad(x, 1, 0.5), "i32"),
    "set_state": (lambda x: pm.set_state(pm.state("s", (3,), "i32"), x * 0.5), "i32"),
    "set_state a number": (lambda x: pm.set_state(pm.state("s", (), "i32"), 0.5), "i32"),
    "state's init": (lambda x: x + pm.state("s", (3,), "i32", init=0.5), "i32"),
    "state's init out of range": (lambda x: x + pm.state("s", (3,), "i8", init=[1, 2, 300]), "i8"),
    "a mask of floats": (lambda x: _attend(x, np.zeros((1, 1, 3, 3), np.float32)), "f32"),
}


def _attend(x: Tensor, mask: Any) -> Tensor:
    q = x.reshape(1, 1, 3, 1)
    return pm.attention(q, q, q, mask=mask)


@pytest.mark.parametrize("what", REFUSED)
def test_a_cast_that_changes_values_is_refused(what: str) -> None:
    fn, dtype = REFUSED[what]
    with pytest.raises(DTypeError):
        pm.trace(fn, x=pm.spec(3, dtype=dtype))


KEPT: dict[str, tuple[Callable[[Tensor], Any], str, list[Any]]] = {
    "scatter_add ints into floats": (_scatter("scatter_add", np.array([2, 1], np.int32)), "f32", [2, 3, 1]),
    "scatter_set rounds floats": (_scatter("scatter_set", np.array([0.1, 2.0], np.float32)), "f16", [2, np.float16(0.1), 1]),
    "scatter_set narrow ints": (_scatter("scatter_set", np.array([9, 8], np.int8)), "i32", [8, 9, 1]),
    "scatter_set 1 in bools": (_scatter("scatter_set", 0), "bool", [False, False, True]),
    "full_like": (lambda x: pm.full_like(x, 3), "f16", [3, 3, 3]),
    "full of a whole float": (lambda x: x + pm.full(x.shape, 2.0, "i32"), "i32", [3, 3, 3]),
    "where": (lambda x: pm.where(x > 0, x, 0.5), "i32", [1, 1, 1]),
    "where promotes": (lambda x: pm.where(x > 1, x, 0.5), "i32", [0.5, 0.5, 0.5]),
    "concatenate": (lambda x: pm.concatenate([x, np.array([0.5], np.float32)]), "i32", [1, 1, 1, 0.5]),
    "clip by floats": (lambda x: pm.clip(x, 1.5, 2.5), "i32", [1.5, 1.5, 1.5]),
    "clip by a NumPy float": (lambda x: pm.clip(x, np.float32(1.5)), "i32", [1.5, 1.5, 1.5]),
    "clip beyond the dtype": (lambda x: pm.clip(x, -1000, 1000), "i8", [1, 1, 1]),
    "clip beyond u8": (lambda x: pm.clip(x, -5, 300), "u8", [1, 1, 1]),
    "clip at the ends": (lambda x: pm.clip(x, -(2**31), 2**31 - 1), "i32", [1, 1, 1]),
    "state's init": (lambda x: x + pm.state("s", (3,), "i8", init=[1, 2, 100]), "i8", [2, 3, 101]),
}


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("what", KEPT)
def test_a_cast_that_keeps_values_happens(what: str, device: str) -> None:
    fn, dtype, want = KEPT[what]
    with pm.compile(fn, x=pm.spec(3, dtype=dtype), device=device) as exe:
        assert exe.run(x=np.ones(3, exe.graph.nodes[0].type.dtype.np)).tolist() == want
