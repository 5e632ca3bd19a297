#include "kernels.h"

namespace beton {

namespace {

int16_t saturate(int v) { return int16_t(v < -32768 ? -32768 : v > 32767 ? 32767 : v); }

uint8_t byte_of(int q) {
  const int v = saturate(q + 32) >> kValueBits;
  return uint8_t(v < 0 ? 0 : v > 255 ? 255 : v);
}

// Product of a value and a 15-bit fraction, rounded: what pmulhrsw and sqrdmulh compute.
int times(int a, int b) { return (a * b + (1 << 14)) >> 15; }

void horizontal(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int rows, int16_t* dst,
                ptrdiff_t dst_stride) {
  const Axis& axis = *plan.axis;
  for (int row = 0; row < rows; row++) {
    const uint8_t* s = src + row * src_stride;
    int16_t* d = dst + row * dst_stride;
    for (int i = 0; i < axis.count; i++) {
      const int16_t* w = axis.weight(i);
      const uint8_t* p = s + axis.start[size_t(i)];
      // Taps behind the filter's end have weight 0, and may lie behind the row's end: do not touch them.
      const int taps = axis.high - axis.start[size_t(i)] < axis.taps ? axis.high - axis.start[size_t(i)] : axis.taps;
      int sum = 1 << (kWeightBits - kValueBits - 1);
      for (int t = 0; t < taps; t++) sum += int(w[t]) * int(p[t]);
      d[i] = saturate(sum >> (kWeightBits - kValueBits));
    }
  }
}

void vertical(const int16_t* src, ptrdiff_t stride, const int16_t* weights, int taps, int n, int16_t* out) {
  constexpr int kChunk = 64;
  for (int at = 0; at < n; at += kChunk) {
    const int m = n - at < kChunk ? n - at : kChunk;
    int sum[kChunk];
    for (int i = 0; i < m; i++) sum[i] = 1 << (kWeightBits - 1);
    for (int t = 0; t < taps; t++) {
      const int16_t* s = src + t * stride + at;
      const int w = weights[t];
      for (int i = 0; i < m; i++) sum[i] += w * int(s[i]);
    }
    for (int i = 0; i < m; i++) out[at + i] = saturate(sum[i] >> kWeightBits);
  }
}

void pack(const int16_t* src, int n, uint8_t* dst) {
  for (int i = 0; i < n; i++) dst[i] = byte_of(src[i]);
}

void ycc_to_rgb(const int16_t* y, const int16_t* cb, const int16_t* cr, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int i = 0; i < n; i++) {
    const int u = saturate(cb[i] - (128 << kValueBits)), v = saturate(cr[i] - (128 << kValueBits));
    r[i] = byte_of(saturate(y[i] + saturate(v + times(v, 13173))));                      // 1.402
    g[i] = byte_of(saturate(saturate(y[i] - times(u, 11277)) - times(v, 23401)));        // 0.344136, 0.714136
    b[i] = byte_of(saturate(y[i] + saturate(u + times(u, 25297))));                      // 1.772
  }
}

void split_rgb(const uint8_t* rgb, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int i = 0; i < n; i++) {
    r[i] = rgb[3 * i];
    g[i] = rgb[3 * i + 1];
    b[i] = rgb[3 * i + 2];
  }
}

}  // namespace

const Kernels kPortableKernels = {"portable", horizontal, vertical, pack, ycc_to_rgb, split_rgb};

}  // namespace beton
