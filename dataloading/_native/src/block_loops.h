// Thread-safety: pure functions over the caller's memory.
//
// Loops written once and compiled for each instruction set: entropy decoding of blocks. Include it inside an anonymous namespace's file only (kernels_*.cpp), which supplies
//   void idct_pair(const int16_t* a, const uint16_t* quant_a, uint8_t* out_a, ptrdiff_t stride_a, const int16_t* b, ...)
#ifndef BETON_BLOCK_LOOPS_H
#define BETON_BLOCK_LOOPS_H

#include <cstring>

#include "entropy.h"
#include "header.h"
#include "kernels.h"

namespace beton {
namespace {

inline uint64_t big_endian_64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return v;
#else
  return __builtin_bswap64(v);
#endif
}

// At least 56 valid bits afterwards (F. Giesen, "Reading bits in far too many ways", variant 4).
inline void refill(BitReader& r) {
  r.bits |= big_endian_64(r.next) >> r.count;
  r.next += (63 - r.count) >> 3;
  r.count |= 56;
}

inline void drop(BitReader& r, int n) {
  r.bits <<= n;
  r.count -= n;
}

inline int take(BitReader& r, int n) {  // n from 1 to 16, as a signed value in JPEG's fashion
  const int v = int(r.bits >> (64 - n));
  const int positive = int(int64_t(r.bits) >> 63);  // all ones, or zero: a branch on signs would be taken at random
  drop(r, n);
  return v + ((1 - (1 << n)) & ~positive);
}

// Consumes what a plain entry says; returns the value.
inline int take_entry(BitReader& r, uint32_t entry) {
  const int bits = int(entry & 63), mask = int(entry >> 16);
  const int v = int(r.bits << bits | r.bits >> (64 - bits)) & mask;
  const int negative = (v - (mask >> 1) - 1) >> 31;
  drop(r, bits);
  return v - (mask & negative);
}

// The symbol of a code longer than kLookBits; -1 when there is none.
inline int long_symbol(BitReader& r, const HuffmanTable& t) {
  const int32_t window = int32_t(r.bits >> 48);
  int length = kLookBits + 1;
  while (window >= t.max_code[length]) length++;
  if (length > 16) return -1;
  drop(r, length);
  return t.symbols[(window >> (16 - length)) + t.offset[length]];
}

// The symbol of a special entry, whose code is consumed; -1 when there is none.
inline int entry_symbol(BitReader& r, const HuffmanTable& t, uint32_t entry) {
  const int length = int(entry & 31);
  if (length == 0) return long_symbol(r, t);
  drop(r, length);
  return int(entry >> 16);
}

// The special entries; needs 31 valid bits. Returns false at the end of the block or on a bad code (then k = -1).
template <bool kStore>
inline bool special_symbol(BitReader& r, const HuffmanTable& t, uint32_t entry, int16_t* block, int& k) {
  const int symbol = entry_symbol(r, t, entry);
  if (symbol < 0) {
    k = -1;
    return false;
  }
  const int size = symbol & 15, run = symbol >> 4;
  if (size == 0) {
    if (run != 15) return false;  // end of block
    k += 16;
    return true;
  }
  if (size > kMaxAcBits) {
    k = -1;
    return false;
  }
  k += run + 1;
  const int value = take(r, size);
  if (kStore) block[kNaturalOrder[k - 1]] = int16_t(value);
  return true;
}

// Where a coefficient goes, by the index behind it. What leads behind the block's end goes to the last one.
struct Places {
  uint8_t of[64 + 17];
};

constexpr Places make_places() {
  Places p = {};
  for (int k = 1; k < int(sizeof p.of); k++) p.of[k] = kNaturalOrder[k <= 64 ? k - 1 : 63];
  return p;
}

constexpr Places kPlaces = make_places();

// AC coefficients of one block into `block` (zeroed before). Returns the index behind the last one, or -1 on bad data.
template <bool kStore>
inline int ac_coefficients(BitReader& r, const HuffmanTable& t, int16_t* block) {
  int k = 1;
  for (;;) {
    refill(r);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {  // kMostBits each
      const uint32_t e = t.look[r.bits >> (64 - kLookBits)];
      if (e & (HuffmanTable::kSpecial | kBlockEnd << 8)) {
        if (e & kBlockEnd << 8) {
          drop(r, int(e & 63));
          return k;
        }
        refill(r);
        if (!special_symbol<kStore>(r, t, e, block, k)) return k;
        if (k >= 64) return k == 64 ? 64 : -1;
        break;
      }
      k += int(e >> 8) & 255;
      const int value = take_entry(r, e);
      if (kStore) block[kPlaces.of[k]] = int16_t(value);
      if (k >= 64) return k == 64 ? 64 : -1;
    }
  }
}

inline bool dc_difference(BitReader& r, const HuffmanTable& t, int* difference) {
  refill(r);
  const uint32_t e = t.look[r.bits >> (64 - kLookBits)];
  if (!(e & HuffmanTable::kSpecial)) {
    *difference = take_entry(r, e);
    return true;
  }
  const int symbol = entry_symbol(r, t, e);
  if (symbol < 0 || symbol > kMaxDcBits) return false;
  *difference = symbol == 0 ? 0 : take(r, symbol);
  return true;
}

// Explicit stores: compilers make `rep stos` of a memset this size, whose start-up alone costs a tenth of the decode.
inline void clear_block(int16_t* block) {
  typedef long long Sixteen __attribute__((vector_size(16), may_alias));
  Sixteen* p = reinterpret_cast<Sixteen*>(block);
  const Sixteen zero = {0, 0};
  p[0] = p[1] = p[2] = p[3] = p[4] = p[5] = p[6] = p[7] = zero;
}

// libjpeg's result for a block that has a DC coefficient only. Its first pass wraps at 16 bits; only damage gets there.
inline void flat_block(int dc, uint8_t* out, ptrdiff_t stride) {
  int v = ((int16_t(dc * 4) + 16) >> 5) + 128;
  v = v < 0 ? 0 : v > 255 ? 255 : v;
  const uint64_t eight = uint64_t(v) * 0x0101010101010101u;
  for (int i = 0; i < 8; i++) std::memcpy(out + i * stride, &eight, 8);
}

// Reads over the AC symbols of a block, several at a time. Returns false on bad data.
inline bool skip_symbols(BitReader& r, const HuffmanTable& t, const SkipTable& skip) {
  int k = 1;
  for (;;) {
    refill(r);
    for (int i = 0; i < 2; i++) {  // at most kSkipBits and kMaxAcBits each
      const uint32_t e = skip.look[r.bits >> (64 - kSkipBits)];
      const int next = k + int(e >> 8);
      if (e == 0 || (next > 64 && next < kBlockEnd) || next >= kBlockEnd + 64) {
        // No symbol, or some that do not belong to this block: a single one.
        refill(r);
        const uint32_t one = t.look[r.bits >> (64 - kLookBits)];
        if (one & HuffmanTable::kSpecial) {
          if (!special_symbol<false>(r, t, one, nullptr, k)) return k > 0;
        } else {
          drop(r, int(one & 63));
          k += int(one >> 8) & 255;
        }
        if (k >= 64) return k == 64 || k >= kBlockEnd;
        break;
      }
      drop(r, int(e & 31));
      if (next >= 64) return true;
      k = next;
    }
  }
}

// Reads over `mcus` MCUs.
__attribute__((noinline)) Status skip_mcus(ScanState* state, const McuLayout& layout, int mcus) {
  BitReader r = state->reader;
  int dc[3] = {state->last_dc[0], state->last_dc[1], state->last_dc[2]};
  Status status = kOk;
  for (int m = 0; m < mcus && status == kOk; m++) {
    for (int i = 0; i < layout.blocks && status == kOk; i++) {
      const BlockPlace& place = layout.block[i];
      const int c = place.component;
      int difference = 0;
      bool good = dc_difference(r, *place.dc, &difference);
      dc[c] += difference;
      good = good && dc[c] >= kMinDc && dc[c] <= kMaxDc;
      if (place.skip != nullptr) {
        good = good && skip_symbols(r, *place.ac, *place.skip);
      } else {
        good = good && ac_coefficients<false>(r, *place.ac, nullptr) >= 0;
      }
      if (!good) {
        status = kBadCode;
      } else if (r.next > r.end + 8) {  // `next` runs at most 8 bytes ahead of what was consumed
        status = kTruncated;
      }
    }
  }
  state->reader = r;
  for (int c = 0; c < 3; c++) state->last_dc[c] = dc[c];
  if (r.left() < 0) return kTruncated;  // before a bad code: the zeros behind the end may look like one
  return status;
}

// Decodes `mcus` MCUs, the first at column `mcu` of its row; with `strips` null their pixels are not wanted.
Status decode_mcus(ScanState* state, const McuLayout& layout, int mcu, int mcus, const StripSet* strips) {
  if (strips == nullptr) return skip_mcus(state, layout, mcus);
  alignas(64) int16_t blocks[2][64];
  const uint16_t* waiting_quant = nullptr;  // blocks[0] waits for a partner when set
  uint8_t* waiting_out = nullptr;
  ptrdiff_t waiting_stride = 0;
  BitReader r = state->reader;
  int dc[3] = {state->last_dc[0], state->last_dc[1], state->last_dc[2]};
  Status status = kOk;
  for (int m = mcu; m < mcu + mcus; m++) {
    for (int i = 0; i < layout.blocks; i++) {
      const BlockPlace& place = layout.block[i];
      const int c = place.component;
      int difference = 0;
      if (!dc_difference(r, *place.dc, &difference)) {
        status = kBadCode;
        goto done;
      }
      dc[c] += difference;
      if (dc[c] < kMinDc || dc[c] > kMaxDc) {
        status = kBadCode;
        goto done;
      }
      const int column = m * place.per_mcu + place.x;
      if (!place.row_wanted || column < strips->low[c] || column >= strips->high[c]) {
        if (ac_coefficients<false>(r, *place.ac, nullptr) < 0) status = kBadCode;
      } else {
        int16_t* block = blocks[waiting_quant != nullptr];
        clear_block(block);
        const int last = ac_coefficients<true>(r, *place.ac, block);
        uint8_t* out = strips->data[c] + 8 * place.y * strips->stride[c] +
                       8 * (column - strips->first_mcu * place.per_mcu);
        if (last < 0) {
          status = kBadCode;
        } else if (last == 1) {
          flat_block(int16_t(dc[c] * place.quant[0]), out, strips->stride[c]);
        } else {
          block[0] = int16_t(dc[c]);
          if (waiting_quant != nullptr) {
            idct_pair(blocks[0], waiting_quant, waiting_out, waiting_stride, blocks[1], place.quant, out,
                      strips->stride[c]);
            waiting_quant = nullptr;
          } else {
            waiting_quant = place.quant;
            waiting_out = out;
            waiting_stride = strips->stride[c];
          }
        }
      }
      // `next` runs at most 8 bytes ahead of what was consumed.
      if (r.next > r.end + 8) status = kTruncated;
      if (status != kOk) goto done;
    }
  }
  if (waiting_quant != nullptr) {
    idct_pair(blocks[0], waiting_quant, waiting_out, waiting_stride, blocks[0], waiting_quant, waiting_out,
              waiting_stride);
  }
done:
  state->reader = r;
  for (int c = 0; c < 3; c++) state->last_dc[c] = dc[c];
  if (r.left() < 0) return kTruncated;  // before a bad code: the zeros behind the end may look like one
  return status;
}

}  // namespace
}  // namespace beton

#endif
