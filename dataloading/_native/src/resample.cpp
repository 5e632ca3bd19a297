#include "resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "beton_native.h"

namespace beton {

namespace {

constexpr int kBeside = 4;

// Halves go up, for negative numbers too; library rounding is a function call here.
int nearest_int(double v) { return int(v + 65536.5) - 65536; }

// Keys' cubic convolution; torch uses a = -0.5 with antialiasing (as Pillow) and -0.75 without.
double cubic(double x, double a) {
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

// Weights of one output over full-resolution samples relative to the box; returns how many, sets *first. They add up to
// 1 / *norm: dividing them here would read back, as vectors, what has just been written one by one, and wait for it.
int box_weights(const AxisSpec& s, int output, double* w, int* first, double* norm) {
  const int n = s.length;
  *norm = 1.0;
  const double scale = double(n) / double(s.scaled);
  if (s.interpolation == BETON_NEAREST) {
    // torch computes this in single precision; so the same index comes out.
    const float step = float(n) / float(s.scaled);
    *first = std::min(int(std::floor(float(output) * step)), n - 1);
    w[0] = 1.0;
    return 1;
  }
  if (s.antialias) {
    const double wide = std::max(scale, 1.0), inverse = 1.0 / wide;
    const double support = (s.interpolation == BETON_BICUBIC ? 2.0 : 1.0) * wide;
    const double center = (output + 0.5) * scale;
    const int low = std::max(int(center - support + 0.5), 0);
    const int high = std::min(int(center + support + 0.5), n);
    double total = 0.0;
    const int count = std::max(high - low, 1);
    *first = std::min(low, n - 1);
    if (s.interpolation == BETON_BICUBIC) {
      for (int t = 0; t < count; t++) total += w[t] = cubic((low + t - center + 0.5) * inverse, -0.5);
    } else {
      for (int t = 0; t < count; t++) {
        total += w[t] = std::max(1.0 - std::fabs((low + t - center + 0.5) * inverse), 0.0);
      }
    }
    if (total == 0.0) {
      w[0] = 1.0;
      return 1;
    }
    *norm = 1.0 / total;
    return count;
  }
  // Without antialiasing: fixed support around the centre, taps outside repeat the edge.
  const double center = (output + 0.5) * scale - 0.5;
  if (s.interpolation == BETON_BILINEAR) {
    const double at = std::max(center, 0.0);
    const int x0 = std::min(int(at), n - 1);
    *first = x0;
    const double lambda = std::min(at - x0, 1.0);
    w[0] = 1.0 - lambda;
    if (x0 + 1 >= n) {
      w[0] = 1.0;
      return 1;
    }
    w[1] = lambda;
    return 2;
  }
  const int x0 = int(std::floor(center)) - 1;
  const double t = center - std::floor(center);
  const int low = std::min(std::max(x0, 0), n - 1), high = std::min(std::max(x0 + 3, 0), n - 1);
  for (int i = low; i <= high; i++) w[i - low] = 0.0;
  for (int k = 0; k < 4; k++) {
    const int x = std::min(std::max(x0 + k, 0), n - 1);
    w[x - low] += cubic(t + 1.0 - k, -0.75);
  }
  *first = low;
  return high - low + 1;
}

// libjpeg's upsampling is linear, so it and the resize combine into one filter over component samples. Before `w` and
// behind its `count` values lie kBeside zeros.
int through_upsampling(const AxisSpec& s, const double* w, int first, int count, double* out, int* out_first) {
  const int last_sample = s.component_length - 1;
  const int begin = s.box + first, end = begin + count;  // full-resolution samples
  if (s.fancy) {
    const int low = std::max(begin / 2 - 1, 0), high = std::min((end - 1) / 2 + 1, last_sample);
    const int num = high - low + 1;
    *out_first = low;
    if (begin >= 2 && (end - 1) / 2 < last_sample) {
      // Sample j gives 3/4 of itself to full-resolution samples 2j and 2j + 1, and 1/4 to those beside them.
      const double* at = w + 2 * low - begin;
      for (int i = 0; i < num; i++, at += 2) out[i] = 0.75 * (at[0] + at[1]) + 0.25 * (at[-1] + at[2]);
      return num;
    }
    for (int i = 0; i < num; i++) out[i] = 0.0;
    for (int t = 0; t < count; t++) {
      const int i = begin + t, near = std::min(i >> 1, last_sample);
      const int far = std::min(std::max(near - 1 + 2 * (i & 1), 0), last_sample);
      out[near - low] += 0.75 * w[t];
      out[far - low] += 0.25 * w[t];
    }
    return num;
  }
  const int low = std::min(begin / s.ratio, last_sample), high = std::min((end - 1) / s.ratio, last_sample);
  for (int i = low; i <= high; i++) out[i - low] = 0.0;
  for (int t = 0; t < count; t++) out[std::min((begin + t) / s.ratio, last_sample) - low] += w[t];
  *out_first = low;
  return high - low + 1;
}

}  // namespace

void make_box_filter(const AxisSpec& spec, BoxFilter* box) {
  const double scale = double(spec.length) / double(spec.scaled);
  const double support = (spec.interpolation == BETON_BICUBIC ? 2.0 : 1.0) * (spec.antialias ? std::max(scale, 1.0) : 1.0);
  box->most = int(std::ceil(support)) * 2 + 6;
  const size_t count = size_t(spec.count);
  box->outputs.resize(count);
  box->weights.resize(count * size_t(box->most + 2 * kBeside));
  double* w = box->weights.data() + kBeside;
  for (int i = 0; i < spec.count; i++, w += box->most + 2 * kBeside) {
    BoxFilter::Output& output = box->outputs[size_t(i)];
    output.taps = box_weights(spec, spec.first + i, w, &output.first, &output.norm);
    for (int t = 0; t < kBeside; t++) w[t - kBeside] = w[output.taps + t] = 0.0;
  }
}

void make_axis(const AxisSpec& spec, const BoxFilter& box, Axis* axis) {
  const int most = box.most;
  axis->count = spec.count;
  axis->start.resize(size_t(spec.count));
  axis->scratch.resize(size_t(most));
  axis->wide.resize(size_t(most) * size_t(spec.count));
  double* component = axis->scratch.data();
  const double* from_box = box.weights.data() + kBeside;
  axis->low = spec.box + spec.length;
  axis->high = 0;
  int counts_most = 1;
  // First with room for the most taps there may be; how many there are is known only at the end.
  for (int i = 0; i < spec.count; i++, from_box += most + 2 * kBeside) {
    int first = box.outputs[size_t(i)].first;
    int n = box.outputs[size_t(i)].taps;
    const double* w = from_box;
    if (spec.ratio == 1) {
      first += spec.box;
    } else {
      n = through_upsampling(spec, from_box, first, n, component, &first);
      w = component;
    }
    const double norm = box.outputs[size_t(i)].norm * (1 << kWeightBits);
    while (n > 1 && std::fabs(w[n - 1] * norm) < 0.5) n--;
    while (n > 1 && std::fabs(w[0] * norm) < 0.5) {
      w++;
      first++;
      n--;
    }
    const int at = spec.reverse ? spec.count - 1 - i : i;
    int16_t* out = axis->wide.data() + size_t(at) * size_t(most);
    // Rounding the running sum makes the weights add up to exactly 1, so that a constant area stays constant.
    double sum = 0.0;
    int before = 0;
    for (int t = 0; t < n - 1; t++) {
      sum += w[t] * norm;
      const int now = nearest_int(sum);
      out[t] = int16_t(now - before);
      before = now;
    }
    out[n - 1] = int16_t((1 << kWeightBits) - before);
    for (int t = n; t < most; t++) out[t] = 0;
    axis->start[size_t(at)] = first;
    axis->low = std::min(axis->low, first);
    axis->high = std::max(axis->high, first + n);
    counts_most = std::max(counts_most, n);
  }
  axis->taps = (counts_most + 1) & ~1;
  axis->weights.resize(size_t(axis->taps) * size_t(spec.count));
  const int16_t* from = axis->wide.data();
  int16_t* to = axis->weights.data();
  for (int i = 0; i < spec.count; i++, from += most, to += axis->taps) {
    for (int t = 0; t < axis->taps; t += 2) std::memcpy(to + t, from + t, 4);
  }
}

}  // namespace beton
