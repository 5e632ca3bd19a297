#include "encoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "forward.h"
#include "header.h"
#include "jpeg_file.h"
#include "kernels.h"
#include "libjpeg_io.h"
#include "scan.h"

namespace beton {

namespace {

// T.81, tables K.1 and K.2, row-major.
const uint8_t kLumaQuant[64] = {
    16, 11, 10, 16, 24,  40,  51,  61,  12, 12, 14, 19, 26,  58,  60,  55,  14, 13, 16, 24, 40,  57,
    69, 56, 14, 17, 22,  29,  51,  87,  80, 62, 18, 22, 37,  56,  68,  109, 103, 77, 24, 35, 55,  64,
    81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99};
const uint8_t kChromaQuant[64] = {
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99};

// As jpeg_set_quality with baseline tables.
void make_quant(const uint8_t* base, int quality, uint16_t* quant) {
  const int percent = quality < 50 ? 5000 / quality : 200 - 2 * quality;
  for (int i = 0; i < 64; i++) quant[i] = uint16_t(std::min(std::max((base[i] * percent + 50) / 100, 1), 255));
}

void make_quantiser(const uint16_t* quant, Quantiser* q) {
  for (int i = 0; i < 64; i++) {
    const uint32_t divisor = uint32_t(quant[i]) * 8;
    int shift = 16;
    while (divisor >> (shift - 15) != 0) shift++;  // 16 + floor(log2(divisor))
    uint32_t reciprocal = uint32_t((uint64_t(1) << shift) / divisor), correction = divisor / 2;
    const uint32_t rest = uint32_t((uint64_t(1) << shift) % divisor);
    if (rest == 0) {
      reciprocal >>= 1;
      shift--;
    } else if (rest <= divisor / 2) {
      correction++;
    } else {
      reciprocal++;
    }
    q->reciprocal[i] = uint16_t(reciprocal);
    q->correction[i] = uint16_t(correction);
    q->scale[i] = uint16_t(1u << (32 - shift));
  }
}

JpegHeader make_frame(int width, int height, int quality, int h_samp, int v_samp) {
  JpegHeader f;
  f.width = width;
  f.height = height;
  f.num_components = 3;
  f.h_max = h_samp;
  f.v_max = v_samp;
  f.mcu_width = 8 * h_samp;
  f.mcu_height = 8 * v_samp;
  f.mcus_per_row = (width + f.mcu_width - 1) / f.mcu_width;
  f.mcu_rows = (height + f.mcu_height - 1) / f.mcu_height;
  for (int c = 0; c < 3; c++) {
    f.component[c].id = c + 1;
    f.component[c].h = c == 0 ? h_samp : 1;
    f.component[c].v = c == 0 ? v_samp : 1;
    f.component[c].quant = c == 0 ? 0 : 1;
  }
  make_quant(kLumaQuant, quality, f.quant[0]);
  make_quant(kChromaQuant, quality, f.quant[1]);
  return f;
}

// The samples of one row of MCUs after another, padded as libjpeg pads them.
class Samples {
 public:
  Samples(const JpegHeader& frame, const uint8_t* rgb, size_t row_stride, Scratch* s)
      : frame_(frame), rgb_(rgb), row_stride_(row_stride), kernels_(kernels()) {
    padded_ = frame.mcus_per_row * frame.mcu_width;
    stride_ = (padded_ + kRowPadding + 63) & ~63;
    chroma_width_ = frame.mcus_per_row * 8;
    chroma_stride_ = (chroma_width_ + kRowPadding + 63) & ~63;
    luma_ = s->strip[0].get<uint8_t>(size_t(stride_) * size_t(8 * frame.v_max));
    for (int c = 0; c < 2; c++) {
      chroma_[c] = s->strip[c + 1].get<uint8_t>(size_t(chroma_stride_) * 8);
    }
    lines_ = s->line.get<uint8_t>(size_t(stride_) * size_t(2 * frame.v_max));
    std::memset(lines_, 0, size_t(stride_) * size_t(2 * frame.v_max));
  }

  const uint8_t* data(int c) const { return c == 0 ? luma_ : chroma_[c - 1]; }

  ptrdiff_t stride(int c) const { return c == 0 ? stride_ : chroma_stride_; }

  Status load(int mcu_row) {
    const int h = frame_.h_max, v = frame_.v_max, top = mcu_row * frame_.mcu_height;
    for (int t = 0; t < 8; t++) {
      uint8_t* out[2] = {chroma_[0] + t * chroma_stride_, chroma_[1] + t * chroma_stride_};
      if (top + t * v >= frame_.height) {
        // Below the image libjpeg repeats the last row of subsampled chroma, not of pixels.
        for (uint8_t* row : out) std::memcpy(row, row - chroma_stride_, size_t(chroma_width_));
        for (int y = t * v; y < (t + 1) * v; y++) {
          std::memcpy(luma_ + y * stride_, luma_ + (y - 1) * stride_, size_t(padded_));
        }
        continue;
      }
      for (int j = 0; j < v; j++) {
        uint8_t* const cb = h == 1 && v == 1 ? out[0] : chroma_line(0, j);
        uint8_t* const cr = h == 1 && v == 1 ? out[1] : chroma_line(1, j);
        convert(std::min(top + t * v + j, frame_.height - 1), luma_ + (t * v + j) * stride_, cb, cr);
      }
      for (int c = 0; c < 2 && !(h == 1 && v == 1); c++) {
        if (h == 2 && v == 1) {
          kernels_.halve_row(chroma_line(c, 0), chroma_width_, out[c]);
        } else if (h == 2 && v == 2) {
          kernels_.halve_both(chroma_line(c, 0), chroma_line(c, 1), chroma_width_, out[c]);
        } else {
          mean(c, out[c]);
        }
      }
    }
    return kOk;
  }

 private:
  uint8_t* chroma_line(int c, int j) { return lines_ + ptrdiff_t(c * frame_.v_max + j) * stride_; }

  void convert(int row, uint8_t* y, uint8_t* cb, uint8_t* cr) {
    const int n = frame_.width;
    kernels_.rgb_to_ycc(rgb_ + size_t(row) * row_stride_, n, y, cb, cr);
    for (uint8_t* line : {y, cb, cr}) std::memset(line + n, line[n - 1], size_t(padded_ - n));
  }

  // Any other ratio: the mean of h x v samples, halves rounded up.
  void mean(int c, uint8_t* out) {
    const int h = frame_.h_max, v = frame_.v_max;
    for (int i = 0; i < chroma_width_; i++) {
      int sum = h * v / 2;
      for (int j = 0; j < v; j++) {
        for (int x = 0; x < h; x++) sum += chroma_line(c, j)[i * h + x];
      }
      out[i] = uint8_t(sum / (h * v));
    }
  }

  const JpegHeader& frame_;
  const uint8_t* rgb_;
  size_t row_stride_;
  const Kernels& kernels_;
  int padded_, chroma_width_;
  ptrdiff_t stride_, chroma_stride_;
  uint8_t* luma_;
  uint8_t* chroma_[2];
  uint8_t* lines_;  // v rows of Cb, then v of Cr
};

// The samples that another JPEG of the same sampling decodes to, row of MCUs after row of MCUs.
class DecodedSamples {
 public:
  DecodedSamples(const JpegHeader& source, const uint8_t* data, size_t size, Scratch* s)
      : source_(source), data_(data), size_(size), s_(s) {
    strips_.first_mcu = 0;
    for (int c = 0; c < 3; c++) {
      const Component& component = source.component[c];
      const int width = source.mcus_per_row * component.h * 8;
      strips_.stride[c] = (width + kRowPadding + 63) & ~63;
      strips_.data[c] = s->strip[c].get<uint8_t>(size_t(strips_.stride[c]) * size_t(8 * component.v));
      strips_.low[c] = 0;
      strips_.high[c] = width / 8;
      row_high_[c] = source.mcu_rows * component.v;
    }
  }

  const uint8_t* data(int c) const { return strips_.data[c]; }

  ptrdiff_t stride(int c) const { return strips_.stride[c]; }

  Status load(int mcu_row) {
    if (mcu_row == 0) {
      Status status = scan_.open(source_, data_, size_, int64_t(source_.mcus_per_row) * source_.mcu_rows - 1, s_);
      if (status == kOk) status = scan_.finish_image();
      if (status != kOk) return status;
    }
    constexpr int kRowLow[3] = {0, 0, 0};
    return scan_.decode_row(mcu_row, 0, source_.mcus_per_row, strips_, kRowLow, row_high_);
  }

 private:
  const JpegHeader& source_;
  const uint8_t* data_;
  size_t size_;
  Scratch* s_;
  Scan scan_;
  StripSet strips_;
  int row_high_[3];
};

// All MCUs into s->symbols, in restart segments of `interval` MCUs (0: a single one).
template <typename Source>
Status make_symbols(const JpegHeader& frame, Source& samples, int interval, const Quantiser quantisers[2], Scratch* s) {
  const Kernels& k = kernels();
  SymbolSink& sink = s->symbols;
  EncodeLayout layout;
  const int blocks_wide = (frame.width + 7) / 8, blocks_high = (frame.height + 7) / 8;
  int block_y[10] = {};
  for (int c = 0; c < 3; c++) {
    const int h = frame.component[c].h, v = frame.component[c].v;
    for (int y = 0; y < v; y++) {
      for (int x = 0; x < h; x++) {
        block_y[layout.blocks] = y;
        EncodePlace& place = layout.block[layout.blocks++];
        place.quantiser = &quantisers[c == 0 ? 0 : 1];
        place.data = samples.data(c) + 8 * y * samples.stride(c) + 8 * x;
        place.stride = samples.stride(c);
        place.step = 8 * h;
        place.component = c;
        place.set = c == 0 ? 0 : kSetSize;
        place.columns = c == 0 ? (blocks_wide - x + h - 1) / h : frame.mcus_per_row;
      }
    }
  }
  const EncodeLayout whole = layout;
  sink.clear();
  int64_t at = 0;
  for (int row = 0; row < frame.mcu_rows; row++) {
    const Status status = samples.load(row);
    if (status != kOk) return status;
    for (int i = 0; i < layout.blocks; i++) {
      const bool inside = row * frame.v_max + block_y[i] < blocks_high || whole.block[i].component > 0;
      layout.block[i].columns = inside ? whole.block[i].columns : 0;
    }
    for (int column = 0; column < frame.mcus_per_row;) {
      if (interval == 0 ? at == 0 : at % interval == 0) sink.start_segment();
      int64_t n = frame.mcus_per_row - column;
      if (interval > 0) n = std::min(n, interval - at % interval);
      sink.reserve(size_t(n) * size_t(layout.blocks));
      k.encode_mcus(layout, column, column + int(n), &sink);
      column += int(n);
      at += n;
    }
  }
  return kOk;
}

template <typename Source>
Status encode(const JpegHeader& frame, Source& samples, int restart, Scratch* s, uint8_t** out, size_t* out_bytes) {
  const int width = frame.width, height = frame.height;
  Quantiser quantisers[2];
  make_quantiser(frame.quant[0], &quantisers[0]);
  make_quantiser(frame.quant[1], &quantisers[1]);
  const size_t guess = size_t(width) * size_t(height) / 4;  // two bits a pixel, about quality 90 of a photograph
  int interval = 0;
  if (restart == BETON_RESTART_AUTO) {
    interval = choose_restart_interval(width, frame.mcus_per_row, frame.mcu_rows, guess);
  }
  // A second round only when the first guess was far too high and the markers weigh too much.
  for (int round = 0;; round++) {
    Status status = make_symbols(frame, samples, interval, quantisers, s);
    if (status == kOk) status = write_jpeg_file(frame, interval, nullptr, 0, s, out, out_bytes);
    if (status != kOk || interval == 0 || round == 1) return status;
    const int fitting = choose_restart_interval(width, frame.mcus_per_row, frame.mcu_rows, *out_bytes);
    if (fitting == interval || (fitting != 0 && fitting < interval)) return kOk;
    interval = fitting;
    std::free(*out);
    *out = nullptr;
  }
}

}  // namespace

Status encode_rgb(const uint8_t* rgb, int width, int height, size_t row_stride, int quality, int h_samp, int v_samp,
                  int restart, Scratch* s, uint8_t** out, size_t* out_bytes) {
  if (h_samp * v_samp > 8) return kUnsupported;  // more than ten blocks in an MCU
  const JpegHeader frame = make_frame(width, height, quality, h_samp, v_samp);
  Samples samples(frame, rgb, row_stride, s);
  return encode(frame, samples, restart, s, out, out_bytes);
}

Status reencode(const JpegHeader& source, const uint8_t* data, size_t size, int quality, int h_samp, int v_samp,
                int restart, Scratch* s, uint8_t** out, size_t* out_bytes) {
  const Component* c = source.component;
  if (!scan_supports(source) || source.num_components != 3 || source.space != BETON_SPACE_YCBCR || c[0].h != h_samp ||
      c[0].v != v_samp || c[1].h != 1 || c[1].v != 1 || c[2].h != 1 || c[2].v != 1) {
    return kUnsupported;
  }
  const JpegHeader frame = make_frame(source.width, source.height, quality, h_samp, v_samp);
  DecodedSamples samples(source, data, size, s);
  return encode(frame, samples, restart, s, out, out_bytes);
}

}  // namespace beton
