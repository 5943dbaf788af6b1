"""The row kernels by rule name: reductions, normalisations and scans, whose inputs are computed on the fly."""

from __future__ import annotations

from collections.abc import Callable

from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.rows.argreduce import lower_argreduce
from pumice.kernels.rows.cross_entropy import lower_cross_entropy
from pumice.kernels.rows.norm import lower_norm
from pumice.kernels.rows.norm_gradient import lower_norm_gradient
from pumice.kernels.rows.reduce import lower_reduce
from pumice.kernels.rows.scan import lower_scan
from pumice.kernels.rows.softmax import lower_softmax
from pumice.kernels.rows.window import lower_window

ROWS: dict[str, Callable[[LowerContext, Group], list[Lowered]]] = {
    "reduce_sum": lower_reduce,
    "reduce_mean": lower_reduce,
    "reduce_prod": lower_reduce,
    "reduce_max": lower_reduce,
    "reduce_min": lower_reduce,
    "reduce_any": lower_reduce,
    "reduce_all": lower_reduce,
    "argmax": lower_argreduce,
    "argmin": lower_argreduce,
    "softmax": lower_softmax,
    "log_softmax": lower_softmax,
    "cross_entropy": lower_cross_entropy,
    "layer_norm": lower_norm,
    "rms_norm": lower_norm,
    "norm_gradient": lower_norm_gradient,
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan"], lower_scan),
    "overlap_add": lower_window,
    "max_pool": lower_window,
    "max_pool_grad": lower_window,
    "mean_pool": lower_window,
    "mean_pool_grad": lower_window,
    "upsample_grad": lower_window,
}
