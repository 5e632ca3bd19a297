// Asks the system to read parts of mapped files before they are needed.
#include <stdint.h>
#include <sys/mman.h>

#include <algorithm>

#include "beton_native.h"

namespace {

// Linux reads no more for one request than the larger of a device's read-ahead and its largest transfer, and leaves out
// the rest. 128 KiB is its default read-ahead.
constexpr uint64_t kPiece = uint64_t(1) << 17;

}  // namespace

extern "C" {

void beton_read_ahead(const uint64_t* starts, const uint64_t* bytes, int64_t n, int64_t block) {
#ifdef MADV_WILLNEED
  const uint64_t mask = uint64_t(block) - 1;
  for (int64_t k = 0; k < n; ++k) {
    if (bytes[k] == 0) continue;
    const uint64_t stop = (starts[k] + bytes[k] + mask) & ~mask;
    for (uint64_t at = starts[k] & ~mask; at < stop; at += kPiece) {
      // Where nothing is mapped it fails, which does no harm.
      madvise(reinterpret_cast<void*>(uintptr_t(at)), size_t(std::min(kPiece, stop - at)), MADV_WILLNEED);
    }
  }
#endif
}

}  // extern "C"
