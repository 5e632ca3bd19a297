// Thread-safety: functions over one thread's Scratch.
//
// What raw and JPEG sources share. Of every resize the second half: the vertical pass, the colours, the output rows.
#ifndef BETON_PASSES_H
#define BETON_PASSES_H

#include "geometry.h"
#include "kernels.h"
#include "scratch.h"

namespace beton {

// Where finished rows go: planes, or (copy_planar only) interleaved RGB.
struct Target {
  uint8_t* plane[3] = {nullptr, nullptr, nullptr};
  uint8_t* interleaved = nullptr;
  ptrdiff_t stride = 0;
  int channels = 3;  // planes to write: 3, or 1 where the source is gray
};

// Puts the bytes of a row into the opposite order.
void reverse_row(uint8_t* row, int n);

// Values from one row of a middle buffer to the next, for outputs `width` wide.
ptrdiff_t middle_stride(int width);

// Room for what the horizontal pass makes of an axis' source rows, and zeroed rows behind them that unused taps (of
// weight 0) fall on.
int16_t* make_middle(const Axis& y, ptrdiff_t stride, Buffer* buffer);

// The vertical pass over the middles, and the colours.
void finish_rows(const Geometry& g, int components, bool ycc, const int16_t* const middle[3], ptrdiff_t stride,
                 const Axis* const axis_y[3], const Target& target, Scratch* s);

}  // namespace beton

#endif
