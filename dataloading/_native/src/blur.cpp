// Values have eight bits behind the point, weights sixteen. First rows are blurred across, then columns down; the mean of two
// pixels as far away on both sides takes one product. Products are cut off, by half a unit in the mean; each sum begins with
// what that comes to. Results are within a hundredth of a level of the exact sum in the mean, before they are rounded.
#include "blur.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels.h"

namespace beton {

namespace {

int rounded_up(int n) { return (n + kBlurBlock - 1) & -kBlurBlock; }

BlurWeights make_weights(double sigma, int reach, uint16_t* values) {
  reach = int(std::min(double(reach), std::ceil(4.0 * sigma)));
  double total = 1.0;
  for (int j = 1; j <= reach; j++) total += 2.0 * std::exp(-0.5 * (j / sigma) * (j / sigma));
  int rest = 65536, products = 1;
  for (int j = 1; j <= reach; j++) {
    const int weight = int(std::lrint(2.0 * 65536.0 * std::exp(-0.5 * (j / sigma) * (j / sigma)) / total));
    values[j] = uint16_t(weight);
    rest -= weight;
    products += weight != 0;
  }
  values[0] = uint16_t(std::min(rest, 65535));
  return {values, reach, uint16_t(products / 2)};
}

}  // namespace

void gaussian_blur(const uint8_t* source, int channels, int height, int width, const double sigma[2],
                   const double kernel[2], Buffer* memory, uint8_t* target) {
  const int reaches[2] = {int(kernel[0]) / 2, int(kernel[1]) / 2};
  const int pitch = rounded_up(width), margin = rounded_up(reaches[0]);
  const int counts[2] = {rounded_up(reaches[0] + 1), rounded_up(reaches[1] + 1)};
  const size_t line_size = size_t(pitch) + 2 * size_t(margin);
  const size_t rows_size = size_t(pitch) * size_t(height + 2 * reaches[1]);
  uint16_t* next = memory->get<uint16_t>(size_t(counts[0]) + size_t(counts[1]) + line_size + size_t(pitch) + rows_size);
  BlurPlan plan;
  plan.pitch = pitch;
  plan.across = make_weights(sigma[0], reaches[0], next);
  next += counts[0];
  plan.down = make_weights(sigma[1], reaches[1], next);
  next += counts[1];
  plan.line = next + margin;
  plan.sums = next + line_size;
  plan.rows = plan.sums + pitch + ptrdiff_t(plan.down.reach) * pitch;
  for (int c = 0; c < channels; c++) {
    const ptrdiff_t plane = ptrdiff_t(c) * height * width;
    kernels().blur_plane(plan, source + plane, height, width, target + plane);
  }
}

}  // namespace beton
