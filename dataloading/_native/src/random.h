// Thread-safety: pure functions.
//
// Random numbers as a function of key and counter: SplitMix64, see dataloading/transforms/rng.py.
#ifndef BETON_RANDOM_H
#define BETON_RANDOM_H

#include <cstdint>

namespace beton {

inline uint64_t child(uint64_t key, uint64_t number) {
  uint64_t z = key + (number + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(child(key, counter) >> 11) * 0x1p-53;
}

inline int64_t randint(uint64_t key, uint64_t counter, int64_t bound) {
  return static_cast<int64_t>(((child(key, counter) >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

}  // namespace beton

#endif
