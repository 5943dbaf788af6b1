"""Kernels at other levels than the machine's own: lower ones are run here, those of other machines compiled and emulated.

A process has one level, so that each gets a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pumice.backends.host.native import jit, levels

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOWER = [level.name for level in levels.available()[1:]] if jit.available() else []
NEON = ("neon", "neon-dotprod", "neon-i8mm")
# What kernels may call: the C library, which every process has.
LIBRARY = {"memcpy", "memmove", "memset", "bcmp", "exp", "expf", "sched_yield", "SwitchToThread"}
# Tests of kernels against the reference, and a few of them that compile one kernel of each kind.
FILES = (
    "packed",
    "digits",
    "native",
    "byte_matmul",
    "norm_gradients",
    "channel_norms",
    "conv_kernels",
    "winograd",
    "pooling_kernels",
    "fused",
)
SOME = (
    "test_packed.py::test_every_reader_of_a_tied_table[q8_0-5-numba]",
    "test_native.py::test_norms_of_any_width[rms_norm-577]",
    "test_native.py::test_maps_of_any_length[mul-5000]",
    "test_native.py::test_exponentials_over_the_whole_range[silu]",
)


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join(str(p) for p in (ROOT / "src", HERE))
    return {**os.environ, "PYTHONPATH": paths, **more}


def run_tests(tests: list[str], *options: str, **more: str) -> None:
    """Runs tests of this folder in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    done = subprocess.run(
        [*command, *(str(HERE / t) for t in tests)], capture_output=True, text=True, env=environment(**more), cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("level", LOWER)
def test_some_kernels_at_lower_levels(level: str) -> None:
    run_tests(list(SOME), PUMICE_CPU=level)


@pytest.mark.slow
@pytest.mark.parametrize("level", LOWER)
def test_all_kernels_at_lower_levels(level: str) -> None:
    run_tests([f"test_{name}.py" for name in FILES], PUMICE_CPU=level)


# --- code of other machines ---


def compiled_for(level: str, folder: Path, *kernels: str) -> dict[str, Any]:
    """The functions that the code of kernels calls, and its instructions."""
    command = [sys.executable, str(HERE / "level_objects.py"), level, str(folder), *kernels]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, f"the last kernel of: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    for kernel, about in found.items():
        calls = {c for c in about["calls"] if c and not c.startswith("_GLOBAL_OFFSET_TABLE_")}
        assert calls <= LIBRARY, kernel
    return found


# The instruction for dot products of bytes, by level.
BYTE_DOTS = {
    "avx512-vnni": "vpdpbusd",
    "avx512": "vpmaddubsw",
    "avx2-vnni": "vpdpbusd",
    "avx2": "vpmaddubsw",
    "neon-i8mm": "sdot",
    "neon-dotprod": "sdot",
}


@pytest.mark.parametrize("level", [pytest.param("avx512-vnni", marks=pytest.mark.slow), "neon-dotprod"])
def test_code_of_some_kernels_for_other_machines(level: str, tmp_path: Path) -> None:
    found = compiled_for(level, tmp_path, "matmul_fast_q8_0", "serve", "dot_f16")
    assert BYTE_DOTS[level] in found["matmul_fast_q8_0"]["instructions"]
    expected = ("fcvtl", "yield") if level.startswith("neon") else ("vcvtph2ps", "pause")
    assert expected[0] in found["dot_f16"]["instructions"] and expected[1] in found["serve"]["instructions"]


@pytest.mark.slow
@pytest.mark.parametrize("level", [*(level.name for level in levels._LEVELS), "plain"])
def test_code_of_all_kernels_at_every_level(level: str, tmp_path: Path) -> None:
    found = compiled_for(level, tmp_path)
    fast = {i for name, about in found.items() if name.startswith("matmul_fast_") for i in about["instructions"]}
    assert level not in BYTE_DOTS or BYTE_DOTS[level] in fast


# --- aarch64 under qemu ---

needs_emulator = pytest.mark.skipif(
    not all(map(shutil.which, ("qemu-aarch64", "aarch64-linux-gnu-gcc"))),
    reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc, which `tools/install-test-deps.sh emulator` installs",
)
# Emulated, each call of a kernel starts a program: fewer sizes, and no tests of threads and processes.
EMULATED = (
    *SOME,
    "test_packed.py::test_every_reader_of_a_tied_table[q5_0-5-numba]",
    "test_packed.py::test_every_reader_of_a_tied_table[q6_k-5-numba]",
    "test_packed.py::test_every_reader_of_a_tied_table[q4_k-5-numba]",
    "test_packed.py::test_every_reader_of_a_tied_table[iq4_nl-5-numba]",
    "test_packed.py::test_matmuls_of_any_shape[q4_1-576-75-1-numba]",
    "test_packed.py::test_matmuls_of_any_shape[q4_1-576-75-17-numba]",
    "test_native.py::test_attention_of_few_queries_through_pages",
    "test_native.py::test_attention_of_many_queries_through_pages",
    "test_native.py::test_rows_replaced_in_place",
)


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("level", NEON)
def test_kernels_of_aarch64_under_qemu(level: str) -> None:
    run_tests(list(EMULATED), "-p", "emulated", PUMICE_EMULATE=level)
