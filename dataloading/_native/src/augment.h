// Random operations on pixels: the draw phase and the runner.
#ifndef BETON_AUGMENT_H
#define BETON_AUGMENT_H

#include "beton_native.h"

#ifdef __cplusplus
extern "C" {
#endif

// Laws of params, see dataloading/transforms/operation.py.
enum {
  BETON_LAW_CONSTANT,
  BETON_LAW_UNIFORM,
  BETON_LAW_INTEGER,
  BETON_LAW_SIGN,
  BETON_LAW_LOG_UNIFORM,
  BETON_LAW_NORMAL,
  BETON_LAW_STREAM,
  BETON_LAW_PICK,         // values[low .. low + high)
  BETON_LAW_PICK_SIGNED,
};

enum { BETON_NODE_LEAF, BETON_NODE_SEQUENCE, BETON_NODE_CHOICE, BETON_NODE_PERMUTATION };

enum {
  BETON_OP_APPLY,        // kernel(source, target, params, constants, work)
  BETON_OP_IN_PLACE,     // the same, target is source
  BETON_OP_TABLE,        // kernel(source, tables, params, constants)
  BETON_OP_LOOKUP,       // no kernel; with constants, five a channel, the table is what `to_floats` computes
  BETON_OP_USER,         // kernel(image, key), param 0 is the key
  BETON_OP_USER_WRITES,  // kernel(image, key, out)
  BETON_OP_STATISTICS,   // as BETON_OP_TABLE, with source up to date and tables as they begin: v means v
  BETON_OP_JPEG,         // no kernel: through a JPEG of quality params[0] and back
  BETON_OP_BLUR,         // no kernel: params are sigma across and down, constants the kernel's width and height; bytes
  BETON_OP_MIX_BEGIN,    // no kernel: keeps the image, starts a sum with params[0] times it; params are the weights
  BETON_OP_MIX_ADD,      // no kernel: adds the image with weight constants[0], goes back to the one that was kept
  BETON_OP_MIX_END,      // no kernel: the sum, cut off to integers, is the image
};

// Kernels of our own for 8-bit images, see color.h: numbers that stand where others have an address.
enum {
  BETON_COLOR_BRIGHTNESS = 1,  // BETON_OP_TABLE
  BETON_COLOR_CONTRAST,        // BETON_OP_STATISTICS
  BETON_COLOR_SATURATION,      // BETON_OP_IN_PLACE
  BETON_COLOR_HUE,             // the same; constants are the value of white, and what 1.0 becomes
  BETON_COLOR_GRAY,            // the same
  BETON_COLOR_SOLARIZE,        // BETON_OP_TABLE
  BETON_COLOR_END,
};

typedef struct {
  int64_t code;
  int64_t number;  // of the stream
  double low, high;
} beton_law;

typedef struct {
  int64_t kind;
  int64_t place;  // the stream is this child of the parent's stream; -1: the parent's stream
  double p;       // below 0: always
  int64_t first_child, num_children;  // in beton_program.children; of a choice also in .weights
  int64_t leaf;                       // in beton_program.leaves
} beton_node;

typedef struct {
  int64_t kind;
  uint64_t kernel;  // address of the compiled function, or BETON_COLOR_*
  uint64_t draw;    // 0: params come from laws
  uint64_t constants, lookup;
  int64_t num_constants;
  int64_t first_law, num_params;
  int64_t params_at;  // in a sample's row of params
  int64_t source_bytes, source_shape[3];  // bytes of one value; channels, height, width
  int64_t target_bytes, target_shape[3];
} beton_leaf;

typedef struct {
  uint64_t nodes, children, weights, leaves, laws, values;  // node 0 is the root; weights are cumulated to 1
  int64_t num_params;    // of all leaves
  int64_t tape_length;   // most operations that one sample can get
  int64_t image_bytes;   // of the largest image on the way
  int64_t work_bytes;    // of the operation that needs most
  int64_t decoded_bytes, out_bytes;  // of one image
} beton_program;

typedef struct {
  int64_t sample, leaf, status;
  uint64_t source;  // the image that the operation was given, while the thread makes no further call
  uint64_t key;     // of a user's function
} beton_augment_failure;

// Draws for n samples: params, shape (n, num_params), and tapes, shape (n, tape_length), leaves with -1 behind the last.
// Returns -1, or the first sample for which a kernel that draws has failed.
BETON_API int64_t beton_augment_draw(const beton_program* program, const uint64_t* keys, int64_t n, double* params,
                                     int64_t* tapes);

// Takes samples start .. n - 1 from `decoded` (scratch) to `out`, which may be the same memory. `params` and `tapes`: what
// beton_augment_draw gave, or null to draw from `keys`. Returns 0; -1 after the first failure, the samples before it being
// done; -2 if there is no memory.
BETON_API int32_t beton_augment_run(const beton_program* program, const uint64_t* keys, uint8_t* decoded, uint8_t* out,
                                    int64_t start, int64_t n, double* params, int64_t* tapes);

// What failed in this thread's last call that returned -1.
BETON_API void beton_augment_last_failure(beton_augment_failure* failure);

#ifdef __cplusplus
}
#endif

#endif
