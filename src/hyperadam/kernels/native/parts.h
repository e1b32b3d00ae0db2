// The parts of a vector as blocks: where a block's state lies, or a copy of it as whole floats.
#pragma once
#include "block.h"
#include "numbers.h"

namespace {

struct At {
  int64_t run, first;  // a block's run, and its first coordinate there
  int lanes;           // how many of its coordinates are in use
};

// The state of one block, open for reading and writing. Whole blocks of floats are worked on where they lie; short ones,
// and bfloat16, in a copy with zeros behind it.
class Window {
 public:
  Window(const Shape& k, Arena& arena) : rows(k.rows()) {
    for (int f = 0; f < 6; f++) copies[f] = arena.rows(rows[f]);
  }

  // The block as it is to be read.
  BlockState open(const Part& part, const At& at) {
    if (!copied(part, at)) return in_place(part, at);
    each_row(part, at, [&](float* row, void* data, int64_t first) {
      load_lanes(row, data, part.state_bfloat16, first, at.lanes);
    });
    return copy();
  }

  // Where to write a block whose old contents do not matter.
  BlockState target(const Part& part, const At& at) { return copied(part, at) ? copy() : in_place(part, at); }

  // Write back what was worked on in a copy; `seed` is of the noise that rounds to bfloat16.
  void close(const Part& part, const At& at, uint32_t seed = 0) {
    if (!copied(part, at)) return;
    uint32_t stream = noise(seed, (uint32_t)at.run);
    each_row(part, at, [&](const float* row, void* data, int64_t first) {
      if (!part.state_bfloat16) return store_lanes(row, data, false, first, at.lanes);
      stream += 0x6c62272eu;
      uint16_t* to = (uint16_t*)data + first;
      for (int l = 0; l < at.lanes; l++) to[l] = to_bfloat16(row[l], noise(stream, (uint32_t)(first + l)));
    });
  }

 private:
  static bool copied(const Part& part, const At& at) { return at.lanes < B || part.state_bfloat16; }

  BlockState copy() const {
    return {{copies[0], B}, {copies[1], B}, {copies[2], B}, {copies[3], B}, {copies[4], B}, {copies[5], B}};
  }

  BlockState in_place(const Part& part, const At& at) const {
    const int64_t n = part.grad.n;
    auto field = [&](int f) { return Block{(float*)part.state[f] + at.run * rows[f] * n + at.first, n}; };
    return {field(0), field(1), field(2), field(3), field(4), field(5)};
  }

  // Call work(row of the copy, field, where its numbers begin) for every row of every field.
  template <class Work>
  void each_row(const Part& part, const At& at, Work work) const {
    for (int f = 0; f < 6; f++)
      for (int j = 0; j < rows[f]; j++)
        work(copies[f] + j * B, part.state[f], (at.run * rows[f] + j) * part.grad.n + at.first);
  }

  std::array<int, 6> rows;
  std::array<float*, 6> copies;
};

// Inverse norms of every run, from the sums of squares: (1 + J) of the first round, and S of the second if there is one.
class RunNorms {
 public:
  RunNorms(const Shape& k, int64_t runs, const double* first, const double* second) : k(k), g(runs), m(runs * k.J), s(runs * k.S, 1.f) {
    auto inverse = [](double sum) { return (float)(1 / std::sqrt(sum + NORM_GUARD)); };
    for (int64_t run = 0; run < runs; run++) {
      g[run] = inverse(first[run * (1 + k.J)]);
      for (int j = 0; j < k.J; j++) m[run * k.J + j] = inverse(first[run * (1 + k.J) + 1 + j]);
      for (int j = 0; j < k.S && second; j++) s[run * k.S + j] = inverse(second[run * k.S + j]);
    }
  }
  Norms operator[](int64_t run) const { return {g[run], &m[run * k.J], &s[run * k.S]}; }

 private:
  const Shape& k;
  std::vector<float> g, m, s;
};

std::vector<Item> items_of(int64_t count, const Part* parts, int64_t runs) {
  std::vector<Item> items;
  for (int64_t p = 0; p < count; p++) add_items(items, p, runs, parts[p].grad.n, BLOCKS_EACH);
  return items;
}

}  // namespace
