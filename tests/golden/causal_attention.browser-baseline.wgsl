// attention [flash 16x16 256]: groups 2*floordiv(2*T+15,16); read %0, read %1, read %2, write %3; sizes floordiv(2*T+15,16), 2*floordiv(2*T+15,16), 2*T-1, T, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> queries: array<vec4<f32>, 256>;
var<workgroup> keys: array<vec4<f32>, 272>;
var<workgroup> scores: array<f32, 256>;
var<workgroup> weights: array<vec4<f32>, 64>;
var<workgroup> top: array<f32, 16>;
var<workgroup> next_top: array<f32, 16>;
var<workgroup> total: array<f32, 16>;
var<workgroup> keep: array<f32, 16>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let team = wg;
  let row0 = (team % u.d0) * 16u;
  let kv_head = (team / u.d0) % 2u;
  let batch = team / u.d1;
  let last_row = min(row0 + 15u, u.d2);
  let offset = 0i;
  let key_end = u32(max(min(i32(u.d3), offset + i32(last_row / 2u) + 1i), 0i));
  let key_begin = 0u;
  for (var e = lid; e < 256u; e += 256u) {
    let row1 = min(row0 + e / 16u, last_row);
    let h2 = kv_head * 2u + row1 % 2u;
    let s3 = row1 / 2u;
    let d4 = (e % 16u) * 4u;
    let base5 = ((batch * u.d4) + (h2 * u.d5));
    let row6 = (base5 + (s3 * 64u));
    queries[e] = vec4<f32>(b0[(row6 + d4)], b0[(row6 + (d4 + 1u))], b0[(row6 + (d4 + 2u))], b0[(row6 + (d4 + 3u))]) * 0.125f;
  }
  if (lid < 16u) {
    top[lid] = -3.3e38f;
    total[lid] = 0.0;
  }
  let lane = lid % 64u;
  let sum_row = (lid / 64u) * 4u;
  var sum0_0 = 0.0;
  var sum1_0 = 0.0;
  var sum2_0 = 0.0;
  var sum3_0 = 0.0;
  for (var c0 = key_begin; c0 < key_end; c0 += 16u) {
    let chunk = min(16u, key_end - c0);
    let base7 = ((batch * u.d6) + (kv_head * u.d5));
    let e8 = lid;
    let key9 = e8 / 16u;
    let part10 = e8 % 16u;
    let row11 = c0 + min(key9, chunk - 1u);
    let row12 = (base7 + (row11 * 64u));
    let d13 = part10 * 4u;
    let k14 = vec4<f32>(b1[(row12 + d13)], b1[(row12 + (d13 + 1u))], b1[(row12 + (d13 + 2u))], b1[(row12 + (d13 + 3u))]);
    let place15 = key9 * 17u + part10;
    { keys[place15] = k14; }
    workgroupBarrier();
    let key = lid % 16u;
    let r0 = (lid / 16u) * 1u;
    var score_0 = 0.0;
    for (var d = 0u; d < 16u; d++) {
      let k4 = keys[key * 17u + d];
      score_0 += dot(k4, queries[(r0 + 0u) * 16u + d]);
    }
    scores[(r0 + 0u) * 16u + key] = score_0;
    workgroupBarrier();
    for (var e = lid; e < 256u; e += 256u) {
      let dot17 = scores[e];
      let ck = e % 16u;
      let position = c0 + min(ck, chunk - 1u);
      let row = min(row0 + e / 16u, last_row);
      let h18 = kv_head * 2u + row % 2u;
      let s19 = row / 2u;
      scores[e] = select(-3.3e38f, max(dot17, -3.0e38f), ck < chunk && i32(position) <= offset + i32(s19));
    }
    workgroupBarrier();
    for (var e = lid; e < 64u; e += 256u) {
      let r = e / 4u;
      let old = top[r];
      var highest = old;
      for (var i = 0u; i < 16u; i++) { highest = max(highest, scores[r * 16u + i]); }
      let s = vec4<f32>(scores[e * 4u], scores[e * 4u + 1u], scores[e * 4u + 2u], scores[e * 4u + 3u]);
      let shown = s >= vec4<f32>(-3.0e38f);
      weights[e] = select(vec4<f32>(), exp(max(s - highest, vec4<f32>(-200.0f))), shown);
      if (e % 4u == 0u) {
        next_top[r] = highest;
        keep[r] = select(0.0, exp(max(old - highest, -200.0f)), old >= -3.0e38f);
      }
    }
    workgroupBarrier();
    if (lid < 16u) {
      var row_sum = vec4<f32>();
      for (var i = 0u; i < 4u; i++) { row_sum += weights[lid * 4u + i]; }
      total[lid] = total[lid] * keep[lid] + dot(row_sum, vec4<f32>(1.0));
      top[lid] = next_top[lid];
    }
    if (sum_row < 16u) {
      let keep20 = keep[sum_row];
      sum0_0 *= keep20;
      let keep21 = keep[(sum_row + 1u)];
      sum1_0 *= keep21;
      let keep22 = keep[(sum_row + 2u)];
      sum2_0 *= keep22;
      let keep23 = keep[(sum_row + 3u)];
      sum3_0 *= keep23;
      let base24 = ((batch * u.d6) + (kv_head * u.d5));
      for (var i = 0u; i < (chunk + 3u) / 4u; i += 4u) {
        let at25 = i * 4u + 0u;
        let at26 = i * 4u + 1u;
        let at27 = i * 4u + 2u;
        let at28 = i * 4u + 3u;
        let row29 = c0 + min(at25, chunk - 1u);
        let row30 = c0 + min(at26, chunk - 1u);
        let row31 = c0 + min(at27, chunk - 1u);
        let row33 = c0 + min(at28, chunk - 1u);
        let row34 = (base24 + (row29 * 64u));
        let row35 = (base24 + (row30 * 64u));
        let row36 = (base24 + (row31 * 64u));
        let row37 = (base24 + (row33 * 64u));
        let v38 = vec4<f32>(select(0.0, b2[(row34 + lane)], at25 < chunk), select(0.0, b2[(row35 + lane)], at26 < chunk), select(0.0, b2[(row36 + lane)], at27 < chunk), select(0.0, b2[(row37 + lane)], at28 < chunk));
        let at39 = (i + 1u) * 4u + 0u;
        let at40 = (i + 1u) * 4u + 1u;
        let at41 = (i + 1u) * 4u + 2u;
        let at42 = (i + 1u) * 4u + 3u;
        let row43 = c0 + min(at39, chunk - 1u);
        let row44 = c0 + min(at40, chunk - 1u);
        let row45 = c0 + min(at41, chunk - 1u);
        let row46 = c0 + min(at42, chunk - 1u);
        let row47 = (base24 + (row43 * 64u));
        let row48 = (base24 + (row44 * 64u));
        let row49 = (base24 + (row45 * 64u));
        let row50 = (base24 + (row46 * 64u));
        let v51 = vec4<f32>(select(0.0, b2[(row47 + lane)], at39 < chunk), select(0.0, b2[(row48 + lane)], at40 < chunk), select(0.0, b2[(row49 + lane)], at41 < chunk), select(0.0, b2[(row50 + lane)], at42 < chunk));
        let at52 = (i + 2u) * 4u + 0u;
        let at53 = (i + 2u) * 4u + 1u;
        let at54 = (i + 2u) * 4u + 2u;
        let at55 = (i + 2u) * 4u + 3u;
        let row56 = c0 + min(at52, chunk - 1u);
        let row57 = c0 + min(at53, chunk - 1u);
        let row58 = c0 + min(at54, chunk - 1u);
        let row59 = c0 + min(at55, chunk - 1u);
        let row60 = (base24 + (row56 * 64u));
        let row61 = (base24 + (row57 * 64u));
        let row62 = (base24 + (row58 * 64u));
        let row63 = (base24 + (row59 * 64u));
        let v65 = vec4<f32>(select(0.0, b2[(row60 + lane)], at52 < chunk), select(0.0, b2[(row61 + lane)], at53 < chunk), select(0.0, b2[(row62 + lane)], at54 < chunk), select(0.0, b2[(row63 + lane)], at55 < chunk));
        let at66 = (i + 3u) * 4u + 0u;
        let at67 = (i + 3u) * 4u + 1u;
        let at68 = (i + 3u) * 4u + 2u;
        let at69 = (i + 3u) * 4u + 3u;
        let row70 = c0 + min(at66, chunk - 1u);
        let row71 = c0 + min(at67, chunk - 1u);
        let row72 = c0 + min(at68, chunk - 1u);
        let row73 = c0 + min(at69, chunk - 1u);
        let row74 = (base24 + (row70 * 64u));
        let row75 = (base24 + (row71 * 64u));
        let row76 = (base24 + (row72 * 64u));
        let row77 = (base24 + (row73 * 64u));
        let v78 = vec4<f32>(select(0.0, b2[(row74 + lane)], at66 < chunk), select(0.0, b2[(row75 + lane)], at67 < chunk), select(0.0, b2[(row76 + lane)], at68 < chunk), select(0.0, b2[(row77 + lane)], at69 < chunk));
        let w79 = weights[sum_row * 4u + i];
        sum0_0 += dot(w79, v38);
        let w80 = weights[(sum_row + 1u) * 4u + i];
        sum1_0 += dot(w80, v38);
        let w81 = weights[(sum_row + 2u) * 4u + i];
        sum2_0 += dot(w81, v38);
        let w82 = weights[(sum_row + 3u) * 4u + i];
        sum3_0 += dot(w82, v38);
        let w83 = weights[sum_row * 4u + (i + 1u)];
        sum0_0 += dot(w83, v51);
        let w84 = weights[(sum_row + 1u) * 4u + (i + 1u)];
        sum1_0 += dot(w84, v51);
        let w85 = weights[(sum_row + 2u) * 4u + (i + 1u)];
        sum2_0 += dot(w85, v51);
        let w86 = weights[(sum_row + 3u) * 4u + (i + 1u)];
        sum3_0 += dot(w86, v51);
        let w87 = weights[sum_row * 4u + (i + 2u)];
        sum0_0 += dot(w87, v65);
        let w88 = weights[(sum_row + 1u) * 4u + (i + 2u)];
        sum1_0 += dot(w88, v65);
        let w89 = weights[(sum_row + 2u) * 4u + (i + 2u)];
        sum2_0 += dot(w89, v65);
        let w90 = weights[(sum_row + 3u) * 4u + (i + 2u)];
        sum3_0 += dot(w90, v65);
        let w91 = weights[sum_row * 4u + (i + 3u)];
        sum0_0 += dot(w91, v78);
        let w92 = weights[(sum_row + 1u) * 4u + (i + 3u)];
        sum1_0 += dot(w92, v78);
        let w93 = weights[(sum_row + 2u) * 4u + (i + 3u)];
        sum2_0 += dot(w93, v78);
        let w94 = weights[(sum_row + 3u) * 4u + (i + 3u)];
        sum3_0 += dot(w94, v78);
      }
    }
  }
  workgroupBarrier();
  var sums = array<f32, 4>(sum0_0, sum1_0, sum2_0, sum3_0);
  for (var i = 0u; i < 4u; i++) {
    let r = sum_row + i;
    let row = row0 + r;
    if (r < 16u && row < u.d7) {
      let h95 = kv_head * 2u + row % 2u;
      let s96 = row / 2u;
      let weight = total[r];
      let share = select(0.0, 1.0 / weight, weight > 0.0);
      for (var j = 0u; j < 1u; j++) {
        let column = lane + j * 64u;
        if (column < 64u) {
          let result = sums[i * 1u + j] * share;
          b3[((((batch * u.d4) + (h95 * u.d5)) + (s96 * 64u)) + column)] = result;
        }
      }
    }
  }
}
