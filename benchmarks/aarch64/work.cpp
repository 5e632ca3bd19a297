// Does one kind of work on every image of a file, so many times:  work KERNELS KIND FILE TIMES
//
// The file: for each image eight 32-bit numbers (bytes, mode, width, height and a box x, y, w, h), then its bytes. KIND
// is "crop" (the box, resized to 224 x 224), "decode" (the whole image) or "encode" (of raw pixels, quality 90).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "beton_native.h"

struct Image {
  int32_t bytes, mode, width, height, x, y, w, h;
};

static int32_t work(const char* kind, const Image& image, const uint8_t* data, uint8_t* out) {
  const int64_t rgb_bytes = int64_t(image.width) * image.height * 3;
  if (std::strcmp(kind, "decode") == 0) {
    return beton_jpeg_decode(data, image.bytes, BETON_INTERLEAVED, out, rgb_bytes, nullptr);
  }
  if (std::strcmp(kind, "encode") == 0) {
    uint8_t* jpeg = nullptr;
    int64_t size = 0;
    const int32_t status =
        beton_jpeg_encode(data, image.width, image.height, image.width * 3, 90, 2, 2, 1, &jpeg, &size, nullptr);
    beton_free(jpeg);
    return status;
  }
  beton_request q = {};
  q.src = uint64_t(uintptr_t(data));
  q.src_bytes = uint64_t(image.bytes);
  q.dst = uint64_t(uintptr_t(out));
  q.mode = image.mode;
  q.src_width = image.width;
  q.src_height = image.height;
  q.box_x = image.x;
  q.box_y = image.y;
  q.box_w = image.w;
  q.box_h = image.h;
  q.scaled_w = q.scaled_h = q.out_w = q.out_h = 224;
  q.row_stride = 224;
  q.plane_stride = 224 * 224;
  q.interpolation = BETON_BILINEAR;
  q.antialias = 1;
  q.channels = 3;
  return int32_t(beton_decode_regions(&q, 1));
}

int main(int argc, char** argv) {
  if (argc != 5 || beton_set_kernels(argv[1]) != 0) return 2;
  std::FILE* file = std::fopen(argv[3], "rb");
  std::vector<Image> images;
  std::vector<std::vector<uint8_t>> data;
  Image image;
  while (file != nullptr && std::fread(&image, sizeof image, 1, file) == 1) {
    images.push_back(image);
    data.emplace_back(size_t(image.bytes));
    if (std::fread(data.back().data(), 1, size_t(image.bytes), file) != size_t(image.bytes)) return 3;
  }
  std::vector<uint8_t> out(size_t(3) << 20);
  uint64_t sum = 0;
  for (int round = 0; round < std::atoi(argv[4]); round++) {
    for (size_t i = 0; i < images.size(); i++) {
      if (work(argv[2], images[i], data[i].data(), out.data()) != 0) return 4;
      sum = sum * 31 + out[size_t(image.width)];
    }
  }
  std::printf("%s: %zu images, sum %llu\n", beton_kernels(), images.size(), static_cast<unsigned long long>(sum));
  return images.empty() ? 5 : 0;
}
