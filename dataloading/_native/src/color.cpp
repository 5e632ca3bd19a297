#include "color.h"

#include <algorithm>
#include <cmath>

#include "augment.h"
#include "kernels.h"

namespace beton {

namespace {

// A factor, and what it leaves to the other image: up to a million, which takes all to black or white.
struct Factor {
  float own, rest;

  explicit Factor(double param) : own(float(std::min(param, 1e6))), rest(float(1.0 - std::min(param, 1e6))) {}
};

float mean_of_greys(const uint8_t* image, const int64_t shape[3]) {
  const size_t n = size_t(shape[1]) * size_t(shape[2]);
  uint64_t total = 0;
  if (shape[0] == 3) {
    total = kernels().sum_of_greys(image, image + n, image + 2 * n, n);
  } else {
    for (size_t i = 0; i < n; i++) total += image[i];
  }
  return float(double(total) / double(n));
}

}  // namespace

void change_tables(int64_t which, const uint8_t* image, const int64_t shape[3], const double* params, uint8_t* tables) {
  if (which == BETON_COLOR_SOLARIZE) {
    for (int64_t i = 0; i < 256 * shape[0]; i++) tables[i] = tables[i] >= params[0] ? uint8_t(255 - tables[i]) : tables[i];
    return;
  }
  const Factor factor(params[0]);
  const float offset = which == BETON_COLOR_CONTRAST ? mean_of_greys(image, shape) * factor.rest : 0.0f;
  kernels().blend(tables, 256 * size_t(shape[0]), factor.own, offset);
}

void change_colors(int64_t which, uint8_t* image, const int64_t shape[3], const double* params, const double* constants) {
  const size_t n = size_t(shape[1]) * size_t(shape[2]);
  uint8_t* const r = image;
  uint8_t* const g = image + n;
  uint8_t* const b = image + 2 * n;
  if (which == BETON_COLOR_GRAY) {
    kernels().gray(r, g, b, n);
  } else if (which == BETON_COLOR_SATURATION) {
    const Factor factor(params[0]);
    kernels().saturate(r, g, b, n, factor.own, factor.rest);
  } else {
    const double turn = 6.0 * (params[0] - std::floor(params[0]));
    const int whole = std::min(int(turn), 5);
    kernels().turn_hue(r, g, b, n, uint8_t(whole), float(1.0 - (turn - whole)), float(constants[1] / constants[0]));
  }
}

}  // namespace beton
