#include "entropy.h"

#include <cstring>

namespace beton {

Status make_huffman_table(const uint8_t* dht, size_t bytes, bool dc, HuffmanTable* table, bool* known) {
  *known = table->source_bytes == bytes && std::memcmp(table->source, dht, bytes) == 0;
  if (*known) return kOk;
  table->source_bytes = 0;
  const uint8_t* symbols = dht + 16;
  const int count = int(bytes) - 16;
  std::memcpy(table->symbols, symbols, size_t(count));
  for (uint32_t& entry : table->look) entry = HuffmanTable::kSpecial;
  int code = 0, index = 0;
  for (int length = 1; length <= 16; length++) {
    table->offset[length] = index - code;
    for (int i = 0; i < dht[length - 1]; i++, code++, index++) {
      if (code >= 1 << length) return kBadHeader;  // more codes than this length has
      const int symbol = symbols[index];
      if (dc && symbol > 15) return kBadHeader;
      if (length > kLookBits) continue;
      const int size = symbol & 15, run = dc ? 0 : symbol >> 4, free_bits = kLookBits - length;
      uint32_t* entry = table->look + (code << free_bits);
      const bool zeros = size == 0 && !dc;  // no value, but 16 zeros or the end of a block
      uint32_t plain;
      if (zeros && run < 15) {
        plain = kBlockEnd << 8 | uint32_t(length);
      } else if (zeros || size > (dc ? kMaxDcBits : kMaxAcBits) || length + size > kMostBits) {
        plain = uint32_t(symbol) << 16 | HuffmanTable::kSpecial | uint32_t(length);
      } else {
        plain = ((1u << size) - 1) << 16 | uint32_t(run + 1) << 8 | uint32_t(length + size);
      }
      for (int j = 0; j < 1 << free_bits; j++) entry[j] = plain;
    }
    // As libjpeg: the code of all ones stays unused, at the longest length too.
    if (code >= 1 << length) return kBadHeader;
    table->max_code[length] = code << (16 - length);
    code <<= 1;
  }
  table->max_code[17] = 1 << 17;
  std::memcpy(table->source, dht, bytes);
  table->source_bytes = bytes;
  return kOk;
}

void make_skip_table(const HuffmanTable& ac, SkipTable* table) {
  for (uint32_t i = 0; i < 1 << kSkipBits; i++) {
    int bits = 0, advance = 0;
    while (bits < kSkipBits && advance < kBlockEnd) {
      const uint32_t left = i << bits & ((1 << kSkipBits) - 1);
      const uint32_t e = ac.look[left >> (kSkipBits - kLookBits)];
      int in_window = int(e & 31), value_bits = 0, step = int(e >> 8) & 255;  // value bits need not be in the window
      if (e & HuffmanTable::kSpecial) {
        if (e >> 16 != 0xF0 || in_window == 0) break;  // but 16 zeros can be skipped
        step = 16;
      } else {
        while ((e >> 16) >> value_bits) value_bits++;
        in_window -= value_bits;
      }
      const bool leaves = step < kBlockEnd && advance + step >= 64;
      if (bits + in_window > kSkipBits || leaves) break;
      bits += in_window + value_bits;
      advance += step;
    }
    table->look[i] = uint16_t(advance << 8 | bits);
  }
  table->made = true;
}

}  // namespace beton
