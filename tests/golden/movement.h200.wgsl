// slice+transpose+pad+concat [map/256x1]: groups 1; read %0, write %6; sizes static
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 1u) { return; }
  let w = wg * 256u + lid;
  if (w < 48u) {
    let i1 = w % 4u;
    let i2 = w / 4u;
    var c3: f32 = 0.0;
    if (i2 < 6u) {
      let v4 = b0[((i1 * 6u) + (5u - i2))];
      c3 = v4;
    }
    if ((i2 - 6u) < 6u) {
      var c5: f32 = 0.0f;
      if (((1u + i1) - 1u) < 4u) {
        let v6 = b0[((((1u + i1) - 1u) * 6u) + (i2 - 6u))];
        c5 = v6;
      }
      c3 = c5;
    }
    b1[w] = c3;
  }
}
