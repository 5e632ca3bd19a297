#include "planar.h"

#include <algorithm>
#include <cstring>

#include "scan.h"

namespace beton {

namespace {

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
  const Status status =
      scan->open(header, reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), last, s);
  if (status != kOk || last != int64_t(header.mcus_per_row) * header.mcu_rows - 1) return status;
  return scan->finish_image();  // who reads to the last MCU must also find the image's end
}

}  // namespace

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
  const bool interleaved = target.interleaved != nullptr;
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
  uint8_t* line = s->line.get<uint8_t>(size_t(line_bytes) * 6);
  // What is behind a row's end changes no pixel, but valgrind takes two pixels of vector code for one.
  std::memset(line, 0, size_t(line_bytes) * 6);
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
    const ptrdiff_t place = (g.upside_down ? g.height - 1 - i : i) * target.stride;
    uint8_t* d[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < target.channels; c++) d[c] = interleaved ? line + (3 + c) * line_bytes : target.plane[c] + place;
    const bool ycc = n == 3 && header.space == BETON_SPACE_YCBCR;
    if (ycc) k.exact_ycc_to_rgb(full[0], full[1], full[2], g.width, d[0], d[1], d[2]);
    if (interleaved) {
      const uint8_t* from[3] = {d[0], d[1], d[2]};
      for (int c = 0; c < 3 && !ycc; c++) from[c] = full[n == 1 ? 0 : c];
      k.merge_rgb(from[0], from[1], from[2], g.width, target.interleaved + place);
      continue;
    }
    if (!ycc) {
      for (int c = 0; c < target.channels; c++) std::memcpy(d[c], full[n == 1 ? 0 : c], size_t(g.width));
    }
    if (g.mirror) {
      for (int c = 0; c < target.channels; c++) std::reverse(d[c], d[c] + g.width);
    }
  }
  return kOk;
}

Status decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, uint8_t* rgb, Scratch* s) {
  // All planes are held at once; libjpeg needs a few rows only.
  constexpr int64_t kMostPixels = int64_t(1) << 24;
  if (!scan_supports(header) || int64_t(header.width) * header.height > kMostPixels) return kUnsupported;
  beton_request q = {};
  q.src = uint64_t(uintptr_t(data));
  q.src_bytes = size;
  q.src_width = q.box_w = q.scaled_w = q.out_w = header.width;
  q.src_height = q.box_h = q.scaled_h = q.out_h = header.height;
  Geometry g;
  g.width = header.width;
  g.height = header.height;
  g.exact = true;
  Target target;
  target.interleaved = rgb;
  target.stride = ptrdiff_t(header.width) * 3;
  return copy_planar(q, g, header, target, s);
}

}  // namespace beton
