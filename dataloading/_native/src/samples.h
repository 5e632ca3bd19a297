// Which samples a batch has, as numbers: their random keys, and requests for their stored images.
#ifndef BETON_SAMPLES_H
#define BETON_SAMPLES_H

#include "beton_native.h"

#ifdef __cplusplus
extern "C" {
#endif

// Tables of one file. Samples of file k have the numbers first_sample[k] .. first_sample[k + 1] - 1.
typedef struct beton_tables {
  uint64_t samples;      // address of the sample table
  uint64_t allocations;  // address of the allocation table: sample, position in the file and size, 8 bytes each
  int64_t num_allocations;
  uint64_t memory;       // address of the file's byte 0
  uint64_t begin, end;   // all stored bytes lie between these positions
  int64_t first_sample;
} beton_tables;

// An image field, the same in all files.
typedef struct beton_image_field {
  int64_t record_bytes, field_at;      // of a sample's record; where in it the field's part begins
  int64_t ordinal, num_stored;         // among the fields with stored bytes
  int64_t first_mode, end_mode;        // modes that may occur
  int64_t pixel_bytes, channels;
} beton_image_field;

// Fills src, src_bytes, mode, src_width, src_height and channels of n requests and clears the rest. `tables` has one entry
// more than files, of which only first_sample counts: the number of all samples. Returns -1, or the first sample that must be
// looked at more closely: it is out of range, its bytes lie outside the file, or its allocation is not where our writer puts
// it. *num_bytes is the size of all stored bytes.
BETON_API int64_t beton_find_images(const beton_tables* tables, int64_t num_files, const beton_image_field* field,
                                    const int64_t* indices, int64_t n, beton_request* requests, uint64_t* num_bytes);

// Aims n requests at n images in a row: `bytes` from an image, a plane and a row to the next.
BETON_API void beton_aim(beton_request* requests, int64_t n, uint8_t* images, int64_t image_bytes, int64_t plane_bytes,
                         int64_t row_bytes);

// Random keys of samples: child(child(key, index), view); `views` may be null for `view` everywhere, else `view` is added.
BETON_API void beton_sample_keys(uint64_t key, const int64_t* indices, const int64_t* views, uint64_t view, int64_t n,
                                 uint64_t* keys);

#ifdef __cplusplus
}
#endif

#endif
