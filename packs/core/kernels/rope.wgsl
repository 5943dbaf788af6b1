// Rotary position embedding: one invocation an element. Row r of x turns by row (r / repeat) % positions of the tables.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> cos_table: array<f32>;
@group(0) @binding(2) var<storage, read> sin_table: array<f32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;
struct Params { num_rows: u32, head_dim: u32, rotary_dim: u32, positions: u32, repeat: u32, interleaved: u32 }
@group(0) @binding(4) var<uniform> u: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let at = (wid.x + wid.y * nwg.x) * 256u + lid;
  let row = at / u.head_dim;
  if (row >= u.num_rows) { return; }
  let i = at % u.head_dim;
  if (i >= u.rotary_dim) {
    result[at] = x[at];
    return;
  }
  // Which pair, which end of it, and how far apart its ends are.
  let half = u.rotary_dim / 2u;
  let near = u.interleaved != 0u;
  let pair = select(i % half, i / 2u, near);
  let second = select(i >= half, (i & 1u) == 1u, near);
  let apart = select(half, 1u, near);
  let angle = ((row / u.repeat) % u.positions) * half + pair;
  let c = cos_table[angle];
  let s = sin_table[angle];
  if (second) {
    result[at] = x[at] * c + x[at - apart] * s;
  } else {
    result[at] = x[at] * c - x[at + apart] * s;
  }
}
