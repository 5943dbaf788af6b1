// x / sqrt(mean(x^2) + eps) * weight: one workgroup a row.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
struct Params { eps: f32, hidden_dim: u32, num_elements: u32 }
@group(0) @binding(3) var<uniform> u: Params;
var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let start = (wid.x + wid.y * nwg.x) * u.hidden_dim;
  if (start >= u.num_elements) { return; }
  var sum = 0.0;
  for (var i = lid; i < u.hidden_dim; i += 64u) {
    let v = x[start + i];
    sum += v * v;
  }
  partial[lid] = sum;
  workgroupBarrier();
  for (var span = 32u; span > 0u; span >>= 1u) {
    if (lid < span) { partial[lid] += partial[lid + span]; }
    workgroupBarrier();
  }
  let scale = 1.0 / sqrt(partial[0] / f32(u.hidden_dim) + u.eps);
  for (var i = lid; i < u.hidden_dim; i += 64u) {
    result[start + i] = x[start + i] * scale * weight[i];
  }
}
