// Included by the kernels of each instruction set, into anonymous namespaces.
//
// The weights of antialiased filters, four outputs at a time. Every step is that of the one-by-one code in resample.cpp, in
// double precision and in the same order, so the weights are the same to the last bit.
#ifndef BETON_WEIGHT_LOOPS_H
#define BETON_WEIGHT_LOOPS_H

#include "kernels.h"

namespace beton {

namespace {

typedef double Doubles __attribute__((vector_size(32)));
typedef int64_t Masks __attribute__((vector_size(32)));  // of a comparison of Doubles: all bits or none
typedef int32_t Ints __attribute__((vector_size(16)));

template <typename T, typename From>
inline void read(const From* from, T* to) {
  __builtin_memcpy(to, from, sizeof(T));
}

template <typename T, typename To>
inline void write(const T& from, To* to) {
  __builtin_memcpy(to, &from, sizeof(T));
}

// The filter's height over tap `tap` of those in the box.
template <bool kCubic>
inline void height(const BoxFilter& box, const Doubles& first, const Doubles& taps, const Doubles& center,
                   const Doubles& tap, Doubles* out) {
  const Doubles at = (first + tap - center + 0.5) * box.inverse, x = at < 0.0 ? -at : at;
  const Doubles zero = {0.0, 0.0, 0.0, 0.0};
  const Masks inside = (tap >= 0.0) & (tap < taps);
  if (kCubic) {
    const Doubles near = (1.5 * x - 2.5) * x * x + 1.0, far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5;
    *out = inside ? (x < 1.0 ? near : x < 2.0 ? far : zero) : zero;
  } else {
    const Doubles down = 1.0 - x;
    *out = inside & (down > 0.0) ? down : zero;
  }
}

template <bool kCubic>
void make_box_filter_of(const AxisSpec& s, const BoxFilter& box) {
  const Ints none = {0, 0, 0, 0}, length = none + s.length;
  const Doubles zero = {0.0, 0.0, 0.0, 0.0}, one = zero + 1.0;
  for (int at = 0; at < ((s.count + kGroup - 1) & -kGroup); at += 4) {
    Ints output = {at, at + 1, at + 2, at + 3};
    const Ints last = none + (s.count - 1);
    output = output > last ? last : output;  // what is behind the last output repeats it
    output = s.first + (s.reverse ? s.count - 1 - output : output);
    const Doubles center = (__builtin_convertvector(output, Doubles) + 0.5) * box.scale;
    Ints low = __builtin_convertvector(center - box.support + 0.5, Ints);
    Ints high = __builtin_convertvector(center + box.support + 0.5, Ints);
    low = low < none ? none : low;
    high = high > length ? length : high;
    const Ints taps = high - low;
    const Doubles first_tap = __builtin_convertvector(low, Doubles), num_taps = __builtin_convertvector(taps, Doubles);
    Doubles total = zero, tap = zero, here;
    for (int t = 0; t < box.most; t++, tap += one) {
      height<kCubic>(box, first_tap, num_taps, center, tap, &here);
      total += here;
    }
    write(low, box.first + at);
    write(taps, box.taps + at);
    write(center, box.center + at);
    write(one / total, box.norm + at);
  }
}

template <bool kCubic, bool kFancy>
void make_weights_of(const AxisSpec& s, const BoxFilter& box, const AxisMemory& axis) {
  const Ints none = {0, 0, 0, 0};
  const Doubles zero = {0.0, 0.0, 0.0, 0.0}, one = zero + 1.0;
  for (int at = 0; at < ((s.count + kGroup - 1) & -kGroup); at += 4) {
    Ints low, num_taps;
    Doubles center, norm;
    read(box.first + at, &low);
    read(box.taps + at, &num_taps);
    read(box.center + at, &center);
    read(box.norm + at, &norm);
    norm *= double(1 << kWeightBits);
    const Doubles first = __builtin_convertvector(low, Doubles), taps = __builtin_convertvector(num_taps, Doubles);
    const Ints begin = low + s.box;
    Ints origin = kFancy ? (begin - 1) >> 1 : begin;
    if (s.even) origin &= ~1;
    // Sample by sample: its weight, and where the first and the last are that count.
    Doubles weight[kMostVectorTaps + 1], started_at = zero, last = zero, j = zero;
    Masks started = zero != zero;
    Doubles tap = __builtin_convertvector(kFancy ? 2 * origin - 1 - begin : origin - begin, Doubles);
    Doubles before = zero, here = zero;  // the filter one pixel before a sample's two, and at the first of them
    if (kFancy) {
      height<kCubic>(box, first, taps, center, tap, &before);
      tap += one;
      height<kCubic>(box, first, taps, center, tap, &here);
      tap += one;
    }
    for (int t = 0; t < axis.taps; t++, j += one) {
      Doubles w;
      if (kFancy) {
        // Sample j gives 3/4 of itself to full-resolution samples 2j and 2j + 1, and 1/4 to those beside them.
        Doubles next, after;
        height<kCubic>(box, first, taps, center, tap, &next);
        tap += one;
        height<kCubic>(box, first, taps, center, tap, &after);
        tap += one;
        w = 0.75 * (here + next) + 0.25 * (before + after);
        before = next;
        here = after;
      } else {
        height<kCubic>(box, first, taps, center, tap, &w);
        tap += one;
      }
      w *= norm;
      const Masks counts = (w < 0.0 ? -w : w) >= 0.5;
      started_at = started ? started_at : j;
      started |= counts;
      last = counts ? j : last;
      weight[t] = started ? w : zero;
    }
    weight[axis.taps] = zero;  // of the last pair
    // Rounding the running sum makes the weights add up to exactly 1, so that a constant area stays constant.
    const Ints last_tap = __builtin_convertvector(last, Ints), whole = none + (1 << kWeightBits);
    int16_t* out = axis.weights + (at / kGroup * axis.pairs * kGroup + at % kGroup) * 2;
    Doubles sum = zero;
    Ints so_far = none;
    for (int t = 0; t < 2 * axis.pairs; t += 2, out += 2 * kGroup) {
      Ints part[2];
      for (int k = 0; k < 2; k++) {
        sum += weight[t + k];
        Ints now = __builtin_convertvector(sum + 65536.5, Ints) - 65536;
        now = none + (t + k) < last_tap ? now : whole;
        part[k] = now - so_far;
        so_far = now;
      }
      write((part[0] & 0xFFFF) | part[1] << 16, out);
    }
    write(origin, axis.stored_at + at);
    write(origin + __builtin_convertvector(started_at, Ints), axis.start + at);
    write(origin + last_tap + 1, axis.end + at);
  }
}

void make_box_filter(const AxisSpec& s, const BoxFilter& box) {
  box.cubic ? make_box_filter_of<true>(s, box) : make_box_filter_of<false>(s, box);
}

void make_weights(const AxisSpec& s, const BoxFilter& box, const AxisMemory& axis) {
  if (box.cubic) {
    s.fancy ? make_weights_of<true, true>(s, box, axis) : make_weights_of<true, false>(s, box, axis);
  } else {
    s.fancy ? make_weights_of<false, true>(s, box, axis) : make_weights_of<false, false>(s, box, axis);
  }
}

}  // namespace

}  // namespace beton

#endif
