"""The WGSL library: small functions that scalar expressions and routines call by name (pm_*)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from pumice.core.special import ERF_SERIES_F32, ERFC_TAIL_F32, NORMAL_TAIL_F32
from pumice.errors import PlanError


def _series(coefficients: Sequence[float], x: str) -> str:
    """The power series in x as nested WGSL."""
    text = ""
    for c in reversed(coefficients):
        number = f"{c:.9g}" if c % 1 else f"{c:.1f}"
        text = f"{number} + {x} * ({text})" if text else number
    return text


# 2/ln 2 cut to 12 bits.
_LOG2_HIGH = math.floor(2 / math.log(2) * 2**10) / 2**10

# Rules for these functions. Drivers may assume that no NaN and no infinity occurs: both are recognised by their bits and made
# by pm_nan and pm_inf, whose `var` keeps the compiler from evaluating what it would then refuse. Built-ins that WGSL only
# promises to 2^-11 or 4096 ULP (sin, cos, atan, asin, acos, log near 1, tanh) are written out, so that every vendor agrees.
# Comments are dropped from what kernels contain.
_SOURCE = f"""
fn pm_inf() -> f32 {{
  var bits = 0x7f800000u;
  return bitcast<f32>(bits);
}}

fn pm_nan() -> f32 {{
  var bits = 0x7fc00000u;
  return bitcast<f32>(bits);
}}

fn pm_isnan(x: f32) -> bool {{ return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }}

fn pm_isinf(x: f32) -> bool {{ return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }}

fn pm_copysign(size: f32, sign: f32) -> f32 {{
  return bitcast<f32>((bitcast<u32>(size) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}}

fn pm_ne(a: f32, b: f32) -> bool {{
  // WGSL's != may come out as "less or greater", which NaN is not.
  return pm_isnan(a) || pm_isnan(b) || !(a == b);
}}

fn pm_max(a: f32, b: f32) -> f32 {{ return select(select(max(a, b), b, pm_isnan(b)), a, pm_isnan(a)); }}

fn pm_min(a: f32, b: f32) -> f32 {{ return select(select(min(a, b), b, pm_isnan(b)), a, pm_isnan(a)); }}

fn pm_clamp(x: f32, lo: f32, hi: f32) -> f32 {{ return select(min(max(x, lo), hi), x, pm_isnan(x)); }}

fn pm_sign(x: f32) -> f32 {{ return select(sign(x), x, pm_isnan(x)); }}

fn pm_exp(x: f32) -> f32 {{ return select(exp(x), x, pm_isnan(x)); }}

fn pm_exp2(x: f32) -> f32 {{ return select(exp2(x), x, pm_isnan(x)); }}

fn pm_expm1(x: f32) -> f32 {{
  if (abs(x) < 0.5) {{
    return x + x * x * ({_series([1 / math.factorial(k) for k in range(2, 9)], "x")});
  }}
  return pm_exp(x) - 1.0;
}}

fn pm_log1p(x: f32) -> f32 {{
  // 2·atanh(x / (2 + x)), whose series ends soon here; outside, rounding 1 + x costs nothing. Twice the argument: its half may be
  // denormal, which a GPU takes for zero.
  if (x > -0.3 && x < 0.5) {{
    let s = (x + x) / (2.0 + x);
    let z = 0.25 * s * s;
    return s * ({_series([1 / k for k in range(1, 12, 2)], "z")});
  }}
  // Not every driver has infinity for the logarithm of zero.
  if (x <= -1.0 || pm_isnan(x)) {{ return select(pm_nan(), -pm_inf(), x == -1.0); }}
  return log(1.0 + x);
}}

fn pm_log(x: f32) -> f32 {{
  if (x < 0.0 || pm_isnan(x)) {{ return pm_nan(); }}
  if (x > 0.7 && x < 1.5) {{ return pm_log1p(x - 1.0); }}
  // Drivers differ on denormal arguments, which are scaled, or were flushed to zero already; and on zero.
  if (x < {2.0**-126:.9g}) {{
    let y = x * 8388608.0;
    return select(log(y) - {23 * math.log(2):.9g}, -pm_inf(), y == 0.0);
  }}
  return log(x);
}}

fn pm_log2(x: f32) -> f32 {{
  if (x < 0.0 || pm_isnan(x)) {{ return pm_nan(); }}
  if (x > 0.7 && x < 1.5) {{ return pm_log1p(x - 1.0) * {1 / math.log(2):.9g}; }}
  if (x < {2.0**-126:.9g}) {{
    let y = x * 8388608.0;
    return select(log2(y) - 23.0, -pm_inf(), y == 0.0);
  }}
  return log2(x);
}}

fn pm_log10(x: f32) -> f32 {{
  if (x > 0.7 && x < 1.5) {{ return pm_log1p(x - 1.0) * {1 / math.log(10):.9g}; }}
  return pm_log2(x) * {math.log10(2):.9g};
}}

fn pm_sqrt(x: f32) -> f32 {{
  if (x < 0.0 || pm_isnan(x)) {{ return pm_nan(); }}
  return sqrt(x);
}}

fn pm_rsqrt(x: f32) -> f32 {{
  if (x < 0.0 || pm_isnan(x)) {{ return pm_nan(); }}
  return inverseSqrt(x);
}}

fn pm_sincos(x: f32) -> vec2<f32> {{
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  if (bits >= 0x7f800000u) {{ return vec2<f32>(pm_nan()); }}
  if (bits > 0x48000000u) {{ return vec2<f32>(sin(x), cos(x)); }}
  // π/2 in three pieces of 7 bits and a rest: up to |x| = 2^17 the products with k are exact.
  let k = round(x * {2 / math.pi:.9g});
  let r = (((x - k * 1.5625) - k * 0.0081787109375) - k * 0.00011730194091796875) - k * 3.13916479e-7;
  let z = r * r;
  let s = r + r * z * ({_series([(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 5)], "z")});
  let c = {_series([(-1) ** k / math.factorial(2 * k) for k in range(6)], "z")};
  let q = i32(k);
  let turned = select(vec2<f32>(s, c), vec2<f32>(c, -s), (q & 1) != 0);
  return select(turned, -turned, (q & 2) != 0);
}}

fn pm_sin(x: f32) -> f32 {{ return pm_sincos(x).x; }}

fn pm_cos(x: f32) -> f32 {{ return pm_sincos(x).y; }}

fn pm_tan(x: f32) -> f32 {{
  let v = pm_sincos(x);
  return v.x / v.y;
}}

fn pm_atan(x: f32) -> f32 {{
  let a = abs(x);
  var base = 0.0;
  var t = a;
  if (a > {math.tan(3 * math.pi / 8):.9g}) {{
    base = {math.pi / 2:.9g};
    t = -1.0 / a;
  }} else if (a > {math.tan(math.pi / 8):.9g}) {{
    base = {math.pi / 4:.9g};
    t = (a - 1.0) / (a + 1.0);
  }}
  let z = t * t;
  let p = {_series((-0.333333318, 0.199995499, -0.142642269, 0.107462363, -0.0645916899), "z")};
  return pm_copysign(base + (t + t * z * p), x);
}}

fn pm_atan2(y: f32, x: f32) -> f32 {{
  if (pm_isnan(x) || pm_isnan(y)) {{ return pm_nan(); }}
  let small = min(abs(x), abs(y));
  let big = max(abs(x), abs(y));
  var ratio = 0.0;
  if (pm_isinf(small)) {{ ratio = 1.0; }} else if (big > 0.0) {{ ratio = small / big; }}
  var t = pm_atan(ratio);
  if (abs(y) > abs(x)) {{ t = {math.pi / 2:.9g} - t; }}
  if ((bitcast<u32>(x) >> 31u) != 0u) {{ t = {math.pi:.9g} - t; }}
  return pm_copysign(t, y);
}}

fn pm_asin_half(x: f32) -> f32 {{
  let z = x * x;
  return x + x * z * ({_series((0.166666663, 0.0750009877, 0.0445980314, 0.0311161637, 0.0170778304, 0.0338057905), "z")});
}}

fn pm_asin(x: f32) -> f32 {{
  let a = abs(x);
  if (a <= 0.5) {{ return pm_asin_half(x); }}
  if (a > 1.0 || pm_isnan(x)) {{ return pm_nan(); }}
  return pm_copysign({math.pi / 2:.9g} - 2.0 * pm_asin_half(sqrt(0.5 - 0.5 * a)), x);
}}

fn pm_acos(x: f32) -> f32 {{
  let a = abs(x);
  if (a <= 0.5) {{ return {math.pi / 2:.9g} - pm_asin_half(x); }}
  if (a > 1.0 || pm_isnan(x)) {{ return pm_nan(); }}
  let t = 2.0 * pm_asin_half(sqrt(0.5 - 0.5 * a));
  return select(t, {math.pi:.9g} - t, x < 0.0);
}}

fn pm_sinh(x: f32) -> f32 {{
  let a = abs(x);
  if (a < 1.0) {{
    let z = x * x;
    return x + x * z * ({_series([1 / math.factorial(k) for k in range(3, 12, 2)], "z")});
  }}
  let e = pm_exp(a);
  return pm_copysign(select(0.5 * e - 0.5 / e, pm_half_exp(a), a > 88.0), x);
}}

fn pm_cosh(x: f32) -> f32 {{
  let a = abs(x);
  let e = pm_exp(a);
  return select(0.5 * e + 0.5 / e, pm_half_exp(a), a > 88.0);
}}

fn pm_half_exp(x: f32) -> f32 {{
  // Of a large x: exp(x) overflows before its half does, whichever factor comes first.
  return pm_exp(x - {math.log(2):.9g});
}}

fn pm_tanh(x: f32) -> f32 {{
  let a = abs(x);
  if (a < 0.25) {{
    let e = pm_expm1(2.0 * x);
    return e / (e + 2.0);
  }}
  let t = pm_exp(-2.0 * a);
  return select(pm_copysign((1.0 - t) / (1.0 + t), x), x, pm_isnan(x));
}}

fn pm_asinh(x: f32) -> f32 {{
  let a = abs(x);
  if (pm_isnan(x) || pm_isinf(x)) {{ return x; }}
  // From here on the square would overflow before it matters.
  if (a > 1e9) {{ return pm_copysign(pm_log(a) + {math.log(2):.9g}, x); }}
  return pm_copysign(pm_log1p(a + a * (a / (1.0 + sqrt(1.0 + a * a)))), x);
}}

fn pm_acosh(x: f32) -> f32 {{
  if (x < 1.0 || pm_isnan(x)) {{ return pm_nan(); }}
  if (x > 1e9) {{ return select(pm_log(x) + {math.log(2):.9g}, x, pm_isinf(x)); }}
  let t = x - 1.0;
  return pm_log1p(t + sqrt(t + t + t * t));
}}

fn pm_atanh(x: f32) -> f32 {{
  let a = abs(x);
  if (a > 1.0 || pm_isnan(x)) {{ return pm_nan(); }}
  if (a == 1.0) {{ return pm_copysign(pm_inf(), x); }}
  return pm_copysign(0.5 * pm_log1p((a + a) / (1.0 - a)), x);
}}

fn pm_next_after(a: f32, b: f32) -> f32 {{
  if (pm_isnan(a) || pm_isnan(b)) {{ return pm_nan(); }}
  if (a == b) {{ return b; }}
  let bits = bitcast<u32>(a);
  if (a == 0.0) {{ return bitcast<f32>(1u | (bitcast<u32>(b) & 0x80000000u)); }}
  return bitcast<f32>(select(bits - 1u, bits + 1u, (a < b) == (a > 0.0)));
}}

fn pm_erf_near(a: f32) -> f32 {{
  let z = a * a;
  return a * ({_series(ERF_SERIES_F32, "z")});
}}

fn pm_erfc_far(a: f32) -> f32 {{
  let b = min(a, 28.0);
  let u = (b - 4.0) / (b + 2.0);
  return exp(-b * b) * ({_series(ERFC_TAIL_F32, "u")}) / b;
}}

fn pm_erf(x: f32) -> f32 {{
  let a = abs(x);
  if (pm_isnan(x)) {{ return x; }}
  if (a < 1.0) {{ return pm_erf_near(x); }}
  return pm_copysign(1.0 - pm_erfc_far(a), x);
}}

fn pm_gelu(x: f32) -> f32 {{
  // Half of erfc, from the side where it is small: no cancellation in the negative tail. One formula for all x, as threads
  // that take different branches wait for each other.
  let a = min(abs(x), 40.0);
  let r = 1.0 / (a + 4.0);
  let u = 1.0 - 8.0 * r;
  let e = exp2({-0.5 / math.log(2):.9g} * (a * a));
  let tail = r * ({_series(NORMAL_TAIL_F32, "u")});
  // Far out e · tail is denormal where x · tail · e is not.
  return select(select(x * (1.0 - e * tail), (x * tail) * e, x < 0.0), x, pm_isnan(x));
}}

fn pm_sigmoid(x: f32) -> f32 {{
  let t = pm_exp(-abs(x));
  return select(1.0, t, x < 0.0) / (1.0 + t);
}}

fn pm_silu(x: f32) -> f32 {{ return x * pm_sigmoid(x); }}

fn pm_gelu_tanh(x: f32) -> f32 {{
  // (1 + tanh u) / 2 = sigmoid(2u)
  return x * pm_sigmoid({2 * math.sqrt(2 / math.pi):.9g} * (x + 0.044715 * x * x * x));
}}

fn pm_softplus(x: f32) -> f32 {{ return select(max(x, 0.0) + pm_log1p(exp(-abs(x))), x, pm_isnan(x)); }}

fn pm_fmod(a: f32, b: f32) -> f32 {{
  // Long division of the mantissas, eight bits a step: exact however large the quotient is.
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) {{ return pm_nan(); }}
  if (x < y) {{ return a; }}
  let ex = max(x >> 23u, 1u);
  let ey = max(y >> 23u, 1u);
  let my = (y & 0x7fffffu) | select(0u, 0x800000u, y >= 0x800000u);
  var rest = ((x & 0x7fffffu) | select(0u, 0x800000u, x >= 0x800000u)) % my;
  var steps = ex - ey;
  while (steps > 0u) {{
    let n = min(steps, 8u);
    rest = (rest << n) % my;
    steps -= n;
  }}
  return pm_copysign(f32(rest) * {2.0**-23:.9g} * bitcast<f32>(ey << 23u), a);
}}

fn pm_mod(a: f32, b: f32) -> f32 {{
  let r = pm_fmod(a, b);
  if (r == 0.0) {{ return pm_copysign(0.0, b); }}
  return select(r, r + b, (r < 0.0) != (b < 0.0));
}}

fn pm_floor_div(a: f32, b: f32) -> f32 {{
  if (b == 0.0) {{ return a / b; }}
  let r = pm_fmod(a, b);
  let q = round((a - r) / b);
  return select(q, q - 1.0, r != 0.0 && (r < 0.0) != (b < 0.0));
}}

fn pm_floor_div_i(a: i32, b: i32) -> i32 {{
  if (b == 0) {{ return 0; }}
  if (b == -1) {{ return -a; }}
  let q = a / b;
  return select(q, q - 1, q * b != a && (a < 0) != (b < 0));
}}

fn pm_mod_i(a: i32, b: i32) -> i32 {{ return select(a - pm_floor_div_i(a, b) * b, 0, b == 0); }}

fn pm_floor_div_u(a: u32, b: u32) -> u32 {{
  if (b == 0u) {{ return 0u; }}
  return a / b;
}}

fn pm_mod_u(a: u32, b: u32) -> u32 {{
  if (b == 0u) {{ return 0u; }}
  return a % b;
}}

fn pm_pow_u(a: u32, b: u32) -> u32 {{
  var out = 1u;
  var base = a;
  var n = b;
  while (n > 0u) {{
    if ((n & 1u) != 0u) {{ out *= base; }}
    base *= base;
    n >>= 1u;
  }}
  return out;
}}

fn pm_pow_i(a: i32, b: i32) -> i32 {{
  if (b >= 0) {{ return bitcast<i32>(pm_pow_u(bitcast<u32>(a), u32(b))); }}
  if (a == -1) {{ return 1 - 2 * (b & 1); }}
  return select(0, 1, a == 1);
}}

fn pm_high(x: f32) -> f32 {{ return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }}

fn pm_pow_positive(a: f32, y: f32) -> f32 {{
  // y·log2(a) in two floats: one would lose as many digits as the result's exponent has, which near a = 1 is all that counts.
  // Halves of 12 bits have exact products.
  var bits = bitcast<u32>(a);
  var e = 0.0;
  if (bits < 0x800000u) {{
    bits = bitcast<u32>(a * 16777216.0);
    e = -24.0;
  }}
  bits += {0x3F800000 - 0x3F3504F3}u;
  e += f32(i32(bits >> 23u) - 127);
  let f = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
  // log2(1 + f) is 2/ln 2 · atanh(s), s = f / (2 + f).
  let d = pm_high(2.0 + f);
  let q = pm_high(f / (2.0 + f));
  var low = ((f - q * d) - q * ((2.0 - d) + f)) / (2.0 + f);
  let s = q + low;
  let z = s * s;
  low += s * (z * ({_series([1 / k for k in range(3, 14, 2)], "z")}));
  let h = q * {_LOG2_HIGH:.9g};
  let rest = low * {_LOG2_HIGH:.9g} + (q + low) * {2 / math.log(2) - _LOG2_HIGH:.9g};
  let first = pm_high(e + (h + rest));
  let second = ((e - first) + h) + rest;
  let far = clamp(y, -1e11, 1e11);
  let near = pm_high(far);
  let p = near * first;
  let p_low = (far - near) * first + far * second;
  if (p > 200.0) {{ return pm_inf(); }}
  if (p < -200.0) {{ return 0.0; }}
  let k = round(p + p_low);
  let t = ((p - k) + p_low) * {math.log(2):.9g};
  let half = i32(k) >> 1u;
  let v = {_series([1 / math.factorial(k) for k in range(8)], "t")};
  return (v * bitcast<f32>(u32(half + 127) << 23u)) * bitcast<f32>(u32(i32(k) - half + 127) << 23u);
}}

fn pm_pow(x: f32, y: f32) -> f32 {{
  if (y == 0.0 || x == 1.0) {{ return 1.0; }}
  if (pm_isnan(x) || pm_isnan(y)) {{ return pm_nan(); }}
  let a = abs(x);
  let n = abs(y);
  let whole = n == floor(n);
  if (pm_isinf(y) && a == 1.0) {{ return 1.0; }}
  if (x < 0.0 && !whole && !pm_isinf(x)) {{ return pm_nan(); }}
  var size = 0.0;
  if (a == 0.0 || pm_isinf(a)) {{
    if ((a == 0.0) != (y > 0.0)) {{ size = pm_inf(); }}
  }} else {{
    var exact = false;
    if (whole && (n <= 4.0 || (n <= 24.0 && a == floor(a)))) {{
      // By squaring: whole powers of whole numbers are exact as long as they fit.
      size = 1.0;
      var base = a;
      var left = u32(n);
      while (left > 0u) {{
        if ((left & 1u) != 0u) {{ size *= base; }}
        base *= base;
        left >>= 1u;
      }}
      exact = n <= 4.0 || size < 16777216.0;
      if (y < 0.0) {{ size = 1.0 / size; }}
    }}
    if (!exact) {{ size = pm_pow_positive(a, y); }}
  }}
  // From 2^24 on every float is even.
  let odd = whole && n < 16777216.0 && (u32(min(n, 16777216.0)) & 1u) != 0u;
  return select(size, -size, odd && (bitcast<u32>(x) >> 31u) != 0u);
}}

fn pm_shift_left_i(a: i32, b: i32) -> i32 {{ return select(a << (u32(b) & 31u), 0, u32(b) > 31u); }}

fn pm_shift_left_u(a: u32, b: u32) -> u32 {{ return select(a << (b & 31u), 0u, b > 31u); }}

fn pm_shift_right_i(a: i32, b: i32) -> i32 {{ return a >> min(u32(b), 31u); }}

fn pm_shift_right_u(a: u32, b: u32) -> u32 {{ return select(a >> (b & 31u), 0u, b > 31u); }}

fn pm_f32_to_bool(x: f32) -> bool {{ return (bitcast<u32>(x) & 0x7fffffffu) != 0u; }}

fn pm_f32_to_i32(x: f32) -> i32 {{
  if (pm_isnan(x)) {{ return 0; }}
  if (x >= 2147483648.0) {{ return 2147483647; }}
  if (x <= -2147483648.0) {{ return i32(-2147483648); }}
  return i32(x);
}}

fn pm_f32_to_u32(x: f32) -> u32 {{
  if (pm_isnan(x) || x <= 0.0) {{ return 0u; }}
  if (x >= 4294967296.0) {{ return 4294967295u; }}
  return u32(x);
}}

fn pm_f32_to_i8(x: f32) -> i32 {{ return clamp(pm_f32_to_i32(x), -128, 127); }}

fn pm_f32_to_u8(x: f32) -> u32 {{ return min(pm_f32_to_u32(x), 255u); }}

fn pm_wrap_i8(x: i32) -> i32 {{ return (x << 24u) >> 24u; }}

fn pm_wrap_u8(x: u32) -> u32 {{ return x & 255u; }}

fn pm_round_f16(x: f32) -> f32 {{
  // By hand, as pack2x16float may round either way and leaves values beyond f16's range open.
  let b = bitcast<u32>(x);
  let a = b & 0x7fffffffu;
  if (a > 0x7f800000u) {{ return x; }}
  if (a >= 0x477ff000u) {{ return pm_copysign(pm_inf(), x); }}
  if (a < 0x38800000u) {{ return pm_copysign(round(abs(x) * 16777216.0) * {2.0**-24:.9g}, x); }}
  return bitcast<f32>((b + 0xfffu + ((b >> 13u) & 1u)) & 0xffffe000u);
}}

fn pm_f16_bits(x: f32) -> u32 {{
  let r = bitcast<u32>(pm_round_f16(x));
  let sign = (r >> 16u) & 0x8000u;
  let a = r & 0x7fffffffu;
  if (a > 0x7f800000u) {{ return sign | 0x7e00u; }}
  if (a == 0x7f800000u) {{ return sign | 0x7c00u; }}
  if (a < 0x38800000u) {{ return sign | u32(bitcast<f32>(a) * 16777216.0); }}
  return sign | ((a - 0x38000000u) >> 13u);
}}

fn pm_bf16_bits(x: f32) -> u32 {{
  // Round to nearest even on the upper half; NaN stays NaN instead of rounding to infinity.
  let b = bitcast<u32>(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) {{ return (b >> 16u) | 64u; }}
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}}

fn pm_round_bf16(x: f32) -> f32 {{ return bitcast<f32>(pm_bf16_bits(x) << 16u); }}

fn pm_threefry(k0: u32, k1: u32, c0: u32, c1: u32) -> vec2<u32> {{
  let turns = array<vec4<u32>, 2>(vec4<u32>(13u, 15u, 26u, 6u), vec4<u32>(17u, 29u, 16u, 24u));
  var key = vec3<u32>(k0, k1, k0 ^ k1 ^ 0x1bd11bdau);
  var x = vec2<u32>(c0 + k0, c1 + k1);
  for (var group = 0u; group < 5u; group++) {{
    let turn = select(turns[0], turns[1], (group & 1u) != 0u);
    for (var i = 0u; i < 4u; i++) {{
      x.x += x.y;
      x.y = ((x.y << turn[i]) | (x.y >> (32u - turn[i]))) ^ x.x;
    }}
    key = key.yzx;
    x += vec2<u32>(key.x, key.y + group + 1u);
  }}
  return x;
}}
"""


# A call of a library function. No other name in a kernel has pm_ in it, and a pattern that starts with letters is searched for
# many times as fast as one that starts at the edge of a word.
LIBRARY_CALL = re.compile(r"pm_\w+(?=\()")


def _split(source: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """name → (source without comments, names of the library functions it calls)."""
    table = {}
    for text in re.sub(r"(?m)^ *//.*\n", "", source).strip().split("\n\n"):
        name = text[3 : text.index("(")]
        table[name] = text, tuple(n for n in dict.fromkeys(LIBRARY_CALL.findall(text)) if n != name)
    return table


_LIBRARY = _split(_SOURCE)


def library_source(names: Iterable[str]) -> list[str]:
    """The sources of the named functions and what they call, callees first, each once.

    >>> [text.split("(")[0] for text in library_source(["pm_max"])]
    ['fn pm_isnan', 'fn pm_max']
    """
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        if name not in _LIBRARY:
            raise PlanError(f"the WGSL library has no {name}")
        source, needs = _LIBRARY[name]
        for n in needs:
            visit(n)
        done[name] = source

    for name in names:
        visit(name)
    return list(done.values())
