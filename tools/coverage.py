"""Prints our name beside every name of the array API standard and every op of the engine specification; fails if one is missing.

Ours are names of the package (`pm.…`), ops of the registry with a kernel for GPUs (`op …`), or objects of other modules
(`pumice.…:name`). PENDING are names that are being added; those that are there by now are reported, to be taken off the list.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pumice as pm
from pumice.ir.registry import Routine, get_op
from pumice.kernels.routines import ROUTINES

# The main namespace of the array API standard 2024.12, and its extensions.
ARRAY_API = [
    "e",
    "inf",
    "nan",
    "newaxis",
    "pi",
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
    "astype",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "result_type",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "square",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "take",
    "take_along_axis",
    "__array_namespace_info__",
    "matmul",
    "matrix_transpose",
    "tensordot",
    "vecdot",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
    "argmax",
    "argmin",
    "count_nonzero",
    "nonzero",
    "searchsorted",
    "where",
    "isin",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "argsort",
    "sort",
    "cumulative_prod",
    "cumulative_sum",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
    "all",
    "any",
    "diff",
]
LINALG = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
FFT = [
    "fft",
    "ifft",
    "fftn",
    "ifftn",
    "rfft",
    "irfft",
    "rfftn",
    "irfftn",
    "hfft",
    "ihfft",
    "fftfreq",
    "rfftfreq",
    "fftshift",
    "ifftshift",
]
# Names that make no sense for traced arrays, with the reason.
WITHOUT = {
    **dict.fromkeys(["int64", "uint64", "float64"], "WGSL has no 64-bit types"),
    **dict.fromkeys(["int16", "uint16"], "16-bit integers are stored by no kernel; int32 holds them"),
    **dict.fromkeys(["complex64", "complex128", "conj", "imag", "real"], "complex numbers are pairs of real tensors (pm.fft)"),
    "__array_namespace_info__": "it describes devices and defaults of eager arrays; traced ones have neither",
}
# Sections 2.1 to 2.6 of the engine specification.
ENGINE: dict[str, dict[str, str]] = {
    "2.1": {
        "Input, Param, Constant": "pm.trace, pm.spec, pm.state",
        "Reshape": "op reshape",
        "Cast": "op cast",
        **{f"Binary {name}": f"op {name}" for name in ["add", "sub", "mul", "div", "max", "min", "pow"]},
        **{f"Compare {name}": f"op {name}" for name in ["eq", "ne", "lt", "le", "gt", "ge"]},
        **{
            f"Activation {name}": f"op {name}"
            for name in ["relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "gelu", "silu"]
        },
        "Activation gelu_approx": "op gelu_tanh",
        **{f"Activation {name}": f"op {name}" for name in ["round", "sin", "cos", "tan", "atan"]},
        "Where": "op where",
        "Transpose": "op transpose",
        "Narrow": "op slice",
        "Concat": "op concat",
        "Expand": "op expand",
        "Gather": "op gather",
        "ElementwiseRegion": "pumice.plan.fusion:partition",
        "BatchElementwiseRegion": "pumice.kernels.map:lower_updates",
    },
    "2.2": {
        **{f"Reduce {name}": f"op reduce_{name}" for name in ["sum", "mean", "max", "min", "prod"]},
        "Softmax": "op softmax",
        "LayerNorm": "op layer_norm",
        "RmsNorm": "op rms_norm",
        "FusedResidualLN": "op layer_norm",
        "FusedResidualRmsNorm": "op rms_norm",
        "Cumsum": "op cumsum",
        "TopK": "op top_k",
        "Sample": "pm.random.categorical, pumice.llm.sampling:sample",
        "ScatterAdd": "op scatter_add",
        "SelectiveScan": "op selective_scan",
        "GatedDeltaNet": "pm.gated_delta_net, op delta_rule",
    },
    "2.3": {
        "MatMul": "op matmul",
        "FusedMatMulBiasAct": "op matmul",
        "DotGeneral": "pm.dot_general",
        "If": "pm.where",
        "While": "pm.while_loop",
        "GroupedMatMul": "op grouped_matmul",
        "DequantMatMul": "op qmatmul",
        "DequantMatMul (GGUF)": "op qmatmul",
        "DequantGroupedMatMul": "op grouped_qmatmul",
    },
    "2.4": {
        "Attention": "op attention",
        "AttentionBackward": "op attention_gradient",
        "Rope": "op rope",
        "RopeBackward": "op rope",
    },
    "2.5": {
        "Conv 1d": "pm.conv1d, op conv",
        "Conv 2d": "pm.conv2d, op conv",
        "Conv 3d": "pm.conv3d, op conv",
        "Pool 1d": "pm.max_pool1d, pm.mean_pool1d",
        "Pool 2d": "pm.max_pool2d, pm.mean_pool2d",
        "Pool 3d": "pm.max_pool3d, pm.mean_pool3d",
        "Im2Col": "pm.im2col",
        "Fft": "pm.fft.fft, pm.fft.ifft",
        "WelchPeaks": "pm.signal.welch, pm.signal.find_peaks",
        "LogMel": "pm.signal.log_mel_spectrogram",
        "LogMelBackward": "pm.signal.log_mel_spectrogram",
        "umap.knn": "pm.knn_graph, op nearest",
        "llada2.group_limited_gate": "pm.nn.Router",
        "GaussianSplatRender": "pm.splat.render",
        "GaussianSplatPrepare": "pm.splat.project, op splat_tiles",
        "GaussianSplatRasterize": "pm.splat.rasterize, op rasterize",
        "GaussianSplatRenderBackward": "pm.splat.fit, op rasterize_gradient",
    },
    "2.6": {
        "RmsNormBackward": "op norm_gradient, op norm_parameter_gradient",
        "LayerNormBackwardInput": "op norm_gradient",
        "LayerNormBackwardGamma": "op norm_parameter_gradient",
        "CumsumBackward": "op cumsum",
        "GatherBackward": "op scatter_add, op scatter_along_axis_add",
    },
}
PENDING: dict[str, str] = {}


def resolves(ours: str) -> bool:
    """Whether a name of ours is there; an op must have a kernel for GPUs or be composed of such."""
    try:
        if ours.startswith("op "):
            spec = get_op(ours[3:])
            own = not isinstance(spec.lowering, Routine) or spec.lowering.rule in ROUTINES
            return own or spec.composed is not None
        if ours.startswith("pm."):
            found: Any = pm
            for part in ours[3:].split("."):
                found = getattr(found, part)
            return True
        module, name = ours.split(":")
        return hasattr(importlib.import_module(module), name)
    except (pm.PumiceError, AttributeError, ImportError):
        return False


def entries() -> Iterator[tuple[str, str, str]]:
    """Section, name and ours, of all that is asked for."""
    for name in ARRAY_API:
        yield "array API", name, f"pm.{name}"
    for name in LINALG:
        yield "array API", f"linalg.{name}", f"pm.linalg.{name}"
    for name in FFT:
        yield "array API", f"fft.{name}", f"pm.fft.{name}"
    for section, ops in ENGINE.items():
        for name, ours in ops.items():
            yield section, name, ours


def report() -> tuple[list[str], list[str], list[str]]:
    """A line for each name, what is wrong, and which names need not be pending any longer."""
    lines, wrong, done = [], [], []
    for section, name, ours in entries():
        missing = [o for o in ours.split(", ") if not resolves(o)]
        if name in WITHOUT:
            text = f"none: {WITHOUT[name]}"
        elif name in PENDING and missing:
            text = f"{ours} (being added: {PENDING[name]})"
        else:
            text = ours
            if missing:
                wrong.append(f"{name}: there is no {', '.join(missing)}")
            elif name in PENDING:
                done.append(name)
        lines.append(f"{section:<10} {name:<32} {text}")
    known = {name for _, name, _ in entries()}
    wrong += [f"{name} in PENDING or WITHOUT is no name of the lists" for name in {*PENDING, *WITHOUT} - known]
    return lines, wrong, done


def main() -> int:
    lines, wrong, done = report()
    print("\n".join(lines))
    if done:
        print(f"take off PENDING: {', '.join(done)}", file=sys.stderr)
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
