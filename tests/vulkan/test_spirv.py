"""SPIR-V: what naga and the passes make of kernels is valid, keeps guards for foreign kernels and drops them for own ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pumice.backends.gpu.pipelines import naga_text
from pumice.backends.vulkan import naga, spirv
from pumice.core.caps import Caps
from pumice.errors import FormatError
from pumice.ir.registry import all_ops
from pumice.plan.build import build_plan
from pumice.plan.plan import Kernel

from harness import one_op

pytestmark = pytest.mark.vulkan
VALIDATOR = shutil.which("spirv-val")
needs_validator = pytest.mark.skipif(VALIDATOR is None, reason="spirv-val is missing: apt-get install spirv-tools")
INDEXED = """var<workgroup> shared_words: array<array<f32, 4>, 8>;
var<private> kept: array<vec4<u32>, 3>;
struct Pair { a: array<f32, 5>, b: u32 }
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) i: u32) {
  var local: array<f32, 7>;
  var pair: Pair;
  let k = i32(out[1]);
  local[k] = 2.0;
  shared_words[i][k] = local[i + 1u];
  pair.a[k] = 3.0;
  kept[i][k] = 3u;
  workgroupBarrier();
  for (var j = 0u; j < 9u; j++) { out[j] = shared_words[j][i] + pair.a[j]; }
  out[3] = f32(kept[k][i]);
}
"""


def invalid(code: bytes, folder: Path) -> str:
    """What the validator says."""
    assert VALIDATOR is not None
    file = folder / "kernel.spv"
    file.write_bytes(code)
    done = subprocess.run([VALIDATOR, "--target-env", "vulkan1.3", str(file)], capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def kernels_of(ops: int) -> dict[str, Kernel]:
    """The kernels of every so many ops on a large GPU and on a software driver, by their text."""
    found = {}
    for caps in (Caps.preset("h200"), Caps.preset("lavapipe")):
        for spec in all_ops()[::ops]:
            sample = next(iter(spec.samples()))
            found |= {k.wgsl: k for k in build_plan(one_op(spec, sample).graph, caps).kernels}
    return found


@needs_validator
@pytest.mark.parametrize("ops", [12, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_kernels_are_valid_with_and_without_guards(ops: int, tmp_path: Path) -> None:
    problems = []
    kernels = kernels_of(ops)
    assert len(kernels) > 10
    for kernel in kernels.values():
        code = naga.translate(naga_text(kernel))
        for own in (True, False):
            if said := invalid(spirv.finish(code, own=own), tmp_path):
                problems.append(f"{kernel.name} {own}: {said}")
    assert not problems


@needs_validator
@pytest.mark.parametrize("own", [True, False])
def test_every_kind_of_index_stays_valid(own: bool, tmp_path: Path) -> None:
    assert invalid(spirv.finish(naga.translate(INDEXED), own=own), tmp_path) == ""


def count(code: bytes, kind: int) -> int:
    return sum(1 for one in spirv.SpirvModule(code).code if spirv.kind_of(one) == kind)


def test_foreign_kernels_keep_their_guards_and_own_ones_do_not() -> None:
    plain = naga.translate(INDEXED)
    own, foreign = (spirv.finish(plain, own=own) for own in (True, False))
    # naga tests the count of rounds with OpAll; the test of an own kernel is a constant.
    assert count(plain, spirv._ALL) == count(foreign, spirv._ALL) == 1 and count(own, spirv._ALL) == 0
    # Indices into arrays outside buffers: twelve of them are not constant.
    clamps = count(foreign, spirv._EXT_INST) - count(plain, spirv._EXT_INST)
    assert clamps == 12 and count(own, spirv._EXT_INST) == count(plain, spirv._EXT_INST)
    # One thread zeroes workgroup memory first, except in own kernels.
    assert count(plain, spirv._STORE) - count(own, spirv._STORE) == 1 and count(foreign, spirv._STORE) == count(
        plain, spirv._STORE
    )


def test_the_loops_of_users_are_not_taken_for_naga_s_counts() -> None:
    text = """@group(0) @binding(0) var<storage, read_write> out: array<vec2<u32>>;
@compute @workgroup_size(1) fn main() { if (all(out[0] == vec2<u32>(0u, 0u))) { out[1] = vec2<u32>(1u, 1u); } }"""
    plain = naga.translate(text)
    assert count(plain, spirv._ALL) == count(spirv.finish(plain, own=True), spirv._ALL) == 1


@pytest.mark.parametrize("code", [b"", b"\0" * 64, naga.SPEC.encode() * 8], ids=["nothing", "zeros", "text"])
def test_what_is_no_spirv_is_refused(code: bytes) -> None:
    with pytest.raises(FormatError):
        spirv.finish(code, own=False)


def test_an_instruction_without_end_is_refused() -> None:
    good = spirv.finish(naga.translate(INDEXED), own=True)
    with pytest.raises(FormatError):
        spirv.SpirvModule(good[:-12])


def test_barriers_of_subgroups_order_workgroup_memory() -> None:
    text = """
var<workgroup> tile: array<f32, 64>;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32) {
  tile[lid] = f32(lid);
  subgroupBarrier();
  out[lid] = tile[lid ^ 1u];
}"""
    module = spirv.SpirvModule(spirv.finish(naga.translate(text), own=True))
    values = {one[2]: one[3] for one in module.of(43)}
    found = [[values[word] for word in one[1:]] for one in module.of(224)]
    assert [3, 3, 0x108] in found  # acquire and release, of workgroup memory
