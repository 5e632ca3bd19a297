// Thread-safety: every function may be called from any number of threads at once; scratch memory is per thread.
//
// The C ABI of the native core: the only symbols the library exports. dataloading/_native/__init__.py mirrors it.
#ifndef BETON_NATIVE_H
#define BETON_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BETON_API __attribute__((visibility("default")))

// One sample to produce. The order and types of the fields are those of REQUEST in the gateway.
typedef struct beton_request {
  uint64_t src;          // address of the stored bytes
  uint64_t src_bytes;
  uint64_t dst;          // address of row 0 of plane 0
  int64_t plane_stride;  // bytes
  int64_t row_stride;    // bytes
  int32_t mode;          // BETON_MODE_*
  int32_t src_width, src_height;
  int32_t box_x, box_y, box_w, box_h;
  int32_t scaled_w, scaled_h;
  int32_t window_x, window_y, out_w, out_h;
  int32_t pad_mode;  // BETON_PAD_*
  uint8_t fill[4];
  int32_t flip;  // bit 0: left-right, bit 1: top-bottom
  int32_t interpolation;
  int32_t antialias;
  int32_t channels;
  int32_t status;  // out
} beton_request;

enum { BETON_MODE_JPEG = 0, BETON_MODE_RAW = 1 };
enum { BETON_PAD_CONSTANT = 0, BETON_PAD_EDGE = 1, BETON_PAD_REFLECT = 2, BETON_PAD_SYMMETRIC = 3 };
enum { BETON_NEAREST = 0, BETON_BILINEAR = 1, BETON_BICUBIC = 2 };

// What a JPEG's headers say.
typedef struct beton_jpeg_info {
  int32_t width, height, num_components;
  int32_t h_samp[4], v_samp[4];
  int32_t progressive, arithmetic, restart_interval;
  int32_t color_space;  // BETON_SPACE_*
  int32_t mcu_width, mcu_height, mcus_per_row, mcu_rows;
  int32_t num_scan_components;  // of the first scan
} beton_jpeg_info;

enum { BETON_SPACE_GRAY = 0, BETON_SPACE_YCBCR = 1, BETON_SPACE_RGB = 2, BETON_SPACE_CMYK = 3, BETON_SPACE_YCCK = 4 };

enum { BETON_RESTART_NONE = 0, BETON_RESTART_AUTO = 1 };

enum { BETON_RESAMPLE_BOX = 0, BETON_RESAMPLE_BILINEAR = 1, BETON_RESAMPLE_BICUBIC = 2, BETON_RESAMPLE_LANCZOS = 3 };

// Raised with every change of what the gateway passes or expects, which refuses a library of another number.
#define BETON_INTERFACE 2
BETON_API int32_t beton_interface(void);
BETON_API int64_t beton_request_size(void);
// Fills every request's status; returns how many are not 0. Requests for the same bytes that follow each other are decoded
// together where that is less work: the pixels are the same.
BETON_API int64_t beton_decode_regions(beton_request* requests, int64_t count);
BETON_API const char* beton_status_text(int32_t status);

BETON_API int32_t beton_jpeg_probe(const uint8_t* data, int64_t size, beton_jpeg_info* info);
// How a whole image is laid out: interleaved RGB; planes of red, green, blue; luma alone.
enum { BETON_INTERLEAVED = 0, BETON_PLANES = 1, BETON_LUMA = 2 };
// Whole image of width * height * 3 bytes, or of width * height with BETON_LUMA. `reason` (may be null) receives a text of
// at most 200 bytes: why not, or after success what was skipped although it belongs to nothing (empty if nothing was).
BETON_API int32_t beton_jpeg_decode(const uint8_t* data, int64_t size, int32_t layout, uint8_t* out, int64_t out_bytes,
                                    char* reason);
// On success *out is memory for beton_free.
BETON_API int32_t beton_jpeg_encode(const uint8_t* rgb, int32_t width, int32_t height, int64_t row_stride,
                                    int32_t quality, int32_t h_samp, int32_t v_samp, int32_t restart, uint8_t** out,
                                    int64_t* out_bytes, char* reason);
// Decodes a JPEG and encodes it again with another quality and its own sampling, which is the one given, without
// conversion of colours. kUnsupported: it is of another kind or damaged; decode and encode it.
BETON_API int32_t beton_jpeg_reencode(const uint8_t* data, int64_t size, int32_t quality, int32_t h_samp, int32_t v_samp,
                                      int32_t restart, uint8_t** out, int64_t* out_bytes, char* reason);
BETON_API int32_t beton_jpeg_transcode(const uint8_t* data, int64_t size, int32_t restart, int32_t keep_icc,
                                       uint8_t** out, int64_t* out_bytes, char* reason);
// Reads all entropy-coded data and keeps nothing: fails on what beton_jpeg_transcode fails on.
BETON_API int32_t beton_jpeg_check(const uint8_t* data, int64_t size, char* reason);
// What a JPEG of this quality, chroma halved both ways, leaves of planes of 1 or 3 channels.
BETON_API int32_t beton_jpeg_round_trip(const uint8_t* source, int32_t channels, int32_t height, int32_t width,
                                        int32_t quality, uint8_t* target);
// Resizes interleaved RGB to out_width * out_height * 3 bytes, exactly as Pillow's Image.resize.
BETON_API int32_t beton_resize_rgb(const uint8_t* rgb, int32_t width, int32_t height, int64_t row_stride,
                                   int32_t filter, int32_t out_width, int32_t out_height, uint8_t* out);
// Moves pixels without mixing them, as a request says: nearest interpolation, rows of `channels` interleaved values of 1 or 2
// bytes to planes of values of 1, 2, 4 or 8 bytes. Returns 0; -1 for other sizes, -2 if there is no memory.
BETON_API int32_t beton_gather(const beton_request* request, const void* source, int32_t source_bytes,
                               int32_t out_bytes, void* out);
// Planes of values of 1, 2, 4 or 8 bytes to interleaved pixels; -1 for other sizes.
BETON_API int32_t beton_interleave(const void* planes, int64_t images, int64_t channels, int64_t pixels, int32_t bytes,
                                   void* out);
BETON_API void beton_free(uint8_t* memory);

// Asks the system to read parts of mapped files into memory, and returns before it has: n ranges of addresses, widened to whole
// blocks of `block` bytes, a power of two and at least a page of the system.
BETON_API void beton_read_ahead(const uint64_t* starts, const uint64_t* bytes, int64_t n, int64_t block);

// Name of the kernels in use ("avx2", "neon", "portable"); beton_set_kernels returns 0 when this processor can run `name`.
BETON_API const char* beton_kernels(void);
BETON_API int32_t beton_set_kernels(const char* name);

// Gates: some thread opens one, others wait for that in C, where Python's signal handlers cannot run.
// `gate` is memory of BETON_GATE_BYTES, aligned to 16, that the caller keeps.
enum { BETON_GATE_BYTES = 64 };
BETON_API void beton_gate_init(void* gate);
BETON_API void beton_gate_open(void* gate);
// Waits at most so long, or until a signal arrives; returns whether the gate is open, -1 where nobody will open it: in
// a process that was forked later, or after beton_gates_close.
BETON_API int32_t beton_gate_wait(void* gate, int32_t milliseconds);
// The same as the callback of a weak reference, which it ignores; returns at once in our own threads, which the one
// that opens the gate may be waiting for.
BETON_API void beton_gate_wait_for_dropped(void* gate, int32_t milliseconds, void* reference);
BETON_API void beton_gates_close(void);
BETON_API void beton_thread_is_own(void);

#ifdef __cplusplus
}
#endif

#endif
