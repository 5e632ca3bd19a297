#include "raw.h"

#include <algorithm>
#include <cstring>

#include "geometry.h"
#include "kernels.h"
#include "passes.h"

namespace beton {

namespace {

struct Pixels {
  const uint8_t* data;
  ptrdiff_t stride;  // negative: from the bottom up
  int width, height;
};

void split(const Pixels& from, bool mirror, const Target& to) {
  kernels().split_rows(from.data, from.stride, from.width, from.height, mirror, to.plane, to.stride);
}

void copy_gray(const Pixels& from, bool mirror, const Target& to) {
  for (int y = 0; y < from.height; y++) {
    const uint8_t* row = from.data + y * from.stride;
    uint8_t* out = to.plane[0] + y * to.stride;
    if (mirror) {
      std::reverse_copy(row, row + from.width, out);
    } else {
      std::memcpy(out, row, size_t(from.width));
    }
  }
}

}  // namespace

bool copy_raw(const beton_request& q, Status* status) {
  if (q.mode != BETON_MODE_RAW || !valid(q)) return false;
  const Geometry g = make_geometry(q);
  if (!g.exact || (g.padded && !g.framed)) return false;
  const ptrdiff_t stride = ptrdiff_t(q.src_width) * q.channels;
  if (q.src_bytes != uint64_t(stride) * uint64_t(q.src_height)) {
    *status = kRawSize;
    return true;
  }
  Target out;
  for (int c = 0; c < q.channels; c++) out.plane[c] = reinterpret_cast<uint8_t*>(uintptr_t(q.dst)) + c * q.plane_stride;
  out.stride = q.row_stride;
  if (g.framed) {
    fill_frame(q, g, out);
    for (int c = 0; c < q.channels; c++) out.plane[c] += g.top * out.stride + g.left;
  }
  *status = kOk;
  if (g.width == 0 || g.height == 0) return true;
  const int x = q.box_x + g.x, y = q.box_y + g.y + (g.upside_down ? g.height - 1 : 0);
  const uint8_t* data = reinterpret_cast<const uint8_t*>(uintptr_t(q.src)) + y * stride + ptrdiff_t(x) * q.channels;
  const Pixels from = {data, g.upside_down ? -stride : stride, g.width, g.height};
  (q.channels == 3 ? split : copy_gray)(from, g.mirror, out);
  return true;
}

}  // namespace beton
