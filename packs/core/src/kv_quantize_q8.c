// Vectors of dim floats to integers of eight bits: scale = max(|x|) / 127, value = x / scale rounded to even, -127 to 127.
// A: x; output: values, i8, in the order of x, then (at the next multiple of 16) one f32 scale a vector.
#include "kernel.h"

typedef struct {
  uint32_t num_rows, dim;
} Params;

KERNEL_ABI(Params)

static inline v128_t eight_bits(v128_t a, v128_t b, v128_t c, v128_t d, v128_t scale) {
  v128_t low = wasm_i16x8_narrow_i32x4(wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(div4(a, scale))),
                                       wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(div4(b, scale))));
  v128_t high = wasm_i16x8_narrow_i32x4(wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(div4(c, scale))),
                                        wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(div4(d, scale))));
  return wasm_i8x16_narrow_i16x8(low, high);
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t rows = p->num_rows, dim = p->dim;
  if (dim > 1u << 30) return INVALID_PARAMS;
  uint64_t elements = (uint64_t)rows * dim, values = align16(elements);
  if (d->a_size != elements * 4) return INVALID_INPUT;
  if (d->out_size != values + (uint64_t)rows * 4) return INVALID_OUTPUT;
  const float *x = AT(float, d->a);
  int8_t *out = AT(int8_t, d->out);
  float *scales = AT(float, d->out + (uint32_t)values);
  for (uint32_t row = 0; row < rows; row++, x += dim, out += dim) {
    v128_t top = splat(0);
    uint32_t i = 0;
    for (; i + 4 <= dim; i += 4) top = max4(top, wasm_f32x4_abs(load4(x + i)));
    if (i < dim) top = max4(top, wasm_f32x4_abs(load_some(x + i, dim - i, 0)));
    // A vector of zeros has a scale too, as 0 / 0 is no number.
    float greatest = max_lanes(max4(top, splat(1e-30f))), scale = greatest / 127.0f;
    scales[row] = scale;
    v128_t s = splat(scale);
    for (i = 0; i + 16 <= dim; i += 16) {
      wasm_v128_store(out + i, eight_bits(load4(x + i), load4(x + i + 4), load4(x + i + 8), load4(x + i + 12), s));
    }
    for (; i < dim; i++) {
      v128_t one = eight_bits(splat(x[i]), s, s, s, s);
      out[i] = (int8_t)wasm_i8x16_extract_lane(one, 0);
    }
  }
  return OK;
}
