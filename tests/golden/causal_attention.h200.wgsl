// attention [flash 32x32 256]: groups 2*floordiv(2*T+31,32); read %0, read %1, read %2, write %3; sizes floordiv(2*T+31,32), 2*floordiv(2*T+31,32), 2*T-1, T, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> queries: array<vec4<f32>, 512>;
var<workgroup> keys: array<vec4<f32>, 544>;
var<workgroup> scores: array<f32, 1024>;
var<workgroup> weights: array<vec4<f32>, 256>;
var<workgroup> top: array<f32, 32>;
var<workgroup> next_top: array<f32, 32>;
var<workgroup> total: array<f32, 32>;
var<workgroup> keep: array<f32, 32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let team = wg;
  let row0 = (team % u.d0) * 32u;
  let kv_head = (team / u.d0) % 2u;
  let batch = team / u.d1;
  let last_row = min(row0 + 31u, u.d2);
  let offset = 0i;
  let key_end = u32(max(min(i32(u.d3), offset + i32(last_row / 2u) + 1i), 0i));
  let key_begin = 0u;
  for (var e = lid; e < 512u; e += 256u) {
    let row1 = min(row0 + e / 16u, last_row);
    let h2 = kv_head * 2u + row1 % 2u;
    let s3 = row1 / 2u;
    let d4 = (e % 16u) * 4u;
    let base5 = ((batch * u.d4) + (h2 * u.d5));
    let row6 = (base5 + (s3 * 64u));
    queries[e] = vec4<f32>(b0[(row6 + d4)], b0[(row6 + (d4 + 1u))], b0[(row6 + (d4 + 2u))], b0[(row6 + (d4 + 3u))]) * 0.125f;
  }
  if (lid < 32u) {
    top[lid] = -3.3e38f;
    total[lid] = 0.0;
  }
  let lane = lid % 64u;
  let sum_row = (lid / 64u) * 8u;
  var sum0_0 = 0.0;
  var sum1_0 = 0.0;
  var sum2_0 = 0.0;
  var sum3_0 = 0.0;
  var sum4_0 = 0.0;
  var sum5_0 = 0.0;
  var sum6_0 = 0.0;
  var sum7_0 = 0.0;
  for (var c0 = key_begin; c0 < key_end; c0 += 32u) {
    let chunk = min(32u, key_end - c0);
    let base7 = ((batch * u.d6) + (kv_head * u.d5));
    let e8 = lid;
    let e9 = (lid + 256u);
    let key10 = e8 / 16u;
    let part11 = e8 % 16u;
    let row12 = c0 + min(key10, chunk - 1u);
    let row13 = (base7 + (row12 * 64u));
    let d14 = part11 * 4u;
    let k15 = vec4<f32>(b1[(row13 + d14)], b1[(row13 + (d14 + 1u))], b1[(row13 + (d14 + 2u))], b1[(row13 + (d14 + 3u))]);
    let place17 = key10 * 17u + part11;
    let key18 = e9 / 16u;
    let part19 = e9 % 16u;
    let row20 = c0 + min(key18, chunk - 1u);
    let row21 = (base7 + (row20 * 64u));
    let d22 = part19 * 4u;
    let k23 = vec4<f32>(b1[(row21 + d22)], b1[(row21 + (d22 + 1u))], b1[(row21 + (d22 + 2u))], b1[(row21 + (d22 + 3u))]);
    let place24 = key18 * 17u + part19;
    { keys[place17] = k15; }
    { keys[place24] = k23; }
    workgroupBarrier();
    let key = lid % 32u;
    let r0 = (lid / 32u) * 4u;
    var score_0 = 0.0;
    var score_1 = 0.0;
    var score_2 = 0.0;
    var score_3 = 0.0;
    for (var d = 0u; d < 16u; d++) {
      let k4 = keys[key * 17u + d];
      score_0 += dot(k4, queries[(r0 + 0u) * 16u + d]);
      score_1 += dot(k4, queries[(r0 + 1u) * 16u + d]);
      score_2 += dot(k4, queries[(r0 + 2u) * 16u + d]);
      score_3 += dot(k4, queries[(r0 + 3u) * 16u + d]);
    }
    scores[(r0 + 0u) * 32u + key] = score_0;
    scores[(r0 + 1u) * 32u + key] = score_1;
    scores[(r0 + 2u) * 32u + key] = score_2;
    scores[(r0 + 3u) * 32u + key] = score_3;
    workgroupBarrier();
    for (var e = lid; e < 1024u; e += 256u) {
      let dot25 = scores[e];
      let ck = e % 32u;
      let position = c0 + min(ck, chunk - 1u);
      let row = min(row0 + e / 32u, last_row);
      let h26 = kv_head * 2u + row % 2u;
      let s27 = row / 2u;
      scores[e] = select(-3.3e38f, max(dot25, -3.0e38f), ck < chunk && i32(position) <= offset + i32(s27));
    }
    workgroupBarrier();
    for (var e = lid; e < 256u; e += 256u) {
      let r = e / 8u;
      let old = top[r];
      var highest = old;
      for (var i = 0u; i < 32u; i++) { highest = max(highest, scores[r * 32u + i]); }
      let s = vec4<f32>(scores[e * 4u], scores[e * 4u + 1u], scores[e * 4u + 2u], scores[e * 4u + 3u]);
      let shown = s >= vec4<f32>(-3.0e38f);
      weights[e] = select(vec4<f32>(), exp(max(s - highest, vec4<f32>(-200.0f))), shown);
      if (e % 8u == 0u) {
        next_top[r] = highest;
        keep[r] = select(0.0, exp(max(old - highest, -200.0f)), old >= -3.0e38f);
      }
    }
    workgroupBarrier();
    if (lid < 32u) {
      var row_sum = vec4<f32>();
      for (var i = 0u; i < 8u; i++) { row_sum += weights[lid * 8u + i]; }
      total[lid] = total[lid] * keep[lid] + dot(row_sum, vec4<f32>(1.0));
      top[lid] = next_top[lid];
    }
    if (sum_row < 32u) {
      let keep28 = keep[sum_row];
      sum0_0 *= keep28;
      let keep29 = keep[(sum_row + 1u)];
      sum1_0 *= keep29;
      let keep30 = keep[(sum_row + 2u)];
      sum2_0 *= keep30;
      let keep31 = keep[(sum_row + 3u)];
      sum3_0 *= keep31;
      let keep33 = keep[(sum_row + 4u)];
      sum4_0 *= keep33;
      let keep34 = keep[(sum_row + 5u)];
      sum5_0 *= keep34;
      let keep35 = keep[(sum_row + 6u)];
      sum6_0 *= keep35;
      let keep36 = keep[(sum_row + 7u)];
      sum7_0 *= keep36;
      let base37 = ((batch * u.d6) + (kv_head * u.d5));
      for (var i = 0u; i < (chunk + 3u) / 4u; i += 4u) {
        let at38 = i * 4u + 0u;
        let at39 = i * 4u + 1u;
        let at40 = i * 4u + 2u;
        let at41 = i * 4u + 3u;
        let row42 = c0 + min(at38, chunk - 1u);
        let row43 = c0 + min(at39, chunk - 1u);
        let row44 = c0 + min(at40, chunk - 1u);
        let row45 = c0 + min(at41, chunk - 1u);
        let row46 = (base37 + (row42 * 64u));
        let row47 = (base37 + (row43 * 64u));
        let row48 = (base37 + (row44 * 64u));
        let row49 = (base37 + (row45 * 64u));
        let v50 = vec4<f32>(select(0.0, b2[(row46 + lane)], at38 < chunk), select(0.0, b2[(row47 + lane)], at39 < chunk), select(0.0, b2[(row48 + lane)], at40 < chunk), select(0.0, b2[(row49 + lane)], at41 < chunk));
        let at51 = (i + 1u) * 4u + 0u;
        let at52 = (i + 1u) * 4u + 1u;
        let at53 = (i + 1u) * 4u + 2u;
        let at54 = (i + 1u) * 4u + 3u;
        let row55 = c0 + min(at51, chunk - 1u);
        let row56 = c0 + min(at52, chunk - 1u);
        let row57 = c0 + min(at53, chunk - 1u);
        let row58 = c0 + min(at54, chunk - 1u);
        let row59 = (base37 + (row55 * 64u));
        let row60 = (base37 + (row56 * 64u));
        let row61 = (base37 + (row57 * 64u));
        let row62 = (base37 + (row58 * 64u));
        let v63 = vec4<f32>(select(0.0, b2[(row59 + lane)], at51 < chunk), select(0.0, b2[(row60 + lane)], at52 < chunk), select(0.0, b2[(row61 + lane)], at53 < chunk), select(0.0, b2[(row62 + lane)], at54 < chunk));
        let at65 = (i + 2u) * 4u + 0u;
        let at66 = (i + 2u) * 4u + 1u;
        let at67 = (i + 2u) * 4u + 2u;
        let at68 = (i + 2u) * 4u + 3u;
        let row69 = c0 + min(at65, chunk - 1u);
        let row70 = c0 + min(at66, chunk - 1u);
        let row71 = c0 + min(at67, chunk - 1u);
        let row72 = c0 + min(at68, chunk - 1u);
        let row73 = (base37 + (row69 * 64u));
        let row74 = (base37 + (row70 * 64u));
        let row75 = (base37 + (row71 * 64u));
        let row76 = (base37 + (row72 * 64u));
        let v77 = vec4<f32>(select(0.0, b2[(row73 + lane)], at65 < chunk), select(0.0, b2[(row74 + lane)], at66 < chunk), select(0.0, b2[(row75 + lane)], at67 < chunk), select(0.0, b2[(row76 + lane)], at68 < chunk));
        let at78 = (i + 3u) * 4u + 0u;
        let at79 = (i + 3u) * 4u + 1u;
        let at80 = (i + 3u) * 4u + 2u;
        let at81 = (i + 3u) * 4u + 3u;
        let row82 = c0 + min(at78, chunk - 1u);
        let row83 = c0 + min(at79, chunk - 1u);
        let row84 = c0 + min(at80, chunk - 1u);
        let row85 = c0 + min(at81, chunk - 1u);
        let row86 = (base37 + (row82 * 64u));
        let row87 = (base37 + (row83 * 64u));
        let row88 = (base37 + (row84 * 64u));
        let row89 = (base37 + (row85 * 64u));
        let v90 = vec4<f32>(select(0.0, b2[(row86 + lane)], at78 < chunk), select(0.0, b2[(row87 + lane)], at79 < chunk), select(0.0, b2[(row88 + lane)], at80 < chunk), select(0.0, b2[(row89 + lane)], at81 < chunk));
        let w91 = weights[sum_row * 8u + i];
        sum0_0 += dot(w91, v50);
        let w92 = weights[(sum_row + 1u) * 8u + i];
        sum1_0 += dot(w92, v50);
        let w93 = weights[(sum_row + 2u) * 8u + i];
        sum2_0 += dot(w93, v50);
        let w94 = weights[(sum_row + 3u) * 8u + i];
        sum3_0 += dot(w94, v50);
        let w95 = weights[(sum_row + 4u) * 8u + i];
        sum4_0 += dot(w95, v50);
        let w96 = weights[(sum_row + 5u) * 8u + i];
        sum5_0 += dot(w96, v50);
        let w97 = weights[(sum_row + 6u) * 8u + i];
        sum6_0 += dot(w97, v50);
        let w98 = weights[(sum_row + 7u) * 8u + i];
        sum7_0 += dot(w98, v50);
        let w99 = weights[sum_row * 8u + (i + 1u)];
        sum0_0 += dot(w99, v63);
        let w100 = weights[(sum_row + 1u) * 8u + (i + 1u)];
        sum1_0 += dot(w100, v63);
        let w101 = weights[(sum_row + 2u) * 8u + (i + 1u)];
        sum2_0 += dot(w101, v63);
        let w102 = weights[(sum_row + 3u) * 8u + (i + 1u)];
        sum3_0 += dot(w102, v63);
        let w103 = weights[(sum_row + 4u) * 8u + (i + 1u)];
        sum4_0 += dot(w103, v63);
        let w104 = weights[(sum_row + 5u) * 8u + (i + 1u)];
        sum5_0 += dot(w104, v63);
        let w105 = weights[(sum_row + 6u) * 8u + (i + 1u)];
        sum6_0 += dot(w105, v63);
        let w106 = weights[(sum_row + 7u) * 8u + (i + 1u)];
        sum7_0 += dot(w106, v63);
        let w107 = weights[sum_row * 8u + (i + 2u)];
        sum0_0 += dot(w107, v77);
        let w108 = weights[(sum_row + 1u) * 8u + (i + 2u)];
        sum1_0 += dot(w108, v77);
        let w109 = weights[(sum_row + 2u) * 8u + (i + 2u)];
        sum2_0 += dot(w109, v77);
        let w110 = weights[(sum_row + 3u) * 8u + (i + 2u)];
        sum3_0 += dot(w110, v77);
        let w111 = weights[(sum_row + 4u) * 8u + (i + 2u)];
        sum4_0 += dot(w111, v77);
        let w112 = weights[(sum_row + 5u) * 8u + (i + 2u)];
        sum5_0 += dot(w112, v77);
        let w113 = weights[(sum_row + 6u) * 8u + (i + 2u)];
        sum6_0 += dot(w113, v77);
        let w114 = weights[(sum_row + 7u) * 8u + (i + 2u)];
        sum7_0 += dot(w114, v77);
        let w115 = weights[sum_row * 8u + (i + 3u)];
        sum0_0 += dot(w115, v90);
        let w116 = weights[(sum_row + 1u) * 8u + (i + 3u)];
        sum1_0 += dot(w116, v90);
        let w117 = weights[(sum_row + 2u) * 8u + (i + 3u)];
        sum2_0 += dot(w117, v90);
        let w118 = weights[(sum_row + 3u) * 8u + (i + 3u)];
        sum3_0 += dot(w118, v90);
        let w119 = weights[(sum_row + 4u) * 8u + (i + 3u)];
        sum4_0 += dot(w119, v90);
        let w120 = weights[(sum_row + 5u) * 8u + (i + 3u)];
        sum5_0 += dot(w120, v90);
        let w121 = weights[(sum_row + 6u) * 8u + (i + 3u)];
        sum6_0 += dot(w121, v90);
        let w122 = weights[(sum_row + 7u) * 8u + (i + 3u)];
        sum7_0 += dot(w122, v90);
      }
    }
  }
  workgroupBarrier();
  var sums = array<f32, 8>(sum0_0, sum1_0, sum2_0, sum3_0, sum4_0, sum5_0, sum6_0, sum7_0);
  for (var i = 0u; i < 8u; i++) {
    let r = sum_row + i;
    let row = row0 + r;
    if (r < 32u && row < u.d7) {
      let h123 = kv_head * 2u + row % 2u;
      let s124 = row / 2u;
      let weight = total[r];
      let share = select(0.0, 1.0 / weight, weight > 0.0);
      for (var j = 0u; j < 1u; j++) {
        let column = lane + j * 64u;
        if (column < 64u) {
          let result = sums[i * 1u + j] * share;
          b3[((((batch * u.d4) + (h123 * u.d5)) + (s124 * 64u)) + column)] = result;
        }
      }
    }
  }
}
