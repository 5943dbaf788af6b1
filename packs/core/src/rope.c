// Rotary position embedding. A: x, num_rows rows of head_dim floats; B: cos and sin, each `positions` rows of rotary_dim/2.
// Row r of x turns by row (r / repeat) % positions of the tables. Pair i is (i, i + rotary_dim/2), or (2i, 2i+1) if interleaved;
// (a, b) becomes (a cos - b sin, b cos + a sin). Entries from rotary_dim on pass through. Output: as x.
#include "kernel.h"

typedef struct {
  uint32_t num_rows, head_dim, rotary_dim, positions, repeat, interleaved;
} Params;

KERNEL_ABI(Params)

static void rotate_far(const float *x, const float *cos, const float *sin, float *out, uint32_t half) {
  uint32_t i = 0;
  for (; i + 4 <= half; i += 4) {
    v128_t a = load4(x + i), b = load4(x + half + i), c = load4(cos + i), s = load4(sin + i);
    store4(out + i, sub4(mul4(a, c), mul4(b, s)));
    store4(out + half + i, add4(mul4(b, c), mul4(a, s)));
  }
  for (; i < half; i++) {
    float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[i] + a * sin[i];
  }
}

static void rotate_near(const float *x, const float *cos, const float *sin, float *out, uint32_t half) {
  uint32_t i = 0;
  for (; i + 4 <= half; i += 4) {
    v128_t low = load4(x + 2 * i), high = load4(x + 2 * i + 4), c = load4(cos + i), s = load4(sin + i);
    v128_t a = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), b = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
    v128_t first = sub4(mul4(a, c), mul4(b, s)), second = add4(mul4(b, c), mul4(a, s));
    store4(out + 2 * i, wasm_i32x4_shuffle(first, second, 0, 4, 1, 5));
    store4(out + 2 * i + 4, wasm_i32x4_shuffle(first, second, 2, 6, 3, 7));
  }
  for (; i < half; i++) {
    float a = x[2 * i], b = x[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = AT(Descriptor, at);
  if (d->params_size != sizeof(Params)) return INVALID_PARAMS;
  const Params *p = AT(Params, d->params);
  uint32_t rotary = p->rotary_dim, half = rotary / 2, dim = p->head_dim;
  uint64_t bytes = (uint64_t)p->num_rows * dim * 4, table = (uint64_t)p->positions * half * 4;
  if (rotary % 2 || rotary > dim || dim > 1u << 30) return INVALID_PARAMS;
  if (p->num_rows && (p->positions == 0 || p->repeat == 0)) return INVALID_PARAMS;
  if (d->a_size != bytes || d->b_size != align16(table) + table) return INVALID_INPUT;
  if (d->out_size != bytes) return INVALID_OUTPUT;
  const float *x = AT(float, d->a), *cos = AT(float, d->b), *sin = AT(float, d->b + (uint32_t)align16(table));
  float *out = AT(float, d->out);
  uint32_t position = 0, used = 0;  // (row / repeat) % positions, counted
  for (uint32_t row = 0; row < p->num_rows; row++, x += dim, out += dim) {
    const float *c = cos + position * half, *s = sin + position * half;
    if (p->interleaved) rotate_near(x, c, s, out, half);
    else rotate_far(x, c, s, out, half);
    for (uint32_t i = rotary; i < dim; i++) out[i] = x[i];
    if (++used == p->repeat) {
      used = 0;
      position = position + 1 == p->positions ? 0 : position + 1;
    }
  }
  return OK;
}
