// Thread-safety: pure functions over the caller's memory.
//
// Raw images of which a part is copied, mirrored or framed, but not resized. For small ones everything that is done once an
// image or row counts, so this way has nothing else.
#ifndef BETON_RAW_H
#define BETON_RAW_H

#include "beton_native.h"
#include "status.h"

namespace beton {

// Whether `q` is such a request; if so it is done, with this status. The others are for decode_region.
bool copy_raw(const beton_request& q, Status* status);

}  // namespace beton

#endif
