// scatter_set [group/256]: groups T; read %1, read %0, update %2; sizes T
@group(0) @binding(0) var<storage, read> b0: array<i32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
struct Sizes { d0: u32 }
@group(0) @binding(3) var<uniform> u: Sizes;
var<workgroup> scratch_u32: array<u32, 256>;
fn named_row(i: i32, n: u32) -> u32 { return u32(select(i, i + i32(n), i < 0i)); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d0) { return; }
  let row = wg;
  let end1 = u.d0;
  let update = row / 1u;
  let chunk = row % 1u;
  let target_row = named_row(b0[update], 16u);
  var later = 0u;
  for (var j2 = lid; j2 < end1; j2 += 256u) {
    if (j2 > update && named_row(b0[j2], 16u) == target_row) { later = 1u; }
  }
  let s4 = subgroupOr(later);
  if (sg_lane == 0u) { scratch_u32[lid / sg_size] = s4; }
  workgroupBarrier();
  var all3 = scratch_u32[0];
  for (var k = 1u; k < (256u + sg_size - 1u) / sg_size; k++) {
    all3 = (all3 | scratch_u32[k]);
  }
  workgroupBarrier();
  if (all3 == 0u && target_row < 16u) {
    let e5 = chunk * 1024u + 0u + lid;
    let e6 = chunk * 1024u + 256u + lid;
    let e7 = chunk * 1024u + 512u + lid;
    let e8 = chunk * 1024u + 768u + lid;
    if (e5 < 8u) {
      b2[((target_row * 8u) + e5)] = b1[((update * 8u) + e5)];
    }
    if (e6 < 8u) {
      b2[((target_row * 8u) + e6)] = b1[((update * 8u) + e6)];
    }
    if (e7 < 8u) {
      b2[((target_row * 8u) + e7)] = b1[((update * 8u) + e7)];
    }
    if (e8 < 8u) {
      b2[((target_row * 8u) + e8)] = b1[((update * 8u) + e8)];
    }
  }
}

// reduce_sum [row/32]: groups 1; read %3, write %4; sizes static
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<workgroup> scratch_f32: array<f32, 32>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32, @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= 1u) { return; }
  let row = wg;
  let end1 = 128u;
  var acc: f32 = f32(0);
  for (var j2 = lid; j2 < end1; j2 += 32u) {
    let i3 = row * 128u + j2;
    let v6 = b0[i3];
    acc = (acc + v6);
  }
  let s8 = subgroupAdd(acc);
  if (sg_lane == 0u) { scratch_f32[lid / sg_size] = s8; }
  workgroupBarrier();
  var all7 = scratch_f32[0];
  for (var k = 1u; k < (32u + sg_size - 1u) / sg_size; k++) {
    all7 = (all7 + scratch_f32[k]);
  }
  workgroupBarrier();
  if (lid == 0u) {
    b1[row] = all7;
  }
}
