#include "region.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "header.h"
#include "kernels.h"
#include "libjpeg_io.h"
#include "scan.h"
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

// How libjpeg (jdsample.c, jinit_upsampler) brings component c to full resolution.
struct Upsampling {
  int x = 1, y = 1;
  bool fancy_x = false, fancy_y = false;
};

Upsampling upsampling(const JpegHeader& h, int c) {
  Upsampling u;
  if (h.num_components == 1) return u;
  const Component& k = h.component[c];
  u.x = h.h_max / k.h;
  u.y = h.v_max / k.v;
  if (u.x == 2 && u.y == 1) u.fancy_x = k.width > 2;
  if (u.x == 1 && u.y == 2) u.fancy_y = true;
  if (u.x == 2 && u.y == 2) u.fancy_x = u.fancy_y = k.width > 2;
  return u;
}

// Samples [low, high) of each component that are wanted, and the MCUs that hold them.
struct Cover {
  int x_low[3], x_high[3], y_low[3], y_high[3];
  int mcu_first = 0, mcu_last = 0, row_first = 0, row_last = 0;
  int h[3], v[3];  // blocks of a component in an MCU
  int block_row_low[3], block_row_high[3];
  StripSet strips;
};

void finish_cover(const JpegHeader& header, Cover* cover) {
  cover->mcu_first = cover->row_first = 1 << 30;
  for (int c = 0; c < header.num_components; c++) {
    const int h = header.num_components == 1 ? 1 : header.component[c].h;
    const int v = header.num_components == 1 ? 1 : header.component[c].v;
    cover->h[c] = h;
    cover->v[c] = v;
    cover->strips.low[c] = cover->x_low[c] / 8;
    cover->strips.high[c] = (cover->x_high[c] + 7) / 8;
    cover->block_row_low[c] = cover->y_low[c] / 8;
    cover->block_row_high[c] = (cover->y_high[c] + 7) / 8;
    cover->mcu_first = std::min(cover->mcu_first, cover->x_low[c] / (8 * h));
    cover->mcu_last = std::max(cover->mcu_last, (cover->x_high[c] - 1) / (8 * h) + 1);
    cover->row_first = std::min(cover->row_first, cover->y_low[c] / (8 * v));
    cover->row_last = std::max(cover->row_last, (cover->y_high[c] - 1) / (8 * v) + 1);
  }
  cover->strips.first_mcu = cover->mcu_first;
}

// Planes of `mcu_rows` rows of MCUs. All of it is initialised: blocks that are not wanted are never written.
void make_strips(const JpegHeader& header, int mcu_rows, Cover* cover, Scratch* s) {
  for (int c = 0; c < header.num_components; c++) {
    const ptrdiff_t stride = (ptrdiff_t(cover->mcu_last - cover->mcu_first) * cover->h[c] * 8 + kRowPadding + 63) & ~63;
    const size_t bytes = size_t(stride) * size_t(cover->v[c]) * 8 * size_t(mcu_rows);
    cover->strips.stride[c] = stride;
    cover->strips.data[c] = s->strip[c].get<uint8_t>(bytes);
    std::memset(cover->strips.data[c], 0, bytes);
  }
}

Status open_scan(const beton_request& q, const JpegHeader& header, const Cover& cover, Scratch* s, Scan* scan) {
  const int64_t last = int64_t(cover.row_last - 1) * header.mcus_per_row + cover.mcu_last - 1;
  return scan->open(header, reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), last, s);
}

// Luma and chroma are resized apart, straight to output size; each strip of decoded rows is filtered while it is hot.
Status resize_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                     Scratch* s) {
  const Kernels& k = kernels();
  const int n = header.num_components;
  Cover cover;
  int of[3] = {0, 0, 0};  // which component's filters this one shares
  for (int c = 0; c < n; c++) {
    const Upsampling u = upsampling(header, c);
    const Component& component = header.component[c];
    of[c] = c;
    for (int d = 0; d < c; d++) {
      if (header.component[d].h == component.h && header.component[d].v == component.v) {
        of[c] = of[d];
        break;
      }
    }
    if (of[c] == c) {
      AxisSpec spec = axis_spec(q, g, true);
      spec.ratio = u.x;
      spec.fancy = u.fancy_x;
      spec.component_length = component.width;
      make_axis(spec, &s->x[c]);
      make_row_plan(s->x[c], &s->plan[c]);
      spec = axis_spec(q, g, false);
      spec.ratio = u.y;
      spec.fancy = u.fancy_y;
      spec.component_length = component.height;
      make_axis(spec, &s->y[c]);
    }
    cover.x_low[c] = s->x[of[c]].low;
    cover.x_high[c] = s->x[of[c]].high;
    cover.y_low[c] = s->y[of[c]].low;
    cover.y_high[c] = s->y[of[c]].high;
  }
  finish_cover(header, &cover);
  Scan scan;
  Status status = open_scan(q, header, cover, s, &scan);
  if (status != kOk) return status;
  make_strips(header, 1, &cover, s);
  const ptrdiff_t stride = middle_stride(g.width);
  int16_t* middle[3] = {nullptr, nullptr, nullptr};
  const Axis* axis_y[3] = {nullptr, nullptr, nullptr};
  for (int c = 0; c < n; c++) {
    axis_y[c] = &s->y[of[c]];
    middle[c] = make_middle(*axis_y[c], stride, &s->middle[c]);
  }
  for (int row = cover.row_first; row < cover.row_last; row++) {
    status = scan.decode_row(row, cover.mcu_first, cover.mcu_last, cover.strips, cover.block_row_low,
                             cover.block_row_high);
    if (status != kOk) return status;
    for (int c = 0; c < n; c++) {
      const int top = row * cover.v[c] * 8, left = cover.mcu_first * cover.h[c] * 8;
      const int first = std::max(top, cover.y_low[c]), last = std::min(top + cover.v[c] * 8, cover.y_high[c]);
      if (first >= last) continue;
      k.horizontal(s->plan[of[c]], cover.strips.data[c] + (first - top) * cover.strips.stride[c] - left,
                   cover.strips.stride[c], last - first, middle[c] + (first - cover.y_low[c]) * stride, stride);
    }
  }
  finish_rows(g, n, header.space == BETON_SPACE_YCBCR, middle, stride, axis_y, target, s);
  return kOk;
}

// No resize: the pixels are libjpeg's, bit for bit.
Status copy_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                   Scratch* s) {
  const Kernels& k = kernels();
  const int n = header.num_components;
  const int x0 = q.box_x + g.x, y0 = q.box_y + g.y, x1 = x0 + g.width, y1 = y0 + g.height;
  Cover cover;
  Upsampling up[3];
  for (int c = 0; c < n; c++) {
    const Component& component = header.component[c];
    up[c] = upsampling(header, c);
    // One more sample on each side for the triangle filter.
    const int dx = up[c].fancy_x ? 1 : 0, dy = up[c].fancy_y ? 1 : 0;
    cover.x_low[c] = std::max(x0 / up[c].x - dx, 0);
    cover.x_high[c] = std::min((x1 - 1) / up[c].x + 1 + dx, component.width);
    cover.y_low[c] = std::max(y0 / up[c].y - dy, 0);
    cover.y_high[c] = std::min((y1 - 1) / up[c].y + 1 + dy, component.height);
  }
  finish_cover(header, &cover);
  Scan scan;
  Status status = open_scan(q, header, cover, s, &scan);
  if (status != kOk) return status;
  make_strips(header, cover.row_last - cover.row_first, &cover, s);
  uint8_t* const base[3] = {cover.strips.data[0], cover.strips.data[1], cover.strips.data[2]};
  for (int row = cover.row_first; row < cover.row_last; row++) {
    for (int c = 0; c < n; c++) {
      cover.strips.data[c] = base[c] + ptrdiff_t(row - cover.row_first) * cover.v[c] * 8 * cover.strips.stride[c];
    }
    status = scan.decode_row(row, cover.mcu_first, cover.mcu_last, cover.strips, cover.block_row_low,
                             cover.block_row_high);
    if (status != kOk) return status;
  }
  const ptrdiff_t line_bytes = (g.width + 16 + 63) & ~63;
  uint8_t* line = s->line.get<uint8_t>(size_t(line_bytes) * 3);
  for (int i = 0; i < g.height; i++) {
    const int y = y0 + i;
    const uint8_t* full[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < n; c++) {
      const Upsampling& u = up[c];
      const int left = cover.mcu_first * cover.h[c] * 8, top = cover.row_first * cover.v[c] * 8;
      const int low = cover.x_low[c], count = cover.x_high[c] - low;
      const ptrdiff_t stride = cover.strips.stride[c];
      const int near_y = y / u.y;
      int far_y = (y & 1) ? near_y + 1 : near_y - 1;
      far_y = std::min(std::max(far_y, 0), header.component[c].height - 1);
      const uint8_t* near = base[c] + (near_y - top) * stride + (low - left);
      const uint8_t* far = u.fancy_y ? base[c] + (far_y - top) * stride + (low - left) : near;
      uint8_t* wide = line + c * line_bytes;
      if (u.fancy_x) {
        // Two outputs a sample, from sample `low` on; only the image's own edges may repeat a sample.
        if (u.fancy_y) {
          k.double_both(near, far, count, wide);
        } else {
          k.double_row(near, count, wide);
        }
        full[c] = wide + (x0 - 2 * low);
      } else if (u.fancy_y) {
        k.blend_rows(near, far, count, (y & 1) ? 2 : 1, wide);
        full[c] = wide;
      } else if (u.x > 1) {
        for (int x = x0; x < x1; x++) wide[x - x0] = near[x / u.x - low];
        full[c] = wide;
      } else {
        full[c] = near;
      }
    }
    uint8_t* d[3];
    for (int c = 0; c < 3; c++) d[c] = target.plane[c] + (g.upside_down ? g.height - 1 - i : i) * target.stride;
    if (n == 3 && header.space == BETON_SPACE_YCBCR) {
      k.exact_ycc_to_rgb(full[0], full[1], full[2], g.width, d[0], d[1], d[2]);
    } else {
      for (int c = 0; c < 3; c++) std::memcpy(d[c], full[n == 1 ? 0 : c], size_t(g.width));
    }
    if (g.mirror) {
      for (int c = 0; c < 3; c++) std::reverse(d[c], d[c] + g.width);
    }
  }
  return kOk;
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
