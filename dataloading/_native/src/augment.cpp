// Thread-safety: pure functions of their arguments; each thread has scratch images of its own.
//
// One sample at a time: the tree of transforms is walked through with the sample's key, which gives a tape (the leaves to
// execute, in order) and their params; then the leaves' kernels are called one after the other, planes in cache. Kernels
// are compiled by Numba, which passes an array as seven numbers or more; no Python runs here.
#include "augment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "beton_native.h"
#include "blur.h"
#include "color.h"
#include "random.h"
#include "round_trip.h"
#include "scratch.h"

namespace {

using beton::child;
using beton::randint;
using beton::uniform;

constexpr int64_t kNumberedPermutations = 12;  // of so many children: 12! < 2**31
constexpr int64_t kMostPermuted = 256;
constexpr size_t kMostChannels = 16;

struct Program {
  const beton_node* nodes;
  const int64_t* children;
  const double* weights;
  const beton_leaf* leaves;
  const beton_law* laws;
  const double* values;

  explicit Program(const beton_program& p)
      : nodes(reinterpret_cast<const beton_node*>(p.nodes)),
        children(reinterpret_cast<const int64_t*>(p.children)),
        weights(reinterpret_cast<const double*>(p.weights)),
        leaves(reinterpret_cast<const beton_leaf*>(p.leaves)),
        laws(reinterpret_cast<const beton_law*>(p.laws)),
        values(reinterpret_cast<const double*>(p.values)) {}
};

// -- kernels ----------------------------------------------------------------------------------------------------------

// Numba's convention: status = f(&result, &exception, arguments), arrays without owner flattened into numbers.
template <typename... Arguments>
int32_t call(uint64_t address, Arguments... arguments) {
  void* result = nullptr;
  void* exception = nullptr;
  using Function = int32_t (*)(void**, void**, Arguments...);
  return reinterpret_cast<Function>(address)(&result, &exception, arguments...);
}

constexpr void* kNone = nullptr;

#define BETON_ARRAY_1(data, count, bytes) \
  kNone, kNone, int64_t(count), int64_t(bytes), static_cast<void*>(data), int64_t(count), int64_t(bytes)

#define BETON_ARRAY_2(data, n0, n1, bytes)                                                                            \
  kNone, kNone, int64_t(n0) * int64_t(n1), int64_t(bytes), static_cast<void*>(data), int64_t(n0), int64_t(n1),        \
      int64_t(n1) * int64_t(bytes), int64_t(bytes)

#define BETON_ARRAY_3(data, shape, bytes)                                                                            \
  kNone, kNone, int64_t((shape)[0] * (shape)[1] * (shape)[2]), int64_t(bytes), static_cast<void*>(data),             \
      int64_t((shape)[0]), int64_t((shape)[1]), int64_t((shape)[2]), int64_t((shape)[1] * (shape)[2] * (bytes)),      \
      int64_t((shape)[2] * (bytes)), int64_t(bytes)

// -- draw -------------------------------------------------------------------------------------------------------------

// What one sample gets.
struct Tape {
  const Program& program;
  double* params;
  int64_t* leaves;
  int64_t length = 0;
  int64_t failed_leaf = -1;

  double drawn(const beton_law& law, uint64_t key) const {
    const uint64_t number = static_cast<uint64_t>(law.number);
    switch (law.code) {
      case BETON_LAW_UNIFORM:
        return law.low + uniform(key, number) * (law.high - law.low);
      case BETON_LAW_INTEGER:
        return law.low + static_cast<double>(randint(key, number, static_cast<int64_t>(law.high - law.low)));
      case BETON_LAW_SIGN:
        return uniform(key, number) < 0.5 ? law.low : -law.low;
      case BETON_LAW_LOG_UNIFORM:
        return std::exp(law.low + uniform(key, number) * (law.high - law.low));
      case BETON_LAW_NORMAL: {
        const uint64_t own = child(key, number);
        const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(own, 0)));
        return law.low + law.high * (radius * std::cos(2.0 * 3.14159265358979323846 * uniform(own, 1)));
      }
      case BETON_LAW_STREAM: {
        const uint64_t own = child(key, number);
        double bits;
        std::memcpy(&bits, &own, sizeof bits);
        return bits;
      }
      case BETON_LAW_PICK:
      case BETON_LAW_PICK_SIGNED: {
        const double value =
            program.values[static_cast<int64_t>(law.low) + randint(key, number, static_cast<int64_t>(law.high))];
        return law.code == BETON_LAW_PICK || uniform(key, number + 1) < 0.5 ? value : -value;
      }
      default:
        return law.low;
    }
  }

  void draw_leaf(int64_t number, uint64_t key) {
    const beton_leaf& leaf = program.leaves[number];
    double* own = params + leaf.params_at;
    if (leaf.kind == BETON_OP_USER || leaf.kind == BETON_OP_USER_WRITES) {
      std::memcpy(own, &key, sizeof key);
    } else if (leaf.draw != 0) {
      const int32_t status =
          call(leaf.draw, key, leaf.source_shape[1], leaf.source_shape[2],
               BETON_ARRAY_1(reinterpret_cast<void*>(leaf.constants), leaf.num_constants, 8),
               BETON_ARRAY_1(own, leaf.num_params, 8));
      if (status != 0 && failed_leaf < 0) failed_leaf = number;
    } else {
      const beton_law* laws = program.laws + leaf.first_law;
      for (int64_t i = 0; i < leaf.num_params; i++) own[i] = drawn(laws[i], key);
    }
    leaves[length++] = number;
  }

  void draw(int64_t number, uint64_t parent) {
    const beton_node& node = program.nodes[number];
    const uint64_t key = node.place < 0 ? parent : child(parent, static_cast<uint64_t>(node.place));
    uint64_t next = 0;
    if (node.p >= 0.0) {
      if (uniform(key, 0) >= node.p) return;
      next = 1;
    }
    const int64_t* children = program.children + node.first_child;
    const int64_t n = node.num_children;
    switch (node.kind) {
      case BETON_NODE_LEAF:
        draw_leaf(node.leaf, key);
        break;
      case BETON_NODE_CHOICE: {
        const double u = uniform(key, next);
        const double* below = program.weights + node.first_child;
        int64_t i = 0;
        while (i + 1 < n && u >= below[i]) i++;
        draw(children[i], key);
        break;
      }
      case BETON_NODE_PERMUTATION:
        draw_permuted(children, n, key, next);
        break;
      default:
        for (int64_t i = 0; i < n; i++) draw(children[i], key);
    }
  }

  // The permutations of a few children are numbered in lexicographic order; each step over many takes a number.
  void draw_permuted(const int64_t* children, int64_t n, uint64_t key, uint64_t next) {
    int64_t rest[kMostPermuted];
    for (int64_t i = 0; i < n; i++) rest[i] = i;
    int64_t count = 1;
    const bool few = n <= kNumberedPermutations;
    for (int64_t i = 2; few && i <= n; i++) count *= i;
    int64_t which = few ? randint(key, next, count) : 0;
    for (int64_t left = n; left > 0; left--) {
      int64_t i;
      if (few) {
        count /= left;
        i = which / count;
        which %= count;
      } else {
        i = randint(key, next++, left);
      }
      const int64_t picked = rest[i];
      std::memmove(rest + i, rest + i + 1, size_t(left - i - 1) * sizeof *rest);
      draw(children[picked], key);
    }
  }
};

// -- apply ------------------------------------------------------------------------------------------------------------

template <typename Value>
void look_up(const uint8_t* source, Value* target, const Value* table, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, source + i, 8);
    Value values[8];
    for (int k = 0; k < 8; k++) values[k] = table[(eight >> (8 * k)) & 255];
    std::memcpy(target + i, values, sizeof values);
  }
  for (; i < n; i++) target[i] = table[source[i]];
}

template <typename Value>
void look_up(const uint16_t* source, Value* target, const Value* table, size_t n) {
  for (size_t i = 0; i < n; i++) target[i] = table[source[i]];
}

// Whether a table keeps some bits and turns some over, as those of identity, inversion and posterizing do.
bool is_of_bits(const uint8_t* table) {
  const uint8_t turned = table[0], kept = table[0] ^ table[255];
  bool is = true;
  for (int v = 0; v < 256; v++) is &= table[v] == ((v & kept) ^ turned);
  return is;
}

void map_bytes(const uint8_t* source, uint8_t* target, const uint8_t* table, size_t n) {
  const uint8_t turned = table[0], kept = table[0] ^ table[255];
  if (!is_of_bits(table)) {
    beton::kernels().look_up(source, table, n, target);
  } else if (turned != 0 || kept != 255 || source != target) {
    for (size_t i = 0; i < n; i++) target[i] = static_cast<uint8_t>((source[i] & kept) ^ turned);
  }
}

struct ThreadImages {
  beton::Buffer first, second, work, tables, lookup, params, tape, kept, sum, blur;
  beton_augment_failure failure{};
};

ThreadImages& thread_images() {
  thread_local ThreadImages images;
  return images;
}

constexpr size_t kKeep = size_t(64) << 20;

class Runner {
 public:
  Runner(const Program& program, const beton_program& sizes, ThreadImages& memory)
      : program_(program), sizes_(sizes), memory_(memory) {
    spare_[0] = memory.first.get<uint8_t>(size_t(sizes.image_bytes));
    spare_[1] = memory.second.get<uint8_t>(size_t(sizes.image_bytes));
    work_ = memory.work.get<uint8_t>(size_t(sizes.work_bytes));
    tables_ = memory.tables.get<uint8_t>(256 * kMostChannels);
    lookup_ = memory.lookup.get<uint8_t>(256 * 4 * kMostChannels);
  }

  // Returns 0, or the status of the operation that failed: leaf, given source.
  int32_t run(uint8_t* decoded, uint8_t* out, const Tape& tape, int64_t* leaf_number, uint8_t** source) {
    image_ = decoded;
    pending_ = false;
    int64_t last_move = -1;
    for (int64_t t = 0; t < tape.length; t++) {
      if (moves(program_.leaves[tape.leaves[t]])) last_move = t;
    }
    for (int64_t t = 0; t < tape.length; t++) {
      const beton_leaf& leaf = program_.leaves[tape.leaves[t]];
      uint8_t* target = moves(leaf) ? (t == last_move && out != image_ ? out : other()) : image_;
      *leaf_number = tape.leaves[t];
      *source = image_;
      const int32_t status = apply(leaf, target, tape.params + leaf.params_at, source);
      if (status != 0) return status;
      image_ = target;
    }
    if (pending_) {
      write_tables(out, last_shape_);
    } else if (image_ != out) {
      std::memcpy(out, image_, size_t(sizes_.out_bytes));
    }
    return 0;
  }

 private:
  static bool moves(const beton_leaf& leaf) {
    return leaf.kind == BETON_OP_APPLY || leaf.kind == BETON_OP_LOOKUP || leaf.kind == BETON_OP_USER_WRITES ||
           leaf.kind == BETON_OP_JPEG || leaf.kind == BETON_OP_BLUR;
  }

  uint8_t* other() const { return image_ == spare_[0] ? spare_[1] : spare_[0]; }

  int32_t apply(const beton_leaf& leaf, uint8_t* target, double* params, uint8_t** source) {
    const int64_t* shape = leaf.source_shape;
    void* constants = reinterpret_cast<void*>(leaf.constants);
    if (leaf.kind == BETON_OP_TABLE || leaf.kind == BETON_OP_STATISTICS) {
      if (pending_ && leaf.kind == BETON_OP_STATISTICS) write_tables(image_, shape);
      if (!pending_) {
        for (int64_t i = 0; i < 256 * shape[0]; i++) tables_[i] = static_cast<uint8_t>(i);
        pending_ = true;
        last_shape_ = shape;
      }
      if (leaf.kernel < BETON_COLOR_END) {
        beton::change_tables(int64_t(leaf.kernel), image_, shape, params, tables_);
        return 0;
      }
      return call(leaf.kernel, BETON_ARRAY_3(image_, shape, 1), BETON_ARRAY_2(tables_, shape[0], 256, 1),
                  BETON_ARRAY_1(params, leaf.num_params, 8), BETON_ARRAY_1(constants, leaf.num_constants, 8));
    }
    if (leaf.kind == BETON_OP_LOOKUP) {
      look_up_all(leaf, target);
      pending_ = false;
      return 0;
    }
    if (pending_) write_tables(image_, shape);
    if (leaf.kind == BETON_OP_JPEG) {
      return beton::round_trip(image_, int(shape[0]), int(shape[1]), int(shape[2]), int(params[0]), target);
    }
    if (leaf.kind == BETON_OP_BLUR) {
      beton::gaussian_blur(image_, int(shape[0]), int(shape[1]), int(shape[2]), params,
                           static_cast<const double*>(constants), &memory_.blur, target);
      return 0;
    }
    if (leaf.kind >= BETON_OP_MIX_BEGIN) {
      mix(leaf, size_t(shape[0] * shape[1] * shape[2]), params);
      return 0;
    }
    if (leaf.kind == BETON_OP_USER || leaf.kind == BETON_OP_USER_WRITES) {
      uint64_t key;
      std::memcpy(&key, params, sizeof key);
      if (leaf.kind == BETON_OP_USER_WRITES) {
        return call(leaf.kernel, BETON_ARRAY_3(image_, shape, leaf.source_bytes), key,
                    BETON_ARRAY_3(target, leaf.target_shape, leaf.target_bytes));
      }
      *source = other();  // kept, so that the function can be run again to see what it raises
      std::memcpy(*source, image_, size_t(shape[0] * shape[1] * shape[2] * leaf.source_bytes));
      return call(leaf.kernel, BETON_ARRAY_3(image_, shape, leaf.source_bytes), key);
    }
    if (leaf.kernel < BETON_COLOR_END) {
      beton::change_colors(int64_t(leaf.kernel), image_, shape, params, static_cast<const double*>(constants));
      return 0;
    }
    return call(leaf.kernel, BETON_ARRAY_3(image_, shape, leaf.source_bytes),
                BETON_ARRAY_3(target, leaf.target_shape, leaf.target_bytes), BETON_ARRAY_1(params, leaf.num_params, 8),
                BETON_ARRAY_1(constants, leaf.num_constants, 8), BETON_ARRAY_1(work_, sizes_.work_bytes, 1));
  }

  // Several versions of one image, weighted and added up.
  void mix(const beton_leaf& leaf, size_t count, const double* params) {
    uint8_t* kept = memory_.kept.get<uint8_t>(count);
    float* sum = memory_.sum.get<float>(count);
    if (leaf.kind == BETON_OP_MIX_BEGIN) {
      weights_ = params;
      std::memcpy(kept, image_, count);
      const float weight = float(params[0]);
      for (size_t i = 0; i < count; i++) sum[i] = weight * float(image_[i]);
    } else if (leaf.kind == BETON_OP_MIX_ADD) {
      const float weight = float(weights_[int64_t(*reinterpret_cast<const double*>(leaf.constants))]);
      for (size_t i = 0; i < count; i++) sum[i] += weight * float(image_[i]);
      std::memcpy(image_, kept, count);
    } else {
      // Weights are positive and sum to 1, up to rounding.
      for (size_t i = 0; i < count; i++) image_[i] = uint8_t(int32_t(sum[i]));
    }
  }

  void write_tables(uint8_t* target, const int64_t* shape) {
    const int64_t plane = shape[1] * shape[2];
    for (int64_t c = 0; c < shape[0]; c++) {
      map_bytes(image_ + c * plane, target + c * plane, tables_ + 256 * c, size_t(plane));
    }
    pending_ = false;
  }

  template <typename Value>
  void look_up_planes(const beton_leaf& leaf, uint8_t* target) {
    const int64_t channels = leaf.source_shape[0], plane = leaf.source_shape[1] * leaf.source_shape[2];
    const Value* table = reinterpret_cast<const Value*>(leaf.lookup);
    if (leaf.source_bytes == 2) {
      for (int64_t c = 0; c < channels; c++) {
        look_up(reinterpret_cast<const uint16_t*>(image_) + c * plane, reinterpret_cast<Value*>(target) + c * plane,
                table + 65536 * c, size_t(plane));
      }
      return;
    }
    if (pending_) {
      Value* joined = reinterpret_cast<Value*>(lookup_);
      for (int64_t c = 0; c < channels; c++) look_up(tables_ + 256 * c, joined + 256 * c, table + 256 * c, 256);
      table = joined;
    }
    for (int64_t c = 0; c < channels; c++) {
      look_up(image_ + c * plane, reinterpret_cast<Value*>(target) + c * plane, table + 256 * c, size_t(plane));
    }
  }

  // A part of the pixels after the other, so that what tables make of them stays in cache.
  void plane_to_floats(const uint8_t* source, const uint8_t* table, const float line[5], size_t n, float* out) {
    constexpr size_t kPart = 8192;
    uint8_t part[kPart];
    for (size_t first = 0; first < n; first += kPart) {
      const size_t count = std::min(kPart, n - first);
      if (pending_) map_bytes(source + first, part, table, count);
      beton::kernels().to_floats(pending_ ? part : source + first, line, count, out + first);
    }
  }

  void look_up_all(const beton_leaf& leaf, uint8_t* target) {
    const int64_t channels = leaf.source_shape[0], plane = leaf.source_shape[1] * leaf.source_shape[2];
    bool is_simple = true;
    for (int64_t c = 0; pending_ && c < channels; c++) is_simple &= is_of_bits(tables_ + 256 * c);
    if (is_simple && leaf.num_constants == 5 * channels) {
      const double* constants = reinterpret_cast<const double*>(leaf.constants);
      for (int64_t c = 0; c < channels; c++) {
        float line[5];
        for (int k = 0; k < 5; k++) line[k] = float(constants[5 * c + k]);
        plane_to_floats(image_ + c * plane, tables_ + 256 * c, line, size_t(plane),
                        reinterpret_cast<float*>(target) + c * plane);
      }
      return;
    }
    if (leaf.target_bytes == 4) {
      look_up_planes<uint32_t>(leaf, target);
    } else if (leaf.target_bytes == 2) {
      look_up_planes<uint16_t>(leaf, target);
    } else {
      look_up_planes<uint8_t>(leaf, target);
    }
  }

  const Program& program_;
  const beton_program& sizes_;
  ThreadImages& memory_;
  const double* weights_ = nullptr;  // of the mix that has begun
  uint8_t* image_ = nullptr;
  uint8_t* spare_[2];
  uint8_t* work_;
  uint8_t* tables_;
  uint8_t* lookup_;
  const int64_t* last_shape_ = nullptr;
  bool pending_ = false;
};

}  // namespace

extern "C" {

int64_t beton_augment_draw(const beton_program* sizes, const uint64_t* keys, int64_t n, double* params,
                           int64_t* tapes) {
  const Program program(*sizes);
  for (int64_t i = 0; i < n; i++) {
    int64_t* leaves = tapes + i * sizes->tape_length;
    Tape tape{program, params + i * sizes->num_params, leaves};
    tape.draw(0, keys[i]);
    for (int64_t t = tape.length; t < sizes->tape_length; t++) leaves[t] = -1;
    if (tape.failed_leaf >= 0) return i;
  }
  return -1;
}

int32_t beton_augment_run(const beton_program* sizes, const uint64_t* keys, uint8_t* decoded, uint8_t* out,
                          int64_t start, int64_t n, double* params, int64_t* tapes) {
  try {
    const Program program(*sizes);
    ThreadImages& memory = thread_images();
    Runner runner(program, *sizes, memory);
    double* own_params = memory.params.get<double>(size_t(sizes->num_params) + 1);
    int64_t* own_tape = memory.tape.get<int64_t>(size_t(sizes->tape_length) + 1);
    int32_t result = 0;
    for (int64_t i = start; i < n && result == 0; i++) {
      Tape tape{program, own_params, own_tape};
      if (tapes != nullptr) {
        tape.params = params + i * sizes->num_params;
        tape.leaves = tapes + i * sizes->tape_length;
        while (tape.length < sizes->tape_length && tape.leaves[tape.length] >= 0) tape.length++;
      } else {
        tape.draw(0, keys[i]);
      }
      int64_t leaf = tape.failed_leaf;
      uint8_t* source = nullptr;
      const int32_t status = leaf >= 0 ? 1
                                       : runner.run(decoded + i * sizes->decoded_bytes, out + i * sizes->out_bytes, tape,
                                                    &leaf, &source);
      if (status != 0) {
        memory.failure = {i, leaf, status, reinterpret_cast<uint64_t>(source), 0};
        if (program.leaves[leaf].num_params > 0) {
          std::memcpy(&memory.failure.key, tape.params + program.leaves[leaf].params_at, sizeof(uint64_t));
        }
        result = -1;
      }
    }
    if (result == 0) {
      memory.first.trim(kKeep);
      memory.second.trim(kKeep);
      memory.work.trim(kKeep);
      memory.kept.trim(kKeep);
      memory.sum.trim(kKeep);
      memory.blur.trim(kKeep);
    }
    return result;
  } catch (const std::bad_alloc&) {
    return -2;
  }
}

void beton_augment_last_failure(beton_augment_failure* failure) { *failure = thread_images().failure; }

}  // extern "C"
