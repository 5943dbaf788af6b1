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
  let tx = lid % 8u;
  let ty = lid / 8u;
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
     {
       {
        let left0 = tile_a[0u * 17u + 0u + ty];
        let left1 = tile_a[0u * 17u + 8u + ty];
        let right0 = tile_b[0u * 17u + 0u + tx];
        let right1 = tile_b[0u * 17u + 8u + tx];
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
        let left0 = tile_a[1u * 17u + 0u + ty];
        let left1 = tile_a[1u * 17u + 8u + ty];
        let right0 = tile_b[1u * 17u + 0u + tx];
        let right1 = tile_b[1u * 17u + 8u + tx];
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
        let left0 = tile_a[2u * 17u + 0u + ty];
        let left1 = tile_a[2u * 17u + 8u + ty];
        let right0 = tile_b[2u * 17u + 0u + tx];
        let right1 = tile_b[2u * 17u + 8u + tx];
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
        let left0 = tile_a[3u * 17u + 0u + ty];
        let left1 = tile_a[3u * 17u + 8u + ty];
        let right0 = tile_b[3u * 17u + 0u + tx];
        let right1 = tile_b[3u * 17u + 8u + tx];
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
        let left0 = tile_a[4u * 17u + 0u + ty];
        let left1 = tile_a[4u * 17u + 8u + ty];
        let right0 = tile_b[4u * 17u + 0u + tx];
        let right1 = tile_b[4u * 17u + 8u + tx];
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
        let left0 = tile_a[5u * 17u + 0u + ty];
        let left1 = tile_a[5u * 17u + 8u + ty];
        let right0 = tile_b[5u * 17u + 0u + tx];
        let right1 = tile_b[5u * 17u + 8u + tx];
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
        let left0 = tile_a[6u * 17u + 0u + ty];
        let left1 = tile_a[6u * 17u + 8u + ty];
        let right0 = tile_b[6u * 17u + 0u + tx];
        let right1 = tile_b[6u * 17u + 8u + tx];
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
        let left0 = tile_a[7u * 17u + 0u + ty];
        let left1 = tile_a[7u * 17u + 8u + ty];
        let right0 = tile_b[7u * 17u + 0u + tx];
        let right1 = tile_b[7u * 17u + 8u + tx];
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
        let left0 = tile_a[8u * 17u + 0u + ty];
        let left1 = tile_a[8u * 17u + 8u + ty];
        let right0 = tile_b[8u * 17u + 0u + tx];
        let right1 = tile_b[8u * 17u + 8u + tx];
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
        let left0 = tile_a[9u * 17u + 0u + ty];
        let left1 = tile_a[9u * 17u + 8u + ty];
        let right0 = tile_b[9u * 17u + 0u + tx];
        let right1 = tile_b[9u * 17u + 8u + tx];
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
        let left0 = tile_a[10u * 17u + 0u + ty];
        let left1 = tile_a[10u * 17u + 8u + ty];
        let right0 = tile_b[10u * 17u + 0u + tx];
        let right1 = tile_b[10u * 17u + 8u + tx];
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
        let left0 = tile_a[11u * 17u + 0u + ty];
        let left1 = tile_a[11u * 17u + 8u + ty];
        let right0 = tile_b[11u * 17u + 0u + tx];
        let right1 = tile_b[11u * 17u + 8u + tx];
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
        let left0 = tile_a[12u * 17u + 0u + ty];
        let left1 = tile_a[12u * 17u + 8u + ty];
        let right0 = tile_b[12u * 17u + 0u + tx];
        let right1 = tile_b[12u * 17u + 8u + tx];
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
        let left0 = tile_a[13u * 17u + 0u + ty];
        let left1 = tile_a[13u * 17u + 8u + ty];
        let right0 = tile_b[13u * 17u + 0u + tx];
        let right1 = tile_b[13u * 17u + 8u + tx];
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
        let left0 = tile_a[14u * 17u + 0u + ty];
        let left1 = tile_a[14u * 17u + 8u + ty];
        let right0 = tile_b[14u * 17u + 0u + tx];
        let right1 = tile_b[14u * 17u + 8u + tx];
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
        let left0 = tile_a[15u * 17u + 0u + ty];
        let left1 = tile_a[15u * 17u + 8u + ty];
        let right0 = tile_b[15u * 17u + 0u + tx];
        let right1 = tile_b[15u * 17u + 8u + tx];
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
  let m83 = m0 + 0u + ty * 4u;
  if (m83 < u.d3) {
    let n84 = n0 + 0u + tx * 4u;
    if (n84 < 96u) {
      let v85 = acc0_0.x;
      let v86 = b2[n84];
      let v87 = (v85 + v86);
      let v88 = pm_silu(v87);
      b3[((m83 * 96u) + n84)] = v88;
    }
    let n89 = n0 + 1u + tx * 4u;
    if (n89 < 96u) {
      let v90 = acc0_0.y;
      let v91 = b2[n89];
      let v92 = (v90 + v91);
      let v93 = pm_silu(v92);
      b3[((m83 * 96u) + n89)] = v93;
    }
    let n94 = n0 + 2u + tx * 4u;
    if (n94 < 96u) {
      let v95 = acc0_0.z;
      let v96 = b2[n94];
      let v97 = (v95 + v96);
      let v98 = pm_silu(v97);
      b3[((m83 * 96u) + n94)] = v98;
    }
    let n99 = n0 + 3u + tx * 4u;
    if (n99 < 96u) {
      let v100 = acc0_0.w;
      let v101 = b2[n99];
      let v102 = (v100 + v101);
      let v103 = pm_silu(v102);
      b3[((m83 * 96u) + n99)] = v103;
    }
    let n104 = n0 + 32u + tx * 4u;
    if (n104 < 96u) {
      let v105 = acc0_1.x;
      let v106 = b2[n104];
      let v107 = (v105 + v106);
      let v108 = pm_silu(v107);
      b3[((m83 * 96u) + n104)] = v108;
    }
    let n109 = n0 + 33u + tx * 4u;
    if (n109 < 96u) {
      let v110 = acc0_1.y;
      let v111 = b2[n109];
      let v112 = (v110 + v111);
      let v113 = pm_silu(v112);
      b3[((m83 * 96u) + n109)] = v113;
    }
    let n114 = n0 + 34u + tx * 4u;
    if (n114 < 96u) {
      let v115 = acc0_1.z;
      let v116 = b2[n114];
      let v117 = (v115 + v116);
      let v118 = pm_silu(v117);
      b3[((m83 * 96u) + n114)] = v118;
    }
    let n119 = n0 + 35u + tx * 4u;
    if (n119 < 96u) {
      let v120 = acc0_1.w;
      let v121 = b2[n119];
      let v122 = (v120 + v121);
      let v123 = pm_silu(v122);
      b3[((m83 * 96u) + n119)] = v123;
    }
  }
  let m124 = m0 + 1u + ty * 4u;
  if (m124 < u.d3) {
    let n125 = n0 + 0u + tx * 4u;
    if (n125 < 96u) {
      let v126 = acc1_0.x;
      let v127 = b2[n125];
      let v128 = (v126 + v127);
      let v129 = pm_silu(v128);
      b3[((m124 * 96u) + n125)] = v129;
    }
    let n130 = n0 + 1u + tx * 4u;
    if (n130 < 96u) {
      let v131 = acc1_0.y;
      let v132 = b2[n130];
      let v133 = (v131 + v132);
      let v134 = pm_silu(v133);
      b3[((m124 * 96u) + n130)] = v134;
    }
    let n135 = n0 + 2u + tx * 4u;
    if (n135 < 96u) {
      let v136 = acc1_0.z;
      let v137 = b2[n135];
      let v138 = (v136 + v137);
      let v139 = pm_silu(v138);
      b3[((m124 * 96u) + n135)] = v139;
    }
    let n140 = n0 + 3u + tx * 4u;
    if (n140 < 96u) {
      let v141 = acc1_0.w;
      let v142 = b2[n140];
      let v143 = (v141 + v142);
      let v144 = pm_silu(v143);
      b3[((m124 * 96u) + n140)] = v144;
    }
    let n145 = n0 + 32u + tx * 4u;
    if (n145 < 96u) {
      let v146 = acc1_1.x;
      let v147 = b2[n145];
      let v148 = (v146 + v147);
      let v149 = pm_silu(v148);
      b3[((m124 * 96u) + n145)] = v149;
    }
    let n150 = n0 + 33u + tx * 4u;
    if (n150 < 96u) {
      let v151 = acc1_1.y;
      let v152 = b2[n150];
      let v153 = (v151 + v152);
      let v154 = pm_silu(v153);
      b3[((m124 * 96u) + n150)] = v154;
    }
    let n155 = n0 + 34u + tx * 4u;
    if (n155 < 96u) {
      let v156 = acc1_1.z;
      let v157 = b2[n155];
      let v158 = (v156 + v157);
      let v159 = pm_silu(v158);
      b3[((m124 * 96u) + n155)] = v159;
    }
    let n160 = n0 + 35u + tx * 4u;
    if (n160 < 96u) {
      let v161 = acc1_1.w;
      let v162 = b2[n160];
      let v163 = (v161 + v162);
      let v164 = pm_silu(v163);
      b3[((m124 * 96u) + n160)] = v164;
    }
  }
  let m165 = m0 + 2u + ty * 4u;
  if (m165 < u.d3) {
    let n166 = n0 + 0u + tx * 4u;
    if (n166 < 96u) {
      let v167 = acc2_0.x;
      let v168 = b2[n166];
      let v169 = (v167 + v168);
      let v170 = pm_silu(v169);
      b3[((m165 * 96u) + n166)] = v170;
    }
    let n171 = n0 + 1u + tx * 4u;
    if (n171 < 96u) {
      let v172 = acc2_0.y;
      let v173 = b2[n171];
      let v174 = (v172 + v173);
      let v175 = pm_silu(v174);
      b3[((m165 * 96u) + n171)] = v175;
    }
    let n176 = n0 + 2u + tx * 4u;
    if (n176 < 96u) {
      let v177 = acc2_0.z;
      let v178 = b2[n176];
      let v179 = (v177 + v178);
      let v180 = pm_silu(v179);
      b3[((m165 * 96u) + n176)] = v180;
    }
    let n181 = n0 + 3u + tx * 4u;
    if (n181 < 96u) {
      let v182 = acc2_0.w;
      let v183 = b2[n181];
      let v184 = (v182 + v183);
      let v185 = pm_silu(v184);
      b3[((m165 * 96u) + n181)] = v185;
    }
    let n186 = n0 + 32u + tx * 4u;
    if (n186 < 96u) {
      let v187 = acc2_1.x;
      let v188 = b2[n186];
      let v189 = (v187 + v188);
      let v190 = pm_silu(v189);
      b3[((m165 * 96u) + n186)] = v190;
    }
    let n191 = n0 + 33u + tx * 4u;
    if (n191 < 96u) {
      let v192 = acc2_1.y;
      let v193 = b2[n191];
      let v194 = (v192 + v193);
      let v195 = pm_silu(v194);
      b3[((m165 * 96u) + n191)] = v195;
    }
    let n196 = n0 + 34u + tx * 4u;
    if (n196 < 96u) {
      let v197 = acc2_1.z;
      let v198 = b2[n196];
      let v199 = (v197 + v198);
      let v200 = pm_silu(v199);
      b3[((m165 * 96u) + n196)] = v200;
    }
    let n201 = n0 + 35u + tx * 4u;
    if (n201 < 96u) {
      let v202 = acc2_1.w;
      let v203 = b2[n201];
      let v204 = (v202 + v203);
      let v205 = pm_silu(v204);
      b3[((m165 * 96u) + n201)] = v205;
    }
  }
  let m206 = m0 + 3u + ty * 4u;
  if (m206 < u.d3) {
    let n207 = n0 + 0u + tx * 4u;
    if (n207 < 96u) {
      let v208 = acc3_0.x;
      let v209 = b2[n207];
      let v210 = (v208 + v209);
      let v211 = pm_silu(v210);
      b3[((m206 * 96u) + n207)] = v211;
    }
    let n212 = n0 + 1u + tx * 4u;
    if (n212 < 96u) {
      let v213 = acc3_0.y;
      let v214 = b2[n212];
      let v215 = (v213 + v214);
      let v216 = pm_silu(v215);
      b3[((m206 * 96u) + n212)] = v216;
    }
    let n217 = n0 + 2u + tx * 4u;
    if (n217 < 96u) {
      let v218 = acc3_0.z;
      let v219 = b2[n217];
      let v220 = (v218 + v219);
      let v221 = pm_silu(v220);
      b3[((m206 * 96u) + n217)] = v221;
    }
    let n222 = n0 + 3u + tx * 4u;
    if (n222 < 96u) {
      let v223 = acc3_0.w;
      let v224 = b2[n222];
      let v225 = (v223 + v224);
      let v226 = pm_silu(v225);
      b3[((m206 * 96u) + n222)] = v226;
    }
    let n227 = n0 + 32u + tx * 4u;
    if (n227 < 96u) {
      let v228 = acc3_1.x;
      let v229 = b2[n227];
      let v230 = (v228 + v229);
      let v231 = pm_silu(v230);
      b3[((m206 * 96u) + n227)] = v231;
    }
    let n232 = n0 + 33u + tx * 4u;
    if (n232 < 96u) {
      let v233 = acc3_1.y;
      let v234 = b2[n232];
      let v235 = (v233 + v234);
      let v236 = pm_silu(v235);
      b3[((m206 * 96u) + n232)] = v236;
    }
    let n237 = n0 + 34u + tx * 4u;
    if (n237 < 96u) {
      let v238 = acc3_1.z;
      let v239 = b2[n237];
      let v240 = (v238 + v239);
      let v241 = pm_silu(v240);
      b3[((m206 * 96u) + n237)] = v241;
    }
    let n242 = n0 + 35u + tx * 4u;
    if (n242 < 96u) {
      let v243 = acc3_1.w;
      let v244 = b2[n242];
      let v245 = (v243 + v244);
      let v246 = pm_silu(v245);
      b3[((m206 * 96u) + n242)] = v246;
    }
  }
  let m247 = m0 + 32u + ty * 4u;
  if (m247 < u.d3) {
    let n248 = n0 + 0u + tx * 4u;
    if (n248 < 96u) {
      let v249 = acc4_0.x;
      let v250 = b2[n248];
      let v251 = (v249 + v250);
      let v252 = pm_silu(v251);
      b3[((m247 * 96u) + n248)] = v252;
    }
    let n253 = n0 + 1u + tx * 4u;
    if (n253 < 96u) {
      let v254 = acc4_0.y;
      let v255 = b2[n253];
      let v256 = (v254 + v255);
      let v257 = pm_silu(v256);
      b3[((m247 * 96u) + n253)] = v257;
    }
    let n258 = n0 + 2u + tx * 4u;
    if (n258 < 96u) {
      let v259 = acc4_0.z;
      let v260 = b2[n258];
      let v261 = (v259 + v260);
      let v262 = pm_silu(v261);
      b3[((m247 * 96u) + n258)] = v262;
    }
    let n263 = n0 + 3u + tx * 4u;
    if (n263 < 96u) {
      let v264 = acc4_0.w;
      let v265 = b2[n263];
      let v266 = (v264 + v265);
      let v267 = pm_silu(v266);
      b3[((m247 * 96u) + n263)] = v267;
    }
    let n268 = n0 + 32u + tx * 4u;
    if (n268 < 96u) {
      let v269 = acc4_1.x;
      let v270 = b2[n268];
      let v271 = (v269 + v270);
      let v272 = pm_silu(v271);
      b3[((m247 * 96u) + n268)] = v272;
    }
    let n273 = n0 + 33u + tx * 4u;
    if (n273 < 96u) {
      let v274 = acc4_1.y;
      let v275 = b2[n273];
      let v276 = (v274 + v275);
      let v277 = pm_silu(v276);
      b3[((m247 * 96u) + n273)] = v277;
    }
    let n278 = n0 + 34u + tx * 4u;
    if (n278 < 96u) {
      let v279 = acc4_1.z;
      let v280 = b2[n278];
      let v281 = (v279 + v280);
      let v282 = pm_silu(v281);
      b3[((m247 * 96u) + n278)] = v282;
    }
    let n283 = n0 + 35u + tx * 4u;
    if (n283 < 96u) {
      let v284 = acc4_1.w;
      let v285 = b2[n283];
      let v286 = (v284 + v285);
      let v287 = pm_silu(v286);
      b3[((m247 * 96u) + n283)] = v287;
    }
  }
  let m288 = m0 + 33u + ty * 4u;
  if (m288 < u.d3) {
    let n289 = n0 + 0u + tx * 4u;
    if (n289 < 96u) {
      let v290 = acc5_0.x;
      let v291 = b2[n289];
      let v292 = (v290 + v291);
      let v293 = pm_silu(v292);
      b3[((m288 * 96u) + n289)] = v293;
    }
    let n294 = n0 + 1u + tx * 4u;
    if (n294 < 96u) {
      let v295 = acc5_0.y;
      let v296 = b2[n294];
      let v297 = (v295 + v296);
      let v298 = pm_silu(v297);
      b3[((m288 * 96u) + n294)] = v298;
    }
    let n299 = n0 + 2u + tx * 4u;
    if (n299 < 96u) {
      let v300 = acc5_0.z;
      let v301 = b2[n299];
      let v302 = (v300 + v301);
      let v303 = pm_silu(v302);
      b3[((m288 * 96u) + n299)] = v303;
    }
    let n304 = n0 + 3u + tx * 4u;
    if (n304 < 96u) {
      let v305 = acc5_0.w;
      let v306 = b2[n304];
      let v307 = (v305 + v306);
      let v308 = pm_silu(v307);
      b3[((m288 * 96u) + n304)] = v308;
    }
    let n309 = n0 + 32u + tx * 4u;
    if (n309 < 96u) {
      let v310 = acc5_1.x;
      let v311 = b2[n309];
      let v312 = (v310 + v311);
      let v313 = pm_silu(v312);
      b3[((m288 * 96u) + n309)] = v313;
    }
    let n314 = n0 + 33u + tx * 4u;
    if (n314 < 96u) {
      let v315 = acc5_1.y;
      let v316 = b2[n314];
      let v317 = (v315 + v316);
      let v318 = pm_silu(v317);
      b3[((m288 * 96u) + n314)] = v318;
    }
    let n319 = n0 + 34u + tx * 4u;
    if (n319 < 96u) {
      let v320 = acc5_1.z;
      let v321 = b2[n319];
      let v322 = (v320 + v321);
      let v323 = pm_silu(v322);
      b3[((m288 * 96u) + n319)] = v323;
    }
    let n324 = n0 + 35u + tx * 4u;
    if (n324 < 96u) {
      let v325 = acc5_1.w;
      let v326 = b2[n324];
      let v327 = (v325 + v326);
      let v328 = pm_silu(v327);
      b3[((m288 * 96u) + n324)] = v328;
    }
  }
  let m329 = m0 + 34u + ty * 4u;
  if (m329 < u.d3) {
    let n330 = n0 + 0u + tx * 4u;
    if (n330 < 96u) {
      let v331 = acc6_0.x;
      let v332 = b2[n330];
      let v333 = (v331 + v332);
      let v334 = pm_silu(v333);
      b3[((m329 * 96u) + n330)] = v334;
    }
    let n335 = n0 + 1u + tx * 4u;
    if (n335 < 96u) {
      let v336 = acc6_0.y;
      let v337 = b2[n335];
      let v338 = (v336 + v337);
      let v339 = pm_silu(v338);
      b3[((m329 * 96u) + n335)] = v339;
    }
    let n340 = n0 + 2u + tx * 4u;
    if (n340 < 96u) {
      let v341 = acc6_0.z;
      let v342 = b2[n340];
      let v343 = (v341 + v342);
      let v344 = pm_silu(v343);
      b3[((m329 * 96u) + n340)] = v344;
    }
    let n345 = n0 + 3u + tx * 4u;
    if (n345 < 96u) {
      let v346 = acc6_0.w;
      let v347 = b2[n345];
      let v348 = (v346 + v347);
      let v349 = pm_silu(v348);
      b3[((m329 * 96u) + n345)] = v349;
    }
    let n350 = n0 + 32u + tx * 4u;
    if (n350 < 96u) {
      let v351 = acc6_1.x;
      let v352 = b2[n350];
      let v353 = (v351 + v352);
      let v354 = pm_silu(v353);
      b3[((m329 * 96u) + n350)] = v354;
    }
    let n355 = n0 + 33u + tx * 4u;
    if (n355 < 96u) {
      let v356 = acc6_1.y;
      let v357 = b2[n355];
      let v358 = (v356 + v357);
      let v359 = pm_silu(v358);
      b3[((m329 * 96u) + n355)] = v359;
    }
    let n360 = n0 + 34u + tx * 4u;
    if (n360 < 96u) {
      let v361 = acc6_1.z;
      let v362 = b2[n360];
      let v363 = (v361 + v362);
      let v364 = pm_silu(v363);
      b3[((m329 * 96u) + n360)] = v364;
    }
    let n365 = n0 + 35u + tx * 4u;
    if (n365 < 96u) {
      let v366 = acc6_1.w;
      let v367 = b2[n365];
      let v368 = (v366 + v367);
      let v369 = pm_silu(v368);
      b3[((m329 * 96u) + n365)] = v369;
    }
  }
  let m370 = m0 + 35u + ty * 4u;
  if (m370 < u.d3) {
    let n371 = n0 + 0u + tx * 4u;
    if (n371 < 96u) {
      let v372 = acc7_0.x;
      let v373 = b2[n371];
      let v374 = (v372 + v373);
      let v375 = pm_silu(v374);
      b3[((m370 * 96u) + n371)] = v375;
    }
    let n376 = n0 + 1u + tx * 4u;
    if (n376 < 96u) {
      let v377 = acc7_0.y;
      let v378 = b2[n376];
      let v379 = (v377 + v378);
      let v380 = pm_silu(v379);
      b3[((m370 * 96u) + n376)] = v380;
    }
    let n381 = n0 + 2u + tx * 4u;
    if (n381 < 96u) {
      let v382 = acc7_0.z;
      let v383 = b2[n381];
      let v384 = (v382 + v383);
      let v385 = pm_silu(v384);
      b3[((m370 * 96u) + n381)] = v385;
    }
    let n386 = n0 + 3u + tx * 4u;
    if (n386 < 96u) {
      let v387 = acc7_0.w;
      let v388 = b2[n386];
      let v389 = (v387 + v388);
      let v390 = pm_silu(v389);
      b3[((m370 * 96u) + n386)] = v390;
    }
    let n391 = n0 + 32u + tx * 4u;
    if (n391 < 96u) {
      let v392 = acc7_1.x;
      let v393 = b2[n391];
      let v394 = (v392 + v393);
      let v395 = pm_silu(v394);
      b3[((m370 * 96u) + n391)] = v395;
    }
    let n396 = n0 + 33u + tx * 4u;
    if (n396 < 96u) {
      let v397 = acc7_1.y;
      let v398 = b2[n396];
      let v399 = (v397 + v398);
      let v400 = pm_silu(v399);
      b3[((m370 * 96u) + n396)] = v400;
    }
    let n401 = n0 + 34u + tx * 4u;
    if (n401 < 96u) {
      let v402 = acc7_1.z;
      let v403 = b2[n401];
      let v404 = (v402 + v403);
      let v405 = pm_silu(v404);
      b3[((m370 * 96u) + n401)] = v405;
    }
    let n406 = n0 + 35u + tx * 4u;
    if (n406 < 96u) {
      let v407 = acc7_1.w;
      let v408 = b2[n406];
      let v409 = (v407 + v408);
      let v410 = pm_silu(v409);
      b3[((m370 * 96u) + n406)] = v410;
    }
  }
}
