// Values have eight bits behind the point, weights sixteen. First rows are blurred across, then columns down; the mean of two
// pixels as far away on both sides takes one product. Products are cut off, by half a unit in the mean; each sum begins with
// what that comes to. Results are within a hundredth of a level of the exact sum in the mean, before they are rounded.
#include "blur.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace beton {

namespace {

constexpr int kBlock = 32;

int rounded_up(int n) { return (n + kBlock - 1) & -kBlock; }

int mirrored(int i, int n) {
  i = i < 0 ? -i : i;
  return i >= n ? 2 * (n - 1) - i : i;
}

// Weights of the pixel itself, and of the two pixels 1, 2, ... steps away together; 65536 is 1.
struct Weights {
  const uint16_t* values;
  int reach;
  uint16_t lost;
};

Weights make_weights(double sigma, int reach, uint16_t* values) {
  reach = int(std::min(double(reach), std::ceil(4.0 * sigma)));
  double total = 1.0;
  for (int j = 1; j <= reach; j++) total += 2.0 * std::exp(-0.5 * (j / sigma) * (j / sigma));
  int rest = 65536, products = 1;
  for (int j = 1; j <= reach; j++) {
    const int weight = int(std::lrint(2.0 * 65536.0 * std::exp(-0.5 * (j / sigma) * (j / sigma)) / total));
    values[j] = uint16_t(weight);
    rest -= weight;
    products += weight != 0;
  }
  values[0] = uint16_t(std::min(rest, 65535));
  return {values, reach, uint16_t(products / 2)};
}

uint16_t high_half(uint16_t a, uint16_t b) { return uint16_t((uint32_t(a) * uint32_t(b)) >> 16); }

// out[i] for i < n, a multiple of kBlock, from middle[i - reach * step .. i + reach * step].
void weigh_portable(const uint16_t* middle, ptrdiff_t step, const Weights& weights, int n, uint16_t* out) {
  for (int i = 0; i < n; i += kBlock) {
    uint16_t sums[kBlock];
    uint16_t weight = weights.values[0];
    for (int k = 0; k < kBlock; k++) sums[k] = uint16_t(high_half(middle[i + k], weight) + weights.lost);
    for (int j = 1; j <= weights.reach; j++) {
      const uint16_t* left = middle + i - j * step;
      const uint16_t* right = middle + i + j * step;
      weight = weights.values[j];
      for (int k = 0; k < kBlock; k++) {
        const uint16_t mean = uint16_t((left[k] | right[k]) - uint16_t((left[k] ^ right[k]) >> 1));  // rounded up
        sums[k] = uint16_t(sums[k] + high_half(mean, weight));
      }
    }
    std::memcpy(out + i, sums, sizeof sums);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline __m256i load(const uint16_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

__attribute__((target("avx2"))) void weigh_avx2(const uint16_t* middle, ptrdiff_t step, const Weights& weights, int n,
                                                uint16_t* out) {
  const __m256i first = _mm256_set1_epi16(short(weights.values[0])), lost = _mm256_set1_epi16(short(weights.lost));
  for (int i = 0; i < n; i += kBlock) {
    __m256i sum = _mm256_add_epi16(_mm256_mulhi_epu16(load(middle + i), first), lost);
    __m256i next = _mm256_add_epi16(_mm256_mulhi_epu16(load(middle + i + 16), first), lost);
    const uint16_t* left = middle + i;
    const uint16_t* right = middle + i;
    for (int j = 1; j <= weights.reach; j++) {
      left -= step;
      right += step;
      const __m256i weight = _mm256_set1_epi16(short(weights.values[j]));
      const __m256i mean = _mm256_avg_epu16(load(left), load(right));
      const __m256i next_mean = _mm256_avg_epu16(load(left + 16), load(right + 16));
      sum = _mm256_add_epi16(sum, _mm256_mulhi_epu16(mean, weight));
      next = _mm256_add_epi16(next, _mm256_mulhi_epu16(next_mean, weight));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), sum);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16), next);
  }
}
#endif

template <void (*weigh)(const uint16_t*, ptrdiff_t, const Weights&, int, uint16_t*)>
inline __attribute__((always_inline)) void blur(const uint8_t* source, int channels, int height, int width,
                                                const double sigma[2], const double kernel[2], Buffer* memory,
                                                uint8_t* target) {
  const int reaches[2] = {int(kernel[0]) / 2, int(kernel[1]) / 2};
  const int pitch = rounded_up(width), margin = rounded_up(reaches[0]);
  const int counts[2] = {rounded_up(reaches[0] + 1), rounded_up(reaches[1] + 1)};
  const size_t line_size = size_t(pitch) + 2 * size_t(margin);
  const size_t rows_size = size_t(pitch) * size_t(height + 2 * reaches[1]);
  uint16_t* next = memory->get<uint16_t>(size_t(counts[0]) + size_t(counts[1]) + line_size + size_t(pitch) + rows_size);
  const Weights across = make_weights(sigma[0], reaches[0], next);
  next += counts[0];
  const Weights down = make_weights(sigma[1], reaches[1], next);
  next += counts[1];
  uint16_t* line = next + margin;
  next += line_size;
  uint16_t* sums = next;
  uint16_t* rows = next + pitch + ptrdiff_t(down.reach) * pitch;  // row 0 of the plane
  for (int c = 0; c < channels; c++) {
    const ptrdiff_t plane = ptrdiff_t(c) * height * width;
    for (int y = 0; y < height; y++) {
      const uint8_t* pixels = source + plane + ptrdiff_t(y) * width;
      for (int x = 0; x < width; x++) line[x] = uint16_t(pixels[x] << 8);
      for (int j = 1; j <= across.reach; j++) {
        line[-j] = line[mirrored(-j, width)];
        line[width - 1 + j] = line[mirrored(width - 1 + j, width)];
      }
      weigh(line, 1, across, pitch, rows + ptrdiff_t(y) * pitch);
    }
    for (int k = 1; k <= down.reach; k++) {
      const size_t bytes = size_t(pitch) * sizeof *rows;
      std::memcpy(rows - ptrdiff_t(k) * pitch, rows + ptrdiff_t(mirrored(-k, height)) * pitch, bytes);
      const int below = height - 1 + k;
      std::memcpy(rows + ptrdiff_t(below) * pitch, rows + ptrdiff_t(mirrored(below, height)) * pitch, bytes);
    }
    for (int y = 0; y < height; y++) {
      weigh(rows + ptrdiff_t(y) * pitch, pitch, down, pitch, sums);
      uint8_t* pixels = target + plane + ptrdiff_t(y) * width;
      for (int x = 0; x < width; x++) pixels[x] = uint8_t((sums[x] + 128) >> 8);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void blur_avx2(const uint8_t* source, int channels, int height, int width,
                                               const double sigma[2], const double kernel[2], Buffer* memory,
                                               uint8_t* target) {
  blur<weigh_avx2>(source, channels, height, width, sigma, kernel, memory, target);
}
#endif

}  // namespace

void gaussian_blur(const uint8_t* source, int channels, int height, int width, const double sigma[2],
                   const double kernel[2], Buffer* memory, uint8_t* target) {
#if defined(__x86_64__)
  if (&kernels() != &kPortableKernels) {
    blur_avx2(source, channels, height, width, sigma, kernel, memory, target);
    return;
  }
#endif
  blur<weigh_portable>(source, channels, height, width, sigma, kernel, memory, target);
}

}  // namespace beton
