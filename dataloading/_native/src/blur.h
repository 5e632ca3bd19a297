// Thread-safety: pure functions over the caller's memory.
//
// Gaussian blur of bytes, in 16-bit integers: the same bytes on all instruction sets.
#ifndef BETON_BLUR_H
#define BETON_BLUR_H

#include <cstdint>

#include "scratch.h"

namespace beton {

// Planes to planes, edges mirrored. `sigma` and `kernel` (odd, reaching less far than the image): across and down. Weights
// beyond four sigma are left out: they are less than 1/15000 together, a sixtieth of a level.
void gaussian_blur(const uint8_t* source, int channels, int height, int width, const double sigma[2],
                   const double kernel[2], Buffer* memory, uint8_t* target);

}  // namespace beton

#endif
