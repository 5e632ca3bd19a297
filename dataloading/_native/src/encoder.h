// Thread-safety: pure functions over the caller's memory; a Scratch belongs to one thread.
//
// RGB pixels, or those of another JPEG, -> baseline JPEG, the same coefficients and bytes as libjpeg with its accurate integer DCT.
#ifndef BETON_ENCODER_H
#define BETON_ENCODER_H

#include <cstddef>
#include <cstdint>

#include "header.h"
#include "scratch.h"
#include "status.h"

namespace beton {

// Chroma is subsampled h_samp x v_samp times. *out is malloc'd.
Status encode_rgb(const uint8_t* rgb, int width, int height, size_t row_stride, int quality, int h_samp, int v_samp,
                  int restart, Scratch* scratch, uint8_t** out, size_t* out_bytes);

// The same from another JPEG of that sampling: its YCbCr samples are encoded as they are, which loses less than a way
// through RGB, and saves a third of the work. kUnsupported for other kinds; any other status may be damage.
Status reencode(const JpegHeader& source, const uint8_t* data, size_t size, int quality, int h_samp, int v_samp,
                int restart, Scratch* scratch, uint8_t** out, size_t* out_bytes);

}  // namespace beton

#endif
