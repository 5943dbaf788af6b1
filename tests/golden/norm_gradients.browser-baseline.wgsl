// layer_norm+expand+mul [row/32/once]: groups T; read %0, read %1, read %2, write %8; sizes T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> scratch_f32: array<f32, 32>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d0) { return; }
  let row = wg;
  let end1 = 96u;
  var kept: array<f32, 3>;
  var total = 0.0;
  for (var k = 0u; k < 3u; k++) {
    let j2 = (k * 32u + lid);
    if (j2 < end1) {
      let v3 = b0[((row * 96u) + j2)];
      kept[k] = v3;
      total += v3;
    }
  }
  scratch_f32[lid] = total;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all4 = scratch_f32[0];
  workgroupBarrier();
  let mean5 = all4 / f32(96u);
  var squares = 0.0;
  for (var k = 0u; k < 3u; k++) {
    let j6 = (k * 32u + lid);
    if (j6 < end1) {
      let v7 = kept[k];
      let d8 = v7 - mean5;
      squares += d8 * d8;
    }
  }
  scratch_f32[lid] = squares;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all9 = scratch_f32[0];
  workgroupBarrier();
  let scale10 = inverseSqrt(all9 / f32(96u) + 9.99999975e-06f);
  for (var k = 0u; k < 3u; k++) {
    let j11 = (k * 32u + lid);
    if (j11 < end1) {
      let v12 = kept[k];
      let v13 = b1[j11];
      let v14 = b2[j11];
      let y15 = (v12 - mean5) * scale10 * v13 + v14;
      let v17 = 1.0f;
      let v18 = (v17 * y15);
      let v19 = (v18 * 2.0f);
      b3[((row * 96u) + j11)] = v19;
    }
  }
}

// norm_parameter_gradient partial [slices of 8 rows 256]: groups floordiv(T+7,8); write %12, read %0, read %8; sizes T, floordiv(T+7,8)
@group(0) @binding(0) var<storage, read_write> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
struct Sizes { d0: u32, d1: u32 }
@group(0) @binding(3) var<uniform> u: Sizes;
var<workgroup> means: array<f32, 8>;
var<workgroup> scales: array<f32, 8>;
var<workgroup> scratch: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let row0 = wg * 8u;
  let count = min(8u, u.d0 - row0);
  let lane = lid % 32u;
  for (var first = 0u; first < 8u; first += 8u) {
    let r = first + lid / 32u;
    let row = row0 + min(r, count - 1u);
    var total = 0.0;
    for (var j = lane; j < 96u; j += 32u) {
      total += b1[((row * 96u) + j)];
    }
    scratch[lid] = total;
    for (var k = 16u; k > 0u; k >>= 1u) {
      workgroupBarrier();
      if (lane < k) { scratch[lid] += scratch[lid + k]; }
    }
    if (lane == 0u && r < 8u) { means[r] = scratch[lid] / f32(96u); }
    workgroupBarrier();
    let mean = means[min(r, 7u)];
    var squares = 0.0;
    for (var j = lane; j < 96u; j += 32u) {
      let d = b1[((row * 96u) + j)] - mean;
      squares += d * d;
    }
    scratch[lid] = squares;
    for (var k = 16u; k > 0u; k >>= 1u) {
      workgroupBarrier();
      if (lane < k) { scratch[lid] += scratch[lid + k]; }
    }
    if (lane == 0u && r < 8u) { scales[r] = inverseSqrt(scratch[lid] / f32(96u) + 9.99999975e-06f); }
    workgroupBarrier();
  }
  for (var j = lid; j < 96u; j += 256u) {
    var of_weight = 0.0;
    var of_bias = 0.0;
    for (var r = 0u; r < count; r++) {
      let row = row0 + r;
      let g = b2[((row * 96u) + j)];
      of_weight += g * ((b1[((row * 96u) + j)] - means[r]) * scales[r]);
      of_bias += g;
    }
    b0[(wg * 2u + 0u) * 96u + j] = of_weight;
    b0[(wg * 2u + 1u) * 96u + j] = of_bias;
  }
}

// norm_parameter_gradient [combine/tile/32x8]: groups 6; read %12, write %9, write %10; sizes floordiv(T+7,8)
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
struct Sizes { d0: u32 }
@group(0) @binding(3) var<uniform> u: Sizes;
var<workgroup> scratch_f32: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 6u) { return; }
  let row = wg * 32u + lid % 32u;
  let lane1 = lid / 32u;
  let end2 = select(0u, u.d0, row < 192u);
  var total = 0.0;
  for (var j3 = lane1; j3 < end2; j3 += 8u) {
    total += b0[j3 * 192u + row];
  }
  scratch_f32[lid] = total;
  for (var k = 4u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lane1 < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k * 32u]); }
  }
  workgroupBarrier();
  let all4 = scratch_f32[lid % 32u];
  workgroupBarrier();
  if (row < 192u && lane1 == 0u && row < 96u) {
    b1[row] = all4;
  }
  if (row < 192u && lane1 == 0u && row >= 96u) {
    let i5 = row - 96u;
    b2[i5] = all4;
  }
}

// norm_gradient [row/32/once]: groups T; read %8, read %1, read %0, write %11; sizes T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> scratch_f32: array<f32, 32>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d0) { return; }
  let row = wg;
  let end1 = 96u;
  var kept: array<vec2<f32>, 3>;
  var total = 0.0;
  for (var k = 0u; k < 3u; k++) {
    let j2 = (k * 32u + lid);
    if (j2 < end1) {
      let v3 = b0[((row * 96u) + j2)];
      let v4 = b1[j2];
      let v5 = b2[((row * 96u) + j2)];
      let pair6 = vec2<f32>(v5, v3 * v4);
      kept[k] = pair6;
      total += pair6.x;
    }
  }
  scratch_f32[lid] = total;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all7 = scratch_f32[0];
  workgroupBarrier();
  let mean8 = all7 / f32(96u);
  var squares = 0.0;
  var straight = 0.0;
  var along = 0.0;
  for (var k = 0u; k < 3u; k++) {
    let j9 = (k * 32u + lid);
    if (j9 < end1) {
      let v10 = kept[k];
      let d11 = v10.x - mean8;
      squares += d11 * d11;
      straight += v10.y;
      along += v10.y * d11;
    }
  }
  scratch_f32[lid] = squares;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all12 = scratch_f32[0];
  workgroupBarrier();
  let scale13 = inverseSqrt(all12 / f32(96u) + 9.99999975e-06f);
  scratch_f32[lid] = straight;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all14 = scratch_f32[0];
  workgroupBarrier();
  let shift15 = all14 / f32(96u);
  scratch_f32[lid] = along;
  for (var k = 16u; k > 0u; k >>= 1u) {
    workgroupBarrier();
    if (lid < k) { scratch_f32[lid] = (scratch_f32[lid] + scratch_f32[lid + k]); }
  }
  workgroupBarrier();
  let all17 = scratch_f32[0];
  workgroupBarrier();
  let factor18 = scale13 * scale13 * all17 / f32(96u);
  for (var k = 0u; k < 3u; k++) {
    let j19 = (k * 32u + lid);
    if (j19 < end1) {
      let v20 = kept[k];
      let dx21 = scale13 * (v20.y - shift15 - (v20.x - mean8) * factor18);
      b3[((row * 96u) + j19)] = dx21;
    }
  }
}
