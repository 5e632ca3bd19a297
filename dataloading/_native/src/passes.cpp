#include "passes.h"

#include <algorithm>
#include <cstring>

namespace beton {

void finish_rows(const Geometry& g, int components, bool ycc, const int16_t* const middle[3], ptrdiff_t stride,
                 const Axis* const axis_y[3], const Target& target, Scratch* s) {
  const Kernels& k = kernels();
  int16_t* line = s->line.get<int16_t>(size_t(stride) * 3);
  for (int i = 0; i < g.height; i++) {
    for (int c = 0; c < components; c++) {
      const Axis& a = *axis_y[c];
      k.vertical(middle[c] + (a.start[size_t(i)] - a.low) * stride, stride, a.weight(i), a.taps, g.width,
                 line + c * stride);
    }
    uint8_t* d[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < target.channels; c++) d[c] = target.plane[c] + i * target.stride;
    if (components == 1) {
      k.pack(line, g.width, d[0]);
      for (int c = 1; c < target.channels; c++) std::memcpy(d[c], d[0], size_t(g.width));
    } else if (ycc) {
      k.ycc_to_rgb(line, line + stride, line + 2 * stride, g.width, d[0], d[1], d[2]);
    } else {
      for (int c = 0; c < 3; c++) k.pack(line + c * stride, g.width, d[c]);
    }
  }
}

void reverse_row(uint8_t* row, int n) {
  int first = 0, last = n;  // what is left to do
  for (; last - first >= 16; first += 8, last -= 8) {
    uint64_t front, back;
    std::memcpy(&front, row + first, 8);
    std::memcpy(&back, row + last - 8, 8);
    front = __builtin_bswap64(front);
    back = __builtin_bswap64(back);
    std::memcpy(row + first, &back, 8);
    std::memcpy(row + last - 8, &front, 8);
  }
  std::reverse(row + first, row + last);
}

ptrdiff_t middle_stride(int width) { return (width + kOutPadding + 31) & ~31; }

int16_t* make_middle(const Axis& y, ptrdiff_t stride, Buffer* buffer) {
  const size_t rows = size_t(y.high - y.low), spare = size_t(y.taps);
  int16_t* middle = buffer->get<int16_t>((rows + spare) * size_t(stride));
  std::memset(middle + rows * size_t(stride), 0, spare * size_t(stride) * sizeof(int16_t));
  return middle;
}

}  // namespace beton
