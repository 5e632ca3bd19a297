#include "resample.h"

#include <algorithm>
#include <cmath>

#include "beton_native.h"

namespace beton {

namespace {

// Halves go up, for negative numbers too; library rounding is a function call here.
int nearest_int(double v) { return int(v + 65536.5) - 65536; }

// Keys' cubic convolution; torch uses a = -0.5 with antialiasing (as Pillow) and -0.75 without.
double cubic(double x, double a) {
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

// Weights of one output over full-resolution samples relative to the box; returns how many, sets *first.
int box_weights(const AxisSpec& s, int output, double* w, int* first) {
  const int n = s.length;
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
    const double norm = 1.0 / total;
    for (int t = 0; t < count; t++) w[t] *= norm;
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

// libjpeg's upsampling is linear, so it and the resize combine into one filter over component samples.
int through_upsampling(const AxisSpec& s, const double* w, int first, int count, double* out, int* out_first) {
  const int last_sample = s.component_length - 1;
  const int begin = s.box + first, end = begin + count;  // full-resolution samples
  if (s.fancy) {
    const int low = std::max(begin / 2 - 1, 0), high = std::min((end - 1) / 2 + 1, last_sample);
    for (int i = low; i <= high; i++) out[i - low] = 0.0;
    for (int t = 0; t < count; t++) {
      const int i = begin + t, near = std::min(i >> 1, last_sample);
      const int far = std::min(std::max(near - 1 + 2 * (i & 1), 0), last_sample);
      out[near - low] += 0.75 * w[t];
      out[far - low] += 0.25 * w[t];
    }
    *out_first = low;
    return high - low + 1;
  }
  const int low = std::min(begin / s.ratio, last_sample), high = std::min((end - 1) / s.ratio, last_sample);
  for (int i = low; i <= high; i++) out[i - low] = 0.0;
  for (int t = 0; t < count; t++) out[std::min((begin + t) / s.ratio, last_sample) - low] += w[t];
  *out_first = low;
  return high - low + 1;
}

}  // namespace

void make_axis(const AxisSpec& spec, Axis* axis) {
  const double scale = double(spec.length) / double(spec.scaled);
  const double support = (spec.interpolation == BETON_BICUBIC ? 2.0 : 1.0) * (spec.antialias ? std::max(scale, 1.0) : 1.0);
  const int most = int(std::ceil(support)) * 2 + 6;
  axis->count = spec.count;
  axis->start.resize(size_t(spec.count));
  axis->scratch.resize(size_t(most) * 2 + size_t(most) * size_t(spec.count));
  double* box = axis->scratch.data();
  double* component = box + most;
  double* all = component + most;
  int counts_most = 1;
  // First in double precision, each output's count in front of its weights: the stride is known only at the end.
  for (int i = 0; i < spec.count; i++) {
    int first = 0;
    int n = box_weights(spec, spec.first + i, box, &first);
    const double* w = box;
    if (spec.ratio == 1) {
      first += spec.box;
    } else {
      n = through_upsampling(spec, box, first, n, component, &first);
      w = component;
    }
    const double tiny = 0.5 / (1 << kWeightBits);
    while (n > 1 && std::fabs(w[n - 1]) < tiny) n--;
    while (n > 1 && std::fabs(w[0]) < tiny) {
      w++;
      first++;
      n--;
    }
    const int at = spec.reverse ? spec.count - 1 - i : i;
    axis->start[size_t(at)] = first;
    double* slot = all + size_t(at) * size_t(most);
    slot[0] = n;
    for (int t = 0; t < n; t++) slot[1 + t] = w[t];
    counts_most = std::max(counts_most, n);
  }
  axis->taps = (counts_most + 1) & ~1;
  axis->weights.assign(size_t(axis->taps) * size_t(spec.count), 0);
  axis->low = axis->start[0];
  axis->high = 0;
  for (int i = 0; i < spec.count; i++) {
    const double* slot = all + size_t(i) * size_t(most);
    const int n = int(slot[0]);
    int16_t* w = axis->weights.data() + size_t(i) * size_t(axis->taps);
    // Rounding the running sum makes the weights add up to exactly 1, so that a constant area stays constant.
    double sum = 0.0;
    int before = 0;
    for (int t = 0; t < n; t++) {
      sum += slot[1 + t];
      const int now = t == n - 1 ? 1 << kWeightBits : nearest_int(sum * (1 << kWeightBits));
      w[t] = int16_t(now - before);
      before = now;
    }
    axis->low = std::min(axis->low, axis->start[size_t(i)]);
    axis->high = std::max(axis->high, axis->start[size_t(i)] + n);
  }
}

}  // namespace beton
