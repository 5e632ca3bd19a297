#include "resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "beton_native.h"
#include "kernels.h"

namespace beton {

namespace {

constexpr int kBeside = 4;  // zeros beside a filter of the box

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

// Leaves out what is too small to count at both ends.
void trim(const double** w, int* first, int* n, double norm) {
  while (*n > 1 && std::fabs((*w)[*n - 1] * norm) < 0.5) --*n;
  while (*n > 1 && std::fabs((*w)[0] * norm) < 0.5) {
    ++*w;
    ++*first;
    --*n;
  }
}

// Makes the exact filter of one output, trimmed; returns its taps. `memory` has room for twice the taps of the box.
int exact_output(const AxisSpec& s, int at, double* memory, const double** w, int* first, double* norm) {
  const int output = s.first + (s.reverse ? s.count - 1 - at : at);
  double* from_box = memory + kBeside;
  int n = box_weights(s, output, from_box, first, norm);
  *w = from_box;
  if (s.ratio == 1) {
    *first += s.box;
  } else {
    for (int t = 0; t < kBeside; t++) from_box[t - kBeside] = from_box[n + t] = 0.0;
    double* component = from_box + n + kBeside;
    n = through_upsampling(s, from_box, *first, n, component, first);
    *w = component;
  }
  *norm *= 1 << kWeightBits;
  trim(w, first, &n, *norm);
  return n;
}

void store_output(int at, const double* w, int first, int n, double norm, Axis* axis) {
  axis->start[size_t(at)] = first;
  axis->end[size_t(at)] = first + n;
  int16_t* out = axis->weights.data() + (axis->weight(at) - axis->weights.data());
  for (int t = 0; t < 2 * axis->pairs; t++) out[t / 2 * 2 * kGroup + t % 2] = 0;
  // Rounding the running sum makes the weights add up to exactly 1, so that a constant area stays constant.
  double sum = 0.0;
  int before = 0;
  for (int t = 0; t < n; t++) {
    sum += w[t] * norm;
    const int now = t < n - 1 ? nearest_int(sum) : 1 << kWeightBits;
    const int place = first - axis->origin(at) + t;
    out[place / 2 * 2 * kGroup + place % 2] = int16_t(now - before);
    before = now;
  }
}

int whole_groups(int count) { return (count + kGroup - 1) & -kGroup; }

void set_pairs(int pairs, Axis* axis) {
  axis->pairs = pairs;
  axis->weights.resize(size_t(whole_groups(axis->count)) * size_t(pairs) * 2);
}

// Moves an output's weights `taps` places to the front, over taps that do not count.
void move_weights(int at, int taps, Axis* axis) {
  int16_t* w = axis->weights.data() + (axis->weight(at) - axis->weights.data());
  const auto place = [](int t) { return t / 2 * 2 * kGroup + t % 2; };
  for (int t = 0; t < 2 * axis->pairs; t++) w[place(t)] = t + taps < 2 * axis->pairs ? w[place(t + taps)] : int16_t(0);
}

// Whether libjpeg's upsampling treats some samples of an output as the image's edge.
bool at_edge(const AxisSpec& s, const BoxFilter& box, int at) {
  const int begin = s.box + box.first[at], last = begin + box.taps[at] - 1;
  return s.fancy && (begin < 2 || last / 2 >= s.component_length - 1);
}

// Makes an output anew; returns false where it has more taps than there is room for.
bool remake_output(const AxisSpec& spec, int at, Axis* axis) {
  const double* w;
  int first;
  double norm;
  const int n = exact_output(spec, std::min(at, spec.count - 1), axis->scratch.data(), &w, &first, &norm);
  if (n + (spec.even ? first & 1 : 0) > 2 * axis->pairs) return false;
  store_output(at, w, first, n, norm, axis);
  return true;
}

// Returns false where there are more taps than vector code takes.
bool make_axis_by_vectors(const AxisSpec& spec, const BoxFilter& box, Axis* axis) {
  const int padded = whole_groups(spec.count);
  int most = 0;
  for (int at = 0; at < padded; at++) most = std::max(most, box.taps[at]);
  const int taps = (spec.fancy ? most / 2 + 2 : most) + spec.even, pairs = (taps + 1) / 2;
  if (2 * pairs > kMostVectorTaps) return false;
  set_pairs(pairs, axis);
  axis->stored_at.resize(size_t(padded));
  int* const stored_at = axis->stored_at.data();
  int* const start = axis->start.data();
  kernels().make_weights(spec, box, {taps, pairs, stored_at, start, axis->end.data(), axis->weights.data()});
  int moved = 0;
  for (int at = 0; at < padded; at++) moved |= (start[at] & (spec.even ? ~1 : -1)) ^ stored_at[at];
  for (int at = 0; moved != 0 && at < padded; at++) move_weights(at, axis->origin(at) - stored_at[at], axis);
  axis->scratch.resize(size_t(box.most + kBeside) * 4);
  int first = 0, last = padded;
  for (; first < last && at_edge(spec, box, first); first++) {
    if (!remake_output(spec, first, axis)) return false;
  }
  for (; first < last && at_edge(spec, box, last - 1); last--) {
    if (!remake_output(spec, last - 1, axis)) return false;
  }
  return true;
}

void make_axis_one_by_one(const AxisSpec& spec, Axis* axis) {
  const double scale = double(spec.length) / double(spec.scaled);
  const size_t room = size_t(std::ceil(2.0 * std::max(scale, 1.0)) * 2.0) + 6 + kBeside;
  axis->scratch.resize(2 * room);
  const double* w;
  int first;
  double norm;
  // How many taps there are is known only at the end.
  int pairs = 1;
  for (int at = 0; at < spec.count; at++) {
    const int n = exact_output(spec, at, axis->scratch.data(), &w, &first, &norm);
    pairs = std::max(pairs, (n + (spec.even ? first & 1 : 0) + 1) / 2);
  }
  set_pairs(pairs, axis);
  for (int at = 0; at < whole_groups(spec.count); at++) {
    const int n = exact_output(spec, std::min(at, spec.count - 1), axis->scratch.data(), &w, &first, &norm);
    store_output(at, w, first, n, norm, axis);
  }
}

}  // namespace

void make_box(const AxisSpec& spec, Box* box) {
  box->vectors = spec.antialias && spec.interpolation != BETON_NEAREST;
  if (!box->vectors) return;
  BoxFilter& f = box->filter;
  f.cubic = spec.interpolation == BETON_BICUBIC;
  f.scale = double(spec.length) / double(spec.scaled);
  const double wide = std::max(f.scale, 1.0);
  f.inverse = 1.0 / wide;
  f.support = (f.cubic ? 2.0 : 1.0) * wide;
  f.most = int(std::ceil(2.0 * f.support)) + 1;
  box->vectors = f.most <= kMostVectorTaps;
  if (!box->vectors) return;
  const size_t padded = size_t(whole_groups(spec.count));
  box->first.resize(padded);
  box->taps.resize(padded);
  box->center.resize(padded);
  box->norm.resize(padded);
  f.first = box->first.data();
  f.taps = box->taps.data();
  f.center = box->center.data();
  f.norm = box->norm.data();
  kernels().make_box_filter(spec, f);
}

void make_axis(const AxisSpec& spec, const Box& box, Axis* axis) {
  axis->count = spec.count;
  axis->even = spec.even;
  const int padded = whole_groups(spec.count);
  axis->start.resize(size_t(padded));
  axis->end.resize(size_t(padded));
  const bool done = box.vectors && (spec.ratio == 1 || spec.fancy) && make_axis_by_vectors(spec, box.filter, axis);
  if (!done) make_axis_one_by_one(spec, axis);
  int low = axis->start[0], high = axis->end[0];
  for (int at = 1; at < padded; at++) {
    low = std::min(low, axis->start[size_t(at)]);
    high = std::max(high, axis->end[size_t(at)]);
  }
  axis->low = low;
  axis->high = high;
}

}  // namespace beton
