// Thread-safety: a Scan belongs to one thread and borrows its Scratch.
//
// Decodes rectangles of MCUs of a baseline JPEG, jumping over what restart markers allow to jump over.
#ifndef BETON_SCAN_H
#define BETON_SCAN_H

#include "entropy.h"
#include "header.h"
#include "kernels.h"
#include "scratch.h"
#include "symbols.h"

namespace beton {

// Whether Scan can decode it: one interleaved Huffman scan of one or three components with all tables present.
bool scan_supports(const JpegHeader& header);

class Scan {
 public:
  // Makes tables and finds the segments up to the one that holds MCU `last_mcu` (counted along rows).
  Status open(const JpegHeader& header, const uint8_t* data, size_t size, int64_t last_mcu, Scratch* scratch);

  // Decodes MCU columns [first, last) of a row of MCUs; rows must be asked for from top to bottom. Of component c only
  // blocks in columns [low[c], high[c]) and rows [row_low[c], row_high[c]) of the whole image are transformed.
  Status decode_row(int row, int first, int last, const StripSet& strips, const int row_low[3], const int row_high[3]);

  // Instead: reads the whole scan into `sink`, in restart segments of `interval` MCUs (0: a single one).
  Status read_symbols(int64_t interval, SymbolSink* sink);

  // Instead: reads all MCUs and keeps nothing, to find out whether it can be done.
  Status check();

  // After open() with the last MCU of all: whether the end marker follows the scan at once. Anything else that may
  // stand there (more scans, tables, comments) is libjpeg's business.
  bool ends_with_image() const { return end_marker_ == 0xD9; }

 private:
  Status load(int64_t segment);
  Status finish();
  Status advance(int64_t count, const StripSet* strips);

  const JpegHeader* header_ = nullptr;
  const uint8_t* data_ = nullptr;
  const Kernels* kernels_ = nullptr;
  Scratch* scratch_ = nullptr;
  McuLayout layout_;
  ScanState state_;
  int64_t interval_ = 0;      // MCUs in a segment
  int64_t num_mcus_ = 0;
  int64_t segment_ = -1;      // loaded
  int64_t at_ = 0;            // next MCU
  int end_marker_ = 0;        // the one that ends the scan, as far as it was looked for
};

}  // namespace beton

#endif
