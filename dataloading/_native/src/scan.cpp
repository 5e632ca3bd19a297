#include "scan.h"

#include <algorithm>
#include <cstring>

namespace beton {

bool scan_supports(const JpegHeader& h) {
  if (h.progressive || h.arithmetic || !h.scan_in_order) return false;
  if (h.num_components != 1 && h.num_components != 3) return false;
  int blocks = 0;
  for (int i = 0; i < h.num_components; i++) {
    const Component& c = h.component[i];
    if (c.dc_table > 3 || c.ac_table > 3) return false;
    if (!h.has_quant[c.quant] || h.huffman[0][c.dc_table] == nullptr || h.huffman[1][c.ac_table] == nullptr) {
      return false;
    }
    blocks += c.h * c.v;
  }
  return h.num_components == 1 || blocks <= 10;
}

Status Scan::open(const JpegHeader& header, const uint8_t* data, size_t size, int64_t last_mcu, Scratch* scratch) {
  header_ = &header;
  data_ = data;
  size_ = size;
  kernels_ = &kernels();
  scratch_ = scratch;
  num_mcus_ = int64_t(header.mcus_per_row) * header.mcu_rows;
  interval_ = header.restart_interval > 0 ? header.restart_interval : num_mcus_;
  layout_.blocks = 0;
  for (int i = 0; i < header.num_components; i++) {
    const Component& c = header.component[i];
    HuffmanTable* tables[2];
    SkipTable* skip = &scratch->skip_tables[c.ac_table];
    for (int cls = 0; cls < 2; cls++) {
      const int slot = cls == 0 ? c.dc_table : c.ac_table;
      bool known = false;
      tables[cls] = &scratch->tables[cls][slot];
      const Status status =
          make_huffman_table(header.huffman[cls][slot], header.huffman_bytes[cls][slot], cls == 0, tables[cls], &known);
      if (status != kOk) return status;
      bool first = cls == 1;  // that uses this AC table
      for (int j = 0; j < i; j++) first = first && header.component[j].ac_table != c.ac_table;
      if (!first) continue;
      // This one takes longer: it is made when a table comes in a second image, as the standard ones do.
      if (!known) skip->made = false;
      if (known && !skip->made) make_skip_table(*tables[1], skip);
    }
    const int h = header.num_components == 1 ? 1 : c.h, v = header.num_components == 1 ? 1 : c.v;
    for (int y = 0; y < v; y++) {
      for (int x = 0; x < h; x++) {
        layout_.block[layout_.blocks++] = {tables[0], tables[1], skip->made ? skip : nullptr, header.quant[c.quant], i, x, y, h, true};
      }
    }
  }
  // Segment i is [segments[i], segments[i + 1] - 2): markers take two bytes, fill bytes before them are cut in load().
  std::vector<size_t>& segments = scratch->segments;
  segments.clear();
  segments.push_back(header.entropy_offset);
  const int64_t all = (num_mcus_ + interval_ - 1) / interval_;
  const int64_t needed = std::min(last_mcu / interval_ + 1, all);
  size_t at = header.entropy_offset;
  end_ = size;
  scratch->stray_bytes = 0;
  while (int64_t(segments.size()) <= needed) {
    at += kernels_->find_marker(data + at, size - at);
    while (at + 1 < size && data[at + 1] == 0xFF) at++;  // fill bytes
    if (at + 1 >= size) {
      segments.push_back(size + 2);  // the data just end; so must this segment's MCUs
      break;
    }
    const int marker = data[at + 1];
    if (marker == 0) return kUnsupported;  // fill bytes inside the data: libjpeg takes them for one FF
    at += 2;
    if (int64_t(segments.size()) == all) {  // behind the last segment any marker may stand
      end_ = at - 2;
    } else if (marker != 0xD0 + int((segments.size() - 1) & 7)) {
      return marker >= 0xD0 && marker <= 0xD7 ? kBadMarker : kTruncated;
    }
    segments.push_back(at);
  }
  if (int64_t(segments.size()) <= needed) return kTruncated;
  segment_ = -1;
  at_ = 0;
  return kOk;
}

Status Scan::load(int64_t segment) {
  const size_t begin = scratch_->segments[size_t(segment)];
  size_t end = scratch_->segments[size_t(segment) + 1] - 2;
  while (end > begin && data_[end - 1] == 0xFF) end--;
  uint8_t* out = scratch_->segment.get<uint8_t>(end - begin + kSegmentPadding + 32);
  const size_t bytes = kernels_->unstuff(data_ + begin, end - begin, out);
  std::memset(out + bytes, 0, kSegmentPadding);
  state_ = ScanState();
  state_.reader.next = out;
  state_.reader.end = out + bytes;
  segment_ = segment;
  at_ = segment * interval_;
  return kOk;
}

// Behind a segment's last MCU only the bits up to the byte's end should follow; libjpeg skips what else does.
void Scan::finish() {
  if (at_ == std::min((segment_ + 1) * interval_, num_mcus_)) scratch_->stray_bytes += state_.reader.left() / 8;
}

Status Scan::finish_image() {
  MarkerWalk walk = {data_, size_, end_};
  for (;;) {
    const Status status = walk.next();
    if (status != kOk) return status;
    const int m = walk.marker;
    if (m == 0xD9) break;
    // Of APPn libjpeg looks at the JFIF and Adobe ones and may keep profiles, wherever they stand.
    const bool matters = m < 0xE0 ? m != 0x01 && m != 0xDC && (m < 0xD0 || m > 0xD7)
                                  : m == 0xE0 || m == 0xE2 || m == 0xEE || (m > 0xEF && m != 0xFE);
    if (matters) return kUnsupported;
  }
  scratch_->stray_bytes += walk.stray_bytes;
  return kOk;
}

// Decodes MCUs from at_ on, over the borders of segments. Only called inside one row when strips are given.
Status Scan::advance(int64_t count, const StripSet* strips) {
  while (count > 0) {
    const int64_t segment = at_ / interval_;
    if (segment != segment_) {
      const Status status = load(segment);
      if (status != kOk) return status;
    }
    const int64_t n = std::min(count, std::min((segment_ + 1) * interval_, num_mcus_) - at_);
    const Status status = kernels_->decode_mcus(&state_, layout_, int(at_ % header_->mcus_per_row), int(n), strips);
    if (status != kOk) return status;
    at_ += n;
    count -= n;
    finish();
  }
  return kOk;
}

Status Scan::decode_row(int row, int first, int last, const StripSet& strips, const int row_low[3],
                        const int row_high[3]) {
  for (int i = 0; i < layout_.blocks; i++) {
    BlockPlace& place = layout_.block[i];
    const int c = place.component;
    const int v = header_->num_components == 1 ? 1 : header_->component[c].v;
    const int block_row = row * v + place.y;
    place.row_wanted = block_row >= row_low[c] && block_row < row_high[c];
  }
  const int64_t wanted = int64_t(row) * header_->mcus_per_row + first;
  const int64_t start = wanted / interval_ * interval_;
  if (segment_ != wanted / interval_ || at_ > wanted) {  // jump; load() follows in advance()
    segment_ = -1;
    at_ = start;
  }
  if (at_ < wanted) {
    const Status status = advance(wanted - at_, nullptr);
    if (status != kOk) return status;
  }
  return advance(last - first, &strips);
}

Status Scan::check() {
  segment_ = -1;
  at_ = 0;
  return advance(num_mcus_, nullptr);
}

Status Scan::read_symbols(int64_t interval, SymbolSink* sink) {
  SymbolLayout layout;
  layout.blocks = layout_.blocks;
  int blocks_wide[3], blocks_high[3];
  for (int c = 0; c < header_->num_components; c++) {
    const Component& component = header_->component[c];
    const int slot = component.ac_table;
    const Status status =
        make_symbol_table(header_->huffman[1][slot], header_->huffman_bytes[1][slot], &scratch_->symbol_tables[slot]);
    if (status != kOk) return status;
    blocks_wide[c] = (component.width + 7) / 8;
    blocks_high[c] = (component.height + 7) / 8;
  }
  const bool one_set = header_->space != BETON_SPACE_YCBCR;
  for (int i = 0; i < layout.blocks; i++) {
    const int c = layout_.block[i].component;
    layout.block[i].dc = layout_.block[i].dc;
    layout.block[i].ac = &scratch_->symbol_tables[header_->component[c].ac_table];
    layout.block[i].component = c;
    layout.block[i].set = c == 0 || one_set ? 0 : kSetSize;
  }
  constexpr int64_t kRun = 64;  // MCUs for which room is made at once
  sink->clear();
  const int per_row = header_->mcus_per_row;
  segment_ = -1;
  for (at_ = 0; at_ < num_mcus_;) {
    if (interval == 0 ? at_ == 0 : at_ % interval == 0) sink->start_segment();
    if (at_ / interval_ != segment_) {
      const Status status = load(at_ / interval_);
      if (status != kOk) return status;
    }
    // The last MCU of a row, and the last row, may hold blocks that are not in the image.
    const int row = int(at_ / per_row), column = int(at_ % per_row);
    int64_t n = std::min(kRun, int64_t(column == per_row - 1 ? 1 : per_row - 1 - column));
    n = std::min(n, (segment_ + 1) * interval_ - at_);
    if (interval > 0) n = std::min(n, interval - at_ % interval);
    for (int i = 0; i < layout.blocks; i++) {
      const BlockPlace& place = layout_.block[i];
      const int v = header_->num_components == 1 ? 1 : header_->component[place.component].v;
      layout.block[i].real = column * place.per_mcu + place.x < blocks_wide[place.component] &&
                             row * v + place.y < blocks_high[place.component];
    }
    sink->reserve(size_t(n) * size_t(layout.blocks));
    const Status status = kernels_->read_symbols(&state_, layout, int(n), sink);
    if (status != kOk) return status;
    at_ += n;
    finish();
  }
  return kOk;
}

}  // namespace beton
