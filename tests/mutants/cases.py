"""One small case for each kind of kernel, chosen so that its plan on the software driver takes that kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.ir.graph import GraphBuilder
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

from harness import Case, one_op

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _traced(fn: Callable[..., Any], **arrays: Array) -> Callable[[], Case]:
    def make() -> Case:
        specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}
        return Case(pm.trace(fn, **specs), arrays, {})

    return make


def _sample(op: str, label: str) -> Callable[[], Case]:
    def make() -> Case:
        (sample,) = (s for s in get_op(op).samples() if s.label == label)
        return one_op(get_op(op), sample)

    return make


def _quantised(rows: int, dtype: str, outputs: int, blocks: int) -> Callable[[], Case]:
    def make() -> Case:
        quant, b = dtypes.dtype(dtype), GraphBuilder()
        k = blocks * quant.block
        x = b.source("input", "x", TensorType(dtypes.f32, (rows, k)))
        w = b.source("param", "w", TensorType(quant, (outputs, k)))
        r = b.source("input", "r", TensorType(dtypes.f32, (rows, outputs)))
        graph = b.build([("out", b.add("add", [b.add("qmatmul", [x, w]), r]))])
        packed = quantize_rows(quant, numbers(outputs, k, seed=2))
        return Case(graph, {"x": numbers(rows, k), "r": numbers(rows, outputs, seed=1)}, {"w": packed})

    return make


def _attend(q: Any, k: Any, v: Any) -> Any:
    return pm.attention(q, k, v, layout="bhsd", causal=True)


_LONG = numbers(5, 300)
CASES: dict[str, Callable[[], Case]] = {
    "map": _traced(lambda a, b: pm.relu(a * b) + a, a=numbers(9, 70), b=numbers(70, seed=1)),
    "map f16": _traced(lambda a, b: a * b, a=numbers(9, 71).astype("f2"), b=numbers(71, seed=1).astype("f2")),
    "movement": _traced(lambda a: pm.concat([a.T, a.T[::-1]], axis=1)[1:, 2:], a=numbers(9, 70)),
    "gather": _traced(lambda a, i: pm.take(a, i, axis=0), a=numbers(40, 17), i=np.arange(33, dtype=np.int32) % 7),
    "row sum": _traced(lambda a: a.sum(axis=-1), a=_LONG),
    "column sum": _traced(lambda a: a.sum(axis=0), a=numbers(300, 5)),
    "row max": _traced(lambda a: a.max(axis=-1), a=_LONG),
    "argmax": _traced(lambda a: a.argmax(axis=-1), a=_LONG),
    "softmax": _traced(lambda a: pm.softmax(a), a=_LONG),
    "layer norm": _sample("layer_norm", "long rows"),
    "rms norm": _sample("rms_norm", "long rows"),
    "scan": _traced(lambda a: a.cumsum(axis=-1), a=_LONG),
    "loss": _sample("cross_entropy", "long rows"),
    "loss gradient": _sample("cross_entropy_gradient", "rows"),
    "matmul tiles": _traced(
        lambda a, b, c: pm.relu(a @ b + c), a=numbers(70, 66), b=numbers(66, 70, seed=1), c=numbers(70, seed=2)
    ),
    "matmul naive": _traced(lambda a, b: a @ b, a=numbers(5, 7), b=numbers(7, 3, seed=1)),
    "matvec across": _traced(lambda a, b: a @ b, a=numbers(1, 300), b=numbers(300, 130, seed=1)),
    "matvec along": _traced(lambda a, b: a @ b.T, a=numbers(1, 300), b=numbers(130, 300, seed=1)),
    "split k": _traced(lambda a, b: a @ b.T, a=numbers(33, 1024), b=numbers(70, 1024, seed=1)),
    "qmatvec": _quantised(1, "q4_0", 130, 3),
    "qmatvec k-quants": _quantised(1, "q4_k", 33, 2),
    "qmatmul": _quantised(40, "q8_0", 65, 3),
    "attention": _traced(_attend, q=numbers(1, 4, 33, 16), k=numbers(1, 2, 40, 16, seed=1), v=numbers(1, 2, 40, 16, seed=2)),
    "attention of one token": _traced(
        _attend, q=numbers(1, 4, 1, 64), k=numbers(1, 2, 300, 64, seed=1), v=numbers(1, 2, 300, 64, seed=2)
    ),
    "attention blocks": _traced(
        _attend, q=numbers(1, 4, 70, 32), k=numbers(1, 2, 90, 32, seed=1), v=numbers(1, 2, 90, 32, seed=2)
    ),
    "attention gradient": _sample("attention_gradient", "GQA"),
    "conv": _sample("conv", "2D 3x3"),
    "conv weight gradient": _sample("conv_grad_weight", "2D 3x3"),
    "conv input gradient": _sample("conv_grad_input", "stride 2"),
    "depthwise conv": _sample("conv", "depthwise"),
    "scatter": _sample("scatter_add", "many duplicates"),
    "scatter along": _sample("scatter_along_axis_add", "many duplicates"),
    "compact": _traced(lambda x, keep: pm.compact(x, keep), x=numbers(3000), keep=np.arange(3000) % 9 != 4),
    "grouped matmul": _sample("grouped_matmul", "three groups"),
    "grouped weight gradient": _sample("grouped_matmul_grad_weight", "three groups"),
    "sort": _sample("sort", "long rows, descending"),
    "top k": _sample("top_k", "long row"),
    "norm gradient": _sample("norm_gradient", "long rows"),
    "norm parameter gradient": _sample("norm_parameter_gradient", "many rows"),
    "mean pool": _sample("mean_pool", "3x3 of stride 2, padded"),
    "max pool gradient": _sample("max_pool_grad", "overlapping"),
    "upsample": _sample("upsample", "linear: odd ratio"),
    "rope": _sample("rope", "heads share the table"),
    "random normal": _sample("random_normal", "matrix"),
}

# Kernels that only hardware GPUs get; the software driver runs them just as well.
HARDWARE = ("split k", "attention blocks")
