// Vectors of dim floats (a multiple of 4) to i8 values, four a word, and one f32 scale each: one workgroup a vector.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
struct Params { num_rows: u32, dim: u32 }
@group(0) @binding(3) var<uniform> u: Params;
var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let row = wid.x + wid.y * nwg.x;
  if (row >= u.num_rows) { return; }
  let start = row * u.dim;
  var top = 1e-30;  // a vector of zeros has a scale too
  for (var i = lid; i < u.dim; i += 64u) { top = max(top, abs(x[start + i])); }
  partial[lid] = top;
  workgroupBarrier();
  for (var span = 32u; span > 0u; span >>= 1u) {
    if (lid < span) { partial[lid] = max(partial[lid], partial[lid + span]); }
    workgroupBarrier();
  }
  let scale = partial[0] / 127.0;
  if (lid == 0u) { scales[row] = scale; }
  for (var w = lid; w < u.dim / 4u; w += 64u) {
    var word = 0u;
    for (var k = 0u; k < 4u; k++) {
      let q = i32(clamp(round(x[start + w * 4u + k] / scale), -127.0, 127.0));
      word |= (bitcast<u32>(q) & 255u) << (8u * k);
    }
    values[start / 4u + w] = word;
  }
}
