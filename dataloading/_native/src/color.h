// Changes of colour of 8-bit images, as torchvision computes them.
#ifndef BETON_COLOR_H
#define BETON_COLOR_H

#include <cstdint>

namespace beton {

// The operations named BETON_COLOR_* (augment.h). `image`: planes, `shape` their number, height and width.
// These change tables, 256 values a plane.
void change_tables(int64_t which, const uint8_t* image, const int64_t shape[3], const double* params, uint8_t* tables);
// These change an image of three planes in place.
void change_colors(int64_t which, uint8_t* image, const int64_t shape[3], const double* params, const double* constants);

}  // namespace beton

#endif
