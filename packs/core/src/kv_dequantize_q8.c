// What kv_quantize_q8 made, as floats: value * scale of its vector. A: values, i8; B: scales, one f32 a vector; output: f32.
#include "kernel.h"

typedef struct {
  uint32_t num_rows, dim;
} Params;

KERNEL_ABI(Params)

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t rows = p->num_rows, dim = p->dim;
  if (dim > 1u << 30) return INVALID_PARAMS;
  uint64_t elements = (uint64_t)rows * dim;
  if (d->a_size != elements || d->b_size != (uint64_t)rows * 4) return INVALID_INPUT;
  if (d->out_size != elements * 4) return INVALID_OUTPUT;
  const int8_t *values = AT(int8_t, d->a);
  const float *scales = AT(float, d->b);
  float *out = AT(float, d->out);
  for (uint32_t row = 0; row < rows; row++, values += dim, out += dim) {
    v128_t scale = splat(scales[row]);
    uint32_t i = 0;
    for (; i + 8 <= dim; i += 8) {
      v128_t wide = wasm_i16x8_load8x8(values + i);
      store4(out + i, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wide)), scale));
      store4(out + i + 4, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(wide)), scale));
    }
    for (; i < dim; i++) out[i] = (float)values[i] * scales[row];
  }
  return OK;
}
