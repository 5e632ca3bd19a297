// Thread-safety: every call owns its libjpeg object; no shared state.
//
// Everything that goes through libjpeg-turbo: whole or partial decoding of any kind of JPEG, lossless transcoding. No
// libjpeg error or warning gets past this file: errors, and warnings that concern pixels, become a Status. After success
// `reason` (may be null) says what was skipped, see remark().
#ifndef BETON_LIBJPEG_IO_H
#define BETON_LIBJPEG_IO_H

#include <cstddef>
#include <cstdint>

#include "header.h"
#include "status.h"

namespace beton {

constexpr int kReasonBytes = 200;  // JMSG_LENGTH_MAX

// Largest image that is decoded or transcoded whole: bounds what a hostile header can make us allocate and compute.
constexpr int64_t kMaxPixels = int64_t(1) << 28;
constexpr int kMaxScans = 256;

// kTooLarge when the header asks for more than kMaxPixels, or kTruncated when the data is too short to hold even one
// bit a block; cheap, to be asked before memory is spent.
Status check_plausible(const JpegHeader& header, size_t size);

// Decodes columns [x, x + width) of rows [y, y + height) to interleaved RGB, or to luma for one channel: exactly the pixels
// of a full decode with the accurate integer DCT and fancy upsampling. With `strict` the data below the region is read
// too, to its end marker.
Status libjpeg_decode(const uint8_t* data, size_t size, int x, int y, int width, int height, int channels, uint8_t* out,
                      size_t row_stride, bool strict, char* reason);

// Reads all coefficients and keeps none; fails on what libjpeg_transcode fails on.
Status libjpeg_check(const uint8_t* data, size_t size, char* reason);

// Lossless: the coefficients, in a baseline file with optimised tables.
Status libjpeg_transcode(const uint8_t* data, size_t size, int restart, bool keep_icc, uint8_t** out, size_t* out_bytes,
                         char* reason);

// Writes into `reason` (may be null) how many bytes that belong to nothing were skipped; empty for none.
void remark(int64_t stray_bytes, char* reason);

// MCUs between two restart markers for an image whose entropy-coded data takes about `bytes` bytes; 0 = no markers.
int choose_restart_interval(int width, int mcus_per_row, int mcu_rows, size_t bytes);

}  // namespace beton

#endif
