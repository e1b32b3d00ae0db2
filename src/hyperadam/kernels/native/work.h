// What the entry points share: how work is cut up for threads, and where a thread keeps its arrays.
// Neither an item's extent nor the order in which sums are added up depends on the number of threads: nor do the bits.
#pragma once
#include <algorithm>
#include <memory>
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

// Room for floats, aligned to cache lines, its contents left to chance.
struct Buffer {
  std::unique_ptr<float[]> memory;
  explicit Buffer(int64_t floats) : memory(new float[floats + 16]) {}
  Arena arena() { return {(float*)(((uintptr_t)memory.get() + 63) & ~(uintptr_t)63)}; }
};

// How many floats a set of working arrays takes: laid out once from nowhere.
template <class... Arrays, class Sizes>
int64_t floats(const Sizes& k) {
  Arena arena{nullptr};
  (Arrays(k, arena), ...);
  return arena.here - (float*)nullptr;
}

// Coordinates [first, last) of one run of one part: what a thread works on at a time. `first` begins a block.
struct Item {
  int64_t part, run, first, last;

  // Call work(i, lanes) for each block: its first coordinate, and how many of its B lanes are in use.
  template <class Work>
  void for_each_block(Work work) const {
    for (int64_t i = first; i < last; i += B) work(i, (int)std::min<int64_t>(B, last - i));
  }
};

// Cut n coordinates of each run into items of some blocks each.
void add_items(std::vector<Item>& items, int64_t part, int64_t runs, int64_t n, int64_t blocks_each) {
  for (int64_t run = 0; run < runs; run++)
    for (int64_t i = 0; i < n; i += blocks_each * B) items.push_back({part, run, i, std::min(n, i + blocks_each * B)});
}

// For passes over the state.
constexpr int64_t BLOCKS_EACH = 64;

// For backward passes: few and long, since each item adds up gradients of all weights.
std::vector<Item> long_items(int64_t runs, int64_t n) {
  const int64_t blocks = (n + B - 1) / B, wanted = std::min<int64_t>(16 / std::min<int64_t>(runs, 16), (blocks + 15) / 16);
  std::vector<Item> items;
  if (n) add_items(items, 0, runs, n, std::max<int64_t>(1, (blocks + wanted - 1) / std::max<int64_t>(1, wanted)));
  return items;
}

void load_lanes(float* to, const float* from, int lanes) {
  memcpy(to, from, lanes * sizeof(float));
  memset(to + lanes, 0, (B - lanes) * sizeof(float));
}

}  // namespace
