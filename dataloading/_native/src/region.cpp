#include "region.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "header.h"
#include "kernels.h"
#include "libjpeg_io.h"
#include "scratch.h"

namespace beton {

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

namespace {

// Where finished rows go.
struct Target {
  uint8_t* plane[3];
  ptrdiff_t stride;
};

// The part of the resized crop that the window needs, and how it lands in the output.
struct Geometry {
  int x = 0, y = 0, width = 0, height = 0;  // resized coordinates
  bool exact = false;                       // no resampling on either axis
  bool padded = false;                      // the window leaves the resized crop
  bool mirror = false, upside_down = false; // done while rendering; with padding they are done afterwards
  std::vector<int> column, row;             // with padding: output index -> index in the part, or -1 for fill
};

// Index inside [0, n) that position p shows under the padding rule, or -1 for the fill colour.
int resolve(int64_t p, int n, int mode) {
  if (p >= 0 && p < n) return int(p);
  switch (mode) {
    case BETON_PAD_EDGE: return p < 0 ? 0 : n - 1;
    case BETON_PAD_REFLECT: {
      if (n == 1) return 0;
      const int64_t period = 2 * int64_t(n - 1);
      const int64_t q = ((p % period) + period) % period;
      return int(q < n ? q : period - q);
    }
    case BETON_PAD_SYMMETRIC: {
      const int64_t period = 2 * int64_t(n);
      const int64_t q = ((p % period) + period) % period;
      return int(q < n ? q : period - 1 - q);
    }
    default: return -1;
  }
}

// Maps one axis of the window; returns the needed range [*low, *low + *count), empty when all is fill.
void map_axis(int window, int out, int scaled, int pad_mode, bool flip, std::vector<int>* map, int* low, int* count) {
  map->resize(size_t(out));
  int first = scaled, last = -1;
  for (int i = 0; i < out; i++) {
    const int at = resolve(int64_t(window) + i, scaled, pad_mode);
    (*map)[size_t(flip ? out - 1 - i : i)] = at;
    if (at >= 0) {
      first = std::min(first, at);
      last = std::max(last, at);
    }
  }
  for (int& at : *map) {
    if (at >= 0) at -= first;
  }
  *low = first;
  *count = std::max(last - first + 1, 0);
}

Geometry make_geometry(const beton_request& q) {
  Geometry g;
  g.exact = q.scaled_w == q.box_w && q.scaled_h == q.box_h;
  g.mirror = (q.flip & 1) != 0;
  g.upside_down = (q.flip & 2) != 0;
  g.padded = q.window_x < 0 || q.window_y < 0 || int64_t(q.window_x) + q.out_w > q.scaled_w ||
             int64_t(q.window_y) + q.out_h > q.scaled_h;
  if (!g.padded) {
    g.x = q.window_x;
    g.y = q.window_y;
    g.width = q.out_w;
    g.height = q.out_h;
    return g;
  }
  map_axis(q.window_x, q.out_w, q.scaled_w, q.pad_mode, g.mirror, &g.column, &g.x, &g.width);
  map_axis(q.window_y, q.out_h, q.scaled_h, q.pad_mode, g.upside_down, &g.row, &g.y, &g.height);
  g.mirror = g.upside_down = false;
  return g;
}

bool valid(const beton_request& q) {
  constexpr int kMost = 1 << 20;
  if (q.mode != BETON_MODE_JPEG && q.mode != BETON_MODE_RAW) return false;
  if (q.src_width < 1 || q.src_height < 1 || q.src_width > 65535 || q.src_height > 65535) return false;
  if (q.box_x < 0 || q.box_y < 0 || q.box_w < 1 || q.box_h < 1) return false;
  if (int64_t(q.box_x) + q.box_w > q.src_width || int64_t(q.box_y) + q.box_h > q.src_height) return false;
  if (q.scaled_w < 1 || q.scaled_h < 1 || q.scaled_w > kMost || q.scaled_h > kMost) return false;
  if (q.out_w < 1 || q.out_h < 1 || q.out_w > kMost || q.out_h > kMost) return false;
  if (q.pad_mode < BETON_PAD_CONSTANT || q.pad_mode > BETON_PAD_SYMMETRIC) return false;
  if (q.interpolation < BETON_NEAREST || q.interpolation > BETON_BICUBIC) return false;
  return q.channels == 3 && q.dst != 0 && (q.src != 0 || q.src_bytes == 0);
}

AxisSpec axis_spec(const beton_request& q, const Geometry& g, bool horizontal) {
  AxisSpec s;
  s.box = horizontal ? q.box_x : q.box_y;
  s.length = horizontal ? q.box_w : q.box_h;
  s.scaled = horizontal ? q.scaled_w : q.scaled_h;
  s.first = horizontal ? g.x : g.y;
  s.count = horizontal ? g.width : g.height;
  s.interpolation = q.interpolation;
  s.antialias = q.antialias != 0;
  s.reverse = horizontal ? g.mirror : g.upside_down;
  return s;
}

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

// The vertical pass over the three middles, and the colours.
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
    uint8_t* d[3];
    for (int c = 0; c < 3; c++) d[c] = target.plane[c] + i * target.stride;
    if (components == 1) {
      k.pack(line, g.width, d[0]);
      std::memcpy(d[1], d[0], size_t(g.width));
      std::memcpy(d[2], d[0], size_t(g.width));
    } else if (ycc) {
      k.ycc_to_rgb(line, line + stride, line + 2 * stride, g.width, d[0], d[1], d[2]);
    } else {
      for (int c = 0; c < 3; c++) k.pack(line + c * stride, g.width, d[c]);
    }
  }
}

ptrdiff_t middle_stride(int width) { return (width + kOutPadding + 31) & ~31; }

// Room for an axis' source rows, and zeroed rows behind them that unused taps (of weight 0) fall on.
int16_t* make_middle(const Axis& y, ptrdiff_t stride, Buffer* buffer) {
  const size_t rows = size_t(y.high - y.low), spare = size_t(y.taps);
  int16_t* middle = buffer->get<int16_t>((rows + spare) * size_t(stride));
  std::memset(middle + rows * size_t(stride), 0, spare * size_t(stride) * sizeof(int16_t));
  return middle;
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
  return render_with_libjpeg(q, g, header, target, s);
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
