#include "libjpeg_io.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>
// After jpeglib.h: the message codes.
#include <jerror.h>

namespace beton {

namespace {

// Objects that live across a longjmp must be trivially destructible: plain structs and malloc only in this file.
struct ErrorTrap {
  jpeg_error_mgr base;  // first, so that cinfo->err is also a pointer to this
  jmp_buf jump;
  Status status;
  char* reason;
};

Status status_of(int code) {
  switch (code) {
    case JWRN_HIT_MARKER: case JWRN_JPEG_EOF: case JERR_INPUT_EOF: case JERR_INPUT_EMPTY: case JERR_NO_IMAGE:
      return kTruncated;
    case JWRN_HUFF_BAD_CODE: case JWRN_ARITH_BAD_CODE: case JERR_BAD_DCT_COEF:
      return kBadCode;
    case JWRN_MUST_RESYNC: case JERR_SOF_DUPLICATE: case JERR_SOI_DUPLICATE: case JERR_SOS_NO_SOF:
    case JERR_SOF_NO_SOS:
      return kBadMarker;
    case JWRN_EXTRANEOUS_DATA: return kExtraneous;
    case JERR_NO_SOI: return kNotJpeg;
    case JERR_SOF_UNSUPPORTED: case JERR_BAD_PRECISION: case JERR_COMPONENT_COUNT: case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL: case JERR_ARITH_NOTIMPL:
      return kUnsupported;
    case JERR_OUT_OF_MEMORY: return kOutOfMemory;
    case JERR_NO_BACKING_STORE: case JERR_IMAGE_TOO_BIG: case JERR_WIDTH_OVERFLOW: return kTooLarge;
    case JERR_BAD_LENGTH: case JERR_BAD_HUFF_TABLE: case JERR_DHT_INDEX: case JERR_DQT_INDEX:
    case JERR_EMPTY_IMAGE: case JERR_BAD_COMPONENT_ID: case JERR_NO_HUFF_TABLE: case JERR_NO_QUANT_TABLE:
    case JERR_NO_ARITH_TABLE: case JERR_BAD_SAMPLING: case JERR_BAD_MCU_SIZE: case JERR_BAD_PROGRESSION:
    case JERR_DAC_INDEX: case JERR_DAC_VALUE: case JWRN_BOGUS_PROGRESSION:
      return kBadHeader;
    default: return kLibjpeg;
  }
}

[[noreturn]] void leave(j_common_ptr cinfo, Status status) {
  ErrorTrap* trap = reinterpret_cast<ErrorTrap*>(cinfo->err);
  trap->status = status;
  if (trap->reason != nullptr) {
    char text[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, text);
    snprintf(trap->reason, kReasonBytes, "%s", text);
  }
  longjmp(trap->jump, 1);
}

void on_error(j_common_ptr cinfo) { leave(cinfo, status_of(cinfo->err->msg_code)); }

// libjpeg reports damaged data as a warning and goes on with made-up pixels; here a warning ends the decode.
void on_message(j_common_ptr cinfo, int level) {
  if (level >= 0) return;  // trace messages
  switch (cinfo->err->msg_code) {
    case JWRN_ADOBE_XFORM: case JWRN_JFIF_MAJOR: case JWRN_NOT_SEQUENTIAL:
      return;  // odd headers whose pixels are well defined
    default: leave(cinfo, status_of(cinfo->err->msg_code));
  }
}

void on_output(j_common_ptr) {}  // never print

void set_trap(ErrorTrap* trap, char* reason) {
  jpeg_std_error(&trap->base);
  trap->base.error_exit = on_error;
  trap->base.emit_message = on_message;
  trap->base.output_message = on_output;
  trap->status = kLibjpeg;
  trap->reason = reason;
  if (reason != nullptr) reason[0] = 0;
}

// A progressive file of a few kilobytes can ask for hours of work, scan by scan.
void on_progress(j_common_ptr cinfo) {
  if (cinfo->is_decompressor && reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans) {
    ErrorTrap* trap = reinterpret_cast<ErrorTrap*>(cinfo->err);
    trap->status = kTooManyScans;
    if (trap->reason != nullptr) snprintf(trap->reason, kReasonBytes, "%s", status_text(kTooManyScans));
    longjmp(trap->jump, 1);
  }
}

void limit_memory(j_decompress_ptr cinfo) { cinfo->mem->max_memory_to_use = long(1) << 31; }

// Like jpeg_mem_dest, but its buffer can be freed after an error: that one loses track of it.
struct Destination {
  jpeg_destination_mgr base;
  uint8_t* data;
  size_t capacity, used;
};

void destination_open(j_compress_ptr cinfo) {
  Destination* d = reinterpret_cast<Destination*>(cinfo->dest);
  d->base.next_output_byte = d->data;
  d->base.free_in_buffer = d->capacity;
}

boolean destination_grow(j_compress_ptr cinfo) {
  Destination* d = reinterpret_cast<Destination*>(cinfo->dest);  // called with the buffer full, by libjpeg's contract
  uint8_t* larger = static_cast<uint8_t*>(realloc(d->data, d->capacity * 2));
  if (larger == nullptr) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 10);
  d->data = larger;
  d->base.next_output_byte = larger + d->capacity;
  d->base.free_in_buffer = d->capacity;
  d->capacity *= 2;
  return TRUE;
}

void destination_close(j_compress_ptr cinfo) {
  Destination* d = reinterpret_cast<Destination*>(cinfo->dest);
  d->used = d->capacity - d->base.free_in_buffer;
}

bool set_destination(j_compress_ptr cinfo, Destination* d, size_t capacity) {
  d->base.init_destination = destination_open;
  d->base.empty_output_buffer = destination_grow;
  d->base.term_destination = destination_close;
  d->capacity = capacity;
  d->used = 0;
  d->data = static_cast<uint8_t*>(malloc(capacity));
  cinfo->dest = &d->base;
  return d->data != nullptr;
}

struct Encoder {
  jpeg_compress_struct cinfo;
  ErrorTrap trap;
  Destination destination;
};

struct Decoder {
  jpeg_decompress_struct cinfo;
  jpeg_progress_mgr progress;
  ErrorTrap trap;
};

// Whether a progressive file sent every bit of every coefficient; libjpeg would smooth over what is missing.
bool complete(j_decompress_ptr cinfo) {
  if (cinfo->coef_bits == nullptr) return true;
  for (int c = 0; c < cinfo->num_components; c++) {
    for (int k = 0; k < DCTSIZE2; k++) {
      if (cinfo->coef_bits[c][k] != 0) return false;
    }
  }
  return true;
}

}  // namespace

Status check_plausible(const JpegHeader& header, size_t size) {
  if (int64_t(header.width) * header.height > kMaxPixels) return kTooLarge;
  if (!header.arithmetic) {
    // The first scan has at least one bit a block: the DC code.
    const uint64_t blocks = uint64_t(header.mcus_per_row) * uint64_t(header.mcu_rows);
    if ((size - header.entropy_offset) * 8 < blocks) return kTruncated;
  }
  return kOk;
}

Status libjpeg_decode_rgb(const uint8_t* data, size_t size, int x, int y, int width, int height, uint8_t* rgb,
                          size_t row_stride, bool strict, char* reason) {
  Decoder d;
  set_trap(&d.trap, reason);
  d.cinfo.err = &d.trap.base;
  if (setjmp(d.trap.jump) != 0) {
    jpeg_destroy_decompress(&d.cinfo);
    return d.trap.status;
  }
  memset(&d.progress, 0, sizeof d.progress);
  d.cinfo.mem = nullptr;
  d.cinfo.global_state = 0;
  jpeg_create_decompress(&d.cinfo);
  limit_memory(&d.cinfo);
  d.progress.progress_monitor = on_progress;
  d.cinfo.progress = &d.progress;
  jpeg_mem_src(&d.cinfo, const_cast<uint8_t*>(data), size);
  jpeg_read_header(&d.cinfo, TRUE);
  d.cinfo.out_color_space = JCS_RGB;
  d.cinfo.dct_method = JDCT_ISLOW;
  d.cinfo.do_fancy_upsampling = TRUE;
  d.cinfo.do_block_smoothing = FALSE;
  jpeg_start_decompress(&d.cinfo);
  if (!complete(&d.cinfo)) {
    jpeg_destroy_decompress(&d.cinfo);
    return kTruncated;
  }
  if (x < 0 || y < 0 || width < 1 || height < 1 || x + width > int(d.cinfo.output_width) ||
      y + height > int(d.cinfo.output_height)) {
    jpeg_destroy_decompress(&d.cinfo);
    return kBadRequest;
  }
  JSAMPARRAY row = (*d.cinfo.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&d.cinfo), JPOOL_IMAGE,
                                                d.cinfo.output_width * 3, 1);
  const int last = strict ? int(d.cinfo.output_height) : y + height;
  for (int line = 0; line < last; line++) {
    jpeg_read_scanlines(&d.cinfo, row, 1);
    if (line >= y && line < y + height) {
      memcpy(rgb + size_t(line - y) * row_stride, row[0] + size_t(x) * 3, size_t(width) * 3);
    }
  }
  if (strict) jpeg_finish_decompress(&d.cinfo);
  jpeg_destroy_decompress(&d.cinfo);
  return kOk;
}

int choose_restart_interval(int width, int mcus_per_row, int mcu_rows, size_t bytes) {
  // A marker costs about 4.5 bytes: its own two, the bits up to a byte boundary, and DC values that start from zero.
  // Two and a half per cent of the data is less than what optimised Huffman tables save over the standard ones.
  const double budget = 0.025 * double(bytes) / 4.5;
  int wanted = (width + 57) / 115;  // segments about 115 pixels wide
  if (wanted < 1) wanted = 1;
  if (wanted > 8) wanted = 8;
  for (int segments = wanted; segments > 1; segments /= 2) {
    if (double(segments) * mcu_rows > budget) continue;
    // An even division keeps every row alike; take the nearest one if it is near.
    int best = 0;
    for (int n = 2; n <= mcus_per_row; n++) {
      if (mcus_per_row % n != 0 || n < 0.65 * segments || n > 1.5 * segments || double(n) * mcu_rows > budget) continue;
      if (best == 0 || abs(n - segments) < abs(best - segments)) best = n;
    }
    if (best != 0) return mcus_per_row / best;
    return (mcus_per_row + segments - 1) / segments;
  }
  for (int rows = 1; rows < mcu_rows; rows *= 2) {
    if (double(mcu_rows) / rows <= budget && int64_t(rows) * mcus_per_row <= 65535) return rows * mcus_per_row;
  }
  return 0;
}

Status libjpeg_transcode(const uint8_t* data, size_t size, int restart, bool keep_icc, uint8_t** out, size_t* out_bytes,
                         char* reason) {
  Decoder d;
  Encoder e;
  jpeg_compress_struct& dst = e.cinfo;
  set_trap(&d.trap, reason);
  set_trap(&e.trap, reason);
  d.cinfo.err = &d.trap.base;
  dst.err = &e.trap.base;
  d.cinfo.mem = nullptr;
  d.cinfo.global_state = 0;
  dst.mem = nullptr;
  dst.global_state = 0;
  e.destination.data = nullptr;
  // Whichever object an error strikes, both go.
  if (setjmp(d.trap.jump) != 0) {
    jpeg_destroy_compress(&e.cinfo);
    jpeg_destroy_decompress(&d.cinfo);
    free(e.destination.data);
    return d.trap.status;
  }
  if (setjmp(e.trap.jump) != 0) {
    jpeg_destroy_compress(&e.cinfo);
    jpeg_destroy_decompress(&d.cinfo);
    free(e.destination.data);
    return e.trap.status;
  }
  memset(&d.progress, 0, sizeof d.progress);
  jpeg_create_decompress(&d.cinfo);
  limit_memory(&d.cinfo);
  d.progress.progress_monitor = on_progress;
  d.cinfo.progress = &d.progress;
  jpeg_mem_src(&d.cinfo, const_cast<uint8_t*>(data), size);
  if (keep_icc) jpeg_save_markers(&d.cinfo, JPEG_APP0 + 2, 0xFFFF);
  jpeg_read_header(&d.cinfo, TRUE);
  jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&d.cinfo);
  if (!complete(&d.cinfo)) {
    jpeg_destroy_decompress(&d.cinfo);
    return kTruncated;
  }

  jpeg_create_compress(&dst);
  if (!set_destination(&dst, &e.destination, size + 4096)) ERREXIT1(&dst, JERR_OUT_OF_MEMORY, 10);
  jpeg_copy_critical_parameters(&d.cinfo, &dst);
  dst.optimize_coding = TRUE;
  dst.arith_code = FALSE;
  if (restart == BETON_RESTART_AUTO) {
    const bool single = d.cinfo.num_components == 1;
    const int mcu_width = 8 * (single ? 1 : d.cinfo.max_h_samp_factor);
    const int mcu_height = 8 * (single ? 1 : d.cinfo.max_v_samp_factor);
    const int width = int(d.cinfo.image_width), height = int(d.cinfo.image_height);
    dst.restart_interval = unsigned(choose_restart_interval(
        width, (width + mcu_width - 1) / mcu_width, (height + mcu_height - 1) / mcu_height, size));
  }
  jpeg_write_coefficients(&dst, coefficients);
  for (jpeg_saved_marker_ptr marker = d.cinfo.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->data_length >= 12 && memcmp(marker->data, "ICC_PROFILE", 12) == 0) {
      jpeg_write_marker(&dst, marker->marker, marker->data, marker->data_length);
    }
  }
  jpeg_finish_compress(&dst);
  jpeg_finish_decompress(&d.cinfo);
  jpeg_destroy_compress(&dst);
  jpeg_destroy_decompress(&d.cinfo);
  *out = e.destination.data;
  *out_bytes = e.destination.used;
  return kOk;
}

}  // namespace beton
