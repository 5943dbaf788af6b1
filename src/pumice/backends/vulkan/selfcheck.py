"""Whether `auto` may take Vulkan on this machine: a hardware driver that is new enough and gives a right result; else why not."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from pumice.backends.gpu.memory import BufferRange
from pumice.backends.vulkan import naga
from pumice.backends.vulkan.adapters import list_adapters
from pumice.errors import PumiceError
from pumice.plan.plan import Kernel

_THREADS = 64
# A sum over a workgroup: buffers, a uniform, workgroup memory and barriers all have to work for it to come out right.
_SUM = Kernel(
    "self-check",
    f"""@group(0) @binding(0) var<storage, read> given: array<f32>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
struct Sizes {{ scale: u32 }}
@group(0) @binding(2) var<uniform> u: Sizes;
var<workgroup> partial: array<f32, {_THREADS}>;
@compute @workgroup_size({_THREADS})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{
  partial[lid] = given[wid.x * {_THREADS}u + lid] * f32(u.scale);
  workgroupBarrier();
  for (var step = {_THREADS // 2}u; step > 0u; step = step / 2u) {{
    if (lid < step) {{ partial[lid] += partial[lid + step]; }}
    workgroupBarrier();
  }}
  if (lid == 0u) {{ sums[wid.x] = partial[0]; }}
}}
""",
    ("read", "write"),
    1,
    _THREADS,
    _THREADS * 4,
    origin="generated",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `auto` makes of Vulkan here: the device that it may take, if any, and the reason in a sentence."""

    spec: str | None
    reason: str


def verdict() -> Verdict:
    """Whether `auto` may take a Vulkan device. Nothing is fetched: the first use of the device puts the compiler in the cache."""
    try:
        adapters = list_adapters()
    except PumiceError as e:
        return Verdict(None, e.message)
    if not adapters:
        return Verdict(None, "Vulkan finds no device")
    hardware = [a for a in adapters if a.hardware]
    if not hardware:
        return Verdict(None, f"{adapters[0].name} is a software driver")
    first = hardware[0]
    if first.raw.problem:
        return Verdict(None, f"{first.name}: {first.raw.problem}")
    try:
        naga.import_wasmtime()
        naga.cached_file(fetch=False)
    except PumiceError as e:
        return Verdict(None, f"{first.name} is not used through Vulkan: {e.message}")
    problem = self_check(first.index)
    if problem:
        return Verdict(None, f"{first.name} fails the self-check: {problem}")
    return Verdict(f"vulkan:{first.index}", f"{first.title} is the best GPU found, and passes the self-check")


@functools.cache
def self_check(index: int) -> str:
    """Run a small kernel on a device; what is wrong with it, or nothing. Once per process."""
    from pumice.backends.vulkan.device import VulkanDevice

    given = np.arange(4 * _THREADS, dtype=np.float32)
    try:
        gpu = VulkanDevice(str(index)).gpu
        (pipeline,) = gpu.pipelines.compile([_SUM])
        with gpu.lock, gpu.guard("the self-check"):
            buffers = [gpu.create_buffer(given.nbytes, "self-check"), gpu.create_buffer(16, "self-check")]
            sizes = gpu.create_buffer(16, "self-check", "uniform")
            try:
                gpu.upload([BufferRange(buffers[0], 0, given.nbytes)], given)
                gpu.write_sizes(sizes, np.array([3, 0, 0, 0], np.uint32).view(np.uint8))
                ranges = [(buffers[0], 0, given.nbytes), (buffers[1], 0, 16), (sizes, 0, 16)]
                group = gpu.pipelines.bind(pipeline, ranges, "self-check")
                steps = [(pipeline.handle, group.handle, 4, 1, 1)]
                (found,) = gpu.execute([([BufferRange(buffers[1], 0, 16)], 16)], [lambda commands: commands.steps(steps)])
            finally:
                for buffer in (*buffers, sizes):
                    buffer.release()
    except PumiceError as e:
        return e.message
    wanted = given.reshape(4, _THREADS).sum(axis=1) * 3
    return "" if np.array_equal(found.view(np.float32), wanted) else f"a sum came out as {found.view(np.float32)}, not {wanted}"
