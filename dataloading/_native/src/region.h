// Thread-safety: decode_region may run in any number of threads, on different requests.
//
// One request from stored bytes to finished planes: geometry, and which of the decoders and resizers does the work.
#ifndef BETON_REGION_H
#define BETON_REGION_H

#include "beton_native.h"
#include "planar.h"
#include "status.h"

namespace beton {

// `shared`: what decode_together has made for this request among others.
Status decode_region(const beton_request& request, const Cover* shared = nullptr);

}  // namespace beton

#endif
