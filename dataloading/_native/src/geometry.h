// Thread-safety: pure functions.
//
// What a request asks for, in numbers: which part of the resized crop is needed and how it lands in the output.
#ifndef BETON_GEOMETRY_H
#define BETON_GEOMETRY_H

#include <vector>

#include "beton_native.h"
#include "resample.h"

namespace beton {

// The part of the resized crop that the window needs, and how it lands in the output.
struct Geometry {
  int x = 0, y = 0, width = 0, height = 0;  // resized coordinates
  bool exact = false;                       // no resampling on either axis
  bool padded = false;                      // the window leaves the resized crop
  bool framed = false;                      // and what is around it has the fill's colour
  int left = 0, top = 0;                    // where the part lies in the output, with a frame
  bool mirror = false, upside_down = false; // done while rendering; with padding by a rule they are done afterwards
  std::vector<int> column, row;             // with padding by a rule: output index -> index in the part
};

// Whether a request's numbers can be worked with at all; everything else relies on it.
bool valid(const beton_request& q);

Geometry make_geometry(const beton_request& q);

// Index inside [0, n) that position p shows under the padding rule.
int resolve(int64_t p, int n, int mode);

// The filter of one axis at full resolution.
AxisSpec axis_spec(const beton_request& q, const Geometry& g, bool horizontal);

}  // namespace beton

#endif
