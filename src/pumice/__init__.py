"""Pumice: a machine-learning engine over WebGPU. Names load on first use, so that importing costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice import errors as errors
    from pumice import nn as nn
    from pumice import ops as ops
    from pumice import optim as optim
    from pumice import train as train
    from pumice.core.caps import Caps as Caps
    from pumice.errors import PumiceError as PumiceError
    from pumice.functions import *  # noqa: F403
    from pumice.ir.graph import Graph as Graph
    from pumice.llm.engine import Engine as Engine
    from pumice.llm.grammar import Grammar as Grammar
    from pumice.llm.load import load as load
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

_MODULES = ("errors", "nn", "ops", "optim", "train")
# Where each name lives. Tests compare the functions with `pumice.functions.__all__`.
_HOMES = {
    "pumice.core.caps": "Caps",
    "pumice.errors": "PumiceError",
    "pumice.functions": """
        abs absolute adaptive_mean_pool add all any arange arccos arcsin arctan arctan2 argmax argmin argsort asarray astype
        attention batch_norm bitwise_and bitwise_or bitwise_xor broadcast_to cast ceil checkpoint clip compact concat concatenate
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d cos cosh cross_entropy cumsum custom_gradient dequantize divide
        dot_general dropout einsum embedding equal erf exp exp2 expand_dims expm1 flatten flip floor floor_divide full
        full_like gather gelu grad greater greater_equal group_norm grouped_matmul invert isinf isnan layer_norm left_shift less
        less_equal log log1p log2 log_softmax logical_and logical_not logical_or logical_xor matmul max max_pool1d
        max_pool2d maximum mean mean_pool1d mean_pool2d min minimum mod moveaxis multiply narrow negative not_equal
        one_hot ones ones_like pad permute_dims power prod qmatmul random ravel reciprocal relu repeat reshape right_shift
        rms_norm roll rope round rsqrt scatter_add scatter_set sigmoid sign silu sin sinh softmax softplus sort split sqrt
        square squeeze stack std stop_gradient subtract sum swapaxes take take_along_axis tan tanh tile top_k transpose
        trunc upsample value_and_grad var where zeros zeros_like""",
    "pumice.ir.graph": "Graph",
    "pumice.llm.engine": "Engine",
    "pumice.llm.grammar": "Grammar",
    "pumice.llm.load": "load",
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
