// expand+attention_gradient queries [held 16 passing 8 64]: groups 2*floordiv(2*T+15,16); read %0, read %3, read %1, read %2, write %12, write %5; sizes floordiv(2*T+15,16), 2*floordiv(2*T+15,16), T, 2*T-1, 256*T, 64*T, 128*T, 2*T
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
      let at82 = begin79 + d81;
      let v83 = found80.x;
      b5[at82] = v83;
    }
    let d84 = (lane + 0u) * 4u + 1u;
     {
      let at85 = begin79 + d84;
      let v86 = found80.y;
      b5[at85] = v86;
    }
    let d87 = (lane + 0u) * 4u + 2u;
     {
      let at88 = begin79 + d87;
      let v89 = found80.z;
      b5[at88] = v89;
    }
    let d90 = (lane + 0u) * 4u + 3u;
     {
      let at91 = begin79 + d90;
      let v92 = found80.w;
      b5[at91] = v92;
    }
    let found93 = 0.125f * share[sum_row + 0u] * (sum_a0_1 - delta[sum_row + 0u] * sum_b0_1);
    let d94 = (lane + 8u) * 4u + 0u;
     {
      let at95 = begin79 + d94;
      let v96 = found93.x;
      b5[at95] = v96;
    }
    let d97 = (lane + 8u) * 4u + 1u;
     {
      let at98 = begin79 + d97;
      let v99 = found93.y;
      b5[at98] = v99;
    }
    let d100 = (lane + 8u) * 4u + 2u;
     {
      let at101 = begin79 + d100;
      let v102 = found93.z;
      b5[at101] = v102;
    }
    let d103 = (lane + 8u) * 4u + 3u;
     {
      let at104 = begin79 + d103;
      let v105 = found93.w;
      b5[at104] = v105;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d7) {
    let row106 = row0 + sum_row + 1u;
    let h107 = kv_head * 2u + row106 % 2u;
    let s108 = row106 / 2u;
    let begin109 = (((batch * u.d4) + (h107 * u.d5)) + (s108 * 64u));
    let found110 = 0.125f * share[sum_row + 1u] * (sum_a1_0 - delta[sum_row + 1u] * sum_b1_0);
    let d111 = (lane + 0u) * 4u + 0u;
     {
      let at112 = begin109 + d111;
      let v113 = found110.x;
      b5[at112] = v113;
    }
    let d114 = (lane + 0u) * 4u + 1u;
     {
      let at115 = begin109 + d114;
      let v116 = found110.y;
      b5[at115] = v116;
    }
    let d117 = (lane + 0u) * 4u + 2u;
     {
      let at118 = begin109 + d117;
      let v119 = found110.z;
      b5[at118] = v119;
    }
    let d120 = (lane + 0u) * 4u + 3u;
     {
      let at121 = begin109 + d120;
      let v122 = found110.w;
      b5[at121] = v122;
    }
    let found123 = 0.125f * share[sum_row + 1u] * (sum_a1_1 - delta[sum_row + 1u] * sum_b1_1);
    let d124 = (lane + 8u) * 4u + 0u;
     {
      let at125 = begin109 + d124;
      let v126 = found123.x;
      b5[at125] = v126;
    }
    let d127 = (lane + 8u) * 4u + 1u;
     {
      let at128 = begin109 + d127;
      let v129 = found123.y;
      b5[at128] = v129;
    }
    let d130 = (lane + 8u) * 4u + 2u;
     {
      let at131 = begin109 + d130;
      let v132 = found123.z;
      b5[at131] = v132;
    }
    let d133 = (lane + 8u) * 4u + 3u;
     {
      let at134 = begin109 + d133;
      let v135 = found123.w;
      b5[at134] = v135;
    }
  }
}

// expand+attention_gradient keys [held 16 passing 8 64]: groups 2*floordiv(T+15,16); read %1, read %2, read %0, read %3, read %12, write %5; sizes floordiv(T+15,16), 2*floordiv(T+15,16), T, T-1, 128*T, 64*T, 2*T, 256*T, 384*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b3: array<f32>;
@group(0) @binding(4) var<storage, read> b4: array<f32>;
@group(0) @binding(5) var<storage, read_write> b5: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32, d8: u32 }
@group(0) @binding(6) var<uniform> u: Sizes;
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
    let begin89 = (u.d7 + (((batch * u.d4) + (kv_head * u.d5)) + (row88 * 64u)));
    let found90 = sum_a0_0;
    let d91 = (lane + 0u) * 4u + 0u;
     {
      let at92 = begin89 + d91;
      let v93 = found90.x;
      b5[at92] = v93;
    }
    let d94 = (lane + 0u) * 4u + 1u;
     {
      let at95 = begin89 + d94;
      let v96 = found90.y;
      b5[at95] = v96;
    }
    let d97 = (lane + 0u) * 4u + 2u;
     {
      let at98 = begin89 + d97;
      let v99 = found90.z;
      b5[at98] = v99;
    }
    let d100 = (lane + 0u) * 4u + 3u;
     {
      let at101 = begin89 + d100;
      let v102 = found90.w;
      b5[at101] = v102;
    }
    let found103 = sum_a0_1;
    let d104 = (lane + 8u) * 4u + 0u;
     {
      let at105 = begin89 + d104;
      let v106 = found103.x;
      b5[at105] = v106;
    }
    let d107 = (lane + 8u) * 4u + 1u;
     {
      let at108 = begin89 + d107;
      let v109 = found103.y;
      b5[at108] = v109;
    }
    let d110 = (lane + 8u) * 4u + 2u;
     {
      let at111 = begin89 + d110;
      let v112 = found103.z;
      b5[at111] = v112;
    }
    let d113 = (lane + 8u) * 4u + 3u;
     {
      let at114 = begin89 + d113;
      let v115 = found103.w;
      b5[at114] = v115;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d2) {
    let row116 = row0 + sum_row + 1u;
    let begin117 = (u.d7 + (((batch * u.d4) + (kv_head * u.d5)) + (row116 * 64u)));
    let found118 = sum_a1_0;
    let d119 = (lane + 0u) * 4u + 0u;
     {
      let at120 = begin117 + d119;
      let v121 = found118.x;
      b5[at120] = v121;
    }
    let d122 = (lane + 0u) * 4u + 1u;
     {
      let at123 = begin117 + d122;
      let v124 = found118.y;
      b5[at123] = v124;
    }
    let d125 = (lane + 0u) * 4u + 2u;
     {
      let at126 = begin117 + d125;
      let v127 = found118.z;
      b5[at126] = v127;
    }
    let d128 = (lane + 0u) * 4u + 3u;
     {
      let at129 = begin117 + d128;
      let v130 = found118.w;
      b5[at129] = v130;
    }
    let found131 = sum_a1_1;
    let d132 = (lane + 8u) * 4u + 0u;
     {
      let at133 = begin117 + d132;
      let v134 = found131.x;
      b5[at133] = v134;
    }
    let d135 = (lane + 8u) * 4u + 1u;
     {
      let at136 = begin117 + d135;
      let v137 = found131.y;
      b5[at136] = v137;
    }
    let d138 = (lane + 8u) * 4u + 2u;
     {
      let at139 = begin117 + d138;
      let v140 = found131.z;
      b5[at139] = v140;
    }
    let d141 = (lane + 8u) * 4u + 3u;
     {
      let at142 = begin117 + d141;
      let v143 = found131.w;
      b5[at142] = v143;
    }
  }
  if (sum_row + 0u < 16u && row0 + sum_row + 0u < u.d2) {
    let row144 = row0 + sum_row + 0u;
    let begin145 = (u.d8 + (((batch * u.d4) + (kv_head * u.d5)) + (row144 * 64u)));
    let found146 = sum_b0_0;
    let d147 = (lane + 0u) * 4u + 0u;
     {
      let at148 = begin145 + d147;
      let v149 = found146.x;
      b5[at148] = v149;
    }
    let d150 = (lane + 0u) * 4u + 1u;
     {
      let at151 = begin145 + d150;
      let v152 = found146.y;
      b5[at151] = v152;
    }
    let d153 = (lane + 0u) * 4u + 2u;
     {
      let at154 = begin145 + d153;
      let v155 = found146.z;
      b5[at154] = v155;
    }
    let d156 = (lane + 0u) * 4u + 3u;
     {
      let at157 = begin145 + d156;
      let v158 = found146.w;
      b5[at157] = v158;
    }
    let found159 = sum_b0_1;
    let d160 = (lane + 8u) * 4u + 0u;
     {
      let at161 = begin145 + d160;
      let v162 = found159.x;
      b5[at161] = v162;
    }
    let d163 = (lane + 8u) * 4u + 1u;
     {
      let at164 = begin145 + d163;
      let v165 = found159.y;
      b5[at164] = v165;
    }
    let d166 = (lane + 8u) * 4u + 2u;
     {
      let at167 = begin145 + d166;
      let v168 = found159.z;
      b5[at167] = v168;
    }
    let d169 = (lane + 8u) * 4u + 3u;
     {
      let at170 = begin145 + d169;
      let v171 = found159.w;
      b5[at170] = v171;
    }
  }
  if (sum_row + 1u < 16u && row0 + sum_row + 1u < u.d2) {
    let row172 = row0 + sum_row + 1u;
    let begin173 = (u.d8 + (((batch * u.d4) + (kv_head * u.d5)) + (row172 * 64u)));
    let found174 = sum_b1_0;
    let d175 = (lane + 0u) * 4u + 0u;
     {
      let at176 = begin173 + d175;
      let v177 = found174.x;
      b5[at176] = v177;
    }
    let d178 = (lane + 0u) * 4u + 1u;
     {
      let at179 = begin173 + d178;
      let v180 = found174.y;
      b5[at179] = v180;
    }
    let d181 = (lane + 0u) * 4u + 2u;
     {
      let at182 = begin173 + d181;
      let v183 = found174.z;
      b5[at182] = v183;
    }
    let d184 = (lane + 0u) * 4u + 3u;
     {
      let at185 = begin173 + d184;
      let v186 = found174.w;
      b5[at185] = v186;
    }
    let found187 = sum_b1_1;
    let d188 = (lane + 8u) * 4u + 0u;
     {
      let at189 = begin173 + d188;
      let v190 = found187.x;
      b5[at189] = v190;
    }
    let d191 = (lane + 8u) * 4u + 1u;
     {
      let at192 = begin173 + d191;
      let v193 = found187.y;
      b5[at192] = v193;
    }
    let d194 = (lane + 8u) * 4u + 2u;
     {
      let at195 = begin173 + d194;
      let v196 = found187.z;
      b5[at195] = v196;
    }
    let d197 = (lane + 8u) * 4u + 3u;
     {
      let at198 = begin173 + d197;
      let v199 = found187.w;
      b5[at198] = v199;
    }
  }
}

// slice+reshape [map/256x1]: groups floordiv(256*T+255,256); read %5, write %7; sizes 256*T, T, floordiv(256*T+255,256)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d2) { return; }
  let w = wg * 256u + lid;
  if (w < u.d0) {
    let v5 = b0[w];
    b1[w] = v5;
  }
}

// slice+reshape [map/256x1]: groups floordiv(128*T+255,256); read %5, write %9; sizes 128*T, T, 256*T, floordiv(128*T+255,256)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d3) { return; }
  let w = wg * 256u + lid;
  if (w < u.d0) {
    let v5 = b0[(u.d2 + w)];
    b1[w] = v5;
  }
}

// slice+reshape [map/256x1]: groups floordiv(128*T+255,256); read %5, write %11; sizes 128*T, T, 384*T, floordiv(128*T+255,256)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d3) { return; }
  let w = wg * 256u + lid;
  if (w < u.d0) {
    let v5 = b0[(u.d2 + w)];
    b1[w] = v5;
  }
}
