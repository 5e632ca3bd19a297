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
  int channels = 3;  // planes to write: 3, or 1 where the source is gray or luma alone is wanted (copy_planar only)
};

// Fills what is around a part that is written afterwards; where that is cheaper, also some of what the part will cover.
void fill_frame(const beton_request& q, const Geometry& g, const Target& out);

// Puts the bytes of a row into the opposite order.
void reverse_row(uint8_t* row, int n);

// A middle buffer holds what the horizontal pass makes of an axis' source rows. Rows 2 * k and 2 * k + 1 of the source lie in
// pair k: value i of row r is at 2 * i + r % 2. The first pair is the one that holds row `low` of the axis; what a pair
// holds beside the axis' rows counts for nothing.

// Values from one pair of rows to the next, for outputs `width` wide.
ptrdiff_t middle_stride(int width);

int16_t* make_middle(const Axis& y, ptrdiff_t stride, Buffer* buffer);

// The pair of row y.
inline int middle_pair(const Axis& axis, int y) { return (y >> 1) - (axis.low >> 1); }

// The vertical pass over the middles, and the colours.
void finish_rows(const Geometry& g, int components, bool ycc, const int16_t* const middle[3], ptrdiff_t stride,
                 const Axis* const axis_y[3], const Target& target);

}  // namespace beton

#endif
