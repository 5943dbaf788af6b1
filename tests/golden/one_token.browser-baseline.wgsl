// attention partial [flash 2x32 256 16 parts]: groups 32; read %6, read %3, read %4, read %5, write %18; sizes static
@group(0) @binding(0) var<storage, read> b0: array<i32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<u32>;
@group(0) @binding(3) var<storage, read> b3: array<u32>;
@group(0) @binding(4) var<storage, read_write> b4: array<f32>;
var<workgroup> queries: array<vec4<f32>, 32>;
var<workgroup> keys: array<vec4<f32>, 544>;
var<workgroup> scores: array<f32, 256>;
var<workgroup> weights: array<vec4<f32>, 16>;
var<workgroup> top: array<f32, 2>;
var<workgroup> next_top: array<f32, 2>;
var<workgroup> total: array<f32, 2>;
var<workgroup> keep: array<f32, 2>;
fn load_b3(i: u32) -> f32 { let w = b3[i >> 1u]; let s = i & 1u; return unpack2x16float(w >> (s * 16u)).x; }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 32u) { return; }
  let block_id = wg / 16u;
  let row0 = (block_id % 1u) * 2u;
  let kv_head = (block_id / 1u) % 2u;
  let batch = block_id / 2u;
  let last_row = min(row0 + 1u, 1u);
  let all_end = u32(max(min(i32(512u), b0[0u]), 0i));
  let all_begin = min(0u, all_end);
  let chunks = (all_end - all_begin + 31u) / 32u;
  let span = (chunks + 15u) / 16u * 32u;
  let key_begin = min(all_begin + (wg % 16u) * span, all_end);
  let key_end = min(key_begin + span, all_end);
  for (var e = lid; e < 32u; e += 256u) {
    let row1 = min(row0 + e / 16u, last_row);
    let h2 = kv_head * 2u + row1 % 2u;
    let s3 = row1 / 2u;
    let d4 = (e % 16u) * 4u;
    let base5 = ((batch * 256u) + (h2 * 64u));
    let row6 = base5;
    queries[e] = vec4<f32>(b1[(row6 + d4)], b1[(row6 + (d4 + 1u))], b1[(row6 + (d4 + 2u))], b1[(row6 + (d4 + 3u))]) * 0.125f;
  }
  if (lid < 2u) {
    top[lid] = -3.3e38f;
    total[lid] = 0.0;
  }
  let lane = lid % 64u;
  let sum_row = (lid / 64u) * 1u;
  var sum0_0 = 0.0;
  for (var c0 = key_begin; c0 < key_end; c0 += 32u) {
    let chunk = min(32u, key_end - c0);
    let base7 = ((batch * 65536u) + (kv_head * 32768u));
    let e8 = lid;
    let e9 = (lid + 256u);
    let key10 = e8 / 16u;
    let part11 = e8 % 16u;
    let row12 = c0 + min(key10, chunk - 1u);
    let row13 = (base7 + (row12 * 64u));
    let d14 = part11 * 4u;
    let w15 = b2[(row13 + d14) >> 1u];
    let h17 = unpack2x16float(w15);
    let w18 = b2[(row13 + d14 + 2u) >> 1u];
    let h19 = unpack2x16float(w18);
    let k20 = vec4<f32>(h17, h19);
    let place21 = key10 * 17u + part11;
    let key22 = e9 / 16u;
    let part23 = e9 % 16u;
    let row24 = c0 + min(key22, chunk - 1u);
    let row25 = (base7 + (row24 * 64u));
    let d26 = part23 * 4u;
    let w27 = b2[(row25 + d26) >> 1u];
    let h28 = unpack2x16float(w27);
    let w29 = b2[(row25 + d26 + 2u) >> 1u];
    let h30 = unpack2x16float(w29);
    let k31 = vec4<f32>(h28, h30);
    let place33 = key22 * 17u + part23;
    { keys[place21] = k20; }
    { keys[place33] = k31; }
    workgroupBarrier();
    let key = lid % 32u;
    let r0 = (lid / 32u) % 2u;
    let split = lid / 64u;
    var score_0 = 0.0;
    for (var d = split * 4u; d < min(split * 4u + 4u, 16u); d++) {
      let k4 = keys[key * 17u + d];
      score_0 += dot(k4, queries[(r0 + 0u) * 16u + d]);
    }
    scores[split * 64u + r0 * 32u + key] = score_0;
    workgroupBarrier();
    for (var e = lid; e < 64u; e += 256u) {
      let dot34 = scores[e] + scores[e + 64u] + scores[e + 128u] + scores[e + 192u];
      let ck = e % 32u;
      let position = c0 + min(ck, chunk - 1u);
      let row = min(row0 + e / 32u, last_row);
      let h35 = kv_head * 2u + row % 2u;
      let s36 = row / 2u;
      scores[e] = select(-3.3e38f, max(dot34, -3.0e38f), ck < chunk);
    }
    workgroupBarrier();
    for (var e = lid; e < 16u; e += 256u) {
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
    if (lid < 2u) {
      var row_sum = vec4<f32>();
      for (var i = 0u; i < 8u; i++) { row_sum += weights[lid * 8u + i]; }
      total[lid] = total[lid] * keep[lid] + dot(row_sum, vec4<f32>(1.0));
      top[lid] = next_top[lid];
    }
    if (sum_row < 2u) {
      let keep37 = keep[min(sum_row + 0u, 1u)];
      sum0_0 *= keep37;
      let base38 = ((batch * 65536u) + (kv_head * 32768u));
      for (var i = 0u; i < (chunk + 3u) / 4u; i += 8u) {
        let at39 = i * 4u + 0u;
        let at40 = i * 4u + 1u;
        let at41 = i * 4u + 2u;
        let at42 = i * 4u + 3u;
        let row43 = c0 + min(at39, chunk - 1u);
        let row44 = (base38 + (row43 * 64u));
        let row45 = c0 + min(at40, chunk - 1u);
        let row46 = (base38 + (row45 * 64u));
        let row47 = c0 + min(at41, chunk - 1u);
        let row48 = (base38 + (row47 * 64u));
        let row49 = c0 + min(at42, chunk - 1u);
        let row50 = (base38 + (row49 * 64u));
        let v51 = vec4<f32>(select(0.0, load_b3((row44 + lane)), at39 < chunk), select(0.0, load_b3((row46 + lane)), at40 < chunk), select(0.0, load_b3((row48 + lane)), at41 < chunk), select(0.0, load_b3((row50 + lane)), at42 < chunk));
        let at52 = (i + 1u) * 4u + 0u;
        let at53 = (i + 1u) * 4u + 1u;
        let at54 = (i + 1u) * 4u + 2u;
        let at55 = (i + 1u) * 4u + 3u;
        let row56 = c0 + min(at52, chunk - 1u);
        let row57 = (base38 + (row56 * 64u));
        let row58 = c0 + min(at53, chunk - 1u);
        let row59 = (base38 + (row58 * 64u));
        let row60 = c0 + min(at54, chunk - 1u);
        let row61 = (base38 + (row60 * 64u));
        let row62 = c0 + min(at55, chunk - 1u);
        let row63 = (base38 + (row62 * 64u));
        let v65 = vec4<f32>(select(0.0, load_b3((row57 + lane)), at52 < chunk), select(0.0, load_b3((row59 + lane)), at53 < chunk), select(0.0, load_b3((row61 + lane)), at54 < chunk), select(0.0, load_b3((row63 + lane)), at55 < chunk));
        let at66 = (i + 2u) * 4u + 0u;
        let at67 = (i + 2u) * 4u + 1u;
        let at68 = (i + 2u) * 4u + 2u;
        let at69 = (i + 2u) * 4u + 3u;
        let row70 = c0 + min(at66, chunk - 1u);
        let row71 = (base38 + (row70 * 64u));
        let row72 = c0 + min(at67, chunk - 1u);
        let row73 = (base38 + (row72 * 64u));
        let row74 = c0 + min(at68, chunk - 1u);
        let row75 = (base38 + (row74 * 64u));
        let row76 = c0 + min(at69, chunk - 1u);
        let row77 = (base38 + (row76 * 64u));
        let v78 = vec4<f32>(select(0.0, load_b3((row71 + lane)), at66 < chunk), select(0.0, load_b3((row73 + lane)), at67 < chunk), select(0.0, load_b3((row75 + lane)), at68 < chunk), select(0.0, load_b3((row77 + lane)), at69 < chunk));
        let at79 = (i + 3u) * 4u + 0u;
        let at80 = (i + 3u) * 4u + 1u;
        let at81 = (i + 3u) * 4u + 2u;
        let at82 = (i + 3u) * 4u + 3u;
        let row83 = c0 + min(at79, chunk - 1u);
        let row84 = (base38 + (row83 * 64u));
        let row85 = c0 + min(at80, chunk - 1u);
        let row86 = (base38 + (row85 * 64u));
        let row87 = c0 + min(at81, chunk - 1u);
        let row88 = (base38 + (row87 * 64u));
        let row89 = c0 + min(at82, chunk - 1u);
        let row90 = (base38 + (row89 * 64u));
        let v91 = vec4<f32>(select(0.0, load_b3((row84 + lane)), at79 < chunk), select(0.0, load_b3((row86 + lane)), at80 < chunk), select(0.0, load_b3((row88 + lane)), at81 < chunk), select(0.0, load_b3((row90 + lane)), at82 < chunk));
        let at92 = (i + 4u) * 4u + 0u;
        let at93 = (i + 4u) * 4u + 1u;
        let at94 = (i + 4u) * 4u + 2u;
        let at95 = (i + 4u) * 4u + 3u;
        let row96 = c0 + min(at92, chunk - 1u);
        let row97 = (base38 + (row96 * 64u));
        let row98 = c0 + min(at93, chunk - 1u);
        let row99 = (base38 + (row98 * 64u));
        let row100 = c0 + min(at94, chunk - 1u);
        let row101 = (base38 + (row100 * 64u));
        let row102 = c0 + min(at95, chunk - 1u);
        let row103 = (base38 + (row102 * 64u));
        let v104 = vec4<f32>(select(0.0, load_b3((row97 + lane)), at92 < chunk), select(0.0, load_b3((row99 + lane)), at93 < chunk), select(0.0, load_b3((row101 + lane)), at94 < chunk), select(0.0, load_b3((row103 + lane)), at95 < chunk));
        let at105 = (i + 5u) * 4u + 0u;
        let at106 = (i + 5u) * 4u + 1u;
        let at107 = (i + 5u) * 4u + 2u;
        let at108 = (i + 5u) * 4u + 3u;
        let row109 = c0 + min(at105, chunk - 1u);
        let row110 = (base38 + (row109 * 64u));
        let row111 = c0 + min(at106, chunk - 1u);
        let row112 = (base38 + (row111 * 64u));
        let row113 = c0 + min(at107, chunk - 1u);
        let row114 = (base38 + (row113 * 64u));
        let row115 = c0 + min(at108, chunk - 1u);
        let row116 = (base38 + (row115 * 64u));
        let v117 = vec4<f32>(select(0.0, load_b3((row110 + lane)), at105 < chunk), select(0.0, load_b3((row112 + lane)), at106 < chunk), select(0.0, load_b3((row114 + lane)), at107 < chunk), select(0.0, load_b3((row116 + lane)), at108 < chunk));
        let at118 = (i + 6u) * 4u + 0u;
        let at119 = (i + 6u) * 4u + 1u;
        let at120 = (i + 6u) * 4u + 2u;
        let at121 = (i + 6u) * 4u + 3u;
        let row122 = c0 + min(at118, chunk - 1u);
        let row123 = (base38 + (row122 * 64u));
        let row124 = c0 + min(at119, chunk - 1u);
        let row125 = (base38 + (row124 * 64u));
        let row126 = c0 + min(at120, chunk - 1u);
        let row127 = (base38 + (row126 * 64u));
        let row128 = c0 + min(at121, chunk - 1u);
        let row129 = (base38 + (row128 * 64u));
        let v130 = vec4<f32>(select(0.0, load_b3((row123 + lane)), at118 < chunk), select(0.0, load_b3((row125 + lane)), at119 < chunk), select(0.0, load_b3((row127 + lane)), at120 < chunk), select(0.0, load_b3((row129 + lane)), at121 < chunk));
        let at131 = (i + 7u) * 4u + 0u;
        let at132 = (i + 7u) * 4u + 1u;
        let at133 = (i + 7u) * 4u + 2u;
        let at134 = (i + 7u) * 4u + 3u;
        let row135 = c0 + min(at131, chunk - 1u);
        let row136 = (base38 + (row135 * 64u));
        let row137 = c0 + min(at132, chunk - 1u);
        let row138 = (base38 + (row137 * 64u));
        let row139 = c0 + min(at133, chunk - 1u);
        let row140 = (base38 + (row139 * 64u));
        let row141 = c0 + min(at134, chunk - 1u);
        let row142 = (base38 + (row141 * 64u));
        let v143 = vec4<f32>(select(0.0, load_b3((row136 + lane)), at131 < chunk), select(0.0, load_b3((row138 + lane)), at132 < chunk), select(0.0, load_b3((row140 + lane)), at133 < chunk), select(0.0, load_b3((row142 + lane)), at134 < chunk));
        let w144 = weights[min(sum_row + 0u, 1u) * 8u + i];
        sum0_0 += dot(w144, v51);
        let w145 = weights[min(sum_row + 0u, 1u) * 8u + (i + 1u)];
        sum0_0 += dot(w145, v65);
        let w146 = weights[min(sum_row + 0u, 1u) * 8u + (i + 2u)];
        sum0_0 += dot(w146, v78);
        let w147 = weights[min(sum_row + 0u, 1u) * 8u + (i + 3u)];
        sum0_0 += dot(w147, v91);
        let w148 = weights[min(sum_row + 0u, 1u) * 8u + (i + 4u)];
        sum0_0 += dot(w148, v104);
        let w149 = weights[min(sum_row + 0u, 1u) * 8u + (i + 5u)];
        sum0_0 += dot(w149, v117);
        let w150 = weights[min(sum_row + 0u, 1u) * 8u + (i + 6u)];
        sum0_0 += dot(w150, v130);
        let w151 = weights[min(sum_row + 0u, 1u) * 8u + (i + 7u)];
        sum0_0 += dot(w151, v143);
      }
    }
  }
  workgroupBarrier();
  if (lid < 2u) {
    let at = (wg * 2u + lid) * 66u + 64u;
    b4[at] = top[lid];
    b4[at + 1u] = total[lid];
  }
  if (sum_row < 2u && lane < 64u) {
    b4[(wg * 2u + sum_row) * 66u + lane] = sum0_0;
  }
}

// attention [join 16]: groups 4; read %18, write %7; sizes static
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<workgroup> tops: array<f32, 16>;
var<workgroup> totals: array<f32, 16>;
var<workgroup> shares: array<f32, 16>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 4u) { return; }
  let row = wg % 2u;
  let kv_head = (wg / 2u) % 2u;
  let batch = wg / 4u;
  let block_id = (batch * 2u + kv_head) * 1u + row / 2u;
  let start = (block_id * 32u + row % 2u) * 66u;
  let s1 = b0[start + 0u + min(lid, 63u)];
  let s2 = b0[start + 132u + min(lid, 63u)];
  let s3 = b0[start + 264u + min(lid, 63u)];
  let s4 = b0[start + 396u + min(lid, 63u)];
  let s5 = b0[start + 528u + min(lid, 63u)];
  let s6 = b0[start + 660u + min(lid, 63u)];
  let s7 = b0[start + 792u + min(lid, 63u)];
  let s8 = b0[start + 924u + min(lid, 63u)];
  let s9 = b0[start + 1056u + min(lid, 63u)];
  let s10 = b0[start + 1188u + min(lid, 63u)];
  let s11 = b0[start + 1320u + min(lid, 63u)];
  let s12 = b0[start + 1452u + min(lid, 63u)];
  let s13 = b0[start + 1584u + min(lid, 63u)];
  let s14 = b0[start + 1716u + min(lid, 63u)];
  let s15 = b0[start + 1848u + min(lid, 63u)];
  let s17 = b0[start + 1980u + min(lid, 63u)];
  for (var i = lid; i < 16u; i += 64u) {
    tops[i] = b0[start + i * 132u + 64u];
    totals[i] = b0[start + i * 132u + 65u];
  }
  workgroupBarrier();
  let top = max(max(max(max(tops[0u], tops[1u]), max(tops[2u], tops[3u])), max(max(tops[4u], tops[5u]), max(tops[6u], tops[7u]))), max(max(max(tops[8u], tops[9u]), max(tops[10u], tops[11u])), max(max(tops[12u], tops[13u]), max(tops[14u], tops[15u]))));
  for (var i = lid; i < 16u; i += 64u) {
    shares[i] = select(0.0, exp(max(tops[i] - top, -200.0f)), tops[i] >= -3.0e38f);
  }
  workgroupBarrier();
  let weight = ((((totals[0u] * shares[0u] + totals[1u] * shares[1u]) + (totals[2u] * shares[2u] + totals[3u] * shares[3u])) + ((totals[4u] * shares[4u] + totals[5u] * shares[5u]) + (totals[6u] * shares[6u] + totals[7u] * shares[7u]))) + (((totals[8u] * shares[8u] + totals[9u] * shares[9u]) + (totals[10u] * shares[10u] + totals[11u] * shares[11u])) + ((totals[12u] * shares[12u] + totals[13u] * shares[13u]) + (totals[14u] * shares[14u] + totals[15u] * shares[15u]))));
  let factor = select(0.0, 1.0 / weight, weight > 0.0);
  var sum = ((((s1 * shares[0u] + s2 * shares[1u]) + (s3 * shares[2u] + s4 * shares[3u])) + ((s5 * shares[4u] + s6 * shares[5u]) + (s7 * shares[6u] + s8 * shares[7u]))) + (((s9 * shares[8u] + s10 * shares[9u]) + (s11 * shares[10u] + s12 * shares[11u])) + ((s13 * shares[12u] + s14 * shares[13u]) + (s15 * shares[14u] + s17 * shares[15u]))));
  for (var column = lid; column < 64u; column += 64u) {
    let h18 = kv_head * 2u + row % 2u;
    let s19 = row / 2u;
    let result20 = sum * factor;
    b1[((((batch * 256u) + (h18 * 64u)) + (s19 * 64u)) + column)] = result20;
  }
}

// reshape+rms_norm+transpose+matmul+slice+silu+mul [matvec along 64x4]: groups 1024; read %1, read %7, read %0, write %15; sizes static
@group(0) @binding(0) var<storage, read> b0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<workgroup> partial: array<f32, 576>;
fn pm_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn pm_exp(x: f32) -> f32 { return select(exp(x), x, pm_isnan(x)); }
fn pm_sigmoid(x: f32) -> f32 {
  let t = pm_exp(-abs(x));
  return select(1.0, t, x < 0.0) / (1.0 + t);
}
fn pm_silu(x: f32) -> f32 { return x * pm_sigmoid(x); }

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 1024u) { return; }
  let first = (wg % 1024u) * 4u;
  let base2 = 0u;
  let r3 = min(first + 0u, 4095u);
  let r4 = min(first + 1u, 4095u);
  let r5 = min(first + 2u, 4095u);
  let r6 = min(first + 3u, 4095u);
  let r7 = r3 + 4096u;
  let r8 = r4 + 4096u;
  let r9 = r5 + 4096u;
  let r10 = r6 + 4096u;
  let row11 = (base2 + (r3 * 256u));
  let row12 = (base2 + (r4 * 256u));
  let row13 = (base2 + (r5 * 256u));
  let row14 = (base2 + (r6 * 256u));
  let row15 = (base2 + (r7 * 256u));
  let row17 = (base2 + (r8 * 256u));
  let row18 = (base2 + (r9 * 256u));
  let row19 = (base2 + (r10 * 256u));
  let row20 = row11 / 8u;
  let row21 = row12 / 8u;
  let row22 = row13 / 8u;
  let row23 = row14 / 8u;
  let row24 = row15 / 8u;
  let row25 = row17 / 8u;
  let row26 = row18 / 8u;
  let row27 = row19 / 8u;
  var squares0 = 0.0;
  var sum0_0 = vec4<f32>();
  var sum0_1 = vec4<f32>();
  var sum0_2 = vec4<f32>();
  var sum0_3 = vec4<f32>();
  var sum0_4 = vec4<f32>();
  var sum0_5 = vec4<f32>();
  var sum0_6 = vec4<f32>();
  var sum0_7 = vec4<f32>();
  let i28 = lid;
  var w29: vec4<u32>;
  if (i28 < 256u / 8u) { w29 = b0[(row20 + i28)]; }
  var w30: vec4<u32>;
  if (i28 < 256u / 8u) { w30 = b0[(row21 + i28)]; }
  var w31: vec4<u32>;
  if (i28 < 256u / 8u) { w31 = b0[(row22 + i28)]; }
  var w33: vec4<u32>;
  if (i28 < 256u / 8u) { w33 = b0[(row23 + i28)]; }
  var w34: vec4<u32>;
  if (i28 < 256u / 8u) { w34 = b0[(row24 + i28)]; }
  var w35: vec4<u32>;
  if (i28 < 256u / 8u) { w35 = b0[(row25 + i28)]; }
  var w36: vec4<u32>;
  if (i28 < 256u / 8u) { w36 = b0[(row26 + i28)]; }
  var w37: vec4<u32>;
  if (i28 < 256u / 8u) { w37 = b0[(row27 + i28)]; }
  if (i28 < 256u / 8u) {
    let k38 = i28 * 8u;
    let h39 = vec4<f32>(unpack2x16float(w29.x), unpack2x16float(w29.y));
    let h40 = vec4<f32>(unpack2x16float(w29.z), unpack2x16float(w29.w));
    let h41 = vec4<f32>(unpack2x16float(w30.x), unpack2x16float(w30.y));
    let h42 = vec4<f32>(unpack2x16float(w30.z), unpack2x16float(w30.w));
    let h43 = vec4<f32>(unpack2x16float(w31.x), unpack2x16float(w31.y));
    let h44 = vec4<f32>(unpack2x16float(w31.z), unpack2x16float(w31.w));
    let h45 = vec4<f32>(unpack2x16float(w33.x), unpack2x16float(w33.y));
    let h46 = vec4<f32>(unpack2x16float(w33.z), unpack2x16float(w33.w));
    let h47 = vec4<f32>(unpack2x16float(w34.x), unpack2x16float(w34.y));
    let h48 = vec4<f32>(unpack2x16float(w34.z), unpack2x16float(w34.w));
    let h49 = vec4<f32>(unpack2x16float(w35.x), unpack2x16float(w35.y));
    let h50 = vec4<f32>(unpack2x16float(w35.z), unpack2x16float(w35.w));
    let h51 = vec4<f32>(unpack2x16float(w36.x), unpack2x16float(w36.y));
    let h52 = vec4<f32>(unpack2x16float(w36.z), unpack2x16float(w36.w));
    let h53 = vec4<f32>(unpack2x16float(w37.x), unpack2x16float(w37.y));
    let h54 = vec4<f32>(unpack2x16float(w37.z), unpack2x16float(w37.w));
    let k55 = k38;
    let k56 = (k38 + 1u);
    let k57 = (k38 + 2u);
    let k58 = (k38 + 3u);
    let v61 = b1[k55];
    squares0 += v61 * v61;
    let v62 = b2[k55];
    let v63 = v61 * v62;
    let v67 = b1[k56];
    squares0 += v67 * v67;
    let v68 = b2[k56];
    let v69 = v67 * v68;
    let v72 = b1[k57];
    squares0 += v72 * v72;
    let v73 = b2[k57];
    let v74 = v72 * v73;
    let v77 = b1[k58];
    squares0 += v77 * v77;
    let v78 = b2[k58];
    let v79 = v77 * v78;
    let x80 = vec4<f32>(v63, v69, v74, v79);
    let k81 = (k38 + 4u);
    let k82 = ((k38 + 4u) + 1u);
    let k83 = ((k38 + 4u) + 2u);
    let k84 = ((k38 + 4u) + 3u);
    let v87 = b1[k81];
    squares0 += v87 * v87;
    let v88 = b2[k81];
    let v89 = v87 * v88;
    let v92 = b1[k82];
    squares0 += v92 * v92;
    let v93 = b2[k82];
    let v94 = v92 * v93;
    let v97 = b1[k83];
    squares0 += v97 * v97;
    let v98 = b2[k83];
    let v99 = v97 * v98;
    let v102 = b1[k84];
    squares0 += v102 * v102;
    let v103 = b2[k84];
    let v104 = v102 * v103;
    let x105 = vec4<f32>(v89, v94, v99, v104);
    sum0_0 += x80 * h39;
    sum0_0 += x105 * h40;
    sum0_1 += x80 * h41;
    sum0_1 += x105 * h42;
    sum0_2 += x80 * h43;
    sum0_2 += x105 * h44;
    sum0_3 += x80 * h45;
    sum0_3 += x105 * h46;
    sum0_4 += x80 * h47;
    sum0_4 += x105 * h48;
    sum0_5 += x80 * h49;
    sum0_5 += x105 * h50;
    sum0_6 += x80 * h51;
    sum0_6 += x105 * h52;
    sum0_7 += x80 * h53;
    sum0_7 += x105 * h54;
  }
  let sum106 = dot(sum0_0, vec4<f32>(1.0));
  let sum107 = dot(sum0_1, vec4<f32>(1.0));
  let sum108 = dot(sum0_2, vec4<f32>(1.0));
  let sum109 = dot(sum0_3, vec4<f32>(1.0));
  let sum110 = dot(sum0_4, vec4<f32>(1.0));
  let sum111 = dot(sum0_5, vec4<f32>(1.0));
  let sum112 = dot(sum0_6, vec4<f32>(1.0));
  let sum113 = dot(sum0_7, vec4<f32>(1.0));
  partial[0u + lid] = sum106;
  partial[64u + lid] = sum107;
  partial[128u + lid] = sum108;
  partial[192u + lid] = sum109;
  partial[256u + lid] = sum110;
  partial[320u + lid] = sum111;
  partial[384u + lid] = sum112;
  partial[448u + lid] = sum113;
  partial[512u + lid] = squares0;
  workgroupBarrier();
  if (lid < 32u) {
    partial[0u + lid] += partial[32u + lid];
    partial[64u + lid] += partial[96u + lid];
    partial[128u + lid] += partial[160u + lid];
    partial[192u + lid] += partial[224u + lid];
    partial[256u + lid] += partial[288u + lid];
    partial[320u + lid] += partial[352u + lid];
    partial[384u + lid] += partial[416u + lid];
    partial[448u + lid] += partial[480u + lid];
    partial[512u + lid] += partial[544u + lid];
  }
  workgroupBarrier();
  if (lid < 16u) {
    partial[0u + lid] += partial[16u + lid];
    partial[64u + lid] += partial[80u + lid];
    partial[128u + lid] += partial[144u + lid];
    partial[192u + lid] += partial[208u + lid];
    partial[256u + lid] += partial[272u + lid];
    partial[320u + lid] += partial[336u + lid];
    partial[384u + lid] += partial[400u + lid];
    partial[448u + lid] += partial[464u + lid];
    partial[512u + lid] += partial[528u + lid];
  }
  workgroupBarrier();
  if (lid < 8u) {
    partial[0u + lid] += partial[8u + lid];
    partial[64u + lid] += partial[72u + lid];
    partial[128u + lid] += partial[136u + lid];
    partial[192u + lid] += partial[200u + lid];
    partial[256u + lid] += partial[264u + lid];
    partial[320u + lid] += partial[328u + lid];
    partial[384u + lid] += partial[392u + lid];
    partial[448u + lid] += partial[456u + lid];
    partial[512u + lid] += partial[520u + lid];
  }
  workgroupBarrier();
  if (lid < 4u) {
    partial[0u + lid] += partial[4u + lid];
    partial[64u + lid] += partial[68u + lid];
    partial[128u + lid] += partial[132u + lid];
    partial[192u + lid] += partial[196u + lid];
    partial[256u + lid] += partial[260u + lid];
    partial[320u + lid] += partial[324u + lid];
    partial[384u + lid] += partial[388u + lid];
    partial[448u + lid] += partial[452u + lid];
    partial[512u + lid] += partial[516u + lid];
  }
  workgroupBarrier();
  if (lid < 2u) {
    partial[0u + lid] += partial[2u + lid];
    partial[64u + lid] += partial[66u + lid];
    partial[128u + lid] += partial[130u + lid];
    partial[192u + lid] += partial[194u + lid];
    partial[256u + lid] += partial[258u + lid];
    partial[320u + lid] += partial[322u + lid];
    partial[384u + lid] += partial[386u + lid];
    partial[448u + lid] += partial[450u + lid];
    partial[512u + lid] += partial[514u + lid];
  }
  workgroupBarrier();
  if (lid < 1u) {
    partial[0u + lid] += partial[1u + lid];
    partial[64u + lid] += partial[65u + lid];
    partial[128u + lid] += partial[129u + lid];
    partial[192u + lid] += partial[193u + lid];
    partial[256u + lid] += partial[257u + lid];
    partial[320u + lid] += partial[321u + lid];
    partial[384u + lid] += partial[385u + lid];
    partial[448u + lid] += partial[449u + lid];
    partial[512u + lid] += partial[513u + lid];
  }
  workgroupBarrier();
  if (lid < 4u) {
    let total114 = partial[lid * 64u];
    let v115 = lid / 4u;
    let n116 = first + lid % 4u;
    let total117 = partial[(4u + lid) * 64u];
    let total118 = partial[(4u + (v115 + 4u)) * 64u];
    let scaled119 = total114 * inverseSqrt(total118 / f32(256u) + 9.99999997e-07f);
    let scaled120 = total117 * inverseSqrt(total118 / f32(256u) + 9.99999997e-07f);
    if (n116 < 4096u) {
      let v121 = pm_silu(scaled119);
      let v122 = (v121 * scaled120);
      b3[n116] = v122;
    }
  }
}

// transpose+matmul [matvec along 128x2]: groups 128; read %2, read %15, write %17; sizes static
@group(0) @binding(0) var<storage, read> b0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 128u) { return; }
  let first = (wg % 128u) * 2u;
  let base2 = 0u;
  let r3 = min(first + 0u, 255u);
  let r4 = min(first + 1u, 255u);
  let row5 = (base2 + (r3 * 4096u));
  let row6 = (base2 + (r4 * 4096u));
  let row7 = row5 / 8u;
  let row8 = row6 / 8u;
  let base9 = 0u;
  let row10 = base9;
  var sum0_0 = vec4<f32>();
  var sum0_1 = vec4<f32>();
  var i = lid;
  for (; i + 384u < 512u; i += 512u) {
    let i11 = i;
    let i12 = (i + 128u);
    let i13 = (i + 256u);
    let i14 = (i + 384u);
    let w15 = b0[(row7 + i11)];
    let w17 = b0[(row8 + i11)];
    let w18 = b0[(row7 + i12)];
    let w19 = b0[(row8 + i12)];
    let w20 = b0[(row7 + i13)];
    let w21 = b0[(row8 + i13)];
    let w22 = b0[(row7 + i14)];
    let w23 = b0[(row8 + i14)];
    let k24 = i11 * 8u;
    let h25 = vec4<f32>(unpack2x16float(w15.x), unpack2x16float(w15.y));
    let h26 = vec4<f32>(unpack2x16float(w15.z), unpack2x16float(w15.w));
    let h27 = vec4<f32>(unpack2x16float(w17.x), unpack2x16float(w17.y));
    let h28 = vec4<f32>(unpack2x16float(w17.z), unpack2x16float(w17.w));
    let x29 = b1[(row10 + k24) / 4u];
    let x30 = b1[(row10 + (k24 + 4u)) / 4u];
    sum0_0 += x29 * h25;
    sum0_0 += x30 * h26;
    sum0_1 += x29 * h27;
    sum0_1 += x30 * h28;
    let k31 = i12 * 8u;
    let h33 = vec4<f32>(unpack2x16float(w18.x), unpack2x16float(w18.y));
    let h34 = vec4<f32>(unpack2x16float(w18.z), unpack2x16float(w18.w));
    let h35 = vec4<f32>(unpack2x16float(w19.x), unpack2x16float(w19.y));
    let h36 = vec4<f32>(unpack2x16float(w19.z), unpack2x16float(w19.w));
    let x37 = b1[(row10 + k31) / 4u];
    let x38 = b1[(row10 + (k31 + 4u)) / 4u];
    sum0_0 += x37 * h33;
    sum0_0 += x38 * h34;
    sum0_1 += x37 * h35;
    sum0_1 += x38 * h36;
    let k39 = i13 * 8u;
    let h40 = vec4<f32>(unpack2x16float(w20.x), unpack2x16float(w20.y));
    let h41 = vec4<f32>(unpack2x16float(w20.z), unpack2x16float(w20.w));
    let h42 = vec4<f32>(unpack2x16float(w21.x), unpack2x16float(w21.y));
    let h43 = vec4<f32>(unpack2x16float(w21.z), unpack2x16float(w21.w));
    let x44 = b1[(row10 + k39) / 4u];
    let x45 = b1[(row10 + (k39 + 4u)) / 4u];
    sum0_0 += x44 * h40;
    sum0_0 += x45 * h41;
    sum0_1 += x44 * h42;
    sum0_1 += x45 * h43;
    let k46 = i14 * 8u;
    let h47 = vec4<f32>(unpack2x16float(w22.x), unpack2x16float(w22.y));
    let h48 = vec4<f32>(unpack2x16float(w22.z), unpack2x16float(w22.w));
    let h49 = vec4<f32>(unpack2x16float(w23.x), unpack2x16float(w23.y));
    let h50 = vec4<f32>(unpack2x16float(w23.z), unpack2x16float(w23.w));
    let x51 = b1[(row10 + k46) / 4u];
    let x52 = b1[(row10 + (k46 + 4u)) / 4u];
    sum0_0 += x51 * h47;
    sum0_0 += x52 * h48;
    sum0_1 += x51 * h49;
    sum0_1 += x52 * h50;
  }
  let sum53 = dot(sum0_0, vec4<f32>(1.0));
  let sum54 = dot(sum0_1, vec4<f32>(1.0));
  partial[0u + lid] = sum53;
  partial[128u + lid] = sum54;
  workgroupBarrier();
  if (lid < 64u) {
    partial[0u + lid] += partial[64u + lid];
    partial[128u + lid] += partial[192u + lid];
  }
  workgroupBarrier();
  if (lid < 32u) {
    partial[0u + lid] += partial[32u + lid];
    partial[128u + lid] += partial[160u + lid];
  }
  workgroupBarrier();
  if (lid < 16u) {
    partial[0u + lid] += partial[16u + lid];
    partial[128u + lid] += partial[144u + lid];
  }
  workgroupBarrier();
  if (lid < 8u) {
    partial[0u + lid] += partial[8u + lid];
    partial[128u + lid] += partial[136u + lid];
  }
  workgroupBarrier();
  if (lid < 4u) {
    partial[0u + lid] += partial[4u + lid];
    partial[128u + lid] += partial[132u + lid];
  }
  workgroupBarrier();
  if (lid < 2u) {
    partial[0u + lid] += partial[2u + lid];
    partial[128u + lid] += partial[130u + lid];
  }
  workgroupBarrier();
  if (lid < 1u) {
    partial[0u + lid] += partial[1u + lid];
    partial[128u + lid] += partial[129u + lid];
  }
  workgroupBarrier();
  if (lid < 2u) {
    let total55 = partial[lid * 128u];
    let v56 = lid / 2u;
    let n57 = first + lid % 2u;
    if (n57 < 256u) {
      b2[((v56 * 256u) + n57)] = total55;
    }
  }
}
