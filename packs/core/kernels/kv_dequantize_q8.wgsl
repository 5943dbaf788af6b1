// i8 values, four a word, times the scale of their vector of dim (a multiple of 4): one invocation a word.
@group(0) @binding(0) var<storage, read> values: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
struct Params { num_rows: u32, dim: u32 }
@group(0) @binding(3) var<uniform> u: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let w = (wid.x + wid.y * nwg.x) * 256u + lid;
  let row = w / (u.dim / 4u);
  if (row >= u.num_rows) { return; }
  let word = values[w];
  for (var k = 0u; k < 4u; k++) {
    let q = bitcast<i32>(word << (24u - 8u * k)) >> 24u;
    result[w * 4u + k] = f32(q) * scales[row];
  }
}
