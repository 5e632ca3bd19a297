// Thread-safety: functions over one thread's Scratch.
//
// Regions of the JPEGs that Scan supports, from entropy-coded data to output rows.
#ifndef BETON_PLANAR_H
#define BETON_PLANAR_H

#include "geometry.h"
#include "header.h"
#include "passes.h"
#include "scratch.h"

namespace beton {

// Samples [low, high) of each component that are wanted, the MCUs that hold them, and memory for some rows of these.
struct Cover {
  int x_low[3], x_high[3], y_low[3], y_high[3];
  int mcu_first = 0, mcu_last = 0, row_first = 0, row_last = 0;
  int h[3], v[3];  // blocks of a component in an MCU
  int block_row_low[3], block_row_high[3];
  StripSet strips;          // the row of MCUs decoded last
  bool decoded = false;     // all rows are there
  int held_mcu = 0;         // the first that there is memory for
  uint8_t* held[3];
  int rows_held[3] = {0, 0, 0};   // the last so many sample rows are there
  int first_held[3] = {0, 0, 0};  // the sample row at held[c]; those before it are behind it

  // Row y of component c, where its sample 0 would be.
  const uint8_t* row(int c, int y) const {
    const int at = y - first_held[c] + (y < first_held[c] ? rows_held[c] : 0);
    return held[c] + at * strips.stride[c] - held_mcu * h[c] * 8;
  }
};

// Decodes once what several requests for one JPEG need, if that is less work than decoding for each of them; returns
// whether it is done. Whatever may be wrong with the JPEG is left for each request to find.
bool decode_together(const beton_request* requests, int64_t count, Cover* cover, Scratch* s);

// Luma and chroma are resized apart, straight to output size; each strip of decoded rows is filtered while it is hot. Where
// many colours leave 0..255, red, green and blue are resized instead, from the row on where that shows.
// `shared`, which may be null, is what decode_together has made; the pixels are the same.
Status resize_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                     const Cover* shared, Scratch* s);

// No resize: the pixels are libjpeg's, bit for bit.
Status copy_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                   const Cover* shared, Scratch* s);

// A whole image, strictly: every byte up to the end marker is looked at. kUnsupported is the answer to images that have to
// go through libjpeg, as libjpeg_decode_whole does it.
Status decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, int layout, uint8_t* out, Scratch* s);
Status libjpeg_decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, int layout, uint8_t* out,
                            char* reason, Scratch* s);

}  // namespace beton

#endif
