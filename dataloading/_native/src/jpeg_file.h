// Thread-safety: pure functions over the caller's memory; a Scratch belongs to one thread.
//
// Puts a list of symbols into a JPEG file: markers, optimised tables, entropy-coded data. Byte for byte what libjpeg
// makes of the same coefficients with optimize_coding.
#ifndef BETON_JPEG_FILE_H
#define BETON_JPEG_FILE_H

#include <cstddef>
#include <cstdint>

#include "header.h"
#include "scratch.h"
#include "status.h"

namespace beton {

// Writes scratch->symbols as a baseline JPEG. Of `frame` count size, components, quantisation tables, colour space and
// JFIF values. Profile markers among the `source_bytes` bytes before the scan of `source` (may be null) are copied.
// *out is malloc'd.
Status write_jpeg_file(const JpegHeader& frame, int restart_interval, const uint8_t* source, size_t source_bytes,
                       Scratch* scratch, uint8_t** out, size_t* out_bytes);

// Transcodes a JPEG that a Scan supports and whose image ends behind its only scan; kUnsupported is the answer to every
// other. The coefficients are those of libjpeg_transcode, and so are the bytes.
Status recode(const JpegHeader& header, const uint8_t* data, size_t size, int restart, bool keep_icc, Scratch* scratch,
              uint8_t** out, size_t* out_bytes);

// Reads all entropy-coded data of such a JPEG, then what follows it, and keeps nothing: kBadCode whatever follows.
Status check_scan(const JpegHeader& header, const uint8_t* data, size_t size, Scratch* scratch);

}  // namespace beton

#endif
