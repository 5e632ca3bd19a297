#include "raw.h"

#include <algorithm>
#include <cstring>

#include "geometry.h"
#include "kernels.h"
#include "passes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace beton {

namespace {

struct Pixels {
  const uint8_t* data;
  ptrdiff_t stride;  // negative: from the bottom up
  int width, height;
};

void split(const Pixels& from, bool mirror, const Target& to) {
  const Kernels& k = kernels();
  for (int y = 0; y < from.height; y++) {
    uint8_t* row[3];
    for (int c = 0; c < 3; c++) row[c] = to.plane[c] + y * to.stride;
    k.split_rgb(from.data + y * from.stride, from.width, row[0], row[1], row[2]);
    for (int c = 0; c < 3 && mirror; c++) reverse_row(row[c], from.width);
  }
}

#if defined(__x86_64__)

// Where the 16 values of a channel lie in 48 bytes: a shuffle for each third, which gives 0 for values of the others.
struct Shuffles {
  alignas(16) int8_t of[3][3][16];  // [channel][third]
};

constexpr Shuffles make_shuffles(bool mirror) {
  Shuffles s{};
  for (int c = 0; c < 3; c++) {
    for (int i = 0; i < 16; i++) {
      const int at = 3 * (mirror ? 15 - i : i) + c;
      for (int third = 0; third < 3; third++) {
        const int inside = at - 16 * third;
        s.of[c][third][i] = int8_t(inside >= 0 && inside < 16 ? inside : -1);
      }
    }
  }
  return s;
}

constexpr Shuffles kShuffles[2] = {make_shuffles(false), make_shuffles(true)};

// 32 pixels at a time, 16 in each half of a register; the last ones overlap with those before. At least 16 a row.
template <bool kMirror>
__attribute__((target("avx2"))) void split_avx2(const Pixels& from, const Target& to) {
  __m256i shuffle[3][3];
  for (int c = 0; c < 3; c++) {
    for (int third = 0; third < 3; third++) {
      const __m128i one = _mm_load_si128(reinterpret_cast<const __m128i*>(kShuffles[kMirror].of[c][third]));
      shuffle[c][third] = _mm256_broadcastsi128_si256(one);
    }
  }
  const int last = from.width - 16;
  for (int y = 0; y < from.height; y++) {
    const uint8_t* row = from.data + y * from.stride;
    const ptrdiff_t out = y * to.stride;
    for (int i = 0; i < from.width; i += 32) {
      const int first = i < last ? i : last, second = i + 16 < last ? i + 16 : last;
      const __m128i* a = reinterpret_cast<const __m128i*>(row + 3 * first);
      const __m128i* b = reinterpret_cast<const __m128i*>(row + 3 * second);
      __m256i third[3];
      for (int k = 0; k < 3; k++) {
        third[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a + k)), _mm_loadu_si128(b + k), 1);
      }
      const ptrdiff_t at_first = out + (kMirror ? last - first : first);
      const ptrdiff_t at_second = out + (kMirror ? last - second : second);
      for (int c = 0; c < 3; c++) {
        const __m256i some = _mm256_or_si256(_mm256_shuffle_epi8(third[0], shuffle[c][0]),
                                             _mm256_shuffle_epi8(third[1], shuffle[c][1]));
        const __m256i all = _mm256_or_si256(some, _mm256_shuffle_epi8(third[2], shuffle[c][2]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to.plane[c] + at_first), _mm256_castsi256_si128(all));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to.plane[c] + at_second), _mm256_extracti128_si256(all, 1));
      }
    }
  }
}

#endif

void split_all(const Pixels& from, bool mirror, const Target& to) {
#if defined(__x86_64__)
  if (from.width >= 16 && &kernels() != &kPortableKernels) {
    (mirror ? split_avx2<true> : split_avx2<false>)(from, to);
    return;
  }
#endif
  split(from, mirror, to);
}

void copy_gray(const Pixels& from, bool mirror, const Target& to) {
  for (int y = 0; y < from.height; y++) {
    const uint8_t* row = from.data + y * from.stride;
    uint8_t* out = to.plane[0] + y * to.stride;
    if (mirror) {
      std::reverse_copy(row, row + from.width, out);
    } else {
      std::memcpy(out, row, size_t(from.width));
    }
  }
}

}  // namespace

bool copy_raw(const beton_request& q, Status* status) {
  if (q.mode != BETON_MODE_RAW || !valid(q)) return false;
  const Geometry g = make_geometry(q);
  if (!g.exact || (g.padded && !g.framed)) return false;
  const ptrdiff_t stride = ptrdiff_t(q.src_width) * q.channels;
  if (q.src_bytes != uint64_t(stride) * uint64_t(q.src_height)) {
    *status = kRawSize;
    return true;
  }
  Target out;
  for (int c = 0; c < q.channels; c++) out.plane[c] = reinterpret_cast<uint8_t*>(uintptr_t(q.dst)) + c * q.plane_stride;
  out.stride = q.row_stride;
  if (g.framed) {
    fill_frame(q, g, out);
    for (int c = 0; c < q.channels; c++) out.plane[c] += g.top * out.stride + g.left;
  }
  *status = kOk;
  if (g.width == 0 || g.height == 0) return true;
  const int x = q.box_x + g.x, y = q.box_y + g.y + (g.upside_down ? g.height - 1 : 0);
  const uint8_t* data = reinterpret_cast<const uint8_t*>(uintptr_t(q.src)) + y * stride + ptrdiff_t(x) * q.channels;
  const Pixels from = {data, g.upside_down ? -stride : stride, g.width, g.height};
  (q.channels == 3 ? split_all : copy_gray)(from, g.mirror, out);
  return true;
}

}  // namespace beton
