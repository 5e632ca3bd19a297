// Thread-safety: pure functions over the caller's state; tables are read-only once made.
//
// Huffman tables and the state of a baseline scan that is being decoded. Knows blocks and MCUs, not images.
#ifndef BETON_ENTROPY_H
#define BETON_ENTROPY_H

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace beton {

constexpr int kLookBits = 9, kSkipBits = 12;
constexpr int kMostBits = 18;  // of a plain entry: three fit into 56
// What the values of 8-bit images take, and quantised DC values lie between: beyond is damage, whoever wrote it.
constexpr int kMaxDcBits = 11, kMaxAcBits = 10;
constexpr int kMaxDc = 1023, kMinDc = -1024;

constexpr int kSegmentPadding = 320;  // zero bytes behind a segment: more than one block of the longest codes takes

// What ends a block advances so far that no run of zeros leads there.
constexpr int kBlockEnd = 128;

// One decoding table. An entry of `look`, indexed by the next kLookBits bits:
//   mask << 16 | advance << 8 | bits       a plain one: consume `bits`, at most kMostBits; `mask` covers those of the value
//   symbol << 16 | kSpecial | code length  anything else; code length 0: longer than kLookBits, or invalid
// `advance` is the zero run plus one (AC), or kBlockEnd; it is 1 in a DC table.
struct HuffmanTable {
  static constexpr uint32_t kSpecial = 64 << 8;
  uint32_t look[1 << kLookBits];
  int32_t max_code[18];  // of each length, left-aligned to 16 bits and exclusive; [17] ends the search
  int32_t offset[17];    // symbol index = (code >> (16 - length)) + offset[length]
  uint8_t symbols[256];
  uint8_t source[16 + 256];  // the DHT bytes this was made from
  size_t source_bytes = 0;
};

// For who only wants to know where blocks end. An entry of `look`, indexed by the next kSkipBits bits, takes as many AC symbols
// as have their codes in there, up to the end of a block:
//   sum of their advances << 8 | bits of all
// That sum is at most 63, plus kBlockEnd if the last one ends the block. 0: not even one symbol.
struct SkipTable {
  uint16_t look[1 << kSkipBits];
  bool made = false;
};

// Makes a table from DHT bytes (16 counts, then the symbols); keeps what it holds if that came from the same bytes, and tells
// whether it did.
Status make_huffman_table(const uint8_t* dht, size_t bytes, bool dc, HuffmanTable* table, bool* known);

void make_skip_table(const HuffmanTable& ac, SkipTable* table);

// Bits of one unstuffed segment, followed by kSegmentPadding zero bytes.
struct BitReader {
  const uint8_t* next = nullptr;
  const uint8_t* end = nullptr;
  uint64_t bits = 0;  // left-aligned
  int count = 0;      // valid ones in `bits`

  int64_t left() const { return (end - next) * 8 + count; }  // negative once padding has been consumed
};

struct BlockPlace {
  const HuffmanTable* dc;
  const HuffmanTable* ac;
  const SkipTable* skip;  // of the AC symbols; may be null
  const uint16_t* quant;
  int component;
  int x, y;        // block inside the MCU
  int per_mcu;     // blocks of this component in an MCU's row
  bool row_wanted; // set for each row of MCUs
};

struct McuLayout {
  int blocks = 0;
  BlockPlace block[10];
};

// Where decoded blocks go: the strips cover one row of MCUs.
struct StripSet {
  uint8_t* data[3];     // sample (0, 0) of MCU column `first_mcu`
  ptrdiff_t stride[3];
  int first_mcu;
  int low[3], high[3];  // block columns wanted
};

struct ScanState {
  BitReader reader;
  int last_dc[3] = {0, 0, 0};
};

}  // namespace beton

#endif
