// Thread-safety: pure functions over the caller's memory; scratch memory is per thread.
//
// An image through a JPEG and back, as an augmentation.
#ifndef BETON_ROUND_TRIP_H
#define BETON_ROUND_TRIP_H

#include <cstdint>

#include "status.h"

namespace beton {

// Planes of `channels` (1 or 3) to planes: what is left of them in a JPEG of this quality, chroma halved both ways.
Status round_trip(const uint8_t* source, int channels, int height, int width, int quality, uint8_t* target);

}  // namespace beton

#endif
