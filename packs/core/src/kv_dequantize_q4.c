// What kv_quantize_q4 made, as floats: (value - 8) * scale of its block. A: values, 16 bytes a block; B: scales, one f32 a block;
// output: 32 floats a block.
#include "kernel.h"

typedef struct {
  uint32_t num_blocks;
} Params;

KERNEL_ABI(Params)

// Eight floats from eight bytes of 0 to 15.
static inline void store8(float *out, v128_t bytes, v128_t scale) {
  v128_t wide = wasm_i16x8_sub(wasm_u16x8_extend_low_u8x16(bytes), wasm_i16x8_splat(8));
  store4(out, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wide)), scale));
  store4(out + 4, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(wide)), scale));
}

static inline v128_t upper8(v128_t bytes) { return wasm_i64x2_shuffle(bytes, bytes, 1, 0); }

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  uint32_t blocks = AT(Params, d->params)->num_blocks;
  if (d->a_size != (uint64_t)blocks * 16 || d->b_size != (uint64_t)blocks * 4) return INVALID_INPUT;
  if (d->out_size != (uint64_t)blocks * 128) return INVALID_OUTPUT;
  const uint8_t *values = AT(uint8_t, d->a);
  const float *scales = AT(float, d->b);
  float *out = AT(float, d->out);
  for (uint32_t block = 0; block < blocks; block++, values += 16, out += 32) {
    v128_t bytes = wasm_v128_load(values), scale = splat(scales[block]);
    v128_t low = wasm_v128_and(bytes, wasm_i8x16_splat(15)), high = wasm_u8x16_shr(bytes, 4);
    store8(out, low, scale);
    store8(out + 8, upper8(low), scale);
    store8(out + 16, high, scale);
    store8(out + 24, upper8(high), scale);
  }
  return OK;
}
