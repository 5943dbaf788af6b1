// x * gate / (1 + exp(-beta * gate)): one invocation an element.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
struct Params { num_elements: u32, hidden_dim: u32, beta: f32 }
@group(0) @binding(3) var<uniform> u: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i = (wid.x + wid.y * nwg.x) * 256u + lid;
  if (i >= u.num_elements) { return; }
  let g = gate[i];
  result[i] = x[i] * (g / (1.0 + exp(-u.beta * g)));
}
