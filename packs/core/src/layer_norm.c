// (x - mean) / sqrt(variance + eps) * weight + bias over rows of hidden_dim floats.
// A: x; B: weight [hidden_dim], bias [hidden_dim]; output: as x.
#include "kernel.h"

typedef struct {
  float eps;
  uint32_t hidden_dim, num_elements;
} Params;

KERNEL_ABI(Params)

static float mean(const float *x, uint32_t dim) {
  v128_t s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
  uint32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    s0 = add4(s0, load4(x + i));
    s1 = add4(s1, load4(x + i + 4));
    s2 = add4(s2, load4(x + i + 8));
    s3 = add4(s3, load4(x + i + 12));
  }
  for (; i + 4 <= dim; i += 4) s0 = add4(s0, load4(x + i));
  if (i < dim) s1 = add4(s1, load_some(x + i, dim - i, 0));
  return sum_lanes(add4(add4(s0, s1), add4(s2, s3))) / (float)dim;
}

// A pass of its own: the difference of two sums would lose all digits of rows far from zero.
static float variance(const float *x, uint32_t dim, float centre) {
  v128_t m = splat(centre), s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
  uint32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    v128_t a = sub4(load4(x + i), m), b = sub4(load4(x + i + 4), m);
    v128_t c = sub4(load4(x + i + 8), m), d = sub4(load4(x + i + 12), m);
    s0 = add4(s0, mul4(a, a));
    s1 = add4(s1, mul4(b, b));
    s2 = add4(s2, mul4(c, c));
    s3 = add4(s3, mul4(d, d));
  }
  for (; i + 4 <= dim; i += 4) {
    v128_t a = sub4(load4(x + i), m);
    s0 = add4(s0, mul4(a, a));
  }
  if (i < dim) {
    v128_t a = sub4(load_some(x + i, dim - i, centre), m);
    s1 = add4(s1, mul4(a, a));
  }
  return sum_lanes(add4(add4(s0, s1), add4(s2, s3))) / (float)dim;
}

static inline v128_t normal(v128_t x, v128_t centre, v128_t scale, v128_t weight, v128_t bias) {
  return add4(mul4(mul4(sub4(x, centre), scale), weight), bias);
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t dim = p->hidden_dim;
  if (dim == 0 ? p->num_elements != 0 : p->num_elements % dim != 0) return INVALID_PARAMS;
  uint64_t bytes = (uint64_t)p->num_elements * 4, row = (uint64_t)dim * 4;
  if (d->a_size != bytes || d->b_size != align16(row) + row) return INVALID_INPUT;
  if (d->out_size != bytes) return INVALID_OUTPUT;
  const float *x = AT(float, d->a), *weight = AT(float, d->b), *bias = AT(float, d->b + (uint32_t)align16(row));
  float *out = AT(float, d->out);
  for (uint32_t done = 0; done < p->num_elements; done += dim, x += dim, out += dim) {
    float m = mean(x, dim);
    v128_t centre = splat(m), scale = splat(1.0f / __builtin_sqrtf(variance(x, dim, m) + p->eps));
    uint32_t i = 0;
    for (; i + 4 <= dim; i += 4) {
      store4(out + i, normal(load4(x + i), centre, scale, load4(weight + i), load4(bias + i)));
    }
    if (i < dim) {
      uint32_t rest = dim - i;
      v128_t w = load_some(weight + i, rest, 0), b = load_some(bias + i, rest, 0);
      store_some(out + i, rest, normal(load_some(x + i, rest, 0), centre, scale, w, b));
    }
  }
  return OK;
}
