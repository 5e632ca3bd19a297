#include "entropy.h"

#include <cstring>

namespace beton {

Status make_huffman_table(const uint8_t* dht, size_t bytes, bool dc, HuffmanTable* table) {
  if (table->source_bytes == bytes && std::memcmp(table->source, dht, bytes) == 0) return kOk;
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
      if ((size == 0 && !dc) || size > free_bits || size > (dc ? kMaxDcBits : kMaxAcBits)) {
        for (int j = 0; j < 1 << free_bits; j++) {
          entry[j] = uint32_t(symbol) << 8 | HuffmanTable::kSpecial | uint32_t(length);
        }
        continue;
      }
      const uint32_t common = uint32_t(run + 1) << 8 | uint32_t(length + size);
      const int repeat = 1 << (free_bits - size);
      for (int v = 0; v < 1 << size; v++) {
        const int value = size == 0 || v >> (size - 1) != 0 ? v : v - (1 << size) + 1;
        for (int j = 0; j < repeat; j++) *entry++ = uint32_t(uint16_t(int16_t(value))) << 16 | common;
      }
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

}  // namespace beton
