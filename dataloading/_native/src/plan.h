// From the geometry at the front of a pipeline to requests: what each sample's crop, size, window and flips are.
#ifndef BETON_PLAN_H
#define BETON_PLAN_H

#include "beton_native.h"

#ifdef __cplusplus
extern "C" {
#endif

// Operations; numbers of their rows (sizes in pixels):
enum {
  // out_h, out_w, scale_low, scale_high, log_ratio_low, log_ratio_high, ratio_low, ratio_high, interpolation, antialias
  BETON_PLAN_RANDOM_RESIZED_CROP = 0,
  BETON_PLAN_RESIZE = 1,            // out_h, out_w, -, -, -, -, -, -, interpolation, antialias
  BETON_PLAN_RESIZE_SHORT = 2,      // size, max_size (0: none), -, -, -, -, -, -, interpolation, antialias
  BETON_PLAN_RESIZE_LONG = 3,       // max_size, -, -, -, -, -, -, -, interpolation, antialias
  BETON_PLAN_CENTER_CROP = 4,       // out_h, out_w
  BETON_PLAN_RANDOM_CROP = 5,       // out_h, out_w, left, top, right, bottom, pad_if_needed, pad_mode, fill
  BETON_PLAN_RANDOM_TRANSLATE = 6,  // padding, fill
  BETON_PLAN_HORIZONTAL_FLIP = 7,   // p
  BETON_PLAN_VERTICAL_FLIP = 8,     // p
  BETON_PLAN_SCALE_JITTER = 9,      // height, width, scale_low, scale_high, -, -, -, -, interpolation, antialias
  BETON_PLAN_SHORTEST_SIZE = 10,    // max_size (0: none), count, -, -, -, -, -, -, interpolation, antialias, sizes ...
  BETON_PLAN_ZOOM_OUT = 11,         // side_low, side_high, p, fill
  // min_scale, max_scale, min_ratio, max_ratio, trials, count, -, -, -, -, least overlaps ...
  BETON_PLAN_IOU_CROP = 12,
  BETON_PLAN_CORNER_CROP = 13,      // out_h, out_w, bottom, right (0: no, 1: yes, 2: in the middle), flips before it
  // out_h, out_w, scale_low, scale_high, shift, pick (0: any, 1: the first, 2: the largest), -, -, interpolation, antialias
  BETON_PLAN_CROP_AROUND_BOX = 14,
  BETON_PLAN_CENTER_PART = 15       // out_h, out_w, share of the shorter side, -, -, -, -, -, interpolation, antialias
};
enum { BETON_PLAN_ROW_LENGTH = 64, BETON_PLAN_LIST_AT = 10 };

// Why a sample cannot be planned.
enum {
  BETON_PLAN_TOO_SMALL = 1,        // the crop is larger than the image with its padding
  BETON_PLAN_PADDED_PART = 2,      // padding around a part of a resized image
  BETON_PLAN_PADDED_ALREADY = 3,   // padding or resizing what is padded
  BETON_PLAN_EMPTY = 4             // a resize to nothing
};

// The boxes of n samples in pixels of the stored images, for operations that read them.
typedef struct beton_plan_boxes {
  const double* corners;  // left, top, right, bottom of each
  const int64_t* starts;  // of sample i: boxes starts[i] .. starts[i + 1] - 1
  uint8_t* kept;          // out: 0 for boxes that a BETON_PLAN_IOU_CROP has cut off; the others are not written
} beton_plan_boxes;

typedef struct beton_plan_failure {
  int64_t reason, position, height, width, wanted_height, wanted_width;
} beton_plan_failure;

// Fills the geometry of requests start .. count - 1 from `num_operations` operations (codes, places in the user's
// list, rows of BETON_PLAN_ROW_LENGTH numbers), the sizes in the requests, the samples' keys, and boxes (may be null: no
// sample has any). Returns -1, or the first sample that failed, with the reason in `failure`; the ones before it are done.
BETON_API int64_t beton_plan(const int64_t* codes, const int64_t* positions, const double* rows, int64_t num_operations,
                             const uint64_t* keys, const beton_plan_boxes* boxes, beton_request* requests,
                             int64_t start, int64_t count, beton_plan_failure* failure);

#ifdef __cplusplus
}
#endif

#endif
