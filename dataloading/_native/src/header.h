// Thread-safety: pure functions; a JpegHeader points into the caller's bytes and must not outlive them.
//
// Reads a JPEG's markers up to its first scan. Knows nothing of pixels or of libjpeg.
#ifndef BETON_HEADER_H
#define BETON_HEADER_H

#include <cstddef>
#include <cstdint>

#include "beton_native.h"
#include "status.h"

namespace beton {

struct Component {
  int id = 0, h = 1, v = 1, quant = 0;
  int dc_table = 0, ac_table = 0;  // of the first scan
  int width = 0, height = 0;       // samples: ceil(image size * own sampling / largest sampling)
};

struct JpegHeader {
  int width = 0, height = 0, num_components = 0;
  Component component[4];
  int h_max = 1, v_max = 1;
  int mcu_width = 8, mcu_height = 8, mcus_per_row = 0, mcu_rows = 0;
  bool progressive = false, arithmetic = false, seen_jfif = false, seen_adobe = false;
  int adobe_transform = 0;
  uint8_t jfif[7] = {1, 1, 0, 0, 1, 0, 1};  // version, unit and densities; as here unless the file says otherwise
  int restart_interval = 0;  // MCUs
  int space = BETON_SPACE_YCBCR;
  int num_scan_components = 0;
  bool scan_in_order = false;  // the scan holds all components, in the frame's order
  uint16_t quant[4][64] = {};  // natural (row-major) order
  bool has_quant[4] = {};
  const uint8_t* huffman[2][4] = {};  // [0 DC, 1 AC][slot]: 16 counts, then the symbols; null when absent
  size_t huffman_bytes[2][4] = {};
  size_t entropy_offset = 0;  // first byte of entropy-coded data
  int64_t stray_bytes = 0;    // between the segments before it
};

constexpr int kLargestSide = 65500;  // libjpeg's limit

// Walks markers exactly as libjpeg does: bytes that belong to no segment are skipped (and counted), fill bytes too, and
// where a length is only skipped by, one below 2 skips nothing.
struct MarkerWalk {
  const uint8_t* data;
  size_t size;
  size_t at;                      // where to go on
  int marker = 0;
  size_t begin = 0;               // of the marker's FF
  const uint8_t* body = nullptr;  // behind the length; null for a marker without one
  size_t body_bytes = 0;
  int64_t stray_bytes = 0;

  Status next();
};

// Zig-zag index to row-major index, with 16 more entries so that a run past the end stays in bounds.
constexpr uint8_t kNaturalOrder[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

Status parse_header(const uint8_t* data, size_t size, JpegHeader* header);

}  // namespace beton

#endif
