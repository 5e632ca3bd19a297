#include "round_trip.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "beton_native.h"
#include "encoder.h"
#include "region.h"
#include "scratch.h"

namespace beton {

namespace {

struct RoundTripMemory {
  Buffer pixels, planes;
};

RoundTripMemory& round_trip_memory() {
  thread_local RoundTripMemory memory;
  return memory;
}

Status decode(const uint8_t* file, size_t bytes, int height, int width, uint8_t* planes) {
  beton_request q;
  std::memset(&q, 0, sizeof q);
  q.src = uint64_t(uintptr_t(file));
  q.src_bytes = bytes;
  q.dst = uint64_t(uintptr_t(planes));
  q.plane_stride = int64_t(width) * height;
  q.row_stride = width;
  q.mode = BETON_MODE_JPEG;
  q.src_width = q.box_w = q.scaled_w = q.out_w = width;
  q.src_height = q.box_h = q.scaled_h = q.out_h = height;
  q.interpolation = BETON_BILINEAR;
  q.channels = 3;
  return decode_region(q);
}

}  // namespace

Status round_trip(const uint8_t* source, int channels, int height, int width, int quality, uint8_t* target) {
  if ((channels != 1 && channels != 3) || height < 1 || width < 1 || height > 65500 || width > 65500 || quality < 1 ||
      quality > 100) {
    return kBadRequest;
  }
  try {
    const size_t plane = size_t(height) * size_t(width);
    RoundTripMemory& memory = round_trip_memory();
    uint8_t* rgb = memory.pixels.get<uint8_t>(3 * plane);
    // Gray goes as three equal colours: their luma is the gray itself, and their chroma is nothing.
    const uint8_t* const green = channels == 3 ? source + plane : source;
    const uint8_t* const blue = channels == 3 ? source + 2 * plane : source;
    for (size_t i = 0; i < plane; i++) {
      rgb[3 * i] = source[i];
      rgb[3 * i + 1] = green[i];
      rgb[3 * i + 2] = blue[i];
    }
    uint8_t* file = nullptr;
    size_t bytes = 0;
    Status status = encode_rgb(rgb, width, height, 3 * size_t(width), quality, 2, 2, BETON_RESTART_NONE,
                               &thread_scratch(), &file, &bytes);
    if (status == kOk) {
      uint8_t* planes = channels == 3 ? target : memory.planes.get<uint8_t>(3 * plane);
      status = decode(file, bytes, height, width, planes);
      if (status == kOk && channels == 1) std::memcpy(target, planes, plane);
    }
    std::free(file);
    constexpr size_t kKeep = size_t(32) << 20;
    memory.pixels.trim(kKeep);
    memory.planes.trim(kKeep);
    return status;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace beton

extern "C" {

int32_t beton_jpeg_round_trip(const uint8_t* source, int32_t channels, int32_t height, int32_t width, int32_t quality,
                              uint8_t* target) {
  return beton::round_trip(source, channels, height, width, quality, target);
}

}  // extern "C"
