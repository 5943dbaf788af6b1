// update mul+add+sub [update/256x1]: groups 1; update %3, update %0, update %10, update %1, read %2; sizes 1, 48
@group(0) @binding(0) var<storage, read_write> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
@group(0) @binding(4) var<storage, read> b4: array<f32>;
struct Sizes { d0: u32, d1: u32 }
@group(0) @binding(5) var<uniform> u: Sizes;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d0) { return; }
  if (wg < u.d0) {
    let w = wg * 256u + lid;
    if (w < u.d1) {
      let v1 = b0[w];
      let v2 = (v1 * 0.899999976f);
      let v3 = b4[w];
      let v4 = (v3 * 0.5f);
      let v5 = (v2 + v4);
      let v6 = b1[w];
      let v7 = (v6 - v5);
      let v8 = b2[w];
      let v9 = (v8 * 0.899999976f);
      let v10 = b4[w];
      let v11 = (v10 * 0.25f);
      let v12 = (v9 + v11);
      let v13 = b3[w];
      let v14 = (v13 - v12);
      b0[w] = v5;
      b1[w] = v7;
      b2[w] = v12;
      b3[w] = v14;
    }
  }
}
