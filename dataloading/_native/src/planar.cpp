#include "planar.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "libjpeg_io.h"
#include "scan.h"

namespace beton {

namespace {

// Where all planes are held at once; libjpeg needs a few rows only.
constexpr int64_t kMostPixels = int64_t(1) << 24;

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

// The filters of a component, at place `at` of the scratch memory.
void make_filters(const beton_request& q, const Geometry& g, const Upsampling& u, const Component& component, int at,
                  Scratch* s) {
  AxisSpec spec = axis_spec(q, g, true);
  spec.ratio = u.x;
  spec.fancy = u.fancy_x;
  spec.component_length = component.width;
  make_axis(spec, s->box_x, &s->x[at]);
  make_row_plan(s->x[at], &s->plan[at]);
  spec = axis_spec(q, g, false);
  spec.ratio = u.y;
  spec.fancy = u.fancy_y;
  spec.component_length = component.height;
  make_axis(spec, s->box_y, &s->y[at]);
}

// Adds the samples of which pixels [x0, x1) of rows [y0, y1) are made, of the first `components`.
void add_pixels(const JpegHeader& header, const Upsampling up[3], int components, int x0, int x1, int y0, int y1,
                Cover* cover) {
  for (int c = 0; c < components; c++) {
    const Component& component = header.component[c];
    // One more sample on each side for the triangle filter.
    const int dx = up[c].fancy_x ? 1 : 0, dy = up[c].fancy_y ? 1 : 0;
    cover->x_low[c] = std::min(cover->x_low[c], std::max(x0 / up[c].x - dx, 0));
    cover->x_high[c] = std::max(cover->x_high[c], std::min((x1 - 1) / up[c].x + 1 + dx, component.width));
    cover->y_low[c] = std::min(cover->y_low[c], std::max(y0 / up[c].y - dy, 0));
    cover->y_high[c] = std::max(cover->y_high[c], std::min((y1 - 1) / up[c].y + 1 + dy, component.height));
  }
}

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
  cover->strips.first_mcu = cover->held_mcu = cover->mcu_first;
}

// What pixels [x0, x1) of rows [y0, y1) are made of, of the first `components`; nothing of the others.
Cover cover_of_pixels(const JpegHeader& header, const Upsampling up[3], int components, int x0, int x1, int y0, int y1) {
  Cover cover;
  for (int c = 0; c < header.num_components; c++) {
    cover.x_low[c] = cover.y_low[c] = c < components ? 1 << 30 : 0;
    cover.x_high[c] = cover.y_high[c] = 0;
  }
  add_pixels(header, up, components, x0, x1, y0, y1, &cover);
  finish_cover(header, &cover);
  return cover;
}

// Planes of `mcu_rows` rows of MCUs. What is not wanted is never written, and counts for nothing where it is read.
void make_strips(const JpegHeader& header, int mcu_rows, Cover* cover, Buffer memory[3]) {
  for (int c = 0; c < header.num_components; c++) {
    const ptrdiff_t stride = (ptrdiff_t(cover->mcu_last - cover->mcu_first) * cover->h[c] * 8 + kRowPadding + 63) & ~63;
    cover->rows_held[c] = cover->v[c] * 8 * mcu_rows;
    cover->strips.stride[c] = stride;
    cover->held[c] = memory[c].get<uint8_t>(size_t(stride) * size_t(cover->rows_held[c]));
  }
}

Status open_scan(const beton_request& q, const JpegHeader& header, const Cover& cover, Scratch* s, Scan* scan) {
  const int64_t last = int64_t(cover.row_last - 1) * header.mcus_per_row + cover.mcu_last - 1;
  const Status status =
      scan->open(header, reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), last, s);
  if (status != kOk || last != int64_t(header.mcus_per_row) * header.mcu_rows - 1) return status;
  return scan->finish_image();  // who reads to the last MCU must also find the image's end
}

// Whether all blocks that a cover wants are decoded in another one.
bool holds(const Cover& all, const JpegHeader& header, const Cover& cover) {
  bool held = true;
  for (int c = 0; c < header.num_components; c++) {
    held &= all.strips.low[c] <= cover.strips.low[c] && cover.strips.high[c] <= all.strips.high[c] &&
            all.block_row_low[c] <= cover.block_row_low[c] && cover.block_row_high[c] <= all.block_row_high[c];
  }
  return held;
}

// Prepares for decode_strip with memory for `mcu_rows` rows of MCUs; takes the rows from `shared` where they are there.
Status open_strips(const beton_request& q, const JpegHeader& header, const Cover* shared, int mcu_rows, Cover* cover,
                   Scratch* s, Scan* scan) {
  if (shared != nullptr && holds(*shared, header, *cover)) {
    cover->decoded = true;
    cover->held_mcu = shared->held_mcu;
    for (int c = 0; c < header.num_components; c++) {
      cover->held[c] = shared->held[c];
      cover->rows_held[c] = shared->rows_held[c];
      cover->first_held[c] = shared->first_held[c];
      cover->strips.stride[c] = shared->strips.stride[c];
    }
    return kOk;
  }
  const Status status = open_scan(q, header, *cover, s, scan);
  if (status == kOk) make_strips(header, mcu_rows, cover, s->strip);
  return status;
}

// Decodes a row of MCUs over the oldest one held.
Status decode_strip(const JpegHeader& header, int row, Scan* scan, Cover* cover) {
  if (cover->decoded) return kOk;
  for (int c = 0; c < header.num_components; c++) {
    const int at = (row - cover->row_first) * cover->v[c] * 8 % cover->rows_held[c];
    cover->first_held[c] = row * cover->v[c] * 8 - at;
    cover->strips.data[c] = cover->held[c] + at * cover->strips.stride[c];
  }
  return scan->decode_row(row, cover->mcu_first, cover->mcu_last, cover->strips, cover->block_row_low,
                          cover->block_row_high);
}

// Bytes that full_row needs for a component of `width` pixels; kernels may read and write some behind the end.
ptrdiff_t full_row_bytes(int width) { return (width + kRowPadding + 63) & ~63; }

// Component c at pixels x0, x0 + 1, ... x1 - 1 of row y, upsampled as libjpeg does. `wide` is used where there is something to do.
const uint8_t* full_row(const Kernels& k, const JpegHeader& header, const Cover& cover, const Upsampling& u, int c, int y,
                        int x0, int x1, uint8_t* wide) {
  const int low = cover.x_low[c], count = cover.x_high[c] - low;
  const int near_y = y / u.y, last = header.component[c].height - 1;
  const uint8_t* near = cover.row(c, near_y) + low;
  const uint8_t* far = near;
  if (u.fancy_y) far = cover.row(c, std::min(std::max((y & 1) ? near_y + 1 : near_y - 1, 0), last)) + low;
  if (u.fancy_x) {
    // Two outputs a sample, from sample `low` on; only the image's own edges may repeat a sample.
    if (u.fancy_y) {
      k.double_both(near, far, count, wide);
    } else {
      k.double_row(near, count, wide);
    }
    return wide + (x0 - 2 * low);
  }
  if (u.fancy_y) {
    k.blend_rows(near, far, count, (y & 1) ? 2 : 1, wide);
    return wide + (x0 - low);
  }
  if (u.x > 1) {
    for (int x = x0; x < x1; x++) wide[x - x0] = near[x / u.x - low];
    return wide;
  }
  return near + (x0 - low);
}

// A resize of which the filters see what a full decode shows: rows at full resolution, in RGB, clipped to 0..255. Clipping
// comes before the filters there, so where colours leave that range, filtering YCbCr gives other pixels.
class FullRows {
 public:
  FullRows(const JpegHeader& header, const Upsampling up[3], const Cover& cover, const Axis& x, const Axis& y,
           const RowPlan& plan, Scratch* s)
      : k_(kernels()), header_(header), up_(up), cover_(cover), x_(x), y_(y), plan_(plan), s_(s) {
    line_bytes_ = full_row_bytes(x.high - x.low);
    lines_ = s->rgb.get<uint8_t>(size_t(line_bytes_) * 3 * (1 + kRows));
    // 32 rows tell, up to 64; a power of two.
    while (y.high - y.low >= 64 * step_) step_ *= 2;
  }

  // Looks at some of rows [first, last): one of each `step_`, drawn without regard to the content. Returns whether the image has
  // shown more colours outside 0..255 by now than the filters may see. How far they are outside (the highest channel above,
  // the lowest below) is the most that clipping them afterwards can change. It may be 0.3 levels in the mean of all pixels
  // (docs/native.md); images that are full of such colours are known by their first rows.
  bool too_much(int first, int last) {
    for (int top = first & -step_; top < last; top += step_) {
      const int y = top + int((uint32_t(top) * 0x9E3779B1u >> 16) & uint32_t(step_ - 1));
      if (y < first || y >= last) continue;
      const uint8_t* full[3];
      for (int c = 0; c < 3; c++) full[c] = row(c, y);
      excess_ += k_.colour_excess(full[0], full[1], full[2], x_.high - x_.low) * step_;
    }
    const int64_t width = x_.high - x_.low, all = width * (y_.high - y_.low), seen = width * (last - y_.low);
    return 10 * excess_ > 3 * all || (20 * excess_ > all && excess_ > seen);
  }

  // Sets memory aside, and makes rows [y.low, last) of what the horizontal pass has made of the components so far.
  void start(const int16_t* const middle[3], const Axis* const axis_y[3], ptrdiff_t stride, int width, int last) {
    stride_ = stride;
    done_ = last;
    for (int c = 0; c < 3; c++) full_[c] = make_middle(y_, stride, &s_->full[c]);
    uint8_t* memory = s_->line.get<uint8_t>(size_t(stride) * 6);  // of a pair of rows
    for (int y = y_.low; y < last; y++) {
      Column columns[3];
      int16_t weights[3][4 * kGroup] = {};
      for (int c = 0; c < 3; c++) {
        const Axis& a = *axis_y[c];
        const int near_y = y / up_[c].y;
        const int far_y = !up_[c].fancy_y ? near_y : (y & 1) ? near_y + 1 : near_y - 1;
        const int near = std::min(std::max(near_y, a.low), a.high - 1), far = std::min(std::max(far_y, a.low), a.high - 1);
        constexpr int16_t kQuarter = 1 << (kWeightBits - 2);
        const int first = std::min(near, far) & ~1;
        const auto weight = [&](int row) -> int16_t& { return weights[c][(row - first) / 2 * 2 * kGroup + row % 2]; };
        weight(near) = 3 * kQuarter;
        weight(far) = int16_t(weight(far) + kQuarter);
        columns[c] = {middle[c] + middle_pair(a, first) * stride, weights[c], (std::max(near, far) - first) / 2 + 1};
      }
      uint8_t* bytes = memory + y % 2 * stride;
      k_.finish_ycc(columns, stride, width, bytes, bytes + 2 * stride, bytes + 4 * stride);
      if (y % 2 == 0 && y + 1 < last) continue;
      for (int c = 0; c < 3; c++) {
        int16_t* out = full_[c] + middle_pair(y_, y) * stride;
        const uint8_t* from = memory + 2 * c * stride;
        for (int i = 0; i < width; i++) {
          out[2 * i] = int16_t(from[i] << kValueBits);
          out[2 * i + 1] = int16_t(from[stride + i] << kValueBits);
        }
      }
    }
  }

  // The horizontal pass over the rows up to `last` that it has not seen.
  void filter(int last) {
    // Whole pairs of rows, but for the first one, of which start() may have made a row, and the last one.
    if (last < y_.high) last &= ~1;
    uint8_t* rgb[3];
    for (int c = 0; c < 3; c++) rgb[c] = lines_ + (3 + c * kRows) * line_bytes_;
    while (done_ < last) {
      const int first = done_ & ~1, rows = std::min(done_ % 2 == 0 ? kRows : 2, last - first);
      for (int i = done_ - first; i < rows; i++) {
        const uint8_t* full[3];
        for (int c = 0; c < 3; c++) full[c] = row(c, first + i);
        const ptrdiff_t at = i * line_bytes_;
        k_.exact_ycc_to_rgb(full[0], full[1], full[2], x_.high - x_.low, rgb[0] + at, rgb[1] + at, rgb[2] + at);
      }
      const bool keep = done_ % 2 != 0 && done_ > y_.low;  // the pair's other row
      const int pairs = (rows + 1) / 2;
      for (int c = 0; c < 3; c++) {
        int16_t* out = full_[c] + middle_pair(y_, first) * stride_;
        int16_t* made = keep ? s_->line.get<int16_t>(size_t(stride_)) : out;
        k_.horizontal(plan_, rgb[c] - x_.low, line_bytes_, pairs, made, stride_);
        // Whole levels between the passes, as in Pillow: rounding there tells where the same pixels come again and again.
        // All arithmetic fits 16 bits.
        for (ptrdiff_t at = 0; at < pairs * stride_; at += 32) {  // a fixed count compiles to vector code
          for (int i = 0; i < 32; i++) {
            int16_t v = int16_t(made[at + i] + (1 << (kValueBits - 1)));
            v = int16_t(v >> kValueBits);
            made[at + i] = int16_t(std::min<int16_t>(std::max<int16_t>(v, 0), 255) << kValueBits);
          }
        }
        for (ptrdiff_t at = 1; keep && at < stride_; at += 2) out[at] = made[at];
      }
      done_ = first + rows;
    }
  }

  const int16_t* middle(int c) const { return full_[c]; }

 private:
  static constexpr int kRows = 8;

  const uint8_t* row(int c, int y) {
    return full_row(k_, header_, cover_, up_[c], c, y, x_.low, x_.high, lines_ + c * line_bytes_);
  }

  const Kernels& k_;
  const JpegHeader& header_;
  const Upsampling* up_;
  const Cover& cover_;
  const Axis &x_, &y_;  // at full resolution
  const RowPlan& plan_;
  Scratch* s_;
  ptrdiff_t line_bytes_, stride_ = 0;
  uint8_t* lines_;  // a row of each component, then kRows rows of each colour
  int16_t* full_[3] = {nullptr, nullptr, nullptr};
  int step_ = 1;
  int done_ = 0;  // rows before this one have gone through the horizontal pass
  int64_t excess_ = 0;
};

}  // namespace

namespace {

// Pixels of which to read, or read and transform, the symbols, for a box in an image with restart markers in each row.
int64_t work_for(int64_t x, int64_t width, int64_t height) { return (x + width + width) * height; }

}  // namespace

bool decode_together(const beton_request* requests, int64_t count, Cover* cover, Scratch* s) {
  const beton_request& q = requests[0];
  JpegHeader header;
  if (q.mode != BETON_MODE_JPEG ||
      parse_header(reinterpret_cast<const uint8_t*>(uintptr_t(q.src)), size_t(q.src_bytes), &header) != kOk ||
      !scan_supports(header)) {
    return false;
  }
  int x0 = header.width, x1 = 0, y0 = header.height, y1 = 0;
  int64_t apart = 0;
  for (int64_t i = 0; i < count; i++) {
    const beton_request& each = requests[i];
    if (!valid(each) || each.src_width != header.width || each.src_height != header.height) return false;
    x0 = std::min(x0, each.box_x);
    x1 = std::max(x1, each.box_x + each.box_w);
    y0 = std::min(y0, each.box_y);
    y1 = std::max(y1, each.box_y + each.box_h);
    apart += work_for(each.box_x, each.box_w, each.box_h);
  }
  if (apart <= work_for(x0, x1 - x0, y1 - y0) || int64_t(x1 - x0) * (y1 - y0) > kMostPixels) return false;
  Upsampling up[3];
  for (int c = 0; c < header.num_components; c++) up[c] = upsampling(header, c);
  *cover = cover_of_pixels(header, up, header.num_components, x0, x1, y0, y1);
  Scan scan;
  if (open_scan(q, header, *cover, s, &scan) != kOk) return false;
  make_strips(header, cover->row_last - cover->row_first, cover, s->whole);
  for (int row = cover->row_first; row < cover->row_last; row++) {
    if (decode_strip(header, row, &scan, cover) != kOk) return false;
  }
  return true;
}

Status resize_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                     const Cover* shared, Scratch* s) {
  const Kernels& k = kernels();
  const int n = header.num_components;
  const bool ycc = n == 3 && header.space == BETON_SPACE_YCBCR;
  make_box(axis_spec(q, g, true), &s->box_x);
  make_box(axis_spec(q, g, false), &s->box_y);
  Cover cover;
  Upsampling up[3];
  int of[3] = {0, 0, 0};  // which component's filters this one shares
  int full = -1;          // which filters are those of full resolution
  bool lags = false;      // the last pixels of a row of MCUs wait for the next row
  for (int c = 0; c < n; c++) {
    const Component& component = header.component[c];
    up[c] = upsampling(header, c);
    lags |= up[c].fancy_y;
    of[c] = c;
    for (int d = 0; d < c; d++) {
      if (header.component[d].h == component.h && header.component[d].v == component.v) {
        of[c] = of[d];
        break;
      }
    }
    if (of[c] == c) make_filters(q, g, up[c], component, c, s);
    if (up[c].x == 1 && up[c].y == 1) full = of[c];
    cover.x_low[c] = s->x[of[c]].low;
    cover.x_high[c] = s->x[of[c]].high;
    cover.y_low[c] = s->y[of[c]].low;
    cover.y_high[c] = s->y[of[c]].high;
  }
  // Where outputs are single pixels, they are clipped as well afterwards.
  const bool may_clip = ycc && q.interpolation != BETON_NEAREST;
  if (may_clip) {
    if (full < 0) make_filters(q, g, Upsampling(), Component(), full = 3, s);
    add_pixels(header, up, n, s->x[full].low, s->x[full].high, s->y[full].low, s->y[full].high, &cover);
  }
  finish_cover(header, &cover);
  Scan scan;
  Status status = open_strips(q, header, shared, may_clip ? 2 : 1, &cover, s, &scan);
  if (status != kOk) return status;
  const ptrdiff_t stride = middle_stride(g.width);
  const int16_t* middle[3] = {nullptr, nullptr, nullptr};
  int16_t* filled[3] = {nullptr, nullptr, nullptr};
  const Axis* axis_y[3] = {nullptr, nullptr, nullptr};
  for (int c = 0; c < n; c++) {
    axis_y[c] = &s->y[of[c]];
    middle[c] = filled[c] = make_middle(*axis_y[c], stride, &s->middle[c]);
  }
  std::optional<FullRows> rgb;
  if (may_clip) rgb.emplace(header, up, cover, s->x[full], s->y[full], s->plan[full], s);
  bool clip = false;
  int done = may_clip ? s->y[full].low : 0;  // rows of pixels
  for (int row = cover.row_first; row < cover.row_last; row++) {
    status = decode_strip(header, row, &scan, &cover);
    if (status != kOk) return status;
    if (may_clip) {
      const int end = row + 1 == cover.row_last ? s->y[full].high : (row + 1) * header.mcu_height - lags;
      const int ready = std::max(done, std::min(end, s->y[full].high));
      if (!clip && rgb->too_much(done, ready)) {
        clip = true;
        rgb->start(middle, axis_y, stride, g.width, done);
      }
      if (clip) rgb->filter(ready);
      done = ready;
    }
    for (int c = 0; c < n && !clip; c++) {
      const int top = row * cover.v[c] * 8;
      // Whole pairs of rows: decoded ones all of them, though some may not count.
      const int first = std::max(top, axis_y[c]->low) & ~1, last = std::min(top + cover.v[c] * 8, axis_y[c]->high);
      if (first >= last) continue;
      k.horizontal(s->plan[of[c]], cover.row(c, first), cover.strips.stride[c], (last - first + 1) / 2,
                   filled[c] + middle_pair(*axis_y[c], first) * stride, stride);
    }
  }
  for (int c = 0; c < n && clip; c++) {
    axis_y[c] = &s->y[full];
    middle[c] = rgb->middle(c);
  }
  finish_rows(g, n, ycc && !clip, middle, stride, axis_y, target);
  return kOk;
}

Status copy_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                   const Cover* shared, Scratch* s) {
  const Kernels& k = kernels();
  const int n = header.num_components;
  const int x0 = q.box_x + g.x, y0 = q.box_y + g.y, x1 = x0 + g.width, y1 = y0 + g.height;
  const bool interleaved = target.interleaved != nullptr;
  const bool ycc = n == 3 && header.space == BETON_SPACE_YCBCR;
  const int wanted = interleaved ? n : std::min(n, target.channels);  // components
  Upsampling up[3];
  bool lags = false;  // the last pixels of a row of MCUs wait for the next row
  for (int c = 0; c < n; c++) {
    up[c] = upsampling(header, c);
    lags |= up[c].fancy_y;
  }
  Cover cover = cover_of_pixels(header, up, wanted, x0, x1, y0, y1);
  Scan scan;
  Status status = open_strips(q, header, shared, 2, &cover, s, &scan);
  if (status != kOk) return status;
  const ptrdiff_t line_bytes = full_row_bytes(g.width);
  uint8_t* line = s->line.get<uint8_t>(size_t(line_bytes) * 3);
  // What is behind a row's end changes no pixel, but valgrind takes two pixels of vector code for one.
  std::memset(line, 0, size_t(line_bytes) * 3);
  int y = y0;
  for (int row = cover.row_first; row < cover.row_last; row++) {
    status = decode_strip(header, row, &scan, &cover);
    if (status != kOk) return status;
    const int ready = row + 1 == cover.row_last ? y1 : std::min(y1, (row + 1) * header.mcu_height - lags);
    for (; y < ready; y++) {
      const uint8_t* full[3] = {nullptr, nullptr, nullptr};
      for (int c = 0; c < wanted; c++) full[c] = full_row(k, header, cover, up[c], c, y, x0, x1, line + c * line_bytes);
      const int i = y - y0;
      const ptrdiff_t place = (g.upside_down ? g.height - 1 - i : i) * target.stride;
      const bool convert = ycc && target.channels == 3;
      if (interleaved) {
        uint8_t* pixels = target.interleaved + place;
        if (convert) {
          k.exact_ycc_to_pixels(full[0], full[1], full[2], g.width, pixels);
        } else {
          k.merge_rgb(full[0], full[n == 1 ? 0 : 1], full[n == 1 ? 0 : 2], g.width, pixels);
        }
        continue;
      }
      uint8_t* d[3] = {nullptr, nullptr, nullptr};
      for (int c = 0; c < target.channels; c++) d[c] = target.plane[c] + place;
      if (convert) k.exact_ycc_to_rgb(full[0], full[1], full[2], g.width, d[0], d[1], d[2]);
      if (!convert) {
        for (int c = 0; c < target.channels; c++) std::memcpy(d[c], full[n == 1 ? 0 : c], size_t(g.width));
      }
      if (g.mirror) {
        for (int c = 0; c < target.channels; c++) reverse_row(d[c], g.width);
      }
    }
  }
  return kOk;
}

Status decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, int layout, uint8_t* out, Scratch* s) {
  if (!scan_supports(header)) return kUnsupported;
  // libjpeg makes luma of red, green and blue.
  if (layout == BETON_LUMA && header.space == BETON_SPACE_RGB) return kUnsupported;
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
  target.channels = layout == BETON_LUMA ? 1 : 3;
  target.stride = ptrdiff_t(header.width) * (layout == BETON_INTERLEAVED ? 3 : 1);
  if (layout == BETON_INTERLEAVED) {
    target.interleaved = out;
  } else {
    for (int c = 0; c < target.channels; c++) target.plane[c] = out + c * target.stride * header.height;
  }
  return copy_planar(q, g, header, target, nullptr, s);
}

Status libjpeg_decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, int layout, uint8_t* out,
                            char* reason, Scratch* s) {
  const size_t width = size_t(header.width), height = size_t(header.height);
  const int channels = layout == BETON_LUMA ? 1 : 3;
  const size_t stride = width * size_t(channels);
  uint8_t* rows = layout == BETON_PLANES ? s->rgb.get<uint8_t>(stride * height) : out;
  const Status status =
      libjpeg_decode(data, size, 0, 0, header.width, header.height, channels, rows, stride, true, reason);
  if (status == kOk && layout == BETON_PLANES) {
    kernels().split_rgb(rows, int(width * height), out, out + width * height, out + 2 * width * height);
  }
  return status;
}

}  // namespace beton
