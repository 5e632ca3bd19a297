// Thread-safety: pure functions over constants.
//
// Why a sample could not be produced. The numbers travel through REQUEST.status; their texts are for people.
#ifndef BETON_STATUS_H
#define BETON_STATUS_H

namespace beton {

enum Status : int {
  kOk = 0,
  kBadRequest = 1,
  kNotJpeg = 2,
  kTruncated = 3,
  kBadHeader = 4,
  kBadCode = 5,
  kBadMarker = 6,
  kUnsupported = 8,
  kFourColours = 9,
  kSizeMismatch = 10,
  kTooLarge = 11,
  kOutOfMemory = 12,
  kLibjpeg = 13,
  kTooManyScans = 14,
  kRawSize = 15,
  kNotGray = 16,
  kNumStatuses = 17,
};

const char* status_text(int status);

}  // namespace beton

#endif
