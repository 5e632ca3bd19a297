// Thread-safety: kernels are pure functions over the caller's memory; the chosen table is one atomic pointer.
//
// The loops that cost time, once for every instruction set. All sets give the same bytes: it is integer arithmetic
// whose every rounding is written down here, so that the portable loops are the reference of the others.
#ifndef BETON_KERNELS_H
#define BETON_KERNELS_H

#include <cstddef>
#include <cstdint>

#include "entropy.h"
#include "fir.h"
#include "forward.h"
#include "resample.h"
#include "symbols.h"

namespace beton {

// Bytes behind the last sample of a source row that a kernel may read (and ignore).
constexpr int kRowPadding = 64;
// Samples behind the last output that a kernel may write.
constexpr int kOutPadding = 32;

// A horizontal Axis arranged for vector code. Kernels read the plain pointers: no library code in vector files.
struct RowPlan {
  const Axis* axis = nullptr;
  int outputs = 0, groups = 0, pairs = 0;
  const int16_t* weights_data = nullptr;  // those of the axis
  // Narrow: the taps of each half of a group lie within 16 source bytes, gathered by byte shuffles.
  bool narrow = false;
  const int* base_data = nullptr;       // groups * 2: first source sample
  const uint8_t* masks_data = nullptr;  // groups * 32: shuffle giving the first pairs, zero-extended; 2 more for each next pair
  // Wide: each output's weights padded to a multiple of 16 taps.
  int wide_taps = 0;
  const int* start_data = nullptr;
  const int* wide_used_data = nullptr;  // taps up to the last one that counts
  const int16_t* wide_data = nullptr;   // groups * kGroup * wide_taps

  std::vector<int> base, wide_used;
  std::vector<uint8_t> masks;
  std::vector<int16_t> wide;
};

void make_row_plan(const Axis& axis, RowPlan* plan);

// How rows of a middle buffer (passes.h) make an output row of one component.
struct Column {
  const int16_t* rows;     // the first pair of rows
  const int16_t* weights;  // the next pair of these is 2 * kGroup behind
  int pairs;
};

// Weights of the pixel itself, and of the two pixels 1, 2, ... steps away together; 65536 is 1.
struct BlurWeights {
  const uint16_t* values;
  int reach;
  uint16_t lost;  // what cutting off products comes to in the mean
};

constexpr int kBlurBlock = 32;

struct BlurPlan {
  BlurWeights across, down;
  int pitch;             // the width, rounded up to whole blocks
  uint16_t* line;        // pitch values, with room for the reach and whole blocks on both sides
  uint16_t *sums, *rows;  // a row; row 0 of the plane's, with room for the reach above and below
};

struct Kernels {
  const char* name;
  // Rows 2 * k and 2 * k + 1 go to pair of rows k of a middle buffer:
  // dst[k * dst_stride + 2 * i + r % 2] = (sum over t of weight(i, t) * src[r * src_stride + start[i] + t] + 128) >> 8.
  // src points at sample 0 of the axis. Whole groups of outputs are written.
  void (*horizontal)(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                     ptrdiff_t dst_stride);
  // The vertical pass, n outputs: values (sum over t of weight[t] * row[t][i] + (1 << 13)) >> 14, which fit
  // 15 bits and a sign; bytes (value + 32) >> 6, clamped.
  void (*finish_plane)(const Column& column, ptrdiff_t stride, int n, uint8_t* out);
  // The same for Y, Cb and Cr, then JFIF's YCbCr to RGB on these values with six fractional bits. Where cb and cr are whole
  // levels, mostly because all pixels around have them, red, green and blue differ from y by whole levels too, as in
  // exact_ycc_to_rgb.
  void (*finish_ycc)(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b);
  void (*split_rgb)(const uint8_t* rgb, int n, uint8_t* r, uint8_t* g, uint8_t* b);
  // The same for rows of pixels, left and right exchanged where `mirror`.
  void (*split_rows)(const uint8_t* rgb, ptrdiff_t rgb_stride, int width, int height, bool mirror, uint8_t* const planes[3],
                     ptrdiff_t stride);
  void (*merge_rgb)(const uint8_t* r, const uint8_t* g, const uint8_t* b, int n, uint8_t* rgb);
  // First position in [data, data + size) of FF followed by a byte that is not 00, or `size`. A last FF counts too.
  size_t (*find_marker)(const uint8_t* data, size_t size);
  // Copies without the 00 behind each FF; returns the bytes written. `out` has room for size + 32.
  size_t (*unstuff)(const uint8_t* data, size_t size, uint8_t* out);
  // Entropy decoding and the accurate inverse DCT of a run of MCUs; see block_loops.h.
  Status (*decode_mcus)(ScanState* state, const McuLayout& layout, int mcu, int mcus, const StripSet* strips);
  // The exact arithmetic of libjpeg's upsampling and colour conversion, a row at a time; n counts input samples.
  void (*blend_rows)(const uint8_t* near, const uint8_t* far, int n, int bias, uint8_t* out);
  void (*double_row)(const uint8_t* in, int n, uint8_t* out);
  void (*double_both)(const uint8_t* near, const uint8_t* far, int n, uint8_t* out);
  void (*exact_ycc_to_rgb)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* r, uint8_t* g,
                           uint8_t* b);
  void (*exact_ycc_to_pixels)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* rgb);
  // By how many levels, added up, n colours lie outside 0..255: the highest channel above, the lowest below. At most 255
  // a colour; conversion factors have seven bits. Up to 31 bytes behind the n are read.
  int64_t (*colour_excess)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n);
  // Baseline scans as lists of symbols; see symbol_loops.h.
  Status (*read_symbols)(ScanState* state, const SymbolLayout& layout, int mcus, SymbolSink* sink);
  uint8_t* (*write_codes)(const uint32_t* symbols, size_t count, const uint32_t* codes, uint8_t* out);
  // Copies with a 00 behind each FF; returns the bytes written. `out` has room for 2 * size + 32.
  size_t (*stuff)(const uint8_t* data, size_t size, uint8_t* out);
  // The encoder's arithmetic, that of libjpeg: colours of n samples; means of pairs and of squares, n results.
  void (*rgb_to_ycc)(const uint8_t* rgb, int n, uint8_t* y, uint8_t* cb, uint8_t* cr);
  void (*halve_row)(const uint8_t* in, int n, uint8_t* out);
  void (*halve_both)(const uint8_t* a, const uint8_t* b, int n, uint8_t* out);
  // Forward DCT, quantisation and symbols of MCUs [first, last); see symbol_loops.h.
  void (*encode_mcus)(const EncodeLayout& layout, int first, int last, SymbolSink* sink);
  // The exact resize of interleaved RGB, see fir.h: four rows along x, one byte behind each `out` is written too; and
  // output row `row` down n columns of bytes, of which `src` holds row 0 and up to 15 bytes behind are read.
  void (*fir_rows)(const FirAxis& axis, const uint8_t* const rows[4], uint8_t* const out[4]);
  void (*fir_columns)(const FirAxis& axis, int row, const uint8_t* src, ptrdiff_t stride, int n, uint8_t* out);
  // The filters of an axis; see weight_loops.h.
  void (*make_box_filter)(const AxisSpec& spec, const BoxFilter& box);
  void (*make_weights)(const AxisSpec& spec, const BoxFilter& box, const AxisMemory& memory);
  // out[i] = table[src[i]]; out may be src.
  void (*look_up)(const uint8_t* src, const uint8_t table[256], size_t n, uint8_t* out);
  // out[i] = (x * line[1] + line[2]) + (x * line[3] + line[4]), x = src[i] - line[0], each step rounded to float. The first
  // bracket must be exact: it may be computed as one step.
  void (*to_floats)(const uint8_t* src, const float line[5], size_t n, float* out);
  // Blurs one plane, whose sides are more than the reaches; see blur.cpp.
  void (*blur_plane)(const BlurPlan& plan, const uint8_t* source, int height, int width, uint8_t* target);
  // Colours of n pixels; see color_loops.h.
  uint64_t (*sum_of_greys)(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n);
  void (*blend)(uint8_t* values, size_t n, float factor, float offset);
  void (*gray)(uint8_t* r, uint8_t* g, uint8_t* b, size_t n);
  void (*saturate)(uint8_t* r, uint8_t* g, uint8_t* b, size_t n, float factor, float rest);
  void (*turn_hue)(uint8_t* r, uint8_t* g, uint8_t* b, size_t n, uint8_t whole, float missing, float levels);
};

const Kernels& kernels();               // the best this processor runs, unless select_kernels chose another
bool select_kernels(const char* name);  // false when unknown or not runnable here

extern const Kernels kPortableKernels;
// Null where not built or not runnable.
const Kernels* avx2_kernels();
const Kernels* neon_kernels();

}  // namespace beton

#endif
