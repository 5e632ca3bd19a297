#include "status.h"

namespace beton {

const char* status_text(int status) {
  switch (status) {
    case kOk: return "no error";
    case kBadRequest: return "the requested region does not lie inside the image or has no size";
    case kNotJpeg: return "not a JPEG: the data does not start with its marker FF D8";
    case kTruncated: return "JPEG data ends early";
    case kBadHeader: return "JPEG header is malformed";
    case kBadCode: return "JPEG data holds an invalid entropy code";
    case kBadMarker: return "JPEG markers are missing or out of order";
    case kUnsupported: return "JPEG kind is not supported (only 8-bit baseline, extended or progressive images are)";
    case kFourColours: return "JPEG has four colour components (CMYK or YCCK) and no RGB pixels";
    case kSizeMismatch: return "JPEG width or height differs from what the file's sample table says";
    case kTooLarge: return "JPEG declares more pixels than its data can hold or than this library decodes";
    case kOutOfMemory: return "out of memory";
    case kLibjpeg: return "libjpeg-turbo refused the data";
    case kTooManyScans: return "progressive JPEG has too many scans";
    case kRawSize: return "raw image's byte count differs from width * height * channels";
    case kNotGray: return "JPEG has colours, where a gray image was declared";
    default: return "unknown status";
  }
}

}  // namespace beton
