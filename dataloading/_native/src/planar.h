// Thread-safety: functions over one thread's Scratch.
//
// Regions of the JPEGs that Scan supports, from entropy-coded data to output rows.
#ifndef BETON_PLANAR_H
#define BETON_PLANAR_H

#include "geometry.h"
#include "header.h"
#include "passes.h"
#include "scratch.h"

namespace beton {

// Luma and chroma are resized apart, straight to output size; each strip of decoded rows is filtered while it is hot. Where
// many colours leave 0..255, red, green and blue are resized instead, from the row on where that shows.
Status resize_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                     Scratch* s);

// No resize: the pixels are libjpeg's, bit for bit.
Status copy_planar(const beton_request& q, const Geometry& g, const JpegHeader& header, const Target& target,
                   Scratch* s);

// A whole image to interleaved RGB, strictly: every byte up to the end marker is looked at. kUnsupported is the answer to
// images that have to go through libjpeg.
Status decode_whole(const JpegHeader& header, const uint8_t* data, size_t size, uint8_t* rgb, Scratch* s);

}  // namespace beton

#endif
