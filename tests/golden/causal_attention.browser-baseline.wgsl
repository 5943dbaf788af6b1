// attention [blocks 32x32 128]: groups 2*floordiv(2*T+31,32); read %1, read %0, read %2, write %3; sizes floordiv(2*T+31,32), 2*floordiv(2*T+31,32), 2*T-1, T, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> b3: array<vec4<f32>>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> keys: array<vec4<f32>, 544>;
var<workgroup> found: array<vec4<f32>, 96>;
var<workgroup> keep: array<f32, 32>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let block_id = wg;
  let row0 = (block_id % u.d0) * 32u;
  let kv_head = (block_id / u.d0) % 2u;
  let batch = block_id / u.d1;
  let last_row = min(row0 + 31u, u.d2);
  let offset = 0i;
  let key_end = u32(max(min(i32(u.d3), offset + i32(last_row / 2u) + 1i), 0i));
  let key_begin = 0u;
  let tx = lid % 8u;
  let ty = lid / 8u;
  let row1 = min(row0 + ty + 0u, last_row);
  let h2 = kv_head * 2u + row1 % 2u;
  let s3 = row1 / 2u;
  let base4 = ((batch * u.d4) + (h2 * u.d5));
  let row5 = (base4 + (s3 * 64u));
  let row6 = min(row0 + ty + 16u, last_row);
  let h7 = kv_head * 2u + row6 % 2u;
  let s8 = row6 / 2u;
  let base9 = ((batch * u.d4) + (h7 * u.d5));
  let row10 = (base9 + (s8 * 64u));
  var top0 = -3.3e38f;
  var total0 = 0.0;
  var top1 = -3.3e38f;
  var total1 = 0.0;
  let lane = lid % 16u;
  let sum_row = lid / 16u;
  var sum0 = vec4<f32>();
  var sum1 = vec4<f32>();
  var sum2 = vec4<f32>();
  var sum3 = vec4<f32>();
  for (var c0 = key_begin; c0 < key_end; c0 += 32u) {
    let chunk = min(32u, key_end - c0);
    let base11 = ((batch * u.d6) + (kv_head * u.d5));
    let e12 = lid + 0u;
    let key13 = e12 / 16u;
    let part14 = e12 % 16u;
    let row15 = c0 + min(key13, chunk - 1u);
    let row17 = (base11 + (row15 * 64u));
    let d18 = part14 * 4u;
    let k19 = b0[(row17 + d18) / 4u];
    let place20 = key13 * 17u + part14;
    let e21 = lid + 128u;
    let key22 = e21 / 16u;
    let part23 = e21 % 16u;
    let row24 = c0 + min(key22, chunk - 1u);
    let row25 = (base11 + (row24 * 64u));
    let d26 = part23 * 4u;
    let k27 = b0[(row25 + d26) / 4u];
    let place28 = key22 * 17u + part23;
    let e29 = lid + 256u;
    let key30 = e29 / 16u;
    let part31 = e29 % 16u;
    let row33 = c0 + min(key30, chunk - 1u);
    let row34 = (base11 + (row33 * 64u));
    let d35 = part31 * 4u;
    let k36 = b0[(row34 + d35) / 4u];
    let place37 = key30 * 17u + part31;
    let e38 = lid + 384u;
    let key39 = e38 / 16u;
    let part40 = e38 % 16u;
    let row41 = c0 + min(key39, chunk - 1u);
    let row42 = (base11 + (row41 * 64u));
    let d43 = part40 * 4u;
    let k44 = b0[(row42 + d43) / 4u];
    let place45 = key39 * 17u + part40;
    { keys[place20] = k19; }
    { keys[place28] = k27; }
    { keys[place37] = k36; }
    { keys[place45] = k44; }
    workgroupBarrier();
    var score0 = vec4<f32>();
    var score1 = vec4<f32>();
    for (var d = 0u; d < 16u; d++) {
       {
        let kx = keys[(tx + 0u) * 17u + d];
        let ky = keys[(tx + 8u) * 17u + d];
        let kz = keys[(tx + 16u) * 17u + d];
        let kw = keys[(tx + 24u) * 17u + d];
        let q0 = b1[(row5 + d * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b1[(row10 + d * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
    }
    let key46 = tx + 0u;
    let position47 = c0 + min(key46, chunk - 1u);
    let shown48 = key46 < chunk;
    let key49 = tx + 8u;
    let position50 = c0 + min(key49, chunk - 1u);
    let shown51 = key49 < chunk;
    let key52 = tx + 16u;
    let position53 = c0 + min(key52, chunk - 1u);
    let shown54 = key52 < chunk;
    let key55 = tx + 24u;
    let position56 = c0 + min(key55, chunk - 1u);
    let shown57 = key55 < chunk;
    let row58 = min(row0 + ty + 0u, last_row);
    let h59 = kv_head * 2u + row58 % 2u;
    let s60 = row58 / 2u;
    let s61 = select(-3.3e38f, max((score0.x * 0.125f), -3.0e38f), shown48 && i32(position47) <= offset + i32(s60));
    let s62 = select(-3.3e38f, max((score0.y * 0.125f), -3.0e38f), shown51 && i32(position50) <= offset + i32(s60));
    let s63 = select(-3.3e38f, max((score0.z * 0.125f), -3.0e38f), shown54 && i32(position53) <= offset + i32(s60));
    let s65 = select(-3.3e38f, max((score0.w * 0.125f), -3.0e38f), shown57 && i32(position56) <= offset + i32(s60));
    score0 = vec4<f32>(s61, s62, s63, s65);
    let highest66 = max(max(s61, s62), max(s63, s65));
    found[(ty + 0u) * 3u + tx / 4u][tx % 4u] = highest66;
    let row67 = min(row0 + ty + 16u, last_row);
    let h68 = kv_head * 2u + row67 % 2u;
    let s69 = row67 / 2u;
    let s70 = select(-3.3e38f, max((score1.x * 0.125f), -3.0e38f), shown48 && i32(position47) <= offset + i32(s69));
    let s71 = select(-3.3e38f, max((score1.y * 0.125f), -3.0e38f), shown51 && i32(position50) <= offset + i32(s69));
    let s72 = select(-3.3e38f, max((score1.z * 0.125f), -3.0e38f), shown54 && i32(position53) <= offset + i32(s69));
    let s73 = select(-3.3e38f, max((score1.w * 0.125f), -3.0e38f), shown57 && i32(position56) <= offset + i32(s69));
    score1 = vec4<f32>(s70, s71, s72, s73);
    let highest74 = max(max(s70, s71), max(s72, s73));
    found[(ty + 16u) * 3u + tx / 4u][tx % 4u] = highest74;
    workgroupBarrier();
    let r75 = ty + 0u;
    let highest76 = max(found[r75 * 3u + 0u], found[r75 * 3u + 1u]);
    let next0 = max(top0, max(max(highest76.x, highest76.y), max(highest76.z, highest76.w)));
    let keep0 = select(0.0, exp(max(top0 - next0, -200.0f)), top0 >= -3.0e38f);
    let w0 = select(vec4<f32>(), exp(max(score0 - next0, vec4<f32>(-200.0f))), score0 >= vec4<f32>(-3.0e38f));
    total0 = total0 * keep0 + dot(w0, vec4<f32>(1.0));
    top0 = next0;
    keys[r75 * 9u + (tx + 0u) / 4u][(tx + 0u) % 4u] = w0.x;
    keys[r75 * 9u + (tx + 8u) / 4u][(tx + 8u) % 4u] = w0.y;
    keys[r75 * 9u + (tx + 16u) / 4u][(tx + 16u) % 4u] = w0.z;
    keys[r75 * 9u + (tx + 24u) / 4u][(tx + 24u) % 4u] = w0.w;
    if (tx == 0u) { keep[r75] = keep0; }
    let r77 = ty + 16u;
    let highest78 = max(found[r77 * 3u + 0u], found[r77 * 3u + 1u]);
    let next1 = max(top1, max(max(highest78.x, highest78.y), max(highest78.z, highest78.w)));
    let keep1 = select(0.0, exp(max(top1 - next1, -200.0f)), top1 >= -3.0e38f);
    let w1 = select(vec4<f32>(), exp(max(score1 - next1, vec4<f32>(-200.0f))), score1 >= vec4<f32>(-3.0e38f));
    total1 = total1 * keep1 + dot(w1, vec4<f32>(1.0));
    top1 = next1;
    keys[r77 * 9u + (tx + 0u) / 4u][(tx + 0u) % 4u] = w1.x;
    keys[r77 * 9u + (tx + 8u) / 4u][(tx + 8u) % 4u] = w1.y;
    keys[r77 * 9u + (tx + 16u) / 4u][(tx + 16u) % 4u] = w1.z;
    keys[r77 * 9u + (tx + 24u) / 4u][(tx + 24u) % 4u] = w1.w;
    if (tx == 0u) { keep[r77] = keep1; }
    workgroupBarrier();
    sum0 *= keep[sum_row + 0u];
    sum1 *= keep[sum_row + 8u];
    sum2 *= keep[sum_row + 16u];
    sum3 *= keep[sum_row + 24u];
    let base79 = ((batch * u.d6) + (kv_head * u.d5));
    for (var k = 0u; k < 8u; k++) {
       {
        let key80 = k * 4u + 0u;
        let row81 = c0 + min(key80, chunk - 1u);
        let row82 = (base79 + (row81 * 64u));
        let d83 = lane * 4u;
        let v84 = select(vec4<f32>(), b2[(row82 + d83) / 4u], key80 < chunk);
        let key85 = k * 4u + 1u;
        let row86 = c0 + min(key85, chunk - 1u);
        let row87 = (base79 + (row86 * 64u));
        let d88 = lane * 4u;
        let v89 = select(vec4<f32>(), b2[(row87 + d88) / 4u], key85 < chunk);
        let key90 = k * 4u + 2u;
        let row91 = c0 + min(key90, chunk - 1u);
        let row92 = (base79 + (row91 * 64u));
        let d93 = lane * 4u;
        let v94 = select(vec4<f32>(), b2[(row92 + d93) / 4u], key90 < chunk);
        let key95 = k * 4u + 3u;
        let row96 = c0 + min(key95, chunk - 1u);
        let row97 = (base79 + (row96 * 64u));
        let d98 = lane * 4u;
        let v99 = select(vec4<f32>(), b2[(row97 + d98) / 4u], key95 < chunk);
        let w0 = keys[(sum_row + 0u) * 9u + k];
        sum0 += w0.x * v84;
        sum0 += w0.y * v89;
        sum0 += w0.z * v94;
        sum0 += w0.w * v99;
        let w1 = keys[(sum_row + 8u) * 9u + k];
        sum1 += w1.x * v84;
        sum1 += w1.y * v89;
        sum1 += w1.z * v94;
        sum1 += w1.w * v99;
        let w2 = keys[(sum_row + 16u) * 9u + k];
        sum2 += w2.x * v84;
        sum2 += w2.y * v89;
        sum2 += w2.z * v94;
        sum2 += w2.w * v99;
        let w3 = keys[(sum_row + 24u) * 9u + k];
        sum3 += w3.x * v84;
        sum3 += w3.y * v89;
        sum3 += w3.z * v94;
        sum3 += w3.w * v99;
      }
    }
    workgroupBarrier();
  }
  found[(ty + 0u) * 3u + tx / 4u][tx % 4u] = total0;
  found[(ty + 16u) * 3u + tx / 4u][tx % 4u] = total1;
  workgroupBarrier();
   {
    let r = sum_row + 0u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum0 * select(0.0, 1.0 / total, total > 0.0);
      let h100 = kv_head * 2u + row % 2u;
      let s101 = row / 2u;
      let column102 = lane * 4u + 0u;
      let column103 = lane * 4u + 1u;
      let column104 = lane * 4u + 2u;
      let column105 = lane * 4u + 3u;
      let v106 = result.x;
      let v107 = result.y;
      let v108 = result.z;
      let v109 = result.w;
      b3[(((((batch * u.d4) + (h100 * u.d5)) + (s101 * 64u)) + column102)) / 4u] = vec4<f32>(v106, v107, v108, v109);
    }
  }
   {
    let r = sum_row + 8u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum1 * select(0.0, 1.0 / total, total > 0.0);
      let h110 = kv_head * 2u + row % 2u;
      let s111 = row / 2u;
      let column112 = lane * 4u + 0u;
      let column113 = lane * 4u + 1u;
      let column114 = lane * 4u + 2u;
      let column115 = lane * 4u + 3u;
      let v116 = result.x;
      let v117 = result.y;
      let v118 = result.z;
      let v119 = result.w;
      b3[(((((batch * u.d4) + (h110 * u.d5)) + (s111 * 64u)) + column112)) / 4u] = vec4<f32>(v116, v117, v118, v119);
    }
  }
   {
    let r = sum_row + 16u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum2 * select(0.0, 1.0 / total, total > 0.0);
      let h120 = kv_head * 2u + row % 2u;
      let s121 = row / 2u;
      let column122 = lane * 4u + 0u;
      let column123 = lane * 4u + 1u;
      let column124 = lane * 4u + 2u;
      let column125 = lane * 4u + 3u;
      let v126 = result.x;
      let v127 = result.y;
      let v128 = result.z;
      let v129 = result.w;
      b3[(((((batch * u.d4) + (h120 * u.d5)) + (s121 * 64u)) + column122)) / 4u] = vec4<f32>(v126, v127, v128, v129);
    }
  }
   {
    let r = sum_row + 24u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum3 * select(0.0, 1.0 / total, total > 0.0);
      let h130 = kv_head * 2u + row % 2u;
      let s131 = row / 2u;
      let column132 = lane * 4u + 0u;
      let column133 = lane * 4u + 1u;
      let column134 = lane * 4u + 2u;
      let column135 = lane * 4u + 3u;
      let v136 = result.x;
      let v137 = result.y;
      let v138 = result.z;
      let v139 = result.w;
      b3[(((((batch * u.d4) + (h130 * u.d5)) + (s131 * 64u)) + column132)) / 4u] = vec4<f32>(v136, v137, v138, v139);
    }
  }
}
