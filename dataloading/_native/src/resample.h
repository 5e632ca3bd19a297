// Thread-safety: pure functions; an Axis belongs to one thread.
//
// Which source samples, with which weights, make each output sample along one axis. Pixels are none of its business.
#ifndef BETON_RESAMPLE_H
#define BETON_RESAMPLE_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace beton {

constexpr int kWeightBits = 14;  // weights are fixed point: 1.0 = 1 << 14
constexpr int kValueBits = 6;    // between the two passes a sample carries six more bits than its byte

constexpr int kGroup = 8;      // outputs whose weights lie together

struct AxisSpec {
  int box = 0, length = 0;  // the crop: samples [box, box + length) of the full-resolution axis
  int scaled = 0;           // length after resizing
  int first = 0, count = 0; // the outputs wanted: [first, first + count) of the scaled axis
  int interpolation = 0;    // BETON_NEAREST | BETON_BILINEAR | BETON_BICUBIC
  bool antialias = true;
  bool reverse = false;     // list the outputs from last to first: a mirrored image for free
  bool even = false;        // begin each output's taps at an even source sample: rows come in pairs
  // A subsampled component: full-resolution sample i comes from component samples through libjpeg's upsampling.
  int ratio = 1;            // full-resolution samples per component sample: 1, 2, 4 (3 too)
  bool fancy = false;       // ratio 2 only: triangle filter 3/4, 1/4; otherwise plain repetition
  int component_length = 0; // samples the component has along this axis
};

// The filter of outputs [0, count): output i is the sum of weight(i, t) * source[origin(i) + t] over t.
struct Axis {
  int count = 0;
  int pairs = 0;               // of taps, stored for each output; unused taps are 0
  int low = 0, high = 0;       // all taps with a weight read source samples in [low, high)
  bool even = false;           // as in AxisSpec
  std::vector<int> start, end; // the source samples that have weights, of each output; up to whole groups
  std::vector<int16_t> weights;  // groups of outputs; of each the pairs; of these two weights for each output
  std::vector<int> stored_at;    // scratch of make_axis, as is the next
  std::vector<double> scratch;

  int origin(int i) const { return even ? start[size_t(i)] & ~1 : start[size_t(i)]; }
  // The first pair of output i; the next ones follow at distances of 2 * kGroup.
  const int16_t* weight(int i) const { return weights.data() + ptrdiff_t(i / kGroup * pairs * kGroup + i % kGroup) * 2; }
};

// The filters that vector code makes, antialiased ones, over full-resolution samples of the crop. Plain memory, filled up to
// whole groups: of each output the samples in the box, the filter's centre, and what its weights are to be multiplied by.
struct BoxFilter {
  bool cubic;
  double scale, inverse, support;
  int most;  // taps
  int *first, *taps;
  double *center, *norm;
};

// Where vector code puts an Axis. An output may begin with taps that are too small to count.
struct AxisMemory {
  int taps, pairs;  // at most so many taps count
  int *stored_at, *start, *end;
  int16_t* weights;
};

// More taps than this are left to the one-by-one code.
constexpr int kMostVectorTaps = 64;

// What the axes of all components share.
struct Box {
  bool vectors = false;  // whether there is a filter for vector code
  BoxFilter filter;
  std::vector<int> first, taps;
  std::vector<double> center, norm;
};

void make_box(const AxisSpec& spec, Box* box);

void make_axis(const AxisSpec& spec, const Box& box, Axis* axis);

}  // namespace beton

#endif
