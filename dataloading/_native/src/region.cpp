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

// Interleaved RGB, or gray, whose pixel (0, 0) is source pixel (origin_x, origin_y). It has the target's channels.
struct PixelSource {
  const uint8_t* data;
  size_t stride;
  int origin_x, origin_y;
};

// Takes a row of `count` pixels apart.
void split(const Kernels& k, int channels, const uint8_t* row, int count, uint8_t* const d[3]) {
  if (channels == 3) {
    k.split_rgb(row, count, d[0], d[1], d[2]);
  } else {
    std::memcpy(d[0], row, size_t(count));
  }
}

void copy_pixels(const beton_request& q, const Geometry& g, const PixelSource& src, const Target& target) {
  const Kernels& k = kernels();
  const int n = target.channels;
  const int x = q.box_x + g.x - src.origin_x, y = q.box_y + g.y - src.origin_y;
  for (int i = 0; i < g.height; i++) {
    const uint8_t* row = src.data + size_t(y + (g.upside_down ? g.height - 1 - i : i)) * src.stride + size_t(x) * n;
    uint8_t* d[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < n; c++) d[c] = target.plane[c] + i * target.stride;
    split(k, n, row, g.width, d);
    if (g.mirror) {
      for (int c = 0; c < n; c++) reverse_row(d[c], g.width);
    }
  }
}

void make_axes(const beton_request& q, const Geometry& g, Scratch* s) {
  const AxisSpec x = axis_spec(q, g, true), y = axis_spec(q, g, false);
  make_box(x, &s->box_x);
  make_box(y, &s->box_y);
  make_axis(x, s->box_x, &s->x[0]);
  make_axis(y, s->box_y, &s->y[0]);
}

void resize_pixels(const beton_request& q, const Geometry& g, const PixelSource& src, const Target& target,
                   Scratch* s) {
  const Kernels& k = kernels();
  const int n = target.channels;
  const Axis &ax = s->x[0], &ay = s->y[0];  // made by the caller
  RowPlan& plan = s->plan[0];
  make_row_plan(ax, &plan);
  const ptrdiff_t stride = middle_stride(g.width);
  int16_t* middle[3] = {nullptr, nullptr, nullptr};
  for (int c = 0; c < n; c++) middle[c] = make_middle(ay, stride, &s->middle[c]);
  // A few rows at a time, so that the split planes stay in the first-level cache.
  constexpr int kRows = 8;
  const int width = ax.high - ax.low;
  const ptrdiff_t strip_stride = (width + kRowPadding + 63) & ~63;
  uint8_t* strip[3] = {nullptr, nullptr, nullptr};
  for (int c = 0; c < n; c++) {
    strip[c] = s->strip[c].get<uint8_t>(size_t(strip_stride) * kRows);
    for (int r = 0; r < kRows; r++) std::memset(strip[c] + r * strip_stride + width, 0, size_t(strip_stride - width));
  }
  for (int y = ay.low & ~1; y < ay.high; y += kRows) {
    const int rows = std::min(kRows, ay.high - y);
    for (int r = y < ay.low ? 1 : 0; r < rows; r++) {
      const uint8_t* row = src.data + size_t(y + r - src.origin_y) * src.stride + size_t(ax.low - src.origin_x) * n;
      uint8_t* d[3] = {nullptr, nullptr, nullptr};
      for (int c = 0; c < n; c++) d[c] = strip[c] + r * strip_stride;
      split(k, n, row, width, d);
      // Raw images lie anywhere in the file: bring the same row of the next strip into the cache meanwhile.
      const uint8_t* next = row + size_t(std::min(kRows, ay.high - 1 - y - r)) * src.stride;
      for (int at = 0; at < width * n; at += 64) __builtin_prefetch(next + at);
    }
    for (int c = 0; c < n; c++) {
      k.horizontal(plan, strip[c] - ax.low, strip_stride, (rows + 1) / 2, middle[c] + middle_pair(ay, y) * stride, stride);
    }
  }
  const Axis* axis_y[3] = {&ay, &ay, &ay};
  finish_rows(g, n, false, middle, stride, axis_y, target);
}

// Any JPEG, through libjpeg.
Status render_with_libjpeg(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                           Scratch* s) {
  const uint8_t* data = reinterpret_cast<const uint8_t*>(uintptr_t(q.src));
  Status status = check_plausible(header, size_t(q.src_bytes));
  if (status != kOk) return status;
  int x = q.box_x + g.x, y = q.box_y + g.y, width = g.width, height = g.height;
  if (!g.exact) {
    make_axes(q, g, s);
    x = s->x[0].low;
    y = s->y[0].low;
    width = s->x[0].high - x;
    height = s->y[0].high - y;
  }
  const size_t stride = size_t(width) * 3;
  uint8_t* rgb = s->rgb.get<uint8_t>(stride * size_t(height));
  const bool strict = y + height == header.height;  // as our own way, to the image's end if it is that near
  status = libjpeg_decode(data, size_t(q.src_bytes), x, y, width, height, 3, rgb, stride, strict, nullptr);
  if (status != kOk) return status;
  if (target.channels == 1) {
    // A gray JPEG: the three values of a pixel are equal.
    const size_t pixels = size_t(width) * size_t(height);
    for (size_t i = 0; i < pixels; i++) rgb[i] = rgb[3 * i];
  }
  const PixelSource src = {rgb, size_t(width) * size_t(target.channels), x, y};
  if (g.exact) {
    copy_pixels(q, g, src, target);
  } else {
    resize_pixels(q, g, src, target, s);
  }
  return kOk;
}

Status render_raw(const beton_request& q, const Geometry& g, const Target& target, Scratch* s) {
  const size_t stride = size_t(q.src_width) * size_t(q.channels);
  const PixelSource src = {reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), stride, 0, 0};
  if (q.src_bytes != uint64_t(stride) * uint64_t(q.src_height)) return kRawSize;
  if (g.exact) {
    copy_pixels(q, g, src, target);
  } else {
    make_axes(q, g, s);
    resize_pixels(q, g, src, target, s);
  }
  return kOk;
}

Status render(const beton_request& q, const Geometry& g, const Target& target, const Cover* shared, Scratch* s) {
  if (q.mode == BETON_MODE_RAW) return render_raw(q, g, target, s);
  JpegHeader header;
  Status status = parse_header(reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), &header);
  if (status != kOk) return status;
  if (header.num_components == 4) return kFourColours;
  if (q.channels == 1 && header.num_components != 1) return kNotGray;
  if (header.width != q.src_width || header.height != q.src_height) return kSizeMismatch;
  status = kUnsupported;
  if (scan_supports(header)) {
    status = g.exact ? copy_planar(q, g, header, target, shared, s) : resize_planar(q, g, header, target, shared, s);
  }
  // Whatever our own way does not find plainly sound is libjpeg's to judge, but codes that it lets pass are refused.
  if (status == kOk || status == kBadCode) return status;
  return render_with_libjpeg(q, g, header, target, s);
}

}  // namespace

Status decode_region(const beton_request& q, const Cover* shared) {
  if (!valid(q)) return kBadRequest;
  Scratch& scratch = thread_scratch();
  const Geometry g = make_geometry(q);
  Target out;
  const int n = q.channels;
  for (int c = 0; c < n; c++) out.plane[c] = reinterpret_cast<uint8_t*>(uintptr_t(q.dst)) + c * q.plane_stride;
  out.stride = q.row_stride;
  out.channels = n;
  Status status;
  if (!g.padded) {
    status = render(q, g, out, shared, &scratch);
  } else if (g.framed) {
    Target part = out;
    for (int c = 0; c < n; c++) part.plane[c] += g.top * out.stride + g.left;
    fill_frame(q, g, out);
    const bool empty = g.width == 0 || g.height == 0;
    status = empty ? kOk : render(q, g, part, shared, &scratch);
  } else {
    Target part;
    const size_t plane = size_t(g.width) * size_t(g.height);
    uint8_t* core = scratch.core.get<uint8_t>(plane * size_t(n) + 1);
    for (int c = 0; c < n; c++) part.plane[c] = core + size_t(c) * plane;
    part.stride = g.width;
    part.channels = n;
    status = render(q, g, part, shared, &scratch);
    for (int c = 0; c < n && status == kOk; c++) {
      for (int i = 0; i < q.out_h; i++) {
        uint8_t* d = out.plane[c] + i * out.stride;
        const uint8_t* from = part.plane[c] + g.row[size_t(i)] * part.stride;
        for (int j = 0; j < q.out_w; j++) d[j] = from[g.column[size_t(j)]];
      }
    }
  }
  scratch.trim();
  return status;
}

}  // namespace beton
