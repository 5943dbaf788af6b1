// (x - mean) / sqrt(variance + eps) * weight + bias: one workgroup a row.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;
struct Params { eps: f32, hidden_dim: u32, num_elements: u32 }
@group(0) @binding(4) var<uniform> u: Params;
var<workgroup> partial: array<f32, 64>;

// The sum of what the invocations give; all get it.
fn sum_all(lid: u32, own: f32) -> f32 {
  partial[lid] = own;
  workgroupBarrier();
  for (var span = 32u; span > 0u; span >>= 1u) {
    if (lid < span) { partial[lid] += partial[lid + span]; }
    workgroupBarrier();
  }
  let total = partial[0];
  workgroupBarrier();
  return total;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let start = (wid.x + wid.y * nwg.x) * u.hidden_dim;
  if (start >= u.num_elements) { return; }
  var sum = 0.0;
  for (var i = lid; i < u.hidden_dim; i += 64u) { sum += x[start + i]; }
  let mean = sum_all(lid, sum) / f32(u.hidden_dim);
  // A pass of its own: the difference of two sums would lose all digits of rows far from zero.
  var squares = 0.0;
  for (var i = lid; i < u.hidden_dim; i += 64u) {
    let v = x[start + i] - mean;
    squares += v * v;
  }
  let scale = 1.0 / sqrt(sum_all(lid, squares) / f32(u.hidden_dim) + u.eps);
  for (var i = lid; i < u.hidden_dim; i += 64u) {
    result[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
  }
}
