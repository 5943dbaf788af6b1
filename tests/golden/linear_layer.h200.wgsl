// transpose+matmul+add+silu [tiled 32x16x32 4x4 by 4]: groups 6*floordiv(T+31,32); read %2, read %0, read %1, write %6; sizes floordiv(T+31,32), 6*floordiv(T+31,32), T-1, T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<vec4<f32>>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> tile_a: array<vec4<f32>, 288>;
var<workgroup> tile_b: array<vec4<f32>, 160>;
var<workgroup> found: array<vec4<f32>, 384>;
fn pm_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn pm_exp(x: f32) -> f32 { return select(exp(x), x, pm_isnan(x)); }
fn pm_sigmoid(x: f32) -> f32 {
  let t = pm_exp(-abs(x));
  return select(1.0, t, x < 0.0) / (1.0 + t);
}
fn pm_silu(x: f32) -> f32 { return x * pm_sigmoid(x); }

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
  if (wg >= u.d1) { return; }
  let m0 = (wg % u.d0) * 32u;
  let n0 = ((wg / u.d0) % 6u) * 16u;
  let entry1 = wg / u.d1;
  let base2 = 0u;
  let slot3 = lid + 0u;
  let e4 = (slot3 % 8u) * 4u;
  let o5 = slot3 / 8u;
  let r6 = min(m0 + o5, u.d2);
  let row7 = (base2 + (r6 * 64u));
  var fetched8: vec4<f32>;
  let at9 = ((row7 + e4)) / 4u;
  let slot10 = lid + 128u;
  let e11 = (slot10 % 8u) * 4u;
  let o12 = slot10 / 8u;
  let r13 = min(m0 + o12, u.d2);
  let row14 = (base2 + (r13 * 64u));
  var fetched15: vec4<f32>;
  let at17 = ((row14 + e11)) / 4u;
  let base18 = 0u;
  let slot19 = lid + 0u;
  let e20 = (slot19 % 8u) * 4u;
  let o21 = slot19 / 8u;
  let r22 = n0 + o21;
  let row23 = (base18 + (r22 * 64u));
  var fetched24: vec4<f32>;
  let at25 = ((row23 + e20)) / 4u;
  let slice = lid / 32u;
  let lane26 = lid % 32u;
  let tx = ((lane26 / 32u) % 1u) * 4u + ((lane26 >> 1u) & 3u);
  let ty = (lane26 / 32u) * 8u + (lane26 & 1u) + (((lane26 >> 3u) & 3u) << 1u);
  let left_at = slice * 72u + ty;
  let right_at = slice * 40u + tx;
  var acc0_0 = vec4<f32>();
  var acc1_0 = vec4<f32>();
  var acc2_0 = vec4<f32>();
  var acc3_0 = vec4<f32>();
  if (64u > 0u) {
    let step27 = (0u) / 4u;
    fetched8 = b0[(at9 + step27)];
    fetched15 = b0[(at17 + step27)];
    let step28 = (0u) / 4u;
    fetched24 = b1[(at25 + step28)];
  }
  for (var k0 = 0u; k0 < 64u; k0 += 32u) {
    let g29 = o5 / 4u;
    let c30 = o5 % 4u;
    tile_a[e4 * 9u + g29][c30] = fetched8.x;
    tile_a[(e4 + 1u) * 9u + g29][c30] = fetched8.y;
    tile_a[(e4 + 2u) * 9u + g29][c30] = fetched8.z;
    tile_a[(e4 + 3u) * 9u + g29][c30] = fetched8.w;
    let g31 = o12 / 4u;
    let c33 = o12 % 4u;
    tile_a[e11 * 9u + g31][c33] = fetched15.x;
    tile_a[(e11 + 1u) * 9u + g31][c33] = fetched15.y;
    tile_a[(e11 + 2u) * 9u + g31][c33] = fetched15.z;
    tile_a[(e11 + 3u) * 9u + g31][c33] = fetched15.w;
    let g34 = o21 / 4u;
    let c35 = o21 % 4u;
    tile_b[e20 * 5u + g34][c35] = fetched24.x;
    tile_b[(e20 + 1u) * 5u + g34][c35] = fetched24.y;
    tile_b[(e20 + 2u) * 5u + g34][c35] = fetched24.z;
    tile_b[(e20 + 3u) * 5u + g34][c35] = fetched24.w;
    workgroupBarrier();
    let k_next = k0 + 32u;
    if (k_next < 64u) {
      let step36 = (k_next) / 4u;
      fetched8 = b0[(at9 + step36)];
      fetched15 = b0[(at17 + step36)];
      let step37 = (k_next) / 4u;
      fetched24 = b1[(at25 + step37)];
    }
     {
       {
        let left0 = tile_a[0u * 9u + 0u + left_at];
        let right0 = tile_b[0u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[1u * 9u + 0u + left_at];
        let right0 = tile_b[1u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[2u * 9u + 0u + left_at];
        let right0 = tile_b[2u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[3u * 9u + 0u + left_at];
        let right0 = tile_b[3u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[4u * 9u + 0u + left_at];
        let right0 = tile_b[4u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[5u * 9u + 0u + left_at];
        let right0 = tile_b[5u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[6u * 9u + 0u + left_at];
        let right0 = tile_b[6u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
       {
        let left0 = tile_a[7u * 9u + 0u + left_at];
        let right0 = tile_b[7u * 5u + 0u + right_at];
        acc0_0 += left0.x * right0;
        acc1_0 += left0.y * right0;
        acc2_0 += left0.z * right0;
        acc3_0 += left0.w * right0;
      }
    }
    workgroupBarrier();
  }
  if (slice == 0u) {
    found[96u + lid % 32u] = acc1_0;
    found[192u + lid % 32u] = acc2_0;
    found[288u + lid % 32u] = acc3_0;
  }
  if (slice == 1u) {
    found[0u + lid % 32u] = acc0_0;
    found[224u + lid % 32u] = acc2_0;
    found[320u + lid % 32u] = acc3_0;
  }
  if (slice == 2u) {
    found[32u + lid % 32u] = acc0_0;
    found[128u + lid % 32u] = acc1_0;
    found[352u + lid % 32u] = acc3_0;
  }
  if (slice == 3u) {
    found[64u + lid % 32u] = acc0_0;
    found[160u + lid % 32u] = acc1_0;
    found[256u + lid % 32u] = acc2_0;
  }
  workgroupBarrier();
  if (slice == 0u) {
    acc0_0 += found[0u + lid % 32u] + found[32u + lid % 32u] + found[64u + lid % 32u];
  }
  if (slice == 1u) {
    acc1_0 += found[96u + lid % 32u] + found[128u + lid % 32u] + found[160u + lid % 32u];
  }
  if (slice == 2u) {
    acc2_0 += found[192u + lid % 32u] + found[224u + lid % 32u] + found[256u + lid % 32u];
  }
  if (slice == 3u) {
    acc3_0 += found[288u + lid % 32u] + found[320u + lid % 32u] + found[352u + lid % 32u];
  }
  let m38 = m0 + 0u + ty * 4u;
  let m39 = m0 + 1u + ty * 4u;
  let m40 = m0 + 2u + ty * 4u;
  let m41 = m0 + 3u + ty * 4u;
  let n42 = n0 + 0u + tx * 4u;
   {
    let v43 = b2[n42];
    let v44 = b2[(n42 + 1u)];
    let v45 = b2[(n42 + 2u)];
    let v46 = b2[(n42 + 3u)];
    if (slice == 0u) {
      if (m38 < u.d3) {
        let v47 = acc0_0.x;
        let v48 = (v47 + v43);
        let v49 = pm_silu(v48);
        let v50 = acc0_0.y;
        let v51 = (v50 + v44);
        let v52 = pm_silu(v51);
        let v53 = acc0_0.z;
        let v54 = (v53 + v45);
        let v55 = pm_silu(v54);
        let v56 = acc0_0.w;
        let v57 = (v56 + v46);
        let v58 = pm_silu(v57);
        b3[(((m38 * 96u) + n42)) / 4u] = vec4<f32>(v49, v52, v55, v58);
      }
    }
    if (slice == 1u) {
      if (m39 < u.d3) {
        let v59 = acc1_0.x;
        let v60 = (v59 + v43);
        let v61 = pm_silu(v60);
        let v62 = acc1_0.y;
        let v63 = (v62 + v44);
        let v65 = pm_silu(v63);
        let v66 = acc1_0.z;
        let v67 = (v66 + v45);
        let v68 = pm_silu(v67);
        let v69 = acc1_0.w;
        let v70 = (v69 + v46);
        let v71 = pm_silu(v70);
        b3[(((m39 * 96u) + n42)) / 4u] = vec4<f32>(v61, v65, v68, v71);
      }
    }
    if (slice == 2u) {
      if (m40 < u.d3) {
        let v72 = acc2_0.x;
        let v73 = (v72 + v43);
        let v74 = pm_silu(v73);
        let v75 = acc2_0.y;
        let v76 = (v75 + v44);
        let v77 = pm_silu(v76);
        let v78 = acc2_0.z;
        let v79 = (v78 + v45);
        let v80 = pm_silu(v79);
        let v81 = acc2_0.w;
        let v82 = (v81 + v46);
        let v83 = pm_silu(v82);
        b3[(((m40 * 96u) + n42)) / 4u] = vec4<f32>(v74, v77, v80, v83);
      }
    }
    if (slice == 3u) {
      if (m41 < u.d3) {
        let v84 = acc3_0.x;
        let v85 = (v84 + v43);
        let v86 = pm_silu(v85);
        let v87 = acc3_0.y;
        let v88 = (v87 + v44);
        let v89 = pm_silu(v88);
        let v90 = acc3_0.z;
        let v91 = (v90 + v45);
        let v92 = pm_silu(v91);
        let v93 = acc3_0.w;
        let v94 = (v93 + v46);
        let v95 = pm_silu(v94);
        b3[(((m41 * 96u) + n42)) / 4u] = vec4<f32>(v86, v89, v92, v95);
      }
    }
  }
}
