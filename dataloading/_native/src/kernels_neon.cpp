// Thread-safety: pure functions over the caller's memory.
//
// The kernels for aarch64, all of whose processors have NEON. Each gives the bytes of its namesake in
// kernels_portable.cpp.
#ifdef __aarch64__
#include "kernels.h"

#include <arm_neon.h>

#include "vector_loops.h"

namespace beton {

namespace {

constexpr int kRowShift = kWeightBits - kValueBits;

inline uint8x16_t low_and_high(uint8x8_t low, uint8x8_t high) { return vcombine_u8(low, high); }

// The last few bytes go through a small buffer, so nothing behind n is written.
inline void store_bytes(uint8x16_t v, uint8_t* dst, int n) {
  if (n >= 16) {
    vst1q_u8(dst, v);
  } else {
    uint8_t rest[16];
    vst1q_u8(rest, v);
    for (int i = 0; i < n; i++) dst[i] = rest[i];
  }
}

// Values with six fractional bits of four outputs of two rows, in turns; sums in 32 bits.
inline void store_two_rows(int32x4_t a, int32x4_t b, int16_t* d) {
  a = vrshrq_n_s32(a, kRowShift);
  b = vrshrq_n_s32(b, kRowShift);
  vst1q_s16(d, vreinterpretq_s16_s32(vsliq_n_s32(a, b, 16)));
}

// Byte shuffles gather the taps of half a group; kPairs is a constant so that masks and weights stay in registers.
template <int kPairs>
void horizontal_narrow(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                       ptrdiff_t dst_stride) {
  for (int half = 0; half < 2 * plan.groups; half++) {
    const int16_t* weights = plan.weights_data + half / 2 * kPairs * 2 * kGroup + half % 2 * kGroup;
    uint8x16_t mask[kPairs];
    int16x8_t weight[kPairs];
    mask[0] = vld1q_u8(plan.masks_data + 16 * half);
    for (int p = 0; p < kPairs; p++) {
      if (p > 0) mask[p] = vaddq_u8(mask[p - 1], vdupq_n_u8(2));
      weight[p] = vld1q_s16(weights + p * 2 * kGroup);
    }
    const auto four_sums = [&](const uint8_t* from) {
      const uint8x16_t bytes = vld1q_u8(from);
      int32x4_t low = vdupq_n_s32(0), high = low;  // two products of outputs 0 and 1, of 2 and 3
      for (int p = 0; p < kPairs; p++) {
        const int16x8_t taps = vreinterpretq_s16_u8(vqtbl1q_u8(bytes, mask[p]));
        low = vmlal_s16(low, vget_low_s16(taps), vget_low_s16(weight[p]));
        high = vmlal_high_s16(high, taps, weight[p]);
      }
      return vpaddq_s32(low, high);
    };
    const uint8_t* from = src + plan.base_data[half];
    int16_t* d = dst + kGroup * half;
    for (int k = 0; k < row_pairs; k++, from += 2 * src_stride, d += dst_stride) {
      store_two_rows(four_sums(from), four_sums(from + src_stride), d);
    }
  }
}

// Long filters (strong reduction): four outputs of two rows at a time, 16 taps a step.
void horizontal_wide(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                     ptrdiff_t dst_stride) {
  const auto add = [](int32x4_t sum, const uint8_t* from, const int16_t* w) {
    const uint8x16_t bytes = vld1q_u8(from);
    const int16x8_t first = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))), w_first = vld1q_s16(w);
    const int16x8_t second = vreinterpretq_s16_u16(vmovl_high_u8(bytes)), w_second = vld1q_s16(w + 8);
    sum = vmlal_s16(sum, vget_low_s16(first), vget_low_s16(w_first));
    sum = vmlal_high_s16(sum, first, w_first);
    sum = vmlal_s16(sum, vget_low_s16(second), vget_low_s16(w_second));
    return vmlal_high_s16(sum, second, w_second);
  };
  for (int k = 0; k < row_pairs; k++, src += 2 * src_stride, dst += dst_stride) {
    const int16_t* w = plan.wide_data;
    for (int i = 0; i < kGroup * plan.groups; i += 4) {
      int32x4_t a[4], b[4];
      for (int j = 0; j < 4; j++, w += plan.wide_taps) {
        const uint8_t* from = src + plan.start_data[i + j];
        a[j] = b[j] = vdupq_n_s32(0);
        for (int t = 0; t < plan.wide_used_data[i + j]; t += 16) {
          a[j] = add(a[j], from + t, w + t);
          b[j] = add(b[j], from + t + src_stride, w + t);
        }
      }
      store_two_rows(vpaddq_s32(vpaddq_s32(a[0], a[1]), vpaddq_s32(a[2], a[3])),
                     vpaddq_s32(vpaddq_s32(b[0], b[1]), vpaddq_s32(b[2], b[3])), dst + 2 * i);
    }
  }
}

// Eight values of an output row, from value i on. kPairs pairs of rows, or as many as the column has where that is 0.
template <int kPairs>
inline int16x8_t column_values(const Column& column, ptrdiff_t stride, int i) {
  // Each sum is kept in two halves, one of each row of the pairs.
  int32x4_t sum[4];
  for (int32x4_t& four : sum) four = vdupq_n_s32(1 << (kWeightBits - 2));
  const int16_t* s = column.rows + 2 * i;
  const int16_t* w = column.weights;
  for (int p = 0; p < (kPairs > 0 ? kPairs : column.pairs); p++, s += stride, w += 2 * kGroup) {
    int32_t pair;
    __builtin_memcpy(&pair, w, 4);
    const int16x8_t weight = vreinterpretq_s16_s32(vdupq_n_s32(pair)), low = vld1q_s16(s), high = vld1q_s16(s + 8);
    sum[0] = vmlal_s16(sum[0], vget_low_s16(low), vget_low_s16(weight));
    sum[1] = vmlal_high_s16(sum[1], low, weight);
    sum[2] = vmlal_s16(sum[2], vget_low_s16(high), vget_low_s16(weight));
    sum[3] = vmlal_high_s16(sum[3], high, weight);
  }
  const int32x4_t first = vpaddq_s32(sum[0], sum[1]), second = vpaddq_s32(sum[2], sum[3]);
  return vqshrn_high_n_s32(vqshrn_n_s32(first, kWeightBits), second, kWeightBits);
}

template <int kPairs>
void finish_plane_of(const Column& column, ptrdiff_t stride, int n, uint8_t* out) {
  for (int i = 0; i < n; i += 16) {
    const uint8x8_t low = vqrshrun_n_s16(column_values<kPairs>(column, stride, i), kValueBits);
    store_bytes(vqrshrun_high_n_s16(low, column_values<kPairs>(column, stride, i + 8), kValueBits), out + i, n - i);
  }
}

// The upper halves of 32-bit sums.
inline int16x8_t upper(int32x4_t low, int32x4_t high) {
  return vuzp2q_s16(vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high));
}

// kLuma and kChroma pairs of rows, as in column_values.
template <int kLuma, int kChroma>
void finish_ycc_of(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  const int16x8_t middle = vdupq_n_s16(128 << kValueBits);
  const int16x8_t fraction = vdupq_n_s16((1 << kValueBits) - 1), half = vdupq_n_s16(1 << (kValueBits - 1));
  for (int i = 0; i < n; i += 16) {
    uint8x8_t red[2], green[2], blue[2];
    for (int h = 0; h < 2; h++) {
      const int at = i + 8 * h;
      const int16x8_t y = column_values<kLuma>(columns[0], stride, at);
      const int16x8_t u = vqsubq_s16(column_values<kChroma>(columns[1], stride, at), middle);
      const int16x8_t v = vqsubq_s16(column_values<kChroma>(columns[2], stride, at), middle);
      // Whole chroma: these three are rounded here, to no bits of a fraction; elsewhere 0 is added and nothing is cut off.
      const int16x8_t whole = vreinterpretq_s16_u16(vceqzq_s16(vandq_s16(vorrq_s16(u, v), fraction)));
      const int16x8_t more = vandq_s16(whole, half), cut = vandq_s16(whole, fraction);
      const auto value = [&](int16x8_t x) {
        return vqrshrun_n_s16(vqaddq_s16(y, vbicq_s16(vaddq_s16(x, more), cut)), kValueBits);
      };
      const int16x8_t red_v = upper(vmull_n_s16(vget_low_s16(v), 91881 - 65536), vmull_high_n_s16(v, 91881 - 65536));
      const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(u), -22554), vget_low_s16(v), 65536 - 46802);
      const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(u, -22554), v, 65536 - 46802);
      red[h] = value(vaddq_s16(v, red_v));
      green[h] = value(vsubq_s16(upper(low, high), v));
      // The factor is even: half of it in a product that is doubled.
      blue[h] = value(vaddq_s16(vaddq_s16(u, u), vqdmulhq_n_s16(u, (116130 - 131072) / 2)));
    }
    store_bytes(low_and_high(red[0], red[1]), r + i, n - i);
    store_bytes(low_and_high(green[0], green[1]), g + i, n - i);
    store_bytes(low_and_high(blue[0], blue[1]), b + i, n - i);
  }
}

void split_rgb(const uint8_t* rgb, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  int i = 0;
  for (; n >= 16 && i < n; i += 16) {
    if (i > n - 16) i = n - 16;  // the last ones overlap with those before
    const uint8x16x3_t v = vld3q_u8(rgb + 3 * i);
    vst1q_u8(r + i, v.val[0]);
    vst1q_u8(g + i, v.val[1]);
    vst1q_u8(b + i, v.val[2]);
  }
  for (; i < n; i++) {
    r[i] = rgb[3 * i];
    g[i] = rgb[3 * i + 1];
    b[i] = rgb[3 * i + 2];
  }
}

void split_rows(const uint8_t* rgb, ptrdiff_t rgb_stride, int width, int height, bool mirror, uint8_t* const planes[3],
                ptrdiff_t stride) {
  const auto reversed = [](uint8x16_t v) {
    const uint8x16_t halves = vrev64q_u8(v);
    return vextq_u8(halves, halves, 8);
  };
  for (int y = 0; y < height; y++) {
    const uint8_t* from = rgb + y * rgb_stride;
    uint8_t* const to[3] = {planes[0] + y * stride, planes[1] + y * stride, planes[2] + y * stride};
    if (!mirror) {
      split_rgb(from, width, to[0], to[1], to[2]);
      continue;
    }
    int i = 0;
    for (; width >= 16 && i < width; i += 16) {
      if (i > width - 16) i = width - 16;
      const uint8x16x3_t v = vld3q_u8(from + 3 * i);
      for (int c = 0; c < 3; c++) vst1q_u8(to[c] + width - 16 - i, reversed(v.val[c]));
    }
    for (; i < width; i++) {
      for (int c = 0; c < 3; c++) to[c][width - 1 - i] = from[3 * i + c];
    }
  }
}

void merge_rgb(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* rgb) {
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16x3_t v = {{vld1q_u8(r + i), vld1q_u8(g + i), vld1q_u8(b + i)}};
    vst3q_u8(rgb + 3 * i, v);
  }
  for (; i < n; i++) {
    rgb[3 * i] = r[i];
    rgb[3 * i + 1] = g[i];
    rgb[3 * i + 2] = b[i];
  }
}

// libjpeg's fancy upsampling (jdsample.c), one row: near * 3/4 + far * 1/4 with its alternating rounding.
void blend_rows(const uint8_t* near, const uint8_t* far, int n, int bias, uint8_t* out) {
  const uint16x8_t start = vdupq_n_u16(uint16_t(bias));
  const uint8x16_t three = vdupq_n_u8(3);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16_t a = vld1q_u8(near + i), b = vld1q_u8(far + i);
    const uint16x8_t low = vaddw_u8(vmlal_u8(start, vget_low_u8(a), vget_low_u8(three)), vget_low_u8(b));
    const uint16x8_t high = vaddw_high_u8(vmlal_high_u8(start, a, three), b);
    vst1q_u8(out + i, vshrn_high_n_u16(vshrn_n_u16(low, 2), high, 2));
  }
  for (; i < n; i++) out[i] = uint8_t((3 * near[i] + far[i] + bias) >> 2);
}

// Sixteen samples as 16 bits.
struct Words {
  uint16x8_t low, high;
};

inline Words three_and_one(uint8x16_t a, uint8x16_t b) {  // 3a + b
  const uint8x16_t three = vdupq_n_u8(3);
  return {vaddw_u8(vmull_u8(vget_low_u8(a), vget_low_u8(three)), vget_low_u8(b)),
          vaddw_high_u8(vmull_high_u8(a, three), b)};
}

inline Words three_and_one(Words a, Words b) { return {vmlaq_n_u16(b.low, a.low, 3), vmlaq_n_u16(b.high, a.high, 3)}; }

// (v + bias) >> kShift; halves are rounded up where kHalf says so instead of a bias.
template <int kShift>
inline uint8x16_t rounded(Words v) {
  return vrshrn_high_n_u16(vrshrn_n_u16(v.low, kShift), v.high, kShift);
}

template <int kShift>
inline uint8x16_t nearly_rounded(Words v) {  // halves down
  const uint16x8_t bias = vdupq_n_u16((1 << (kShift - 1)) - 1);
  return vshrn_high_n_u16(vshrn_n_u16(vaddq_u16(v.low, bias), kShift), vaddq_u16(v.high, bias), kShift);
}

inline void store_in_turns(uint8x16_t a, uint8x16_t b, uint8_t* out) {
  const uint8x16x2_t both = {{a, b}};
  vst2q_u8(out, both);
}

void double_row(const uint8_t* in, int n, uint8_t* out) {
  out[0] = in[0];
  each_pair(
      n,
      [&](int i) {
        const uint8x16_t a = vld1q_u8(in + i), b = vld1q_u8(in + i + 1);
        store_in_turns(rounded<2>(three_and_one(a, b)), nearly_rounded<2>(three_and_one(b, a)), out + 2 * i + 1);
      },
      [&](int i) {
        out[2 * i + 1] = uint8_t((3 * in[i] + in[i + 1] + 2) >> 2);
        out[2 * i + 2] = uint8_t((3 * in[i + 1] + in[i] + 1) >> 2);
      });
  out[2 * n - 1] = in[n - 1];
}

void double_both(const uint8_t* near, const uint8_t* far, int n, uint8_t* out) {
  const auto blend = [&](int i) { return three_and_one(vld1q_u8(near + i), vld1q_u8(far + i)); };
  const auto sum = [&](int i) { return 3 * near[i] + far[i]; };
  out[0] = uint8_t((4 * sum(0) + 8) >> 4);
  each_pair(
      n,
      [&](int i) {
        const Words a = blend(i), b = blend(i + 1);
        store_in_turns(nearly_rounded<4>(three_and_one(a, b)), rounded<4>(three_and_one(b, a)), out + 2 * i + 1);
      },
      [&](int i) {
        out[2 * i + 1] = uint8_t((3 * sum(i) + sum(i + 1) + 7) >> 4);
        out[2 * i + 2] = uint8_t((3 * sum(i + 1) + sum(i) + 8) >> 4);
      });
  out[2 * n - 1] = uint8_t((4 * sum(n - 1) + 7) >> 4);
}

// libjpeg's colour conversion (jdcolor.c), exactly: what factors exceed 16 bits by is added as whole chroma values.
inline uint8x16x3_t exact_colours(const uint8_t* y, const uint8_t* cb, const uint8_t* cr) {
  const uint8x8_t middle = vdup_n_u8(128);
  uint8x8_t red[2], green[2], blue[2];
  for (int h = 0; h < 2; h++) {
    const uint8x8_t l = vld1_u8(y + 8 * h);
    const int16x8_t u = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cb + 8 * h), middle));
    const int16x8_t v = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cr + 8 * h), middle));
    const auto value = [&](int16x8_t x) {
      return vqmovun_s16(vreinterpretq_s16_u16(vaddw_u8(vreinterpretq_u16_s16(x), l)));
    };
    const auto rounded = [](int32x4_t low, int32x4_t high) {
      return vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16);
    };
    const int16x4_t u_low = vget_low_s16(u), v_low = vget_low_s16(v);
    red[h] = value(vaddq_s16(v, rounded(vmull_n_s16(v_low, 91881 - 65536), vmull_high_n_s16(v, 91881 - 65536))));
    green[h] = value(vsubq_s16(rounded(vmlal_n_s16(vmull_n_s16(u_low, -22554), v_low, 65536 - 46802),
                                       vmlal_high_n_s16(vmull_high_n_s16(u, -22554), v, 65536 - 46802)),
                               v));
    // The factor is even: half of it in a product that is doubled.
    blue[h] = value(vaddq_s16(vaddq_s16(u, u), vqrdmulhq_n_s16(u, (116130 - 131072) / 2)));
  }
  return {{low_and_high(red[0], red[1]), low_and_high(green[0], green[1]), low_and_high(blue[0], blue[1])}};
}

void exact_ycc_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* r, uint8_t* g,
                      uint8_t* b) {
  for (int i = 0; i < n; i += 16) {
    const uint8x16x3_t colours = exact_colours(y + i, cb + i, cr + i);
    store_bytes(colours.val[0], r + i, n - i);
    store_bytes(colours.val[1], g + i, n - i);
    store_bytes(colours.val[2], b + i, n - i);
  }
}

void exact_ycc_to_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* rgb) {
  int i = 0;
  for (; i + 16 <= n; i += 16) vst3q_u8(rgb + 3 * i, exact_colours(y + i, cb + i, cr + i));
  if (i == n) return;
  uint8_t rest[48];
  vst3q_u8(rest, exact_colours(y + i, cb + i, cr + i));
  __builtin_memcpy(rgb + 3 * i, rest, size_t(3 * (n - i)));
}

int64_t colour_excess(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n) {
  static const uint8_t kKept[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
  const int8x16_t red = vdupq_n_s8(90), green_u = vdupq_n_s8(-22), green_v = vdupq_n_s8(-46), blue = vdupq_n_s8(113);
  const uint8x16_t middle = vdupq_n_u8(128);
  uint32x4_t sum = vdupq_n_u32(0);
  for (int i = 0; i < n; i += 16) {
    const uint8x16_t l = vld1q_u8(y + i);
    const int8x16_t u = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(cb + i), middle));
    const int8x16_t v = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(cr + i), middle));
    uint8x8_t up[2], down[2];
    const auto half = [&](int h, int16x8_t r, int16x8_t g, int16x8_t b) {
      up[h] = vqshrun_n_s16(vmaxq_s16(r, vmaxq_s16(g, b)), 6);
      down[h] = vqshrun_n_s16(vnegq_s16(vminq_s16(r, vminq_s16(g, b))), 6);
    };
    half(0, vmull_s8(vget_low_s8(v), vget_low_s8(red)),
         vmlal_s8(vmull_s8(vget_low_s8(u), vget_low_s8(green_u)), vget_low_s8(v), vget_low_s8(green_v)),
         vmull_s8(vget_low_s8(u), vget_low_s8(blue)));
    half(1, vmull_high_s8(v, red), vmlal_high_s8(vmull_high_s8(u, green_u), v, green_v), vmull_high_s8(u, blue));
    const uint8x16_t above = vqsubq_u8(l, vmvnq_u8(low_and_high(up[0], up[1])));
    const uint8x16_t below = vqsubq_u8(low_and_high(down[0], down[1]), l);
    uint8x16_t both = vqaddq_u8(above, below);
    if (n - i < 16) both = vandq_u8(both, vld1q_u8(kKept + 16 - (n - i)));
    sum = vpadalq_u16(sum, vpaddlq_u8(both));
  }
  return int64_t(vaddlvq_u32(sum));
}

// Four bits of the result for each byte of a comparison.
inline uint64_t nibbles(uint8x16_t v) {
  return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(v), 4)), 0);
}

// The first byte of 32 that is set; some must be.
inline size_t first_of(uint8x16_t low, uint8x16_t high) {
  const uint64_t first = nibbles(low);
  if (first != 0) return size_t(__builtin_ctzll(first)) / 4;
  return 16 + size_t(__builtin_ctzll(nibbles(high))) / 4;
}

size_t find_marker(const uint8_t* data, size_t size) {
  const uint8x16_t ff = vdupq_n_u8(255);
  const auto marker = [&](const uint8_t* p) {
    const uint8x16_t next = vld1q_u8(p + 1);
    return vandq_u8(vceqq_u8(vld1q_u8(p), ff), vtstq_u8(next, next));
  };
  size_t at = 0;
  for (; at + 33 <= size; at += 32) {
    const uint8x16_t low = marker(data + at), high = marker(data + at + 16);
    if (nibbles(vorrq_u8(low, high)) != 0) return at + first_of(low, high);
  }
  for (; at < size; at++) {
    if (data[at] == 0xFF && (at + 1 >= size || data[at + 1] != 0)) return at;
  }
  return size;
}

// Copies whole vectors from `at` to `used`, up to one with an FF, of which that is the last byte copied; true there.
inline bool copy_to_ff(const uint8_t* data, size_t size, uint8_t* out, size_t& at, size_t& used) {
  const uint8x16_t ff = vdupq_n_u8(255);
  for (; at + 32 <= size; at += 32, used += 32) {
    const uint8x16_t a = vld1q_u8(data + at), b = vld1q_u8(data + at + 16);
    vst1q_u8(out + used, a);
    vst1q_u8(out + used + 16, b);
    const uint8x16_t low = vceqq_u8(a, ff), high = vceqq_u8(b, ff);
    if (nibbles(vorrq_u8(low, high)) == 0) continue;
    const size_t n = first_of(low, high) + 1;
    at += n;
    used += n;
    return true;
  }
  return false;
}

size_t unstuff(const uint8_t* data, size_t size, uint8_t* out) {
  size_t at = 0, used = 0;
  while (copy_to_ff(data, size, out, at, used)) at++;
  while (at < size) {
    out[used++] = data[at];
    at += data[at] == 0xFF ? 2 : 1;
  }
  return used;
}

size_t stuff(const uint8_t* data, size_t size, uint8_t* out) {
  size_t at = 0, used = 0;
  while (copy_to_ff(data, size, out, at, used)) out[used++] = 0;
  for (; at < size; at++) {
    out[used++] = data[at];
    if (data[at] == 0xFF) out[used++] = 0;
  }
  return used;
}

// Eight values of 32 bits.
struct Wide {
  int32x4_t low, high;
};

inline Wide operator+(Wide a, Wide b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }

inline Wide operator-(Wide a, Wide b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }

// The factors of both transforms, so that each product takes its own from a register that holds eight.
alignas(16) const int16_t kFactors[16] = {4433, 4433 - 15137, 4433 + 6270, 9633, 9633 - 16069, 9633 - 3196, 8192, 0,
                                          2446 - 7373, -7373, 12299 - 7373, 16819 - 20995, -20995, 25172 - 20995};

struct Factors {
  int16x8_t even = vld1q_s16(kFactors), odd = vld1q_s16(kFactors + 8);
};

// a * w[i] + b * w[j], the first half of the factors for what the transforms' even part and z3, z4 take.
template <int i, int j>
inline Wide products(int16x8_t a, int16x8_t b, int16x8_t w) {
  return {vmlal_laneq_s16(vmull_laneq_s16(vget_low_s16(a), w, i), vget_low_s16(b), w, j),
          vmlal_high_laneq_s16(vmull_high_laneq_s16(a, w, i), b, w, j)};
}

template <int i, int j>
inline Wide products(Wide sum, int16x8_t a, int16x8_t b, int16x8_t w) {
  return {vmlal_laneq_s16(vmlal_laneq_s16(sum.low, vget_low_s16(a), w, i), vget_low_s16(b), w, j),
          vmlal_high_laneq_s16(vmlal_high_laneq_s16(sum.high, a, w, i), b, w, j)};
}

// jidctint.c along the registers' index; the arithmetic of transform() in kernels_portable.cpp, eight columns at once.
// Results are not scaled down yet, but hold half of the last place.
inline void transform(const int16x8_t v[8], const Factors& w, int half, Wide out[8]) {
  const int32x4_t start = vdupq_n_s32(half);
  const auto shifted = [&](int16x8_t a) -> Wide {
    return {vmlal_laneq_s16(start, vget_low_s16(a), w.even, 6), vmlal_high_laneq_s16(start, a, w.even, 6)};
  };
  const Wide even2 = products<0, 1>(v[2], v[6], w.even), even3 = products<2, 0>(v[2], v[6], w.even);
  const Wide even0 = shifted(vaddq_s16(v[0], v[4])), even1 = shifted(vsubq_s16(v[0], v[4]));
  const Wide t10 = even0 + even3, t13 = even0 - even3, t11 = even1 + even2, t12 = even1 - even2;
  const int16x8_t z3 = vaddq_s16(v[7], v[3]), z4 = vaddq_s16(v[5], v[1]);
  const Wide a3 = products<4, 3>(z3, z4, w.even), a4 = products<3, 5>(z3, z4, w.even);
  const Wide t0 = products<0, 1>(a3, v[7], v[1], w.odd), t3 = products<1, 2>(a4, v[7], v[1], w.odd);
  const Wide t1 = products<3, 4>(a4, v[5], v[3], w.odd), t2 = products<4, 5>(a3, v[5], v[3], w.odd);
  out[0] = t10 + t3;
  out[7] = t10 - t3;
  out[1] = t11 + t2;
  out[6] = t11 - t2;
  out[2] = t12 + t1;
  out[5] = t12 - t1;
  out[3] = t13 + t0;
  out[4] = t13 - t0;
}

// A step of a transposition: the halves of v, element by element in turns.
inline void interleave(int16x8_t v[8]) {
  int16x8_t t[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = vzip1q_s16(v[i], v[i + 4]);
    t[2 * i + 1] = vzip2q_s16(v[i], v[i + 4]);
  }
  for (int i = 0; i < 8; i++) v[i] = t[i];
}

inline void transpose(int16x8_t v[8]) {
  for (int step = 0; step < 3; step++) interleave(v);
}

// The same for 8 x 8 bytes, two rows a register.
inline void transpose(uint8x16_t v[4]) {
  for (int step = 0; step < 3; step++) {
    const uint8x16_t t[4] = {vzip1q_u8(v[0], v[2]), vzip2q_u8(v[0], v[2]), vzip1q_u8(v[1], v[3]), vzip2q_u8(v[1], v[3])};
    for (int i = 0; i < 4; i++) v[i] = t[i];
  }
}

void idct(const int16_t* block, const uint16_t* quant, uint8_t* out, ptrdiff_t stride) {
  const Factors factors;
  int16x8_t v[8];
  Wide wide[8];
  v[0] = vmulq_s16(vld1q_s16(block), vreinterpretq_s16_u16(vld1q_u16(quant)));
  int16x8_t rest = vdupq_n_s16(0);
  for (int i = 1; i < 8; i++) {
    const int16x8_t row = vld1q_s16(block + 8 * i);
    rest = vorrq_s16(rest, row);
    v[i] = vmulq_s16(row, vreinterpretq_s16_u16(vld1q_u16(quant + 8 * i)));
  }
  if (vmaxvq_u32(vreinterpretq_u32_s16(rest)) == 0) {
    // libjpeg takes this shorter way too; it wraps at 16 bits.
    const int16x8_t first = vshlq_n_s16(v[0], 2);
    for (int i = 0; i < 8; i++) v[i] = first;
  } else {
    transform(v, factors, 1 << 10, wide);
    for (int i = 0; i < 8; i++) v[i] = vqshrn_high_n_s32(vqshrn_n_s32(wide[i].low, 11), wide[i].high, 11);
  }
  transpose(v);
  transform(v, factors, 1 << 17, wide);
  // A shift by 18: the upper halves, then two more bits, clamped.
  int8x8_t columns[8];
  for (int i = 0; i < 8; i++) columns[i] = vqshrn_n_s16(upper(wide[i].low, wide[i].high), 2);
  uint8x16_t rows[4];
  for (int i = 0; i < 4; i++) {
    const int8x16_t both = vcombine_s8(columns[2 * i], columns[2 * i + 1]);
    rows[i] = veorq_u8(vreinterpretq_u8_s8(both), vdupq_n_u8(128));
  }
  transpose(rows);
  for (int i = 0; i < 4; i++) {
    vst1_u8(out + 2 * i * stride, vget_low_u8(rows[i]));
    vst1_u8(out + (2 * i + 1) * stride, vget_high_u8(rows[i]));
  }
}

void idct_pair(const int16_t* a, const uint16_t* quant_a, uint8_t* out_a, ptrdiff_t stride_a, const int16_t* b,
               const uint16_t* quant_b, uint8_t* out_b, ptrdiff_t stride_b) {
  idct(a, quant_a, out_a, stride_a);
  if (out_b != out_a) idct(b, quant_b, out_b, stride_b);
}

#include "forward_neon.h"

}  // namespace

}  // namespace beton

#include "block_loops.h"
#include "blur_loops.h"
#include "color_loops.h"
#include "symbol_loops.h"
#include "weight_loops.h"

namespace beton {

namespace {

// Sums as they leave the filters, with half of the last place -> bytes. A shift by 22: 16, then 6, clamped.
inline uint8x8_t fir_bytes(int32x4_t a, int32x4_t b) {
  static_assert(kFirBits == 22, "the shift is written as 16 and 6");
  return vqshrun_n_s16(upper(a, b), kFirBits - 16);
}

void fir_rows(const FirAxis& axis, const uint8_t* const rows[4], uint8_t* const out[4]) {
  // Of each of four pixels red, green, blue, and what follows, as 32 bits.
  alignas(16) static const uint8_t kSpread[4][16] = {{0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 255, 255, 255, 255},
                                                     {3, 255, 255, 255, 4, 255, 255, 255, 5, 255, 255, 255, 255, 255, 255, 255},
                                                     {6, 255, 255, 255, 7, 255, 255, 255, 8, 255, 255, 255, 255, 255, 255, 255},
                                                     {9, 255, 255, 255, 10, 255, 255, 255, 11, 255, 255, 255, 255, 255, 255, 255}};
  uint8x16_t spread[4];
  for (int t = 0; t < 4; t++) spread[t] = vld1q_u8(kSpread[t]);
  const auto pixel = [&](uint8x16_t bytes, int t) { return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, spread[t])); };
  const int32_t* weights = axis.weights_data;
  for (int i = 0; i < axis.outputs; i++, weights += axis.taps) {
    int32x4_t sum[4];
    for (int r = 0; r < 4; r++) sum[r] = vdupq_n_s32(1 << (kFirBits - 1));
    ptrdiff_t at = 3 * ptrdiff_t(axis.start_data[i]);
    const int used = axis.used_data[i];
    for (int t = 0; t < used; t += 4, at += 12) {
      const int32x4_t w = vld1q_s32(weights + t);
      for (int r = 0; r < 4; r++) {
        const uint8x16_t bytes = vld1q_u8(rows[r] + at);
        sum[r] = vmlaq_laneq_s32(sum[r], pixel(bytes, 0), w, 0);
        sum[r] = vmlaq_laneq_s32(sum[r], pixel(bytes, 1), w, 1);
        sum[r] = vmlaq_laneq_s32(sum[r], pixel(bytes, 2), w, 2);
        sum[r] = vmlaq_laneq_s32(sum[r], pixel(bytes, 3), w, 3);
      }
    }
    for (int r = 0; r < 4; r += 2) {
      const uint32x2_t pixels = vreinterpret_u32_u8(fir_bytes(sum[r], sum[r + 1]));
      const uint32_t first = vget_lane_u32(pixels, 0), second = vget_lane_u32(pixels, 1);
      __builtin_memcpy(out[r] + 3 * ptrdiff_t(i), &first, 4);
      __builtin_memcpy(out[r + 1] + 3 * ptrdiff_t(i), &second, 4);
    }
  }
}

void fir_columns(const FirAxis& axis, int row, const uint8_t* src, ptrdiff_t stride, int n, uint8_t* out) {
  // Every fourth 32 bits of a vector start with the next byte.
  uint8x16_t spread[4];
  const uint32x4_t first = {0xFFFFFF00u, 0xFFFFFF01u, 0xFFFFFF02u, 0xFFFFFF03u};
  for (int k = 0; k < 4; k++) spread[k] = vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(uint32_t(4 * k))));
  const int32_t* weights = axis.weights_data + ptrdiff_t(row) * axis.taps;
  const int used = axis.used_data[row];
  src += axis.start_data[row] * stride;
  for (int i = 0; i < n; i += 16) {
    const uint8_t* from = src + i;
    int32x4_t sum[4];
    for (int k = 0; k < 4; k++) sum[k] = vdupq_n_s32(1 << (kFirBits - 1));
    for (int t = 0; t < used; t++, from += stride) {
      const uint8x16_t bytes = vld1q_u8(from);
      const int32x4_t w = vld1q_dup_s32(weights + t);
      for (int k = 0; k < 4; k++) {
        sum[k] = vmlaq_s32(sum[k], vreinterpretq_s32_u8(vqtbl1q_u8(bytes, spread[k])), w);
      }
    }
    store_bytes(low_and_high(fir_bytes(sum[0], sum[1]), fir_bytes(sum[2], sum[3])), out + i, n - i);
  }
}

// Sixty-four values of the table at a time; indices outside leave what is there.
void look_up(const uint8_t* src, const uint8_t table[256], size_t n, uint8_t* out) {
  uint8x16x4_t quarters[4];
  for (int k = 0; k < 4; k++) {
    for (int j = 0; j < 4; j++) quarters[k].val[j] = vld1q_u8(table + 64 * k + 16 * j);
  }
  const uint8x16_t step = vdupq_n_u8(64);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint8x16_t index = vld1q_u8(src + i);
    uint8x16_t found = vqtbl4q_u8(quarters[0], index);
    for (int k = 1; k < 4; k++) {
      index = vsubq_u8(index, step);
      found = vqtbx4q_u8(found, quarters[k], index);
    }
    vst1q_u8(out + i, found);
  }
  for (; i < n; i++) out[i] = table[src[i]];
}

void to_floats(const uint8_t* src, const float line[5], size_t n, float* out) {
  const float32x4_t zero = vdupq_n_f32(line[0]), a = vdupq_n_f32(line[1]), b = vdupq_n_f32(line[2]);
  const float32x4_t c = vdupq_n_f32(line[3]), d = vdupq_n_f32(line[4]);
  const auto four = [&](uint16x4_t words, float* to) {
    const float32x4_t x = vsubq_f32(vcvtq_f32_u32(vmovl_u16(words)), zero);
    vst1q_f32(to, vaddq_f32(vfmaq_f32(b, x, a), vaddq_f32(vmulq_f32(x, c), d)));
  };
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16_t bytes = vld1q_u8(src + i);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    four(vget_low_u16(low), out + i);
    four(vget_high_u16(low), out + i + 4);
    four(vget_low_u16(high), out + i + 8);
    four(vget_high_u16(high), out + i + 12);
  }
  for (; i < n; i++) {
    const float x = float(src[i]) - line[0];
    out[i] = (x * line[1] + line[2]) + (x * line[3] + line[4]);
  }
}

inline uint16x8_t high_halves(uint16x8_t a, uint16x8_t b) {
  const uint32x4_t low = vmull_u16(vget_low_u16(a), vget_low_u16(b)), high = vmull_high_u16(a, b);
  return vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}

inline void weigh(const uint16_t* middle, ptrdiff_t step, const BlurWeights& weights, int n, uint16_t* out) {
  const uint16x8_t first = vdupq_n_u16(weights.values[0]), lost = vdupq_n_u16(weights.lost);
  for (int i = 0; i < n; i += kBlurBlock) {
    uint16x8_t sums[4];
    for (int k = 0; k < 4; k++) sums[k] = vaddq_u16(high_halves(vld1q_u16(middle + i + 8 * k), first), lost);
    const uint16_t* left = middle + i;
    const uint16_t* right = middle + i;
    for (int j = 1; j <= weights.reach; j++) {
      left -= step;
      right += step;
      const uint16x8_t weight = vdupq_n_u16(weights.values[j]);
      for (int k = 0; k < 4; k++) {
        const uint16x8_t mean = vrhaddq_u16(vld1q_u16(left + 8 * k), vld1q_u16(right + 8 * k));
        sums[k] = vaddq_u16(sums[k], high_halves(mean, weight));
      }
    }
    for (int k = 0; k < 4; k++) vst1q_u16(out + i + 8 * k, sums[k]);
  }
}

const Kernels kNeonKernels = {
    "neon",      horizontal, finish_plane, finish_ycc, split_rgb, split_rows,    merge_rgb,   find_marker, unstuff,
    decode_mcus, blend_rows, double_row, double_both, exact_ycc_to_rgb, exact_ycc_to_pixels, colour_excess, read_symbols, write_codes, stuff,       rgb_to_ycc,
    halve_row,   halve_both, encode_mcus, fir_rows,  fir_columns, make_box_filter, make_weights, look_up, to_floats,
    blur_plane<weigh>, sum_of_greys, blend, gray, saturate, turn_hue<turn_thirds>};

}  // namespace

const Kernels* neon_kernels() { return &kNeonKernels; }

}  // namespace beton

#endif
