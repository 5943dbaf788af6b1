// x * gate / (1 + exp(-beta * gate)), element by element. A: x; B: gate; output: as x.
#include "kernel.h"

typedef struct {
  uint32_t num_elements, hidden_dim;
  float beta;
} Params;

KERNEL_ABI(Params)

static inline v128_t gated(v128_t x, v128_t gate, v128_t negative_beta) {
  return mul4(x, div4(gate, add4(splat(1.0f), exp4(mul4(gate, negative_beta)))));
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t n = p->num_elements;
  if (d->a_size != (uint64_t)n * 4 || d->b_size != d->a_size) return INVALID_INPUT;
  if (d->out_size != d->a_size) return INVALID_OUTPUT;
  const float *x = AT(float, d->a), *gate = AT(float, d->b);
  float *out = AT(float, d->out);
  v128_t negative_beta = splat(-p->beta);
  uint32_t i = 0;
  for (; n - i >= 4; i += 4) store4(out + i, gated(load4(x + i), load4(gate + i), negative_beta));
  if (i < n) store_some(out + i, n - i, gated(load_some(x + i, n - i, 0), load_some(gate + i, n - i, 0), negative_beta));
  return OK;
}
