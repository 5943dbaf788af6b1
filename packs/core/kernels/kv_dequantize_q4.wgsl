// Blocks of 16 bytes to 32 floats: four bits less 8, times the scale of the block. One invocation a word of four bytes.
@group(0) @binding(0) var<storage, read> values: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
struct Params { num_blocks: u32 }
@group(0) @binding(3) var<uniform> u: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = (wid.x + wid.y * nwg.x) * 256u + lid;
  let block = w / 4u;
  if (block >= u.num_blocks) { return; }
  let word = values[w];
  let first = block * 32u + (w % 4u) * 4u;
  for (var k = 0u; k < 4u; k++) {
    let byte = (word >> (8u * k)) & 255u;
    result[first + k] = (f32(byte & 15u) - 8.0) * scales[block];
    result[first + k + 16u] = (f32(byte >> 4u) - 8.0) * scales[block];
  }
}
