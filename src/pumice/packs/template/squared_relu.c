// scale * max(x, 0)^2, element by element. Freestanding: no libc, no imports.
#include <stdint.h>

// What kernel_forward gets: offset and size of each region of the module's memory.
typedef struct {
  uint32_t a, a_size, b, b_size, out, out_size, scratch, scratch_size, params, params_size;
} Descriptor;

// The params of kernels.json in their order.
typedef struct {
  float scale;
  uint32_t num_elements;
} Params;

#define EXPORT(name) __attribute__((export_name(#name))) int32_t name

EXPORT(kernel_init)(uint32_t params, uint32_t size) { return (void)params, (void)size, 0; }
EXPORT(kernel_info)(uint32_t info) { return (void)info, 0; }
EXPORT(kernel_cleanup)(void) { return 0; }

// Returns 0, or 1 for a wrong input, 2 for a wrong output, 3 for wrong params.
EXPORT(kernel_forward)(uint32_t at) {
  const Descriptor *d = (const Descriptor *)(uintptr_t)at;
  if (d->params_size != sizeof(Params)) return 3;
  const Params *p = (const Params *)(uintptr_t)d->params;
  if (d->a_size != (uint64_t)p->num_elements * 4) return 1;
  if (d->out_size != d->a_size) return 2;
  const float *x = (const float *)(uintptr_t)d->a;
  float *out = (float *)(uintptr_t)d->out;
  for (uint32_t i = 0; i < p->num_elements; i++) {
    float v = x[i] > 0 ? x[i] : 0;
    out[i] = p->scale * (v * v);
  }
  return 0;
}
