"""Matmuls of several rows of x rounded to 8 bits with packed weights: against the op's reference, which rounds x the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from host.test_routines import problem_of
from pumice.backends.host.memory.tile_layout import tile_format
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit, kernel_tasks, levels
from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import DType
from pumice.ir.registry import Packed, Sample, get_op

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
Array = np.ndarray[Any, Any]
GROUPED = (
    "i4_g32_f16",
    "u4z_g128_f16",
    "u4b_g64_bf16",
    "i8_g64_f32",
    "u8z_g32_f16",
    "u8b_g32_f16",
    "nvfp4_g64_f32",
    "e4m3_g128_f32",
)
# Each kernel takes a second or more to compile: formats that differ in kind, most of which the op's own samples need too.
QUICK = ("q4_0", "q5_1", "q8_0", "q4_k", "q6_k", "u4b_g64_bf16", "e4m3_g128_f32")
every_format = pytest.mark.parametrize(
    "quant",
    [
        pytest.param(d, id=str(d), marks=() if d.name in QUICK else pytest.mark.slow)
        for d in (*LAYOUTS, *(dtypes.dtype(name) for name in GROUPED))
    ],
)


# Codes of 4 to 8 bits with and without offsets and digits, parts of 16 with whole sub-scales and others.
KINDS = ("q4_0", "q4_k", "q5_1", "q8_0", "q2_k", "q6_k", "nvfp4", "u8b_g32_f16")


def problem(x: Array, quant: DType, data: Array) -> str:
    w = Packed(quant, (len(data), x.shape[1]), data)
    return problem_of(get_op("qmatmul"), Sample("", (x, w), {"precision": "fast"}))


def weights(quant: DType, rows: int, k: int) -> Array:
    return quantize_rows(quant, np.random.default_rng(rows).standard_normal((rows, k)).astype("f4"))


@every_format
def test_any_number_of_rows_and_columns(quant: DType) -> None:
    """Rows that fill no registers, tiles that are not full, and more of k than a panel has."""
    rng, wrong = np.random.default_rng(0), []
    for m, n, k in ((2, 1, 256), (3, 33, 256), (7, 70, 512), (13, 32, 768), (16, 45, 512), (40, 65, 512)):
        x = rng.standard_normal((m, k)).astype("f4")
        wrong.append(problem(x, quant, weights(quant, n, k)))
    assert not any(wrong), wrong


@pytest.mark.parametrize("k", [32, 96, 288, 576])
def test_k_that_is_no_whole_number_of_panels(k: int) -> None:
    x = np.random.default_rng(k).standard_normal((9, k)).astype("f4")
    assert not problem(x, dtypes.q4_0, weights(dtypes.q4_0, 40, k))


@every_format
def test_x_of_any_size(quant: DType) -> None:
    """Also numbers whose sums with codes, before scales make them smaller, would be infinite."""
    plain = np.random.default_rng(1).standard_normal((5, 512)).astype("f4")
    many = plain * np.exp(6 * np.random.default_rng(2).standard_normal((5, 512))).astype("f4")
    single = np.zeros((5, 512), "f4")
    single[:, 77] = -3.25
    mixed = plain * np.float32([1e-45, 1e-39, 1, 0, 1e30]).repeat(103)[:512]
    data = weights(quant, 40, 512)
    found = {
        "many": many,
        "single": single,
        "mixed": mixed,
        "tiny": plain * np.float32(1e-36),
        "denormal": plain * np.float32(1e-42),
        "huge": plain * np.float32(1e30),
        "zero": np.zeros((5, 512), "f4"),
        "alike": np.full((5, 512), -0.1, "f4"),
    }
    wrong = {kind: problem(x, quant, data) for kind, x in found.items()}
    assert not any(wrong.values()), wrong
    small = quantize_rows(quant, np.random.default_rng(3).standard_normal((40, 512)).astype("f4") * np.float32(1e-4))
    assert not problem((plain / np.abs(plain).max() * np.float32(3e38)).astype("f4"), quant, small)


@every_format
def test_what_is_not_finite_makes_its_row_nan_and_no_other(quant: DType) -> None:
    kernels = jit.kernels()
    assert kernels is not None
    tiles = Tiles.of(quant, (40, 512), weights(quant, 40, 512))
    x = np.random.default_rng(4).standard_normal((8, 512)).astype("f4")
    x[1, 300], x[4, 0], x[6, 511] = np.nan, np.inf, -np.inf
    out = np.full((8, 40), 7, np.float32)
    kernels.run(kernel_tasks.packed_matmul(x, tiles, out, kernels.is_wide, fast=True))
    bad = np.isin(np.arange(8), (1, 4, 6))
    assert np.isnan(out[bad]).all() and np.isfinite(out[~bad]).all()


@every_format
def test_any_bytes_are_read_as_the_codec_reads_them(quant: DType) -> None:
    """Random bytes use every code, sub-scale and sign; scales are made to be finite."""
    layout = LAYOUTS.get(quant)
    if layout is None:
        pytest.skip("the headers of grouped dtypes hold floats of several kinds; their codes are all used by quantised rows")
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, (45, quant.nbytes(512)), np.uint8)
    blocks = data.reshape(-1, quant.block_bytes)
    for at in (layout.scale, layout.least):
        if at is not None and layout.scale_kind == "nibbles":  # the last has the sign and the exponent's top
            blocks[:, at + 6] = blocks[:, at + 6] & 15 | rng.choice([0, 0x30, 0xB0], len(blocks))
        elif at is not None:
            width = {"f16": 2, "e8m0": 1, "f32": 4}[layout.scale_kind]
            blocks[:, at + width - 1] = rng.choice(
                [0, 60, 66, 188] if layout.scale_kind != "e8m0" else [120, 127, 130], len(blocks)
            )
    if layout.scales is not None and layout.scales.is_float:  # one code of these is NaN
        for (bits,) in layout.scales.parts:
            blocks[:, bits.byte] &= 0x77
    blocks[::5] = 0
    x = rng.standard_normal((9, 512)).astype("f4")
    assert not problem(x, quant, data)


def test_rows_of_x_are_the_same_alone_and_among_others() -> None:
    """A result depends on its row alone: batches and chunks of prompts give the same tokens."""
    kernels = jit.kernels()
    assert kernels is not None
    tiles = Tiles.of(dtypes.q4_k, (40, 512), weights(dtypes.q4_k, 40, 512))
    x = np.random.default_rng(6).standard_normal((29, 512)).astype("f4")

    def matmul(rows: Array) -> Array:
        out = np.empty((len(rows), 40), np.float32)
        kernels.run(kernel_tasks.packed_matmul(np.ascontiguousarray(rows), tiles, out, kernels.is_wide, fast=True))
        return out

    whole = matmul(x)
    for first, last in ((0, 2), (3, 10), (11, 29)):
        np.testing.assert_array_equal(matmul(x[first:last]), whole[first:last])


@pytest.mark.parametrize("name", ["avx512-vnni", "avx512", "avx2-vnni", "avx2", "neon-dotprod"])
def test_code_of_every_kind_of_format_at_every_level(name: str) -> None:
    """It is emitted and verified; running it takes such a machine."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from pumice.backends.host.native.codegen.block_bytes import Panel, emit_rows

    level, long = levels.by_name(name), ir.IntType(64)
    module = ir.Module()
    for quant in map(dtypes.dtype, KINDS):
        panel = Panel(tile_format(quant).layout, level)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [long] * 4), f"add_{quant}")
        builder = ir.IRBuilder(function.append_basic_block())
        x, weights_at, chunks, totals = function.args
        emit_rows(builder, panel, panel.rows[0], x, weights_at, chunks, totals)
        builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    target = llvm.Target.from_triple(f"{level.machine}-linux-gnu")
    text = target.create_target_machine(level.cpu, level.flags, opt=2).emit_assembly(parsed)
    instruction = {"vpdpbusd": "vpdpbusd", "maddubs": "vpmaddubsw", "sdot": "sdot", "none": "mul"}[level.byte_dots]
    assert text.count(instruction) > 100
    # Sums stay in registers: no more than a few of the many loads and stores have to do with the stack.
    stack = {"x86_64": "(%rsp)", "aarch64": "[sp"}[level.machine]
    assert level.byte_dots == "none" or text.count(stack) < 0.1 * text.count("\n")


@pytest.mark.parametrize("quant", (*LAYOUTS, *(dtypes.dtype(name) for name in GROUPED[:-1])), ids=str)
def test_panels_fit_their_memory_and_sums_their_bits(quant: DType) -> None:
    """At every level of every machine."""
    from pumice.backends.host.native.codegen.block_bytes import Panel
    from pumice.backends.host.native.sizes import CHUNK, DEEP, PANEL_BYTES, SPARE_ROWS

    for name in ("avx512-vnni", "avx512", "avx2-vnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "plain"):
        level = levels.by_name(name)
        panel = Panel(tile_format(quant).layout, level)
        assert 0 < max(panel.rows) <= SPARE_ROWS + 1 and DEEP // CHUNK * panel.nbytes <= PANEL_BYTES
        bound = 8 if len(panel.digits) > 1 else panel.bound
        assert bound <= 128
        if panel.is_short:
            assert 2 * 255 * bound * panel.group < 2**15


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_rows_are_prepared_once_for_several_weights(fast: bool) -> None:
    kernels = jit.kernels()
    assert kernels is not None
    x, other = (np.random.default_rng(seed).standard_normal((20, 256)).astype("f4") for seed in (7, 8))
    made = [Tiles.of(dtypes.q4_0, (n, 256), weights(dtypes.q4_0, n, 256)) for n in (40, 33)]

    def tasks(rows: Array, outs: list[Array]) -> list[kernel_tasks.Task]:
        return [task for w, out in zip(made, outs) for task in kernel_tasks.packed_matmul(rows, w, out, True, fast)]

    alone, together = ([np.empty((20, w.rows), np.float32) for w in made] for _ in range(2))
    for w, out in zip(made, alone):
        kernels.run(kernel_tasks.packed_matmul(x, w, out, True, fast))
    joined = kernel_tasks.joined(tasks(x, together))
    assert len(joined) == 3 and joined[0].kernel != joined[1].kernel == joined[2].kernel
    kernels.run(tasks(x, together))
    for got, want in zip(together, alone):
        np.testing.assert_array_equal(got, want)
    # Other rows, or a write in between, need them again.
    assert len(kernel_tasks.joined([*tasks(x, together), *tasks(other, together)])) == 6
    add = kernel_tasks.elementwise("add")([other, other], x)
    assert add is not None and len(kernel_tasks.joined([*tasks(x, together), *add, *tasks(x, together)])) == 7
