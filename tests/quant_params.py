"""Parameters of tests that compile kernels for every GGUF format: formats of which another has all that is special are slow."""

from __future__ import annotations

import pytest

from pumice.core import dtypes
from pumice.ir.ops.matmul import ALIKE

QUANTS = [pytest.param(d, id=d.name, marks=pytest.mark.slow if d in ALIKE else ()) for d in dtypes.QUANT]
