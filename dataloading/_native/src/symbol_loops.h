// Thread-safety: pure functions over the caller's memory.
//
// Loops over lists of symbols, written once and compiled for each instruction set. Include it behind block_loops.h,
// inside an anonymous namespace's file only (kernels_*.cpp), which supplies
//   void fdct_pair(const uint8_t* a, ptrdiff_t stride_a, const Quantiser& quantiser_a, int16_t* out_a, uint64_t* mask_a,
//                  const uint8_t* b, ...)
#ifndef BETON_SYMBOL_LOOPS_H
#define BETON_SYMBOL_LOOPS_H

#include "block_loops.h"
#include "forward.h"
#include "symbols.h"

namespace beton {
namespace {

inline uint32_t low_bits(uint64_t v, int n) { return uint32_t(v) & ((1u << n) - 1); }

// Bits that hold |v|.
inline int magnitude_bits(int v) {
  const uint32_t m = uint32_t(v < 0 ? -v : v);
  return m == 0 ? 0 : 32 - __builtin_clz(m);
}

// The symbol of a value of `size` bits that follows `run` zeros, with its value bits.
inline uint32_t value_symbol(int v, int size, uint32_t base) {
  return low_bits(uint32_t(v + (v >> 31)), size) << kIndexBits | (base + uint32_t(size));
}

// Counts what was added from `begin` on. Done for many symbols at once: a counter that is raised twice in a row waits for
// itself, and that would hold up the loops that make the list.
inline void count_symbols(const uint32_t* begin, SymbolSink* sink) {
  const uint32_t* p = begin;
  for (; p + 2 <= sink->next; p += 2) {
    sink->counts[0][p[0] & kIndexMask]++;
    sink->counts[1][p[1] & kIndexMask]++;
  }
  if (p < sink->next) sink->counts[0][*p & kIndexMask]++;
}

// The special entries; needs 26 valid bits. Returns false at the end of the block or on a bad code (then k = -1).
inline bool special_ac(BitReader& r, const HuffmanTable& t, uint32_t entry, uint32_t base, uint32_t*& out, int& k) {
  const int symbol = entry_symbol(r, t, entry);
  if (symbol < 0) {
    k = -1;
    return false;
  }
  const int size = symbol & 15, run = symbol >> 4;
  if (size == 0) {
    if (run != 15) return false;  // end of block
    k += 16;
    *out++ = base + kZeroRun;
    return true;
  }
  if (size > kMaxAcBits) {
    k = -1;
    return false;
  }
  k += run + 1;
  *out++ = uint32_t(r.bits >> (64 - size)) << kIndexBits | (base + uint32_t(symbol));
  drop(r, size);
  return true;
}

// The AC symbols of a block. Returns false on bad data.
inline bool ac_symbols(BitReader& r, const SymbolTable& t, uint32_t base, uint32_t*& out_end) {
  uint32_t* out = out_end;
  uint32_t at = 1 << 8;  // the next index; below, the bits taken since the last refill
  for (;;) {
    refill(r);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {  // kMostBits each
      const uint64_t e = t.look[r.bits >> (64 - kLookBits)];
      if (e & (HuffmanTable::kSpecial | kBlockEnd << 8)) {
        r.count -= int(at & 255);
        int k = int(at >> 8) & 255;
        if (e & kBlockEnd << 8) {
          drop(r, int(e & 63));
        } else {
          refill(r);
          if (special_ac(r, t.full, uint32_t(e), base, out, k) && k < 64) {
            at = uint32_t(k) << 8;
            break;
          }
          if (k < 0 || k > 64) return false;
          if (k == 64 && out[-1] != base + kZeroRun) {
            out_end = out;
            return true;
          }
        }
        while (out[-1] == base + kZeroRun) out--;  // leads nowhere
        *out++ = base;
        out_end = out;
        return true;
      }
      at += uint32_t(e);
      *out++ = (uint32_t(r.bits >> (-e & 63)) << kIndexBits) + uint32_t(e >> 32) + base;
      r.bits <<= e & 63;
      if (at & 64 << 8) {
        r.count -= int(at & 255);
        out_end = out;
        return (at & 63 << 8) == 0;
      }
    }
    r.count -= int(at & 255);
    at &= 255 << 8;
  }
}

// Reads `mcus` MCUs into the list, which has room for them. DC differences are formed anew from sink->last_dc.
Status read_symbols(ScanState* state, const SymbolLayout& layout, int mcus, SymbolSink* sink) {
  BitReader r = state->reader;
  int dc[3] = {state->last_dc[0], state->last_dc[1], state->last_dc[2]};
  uint32_t* out = sink->next;
  uint32_t* const begin = out;
  Status status = kOk;
  for (int m = 0; m < mcus && status == kOk; m++) {
    for (int i = 0; i < layout.blocks && status == kOk; i++) {
      const SymbolPlace& place = layout.block[i];
      const int c = place.component;
      int difference = 0;
      if (!dc_difference(r, *place.dc, &difference)) {
        status = kBadCode;
        break;
      }
      dc[c] += difference;
      int step = dc[c] - sink->last_dc[c];
      if (!place.real) step = 0;
      if (dc[c] < kMinDc || dc[c] > kMaxDc) {
        status = kBadCode;
        break;
      }
      const int size = magnitude_bits(step);
      if (place.real) sink->last_dc[c] = dc[c];
      *out++ = value_symbol(step, size, place.set);
      uint32_t* const ac = out;
      if (!ac_symbols(r, *place.ac, place.set + kAcClass, out)) status = kBadCode;
      if (!place.real && status == kOk) {
        out = ac;
        *out++ = place.set + kAcClass;
      }
      // `next` runs at most 8 bytes ahead of what was consumed.
      if (r.next > r.end + 8) status = kTruncated;
    }
  }
  sink->next = out;
  count_symbols(begin, sink);
  state->reader = r;
  for (int c = 0; c < 3; c++) state->last_dc[c] = dc[c];
  if (r.left() < 0) return kTruncated;  // before a bad code: the zeros behind the end may look like one
  return status;
}

// The AC symbols of a quantised block; `mask` (row-major) tells what is not zero.
inline void block_symbols(const int16_t* block, uint64_t mask, uint32_t base, uint32_t*& out_end) {
  uint32_t* out = out_end;
  uint64_t left = 0;
  for (int row = 0; row < 8; row++) left |= kZigzagMasks.of[row][mask >> (8 * row) & 255];
  left &= ~uint64_t(1);  // DC
  int last = 0;
  while (left != 0) {
    const int k = __builtin_ctzll(left);
    left &= left - 1;
    int run = k - last - 1;
    last = k;
    for (; run > 15; run -= 16) *out++ = base + kZeroRun;
    *out++ = kValueSymbols.of[block[kNaturalOrder[k]] & kValueMask] + (base + (uint32_t(run) << 4));
  }
  if (last != 63) *out++ = base;
  out_end = out;
}

// Encodes MCUs [first, last) of a row of MCUs whose samples are at the layout's places; the list has room for them.
void encode_mcus(const EncodeLayout& layout, int first, int last, SymbolSink* sink) {
  alignas(64) int16_t blocks[10][64];
  uint64_t masks[10];
  uint32_t* out = sink->next;
  uint32_t* const begin = out;
  for (int m = first; m < last; m++) {
    const auto transform_pair = [&](int i, int j) {
      const EncodePlace &a = layout.block[i], &b = layout.block[j];
      fdct_pair(a.data + ptrdiff_t(m) * a.step, a.stride, *a.quantiser, blocks[i], &masks[i],
                b.data + ptrdiff_t(m) * b.step, b.stride, *b.quantiser, blocks[j], &masks[j]);
    };
    int waiting = -1;
    for (int i = 0; i < layout.blocks; i++) {
      if (m >= layout.block[i].columns) continue;
      if (waiting < 0) {
        waiting = i;
      } else {
        transform_pair(waiting, i);
        waiting = -1;
      }
    }
    if (waiting >= 0) transform_pair(waiting, waiting);
    for (int i = 0; i < layout.blocks; i++) {
      const EncodePlace& place = layout.block[i];
      if (m >= place.columns) {
        *out++ = place.set;
        *out++ = place.set + kAcClass;
        continue;
      }
      const int dc = blocks[i][0], step = dc - sink->last_dc[place.component];
      sink->last_dc[place.component] = dc;
      *out++ = kValueSymbols.of[step & kValueMask] + place.set;
      block_symbols(blocks[i], masks[i], place.set + kAcClass, out);
    }
  }
  sink->next = out;
  count_symbols(begin, sink);
}

inline void store_big_endian_64(uint8_t* p, uint64_t v) {
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_BIG_ENDIAN__
  v = __builtin_bswap64(v);
#endif
  std::memcpy(p, &v, 8);
}

// Writes the codes of a restart segment's symbols, filled up with ones to a byte; FF not yet stuffed. Returns the end;
// up to 8 bytes behind it are touched.
uint8_t* write_codes(const uint32_t* symbols, size_t count, const uint32_t* codes, uint8_t* out) {
  uint64_t bits = 0;  // left-aligned
  int n = 0;          // valid ones, fewer than 8
  size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const uint32_t s = symbols[i], t = symbols[i + 1];
    const uint32_t a = codes[s & kIndexMask], b = codes[t & kIndexMask];
    const int length = int(a & 31) + int(b & 31);  // from 2 to 54
    const uint64_t both = uint64_t(a >> 5 | s >> kIndexBits) << (b & 31) | (b >> 5 | t >> kIndexBits);
    bits |= both << (64 - n - length);
    store_big_endian_64(out, bits);
    n += length;
    out += n >> 3;
    bits <<= n & ~7;
    n &= 7;
  }
  if (i < count) {
    const uint32_t s = symbols[i], a = codes[s & kIndexMask];
    const int length = int(a & 31);
    bits |= uint64_t(a >> 5 | s >> kIndexBits) << (64 - n - length);
    n += length;
  }
  if (n & 7) {
    bits |= ~uint64_t(0) >> n;
    n = (n + 7) & ~7;
  }
  store_big_endian_64(out, bits);
  return out + n / 8;
}

}  // namespace
}  // namespace beton

#endif
