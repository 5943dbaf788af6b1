"""The compiled kernels of rasterised splats on the samples of their ops, against what the ops mean in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pumice.backends.host.native import jit
from pumice.backends.host.routines.calls import NodeCall
from pumice.backends.host.routines.splats import SPLATS
from pumice.core import dtypes
from pumice.ir.registry import Sample, get_op
from pumice.ir.types import TensorType

KERNELS = jit.kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels need numba: pip install 'pumice[cpu]'")


def _samples() -> Iterator[tuple[str, Sample]]:
    for name in SPLATS:
        yield from ((name, s) for s in get_op(name).samples())


@pytest.mark.parametrize(("name", "given"), [pytest.param(n, s, id=f"{n}: {s.label}") for n, s in _samples()])
def test_kernels_do_what_the_ops_mean(name: str, given: Sample) -> None:
    spec, arrays = get_op(name), [np.asarray(i) for i in given.inputs]
    attrs = {**spec.attrs, **given.attrs}
    types = tuple(TensorType(dtypes.dtype(a.dtype), a.shape) for a in arrays)
    (result,) = spec.result_types(types, attrs)
    routine = SPLATS[name](NodeCall(spec, attrs, types, result, tuple(a.dtype for a in arrays)))
    assert routine is not None and routine.native is not None and KERNELS is not None
    out = np.full(result.static_shape, np.nan, np.float32)
    tasks = routine.native(arrays, out)
    assert tasks is not None
    KERNELS.run(tasks)
    exact = spec.evaluate([a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays], attrs, (result,))[0]
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(out, exact, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.parametrize("name", list(SPLATS))
def test_lists_that_reach_too_far_stay_inside(name: str) -> None:
    """Indices beyond their ends are those of the ends."""
    spec = get_op(name)
    given = next(s for s in spec.samples() if s.label == "some splats")
    arrays = [np.array(i) for i in given.inputs]
    arrays[1][::3, 0], arrays[2][-1], arrays[3][2, 1] = 2**31 - 1, 2**31 - 1, 2**31 - 1
    attrs = {**spec.attrs, **given.attrs}
    types = tuple(TensorType(dtypes.dtype(a.dtype), a.shape) for a in arrays)
    (result,) = spec.result_types(types, attrs)
    routine = SPLATS[name](NodeCall(spec, attrs, types, result, tuple(a.dtype for a in arrays)))
    assert routine is not None
    out = np.full(result.static_shape, np.nan, np.float32)
    routine.run(list(arrays), out)
    assert np.isfinite(out).all()
