// Thread-safety: pure functions over the caller's state; tables are read-only once made; a SymbolSink has one owner.
//
// A baseline scan as a list of Huffman symbols with their value bits: what lies between reading one JPEG's codes (or
// quantising blocks) and writing another's. Knows symbols and codes, neither pixels nor markers.
#ifndef BETON_SYMBOLS_H
#define BETON_SYMBOLS_H

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "entropy.h"

namespace beton {

// An entry of the list: value bits << kIndexBits | index; index = set * 512 + class * 256 + symbol, where a set is the
// pair of tables (class 0: DC, 1: AC) of luma or of chroma. A code and its value bits never take more than 27 bits.
constexpr int kIndexBits = 10;
constexpr int kIndices = 1 << kIndexBits;
constexpr uint32_t kIndexMask = kIndices - 1;
constexpr uint32_t kAcClass = 256;
constexpr uint32_t kSetSize = 512;
constexpr uint32_t kZeroRun = 0xF0;   // the AC symbol for sixteen zeros
constexpr int kMaxBlockSymbols = 66;  // DC, 63 AC, end of block, and one to spare

// A list that is being made.
struct SymbolSink {
  uint32_t* data = nullptr;
  uint32_t* next = nullptr;
  size_t capacity = 0;
  uint32_t counts[2][kIndices]; // how often each index occurs, at even and at odd places of each addition
  int last_dc[3];               // of the restart segment being written
  std::vector<size_t> segments; // where each restart segment starts

  SymbolSink() = default;
  SymbolSink(const SymbolSink&) = delete;
  SymbolSink& operator=(const SymbolSink&) = delete;
  ~SymbolSink() { std::free(data); }

  size_t used() const { return size_t(next - data); }

  void clear() {
    next = data;
    for (int i = 0; i < kIndices; i++) counts[0][i] = counts[1][i] = 0;
    segments.clear();
  }

  void start_segment() {
    segments.push_back(used());
    last_dc[0] = last_dc[1] = last_dc[2] = 0;
  }

  // Makes room for `blocks` more blocks.
  void reserve(size_t blocks) {
    const size_t at = used(), needed = at + blocks * kMaxBlockSymbols;
    if (needed <= capacity) return;
    const size_t larger = needed + needed / 2;
    void* moved = std::realloc(data, larger * sizeof(uint32_t));
    if (moved == nullptr) throw std::bad_alloc();
    data = static_cast<uint32_t*>(moved);
    next = data + at;
    capacity = larger;
  }

  void trim(size_t limit) {
    if (capacity * sizeof(uint32_t) <= limit) return;
    std::free(data);
    data = next = nullptr;
    capacity = 0;
  }
};

// For reading AC symbols. The lower half of an entry of `look`, indexed by the next kLookBits bits, is as in HuffmanTable, but
// that the upper half of a plain one is what must be added to its bits << kIndexBits to make it an entry of the list.
struct SymbolTable {
  uint64_t look[1 << kLookBits];
  HuffmanTable full;
  bool made = false;
};

// As make_huffman_table; keeps what it holds if that came from the same bytes.
Status make_symbol_table(const uint8_t* dht, size_t bytes, SymbolTable* table);

// Where a block's symbols come from and go.
struct SymbolPlace {
  const HuffmanTable* dc;
  const SymbolTable* ac;
  int component;
  uint32_t set;  // 0 or kSetSize
  bool real;     // false: padding behind the image's edge, written as a flat block like its neighbour
};

struct SymbolLayout {
  int blocks = 0;
  SymbolPlace block[10];
};

// Encoding tables for a list: code << value bits << 5 | length of both, for each index; and the tables as DHT has them.
struct CodeSet {
  uint32_t codes[kIndices];
  uint8_t bits[4][17];      // [set * 2 + class]: codes of each length
  uint8_t values[4][256];
  int num_values[4];
  uint64_t total_bits;      // of all codes and value bits of the list
};

// The codes that make the list shortest (T.81 K.2, with libjpeg's choice among equals, so that its bytes result).
// Returns false on a list nothing but a bug could make.
bool make_codes(const uint32_t counts[2][kIndices], int sets, CodeSet* out);

}  // namespace beton

#endif
