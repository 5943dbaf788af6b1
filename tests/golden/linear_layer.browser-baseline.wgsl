// transpose+matmul+add+silu [tiled 16x64x32 4x4]: groups 2*floordiv(T+15,16); read %2, read %0, read %1, write %6; sizes floordiv(T+15,16), 2*floordiv(T+15,16), T-1, T
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
struct Sizes { d0: u32, d1: u32, d2: u32, d3: u32 }
@group(0) @binding(4) var<uniform> u: Sizes;
var<workgroup> tile_a: array<vec4<f32>, 160>;
var<workgroup> tile_b: array<vec4<f32>, 544>;
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
  let m0 = (wg % u.d0) * 16u;
  let n0 = ((wg / u.d0) % 2u) * 64u;
  let entry1 = wg / u.d1;
  let base2 = 0u;
  let slot3 = lid + 0u;
  let k4 = slot3 % 32u;
  let g5 = slot3 / 32u;
  let r6 = min(m0 + g5 * 4u + 0u, u.d2);
  let row7 = (base2 + (r6 * 64u));
  let at8 = (row7 + k4);
  let r9 = min(m0 + g5 * 4u + 1u, u.d2);
  let row10 = (base2 + (r9 * 64u));
  let at11 = (row10 + k4);
  let r12 = min(m0 + g5 * 4u + 2u, u.d2);
  let row13 = (base2 + (r12 * 64u));
  let at14 = (row13 + k4);
  let r15 = min(m0 + g5 * 4u + 3u, u.d2);
  let row17 = (base2 + (r15 * 64u));
  let at18 = (row17 + k4);
  var fetched19: vec4<f32>;
  let slot20 = lid + 64u;
  let k21 = slot20 % 32u;
  let g22 = slot20 / 32u;
  let r23 = min(m0 + g22 * 4u + 0u, u.d2);
  let row24 = (base2 + (r23 * 64u));
  let at25 = (row24 + k21);
  let r26 = min(m0 + g22 * 4u + 1u, u.d2);
  let row27 = (base2 + (r26 * 64u));
  let at28 = (row27 + k21);
  let r29 = min(m0 + g22 * 4u + 2u, u.d2);
  let row30 = (base2 + (r29 * 64u));
  let at31 = (row30 + k21);
  let r33 = min(m0 + g22 * 4u + 3u, u.d2);
  let row34 = (base2 + (r33 * 64u));
  let at35 = (row34 + k21);
  var fetched36: vec4<f32>;
  let base37 = 0u;
  let slot38 = lid + 0u;
  let k39 = slot38 % 32u;
  let g40 = slot38 / 32u;
  let r41 = min(n0 + g40 * 4u + 0u, 95u);
  let row42 = (base37 + (r41 * 64u));
  let at43 = (row42 + k39);
  let r44 = min(n0 + g40 * 4u + 1u, 95u);
  let row45 = (base37 + (r44 * 64u));
  let at46 = (row45 + k39);
  let r47 = min(n0 + g40 * 4u + 2u, 95u);
  let row48 = (base37 + (r47 * 64u));
  let at49 = (row48 + k39);
  let r50 = min(n0 + g40 * 4u + 3u, 95u);
  let row51 = (base37 + (r50 * 64u));
  let at52 = (row51 + k39);
  var fetched53: vec4<f32>;
  let slot54 = lid + 64u;
  let k55 = slot54 % 32u;
  let g56 = slot54 / 32u;
  let r57 = min(n0 + g56 * 4u + 0u, 95u);
  let row58 = (base37 + (r57 * 64u));
  let at59 = (row58 + k55);
  let r60 = min(n0 + g56 * 4u + 1u, 95u);
  let row61 = (base37 + (r60 * 64u));
  let at62 = (row61 + k55);
  let r63 = min(n0 + g56 * 4u + 2u, 95u);
  let row65 = (base37 + (r63 * 64u));
  let at66 = (row65 + k55);
  let r67 = min(n0 + g56 * 4u + 3u, 95u);
  let row68 = (base37 + (r67 * 64u));
  let at69 = (row68 + k55);
  var fetched70: vec4<f32>;
  let slot71 = lid + 128u;
  let k72 = slot71 % 32u;
  let g73 = slot71 / 32u;
  let r74 = min(n0 + g73 * 4u + 0u, 95u);
  let row75 = (base37 + (r74 * 64u));
  let at76 = (row75 + k72);
  let r77 = min(n0 + g73 * 4u + 1u, 95u);
  let row78 = (base37 + (r77 * 64u));
  let at79 = (row78 + k72);
  let r80 = min(n0 + g73 * 4u + 2u, 95u);
  let row81 = (base37 + (r80 * 64u));
  let at82 = (row81 + k72);
  let r83 = min(n0 + g73 * 4u + 3u, 95u);
  let row84 = (base37 + (r83 * 64u));
  let at85 = (row84 + k72);
  var fetched86: vec4<f32>;
  let slot87 = lid + 192u;
  let k88 = slot87 % 32u;
  let g89 = slot87 / 32u;
  let r90 = min(n0 + g89 * 4u + 0u, 95u);
  let row91 = (base37 + (r90 * 64u));
  let at92 = (row91 + k88);
  let r93 = min(n0 + g89 * 4u + 1u, 95u);
  let row94 = (base37 + (r93 * 64u));
  let at95 = (row94 + k88);
  let r96 = min(n0 + g89 * 4u + 2u, 95u);
  let row97 = (base37 + (r96 * 64u));
  let at98 = (row97 + k88);
  let r99 = min(n0 + g89 * 4u + 3u, 95u);
  let row100 = (base37 + (r99 * 64u));
  let at101 = (row100 + k88);
  var fetched102: vec4<f32>;
  let slot103 = lid + 256u;
  let k104 = slot103 % 32u;
  let g105 = slot103 / 32u;
  let r106 = min(n0 + g105 * 4u + 0u, 95u);
  let row107 = (base37 + (r106 * 64u));
  let at108 = (row107 + k104);
  let r109 = min(n0 + g105 * 4u + 1u, 95u);
  let row110 = (base37 + (r109 * 64u));
  let at111 = (row110 + k104);
  let r112 = min(n0 + g105 * 4u + 2u, 95u);
  let row113 = (base37 + (r112 * 64u));
  let at114 = (row113 + k104);
  let r115 = min(n0 + g105 * 4u + 3u, 95u);
  let row116 = (base37 + (r115 * 64u));
  let at117 = (row116 + k104);
  var fetched118: vec4<f32>;
  let slot119 = lid + 320u;
  let k120 = slot119 % 32u;
  let g121 = slot119 / 32u;
  let r122 = min(n0 + g121 * 4u + 0u, 95u);
  let row123 = (base37 + (r122 * 64u));
  let at124 = (row123 + k120);
  let r125 = min(n0 + g121 * 4u + 1u, 95u);
  let row126 = (base37 + (r125 * 64u));
  let at127 = (row126 + k120);
  let r128 = min(n0 + g121 * 4u + 2u, 95u);
  let row129 = (base37 + (r128 * 64u));
  let at130 = (row129 + k120);
  let r131 = min(n0 + g121 * 4u + 3u, 95u);
  let row132 = (base37 + (r131 * 64u));
  let at133 = (row132 + k120);
  var fetched134: vec4<f32>;
  let slot135 = lid + 384u;
  let k136 = slot135 % 32u;
  let g137 = slot135 / 32u;
  let r138 = min(n0 + g137 * 4u + 0u, 95u);
  let row139 = (base37 + (r138 * 64u));
  let at140 = (row139 + k136);
  let r141 = min(n0 + g137 * 4u + 1u, 95u);
  let row142 = (base37 + (r141 * 64u));
  let at143 = (row142 + k136);
  let r144 = min(n0 + g137 * 4u + 2u, 95u);
  let row145 = (base37 + (r144 * 64u));
  let at146 = (row145 + k136);
  let r147 = min(n0 + g137 * 4u + 3u, 95u);
  let row148 = (base37 + (r147 * 64u));
  let at149 = (row148 + k136);
  var fetched150: vec4<f32>;
  let slot151 = lid + 448u;
  let k152 = slot151 % 32u;
  let g153 = slot151 / 32u;
  let r154 = min(n0 + g153 * 4u + 0u, 95u);
  let row155 = (base37 + (r154 * 64u));
  let at156 = (row155 + k152);
  let r157 = min(n0 + g153 * 4u + 1u, 95u);
  let row158 = (base37 + (r157 * 64u));
  let at159 = (row158 + k152);
  let r160 = min(n0 + g153 * 4u + 2u, 95u);
  let row161 = (base37 + (r160 * 64u));
  let at162 = (row161 + k152);
  let r163 = min(n0 + g153 * 4u + 3u, 95u);
  let row164 = (base37 + (r163 * 64u));
  let at165 = (row164 + k152);
  var fetched166: vec4<f32>;
  let tx = lid % 16u;
  let ty = lid / 16u;
  var acc0_0 = vec4<f32>();
  var acc1_0 = vec4<f32>();
  var acc2_0 = vec4<f32>();
  var acc3_0 = vec4<f32>();
  if (64u > 0u) {
    let step167 = 0u;
    fetched19 = vec4<f32>(b0[(at8 + step167)], b0[(at11 + step167)], b0[(at14 + step167)], b0[(at18 + step167)]);
    fetched36 = vec4<f32>(b0[(at25 + step167)], b0[(at28 + step167)], b0[(at31 + step167)], b0[(at35 + step167)]);
    let step168 = 0u;
    fetched53 = vec4<f32>(b1[(at43 + step168)], b1[(at46 + step168)], b1[(at49 + step168)], b1[(at52 + step168)]);
    fetched70 = vec4<f32>(b1[(at59 + step168)], b1[(at62 + step168)], b1[(at66 + step168)], b1[(at69 + step168)]);
    fetched86 = vec4<f32>(b1[(at76 + step168)], b1[(at79 + step168)], b1[(at82 + step168)], b1[(at85 + step168)]);
    fetched102 = vec4<f32>(b1[(at92 + step168)], b1[(at95 + step168)], b1[(at98 + step168)], b1[(at101 + step168)]);
    fetched118 = vec4<f32>(b1[(at108 + step168)], b1[(at111 + step168)], b1[(at114 + step168)], b1[(at117 + step168)]);
    fetched134 = vec4<f32>(b1[(at124 + step168)], b1[(at127 + step168)], b1[(at130 + step168)], b1[(at133 + step168)]);
    fetched150 = vec4<f32>(b1[(at140 + step168)], b1[(at143 + step168)], b1[(at146 + step168)], b1[(at149 + step168)]);
    fetched166 = vec4<f32>(b1[(at156 + step168)], b1[(at159 + step168)], b1[(at162 + step168)], b1[(at165 + step168)]);
  }
  for (var k0 = 0u; k0 < 64u; k0 += 32u) {
    tile_a[k4 * 5u + g5] = fetched19;
    tile_a[k21 * 5u + g22] = fetched36;
    tile_b[k39 * 17u + g40] = fetched53;
    tile_b[k55 * 17u + g56] = fetched70;
    tile_b[k72 * 17u + g73] = fetched86;
    tile_b[k88 * 17u + g89] = fetched102;
    tile_b[k104 * 17u + g105] = fetched118;
    tile_b[k120 * 17u + g121] = fetched134;
    tile_b[k136 * 17u + g137] = fetched150;
    tile_b[k152 * 17u + g153] = fetched166;
    workgroupBarrier();
    let k_next = k0 + 32u;
    if (k_next < 64u) {
      let step169 = k_next;
      fetched19 = vec4<f32>(b0[(at8 + step169)], b0[(at11 + step169)], b0[(at14 + step169)], b0[(at18 + step169)]);
      fetched36 = vec4<f32>(b0[(at25 + step169)], b0[(at28 + step169)], b0[(at31 + step169)], b0[(at35 + step169)]);
      let step170 = k_next;
      fetched53 = vec4<f32>(b1[(at43 + step170)], b1[(at46 + step170)], b1[(at49 + step170)], b1[(at52 + step170)]);
      fetched70 = vec4<f32>(b1[(at59 + step170)], b1[(at62 + step170)], b1[(at66 + step170)], b1[(at69 + step170)]);
      fetched86 = vec4<f32>(b1[(at76 + step170)], b1[(at79 + step170)], b1[(at82 + step170)], b1[(at85 + step170)]);
      fetched102 = vec4<f32>(b1[(at92 + step170)], b1[(at95 + step170)], b1[(at98 + step170)], b1[(at101 + step170)]);
      fetched118 = vec4<f32>(b1[(at108 + step170)], b1[(at111 + step170)], b1[(at114 + step170)], b1[(at117 + step170)]);
      fetched134 = vec4<f32>(b1[(at124 + step170)], b1[(at127 + step170)], b1[(at130 + step170)], b1[(at133 + step170)]);
      fetched150 = vec4<f32>(b1[(at140 + step170)], b1[(at143 + step170)], b1[(at146 + step170)], b1[(at149 + step170)]);
      fetched166 = vec4<f32>(b1[(at156 + step170)], b1[(at159 + step170)], b1[(at162 + step170)], b1[(at165 + step170)]);
    }
    for (var kk = 0u; kk < 32u; kk++) {
      let left0 = tile_a[kk * 5u + 0u + ty];
      let right0 = tile_b[kk * 17u + 0u + tx];
      acc0_0 += left0.x * right0;
      acc1_0 += left0.y * right0;
      acc2_0 += left0.z * right0;
      acc3_0 += left0.w * right0;
    }
    workgroupBarrier();
  }
  var results = array<vec4<f32>, 4>(acc0_0, acc1_0, acc2_0, acc3_0);
  for (var i = 0u; i < 4u; i++) {
    let m = m0 + (i / 4u) * 16u + ty * 4u + i % 4u;
    if (m < u.d3) {
      for (var j = 0u; j < 4u; j++) {
        let n = n0 + (j / 4u) * 64u + tx * 4u + j % 4u;
        if (n < 96u) {
          let result = results[i * 1u + j / 4u][j % 4u];
          let v171 = b2[n];
          let v172 = (result + v171);
          let v173 = pm_silu(v172);
          b3[((m * 96u) + n)] = v173;
        }
      }
    }
  }
}
