// What every kernel of this pack shares: the ABI of kernel packs (docs/packs.md) and arithmetic over four floats at a time.
// Freestanding: no libc, no imports.
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

// The ten words that kernel_forward gets: where its regions are in the module's memory.
typedef struct {
  uint32_t a, a_size, b, b_size, out, out_size, scratch, scratch_size, params, params_size;
} Descriptor;

enum { OK = 0, INVALID_INPUT = 1, INVALID_OUTPUT = 2, INVALID_PARAMS = 3 };

#define EXPORT(name) __attribute__((export_name(#name))) int32_t name
#define AT(type, offset) ((type *)(uintptr_t)(offset))

// `Params` is the kernel's struct of parameters, in the order of the manifest.
#define KERNEL_ABI(Params)                                                          \
  EXPORT(kernel_init)(uint32_t params, uint32_t size) {                             \
    (void)params;                                                                   \
    return size == 0 || size == sizeof(Params) ? OK : INVALID_PARAMS;               \
  }                                                                                 \
  EXPORT(kernel_info)(uint32_t info) {                                              \
    (void)info;                                                                     \
    return OK;                                                                      \
  }                                                                                 \
  EXPORT(kernel_cleanup)(void) { return OK; }

// Inputs after the first share region B, outputs their region: each starts at the next multiple of 16 bytes.
static inline uint64_t align16(uint64_t bytes) { return (bytes + 15) & ~(uint64_t)15; }

static inline v128_t load4(const float *p) { return wasm_v128_load(p); }
static inline void store4(float *p, v128_t v) { wasm_v128_store(p, v); }
static inline v128_t splat(float x) { return wasm_f32x4_splat(x); }
static inline v128_t add4(v128_t a, v128_t b) { return wasm_f32x4_add(a, b); }
static inline v128_t sub4(v128_t a, v128_t b) { return wasm_f32x4_sub(a, b); }
static inline v128_t mul4(v128_t a, v128_t b) { return wasm_f32x4_mul(a, b); }
static inline v128_t div4(v128_t a, v128_t b) { return wasm_f32x4_div(a, b); }
// These propagate NaN, as the ops do.
static inline v128_t max4(v128_t a, v128_t b) { return wasm_f32x4_max(a, b); }
static inline v128_t min4(v128_t a, v128_t b) { return wasm_f32x4_min(a, b); }

static inline float sum_lanes(v128_t v) {
  v = add4(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  v = add4(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(v, 0);
}

static inline float max_lanes(v128_t v) {
  v = max4(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  v = max4(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(v, 0);
}

// The first `count` (1 to 3) floats, the other lanes `rest`: ends of rows, so that they go the way of whole vectors.
static inline v128_t load_some(const float *p, uint32_t count, float rest) {
  v128_t v = splat(rest);
  v = wasm_v128_load32_lane(p, v, 0);
  if (count > 1) v = wasm_v128_load32_lane(p + 1, v, 1);
  if (count > 2) v = wasm_v128_load32_lane(p + 2, v, 2);
  return v;
}

static inline void store_some(float *p, uint32_t count, v128_t v) {
  wasm_v128_store32_lane(p, v, 0);
  if (count > 1) wasm_v128_store32_lane(p + 1, v, 1);
  if (count > 2) wasm_v128_store32_lane(p + 2, v, 2);
}

// e to the r times two to the n for x = n ln 2 + r: gives the first factor, within one unit in the last place, and n + ROUND.
// Adding ROUND leaves no digits after the point, so that n is in its low bits. ln 2 is in two parts: n times the first is exact.
#define ROUND 12582912.0f
static inline v128_t exp_parts(v128_t x, v128_t *rounded) {
  v128_t t = add4(mul4(x, splat(1.44269504f)), splat(ROUND)), n = sub4(t, splat(ROUND));
  v128_t r = sub4(sub4(x, mul4(n, splat(0.693359375f))), mul4(n, splat(-2.12194440e-4f)));
  v128_t p = splat(0.00138145941f);
  p = add4(mul4(p, r), splat(0.00836871751f));
  p = add4(mul4(p, r), splat(0.041668389f));
  p = add4(mul4(p, r), splat(0.166665211f));
  p = add4(mul4(p, r), splat(0.49999994f));
  *rounded = t;
  return add4(add4(mul4(mul4(p, r), r), r), splat(1.0f));
}

// e to the x: 0 below -104, infinity above 88.73, NaN for NaN.
static inline v128_t exp4(v128_t x) {
  v128_t t, p = exp_parts(min4(max4(x, splat(-110.0f)), splat(89.0f)), &t);
  // Two to the n as two factors: one alone has no exponent for subnormal results.
  v128_t n = wasm_i32x4_sub(t, splat(ROUND)), first = wasm_i32x4_shr(n, 1), bias = wasm_i32x4_splat(127);
  v128_t scale = wasm_i32x4_shl(wasm_i32x4_add(first, bias), 23);
  v128_t rest = wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_sub(n, first), bias), 23);
  return mul4(mul4(p, scale), rest);
}

// e to the x for x up to 0: 0 below -87.3, where results would be subnormal; NaN for NaN.
static inline v128_t exp4_negative(v128_t x) {
  v128_t t, p = exp_parts(x, &t);
  return wasm_v128_andnot(wasm_i32x4_add(p, wasm_i32x4_shl(t, 23)), wasm_f32x4_lt(x, splat(-87.3f)));
}
