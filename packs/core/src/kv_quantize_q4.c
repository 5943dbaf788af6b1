// Blocks of 32 floats to integers of four bits: scale = max(|x|) / 7, value = x / scale rounded to even, -7 to 7, stored plus 8.
// A: x; output: values, 16 bytes a block, byte j of which holds element j in its low and element j + 16 in its high four bits;
// then (at the next multiple of 16) one f32 scale a block.
#include "kernel.h"

typedef struct {
  uint32_t num_blocks;
} Params;

KERNEL_ABI(Params)

static inline v128_t whole(const float *x, v128_t scale) {
  return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(div4(load4(x), scale)));
}

// Sixteen values, 1 to 15, a byte each.
static inline v128_t four_bits(const float *x, v128_t scale) {
  v128_t low = wasm_i16x8_narrow_i32x4(whole(x, scale), whole(x + 4, scale));
  v128_t high = wasm_i16x8_narrow_i32x4(whole(x + 8, scale), whole(x + 12, scale));
  return wasm_i8x16_add(wasm_i8x16_narrow_i16x8(low, high), wasm_i8x16_splat(8));
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  uint32_t blocks = AT(Params, d->params)->num_blocks;
  uint64_t values = (uint64_t)blocks * 16;
  if (d->a_size != (uint64_t)blocks * 128) return INVALID_INPUT;
  if (d->out_size != values + (uint64_t)blocks * 4) return INVALID_OUTPUT;
  const float *x = AT(float, d->a);
  uint8_t *out = AT(uint8_t, d->out);
  float *scales = AT(float, d->out + (uint32_t)values);
  for (uint32_t block = 0; block < blocks; block++, x += 32, out += 16) {
    v128_t top = splat(1e-30f);  // a block of zeros has a scale too
    for (uint32_t i = 0; i < 32; i += 4) top = max4(top, wasm_f32x4_abs(load4(x + i)));
    float scale = max_lanes(top) / 7.0f;
    scales[block] = scale;
    v128_t s = splat(scale);
    wasm_v128_store(out, wasm_v128_or(four_bits(x, s), wasm_i8x16_shl(four_bits(x + 16, s), 4)));
  }
  return OK;
}
