// attention [groups 1x256 512]: groups 4; read %6, read %4, read %5, read %3, write %7; sizes static
@group(0) @binding(0) var<storage, read> b0: array<i32>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> b3: array<f32>;
@group(0) @binding(4) var<storage, read_write> b4: array<f32>;
var<workgroup> queries: array<vec4<f32>, 16>;
var<workgroup> tops: array<f32, 16>;
var<workgroup> totals: array<f32, 16>;
var<workgroup> sums: array<vec4<f32>, 256>;

@compute @workgroup_size(512)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 4u) { return; }
  let block_id = wg;
  let row0 = (block_id % 2u) * 1u;
  let kv_head = (block_id / 2u) % 2u;
  let batch = block_id / 4u;
  let last_row = min(row0 + 0u, 1u);
  let key_end = u32(max(min(i32(512u), b0[0u]), 0i));
  let key_begin = 0u;
  let lane = lid % 8u;
  let holder = lid / 8u;
  var k0_0: vec4<u32>;
  var k1_0: vec4<u32>;
  var k2_0: vec4<u32>;
  var k3_0: vec4<u32>;
  var v0_0: vec4<u32>;
  var v1_0: vec4<u32>;
  var v2_0: vec4<u32>;
  var v3_0: vec4<u32>;
  let base1 = ((batch * 65536u) + (kv_head * 32768u));
  let base2 = ((batch * 65536u) + (kv_head * 32768u));
  if (key_begin < key_end) {
    let at3 = min(key_begin + holder, key_end - 1u);
    let at4 = min((key_begin + holder + 64u), key_end - 1u);
    let at5 = min((key_begin + holder + 128u), key_end - 1u);
    let at6 = min((key_begin + holder + 192u), key_end - 1u);
    let row7 = (base1 + (at3 * 64u));
    k0_0 = b1[row7 / 8u + lane];
    let row8 = (base1 + (at4 * 64u));
    k1_0 = b1[row8 / 8u + lane];
    let row9 = (base1 + (at5 * 64u));
    k2_0 = b1[row9 / 8u + lane];
    let row10 = (base1 + (at6 * 64u));
    k3_0 = b1[row10 / 8u + lane];
    let row11 = (base2 + (at3 * 64u));
    v0_0 = b2[row11 / 8u + lane];
    let row12 = (base2 + (at4 * 64u));
    v1_0 = b2[row12 / 8u + lane];
    let row13 = (base2 + (at5 * 64u));
    v2_0 = b2[row13 / 8u + lane];
    let row14 = (base2 + (at6 * 64u));
    v3_0 = b2[row14 / 8u + lane];
  }
  for (var e = lid; e < 16u; e += 512u) {
    let row15 = min(row0 + e / 16u, last_row);
    let h17 = kv_head * 2u + row15 % 2u;
    let s18 = row15 / 2u;
    let d19 = (e % 16u) * 4u;
    let base20 = ((batch * 256u) + (h17 * 64u));
    let row21 = base20;
    queries[e] = vec4<f32>(b3[(row21 + d19)], b3[(row21 + (d19 + 1u))], b3[(row21 + (d19 + 2u))], b3[(row21 + (d19 + 3u))]) * 0.125f;
  }
  workgroupBarrier();
  let q0_0 = queries[lane * 2u];
  var sum0_0 = vec4<f32>();
  let q0_1 = queries[(lane * 2u + 1u)];
  var sum0_1 = vec4<f32>();
  var top0 = -3.3e38f;
  var total0 = 0.0;
  let row_0 = min(row0 + 0u, last_row);
  for (var c0 = key_begin; c0 < key_end; c0 += 256u) {
    var next_k0_0: vec4<u32>;
    var next_k1_0: vec4<u32>;
    var next_k2_0: vec4<u32>;
    var next_k3_0: vec4<u32>;
    var next_v0_0: vec4<u32>;
    var next_v1_0: vec4<u32>;
    var next_v2_0: vec4<u32>;
    var next_v3_0: vec4<u32>;
    if (c0 + 256u < key_end) {
      let at22 = min(c0 + 256u + holder, key_end - 1u);
      let at23 = min((c0 + 256u + holder + 64u), key_end - 1u);
      let at24 = min((c0 + 256u + holder + 128u), key_end - 1u);
      let at25 = min((c0 + 256u + holder + 192u), key_end - 1u);
      let row26 = (base1 + (at22 * 64u));
      next_k0_0 = b1[row26 / 8u + lane];
      let row27 = (base1 + (at23 * 64u));
      next_k1_0 = b1[row27 / 8u + lane];
      let row28 = (base1 + (at24 * 64u));
      next_k2_0 = b1[row28 / 8u + lane];
      let row29 = (base1 + (at25 * 64u));
      next_k3_0 = b1[row29 / 8u + lane];
      let row30 = (base2 + (at22 * 64u));
      next_v0_0 = b2[row30 / 8u + lane];
      let row31 = (base2 + (at23 * 64u));
      next_v1_0 = b2[row31 / 8u + lane];
      let row33 = (base2 + (at24 * 64u));
      next_v2_0 = b2[row33 / 8u + lane];
      let row34 = (base2 + (at25 * 64u));
      next_v3_0 = b2[row34 / 8u + lane];
    }
    let position35 = c0 + holder;
    let position36 = (c0 + holder + 64u);
    let position37 = (c0 + holder + 128u);
    let position38 = (c0 + holder + 192u);
    let h39 = vec4<f32>(unpack2x16float(k0_0.x), unpack2x16float(k0_0.y));
    let h40 = vec4<f32>(unpack2x16float(k0_0.z), unpack2x16float(k0_0.w));
    let h41 = vec4<f32>(unpack2x16float(k1_0.x), unpack2x16float(k1_0.y));
    let h42 = vec4<f32>(unpack2x16float(k1_0.z), unpack2x16float(k1_0.w));
    let h43 = vec4<f32>(unpack2x16float(k2_0.x), unpack2x16float(k2_0.y));
    let h44 = vec4<f32>(unpack2x16float(k2_0.z), unpack2x16float(k2_0.w));
    let h45 = vec4<f32>(unpack2x16float(k3_0.x), unpack2x16float(k3_0.y));
    let h46 = vec4<f32>(unpack2x16float(k3_0.z), unpack2x16float(k3_0.w));
    let s47 = dot(q0_0 * h39 + q0_1 * h40, vec4<f32>(1.0));
    let s48 = s47 + subgroupShuffleXor(s47, 1u);
    let s49 = s48 + subgroupShuffleXor(s48, 2u);
    let s50 = s49 + subgroupShuffleXor(s49, 4u);
    let s51 = dot(q0_0 * h41 + q0_1 * h42, vec4<f32>(1.0));
    let s52 = s51 + subgroupShuffleXor(s51, 1u);
    let s53 = s52 + subgroupShuffleXor(s52, 2u);
    let s54 = s53 + subgroupShuffleXor(s53, 4u);
    let s55 = dot(q0_0 * h43 + q0_1 * h44, vec4<f32>(1.0));
    let s56 = s55 + subgroupShuffleXor(s55, 1u);
    let s57 = s56 + subgroupShuffleXor(s56, 2u);
    let s58 = s57 + subgroupShuffleXor(s57, 4u);
    let s59 = dot(q0_0 * h45 + q0_1 * h46, vec4<f32>(1.0));
    let s60 = s59 + subgroupShuffleXor(s59, 1u);
    let s61 = s60 + subgroupShuffleXor(s60, 2u);
    let s62 = s61 + subgroupShuffleXor(s61, 4u);
    let h63 = kv_head * 2u + row_0 % 2u;
    let s65 = row_0 / 2u;
    let at66 = min(position35, key_end - 1u);
    let at67 = min(position36, key_end - 1u);
    let at68 = min(position37, key_end - 1u);
    let at69 = min(position38, key_end - 1u);
    let s70 = select(-3.3e38f, max(s50, -3.0e38f), position35 < key_end);
    let s71 = select(-3.3e38f, max(s54, -3.0e38f), position36 < key_end);
    let s72 = select(-3.3e38f, max(s58, -3.0e38f), position37 < key_end);
    let s73 = select(-3.3e38f, max(s62, -3.0e38f), position38 < key_end);
    let h74 = vec4<f32>(unpack2x16float(v0_0.x), unpack2x16float(v0_0.y));
    let h75 = vec4<f32>(unpack2x16float(v0_0.z), unpack2x16float(v0_0.w));
    let h76 = vec4<f32>(unpack2x16float(v1_0.x), unpack2x16float(v1_0.y));
    let h77 = vec4<f32>(unpack2x16float(v1_0.z), unpack2x16float(v1_0.w));
    let h78 = vec4<f32>(unpack2x16float(v2_0.x), unpack2x16float(v2_0.y));
    let h79 = vec4<f32>(unpack2x16float(v2_0.z), unpack2x16float(v2_0.w));
    let h80 = vec4<f32>(unpack2x16float(v3_0.x), unpack2x16float(v3_0.y));
    let h81 = vec4<f32>(unpack2x16float(v3_0.z), unpack2x16float(v3_0.w));
    let highest82 = max(max(max(max(top0, s70), s71), s72), s73);
    let keep83 = select(0.0, exp(max(top0 - highest82, -200.0f)), top0 >= -3.0e38f);
    let w84 = select(0.0, exp(max(s70 - highest82, -200.0f)), s70 >= -3.0e38f);
    let w85 = select(0.0, exp(max(s71 - highest82, -200.0f)), s71 >= -3.0e38f);
    let w86 = select(0.0, exp(max(s72 - highest82, -200.0f)), s72 >= -3.0e38f);
    let w87 = select(0.0, exp(max(s73 - highest82, -200.0f)), s73 >= -3.0e38f);
    top0 = highest82;
    total0 = total0 * keep83 + w84 + w85 + w86 + w87;
    sum0_0 = sum0_0 * keep83 + w84 * h74 + w85 * h76 + w86 * h78 + w87 * h80;
    sum0_1 = sum0_1 * keep83 + w84 * h75 + w85 * h77 + w86 * h79 + w87 * h81;
    k0_0 = next_k0_0;
    k1_0 = next_k1_0;
    k2_0 = next_k2_0;
    k3_0 = next_k3_0;
    v0_0 = next_v0_0;
    v1_0 = next_v1_0;
    v2_0 = next_v2_0;
    v3_0 = next_v3_0;
  }
  let s88 = max(top0, subgroupShuffleXor(top0, 8u));
  let s89 = max(s88, subgroupShuffleXor(s88, 16u));
  let factor90 = select(0.0, exp(max(top0 - s89, -200.0f)), top0 >= -3.0e38f);
  let s91 = total0 * factor90;
  let s92 = s91 + subgroupShuffleXor(s91, 8u);
  let s93 = s92 + subgroupShuffleXor(s92, 16u);
  let s94 = sum0_0 * factor90;
  let s95 = s94 + subgroupShuffleXor(s94, 8u);
  let s96 = s95 + subgroupShuffleXor(s95, 16u);
  let s97 = sum0_1 * factor90;
  let s98 = s97 + subgroupShuffleXor(s97, 8u);
  let s99 = s98 + subgroupShuffleXor(s98, 16u);
  if (lid % 32u < 8u) {
    sums[(lid / 32u) * 16u + lane * 2u] = s96;
    sums[(lid / 32u) * 16u + (lane * 2u + 1u)] = s99;
    if (lane == 0u) { tops[lid / 32u] = s89; totals[lid / 32u] = s93; }
  }
  workgroupBarrier();
  for (var e = lid; e < 64u; e += 512u) {
    let r = e / 64u;
    let column = e % 64u;
    let row = row0 + r;
    let first = r * 16u;
    let t100 = tops[first];
    let t101 = tops[(first + 1u)];
    let t102 = tops[(first + 2u)];
    let t103 = tops[(first + 3u)];
    let t104 = tops[(first + 4u)];
    let t105 = tops[(first + 5u)];
    let t106 = tops[(first + 6u)];
    let t107 = tops[(first + 7u)];
    let t108 = tops[(first + 8u)];
    let t109 = tops[(first + 9u)];
    let t110 = tops[(first + 10u)];
    let t111 = tops[(first + 11u)];
    let t112 = tops[(first + 12u)];
    let t113 = tops[(first + 13u)];
    let t114 = tops[(first + 14u)];
    let t115 = tops[(first + 15u)];
    let top116 = max(max(max(max(max(max(max(max(max(max(max(max(max(max(max(t100, t101), t102), t103), t104), t105), t106), t107), t108), t109), t110), t111), t112), t113), t114), t115);
    let share117 = select(0.0, exp(max(t100 - top116, -200.0f)), t100 >= -3.0e38f);
    let share118 = select(0.0, exp(max(t101 - top116, -200.0f)), t101 >= -3.0e38f);
    let share119 = select(0.0, exp(max(t102 - top116, -200.0f)), t102 >= -3.0e38f);
    let share120 = select(0.0, exp(max(t103 - top116, -200.0f)), t103 >= -3.0e38f);
    let share121 = select(0.0, exp(max(t104 - top116, -200.0f)), t104 >= -3.0e38f);
    let share122 = select(0.0, exp(max(t105 - top116, -200.0f)), t105 >= -3.0e38f);
    let share123 = select(0.0, exp(max(t106 - top116, -200.0f)), t106 >= -3.0e38f);
    let share124 = select(0.0, exp(max(t107 - top116, -200.0f)), t107 >= -3.0e38f);
    let share125 = select(0.0, exp(max(t108 - top116, -200.0f)), t108 >= -3.0e38f);
    let share126 = select(0.0, exp(max(t109 - top116, -200.0f)), t109 >= -3.0e38f);
    let share127 = select(0.0, exp(max(t110 - top116, -200.0f)), t110 >= -3.0e38f);
    let share128 = select(0.0, exp(max(t111 - top116, -200.0f)), t111 >= -3.0e38f);
    let share129 = select(0.0, exp(max(t112 - top116, -200.0f)), t112 >= -3.0e38f);
    let share130 = select(0.0, exp(max(t113 - top116, -200.0f)), t113 >= -3.0e38f);
    let share131 = select(0.0, exp(max(t114 - top116, -200.0f)), t114 >= -3.0e38f);
    let share132 = select(0.0, exp(max(t115 - top116, -200.0f)), t115 >= -3.0e38f);
    let weight133 = share117 * totals[first] + share118 * totals[(first + 1u)] + share119 * totals[(first + 2u)] + share120 * totals[(first + 3u)] + share121 * totals[(first + 4u)] + share122 * totals[(first + 5u)] + share123 * totals[(first + 6u)] + share124 * totals[(first + 7u)] + share125 * totals[(first + 8u)] + share126 * totals[(first + 9u)] + share127 * totals[(first + 10u)] + share128 * totals[(first + 11u)] + share129 * totals[(first + 12u)] + share130 * totals[(first + 13u)] + share131 * totals[(first + 14u)] + share132 * totals[(first + 15u)];
    let value134 = share117 * sums[(first + 0u) * 16u + column / 4u][column % 4u] + share118 * sums[(first + 1u) * 16u + column / 4u][column % 4u] + share119 * sums[(first + 2u) * 16u + column / 4u][column % 4u] + share120 * sums[(first + 3u) * 16u + column / 4u][column % 4u] + share121 * sums[(first + 4u) * 16u + column / 4u][column % 4u] + share122 * sums[(first + 5u) * 16u + column / 4u][column % 4u] + share123 * sums[(first + 6u) * 16u + column / 4u][column % 4u] + share124 * sums[(first + 7u) * 16u + column / 4u][column % 4u] + share125 * sums[(first + 8u) * 16u + column / 4u][column % 4u] + share126 * sums[(first + 9u) * 16u + column / 4u][column % 4u] + share127 * sums[(first + 10u) * 16u + column / 4u][column % 4u] + share128 * sums[(first + 11u) * 16u + column / 4u][column % 4u] + share129 * sums[(first + 12u) * 16u + column / 4u][column % 4u] + share130 * sums[(first + 13u) * 16u + column / 4u][column % 4u] + share131 * sums[(first + 14u) * 16u + column / 4u][column % 4u] + share132 * sums[(first + 15u) * 16u + column / 4u][column % 4u];
    if (row < 2u) {
      let h135 = kv_head * 2u + row % 2u;
      let s136 = row / 2u;
      let result137 = value134 * select(0.0, 1.0 / weight133, weight133 > 0.0);
      b4[((((batch * 256u) + (h135 * 64u)) + (s136 * 64u)) + column)] = result137;
    }
  }
}

// reshape+rms_norm+transpose+matmul+slice+silu+mul [matvec groups 8x32 1 rows staged]: groups 512; read %1, read %7, read %0, write %15; sizes static
@group(0) @binding(0) var<storage, read> b0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<workgroup> shared_x: array<vec4<f32>, 64>;
var<workgroup> squares: array<f32, 8>;
fn pm_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn pm_exp(x: f32) -> f32 { return select(exp(x), x, pm_isnan(x)); }
fn pm_sigmoid(x: f32) -> f32 {
  let t = pm_exp(-abs(x));
  return select(1.0, t, x < 0.0) / (1.0 + t);
}
fn pm_silu(x: f32) -> f32 { return x * pm_sigmoid(x); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 512u) { return; }
  let lane = lid % 32u;
  let first = ((wg % 512u) * 8u + (lid / 32u) * 1u);
  let base2 = 0u;
  let r3 = min(first + 0u, 4095u);
  let r4 = r3 + 4096u;
  let row5 = (base2 + (r3 * 256u));
  let row6 = (base2 + (r4 * 256u));
  let row7 = row5 / 8u;
  let row8 = row6 / 8u;
  let i9 = lane;
  let w10 = b0[(row7 + i9)];
  let w11 = b0[(row8 + i9)];
  var squares0 = 0.0;
  let e12 = lid + 0u;
  let v15 = b1[e12];
  let v17 = b2[e12];
  let v18 = v15 * v17;
  let x19 = v18;
  squares0 += v15 * v15;
  shared_x[e12 / 8u + (e12 / 4u) % 2u * 32u][e12 % 4u] = x19;
  let t20 = subgroupAdd(squares0);
  if (lid % 32u == 0u) { squares[lid / 32u] = t20; }
  workgroupBarrier();
  var sum0_0 = vec4<f32>();
  var sum0_1 = vec4<f32>();
  let h22 = vec4<f32>(unpack2x16float(w10.x), unpack2x16float(w10.y));
  let h23 = vec4<f32>(unpack2x16float(w10.z), unpack2x16float(w10.w));
  let h24 = vec4<f32>(unpack2x16float(w11.x), unpack2x16float(w11.y));
  let h25 = vec4<f32>(unpack2x16float(w11.z), unpack2x16float(w11.w));
  let x26 = shared_x[i9];
  let x27 = shared_x[(i9 + 32u)];
  sum0_0 += x26 * h22;
  sum0_0 += x27 * h23;
  sum0_1 += x26 * h24;
  sum0_1 += x27 * h25;
  let sum28 = dot(sum0_0, vec4<f32>(1.0));
  let sum29 = dot(sum0_1, vec4<f32>(1.0));
  let t30 = subgroupAdd(sum28);
  let t31 = subgroupAdd(sum29);
  if (lane < 1u) {
    let v33 = lane / 1u;
    let n34 = first + lane % 1u;
    let square35 = squares[v33 * 8u + 0u] + squares[v33 * 8u + 1u] + squares[v33 * 8u + 2u] + squares[v33 * 8u + 3u] + squares[v33 * 8u + 4u] + squares[v33 * 8u + 5u] + squares[v33 * 8u + 6u] + squares[v33 * 8u + 7u];
    let scaled36 = t30 * inverseSqrt(square35 / f32(256u) + 9.99999997e-07f);
    let scaled37 = t31 * inverseSqrt(square35 / f32(256u) + 9.99999997e-07f);
    if (n34 < 4096u) {
      let v38 = pm_silu(scaled36);
      let v39 = (v38 * scaled37);
      b3[n34] = v39;
    }
  }
}

// transpose+matmul [matvec along 128x1 subgroups]: groups 256; read %2, read %15, write %17; sizes static
@group(0) @binding(0) var<storage, read> b0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
var<workgroup> partial: array<f32, 32>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 256u) { return; }
  let first = (wg % 256u) * 1u;
  let base2 = 0u;
  let r3 = min(first + 0u, 255u);
  let row4 = (base2 + (r3 * 4096u));
  let row5 = row4 / 8u;
  let base6 = 0u;
  let row7 = base6;
  var sum0_0 = vec4<f32>();
  let i8 = lid;
  let i9 = (lid + 128u);
  let i10 = (lid + 256u);
  let i11 = (lid + 384u);
  let w12 = b0[(row5 + i8)];
  let w13 = b0[(row5 + i9)];
  let w14 = b0[(row5 + i10)];
  let w15 = b0[(row5 + i11)];
  let k17 = i8 * 8u;
  let h18 = vec4<f32>(unpack2x16float(w12.x), unpack2x16float(w12.y));
  let h19 = vec4<f32>(unpack2x16float(w12.z), unpack2x16float(w12.w));
  let x20 = b1[(row7 + k17) / 4u];
  let x21 = b1[(row7 + (k17 + 4u)) / 4u];
  sum0_0 += x20 * h18;
  sum0_0 += x21 * h19;
  let k22 = i9 * 8u;
  let h23 = vec4<f32>(unpack2x16float(w13.x), unpack2x16float(w13.y));
  let h24 = vec4<f32>(unpack2x16float(w13.z), unpack2x16float(w13.w));
  let x25 = b1[(row7 + k22) / 4u];
  let x26 = b1[(row7 + (k22 + 4u)) / 4u];
  sum0_0 += x25 * h23;
  sum0_0 += x26 * h24;
  let k27 = i10 * 8u;
  let h28 = vec4<f32>(unpack2x16float(w14.x), unpack2x16float(w14.y));
  let h29 = vec4<f32>(unpack2x16float(w14.z), unpack2x16float(w14.w));
  let x30 = b1[(row7 + k27) / 4u];
  let x31 = b1[(row7 + (k27 + 4u)) / 4u];
  sum0_0 += x30 * h28;
  sum0_0 += x31 * h29;
  let k33 = i11 * 8u;
  let h34 = vec4<f32>(unpack2x16float(w15.x), unpack2x16float(w15.y));
  let h35 = vec4<f32>(unpack2x16float(w15.z), unpack2x16float(w15.w));
  let x36 = b1[(row7 + k33) / 4u];
  let x37 = b1[(row7 + (k33 + 4u)) / 4u];
  sum0_0 += x36 * h34;
  sum0_0 += x37 * h35;
  let sum38 = dot(sum0_0, vec4<f32>(1.0));
  let s39 = subgroupAdd(sum38);
  let groups_inside = (128u + sg_size - 1u) / sg_size;
  if (sg_lane == 0u) {
    partial[0u * groups_inside + lid / sg_size] = s39;
  }
  workgroupBarrier();
  if (lid < 1u) {
    var total40 = 0.0;
    for (var i = 0u; i < groups_inside; i++) { total40 += partial[lid * groups_inside + i]; }
    let v41 = lid / 1u;
    let n42 = first + lid % 1u;
    if (n42 < 256u) {
      b2[((v41 * 256u) + n42)] = total40;
    }
  }
}
