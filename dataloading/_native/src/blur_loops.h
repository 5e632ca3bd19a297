// Included by the kernels of every instruction set, into anonymous namespaces; see blur.cpp.
#ifndef BETON_BLUR_LOOPS_H
#define BETON_BLUR_LOOPS_H

#include <cstring>

#include "kernels.h"

namespace beton {

namespace {

inline int mirrored(int i, int n) {
  i = i < 0 ? -i : i;
  return i >= n ? 2 * (n - 1) - i : i;
}

// kWeigh: out[i] = lost + w[0] * m[i] + sum over j of w[j] * mean(m[i - j * step], m[i + j * step]), modulo 65536, for i < n, a
// multiple of kBlurBlock; means are rounded up, of products the upper half is taken.
template <void (*kWeigh)(const uint16_t* middle, ptrdiff_t step, const BlurWeights& weights, int n, uint16_t* out)>
void blur_plane(const BlurPlan& plan, const uint8_t* source, int height, int width, uint8_t* target) {
  const ptrdiff_t pitch = plan.pitch;
  uint16_t *const line = plan.line, *const sums = plan.sums, *const rows = plan.rows;
  for (int y = 0; y < height; y++) {
    const uint8_t* pixels = source + ptrdiff_t(y) * width;
    for (int x = 0; x < width; x++) line[x] = uint16_t(pixels[x] << 8);
    for (int j = 1; j <= plan.across.reach; j++) {
      line[-j] = line[mirrored(-j, width)];
      line[width - 1 + j] = line[mirrored(width - 1 + j, width)];
    }
    kWeigh(line, 1, plan.across, plan.pitch, rows + y * pitch);
  }
  for (int k = 1; k <= plan.down.reach; k++) {
    const size_t bytes = size_t(pitch) * sizeof *rows;
    std::memcpy(rows - k * pitch, rows + mirrored(-k, height) * pitch, bytes);
    const int below = height - 1 + k;
    std::memcpy(rows + below * pitch, rows + mirrored(below, height) * pitch, bytes);
  }
  for (int y = 0; y < height; y++) {
    kWeigh(rows + y * pitch, pitch, plan.down, plan.pitch, sums);
    uint8_t* pixels = target + ptrdiff_t(y) * width;
    for (int x = 0; x < width; x++) pixels[x] = uint8_t((sums[x] + 128) >> 8);
  }
}

}  // namespace

}  // namespace beton

#endif
