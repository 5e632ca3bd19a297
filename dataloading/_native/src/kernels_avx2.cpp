// Compiled with -mavx2 -mbmi -mbmi2 -mfma and reached only where the processor has them. Everything in here is in
// anonymous namespaces and calls no inline library code: a function shared with other files could be emitted with
// these instructions and then be picked by the linker for all of them.
#include "kernels.h"

#include <cpuid.h>
#include <immintrin.h>

#include "vector_loops.h"

namespace beton {

namespace {

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Sixteen bytes in each lane.
inline __m256i two_halves(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

inline __m256i twice(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

inline __m256i sixteen(const uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

constexpr int kRowShift = kWeightBits - kValueBits;

// Sums in 32 bits of two rows a and b; values with six fractional bits of both in turns.
inline __m256i two_rows_of_values(__m256i a, __m256i b) {
  const __m256i half = _mm256_set1_epi32(1 << (kRowShift - 1));
  a = _mm256_srli_epi32(_mm256_add_epi32(a, half), kRowShift);
  b = _mm256_slli_epi32(_mm256_add_epi32(b, half), 16 - kRowShift);
  return _mm256_blend_epi16(a, b, 0xAA);
}

// Byte shuffles gather each output's taps; kPairs is a constant so that masks and weights stay in registers.
template <int kPairs>
void horizontal_narrow(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                       ptrdiff_t dst_stride) {
  for (int g = 0; g < plan.groups; g++) {
    __m256i mask[kPairs], weight[kPairs];
    mask[0] = load(plan.masks_data + 32 * g);
    for (int p = 0; p < kPairs; p++) {
      if (p > 0) mask[p] = _mm256_add_epi8(mask[p - 1], _mm256_set1_epi8(2));
      weight[p] = load(plan.weights_data + (g * kPairs + p) * 2 * kGroup);
    }
    const uint8_t* low = src + plan.base_data[2 * g];
    const uint8_t* high = src + plan.base_data[2 * g + 1];
    int16_t* d = dst + 2 * kGroup * g;
    for (int k = 0; k < row_pairs; k++) {
      const __m256i a = two_halves(low, high), b = two_halves(low + src_stride, high + src_stride);
      __m256i sum_a = _mm256_madd_epi16(_mm256_shuffle_epi8(a, mask[0]), weight[0]);
      __m256i sum_b = _mm256_madd_epi16(_mm256_shuffle_epi8(b, mask[0]), weight[0]);
      for (int p = 1; p < kPairs; p++) {
        sum_a = _mm256_add_epi32(sum_a, _mm256_madd_epi16(_mm256_shuffle_epi8(a, mask[p]), weight[p]));
        sum_b = _mm256_add_epi32(sum_b, _mm256_madd_epi16(_mm256_shuffle_epi8(b, mask[p]), weight[p]));
      }
      store(d, two_rows_of_values(sum_a, sum_b));
      low += 2 * src_stride;
      high += 2 * src_stride;
      d += dst_stride;
    }
  }
}

// The sums of four vectors.
inline __m128i four_sums(const __m256i v[4]) {
  const __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

// Long filters (strong reduction): four outputs of two rows at a time, 16 taps a step.
void horizontal_wide(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                     ptrdiff_t dst_stride) {
  const int taps = plan.wide_taps;
  for (int k = 0; k < row_pairs; k++, src += 2 * src_stride, dst += dst_stride) {
    const int16_t* w = plan.wide_data;
    for (int i = 0; i < kGroup * plan.groups; i += 4) {
      __m256i a[4], b[4];
      for (int j = 0; j < 4; j++, w += taps) {
        const uint8_t* from = src + plan.start_data[i + j];
        a[j] = b[j] = _mm256_setzero_si256();
        for (int t = 0; t < plan.wide_used_data[i + j]; t += 16) {
          const __m256i weight = load(w + t);
          a[j] = _mm256_add_epi32(a[j], _mm256_madd_epi16(sixteen(from + t), weight));
          b[j] = _mm256_add_epi32(b[j], _mm256_madd_epi16(sixteen(from + t + src_stride), weight));
        }
      }
      const __m256i both = two_rows_of_values(_mm256_castsi128_si256(four_sums(a)), _mm256_castsi128_si256(four_sums(b)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i), _mm256_castsi256_si128(both));
    }
  }
}

// Sixteen values of an output row less `minus`, from value i on, in the order 0 to 3, 8 to 11; 4 to 7, 12 to 15. kPairs pairs
// of rows, or as many as the column has where that is 0.
template <int kPairs, int kMinus = 0>
inline __m256i column_values(const Column& column, ptrdiff_t stride, int i) {
  __m256i low = _mm256_set1_epi32((1 << (kWeightBits - 1)) - (kMinus << kWeightBits)), high = low;
  const int16_t* s = column.rows + 2 * i;
  const int16_t* w = column.weights;
  for (int p = 0; p < (kPairs > 0 ? kPairs : column.pairs); p++, s += stride, w += 2 * kGroup) {
    int pair;
    __builtin_memcpy(&pair, w, 4);
    const __m256i weight = _mm256_set1_epi32(pair);
    low = _mm256_add_epi32(low, _mm256_madd_epi16(load(s), weight));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(load(s + 16), weight));
  }
  return _mm256_packs_epi32(_mm256_srai_epi32(low, kWeightBits), _mm256_srai_epi32(high, kWeightBits));
}

// (v + 32) >> 6.
inline __m256i round_value(__m256i v) { return _mm256_mulhrs_epi16(v, _mm256_set1_epi16(1 << (15 - kValueBits))); }

// Sixteen values to sixteen bytes; the last few outputs go through a small buffer, so nothing behind n is written.
inline void store_bytes(__m256i v, uint8_t* dst, int n) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(v, v), 0x08);
  const __m128i bytes = _mm256_castsi256_si128(packed);
  if (n >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), bytes);
  } else {
    alignas(16) uint8_t rest[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(rest), bytes);
    for (int i = 0; i < n; i++) dst[i] = rest[i];
  }
}

// The first n of thirty-two bytes.
inline void store_first(__m256i bytes, uint8_t* dst, int n) {
  if (n >= 32) {
    store(dst, bytes);
  } else {
    alignas(32) uint8_t rest[32];
    store(rest, bytes);
    for (int i = 0; i < n; i++) dst[i] = rest[i];
  }
}

// Thirty-two values in the order of column_values.
inline void store_values(__m256i first, __m256i second, uint8_t* dst, int n) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  store_first(_mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order), dst, n);
}

template <int kPairs>
void finish_plane_of(const Column& column, ptrdiff_t stride, int n, uint8_t* out) {
  for (int i = 0; i < n; i += 32) {
    const __m256i first = column_values<kPairs>(column, stride, i), second = column_values<kPairs>(column, stride, i + 16);
    store_values(round_value(first), round_value(second), out + i, n - i);
  }
}

// What red, green and blue are more than y: the factors of exact_ycc_to_rgb less what exceeds 16 bits, of green by half.
inline void colours_of(__m256i u, __m256i v, __m256i* red, __m256i* green, __m256i* blue) {
  const __m256i green_uv = _mm256_set1_epi32(int(uint32_t(-46802 / 2) << 16 | uint16_t(-22554 / 2)));
  const __m256i low = _mm256_srai_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(u, v), green_uv), 15);
  const __m256i high = _mm256_srai_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(u, v), green_uv), 15);
  *red = _mm256_add_epi16(v, _mm256_mulhi_epi16(v, _mm256_set1_epi16(91881 - 65536)));
  *green = _mm256_packs_epi32(low, high);
  *blue = _mm256_add_epi16(_mm256_add_epi16(u, u), _mm256_mulhi_epi16(u, _mm256_set1_epi16(116130 - 131072)));
  const __m256i fraction = _mm256_set1_epi16((1 << kValueBits) - 1), zero = _mm256_setzero_si256();
  const __m256i whole = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_or_si256(u, v), fraction), zero);
  // Whole chroma: these three are rounded, to no bits of a fraction; elsewhere 0 is added and nothing is cut off.
  const __m256i more = _mm256_and_si256(whole, _mm256_set1_epi16(1 << (kValueBits - 1))), cut = _mm256_and_si256(whole, fraction);
  for (__m256i* colour : {red, green, blue}) *colour = _mm256_andnot_si256(cut, _mm256_add_epi16(*colour, more));
}

// kLuma and kChroma pairs of rows, as in column_values.
template <int kLuma, int kChroma>
void finish_ycc_of(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  const Column luma = columns[0], chroma_u = columns[1], chroma_v = columns[2];
  for (int i = 0; i < n; i += 32) {
    __m256i red[2], green[2], blue[2];
    for (int h = 0; h < 2; h++) {
      const int at = i + 16 * h;
      const __m256i u = column_values<kChroma, 128 << kValueBits>(chroma_u, stride, at);
      const __m256i v = column_values<kChroma, 128 << kValueBits>(chroma_v, stride, at);
      colours_of(u, v, &red[h], &green[h], &blue[h]);
      const __m256i y = column_values<kLuma>(luma, stride, at);
      red[h] = round_value(_mm256_adds_epi16(y, red[h]));
      green[h] = round_value(_mm256_adds_epi16(y, green[h]));
      blue[h] = round_value(_mm256_adds_epi16(y, blue[h]));
    }
    store_values(red[0], red[1], r + i, n - i);
    store_values(green[0], green[1], g + i, n - i);
    store_values(blue[0], blue[1], b + i, n - i);
  }
}

// Bytes of which the place is 0, 1 and 2 more than a multiple of three.
inline __m256i third(int k) {
  alignas(16) static const int8_t kThirds[18] = {-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0};
  return twice(kThirds + (3 - k) % 3);
}

// x, but y and z at those bytes.
inline __m256i mix(__m256i x, __m256i y, int y_at, __m256i z, int z_at) {
  return _mm256_blendv_epi8(_mm256_blendv_epi8(x, y, third(y_at)), z, third(z_at));
}

// The order in which the places first, first + step, first + 2 * step ... follow each other, modulo 16.
inline __m256i order(int first, int step) {
  alignas(16) int8_t places[16];
  for (int i = 0; i < 16; i++) places[i] = int8_t((first + step * i) & 15);
  return twice(places);
}

// Sixteen pixels at each of two places, taken apart; the last one comes first where kMirror. In three vectors of 16 bytes a
// colour's samples lie at places that no two of them share: blending puts them into one vector, shuffling in order.
template <bool kMirror>
inline void split_pixels(const uint8_t* first, const uint8_t* second, __m256i colours[3]) {
  const __m256i a = two_halves(first, second), b = two_halves(first + 16, second + 16), c = two_halves(first + 32, second + 32);
  constexpr int kFirst = kMirror ? 3 * 15 : 0, kStep = kMirror ? -3 : 3;
  colours[0] = _mm256_shuffle_epi8(mix(a, b, 2, c, 1), order(kFirst, kStep));
  colours[1] = _mm256_shuffle_epi8(mix(a, b, 0, c, 2), order(kFirst + 1, kStep));
  colours[2] = _mm256_shuffle_epi8(mix(a, b, 1, c, 0), order(kFirst + 2, kStep));
}

// The way back.
inline void merge_pixels(const __m256i colours[3], uint8_t* first, uint8_t* second) {
  const __m256i r = _mm256_shuffle_epi8(colours[0], order(0, 11)), g = _mm256_shuffle_epi8(colours[1], order(5, 11)),
                b = _mm256_shuffle_epi8(colours[2], order(10, 11));
  const __m256i thirds[3] = {mix(r, g, 1, b, 2), mix(r, g, 0, b, 1), mix(r, g, 2, b, 0)};
  for (int i = 0; i < 3; i++) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(first) + i, _mm256_castsi256_si128(thirds[i]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(second) + i, _mm256_extracti128_si256(thirds[i], 1));
  }
}

// 32 pixels at a time, 16 in each half of a register; the last ones overlap with those before. At least 16 a row.
template <bool kMirror>
void split_wide_rows(const uint8_t* rgb, ptrdiff_t rgb_stride, int width, int height, uint8_t* const planes[3],
                     ptrdiff_t stride) {
  const int last = width - 16;
  for (int y = 0; y < height; y++) {
    const uint8_t* row = rgb + y * rgb_stride;
    const ptrdiff_t out = y * stride;
    for (int i = 0; i < width; i += 32) {
      const int first = i < last ? i : last, second = i + 16 < last ? i + 16 : last;
      __m256i colours[3];
      split_pixels<kMirror>(row + 3 * first, row + 3 * second, colours);
      const ptrdiff_t at_first = out + (kMirror ? last - first : first);
      const ptrdiff_t at_second = out + (kMirror ? last - second : second);
      for (int c = 0; c < 3; c++) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[c] + at_first), _mm256_castsi256_si128(colours[c]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[c] + at_second), _mm256_extracti128_si256(colours[c], 1));
      }
    }
  }
}

void split_rows(const uint8_t* rgb, ptrdiff_t rgb_stride, int width, int height, bool mirror, uint8_t* const planes[3],
                ptrdiff_t stride) {
  if (width >= 16) {
    return (mirror ? split_wide_rows<true> : split_wide_rows<false>)(rgb, rgb_stride, width, height, planes, stride);
  }
  for (int y = 0; y < height; y++) {
    for (int i = 0; i < 3 * width; i++) {
      const int x = i / 3;
      planes[i % 3][y * stride + (mirror ? width - 1 - x : x)] = rgb[y * rgb_stride + i];
    }
  }
}

void split_rgb(const uint8_t* rgb, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  uint8_t* const planes[3] = {r, g, b};
  split_rows(rgb, 0, n, 1, false, planes, 0);
}

void merge_rgb(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* rgb) {
  const uint8_t* const from[3] = {r, g, b};
  __m256i colours[3];
  if (n < 16) {
    for (int i = 0; i < n; i++) {
      for (int c = 0; c < 3; c++) rgb[3 * i + c] = from[c][i];
    }
  } else if (n < 32) {
    for (int c = 0; c < 3; c++) colours[c] = two_halves(from[c], from[c] + n - 16);
    merge_pixels(colours, rgb, rgb + 3 * (n - 16));
  } else {
    for (int i = 0; i < n; i += 32) {
      if (i > n - 32) i = n - 32;
      for (int c = 0; c < 3; c++) colours[c] = load(from[c] + i);
      merge_pixels(colours, rgb + 3 * i, rgb + 3 * i + 48);
    }
  }
}

// libjpeg's fancy upsampling (jdsample.c), one row: near * 3/4 + far * 1/4 with its alternating rounding.
void blend_rows(const uint8_t* near, const uint8_t* far, int n, int bias, uint8_t* out) {
  for (int i = 0; i < n; i++) out[i] = uint8_t((3 * near[i] + far[i] + bias) >> 2);
}

// Outputs 2i + 1 and 2i + 2, as 16 bits, from samples a = i and b = i + 1 of 16 i: (3a + b + odd) >> shift is the lower byte.
template <int kShift>
inline __m256i between(__m256i a, __m256i b, __m256i odd, __m256i even) {
  const __m256i both = _mm256_add_epi16(a, b);
  const __m256i low = _mm256_add_epi16(_mm256_add_epi16(both, odd), _mm256_add_epi16(a, a));
  const __m256i high = _mm256_add_epi16(_mm256_add_epi16(both, even), _mm256_add_epi16(b, b));
  return _mm256_or_si256(_mm256_srli_epi16(low, kShift),
                         _mm256_slli_epi16(_mm256_srli_epi16(high, kShift), 8));
}

void double_row(const uint8_t* in, int n, uint8_t* out) {
  const __m256i one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
  out[0] = in[0];
  each_pair(
      n, [&](int i) { store(out + 2 * i + 1, between<2>(sixteen(in + i), sixteen(in + i + 1), two, one)); },
      [&](int i) {
        out[2 * i + 1] = uint8_t((3 * in[i] + in[i + 1] + 2) >> 2);
        out[2 * i + 2] = uint8_t((3 * in[i + 1] + in[i] + 1) >> 2);
      });
  out[2 * n - 1] = in[n - 1];
}

void double_both(const uint8_t* near, const uint8_t* far, int n, uint8_t* out) {
  const __m256i weights = _mm256_set1_epi16(1 << 8 | 3), seven = _mm256_set1_epi16(7), eight = _mm256_set1_epi16(8);
  const auto blend = [&](int i) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(near + i));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(far + i));
    return _mm256_maddubs_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)), weights);
  };
  const auto sum = [&](int i) { return 3 * near[i] + far[i]; };
  out[0] = uint8_t((4 * sum(0) + 8) >> 4);
  each_pair(
      n, [&](int i) { store(out + 2 * i + 1, between<4>(blend(i), blend(i + 1), seven, eight)); },
      [&](int i) {
        out[2 * i + 1] = uint8_t((3 * sum(i) + sum(i + 1) + 7) >> 4);
        out[2 * i + 2] = uint8_t((3 * sum(i + 1) + sum(i) + 8) >> 4);
      });
  out[2 * n - 1] = uint8_t((4 * sum(n - 1) + 7) >> 4);
}

// libjpeg's colour conversion (jdcolor.c), exactly, of 32 pixels: what factors exceed 16 bits by is added as whole chroma values.
inline void exact_colours(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, __m256i colours[3]) {
  const __m256i red = _mm256_set1_epi16(91881 - 65536), blue = _mm256_set1_epi16(116130 - 131072);
  const __m256i green = _mm256_set1_epi32(int(uint32_t(uint16_t(65536 - 46802)) << 16 | uint16_t(-22554)));
  const __m256i half = _mm256_set1_epi32(32768), one = _mm256_set1_epi16(1), middle = _mm256_set1_epi16(128);
  // The product over 2^16, rounded: one bit more is kept until one half has been added.
  const auto times = [one](__m256i p, __m256i factor) {
    return _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(_mm256_add_epi16(p, p), factor), one), 1);
  };
  const auto sum = [green, half](__m256i pairs) {
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(pairs, green), half), 16);
  };
  __m256i parts[3][2];
  for (int h = 0; h < 2; h++) {
    const __m256i l = sixteen(y + 16 * h), u = _mm256_sub_epi16(sixteen(cb + 16 * h), middle),
                  v = _mm256_sub_epi16(sixteen(cr + 16 * h), middle);
    const __m256i both = _mm256_packs_epi32(sum(_mm256_unpacklo_epi16(u, v)), sum(_mm256_unpackhi_epi16(u, v)));
    parts[0][h] = _mm256_add_epi16(_mm256_add_epi16(l, v), times(v, red));
    parts[1][h] = _mm256_add_epi16(_mm256_sub_epi16(l, v), both);
    parts[2][h] = _mm256_add_epi16(_mm256_add_epi16(l, _mm256_add_epi16(u, u)), times(u, blue));
  }
  for (int c = 0; c < 3; c++) {
    colours[c] = _mm256_permute4x64_epi64(_mm256_packus_epi16(parts[c][0], parts[c][1]), 0xD8);
  }
}

void exact_ycc_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* r, uint8_t* g,
                      uint8_t* b) {
  __m256i colours[3];
  for (int i = 0; i < n; i += 32) {
    exact_colours(y + i, cb + i, cr + i, colours);
    store_first(colours[0], r + i, n - i);
    store_first(colours[1], g + i, n - i);
    store_first(colours[2], b + i, n - i);
  }
}

void exact_ycc_to_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* rgb) {
  __m256i colours[3];
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    exact_colours(y + i, cb + i, cr + i, colours);
    merge_pixels(colours, rgb + 3 * i, rgb + 3 * i + 48);
  }
  if (i == n) return;
  uint8_t rest[96];
  exact_colours(y + i, cb + i, cr + i, colours);
  merge_pixels(colours, rest, rest + 48);
  __builtin_memcpy(rgb + 3 * i, rest, size_t(3 * (n - i)));
}

int64_t colour_excess(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n) {
  alignas(64) static const uint8_t kKept[64] = {
      255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
      255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
  const auto pair = [](int first, int second) {
    return _mm256_set1_epi16(short(uint16_t(uint8_t(second)) << 8 | uint8_t(first)));
  };
  const __m256i red = pair(0, 90), green = pair(-22, -46), blue = pair(113, 0);
  const __m256i red_0 = _mm256_set1_epi16(90 * 128), green_0 = _mm256_set1_epi16(-68 * 128),
                blue_0 = _mm256_set1_epi16(113 * 128);
  const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi8(-1);
  __m256i sum = zero;
  for (int i = 0; i < n; i += 32) {
    const __m256i l = load(y + i), u = load(cb + i), v = load(cr + i);
    __m256i up[2], down[2];
    for (int half = 0; half < 2; half++) {
      const __m256i uv = half == 0 ? _mm256_unpacklo_epi8(u, v) : _mm256_unpackhi_epi8(u, v);
      const __m256i r = _mm256_sub_epi16(_mm256_maddubs_epi16(uv, red), red_0);
      const __m256i g = _mm256_sub_epi16(_mm256_maddubs_epi16(uv, green), green_0);
      const __m256i b = _mm256_sub_epi16(_mm256_maddubs_epi16(uv, blue), blue_0);
      up[half] = _mm256_srai_epi16(_mm256_max_epi16(r, _mm256_max_epi16(g, b)), 6);
      down[half] = _mm256_srai_epi16(_mm256_sub_epi16(zero, _mm256_min_epi16(r, _mm256_min_epi16(g, b))), 6);
    }
    const __m256i above = _mm256_subs_epu8(l, _mm256_xor_si256(_mm256_packus_epi16(up[0], up[1]), ones));
    const __m256i below = _mm256_subs_epu8(_mm256_packus_epi16(down[0], down[1]), l);
    __m256i both = _mm256_adds_epu8(above, below);
    if (n - i < 32) both = _mm256_and_si256(both, load(kKept + 32 - (n - i)));
    sum = _mm256_add_epi64(sum, _mm256_sad_epu8(both, zero));
  }
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1);
}

size_t find_marker(const uint8_t* data, size_t size) {
  const __m256i ff = _mm256_set1_epi8(-1), zero = _mm256_setzero_si256();
  size_t at = 0;
  for (; at + 33 <= size; at += 32) {
    const __m256i first = _mm256_cmpeq_epi8(load(data + at), ff);
    const __m256i second = _mm256_cmpeq_epi8(load(data + at + 1), zero);
    const uint32_t hit = uint32_t(_mm256_movemask_epi8(_mm256_andnot_si256(second, first)));
    if (hit != 0) return at + size_t(__builtin_ctz(hit));
  }
  for (; at < size; at++) {
    if (data[at] == 0xFF && (at + 1 >= size || data[at + 1] != 0)) return at;
  }
  return size;
}

size_t unstuff(const uint8_t* data, size_t size, uint8_t* out) {
  const __m256i ff = _mm256_set1_epi8(-1);
  size_t at = 0, used = 0;
  while (at + 32 <= size) {
    const __m256i v = load(data + at);
    store(out + used, v);
    const uint32_t hit = uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, ff)));
    if (hit == 0) {
      at += 32;
      used += 32;
    } else {
      const size_t n = size_t(__builtin_ctz(hit)) + 1;
      at += n + 1;  // over the FF and its 00
      used += n;
    }
  }
  while (at < size) {
    out[used++] = data[at];
    at += data[at] == 0xFF ? 2 : 1;
  }
  return used;
}

size_t stuff(const uint8_t* data, size_t size, uint8_t* out) {
  const __m256i ff = _mm256_set1_epi8(-1);
  size_t at = 0, used = 0;
  while (at + 32 <= size) {
    const __m256i v = load(data + at);
    store(out + used, v);
    const uint32_t hit = uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, ff)));
    if (hit == 0) {
      at += 32;
      used += 32;
    } else {
      const size_t n = size_t(__builtin_ctz(hit)) + 1;
      at += n;
      used += n;
      out[used++] = 0;
    }
  }
  for (; at < size; at++) {
    out[used++] = data[at];
    if (data[at] == 0xFF) out[used++] = 0;
  }
  return used;
}

// Products of row pairs: a * wa + b * wb in 32 bits, low and high halves of each lane.
struct Wide {
  __m256i low, high;
};

inline Wide products(__m256i a, __m256i b, int wa, int wb) {
  const __m256i w = _mm256_set1_epi32(int(uint32_t(uint16_t(wb)) << 16 | uint16_t(wa)));
  return {_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), w), _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), w)};
}

inline Wide shifted(__m256i a) {  // a << 13 in 32 bits
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, a), 3), _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, a), 3)};
}

inline Wide operator+(Wide a, Wide b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }

inline Wide operator-(Wide a, Wide b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }

template <int kShift>
inline __m256i shifted_down(Wide a) {
  return _mm256_packs_epi32(_mm256_srai_epi32(a.low, kShift), _mm256_srai_epi32(a.high, kShift));
}

inline Wide half_of(int shift) {
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  return {half, half};
}

template <int kShift>
inline __m256i descale(Wide a) {
  return shifted_down<kShift>(a + half_of(kShift));
}

// jidctint.c along the registers' index; the arithmetic of transform() in kernels_portable.cpp, 16 columns at once.
template <int kShift>
inline void transform(__m256i v[8]) {
  const Wide even2 = products(v[2], v[6], 4433, 4433 - 15137), even3 = products(v[2], v[6], 4433 + 6270, 4433);
  // One of these two is in each result's sum, and so is the half that rounds it.
  const Wide even0 = shifted(_mm256_add_epi16(v[0], v[4])) + half_of(kShift);
  const Wide even1 = shifted(_mm256_sub_epi16(v[0], v[4])) + half_of(kShift);
  const Wide t10 = even0 + even3, t13 = even0 - even3, t11 = even1 + even2, t12 = even1 - even2;
  const __m256i z3 = _mm256_add_epi16(v[7], v[3]), z4 = _mm256_add_epi16(v[5], v[1]);
  const Wide a3 = products(z3, z4, 9633 - 16069, 9633), a4 = products(z3, z4, 9633, 9633 - 3196);
  const Wide t0 = products(v[7], v[1], 2446 - 7373, -7373) + a3;
  const Wide t3 = products(v[7], v[1], -7373, 12299 - 7373) + a4;
  const Wide t1 = products(v[5], v[3], 16819 - 20995, -20995) + a4;
  const Wide t2 = products(v[5], v[3], -20995, 25172 - 20995) + a3;
  v[0] = shifted_down<kShift>(t10 + t3);
  v[7] = shifted_down<kShift>(t10 - t3);
  v[1] = shifted_down<kShift>(t11 + t2);
  v[6] = shifted_down<kShift>(t11 - t2);
  v[2] = shifted_down<kShift>(t12 + t1);
  v[5] = shifted_down<kShift>(t12 - t1);
  v[3] = shifted_down<kShift>(t13 + t0);
  v[4] = shifted_down<kShift>(t13 - t0);
}

inline void transpose(__m256i v[8]) {  // 8 x 8 in each lane
  const __m256i a0 = _mm256_unpacklo_epi16(v[0], v[1]), a1 = _mm256_unpackhi_epi16(v[0], v[1]);
  const __m256i a2 = _mm256_unpacklo_epi16(v[2], v[3]), a3 = _mm256_unpackhi_epi16(v[2], v[3]);
  const __m256i a4 = _mm256_unpacklo_epi16(v[4], v[5]), a5 = _mm256_unpackhi_epi16(v[4], v[5]);
  const __m256i a6 = _mm256_unpacklo_epi16(v[6], v[7]), a7 = _mm256_unpackhi_epi16(v[6], v[7]);
  const __m256i b0 = _mm256_unpacklo_epi32(a0, a2), b1 = _mm256_unpackhi_epi32(a0, a2);
  const __m256i b2 = _mm256_unpacklo_epi32(a1, a3), b3 = _mm256_unpackhi_epi32(a1, a3);
  const __m256i b4 = _mm256_unpacklo_epi32(a4, a6), b5 = _mm256_unpackhi_epi32(a4, a6);
  const __m256i b6 = _mm256_unpacklo_epi32(a5, a7), b7 = _mm256_unpackhi_epi32(a5, a7);
  v[0] = _mm256_unpacklo_epi64(b0, b4);
  v[1] = _mm256_unpackhi_epi64(b0, b4);
  v[2] = _mm256_unpacklo_epi64(b1, b5);
  v[3] = _mm256_unpackhi_epi64(b1, b5);
  v[4] = _mm256_unpacklo_epi64(b2, b6);
  v[5] = _mm256_unpackhi_epi64(b2, b6);
  v[6] = _mm256_unpacklo_epi64(b3, b7);
  v[7] = _mm256_unpackhi_epi64(b3, b7);
}

inline void store_two_rows(__m128i bytes, uint8_t* out, ptrdiff_t stride) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), bytes);
  _mm_storeh_pd(reinterpret_cast<double*>(out + stride), _mm_castsi128_pd(bytes));
}

// Two blocks at once, one a lane.
void idct_pair(const int16_t* a, const uint16_t* quant_a, uint8_t* out_a, ptrdiff_t stride_a, const int16_t* b,
               const uint16_t* quant_b, uint8_t* out_b, ptrdiff_t stride_b) {
  const auto rows = [](const void* x, const void* y) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(x))),
                                   _mm_loadu_si128(static_cast<const __m128i*>(y)), 1);
  };
  __m256i v[8];
  for (int i = 0; i < 8; i++) {
    v[i] = _mm256_mullo_epi16(rows(a + 8 * i, b + 8 * i), rows(quant_a + 8 * i, quant_b + 8 * i));
  }
  // libjpeg takes a shorter way where only the first row of coefficients is set, and that one wraps at 16 bits. No sound
  // file gets there, but its pixels are promised for all that decode.
  const __m256i first = _mm256_slli_epi16(v[0], 2);
  const __m256i same = _mm256_cmpeq_epi16(_mm256_srai_epi16(first, 2), v[0]);
  if (__builtin_expect(_mm256_movemask_epi8(same) != -1, 0)) {
    __m256i rest = rows(a + 8, b + 8);
    for (int i = 2; i < 8; i++) rest = _mm256_or_si256(rest, rows(a + 8 * i, b + 8 * i));
    const int empty = _mm256_movemask_epi8(_mm256_cmpeq_epi8(rest, _mm256_setzero_si256()));
    const __m256i shorter = _mm256_set_m128i(_mm_set1_epi8(empty >> 16 == -1 ? -1 : 0),
                                             _mm_set1_epi8((empty & 0xFFFF) == 0xFFFF ? -1 : 0));
    transform<11>(v);
    for (int i = 0; i < 8; i++) v[i] = _mm256_blendv_epi8(v[i], first, shorter);
  } else {
    transform<11>(v);
  }
  transpose(v);
  transform<18>(v);
  transpose(v);
  const __m256i bias = _mm256_set1_epi8(-128);
  for (int i = 0; i < 8; i += 2) {
    const __m256i bytes = _mm256_add_epi8(_mm256_packs_epi16(v[i], v[i + 1]), bias);
    store_two_rows(_mm256_castsi256_si128(bytes), out_a + i * stride_a, stride_a);
    store_two_rows(_mm256_extracti128_si256(bytes, 1), out_b + i * stride_b, stride_b);
  }
}

#include "forward_avx2.h"

}  // namespace

}  // namespace beton

#include "block_loops.h"
#include "blur_loops.h"
#include "color_avx2.h"
#include "symbol_loops.h"
#include "weight_loops.h"

namespace beton {

namespace {

inline __m256i fir_sum(__m256i low, __m256i high) {
  return _mm256_add_epi32(_mm256_slli_epi32(high, kFirLowBits), low);
}

inline __m128i fir_pixel(__m256i low, __m256i high) {
  const __m256i sum = fir_sum(low, high);
  const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(1 << (kFirBits - 1))), kFirBits);
}

inline void store_pixel(uint8_t* p, int v) { __builtin_memcpy(p, &v, 4); }

void fir_rows(const FirAxis& axis, const uint8_t* const rows[4], uint8_t* const out[4]) {
  // Four pixels of 16 bytes as 16-bit pairs: red, green, blue of pixels 0 and 1, then of 2 and 3.
  const __m256i spread = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i lows = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), highs = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  const int32_t* parts = axis.parts_data;
  for (int i = 0; i < axis.outputs; i++, parts += axis.taps) {
    __m256i low[4], high[4];
    for (int r = 0; r < 4; r++) low[r] = high[r] = _mm256_setzero_si256();
    ptrdiff_t at = 3 * ptrdiff_t(axis.start_data[i]);
    const int used = axis.used_data[i];
    for (int t = 0; t < used; t += 4, at += 12) {
      const __m256i w = twice(parts + t);
      const __m256i w_low = _mm256_permutevar8x32_epi32(w, lows), w_high = _mm256_permutevar8x32_epi32(w, highs);
      for (int r = 0; r < 4; r++) {
        const __m256i v = _mm256_shuffle_epi8(twice(rows[r] + at), spread);
        low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(v, w_low));
        high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(v, w_high));
      }
    }
    const __m128i ab = _mm_packs_epi32(fir_pixel(low[0], high[0]), fir_pixel(low[1], high[1]));
    const __m128i cd = _mm_packs_epi32(fir_pixel(low[2], high[2]), fir_pixel(low[3], high[3]));
    const __m128i bytes = _mm_packus_epi16(ab, cd);
    store_pixel(out[0] + 3 * ptrdiff_t(i), _mm_extract_epi32(bytes, 0));
    store_pixel(out[1] + 3 * ptrdiff_t(i), _mm_extract_epi32(bytes, 1));
    store_pixel(out[2] + 3 * ptrdiff_t(i), _mm_extract_epi32(bytes, 2));
    store_pixel(out[3] + 3 * ptrdiff_t(i), _mm_extract_epi32(bytes, 3));
  }
}

void fir_columns(const FirAxis& axis, int row, const uint8_t* src, ptrdiff_t stride, int n, uint8_t* out) {
  const int32_t* parts = axis.parts_data + ptrdiff_t(row) * axis.taps;
  const int used = axis.used_data[row];
  const __m256i half = _mm256_set1_epi32(1 << (kFirBits - 1));
  src += axis.start_data[row] * stride;
  for (int i = 0; i < n; i += 16) {
    const uint8_t* from = src + i;
    __m256i low0 = half, low1 = half, high0 = _mm256_setzero_si256(), high1 = high0;
    for (int t = 0; t < used; t += 2, from += 2 * stride) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + stride));
      const __m256i v0 = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), v1 = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
      const __m256i w_low = _mm256_set1_epi32(parts[t]), w_high = _mm256_set1_epi32(parts[t + 1]);
      low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(v0, w_low));
      low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(v1, w_low));
      high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(v0, w_high));
      high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(v1, w_high));
    }
    const __m256i s0 = _mm256_srai_epi32(fir_sum(low0, high0), kFirBits);
    const __m256i s1 = _mm256_srai_epi32(fir_sum(low1, high1), kFirBits);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(s0, s1), 0xD8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    if (n - i >= 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
    } else {
      alignas(16) uint8_t last[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(last), bytes);
      for (int j = 0; j < n - i; j++) out[i + j] = last[j];
    }
  }
}

// A byte shuffle looks up 16 values by the lower four bits, and gives 0 where the highest bit is set. So of 16 values after
// the other, each as its difference (exclusive or) to the 16 before, those up to the wanted ones add up to them.
// Sixteen values a row of the table are looked up at a time by the lower four bits; the upper four choose among the
// rows, one bit after the other.
inline __m256i choose(const __m256i rows[16], __m256i bytes) {
  const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
  const __m256i bit5 = _mm256_slli_epi16(bytes, 2), bit6 = _mm256_slli_epi16(bytes, 1), bit4 = _mm256_slli_epi16(bytes, 3);
  __m256i quarters[4];
  for (int k = 0; k < 4; k++) {
    const __m256i* four = rows + 4 * k;
    const __m256i first = _mm256_blendv_epi8(_mm256_shuffle_epi8(four[0], low), _mm256_shuffle_epi8(four[1], low), bit4);
    const __m256i second = _mm256_blendv_epi8(_mm256_shuffle_epi8(four[2], low), _mm256_shuffle_epi8(four[3], low), bit4);
    quarters[k] = _mm256_blendv_epi8(first, second, bit5);
  }
  return _mm256_blendv_epi8(_mm256_blendv_epi8(quarters[0], quarters[1], bit6),
                            _mm256_blendv_epi8(quarters[2], quarters[3], bit6), bytes);
}

void look_up(const uint8_t* src, const uint8_t table[256], size_t n, uint8_t* out) {
  __m256i rows[16];
  for (int k = 0; k < 16; k++) {
    rows[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * k)));
  }
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), choose(rows, bytes));
  }
  for (; i < n; i++) out[i] = table[src[i]];
}

void to_floats(const uint8_t* src, const float line[5], size_t n, float* out) {
  const __m256i zero = _mm256_set1_epi32(int(line[0]));
  const __m256 a = _mm256_set1_ps(line[1]), b = _mm256_set1_ps(line[2]);
  const __m256 c = _mm256_set1_ps(line[3]), d = _mm256_set1_ps(line[4]);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int k = 0; k < 32; k += 8) {
      const __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(src + i + k)));
      const __m256 x = _mm256_cvtepi32_ps(_mm256_sub_epi32(words, zero));
      const __m256 rest = _mm256_add_ps(_mm256_mul_ps(x, c), d);
      _mm256_storeu_ps(out + i + k, _mm256_add_ps(_mm256_fmadd_ps(x, a, b), rest));
    }
  }
  for (; i < n; i++) {
    const float x = float(src[i]) - line[0];
    out[i] = (x * line[1] + line[2]) + (x * line[3] + line[4]);
  }
}

inline void weigh(const uint16_t* middle, ptrdiff_t step, const BlurWeights& weights, int n, uint16_t* out) {
  const __m256i first = _mm256_set1_epi16(short(weights.values[0])), lost = _mm256_set1_epi16(short(weights.lost));
  for (int i = 0; i < n; i += kBlurBlock) {
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
    store(out + i, sum);
    store(out + i + 16, next);
  }
}

const Kernels kAvx2Kernels = {
    "avx2",      horizontal, finish_plane, finish_ycc, split_rgb, split_rows,    merge_rgb,   find_marker, unstuff,
    decode_mcus, blend_rows, double_row, double_both, exact_ycc_to_rgb, exact_ycc_to_pixels, colour_excess, read_symbols, write_codes, stuff,       rgb_to_ycc,
    halve_row,   halve_both, encode_mcus, fir_rows,  fir_columns, make_box_filter, make_weights, look_up, to_floats,
    blur_plane<weigh>, sum_of_greys_avx2, blend, gray_avx2, saturate_avx2, turn_hue<turn_thirds_avx2>};

}  // namespace

const Kernels* avx2_kernels() {
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c >> 5 & 1) != 0;
  const bool runs = lzcnt && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("fma");
  return runs ? &kAvx2Kernels : nullptr;
}

}  // namespace beton
