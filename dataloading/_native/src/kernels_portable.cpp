#include "kernels.h"

#include <cstring>

namespace beton {

namespace {

// One 8-point transform of jidctint.c. Products are 32 bits wide, sums of two inputs wrap at 16 as they do in
// libjpeg-turbo's SIMD code, so that even coefficients no encoder makes come out alike.
struct Eight {
  int32_t v[8];
};

inline int32_t wrap(int v) { return int16_t(v); }

inline int32_t mul(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }

inline int32_t add(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }

inline int32_t sub(int32_t a, int32_t b) { return int32_t(uint32_t(a) - uint32_t(b)); }

Eight transform(const int32_t in[8], int shift) {
  const int32_t even2 = add(mul(in[2], 4433), mul(in[6], 4433 - 15137));
  const int32_t even3 = add(mul(in[2], 4433 + 6270), mul(in[6], 4433));
  const int32_t even0 = mul(wrap(in[0] + in[4]), 1 << 13), even1 = mul(wrap(in[0] - in[4]), 1 << 13);
  const int32_t t10 = add(even0, even3), t13 = sub(even0, even3), t11 = add(even1, even2), t12 = sub(even1, even2);
  const int32_t z3 = wrap(in[7] + in[3]), z4 = wrap(in[5] + in[1]);
  const int32_t a3 = add(mul(z3, 9633 - 16069), mul(z4, 9633)), a4 = add(mul(z3, 9633), mul(z4, 9633 - 3196));
  const int32_t t0 = add(add(mul(in[7], 2446 - 7373), mul(in[1], -7373)), a3);
  const int32_t t3 = add(add(mul(in[7], -7373), mul(in[1], 12299 - 7373)), a4);
  const int32_t t1 = add(add(mul(in[5], 16819 - 20995), mul(in[3], -20995)), a4);
  const int32_t t2 = add(add(mul(in[5], -20995), mul(in[3], 25172 - 20995)), a3);
  const int32_t round = 1 << (shift - 1);
  const int32_t out[8] = {add(t10, t3), add(t11, t2), add(t12, t1), add(t13, t0),
                          sub(t13, t0), sub(t12, t1), sub(t11, t2), sub(t10, t3)};
  Eight e;
  for (int i = 0; i < 8; i++) {
    const int32_t v = add(out[i], round) >> shift;
    e.v[i] = v < -32768 ? -32768 : v > 32767 ? 32767 : v;
  }
  return e;
}

void idct(const int16_t* block, const uint16_t* quant, uint8_t* out, ptrdiff_t stride) {
  int32_t work[8][8];  // [column][row]
  // libjpeg takes a shorter way where only the first row of coefficients is set, and that one wraps at 16 bits. No sound
  // file gets there, but its pixels are promised for all that decode.
  int rest = 0;
  for (int i = 8; i < 64; i++) rest |= block[i];
  for (int x = 0; x < 8; x++) {
    if (rest == 0) {
      for (int y = 0; y < 8; y++) work[x][y] = wrap(4 * wrap(mul(block[x], quant[x])));
      continue;
    }
    int32_t in[8];
    for (int y = 0; y < 8; y++) in[y] = wrap(mul(block[8 * y + x], quant[8 * y + x]));
    const Eight e = transform(in, 11);
    for (int y = 0; y < 8; y++) work[x][y] = e.v[y];
  }
  for (int y = 0; y < 8; y++) {
    int32_t in[8];
    for (int x = 0; x < 8; x++) in[x] = work[x][y];
    const Eight e = transform(in, 18);
    for (int x = 0; x < 8; x++) {
      const int v = (e.v[x] < -128 ? -128 : e.v[x] > 127 ? 127 : e.v[x]) + 128;
      out[y * stride + x] = uint8_t(v);
    }
  }
}

void idct_pair(const int16_t* a, const uint16_t* quant_a, uint8_t* out_a, ptrdiff_t stride_a, const int16_t* b,
               const uint16_t* quant_b, uint8_t* out_b, ptrdiff_t stride_b) {
  idct(a, quant_a, out_a, stride_a);
  if (out_b != out_a) idct(b, quant_b, out_b, stride_b);
}

int32_t descale(int32_t v, int shift) { return (v + (1 << (shift - 1))) >> shift; }

// One 8-point transform of jfdctint.c; the first pass (rows) leaves two more bits than the second.
void forward(int32_t v[8], bool first) {
  const int shift = first ? 11 : 15;
  const int32_t t0 = v[0] + v[7], t7 = v[0] - v[7], t1 = v[1] + v[6], t6 = v[1] - v[6];
  const int32_t t2 = v[2] + v[5], t5 = v[2] - v[5], t3 = v[3] + v[4], t4 = v[3] - v[4];
  const int32_t t10 = t0 + t3, t13 = t0 - t3, t11 = t1 + t2, t12 = t1 - t2;
  v[0] = first ? (t10 + t11) * 4 : descale(t10 + t11, 2);
  v[4] = first ? (t10 - t11) * 4 : descale(t10 - t11, 2);
  v[2] = descale(t13 * (4433 + 6270) + t12 * 4433, shift);
  v[6] = descale(t13 * 4433 + t12 * (4433 - 15137), shift);
  const int32_t z3 = t4 + t6, z4 = t5 + t7;
  const int32_t a3 = z3 * (9633 - 16069) + z4 * 9633, a4 = z3 * 9633 + z4 * (9633 - 3196);
  v[7] = descale(t4 * (2446 - 7373) - t7 * 7373 + a3, shift);
  v[1] = descale(-t4 * 7373 + t7 * (12299 - 7373) + a4, shift);
  v[5] = descale(t5 * (16819 - 20995) - t6 * 20995 + a4, shift);
  v[3] = descale(-t5 * 20995 + t6 * (25172 - 20995) + a3, shift);
}

void fdct(const uint8_t* in, ptrdiff_t stride, const Quantiser& q, int16_t* out, uint64_t* mask) {
  int32_t work[8][8];
  for (int y = 0; y < 8; y++) {
    for (int x = 0; x < 8; x++) work[y][x] = in[y * stride + x] - 128;
    forward(work[y], true);
  }
  *mask = 0;
  for (int x = 0; x < 8; x++) {
    int32_t column[8];
    for (int y = 0; y < 8; y++) column[y] = work[y][x];
    forward(column, false);
    for (int y = 0; y < 8; y++) {
      const int i = 8 * y + x;
      const uint32_t magnitude = uint32_t(column[y] < 0 ? -column[y] : column[y]) + q.correction[i];
      const int v = int(((magnitude * q.reciprocal[i]) >> 16) * q.scale[i] >> 16);
      out[i] = int16_t(column[y] < 0 ? -v : v);
      *mask |= uint64_t(v != 0) << i;
    }
  }
}

void fdct_pair(const uint8_t* a, ptrdiff_t stride_a, const Quantiser& quantiser_a, int16_t* out_a, uint64_t* mask_a,
               const uint8_t* b, ptrdiff_t stride_b, const Quantiser& quantiser_b, int16_t* out_b, uint64_t* mask_b) {
  fdct(a, stride_a, quantiser_a, out_a, mask_a);
  if (out_b != out_a) fdct(b, stride_b, quantiser_b, out_b, mask_b);
}

}  // namespace

}  // namespace beton

#include "block_loops.h"
#include "blur_loops.h"
#include "color_loops.h"
#include "symbol_loops.h"
#include "weight_loops.h"

namespace beton {

namespace {

int16_t saturate(int v) { return int16_t(v < -32768 ? -32768 : v > 32767 ? 32767 : v); }

inline uint8_t clamp(int v) { return uint8_t(v < 0 ? 0 : v > 255 ? 255 : v); }

uint8_t byte_of(int q) { return clamp(saturate(q + 32) >> kValueBits); }

void horizontal(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                ptrdiff_t dst_stride) {
  const int* start = plan.axis->start.data();
  const int* end = plan.axis->end.data();
  for (int row = 0; row < 2 * row_pairs; row++) {
    const uint8_t* s = src + row * src_stride;
    int16_t* d = dst + row / 2 * dst_stride + row % 2;
    for (int i = 0; i < plan.groups * kGroup; i++) {
      const int16_t* w = plan.axis->weight(i);
      const uint8_t* p = s + start[i];
      // Taps behind the filter's end have weight 0, and may lie behind the row's end: do not touch them.
      const int taps = end[i] - start[i];
      int sum = 1 << (kWeightBits - kValueBits - 1);
      for (int t = 0; t < taps; t++) sum += int(w[t / 2 * 2 * kGroup + t % 2]) * int(p[t]);
      d[2 * i] = saturate(sum >> (kWeightBits - kValueBits));
    }
  }
}

constexpr int kChunk = 64;

// Values i of [at, at + n) of an output row.
void column_values(const Column& column, ptrdiff_t stride, int at, int n, int16_t* out) {
  int sum[kChunk];
  for (int i = 0; i < n; i++) sum[i] = 1 << (kWeightBits - 1);
  for (int p = 0; p < column.pairs; p++) {
    const int16_t* s = column.rows + p * stride + 2 * at;
    const int a = column.weights[p * 2 * kGroup], b = column.weights[p * 2 * kGroup + 1];
    for (int i = 0; i < n; i++) sum[i] += a * int(s[2 * i]) + b * int(s[2 * i + 1]);
  }
  for (int i = 0; i < n; i++) out[i] = saturate(sum[i] >> kWeightBits);
}

void finish_plane(const Column& column, ptrdiff_t stride, int n, uint8_t* out) {
  for (int at = 0; at < n; at += kChunk) {
    const int m = n - at < kChunk ? n - at : kChunk;
    int16_t value[kChunk];
    column_values(column, stride, at, m, value);
    for (int i = 0; i < m; i++) out[at + i] = byte_of(value[i]);
  }
}

int whole_levels(int v) { return (v + (1 << (kValueBits - 1))) & -(1 << kValueBits); }

void finish_ycc(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int at = 0; at < n; at += kChunk) {
    const int m = n - at < kChunk ? n - at : kChunk;
    int16_t y[kChunk], cb[kChunk], cr[kChunk];
    column_values(columns[0], stride, at, m, y);
    column_values(columns[1], stride, at, m, cb);
    column_values(columns[2], stride, at, m, cr);
    for (int i = 0; i < m; i++) {
      const int u = saturate(cb[i] - (128 << kValueBits)), v = saturate(cr[i] - (128 << kValueBits));
      // The factors of exact_ycc_to_rgb less what exceeds 16 bits.
      int red = v + ((v * (91881 - 65536)) >> 16), green = ((-22554 * u + (65536 - 46802) * v) >> 16) - v;
      int blue = 2 * u + ((u * (116130 - 131072)) >> 16);
      if (((u | v) & ((1 << kValueBits) - 1)) == 0) {
        red = whole_levels(red);
        green = whole_levels(green);
        blue = whole_levels(blue);
      }
      r[at + i] = byte_of(saturate(y[i] + red));
      g[at + i] = byte_of(saturate(y[i] + green));
      b[at + i] = byte_of(saturate(y[i] + blue));
    }
  }
}

void split_rgb(const uint8_t* rgb, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int i = 0; i < n; i++) {
    r[i] = rgb[3 * i];
    g[i] = rgb[3 * i + 1];
    b[i] = rgb[3 * i + 2];
  }
}

void split_rows(const uint8_t* rgb, ptrdiff_t rgb_stride, int width, int height, bool mirror, uint8_t* const planes[3],
                ptrdiff_t stride) {
  for (int y = 0; y < height; y++) {
    uint8_t *r = planes[0] + y * stride, *g = planes[1] + y * stride, *b = planes[2] + y * stride;
    const uint8_t* from = rgb + y * rgb_stride;
    if (!mirror) split_rgb(from, width, r, g, b);
    for (int i = 0; mirror && i < width; i++) {
      r[width - 1 - i] = from[3 * i];
      g[width - 1 - i] = from[3 * i + 1];
      b[width - 1 - i] = from[3 * i + 2];
    }
  }
}

void merge_rgb(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* rgb) {
  for (int i = 0; i < n; i++) {
    rgb[3 * i] = r[i];
    rgb[3 * i + 1] = g[i];
    rgb[3 * i + 2] = b[i];
  }
}

// libjpeg's fancy upsampling (jdsample.c), one row: near * 3/4 + far * 1/4 with its alternating rounding.
void blend_rows(const uint8_t* near, const uint8_t* far, int n, int bias, uint8_t* out) {
  for (int i = 0; i < n; i++) out[i] = uint8_t((3 * near[i] + far[i] + bias) >> 2);
}

void double_row(const uint8_t* in, int n, uint8_t* out) {
  out[0] = in[0];
  for (int i = 0; i < n - 1; i++) {
    out[2 * i + 1] = uint8_t((3 * in[i] + in[i + 1] + 2) >> 2);
    out[2 * i + 2] = uint8_t((3 * in[i + 1] + in[i] + 1) >> 2);
  }
  out[2 * n - 1] = in[n - 1];
}

void double_both(const uint8_t* near, const uint8_t* far, int n, uint8_t* out) {
  int here = 3 * near[0] + far[0];
  out[0] = uint8_t((4 * here + 8) >> 4);
  for (int i = 0; i < n - 1; i++) {
    const int a = 3 * near[i] + far[i], b = 3 * near[i + 1] + far[i + 1];
    out[2 * i + 1] = uint8_t((3 * a + b + 7) >> 4);
    out[2 * i + 2] = uint8_t((3 * b + a + 8) >> 4);
  }
  here = 3 * near[n - 1] + far[n - 1];
  out[2 * n - 1] = uint8_t((4 * here + 7) >> 4);
}

// libjpeg's colour conversion (jdcolor.c), exactly.
inline void exact_ycc_pixel(int y, int u, int v, uint8_t* r, uint8_t* g, uint8_t* b) {
  *r = clamp(y + ((91881 * v + 32768) >> 16));
  *g = clamp(y + ((-22554 * u - 46802 * v + 32768) >> 16));
  *b = clamp(y + ((116130 * u + 32768) >> 16));
}

void exact_ycc_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* r, uint8_t* g,
                      uint8_t* b) {
  for (int i = 0; i < n; i++) exact_ycc_pixel(y[i], cb[i] - 128, cr[i] - 128, r + i, g + i, b + i);
}

void exact_ycc_to_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* rgb) {
  for (int i = 0; i < n; i++, rgb += 3) exact_ycc_pixel(y[i], cb[i] - 128, cr[i] - 128, rgb, rgb + 1, rgb + 2);
}

int64_t colour_excess(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    const int u = cb[i] - 128, v = cr[i] - 128;
    const int red = 90 * v, green = -22 * u - 46 * v, blue = 113 * u;
    const int highest = red > green ? (red > blue ? red : blue) : green > blue ? green : blue;
    const int lowest = red < green ? (red < blue ? red : blue) : green < blue ? green : blue;
    const int up = highest >> 6, down = -lowest >> 6;
    const int above = y[i] + up - 255, below = down - y[i];
    const int both = (above > 0 ? above : 0) + (below > 0 ? below : 0);
    sum += both < 255 ? both : 255;
  }
  return sum;
}

size_t find_marker(const uint8_t* data, size_t size) {
  size_t at = 0;
  while (at < size) {
    const void* hit = std::memchr(data + at, 0xFF, size - at);
    if (hit == nullptr) return size;
    at = size_t(static_cast<const uint8_t*>(hit) - data);
    if (at + 1 >= size || data[at + 1] != 0) return at;
    at += 2;
  }
  return size;
}

size_t unstuff(const uint8_t* data, size_t size, uint8_t* out) {
  size_t at = 0, used = 0;
  while (at < size) {
    const void* hit = std::memchr(data + at, 0xFF, size - at);
    const size_t stop = hit == nullptr ? size : size_t(static_cast<const uint8_t*>(hit) - data) + 1;
    std::memcpy(out + used, data + at, stop - at);
    used += stop - at;
    at = stop + 1;
  }
  return used;
}

void rgb_to_ycc(const uint8_t* rgb, int n, uint8_t* y, uint8_t* cb, uint8_t* cr) {
  constexpr int kChroma = (128 << 16) + 32767;
  for (int i = 0; i < n; i++) {
    const int r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
    y[i] = uint8_t((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
    cb[i] = uint8_t((-11059 * r - 21709 * g + 32768 * b + kChroma) >> 16);
    cr[i] = uint8_t((32768 * r - 27439 * g - 5329 * b + kChroma) >> 16);
  }
}

void halve_row(const uint8_t* in, int n, uint8_t* out) {
  for (int i = 0; i < n; i++) out[i] = uint8_t((in[2 * i] + in[2 * i + 1] + (i & 1)) >> 1);
}

void halve_both(const uint8_t* a, const uint8_t* b, int n, uint8_t* out) {
  for (int i = 0; i < n; i++) {
    out[i] = uint8_t((a[2 * i] + a[2 * i + 1] + b[2 * i] + b[2 * i + 1] + 1 + (i & 1)) >> 2);
  }
}

size_t stuff(const uint8_t* data, size_t size, uint8_t* out) {
  size_t at = 0, used = 0;
  while (at < size) {
    const void* hit = std::memchr(data + at, 0xFF, size - at);
    const size_t stop = hit == nullptr ? size : size_t(static_cast<const uint8_t*>(hit) - data) + 1;
    std::memcpy(out + used, data + at, stop - at);
    used += stop - at;
    if (hit != nullptr) out[used++] = 0;
    at = stop;
  }
  return used;
}

// Sums wrap as those of the vector code do; those that occur fit.
uint8_t fir_byte(uint32_t sum) { return clamp(int32_t(sum) >> kFirBits); }

void fir_rows(const FirAxis& axis, const uint8_t* const rows[4], uint8_t* const out[4]) {
  for (int r = 0; r < 4; r++) {
    const int32_t* w = axis.weights_data;
    for (int i = 0; i < axis.outputs; i++, w += axis.taps) {
      const uint8_t* from = rows[r] + 3 * ptrdiff_t(axis.start_data[i]);
      uint32_t sum[3] = {1u << (kFirBits - 1), 1u << (kFirBits - 1), 1u << (kFirBits - 1)};
      for (int t = 0; t < axis.used_data[i]; t++, from += 3) {
        for (int c = 0; c < 3; c++) sum[c] += uint32_t(w[t]) * from[c];
      }
      for (int c = 0; c < 3; c++) out[r][3 * ptrdiff_t(i) + c] = fir_byte(sum[c]);
    }
  }
}

void fir_columns(const FirAxis& axis, int row, const uint8_t* src, ptrdiff_t stride, int n, uint8_t* out) {
  constexpr int kAtOnce = 64;
  const int32_t* w = axis.weights_data + ptrdiff_t(row) * axis.taps;
  src += axis.start_data[row] * stride;
  for (int at = 0; at < n; at += kAtOnce) {
    const int count = n - at < kAtOnce ? n - at : kAtOnce;
    uint32_t sum[kAtOnce];
    for (int i = 0; i < count; i++) sum[i] = 1u << (kFirBits - 1);
    const uint8_t* from = src + at;
    for (int t = 0; t < axis.used_data[row]; t++, from += stride) {
      for (int i = 0; i < count; i++) sum[i] += uint32_t(w[t]) * from[i];
    }
    for (int i = 0; i < count; i++) out[at + i] = fir_byte(sum[i]);
  }
}

void look_up(const uint8_t* src, const uint8_t table[256], size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; i++) out[i] = table[src[i]];
}

void to_floats(const uint8_t* src, const float line[5], size_t n, float* out) {
  const float zero = line[0], a = line[1], b = line[2], c = line[3], d = line[4];
  for (size_t i = 0; i < n; i++) {
    const float x = float(src[i]) - zero;
    out[i] = (x * a + b) + (x * c + d);
  }
}

uint16_t high_half(uint16_t a, uint16_t b) { return uint16_t((uint32_t(a) * uint32_t(b)) >> 16); }

inline void weigh(const uint16_t* middle, ptrdiff_t step, const BlurWeights& weights, int n, uint16_t* out) {
  for (int i = 0; i < n; i += kBlurBlock) {
    uint16_t sums[kBlurBlock];
    uint16_t weight = weights.values[0];
    for (int k = 0; k < kBlurBlock; k++) sums[k] = uint16_t(high_half(middle[i + k], weight) + weights.lost);
    for (int j = 1; j <= weights.reach; j++) {
      const uint16_t* left = middle + i - j * step;
      const uint16_t* right = middle + i + j * step;
      weight = weights.values[j];
      for (int k = 0; k < kBlurBlock; k++) {
        const uint16_t mean = uint16_t((left[k] | right[k]) - uint16_t((left[k] ^ right[k]) >> 1));
        sums[k] = uint16_t(sums[k] + high_half(mean, weight));
      }
    }
    std::memcpy(out + i, sums, sizeof sums);
  }
}

}  // namespace

const Kernels kPortableKernels = {
    "portable", horizontal,  finish_plane, finish_ycc, split_rgb, split_rows,        merge_rgb,    find_marker, unstuff,
    decode_mcus, blend_rows, double_row,  double_both, exact_ycc_to_rgb, exact_ycc_to_pixels, colour_excess, read_symbols, write_codes, stuff, rgb_to_ycc,
    halve_row,  halve_both,  encode_mcus, fir_rows, fir_columns, make_box_filter, make_weights, look_up, to_floats,
    blur_plane<weigh>, sum_of_greys, blend, gray, saturate, turn_hue<turn_thirds>};

}  // namespace beton
