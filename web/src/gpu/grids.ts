// Grids: numbers of workgroups folded into three dimensions, here or, for counts in memory, by a kernel of our own.
//
// Plans may come from anyone, and the counts in them are data: whatever a word holds, no more workgroups than the
// plan's bound are launched.

import type { PlanKernel } from "../plan/file.js";

/** A grid of at least `n` workgroups, at most `limit` in a dimension. */
export function foldGrid(n: number, limit: number): [number, number, number] {
  if (n <= limit) return [n, 1, 1];
  const y = Math.ceil(n / limit);
  if (y <= limit) return [Math.ceil(n / y), y, 1];
  const z = Math.ceil(y / limit);
  return [limit, Math.ceil(y / z), z];
}

/** Three words of a grid, in whole 16 bytes. */
export const SLOT_BYTES = 16;

/** Clamps a word to a bound and folds it as `foldGrid` does, without sums that could overflow. */
export const CLAMP: PlanKernel = {
  name: "clamp",
  text: `@group(0) @binding(0) var<storage, read> counts: array<u32>;
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
`,
  access: "rw",
  words: 4,
  workgroup: 1,
  shared: 0,
  features: [],
};
