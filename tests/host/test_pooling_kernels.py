"""The compiled kernels of pooling and resizing on the samples of their ops, against what the ops mean in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pumice.backends.host.native import jit
from pumice.backends.host.routines.calls import NodeCall
from pumice.backends.host.routines.pooling import POOLING
from pumice.core import dtypes
from pumice.ir.registry import Sample, get_op
from pumice.ir.types import TensorType

KERNELS = jit.kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels need numba: pip install 'pumice[cpu]'")


def _samples() -> Iterator[tuple[str, Sample]]:
    for name in POOLING:
        for s in get_op(name).samples():
            if all(isinstance(i, np.ndarray) and i.dtype == np.float32 and i.size for i in s.inputs):
                yield name, s


@pytest.mark.parametrize(("name", "given"), [pytest.param(n, s, id=f"{n}: {s.label}") for n, s in _samples()])
def test_kernels_do_what_the_ops_mean(name: str, given: Sample) -> None:
    spec, arrays = get_op(name), [np.asarray(i) for i in given.inputs]
    attrs = {**spec.attrs, **given.attrs}
    types = tuple(TensorType(dtypes.f32, a.shape) for a in arrays)
    (result,) = spec.result_types(types, attrs)
    routine = POOLING[name](NodeCall(spec, attrs, types, result, tuple(a.dtype for a in arrays)))
    assert routine is not None and routine.native is not None and KERNELS is not None
    out = np.full(result.static_shape, np.nan, np.float32)
    tasks = routine.native(arrays, out)
    assert tasks is not None
    KERNELS.run(tasks)
    exact = spec.evaluate([a.astype(np.float64) for a in arrays], attrs, (result,))[0]
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
