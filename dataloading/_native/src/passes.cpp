#include "passes.h"

#include <algorithm>
#include <cstring>

namespace beton {

void finish_rows(const Geometry& g, int components, bool ycc, const int16_t* const middle[3], ptrdiff_t stride,
                 const Axis* const axis_y[3], const Target& target) {
  const Kernels& k = kernels();
  for (int i = 0; i < g.height; i++) {
    Column columns[3];
    for (int c = 0; c < components; c++) {
      const Axis& a = *axis_y[c];
      const int first = middle_pair(a, a.start[size_t(i)]), last = middle_pair(a, a.end[size_t(i)] - 1);
      columns[c] = {middle[c] + first * stride, a.weight(i), last - first + 1};
    }
    uint8_t* d[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < target.channels; c++) d[c] = target.plane[c] + i * target.stride;
    if (ycc) {
      k.finish_ycc(columns, stride, g.width, d[0], d[1], d[2]);
      continue;
    }
    for (int c = 0; c < components; c++) k.finish_plane(columns[c], stride, g.width, d[c]);
    for (int c = components; c < target.channels; c++) std::memcpy(d[c], d[0], size_t(g.width));
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

ptrdiff_t middle_stride(int width) { return 2 * ((width + kOutPadding + 31) & ~31); }

int16_t* make_middle(const Axis& y, ptrdiff_t stride, Buffer* buffer) {
  return buffer->get<int16_t>(size_t(middle_pair(y, y.high - 1) + 1) * size_t(stride));
}

void fill_frame(const beton_request& q, const Geometry& g, const Target& out) {
  constexpr int kBlock = 16;
  const bool empty = g.width == 0 || g.height == 0;
  const int top = empty ? q.out_h : g.top, bottom = empty ? q.out_h : g.top + g.height;
  const int right = q.out_w - g.left - g.width;
  const bool blocks = q.out_w >= kBlock && g.left <= kBlock && right <= kBlock;
  for (int c = 0; c < q.channels; c++) {
    uint8_t fill[kBlock];
    std::memset(fill, q.fill[c], sizeof fill);
    uint8_t* plane = out.plane[c];
    for (int y = 0; y < top; y++) std::memset(plane + y * out.stride, q.fill[c], size_t(q.out_w));
    for (int y = top; y < bottom; y++) {
      uint8_t* row = plane + y * out.stride;
      if (blocks) {
        if (g.left > 0) std::memcpy(row, fill, kBlock);
        if (right > 0) std::memcpy(row + q.out_w - kBlock, fill, kBlock);
      } else {
        std::memset(row, q.fill[c], size_t(g.left));
        std::memset(row + q.out_w - right, q.fill[c], size_t(right));
      }
    }
    for (int y = bottom; y < q.out_h; y++) std::memset(plane + y * out.stride, q.fill[c], size_t(q.out_w));
  }
}

}  // namespace beton
