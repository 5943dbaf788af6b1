// add+rms_norm+mul [row/64/once]: groups T; read %1, read %2, read %0, write %6; sizes T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> scratch_f32: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d0) { return; }
  let row = wg;
  let end1 = 256u;
  var kept: array<f32, 4>;
  var squares = 0.0;
  for (var k = 0u; k < 4u; k++) {
    let j2 = (k * 64u + lid);
    if (j2 < end1) {
      let v3 = b0[((row * 256u) + j2)];
      let v4 = b1[((row * 256u) + j2)];
      let v5 = (v3 + v4);
      kept[k] = v5;
      squares += v5 * v5;
    }
  }
  scratch_f32[lid] = squares;
  for (var k = 32u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all6 = scratch_f32[0];
  workgroupBarrier();
  let scale7 = inverseSqrt(all6 / f32(256u) + 9.99999997e-07f);
  for (var k = 0u; k < 4u; k++) {
    let j8 = (k * 64u + lid);
    if (j8 < end1) {
      let v9 = kept[k];
      let v10 = b2[j8];
      let y11 = v9 * scale7 * v10;
      let v12 = (y11 * 0.5f);
      b3[((row * 256u) + j8)] = v12;
    }
  }
}
