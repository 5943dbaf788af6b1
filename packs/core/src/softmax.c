// exp(x) over its sum along rows of dim floats, less the greatest first. A: x; output: as x.
#include "kernel.h"

typedef struct {
  uint32_t dim, num_elements;
} Params;

KERNEL_ABI(Params)

static float greatest(const float *x, uint32_t dim) {
  v128_t m0 = splat(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  uint32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    m0 = max4(m0, load4(x + i));
    m1 = max4(m1, load4(x + i + 4));
    m2 = max4(m2, load4(x + i + 8));
    m3 = max4(m3, load4(x + i + 12));
  }
  for (; i + 4 <= dim; i += 4) m0 = max4(m0, load4(x + i));
  if (i < dim) m1 = max4(m1, load_some(x + i, dim - i, -__builtin_inff()));
  return max_lanes(max4(max4(m0, m1), max4(m2, m3)));
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t dim = p->dim;
  if (dim == 0 ? p->num_elements != 0 : p->num_elements % dim != 0) return INVALID_PARAMS;
  uint64_t bytes = (uint64_t)p->num_elements * 4;
  if (d->a_size != bytes) return INVALID_INPUT;
  if (d->out_size != bytes) return INVALID_OUTPUT;
  const float *x = AT(float, d->a);
  float *out = AT(float, d->out);
  for (uint32_t done = 0; done < p->num_elements; done += dim, x += dim, out += dim) {
    v128_t top = splat(greatest(x, dim)), s0 = splat(0), s1 = splat(0);
    uint32_t i = 0;
    for (; i + 8 <= dim; i += 8) {
      v128_t e0 = exp4_negative(sub4(load4(x + i), top)), e1 = exp4_negative(sub4(load4(x + i + 4), top));
      store4(out + i, e0);
      store4(out + i + 4, e1);
      s0 = add4(s0, e0);
      s1 = add4(s1, e1);
    }
    for (; i + 4 <= dim; i += 4) {
      v128_t e = exp4_negative(sub4(load4(x + i), top));
      store4(out + i, e);
      s0 = add4(s0, e);
    }
    if (i < dim) {
      // Lanes past the row's end start at -infinity, whose exp is 0. In a row of -infinity alone they are NaN, as the row is.
      v128_t e = exp4_negative(sub4(load_some(x + i, dim - i, -__builtin_inff()), top));
      store_some(out + i, dim - i, e);
      s1 = add4(s1, e);
    }
    v128_t scale = splat(1.0f / sum_lanes(add4(s0, s1)));
    for (i = 0; i + 4 <= dim; i += 4) store4(out + i, mul4(load4(out + i), scale));
    for (; i < dim; i++) out[i] *= wasm_f32x4_extract_lane(scale, 0);
  }
  return OK;
}
