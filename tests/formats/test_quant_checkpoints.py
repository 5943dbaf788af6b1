"""GPTQ, AWQ, MLX, fp8, nvfp4 and compressed-tensors checkpoints: exact values, packed sizes, products, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats import quant_layouts as q
from formats.quant_layouts import Array, save
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows
from pumice.errors import FormatError, InputError
from pumice.formats import open_weights
from pumice.formats.quantization import Quantization
from pumice.formats.quantized import QuantizedWeights
from pumice.ir.graph import GraphBuilder
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.reference.interpreter import evaluate_graph

import harness

Layer = tuple[dict[str, Array], Array]
GPTQ, GPTQ8 = Quantization("gptq", bits=4, shift=1), Quantization("gptq", bits=8, shift=1)
GPTQ_V2, AWQ, FP8 = Quantization("gptq", bits=4), Quantization("awq"), Quantization("fp8")
COMPRESSED, MODELOPT = Quantization("compressed-tensors"), Quantization("modelopt")
# Name, how it is read, how it is made, and the dtype that it must become.
CASES: dict[str, tuple[Quantization, Callable[[int, int], Layer], str]] = {
    **{
        f"gptq {bits} bits, {group}{' act-order' if act else ''}": (
            GPTQ if bits == 4 else GPTQ8,
            lambda n, k, bits=bits, group=group, act=act: q.gptq(n, k, bits=bits, group=group, act_order=act),
            f"u{bits}z_g{256 if group == -1 else group}_f16",
        )
        for bits in (4, 8)
        for group in (32, 64, 128, -1)
        for act in (False, True)
        if not act or group != -1  # a single group has no order
    },
    "gptq v2": (GPTQ_V2, lambda n, k: q.gptq(n, k, v2=True), "u4z_g128_f16"),
    "awq 64": (AWQ, lambda n, k: q.awq(n, k, group=64), "u4z_g64_f16"),
    "awq 128": (AWQ, lambda n, k: q.awq(n, k, group=128), "u4z_g128_f16"),
    **{
        f"mlx {bits} bits, {group}, {scale}": (
            Quantization("mlx", group=group),
            lambda n, k, bits=bits, group=group, scale=scale: q.mlx(n, k, bits=bits, group=group, scale=scale),
            f"u{bits}b_g{group}_{scale}",
        )
        for bits, group, scale in ((4, 32, "f16"), (4, 64, "bf16"), (4, 128, "f32"), (8, 32, "bf16"), (8, 64, "f16"))
    },
    **{
        f"fp8 {kind}, a scale a {per}": (
            FP8,
            lambda n, k, kind=kind, per=per: q.fp8(n, k, kind=kind, per=per),
            f"{kind}_g{128 if per == 'block' else 256}_f32",
        )
        for kind in ("e4m3", "e5m2")
        for per in ("tensor", "one", "row", "column", "block")
    },
    "fp8 bf16 scales": (FP8, lambda n, k: q.fp8(n, k, scale="bf16"), "e4m3_g128_bf16"),
    "nvfp4": (COMPRESSED, q.nvfp4, "nvfp4_g256_f32"),
    "nvfp4 modelopt": (MODELOPT, lambda n, k: q.nvfp4(n, k, modelopt=True), "nvfp4_g256_f32"),
    "packed 4": (COMPRESSED, lambda n, k: q.packed(n, k), "i4_g128_bf16"),
    "packed 8": (COMPRESSED, lambda n, k: q.packed(n, k, bits=8, group=256), "i8_g256_bf16"),
    "packed 4 with zeros": (COMPRESSED, lambda n, k: q.packed(n, k, zeros=True, group=32), "u4z_g32_bf16"),
    "packed 8 with zeros": (COMPRESSED, lambda n, k: q.packed(n, k, bits=8, zeros=True), "u8z_g128_bf16"),
    "packed 4 act-order": (COMPRESSED, lambda n, k: q.packed(n, k, act_order=True), "i4_g128_bf16"),
    "int8": (COMPRESSED, q.int8, "i8_g256_f32"),
    "int8 in groups": (COMPRESSED, lambda n, k: q.int8(n, k, groups=2), "i8_g128_f32"),
    "int8 with zeros": (COMPRESSED, lambda n, k: q.int8(n, k, zeros=True), "u8z_g256_f32"),
    "fp8 of compressed-tensors": (COMPRESSED, lambda n, k: q.fp8(n, k, per="column", scale="bf16"), "e4m3_g256_bf16"),
}
every_case = pytest.mark.parametrize("name", CASES)


def opened(path: Path, quantization: Quantization, tensors: dict[str, Array]) -> QuantizedWeights:
    save(path, {f"m.lin.{name}": a for name, a in tensors.items()})
    return QuantizedWeights(open_weights(path), quantization)


def in_order(values: Array, weights: QuantizedWeights) -> Array:
    """Columns back in the order of the activations."""
    if "m.lin.order" not in weights.tensors:
        return values
    out = np.empty_like(values)
    out[:, weights.array("m.lin.order")] = values
    return out


@every_case
def test_values_are_exactly_those_of_the_layout(name: str, tmp_path: Path) -> None:
    quantization, make, dtype = CASES[name]
    tensors, want = make(40, 256)
    with opened(tmp_path / "m.safetensors", quantization, tensors) as weights:
        info = weights.tensors["m.lin.weight"]
        assert (info.dtype.name, info.shape) == (dtype, (40, 256))
        assert set(weights.tensors) - {"m.lin.weight"} == ({"m.lin.order"} if "act-order" in name else set())
        data = weights.array("m.lin.weight")
        assert data.shape == info.type.stored_shape and data.dtype == np.uint8 and not data.flags.writeable
        got = in_order(dequantize_rows(info.dtype, data, 256), weights)
    np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(want).view(np.uint32))
    # Codes at their own size, plus the scales and offsets.
    bits = 4 if dtype.startswith(("u4", "i4", "nvfp4")) else 8
    assert data.nbytes >= 40 * 256 * bits // 8 and data.nbytes <= 40 * 256 * bits // 8 * 1.26


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "name", ["gptq 4 bits, 64 act-order", "gptq 8 bits, -1", "awq 128", "mlx 4 bits, 64, bf16", "mlx 8 bits, 64, f16",
             "fp8 e4m3, a scale a block", "fp8 e5m2, a scale a row", "nvfp4", "int8 with zeros"],
)  # fmt: skip
def test_products(name: str, target: str, tmp_path: Path) -> None:
    quantization, make, _ = CASES[name]
    tensors, want = make(40, 256)
    with opened(tmp_path / "m.safetensors", quantization, tensors) as weights:
        info, data = weights.tensors["m.lin.weight"], weights.array("m.lin.weight")
        order = weights.array("m.lin.order") if "m.lin.order" in weights.tensors else None
    for m in (1, 33):
        b = GraphBuilder()
        x = b.source("input", "x", TensorType(dtypes.f32, (m, 256)))
        w = b.source("param", "w", info.type)
        params = {"w": data}
        y = x
        if order is not None:
            places = b.source("param", "order", TensorType(dtypes.i32, (256,)))
            params["order"] = order
            y = b.add("gather", [x, places], {"axis": 1})
        case = harness.Case(b.build([("y", b.add("qmatmul", [y, w]))]), {"x": _normal(m, 256)}, params)
        plan = build_plan(case.graph, harness.device(target).caps)
        kept = [buffer.nbytes for buffer in plan.buffers if buffer.kind == "param" and buffer.name == "w"]
        assert kept == [-(-data.nbytes // 4) * 4], "the weight lies on the device as it is packed"
        (oracle,) = evaluate_graph(case.graph, case.inputs, case.params).outputs
        np.testing.assert_allclose(oracle, case.inputs["x"].astype(np.float64) @ want.T.astype(np.float64), rtol=1e-9, atol=1e-9)
        assert harness.check(case, target) == ""


def _normal(*shape: int) -> Array:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("k", [160, 352])
def test_ragged_blocks_of_fp8(k: int, tmp_path: Path) -> None:
    tensors, want = q.fp8(200, k)
    with opened(tmp_path / "m.safetensors", FP8, tensors) as weights:
        info = weights.tensors["m.lin.weight"]
        assert info.dtype == dtypes.grouped("e4m3", 32, "f32")
        np.testing.assert_array_equal(dequantize_rows(info.dtype, weights.array("m.lin.weight"), k), want)


def test_nan_and_infinite_numbers_of_a_file_survive(tmp_path: Path) -> None:
    tensors, _ = q.fp8(40, 256, per="column")
    tensors["weight"][0, 3] = np.nan
    tensors["weight_scale"][1] = np.inf
    tensors["weight_scale"][2] = np.nan
    want = tensors["weight"].astype(np.float32) * tensors["weight_scale"]
    with opened(tmp_path / "m.safetensors", FP8, tensors) as weights:
        info, data = weights.tensors["m.lin.weight"], weights.array("m.lin.weight")
    np.testing.assert_array_equal(dequantize_rows(info.dtype, data, 256), want)
    assert np.isnan(want[0, 3]) and np.isinf(want[1]).any() and np.isnan(want[2]).all()


def test_other_tensors_pass_through_and_those_of_activations_do_not(tmp_path: Path) -> None:
    tensors, _ = q.nvfp4(40, 256)
    tensors |= {"bias": np.zeros(40, np.float32), "k_scale": np.float32([1])}
    with opened(tmp_path / "m.safetensors", COMPRESSED, tensors) as weights:
        assert set(weights.tensors) == {"m.lin.weight", "m.lin.bias"}
        assert weights.array("m.lin.bias").shape == (40,)
        assert weights.is_spare("m.lin.bias") and not weights.is_spare("m.lin.weight")


def test_mlx_layers_may_have_their_own_groups(tmp_path: Path) -> None:
    config = {"quantization": {"group_size": 64, "bits": 4, "m.lin": {"group_size": 32, "bits": 8}}}
    quantization = Quantization.from_config(config)
    assert quantization is not None
    tensors, want = q.mlx(40, 256, bits=8, group=32)
    with opened(tmp_path / "m.safetensors", quantization, tensors) as weights:
        info = weights.tensors["m.lin.weight"]
        assert info.dtype == dtypes.grouped("u8b", 32, "bf16")
        np.testing.assert_array_equal(dequantize_rows(info.dtype, weights.array("m.lin.weight"), 256), want)


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, GPTQ),
        ({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}, Quantization("gptq", bits=8)),
        ({"quant_method": "gptq", "bits": 8, "format": "gptq_v2"}, Quantization("gptq", bits=8)),
        ({"quant_method": "awq", "bits": 4, "version": "GEMM"}, AWQ),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, Quantization("fp8", block=(64, 128))),
        ({"quant_method": "fp8", "weight_block_size": None}, FP8),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, COMPRESSED),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, MODELOPT),
        ({"group_size": 64, "bits": 4}, Quantization("mlx", group=64)),
    ],
)
def test_configs(section: dict[str, Any], found: Quantization) -> None:
    assert Quantization.from_config({"quantization_config": section}) == found


PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({}, "None"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "bits": 4, "format": "bitblas"}, "bitblas"),
        ({"quant_method": "gptq", "bits": 4, "rotation": "hadamard"}, "hadamard"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}, "gemv_fast"),
        ({**PACKED, "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "rotated activations"),
        ({**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "W4A8"),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "mxfp4"),
    ],
)
def test_unknown_methods_are_refused_by_name(section: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Quantization.from_config({"quantization_config": section})


@pytest.mark.parametrize("section", ["gptq", {"quant_method": "fp8", "weight_block_size": 3}, {"group_size": "x", "bits": 4}])
def test_broken_configs(section: Any) -> None:
    with pytest.raises(FormatError):
        Quantization.from_config({"quantization_config": section})


def _without(layer: Layer, *names: str) -> dict[str, Array]:
    return {k: v for k, v in layer[0].items() if k not in names}


@pytest.mark.parametrize(
    ("quantization", "tensors", "what"),
    [
        (GPTQ, _without(q.gptq(40, 256), "qzeros"), "no qzeros"),
        (GPTQ, {**q.gptq(40, 256)[0], "scales": np.ones((3, 40), np.float16)}, "3 groups in 256"),
        (GPTQ, {**q.gptq(40, 256)[0], "scales": np.ones((2, 41), np.float16)}, "shape"),
        (GPTQ, {**q.gptq(40, 256)[0], "scales": np.ones((2, 40), np.int8)}, "i8"),
        (GPTQ, {**q.gptq(40, 256)[0], "g_idx": np.zeros(256, np.int32)}, "different sizes"),
        (GPTQ, {**q.gptq(40, 256)[0], "g_idx": np.zeros(255, np.int32)}, "g_idx"),
        (GPTQ, {**q.gptq(40, 256)[0], "qweight": np.zeros((32, 40), np.int8)}, "32-bit words"),
        (AWQ, {**q.awq(40, 256)[0], "scales": np.ones(2, np.float16)}, "not a matrix"),
        (Quantization("mlx", group=64), {**q.mlx(40, 256)[0], "weight": np.zeros((40, 24), np.uint32)}, "bits"),
        (Quantization("mlx", group=64), _without(q.mlx(40, 256), "biases"), "no biases"),
        (FP8, {**q.fp8(40, 256, per="row")[0], "weight_scale": np.ones((7, 3), np.float32)}, r"\[7, 3\]"),
        (COMPRESSED, {**q.packed(40, 256)[0], "weight_shape": np.array([40, 200])}, r"\[40, 200\]"),
        (COMPRESSED, {**q.nvfp4(40, 256)[0], "weight_scale": np.ones((40, 16), np.float32)}, "e4m3"),
        (COMPRESSED, {**q.nvfp4(40, 256)[0], "weight_packed": np.ones((40, 24), np.uint8)}, "multiple of 32"),
    ],
)
def test_layers_that_do_not_fit_together(
    quantization: Quantization, tensors: dict[str, Array], what: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=what) as e:
        opened(tmp_path / "m.safetensors", quantization, tensors)
    assert "m.lin" in str(e.value)
