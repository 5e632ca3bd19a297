#include "header.h"

namespace beton {

namespace {

int u16(const uint8_t* p) { return p[0] << 8 | p[1]; }

int ceil_div(int a, int b) { return (a + b - 1) / b; }

Status read_frame(const uint8_t* p, size_t n, JpegHeader* h) {
  if (n < 6) return kBadHeader;
  if (p[0] != 8) return kUnsupported;
  h->height = u16(p + 1);
  h->width = u16(p + 3);
  h->num_components = p[5];
  if (h->width == 0 || h->height == 0) return kBadHeader;
  if (h->width > kLargestSide || h->height > kLargestSide) return kTooLarge;
  if (h->num_components != 1 && h->num_components != 3 && h->num_components != 4) {
    return h->num_components == 0 ? kBadHeader : kUnsupported;
  }
  if (n != size_t(6 + 3 * h->num_components)) return kBadHeader;
  h->h_max = h->v_max = 1;
  for (int i = 0; i < h->num_components; i++) {
    Component& c = h->component[i];
    const uint8_t* q = p + 6 + 3 * i;
    c.id = q[0];
    c.h = q[1] >> 4;
    c.v = q[1] & 15;
    c.quant = q[2];
    if (c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.quant > 3) return kBadHeader;
    if (c.h > h->h_max) h->h_max = c.h;
    if (c.v > h->v_max) h->v_max = c.v;
  }
  for (int i = 0; i < h->num_components; i++) {
    Component& c = h->component[i];
    if (h->h_max % c.h != 0 || h->v_max % c.v != 0) return kUnsupported;  // libjpeg upsamples by whole factors alone
    c.width = ceil_div(h->width * c.h, h->h_max);
    c.height = ceil_div(h->height * c.v, h->v_max);
  }
  // A scan of one component is not interleaved: its MCU is one block, whatever its sampling factors say.
  if (h->num_components == 1) {
    h->mcu_width = h->mcu_height = 8;
  } else {
    h->mcu_width = 8 * h->h_max;
    h->mcu_height = 8 * h->v_max;
  }
  h->mcus_per_row = ceil_div(h->width, h->mcu_width);
  h->mcu_rows = ceil_div(h->height, h->mcu_height);
  return kOk;
}

Status read_quant(const uint8_t* p, size_t n, JpegHeader* h) {
  while (n > 0) {
    const int precision = p[0] >> 4, slot = p[0] & 15;
    const size_t need = 1 + (precision ? 128 : 64);
    if (slot > 3 || n < need) return kBadHeader;
    for (int i = 0; i < 64; i++) {
      h->quant[slot][kNaturalOrder[i]] = uint16_t(precision ? u16(p + 1 + 2 * i) : p[1 + i]);
    }
    h->has_quant[slot] = true;
    p += need;
    n -= need;
  }
  return kOk;
}

Status read_huffman(const uint8_t* p, size_t n, JpegHeader* h) {
  while (n > 0) {
    if (n < 17) return kBadHeader;
    const int cls = p[0] >> 4, slot = p[0] & 15;
    size_t count = 0;
    for (int i = 1; i <= 16; i++) count += p[i];
    if (cls > 1 || slot > 3 || count > 256 || n < 17 + count) return kBadHeader;
    h->huffman[cls][slot] = p + 1;
    h->huffman_bytes[cls][slot] = 16 + count;
    p += 17 + count;
    n -= 17 + count;
  }
  return kOk;
}

Status read_scan(const uint8_t* p, size_t n, JpegHeader* h) {
  if (n < 1 || h->num_components == 0) return kBadHeader;
  const int count = p[0];
  if (count < 1 || count > 4 || count > h->num_components || n != size_t(4 + 2 * count)) return kBadHeader;
  h->num_scan_components = count;
  h->scan_in_order = count == h->num_components;
  int chosen[4] = {-1, -1, -1, -1};
  for (int i = 0; i < count; i++) {
    // As libjpeg: among equal ids the first whose place in the scan is not taken yet.
    int found = 0;
    while (found < h->num_components && (h->component[found].id != p[1 + 2 * i] || chosen[found] >= 0)) found++;
    if (found == h->num_components) return kBadHeader;
    for (int j = 0; j < i; j++) {
      if (chosen[j] == found) return kBadHeader;
    }
    chosen[i] = found;
    if (found != i) h->scan_in_order = false;
    h->component[found].dc_table = p[2 + 2 * i] >> 4;
    h->component[found].ac_table = p[2 + 2 * i] & 15;
  }
  return kOk;  // the spectral selection behind them matters to progressive scans alone
}

// Arithmetic conditioning: checked as libjpeg does, and not kept.
Status read_conditioning(const uint8_t* p, size_t n) {
  if (n % 2 != 0) return kBadHeader;
  for (size_t i = 0; i < n; i += 2) {
    if (p[i] >= 32 || (p[i] < 16 && (p[i + 1] & 15) > p[i + 1] >> 4)) return kBadHeader;
  }
  return kOk;
}

// Equal ids say nothing, and a copy should not have them.
void settle_ids(JpegHeader* h) {
  bool equal = false;
  for (int i = 0; i < h->num_components; i++) {
    for (int j = 0; j < i; j++) equal = equal || h->component[i].id == h->component[j].id;
  }
  for (int i = 0; i < h->num_components && equal; i++) h->component[i].id = i + 1;
}

// The colour space libjpeg would assume (jdapimin.c, default_decompress_parms).
int colour_space(const JpegHeader& h) {
  if (h.num_components == 1) return BETON_SPACE_GRAY;
  if (h.num_components == 4) {
    return h.seen_adobe && h.adobe_transform != 0 ? BETON_SPACE_YCCK : BETON_SPACE_CMYK;
  }
  if (h.seen_jfif) return BETON_SPACE_YCBCR;
  if (h.seen_adobe) return h.adobe_transform == 0 ? BETON_SPACE_RGB : BETON_SPACE_YCBCR;
  const Component* c = h.component;
  return c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B' ? BETON_SPACE_RGB : BETON_SPACE_YCBCR;
}

bool is(const uint8_t* p, const char* text, int n) {
  for (int i = 0; i < n; i++) {
    if (p[i] != uint8_t(text[i])) return false;
  }
  return true;
}

}  // namespace

Status MarkerWalk::next() {
  for (;;) {
    while (at < size && data[at] != 0xFF) {
      at++;
      stray_bytes++;
    }
    while (at < size && data[at] == 0xFF) at++;  // fill bytes may precede a marker
    if (at >= size) return kTruncated;
    marker = data[at++];
    if (marker != 0) break;
    stray_bytes += 2;  // FF 00 is entropy-coded data
  }
  begin = at - 2;
  body = nullptr;
  body_bytes = 0;
  if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD9)) return kOk;
  if (at + 2 > size) return kTruncated;
  const size_t length = size_t(u16(data + at));
  body = data + at + 2;
  const bool is_skipped = (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE || marker == 0xDC;
  if (length < 2) {
    at += 2;
    return is_skipped ? kOk : kBadHeader;
  }
  if (at + length > size) return kTruncated;
  body_bytes = length - 2;
  at += length;
  return kOk;
}

Status parse_header(const uint8_t* data, size_t size, JpegHeader* h) {
  *h = JpegHeader();
  if (size < 3) return size < 2 || (data[0] == 0xFF && data[1] == 0xD8) ? kTruncated : kNotJpeg;
  if (data[0] != 0xFF || data[1] != 0xD8) return kNotJpeg;
  MarkerWalk walk = {data, size, 2};
  bool seen_frame = false;
  for (;;) {
    Status status = walk.next();
    if (status != kOk) return status;
    const int marker = walk.marker;
    const uint8_t* p = walk.body;
    const size_t n = walk.body_bytes;
    switch (marker) {
      case 0xD8: return kBadMarker;  // a second start of image
      case 0xD9: return kTruncated;  // the end of the image before any scan
      case 0xC0: case 0xC1: case 0xC2: case 0xC9: case 0xCA:
        if (seen_frame) return kBadMarker;
        seen_frame = true;
        h->progressive = marker == 0xC2 || marker == 0xCA;
        h->arithmetic = marker >= 0xC9;
        status = read_frame(p, n, h);
        break;
      case 0xC3: case 0xC5: case 0xC6: case 0xC7: case 0xC8: case 0xCB: case 0xCD: case 0xCE: case 0xCF:
        return kUnsupported;
      case 0xC4: status = read_huffman(p, n, h); break;
      case 0xCC: status = read_conditioning(p, n); break;
      case 0xDB: status = read_quant(p, n, h); break;
      case 0xDD:
        if (n != 2) return kBadHeader;
        h->restart_interval = u16(p);
        break;
      case 0xE0:
        if (n >= 14 && is(p, "JFIF\0", 5)) {
          h->seen_jfif = true;
          for (int i = 0; i < 7; i++) h->jfif[i] = p[5 + i];
        }
        break;
      case 0xEE:
        if (n >= 12 && is(p, "Adobe", 5)) {
          h->seen_adobe = true;
          h->adobe_transform = p[11];
        }
        break;
      case 0xDA:
        if (!seen_frame) return kBadMarker;
        status = read_scan(p, n, h);
        if (status != kOk) return status;
        h->space = colour_space(*h);
        settle_ids(h);
        h->entropy_offset = walk.at;
        h->stray_bytes = walk.stray_bytes;
        return kOk;
      default:
        // Other APPn, COM, and (as in libjpeg) DNL, RSTn and TEM do not matter; reserved markers are refused.
        if (marker != 0x01 && (marker < 0xD0 || marker > 0xD7) && marker != 0xDC && marker != 0xFE &&
            (marker < 0xE0 || marker > 0xEF)) {
          return kBadMarker;
        }
    }
    if (status != kOk) return status;
  }
}

}  // namespace beton
