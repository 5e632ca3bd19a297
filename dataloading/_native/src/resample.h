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

// The filter of outputs [0, count): output i is sum over t of weight(i)[t] * source[start[i] + t].
struct Axis {
  int count = 0;
  int taps = 0;                  // taps stored for each output: the largest number needed, rounded up to even
  int low = 0, high = 0;         // all taps with a weight read source samples in [low, high)
  std::vector<int> start;
  std::vector<int16_t> weights;  // count * taps; unused ones are 0
  std::vector<int16_t> wide;     // scratch of make_axis, as is the next
  std::vector<double> scratch;

  const int16_t* weight(int i) const { return weights.data() + size_t(i) * size_t(taps); }
};

struct AxisSpec {
  int box = 0, length = 0;  // the crop: samples [box, box + length) of the full-resolution axis
  int scaled = 0;           // length after resizing
  int first = 0, count = 0; // the outputs wanted: [first, first + count) of the scaled axis
  int interpolation = 0;    // BETON_NEAREST | BETON_BILINEAR | BETON_BICUBIC
  bool antialias = true;
  bool reverse = false;     // list the outputs from last to first: a mirrored image for free
  // A subsampled component: full-resolution sample i comes from component samples through libjpeg's upsampling.
  int ratio = 1;            // full-resolution samples per component sample: 1, 2, 4 (3 too)
  bool fancy = false;       // ratio 2 only: triangle filter 3/4, 1/4; otherwise plain repetition
  int component_length = 0; // samples the component has along this axis
};

// The filter over full-resolution samples of the crop, from which those of all components are made.
struct BoxFilter {
  struct Output {
    int first, taps;
    double norm;  // what its weights are to be multiplied by
  };
  int most = 0;  // taps there is room for
  std::vector<Output> outputs;
  std::vector<double> weights;  // a few zeros, `most`, a few zeros for each output
};

void make_box_filter(const AxisSpec& spec, BoxFilter* box);

void make_axis(const AxisSpec& spec, const BoxFilter& box, Axis* axis);

}  // namespace beton

#endif
