// How an entry point goes over runs and slices of coordinates, and where it keeps its working memory.
// A slice's extent and the order in which slices are added up do not depend on the number of threads: nor do the bits.
#pragma once
#include <algorithm>
#include <vector>

#include "matrix.h"
#include "step.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

// Vanishing gradients leave subnormal moments behind, which are slow and worth nothing.
struct FlushSubnormals {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  FlushSubnormals() { _mm_setcsr(before | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(before); }
#endif
};

struct Buffer {
  std::vector<float> memory;
  explicit Buffer(int64_t floats) : memory(floats + 16) {}
  Arena arena() { return {(float*)(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63)}; }
};

// How many floats a set of working arrays takes: laid out once from nowhere.
template <class... Arrays, class Sizes>
int64_t floats(const Sizes& k) {
  Arena arena{nullptr};
  (Arrays(k, arena), ...);
  return arena.here - (float*)nullptr;
}

Block at(const Rows& rows, int64_t run, int64_t first) { return {rows.data + run * rows.run + first, rows.row}; }

// Whole blocks [first, last) of each slice of each run.
struct Slices {
  int64_t n, blocks, each, count;

  Slices(int64_t n, int64_t wanted) : n(n), blocks((n + B - 1) / B) {
    each = std::max<int64_t>(1, (blocks + wanted - 1) / std::max<int64_t>(1, wanted));
    count = (blocks + each - 1) / each;
  }
  template <class Work>
  void for_each_block(int64_t slice, Work work) const {
    for (int64_t b = slice * each; b < std::min(blocks, (slice + 1) * each); b++) work(b * B, (int)std::min<int64_t>(B, n - b * B));
  }
};

// Of 64 blocks each.
Slices state_slices(int64_t n) { return {n, (n + 64 * B - 1) / (64 * B)}; }

// Few and long: each slice adds up gradients of all weights.
Slices weight_slices(int64_t runs, int64_t n) { return {n, std::min(16 / std::min<int64_t>(runs, 16), (n + 16 * B - 1) / (16 * B))}; }

void load_lanes(float* to, const float* from, int lanes) {
  memset(to, 0, B * sizeof(float));
  memcpy(to, from, lanes * sizeof(float));
}

}  // namespace
