// Drives the native core without Python, for AddressSanitizer, UBSan and valgrind: see docs/native.md.
//
//   beton_native_check [ROUNDS] [SEED] [KERNELS]
//
// Encodes and transcodes images of many sizes and samplings, decodes random regions of them, then of damaged copies.
// Transcoding must give the bytes of libjpeg, or refuse. Every output is summed, so that valgrind reports any byte that was never written; on request geometry is hostile too.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "beton_native.h"
#include "header.h"
#include "libjpeg_io.h"

namespace {

uint64_t state = 1;

uint32_t random_number() {  // SplitMix64
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return uint32_t((z ^ (z >> 31)) >> 32);
}

int below(int n) { return int(random_number() % uint32_t(n)); }

uint64_t total = 0;

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
  Exact rgb(size_t(width) * size_t(height) * 3);
  const bool good = beton_jpeg_decode(source.data.get(), int64_t(source.size), rgb.data.get(), int64_t(rgb.size),
                                      reason) == 0;
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

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  state = argc > 2 ? uint64_t(std::atoll(argv[2])) : 1;
  const int samplings[6][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {1, 2}, {4, 2}};
  int good = 0, bad = 0;
  for (int round = 0; round < rounds; round++) {
    beton_set_kernels(argc > 3 ? argv[3] : round % 2 == 0 ? "auto" : "portable");
    const int width = 1 + below(round % 5 == 0 ? 12 : 150), height = 1 + below(round % 5 == 0 ? 12 : 150);
    Exact rgb(size_t(width) * size_t(height) * 3);
    for (size_t i = 0; i < rgb.size; i++) {
      rgb.data[i] = uint8_t(128 + 60 * ((i / 40) % 2) - int(i % 50) + below(20));
    }
    const int* sampling = samplings[below(6)];
    uint8_t* encoded = nullptr;
    int64_t bytes = 0;
    if (beton_jpeg_encode(rgb.data.get(), width, height, width * 3, 30 + below(71), sampling[0], sampling[1],
                          below(3) != 0, &encoded, &bytes, nullptr) != 0) {
      std::puts("encoding failed");
      return 1;
    }
    const Exact jpeg = copy_of(encoded, size_t(bytes));
    beton_free(encoded);
    for (int i = 0; i < 6; i++) {
      if (!regions(rgb, BETON_MODE_RAW, width, height) || !regions(jpeg, BETON_MODE_JPEG, width, height)) {
        std::puts("decoding failed");
        return 1;
      }
    }
    if (!whole(jpeg, width, height)) {
      std::puts("decoding a whole image failed");
      return 1;
    }
    for (int i = 0; i < 4; i++) {
      const int new_width = 1 + below(i == 0 ? 4 : 200), new_height = 1 + below(i == 1 ? 4 : 200);
      const Exact resized(size_t(new_width) * size_t(new_height) * 3);
      if (beton_resize_rgb(rgb.data.get(), width, height, width * 3, below(4), new_width, new_height,
                           resized.data.get()) != 0) {
        std::puts("resizing failed");
        return 1;
      }
      use(resized.data.get(), resized.size);
    }
    const Exact planes(rgb.size);
    const int channels = below(2) == 0 ? 1 : 3;
    if (beton_jpeg_round_trip(rgb.data.get(), channels, height, width, 1 + below(100), planes.data.get()) != 0) {
      std::puts("a round trip failed");
      return 1;
    }
    use(planes.data.get(), size_t(width) * size_t(height) * size_t(channels));
    for (int i = 0; i < 10; i++) {
      const Exact broken = damaged(jpeg);
      (regions(broken, BETON_MODE_JPEG, width, height) ? good : bad)++;
      whole(broken, width, height);
    }
  }
  std::printf("%d rounds; of the damaged copies %d regions decoded and %d were refused; sum %llu\n", rounds, good, bad,
              static_cast<unsigned long long>(total));
  return 0;
}
