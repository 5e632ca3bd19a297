// Thread-safety: pure function over the caller's memory and scratch.
//
// Whole RGB images made smaller or larger with the very arithmetic of Pillow's Image.resize: filters in double
// precision, weights of 22 fractional bits, one axis after the other with bytes in between.
#ifndef BETON_RESIZE_H
#define BETON_RESIZE_H

#include <cstddef>
#include <cstdint>

#include "scratch.h"
#include "status.h"

namespace beton {

// `filter` is BETON_RESAMPLE_*; the rows of `out` follow one another without gaps.
void resize_rgb(const uint8_t* rgb, int width, int height, size_t row_stride, int filter, int out_width, int out_height,
                Scratch* s, uint8_t* out);

}  // namespace beton

#endif
