// expand+attention_gradient queries [held 16 passing 8 64]: groups 2*floordiv(2*T+15,16); read %0, read %3, read %1, read %2, write %8, write %5; sizes floordiv(2*T+15,16), 2*floordiv(2*T+15,16), T, 2*T-1, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b3: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> b4: array<f32>;
@group(0) @binding(5) var<storage, read_write> b5: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(6) var<uniform> u: Sizes;
var<workgroup> held_a: array<vec4<f32>, 272>;
var<workgroup> passing_a: array<vec4<f32>, 136>;
var<workgroup> weights_a: array<vec4<f32>, 32>;
var<workgroup> held_b: array<vec4<f32>, 272>;
var<workgroup> passing_b: array<vec4<f32>, 136>;
var<workgroup> weights_b: array<vec4<f32>, 32>;
var<workgroup> highest: array<f32, 32>;
var<workgroup> keep: array<f32, 16>;
var<workgroup> share: array<f32, 16>;
var<workgroup> delta: array<f32, 16>;
var<workgroup> mixed: array<f32, 32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = (wg % u.d0) * 16u;
  let kv_head = (wg / u.d0) % 2u;
  let batch = wg / u.d1;
  let offset = 0i;
  let visible = i32(u.d2);
  let none = wg >> 31u;
  let sx = lid % 2u;
  let sy = (lid / 2u) * 1u;
  let lane = lid % 8u;
  let sum_row = (lid / 8u) * 2u;
  let last_row = u.d3;
  for (var e = lid; e < 256u + none; e += 64u) {
    let r1 = e / 16u;
    let part2 = e % 16u;
    let row3 = min(row0 + r1, last_row);
    let h4 = kv_head * 2u + row3 % 2u;
    let s5 = row3 / 2u;
    let base6 = ((batch * u.d4) + (h4 * u.d5));
    let row7 = (base6 + (s5 * 64u));
    let d8 = part2 * 4u;
    let place9 = r1 * 17u + part2;
    let x10 = b0[(row7 + d8) >> 2u] * 0.125f;
    held_a[place9] = x10;
  }
  for (var e = lid; e < 256u + none; e += 64u) {
    let r11 = e / 16u;
    let part12 = e % 16u;
    let row13 = min(row0 + r11, last_row);
    let h14 = kv_head * 2u + row13 % 2u;
    let s15 = row13 / 2u;
    let base17 = 0u;
    let row18 = base17;
    let d19 = part12 * 4u;
    let place20 = r11 * 17u + part12;
    let x21 = vec4<f32>(b1[row18], b1[row18], b1[row18], b1[row18]);
    held_b[place20] = x21;
  }
  var top_0 = -3.3e38f;
  var total_0 = 0.0;
  var mixed_0 = 0.0;
  var sum_a0_0 = vec4<f32>();
  var sum_a0_1 = vec4<f32>();
  var sum_a1_0 = vec4<f32>();
  var sum_a1_1 = vec4<f32>();
  var sum_b0_0 = vec4<f32>();
  var sum_b0_1 = vec4<f32>();
  var sum_b1_0 = vec4<f32>();
  var sum_b1_1 = vec4<f32>();
  let last_query = i32(min(row0 + 15u, last_row) / 2u);
  let key_begin = 0u;
  let key_end = u32(max(min(visible, offset + last_query + 1i), 0i));
  for (var c0 = key_begin; c0 < key_end; c0 += 8u) {
    let chunk = min(8u, key_end - c0);
    for (var e = lid; e < 128u + none; e += 64u) {
      let r22 = e / 16u;
      let part23 = e % 16u;
      let row24 = min(c0 + r22, key_end - 1u);
      let base25 = ((batch * u.d6) + (kv_head * u.d5));
      let row26 = (base25 + (row24 * 64u));
      let d27 = part23 * 4u;
      let place28 = ((r22 & 3u) * 2u + (r22 >> 2u)) * 17u + part23;
      let x29 = b2[(row26 + d27) >> 2u];
      passing_a[place28] = x29;
    }
    for (var e = lid; e < 128u + none; e += 64u) {
      let r30 = e / 16u;
      let part31 = e % 16u;
      let row33 = min(c0 + r30, key_end - 1u);
      let base34 = ((batch * u.d6) + (kv_head * u.d5));
      let row35 = (base34 + (row33 * 64u));
      let d36 = part31 * 4u;
      let place37 = ((r30 & 3u) * 2u + (r30 >> 2u)) * 17u + part31;
      let x38 = b3[(row35 + d36) >> 2u];
      passing_b[place37] = x38;
    }
    workgroupBarrier();
    var s_0 = vec4<f32>();
    var dp_0 = vec4<f32>();
    if (lid < 32u) {
      for (var d = 0u; d < 16u + none; d++) {
        let y39 = passing_a[(0u + sx) * 17u + d];
        let y40 = passing_a[(2u + sx) * 17u + d];
        let y41 = passing_a[(4u + sx) * 17u + d];
        let y42 = passing_a[(6u + sx) * 17u + d];
        let x43 = held_a[(sy + 0u) * 17u + d];
        s_0 += vec4<f32>(dot(x43, y39), dot(x43, y40), dot(x43, y41), dot(x43, y42));
      }
      for (var d = 0u; d < 16u + none; d++) {
        let y44 = passing_b[(0u + sx) * 17u + d];
        let y45 = passing_b[(2u + sx) * 17u + d];
        let y46 = passing_b[(4u + sx) * 17u + d];
        let y47 = passing_b[(6u + sx) * 17u + d];
        let x48 = held_b[(sy + 0u) * 17u + d];
        dp_0 += vec4<f32>(dot(x48, y44), dot(x48, y45), dot(x48, y46), dot(x48, y47));
      }
    }
    if (lid < 32u) {
      let at49 = min(c0 + sx * 4u + 0u, key_end - 1u);
      let at50 = min(c0 + sx * 4u + 1u, key_end - 1u);
      let at51 = min(c0 + sx * 4u + 2u, key_end - 1u);
      let at52 = min(c0 + sx * 4u + 3u, key_end - 1u);
      let row53 = min(row0 + sy + 0u, last_row);
      let h54 = kv_head * 2u + row53 % 2u;
      let s55 = row53 / 2u;
      let h56 = kv_head * 2u + row53 % 2u;
      let s57 = row53 / 2u;
      let h58 = kv_head * 2u + row53 % 2u;
      let s59 = row53 / 2u;
      let h60 = kv_head * 2u + row53 % 2u;
      let s61 = row53 / 2u;
      s_0 = max(s_0, vec4<f32>(-3.0e38f));
      let shown62 = vec4<bool>(sx * 4u + 0u < chunk && i32(at49) < visible && i32(at49) <= offset + i32(s55), sx * 4u + 1u < chunk && i32(at50) < visible && i32(at50) <= offset + i32(s57), sx * 4u + 2u < chunk && i32(at51) < visible && i32(at51) <= offset + i32(s59), sx * 4u + 3u < chunk && i32(at52) < visible && i32(at52) <= offset + i32(s61));
      s_0 = select(vec4<f32>(-3.3e38f), s_0, shown62);
      highest[(sy + 0u) * 2u + sx] = max(max(s_0.x, s_0.y), max(s_0.z, s_0.w));
    }
    workgroupBarrier();
    if (lid < 32u) {
      let old_0 = top_0;
      for (var k = 0u; k < 2u + none; k++) {
        top_0 = max(top_0, highest[(sy + 0u) * 2u + k]);
      }
      let keep_0 = select(0.0, exp(max(old_0 - top_0, -200.0f)), old_0 >= -3.0e38f);
      let w_0 = select(vec4<f32>(), exp(max(s_0 - top_0, vec4<f32>(-200.0f))), s_0 >= vec4<f32>(-3.0e38f));
      let wdp_0 = w_0 * dp_0;
      total_0 = total_0 * keep_0 + dot(w_0, vec4<f32>(1.0));
      mixed_0 = mixed_0 * keep_0 + dot(wdp_0, vec4<f32>(1.0));
      weights_a[(sy + 0u) * 2u + sx] = wdp_0;
      weights_b[(sy + 0u) * 2u + sx] = w_0;
      if (sx == 0u) { keep[sy + 0u] = keep_0; }
    }
    workgroupBarrier();
    sum_a0_0 *= keep[sum_row];
    sum_a0_1 *= keep[sum_row];
    sum_a1_0 *= keep[(sum_row + 1u)];
    sum_a1_1 *= keep[(sum_row + 1u)];
    sum_b0_0 *= keep[sum_row];
    sum_b0_1 *= keep[sum_row];
    sum_b1_0 *= keep[(sum_row + 1u)];
    sum_b1_1 *= keep[(sum_row + 1u)];
    for (var m = 0u; m < (chunk + 3u) / 4u; m++) {
      let z63 = passing_a[(0u + m) * 17u + lane];
      let z65 = passing_a[(2u + m) * 17u + lane];
      let z66 = passing_a[(4u + m) * 17u + lane];
      let z67 = passing_a[(6u + m) * 17u + lane];
      let z68 = passing_a[(0u + m) * 17u + (lane + 8u)];
      let z69 = passing_a[(2u + m) * 17u + (lane + 8u)];
      let z70 = passing_a[(4u + m) * 17u + (lane + 8u)];
      let z71 = passing_a[(6u + m) * 17u + (lane + 8u)];
      let w72 = weights_a[sum_row * 2u + m];
      sum_a0_0 += w72.x * z63 + w72.y * z65 + w72.z * z66 + w72.w * z67;
      sum_a0_1 += w72.x * z68 + w72.y * z69 + w72.z * z70 + w72.w * z71;
      let w73 = weights_a[(sum_row + 1u) * 2u + m];
      sum_a1_0 += w73.x * z63 + w73.y * z65 + w73.z * z66 + w73.w * z67;
      sum_a1_1 += w73.x * z68 + w73.y * z69 + w73.z * z70 + w73.w * z71;
      let w74 = weights_b[sum_row * 2u + m];
      sum_b0_0 += w74.x * z63 + w74.y * z65 + w74.z * z66 + w74.w * z67;
      sum_b0_1 += w74.x * z68 + w74.y * z69 + w74.z * z70 + w74.w * z71;
      let w75 = weights_b[(sum_row + 1u) * 2u + m];
      sum_b1_0 += w75.x * z63 + w75.y * z65 + w75.z * z66 + w75.w * z67;
      sum_b1_1 += w75.x * z68 + w75.y * z69 + w75.z * z70 + w75.w * z71;
    }
    workgroupBarrier();
  }
  if (lid < 32u) {
    highest[(sy + 0u) * 2u + sx] = total_0;
    mixed[(sy + 0u) * 2u + sx] = mixed_0;
    if (sx == 0u) { keep[sy + 0u] = top_0; }
  }
  workgroupBarrier();
  for (var r = lid; r < 16u; r += 64u) {
    var total = 0.0;
    var sum = 0.0;
    for (var k = 0u; k < 2u + none; k++) {
      total += highest[r * 2u + k];
      sum += mixed[r * 2u + k];
    }
    share[r] = select(0.0, 1.0 / total, total > 0.0);
    delta[r] = sum * share[r];
    if (row0 + r < u.d7) {
      let at = ((batch * 2u + kv_head) * u.d7 + row0 + r) * 3u;
      b4[at + 0u] = keep[r];
      b4[at + 1u] = share[r];
      b4[at + 2u] = delta[r];
    }
  }
  workgroupBarrier();
  if (sum_row + 0u < 16u && row0 + sum_row + 0u < u.d7) {
    let row76 = row0 + sum_row + 0u;
    let h77 = kv_head * 2u + row76 % 2u;
    let s78 = row76 / 2u;
    let begin79 = (((batch * u.d4) + (h77 * u.d5)) + (s78 * 64u));
    let found80 = 0.125f * share[sum_row + 0u] * (sum_a0_0 - delta[sum_row + 0u] * sum_b0_0);
    let d81 = (lane + 0u) * 4u + 0u;
     {
      let i82 = begin79 + d81;
      let v87 = found80.x;
      b5[i82] = v87;
    }
    let d88 = (lane + 0u) * 4u + 1u;
     {
      let i89 = begin79 + d88;
      let v94 = found80.y;
      b5[i89] = v94;
    }
    let d95 = (lane + 0u) * 4u + 2u;
     {
      let i96 = begin79 + d95;
      let v101 = found80.z;
      b5[i96] = v101;
    }
    let d102 = (lane + 0u) * 4u + 3u;
     {
      let i103 = begin79 + d102;
      let v108 = found80.w;
      b5[i103] = v108;
    }
    let found109 = 0.125f * share[sum_row + 0u] * (sum_a0_1 - delta[sum_row + 0u] * sum_b0_1);
    let d110 = (lane + 8u) * 4u + 0u;
     {
      let i111 = begin79 + d110;
      let v116 = found109.x;
      b5[i111] = v116;
    }
    let d117 = (lane + 8u) * 4u + 1u;
     {
      let i118 = begin79 + d117;
      let v123 = found109.y;
      b5[i118] = v123;
    }
    let d124 = (lane + 8u) * 4u + 2u;
     {
      let i125 = begin79 + d124;
      let v130 = found109.z;
      b5[i125] = v130;
    }
    let d131 = (lane + 8u) * 4u + 3u;
     {
      let i132 = begin79 + d131;
      let v137 = found109.w;
      b5[i132] = v137;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d7) {
    let row138 = row0 + sum_row + 1u;
    let h139 = kv_head * 2u + row138 % 2u;
    let s140 = row138 / 2u;
    let begin141 = (((batch * u.d4) + (h139 * u.d5)) + (s140 * 64u));
    let found142 = 0.125f * share[sum_row + 1u] * (sum_a1_0 - delta[sum_row + 1u] * sum_b1_0);
    let d143 = (lane + 0u) * 4u + 0u;
     {
      let i144 = begin141 + d143;
      let v149 = found142.x;
      b5[i144] = v149;
    }
    let d150 = (lane + 0u) * 4u + 1u;
     {
      let i151 = begin141 + d150;
      let v156 = found142.y;
      b5[i151] = v156;
    }
    let d157 = (lane + 0u) * 4u + 2u;
     {
      let i158 = begin141 + d157;
      let v163 = found142.z;
      b5[i158] = v163;
    }
    let d164 = (lane + 0u) * 4u + 3u;
     {
      let i165 = begin141 + d164;
      let v170 = found142.w;
      b5[i165] = v170;
    }
    let found171 = 0.125f * share[sum_row + 1u] * (sum_a1_1 - delta[sum_row + 1u] * sum_b1_1);
    let d172 = (lane + 8u) * 4u + 0u;
     {
      let i173 = begin141 + d172;
      let v178 = found171.x;
      b5[i173] = v178;
    }
    let d179 = (lane + 8u) * 4u + 1u;
     {
      let i180 = begin141 + d179;
      let v185 = found171.y;
      b5[i180] = v185;
    }
    let d186 = (lane + 8u) * 4u + 2u;
     {
      let i187 = begin141 + d186;
      let v192 = found171.z;
      b5[i187] = v192;
    }
    let d193 = (lane + 8u) * 4u + 3u;
     {
      let i194 = begin141 + d193;
      let v199 = found171.w;
      b5[i194] = v199;
    }
  }
}

// expand+attention_gradient keys [held 16 passing 8 64]: groups 2*floordiv(T+15,16); read %1, read %2, read %0, read %3, read %8, write %6, write %7; sizes floordiv(T+15,16), 2*floordiv(T+15,16), T, T-1, 128*T, 64*T, 2*T, 256*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b3: array<f32>;
@group(0) @binding(4) var<storage, read> b4: array<f32>;
@group(0) @binding(5) var<storage, read_write> b5: array<f32>;
@group(0) @binding(6) var<storage, read_write> b6: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(7) var<uniform> u: Sizes;
var<workgroup> held_a: array<vec4<f32>, 272>;
var<workgroup> passing_a: array<vec4<f32>, 136>;
var<workgroup> weights_a: array<vec4<f32>, 32>;
var<workgroup> held_b: array<vec4<f32>, 272>;
var<workgroup> passing_b: array<vec4<f32>, 136>;
var<workgroup> weights_b: array<vec4<f32>, 32>;
var<workgroup> rows: array<f32, 24>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = (wg % u.d0) * 16u;
  let kv_head = (wg / u.d0) % 2u;
  let batch = wg / u.d1;
  let offset = 0i;
  let visible = i32(u.d2);
  let none = wg >> 31u;
  let sx = lid % 2u;
  let sy = (lid / 2u) * 1u;
  let lane = lid % 8u;
  let sum_row = (lid / 8u) * 2u;
  let last_key = u.d3;
  for (var e = lid; e < 256u + none; e += 64u) {
    let r1 = e / 16u;
    let part2 = e % 16u;
    let row3 = min(row0 + r1, last_key);
    let base4 = ((batch * u.d4) + (kv_head * u.d5));
    let row5 = (base4 + (row3 * 64u));
    let d6 = part2 * 4u;
    let place7 = r1 * 17u + part2;
    let x8 = b0[(row5 + d6) >> 2u];
    held_a[place7] = x8;
  }
  for (var e = lid; e < 256u + none; e += 64u) {
    let r9 = e / 16u;
    let part10 = e % 16u;
    let row11 = min(row0 + r9, last_key);
    let base12 = ((batch * u.d4) + (kv_head * u.d5));
    let row13 = (base12 + (row11 * 64u));
    let d14 = part10 * 4u;
    let place15 = r9 * 17u + part10;
    let x17 = b1[(row13 + d14) >> 2u];
    held_b[place15] = x17;
  }
  var sum_a0_0 = vec4<f32>();
  var sum_a0_1 = vec4<f32>();
  var sum_a1_0 = vec4<f32>();
  var sum_a1_1 = vec4<f32>();
  var sum_b0_0 = vec4<f32>();
  var sum_b0_1 = vec4<f32>();
  var sum_b1_0 = vec4<f32>();
  var sum_b1_1 = vec4<f32>();
  let row_begin = u32(max(i32(row0) - offset, 0i)) * 2u;
  let row_end = select(0u, u.d6, i32(row0) < visible);
  for (var c0 = row_begin; c0 < row_end; c0 += 8u) {
    let chunk = min(8u, row_end - c0);
    for (var e = lid; e < 128u + none; e += 64u) {
      let r18 = e / 16u;
      let part19 = e % 16u;
      let row20 = min(c0 + r18, row_end - 1u);
      let h21 = kv_head * 2u + row20 % 2u;
      let s22 = row20 / 2u;
      let base23 = ((batch * u.d7) + (h21 * u.d5));
      let row24 = (base23 + (s22 * 64u));
      let d25 = part19 * 4u;
      let place26 = ((r18 & 3u) * 2u + (r18 >> 2u)) * 17u + part19;
      let x27 = b2[(row24 + d25) >> 2u] * 0.125f;
      passing_a[place26] = x27;
    }
    for (var e = lid; e < 128u + none; e += 64u) {
      let r28 = e / 16u;
      let part29 = e % 16u;
      let row30 = min(c0 + r28, row_end - 1u);
      let h31 = kv_head * 2u + row30 % 2u;
      let s33 = row30 / 2u;
      let base34 = 0u;
      let row35 = base34;
      let d36 = part29 * 4u;
      let place37 = ((r28 & 3u) * 2u + (r28 >> 2u)) * 17u + part29;
      let x38 = vec4<f32>(b3[row35], b3[row35], b3[row35], b3[row35]);
      passing_b[place37] = x38;
    }
    for (var e = lid; e < 24u; e += 64u) {
      let row39 = min(c0 + e / 3u, row_end - 1u);
      rows[e] = b4[((batch * 2u + kv_head) * u.d6 + row39) * 3u + e % 3u];
    }
    workgroupBarrier();
    var s_0 = vec4<f32>();
    var dp_0 = vec4<f32>();
    if (lid < 32u) {
      for (var d = 0u; d < 16u + none; d++) {
        let y40 = passing_a[(0u + sx) * 17u + d];
        let y41 = passing_a[(2u + sx) * 17u + d];
        let y42 = passing_a[(4u + sx) * 17u + d];
        let y43 = passing_a[(6u + sx) * 17u + d];
        let x44 = held_a[(sy + 0u) * 17u + d];
        s_0 += vec4<f32>(dot(x44, y40), dot(x44, y41), dot(x44, y42), dot(x44, y43));
      }
      for (var d = 0u; d < 16u + none; d++) {
        let y45 = passing_b[(0u + sx) * 17u + d];
        let y46 = passing_b[(2u + sx) * 17u + d];
        let y47 = passing_b[(4u + sx) * 17u + d];
        let y48 = passing_b[(6u + sx) * 17u + d];
        let x49 = held_b[(sy + 0u) * 17u + d];
        dp_0 += vec4<f32>(dot(x49, y45), dot(x49, y46), dot(x49, y47), dot(x49, y48));
      }
    }
    if (lid < 32u) {
      let of_row50 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 0u], rows[(sx * 4u + 1u) * 3u + 0u], rows[(sx * 4u + 2u) * 3u + 0u], rows[(sx * 4u + 3u) * 3u + 0u]);
      let of_row51 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 1u], rows[(sx * 4u + 1u) * 3u + 1u], rows[(sx * 4u + 2u) * 3u + 1u], rows[(sx * 4u + 3u) * 3u + 1u]);
      let of_row52 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 2u], rows[(sx * 4u + 1u) * 3u + 2u], rows[(sx * 4u + 2u) * 3u + 2u], rows[(sx * 4u + 3u) * 3u + 2u]);
      let at53 = min(c0 + sx * 4u + 0u, row_end - 1u);
      let at54 = min(c0 + sx * 4u + 1u, row_end - 1u);
      let at55 = min(c0 + sx * 4u + 2u, row_end - 1u);
      let at56 = min(c0 + sx * 4u + 3u, row_end - 1u);
      let position57 = row0 + sy + 0u;
      let h58 = kv_head * 2u + at53 % 2u;
      let s59 = at53 / 2u;
      let h60 = kv_head * 2u + at54 % 2u;
      let s61 = at54 / 2u;
      let h62 = kv_head * 2u + at55 % 2u;
      let s63 = at55 / 2u;
      let h65 = kv_head * 2u + at56 % 2u;
      let s66 = at56 / 2u;
      s_0 = max(s_0, vec4<f32>(-3.0e38f));
      let shown67 = vec4<bool>(sx * 4u + 0u < chunk && i32(position57) < visible && i32(position57) <= offset + i32(s59), sx * 4u + 1u < chunk && i32(position57) < visible && i32(position57) <= offset + i32(s61), sx * 4u + 2u < chunk && i32(position57) < visible && i32(position57) <= offset + i32(s63), sx * 4u + 3u < chunk && i32(position57) < visible && i32(position57) <= offset + i32(s66));
      let p_0 = select(vec4<f32>(), exp(max(s_0 - of_row50, vec4<f32>(-200.0f))) * of_row51, shown67);
      weights_a[(sy + 0u) * 2u + sx] = select(vec4<f32>(), p_0 * (dp_0 - of_row52), shown67);
      weights_b[(sy + 0u) * 2u + sx] = p_0;
    }
    workgroupBarrier();
    for (var m = 0u; m < (chunk + 3u) / 4u; m++) {
      let z68 = passing_a[(0u + m) * 17u + lane];
      let z69 = passing_a[(2u + m) * 17u + lane];
      let z70 = passing_a[(4u + m) * 17u + lane];
      let z71 = passing_a[(6u + m) * 17u + lane];
      let z72 = passing_a[(0u + m) * 17u + (lane + 8u)];
      let z73 = passing_a[(2u + m) * 17u + (lane + 8u)];
      let z74 = passing_a[(4u + m) * 17u + (lane + 8u)];
      let z75 = passing_a[(6u + m) * 17u + (lane + 8u)];
      let w76 = weights_a[sum_row * 2u + m];
      sum_a0_0 += w76.x * z68 + w76.y * z69 + w76.z * z70 + w76.w * z71;
      sum_a0_1 += w76.x * z72 + w76.y * z73 + w76.z * z74 + w76.w * z75;
      let w77 = weights_a[(sum_row + 1u) * 2u + m];
      sum_a1_0 += w77.x * z68 + w77.y * z69 + w77.z * z70 + w77.w * z71;
      sum_a1_1 += w77.x * z72 + w77.y * z73 + w77.z * z74 + w77.w * z75;
    }
    for (var m = 0u; m < (chunk + 3u) / 4u; m++) {
      let z78 = passing_b[(0u + m) * 17u + lane];
      let z79 = passing_b[(2u + m) * 17u + lane];
      let z80 = passing_b[(4u + m) * 17u + lane];
      let z81 = passing_b[(6u + m) * 17u + lane];
      let z82 = passing_b[(0u + m) * 17u + (lane + 8u)];
      let z83 = passing_b[(2u + m) * 17u + (lane + 8u)];
      let z84 = passing_b[(4u + m) * 17u + (lane + 8u)];
      let z85 = passing_b[(6u + m) * 17u + (lane + 8u)];
      let w86 = weights_b[sum_row * 2u + m];
      sum_b0_0 += w86.x * z78 + w86.y * z79 + w86.z * z80 + w86.w * z81;
      sum_b0_1 += w86.x * z82 + w86.y * z83 + w86.z * z84 + w86.w * z85;
      let w87 = weights_b[(sum_row + 1u) * 2u + m];
      sum_b1_0 += w87.x * z78 + w87.y * z79 + w87.z * z80 + w87.w * z81;
      sum_b1_1 += w87.x * z82 + w87.y * z83 + w87.z * z84 + w87.w * z85;
    }
    workgroupBarrier();
  }
  if (sum_row + 0u < 16u && row0 + sum_row + 0u < u.d2) {
    let row88 = row0 + sum_row + 0u;
    let begin89 = (((batch * u.d4) + (kv_head * u.d5)) + (row88 * 64u));
    let found90 = sum_a0_0;
    let d91 = (lane + 0u) * 4u + 0u;
     {
      let i92 = begin89 + d91;
      b5[i92] = found90.x;
    }
    let d97 = (lane + 0u) * 4u + 1u;
     {
      let i98 = begin89 + d97;
      b5[i98] = found90.y;
    }
    let d103 = (lane + 0u) * 4u + 2u;
     {
      let i104 = begin89 + d103;
      b5[i104] = found90.z;
    }
    let d109 = (lane + 0u) * 4u + 3u;
     {
      let i110 = begin89 + d109;
      b5[i110] = found90.w;
    }
    let found115 = sum_a0_1;
    let d116 = (lane + 8u) * 4u + 0u;
     {
      let i117 = begin89 + d116;
      b5[i117] = found115.x;
    }
    let d122 = (lane + 8u) * 4u + 1u;
     {
      let i123 = begin89 + d122;
      b5[i123] = found115.y;
    }
    let d128 = (lane + 8u) * 4u + 2u;
     {
      let i129 = begin89 + d128;
      b5[i129] = found115.z;
    }
    let d134 = (lane + 8u) * 4u + 3u;
     {
      let i135 = begin89 + d134;
      b5[i135] = found115.w;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d2) {
    let row140 = row0 + sum_row + 1u;
    let begin141 = (((batch * u.d4) + (kv_head * u.d5)) + (row140 * 64u));
    let found142 = sum_a1_0;
    let d143 = (lane + 0u) * 4u + 0u;
     {
      let i144 = begin141 + d143;
      b5[i144] = found142.x;
    }
    let d149 = (lane + 0u) * 4u + 1u;
     {
      let i150 = begin141 + d149;
      b5[i150] = found142.y;
    }
    let d155 = (lane + 0u) * 4u + 2u;
     {
      let i156 = begin141 + d155;
      b5[i156] = found142.z;
    }
    let d161 = (lane + 0u) * 4u + 3u;
     {
      let i162 = begin141 + d161;
      b5[i162] = found142.w;
    }
    let found167 = sum_a1_1;
    let d168 = (lane + 8u) * 4u + 0u;
     {
      let i169 = begin141 + d168;
      b5[i169] = found167.x;
    }
    let d174 = (lane + 8u) * 4u + 1u;
     {
      let i175 = begin141 + d174;
      b5[i175] = found167.y;
    }
    let d180 = (lane + 8u) * 4u + 2u;
     {
      let i181 = begin141 + d180;
      b5[i181] = found167.z;
    }
    let d186 = (lane + 8u) * 4u + 3u;
     {
      let i187 = begin141 + d186;
      b5[i187] = found167.w;
    }
  }
  if (sum_row + 0u < 16u && row0 + sum_row + 0u < u.d2) {
    let row192 = row0 + sum_row + 0u;
    let begin193 = (((batch * u.d4) + (kv_head * u.d5)) + (row192 * 64u));
    let found194 = sum_b0_0;
    let d195 = (lane + 0u) * 4u + 0u;
     {
      let i196 = begin193 + d195;
      b6[i196] = found194.x;
    }
    let d201 = (lane + 0u) * 4u + 1u;
     {
      let i202 = begin193 + d201;
      b6[i202] = found194.y;
    }
    let d207 = (lane + 0u) * 4u + 2u;
     {
      let i208 = begin193 + d207;
      b6[i208] = found194.z;
    }
    let d213 = (lane + 0u) * 4u + 3u;
     {
      let i214 = begin193 + d213;
      b6[i214] = found194.w;
    }
    let found219 = sum_b0_1;
    let d220 = (lane + 8u) * 4u + 0u;
     {
      let i221 = begin193 + d220;
      b6[i221] = found219.x;
    }
    let d226 = (lane + 8u) * 4u + 1u;
     {
      let i227 = begin193 + d226;
      b6[i227] = found219.y;
    }
    let d232 = (lane + 8u) * 4u + 2u;
     {
      let i233 = begin193 + d232;
      b6[i233] = found219.z;
    }
    let d238 = (lane + 8u) * 4u + 3u;
     {
      let i239 = begin193 + d238;
      b6[i239] = found219.w;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d2) {
    let row244 = row0 + sum_row + 1u;
    let begin245 = (((batch * u.d4) + (kv_head * u.d5)) + (row244 * 64u));
    let found246 = sum_b1_0;
    let d247 = (lane + 0u) * 4u + 0u;
     {
      let i248 = begin245 + d247;
      b6[i248] = found246.x;
    }
    let d253 = (lane + 0u) * 4u + 1u;
     {
      let i254 = begin245 + d253;
      b6[i254] = found246.y;
    }
    let d259 = (lane + 0u) * 4u + 2u;
     {
      let i260 = begin245 + d259;
      b6[i260] = found246.z;
    }
    let d265 = (lane + 0u) * 4u + 3u;
     {
      let i266 = begin245 + d265;
      b6[i266] = found246.w;
    }
    let found271 = sum_b1_1;
    let d272 = (lane + 8u) * 4u + 0u;
     {
      let i273 = begin245 + d272;
      b6[i273] = found271.x;
    }
    let d278 = (lane + 8u) * 4u + 1u;
     {
      let i279 = begin245 + d278;
      b6[i279] = found271.y;
    }
    let d284 = (lane + 8u) * 4u + 2u;
     {
      let i285 = begin245 + d284;
      b6[i285] = found271.z;
    }
    let d290 = (lane + 8u) * 4u + 3u;
     {
      let i291 = begin245 + d290;
      b6[i291] = found271.w;
    }
  }
}
