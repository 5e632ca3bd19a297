// Included by the kernels of instruction sets with vectors, into anonymous namespaces.
//
// What they have in common: the loops over pairs of neighbours, and which instance of a template does the work. The number
// of taps is a template's constant, so that weights stay in registers.
#ifndef BETON_VECTOR_LOOPS_H
#define BETON_VECTOR_LOOPS_H

#include "kernels.h"

namespace beton {

namespace {

// Each set defines these. kPairs pairs of taps; of rows: 0 for any number.
template <int kPairs>
void horizontal_narrow(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                       ptrdiff_t dst_stride);
void horizontal_wide(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                     ptrdiff_t dst_stride);
template <int kPairs>
void finish_plane_of(const Column& column, ptrdiff_t stride, int n, uint8_t* out);
template <int kLuma, int kChroma>
void finish_ycc_of(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b);

void horizontal(const RowPlan& plan, const uint8_t* src, ptrdiff_t src_stride, int row_pairs, int16_t* dst,
                ptrdiff_t dst_stride) {
  if (!plan.narrow) return horizontal_wide(plan, src, src_stride, row_pairs, dst, dst_stride);
  switch (plan.pairs) {
    case 1: return horizontal_narrow<1>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 2: return horizontal_narrow<2>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 3: return horizontal_narrow<3>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 4: return horizontal_narrow<4>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 5: return horizontal_narrow<5>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 6: return horizontal_narrow<6>(plan, src, src_stride, row_pairs, dst, dst_stride);
    case 7: return horizontal_narrow<7>(plan, src, src_stride, row_pairs, dst, dst_stride);
    default: return horizontal_narrow<8>(plan, src, src_stride, row_pairs, dst, dst_stride);
  }
}

void finish_plane(const Column& column, ptrdiff_t stride, int n, uint8_t* out) {
  switch (column.pairs) {
    case 1: return finish_plane_of<1>(column, stride, n, out);
    case 2: return finish_plane_of<2>(column, stride, n, out);
    default: return finish_plane_of<0>(column, stride, n, out);
  }
}

void finish_ycc(const Column columns[3], ptrdiff_t stride, int n, uint8_t* r, uint8_t* g, uint8_t* b) {
  const int luma = columns[0].pairs, chroma = columns[1].pairs;
  if (chroma == columns[2].pairs && luma <= 3 && chroma <= 2) {
    switch (2 * luma + chroma) {
      case 3: return finish_ycc_of<1, 1>(columns, stride, n, r, g, b);
      case 4: return finish_ycc_of<1, 2>(columns, stride, n, r, g, b);
      case 5: return finish_ycc_of<2, 1>(columns, stride, n, r, g, b);
      case 6: return finish_ycc_of<2, 2>(columns, stride, n, r, g, b);
      case 7: return finish_ycc_of<3, 1>(columns, stride, n, r, g, b);
      case 8: return finish_ycc_of<3, 2>(columns, stride, n, r, g, b);
    }
  }
  finish_ycc_of<0, 0>(columns, stride, n, r, g, b);
}

// From n - 1 pairs of neighbours on: 16 at a time, the last ones twice where they do not fill a vector.
template <typename Step, typename One>
inline void each_pair(int n, const Step& step, const One& one) {
  int i = 0;
  for (; i + 16 <= n - 1; i += 16) step(i);
  if (i == n - 1) return;
  if (n - 1 >= 16) return step(n - 17);
  for (; i < n - 1; i++) one(i);
}

}  // namespace

}  // namespace beton

#endif
