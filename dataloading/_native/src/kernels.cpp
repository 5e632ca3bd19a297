#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace beton {

#ifndef BETON_HAVE_AVX2
const Kernels* avx2_kernels() { return nullptr; }
#endif

namespace {

const Kernels* best() {
  const Kernels* avx2 = avx2_kernels();
  const char* wanted = std::getenv("BETON_KERNELS");
  if (wanted != nullptr && std::strcmp(wanted, "portable") == 0) return &kPortableKernels;
  return avx2 != nullptr ? avx2 : &kPortableKernels;
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
  if (std::strcmp(name, "auto") == 0) k = best();
  if (k == nullptr) return false;
  chosen.store(k, std::memory_order_release);
  return true;
}

void make_row_plan(const Axis& axis, RowPlan* plan) {
  plan->axis = &axis;
  plan->groups = (axis.count + 3) / 4;
  plan->pairs = axis.taps / 2;
  plan->narrow = plan->pairs <= 8;
  if (!plan->narrow) return;
  const size_t cells = size_t(plan->groups) * size_t(plan->pairs);
  plan->base.assign(size_t(plan->groups), 0);
  plan->masks.assign(cells * 16, 0x80);
  plan->weights.assign(cells * 8, 0);
  for (int g = 0; g < plan->groups; g++) {
    const int outputs = std::min(4, axis.count - 4 * g);
    int base = axis.start[size_t(4 * g)];
    for (int i = 1; i < outputs; i++) base = std::min(base, axis.start[size_t(4 * g + i)]);
    plan->base[size_t(g)] = base;
    for (int i = 0; i < outputs; i++) {
      const int offset = axis.start[size_t(4 * g + i)] - base;
      const int16_t* w = axis.weight(4 * g + i);
      for (int t = 0; t < axis.taps; t++) {
        if (w[t] == 0) continue;
        if (offset + t > 15) {
          plan->narrow = false;
          return;
        }
        const size_t cell = size_t(g) * size_t(plan->pairs) + size_t(t / 2);
        plan->masks[cell * 16 + size_t(4 * i + 2 * (t & 1))] = uint8_t(offset + t);
        plan->weights[cell * 8 + size_t(2 * i + (t & 1))] = w[t];
      }
    }
  }
}

}  // namespace beton
