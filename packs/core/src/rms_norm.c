// x / sqrt(mean(x^2) + eps) * weight over rows of hidden_dim floats. A: x; B: weight [hidden_dim]; output: as x.
#include "kernel.h"

typedef struct {
  float eps;
  uint32_t hidden_dim, num_elements;
} Params;

KERNEL_ABI(Params)

static float mean_square(const float *x, uint32_t dim) {
  v128_t s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
  uint32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    v128_t a = load4(x + i), b = load4(x + i + 4), c = load4(x + i + 8), d = load4(x + i + 12);
    s0 = add4(s0, mul4(a, a));
    s1 = add4(s1, mul4(b, b));
    s2 = add4(s2, mul4(c, c));
    s3 = add4(s3, mul4(d, d));
  }
  for (; i + 4 <= dim; i += 4) s0 = add4(s0, mul4(load4(x + i), load4(x + i)));
  if (i < dim) {
    v128_t a = load_some(x + i, dim - i, 0);
    s1 = add4(s1, mul4(a, a));
  }
  return sum_lanes(add4(add4(s0, s1), add4(s2, s3))) / (float)dim;
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t dim = p->hidden_dim;
  if (dim == 0 ? p->num_elements != 0 : p->num_elements % dim != 0) return INVALID_PARAMS;
  uint64_t bytes = (uint64_t)p->num_elements * 4;
  if (d->a_size != bytes || d->b_size != (uint64_t)dim * 4) return INVALID_INPUT;
  if (d->out_size != bytes) return INVALID_OUTPUT;
  const float *x = AT(float, d->a), *weight = AT(float, d->b);
  float *out = AT(float, d->out);
  for (uint32_t done = 0; done < p->num_elements; done += dim, x += dim, out += dim) {
    v128_t scale = splat(1.0f / __builtin_sqrtf(mean_square(x, dim) + p->eps));
    uint32_t i = 0;
    for (; i + 8 <= dim; i += 8) {
      store4(out + i, mul4(mul4(load4(x + i), scale), load4(weight + i)));
      store4(out + i + 4, mul4(mul4(load4(x + i + 4), scale), load4(weight + i + 4)));
    }
    for (; i + 4 <= dim; i += 4) store4(out + i, mul4(mul4(load4(x + i), scale), load4(weight + i)));
    if (i < dim) {
      uint32_t rest = dim - i;
      store_some(out + i, rest, mul4(mul4(load_some(x + i, rest, 0), scale), load_some(weight + i, rest, 0)));
    }
  }
  return OK;
}
