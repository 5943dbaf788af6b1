// Blocks of 32 floats to 16 bytes and one f32 scale each; byte j holds element j in its low and j + 16 in its high four bits.
// One invocation a block.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
struct Params { num_blocks: u32 }
@group(0) @binding(3) var<uniform> u: Params;

fn four_bits(i: u32, scale: f32) -> u32 { return u32(clamp(round(x[i] / scale), -7.0, 7.0) + 8.0); }

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let block = (wid.x + wid.y * nwg.x) * 64u + lid;
  if (block >= u.num_blocks) { return; }
  let start = block * 32u;
  var top = 1e-30;  // a block of zeros has a scale too
  for (var i = 0u; i < 32u; i++) { top = max(top, abs(x[start + i])); }
  let scale = top / 7.0;
  scales[block] = scale;
  for (var w = 0u; w < 4u; w++) {
    var word = 0u;
    for (var k = 0u; k < 4u; k++) {
      let i = start + w * 4u + k;
      word |= (four_bits(i, scale) | (four_bits(i + 16u, scale) << 4u)) << (8u * k);
    }
    values[block * 4u + w] = word;
  }
}
