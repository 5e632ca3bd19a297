// Thread-safety: a FirAxis belongs to one thread.
//
// The filters of one axis for the exact resize: 22 fractional bits do not fit the 16-bit factors of vector code, so each
// weight is also kept as high * 4096 + low, which adds up to the same 32-bit sum.
#ifndef BETON_FIR_H
#define BETON_FIR_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace beton {

constexpr int kFirBits = 22;     // weights are fixed point: 1.0 = 1 << 22
constexpr int kFirLowBits = 12;

// Output i is (sum over t < used[i] of weights[i * taps + t] * source[start[i] + t] + half) >> kFirBits, clamped to a byte.
// The plain pointers are for kernels: no library code in vector files.
struct FirAxis {
  int outputs = 0;
  int taps = 0;   // stored for each output, a multiple of 4; those behind the filter's end are 0
  int reach = 0;  // no output reads at or behind this source sample
  const int* start_data = nullptr;
  const int* used_data = nullptr;  // along rows a multiple of 4, down columns of 2
  const int32_t* weights_data = nullptr;
  // As many numbers, each two 16-bit halves of neighbouring taps, the earlier in the lower half. Along rows for four
  // taps: low parts of taps 0 1, of 2 3, high parts of 0 1, of 2 3. Down columns for two taps: low parts, high parts.
  const int32_t* parts_data = nullptr;

  std::vector<int> start, used;
  std::vector<int32_t> weights, parts;
};

}  // namespace beton

#endif
