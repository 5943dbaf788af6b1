// scale * max(x, 0)^2: one invocation an element. Bindings: inputs, outputs, then the params of kernels.json in their order.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;
struct Params { scale: f32, num_elements: u32 }
@group(0) @binding(2) var<uniform> u: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i = (wid.x + wid.y * nwg.x) * 256u + lid;
  if (i >= u.num_elements) { return; }
  let v = max(x[i], 0.0);
  result[i] = u.scale * (v * v);
}
