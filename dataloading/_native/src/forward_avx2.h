// Thread-safety: pure functions over the caller's memory.
//
// AVX2 versions of the encoder's arithmetic. Part of kernels_avx2.cpp, whose helpers it uses; nobody else includes it.
#ifndef BETON_FORWARD_AVX2_H
#define BETON_FORWARD_AVX2_H

// JFIF's RGB to YCbCr (jccolor.c) of 16 pixels in 48 bytes, 52 of which are read. The products' sum is exact, so its order
// does not matter.
inline void convert_16(const uint8_t* rgb, __m256i* y, __m256i* cb, __m256i* cr) {
  const auto pair = [](int low, int high) { return _mm256_set1_epi32(int(uint32_t(uint16_t(high)) << 16 | uint16_t(low))); };
  const __m256i y_rg = pair(19595, 38470 - 16384), y_bg = pair(7471, 16384), y_half = _mm256_set1_epi32(32768);
  const __m256i cb_rg = pair(-11059, -21709), cr_bg = pair(-5329, -27439);
  const __m256i c_half = _mm256_set1_epi32((128 << 16) + 32767);
  // Four pixels a lane: red or blue in the low half of each 32 bits, green in the high one.
  const __m256i red_green = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1));
  const __m256i blue_green = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, -1, 1, -1, 5, -1, 4, -1, 8, -1, 7, -1, 11, -1, 10, -1));
  __m256i luma[2], u[2], v[2];
  for (int j = 0; j < 2; j++) {
    // Pixels 0-3 and 8-11, then 4-7 and 12-15: packing puts them in order.
    const __m128i* low = reinterpret_cast<const __m128i*>(rgb + 12 * j);
    const __m128i* high = reinterpret_cast<const __m128i*>(rgb + 24 + 12 * j);
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
    const __m256i rg = _mm256_shuffle_epi8(bytes, red_green), bg = _mm256_shuffle_epi8(bytes, blue_green);
    const __m256i r15 = _mm256_srli_epi32(_mm256_slli_epi32(rg, 16), 1);  // red << 15
    const __m256i b15 = _mm256_srli_epi32(_mm256_slli_epi32(bg, 16), 1);
    luma[j] = _mm256_add_epi32(_mm256_madd_epi16(rg, y_rg), _mm256_madd_epi16(bg, y_bg));
    luma[j] = _mm256_srli_epi32(_mm256_add_epi32(luma[j], y_half), 16);
    u[j] = _mm256_add_epi32(_mm256_add_epi32(_mm256_madd_epi16(rg, cb_rg), b15), c_half);
    u[j] = _mm256_srli_epi32(u[j], 16);
    v[j] = _mm256_add_epi32(_mm256_add_epi32(_mm256_madd_epi16(bg, cr_bg), r15), c_half);
    v[j] = _mm256_srli_epi32(v[j], 16);
  }
  *y = _mm256_packs_epi32(luma[0], luma[1]);
  *cb = _mm256_packs_epi32(u[0], u[1]);
  *cr = _mm256_packs_epi32(v[0], v[1]);
}

void rgb_to_ycc(const uint8_t* rgb, int n, uint8_t* y, uint8_t* cb, uint8_t* cr) {
  __m256i l, u, v;
  int i = 0;
  for (; i + 18 <= n; i += 16) {
    convert_16(rgb + 3 * i, &l, &u, &v);
    store_bytes(l, y + i, 16);
    store_bytes(u, cb + i, 16);
    store_bytes(v, cr + i, 16);
  }
  uint8_t rest[2 * 48 + 16] = {};
  __builtin_memcpy(rest, rgb + 3 * i, size_t(3 * (n - i)));
  for (int j = 0; i < n; i += 16, j += 48) {
    convert_16(rest + j, &l, &u, &v);
    store_bytes(l, y + i, n - i);
    store_bytes(u, cb + i, n - i);
    store_bytes(v, cr + i, n - i);
  }
}

// Means of neighbours, rounded up and down in turns (jcsample.c).
void halve_row(const uint8_t* in, int n, uint8_t* out) {
  const __m256i ones = _mm256_set1_epi8(1), bias = _mm256_set1_epi32(1 << 16);
  for (int i = 0; i < n; i += 16) {
    const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(load(in + 2 * i), ones), bias);
    store_bytes(_mm256_srli_epi16(sum, 1), out + i, n - i);
  }
}

void halve_both(const uint8_t* a, const uint8_t* b, int n, uint8_t* out) {
  const __m256i ones = _mm256_set1_epi8(1), bias = _mm256_set1_epi32(2 << 16 | 1);
  for (int i = 0; i < n; i += 16) {
    const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(load(a + 2 * i), ones),
                                         _mm256_maddubs_epi16(load(b + 2 * i), ones));
    store_bytes(_mm256_srli_epi16(_mm256_add_epi16(sum, bias), 2), out + i, n - i);
  }
}

// jfdctint.c along the registers' index; the arithmetic of forward() in kernels_portable.cpp, 16 columns at once.
template <bool kFirst>
inline void forward(__m256i v[8]) {
  constexpr int kShift = kFirst ? 11 : 15;
  const __m256i t0 = _mm256_add_epi16(v[0], v[7]), t7 = _mm256_sub_epi16(v[0], v[7]);
  const __m256i t1 = _mm256_add_epi16(v[1], v[6]), t6 = _mm256_sub_epi16(v[1], v[6]);
  const __m256i t2 = _mm256_add_epi16(v[2], v[5]), t5 = _mm256_sub_epi16(v[2], v[5]);
  const __m256i t3 = _mm256_add_epi16(v[3], v[4]), t4 = _mm256_sub_epi16(v[3], v[4]);
  const __m256i t10 = _mm256_add_epi16(t0, t3), t13 = _mm256_sub_epi16(t0, t3);
  const __m256i t11 = _mm256_add_epi16(t1, t2), t12 = _mm256_sub_epi16(t1, t2);
  const __m256i sum = _mm256_add_epi16(t10, t11), difference = _mm256_sub_epi16(t10, t11);
  if (kFirst) {
    v[0] = _mm256_slli_epi16(sum, 2);
    v[4] = _mm256_slli_epi16(difference, 2);
  } else {
    const __m256i half = _mm256_set1_epi16(2);
    v[0] = _mm256_srai_epi16(_mm256_add_epi16(sum, half), 2);
    v[4] = _mm256_srai_epi16(_mm256_add_epi16(difference, half), 2);
  }
  v[2] = descale<kShift>(products(t13, t12, 4433 + 6270, 4433));
  v[6] = descale<kShift>(products(t13, t12, 4433, 4433 - 15137));
  const __m256i z3 = _mm256_add_epi16(t4, t6), z4 = _mm256_add_epi16(t5, t7);
  const Wide a3 = products(z3, z4, 9633 - 16069, 9633), a4 = products(z3, z4, 9633, 9633 - 3196);
  v[7] = descale<kShift>(products(t4, t7, 2446 - 7373, -7373) + a3);
  v[1] = descale<kShift>(products(t4, t7, -7373, 12299 - 7373) + a4);
  v[5] = descale<kShift>(products(t5, t6, 16819 - 20995, -20995) + a4);
  v[3] = descale<kShift>(products(t5, t6, -20995, 25172 - 20995) + a3);
}

// Two blocks at once, one a lane: accurate integer DCT, quantised, with the mask of what is not zero.
void fdct_pair(const uint8_t* a, ptrdiff_t stride_a, const Quantiser& quantiser_a, int16_t* out_a, uint64_t* mask_a,
               const uint8_t* b, ptrdiff_t stride_b, const Quantiser& quantiser_b, int16_t* out_b, uint64_t* mask_b) {
  __m256i v[8];
  const __m256i middle = _mm256_set1_epi16(128);
  for (int i = 0; i < 8; i++) {
    const __m128i both = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + i * stride_a)),
                                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b + i * stride_b)));
    v[i] = _mm256_sub_epi16(_mm256_cvtepu8_epi16(both), middle);
  }
  transpose(v);
  forward<true>(v);
  transpose(v);
  forward<false>(v);
  const auto lanes = [](const uint16_t* x, const uint16_t* y) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))),
                                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(y)), 1);
  };
  uint64_t masks[2] = {0, 0};
  for (int i = 0; i < 8; i += 2) {
    for (int j = i; j < i + 2; j++) {
      __m256i x = _mm256_abs_epi16(v[j]);
      x = _mm256_add_epi16(x, lanes(quantiser_a.correction + 8 * j, quantiser_b.correction + 8 * j));
      x = _mm256_mulhi_epu16(x, lanes(quantiser_a.reciprocal + 8 * j, quantiser_b.reciprocal + 8 * j));
      x = _mm256_mulhi_epu16(x, lanes(quantiser_a.scale + 8 * j, quantiser_b.scale + 8 * j));
      v[j] = _mm256_sign_epi16(x, v[j]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out_a + 8 * j), _mm256_castsi256_si128(v[j]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out_b + 8 * j), _mm256_extracti128_si256(v[j], 1));
    }
    const __m256i zero = _mm256_cmpeq_epi8(_mm256_packs_epi16(v[i], v[i + 1]), _mm256_setzero_si256());
    const uint32_t set = ~uint32_t(_mm256_movemask_epi8(zero));
    masks[0] |= uint64_t(set & 0xFFFF) << (8 * i);
    masks[1] |= uint64_t(set >> 16) << (8 * i);
  }
  *mask_a = masks[0];
  *mask_b = masks[1];
}

#endif
