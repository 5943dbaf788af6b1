"""The compiled gradients of norms against what the ops mean, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.backends.host.native import jit
from pumice.backends.host.routines.calls import NodeCall
from pumice.backends.host.routines.norm_gradients import NORM_GRADIENTS
from pumice.core import dtypes
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

KERNELS = jit.kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels need numba: pip install 'pumice[cpu]'")


@pytest.mark.parametrize("shape", [(5, 37), (300, 64), (2, 3, 33), (1, 1), (70, 31), (9, 256)], ids=str)
@pytest.mark.parametrize("centred", [True, False], ids=["centred", "not centred"])
@pytest.mark.parametrize("affine", [True, False], ids=["weight and bias", "plain"])
def test_kernels_do_what_the_ops_mean(shape: tuple[int, ...], centred: bool, affine: bool) -> None:
    rng = np.random.default_rng(0)
    dy, x, weight = (rng.normal(size=s).astype(np.float32) for s in (shape, shape, shape[-1:]))
    x += 3
    attrs = {"axes": 1, "eps": 1e-3, "centred": centred}
    arrays = {"norm_gradient": [dy, x, weight if affine else None], "norm_parameter_gradient": [dy, x]}
    for name, operands in arrays.items():
        spec = get_op(name)
        types = tuple(None if a is None else TensorType(dtypes.f32, a.shape) for a in operands)
        result, *further = spec.result_types(types, attrs)
        wanted = (True, affine) if further else (True,)
        taken = tuple(None if a is None else a.dtype for a in operands)
        routine = NORM_GRADIENTS[name](NodeCall(spec, attrs, types, result, taken, further=tuple(further), wanted=wanted))
        assert routine is not None and routine.native is not None and KERNELS is not None
        memory = [[np.full(result.static_shape, np.nan, np.float32) if w else None for w in wanted] for _ in range(2)]
        native, plain = (tuple(m) if further else m[0] for m in memory)
        tasks = routine.native(operands, native)
        assert tasks is not None
        KERNELS.run(tasks)
        routine.run(operands, plain)
        wide = [None if a is None else a.astype(np.float64) for a in operands]
        for results in memory:
            for out, exact in zip(results, spec.evaluate(wide, attrs, (result, *further)), strict=True):
                if out is not None:
                    np.testing.assert_allclose(out, exact, rtol=1e-4, atol=2e-4)
