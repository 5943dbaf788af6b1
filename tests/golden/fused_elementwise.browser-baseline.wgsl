// mul+add+gelu+cast [map/256x2]: groups floordiv(floordiv(8*B+1,2)+255,256); read %0, read %1, write %6; sizes 8*B, floordiv(floordiv(8*B+1,2)+255,256)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<u32>;
struct Sizes { d0: u32, d1: u32 }
@group(0) @binding(3) var<uniform> u: Sizes;
fn pm_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn pm_erf_near(a: f32) -> f32 {
  let z = a * a;
  return a * (1.12837917 + z * (-0.376126389 + z * (0.112837917 + z * (-0.0268661706 + z * (0.00522397763 + z * (-0.000854832702 + z * (0.00012055333 + z * (-1.49256504e-05 + z * (1.64621144e-06 + z * (-1.63658447e-07))))))))));
}
fn pm_erfc_far(a: f32) -> f32 {
  let b = min(a, 28.0);
  let u = (b - 4.0) / (b + 2.0);
  return exp(-b * b) * (0.547997835 + u * (0.0447923386 + u * (-0.0459914738 + u * (0.023220738 + u * (-0.00648489415 + u * (0.000353683194 + u * (0.000388724748 + u * (-6.37833945e-05 + u * (-2.36166093e-05))))))))) / b;
}
fn pm_gelu(x: f32) -> f32 {
  if (pm_isnan(x)) { return x; }
  let a = abs(x) * 0.707106781;
  var half = 0.0;
  if (a < 1.0) { half = 0.5 - 0.5 * pm_erf_near(a); } else { half = 0.5 * pm_erfc_far(a); }
  return x * select(1.0 - half, half, x < 0.0);
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
