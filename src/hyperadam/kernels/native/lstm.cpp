// The entry points of an LSTM layer, which is what rules without norms spend their time on.
#include "lstm.h"
#include "work.h"

namespace {

Block at(const Rows& rows, int64_t run, int64_t first) { return {rows.data + run * rows.run + first, rows.row}; }

// Both matrices side by side, as the cell multiplies by them.
struct Joined {
  std::vector<float> theta;
  Cell cell;

  explicit Joined(const Lstm& k) : theta((size_t)4 * k.L * (k.X + k.L)), cell{k.X, k.L, theta.data(), k.b} {
    float* to = theta.data();
    for (int r = 0; r < 4 * k.L; r++) {
      to = std::copy_n(k.theta_x + r * k.X, k.X, to);
      to = std::copy_n(k.theta_s + r * k.L, k.L, to);
    }
  }
};

// The last block of a run may be short: it is worked on in a copy with zeros behind it.
struct Tail {
  int rows;
  Block copy;

  Tail(const Cell& k, Arena& arena) : rows(k.L), copy{arena.rows(k.L), B} {}
  Block load(Block from, int lanes) const {
    for (int j = 0; j < rows && lanes < B; j++) load_lanes(copy[j], from[j], lanes);
    return target(from, lanes);
  }
  Block target(Block to, int lanes) const { return lanes < B ? copy : to; }
  void store(Block to, int lanes) const {
    for (int j = 0; j < rows && lanes < B; j++) memcpy(to[j], copy[j], lanes * sizeof(float));
  }
};

struct Scratch : CellForward {
  Tail s_tail, c_tail;
  Scratch(const Cell& k, Arena& arena) : CellForward(k.X, k.L, k.L, arena), s_tail(k, arena), c_tail(k, arena) {}
};

struct BackwardScratch : CellBackward {
  Tail d_next_c, d_s, d_c;
  BackwardScratch(const Cell& k, Arena& arena)
      : CellBackward(k.X, k.L, k.L, 0, arena), d_next_c(k, arena), d_s(k, arena), d_c(k, arena) {}
};

// What is not a number is lost where the exponentials clamp their argument. Without norms or moments around the cell nothing
// else would carry it on, and a rule would go on as if nothing were wrong: found by its bits among the inputs, it is put back.
void put_back_not_a_number(const Cell& k, const float* xs, Block next_s, Block next_c) {
  for (int l = 0; l < B; l += V) {
    vf total = {};
    for (int j = 0; j < k.X + k.L; j++) total += load(xs + j * B + l);
    const vi lost = ((vi)total & 0x7fffffff) > 0x7f800000;
    for (int i = 0; i < V; i++)
      for (int j = 0; j < k.L && lost[i]; j++) next_s[j][l + i] = next_c[j][l + i] = total[i];
  }
}

}  // namespace

extern "C" {

// The new s and c of a layer, which may be the old ones themselves.
void hyperadam_lstm_forward(const Lstm* lstm, int64_t runs, int64_t n, const Rows* x, const Rows* s, const Rows* c,
                            const Rows* next_s, const Rows* next_c) {
  const Joined joined(*lstm);
  std::vector<Item> items;
  add_items(items, 0, runs, n, BLOCKS_EACH);
#pragma omp parallel num_threads(lstm->threads)
  {
    FlushSubnormals flush;
    const Cell k = joined.cell;  // a copy for each thread, which the compiler can keep in registers
    Buffer buffer(floats<Scratch>(k));
    Arena arena = buffer.arena();
    const Scratch t(k, arena);
#pragma omp for schedule(static)
    for (size_t index = 0; index < items.size(); index++) {
      const int64_t run = items[index].run;
      items[index].for_each_block([&](int64_t i, int lanes) {
        const Block inputs = at(*x, run, i), to_s = at(*next_s, run, i), to_c = at(*next_c, run, i);
        for (int j = 0; j < k.X; j++) {
          prefetch(inputs[j] + B);
          load_lanes(t.xs + j * B, inputs[j], lanes);
        }
        const Block new_s = t.s_tail.target(to_s, lanes), new_c = t.c_tail.target(to_c, lanes);
        lstm_cell(k, t.s_tail.load(at(*s, run, i), lanes), t.c_tail.load(at(*c, run, i), lanes), new_s, new_c, t);
        put_back_not_a_number(k, t.xs, new_s, new_c);
        t.s_tail.store(to_s, lanes);
        t.c_tail.store(to_c, lanes);
      });
    }
  }
}

// The reverse of forward, recomputing it: adjoints of x, s, c and, in the layout of the layer itself, of its weights.
void hyperadam_lstm_backward(const Lstm* lstm, int64_t runs, int64_t n, const Rows* x, const Rows* s, const Rows* c,
                             const Rows* d_next_s, const Rows* d_next_c, const Rows* d_x, const Rows* d_s, const Rows* d_c,
                             const Lstm* d_lstm) {
  const Joined joined(*lstm);
  const int rows = 4 * lstm->L, columns = lstm->X + lstm->L;
  const std::vector<Item> items = long_items(runs, n);
  const int64_t own_floats = floats<CellGradients>(joined.cell);
  Buffer shared(rows * columns), gradients(items.size() * own_floats);
  std::fill_n(gradients.arena().here, items.size() * own_floats, 0.f);
  Arena shared_arena = shared.arena();
  const float* theta_transposed = transposed(joined.cell.theta, rows, columns, shared_arena);
  auto gradients_of = [&](size_t index) {
    Arena own{gradients.arena().here + index * own_floats};
    return CellGradients(joined.cell, own);
  };
#pragma omp parallel num_threads(lstm->threads)
  {
    FlushSubnormals flush;
    const Cell k = joined.cell;
    Buffer buffer(floats<Scratch, BackwardScratch>(k));
    Arena arena = buffer.arena();
    const Scratch t(k, arena);
    const BackwardScratch a(k, arena);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); index++) {
      const int64_t run = items[index].run;
      const CellGradients w = gradients_of(index);
      items[index].for_each_block([&](int64_t i, int lanes) {
        const Block inputs = at(*x, run, i), adjoints = at(*d_next_s, run, i);
        const Block to_x = at(*d_x, run, i), to_s = at(*d_s, run, i), to_c = at(*d_c, run, i);
        for (int j = 0; j < k.X; j++) {
          prefetch(inputs[j] + B);
          load_lanes(t.xs + j * B, inputs[j], lanes);
        }
        for (int j = 0; j < k.L; j++) {
          prefetch(adjoints[j] + B);
          load_lanes(a.s + j * B, adjoints[j], lanes);
        }
        const Block old_c = t.c_tail.load(at(*c, run, i), lanes), d_new_c = a.d_next_c.load(at(*d_next_c, run, i), lanes);
        lstm_cell(k, t.s_tail.load(at(*s, run, i), lanes), old_c, NOWHERE, NOWHERE, t);
        lstm_cell_backward(k, theta_transposed, {old_c, d_new_c, a.d_s.target(to_s, lanes), a.d_c.target(to_c, lanes)}, t, a, w);
        for (int j = 0; j < k.X; j++) memcpy(to_x[j], a.xs + j * B, lanes * sizeof(float));
        a.d_s.store(to_s, lanes);
        a.d_c.store(to_c, lanes);
      });
    }
  }
  for (int r = 0; r < rows; r++) {
    auto total = [&](auto entry) {
      double sum = 0;
      for (size_t index = 0; index < items.size(); index++) sum += entry(gradients_of(index));
      return (float)sum;
    };
    for (int j = 0; j < columns; j++) {
      float* to = j < lstm->X ? d_lstm->theta_x + r * lstm->X + j : d_lstm->theta_s + r * lstm->L + j - lstm->X;
      *to = total([&](const CellGradients& w) { return w.theta[r * padded(columns) + j]; });
    }
    d_lstm->b[r] = total([&](const CellGradients& w) { return w.b[r]; });
  }
}
}
