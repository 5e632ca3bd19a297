#include "geometry.h"

#include <algorithm>

namespace beton {

int resolve(int64_t p, int n, int mode) {
  if (p >= 0 && p < n) return int(p);
  switch (mode) {
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
    default: return p < 0 ? 0 : n - 1;
  }
}

namespace {

// Maps one axis of the window; returns the needed range [*low, *low + *count).
void map_axis(int window, int out, int scaled, int pad_mode, bool flip, std::vector<int>* map, int* low, int* count) {
  map->resize(size_t(out));
  int first = scaled, last = -1;
  for (int i = 0; i < out; i++) {
    const int at = resolve(int64_t(window) + i, scaled, pad_mode);
    (*map)[size_t(flip ? out - 1 - i : i)] = at;
    first = std::min(first, at);
    last = std::max(last, at);
  }
  for (int& at : *map) at -= first;
  *low = first;
  *count = last - first + 1;
}

// The part of the window on one axis that lies in the resized crop, perhaps nothing, and where it lies in the output.
void frame_axis(int window, int out, int scaled, bool flip, int* low, int* count, int* at) {
  *low = std::min(std::max(window, 0), scaled);
  *count = int(std::max<int64_t>(std::min<int64_t>(int64_t(window) + out, scaled) - *low, 0));
  *at = int(std::clamp<int64_t>(int64_t(*low) - window, 0, out));
  if (flip) *at = out - *at - *count;
}

}  // namespace

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
  if (q.pad_mode == BETON_PAD_CONSTANT) {
    g.framed = true;
    frame_axis(q.window_x, q.out_w, q.scaled_w, g.mirror, &g.x, &g.width, &g.left);
    frame_axis(q.window_y, q.out_h, q.scaled_h, g.upside_down, &g.y, &g.height, &g.top);
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
  return (q.channels == 3 || q.channels == 1) && q.dst != 0 && (q.src != 0 || q.src_bytes == 0);
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
  s.even = !horizontal;
  return s;
}

}  // namespace beton
