// Included by the kernels of every instruction set, into anonymous namespaces: plain loops that compilers turn into vector
// code. Roundings are torchvision's: computed in float, cut off, clamped (dataloading/transforms/kernels/color.py).
#ifndef BETON_COLOR_LOOPS_H
#define BETON_COLOR_LOOPS_H

#include <cstddef>
#include <cstdint>

namespace beton {

namespace {

inline int32_t grey_of(uint8_t r, uint8_t g, uint8_t b) {
  return int32_t(float(r) * 0.2989f + float(g) * 0.587f + float(b) * 0.114f);
}

// Clamped behind the cut, which packing integers into bytes does by itself.
inline uint8_t held(float value) {
  const int32_t v = int32_t(value);
  return uint8_t(v < 0 ? 0 : v > 255 ? 255 : v);
}

inline uint64_t sum_of_greys(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n) {
  constexpr size_t kPart = 1 << 16;  // their sum fits 32 bits
  uint64_t total = 0;
  for (size_t first = 0; first < n; first += kPart) {
    const size_t end = n - first < kPart ? n : first + kPart;
    uint32_t sum = 0;
    for (size_t i = first; i < end; i++) sum += uint32_t(grey_of(r[i], g[i], b[i]));
    total += sum;
  }
  return total;
}

inline void blend(uint8_t* values, size_t n, float factor, float offset) {
  for (size_t i = 0; i < n; i++) values[i] = held(float(values[i]) * factor + offset);
}

inline void gray(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n) {
  for (size_t i = 0; i < n; i++) r[i] = g[i] = b[i] = uint8_t(grey_of(r[i], g[i], b[i]));
}

inline void saturate(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n, float factor, float rest) {
  for (size_t i = 0; i < n; i++) {
    const float grey = float(grey_of(r[i], g[i], b[i])) * rest;
    r[i] = held(float(r[i]) * factor + grey);
    g[i] = held(float(g[i]) * factor + grey);
    b[i] = held(float(b[i]) * factor + grey);
  }
}

// Without a branch that would keep a loop from becoming vector code.
inline uint8_t choose(bool first, uint8_t a, uint8_t b) {
  const uint8_t mask = uint8_t(-int(first));
  return uint8_t((a & mask) | (b & ~mask));
}

// Of a colour's three values the highest and the lowest keep their levels, and change places; two channels are moved as
// bytes, and floats compute but the third. In units of its span, the highest level less the lowest, the hue is the number
// of a sector and a place in it, whose distance from the lower end is a whole number of levels. Turning adds whole sectors
// and a part of one; so nothing is divided. The third value rises from the lowest to the highest in even sectors and falls
// in odd ones. `missing` is what the turn lacks to the next sector. Sector 6 is sector 0: a hue just below a full circle
// rounds up to it.
struct HuePart {
  static constexpr size_t kSize = 1024;
  size_t count;
  uint8_t tops[kSize], lows[kSize], thirds[kSize], anchors[kSize], places[kSize], sectors[kSize];
};

// From sectors and places to thirds, and on to the next sector where the turn reaches it.
inline void turn_thirds(HuePart* part, float missing, float levels) {
  for (size_t i = 0; i < part->count; i++) {
    const float span = float(uint8_t(part->tops[i] - part->lows[i]));
    const float beyond = float(part->places[i]) - missing * span;  // by how much the next sector is reached
    const float sign = float((part->sectors[i] & 1) * 2 - 1);
    part->thirds[i] = held((float(part->anchors[i]) + sign * __builtin_fabsf(beyond)) * levels);
    part->sectors[i] = uint8_t(part->sectors[i] + int(beyond >= 0.0f));
  }
}

template <void (*kThirds)(HuePart*, float, float)>
void turn_hue(uint8_t* __restrict red, uint8_t* __restrict green, uint8_t* __restrict blue, size_t n, uint8_t whole,
              float missing, float levels) {
  HuePart part;
  for (size_t first = 0; first < n; first += part.kSize, red += part.kSize, green += part.kSize, blue += part.kSize) {
    part.count = n - first < part.kSize ? n - first : part.kSize;
    for (size_t i = 0; i < part.count; i++) {
      const uint8_t r = red[i], g = green[i], b = blue[i];
      const uint8_t more = r > g ? r : g, less = r > g ? g : r;
      const uint8_t top = b > more ? b : more, low = b < less ? b : less;
      const uint8_t lower = more < b ? more : b, middle = less > lower ? less : lower;
      const uint8_t if_blue = g <= r ? 4 : 3, if_green = r <= b ? 2 : 1, if_red = b <= g ? 0 : 5;
      const uint8_t not_red = g == top ? if_green : if_blue;
      const uint8_t sector = r == top ? if_red : not_red;
      const bool falls = (sector & 1) != 0;
      const uint8_t from = falls ? middle : low, to = falls ? top : middle;
      const uint8_t sum = uint8_t(sector + whole), less_six = uint8_t(sum - 6);
      const uint8_t turned = sum < less_six ? sum : less_six;  // below 6 that difference is a great number
      part.tops[i] = top;
      part.lows[i] = low;
      part.places[i] = uint8_t(to - from);
      part.sectors[i] = turned;
      part.anchors[i] = (turned & 1) != 0 ? low : top;
    }
    kThirds(&part, missing, levels);
    for (size_t i = 0; i < part.count; i++) {
      const uint8_t s = part.sectors[i], top = part.tops[i], low = part.lows[i], third = part.thirds[i];
      red[i] = choose((s == 1) | (s == 4), third, choose((s == 2) | (s == 3), low, top));
      green[i] = choose((s == 1) | (s == 2), top, choose((s == 4) | (s == 5), low, third));
      blue[i] = choose((s == 2) | (s == 5), third, choose((s == 3) | (s == 4), top, low));
    }
  }
}

}  // namespace

}  // namespace beton

#endif
