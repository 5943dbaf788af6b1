"""Pumice: a machine-learning engine over WebGPU. Names load on first use, so that importing costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice import errors as errors
    from pumice import hooks as hooks
    from pumice import nn as nn
    from pumice import ops as ops
    from pumice import optim as optim
    from pumice import splat as splat
    from pumice import train as train
    from pumice.assist.agent import Agent as Agent
    from pumice.assist.agent import AgentLimits as AgentLimits
    from pumice.assist.memory.memory import Memory as Memory
    from pumice.assist.tool import Tool as Tool
    from pumice.assist.tool import tool as tool
    from pumice.core.caps import Caps as Caps
    from pumice.errors import PumiceError as PumiceError
    from pumice.functions import *  # noqa: F403
    from pumice.ir.graph import Graph as Graph
    from pumice.llm.engine import Engine as Engine
    from pumice.llm.grammar import Grammar as Grammar
    from pumice.llm.load import load as load
    from pumice.llm.response_cache import ResponseCache as ResponseCache
    from pumice.run.compile import compile as compile
    from pumice.run.cooperative import Cooperative as Cooperative
    from pumice.run.executable import Executable as Executable
    from pumice.run.load_plan import load_plan as load_plan
    from pumice.run.packs import Pack as Pack
    from pumice.run.packs import load_pack as load_pack
    from pumice.run.route import Route as Route
    from pumice.run.route import route as route
    from pumice.run.store import Store as Store
    from pumice.tensor import Tensor as Tensor
    from pumice.tracing import Spec as Spec
    from pumice.tracing import capture as capture
    from pumice.tracing import interpret as interpret
    from pumice.tracing import set_param as set_param
    from pumice.tracing import set_state as set_state
    from pumice.tracing import spec as spec
    from pumice.tracing import state as state
    from pumice.tracing import trace as trace
    from pumice.web.export import export_bundle as export_bundle
    from pumice.web.export import export_web as export_web

__version__ = "0.1.0"

_MODULES = ("errors", "hooks", "nn", "ops", "optim", "splat", "train")
# Where each name lives. Tests compare the functions with `pumice.functions.__all__`.
_HOMES = {
    "pumice.assist.agent": "Agent AgentLimits",
    "pumice.assist.memory.memory": "Memory",
    "pumice.assist.tool": "Tool tool",
    "pumice.core.caps": "Caps",
    "pumice.errors": "PumiceError",
    "pumice.functions": """
        abs absolute acos acosh adaptive_max_pool adaptive_mean_pool add all any arange arccos arccosh arcsin arcsinh arctan
        arctan2 arctanh argmax argmin argsort asarray asin asinh astype atan atan2 atanh attention batch_norm bfloat16
        bincount bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool
        broadcast_arrays broadcast_shapes broadcast_to can_cast cast ceil checkpoint clip compact concat concatenate conv1d
        conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d copysign cos cosh count_nonzero cross cross_entropy
        cummax cummin cumprod cumsum cumulative_prod cumulative_sum custom_gradient delta_rule dequantize diag diagonal diff
        divide dot dot_general dropout e einsum elu embedding empty empty_like equal erf exp exp2 expand_dims expm1 eye fft
        finfo flatten flip float16 float32 floor floor_divide fori_loop from_dlpack full full_like gated_delta_net gather gelu
        glu grad greater greater_equal group_norm grouped_matmul grouped_qmatmul hardsigmoid hardswish histogram hstack hypot
        iinfo im2col inf int32 int8 invert isdtype isfinite isin isinf isnan knn_graph kron layer_norm leaky_relu left_shift
        less less_equal linalg linear_attention linear_scan linspace log log10 log1p log2 log_softmax logaddexp logcumsumexp
        logical_and logical_not logical_or logical_xor logsumexp masked_rows matmul matrix_transpose max max_pool1d max_pool2d
        max_pool3d maximum mean mean_pool1d mean_pool2d mean_pool3d median meshgrid min minimum mish mod moveaxis multiply nan
        nan_to_num narrow negative newaxis nextafter nonzero norm not_equal one_hot ones ones_like outer pad permute_dims pi
        positive pow power prelu prod put_along_axis qmatmul quantile random ravel reciprocal relu remainder repeat reshape
        result_type right_shift rms_norm roll rope round rsqrt scan scatter_add scatter_along_axis scatter_set searchsorted
        segment_max segment_mean segment_min segment_sum selective_scan selu sigmoid sign signal signbit silu sin sinh softmax
        softplus sort split sqrt square squeeze ssd stack std stop_gradient subtract sum swapaxes take take_along_axis tan
        tanh tensordot tile top_k transpose trapezoid tril triu trunc uint32 uint8 unique unique_all unique_counts
        unique_inverse unique_values unstack upsample value_and_grad var vecdot vstack where while_loop zeros zeros_like""",
    "pumice.ir.graph": "Graph",
    "pumice.llm.engine": "Engine",
    "pumice.llm.grammar": "Grammar",
    "pumice.llm.load": "load",
    "pumice.llm.response_cache": "ResponseCache",
    "pumice.run.compile": "compile",
    "pumice.run.cooperative": "Cooperative",
    "pumice.run.executable": "Executable",
    "pumice.run.load_plan": "load_plan",
    "pumice.run.packs": "Pack load_pack",
    "pumice.run.route": "Route route",
    "pumice.run.store": "Store",
    "pumice.tensor": "Tensor",
    "pumice.tracing": "Spec capture interpret set_param set_state spec state trace",
    "pumice.web.export": "export_bundle export_web",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, *_HOME_OF])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"pumice.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pumice' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
