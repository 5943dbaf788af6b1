"""One small case for each kind of kernel, and the kind of device that it is planned for: one that takes that kernel."""

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
from pumice.passes.precision import with_precision

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


def _grouped_quantised(dtype: str, sizes: tuple[int, ...], rows: int) -> Callable[[], Case]:
    """The last rows are of no group."""

    def make() -> Case:
        quant, b, outputs = dtypes.dtype(dtype), GraphBuilder(), 70
        k = 2 * quant.block
        x = b.source("input", "x", TensorType(dtypes.f32, (rows, k)))
        w = b.source("param", "w", TensorType(quant, (len(sizes), outputs, k)))
        s = b.source("input", "sizes", TensorType(dtypes.i32, (len(sizes),)))
        graph = b.build([("out", b.add("grouped_qmatmul", [x, w, s]))])
        packed = quantize_rows(quant, numbers(len(sizes), outputs, k, seed=2))
        return Case(graph, {"x": numbers(rows, k), "sizes": np.array(sizes, np.int32)}, {"w": packed})

    return make


def _in_f16(make: Callable[[], Case]) -> Callable[[], Case]:
    """The case with operands rounded to f16, as matrix units need them."""

    def made() -> Case:
        case = make()
        return Case(with_precision(case.graph, "f16"), case.inputs, case.params)

    return made


def _attend(q: Any, k: Any, v: Any) -> Any:
    return pm.attention(q, k, v, layout="bhsd", causal=True)


def _halves(*shape: int, seed: int = 0) -> Array:
    return numbers(*shape, seed=seed).astype(np.float16)


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
    "scan in parts": _traced(lambda a: a.cumsum(axis=-1), a=numbers(2, 6000)),
    "linear scan": _sample("linear_scan", "long rows, inclusive reverse"),
    "selective scan": _sample("selective_scan", "sequences that start"),
    "selective scan by chunks": _sample("selective_scan", "chunks"),
    "linear attention": _sample("linear_attention", "decay by key"),
    "linear attention by chunks": _sample("linear_attention", "chunks"),
    "delta rule": _sample("delta_rule", "one step of large heads"),
    "delta rule by chunks": _sample("delta_rule", "chunks"),
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
    "qmatvec by digits": _quantised(1, "q4_0", 1030, 9),
    "qmatvec of a grid": _quantised(1, "iq2_xs", 21, 1),
    "qmatvec by threads": _quantised(1, "q4_0", 130, 3),
    "qmatmul": _quantised(40, "q8_0", 65, 3),
    "qmatmul of bits": _quantised(20, "tq2_0", 33, 1),
    "direct matmul": _traced(
        lambda a, b, c: pm.relu(a @ b.T + c), a=numbers(11, 36), b=numbers(70, 36, seed=1), c=numbers(70, seed=2)
    ),
    "direct matmul, odd": _traced(lambda a, b: a @ b, a=numbers(11, 37), b=numbers(37, 70, seed=1)),
    "direct matvec": _traced(lambda a, b: a @ b.T, a=numbers(1, 300), b=numbers(130, 300, seed=1)),
    "direct qmatvec": _quantised(1, "q4_0", 130, 3),
    "direct qmatmul": _quantised(11, "q4_k", 37, 1),
    "direct qmatmul of a grid": _quantised(3, "iq3_s", 21, 1),
    "direct qmatmul of trits": _quantised(3, "tq1_0", 21, 1),
    "attention": _traced(_attend, q=numbers(1, 4, 33, 16), k=numbers(1, 2, 40, 16, seed=1), v=numbers(1, 2, 40, 16, seed=2)),
    "attention of one token": _traced(
        _attend, q=numbers(1, 4, 1, 64), k=numbers(1, 2, 300, 64, seed=1), v=numbers(1, 2, 300, 64, seed=2)
    ),
    "attention blocks": _traced(
        _attend, q=numbers(1, 4, 70, 32), k=numbers(1, 2, 90, 32, seed=1), v=numbers(1, 2, 90, 32, seed=2)
    ),
    "attention rows": _traced(_attend, q=numbers(1, 4, 21, 12), k=numbers(1, 2, 30, 12, seed=1), v=numbers(1, 2, 30, 12, seed=2)),
    "attention gradient": _sample("attention_gradient", "GQA"),
    "conv": _sample("conv", "2D 3x3"),
    "conv weight gradient": _sample("conv_grad_weight", "2D 3x3"),
    "conv input gradient": _sample("conv_grad_input", "stride 2"),
    "depthwise conv": _sample("conv", "depthwise"),
    "scatter": _sample("scatter_add", "many duplicates"),
    "scatter bins": _sample("scatter_add", "integers into more rows than a workgroup counts"),
    "scatter sorted": _traced(
        lambda x, ids: pm.segment_sum(x, ids, 4100), x=numbers(8200, 2), ids=(np.arange(8200, dtype=np.int32) * 2741) % 4111
    ),
    "scatter along": _sample("scatter_along_axis_add", "many duplicates"),
    "compact": _traced(lambda x, keep: pm.compact(x, keep), x=numbers(3000), keep=np.arange(3000) % 9 != 4),
    "grouped matmul": _sample("grouped_matmul", "three groups"),
    "grouped weight gradient": _sample("grouped_matmul_grad_weight", "three groups"),
    "splat tiles": _sample("splat_tiles", "some splats"),
    "rasterize": _sample("rasterize", "opaque splats that end early"),
    "rasterize batches": _sample("rasterize", "more than a batch"),
    "rasterize gradient": _sample("rasterize_gradient", "some splats"),
    "grouped qmatvec": _grouped_quantised("q4_0", (2, 0, 3), rows=6),
    "grouped qmatmul": _grouped_quantised("q8_0", (19, 0, 14), rows=40),
    "sort": _sample("sort", "long rows, descending"),
    "top k": _sample("top_k", "long row"),
    "cholesky": _sample("cholesky", "many threads"),
    "lu": _sample("lu", "many threads"),
    "triangular solve": _sample("triangular_solve", "many columns"),
    "qr": _sample("qr", "many threads"),
    "svd": _sample("svd", "many threads"),
    "eigh": _sample("eigh", "many threads"),
    "inverse": _traced(lambda a: pm.linalg.inv(a), a=numbers(9, 9)),
    "determinant": _traced(lambda a: pm.linalg.det(a), a=numbers(3, 7, 7)),
    "searchsorted": _traced(
        lambda a, x: pm.searchsorted(a, x, side="right"),
        a=np.sort(np.round(2 * numbers(100))),
        x=np.round(2 * numbers(65, seed=1)),
    ),
    "scatter extreme": _sample("scatter_extreme", "many of one vector"),
    "nearest": _sample("nearest", "more than a tile"),
    "nearest in parts": _sample("nearest", "more than a tile"),
    "norm gradient": _sample("norm_gradient", "long rows"),
    "norm parameter gradient": _sample("norm_parameter_gradient", "many rows"),
    "mean pool": _sample("mean_pool", "3x3 of stride 2, padded"),
    "max pool gradient": _sample("max_pool_grad", "overlapping"),
    "upsample": _sample("upsample", "linear: odd ratio"),
    "fft": _sample("fft", "mixed radices, inverse"),
    "fft passes": _sample("fft", "longer than a workgroup's memory"),
    "rfft": _sample("rfft", "mixed radices, ortho"),
    "irfft": _sample("irfft", "mixed radices, ortho"),
    "overlap add": _sample("overlap_add", "overlapping"),
    "rope": _sample("rope", "heads share the table"),
    "random normal": _sample("random_normal", "matrix"),
    "matmul fragments": _traced(
        lambda a, b, c: pm.relu(a @ b).astype("f32") + c, a=_halves(21, 136), b=_halves(136, 70, seed=1), c=numbers(70, seed=2)
    ),
    "conv fragments": _traced(
        lambda x, w: pm.conv2d(x, w, padding=1).astype("f32"), x=_halves(1, 9, 7, 6), w=_halves(18, 9, 3, 3, seed=1)
    ),
    "qmatmul fragments": _in_f16(_quantised(21, "q4_0", 70, 9)),
    "attention strips": _in_f16(
        _traced(_attend, q=8 * numbers(1, 4, 40, 16), k=numbers(1, 2, 90, 16, seed=1), v=numbers(1, 2, 90, 16, seed=2))
    ),
}

# Kernels of other devices than the software driver, which runs them just as well: of GPUs, and of software without subgroups,
# whose kernels have no barriers.
GPU = (
    "qmatvec",
    "qmatvec k-quants",
    "qmatvec by digits",
    "qmatvec of a grid",
    "nearest in parts",
    "split k",
    "attention blocks",
    "delta rule by chunks",
    "grouped qmatvec",
)
BARRIERLESS = (
    "direct matmul",
    "direct matmul, odd",
    "direct matvec",
    "direct qmatvec",
    "direct qmatmul",
    "direct qmatmul of a grid",
    "direct qmatmul of trits",
    "attention rows",
)
# Kernels for matrix units, which are emulated; and those whose results or operands are rounded to f16, nearly by 0.1 %.
MATRICES = ("matmul fragments", "conv fragments", "qmatmul fragments", "attention strips")
ROUNDED = ("map f16", *MATRICES)
