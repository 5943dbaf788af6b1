// expand+attention_gradient queries [held 32 passing 32 128]: groups 2*floordiv(2*T+31,32); read %0, read %3, read %1, read %2, write %8, write %5; sizes floordiv(2*T+31,32), 2*floordiv(2*T+31,32), T, 2*T-1, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b3: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> b4: array<f32>;
@group(0) @binding(5) var<storage, read_write> b5: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(6) var<uniform> u: Sizes;
var<workgroup> held_a: array<vec4<f32>, 544>;
var<workgroup> passing_a: array<vec4<f32>, 544>;
var<workgroup> weights_a: array<vec4<f32>, 256>;
var<workgroup> held_b: array<vec4<f32>, 544>;
var<workgroup> passing_b: array<vec4<f32>, 544>;
var<workgroup> weights_b: array<vec4<f32>, 256>;
var<workgroup> highest: array<f32, 256>;
var<workgroup> keep: array<f32, 32>;
var<workgroup> share: array<f32, 32>;
var<workgroup> delta: array<f32, 32>;
var<workgroup> mixed: array<f32, 256>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = (wg % u.d0) * 32u;
  let kv_head = (wg / u.d0) % 2u;
  let batch = wg / u.d1;
  let offset = 0i;
  let visible = i32(u.d2);
  let sx = lid % 8u;
  let sy = (lid / 8u) * 2u;
  let lane = lid % 8u;
  let sum_row = (lid / 8u) * 2u;
  let last_row = u.d3;
  let e1 = lid;
  let e2 = (lid + 128u);
  let e3 = (lid + 256u);
  let e4 = (lid + 384u);
  let r5 = e1 / 16u;
  let part6 = e1 % 16u;
  let row7 = min(row0 + r5, last_row);
  let h8 = kv_head * 2u + row7 % 2u;
  let s9 = row7 / 2u;
  let base10 = ((batch * u.d4) + (h8 * u.d5));
  let row11 = (base10 + (s9 * 64u));
  let d12 = part6 * 4u;
  let place13 = r5 * 17u + part6;
  let x14 = b0[(row11 + d12) >> 2u] * 0.125f;
  let r15 = e2 / 16u;
  let part17 = e2 % 16u;
  let row18 = min(row0 + r15, last_row);
  let h19 = kv_head * 2u + row18 % 2u;
  let s20 = row18 / 2u;
  let base21 = ((batch * u.d4) + (h19 * u.d5));
  let row22 = (base21 + (s20 * 64u));
  let d23 = part17 * 4u;
  let place24 = r15 * 17u + part17;
  let x25 = b0[(row22 + d23) >> 2u] * 0.125f;
  let r26 = e3 / 16u;
  let part27 = e3 % 16u;
  let row28 = min(row0 + r26, last_row);
  let h29 = kv_head * 2u + row28 % 2u;
  let s30 = row28 / 2u;
  let base31 = ((batch * u.d4) + (h29 * u.d5));
  let row33 = (base31 + (s30 * 64u));
  let d34 = part27 * 4u;
  let place35 = r26 * 17u + part27;
  let x36 = b0[(row33 + d34) >> 2u] * 0.125f;
  let r37 = e4 / 16u;
  let part38 = e4 % 16u;
  let row39 = min(row0 + r37, last_row);
  let h40 = kv_head * 2u + row39 % 2u;
  let s41 = row39 / 2u;
  let base42 = ((batch * u.d4) + (h40 * u.d5));
  let row43 = (base42 + (s41 * 64u));
  let d44 = part38 * 4u;
  let place45 = r37 * 17u + part38;
  let x46 = b0[(row43 + d44) >> 2u] * 0.125f;
  { held_a[place13] = x14; }
  { held_a[place24] = x25; }
  { held_a[place35] = x36; }
  { held_a[place45] = x46; }
  let e47 = lid;
  let e48 = (lid + 128u);
  let e49 = (lid + 256u);
  let e50 = (lid + 384u);
  let r51 = e47 / 16u;
  let part52 = e47 % 16u;
  let row53 = min(row0 + r51, last_row);
  let h54 = kv_head * 2u + row53 % 2u;
  let s55 = row53 / 2u;
  let base56 = 0u;
  let row57 = base56;
  let d58 = part52 * 4u;
  let place59 = r51 * 17u + part52;
  let x60 = vec4<f32>(b1[row57], b1[row57], b1[row57], b1[row57]);
  let r61 = e48 / 16u;
  let part62 = e48 % 16u;
  let row63 = min(row0 + r61, last_row);
  let h65 = kv_head * 2u + row63 % 2u;
  let s66 = row63 / 2u;
  let base67 = 0u;
  let row68 = base67;
  let d69 = part62 * 4u;
  let place70 = r61 * 17u + part62;
  let x71 = vec4<f32>(b1[row68], b1[row68], b1[row68], b1[row68]);
  let r72 = e49 / 16u;
  let part73 = e49 % 16u;
  let row74 = min(row0 + r72, last_row);
  let h75 = kv_head * 2u + row74 % 2u;
  let s76 = row74 / 2u;
  let base77 = 0u;
  let row78 = base77;
  let d79 = part73 * 4u;
  let place80 = r72 * 17u + part73;
  let x81 = vec4<f32>(b1[row78], b1[row78], b1[row78], b1[row78]);
  let r82 = e50 / 16u;
  let part83 = e50 % 16u;
  let row84 = min(row0 + r82, last_row);
  let h85 = kv_head * 2u + row84 % 2u;
  let s86 = row84 / 2u;
  let base87 = 0u;
  let row88 = base87;
  let d89 = part83 * 4u;
  let place90 = r82 * 17u + part83;
  let x91 = vec4<f32>(b1[row88], b1[row88], b1[row88], b1[row88]);
  { held_b[place59] = x60; }
  { held_b[place70] = x71; }
  { held_b[place80] = x81; }
  { held_b[place90] = x91; }
  var top_0 = -3.3e38f;
  var total_0 = 0.0;
  var mixed_0 = 0.0;
  var top_1 = -3.3e38f;
  var total_1 = 0.0;
  var mixed_1 = 0.0;
  var sum_a0_0 = vec4<f32>();
  var sum_a0_1 = vec4<f32>();
  var sum_a1_0 = vec4<f32>();
  var sum_a1_1 = vec4<f32>();
  var sum_b0_0 = vec4<f32>();
  var sum_b0_1 = vec4<f32>();
  var sum_b1_0 = vec4<f32>();
  var sum_b1_1 = vec4<f32>();
  let last_query = i32(min(row0 + 31u, last_row) / 2u);
  let key_begin = 0u;
  let key_end = u32(max(min(visible, offset + last_query + 1i), 0i));
  for (var c0 = key_begin; c0 < key_end; c0 += 32u) {
    let chunk = min(32u, key_end - c0);
    let e92 = lid;
    let e93 = (lid + 128u);
    let e94 = (lid + 256u);
    let e95 = (lid + 384u);
    let r96 = e92 / 16u;
    let part97 = e92 % 16u;
    let row98 = min(c0 + r96, key_end - 1u);
    let base99 = ((batch * u.d6) + (kv_head * u.d5));
    let row100 = (base99 + (row98 * 64u));
    let d101 = part97 * 4u;
    let place102 = ((r96 & 3u) * 8u + (r96 >> 2u)) * 17u + part97;
    let x103 = b2[(row100 + d101) >> 2u];
    let r104 = e93 / 16u;
    let part105 = e93 % 16u;
    let row106 = min(c0 + r104, key_end - 1u);
    let base107 = ((batch * u.d6) + (kv_head * u.d5));
    let row108 = (base107 + (row106 * 64u));
    let d109 = part105 * 4u;
    let place110 = ((r104 & 3u) * 8u + (r104 >> 2u)) * 17u + part105;
    let x111 = b2[(row108 + d109) >> 2u];
    let r112 = e94 / 16u;
    let part113 = e94 % 16u;
    let row114 = min(c0 + r112, key_end - 1u);
    let base115 = ((batch * u.d6) + (kv_head * u.d5));
    let row116 = (base115 + (row114 * 64u));
    let d117 = part113 * 4u;
    let place118 = ((r112 & 3u) * 8u + (r112 >> 2u)) * 17u + part113;
    let x119 = b2[(row116 + d117) >> 2u];
    let r120 = e95 / 16u;
    let part121 = e95 % 16u;
    let row122 = min(c0 + r120, key_end - 1u);
    let base123 = ((batch * u.d6) + (kv_head * u.d5));
    let row124 = (base123 + (row122 * 64u));
    let d125 = part121 * 4u;
    let place126 = ((r120 & 3u) * 8u + (r120 >> 2u)) * 17u + part121;
    let x127 = b2[(row124 + d125) >> 2u];
    { passing_a[place102] = x103; }
    { passing_a[place110] = x111; }
    { passing_a[place118] = x119; }
    { passing_a[place126] = x127; }
    let e128 = lid;
    let e129 = (lid + 128u);
    let e130 = (lid + 256u);
    let e131 = (lid + 384u);
    let r132 = e128 / 16u;
    let part133 = e128 % 16u;
    let row134 = min(c0 + r132, key_end - 1u);
    let base135 = ((batch * u.d6) + (kv_head * u.d5));
    let row136 = (base135 + (row134 * 64u));
    let d137 = part133 * 4u;
    let place138 = ((r132 & 3u) * 8u + (r132 >> 2u)) * 17u + part133;
    let x139 = b3[(row136 + d137) >> 2u];
    let r140 = e129 / 16u;
    let part141 = e129 % 16u;
    let row142 = min(c0 + r140, key_end - 1u);
    let base143 = ((batch * u.d6) + (kv_head * u.d5));
    let row144 = (base143 + (row142 * 64u));
    let d145 = part141 * 4u;
    let place146 = ((r140 & 3u) * 8u + (r140 >> 2u)) * 17u + part141;
    let x147 = b3[(row144 + d145) >> 2u];
    let r148 = e130 / 16u;
    let part149 = e130 % 16u;
    let row150 = min(c0 + r148, key_end - 1u);
    let base151 = ((batch * u.d6) + (kv_head * u.d5));
    let row152 = (base151 + (row150 * 64u));
    let d153 = part149 * 4u;
    let place154 = ((r148 & 3u) * 8u + (r148 >> 2u)) * 17u + part149;
    let x155 = b3[(row152 + d153) >> 2u];
    let r156 = e131 / 16u;
    let part157 = e131 % 16u;
    let row158 = min(c0 + r156, key_end - 1u);
    let base159 = ((batch * u.d6) + (kv_head * u.d5));
    let row160 = (base159 + (row158 * 64u));
    let d161 = part157 * 4u;
    let place162 = ((r156 & 3u) * 8u + (r156 >> 2u)) * 17u + part157;
    let x163 = b3[(row160 + d161) >> 2u];
    { passing_b[place138] = x139; }
    { passing_b[place146] = x147; }
    { passing_b[place154] = x155; }
    { passing_b[place162] = x163; }
    workgroupBarrier();
    var s_0 = vec4<f32>();
    var dp_0 = vec4<f32>();
    var s_1 = vec4<f32>();
    var dp_1 = vec4<f32>();
     {
      for (var d = 0u; d < 16u; d++) {
        let y164 = passing_a[(0u + sx) * 17u + d];
        let y165 = passing_a[(8u + sx) * 17u + d];
        let y166 = passing_a[(16u + sx) * 17u + d];
        let y167 = passing_a[(24u + sx) * 17u + d];
        let x168 = held_a[(sy + 0u) * 17u + d];
        s_0 += vec4<f32>(dot(x168, y164), dot(x168, y165), dot(x168, y166), dot(x168, y167));
        let x169 = held_a[(sy + 1u) * 17u + d];
        s_1 += vec4<f32>(dot(x169, y164), dot(x169, y165), dot(x169, y166), dot(x169, y167));
      }
      for (var d = 0u; d < 16u; d++) {
        let y170 = passing_b[(0u + sx) * 17u + d];
        let y171 = passing_b[(8u + sx) * 17u + d];
        let y172 = passing_b[(16u + sx) * 17u + d];
        let y173 = passing_b[(24u + sx) * 17u + d];
        let x174 = held_b[(sy + 0u) * 17u + d];
        dp_0 += vec4<f32>(dot(x174, y170), dot(x174, y171), dot(x174, y172), dot(x174, y173));
        let x175 = held_b[(sy + 1u) * 17u + d];
        dp_1 += vec4<f32>(dot(x175, y170), dot(x175, y171), dot(x175, y172), dot(x175, y173));
      }
    }
     {
      let at176 = min(c0 + sx * 4u + 0u, key_end - 1u);
      let at177 = min(c0 + sx * 4u + 1u, key_end - 1u);
      let at178 = min(c0 + sx * 4u + 2u, key_end - 1u);
      let at179 = min(c0 + sx * 4u + 3u, key_end - 1u);
      let row180 = min(row0 + sy + 0u, last_row);
      let h181 = kv_head * 2u + row180 % 2u;
      let s182 = row180 / 2u;
      let h183 = kv_head * 2u + row180 % 2u;
      let s184 = row180 / 2u;
      let h185 = kv_head * 2u + row180 % 2u;
      let s186 = row180 / 2u;
      let h187 = kv_head * 2u + row180 % 2u;
      let s188 = row180 / 2u;
      s_0 = max(s_0, vec4<f32>(-3.0e38f));
      let shown189 = vec4<bool>(sx * 4u + 0u < chunk && i32(at176) < visible && i32(at176) <= offset + i32(s182), sx * 4u + 1u < chunk && i32(at177) < visible && i32(at177) <= offset + i32(s184), sx * 4u + 2u < chunk && i32(at178) < visible && i32(at178) <= offset + i32(s186), sx * 4u + 3u < chunk && i32(at179) < visible && i32(at179) <= offset + i32(s188));
      s_0 = select(vec4<f32>(-3.3e38f), s_0, shown189);
      highest[(sy + 0u) * 8u + sx] = max(max(s_0.x, s_0.y), max(s_0.z, s_0.w));
      let row190 = min(row0 + sy + 1u, last_row);
      let h191 = kv_head * 2u + row190 % 2u;
      let s192 = row190 / 2u;
      let h193 = kv_head * 2u + row190 % 2u;
      let s194 = row190 / 2u;
      let h195 = kv_head * 2u + row190 % 2u;
      let s196 = row190 / 2u;
      let h197 = kv_head * 2u + row190 % 2u;
      let s198 = row190 / 2u;
      s_1 = max(s_1, vec4<f32>(-3.0e38f));
      let shown199 = vec4<bool>(sx * 4u + 0u < chunk && i32(at176) < visible && i32(at176) <= offset + i32(s192), sx * 4u + 1u < chunk && i32(at177) < visible && i32(at177) <= offset + i32(s194), sx * 4u + 2u < chunk && i32(at178) < visible && i32(at178) <= offset + i32(s196), sx * 4u + 3u < chunk && i32(at179) < visible && i32(at179) <= offset + i32(s198));
      s_1 = select(vec4<f32>(-3.3e38f), s_1, shown199);
      highest[(sy + 1u) * 8u + sx] = max(max(s_1.x, s_1.y), max(s_1.z, s_1.w));
    }
    workgroupBarrier();
     {
      let old_0 = top_0;
      for (var k = 0u; k < 8u; k++) {
        top_0 = max(top_0, highest[(sy + 0u) * 8u + k]);
      }
      let keep_0 = select(0.0, exp(max(old_0 - top_0, -200.0f)), old_0 >= -3.0e38f);
      let w_0 = select(vec4<f32>(), exp(max(s_0 - top_0, vec4<f32>(-200.0f))), s_0 >= vec4<f32>(-3.0e38f));
      let wdp_0 = w_0 * dp_0;
      total_0 = total_0 * keep_0 + dot(w_0, vec4<f32>(1.0));
      mixed_0 = mixed_0 * keep_0 + dot(wdp_0, vec4<f32>(1.0));
      weights_a[(sy + 0u) * 8u + sx] = wdp_0;
      weights_b[(sy + 0u) * 8u + sx] = w_0;
      if (sx == 0u) { keep[sy + 0u] = keep_0; }
      let old_1 = top_1;
      for (var k = 0u; k < 8u; k++) {
        top_1 = max(top_1, highest[(sy + 1u) * 8u + k]);
      }
      let keep_1 = select(0.0, exp(max(old_1 - top_1, -200.0f)), old_1 >= -3.0e38f);
      let w_1 = select(vec4<f32>(), exp(max(s_1 - top_1, vec4<f32>(-200.0f))), s_1 >= vec4<f32>(-3.0e38f));
      let wdp_1 = w_1 * dp_1;
      total_1 = total_1 * keep_1 + dot(w_1, vec4<f32>(1.0));
      mixed_1 = mixed_1 * keep_1 + dot(wdp_1, vec4<f32>(1.0));
      weights_a[(sy + 1u) * 8u + sx] = wdp_1;
      weights_b[(sy + 1u) * 8u + sx] = w_1;
      if (sx == 0u) { keep[sy + 1u] = keep_1; }
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
      let z200 = passing_a[(0u + m) * 17u + lane];
      let z201 = passing_a[(8u + m) * 17u + lane];
      let z202 = passing_a[(16u + m) * 17u + lane];
      let z203 = passing_a[(24u + m) * 17u + lane];
      let z204 = passing_a[(0u + m) * 17u + (lane + 8u)];
      let z205 = passing_a[(8u + m) * 17u + (lane + 8u)];
      let z206 = passing_a[(16u + m) * 17u + (lane + 8u)];
      let z207 = passing_a[(24u + m) * 17u + (lane + 8u)];
      let w208 = weights_a[sum_row * 8u + m];
      sum_a0_0 += w208.x * z200 + w208.y * z201 + w208.z * z202 + w208.w * z203;
      sum_a0_1 += w208.x * z204 + w208.y * z205 + w208.z * z206 + w208.w * z207;
      let w209 = weights_a[(sum_row + 1u) * 8u + m];
      sum_a1_0 += w209.x * z200 + w209.y * z201 + w209.z * z202 + w209.w * z203;
      sum_a1_1 += w209.x * z204 + w209.y * z205 + w209.z * z206 + w209.w * z207;
      let w210 = weights_b[sum_row * 8u + m];
      sum_b0_0 += w210.x * z200 + w210.y * z201 + w210.z * z202 + w210.w * z203;
      sum_b0_1 += w210.x * z204 + w210.y * z205 + w210.z * z206 + w210.w * z207;
      let w211 = weights_b[(sum_row + 1u) * 8u + m];
      sum_b1_0 += w211.x * z200 + w211.y * z201 + w211.z * z202 + w211.w * z203;
      sum_b1_1 += w211.x * z204 + w211.y * z205 + w211.z * z206 + w211.w * z207;
    }
    workgroupBarrier();
  }
   {
    highest[(sy + 0u) * 8u + sx] = total_0;
    mixed[(sy + 0u) * 8u + sx] = mixed_0;
    if (sx == 0u) { keep[sy + 0u] = top_0; }
    highest[(sy + 1u) * 8u + sx] = total_1;
    mixed[(sy + 1u) * 8u + sx] = mixed_1;
    if (sx == 0u) { keep[sy + 1u] = top_1; }
  }
  workgroupBarrier();
  for (var r = lid; r < 32u; r += 128u) {
    var total = 0.0;
    var sum = 0.0;
    for (var k = 0u; k < 8u; k++) {
      total += highest[r * 8u + k];
      sum += mixed[r * 8u + k];
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
  if (sum_row + 0u < 32u && row0 + sum_row + 0u < u.d7) {
    let row212 = row0 + sum_row + 0u;
    let h213 = kv_head * 2u + row212 % 2u;
    let s214 = row212 / 2u;
    let begin215 = (((batch * u.d4) + (h213 * u.d5)) + (s214 * 64u));
    let found216 = 0.125f * share[sum_row + 0u] * (sum_a0_0 - delta[sum_row + 0u] * sum_b0_0);
    let d217 = (lane + 0u) * 4u + 0u;
     {
      let i218 = begin215 + d217;
      let v223 = found216.x;
      b5[i218] = v223;
    }
    let d224 = (lane + 0u) * 4u + 1u;
     {
      let i225 = begin215 + d224;
      let v230 = found216.y;
      b5[i225] = v230;
    }
    let d231 = (lane + 0u) * 4u + 2u;
     {
      let i232 = begin215 + d231;
      let v237 = found216.z;
      b5[i232] = v237;
    }
    let d238 = (lane + 0u) * 4u + 3u;
     {
      let i239 = begin215 + d238;
      let v244 = found216.w;
      b5[i239] = v244;
    }
    let found245 = 0.125f * share[sum_row + 0u] * (sum_a0_1 - delta[sum_row + 0u] * sum_b0_1);
    let d246 = (lane + 8u) * 4u + 0u;
     {
      let i247 = begin215 + d246;
      let v252 = found245.x;
      b5[i247] = v252;
    }
    let d253 = (lane + 8u) * 4u + 1u;
     {
      let i254 = begin215 + d253;
      let v259 = found245.y;
      b5[i254] = v259;
    }
    let d260 = (lane + 8u) * 4u + 2u;
     {
      let i261 = begin215 + d260;
      let v266 = found245.z;
      b5[i261] = v266;
    }
    let d267 = (lane + 8u) * 4u + 3u;
     {
      let i268 = begin215 + d267;
      let v273 = found245.w;
      b5[i268] = v273;
    }
  }
  if (sum_row + 1u < 32u && row0 + sum_row + 1u < u.d7) {
    let row274 = row0 + sum_row + 1u;
    let h275 = kv_head * 2u + row274 % 2u;
    let s276 = row274 / 2u;
    let begin277 = (((batch * u.d4) + (h275 * u.d5)) + (s276 * 64u));
    let found278 = 0.125f * share[sum_row + 1u] * (sum_a1_0 - delta[sum_row + 1u] * sum_b1_0);
    let d279 = (lane + 0u) * 4u + 0u;
     {
      let i280 = begin277 + d279;
      let v285 = found278.x;
      b5[i280] = v285;
    }
    let d286 = (lane + 0u) * 4u + 1u;
     {
      let i287 = begin277 + d286;
      let v292 = found278.y;
      b5[i287] = v292;
    }
    let d293 = (lane + 0u) * 4u + 2u;
     {
      let i294 = begin277 + d293;
      let v299 = found278.z;
      b5[i294] = v299;
    }
    let d300 = (lane + 0u) * 4u + 3u;
     {
      let i301 = begin277 + d300;
      let v306 = found278.w;
      b5[i301] = v306;
    }
    let found307 = 0.125f * share[sum_row + 1u] * (sum_a1_1 - delta[sum_row + 1u] * sum_b1_1);
    let d308 = (lane + 8u) * 4u + 0u;
     {
      let i309 = begin277 + d308;
      let v314 = found307.x;
      b5[i309] = v314;
    }
    let d315 = (lane + 8u) * 4u + 1u;
     {
      let i316 = begin277 + d315;
      let v321 = found307.y;
      b5[i316] = v321;
    }
    let d322 = (lane + 8u) * 4u + 2u;
     {
      let i323 = begin277 + d322;
      let v328 = found307.z;
      b5[i323] = v328;
    }
    let d329 = (lane + 8u) * 4u + 3u;
     {
      let i330 = begin277 + d329;
      let v335 = found307.w;
      b5[i330] = v335;
    }
  }
}

// expand+attention_gradient keys [held 32 passing 32 128]: groups 2*floordiv(T+31,32); read %1, read %2, read %0, read %3, read %8, write %6, write %7; sizes floordiv(T+31,32), 2*floordiv(T+31,32), T, T-1, 128*T, 64*T, 2*T, 256*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> b3: array<f32>;
@group(0) @binding(4) var<storage, read> b4: array<f32>;
@group(0) @binding(5) var<storage, read_write> b5: array<f32>;
@group(0) @binding(6) var<storage, read_write> b6: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(7) var<uniform> u: Sizes;
var<workgroup> held_a: array<vec4<f32>, 544>;
var<workgroup> passing_a: array<vec4<f32>, 544>;
var<workgroup> weights_a: array<vec4<f32>, 256>;
var<workgroup> held_b: array<vec4<f32>, 544>;
var<workgroup> passing_b: array<vec4<f32>, 544>;
var<workgroup> weights_b: array<vec4<f32>, 256>;
var<workgroup> rows: array<f32, 96>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = (wg % u.d0) * 32u;
  let kv_head = (wg / u.d0) % 2u;
  let batch = wg / u.d1;
  let offset = 0i;
  let visible = i32(u.d2);
  let sx = lid % 8u;
  let sy = (lid / 8u) * 2u;
  let lane = lid % 8u;
  let sum_row = (lid / 8u) * 2u;
  let last_key = u.d3;
  let e1 = lid;
  let e2 = (lid + 128u);
  let e3 = (lid + 256u);
  let e4 = (lid + 384u);
  let r5 = e1 / 16u;
  let part6 = e1 % 16u;
  let row7 = min(row0 + r5, last_key);
  let base8 = ((batch * u.d4) + (kv_head * u.d5));
  let row9 = (base8 + (row7 * 64u));
  let d10 = part6 * 4u;
  let place11 = r5 * 17u + part6;
  let x12 = b0[(row9 + d10) >> 2u];
  let r13 = e2 / 16u;
  let part14 = e2 % 16u;
  let row15 = min(row0 + r13, last_key);
  let base17 = ((batch * u.d4) + (kv_head * u.d5));
  let row18 = (base17 + (row15 * 64u));
  let d19 = part14 * 4u;
  let place20 = r13 * 17u + part14;
  let x21 = b0[(row18 + d19) >> 2u];
  let r22 = e3 / 16u;
  let part23 = e3 % 16u;
  let row24 = min(row0 + r22, last_key);
  let base25 = ((batch * u.d4) + (kv_head * u.d5));
  let row26 = (base25 + (row24 * 64u));
  let d27 = part23 * 4u;
  let place28 = r22 * 17u + part23;
  let x29 = b0[(row26 + d27) >> 2u];
  let r30 = e4 / 16u;
  let part31 = e4 % 16u;
  let row33 = min(row0 + r30, last_key);
  let base34 = ((batch * u.d4) + (kv_head * u.d5));
  let row35 = (base34 + (row33 * 64u));
  let d36 = part31 * 4u;
  let place37 = r30 * 17u + part31;
  let x38 = b0[(row35 + d36) >> 2u];
  { held_a[place11] = x12; }
  { held_a[place20] = x21; }
  { held_a[place28] = x29; }
  { held_a[place37] = x38; }
  let e39 = lid;
  let e40 = (lid + 128u);
  let e41 = (lid + 256u);
  let e42 = (lid + 384u);
  let r43 = e39 / 16u;
  let part44 = e39 % 16u;
  let row45 = min(row0 + r43, last_key);
  let base46 = ((batch * u.d4) + (kv_head * u.d5));
  let row47 = (base46 + (row45 * 64u));
  let d48 = part44 * 4u;
  let place49 = r43 * 17u + part44;
  let x50 = b1[(row47 + d48) >> 2u];
  let r51 = e40 / 16u;
  let part52 = e40 % 16u;
  let row53 = min(row0 + r51, last_key);
  let base54 = ((batch * u.d4) + (kv_head * u.d5));
  let row55 = (base54 + (row53 * 64u));
  let d56 = part52 * 4u;
  let place57 = r51 * 17u + part52;
  let x58 = b1[(row55 + d56) >> 2u];
  let r59 = e41 / 16u;
  let part60 = e41 % 16u;
  let row61 = min(row0 + r59, last_key);
  let base62 = ((batch * u.d4) + (kv_head * u.d5));
  let row63 = (base62 + (row61 * 64u));
  let d65 = part60 * 4u;
  let place66 = r59 * 17u + part60;
  let x67 = b1[(row63 + d65) >> 2u];
  let r68 = e42 / 16u;
  let part69 = e42 % 16u;
  let row70 = min(row0 + r68, last_key);
  let base71 = ((batch * u.d4) + (kv_head * u.d5));
  let row72 = (base71 + (row70 * 64u));
  let d73 = part69 * 4u;
  let place74 = r68 * 17u + part69;
  let x75 = b1[(row72 + d73) >> 2u];
  { held_b[place49] = x50; }
  { held_b[place57] = x58; }
  { held_b[place66] = x67; }
  { held_b[place74] = x75; }
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
  for (var c0 = row_begin; c0 < row_end; c0 += 32u) {
    let chunk = min(32u, row_end - c0);
    let e76 = lid;
    let e77 = (lid + 128u);
    let e78 = (lid + 256u);
    let e79 = (lid + 384u);
    let r80 = e76 / 16u;
    let part81 = e76 % 16u;
    let row82 = min(c0 + r80, row_end - 1u);
    let h83 = kv_head * 2u + row82 % 2u;
    let s84 = row82 / 2u;
    let base85 = ((batch * u.d7) + (h83 * u.d5));
    let row86 = (base85 + (s84 * 64u));
    let d87 = part81 * 4u;
    let place88 = ((r80 & 3u) * 8u + (r80 >> 2u)) * 17u + part81;
    let x89 = b2[(row86 + d87) >> 2u] * 0.125f;
    let r90 = e77 / 16u;
    let part91 = e77 % 16u;
    let row92 = min(c0 + r90, row_end - 1u);
    let h93 = kv_head * 2u + row92 % 2u;
    let s94 = row92 / 2u;
    let base95 = ((batch * u.d7) + (h93 * u.d5));
    let row96 = (base95 + (s94 * 64u));
    let d97 = part91 * 4u;
    let place98 = ((r90 & 3u) * 8u + (r90 >> 2u)) * 17u + part91;
    let x99 = b2[(row96 + d97) >> 2u] * 0.125f;
    let r100 = e78 / 16u;
    let part101 = e78 % 16u;
    let row102 = min(c0 + r100, row_end - 1u);
    let h103 = kv_head * 2u + row102 % 2u;
    let s104 = row102 / 2u;
    let base105 = ((batch * u.d7) + (h103 * u.d5));
    let row106 = (base105 + (s104 * 64u));
    let d107 = part101 * 4u;
    let place108 = ((r100 & 3u) * 8u + (r100 >> 2u)) * 17u + part101;
    let x109 = b2[(row106 + d107) >> 2u] * 0.125f;
    let r110 = e79 / 16u;
    let part111 = e79 % 16u;
    let row112 = min(c0 + r110, row_end - 1u);
    let h113 = kv_head * 2u + row112 % 2u;
    let s114 = row112 / 2u;
    let base115 = ((batch * u.d7) + (h113 * u.d5));
    let row116 = (base115 + (s114 * 64u));
    let d117 = part111 * 4u;
    let place118 = ((r110 & 3u) * 8u + (r110 >> 2u)) * 17u + part111;
    let x119 = b2[(row116 + d117) >> 2u] * 0.125f;
    { passing_a[place88] = x89; }
    { passing_a[place98] = x99; }
    { passing_a[place108] = x109; }
    { passing_a[place118] = x119; }
    let e120 = lid;
    let e121 = (lid + 128u);
    let e122 = (lid + 256u);
    let e123 = (lid + 384u);
    let r124 = e120 / 16u;
    let part125 = e120 % 16u;
    let row126 = min(c0 + r124, row_end - 1u);
    let h127 = kv_head * 2u + row126 % 2u;
    let s128 = row126 / 2u;
    let base129 = 0u;
    let row130 = base129;
    let d131 = part125 * 4u;
    let place132 = ((r124 & 3u) * 8u + (r124 >> 2u)) * 17u + part125;
    let x133 = vec4<f32>(b3[row130], b3[row130], b3[row130], b3[row130]);
    let r134 = e121 / 16u;
    let part135 = e121 % 16u;
    let row136 = min(c0 + r134, row_end - 1u);
    let h137 = kv_head * 2u + row136 % 2u;
    let s138 = row136 / 2u;
    let base139 = 0u;
    let row140 = base139;
    let d141 = part135 * 4u;
    let place142 = ((r134 & 3u) * 8u + (r134 >> 2u)) * 17u + part135;
    let x143 = vec4<f32>(b3[row140], b3[row140], b3[row140], b3[row140]);
    let r144 = e122 / 16u;
    let part145 = e122 % 16u;
    let row146 = min(c0 + r144, row_end - 1u);
    let h147 = kv_head * 2u + row146 % 2u;
    let s148 = row146 / 2u;
    let base149 = 0u;
    let row150 = base149;
    let d151 = part145 * 4u;
    let place152 = ((r144 & 3u) * 8u + (r144 >> 2u)) * 17u + part145;
    let x153 = vec4<f32>(b3[row150], b3[row150], b3[row150], b3[row150]);
    let r154 = e123 / 16u;
    let part155 = e123 % 16u;
    let row156 = min(c0 + r154, row_end - 1u);
    let h157 = kv_head * 2u + row156 % 2u;
    let s158 = row156 / 2u;
    let base159 = 0u;
    let row160 = base159;
    let d161 = part155 * 4u;
    let place162 = ((r154 & 3u) * 8u + (r154 >> 2u)) * 17u + part155;
    let x163 = vec4<f32>(b3[row160], b3[row160], b3[row160], b3[row160]);
    { passing_b[place132] = x133; }
    { passing_b[place142] = x143; }
    { passing_b[place152] = x153; }
    { passing_b[place162] = x163; }
    for (var e = lid; e < 96u; e += 128u) {
      let row164 = min(c0 + e / 3u, row_end - 1u);
      rows[e] = b4[((batch * 2u + kv_head) * u.d6 + row164) * 3u + e % 3u];
    }
    workgroupBarrier();
    var s_0 = vec4<f32>();
    var dp_0 = vec4<f32>();
    var s_1 = vec4<f32>();
    var dp_1 = vec4<f32>();
     {
      for (var d = 0u; d < 16u; d++) {
        let y165 = passing_a[(0u + sx) * 17u + d];
        let y166 = passing_a[(8u + sx) * 17u + d];
        let y167 = passing_a[(16u + sx) * 17u + d];
        let y168 = passing_a[(24u + sx) * 17u + d];
        let x169 = held_a[(sy + 0u) * 17u + d];
        s_0 += vec4<f32>(dot(x169, y165), dot(x169, y166), dot(x169, y167), dot(x169, y168));
        let x170 = held_a[(sy + 1u) * 17u + d];
        s_1 += vec4<f32>(dot(x170, y165), dot(x170, y166), dot(x170, y167), dot(x170, y168));
      }
      for (var d = 0u; d < 16u; d++) {
        let y171 = passing_b[(0u + sx) * 17u + d];
        let y172 = passing_b[(8u + sx) * 17u + d];
        let y173 = passing_b[(16u + sx) * 17u + d];
        let y174 = passing_b[(24u + sx) * 17u + d];
        let x175 = held_b[(sy + 0u) * 17u + d];
        dp_0 += vec4<f32>(dot(x175, y171), dot(x175, y172), dot(x175, y173), dot(x175, y174));
        let x176 = held_b[(sy + 1u) * 17u + d];
        dp_1 += vec4<f32>(dot(x176, y171), dot(x176, y172), dot(x176, y173), dot(x176, y174));
      }
    }
     {
      let of_row177 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 0u], rows[(sx * 4u + 1u) * 3u + 0u], rows[(sx * 4u + 2u) * 3u + 0u], rows[(sx * 4u + 3u) * 3u + 0u]);
      let of_row178 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 1u], rows[(sx * 4u + 1u) * 3u + 1u], rows[(sx * 4u + 2u) * 3u + 1u], rows[(sx * 4u + 3u) * 3u + 1u]);
      let of_row179 = vec4<f32>(rows[(sx * 4u + 0u) * 3u + 2u], rows[(sx * 4u + 1u) * 3u + 2u], rows[(sx * 4u + 2u) * 3u + 2u], rows[(sx * 4u + 3u) * 3u + 2u]);
      let at180 = min(c0 + sx * 4u + 0u, row_end - 1u);
      let at181 = min(c0 + sx * 4u + 1u, row_end - 1u);
      let at182 = min(c0 + sx * 4u + 2u, row_end - 1u);
      let at183 = min(c0 + sx * 4u + 3u, row_end - 1u);
      let position184 = row0 + sy + 0u;
      let h185 = kv_head * 2u + at180 % 2u;
      let s186 = at180 / 2u;
      let h187 = kv_head * 2u + at181 % 2u;
      let s188 = at181 / 2u;
      let h189 = kv_head * 2u + at182 % 2u;
      let s190 = at182 / 2u;
      let h191 = kv_head * 2u + at183 % 2u;
      let s192 = at183 / 2u;
      s_0 = max(s_0, vec4<f32>(-3.0e38f));
      let shown193 = vec4<bool>(sx * 4u + 0u < chunk && i32(position184) < visible && i32(position184) <= offset + i32(s186), sx * 4u + 1u < chunk && i32(position184) < visible && i32(position184) <= offset + i32(s188), sx * 4u + 2u < chunk && i32(position184) < visible && i32(position184) <= offset + i32(s190), sx * 4u + 3u < chunk && i32(position184) < visible && i32(position184) <= offset + i32(s192));
      let p_0 = select(vec4<f32>(), exp(max(s_0 - of_row177, vec4<f32>(-200.0f))) * of_row178, shown193);
      weights_a[(sy + 0u) * 8u + sx] = select(vec4<f32>(), p_0 * (dp_0 - of_row179), shown193);
      weights_b[(sy + 0u) * 8u + sx] = p_0;
      let position194 = row0 + sy + 1u;
      let h195 = kv_head * 2u + at180 % 2u;
      let s196 = at180 / 2u;
      let h197 = kv_head * 2u + at181 % 2u;
      let s198 = at181 / 2u;
      let h199 = kv_head * 2u + at182 % 2u;
      let s200 = at182 / 2u;
      let h201 = kv_head * 2u + at183 % 2u;
      let s202 = at183 / 2u;
      s_1 = max(s_1, vec4<f32>(-3.0e38f));
      let shown203 = vec4<bool>(sx * 4u + 0u < chunk && i32(position194) < visible && i32(position194) <= offset + i32(s196), sx * 4u + 1u < chunk && i32(position194) < visible && i32(position194) <= offset + i32(s198), sx * 4u + 2u < chunk && i32(position194) < visible && i32(position194) <= offset + i32(s200), sx * 4u + 3u < chunk && i32(position194) < visible && i32(position194) <= offset + i32(s202));
      let p_1 = select(vec4<f32>(), exp(max(s_1 - of_row177, vec4<f32>(-200.0f))) * of_row178, shown203);
      weights_a[(sy + 1u) * 8u + sx] = select(vec4<f32>(), p_1 * (dp_1 - of_row179), shown203);
      weights_b[(sy + 1u) * 8u + sx] = p_1;
    }
    workgroupBarrier();
    for (var m = 0u; m < (chunk + 3u) / 4u; m++) {
      let z204 = passing_a[(0u + m) * 17u + lane];
      let z205 = passing_a[(8u + m) * 17u + lane];
      let z206 = passing_a[(16u + m) * 17u + lane];
      let z207 = passing_a[(24u + m) * 17u + lane];
      let z208 = passing_a[(0u + m) * 17u + (lane + 8u)];
      let z209 = passing_a[(8u + m) * 17u + (lane + 8u)];
      let z210 = passing_a[(16u + m) * 17u + (lane + 8u)];
      let z211 = passing_a[(24u + m) * 17u + (lane + 8u)];
      let w212 = weights_a[sum_row * 8u + m];
      sum_a0_0 += w212.x * z204 + w212.y * z205 + w212.z * z206 + w212.w * z207;
      sum_a0_1 += w212.x * z208 + w212.y * z209 + w212.z * z210 + w212.w * z211;
      let w213 = weights_a[(sum_row + 1u) * 8u + m];
      sum_a1_0 += w213.x * z204 + w213.y * z205 + w213.z * z206 + w213.w * z207;
      sum_a1_1 += w213.x * z208 + w213.y * z209 + w213.z * z210 + w213.w * z211;
    }
    for (var m = 0u; m < (chunk + 3u) / 4u; m++) {
      let z214 = passing_b[(0u + m) * 17u + lane];
      let z215 = passing_b[(8u + m) * 17u + lane];
      let z216 = passing_b[(16u + m) * 17u + lane];
      let z217 = passing_b[(24u + m) * 17u + lane];
      let z218 = passing_b[(0u + m) * 17u + (lane + 8u)];
      let z219 = passing_b[(8u + m) * 17u + (lane + 8u)];
      let z220 = passing_b[(16u + m) * 17u + (lane + 8u)];
      let z221 = passing_b[(24u + m) * 17u + (lane + 8u)];
      let w222 = weights_b[sum_row * 8u + m];
      sum_b0_0 += w222.x * z214 + w222.y * z215 + w222.z * z216 + w222.w * z217;
      sum_b0_1 += w222.x * z218 + w222.y * z219 + w222.z * z220 + w222.w * z221;
      let w223 = weights_b[(sum_row + 1u) * 8u + m];
      sum_b1_0 += w223.x * z214 + w223.y * z215 + w223.z * z216 + w223.w * z217;
      sum_b1_1 += w223.x * z218 + w223.y * z219 + w223.z * z220 + w223.w * z221;
    }
    workgroupBarrier();
  }
  if (sum_row + 0u < 32u && row0 + sum_row + 0u < u.d2) {
    let row224 = row0 + sum_row + 0u;
    let begin225 = (((batch * u.d4) + (kv_head * u.d5)) + (row224 * 64u));
    let found226 = sum_a0_0;
    let d227 = (lane + 0u) * 4u + 0u;
     {
      let i228 = begin225 + d227;
      b5[i228] = found226.x;
    }
    let d233 = (lane + 0u) * 4u + 1u;
     {
      let i234 = begin225 + d233;
      b5[i234] = found226.y;
    }
    let d239 = (lane + 0u) * 4u + 2u;
     {
      let i240 = begin225 + d239;
      b5[i240] = found226.z;
    }
    let d245 = (lane + 0u) * 4u + 3u;
     {
      let i246 = begin225 + d245;
      b5[i246] = found226.w;
    }
    let found251 = sum_a0_1;
    let d252 = (lane + 8u) * 4u + 0u;
     {
      let i253 = begin225 + d252;
      b5[i253] = found251.x;
    }
    let d258 = (lane + 8u) * 4u + 1u;
     {
      let i259 = begin225 + d258;
      b5[i259] = found251.y;
    }
    let d264 = (lane + 8u) * 4u + 2u;
     {
      let i265 = begin225 + d264;
      b5[i265] = found251.z;
    }
    let d270 = (lane + 8u) * 4u + 3u;
     {
      let i271 = begin225 + d270;
      b5[i271] = found251.w;
    }
  }
  if (sum_row + 1u < 32u && row0 + sum_row + 1u < u.d2) {
    let row276 = row0 + sum_row + 1u;
    let begin277 = (((batch * u.d4) + (kv_head * u.d5)) + (row276 * 64u));
    let found278 = sum_a1_0;
    let d279 = (lane + 0u) * 4u + 0u;
     {
      let i280 = begin277 + d279;
      b5[i280] = found278.x;
    }
    let d285 = (lane + 0u) * 4u + 1u;
     {
      let i286 = begin277 + d285;
      b5[i286] = found278.y;
    }
    let d291 = (lane + 0u) * 4u + 2u;
     {
      let i292 = begin277 + d291;
      b5[i292] = found278.z;
    }
    let d297 = (lane + 0u) * 4u + 3u;
     {
      let i298 = begin277 + d297;
      b5[i298] = found278.w;
    }
    let found303 = sum_a1_1;
    let d304 = (lane + 8u) * 4u + 0u;
     {
      let i305 = begin277 + d304;
      b5[i305] = found303.x;
    }
    let d310 = (lane + 8u) * 4u + 1u;
     {
      let i311 = begin277 + d310;
      b5[i311] = found303.y;
    }
    let d316 = (lane + 8u) * 4u + 2u;
     {
      let i317 = begin277 + d316;
      b5[i317] = found303.z;
    }
    let d322 = (lane + 8u) * 4u + 3u;
     {
      let i323 = begin277 + d322;
      b5[i323] = found303.w;
    }
  }
  if (sum_row + 0u < 32u && row0 + sum_row + 0u < u.d2) {
    let row328 = row0 + sum_row + 0u;
    let begin329 = (((batch * u.d4) + (kv_head * u.d5)) + (row328 * 64u));
    let found330 = sum_b0_0;
    let d331 = (lane + 0u) * 4u + 0u;
     {
      let i332 = begin329 + d331;
      b6[i332] = found330.x;
    }
    let d337 = (lane + 0u) * 4u + 1u;
     {
      let i338 = begin329 + d337;
      b6[i338] = found330.y;
    }
    let d343 = (lane + 0u) * 4u + 2u;
     {
      let i344 = begin329 + d343;
      b6[i344] = found330.z;
    }
    let d349 = (lane + 0u) * 4u + 3u;
     {
      let i350 = begin329 + d349;
      b6[i350] = found330.w;
    }
    let found355 = sum_b0_1;
    let d356 = (lane + 8u) * 4u + 0u;
     {
      let i357 = begin329 + d356;
      b6[i357] = found355.x;
    }
    let d362 = (lane + 8u) * 4u + 1u;
     {
      let i363 = begin329 + d362;
      b6[i363] = found355.y;
    }
    let d368 = (lane + 8u) * 4u + 2u;
     {
      let i369 = begin329 + d368;
      b6[i369] = found355.z;
    }
    let d374 = (lane + 8u) * 4u + 3u;
     {
      let i375 = begin329 + d374;
      b6[i375] = found355.w;
    }
  }
  if (sum_row + 1u < 32u && row0 + sum_row + 1u < u.d2) {
    let row380 = row0 + sum_row + 1u;
    let begin381 = (((batch * u.d4) + (kv_head * u.d5)) + (row380 * 64u));
    let found382 = sum_b1_0;
    let d383 = (lane + 0u) * 4u + 0u;
     {
      let i384 = begin381 + d383;
      b6[i384] = found382.x;
    }
    let d389 = (lane + 0u) * 4u + 1u;
     {
      let i390 = begin381 + d389;
      b6[i390] = found382.y;
    }
    let d395 = (lane + 0u) * 4u + 2u;
     {
      let i396 = begin381 + d395;
      b6[i396] = found382.z;
    }
    let d401 = (lane + 0u) * 4u + 3u;
     {
      let i402 = begin381 + d401;
      b6[i402] = found382.w;
    }
    let found407 = sum_b1_1;
    let d408 = (lane + 8u) * 4u + 0u;
     {
      let i409 = begin381 + d408;
      b6[i409] = found407.x;
    }
    let d414 = (lane + 8u) * 4u + 1u;
     {
      let i415 = begin381 + d414;
      b6[i415] = found407.y;
    }
    let d420 = (lane + 8u) * 4u + 2u;
     {
      let i421 = begin381 + d420;
      b6[i421] = found407.z;
    }
    let d426 = (lane + 8u) * 4u + 3u;
     {
      let i427 = begin381 + d426;
      b6[i427] = found407.w;
    }
  }
}
