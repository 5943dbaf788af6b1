// mul+add+gelu+cast [map/256x2]: groups floordiv(floordiv(8*B+1,2)+255,256); read %0, read %1, write %6; sizes 8*B, floordiv(floordiv(8*B+1,2)+255,256)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<u32>;
struct Sizes { d0: u32, d1: u32 }
@group(0) @binding(3) var<uniform> u: Sizes;
fn pm_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn pm_gelu(x: f32) -> f32 {
  let a = min(abs(x), 40.0);
  let r = 1.0 / (a + 4.0);
  let u = 1.0 - 8.0 * r;
  let e = exp2(-0.72134752 * (a * a));
  let tail = r * (0.755285125 + u * (-0.607896391 + u * (0.387137628 + u * (-0.186526923 + u * (0.0603949566 + u * (-0.00751137515 + u * (-0.00347560788 + u * (0.00156255253 + u * (0.000129039442 + u * (-0.000156740317))))))))));
  return select(select(x * (1.0 - e * tail), (x * tail) * e, x < 0.0), x, pm_isnan(x));
}
fn pm_copysign(size: f32, sign: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(size) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
fn pm_inf() -> f32 {
  var bits = 0x7f800000u;
  return bitcast<f32>(bits);
}
fn pm_round_f16(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  let a = b & 0x7fffffffu;
  if (a > 0x7f800000u) { return x; }
  if (a >= 0x477ff000u) { return pm_copysign(pm_inf(), x); }
  if (a < 0x38800000u) { return pm_copysign(round(abs(x) * 16777216.0) * 5.96046448e-08, x); }
  return bitcast<f32>((b + 0xfffu + ((b >> 13u) & 1u)) & 0xffffe000u);
}
fn pm_f16_bits(x: f32) -> u32 {
  let r = bitcast<u32>(pm_round_f16(x));
  let sign = (r >> 16u) & 0x8000u;
  let a = r & 0x7fffffffu;
  if (a > 0x7f800000u) { return sign | 0x7e00u; }
  if (a == 0x7f800000u) { return sign | 0x7c00u; }
  if (a < 0x38800000u) { return sign | u32(bitcast<f32>(a) * 16777216.0); }
  return sign | ((a - 0x38000000u) >> 13u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let w = wg * 256u + lid;
  if (w * 2u < u.d0) {
    var lane1: f32 = 0.0;
    let i2 = w * 2u + 0u;
    if (i2 < u.d0) {
      let i3 = i2 % 8u;
      let v5 = b0[i2];
      let v6 = (v5 * 2.0f);
      let v7 = b1[i3];
      let v8 = (v6 + v7);
      let v9 = pm_gelu(v8);
      let v10 = pm_round_f16(v9);
      lane1 = v10;
    }
    var lane11: f32 = 0.0;
    let i12 = w * 2u + 1u;
    if (i12 < u.d0) {
      let i13 = i12 % 8u;
      let v15 = b0[i12];
      let v17 = (v15 * 2.0f);
      let v18 = b1[i13];
      let v19 = (v17 + v18);
      let v20 = pm_gelu(v19);
      let v21 = pm_round_f16(v20);
      lane11 = v21;
    }
    b2[w] = pm_f16_bits(lane1) | (pm_f16_bits(lane11) << 16u);
  }
}
