// Thread-safety: pure functions over the caller's memory.
//
// Pixels that are moved and never mixed: label maps and deep images into planes, planes into interleaved pixels.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "beton_native.h"
#include "geometry.h"

namespace {

// The source row (or column) of each output row, -1 for the fill.
std::vector<int64_t> sources(int box, int length, int scaled, int window, int out, int pad_mode, bool flip) {
  std::vector<int64_t> found(static_cast<size_t>(out));
  const float step = float(length) / float(scaled);  // in float32, as torch computes it
  for (int i = 0; i < out; i++) {
    const int64_t place = int64_t(window) + (flip ? out - 1 - i : i);
    int64_t at = pad_mode == BETON_PAD_CONSTANT && (place < 0 || place >= scaled)
                     ? -1
                     : beton::resolve(place, scaled, pad_mode);
    if (at >= 0 && scaled != length) at = std::min(int64_t(std::floor(float(at) * step)), int64_t(length) - 1);
    found[size_t(i)] = at < 0 ? -1 : at + box;
  }
  return found;
}

template <typename Source, typename Out>
void gather(const Source* source, int64_t width, int64_t channels, const std::vector<int64_t>& rows,
            const std::vector<int64_t>& columns, Out fill, Out* out) {
  for (int64_t c = 0; c < channels; c++) {
    for (const int64_t y : rows) {
      if (y < 0) {
        out = std::fill_n(out, columns.size(), fill);
        continue;
      }
      const Source* row = source + y * width * channels + c;
      for (const int64_t x : columns) *out++ = x < 0 ? fill : Out(row[x * channels]);
    }
  }
}

template <typename Source>
bool gather_to(int out_bytes, const void* source, const beton_request& q, const std::vector<int64_t>& rows,
               const std::vector<int64_t>& columns, void* out) {
  const Source* pixels = static_cast<const Source*>(source);
  const int fill = q.fill[0];
  switch (out_bytes) {
    case 1: gather(pixels, q.src_width, q.channels, rows, columns, uint8_t(fill), static_cast<uint8_t*>(out)); break;
    case 2: gather(pixels, q.src_width, q.channels, rows, columns, uint16_t(fill), static_cast<uint16_t*>(out)); break;
    case 4: gather(pixels, q.src_width, q.channels, rows, columns, uint32_t(fill), static_cast<uint32_t*>(out)); break;
    case 8: gather(pixels, q.src_width, q.channels, rows, columns, uint64_t(fill), static_cast<uint64_t*>(out)); break;
    default: return false;
  }
  return true;
}

template <typename Value>
void interleave(const Value* planes, int64_t images, int64_t channels, int64_t pixels, Value* out) {
  for (int64_t n = 0; n < images; n++) {
    const Value* image = planes + n * channels * pixels;
    Value* target = out + n * channels * pixels;
    if (channels == 3) {
      for (int64_t i = 0; i < pixels; i++) {
        for (int64_t c = 0; c < 3; c++) target[3 * i + c] = image[c * pixels + i];
      }
    } else {
      for (int64_t i = 0; i < pixels; i++) {
        for (int64_t c = 0; c < channels; c++) target[channels * i + c] = image[c * pixels + i];
      }
    }
  }
}

}  // namespace

extern "C" {

int32_t beton_gather(const beton_request* request, const void* source, int32_t source_bytes, int32_t out_bytes,
                     void* out) {
  const beton_request& q = *request;
  try {
    const std::vector<int64_t> rows =
        sources(q.box_y, q.box_h, q.scaled_h, q.window_y, q.out_h, q.pad_mode, (q.flip & 2) != 0);
    const std::vector<int64_t> columns =
        sources(q.box_x, q.box_w, q.scaled_w, q.window_x, q.out_w, q.pad_mode, (q.flip & 1) != 0);
    const bool is_done = source_bytes == 1   ? gather_to<uint8_t>(out_bytes, source, q, rows, columns, out)
                         : source_bytes == 2 ? gather_to<uint16_t>(out_bytes, source, q, rows, columns, out)
                                             : false;
    return is_done ? 0 : -1;
  } catch (const std::bad_alloc&) {
    return -2;
  }
}

int32_t beton_interleave(const void* planes, int64_t images, int64_t channels, int64_t pixels, int32_t bytes,
                         void* out) {
  switch (bytes) {
    case 1: interleave(static_cast<const uint8_t*>(planes), images, channels, pixels, static_cast<uint8_t*>(out)); break;
    case 2: interleave(static_cast<const uint16_t*>(planes), images, channels, pixels, static_cast<uint16_t*>(out)); break;
    case 4: interleave(static_cast<const uint32_t*>(planes), images, channels, pixels, static_cast<uint32_t*>(out)); break;
    case 8: interleave(static_cast<const uint64_t*>(planes), images, channels, pixels, static_cast<uint64_t*>(out)); break;
    default: return -1;
  }
  return 0;
}

}  // extern "C"
