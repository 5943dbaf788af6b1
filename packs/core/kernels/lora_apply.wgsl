// y + scale * (x @ a) @ b: one workgroup a row; x @ a stays in workgroup memory.
@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
struct Params { num_rows: u32, inputs: u32, outputs: u32, rank: u32, scale: f32 }
@group(0) @binding(5) var<uniform> u: Params;
var<workgroup> partial: array<f32, 64>;
var<workgroup> low: array<f32, 256>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let row = wid.x + wid.y * nwg.x;
  if (row >= u.num_rows) { return; }
  // 64 columns of a at a time; where there are fewer, several invocations share a column.
  for (var base = 0u; base < u.rank; base += 64u) {
    let width = min(u.rank - base, 64u);
    let sharing = 64u / width;
    let part = lid / width;
    let column = base + lid % width;
    var sum = 0.0;
    if (part < sharing) {
      for (var k = part; k < u.inputs; k += sharing) { sum += x[row * u.inputs + k] * a[k * u.rank + column]; }
    }
    partial[lid] = sum;
    workgroupBarrier();
    if (lid < width) {
      var total = 0.0;
      for (var p = 0u; p < sharing; p++) { total += partial[lid + p * width]; }
      low[base + lid] = total;
    }
    workgroupBarrier();
  }
  for (var i = lid; i < u.outputs; i += 64u) {
    var sum = 0.0;
    for (var j = 0u; j < u.rank; j++) { sum += low[j] * b[j * u.outputs + i]; }
    result[row * u.outputs + i] = y[row * u.outputs + i] + u.scale * sum;
  }
}
