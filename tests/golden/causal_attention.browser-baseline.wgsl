// attention [flash 16x16 128]: groups 2*floordiv(2*T+15,16); read %0, read %1, read %2, write %3; sizes floordiv(2*T+15,16), 2*floordiv(2*T+15,16), 2*T-1, T, 256*T, 64*T, 128*T, 2*T
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

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = (wg % u.d0) * 16u;
  let kv_head = (wg / u.d0) % 2u;
  let batch = wg / u.d1;
  let last_row = min(row0 + 15u, u.d2);
  let offset = 0i;
  let key_end = u32(max(min(i32(u.d3), offset + i32(last_row / 2u) + 1i), 0i));
  let key_begin = 0u;
  for (var e = lid; e < 256u; e += 128u) {
    let row1 = min(row0 + e / 16u, last_row);
    let h2 = kv_head * 2u + row1 % 2u;
    let s3 = row1 / 2u;
    let base4 = ((batch * u.d4) + (h2 * u.d5));
    let row5 = (base4 + (s3 * 64u));
    let d6 = (e % 16u) * 4u;
    queries[e] = vec4<f32>(b0[(row5 + d6)], b0[(row5 + (d6 + 1u))], b0[(row5 + (d6 + 2u))], b0[(row5 + (d6 + 3u))]) * 0.125f;
  }
  if (lid < 16u) {
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
  for (var c0 = key_begin; c0 < key_end; c0 += 16u) {
    let chunk = min(16u, key_end - c0);
    let base7 = ((batch * u.d6) + (kv_head * u.d5));
    for (var e = lid; e < 256u; e += 128u) {
      let key8 = e / 16u;
      let part9 = e % 16u;
      let row10 = c0 + min(key8, chunk - 1u);
      let row11 = (base7 + (row10 * 64u));
      let d12 = part9 * 4u;
      keys[key8 * 17u + part9] = vec4<f32>(b1[(row11 + d12)], b1[(row11 + (d12 + 1u))], b1[(row11 + (d12 + 2u))], b1[(row11 + (d12 + 3u))]);
    }
    workgroupBarrier();
    let key = lid % 16u;
    let r0 = (lid / 16u) * 2u;
    var score_0 = 0.0;
    var score_1 = 0.0;
    for (var d = 0u; d < 16u; d++) {
      let k4 = keys[key * 17u + d];
      score_0 += dot(k4, queries[(r0 + 0u) * 16u + d]);
      score_1 += dot(k4, queries[(r0 + 1u) * 16u + d]);
    }
    scores[(r0 + 0u) * 16u + key] = score_0;
    scores[(r0 + 1u) * 16u + key] = score_1;
    workgroupBarrier();
    for (var e = lid; e < 256u; e += 128u) {
      let dot13 = scores[e];
      let ck = e % 16u;
      let position = c0 + min(ck, chunk - 1u);
      let row = min(row0 + e / 16u, last_row);
      let h14 = kv_head * 2u + row % 2u;
      let s15 = row / 2u;
      scores[e] = select(-3.3e38f, max(dot13, -3.0e38f), ck < chunk && i32(position) <= offset + i32(s15));
    }
    workgroupBarrier();
    for (var e = lid; e < 64u; e += 128u) {
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
      let keep17 = keep[sum_row];
      sum0_0 *= keep17;
      let keep18 = keep[(sum_row + 1u)];
      sum1_0 *= keep18;
      let keep19 = keep[(sum_row + 2u)];
      sum2_0 *= keep19;
      let keep20 = keep[(sum_row + 3u)];
      sum3_0 *= keep20;
      let keep21 = keep[(sum_row + 4u)];
      sum4_0 *= keep21;
      let keep22 = keep[(sum_row + 5u)];
      sum5_0 *= keep22;
      let keep23 = keep[(sum_row + 6u)];
      sum6_0 *= keep23;
      let keep24 = keep[(sum_row + 7u)];
      sum7_0 *= keep24;
      let base25 = ((batch * u.d6) + (kv_head * u.d5));
      for (var i = 0u; i < (chunk + 3u) / 4u; i++) {
        let weight_0 = weights[sum_row * 4u + i];
        let weight_1 = weights[(sum_row + 1u) * 4u + i];
        let weight_2 = weights[(sum_row + 2u) * 4u + i];
        let weight_3 = weights[(sum_row + 3u) * 4u + i];
        let weight_4 = weights[(sum_row + 4u) * 4u + i];
        let weight_5 = weights[(sum_row + 5u) * 4u + i];
        let weight_6 = weights[(sum_row + 6u) * 4u + i];
        let weight_7 = weights[(sum_row + 7u) * 4u + i];
        let row26 = c0 + min(i * 4u + 0u, chunk - 1u);
        let row27 = (base25 + (row26 * 64u));
        let row28 = c0 + min(i * 4u + 1u, chunk - 1u);
        let row29 = (base25 + (row28 * 64u));
        let row30 = c0 + min(i * 4u + 2u, chunk - 1u);
        let row31 = (base25 + (row30 * 64u));
        let row33 = c0 + min(i * 4u + 3u, chunk - 1u);
        let row34 = (base25 + (row33 * 64u));
        let v35 = vec4<f32>(b2[(row27 + lane)], select(0.0, b2[(row29 + lane)], i * 4u + 1u < chunk), select(0.0, b2[(row31 + lane)], i * 4u + 2u < chunk), select(0.0, b2[(row34 + lane)], i * 4u + 3u < chunk));
        sum0_0 += dot(weight_0, v35);
        sum1_0 += dot(weight_1, v35);
        sum2_0 += dot(weight_2, v35);
        sum3_0 += dot(weight_3, v35);
        sum4_0 += dot(weight_4, v35);
        sum5_0 += dot(weight_5, v35);
        sum6_0 += dot(weight_6, v35);
        sum7_0 += dot(weight_7, v35);
      }
    }
  }
  workgroupBarrier();
  var sums = array<f32, 8>(sum0_0, sum1_0, sum2_0, sum3_0, sum4_0, sum5_0, sum6_0, sum7_0);
  for (var i = 0u; i < 8u; i++) {
    let r = sum_row + i;
    let row = row0 + r;
    if (r < 16u && row < u.d7) {
      let h36 = kv_head * 2u + row % 2u;
      let s37 = row / 2u;
      let weight = total[r];
      let share = select(0.0, 1.0 / weight, weight > 0.0);
      for (var j = 0u; j < 1u; j++) {
        let column = lane + j * 64u;
        if (column < 64u) {
          let result = sums[i * 1u + j] * share;
          b3[((((batch * u.d4) + (h36 * u.d5)) + (s37 * 64u)) + column)] = result;
        }
      }
    }
  }
}
