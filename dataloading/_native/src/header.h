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
  int scan_start = 0, scan_end = 63, scan_approximation = 0;  // Ss, Se, Ah * 16 + Al
  bool scan_in_order = false;  // the scan holds all components, in the frame's order
  uint16_t quant[4][64] = {};  // natural (row-major) order
  bool has_quant[4] = {};
  const uint8_t* huffman[2][4] = {};  // [0 DC, 1 AC][slot]: 16 counts, then the symbols; null when absent
  size_t huffman_bytes[2][4] = {};
  size_t entropy_offset = 0;  // first byte of entropy-coded data
};

// Zig-zag index to row-major index, with 16 more entries so that a run past the end stays in bounds.
extern const uint8_t kNaturalOrder[64 + 16];

Status parse_header(const uint8_t* data, size_t size, JpegHeader* header);

}  // namespace beton

#endif
