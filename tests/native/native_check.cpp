// Drives the native core without Python, for AddressSanitizer, UBSan and valgrind: see docs/native.md.
//
//   beton_native_check [ROUNDS] [SEED] [KERNELS]
//
// Compares each kernel with its portable namesake. Then, in each round, encodes and transcodes an image, decodes random
// regions of it and of damaged copies, resizes it; sizes, samplings and geometry are random. Transcoding must give the
// bytes of libjpeg, or refuse. A round runs with the best kernels and with the portable ones, unless KERNELS names one
// set, and all outputs must be equal. Every output is summed, so that valgrind reports any byte that was never written.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "beton_native.h"
#include "header.h"
#include "libjpeg_io.h"
#include "native_check.h"

namespace {

Random dice;

int below(int n) { return dice.below(n); }

uint64_t total = 0, hash = 0, all = 0;  // hash: of one run of a round, all: of all rounds
int decoded = 0, refused = 0;  // regions of damaged copies

// Memory of exactly the size wanted, so that a byte too far is a byte out of bounds.
struct Exact {
  explicit Exact(size_t n) : size(n), data(new uint8_t[n == 0 ? 1 : n]) {}
  size_t size;
  std::unique_ptr<uint8_t[]> data;
};

Exact copy_of(const uint8_t* data, size_t n) {
  Exact e(n);
  if (n > 0) std::memcpy(e.data.get(), data, n);
  return e;
}

// Branches on every byte: valgrind reports the ones that were never written.
void use(const uint8_t* data, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (data[i] > 127) total++;
    hash = (hash ^ data[i]) * 0x100000001B3u;  // FNV-1a
  }
}

beton_request random_request(const Exact& source, int mode, int width, int height) {
  beton_request q;
  std::memset(&q, 0, sizeof q);
  q.src = uint64_t(uintptr_t(source.data.get()));
  q.src_bytes = source.size;
  q.mode = mode;
  q.src_width = width;
  q.src_height = height;
  q.box_w = 1 + below(width);
  q.box_h = 1 + below(height);
  q.box_x = below(width - q.box_w + 1);
  q.box_y = below(height - q.box_h + 1);
  const bool exact = below(3) == 0;
  q.scaled_w = exact ? q.box_w : 1 + below(90);
  q.scaled_h = exact ? q.box_h : 1 + below(90);
  q.out_w = q.scaled_w;
  q.out_h = q.scaled_h;
  if (below(4) == 0) {
    q.out_w = 1 + below(100);
    q.out_h = 1 + below(100);
    q.window_x = below(120) - 40;
    q.window_y = below(120) - 40;
    q.pad_mode = below(4);
  }
  q.flip = below(4);
  q.interpolation = below(3);
  q.antialias = below(2);
  q.channels = 3;
  q.row_stride = q.out_w;
  q.plane_stride = q.row_stride * q.out_h;
  return q;
}

// Some requests for one image in one call; whether all succeed.
bool regions(const Exact& source, int mode, int width, int height) {
  beton_request q[4];
  Exact* outputs[4];
  const int count = 1 + below(4);
  for (int i = 0; i < count; i++) {
    q[i] = random_request(source, mode, width, height);
    outputs[i] = new Exact(size_t(q[i].plane_stride) * 3);
    q[i].dst = uint64_t(uintptr_t(outputs[i]->data.get()));
  }
  int64_t failed = beton_decode_regions(q, count);
  const bool good = failed == 0;
  for (int i = 0; i < count; i++) {
    if (q[i].status == 0) {
      use(outputs[i]->data.get(), outputs[i]->size);
    } else {
      failed--;
    }
    delete outputs[i];
  }
  if (failed != 0) std::abort();
  return good;
}

bool whole(const Exact& source, int width, int height) {
  char reason[200];
  const int layout = below(3);
  Exact rgb(size_t(width) * size_t(height) * (layout == BETON_LUMA ? 1 : 3));
  const bool good = beton_jpeg_decode(source.data.get(), int64_t(source.size), layout, rgb.data.get(),
                                      int64_t(rgb.size), reason) == 0;
  if (good) use(rgb.data.get(), rgb.size);
  uint8_t* again = nullptr;
  int64_t bytes = 0;
  const int restart = below(2), keep_icc = below(2);
  if (beton_jpeg_transcode(source.data.get(), int64_t(source.size), restart, keep_icc, &again, &bytes, reason) == 0) {
    use(again, size_t(bytes));
    uint8_t* theirs = nullptr;
    size_t their_bytes = 0;
    if (beton::libjpeg_transcode(source.data.get(), source.size, restart, keep_icc != 0, &theirs, &their_bytes,
                                 reason) != beton::kOk ||
        their_bytes != size_t(bytes) || std::memcmp(again, theirs, their_bytes) != 0) {
      std::puts("transcoding differs from libjpeg's");
      std::abort();
    }
    std::free(theirs);
    beton_free(again);
  }
  return good;
}

Exact damaged(const Exact& source) {
  size_t n = source.size;
  if (below(3) == 0) n = size_t(below(int(n)));
  Exact e = copy_of(source.data.get(), n);
  const int changes = below(8);
  for (int i = 0; i < changes && n > 2; i++) {
    const int values[4] = {0, 0xFF, 0xD0 + below(10), below(256)};
    e.data[size_t(2 + below(int(n) - 2))] = uint8_t(values[below(4)]);
  }
  return e;
}

const char* round_fails(int round) {
  const int samplings[6][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {1, 2}, {4, 2}};
  const int width = 1 + below(round % 5 == 0 ? 12 : 150), height = 1 + below(round % 5 == 0 ? 12 : 150);
  Exact rgb(size_t(width) * size_t(height) * 3);
  for (size_t i = 0; i < rgb.size; i++) {
    rgb.data[i] = uint8_t(128 + 60 * ((i / 40) % 2) - int(i % 50) + below(20));
  }
  const int* sampling = samplings[below(6)];
  uint8_t* encoded = nullptr;
  int64_t bytes = 0;
  const int quality = 30 + below(71), restart = below(3) != 0;
  if (beton_jpeg_encode(rgb.data.get(), width, height, width * 3, quality, sampling[0], sampling[1], restart, &encoded,
                        &bytes, nullptr) != 0) {
    return "encoding";
  }
  const Exact jpeg = copy_of(encoded, size_t(bytes));
  beton_free(encoded);
  use(jpeg.data.get(), jpeg.size);
  for (int i = 0; i < 6; i++) {
    if (!regions(rgb, BETON_MODE_RAW, width, height) || !regions(jpeg, BETON_MODE_JPEG, width, height)) return "decoding";
  }
  if (!whole(jpeg, width, height)) return "decoding a whole image";
  for (int i = 0; i < 4; i++) {
    const int new_width = 1 + below(i == 0 ? 4 : 200), new_height = 1 + below(i == 1 ? 4 : 200), filter = below(4);
    const Exact resized(size_t(new_width) * size_t(new_height) * 3);
    if (beton_resize_rgb(rgb.data.get(), width, height, width * 3, filter, new_width, new_height,
                         resized.data.get()) != 0) {
      return "resizing";
    }
    use(resized.data.get(), resized.size);
  }
  const Exact planes(rgb.size);
  const int channels = below(2) == 0 ? 1 : 3, low_quality = 1 + below(100);
  if (beton_jpeg_round_trip(rgb.data.get(), channels, height, width, low_quality, planes.data.get()) != 0) {
    return "a round trip";
  }
  use(planes.data.get(), size_t(width) * size_t(height) * size_t(channels));
  for (int i = 0; i < 10; i++) {
    const Exact broken = damaged(jpeg);
    (regions(broken, BETON_MODE_JPEG, width, height) ? decoded : refused)++;
    whole(broken, width, height);
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  dice.state = argc > 2 ? uint64_t(std::atoll(argv[2])) : 1;
  const std::vector<const char*> sets = argc > 3 ? std::vector<const char*>{argv[3]} : std::vector<const char*>{"auto", "portable"};
  beton_set_kernels(sets[0]);
  std::printf("kernels: %s\n", beton_kernels());
  if (!kernels_agree(&dice, rounds)) return 1;
  for (int round = 0; round < rounds; round++) {
    const Random start = dice;
    uint64_t first = 0;
    for (const char* set : sets) {
      beton_set_kernels(set);
      dice = start;
      hash = 0;
      if (const char* what = round_fails(round)) {
        std::printf("%s failed\n", what);
        return 1;
      }
      if (set == sets[0]) {
        first = hash;
        all = all * 31 + hash;
      }
      if (hash != first) {
        std::printf("round %d: the outputs differ from the portable ones\n", round);
        return 1;
      }
    }
  }
  std::printf("%d rounds; of the damaged copies %d regions decoded and %d were refused; sum %llu, hash %016llx\n", rounds,
              decoded, refused, static_cast<unsigned long long>(total), static_cast<unsigned long long>(all));
  return 0;
}
