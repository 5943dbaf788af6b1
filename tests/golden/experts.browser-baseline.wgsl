// grouped_matmul+silu tiles [table/256]: groups 1; write %5, read %2; sizes T
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
@group(0) @binding(1) var<storage, read> b1: array<i32>;
struct Sizes { d0: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;
var<workgroup> tile_ends: array<u32, 256>;
var<workgroup> ends: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 1u) { return; }
  var tiles_before = 0u;
  var before = 0u;
  for (var g0 = 0u; g0 <= 4u; g0 += 256u) {
    let g = g0 + lid;
    var size = u.d0;
    if (g < 4u) {
      size = u32(clamp(b1[g], 0i, i32(u.d0)));
    }
    ends[lid] = select(size, min(size + before, u.d0), lid == 0u);
    workgroupBarrier();
    for (var d = 1u; d < 256u; d <<= 1u) {
      var total = ends[lid];
      if (lid >= d) { total = min(total + ends[lid - d], u.d0); }
      workgroupBarrier();
      ends[lid] = total;
      workgroupBarrier();
    }
    let start = select(before, ends[max(lid, 1u) - 1u], lid > 0u);
    let end = ends[lid];
    let tiles = (end - start + 31u) / 32u;
    tile_ends[lid] = select(tiles, tiles + tiles_before, lid == 0u);
    workgroupBarrier();
    for (var d = 1u; d < 256u; d <<= 1u) {
      var total = tile_ends[lid];
      if (lid >= d) { total = total + tile_ends[lid - d]; }
      workgroupBarrier();
      tile_ends[lid] = total;
      workgroupBarrier();
    }
    for (var t = tiles_before + lid; t < tile_ends[255u]; t += 256u) {
      var low = 0u;
      var high = 255u;
      while (low < high) {
        let middle = (low + high) / 2u;
        if (tile_ends[middle] > t) { high = middle; } else { low = middle + 1u; }
      }
      let first_tile = select(tiles_before, tile_ends[max(low, 1u) - 1u], low > 0u);
      let first_row = select(before, ends[max(low, 1u) - 1u], low > 0u);
      let at = 1u + t * 3u;
      b0[at] = g0 + low;
      b0[(at + 1u)] = first_row + (t - first_tile) * 32u;
      b0[(at + 2u)] = ends[low];
    }
    tiles_before = tile_ends[255u];
    before = ends[255u];
    workgroupBarrier();
  }
  if (lid == 0u) { b0[0u] = tiles_before * 2u; }
}

// grouped_matmul+silu [tiled 32x32x16 4x4]: groups %5[0] up to 2*min(T,floordiv(T+155,32)); read %5, read %1, read %0, write %4; sizes T, T-1, 2*min(T,floordiv(T+155,32))
@group(0) @binding(0) var<storage, read> b0: array<u32>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> tile_a: array<vec4<f32>, 144>;
var<workgroup> tile_b: array<vec4<f32>, 144>;
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
  if (wg >= min(b0[0u], u.d2)) { return; }
  let tiles = max(b0[0u] / 2u, 1u);
  let at = 1u + (wg % tiles) * 3u;
  let group = b0[at];
  let m0 = b0[at + 1u];
  let m_end = min(b0[at + 2u], u.d0);
  let n0 = (wg / tiles) * 32u;
  let depth = select(0u, 32u, group < 4u);
  let base1 = 0u;
  let slot2 = lid + 0u;
  let e3 = (slot2 % 4u) * 4u;
  let o4 = slot2 / 4u;
  let r5 = min(m0 + o4, u.d1);
  let row6 = (base1 + (r5 * 32u));
  var fetched7: vec4<f32>;
  let at8 = ((row6 + e3)) / 4u;
  let slot9 = lid + 64u;
  let e10 = (slot9 % 4u) * 4u;
  let o11 = slot9 / 4u;
  let r12 = min(m0 + o11, u.d1);
  let row13 = (base1 + (r12 * 32u));
  var fetched14: vec4<f32>;
  let at15 = ((row13 + e10)) / 4u;
  let base17 = (group * 2048u);
  let slot18 = lid + 0u;
  let e19 = (slot18 % 8u) * 4u;
  let o20 = slot18 / 8u;
  let r21 = n0 + e19;
  let row22 = (base17 + r21);
  var fetched23: vec4<f32>;
  let at24 = ((row22 + (o20 * 64u))) / 4u;
  let slot25 = lid + 64u;
  let e26 = (slot25 % 8u) * 4u;
  let o27 = slot25 / 8u;
  let r28 = n0 + e26;
  let row29 = (base17 + r28);
  var fetched30: vec4<f32>;
  let at31 = ((row29 + (o27 * 64u))) / 4u;
  let tx = ((lid / 32u) % 1u) * 8u + ((lid >> 1u) & 7u);
  let ty = (lid / 32u) * 4u + (lid & 1u) + (((lid >> 4u) & 1u) << 1u);
  let left_at = ty;
  let right_at = tx;
  var acc0_0 = vec4<f32>();
  var acc1_0 = vec4<f32>();
  var acc2_0 = vec4<f32>();
  var acc3_0 = vec4<f32>();
  if (depth > 0u) {
    let step33 = (0u) / 4u;
    fetched7 = b1[(at8 + step33)];
    fetched14 = b1[(at15 + step33)];
    let step34 = (0u) / 4u;
    fetched23 = b2[(at24 + step34)];
    fetched30 = b2[(at31 + step34)];
  }
  for (var k0 = 0u; k0 < depth; k0 += 16u) {
    let g35 = o4 / 4u;
    let c36 = o4 % 4u;
    tile_a[e3 * 9u + g35][c36] = fetched7.x;
    tile_a[(e3 + 1u) * 9u + g35][c36] = fetched7.y;
    tile_a[(e3 + 2u) * 9u + g35][c36] = fetched7.z;
    tile_a[(e3 + 3u) * 9u + g35][c36] = fetched7.w;
    let g37 = o11 / 4u;
    let c38 = o11 % 4u;
    tile_a[e10 * 9u + g37][c38] = fetched14.x;
    tile_a[(e10 + 1u) * 9u + g37][c38] = fetched14.y;
    tile_a[(e10 + 2u) * 9u + g37][c38] = fetched14.z;
    tile_a[(e10 + 3u) * 9u + g37][c38] = fetched14.w;
    tile_b[o20 * 9u + e19 / 4u] = vec4<f32>(fetched23.x, fetched23.y, fetched23.z, fetched23.w);
    tile_b[o27 * 9u + e26 / 4u] = vec4<f32>(fetched30.x, fetched30.y, fetched30.z, fetched30.w);
    workgroupBarrier();
    let k_next = k0 + 16u;
    if (k_next < depth) {
      let step39 = (k_next) / 4u;
      fetched7 = b1[(at8 + step39)];
      fetched14 = b1[(at15 + step39)];
      let step40 = ((k_next * 64u)) / 4u;
      fetched23 = b2[(at24 + step40)];
      fetched30 = b2[(at31 + step40)];
    }
    for (var kk = 0u; kk < 16u; kk += 2u) {
       {
        let left0 = tile_a[kk * 9u + 0u + left_at];
        let right0 = tile_b[kk * 9u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[(kk + 1u) * 9u + 0u + left_at];
        let right0 = tile_b[(kk + 1u) * 9u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
    }
    workgroupBarrier();
  }
  var results = array<vec4<f32>, 4>(acc0_0, acc1_0, acc2_0, acc3_0);
  for (var i = 0u; i < 4u; i++) {
    let row = i;
    let m = m0 + (row / 4u) * 32u + ty * 4u + row % 4u;
    if (m < m_end) {
      for (var j = 0u; j < 4u; j++) {
        let n = n0 + (j / 4u) * 32u + tx * 4u + j % 4u;
        if (n < 64u) {
          let result = results[i * 1u + j / 4u][j % 4u];
          let v41 = pm_silu(result);
          b3[((m * 64u) + n)] = v41;
        }
      }
    }
  }
}
