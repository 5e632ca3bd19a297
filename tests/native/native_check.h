// What both halves of the check program use.
#ifndef BETON_NATIVE_CHECK_H
#define BETON_NATIVE_CHECK_H

#include <cstddef>
#include <cstdint>

struct Random {  // SplitMix64
  uint64_t state = 1;

  uint32_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return uint32_t((z ^ (z >> 31)) >> 32);
  }

  int below(int n) { return int(next() % uint32_t(n)); }

  int between(int low, int high) { return low + below(high - low + 1); }
};

// Calls every kernel of the set in use and its portable namesake with the same random arguments, `rounds` times. Prints
// which results differ; whether none do.
bool kernels_agree(Random* random, int rounds);

#endif
