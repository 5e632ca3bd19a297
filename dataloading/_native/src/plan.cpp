// Thread-safety: pure functions of their arguments.
//
// An interpreter over the operations of a pipeline's front. Per sample it keeps the state of the image so far
//
//   source --box--> crop --scaled--> resized crop --window--> part of it (or beyond: padding) --flips--> image
//
// and each operation, given in coordinates of the image as it stands (flipped, where flips came before), changes that
// state the way torchvision's functions would change the pixels. Formulas and rounding are torchvision's
// (transforms/v2/_geometry.py and functional/_geometry.py); random numbers are those of dataloading/transforms/rng.py.
// This is C++ rather than Numba because a pipeline without pixel operations then compiles nothing at start-up.
#include "plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "random.h"

namespace {

using beton::child;
using beton::randint;
using beton::uniform;

int64_t whole(double value) { return static_cast<int64_t>(value); }                   // Python's int()
int64_t nearest(double value) { return static_cast<int64_t>(std::nearbyint(value)); }  // Python's round(): half to even

struct Size {
  int64_t h, w;
};

struct Box {
  int64_t x, y, w, h;
};

struct Padding {
  int32_t mode = BETON_PAD_CONSTANT;
  uint32_t fill = 0;
};

// RandomResizedCrop.make_params. Attempt a draws the numbers 4a .. 4a + 3: area, log aspect ratio, top, left.
Box random_resized_box(Size image, const double* row, uint64_t stream) {
  const double area = static_cast<double>(image.h * image.w);
  for (uint64_t counter = 0; counter < 40; counter += 4) {
    const double target = area * (row[2] + uniform(stream, counter) * (row[3] - row[2]));
    const double ratio = std::exp(row[4] + uniform(stream, counter + 1) * (row[5] - row[4]));
    const int64_t w = nearest(std::sqrt(target * ratio));
    const int64_t h = nearest(std::sqrt(target / ratio));
    if (0 < w && w <= image.w && 0 < h && h <= image.h) {
      const int64_t y = randint(stream, counter + 2, image.h - h + 1);
      const int64_t x = randint(stream, counter + 3, image.w - w + 1);
      return {x, y, w, h};
    }
  }
  // The middle, in the nearest shape allowed.
  int64_t w = image.w, h = image.h;
  const double ratio = static_cast<double>(w) / static_cast<double>(h);
  if (ratio < row[6]) {
    h = nearest(static_cast<double>(w) / row[6]);
  } else if (ratio > row[7]) {
    w = nearest(static_cast<double>(h) * row[7]);
  }
  return {(image.w - w) / 2, (image.h - h) / 2, w, h};
}

// _compute_resized_output_size.
Size resized_size(int64_t code, const double* row, Size image) {
  if (code == BETON_PLAN_RESIZE) return {whole(row[0]), whole(row[1])};
  const double side_short = static_cast<double>(image.w <= image.h ? image.w : image.h);
  const double side_long = static_cast<double>(image.w <= image.h ? image.h : image.w);
  int64_t new_short, new_long;
  if (code == BETON_PLAN_RESIZE_LONG) {
    new_short = whole(row[0] * side_short / side_long);
    new_long = whole(row[0]);
  } else {
    new_short = whole(row[0]);
    new_long = whole(row[0] * side_long / side_short);
    if (row[1] > 0 && static_cast<double>(new_long) > row[1]) {
      new_short = whole(row[1] * static_cast<double>(new_short) / static_cast<double>(new_long));
      new_long = whole(row[1]);
    }
  }
  return image.w <= image.h ? Size{new_long, new_short} : Size{new_short, new_long};
}

// Padding (crop - image) / 2 in front where the crop is larger (center_crop_compute_padding), else
// int(round((image - crop) / 2)) (center_crop_compute_crop_anchor).
int64_t center_offset(int64_t image, int64_t crop) {
  return crop > image ? -((crop - image) / 2) : nearest(static_cast<double>(image - crop) / 2.0);
}

// Of a BETON_PLAN_CORNER_CROP, on one axis.
int64_t side_offset(double side, int64_t image, int64_t crop) {
  return side == 2.0 ? center_offset(image, crop) : side == 1.0 ? image - crop : 0;
}

struct Corners {
  double left, top, right, bottom;
};

// The boxes of one sample.
struct Boxes {
  const double* corners = nullptr;
  uint8_t* kept = nullptr;
  int64_t count = 0;
};

// Rounds of RandomIoUCrop, each with an overlap of its own. torchvision has no limit; 50 rounds without success happen to
// one image of 2,000 that has no boxes, and otherwise to images whose boxes allow no crop.
constexpr uint64_t kMostRounds = 50;

class Plan {
 public:
  Plan(int64_t width, int64_t height) : box_{0, 0, width, height}, scaled_{height, width}, window_{0, 0, width, height} {}

  // Applies one operation; returns 0 or the reason why it cannot be done.
  int apply(int64_t code, const double* row, uint64_t stream, const Boxes& boxes) {
    wanted_ = image();
    switch (code) {
      case BETON_PLAN_HORIZONTAL_FLIP:
      case BETON_PLAN_VERTICAL_FLIP:
        if (uniform(stream, 0) < row[0]) flip_ ^= code == BETON_PLAN_HORIZONTAL_FLIP ? 1 : 2;
        return 0;
      case BETON_PLAN_RANDOM_RESIZED_CROP:
        wanted_ = {whole(row[0]), whole(row[1])};
        return resize(random_resized_box(image(), row, stream), row);
      case BETON_PLAN_RESIZE:
      case BETON_PLAN_RESIZE_SHORT:
      case BETON_PLAN_RESIZE_LONG:
        wanted_ = resized_size(code, row, image());
        return resize({0, 0, window_.w, window_.h}, row);
      case BETON_PLAN_CENTER_CROP:
        wanted_ = {whole(row[0]), whole(row[1])};
        return crop(center_offset(window_.w, wanted_.w), center_offset(window_.h, wanted_.h), {});
      case BETON_PLAN_RANDOM_CROP:
        return random_crop(row, stream);
      case BETON_PLAN_RANDOM_TRANSLATE: {
        const int64_t reach = whole(row[0]);
        const int64_t y = randint(stream, 0, 2 * reach + 1) - reach;
        const int64_t x = randint(stream, 1, 2 * reach + 1) - reach;
        return crop(x, y, {BETON_PAD_CONSTANT, static_cast<uint32_t>(row[1])});
      }
      case BETON_PLAN_SCALE_JITTER: {  // ScaleJitter.make_params, which takes the sides of the target crosswise
        const double scale = row[2] + uniform(stream, 0) * (row[3] - row[2]);
        return resize_by(std::min(row[1] / double(window_.h), row[0] / double(window_.w)) * scale, row);
      }
      case BETON_PLAN_SHORTEST_SIZE: {  // RandomShortestSize.make_params
        const double size = row[BETON_PLAN_LIST_AT + randint(stream, 0, whole(row[1]))];
        double ratio = size / double(std::min(window_.h, window_.w));
        if (row[0] > 0) ratio = std::min(ratio, row[0] / double(std::max(window_.h, window_.w)));
        return resize_by(ratio, row);
      }
      case BETON_PLAN_ZOOM_OUT:
        return uniform(stream, 0) < row[2] ? zoom_out(row, stream) : 0;
      case BETON_PLAN_IOU_CROP:
        return iou_crop(row, stream, boxes);
      case BETON_PLAN_CORNER_CROP: {
        wanted_ = {whole(row[0]), whole(row[1])};
        if (wanted_.h > window_.h || wanted_.w > window_.w) return BETON_PLAN_TOO_SMALL;
        flip_ ^= static_cast<int32_t>(row[4]);
        return crop(side_offset(row[3], window_.w, wanted_.w), side_offset(row[2], window_.h, wanted_.h), {});
      }
      case BETON_PLAN_CROP_AROUND_BOX:
        return crop_around_box(row, stream, boxes);
      case BETON_PLAN_CENTER_PART: {  // the square of FFCV's CenterCropRGBImageDecoder
        wanted_ = {whole(row[0]), whole(row[1])};
        const int64_t side = whole(row[2] * double(std::min(window_.h, window_.w)));
        if (side < 1) return BETON_PLAN_EMPTY;
        return resize({(window_.w - side) / 2, (window_.h - side) / 2, side, side}, row);
      }
    }
    return BETON_PLAN_EMPTY;
  }

  Size image() const { return {window_.h, window_.w}; }
  Size wanted() const { return wanted_; }

  void write(beton_request* request) {
    settle_box();
    request->box_x = static_cast<int32_t>(box_.x);
    request->box_y = static_cast<int32_t>(box_.y);
    request->box_w = static_cast<int32_t>(box_.w);
    request->box_h = static_cast<int32_t>(box_.h);
    request->scaled_w = static_cast<int32_t>(scaled_.w);
    request->scaled_h = static_cast<int32_t>(scaled_.h);
    request->window_x = static_cast<int32_t>(window_.x);
    request->window_y = static_cast<int32_t>(window_.y);
    request->out_w = static_cast<int32_t>(window_.w);
    request->out_h = static_cast<int32_t>(window_.h);
    request->pad_mode = padding_.mode;
    for (int c = 0; c < 4; ++c) request->fill[c] = static_cast<uint8_t>(padding_.fill >> (8 * c));
    request->flip = flip_;
    request->interpolation = interpolation_;
    request->antialias = antialias_;
  }

 private:
  // RandomCrop.make_params; pad_if_needed adds the whole difference on both sides.
  int random_crop(const double* row, uint64_t stream) {
    wanted_ = {whole(row[0]), whole(row[1])};
    int64_t left = whole(row[2]), top = whole(row[3]);
    int64_t padded_w = window_.w + left + whole(row[4]);
    int64_t padded_h = window_.h + top + whole(row[5]);
    if (row[6] != 0.0) {
      if (padded_h < wanted_.h) {
        top += wanted_.h - padded_h;
        padded_h += 2 * (wanted_.h - padded_h);
      }
      if (padded_w < wanted_.w) {
        left += wanted_.w - padded_w;
        padded_w += 2 * (wanted_.w - padded_w);
      }
    }
    if (padded_h < wanted_.h || padded_w < wanted_.w) return BETON_PLAN_TOO_SMALL;
    const int64_t y = randint(stream, 0, padded_h - wanted_.h + 1) - top;
    const int64_t x = randint(stream, 1, padded_w - wanted_.w + 1) - left;
    return crop(x, y, {static_cast<int32_t>(row[7]), static_cast<uint32_t>(row[8])});
  }

  int resize_by(double ratio, const double* row) {
    wanted_ = {whole(double(window_.h) * ratio), whole(double(window_.w) * ratio)};
    return resize({0, 0, window_.w, window_.h}, row);
  }

  // RandomZoomOut.make_params.
  int zoom_out(const double* row, uint64_t stream) {
    const double ratio = row[0] + uniform(stream, 1) * (row[1] - row[0]);
    wanted_ = {whole(double(window_.h) * ratio), whole(double(window_.w) * ratio)};
    const int64_t left = whole(double(wanted_.w - window_.w) * uniform(stream, 2));
    const int64_t top = whole(double(wanted_.h - window_.h) * uniform(stream, 3));
    const int reason = crop(-left, -top, {BETON_PAD_CONSTANT, static_cast<uint32_t>(row[3])});
    zoomed_out_ = reason == 0 && padded_;
    return reason;
  }

  // RandomIoUCrop.make_params. Round k has the stream child(stream, k): number 0 picks the overlap, trial t takes the
  // numbers 4t + 1 .. 4t + 4: width, height, left, top.
  int iou_crop(const double* row, uint64_t stream, const Boxes& boxes) {
    for (uint64_t k = 0; k < kMostRounds; k++) {
      const uint64_t round = child(stream, k);
      const double overlap = row[BETON_PLAN_LIST_AT + randint(round, 0, whole(row[5]))];
      if (overlap >= 1.0) return 0;
      for (int64_t t = 0; t < whole(row[4]) && boxes.count > 0; t++) {
        const uint64_t first = static_cast<uint64_t>(4 * t + 1);
        const int64_t w = whole(double(window_.w) * (row[0] + (row[1] - row[0]) * uniform(round, first)));
        const int64_t h = whole(double(window_.h) * (row[0] + (row[1] - row[0]) * uniform(round, first + 1)));
        if (w < 1 || h < 1) continue;
        const double ratio = double(w) / double(h);
        if (!(row[2] <= ratio && ratio <= row[3])) continue;
        const int64_t x = whole(double(window_.w - w) * uniform(round, first + 2));
        const int64_t y = whole(double(window_.h - h) * uniform(round, first + 3));
        const Corners part{double(x), double(y), double(x + w), double(y + h)};
        if (!overlaps(part, boxes, overlap)) continue;
        for (int64_t i = 0; i < boxes.count; i++) {
          if (!is_centred(placed(boxes.corners + 4 * i), part)) boxes.kept[i] = 0;
        }
        wanted_ = {h, w};
        return crop(x, y, {});
      }
    }
    return 0;
  }

  // The part that has the shape of the result and holds a box, scaled about its centre and shifted; moved into the image
  // where it reaches beyond, and cut off where it is larger. Numbers: 0 picks the box, 1 is the scale, 2 and 3 shift.
  int crop_around_box(const double* row, uint64_t stream, const Boxes& boxes) {
    wanted_ = {whole(row[0]), whole(row[1])};
    const double ratio = double(wanted_.w) / double(wanted_.h);
    Corners box{0.0, 0.0, double(window_.w), double(window_.h)};
    double w = std::min(box.right, box.bottom * ratio), h = std::min(box.bottom, box.right / ratio);
    if (picked(whole(row[5]), stream, boxes, &box)) {
      const double scale = row[2] + uniform(stream, 1) * (row[3] - row[2]);
      w = std::max((box.right - box.left) * scale, (box.bottom - box.top) * scale * ratio);
      h = w / ratio;
      const double x = (2.0 * uniform(stream, 2) - 1.0) * row[4] * w, y = (2.0 * uniform(stream, 3) - 1.0) * row[4] * h;
      box = {box.left + x, box.top + y, box.right + x, box.bottom + y};
    }
    const Span across = within(0.5 * (box.left + box.right), w, window_.w);
    const Span down = within(0.5 * (box.top + box.bottom), h, window_.h);
    return resize({across.from, down.from, across.length, down.length}, row);
  }

  // Finds a box that has an area; returns false if there is none.
  bool picked(int64_t how, uint64_t stream, const Boxes& boxes, Corners* found) const {
    int64_t count = 0;
    for (int64_t i = 0; i < boxes.count; i++) count += has_area(boxes, i);
    if (count == 0) return false;
    int64_t left = how == 0 ? randint(stream, 0, count) : 0;
    double largest = 0.0;
    for (int64_t i = 0; i < boxes.count; i++) {
      if (!has_area(boxes, i)) continue;
      const Corners box = placed(boxes.corners + 4 * i);
      if (how == 2 ? area(box) > largest : left-- == 0) {
        *found = box;
        largest = area(box);
      }
    }
    return true;
  }

  bool has_area(const Boxes& boxes, int64_t i) const {
    const Corners box = placed(boxes.corners + 4 * i);
    return boxes.kept[i] && box.right > box.left && box.bottom > box.top;
  }

  static bool is_centred(const Corners& box, const Corners& part) {
    const double x = 0.5 * (box.left + box.right), y = 0.5 * (box.top + box.bottom);
    return part.left < x && x < part.right && part.top < y && y < part.bottom;
  }

  // Whether a box that is still there has its centre in the part, and one such box overlaps with it enough.
  bool overlaps(const Corners& part, const Boxes& boxes, double least) const {
    for (int64_t i = 0; i < boxes.count; i++) {
      const Corners box = placed(boxes.corners + 4 * i);
      if (!boxes.kept[i] || !is_centred(box, part)) continue;
      const double w = std::min(box.right, part.right) - std::max(box.left, part.left);
      const double h = std::min(box.bottom, part.bottom) - std::max(box.top, part.top);
      const double common = std::max(w, 0.0) * std::max(h, 0.0);
      const double all = area(box) + area(part) - common;
      if (common >= least * all) return true;
    }
    return false;
  }

  static double area(const Corners& box) { return (box.right - box.left) * (box.bottom - box.top); }

  // Where a box of the stored image is in the image as it stands, clipped to it.
  Corners placed(const double* stored) const {
    const double scale_x = double(scaled_.w) / double(box_.w), scale_y = double(scaled_.h) / double(box_.h);
    double x[2], y[2];
    for (int i = 0; i < 2; i++) {
      const double in_box_x = std::clamp(stored[2 * i] - double(box_.x), 0.0, double(box_.w));
      const double in_box_y = std::clamp(stored[2 * i + 1] - double(box_.y), 0.0, double(box_.h));
      x[i] = std::clamp(in_box_x * scale_x - double(window_.x), 0.0, double(window_.w));
      y[i] = std::clamp(in_box_y * scale_y - double(window_.y), 0.0, double(window_.h));
    }
    if (flip_ & 1) {
      x[0] = double(window_.w) - x[0];
      x[1] = double(window_.w) - x[1];
      std::swap(x[0], x[1]);
    }
    if (flip_ & 2) {
      y[0] = double(window_.h) - y[0];
      y[1] = double(window_.h) - y[1];
      std::swap(y[0], y[1]);
    }
    return {x[0], y[0], x[1], y[1]};
  }

  // Where nothing but crops came before, the image as it stands is a box of the source: so padding is measured from
  // its border, and a resize sees no pixel outside it.
  void settle_box() {
    if (padded_ || resized_) return;
    box_ = {box_.x + window_.x, box_.y + window_.y, window_.w, window_.h};
    scaled_ = image();
    window_.x = window_.y = 0;
  }

  void unflip(Box* part) const {
    if (flip_ & 1) part->x = window_.w - part->x - part->w;
    if (flip_ & 2) part->y = window_.h - part->y - part->h;
  }

  // Takes the rectangle of wanted_ size at (x, y) of the image as it stands; padding is for what lies outside.
  int crop(int64_t x, int64_t y, Padding padding) {
    Box part{x, y, wanted_.w, wanted_.h};
    const bool outside = x < 0 || y < 0 || x + part.w > window_.w || y + part.h > window_.h;
    unflip(&part);
    settle_box();
    if (outside) {
      if (padded_) return BETON_PLAN_PADDED_ALREADY;
      if (window_.x != 0 || window_.y != 0 || window_.w != scaled_.w || window_.h != scaled_.h) {
        return BETON_PLAN_PADDED_PART;
      }
      padded_ = true;
      padding_ = padding;
    }
    window_ = {window_.x + part.x, window_.y + part.y, part.w, part.h};
    return 0;
  }

  // Resizes the part to wanted_ size.
  int resize(Box part, const double* row) {
    if (wanted_.w < 1 || wanted_.h < 1) return BETON_PLAN_EMPTY;
    if ((padded_ && !zoomed_out_) || resized_) return BETON_PLAN_PADDED_ALREADY;
    unflip(&part);
    settle_box();
    if (padded_) {
      resize_with_edges({window_.x + part.x, window_.y + part.y, part.w, part.h});
    } else {
      box_ = {box_.x + part.x, box_.y + part.y, part.w, part.h};
      scaled_ = wanted_;
      window_ = {0, 0, wanted_.w, wanted_.h};
    }
    resized_ = true;
    interpolation_ = static_cast<int32_t>(row[8]);
    antialias_ = static_cast<int32_t>(row[9]);
    return 0;
  }

  // Resizes a part that may reach beyond the image: what it holds of the image is resized on its own, to whole pixels.
  void resize_with_edges(const Box& part) {
    const Span x = with_edges(part.x, part.w, scaled_.w, wanted_.w);
    const Span y = with_edges(part.y, part.h, scaled_.h, wanted_.h);
    box_ = {box_.x + x.from, box_.y + y.from, x.length, y.length};
    scaled_ = {y.scaled, x.scaled};
    window_ = {-x.at, -y.at, wanted_.w, wanted_.h};
  }

  struct Span {
    int64_t from, length;  // in the image
    int64_t at, scaled;    // in the result
  };

  // The span of about this length around a middle, moved into a side.
  static Span within(double middle, double length, int64_t side) {
    const int64_t whole_length = nearest(std::clamp(length, 1.0, double(side)));
    const double from = std::clamp(middle - 0.5 * double(whole_length), 0.0, double(side - whole_length));
    return {nearest(from), whole_length, 0, 0};
  }

  static Span with_edges(int64_t from, int64_t length, int64_t side, int64_t wanted) {
    const int64_t low = std::max<int64_t>(from, 0), high = std::min(from + length, side);
    if (low >= high) return {0, 1, wanted, 1};  // nothing of the image: one pixel, behind the end of the result
    const double scale = double(wanted) / double(length);
    const int64_t at = std::min(nearest(double(low - from) * scale), wanted - 1);
    const int64_t end = std::max(nearest(double(high - from) * scale), at + 1);
    return {low, high - low, at, end - at};
  }

  Box box_;
  Size scaled_;
  Box window_;
  Size wanted_{0, 0};
  int32_t flip_ = 0;
  int32_t interpolation_ = BETON_BILINEAR;
  int32_t antialias_ = 1;
  Padding padding_;
  bool resized_ = false;
  bool padded_ = false;
  bool zoomed_out_ = false;  // what is padded may still be resized
};

}  // namespace

int64_t beton_plan(const int64_t* codes, const int64_t* positions, const double* rows, int64_t num_operations,
                   const uint64_t* keys, const beton_plan_boxes* boxes, beton_request* requests, int64_t start,
                   int64_t count, beton_plan_failure* failure) {
  for (int64_t i = start; i < count; ++i) {
    Plan plan(requests[i].src_width, requests[i].src_height);
    Boxes own;
    if (boxes != nullptr) {
      const int64_t first = boxes->starts[i];
      own = {boxes->corners + 4 * first, boxes->kept + first, boxes->starts[i + 1] - first};
    }
    for (int64_t k = 0; k < num_operations; ++k) {
      const uint64_t stream = child(keys[i], static_cast<uint64_t>(positions[k]));
      const int reason = plan.apply(codes[k], rows + k * BETON_PLAN_ROW_LENGTH, stream, own);
      if (reason != 0) {
        *failure = {reason, positions[k], plan.image().h, plan.image().w, plan.wanted().h, plan.wanted().w};
        return i;
      }
    }
    plan.write(requests + i);
  }
  return -1;
}
