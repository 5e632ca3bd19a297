// Colours in floats as color_loops.h has them, 32 pixels at a time. Part of kernels_avx2.cpp, whose helpers it uses; nobody
// else includes it.
#ifndef BETON_COLOR_AVX2_H
#define BETON_COLOR_AVX2_H

#include "color_loops.h"

namespace beton {

namespace {

inline __m256 eight_floats(const uint8_t* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}

// Cut off; packing clamps.
inline __m256i bytes_of(const __m256i v[4]) {
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline __m256i eight_greys(__m256 r, __m256 g, __m256 b) {
  const __m256 both = _mm256_add_ps(_mm256_mul_ps(r, _mm256_set1_ps(0.2989f)), _mm256_mul_ps(g, _mm256_set1_ps(0.587f)));
  return _mm256_cvttps_epi32(_mm256_add_ps(both, _mm256_mul_ps(b, _mm256_set1_ps(0.114f))));
}

uint64_t sum_of_greys_avx2(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n) {
  __m256i sum = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i greys = _mm256_setzero_si256();
    for (int k = 0; k < 32; k += 8) {
      greys = _mm256_add_epi32(greys, eight_greys(eight_floats(r + i + k), eight_floats(g + i + k), eight_floats(b + i + k)));
    }
    sum = _mm256_add_epi64(sum, _mm256_and_si256(greys, _mm256_set1_epi64x(0xffffffff)));
    sum = _mm256_add_epi64(sum, _mm256_srli_epi64(greys, 32));
  }
  uint64_t parts[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sum);
  return parts[0] + parts[1] + parts[2] + parts[3] + sum_of_greys(r + i, g + i, b + i, n - i);
}

void gray_avx2(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i greys[4];
    for (size_t k = 0; k < 4; k++) {
      const size_t at = i + 8 * k;
      greys[k] = eight_greys(eight_floats(r + at), eight_floats(g + at), eight_floats(b + at));
    }
    store(r + i, bytes_of(greys));
    store(g + i, bytes_of(greys));
    store(b + i, bytes_of(greys));
  }
  gray(r + i, g + i, b + i, n - i);
}

void saturate_avx2(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n, float factor,
                   float rest) {
  const __m256 factors = _mm256_set1_ps(factor), rests = _mm256_set1_ps(rest);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i out[3][4];
    for (int k = 0; k < 4; k++) {
      const __m256 of[3] = {eight_floats(r + i + 8 * k), eight_floats(g + i + 8 * k), eight_floats(b + i + 8 * k)};
      const __m256 grey = _mm256_mul_ps(_mm256_cvtepi32_ps(eight_greys(of[0], of[1], of[2])), rests);
      for (int c = 0; c < 3; c++) {
        out[c][k] = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_mul_ps(of[c], factors), grey));
      }
    }
    store(r + i, bytes_of(out[0]));
    store(g + i, bytes_of(out[1]));
    store(b + i, bytes_of(out[2]));
  }
  saturate(r + i, g + i, b + i, n - i, factor, rest);
}

// Also what lies behind the last one: a part has room for whole vectors.
void turn_thirds_avx2(HuePart* part, float missing, float levels) {
  const __m256 missing_all = _mm256_set1_ps(missing), level = _mm256_set1_ps(levels), sign = _mm256_set1_ps(-0.0f);
  for (size_t i = 0; i < part->count; i += 32) {
    __m256i thirds[4], reached[4];
    for (int k = 0; k < 4; k++) {
      const size_t at = i + 8 * size_t(k);
      const __m256 span = _mm256_sub_ps(eight_floats(part->tops + at), eight_floats(part->lows + at));
      const __m256 beyond = _mm256_sub_ps(eight_floats(part->places + at), _mm256_mul_ps(missing_all, span));
      const __m256i sectors =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(part->sectors + at)));
      const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_xor_si256(sectors, _mm256_set1_epi32(1)), 31));
      const __m256 apart = _mm256_xor_ps(_mm256_andnot_ps(sign, beyond), even);
      thirds[k] = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_add_ps(eight_floats(part->anchors + at), apart), level));
      const __m256 is_reached = _mm256_cmp_ps(beyond, _mm256_setzero_ps(), _CMP_GE_OQ);
      reached[k] = _mm256_and_si256(_mm256_castps_si256(is_reached), _mm256_set1_epi32(1));
    }
    store(part->thirds + i, bytes_of(thirds));
    store(part->sectors + i, _mm256_add_epi8(load(part->sectors + i), bytes_of(reached)));
  }
}

}  // namespace

}  // namespace beton

#endif
