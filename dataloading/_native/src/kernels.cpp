#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace beton {

#ifndef BETON_HAVE_AVX2
const Kernels* avx2_kernels() { return nullptr; }
#endif
#ifndef BETON_HAVE_NEON
const Kernels* neon_kernels() { return nullptr; }
#endif

namespace {

const Kernels* best() {
  const char* wanted = std::getenv("BETON_KERNELS");
  if (wanted != nullptr && std::strcmp(wanted, "portable") == 0) return &kPortableKernels;
  for (const Kernels* vector : {avx2_kernels(), neon_kernels()}) {
    if (vector != nullptr) return vector;
  }
  return &kPortableKernels;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* k = chosen.load(std::memory_order_acquire);
  if (k == nullptr) {
    k = best();
    chosen.store(k, std::memory_order_release);
  }
  return *k;
}

bool select_kernels(const char* name) {
  const Kernels* k = nullptr;
  if (std::strcmp(name, "portable") == 0) k = &kPortableKernels;
  if (std::strcmp(name, "avx2") == 0) k = avx2_kernels();
  if (std::strcmp(name, "neon") == 0) k = neon_kernels();
  if (std::strcmp(name, "auto") == 0) k = best();
  if (k == nullptr) return false;
  chosen.store(k, std::memory_order_release);
  return true;
}

namespace {

bool make_narrow(const Axis& axis, RowPlan* plan) {
  plan->groups = (axis.count + 3) / 4;
  plan->pairs = axis.taps / 2;
  if (plan->pairs > 8) return false;
  const size_t cells = size_t(plan->groups) * size_t(plan->pairs);
  plan->base.assign(size_t(plan->groups), 0);
  plan->masks.assign(cells * 16, 0x80);
  plan->weights.assign(cells * 8, 0);
  for (int g = 0; g < plan->groups; g++) {
    const int outputs = std::min(4, axis.count - 4 * g);
    const int* start = axis.start.data() + 4 * g;
    int base = start[0];
    for (int i = 1; i < outputs; i++) base = std::min(base, start[i]);
    plan->base[size_t(g)] = base;
    uint8_t* masks = plan->masks.data() + size_t(g) * size_t(plan->pairs) * 16;
    int16_t* weights = plan->weights.data() + size_t(g) * size_t(plan->pairs) * 8;
    for (int i = 0; i < outputs; i++) {
      const int offset = start[i] - base;
      const int16_t* w = axis.weight(4 * g + i);
      for (int t = 0; t < axis.taps; t++) {
        if (w[t] == 0) continue;
        if (offset + t > 15) return false;
        const int cell = t / 2, lane = 2 * i + (t & 1);
        masks[cell * 16 + 2 * lane] = uint8_t(offset + t);
        weights[cell * 8 + lane] = w[t];
      }
    }
  }
  plan->base_data = plan->base.data();
  plan->masks_data = plan->masks.data();
  plan->weights_data = plan->weights.data();
  return true;
}

void make_wide(const Axis& axis, RowPlan* plan) {
  plan->wide_taps = (axis.taps + 15) & ~15;
  plan->wide.assign(size_t(plan->wide_taps) * size_t(axis.count), 0);
  plan->wide_used.assign(size_t(axis.count), 0);
  for (int i = 0; i < axis.count; i++) {
    const int16_t* w = axis.weight(i);
    int used = axis.taps;
    while (used > 1 && w[used - 1] == 0) used--;
    std::copy(w, w + used, plan->wide.data() + size_t(i) * size_t(plan->wide_taps));
    plan->wide_used[size_t(i)] = used;
  }
  plan->start_data = axis.start.data();
  plan->wide_used_data = plan->wide_used.data();
  plan->wide_data = plan->wide.data();
}

}  // namespace

void make_row_plan(const Axis& axis, RowPlan* plan) {
  plan->axis = &axis;
  plan->outputs = axis.count;
  plan->narrow = make_narrow(axis, plan);
  if (!plan->narrow) make_wide(axis, plan);
}

}  // namespace beton
