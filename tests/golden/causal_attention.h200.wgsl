// attention [blocks 32x32 128 v]: groups 2*floordiv(2*T+31,32); read %1, read %2, read %0, write %3; sizes floordiv(2*T+31,32), 2*floordiv(2*T+31,32), 2*T-1, T, 256*T, 64*T, 128*T, 2*T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> b3: array<vec4<f32>>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32, d6: u32, d7: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> keys: array<vec4<f32>, 544>;
var<workgroup> values: array<vec4<f32>, 512>;
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
    let base46 = ((batch * u.d6) + (kv_head * u.d5));
    let e47 = lid + 0u;
    let key48 = e47 / 16u;
    let row49 = c0 + min(key48, chunk - 1u);
    let row50 = (base46 + (row49 * 64u));
    let d51 = (e47 % 16u) * 4u;
    let v52 = select(vec4<f32>(), b1[(row50 + d51) / 4u], key48 < chunk);
    let e53 = lid + 128u;
    let key54 = e53 / 16u;
    let row55 = c0 + min(key54, chunk - 1u);
    let row56 = (base46 + (row55 * 64u));
    let d57 = (e53 % 16u) * 4u;
    let v58 = select(vec4<f32>(), b1[(row56 + d57) / 4u], key54 < chunk);
    let e59 = lid + 256u;
    let key60 = e59 / 16u;
    let row61 = c0 + min(key60, chunk - 1u);
    let row62 = (base46 + (row61 * 64u));
    let d63 = (e59 % 16u) * 4u;
    let v65 = select(vec4<f32>(), b1[(row62 + d63) / 4u], key60 < chunk);
    let e66 = lid + 384u;
    let key67 = e66 / 16u;
    let row68 = c0 + min(key67, chunk - 1u);
    let row69 = (base46 + (row68 * 64u));
    let d70 = (e66 % 16u) * 4u;
    let v71 = select(vec4<f32>(), b1[(row69 + d70) / 4u], key67 < chunk);
    { keys[place20] = k19; }
    { keys[place28] = k27; }
    { keys[place37] = k36; }
    { keys[place45] = k44; }
    { values[e47] = v52; }
    { values[e53] = v58; }
    { values[e59] = v65; }
    { values[e66] = v71; }
    workgroupBarrier();
    var score0 = vec4<f32>();
    var score1 = vec4<f32>();
     {
       {
        let kx = keys[(tx + 0u) * 17u + 0u];
        let ky = keys[(tx + 8u) * 17u + 0u];
        let kz = keys[(tx + 16u) * 17u + 0u];
        let kw = keys[(tx + 24u) * 17u + 0u];
        let q0 = b2[(row5 + 0u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 0u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 1u];
        let ky = keys[(tx + 8u) * 17u + 1u];
        let kz = keys[(tx + 16u) * 17u + 1u];
        let kw = keys[(tx + 24u) * 17u + 1u];
        let q0 = b2[(row5 + 1u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 1u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 2u];
        let ky = keys[(tx + 8u) * 17u + 2u];
        let kz = keys[(tx + 16u) * 17u + 2u];
        let kw = keys[(tx + 24u) * 17u + 2u];
        let q0 = b2[(row5 + 2u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 2u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 3u];
        let ky = keys[(tx + 8u) * 17u + 3u];
        let kz = keys[(tx + 16u) * 17u + 3u];
        let kw = keys[(tx + 24u) * 17u + 3u];
        let q0 = b2[(row5 + 3u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 3u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 4u];
        let ky = keys[(tx + 8u) * 17u + 4u];
        let kz = keys[(tx + 16u) * 17u + 4u];
        let kw = keys[(tx + 24u) * 17u + 4u];
        let q0 = b2[(row5 + 4u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 4u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 5u];
        let ky = keys[(tx + 8u) * 17u + 5u];
        let kz = keys[(tx + 16u) * 17u + 5u];
        let kw = keys[(tx + 24u) * 17u + 5u];
        let q0 = b2[(row5 + 5u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 5u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 6u];
        let ky = keys[(tx + 8u) * 17u + 6u];
        let kz = keys[(tx + 16u) * 17u + 6u];
        let kw = keys[(tx + 24u) * 17u + 6u];
        let q0 = b2[(row5 + 6u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 6u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 7u];
        let ky = keys[(tx + 8u) * 17u + 7u];
        let kz = keys[(tx + 16u) * 17u + 7u];
        let kw = keys[(tx + 24u) * 17u + 7u];
        let q0 = b2[(row5 + 7u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 7u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 8u];
        let ky = keys[(tx + 8u) * 17u + 8u];
        let kz = keys[(tx + 16u) * 17u + 8u];
        let kw = keys[(tx + 24u) * 17u + 8u];
        let q0 = b2[(row5 + 8u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 8u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 9u];
        let ky = keys[(tx + 8u) * 17u + 9u];
        let kz = keys[(tx + 16u) * 17u + 9u];
        let kw = keys[(tx + 24u) * 17u + 9u];
        let q0 = b2[(row5 + 9u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 9u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 10u];
        let ky = keys[(tx + 8u) * 17u + 10u];
        let kz = keys[(tx + 16u) * 17u + 10u];
        let kw = keys[(tx + 24u) * 17u + 10u];
        let q0 = b2[(row5 + 10u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 10u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 11u];
        let ky = keys[(tx + 8u) * 17u + 11u];
        let kz = keys[(tx + 16u) * 17u + 11u];
        let kw = keys[(tx + 24u) * 17u + 11u];
        let q0 = b2[(row5 + 11u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 11u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 12u];
        let ky = keys[(tx + 8u) * 17u + 12u];
        let kz = keys[(tx + 16u) * 17u + 12u];
        let kw = keys[(tx + 24u) * 17u + 12u];
        let q0 = b2[(row5 + 12u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 12u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 13u];
        let ky = keys[(tx + 8u) * 17u + 13u];
        let kz = keys[(tx + 16u) * 17u + 13u];
        let kw = keys[(tx + 24u) * 17u + 13u];
        let q0 = b2[(row5 + 13u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 13u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 14u];
        let ky = keys[(tx + 8u) * 17u + 14u];
        let kz = keys[(tx + 16u) * 17u + 14u];
        let kw = keys[(tx + 24u) * 17u + 14u];
        let q0 = b2[(row5 + 14u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 14u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
       {
        let kx = keys[(tx + 0u) * 17u + 15u];
        let ky = keys[(tx + 8u) * 17u + 15u];
        let kz = keys[(tx + 16u) * 17u + 15u];
        let kw = keys[(tx + 24u) * 17u + 15u];
        let q0 = b2[(row5 + 15u * 4u) / 4u];
        score0.x = fma(q0.w, kx.w, fma(q0.z, kx.z, fma(q0.y, kx.y, fma(q0.x, kx.x, score0.x))));
        score0.y = fma(q0.w, ky.w, fma(q0.z, ky.z, fma(q0.y, ky.y, fma(q0.x, ky.x, score0.y))));
        score0.z = fma(q0.w, kz.w, fma(q0.z, kz.z, fma(q0.y, kz.y, fma(q0.x, kz.x, score0.z))));
        score0.w = fma(q0.w, kw.w, fma(q0.z, kw.z, fma(q0.y, kw.y, fma(q0.x, kw.x, score0.w))));
        let q1 = b2[(row10 + 15u * 4u) / 4u];
        score1.x = fma(q1.w, kx.w, fma(q1.z, kx.z, fma(q1.y, kx.y, fma(q1.x, kx.x, score1.x))));
        score1.y = fma(q1.w, ky.w, fma(q1.z, ky.z, fma(q1.y, ky.y, fma(q1.x, ky.x, score1.y))));
        score1.z = fma(q1.w, kz.w, fma(q1.z, kz.z, fma(q1.y, kz.y, fma(q1.x, kz.x, score1.z))));
        score1.w = fma(q1.w, kw.w, fma(q1.z, kw.z, fma(q1.y, kw.y, fma(q1.x, kw.x, score1.w))));
      }
    }
    let key72 = tx + 0u;
    let position73 = c0 + min(key72, chunk - 1u);
    let shown74 = key72 < chunk;
    let key75 = tx + 8u;
    let position76 = c0 + min(key75, chunk - 1u);
    let shown77 = key75 < chunk;
    let key78 = tx + 16u;
    let position79 = c0 + min(key78, chunk - 1u);
    let shown80 = key78 < chunk;
    let key81 = tx + 24u;
    let position82 = c0 + min(key81, chunk - 1u);
    let shown83 = key81 < chunk;
    let row84 = min(row0 + ty + 0u, last_row);
    let h85 = kv_head * 2u + row84 % 2u;
    let s86 = row84 / 2u;
    let s87 = select(-3.3e38f, max((score0.x * 0.125f), -3.0e38f), shown74 && i32(position73) <= offset + i32(s86));
    let s88 = select(-3.3e38f, max((score0.y * 0.125f), -3.0e38f), shown77 && i32(position76) <= offset + i32(s86));
    let s89 = select(-3.3e38f, max((score0.z * 0.125f), -3.0e38f), shown80 && i32(position79) <= offset + i32(s86));
    let s90 = select(-3.3e38f, max((score0.w * 0.125f), -3.0e38f), shown83 && i32(position82) <= offset + i32(s86));
    score0 = vec4<f32>(s87, s88, s89, s90);
    let highest91 = max(max(s87, s88), max(s89, s90));
    found[(ty + 0u) * 3u + tx / 4u][tx % 4u] = highest91;
    let row92 = min(row0 + ty + 16u, last_row);
    let h93 = kv_head * 2u + row92 % 2u;
    let s94 = row92 / 2u;
    let s95 = select(-3.3e38f, max((score1.x * 0.125f), -3.0e38f), shown74 && i32(position73) <= offset + i32(s94));
    let s96 = select(-3.3e38f, max((score1.y * 0.125f), -3.0e38f), shown77 && i32(position76) <= offset + i32(s94));
    let s97 = select(-3.3e38f, max((score1.z * 0.125f), -3.0e38f), shown80 && i32(position79) <= offset + i32(s94));
    let s98 = select(-3.3e38f, max((score1.w * 0.125f), -3.0e38f), shown83 && i32(position82) <= offset + i32(s94));
    score1 = vec4<f32>(s95, s96, s97, s98);
    let highest99 = max(max(s95, s96), max(s97, s98));
    found[(ty + 16u) * 3u + tx / 4u][tx % 4u] = highest99;
    workgroupBarrier();
    let r100 = ty + 0u;
    let highest101 = max(found[r100 * 3u + 0u], found[r100 * 3u + 1u]);
    let next0 = max(top0, max(max(highest101.x, highest101.y), max(highest101.z, highest101.w)));
    let keep0 = select(0.0, exp(max(top0 - next0, -200.0f)), top0 >= -3.0e38f);
    let w0 = select(vec4<f32>(), exp(max(score0 - next0, vec4<f32>(-200.0f))), score0 >= vec4<f32>(-3.0e38f));
    total0 = total0 * keep0 + dot(w0, vec4<f32>(1.0));
    top0 = next0;
    keys[r100 * 9u + (tx + 0u) / 4u][(tx + 0u) % 4u] = w0.x;
    keys[r100 * 9u + (tx + 8u) / 4u][(tx + 8u) % 4u] = w0.y;
    keys[r100 * 9u + (tx + 16u) / 4u][(tx + 16u) % 4u] = w0.z;
    keys[r100 * 9u + (tx + 24u) / 4u][(tx + 24u) % 4u] = w0.w;
    if (tx == 0u) { keep[r100] = keep0; }
    let r102 = ty + 16u;
    let highest103 = max(found[r102 * 3u + 0u], found[r102 * 3u + 1u]);
    let next1 = max(top1, max(max(highest103.x, highest103.y), max(highest103.z, highest103.w)));
    let keep1 = select(0.0, exp(max(top1 - next1, -200.0f)), top1 >= -3.0e38f);
    let w1 = select(vec4<f32>(), exp(max(score1 - next1, vec4<f32>(-200.0f))), score1 >= vec4<f32>(-3.0e38f));
    total1 = total1 * keep1 + dot(w1, vec4<f32>(1.0));
    top1 = next1;
    keys[r102 * 9u + (tx + 0u) / 4u][(tx + 0u) % 4u] = w1.x;
    keys[r102 * 9u + (tx + 8u) / 4u][(tx + 8u) % 4u] = w1.y;
    keys[r102 * 9u + (tx + 16u) / 4u][(tx + 16u) % 4u] = w1.z;
    keys[r102 * 9u + (tx + 24u) / 4u][(tx + 24u) % 4u] = w1.w;
    if (tx == 0u) { keep[r102] = keep1; }
    workgroupBarrier();
    sum0 *= keep[sum_row + 0u];
    sum1 *= keep[sum_row + 8u];
    sum2 *= keep[sum_row + 16u];
    sum3 *= keep[sum_row + 24u];
     {
       {
        let v104 = values[(0u * 4u + 0u) * 16u + lane];
        let v105 = values[(0u * 4u + 1u) * 16u + lane];
        let v106 = values[(0u * 4u + 2u) * 16u + lane];
        let v107 = values[(0u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 0u];
        sum0 += w0.x * v104;
        sum0 += w0.y * v105;
        sum0 += w0.z * v106;
        sum0 += w0.w * v107;
        let w1 = keys[(sum_row + 8u) * 9u + 0u];
        sum1 += w1.x * v104;
        sum1 += w1.y * v105;
        sum1 += w1.z * v106;
        sum1 += w1.w * v107;
        let w2 = keys[(sum_row + 16u) * 9u + 0u];
        sum2 += w2.x * v104;
        sum2 += w2.y * v105;
        sum2 += w2.z * v106;
        sum2 += w2.w * v107;
        let w3 = keys[(sum_row + 24u) * 9u + 0u];
        sum3 += w3.x * v104;
        sum3 += w3.y * v105;
        sum3 += w3.z * v106;
        sum3 += w3.w * v107;
      }
       {
        let v108 = values[(1u * 4u + 0u) * 16u + lane];
        let v109 = values[(1u * 4u + 1u) * 16u + lane];
        let v110 = values[(1u * 4u + 2u) * 16u + lane];
        let v111 = values[(1u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 1u];
        sum0 += w0.x * v108;
        sum0 += w0.y * v109;
        sum0 += w0.z * v110;
        sum0 += w0.w * v111;
        let w1 = keys[(sum_row + 8u) * 9u + 1u];
        sum1 += w1.x * v108;
        sum1 += w1.y * v109;
        sum1 += w1.z * v110;
        sum1 += w1.w * v111;
        let w2 = keys[(sum_row + 16u) * 9u + 1u];
        sum2 += w2.x * v108;
        sum2 += w2.y * v109;
        sum2 += w2.z * v110;
        sum2 += w2.w * v111;
        let w3 = keys[(sum_row + 24u) * 9u + 1u];
        sum3 += w3.x * v108;
        sum3 += w3.y * v109;
        sum3 += w3.z * v110;
        sum3 += w3.w * v111;
      }
       {
        let v112 = values[(2u * 4u + 0u) * 16u + lane];
        let v113 = values[(2u * 4u + 1u) * 16u + lane];
        let v114 = values[(2u * 4u + 2u) * 16u + lane];
        let v115 = values[(2u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 2u];
        sum0 += w0.x * v112;
        sum0 += w0.y * v113;
        sum0 += w0.z * v114;
        sum0 += w0.w * v115;
        let w1 = keys[(sum_row + 8u) * 9u + 2u];
        sum1 += w1.x * v112;
        sum1 += w1.y * v113;
        sum1 += w1.z * v114;
        sum1 += w1.w * v115;
        let w2 = keys[(sum_row + 16u) * 9u + 2u];
        sum2 += w2.x * v112;
        sum2 += w2.y * v113;
        sum2 += w2.z * v114;
        sum2 += w2.w * v115;
        let w3 = keys[(sum_row + 24u) * 9u + 2u];
        sum3 += w3.x * v112;
        sum3 += w3.y * v113;
        sum3 += w3.z * v114;
        sum3 += w3.w * v115;
      }
       {
        let v116 = values[(3u * 4u + 0u) * 16u + lane];
        let v117 = values[(3u * 4u + 1u) * 16u + lane];
        let v118 = values[(3u * 4u + 2u) * 16u + lane];
        let v119 = values[(3u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 3u];
        sum0 += w0.x * v116;
        sum0 += w0.y * v117;
        sum0 += w0.z * v118;
        sum0 += w0.w * v119;
        let w1 = keys[(sum_row + 8u) * 9u + 3u];
        sum1 += w1.x * v116;
        sum1 += w1.y * v117;
        sum1 += w1.z * v118;
        sum1 += w1.w * v119;
        let w2 = keys[(sum_row + 16u) * 9u + 3u];
        sum2 += w2.x * v116;
        sum2 += w2.y * v117;
        sum2 += w2.z * v118;
        sum2 += w2.w * v119;
        let w3 = keys[(sum_row + 24u) * 9u + 3u];
        sum3 += w3.x * v116;
        sum3 += w3.y * v117;
        sum3 += w3.z * v118;
        sum3 += w3.w * v119;
      }
       {
        let v120 = values[(4u * 4u + 0u) * 16u + lane];
        let v121 = values[(4u * 4u + 1u) * 16u + lane];
        let v122 = values[(4u * 4u + 2u) * 16u + lane];
        let v123 = values[(4u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 4u];
        sum0 += w0.x * v120;
        sum0 += w0.y * v121;
        sum0 += w0.z * v122;
        sum0 += w0.w * v123;
        let w1 = keys[(sum_row + 8u) * 9u + 4u];
        sum1 += w1.x * v120;
        sum1 += w1.y * v121;
        sum1 += w1.z * v122;
        sum1 += w1.w * v123;
        let w2 = keys[(sum_row + 16u) * 9u + 4u];
        sum2 += w2.x * v120;
        sum2 += w2.y * v121;
        sum2 += w2.z * v122;
        sum2 += w2.w * v123;
        let w3 = keys[(sum_row + 24u) * 9u + 4u];
        sum3 += w3.x * v120;
        sum3 += w3.y * v121;
        sum3 += w3.z * v122;
        sum3 += w3.w * v123;
      }
       {
        let v124 = values[(5u * 4u + 0u) * 16u + lane];
        let v125 = values[(5u * 4u + 1u) * 16u + lane];
        let v126 = values[(5u * 4u + 2u) * 16u + lane];
        let v127 = values[(5u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 5u];
        sum0 += w0.x * v124;
        sum0 += w0.y * v125;
        sum0 += w0.z * v126;
        sum0 += w0.w * v127;
        let w1 = keys[(sum_row + 8u) * 9u + 5u];
        sum1 += w1.x * v124;
        sum1 += w1.y * v125;
        sum1 += w1.z * v126;
        sum1 += w1.w * v127;
        let w2 = keys[(sum_row + 16u) * 9u + 5u];
        sum2 += w2.x * v124;
        sum2 += w2.y * v125;
        sum2 += w2.z * v126;
        sum2 += w2.w * v127;
        let w3 = keys[(sum_row + 24u) * 9u + 5u];
        sum3 += w3.x * v124;
        sum3 += w3.y * v125;
        sum3 += w3.z * v126;
        sum3 += w3.w * v127;
      }
       {
        let v128 = values[(6u * 4u + 0u) * 16u + lane];
        let v129 = values[(6u * 4u + 1u) * 16u + lane];
        let v130 = values[(6u * 4u + 2u) * 16u + lane];
        let v131 = values[(6u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 6u];
        sum0 += w0.x * v128;
        sum0 += w0.y * v129;
        sum0 += w0.z * v130;
        sum0 += w0.w * v131;
        let w1 = keys[(sum_row + 8u) * 9u + 6u];
        sum1 += w1.x * v128;
        sum1 += w1.y * v129;
        sum1 += w1.z * v130;
        sum1 += w1.w * v131;
        let w2 = keys[(sum_row + 16u) * 9u + 6u];
        sum2 += w2.x * v128;
        sum2 += w2.y * v129;
        sum2 += w2.z * v130;
        sum2 += w2.w * v131;
        let w3 = keys[(sum_row + 24u) * 9u + 6u];
        sum3 += w3.x * v128;
        sum3 += w3.y * v129;
        sum3 += w3.z * v130;
        sum3 += w3.w * v131;
      }
       {
        let v132 = values[(7u * 4u + 0u) * 16u + lane];
        let v133 = values[(7u * 4u + 1u) * 16u + lane];
        let v134 = values[(7u * 4u + 2u) * 16u + lane];
        let v135 = values[(7u * 4u + 3u) * 16u + lane];
        let w0 = keys[(sum_row + 0u) * 9u + 7u];
        sum0 += w0.x * v132;
        sum0 += w0.y * v133;
        sum0 += w0.z * v134;
        sum0 += w0.w * v135;
        let w1 = keys[(sum_row + 8u) * 9u + 7u];
        sum1 += w1.x * v132;
        sum1 += w1.y * v133;
        sum1 += w1.z * v134;
        sum1 += w1.w * v135;
        let w2 = keys[(sum_row + 16u) * 9u + 7u];
        sum2 += w2.x * v132;
        sum2 += w2.y * v133;
        sum2 += w2.z * v134;
        sum2 += w2.w * v135;
        let w3 = keys[(sum_row + 24u) * 9u + 7u];
        sum3 += w3.x * v132;
        sum3 += w3.y * v133;
        sum3 += w3.z * v134;
        sum3 += w3.w * v135;
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
      let h136 = kv_head * 2u + row % 2u;
      let s137 = row / 2u;
      let column138 = lane * 4u + 0u;
      let column139 = lane * 4u + 1u;
      let column140 = lane * 4u + 2u;
      let column141 = lane * 4u + 3u;
      let v142 = result.x;
      let v143 = result.y;
      let v144 = result.z;
      let v145 = result.w;
      b3[(((((batch * u.d4) + (h136 * u.d5)) + (s137 * 64u)) + column138)) / 4u] = vec4<f32>(v142, v143, v144, v145);
    }
  }
   {
    let r = sum_row + 8u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum1 * select(0.0, 1.0 / total, total > 0.0);
      let h146 = kv_head * 2u + row % 2u;
      let s147 = row / 2u;
      let column148 = lane * 4u + 0u;
      let column149 = lane * 4u + 1u;
      let column150 = lane * 4u + 2u;
      let column151 = lane * 4u + 3u;
      let v152 = result.x;
      let v153 = result.y;
      let v154 = result.z;
      let v155 = result.w;
      b3[(((((batch * u.d4) + (h146 * u.d5)) + (s147 * 64u)) + column148)) / 4u] = vec4<f32>(v152, v153, v154, v155);
    }
  }
   {
    let r = sum_row + 16u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum2 * select(0.0, 1.0 / total, total > 0.0);
      let h156 = kv_head * 2u + row % 2u;
      let s157 = row / 2u;
      let column158 = lane * 4u + 0u;
      let column159 = lane * 4u + 1u;
      let column160 = lane * 4u + 2u;
      let column161 = lane * 4u + 3u;
      let v162 = result.x;
      let v163 = result.y;
      let v164 = result.z;
      let v165 = result.w;
      b3[(((((batch * u.d4) + (h156 * u.d5)) + (s157 * 64u)) + column158)) / 4u] = vec4<f32>(v162, v163, v164, v165);
    }
  }
   {
    let r = sum_row + 24u;
    let row = row0 + r;
    if (row < u.d7) {
      let total = dot(found[r * 3u + 0u] + found[r * 3u + 1u], vec4<f32>(1.0));
      let result = sum3 * select(0.0, 1.0 / total, total > 0.0);
      let h166 = kv_head * 2u + row % 2u;
      let s167 = row / 2u;
      let column168 = lane * 4u + 0u;
      let column169 = lane * 4u + 1u;
      let column170 = lane * 4u + 2u;
      let column171 = lane * 4u + 3u;
      let v172 = result.x;
      let v173 = result.y;
      let v174 = result.z;
      let v175 = result.w;
      b3[(((((batch * u.d4) + (h166 * u.d5)) + (s167 * 64u)) + column168)) / 4u] = vec4<f32>(v172, v173, v174, v175);
    }
  }
}
