#include "region.h"

#include <algorithm>
#include <cstring>

#include "geometry.h"
#include "header.h"
#include "kernels.h"
#include "libjpeg_io.h"
#include "passes.h"
#include "planar.h"
#include "scan.h"
#include "scratch.h"

namespace beton {

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

namespace {

// Interleaved RGB whose pixel (0, 0) is source pixel (origin_x, origin_y).
struct RgbSource {
  const uint8_t* data;
  size_t stride;
  int origin_x, origin_y;
};

void copy_rgb(const beton_request& q, const Geometry& g, const RgbSource& src, const Target& target, Scratch* s) {
  const Kernels& k = kernels();
  const int x = q.box_x + g.x - src.origin_x, y = q.box_y + g.y - src.origin_y;
  for (int i = 0; i < g.height; i++) {
    const uint8_t* row = src.data + size_t(y + (g.upside_down ? g.height - 1 - i : i)) * src.stride + size_t(x) * 3;
    uint8_t* d[3];
    for (int c = 0; c < 3; c++) d[c] = target.plane[c] + i * target.stride;
    k.split_rgb(row, g.width, d[0], d[1], d[2]);
    if (g.mirror) {
      for (int c = 0; c < 3; c++) std::reverse(d[c], d[c] + g.width);
    }
  }
}

void resize_rgb(const beton_request& q, const Geometry& g, const RgbSource& src, const Target& target, Scratch* s) {
  const Kernels& k = kernels();
  const Axis &ax = s->x[0], &ay = s->y[0];  // made by the caller
  RowPlan& plan = s->plan[0];
  make_row_plan(ax, &plan);
  const ptrdiff_t stride = middle_stride(g.width);
  int16_t* middle[3];
  for (int c = 0; c < 3; c++) middle[c] = make_middle(ay, stride, &s->middle[c]);
  // A few rows at a time, so that the split planes stay in the first-level cache.
  constexpr int kRows = 8;
  const int width = ax.high - ax.low;
  const ptrdiff_t strip_stride = (width + kRowPadding + 63) & ~63;
  uint8_t* strip[3];
  for (int c = 0; c < 3; c++) {
    strip[c] = s->strip[c].get<uint8_t>(size_t(strip_stride) * kRows);
    for (int r = 0; r < kRows; r++) std::memset(strip[c] + r * strip_stride + width, 0, size_t(strip_stride - width));
  }
  for (int y = ay.low; y < ay.high; y += kRows) {
    const int rows = std::min(kRows, ay.high - y);
    for (int r = 0; r < rows; r++) {
      const uint8_t* row = src.data + size_t(y + r - src.origin_y) * src.stride + size_t(ax.low - src.origin_x) * 3;
      const ptrdiff_t at = r * strip_stride;
      k.split_rgb(row, width, strip[0] + at, strip[1] + at, strip[2] + at);
    }
    for (int c = 0; c < 3; c++) {
      k.horizontal(plan, strip[c] - ax.low, strip_stride, rows, middle[c] + (y - ay.low) * stride, stride);
    }
  }
  const Axis* axis_y[3] = {&ay, &ay, &ay};
  finish_rows(g, 3, false, middle, stride, axis_y, target, s);
}

// Any JPEG, through libjpeg.
Status render_with_libjpeg(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                           Scratch* s) {
  const uint8_t* data = reinterpret_cast<const uint8_t*>(uintptr_t(q.src));
  Status status = check_plausible(header, size_t(q.src_bytes));
  if (status != kOk) return status;
  int x = q.box_x + g.x, y = q.box_y + g.y, width = g.width, height = g.height;
  if (!g.exact) {
    make_axis(axis_spec(q, g, true), &s->x[0]);
    make_axis(axis_spec(q, g, false), &s->y[0]);
    x = s->x[0].low;
    y = s->y[0].low;
    width = s->x[0].high - x;
    height = s->y[0].high - y;
  }
  const size_t stride = size_t(width) * 3;
  uint8_t* rgb = s->rgb.get<uint8_t>(stride * size_t(height));
  status = libjpeg_decode_rgb(data, size_t(q.src_bytes), x, y, width, height, rgb, stride, false, nullptr);
  if (status != kOk) return status;
  const RgbSource src = {rgb, stride, x, y};
  if (g.exact) {
    copy_rgb(q, g, src, target, s);
  } else {
    resize_rgb(q, g, src, target, s);
  }
  return kOk;
}

Status render_raw(const beton_request& q, const Geometry& g, const Target& target, Scratch* s) {
  const RgbSource src = {reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_width) * 3, 0, 0};
  if (q.src_bytes != uint64_t(q.src_width) * uint64_t(q.src_height) * 3) return kRawSize;
  if (g.exact) {
    copy_rgb(q, g, src, target, s);
  } else {
    make_axis(axis_spec(q, g, true), &s->x[0]);
    make_axis(axis_spec(q, g, false), &s->y[0]);
    resize_rgb(q, g, src, target, s);
  }
  return kOk;
}

Status render(const beton_request& q, const Geometry& g, const Target& target, Scratch* s) {
  if (q.mode == BETON_MODE_RAW) return render_raw(q, g, target, s);
  JpegHeader header;
  Status status = parse_header(reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), &header);
  if (status != kOk) return status;
  if (header.num_components == 4) return kFourColours;
  if (header.width != q.src_width || header.height != q.src_height) return kSizeMismatch;
  if (!scan_supports(header)) return render_with_libjpeg(q, g, header, target, s);
  return g.exact ? copy_planar(q, g, header, target, s) : resize_planar(q, g, header, target, s);
}

}  // namespace

Status decode_region(const beton_request& q) {
  if (!valid(q)) return kBadRequest;
  Scratch& scratch = thread_scratch();
  const Geometry g = make_geometry(q);
  Target out;
  for (int c = 0; c < 3; c++) out.plane[c] = reinterpret_cast<uint8_t*>(uintptr_t(q.dst)) + c * q.plane_stride;
  out.stride = q.row_stride;
  Status status;
  if (!g.padded) {
    status = render(q, g, out, &scratch);
  } else {
    Target part;
    const size_t plane = size_t(g.width) * size_t(g.height);
    uint8_t* core = scratch.core.get<uint8_t>(plane * 3 + 1);
    for (int c = 0; c < 3; c++) part.plane[c] = core + size_t(c) * plane;
    part.stride = g.width;
    status = plane > 0 ? render(q, g, part, &scratch) : kOk;
    for (int c = 0; c < 3 && status == kOk; c++) {
      for (int i = 0; i < q.out_h; i++) {
        uint8_t* d = out.plane[c] + i * out.stride;
        const int row = plane > 0 ? g.row[size_t(i)] : -1;
        if (row < 0) {
          std::memset(d, q.fill[c], size_t(q.out_w));
          continue;
        }
        const uint8_t* from = part.plane[c] + row * part.stride;
        for (int j = 0; j < q.out_w; j++) {
          const int column = g.column[size_t(j)];
          d[j] = column < 0 ? q.fill[c] : from[column];
        }
      }
    }
  }
  scratch.trim();
  return status;
}

}  // namespace beton
