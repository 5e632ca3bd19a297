// Thread-safety: pure functions of their arguments and of the files' maps, which nobody writes.
#include "samples.h"

#include <algorithm>
#include <cstring>

#include "random.h"

namespace {

constexpr int64_t kAhead = 8;  // records to fetch before they are needed: they lie anywhere in the table

struct Allocation {
  uint64_t sample, ptr, size;
};

template <typename Value>
Value read(const uint8_t* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

class Finder {
 public:
  Finder(const beton_tables* tables, int64_t num_files, const beton_image_field& field)
      : tables_(tables), num_files_(num_files), field_(field) {}

  bool has(int64_t index) const { return index >= 0 && index < tables_[num_files_].first_sample; }

  const beton_tables& file_of(int64_t index) const {
    if (num_files_ == 1) return tables_[0];
    const auto after = [](int64_t i, const beton_tables& t) { return i < t.first_sample; };
    return *(std::upper_bound(tables_, tables_ + num_files_, index, after) - 1);
  }

  const uint8_t* record(const beton_tables& file, int64_t index) const {
    return reinterpret_cast<const uint8_t*>(uintptr_t(file.samples)) +
           (index - file.first_sample) * field_.record_bytes + field_.field_at;
  }

  const uint8_t* allocation(const beton_tables& file, int64_t index) const {
    const int64_t at = (index - file.first_sample) * field_.num_stored + field_.ordinal;
    if (at >= file.num_allocations) return nullptr;
    return reinterpret_cast<const uint8_t*>(uintptr_t(file.allocations)) + at * int64_t(sizeof(Allocation));
  }

  void fetch_ahead(int64_t index, bool with_allocation) const {
    if (!has(index)) return;
    const beton_tables& file = file_of(index);
    __builtin_prefetch(record(file, index));
    const uint8_t* entry = with_allocation ? allocation(file, index) : nullptr;
    if (entry != nullptr) __builtin_prefetch(entry);
  }

  // Whether the image was found.
  bool find(int64_t index, beton_request* q) const {
    if (!has(index)) return false;
    const beton_tables& file = file_of(index);
    const uint8_t* at = record(file, index);
    const int mode = at[0];
    const uint64_t width = read<uint16_t>(at + 1), height = read<uint16_t>(at + 3);
    const uint64_t position = read<uint64_t>(at + 5);
    if (mode < field_.first_mode || mode >= field_.end_mode || width == 0 || height == 0) return false;
    uint64_t size = width * height * uint64_t(field_.pixel_bytes);
    if (mode != BETON_MODE_RAW) {
      const uint8_t* entry = allocation(file, index);
      if (entry == nullptr) return false;
      const Allocation found = read<Allocation>(entry);
      if (found.ptr != position || found.sample != uint64_t(index - file.first_sample) || found.size == 0) return false;
      size = found.size;
    }
    if (position < file.begin || position > file.end || size > file.end - position) return false;
    std::memset(q, 0, sizeof *q);
    q->src = file.memory + position;
    q->src_bytes = size;
    q->mode = mode;
    q->src_width = int32_t(width);
    q->src_height = int32_t(height);
    q->channels = int32_t(field_.channels);
    return true;
  }

 private:
  const beton_tables* tables_;
  const int64_t num_files_;
  const beton_image_field& field_;
};

}  // namespace

extern "C" {

int64_t beton_find_images(const beton_tables* tables, int64_t num_files, const beton_image_field* field,
                          const int64_t* indices, int64_t n, beton_request* requests, uint64_t* num_bytes) {
  const Finder finder(tables, num_files, *field);
  *num_bytes = 0;
  bool packed = false;  // pixels need no allocation
  for (int64_t i = 0; i < std::min(n, kAhead); i++) finder.fetch_ahead(indices[i], packed);
  for (int64_t i = 0; i < n; i++) {
    if (i + kAhead < n) finder.fetch_ahead(indices[i + kAhead], packed);
    if (!finder.find(indices[i], requests + i)) return i;
    packed = requests[i].mode != BETON_MODE_RAW;
    *num_bytes += requests[i].src_bytes;
  }
  return -1;
}

void beton_aim(beton_request* requests, int64_t n, uint8_t* images, int64_t image_bytes, int64_t plane_bytes,
               int64_t row_bytes) {
  for (int64_t i = 0; i < n; i++) {
    requests[i].dst = uint64_t(uintptr_t(images + i * image_bytes));
    requests[i].plane_stride = plane_bytes;
    requests[i].row_stride = row_bytes;
  }
}

void beton_sample_keys(uint64_t key, const int64_t* indices, const int64_t* views, uint64_t view, int64_t n,
                       uint64_t* keys) {
  for (int64_t i = 0; i < n; i++) {
    const uint64_t own = views == nullptr ? view : uint64_t(views[i]) + view;
    keys[i] = beton::child(beton::child(key, uint64_t(indices[i])), own);
  }
}

}  // extern "C"
