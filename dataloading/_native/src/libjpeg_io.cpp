#include "libjpeg_io.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "entropy.h"

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
  int64_t stray_bytes;
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

// libjpeg reports damaged data as a warning and goes on with made-up pixels; here such a warning ends the decode.
void on_message(j_common_ptr cinfo, int level) {
  if (level >= 0) return;  // trace messages
  switch (cinfo->err->msg_code) {
    case JWRN_ADOBE_XFORM: case JWRN_JFIF_MAJOR: case JWRN_NOT_SEQUENTIAL:
      return;  // odd headers whose pixels are well defined
    case JWRN_EXTRANEOUS_DATA:  // bytes between what it reads, which it skips: no pixel suffers
      reinterpret_cast<ErrorTrap*>(cinfo->err)->stray_bytes += cinfo->err->msg_parm.i[0];
      return;
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
  trap->stray_bytes = 0;
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

// Whether every component came, and of a progressive file every bit of every coefficient; libjpeg would smooth over what
// is missing.
bool complete(j_decompress_ptr cinfo) {
  for (int c = 0; c < cinfo->num_components; c++) {
    if (cinfo->comp_info[c].quant_table == nullptr) return false;  // kept when a component's first scan begins
  }
  if (cinfo->coef_bits == nullptr) return true;
  for (int c = 0; c < cinfo->num_components; c++) {
    for (int k = 0; k < DCTSIZE2; k++) {
      if (cinfo->coef_bits[c][k] != 0) return false;
    }
  }
  return true;
}

// Whether no coefficient is beyond what 8-bit images have: libjpeg decodes such, but writes none.
bool in_range(j_decompress_ptr cinfo, jvirt_barray_ptr* coefficients) {
  for (int c = 0; c < cinfo->num_components; c++) {
    const jpeg_component_info& component = cinfo->comp_info[c];
    for (JDIMENSION y = 0; y < component.height_in_blocks; y++) {
      JBLOCKARRAY row = (*cinfo->mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(cinfo), coefficients[c], y, 1,
                                                          FALSE);
      for (JDIMENSION x = 0; x < component.width_in_blocks; x++) {
        const JCOEF* block = row[0][x];
        int most = 0;
        for (int k = 1; k < DCTSIZE2; k++) most |= block[k] < 0 ? -block[k] : block[k];
        if (most >= 1 << kMaxAcBits || block[0] < kMinDc || block[0] > kMaxDc) return false;
      }
    }
  }
  return true;
}

// All coefficients, found complete and in range; does not return on any other.
jvirt_barray_ptr* read_coefficients(Decoder* d) {
  jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&d->cinfo);
  const j_common_ptr cinfo = reinterpret_cast<j_common_ptr>(&d->cinfo);
  if (!complete(&d->cinfo)) {
    d->cinfo.err->msg_code = JWRN_JPEG_EOF;
    leave(cinfo, kTruncated);
  }
  if (!in_range(&d->cinfo, coefficients)) {
    d->cinfo.err->msg_code = JERR_BAD_DCT_COEF;
    leave(cinfo, kBadCode);
  }
  return coefficients;
}

// Makes of what was read something that can be written: a quantisation table may have been defined anew behind a
// component that used it, and ids may be equal.
void settle(j_decompress_ptr cinfo) {
  bool tables_differ = false, ids_equal = false;
  for (int c = 0; c < cinfo->num_components; c++) {
    const jpeg_component_info& component = cinfo->comp_info[c];
    const JQUANT_TBL* now = cinfo->quant_tbl_ptrs[component.quant_tbl_no];
    if (memcmp(now->quantval, component.quant_table->quantval, sizeof now->quantval) != 0) tables_differ = true;
    for (int b = 0; b < c; b++) {
      if (cinfo->comp_info[b].component_id == component.component_id) ids_equal = true;
    }
  }
  for (int c = 0; c < cinfo->num_components; c++) {
    jpeg_component_info& component = cinfo->comp_info[c];
    if (ids_equal) component.component_id = c + 1;
    if (!tables_differ) continue;
    component.quant_tbl_no = c;
    cinfo->quant_tbl_ptrs[c] = component.quant_table;
  }
}

// One scan a component, for images that have more blocks in an MCU than a scan of all components may have.
bool needs_scans(j_decompress_ptr cinfo, jpeg_scan_info* scans) {
  int blocks = 0;
  for (int c = 0; c < cinfo->num_components; c++) {
    blocks += cinfo->comp_info[c].h_samp_factor * cinfo->comp_info[c].v_samp_factor;
    scans[c] = {1, {c, 0, 0, 0}, 0, DCTSIZE2 - 1, 0, 0};
  }
  return cinfo->num_components > 1 && blocks > C_MAX_BLOCKS_IN_MCU;
}

void open_decoder(Decoder* d, const uint8_t* data, size_t size) {
  memset(&d->progress, 0, sizeof d->progress);
  jpeg_create_decompress(&d->cinfo);
  limit_memory(&d->cinfo);
  d->progress.progress_monitor = on_progress;
  d->cinfo.progress = &d->progress;
  jpeg_mem_src(&d->cinfo, const_cast<uint8_t*>(data), size);
}

}  // namespace

void remark(int64_t stray_bytes, char* reason) {
  if (reason == nullptr) return;
  reason[0] = 0;
  if (stray_bytes == 0) return;
  snprintf(reason, kReasonBytes, "%lld stray byte%s between the segments", static_cast<long long>(stray_bytes),
           stray_bytes == 1 ? "" : "s");
}

Status check_plausible(const JpegHeader& header, size_t size) {
  if (int64_t(header.width) * header.height > kMaxPixels) return kTooLarge;
  if (!header.arithmetic) {
    // The first scan has at least one bit a block: the DC code.
    const uint64_t blocks = uint64_t(header.mcus_per_row) * uint64_t(header.mcu_rows);
    if ((size - header.entropy_offset) * 8 < blocks) return kTruncated;
  }
  return kOk;
}

Status libjpeg_decode(const uint8_t* data, size_t size, int x, int y, int width, int height, int channels, uint8_t* out,
                      size_t row_stride, bool strict, char* reason) {
  Decoder d;
  set_trap(&d.trap, reason);
  d.cinfo.err = &d.trap.base;
  if (setjmp(d.trap.jump) != 0) {
    jpeg_destroy_decompress(&d.cinfo);
    return d.trap.status;
  }
  d.cinfo.mem = nullptr;
  d.cinfo.global_state = 0;
  open_decoder(&d, data, size);
  jpeg_read_header(&d.cinfo, TRUE);
  d.cinfo.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
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
                                                d.cinfo.output_width * unsigned(channels), 1);
  const int last = strict ? int(d.cinfo.output_height) : y + height;
  for (int line = 0; line < last; line++) {
    jpeg_read_scanlines(&d.cinfo, row, 1);
    if (line >= y && line < y + height) {
      memcpy(out + size_t(line - y) * row_stride, row[0] + size_t(x) * size_t(channels), size_t(width) * size_t(channels));
    }
  }
  if (strict) jpeg_finish_decompress(&d.cinfo);
  jpeg_destroy_decompress(&d.cinfo);
  remark(d.trap.stray_bytes, reason);
  return kOk;
}

Status libjpeg_check(const uint8_t* data, size_t size, char* reason) {
  Decoder d;
  set_trap(&d.trap, reason);
  d.cinfo.err = &d.trap.base;
  if (setjmp(d.trap.jump) != 0) {
    jpeg_destroy_decompress(&d.cinfo);
    return d.trap.status;
  }
  d.cinfo.mem = nullptr;
  d.cinfo.global_state = 0;
  open_decoder(&d, data, size);
  jpeg_read_header(&d.cinfo, TRUE);
  read_coefficients(&d);
  jpeg_finish_decompress(&d.cinfo);
  jpeg_destroy_decompress(&d.cinfo);
  remark(d.trap.stray_bytes, reason);
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
  open_decoder(&d, data, size);
  if (keep_icc) jpeg_save_markers(&d.cinfo, JPEG_APP0 + 2, 0xFFFF);
  jpeg_read_header(&d.cinfo, TRUE);
  jvirt_barray_ptr* coefficients = read_coefficients(&d);
  jpeg_create_compress(&dst);
  if (!set_destination(&dst, &e.destination, size + 4096)) ERREXIT1(&dst, JERR_OUT_OF_MEMORY, 10);
  settle(&d.cinfo);
  jpeg_copy_critical_parameters(&d.cinfo, &dst);
  dst.optimize_coding = TRUE;
  dst.arith_code = FALSE;
  jpeg_scan_info scans[MAX_COMPS_IN_SCAN];
  if (needs_scans(&d.cinfo, scans)) {
    dst.scan_info = scans;
    dst.num_scans = d.cinfo.num_components;
  } else if (restart == BETON_RESTART_AUTO) {
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
  remark(d.trap.stray_bytes, reason);
  return kOk;
}

}  // namespace beton
