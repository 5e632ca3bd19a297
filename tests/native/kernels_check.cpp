// Each vector kernel against its portable namesake: random values, lengths that fill no vector, odd strides. Buffers have
// the room that kernels.h promises; what a kernel must not write is compared too.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "header.h"
#include "kernels.h"
#include "native_check.h"

namespace {

using beton::kPortableKernels;
using beton::Kernels;

Random* dice = nullptr;

typedef std::vector<uint8_t> Bytes;

// Mostly random; sometimes only few values, or extremes.
Bytes random_bytes(size_t n) {
  Bytes bytes(n);
  const int kind = dice->below(4);
  for (uint8_t& b : bytes) {
    b = uint8_t(dice->next());
    if (kind == 0) b = uint8_t(-(b & 1));
    if (kind == 1) b = uint8_t(126 + (b & 3));
  }
  return bytes;
}

std::vector<int16_t> random_words(size_t n, int low, int high) {
  std::vector<int16_t> words(n);
  for (int16_t& w : words) w = int16_t(dice->between(low, high));
  return words;
}

// Lengths around the widths of vectors are frequent.
int random_length() { return dice->below(2) == 0 ? dice->between(1, 70) : dice->between(1, 300); }

bool good = true;

void expect(bool same, const char* kernel) {
  if (same) return;
  std::printf("%s differs from the portable one\n", kernel);
  good = false;
}

// Runs `call` with each set on equal buffers and compares these afterwards: kernels that write planes, `room` bytes each.
template <typename Call>
void compare(const char* name, size_t room, const Call& call) {
  Bytes ours[3], portable[3];
  for (int c = 0; c < 3; c++) ours[c] = portable[c] = random_bytes(room);
  call(beton::kernels(), ours);
  call(kPortableKernels, portable);
  for (int c = 0; c < 3; c++) expect(ours[c] == portable[c], name);
}

// A random axis, whose weights both sets must make alike.
beton::Axis random_axis(bool even) {
  beton::AxisSpec spec;
  spec.ratio = dice->below(3) == 0 ? 2 : 1;
  spec.fancy = spec.ratio == 2;
  spec.component_length = dice->between(1, 300);
  const int whole = spec.component_length * spec.ratio;
  spec.length = dice->between(1, whole);
  spec.box = dice->between(0, whole - spec.length);
  spec.scaled = dice->between(1, dice->below(2) == 0 ? 40 : 300);
  spec.count = dice->between(1, spec.scaled);
  spec.first = dice->between(0, spec.scaled - spec.count);
  spec.interpolation = dice->below(3);
  spec.antialias = dice->below(3) != 0;
  spec.reverse = dice->below(2) == 0;
  spec.even = even;
  beton::Axis axes[2];
  const char* const sets[2] = {kPortableKernels.name, beton::kernels().name};
  for (int set = 0; set < 2; set++) {
    beton::select_kernels(sets[set]);
    beton::Box box;
    beton::make_box(spec, &box);
    beton::make_axis(spec, box, &axes[set]);
  }
  expect(axes[0].start == axes[1].start && axes[0].end == axes[1].end && axes[0].weights == axes[1].weights,
         "make_box_filter or make_weights");
  return axes[1];
}

void horizontal() {
  const beton::Axis axis = random_axis(false);
  beton::RowPlan plan;
  beton::make_row_plan(axis, &plan);
  const int pairs = dice->between(1, 5);
  const ptrdiff_t from_stride = axis.high + beton::kRowPadding + dice->below(9);
  const ptrdiff_t to_stride = 2 * (plan.groups * beton::kGroup + 8 * dice->below(3));
  const Bytes source = random_bytes(size_t(from_stride * 2 * pairs));
  std::vector<int16_t> ours(size_t(to_stride * pairs)), portable(ours.size());
  beton::kernels().horizontal(plan, source.data(), from_stride, pairs, ours.data(), to_stride);
  kPortableKernels.horizontal(plan, source.data(), from_stride, pairs, portable.data(), to_stride);
  expect(ours == portable, "horizontal");
}

void finish() {
  // Weights of real filters: what they make of values has the range that the colours are promised.
  const int n = random_length();
  const ptrdiff_t stride = 2 * (n + beton::kOutPadding);
  beton::Axis axes[2] = {random_axis(true), random_axis(true)};
  beton::Column columns[3];
  std::vector<int16_t> middle[3];
  for (int c = 0; c < 3; c++) {
    const beton::Axis& axis = axes[c > 0];
    const int i = dice->below(axis.count), pairs = (axis.end[size_t(i)] - axis.origin(i) + 1) / 2;
    middle[c] = random_words(size_t(stride * pairs), c == 0 ? -3000 : 0, c == 0 ? 19500 : 255 << beton::kValueBits);
    if (c > 0 && dice->below(2) == 0) {  // whole levels are a case of their own
      for (int16_t& v : middle[c]) v = int16_t(dice->below(2) == 0 ? v & -64 : 100 << beton::kValueBits);
    }
    columns[c] = {middle[c].data(), axis.weight(i), pairs};
  }
  compare("finish_plane", size_t(n + 32), [&](const Kernels& k, Bytes* to) {
    k.finish_plane(columns[0], stride, n, to[0].data());
  });
  compare("finish_ycc", size_t(n + 32), [&](const Kernels& k, Bytes* to) {
    k.finish_ycc(columns, stride, n, to[0].data(), to[1].data(), to[2].data());
  });
}

void colours() {
  const int n = random_length();
  const size_t room = size_t(n + beton::kRowPadding);
  const Bytes a = random_bytes(room), b = random_bytes(room), c = random_bytes(room);
  const Bytes rgb = random_bytes(size_t(3 * n));
  compare("split_rgb", room, [&](const Kernels& k, Bytes* to) {
    k.split_rgb(rgb.data(), n, to[0].data(), to[1].data(), to[2].data());
  });
  const int rows = dice->between(1, 4), width = n / rows, stride = width + dice->below(3);
  const bool mirror = dice->below(2) == 0, upwards = dice->below(2) == 0;
  const uint8_t* first = rgb.data() + (upwards ? 3 * width * (rows - 1) : 0);
  compare("split_rows", size_t(rows * stride + 16), [&](const Kernels& k, Bytes* to) {
    uint8_t* const planes[3] = {to[0].data(), to[1].data(), to[2].data()};
    k.split_rows(first, (upwards ? -3 : 3) * width, width, rows, mirror, planes, stride);
  });
  compare("merge_rgb", 3 * room, [&](const Kernels& k, Bytes* to) {
    k.merge_rgb(a.data(), b.data(), c.data(), n, to[0].data());
  });
  compare("exact_ycc_to_rgb", room, [&](const Kernels& k, Bytes* to) {
    k.exact_ycc_to_rgb(a.data(), b.data(), c.data(), n, to[0].data(), to[1].data(), to[2].data());
  });
  compare("exact_ycc_to_pixels", 3 * room, [&](const Kernels& k, Bytes* to) {
    k.exact_ycc_to_pixels(a.data(), b.data(), c.data(), n, to[0].data());
  });
  compare("rgb_to_ycc", room, [&](const Kernels& k, Bytes* to) {
    k.rgb_to_ycc(rgb.data(), n, to[0].data(), to[1].data(), to[2].data());
  });
  expect(beton::kernels().colour_excess(a.data(), b.data(), c.data(), n) ==
             kPortableKernels.colour_excess(a.data(), b.data(), c.data(), n),
         "colour_excess");
}

void chroma() {
  const int n = random_length(), bias = dice->between(1, 2);
  const size_t room = size_t(2 * n + beton::kRowPadding);
  const Bytes near = random_bytes(room), far = random_bytes(room);
  compare("blend_rows", room, [&](const Kernels& k, Bytes* to) {
    k.blend_rows(near.data(), far.data(), n, bias, to[0].data());
  });
  compare("double_row", room, [&](const Kernels& k, Bytes* to) { k.double_row(near.data(), n, to[0].data()); });
  compare("double_both", room, [&](const Kernels& k, Bytes* to) {
    k.double_both(near.data(), far.data(), n, to[0].data());
  });
  compare("halve_row", room, [&](const Kernels& k, Bytes* to) { k.halve_row(near.data(), n, to[0].data()); });
  compare("halve_both", room, [&](const Kernels& k, Bytes* to) {
    k.halve_both(near.data(), far.data(), n, to[0].data());
  });
}

void markers() {
  const size_t n = size_t(random_length()), offset = size_t(dice->below(8));
  Bytes data = random_bytes(offset + n);
  const int seldom = dice->between(1, 100);
  for (size_t i = 0; i < data.size(); i++) {
    if (data[i] == 0xFF && dice->below(seldom) != 0) data[i] = 1;
    if (i > 0 && data[i - 1] == 0xFF && dice->below(3) != 0) data[i] = 0;
  }
  const uint8_t* from = data.data() + offset;
  expect(beton::kernels().find_marker(from, n) == kPortableKernels.find_marker(from, n), "find_marker");
  const auto copied = [&](const char* name, size_t (*const Kernels::*copy)(const uint8_t*, size_t, uint8_t*)) {
    Bytes ours(2 * n + 32), portable(2 * n + 32);
    ours.resize((beton::kernels().*copy)(from, n, ours.data()));
    portable.resize((kPortableKernels.*copy)(from, n, portable.data()));
    expect(ours == portable, name);
  };
  copied("unstuff", &Kernels::unstuff);
  copied("stuff", &Kernels::stuff);
}

void filters() {
  // Weights as large as those of a filter with overshoot; high * 4096 + low, see fir.h.
  beton::FirAxis along, down;
  const int length = dice->between(16, 200), outputs = dice->between(1, 40), taps = 4 * dice->between(1, 4);
  for (beton::FirAxis* axis : {&along, &down}) {
    axis->outputs = outputs;
    axis->taps = taps;
    for (int i = 0; i < outputs; i++) {
      const int step = axis == &along ? 4 : 2, used = step * dice->between(1, taps / step);
      axis->used.push_back(used);
      axis->start.push_back(dice->between(0, length - used));
      for (int t = 0; t < taps; t++) axis->weights.push_back(t < used ? dice->between(-900000, 1600000) : 0);
    }
    for (size_t t = 0; t < axis->weights.size(); t += 4) {
      const int32_t* w = axis->weights.data() + t;
      const auto low = [&](int i) { return uint32_t(w[i]) & 4095; };
      const auto high = [&](int i) { return uint32_t((w[i] - int32_t(low(i))) / 4096) & 0xFFFF; };
      const uint32_t lows[2] = {low(1) << 16 | low(0), low(3) << 16 | low(2)};
      const uint32_t highs[2] = {high(1) << 16 | high(0), high(3) << 16 | high(2)};
      for (uint32_t part : {lows[0], axis == &along ? lows[1] : highs[0], axis == &along ? highs[0] : lows[1], highs[1]}) {
        axis->parts.push_back(int32_t(part));
      }
    }
    axis->start_data = axis->start.data();
    axis->used_data = axis->used.data();
    axis->weights_data = axis->weights.data();
    axis->parts_data = axis->parts.data();
  }
  Bytes rows[4];
  for (Bytes& row : rows) row = random_bytes(size_t(3 * length + beton::kRowPadding));
  const uint8_t* const from[4] = {rows[0].data(), rows[1].data(), rows[2].data(), rows[3].data()};
  Bytes ours[4], portable[4];
  const auto run = [&](const Kernels& k, Bytes* to) {
    for (int r = 0; r < 4; r++) to[r].assign(size_t(3 * outputs + 1), 0);
    uint8_t* const out[4] = {to[0].data(), to[1].data(), to[2].data(), to[3].data()};
    k.fir_rows(along, from, out);
    for (int r = 0; r < 4; r++) to[r].pop_back();  // one byte behind is written, and means nothing
  };
  run(beton::kernels(), ours);
  run(kPortableKernels, portable);
  for (int r = 0; r < 4; r++) expect(ours[r] == portable[r], "fir_rows");

  const int n = random_length(), row = dice->below(outputs);
  const ptrdiff_t stride = n + 16 + dice->below(9);
  const Bytes plane = random_bytes(size_t(stride * length));
  compare("fir_columns", size_t(n + 16), [&](const Kernels& k, Bytes* to) {
    k.fir_columns(down, row, plane.data(), stride, n, to[0].data());
  });
}

void tables() {
  const size_t n = size_t(random_length());
  const Bytes source = random_bytes(n), table = random_bytes(256);
  compare("look_up", n + 16, [&](const Kernels& k, Bytes* to) {
    k.look_up(source.data(), table.data(), n, to[0].data());
    k.look_up(to[0].data(), table.data(), n, to[0].data());  // in place
  });
  // The first bracket is exact: few bits.
  const float line[5] = {float(dice->below(256)), float(dice->between(-4096, 4096)) / 64, float(dice->between(-4096, 4096)) / 64,
                         float(dice->between(-4096, 4096)) * 1e-6f, float(dice->between(-4096, 4096)) * 1e-7f};
  compare("to_floats", 4 * n + 64, [&](const Kernels& k, Bytes* to) {
    std::vector<float> floats(n);
    k.to_floats(source.data(), line, n, floats.data());
    std::memcpy(to[0].data(), floats.data(), 4 * n);
  });
}

void colour_changes() {
  const size_t n = size_t(dice->below(8) == 0 ? dice->between(900, 2200) : random_length());
  const Bytes source[3] = {random_bytes(n), random_bytes(n), random_bytes(n)};
  compare("sum_of_greys", 8, [&](const Kernels& k, Bytes* to) {
    const uint64_t sum = k.sum_of_greys(source[0].data(), source[1].data(), source[2].data(), n);
    std::memcpy(to[0].data(), &sum, 8);
  });
  const auto copy = [&](Bytes* to) {
    for (int c = 0; c < 3; c++) std::memcpy(to[c].data(), source[c].data(), n);
  };
  const float factor = float(dice->between(0, 3000)) / 1000, missing = float(dice->between(0, 1000)) / 1000;
  const uint8_t whole = uint8_t(dice->below(6));
  compare("blend", n + 64, [&](const Kernels& k, Bytes* to) {
    copy(to);
    k.blend(to[0].data(), n, factor, 255 - 255 * factor);
  });
  compare("gray", n + 64, [&](const Kernels& k, Bytes* to) {
    copy(to);
    k.gray(to[0].data(), to[1].data(), to[2].data(), n);
  });
  compare("saturate", n + 64, [&](const Kernels& k, Bytes* to) {
    copy(to);
    k.saturate(to[0].data(), to[1].data(), to[2].data(), n, factor, 1 - factor);
  });
  compare("turn_hue", n + 64, [&](const Kernels& k, Bytes* to) {
    copy(to);
    k.turn_hue(to[0].data(), to[1].data(), to[2].data(), n, whole, missing, 255.999f / 255);
  });
}

void blurs() {
  const int height = dice->between(14, 40), width = dice->between(14, 140), pitch = (width + 31) & -32, most = 13;
  const size_t n = size_t(height * width);
  const Bytes source = random_bytes(n);
  std::vector<int16_t> values[2] = {random_words(most + 1, -32768, 32767), random_words(most + 1, -32768, 32767)};
  beton::BlurWeights weights[2];
  for (int d = 0; d < 2; d++) {
    weights[d] = {reinterpret_cast<const uint16_t*>(values[d].data()), dice->between(0, most), uint16_t(dice->below(64))};
  }
  compare("blur_plane", n + 64, [&](const Kernels& k, Bytes* to) {
    std::vector<uint16_t> line(size_t(pitch + 64)), sums(static_cast<size_t>(pitch)), rows(size_t(pitch * (height + 2 * most)));
    k.blur_plane({weights[0], weights[1], pitch, line.data() + 32, sums.data(), rows.data() + most * pitch}, source.data(),
                 height, width, to[0].data());
  });
}

// A row of MCUs of one to three components: random coefficients as symbols, their codes, and what each set of kernels
// reads from them. Some values leave the range of sound files, where arithmetic wraps.
void blocks() {
  const int components = dice->below(2) == 0 ? 1 : 3, mcus = dice->between(1, 12), luma = components == 1 ? 1 : dice->between(1, 4);
  const bool damaged = dice->below(3) == 0;
  const int most = dice->below(3) == 0 ? 63 : dice->between(0, 20), size_limit = damaged ? 10 : dice->between(1, 6);
  beton::SymbolSink sink;
  sink.clear();
  sink.start_segment();
  const int per_mcu = luma + components - 1;
  sink.reserve(size_t(per_mcu * mcus));
  const auto add = [&](uint32_t index, int size) {
    const uint32_t bits = dice->next() & ((1u << size) - 1);
    *sink.next++ = bits << beton::kIndexBits | index;
    sink.counts[0][index]++;
  };
  for (int b = 0; b < per_mcu * mcus; b++) {
    const uint32_t set = b % per_mcu < luma ? 0 : beton::kSetSize;
    const int dc = dice->below(6);  // differences small enough that few runs leave the range
    add(set + uint32_t(dc), dc);
    int k = 1;
    const bool along_first_row = dice->below(4) == 0;
    for (int i = dice->below(most + 1); i > 0 && k < 64; i--) {
      int run = along_first_row ? (k == 1 ? 0 : 3) : dice->below(20);  // 1 and 5 lie in the first row of coefficients
      if (along_first_row && k > 5) break;
      for (; run > 15 && k + 16 < 64; k += 16, run -= 16) add(set + beton::kAcClass + beton::kZeroRun, 0);
      run &= 15;
      if (k + run > 63) break;
      const int size = dice->between(1, size_limit);
      add(set + beton::kAcClass + uint32_t(run << 4 | size), size);
      k += run + 1;
    }
    if (k < 64) add(set + beton::kAcClass, 0);
  }
  static beton::CodeSet codes;
  if (!beton::make_codes(sink.counts, components == 1 ? 1 : 2, &codes)) return expect(false, "make_codes");
  const size_t count = sink.used();
  Bytes scans[2];
  for (int set = 0; set < 2; set++) {
    const Kernels& k = set == 0 ? beton::kernels() : kPortableKernels;
    scans[set].resize(count * 4 + 8);
    const uint8_t* end = k.write_codes(sink.data, count, codes.codes, scans[set].data());
    scans[set].resize(size_t(end - scans[set].data()));
  }
  expect(scans[0] == scans[1], "write_codes");
  const size_t bytes = scans[0].size();
  scans[0].resize(bytes + beton::kSegmentPadding);

  static beton::HuffmanTable dc_tables[2];
  static beton::SymbolTable ac_tables[2];
  for (int t = 0; t < (components == 1 ? 2 : 4); t++) {
    Bytes dht(codes.bits[t] + 1, codes.bits[t] + 17);
    dht.insert(dht.end(), codes.values[t], codes.values[t] + codes.num_values[t]);
    bool known;
    const beton::Status status =
        t % 2 == 0 ? beton::make_huffman_table(dht.data(), dht.size(), true, &dc_tables[t / 2], &known)
                   : beton::make_symbol_table(dht.data(), dht.size(), &ac_tables[t / 2]);
    expect(status == beton::kOk, "tables");
  }
  uint16_t quant[3][64];
  for (auto& table : quant) {
    for (uint16_t& q : table) q = uint16_t(damaged ? dice->next() : uint32_t(dice->between(1, 255)));
  }
  const bool wide = luma % 2 == 0;  // two blocks in a row of luma
  beton::McuLayout layout;
  beton::SymbolLayout symbols;
  for (int i = 0; i < per_mcu; i++) {
    const int c = i < luma ? 0 : i - luma + 1, t = c == 0 ? 0 : 1;
    beton::BlockPlace& place = layout.block[layout.blocks++];
    place = {};
    place.dc = &dc_tables[t];
    place.ac = &ac_tables[t].full;
    place.quant = quant[c];
    place.component = c;
    place.x = c == 0 && wide ? i % 2 : 0;
    place.y = c > 0 ? 0 : wide ? i / 2 : i;
    place.per_mcu = c == 0 && wide ? 2 : 1;
    place.row_wanted = dice->below(8) != 0;
    beton::SymbolPlace& symbol = symbols.block[symbols.blocks++];
    symbol.dc = &dc_tables[t];
    symbol.ac = &ac_tables[t];
    symbol.component = c;
    symbol.set = c == 0 ? 0 : beton::kSetSize;
    symbol.real = dice->below(8) != 0;
  }
  const int width = 16 * mcus + 8 * dice->between(1, 2);
  beton::StripSet strips;
  strips.first_mcu = 0;
  for (int c = 0; c < 3; c++) {
    const int columns = mcus * (c == 0 && wide ? 2 : 1);
    strips.stride[c] = width;
    strips.low[c] = dice->below(4) == 0 ? dice->below(columns) : 0;
    strips.high[c] = dice->below(4) == 0 ? dice->between(strips.low[c], columns) : columns;
  }
  const bool wanted = dice->below(6) != 0;
  beton::ScanState states[2];
  int at = 0;
  compare("decode_mcus", size_t(width) * 32, [&](const Kernels& k, Bytes* to) {
    for (int c = 0; c < 3; c++) strips.data[c] = to[c].data();
    beton::ScanState& state = states[at++];
    state.reader.next = scans[0].data();
    state.reader.end = scans[0].data() + bytes;
    to[0].push_back(uint8_t(k.decode_mcus(&state, layout, 0, mcus, wanted ? &strips : nullptr)));
  });
  expect(states[0].reader.left() == states[1].reader.left() && states[0].last_dc[0] == states[1].last_dc[0],
         "the state behind decode_mcus");

  beton::SymbolSink read[2];
  beton::Status status[2];
  for (int set = 0; set < 2; set++) {
    const Kernels& k = set == 0 ? beton::kernels() : kPortableKernels;
    read[set].clear();
    read[set].start_segment();
    read[set].reserve(size_t(per_mcu * mcus));
    beton::ScanState state;
    state.reader.next = scans[0].data();
    state.reader.end = scans[0].data() + bytes;
    status[set] = k.read_symbols(&state, symbols, mcus, &read[set]);
  }
  expect(status[0] == status[1] && read[0].used() == read[1].used() &&
             std::memcmp(read[0].data, read[1].data, read[0].used() * sizeof(uint32_t)) == 0 &&
             std::memcmp(read[0].counts, read[1].counts, sizeof read[0].counts) == 0,
         "read_symbols");
}

void forward() {
  beton::Quantiser quantiser;
  for (int i = 0; i < 64; i++) {
    // Powers of two, whose reciprocals are plain; the encoder's own tables are compared by whole files.
    const int shift = dice->between(3, 10);
    quantiser.correction[i] = uint16_t(1 << (shift - 1));
    quantiser.reciprocal[i] = uint16_t(1 << (16 - shift + 2));
    quantiser.scale[i] = 1 << 14;
  }
  const int blocks = dice->between(1, 6), mcus = dice->between(1, 7);
  const ptrdiff_t stride = 16 * mcus + 8 + dice->below(9);
  const Bytes plane = random_bytes(size_t(stride) * 32 + 64);
  beton::EncodeLayout layout;
  for (int i = 0; i < blocks; i++) {
    beton::EncodePlace& place = layout.block[layout.blocks++];
    place.quantiser = &quantiser;
    place.data = plane.data() + 8 * dice->below(3) * stride + 8 * (i % 2);
    place.stride = stride;
    place.step = 16;
    place.columns = dice->below(4) == 0 ? dice->below(mcus + 1) : mcus;
    place.component = i % 3;
    place.set = i % 3 == 0 ? 0 : beton::kSetSize;
  }
  beton::SymbolSink made[2];
  for (int set = 0; set < 2; set++) {
    made[set].clear();
    made[set].start_segment();
    made[set].reserve(size_t(blocks * mcus));
    (set == 0 ? beton::kernels() : kPortableKernels).encode_mcus(layout, 0, mcus, &made[set]);
  }
  expect(made[0].used() == made[1].used() &&
             std::memcmp(made[0].data, made[1].data, made[0].used() * sizeof(uint32_t)) == 0 &&
             std::memcmp(made[0].counts, made[1].counts, sizeof made[0].counts) == 0,
         "encode_mcus");
}

}  // namespace

bool kernels_agree(Random* random, int rounds) {
  dice = random;
  for (int round = 0; round < rounds && good; round++) {
    for (const auto check : {horizontal, finish, colours, chroma, markers, filters, tables, colour_changes, blurs, blocks,
                             forward}) {
      check();
    }
  }
  return good;
}
