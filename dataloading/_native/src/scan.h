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

  // After open() with the last MCU of all: kOk if the image ends behind the scan, with nothing between that matters.
  // Anything else that may stand there (more scans, tables) is libjpeg's business: kUnsupported.
  Status finish_image();

 private:
  Status load(int64_t segment);
  void finish();
  Status advance(int64_t count, const StripSet* strips);

  const JpegHeader* header_ = nullptr;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  const Kernels* kernels_ = nullptr;
  Scratch* scratch_ = nullptr;
  McuLayout layout_;
  ScanState state_;
  int64_t interval_ = 0;      // MCUs in a segment
  int64_t num_mcus_ = 0;
  int64_t segment_ = -1;      // loaded
  int64_t at_ = 0;            // next MCU
  size_t end_ = 0;            // where the marker that ends the scan begins, as far as it was looked for
};

}  // namespace beton

#endif
