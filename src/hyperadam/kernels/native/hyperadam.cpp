// HyperAdam's entry points, one library for each instruction set: loops over parts, runs and blocks on several threads.
#include "backward.h"
#include "parts.h"

extern "C" {

// The largest size among each part's gradients.
void hyperadam_largest(int64_t runs, int64_t count, const Part* parts, float* out) {
  for (int64_t p = 0; p < count; p++) out[p] = largest(parts[p].grad.data, parts[p].grad.bfloat16, runs * parts[p].grad.n);
}

// One round of sums of squares over all parts: (runs, 1+J), or (runs, S) given the totals of the first round.
void hyperadam_sums(const Rule* rule, int32_t threads, int64_t runs, int64_t count, const Part* parts, const double* first,
                    double* out) {
  const Shape k(*rule);
  const int columns = first ? k.S : 1 + k.J;
  const std::vector<Item> items = items_of(count, parts, runs);
  std::vector<double> partial(items.size() * columns);
  const RunNorms norms(k, first ? runs : 0, first, nullptr);
#pragma omp parallel num_threads(threads)
  {
    FlushSubnormals flush;
    Buffer buffer(floats<Forward, Window>(k));
    Arena arena = buffer.arena();
    const Forward t(k, arena);
    Window window(k, arena);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); index++) {
      const Item& item = items[index];
      const Part& part = parts[item.part];
      const int64_t n = part.grad.n, length = item.last - item.first;
      double* sum = &partial[index * columns];
      if (!first) {
        sum[0] = sum_of_squares(part.grad.data, part.grad.bfloat16, item.run * n + item.first, length);
        for (int j = 0; j < k.J; j++)
          sum[1 + j] = sum_of_squares(part.state[0], part.state_bfloat16, (item.run * k.J + j) * n + item.first, length);
        continue;
      }
      item.for_each_block([&](int64_t i, int lanes) {
        const At at{item.run, i, lanes};
        load_lanes(t.g, part.grad.data, part.grad.bfloat16, item.run * n + i, lanes);
        state_cell(k, norms[item.run], window.open(part, at), nullptr, t);
        for (int j = 0; j < k.S; j++) sum[j] += sum_of_squares(t.s + j * B, lanes);
      });
    }
  }
  std::fill(out, out + runs * columns, 0.0);
  for (size_t index = 0; index < items.size(); index++)
    for (int c = 0; c < columns; c++) out[items[index].run * columns + c] += partial[index * columns + c];
}

// One step. Each part's parameter is moved, its update multiplied by `scales` [count][runs] if there are any, and its state
// overwritten; or, for a period that is to be gone back through, the new state goes to the parts `next` and the update to
// their `param`.
void hyperadam_step(const Rule* rule, int32_t threads, int64_t runs, int64_t count, const Part* parts, const double* first,
                    const double* second, const Motion* motions, const float* scales, const Part* next) {
  const std::vector<Item> items = items_of(count, parts, runs);
#pragma omp parallel num_threads(threads)
  {
    FlushSubnormals flush;
    const Shape k(*rule);  // a copy for each thread, which the compiler can keep in registers
    const RunNorms norms(k, runs, first, second);
    Buffer buffer(floats<Forward, Window, Window>(k) + B);
    Arena arena = buffer.arena();
    const Forward t(k, arena);
    Window window(k, arena), next_window(k, arena);
    float* w = arena.rows(1);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); index++) {
      const Item& item = items[index];
      const Part& part = parts[item.part];
      const int64_t base = item.run * part.grad.n;
      item.for_each_block([&](int64_t i, int lanes) {
        const At at{item.run, i, lanes};
        load_lanes(t.g, part.grad.data, part.grad.bfloat16, base + i, lanes);
        const BlockState old = window.open(part, at);
        if (next) {
          const Part& to = next[item.part];
          step_block(k, norms[item.run], old, next_window.target(to, at), t);
          next_window.close(to, at);
          store_lanes(t.update, to.param.data, to.param.bfloat16, base + i, lanes);
          return;
        }
        step_block(k, norms[item.run], old, old, t);
        const Motion& motion = motions[item.part];
        window.close(part, at, (uint32_t)motion.seed);
        const float lr = (float)motion.lr, decay = (float)motion.decay;
        const float scale = scales ? scales[item.part * runs + item.run] : 1.f;
        // not as one more factor below: the compiler would fuse it, and a scale of 1 change bits
        if (scale != 1.f)
          for (int l = 0; l < B; l += V) store(t.update + l, scale * load(t.update + l));
        load_lanes(w, part.param.data, part.param.bfloat16, base + i, lanes);
        for (int l = 0; l < B; l += V) store(w + l, load(w + l) - lr * (load(t.update + l) + decay * load(w + l)));
        store_lanes(w, part.param.data, part.param.bfloat16, base + i, lanes);
      });
    }
  }
}

// The reverse of a step, recomputing it. The part `d_next` holds the adjoints of the new state and, as its `grad`, of the
// update; `d_old` takes those of the old state and, as its `param`, of the gradient. With a normalised state the pass over the
// vector is made twice, since the adjoint of s needs a sum over all coordinates first. Where the part is a sample of the
// vector, whose sums `first` and `second` are, the norms' adjoints are estimated: `whole` times what the sample has of them.
void hyperadam_step_back(const Rule* rule, int32_t threads, int64_t runs, int64_t, const Part* part, const double* first,
                         const double* second, double whole, const Part* d_next, const Part* d_old, double* d_weights) {
  const Shape k(*rule);
  const int64_t n = part->grad.n, own_floats = floats<WeightGradients>(k);
  const std::vector<Item> items = long_items(runs, n);
  const int columns = 1 + k.J + k.S;
  Buffer shared(k.weights + 64), gradients(items.size() * own_floats);
  std::fill_n(gradients.arena().here, items.size() * own_floats, 0.f);
  Arena shared_arena = shared.arena();
  const Transposed T(k, shared_arena);
  const RunNorms run_norms(k, runs, first, second);
  std::vector<double> partial(items.size() * columns), totals(runs * columns);
  auto gradients_of = [&](size_t index) {
    Arena own{gradients.arena().here + index * own_floats};
    return WeightGradients(k, own);
  };

  for (int pass = k.normalize_state ? 0 : 1; pass < 2; pass++) {
    std::fill(partial.begin(), partial.end(), 0.0);
#pragma omp parallel num_threads(threads)
    {
      FlushSubnormals flush;
      const Shape k(*rule);  // a thread's own, as in a step
      Buffer buffer(floats<Forward, Backward, Window, Window, Window>(k));
      Arena arena = buffer.arena();
      const Forward t(k, arena);
      const Backward a(k, arena);
      Window old(k, arena), adjoint(k, arena), result(k, arena);
      std::vector<float> norm_s(k.S, 0.f);
#pragma omp for schedule(dynamic)
      for (size_t index = 0; index < items.size(); index++) {
        const Item& item = items[index];
        const Norms norms = run_norms[item.run];
        const BlockBack back{k, T, norms, t, a};
        double* sum = &partial[index * columns];
        const NormSums sums{sum, sum + 1, sum + 1 + k.J};
        const double* total = &totals[item.run * columns + 1 + k.J];
        for (int j = 0; j < k.S && k.normalize_state; j++) norm_s[j] = std::pow((double)norms.s[j], 3) * total[j];
        const WeightGradients w = gradients_of(index);
        item.for_each_block([&](int64_t i, int lanes) {
          const At at{item.run, i, lanes};
          load_lanes(t.g, (const float*)part->grad.data + item.run * n + i, lanes);
          load_lanes(a.update, (const float*)d_next->grad.data + item.run * n + i, lanes);
          const States x{old.open(*part, at), adjoint.open(*d_next, at), result.target(*d_old, at)};
          state_cell(k, norms, x.old, nullptr, t);
          for (int j = 0; j < k.S; j++) memset(t.s + j * B + lanes, 0, (B - lanes) * sizeof(float));
          fields(k, norms, x.old, t);
          back.adam_cell(x, sums);
          if (pass == 0) return;
          back.state_cell(x, norm_s.data(), sums, w);
          result.close(*d_old, at);
          memcpy((float*)d_old->param.data + item.run * n + i, a.g, lanes * sizeof(float));
        });
      }
    }
    std::fill(totals.begin(), totals.end(), 0.0);
    for (size_t index = 0; index < items.size(); index++)
      for (int c = 0; c < columns; c++) totals[items[index].run * columns + c] += partial[index * columns + c];
    for (double& total : totals) total *= whole;
  }
  std::fill(d_weights, d_weights + k.weights, 0.0);
  for (size_t index = 0; index < items.size(); index++) gradients_of(index).add_to(k, d_weights);

  // What the norms of g and m add to the adjoints: one coefficient a column.
#pragma omp parallel for num_threads(threads) schedule(static)
  for (size_t index = 0; index < items.size(); index++) {
    FlushSubnormals flush;
    const Item& item = items[index];
    const Norms norms = run_norms[item.run];
    const double* total = &totals[item.run * columns];
    auto subtract = [&](void* d, const void* x, int64_t row, double coefficient) {
      float* to = (float*)d + row * n + item.first;
      const float* from = (const float*)x + row * n + item.first;
      for (int64_t i = 0; i < item.last - item.first; i++) to[i] -= (float)coefficient * from[i];
    };
    subtract(d_old->param.data, part->grad.data, item.run, std::pow((double)norms.g, 3) * total[0]);
    for (int j = 0; j < k.J; j++)
      subtract(d_old->state[0], part->state[0], item.run * k.J + j, std::pow((double)norms.m[j], 3) * total[1 + j]);
  }
}
}
