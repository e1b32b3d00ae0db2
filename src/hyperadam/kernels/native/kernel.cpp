// HyperAdam's entry points, one library for each instruction set: loops over runs and slices of coordinates on several threads.
#include "backward.h"
#include "slices.h"

namespace {

BlockState at(const State& s, int64_t run, int64_t i) {
  return {at(s.m, run, i), at(s.v, run, i), at(s.beta_hat, run, i), at(s.gamma_hat, run, i), at(s.s, run, i), at(s.c, run, i)};
}

// The last block of a run may be short: it is worked on in a copy with zeros behind it.
struct Tail {
  BlockState copy;
  int rows[6];

  Tail(const Shape& k, Arena& arena) : rows{k.J, k.J, k.J, k.J, k.S, k.L} {
    Block* blocks[] = {&copy.m, &copy.v, &copy.beta_hat, &copy.gamma_hat, &copy.s, &copy.c};
    for (int f = 0; f < 6; f++) *blocks[f] = {arena.rows(rows[f]), B};
  }
  void move(const BlockState& from, const BlockState& to, int lanes) const {
    const Block *source = &from.m, *target = &to.m;
    for (int f = 0; f < 6; f++)
      for (int j = 0; j < rows[f]; j++) memcpy(target[f][j], source[f][j], lanes * sizeof(float));
  }
  const BlockState& load(const BlockState& from, int lanes) const {
    for (int f = 0; f < 6; f++) memset((&copy.m)[f].data, 0, rows[f] * B * sizeof(float));
    move(from, copy, lanes);
    return copy;
  }
};

struct RunNorms {
  std::vector<float> m, s;
  Norms norms;

  RunNorms(const Shape& k, const Sums& sums, int64_t run) : m(k.J), s(k.S, 1.f) {
    const double* first = sums.first + run * (1 + k.J);
    for (int j = 0; j < k.J; j++) m[j] = 1 / std::sqrt(first[1 + j] + NORM_GUARD);
    if (k.normalize_state && sums.second)
      for (int j = 0; j < k.S; j++) s[j] = 1 / std::sqrt(sums.second[run * k.S + j] + NORM_GUARD);
    norms = {(float)(1 / std::sqrt(first[0] + NORM_GUARD)), m.data(), s.data()};
  }
};

double sum_of_squares(const float* x, int64_t n) {
  double total = 0;
  int64_t i = 0;
  for (; i + 16 * V <= n; i += 16 * V) {  // few enough terms a lane that float accumulators stay exact to rounding
    vf a = {}, b = {};
    for (int l = 0; l < 16 * V; l += 2 * V) {
      vf x0 = load(x + i + l), x1 = load(x + i + l + V);
      a += x0 * x0, b += x1 * x1;
    }
    total += hsum(a + b);
  }
  for (; i < n; i++) total += (double)x[i] * x[i];
  return total;
}

}  // namespace

extern "C" {

// The sums of squares of one round, (runs, 1+J) or (runs, S). The second round needs the first's totals.
void hyperadam_column_sums(const Rule* rule, int64_t runs, int64_t n, const Rows* grad, const State* state, const Sums* sums, double* out) {
  const Shape k(*rule);
  const bool second = sums->first != nullptr;
  const int columns = second ? k.S : 1 + k.J;
  const Slices slices = state_slices(n);
  std::vector<double> partial(runs * slices.count * columns);
#pragma omp parallel num_threads(rule->threads)
  {
    FlushSubnormals flush;
    Buffer buffer(second ? floats<Forward, Tail>(k) : 0);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < runs * slices.count; item++) {
      const int64_t run = item / slices.count, slice = item % slices.count;
      double* sum = &partial[item * columns];
      if (!second) {
        const int64_t first = slice * slices.each * B, length = std::min(n, first + slices.each * B) - first;
        sum[0] = sum_of_squares(at(*grad, run, first).data, length);
        for (int j = 0; j < k.J; j++) sum[1 + j] = sum_of_squares(at(state->m, run, first)[j], length);
        continue;
      }
      Arena arena = buffer.arena();
      const RunNorms norms(k, *sums, run);
      const Forward t(k, arena);
      const Tail tail(k, arena);
      slices.for_each_block(slice, [&](int64_t i, int lanes) {
        load_lanes(t.g, at(*grad, run, i).data, lanes);
        BlockState old = at(*state, run, i);
        state_cell(k, norms.norms, lanes < B ? tail.load(old, lanes) : old, nullptr, t);
        for (int j = 0; j < k.S; j++) sum[j] += sum_of_squares(t.s + j * B, lanes);
      });
    }
  }
  std::fill(out, out + runs * columns, 0.0);
  for (int64_t item = 0; item < runs * slices.count; item++)
    for (int c = 0; c < columns; c++) out[item / slices.count * columns + c] += partial[item * columns + c];
}

// One step: the new state and the update. `next` may be `old` itself.
void hyperadam_forward(const Rule* rule, int64_t runs, int64_t n, const Rows* grad, const State* old, const Sums* sums,
                    const State* next, const Rows* update) {
  const Slices slices = state_slices(n);
#pragma omp parallel num_threads(rule->threads)
  {
    FlushSubnormals flush;
    const Shape k(*rule);  // a copy for each thread, which the compiler can keep in registers
    Buffer buffer(floats<Forward, Tail>(k));
    Arena arena = buffer.arena();
    const Forward t(k, arena);
    const Tail tail(k, arena);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < runs * slices.count; item++) {
      const int64_t run = item / slices.count;
      const RunNorms norms(k, *sums, run);
      slices.for_each_block(item % slices.count, [&](int64_t i, int lanes) {
        const bool whole = lanes == B;
        const BlockState from = at(*old, run, i), to = at(*next, run, i);
        load_lanes(t.g, at(*grad, run, i).data, lanes);
        const BlockState a = whole ? from : tail.load(from, lanes), b = whole ? to : tail.copy;
        state_cell(k, norms.norms, a, &b, t);
        fields(k, norms.norms, a, t);
        adam_cell(k, a, b, t);
        if (!whole) tail.move(b, to, lanes);
        memcpy(at(*update, run, i).data, t.update, lanes * sizeof(float));
      });
    }
  }
}

// The reverse of forward, recomputing it: adjoints of grad, old state and weights. With a normalised state the pass over
// the vector is made twice, since the adjoint of s needs a sum over all coordinates first.
void hyperadam_backward(const Rule* rule, int64_t runs, int64_t n, const Rows* grad, const State* old, const Sums* sums,
                     const Rows* d_update, const State* d_next, const Rows* d_grad, const State* d_old, double* d_weights) {
  const Shape k(*rule);
  const Slices slices = weight_slices(runs, n);
  const int64_t items = runs * slices.count, own_floats = floats<WeightGradients>(k);
  const int columns = 1 + k.J + k.S;
  Buffer shared(k.weights + 64), gradients(items * own_floats);
  Arena shared_arena = shared.arena();
  const Transposed T(k, shared_arena);
  std::vector<double> partial(items * columns), totals(runs * columns);

  for (int pass = k.normalize_state ? 0 : 1; pass < 2; pass++) {
    std::fill(partial.begin(), partial.end(), 0.0);
#pragma omp parallel num_threads(rule->threads)
    {
      FlushSubnormals flush;
      const Shape k(*rule);  // a thread's own, as in forward
      Buffer buffer(floats<Forward, Backward, Tail, Tail, Tail>(k));
      Arena arena = buffer.arena();
      const Forward t(k, arena);
      Backward a(k, arena);
      const Tail tail(k, arena), tail_next(k, arena), tail_old(k, arena);
      std::vector<float> norm_s(k.S, 0.f);
#pragma omp for schedule(dynamic)
      for (int64_t item = 0; item < items; item++) {
        const int64_t run = item / slices.count;
        const RunNorms norms(k, *sums, run);
        a.k_g = &partial[item * columns], a.k_m = a.k_g + 1, a.k_s = a.k_m + k.J;
        if (k.normalize_state && pass == 1)
          for (int j = 0; j < k.S; j++) norm_s[j] = std::pow((double)norms.s[j], 3) * totals[run * columns + 1 + k.J + j];
        Arena own = gradients.arena();
        own.here += item * own_floats;
        const WeightGradients w(k, own);
        slices.for_each_block(item % slices.count, [&](int64_t i, int lanes) {
          const bool whole = lanes == B;
          const BlockState from = at(*old, run, i), adjoint = at(*d_next, run, i), to = at(*d_old, run, i);
          const BlockState o = whole ? from : tail.load(from, lanes);
          const BlockState d = whole ? adjoint : tail_next.load(adjoint, lanes);
          const BlockState out = whole ? to : tail_old.copy;
          load_lanes(t.g, at(*grad, run, i).data, lanes), load_lanes(a.update, at(*d_update, run, i).data, lanes);
          state_cell(k, norms.norms, o, nullptr, t);
          for (int j = 0; j < k.S && !whole; j++) memset(t.s + j * B + lanes, 0, (B - lanes) * sizeof(float));
          fields(k, norms.norms, o, t);
          adam_cell_backward(k, norms.norms, T, o, t, d, out, a);
          if (pass == 0) return;
          state_cell_backward(k, norms.norms, norm_s.data(), T, o, t, d, out, a, w);
          if (!whole) tail_old.move(out, to, lanes);
          memcpy(at(*d_grad, run, i).data, a.g, lanes * sizeof(float));
        });
      }
    }
    std::fill(totals.begin(), totals.end(), 0.0);
    for (int64_t item = 0; item < items; item++)
      for (int c = 0; c < columns; c++) totals[item / slices.count * columns + c] += partial[item * columns + c];
  }
  std::fill(d_weights, d_weights + k.weights, 0.0);
  for (int64_t item = 0; item < items; item++) {
    Arena own = gradients.arena();
    own.here += item * own_floats;
    WeightGradients(k, own).add_to(k, d_weights);
  }

  // What the norms of g and m add to the adjoints: one coefficient a column.
#pragma omp parallel for num_threads(rule->threads) schedule(static)
  for (int64_t item = 0; item < items; item++) {
    FlushSubnormals flush;
    const int64_t run = item / slices.count, first = item % slices.count * slices.each * B;
    const int64_t length = std::min(n, first + slices.each * B) - first;
    const RunNorms norms(k, *sums, run);
    const double* total = &totals[run * columns];
    auto subtract = [&](float* d, const float* x, double coefficient) {
      for (int64_t i = 0; i < length; i++) d[i] -= (float)coefficient * x[i];
    };
    subtract(at(*d_grad, run, first).data, at(*grad, run, first).data, std::pow((double)norms.norms.g, 3) * total[0]);
    for (int j = 0; j < k.J; j++)
      subtract(at(d_old->m, run, first)[j], at(old->m, run, first)[j], std::pow((double)norms.m[j], 3) * total[1 + j]);
  }
}
}
