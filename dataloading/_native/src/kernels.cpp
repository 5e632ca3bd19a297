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
  constexpr int kHalf = kGroup / 2;
  plan->base.resize(size_t(plan->groups) * 2);
  plan->masks.resize(size_t(plan->groups) * 32);
  for (int half = 0; half < 2 * plan->groups; half++) {
    const int* start = axis.start.data() + kHalf * half;
    const int* end = axis.end.data() + kHalf * half;
    const int base = *std::min_element(start, start + kHalf);
    if (*std::max_element(end, end + kHalf) - base > 16) return false;
    plan->base[size_t(half)] = base;
    for (int i = 0; i < kHalf; i++) {
      // Sample `from`, a zero, sample `from` + 1, a zero.
      const uint32_t mask = 0x80018000u + uint32_t(start[i] - base) * 0x00010001u;
      std::memcpy(plan->masks.data() + 16 * half + 4 * i, &mask, 4);
    }
  }
  plan->base_data = plan->base.data();
  plan->masks_data = plan->masks.data();
  return true;
}

void make_wide(const Axis& axis, RowPlan* plan) {
  const int outputs = plan->groups * kGroup;
  plan->wide_taps = (2 * axis.pairs + 15) & ~15;
  plan->wide.assign(size_t(plan->wide_taps) * size_t(outputs), 0);
  plan->wide_used.resize(size_t(outputs));
  for (int i = 0; i < outputs; i++) {
    const int16_t* from = axis.weight(i);
    int16_t* to = plan->wide.data() + size_t(i) * size_t(plan->wide_taps);
    for (int p = 0; p < axis.pairs; p++) std::memcpy(to + 2 * p, from + p * 2 * kGroup, 4);
    plan->wide_used[size_t(i)] = axis.end[size_t(i)] - axis.start[size_t(i)];
  }
  plan->start_data = axis.start.data();
  plan->wide_used_data = plan->wide_used.data();
  plan->wide_data = plan->wide.data();
}

}  // namespace

void make_row_plan(const Axis& axis, RowPlan* plan) {
  plan->axis = &axis;
  plan->outputs = axis.count;
  plan->groups = int(axis.start.size()) / kGroup;
  plan->pairs = axis.pairs;
  plan->weights_data = axis.weights.data();
  plan->narrow = axis.pairs <= 8 && make_narrow(axis, plan);
  if (!plan->narrow) make_wide(axis, plan);
}

}  // namespace beton
