// y + scale * (x @ a) @ b: what a LoRA adapter adds to the result y of a linear layer with input x.
// A: y, num_rows of `outputs` floats; B: x [num_rows, inputs], a [inputs, rank], b [rank, outputs]; output: as y.
#include "kernel.h"

#define MAX_RANK 256

typedef struct {
  uint32_t num_rows, inputs, outputs, rank;
  float scale;
} Params;

KERNEL_ABI(Params)

// out = start + factor * sum_k x[k] * w[k, :], for w of `count` rows of `width`; start may be 0.
static void add_product(const float *x, const float *w, const float *start, float *out, uint32_t count, uint32_t width, float factor) {
  v128_t f = splat(factor), zero = splat(0);
  uint32_t i = 0;
  for (; i + 16 <= width; i += 16) {
    v128_t s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    const float *p = w + i;
    for (uint32_t k = 0; k < count; k++, p += width) {
      v128_t xk = splat(x[k]);
      s0 = add4(s0, mul4(xk, load4(p)));
      s1 = add4(s1, mul4(xk, load4(p + 4)));
      s2 = add4(s2, mul4(xk, load4(p + 8)));
      s3 = add4(s3, mul4(xk, load4(p + 12)));
    }
    store4(out + i, add4(start ? load4(start + i) : zero, mul4(f, s0)));
    store4(out + i + 4, add4(start ? load4(start + i + 4) : zero, mul4(f, s1)));
    store4(out + i + 8, add4(start ? load4(start + i + 8) : zero, mul4(f, s2)));
    store4(out + i + 12, add4(start ? load4(start + i + 12) : zero, mul4(f, s3)));
  }
  for (; i + 4 <= width; i += 4) {
    v128_t s = zero;
    for (uint32_t k = 0; k < count; k++) s = add4(s, mul4(splat(x[k]), load4(w + k * width + i)));
    store4(out + i, add4(start ? load4(start + i) : zero, mul4(f, s)));
  }
  for (; i < width; i++) {
    float s = 0;
    for (uint32_t k = 0; k < count; k++) s += x[k] * w[k * width + i];
    out[i] = (start ? start[i] : 0) + factor * s;
  }
}

EXPORT(kernel_forward)(uint32_t at) {
  static float low[MAX_RANK];
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t inputs = p->inputs, outputs = p->outputs, rank = p->rank;
  if (rank > MAX_RANK || inputs > 1u << 24 || outputs > 1u << 24) return INVALID_PARAMS;
  uint64_t x_size = (uint64_t)p->num_rows * inputs * 4, a_size = (uint64_t)inputs * rank * 4, b_size = (uint64_t)rank * outputs * 4;
  uint64_t bytes = (uint64_t)p->num_rows * outputs * 4;
  if (d->a_size != bytes || d->b_size != align16(x_size) + align16(a_size) + b_size) return INVALID_INPUT;
  if (d->out_size != bytes) return INVALID_OUTPUT;
  const float *y = AT(float, d->a), *x = AT(float, d->b);
  const float *a = AT(float, d->b + (uint32_t)align16(x_size)), *b = AT(float, d->b + (uint32_t)(align16(x_size) + align16(a_size)));
  float *out = AT(float, d->out);
  for (uint32_t row = 0; row < p->num_rows; row++, x += inputs, y += outputs, out += outputs) {
    add_product(x, a, 0, low, inputs, rank, 1.0f);
    add_product(low, b, y, out, rank, outputs, p->scale);
  }
  return OK;
}
