#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "beton_native.h"
#include "encoder.h"
#include "header.h"
#include "jpeg_file.h"
#include "kernels.h"
#include "libjpeg_io.h"
#include "planar.h"
#include "raw.h"
#include "region.h"
#include "resize.h"
#include "scan.h"
#include "scratch.h"
#include "status.h"

using namespace beton;

namespace {

// libjpeg accepts images our header reader refuses up front; both must agree on what this JPEG is.
Status check_whole(const uint8_t* data, int64_t size, JpegHeader* header) {
  if (size < 0 || (data == nullptr && size > 0)) return kBadRequest;
  Status status = parse_header(data, size_t(size), header);
  if (status != kOk) return status;
  return check_plausible(*header, size_t(size));
}

// Runs one of our own ways over this thread's scratch memory.
template <typename Way>
Status guarded(const Way& way) {
  Scratch& scratch = thread_scratch();
  Status status;
  try {
    status = way(&scratch);
  } catch (const std::bad_alloc&) {
    status = kOutOfMemory;
  }
  scratch.trim();
  return status;
}

void clear(char* reason) {
  if (reason != nullptr) reason[0] = 0;
}

// Whatever our own ways do not find plainly sound is libjpeg's to judge, and to give a reason for. But libjpeg lets runs
// of zeros leave their block, and values leave their range, which no encoder makes: a bad code stays one. So where our own
// way did not look at the codes, they are looked at here.
Status verdict(const JpegHeader& h, const uint8_t* data, size_t size, Status own, Status libjpeg, char* reason) {
  if (libjpeg != kOk) return libjpeg;
  if (own == kUnsupported) own = guarded([&](Scratch* scratch) { return check_scan(h, data, size, scratch); });
  if (own != kBadCode) return kOk;
  clear(reason);
  return kBadCode;
}

// After one of our own ways succeeded.
Status done(const JpegHeader& h, char* reason) {
  remark(h.stray_bytes + thread_scratch().stray_bytes, reason);
  return kOk;
}

// Brings the beginning of a small raw image, which lies anywhere in the file, into the cache while another is copied.
void fetch_ahead(const beton_request& q) {
  constexpr uint64_t kLine = 64, kMost = 4096;
  if (q.mode != BETON_MODE_RAW) return;
  for (uint64_t at = 0; at < std::min(q.src_bytes, kMost); at += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(uintptr_t(q.src + at)));
  }
}

}  // namespace

extern "C" {

int32_t beton_interface(void) { return BETON_INTERFACE; }

int64_t beton_request_size(void) { return int64_t(sizeof(beton_request)); }

int64_t beton_decode_regions(beton_request* requests, int64_t count) {
  int64_t failed = 0;
  int64_t end = 0;  // of the requests for the image of request i
  Cover cover;
  bool shared = false;
  for (int64_t i = 0; i < count; i++) {
    if (i == end) {
      while (end < count && requests[end].src == requests[i].src && requests[end].src_bytes == requests[i].src_bytes) end++;
      shared = end > i + 1 && guarded([&](Scratch* scratch) {
                                return decode_together(requests + i, end - i, &cover, scratch) ? kOk : kUnsupported;
                              }) == kOk;
    }
    if (i + 1 < count) fetch_ahead(requests[i + 1]);
    Status status;
    try {
      if (!copy_raw(requests[i], &status)) status = decode_region(requests[i], shared ? &cover : nullptr);
    } catch (const std::bad_alloc&) {
      status = kOutOfMemory;
    } catch (...) {
      status = kLibjpeg;
    }
    requests[i].status = status;
    failed += status != kOk;
  }
  return failed;
}

const char* beton_status_text(int32_t status) { return status_text(status); }

int32_t beton_jpeg_probe(const uint8_t* data, int64_t size, beton_jpeg_info* info) {
  JpegHeader h;
  std::memset(info, 0, sizeof *info);
  if (size < 0 || (data == nullptr && size > 0)) return kBadRequest;
  const Status status = parse_header(data, size_t(size), &h);
  if (status != kOk) return status;
  info->width = h.width;
  info->height = h.height;
  info->num_components = h.num_components;
  for (int i = 0; i < h.num_components; i++) {
    info->h_samp[i] = h.component[i].h;
    info->v_samp[i] = h.component[i].v;
  }
  info->progressive = h.progressive;
  info->arithmetic = h.arithmetic;
  info->restart_interval = h.restart_interval;
  info->color_space = h.space;
  info->mcu_width = h.mcu_width;
  info->mcu_height = h.mcu_height;
  info->mcus_per_row = h.mcus_per_row;
  info->mcu_rows = h.mcu_rows;
  info->num_scan_components = h.num_scan_components;
  return kOk;
}

int32_t beton_jpeg_decode(const uint8_t* data, int64_t size, int32_t layout, uint8_t* out, int64_t out_bytes,
                          char* reason) {
  clear(reason);
  JpegHeader h;
  const Status status = check_whole(data, size, &h);
  if (status != kOk) return status;
  if (h.num_components == 4) return kFourColours;
  if (layout < BETON_INTERLEAVED || layout > BETON_LUMA) return kBadRequest;
  if (out_bytes != int64_t(h.width) * h.height * (layout == BETON_LUMA ? 1 : 3)) return kBadRequest;
  const Status own =
      guarded([&](Scratch* scratch) { return decode_whole(h, data, size_t(size), layout, out, scratch); });
  if (own == kOk) return done(h, reason);
  // Of what is not ours libjpeg tells the coefficients, and whether they are in range, on a way of its own only.
  Status theirs = scan_supports(h) ? kOk : libjpeg_check(data, size_t(size), reason);
  if (theirs == kOk) {
    theirs = guarded([&](Scratch* scratch) {
      return libjpeg_decode_whole(h, data, size_t(size), layout, out, reason, scratch);
    });
  }
  return verdict(h, data, size_t(size), own, theirs, reason);
}

int32_t beton_jpeg_encode(const uint8_t* rgb, int32_t width, int32_t height, int64_t row_stride, int32_t quality,
                          int32_t h_samp, int32_t v_samp, int32_t restart, uint8_t** out, int64_t* out_bytes,
                          char* reason) {
  clear(reason);
  if (rgb == nullptr || width < 1 || height < 1 || width > 65500 || height > 65500 || row_stride < int64_t(width) * 3 ||
      quality < 1 || quality > 100 || h_samp < 1 || h_samp > 4 || v_samp < 1 || v_samp > 4) {
    return kBadRequest;
  }
  size_t bytes = 0;
  const Status status = guarded([&](Scratch* scratch) {
    return encode_rgb(rgb, width, height, size_t(row_stride), quality, h_samp, v_samp, restart, scratch, out, &bytes);
  });
  *out_bytes = int64_t(bytes);
  return status;
}

int32_t beton_jpeg_reencode(const uint8_t* data, int64_t size, int32_t quality, int32_t h_samp, int32_t v_samp,
                            int32_t restart, uint8_t** out, int64_t* out_bytes, char* reason) {
  clear(reason);
  JpegHeader h;
  const Status status = check_whole(data, size, &h);
  if (status != kOk) return status;
  if (quality < 1 || quality > 100) return kBadRequest;
  size_t bytes = 0;
  *out = nullptr;
  const Status own = guarded([&](Scratch* scratch) {
    return reencode(h, data, size_t(size), quality, h_samp, v_samp, restart, scratch, out, &bytes);
  });
  if (own != kOk) return own == kOutOfMemory ? own : kUnsupported;  // libjpeg decides what is damaged
  *out_bytes = int64_t(bytes);
  return done(h, reason);
}

int32_t beton_jpeg_transcode(const uint8_t* data, int64_t size, int32_t restart, int32_t keep_icc, uint8_t** out,
                             int64_t* out_bytes, char* reason) {
  clear(reason);
  JpegHeader h;
  // Coefficients are copied whatever their colours: that is also how a CMYK file is checked for damage.
  Status status = check_whole(data, size, &h);
  if (status != kOk) return status;
  size_t bytes = 0;
  *out = nullptr;
  const Status own = guarded([&](Scratch* scratch) {
    return recode(h, data, size_t(size), restart, keep_icc != 0, scratch, out, &bytes);
  });
  if (own == kOk) {
    *out_bytes = int64_t(bytes);
    return done(h, reason);
  }
  status = libjpeg_transcode(data, size_t(size), restart, keep_icc != 0, out, &bytes, reason);
  status = verdict(h, data, size_t(size), own, status, reason);
  if (status != kOk) {
    std::free(*out);
    *out = nullptr;
    bytes = 0;
  }
  *out_bytes = int64_t(bytes);
  return status;
}

int32_t beton_jpeg_check(const uint8_t* data, int64_t size, char* reason) {
  clear(reason);
  JpegHeader h;
  const Status status = check_whole(data, size, &h);
  if (status != kOk) return status;
  const Status own = guarded([&](Scratch* scratch) { return check_scan(h, data, size_t(size), scratch); });
  if (own == kOk) return done(h, reason);
  return verdict(h, data, size_t(size), own, libjpeg_check(data, size_t(size), reason), reason);
}

int32_t beton_resize_rgb(const uint8_t* rgb, int32_t width, int32_t height, int64_t row_stride, int32_t filter,
                         int32_t out_width, int32_t out_height, uint8_t* out) {
  constexpr int kLongest = 1 << 24;
  if (rgb == nullptr || out == nullptr || width < 1 || height < 1 || width > kLongest || height > kLongest ||
      out_width < 1 || out_height < 1 || out_width > kLongest || out_height > kLongest ||
      row_stride < int64_t(width) * 3 || filter < BETON_RESAMPLE_BOX || filter > BETON_RESAMPLE_LANCZOS) {
    return kBadRequest;
  }
  return guarded([&](Scratch* scratch) {
    resize_rgb(rgb, width, height, size_t(row_stride), filter, out_width, out_height, scratch, out);
    return kOk;
  });
}

void beton_free(uint8_t* memory) { std::free(memory); }

const char* beton_kernels(void) { return kernels().name; }

int32_t beton_set_kernels(const char* name) { return select_kernels(name) ? 0 : 1; }

}  // extern "C"
