// Thread-safety: a Quantiser is read-only once made; kernels are pure functions over the caller's memory.
//
// The forward half of a JPEG encoder as the kernels see it: samples of one row of MCUs -> symbols.
#ifndef BETON_FORWARD_H
#define BETON_FORWARD_H

#include <cstddef>
#include <cstdint>

namespace beton {

// Division of DCT coefficients (scaled by 8) by a quantisation table, rounded to nearest, halves away from zero, as two
// multiplications: (((|x| + correction) * reciprocal) >> 16) * scale >> 16 (jcdctmgr.c, compute_reciprocal). Exact for
// every table of 8-bit values and every 16-bit x.
struct alignas(32) Quantiser {
  uint16_t reciprocal[64], correction[64], scale[64];  // row-major order
};

// Blocks of one component at one place of the MCUs.
struct EncodePlace {
  const Quantiser* quantiser;
  const uint8_t* data;  // the sample in MCU column 0
  ptrdiff_t stride;
  int step;             // samples from MCU to MCU
  int columns;          // MCU columns in which this block is in the image; others hold a flat copy of its neighbour
  int component;
  uint32_t set;
};

struct EncodeLayout {
  int blocks = 0;
  EncodePlace block[10];
};

// Bits of a mask in row-major order -> bits in zig-zag order, a byte (row) at a time.
struct ZigzagMasks {
  uint64_t of[8][256];
};

extern const ZigzagMasks kZigzagMasks;

// Of each coefficient v, at v & kValueMask: its value bits << kIndexBits | their number, as in the list of symbols.
constexpr int kValueMask = 8191;  // quantised DCT coefficients have at most 12 bits and a sign
struct ValueSymbols {
  uint32_t of[kValueMask + 1];
};

extern const ValueSymbols kValueSymbols;

}  // namespace beton

#endif
