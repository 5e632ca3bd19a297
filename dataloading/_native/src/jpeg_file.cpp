#include "jpeg_file.h"

#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "libjpeg_io.h"
#include "scan.h"

namespace beton {

namespace {

struct Pen {
  std::vector<uint8_t>& bytes;

  void byte(int v) { bytes.push_back(uint8_t(v)); }
  void word(int v) {
    byte(v >> 8);
    byte(v & 255);
  }
  void marker(int m) {
    byte(0xFF);
    byte(m);
  }
  void copy(const void* from, size_t n) {
    const uint8_t* p = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), p, p + n);
  }
};

int set_of(const JpegHeader& frame, int component) {
  return component > 0 && frame.space == BETON_SPACE_YCBCR ? 1 : 0;
}

// The colour profile's markers, as they are.
void copy_profile(const uint8_t* data, size_t end, Pen* pen) {
  MarkerWalk walk = {data, end, 2};
  while (walk.next() == kOk) {
    if (walk.marker == 0xE2 && walk.body_bytes >= 12 && std::memcmp(walk.body, "ICC_PROFILE", 12) == 0) {
      pen->copy(data + walk.begin, walk.at - walk.begin);
    }
  }
}

// In libjpeg's order (jcmarker.c).
void write_header(const JpegHeader& frame, int restart_interval, const CodeSet& codes, const uint8_t* source,
                  size_t source_bytes, Pen* pen) {
  pen->marker(0xD8);
  if (frame.space != BETON_SPACE_RGB) {
    const bool version_one = frame.jfif[0] == 1;
    pen->marker(0xE0);
    pen->word(16);
    pen->copy("JFIF", 5);
    pen->byte(1);
    pen->byte(version_one ? frame.jfif[1] : 1);
    pen->copy(frame.jfif + 2, 5);
    pen->word(0);  // no thumbnail
  } else {
    pen->marker(0xEE);
    pen->word(14);
    pen->copy("Adobe", 5);
    pen->word(100);
    pen->word(0);
    pen->word(0);
    pen->byte(0);  // no colour transform
  }
  if (source != nullptr) copy_profile(source, source_bytes, pen);
  bool sent[4] = {};
  bool baseline = true;
  for (int c = 0; c < frame.num_components; c++) {
    const int slot = frame.component[c].quant;
    const uint16_t* quant = frame.quant[slot];
    bool wide = false;
    for (int i = 0; i < 64; i++) wide = wide || quant[i] > 255;
    if (wide) baseline = false;
    if (sent[slot]) continue;
    sent[slot] = true;
    pen->marker(0xDB);
    pen->word(wide ? 2 + 1 + 128 : 2 + 1 + 64);
    pen->byte((wide ? 16 : 0) + slot);
    for (int i = 0; i < 64; i++) {
      const int v = quant[kNaturalOrder[i]];
      if (wide) {
        pen->word(v);
      } else {
        pen->byte(v);
      }
    }
  }
  pen->marker(baseline ? 0xC0 : 0xC1);
  pen->word(8 + 3 * frame.num_components);
  pen->byte(8);
  pen->word(frame.height);
  pen->word(frame.width);
  pen->byte(frame.num_components);
  for (int c = 0; c < frame.num_components; c++) {
    const Component& component = frame.component[c];
    pen->byte(component.id);
    pen->byte(component.h << 4 | component.v);
    pen->byte(component.quant);
  }
  const int sets = frame.num_components > 1 && frame.space == BETON_SPACE_YCBCR ? 2 : 1;
  for (int t = 0; t < 2 * sets; t++) {
    pen->marker(0xC4);
    pen->word(2 + 1 + 16 + codes.num_values[t]);
    pen->byte((t % 2) << 4 | t / 2);
    pen->copy(codes.bits[t] + 1, 16);
    pen->copy(codes.values[t], size_t(codes.num_values[t]));
  }
  if (restart_interval > 0) {
    pen->marker(0xDD);
    pen->word(4);
    pen->word(restart_interval);
  }
  pen->marker(0xDA);
  pen->word(6 + 2 * frame.num_components);
  pen->byte(frame.num_components);
  for (int c = 0; c < frame.num_components; c++) {
    const int set = set_of(frame, c);
    pen->byte(frame.component[c].id);
    pen->byte(set << 4 | set);
  }
  pen->byte(0);
  pen->byte(63);
  pen->byte(0);
}

}  // namespace

Status write_jpeg_file(const JpegHeader& frame, int restart_interval, const uint8_t* source, size_t source_bytes,
                       Scratch* s, uint8_t** out, size_t* out_bytes) {
  const Kernels& k = kernels();
  SymbolSink& sink = s->symbols;
  CodeSet& codes = s->codes;
  const int sets = frame.num_components > 1 && frame.space == BETON_SPACE_YCBCR ? 2 : 1;
  if (!make_codes(sink.counts, sets, &codes)) return kBadCode;
  s->header.clear();
  Pen pen = {s->header};
  write_header(frame, restart_interval, codes, source, source_bytes, &pen);

  const size_t segments = sink.segments.size();
  const size_t packed = size_t(codes.total_bits / 8) + segments;  // at most
  uint8_t* bits = s->bits.get<uint8_t>(packed + 16);
  uint8_t* stuffed = s->stuffed.get<uint8_t>(2 * packed + 2 * segments + 64);
  size_t used = 0;
  for (size_t i = 0; i < segments; i++) {
    const size_t begin = sink.segments[i], end = i + 1 < segments ? sink.segments[i + 1] : sink.used();
    if (i > 0) {
      stuffed[used++] = 0xFF;
      stuffed[used++] = uint8_t(0xD0 + ((i - 1) & 7));
    }
    const uint8_t* stop = k.write_codes(sink.data + begin, end - begin, codes.codes, bits);
    used += k.stuff(bits, size_t(stop - bits), stuffed + used);
  }
  stuffed[used++] = 0xFF;
  stuffed[used++] = 0xD9;

  const size_t head = s->header.size();
  uint8_t* file = static_cast<uint8_t*>(std::malloc(head + used));
  if (file == nullptr) return kOutOfMemory;
  std::memcpy(file, s->header.data(), head);
  std::memcpy(file + head, stuffed, used);
  *out = file;
  *out_bytes = head + used;
  return kOk;
}

Status check_scan(const JpegHeader& header, const uint8_t* data, size_t size, Scratch* s) {
  if (!scan_supports(header)) return kUnsupported;
  Scan scan;
  Status status = scan.open(header, data, size, int64_t(header.mcus_per_row) * header.mcu_rows - 1, s);
  if (status == kOk) status = scan.check();
  return status == kOk ? scan.finish_image() : status;
}

Status recode(const JpegHeader& header, const uint8_t* data, size_t size, int restart, bool keep_icc, Scratch* s,
              uint8_t** out, size_t* out_bytes) {
  // What a list of symbols takes is bounded by the data's bits; beyond this libjpeg's limits hold.
  constexpr size_t kLargestSource = size_t(1) << 26;
  if (!scan_supports(header) || size > kLargestSource) return kUnsupported;
  Scan scan;
  Status status = scan.open(header, data, size, int64_t(header.mcus_per_row) * header.mcu_rows - 1, s);
  if (status == kOk) status = scan.finish_image();
  if (status != kOk) return status;
  int interval = 0;
  if (restart == BETON_RESTART_AUTO) {
    interval = choose_restart_interval(header.width, header.mcus_per_row, header.mcu_rows, size);
  }
  status = scan.read_symbols(interval, &s->symbols);
  if (status != kOk) return status;
  return write_jpeg_file(header, interval, keep_icc ? data : nullptr, header.entropy_offset, s, out, out_bytes);
}

}  // namespace beton
