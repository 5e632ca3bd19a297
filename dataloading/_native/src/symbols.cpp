#include "symbols.h"

#include <cstring>

#include "forward.h"
#include "header.h"

namespace beton {

namespace {

ZigzagMasks make_zigzag_masks() {
  ZigzagMasks masks = {};
  for (int k = 0; k < 64; k++) {
    const int at = kNaturalOrder[k];
    for (int byte = 0; byte < 256; byte++) {
      if (byte >> (at % 8) & 1) masks.of[at / 8][byte] |= uint64_t(1) << k;
    }
  }
  return masks;
}

ValueSymbols make_value_symbols() {
  ValueSymbols symbols = {};
  for (int v = -(kValueMask + 1) / 2; v <= kValueMask / 2; v++) {
    uint32_t size = 0;
    while ((v < 0 ? -v : v) >> size != 0) size++;
    const uint32_t bits = uint32_t(v < 0 ? v - 1 : v) & ((1u << size) - 1);
    symbols.of[v & kValueMask] = bits << kIndexBits | size;
  }
  return symbols;
}

}  // namespace

const ZigzagMasks kZigzagMasks = make_zigzag_masks();
const ValueSymbols kValueSymbols = make_value_symbols();

Status make_symbol_table(const uint8_t* dht, size_t bytes, SymbolTable* table) {
  bool known;
  const Status status = make_huffman_table(dht, bytes, false, &table->full, &known);
  if (status != kOk || (known && table->made)) return status;
  for (uint64_t& entry : table->look) entry = HuffmanTable::kSpecial;
  uint64_t* look = table->look;
  int code = 0, index = 0;
  for (int length = 1; length <= kLookBits; length++, code <<= 1) {
    for (int i = 0; i < dht[length - 1]; i++, code++, index++) {
      const uint32_t symbol = dht[16 + index], size = symbol & 15, run = symbol >> 4;
      uint64_t entry;
      if (size == 0 && run < 15) {
        entry = kBlockEnd << 8 | uint32_t(length);
      } else if (size == 0 || size > kMaxAcBits || length + int(size) > kMostBits) {
        entry = symbol << 16 | HuffmanTable::kSpecial | uint32_t(length);
      } else {
        entry = uint64_t(symbol - (uint32_t(code) << size << kIndexBits)) << 32 | (run + 1) << 8 | (uint32_t(length) + size);
      }
      for (int j = 0; j < 1 << (kLookBits - length); j++) *look++ = entry;
    }
  }
  table->made = true;
  return kOk;
}

namespace {

constexpr int kMaxTreeDepth = 32;

// One table from the counts of its symbols: jpeg_gen_optimal_table of libjpeg, on the symbols that occur only.
bool optimal_table(const uint32_t counts[256], uint8_t bits[17], uint8_t values[256], int* num_values) {
  uint64_t weight[257];
  int symbol[257], size[257], other[257], place[257];
  int n = 0;
  for (int i = 0; i < 256; i++) {
    if (counts[i] == 0) continue;
    weight[n] = counts[i];
    symbol[n++] = i;
  }
  weight[n] = 1;  // a symbol that is never used, so that no code is all ones
  symbol[n++] = 256;
  for (int i = 0; i < n; i++) {
    size[i] = 0;
    other[i] = -1;
    place[i] = i;  // trees still to be joined, in the order of their roots
  }
  for (int trees = n; trees > 1; trees--) {
    // The two lightest; among equals the last.
    int first = -1, second = -1;
    for (int i = 0; i < trees; i++) {
      const uint64_t w = weight[place[i]];
      if (first < 0 || w <= weight[place[first]]) {
        second = first;
        first = i;
      } else if (second < 0 || w <= weight[place[second]]) {
        second = i;
      }
    }
    int a = place[first], b = place[second];
    weight[a] += weight[b];
    for (int i = second; i + 1 < trees; i++) place[i] = place[i + 1];
    size[a]++;
    while (other[a] >= 0) {
      a = other[a];
      size[a]++;
    }
    other[a] = b;
    size[b]++;
    while (other[b] >= 0) {
      b = other[b];
      size[b]++;
    }
  }
  int lengths[kMaxTreeDepth + 1] = {};
  for (int i = 0; i < n; i++) {
    if (size[i] > kMaxTreeDepth) return false;
    lengths[size[i]]++;
  }
  // Codes of more than 16 bits: a pair of them gives its shared prefix to one, and the other goes beside a shorter code.
  for (int i = kMaxTreeDepth; i > 16; i--) {
    while (lengths[i] > 0) {
      int j = i - 2;
      while (j > 0 && lengths[j] == 0) j--;
      if (j == 0) return false;
      lengths[i] -= 2;
      lengths[i - 1]++;
      lengths[j + 1] += 2;
      lengths[j]--;
    }
  }
  int longest = 16;
  while (longest > 0 && lengths[longest] == 0) longest--;
  lengths[longest]--;  // the unused symbol's
  bits[0] = 0;
  for (int i = 1; i <= 16; i++) bits[i] = uint8_t(lengths[i]);
  int used = 0;
  for (int length = 1; length <= kMaxTreeDepth; length++) {
    for (int i = 0; i < n - 1; i++) {
      if (size[i] == length) values[used++] = uint8_t(symbol[i]);
    }
  }
  *num_values = used;
  return true;
}

}  // namespace

bool make_codes(const uint32_t counts[2][kIndices], int sets, CodeSet* out) {
  out->total_bits = 0;
  for (uint32_t& code : out->codes) code = 1;  // never looked at
  for (int t = 0; t < 2 * sets; t++) {
    const bool dc = t % 2 == 0;
    uint32_t count[256];
    for (int i = 0; i < 256; i++) count[i] = counts[0][256 * t + i] + counts[1][256 * t + i];
    if (!optimal_table(count, out->bits[t], out->values[t], &out->num_values[t])) return false;
    uint32_t code = 0;
    int index = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
      for (int i = 0; i < out->bits[t][length]; i++, code++, index++) {
        const uint32_t symbol = out->values[t][index], size = symbol & 15;
        if (size > uint32_t(dc ? kMaxDcBits : kMaxAcBits)) return false;
        out->codes[256 * t + int(symbol)] = code << size << 5 | (uint32_t(length) + size);
        out->total_bits += uint64_t(count[symbol]) * (uint32_t(length) + size);
      }
    }
    if (index != out->num_values[t]) return false;
  }
  return true;
}

}  // namespace beton
