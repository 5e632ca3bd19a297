// Thread-safety: a Scratch belongs to one thread; thread_scratch() gives each thread its own, freed when it ends.
//
// Working memory that is kept from one sample to the next.
#ifndef BETON_SCRATCH_H
#define BETON_SCRATCH_H

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <vector>

#include "entropy.h"
#include "kernels.h"
#include "resample.h"
#include "symbols.h"

namespace beton {

// Memory aligned to a cache line that only grows until trim(): zeros at first, then whatever was left there.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  template <typename T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) & ~size_t(63);
    if (bytes > capacity_) {
      std::free(data_);
      data_ = nullptr;
      capacity_ = 0;
      const size_t rounded = (bytes + bytes / 4 + 63) & ~size_t(63);
      data_ = std::aligned_alloc(64, rounded);
      if (data_ == nullptr) throw std::bad_alloc();
      std::memset(data_, 0, rounded);
      capacity_ = rounded;
    }
    return static_cast<T*>(data_);
  }

  // Gives back what one unusually large image needed.
  void trim(size_t limit) {
    if (capacity_ <= limit) return;
    std::free(data_);
    data_ = nullptr;
    capacity_ = 0;
  }

 private:
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

struct Scratch {
  HuffmanTable tables[2][4];        // [DC, AC][slot]
  SkipTable skip_tables[4];
  std::vector<size_t> segments;     // offsets into the JPEG
  Buffer segment;                   // the unstuffed one
  int64_t stray_bytes = 0;          // behind the scan's segments, as far as they were read
  Box box_x, box_y;
  Axis x[4], y[4];       // per component, and of full resolution where no component has it
  RowPlan plan[4];
  Buffer strip[3];       // decoded or split rows of a component
  Buffer whole[3];       // rows of a component that several requests share
  Buffer middle[3];      // after the horizontal pass
  Buffer full[3];        // the same of colours, where components come too early
  Buffer line;           // a few rows of each component
  Buffer rgb;            // interleaved pixels from libjpeg, or rows at full resolution
  Buffer core;           // planar result before padding
  SymbolTable symbol_tables[4];     // of AC symbols, by slot
  SymbolSink symbols;               // of the JPEG being written
  CodeSet codes;
  std::vector<uint8_t> header;
  Buffer bits, stuffed;             // its entropy-coded data, before and after stuffing

  void trim() {
    constexpr size_t kKeep = size_t(32) << 20;
    for (int i = 0; i < 3; i++) {
      strip[i].trim(kKeep);
      whole[i].trim(kKeep);
      middle[i].trim(kKeep);
      full[i].trim(kKeep);
    }
    segment.trim(kKeep);
    rgb.trim(kKeep);
    core.trim(kKeep);
    symbols.trim(kKeep);
    bits.trim(kKeep);
    stuffed.trim(kKeep);
  }
};

Scratch& thread_scratch();

}  // namespace beton

#endif
