// exp(x) over its sum along the last axis, less the greatest first: one workgroup a row.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;
struct Params { dim: u32, num_elements: u32 }
@group(0) @binding(2) var<uniform> u: Params;
var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let start = (wid.x + wid.y * nwg.x) * u.dim;
  if (start >= u.num_elements) { return; }
  var top = -3.40282347e+38;
  for (var i = lid; i < u.dim; i += 64u) { top = max(top, x[start + i]); }
  partial[lid] = top;
  workgroupBarrier();
  for (var span = 32u; span > 0u; span >>= 1u) {
    if (lid < span) { partial[lid] = max(partial[lid], partial[lid + span]); }
    workgroupBarrier();
  }
  top = partial[0];
  workgroupBarrier();
  var sum = 0.0;
  for (var i = lid; i < u.dim; i += 64u) { sum += exp(x[start + i] - top); }
  partial[lid] = sum;
  workgroupBarrier();
  for (var span = 32u; span > 0u; span >>= 1u) {
    if (lid < span) { partial[lid] += partial[lid + span]; }
    workgroupBarrier();
  }
  let total = partial[0];
  for (var i = lid; i < u.dim; i += 64u) { result[start + i] = exp(x[start + i] - top) / total; }
}
