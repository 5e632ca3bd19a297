// Thread-safety: pure functions over the caller's memory.
//
// NEON versions of the encoder's arithmetic. Part of kernels_neon.cpp, whose helpers it uses; nobody else includes it.
#ifndef BETON_FORWARD_NEON_H
#define BETON_FORWARD_NEON_H

// JFIF's RGB to YCbCr (jccolor.c). Sums are never negative, whatever wraps on the way.
inline uint8x16x3_t convert_16(uint8x16x3_t rgb) {
  const auto words = [](uint8x16_t v) -> Words { return {vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v)}; };
  const Words r = words(rgb.val[0]), g = words(rgb.val[1]), b = words(rgb.val[2]);
  const uint32x4_t half = vdupq_n_u32(32768), middle = vdupq_n_u32((128 << 16) + 32767);
  const auto quarters = [](const auto& sum) {
    const auto eight = [&](uint16x8_t x, uint16x8_t y, uint16x8_t z) {
      const uint32x4_t low = sum(vget_low_u16(x), vget_low_u16(y), vget_low_u16(z));
      const uint32x4_t high = sum(vget_high_u16(x), vget_high_u16(y), vget_high_u16(z));
      return vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
    };
    return eight;
  };
  const auto channel = [&](const auto& sum) {
    const auto eight = quarters(sum);
    return vuzp1q_u8(vreinterpretq_u8_u16(eight(r.low, g.low, b.low)), vreinterpretq_u8_u16(eight(r.high, g.high, b.high)));
  };
  return {{channel([&](uint16x4_t x, uint16x4_t y, uint16x4_t z) {
             return vmlal_n_u16(vmlal_n_u16(vmlal_n_u16(half, x, 19595), y, 38470), z, 7471);
           }),
           channel([&](uint16x4_t x, uint16x4_t y, uint16x4_t z) {
             return vmlsl_n_u16(vmlsl_n_u16(vmlal_n_u16(middle, z, 32768), x, 11059), y, 21709);
           }),
           channel([&](uint16x4_t x, uint16x4_t y, uint16x4_t z) {
             return vmlsl_n_u16(vmlsl_n_u16(vmlal_n_u16(middle, x, 32768), y, 27439), z, 5329);
           })}};
}

void rgb_to_ycc(const uint8_t* rgb, int n, uint8_t* y, uint8_t* cb, uint8_t* cr) {
  for (int i = 0; i < n; i += 16) {
    uint8_t rest[48] = {};
    const uint8_t* from = rgb + 3 * i;
    if (n - i < 16) {
      __builtin_memcpy(rest, from, size_t(3 * (n - i)));
      from = rest;
    }
    const uint8x16x3_t v = convert_16(vld3q_u8(from));
    store_bytes(v.val[0], y + i, n - i);
    store_bytes(v.val[1], cb + i, n - i);
    store_bytes(v.val[2], cr + i, n - i);
  }
}

// Means of neighbours, rounded up and down in turns (jcsample.c).
void halve_row(const uint8_t* in, int n, uint8_t* out) {
  const uint16x8_t bias = vreinterpretq_u16_u32(vdupq_n_u32(1 << 16));
  const auto eight = [&](const uint8_t* p) { return vshrn_n_u16(vpadalq_u8(bias, vld1q_u8(p)), 1); };
  for (int i = 0; i < n; i += 16) {
    store_bytes(low_and_high(eight(in + 2 * i), eight(in + 2 * i + 16)), out + i, n - i);
  }
}

void halve_both(const uint8_t* a, const uint8_t* b, int n, uint8_t* out) {
  const uint16x8_t bias = vreinterpretq_u16_u32(vdupq_n_u32(2 << 16 | 1));
  const auto eight = [&](int at) {
    return vshrn_n_u16(vpadalq_u8(vpadalq_u8(bias, vld1q_u8(a + at)), vld1q_u8(b + at)), 2);
  };
  for (int i = 0; i < n; i += 16) store_bytes(low_and_high(eight(2 * i), eight(2 * i + 16)), out + i, n - i);
}

// jfdctint.c along the registers' index; the arithmetic of forward() in kernels_portable.cpp, eight columns at once.
template <bool kFirst>
inline void forward(int16x8_t v[8], const Factors& w) {
  constexpr int kShift = kFirst ? 11 : 15;
  const auto descale = [](Wide x) { return vrshrn_high_n_s32(vrshrn_n_s32(x.low, kShift), x.high, kShift); };
  const int16x8_t t0 = vaddq_s16(v[0], v[7]), t7 = vsubq_s16(v[0], v[7]);
  const int16x8_t t1 = vaddq_s16(v[1], v[6]), t6 = vsubq_s16(v[1], v[6]);
  const int16x8_t t2 = vaddq_s16(v[2], v[5]), t5 = vsubq_s16(v[2], v[5]);
  const int16x8_t t3 = vaddq_s16(v[3], v[4]), t4 = vsubq_s16(v[3], v[4]);
  const int16x8_t t10 = vaddq_s16(t0, t3), t13 = vsubq_s16(t0, t3), t11 = vaddq_s16(t1, t2), t12 = vsubq_s16(t1, t2);
  const int16x8_t sum = vaddq_s16(t10, t11), difference = vsubq_s16(t10, t11);
  v[0] = kFirst ? vshlq_n_s16(sum, 2) : vrshrq_n_s16(sum, 2);
  v[4] = kFirst ? vshlq_n_s16(difference, 2) : vrshrq_n_s16(difference, 2);
  v[2] = descale(products<2, 0>(t13, t12, w.even));
  v[6] = descale(products<0, 1>(t13, t12, w.even));
  const int16x8_t z3 = vaddq_s16(t4, t6), z4 = vaddq_s16(t5, t7);
  const Wide a3 = products<4, 3>(z3, z4, w.even), a4 = products<3, 5>(z3, z4, w.even);
  v[7] = descale(products<0, 1>(a3, t4, t7, w.odd));
  v[1] = descale(products<1, 2>(a4, t4, t7, w.odd));
  v[5] = descale(products<3, 4>(a4, t5, t6, w.odd));
  v[3] = descale(products<4, 5>(a3, t5, t6, w.odd));
}

// Accurate integer DCT, quantised; returns the mask of what is not zero.
uint64_t fdct(const uint8_t* in, ptrdiff_t stride, const Quantiser& q, int16_t* out) {
  const Factors factors;
  uint8x16_t rows[4];
  for (int i = 0; i < 4; i++) rows[i] = low_and_high(vld1_u8(in + 2 * i * stride), vld1_u8(in + (2 * i + 1) * stride));
  transpose(rows);
  const uint8x16_t middle = vdupq_n_u8(128);
  int16x8_t v[8];
  for (int i = 0; i < 4; i++) {
    v[2 * i] = vreinterpretq_s16_u16(vsubl_u8(vget_low_u8(rows[i]), vget_low_u8(middle)));
    v[2 * i + 1] = vreinterpretq_s16_u16(vsubl_high_u8(rows[i], middle));
  }
  forward<true>(v, factors);
  transpose(v);
  forward<false>(v, factors);
  const auto times = [](uint16x8_t x, const uint16_t* factor) {
    const uint16x8_t w = vld1q_u16(factor);
    const uint32x4_t low = vmull_u16(vget_low_u16(x), vget_low_u16(w)), high = vmull_high_u16(x, w);
    return vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
  };
  uint8x16_t set[4];
  for (int i = 0; i < 8; i++) {
    uint16x8_t x = vaddq_u16(vreinterpretq_u16_s16(vabsq_s16(v[i])), vld1q_u16(q.correction + 8 * i));
    x = times(times(x, q.reciprocal + 8 * i), q.scale + 8 * i);
    const int16x8_t sign = vshrq_n_s16(v[i], 15);
    v[i] = vsubq_s16(veorq_s16(vreinterpretq_s16_u16(x), sign), sign);
    vst1q_s16(out + 8 * i, v[i]);
  }
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  for (int i = 0; i < 4; i++) {
    const uint16x8_t a = vtstq_s16(v[2 * i], v[2 * i]), b = vtstq_s16(v[2 * i + 1], v[2 * i + 1]);
    set[i] = vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)), bits);
  }
  const uint8x16_t half = vpaddq_u8(vpaddq_u8(set[0], set[1]), vpaddq_u8(set[2], set[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(half, half)), 0);
}

void fdct_pair(const uint8_t* a, ptrdiff_t stride_a, const Quantiser& quantiser_a, int16_t* out_a, uint64_t* mask_a,
               const uint8_t* b, ptrdiff_t stride_b, const Quantiser& quantiser_b, int16_t* out_b, uint64_t* mask_b) {
  *mask_a = fdct(a, stride_a, quantiser_a, out_a);
  if (out_b != out_a) *mask_b = fdct(b, stride_b, quantiser_b, out_b);
}

#endif
