// transpose+matmul+add+silu [tiled 64x64x16 8x8]: groups 2*floordiv(T+63,64); read %2, read %0, read %1, write %6; sizes floordiv(T+63,64), 2*floordiv(T+63,64), T-1, T
@group(0) @binding(0) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> tile_a: array<vec4<f32>, 272>;
var<workgroup> tile_b: array<vec4<f32>, 272>;
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
  if (wg >= u.d1) { return; }
  let m0 = (wg % u.d0) * 64u;
  let n0 = ((wg / u.d0) % 2u) * 64u;
  let entry1 = wg / u.d1;
  let base2 = 0u;
  let slot3 = lid + 0u;
  let e4 = (slot3 % 4u) * 4u;
  let o5 = slot3 / 4u;
  let r6 = min(m0 + o5, u.d2);
  let row7 = (base2 + (r6 * 64u));
  var fetched8: vec4<f32>;
  let at9 = ((row7 + e4)) / 4u;
  let slot10 = lid + 64u;
  let e11 = (slot10 % 4u) * 4u;
  let o12 = slot10 / 4u;
  let r13 = min(m0 + o12, u.d2);
  let row14 = (base2 + (r13 * 64u));
  var fetched15: vec4<f32>;
  let at17 = ((row14 + e11)) / 4u;
  let slot18 = lid + 128u;
  let e19 = (slot18 % 4u) * 4u;
  let o20 = slot18 / 4u;
  let r21 = min(m0 + o20, u.d2);
  let row22 = (base2 + (r21 * 64u));
  var fetched23: vec4<f32>;
  let at24 = ((row22 + e19)) / 4u;
  let slot25 = lid + 192u;
  let e26 = (slot25 % 4u) * 4u;
  let o27 = slot25 / 4u;
  let r28 = min(m0 + o27, u.d2);
  let row29 = (base2 + (r28 * 64u));
  var fetched30: vec4<f32>;
  let at31 = ((row29 + e26)) / 4u;
  let base33 = 0u;
  let slot34 = lid + 0u;
  let e35 = (slot34 % 4u) * 4u;
  let o36 = slot34 / 4u;
  let r37 = min(n0 + o36, 95u);
  let row38 = (base33 + (r37 * 64u));
  var fetched39: vec4<f32>;
  let at40 = ((row38 + e35)) / 4u;
  let slot41 = lid + 64u;
  let e42 = (slot41 % 4u) * 4u;
  let o43 = slot41 / 4u;
  let r44 = min(n0 + o43, 95u);
  let row45 = (base33 + (r44 * 64u));
  var fetched46: vec4<f32>;
  let at47 = ((row45 + e42)) / 4u;
  let slot48 = lid + 128u;
  let e49 = (slot48 % 4u) * 4u;
  let o50 = slot48 / 4u;
  let r51 = min(n0 + o50, 95u);
  let row52 = (base33 + (r51 * 64u));
  var fetched53: vec4<f32>;
  let at54 = ((row52 + e49)) / 4u;
  let slot55 = lid + 192u;
  let e56 = (slot55 % 4u) * 4u;
  let o57 = slot55 / 4u;
  let r58 = min(n0 + o57, 95u);
  let row59 = (base33 + (r58 * 64u));
  var fetched60: vec4<f32>;
  let at61 = ((row59 + e56)) / 4u;
  let tx = ((lid / 32u) % 1u) * 8u + ((lid >> 1u) & 7u);
  let ty = (lid / 32u) * 4u + (lid & 1u) + (((lid >> 4u) & 1u) << 1u);
  let left_at = ty;
  let right_at = tx;
  var acc0_0 = vec4<f32>();
  var acc0_1 = vec4<f32>();
  var acc1_0 = vec4<f32>();
  var acc1_1 = vec4<f32>();
  var acc2_0 = vec4<f32>();
  var acc2_1 = vec4<f32>();
  var acc3_0 = vec4<f32>();
  var acc3_1 = vec4<f32>();
  var acc4_0 = vec4<f32>();
  var acc4_1 = vec4<f32>();
  var acc5_0 = vec4<f32>();
  var acc5_1 = vec4<f32>();
  var acc6_0 = vec4<f32>();
  var acc6_1 = vec4<f32>();
  var acc7_0 = vec4<f32>();
  var acc7_1 = vec4<f32>();
  if (64u > 0u) {
    let step62 = (0u) / 4u;
    fetched8 = b0[(at9 + step62)];
    fetched15 = b0[(at17 + step62)];
    fetched23 = b0[(at24 + step62)];
    fetched30 = b0[(at31 + step62)];
    let step63 = (0u) / 4u;
    fetched39 = b1[(at40 + step63)];
    fetched46 = b1[(at47 + step63)];
    fetched53 = b1[(at54 + step63)];
    fetched60 = b1[(at61 + step63)];
  }
  for (var k0 = 0u; k0 < 64u; k0 += 16u) {
    let g65 = o5 / 4u;
    let c66 = o5 % 4u;
    tile_a[e4 * 17u + g65][c66] = fetched8.x;
    tile_a[(e4 + 1u) * 17u + g65][c66] = fetched8.y;
    tile_a[(e4 + 2u) * 17u + g65][c66] = fetched8.z;
    tile_a[(e4 + 3u) * 17u + g65][c66] = fetched8.w;
    let g67 = o12 / 4u;
    let c68 = o12 % 4u;
    tile_a[e11 * 17u + g67][c68] = fetched15.x;
    tile_a[(e11 + 1u) * 17u + g67][c68] = fetched15.y;
    tile_a[(e11 + 2u) * 17u + g67][c68] = fetched15.z;
    tile_a[(e11 + 3u) * 17u + g67][c68] = fetched15.w;
    let g69 = o20 / 4u;
    let c70 = o20 % 4u;
    tile_a[e19 * 17u + g69][c70] = fetched23.x;
    tile_a[(e19 + 1u) * 17u + g69][c70] = fetched23.y;
    tile_a[(e19 + 2u) * 17u + g69][c70] = fetched23.z;
    tile_a[(e19 + 3u) * 17u + g69][c70] = fetched23.w;
    let g71 = o27 / 4u;
    let c72 = o27 % 4u;
    tile_a[e26 * 17u + g71][c72] = fetched30.x;
    tile_a[(e26 + 1u) * 17u + g71][c72] = fetched30.y;
    tile_a[(e26 + 2u) * 17u + g71][c72] = fetched30.z;
    tile_a[(e26 + 3u) * 17u + g71][c72] = fetched30.w;
    let g73 = o36 / 4u;
    let c74 = o36 % 4u;
    tile_b[e35 * 17u + g73][c74] = fetched39.x;
    tile_b[(e35 + 1u) * 17u + g73][c74] = fetched39.y;
    tile_b[(e35 + 2u) * 17u + g73][c74] = fetched39.z;
    tile_b[(e35 + 3u) * 17u + g73][c74] = fetched39.w;
    let g75 = o43 / 4u;
    let c76 = o43 % 4u;
    tile_b[e42 * 17u + g75][c76] = fetched46.x;
    tile_b[(e42 + 1u) * 17u + g75][c76] = fetched46.y;
    tile_b[(e42 + 2u) * 17u + g75][c76] = fetched46.z;
    tile_b[(e42 + 3u) * 17u + g75][c76] = fetched46.w;
    let g77 = o50 / 4u;
    let c78 = o50 % 4u;
    tile_b[e49 * 17u + g77][c78] = fetched53.x;
    tile_b[(e49 + 1u) * 17u + g77][c78] = fetched53.y;
    tile_b[(e49 + 2u) * 17u + g77][c78] = fetched53.z;
    tile_b[(e49 + 3u) * 17u + g77][c78] = fetched53.w;
    let g79 = o57 / 4u;
    let c80 = o57 % 4u;
    tile_b[e56 * 17u + g79][c80] = fetched60.x;
    tile_b[(e56 + 1u) * 17u + g79][c80] = fetched60.y;
    tile_b[(e56 + 2u) * 17u + g79][c80] = fetched60.z;
    tile_b[(e56 + 3u) * 17u + g79][c80] = fetched60.w;
    workgroupBarrier();
    let k_next = k0 + 16u;
    if (k_next < 64u) {
      let step81 = (k_next) / 4u;
      fetched8 = b0[(at9 + step81)];
      fetched15 = b0[(at17 + step81)];
      fetched23 = b0[(at24 + step81)];
      fetched30 = b0[(at31 + step81)];
      let step82 = (k_next) / 4u;
      fetched39 = b1[(at40 + step82)];
      fetched46 = b1[(at47 + step82)];
      fetched53 = b1[(at54 + step82)];
      fetched60 = b1[(at61 + step82)];
    }
    for (var kk = 0u; kk < 16u; kk += 2u) {
       {
        let left0 = tile_a[kk * 17u + 0u + left_at];
        let left1 = tile_a[kk * 17u + 8u + left_at];
        let right0 = tile_b[kk * 17u + 0u + right_at];
        let right1 = tile_b[kk * 17u + 8u + right_at];
        acc0_0 += left0.x * right0;
        acc0_1 += left0.x * right1;
        acc1_0 += left0.y * right0;
        acc1_1 += left0.y * right1;
        acc2_0 += left0.z * right0;
        acc2_1 += left0.z * right1;
        acc3_0 += left0.w * right0;
        acc3_1 += left0.w * right1;
        acc4_0 += left1.x * right0;
        acc4_1 += left1.x * right1;
        acc5_0 += left1.y * right0;
        acc5_1 += left1.y * right1;
        acc6_0 += left1.z * right0;
        acc6_1 += left1.z * right1;
        acc7_0 += left1.w * right0;
        acc7_1 += left1.w * right1;
      }
       {
        let left0 = tile_a[(kk + 1u) * 17u + 0u + left_at];
        let left1 = tile_a[(kk + 1u) * 17u + 8u + left_at];
        let right0 = tile_b[(kk + 1u) * 17u + 0u + right_at];
        let right1 = tile_b[(kk + 1u) * 17u + 8u + right_at];
        acc0_0 += left0.x * right0;
        acc0_1 += left0.x * right1;
        acc1_0 += left0.y * right0;
        acc1_1 += left0.y * right1;
        acc2_0 += left0.z * right0;
        acc2_1 += left0.z * right1;
        acc3_0 += left0.w * right0;
        acc3_1 += left0.w * right1;
        acc4_0 += left1.x * right0;
        acc4_1 += left1.x * right1;
        acc5_0 += left1.y * right0;
        acc5_1 += left1.y * right1;
        acc6_0 += left1.z * right0;
        acc6_1 += left1.z * right1;
        acc7_0 += left1.w * right0;
        acc7_1 += left1.w * right1;
      }
    }
    workgroupBarrier();
  }
  var results = array<vec4<f32>, 16>(acc0_0, acc0_1, acc1_0, acc1_1, acc2_0, acc2_1, acc3_0, acc3_1, acc4_0, acc4_1, acc5_0, acc5_1, acc6_0, acc6_1, acc7_0, acc7_1);
  for (var i = 0u; i < 8u; i++) {
    let row = i;
    let m = m0 + (row / 4u) * 32u + ty * 4u + row % 4u;
    if (m < u.d3) {
      for (var j = 0u; j < 8u; j++) {
        let n = n0 + (j / 4u) * 32u + tx * 4u + j % 4u;
        if (n < 96u) {
          let result = results[i * 2u + j / 4u][j % 4u];
          let v83 = b2[n];
          let v84 = (result + v83);
          let v85 = pm_silu(v84);
          b3[((m * 96u) + n)] = v85;
        }
      }
    }
  }
}
