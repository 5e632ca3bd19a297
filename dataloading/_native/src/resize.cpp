#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "beton_native.h"
#include "fir.h"
#include "kernels.h"

namespace beton {

namespace {

constexpr int kGroup = 4;  // rows the horizontal kernel takes at once

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double triangle(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= 3.14159265358979323846;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

struct Filter {
  double (*at)(double);
  double support;
};

Filter filter_of(int which) {
  switch (which) {
    case BETON_RESAMPLE_BOX: return {box, 0.5};
    case BETON_RESAMPLE_BILINEAR: return {triangle, 1.0};
    case BETON_RESAMPLE_BICUBIC: return {cubic, 2.0};
    default: return {lanczos, 3.0};
  }
}

int32_t pair(int first, int second) { return int32_t(uint32_t(second & 0xFFFF) << 16 | uint32_t(first & 0xFFFF)); }

int low_part(int32_t w) { return w & ((1 << kFirLowBits) - 1); }

int high_part(int32_t w) { return (w - low_part(w)) / (1 << kFirLowBits); }

void make_fir(int length, int outputs, const Filter& filter, bool along_rows, FirAxis* axis) {
  const double scale = double(length) / outputs;
  const double wide = std::max(scale, 1.0), inverse = 1.0 / wide;
  const double support = filter.support * wide;
  axis->outputs = outputs;
  axis->taps = (std::min(int(std::ceil(support)) * 2 + 1, length) + 3) & ~3;
  axis->reach = 0;
  axis->start.resize(size_t(outputs));
  axis->used.resize(size_t(outputs));
  axis->weights.assign(size_t(outputs) * size_t(axis->taps), 0);
  axis->parts.resize(axis->weights.size());
  std::vector<double> values(size_t(axis->taps));
  for (int i = 0; i < outputs; i++) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(int(center - support + 0.5), 0);
    const int count = std::min(int(center + support + 0.5), length) - first;
    double total = 0.0;
    for (int t = 0; t < count; t++) total += values[size_t(t)] = filter.at((t + first - center + 0.5) * inverse);
    int32_t* weights = axis->weights.data() + size_t(i) * size_t(axis->taps);
    for (int t = 0; t < count; t++) {
      const double w = (total != 0.0 ? values[size_t(t)] / total : values[size_t(t)]) * (1 << kFirBits);
      weights[t] = int32_t(w < 0 ? w - 0.5 : w + 0.5);
    }
    axis->start[size_t(i)] = first;
    const int used = along_rows ? (count + 3) & ~3 : (count + 1) & ~1;
    axis->used[size_t(i)] = used;
    axis->reach = std::max(axis->reach, first + used);
    int32_t* parts = axis->parts.data() + size_t(i) * size_t(axis->taps);
    for (int t = 0; t < axis->taps; t += 4, parts += 4) {
      const int32_t* w = weights + t;
      const int32_t low01 = pair(low_part(w[0]), low_part(w[1])), low23 = pair(low_part(w[2]), low_part(w[3]));
      const int32_t high01 = pair(high_part(w[0]), high_part(w[1])), high23 = pair(high_part(w[2]), high_part(w[3]));
      parts[0] = low01;
      parts[1] = along_rows ? low23 : high01;
      parts[2] = along_rows ? high01 : low23;
      parts[3] = high23;
    }
  }
  axis->start_data = axis->start.data();
  axis->used_data = axis->used.data();
  axis->weights_data = axis->weights.data();
  axis->parts_data = axis->parts.data();
}

// Rows of `filled` bytes with room behind them, to `row_bytes` and more, and behind the last one, for what kernels read
// and multiply by 0. All of that room is zero: it changes no pixel, but valgrind cannot know.
struct Rows {
  uint8_t* data = nullptr;
  size_t stride = 0;

  Rows(Buffer* buffer, size_t filled, size_t row_bytes, int rows, int readable) {
    stride = (row_bytes + kRowPadding + 63) & ~size_t(63);
    const size_t spare = size_t(std::max(readable - rows, 0));
    data = buffer->get<uint8_t>(stride * (size_t(rows) + spare));
    for (int row = 0; row < rows; row++) std::memset(at(row) + filled, 0, stride - filled);
    std::memset(data + stride * size_t(rows), 0, stride * spare);
  }

  uint8_t* at(int row) const { return data + size_t(row) * stride; }
};

// Filters `height` rows along x; `from(row)` may be read up to x.reach pixels and a few bytes, and a byte behind each
// `to(row)` is written.
template <typename From, typename To>
void filter_rows(const FirAxis& x, int height, const From& from, const To& to) {
  for (int top = 0; top < height; top += kGroup) {
    const int last = std::min(top + kGroup, height) - 1;
    const uint8_t* rows[kGroup];
    uint8_t* outs[kGroup];
    for (int i = 0; i < kGroup; i++) {
      const int row = std::min(top + i, last);  // what is missing of a group is done twice
      rows[i] = from(row);
      outs[i] = to(row);
    }
    kernels().fir_rows(x, rows, outs);
  }
}

}  // namespace

void resize_rgb(const uint8_t* rgb, int width, int height, size_t row_stride, int filter, int out_width, int out_height,
                Scratch* s, uint8_t* out) {
  const Kernels& k = kernels();
  const Filter shape = filter_of(filter);
  const size_t row_bytes = size_t(width) * 3, out_bytes = size_t(out_width) * 3;
  const bool narrows = out_width != width, lowers = out_height != height;
  FirAxis x, y;
  if (narrows) make_fir(width, out_width, shape, true, &x);
  if (lowers) make_fir(height, out_height, shape, false, &y);
  const size_t readable = std::max(row_bytes, size_t(x.reach) * 3);

  // Pillow 13 goes down the columns first where that saves much; rounding in between makes it another picture.
  if (lowers && out_height < height && height - out_height > 2 * (width - out_width)) {
    const Rows source(&s->middle[0], row_bytes, row_bytes, height, y.reach);
    for (int row = 0; row < height; row++) std::memcpy(source.at(row), rgb + size_t(row) * row_stride, row_bytes);
    const Rows middle(&s->middle[1], row_bytes, readable, out_height, 0);
    for (int row = 0; row < out_height; row++) {
      k.fir_columns(y, row, source.data, ptrdiff_t(source.stride), int(row_bytes), middle.at(row));
    }
    const Rows wide(&s->middle[2], out_bytes, out_bytes, out_height, 0);
    if (narrows) {
      filter_rows(x, out_height, [&](int row) { return middle.at(row); }, [&](int row) { return wide.at(row); });
    }
    const Rows& done = narrows ? wide : middle;
    for (int row = 0; row < out_height; row++) std::memcpy(out + size_t(row) * out_bytes, done.at(row), out_bytes);
    return;
  }
  const Rows middle(&s->middle[0], out_bytes, out_bytes, height, y.reach);
  if (narrows) {
    // The last rows are copied to where there is room to read on behind them.
    const size_t reach = readable + kRowPadding, source_end = size_t(height - 1) * row_stride + row_bytes;
    int num_safe = height;
    while (num_safe > 0 && size_t(num_safe - 1) * row_stride + reach > source_end) num_safe--;
    const Rows tail(&s->middle[1], row_bytes, readable, height - num_safe, 0);
    for (int row = num_safe; row < height; row++) {
      std::memcpy(tail.at(row - num_safe), rgb + size_t(row) * row_stride, row_bytes);
    }
    filter_rows(
        x, height,
        [&](int row) -> const uint8_t* {
          return row < num_safe ? rgb + size_t(row) * row_stride : tail.at(row - num_safe);
        },
        [&](int row) { return middle.at(row); });
  } else {
    for (int row = 0; row < height; row++) std::memcpy(middle.at(row), rgb + size_t(row) * row_stride, row_bytes);
  }
  for (int row = 0; row < out_height; row++, out += out_bytes) {
    if (lowers) {
      k.fir_columns(y, row, middle.data, ptrdiff_t(middle.stride), int(out_bytes), out);
    } else {
      std::memcpy(out, middle.at(row), out_bytes);
    }
  }
}

}  // namespace beton
