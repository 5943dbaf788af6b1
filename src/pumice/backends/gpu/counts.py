"""Grids from the device: a kernel of the runtime clamps a step's count and folds it, right before the step.

Plans may come from anyone, and the counts in them are data: whatever a word holds, no more workgroups than the plan's bound
are launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.backends.gpu.interface import AnyPipeline, Gpu, IndirectGrid
from pumice.backends.gpu.memory import BufferRange, DeviceBuffer
from pumice.plan.plan import Binding, DeviceCount, Kernel, Step

# Three words of a grid, in whole 16 bytes.
SLOT_BYTES = 16
# The same as `fold_grid`, without sums that could overflow.
CLAMP = Kernel(
    "clamp",
    """@group(0) @binding(0) var<storage, read> counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> grids: array<vec4<u32>>;
struct Sizes { word: u32, most: u32, limit: u32, slot: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;

fn parts(n: u32, size: u32) -> u32 {
  return n / size + select(0u, 1u, n % size != 0u);
}

@compute @workgroup_size(1)
fn main() {
  let n = min(counts[u.word], u.most);
  var grid = vec3<u32>(n, 1u, 1u);
  if (n > u.limit) {
    let rows = parts(n, u.limit);
    if (rows <= u.limit) {
      grid = vec3<u32>(parts(n, rows), rows, 1u);
    } else {
      let layers = parts(rows, u.limit);
      grid = vec3<u32>(u.limit, parts(rows, layers), layers);
    }
  }
  grids[u.slot] = vec4<u32>(grid, 0u);
}
""",
    ("read", "write"),
    4,
    1,
    origin="generated",
)


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The bind group of a step, and where its grid comes from the device, that of its clamp and the grid."""

    own: Any
    clamp: Any = None
    grid: IndirectGrid | None = None


def clamp_steps(steps: Sequence[Step], limit: int) -> dict[int, Step]:
    """A step of the runtime for each step whose grid comes from the device, by the number of that one.

    >>> steps = [Step("a", (), 0, ()), Step("b", (), 0, (), groups=DeviceCount(7, 2, 64))]
    >>> {i: s.uniforms for i, s in clamp_steps(steps, 65535).items()}
    {1: (2, 64, 65535, 0)}
    """
    found: dict[int, Step] = {}
    for i, s in enumerate(steps):
        if isinstance(s.groups, DeviceCount):
            reads = (Binding(s.groups.value, 0, "read"),)
            found[i] = Step("clamp", (), -1, reads, uniforms=(s.groups.word, s.groups.most, limit, len(found)))
    return found


@dataclass(frozen=True, slots=True)
class Clamps:
    """The clamps of a session: one buffer has a slot for each; `values` and `uniforms` are those of each, by its step."""

    pipeline: AnyPipeline
    grids: DeviceBuffer
    values: Mapping[int, int]
    uniforms: Mapping[int, tuple[int, int]]

    def bind(
        self, gpu: Gpu, step: int, places: Mapping[int, tuple[BufferRange, ...]], uniform: DeviceBuffer
    ) -> tuple[Any, IndirectGrid]:
        """The bind group of the clamp of one step, and the grid that it writes."""
        (place,) = places[self.values[step]]
        ranges = [(place.buffer, *place.binding), (self.grids, 0, self.grids.nbytes), (uniform, *self.uniforms[step])]
        group = gpu.pipelines.bind(self.pipeline, ranges, "clamp")
        slot = list(self.values).index(step)
        return group, IndirectGrid(self.pipeline.handle, group.handle, self.grids.handle, SLOT_BYTES * slot)
