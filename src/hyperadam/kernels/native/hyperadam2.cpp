// HyperAdam2's entry points: a TensorCell for each tensor and run, then one pass over its coordinates.
#include <array>

#include "numbers.h"

namespace {

// What the kernel is built for; other sizes are left to torch.
constexpr int BETAS = 4, SLOW = 3, GAMMAS = 2, J = BETAS * GAMMAS, FEATURES = 15, HIDDEN = 24, INPUTS = BETAS + 1, UNITS = 8;
constexpr int MEMORY = 3 + SLOW + GAMMAS, TOTALS = MEMORY - 1;
constexpr double TINY = 1e-24, USUAL_RMS = 0.1, WIDE = 64, SMALL = 20, LARGEST_LOG_STEP = 2.5, LARGEST_FEATURE = 3;
constexpr double SHORT = 100, UNKNOWN = 1000;  // steps of a training
constexpr double REFERENCE = (1 + 0.9) / (1 - 0.9);  // (1 + beta) / (1 - beta) of Adam's beta

// The meta-parameters in the order in which they lie, row-major.
struct Weights {
  float theta_1[HIDDEN][FEATURES], b_1[HIDDEN], theta_a[HIDDEN], theta_rho[J][HIDDEN], log_step, rho[J];
  float theta_3[UNITS][INPUTS], b_3[UNITS], theta_4[J][UNITS];
};

}  // namespace

extern "C" {

// Decay rates, and weights: one set for all runs (stride 0) or one for each, `stride` floats apart.
struct Rule2 {
  double betas[SLOW], gammas[GAMMAS];
  const float* weights;
  int64_t stride;
};

// One tensor, for each run: grad and param [runs][n], m [runs][3][n], v [runs][2][n], memory [runs][8]. `whole`, `fan_in` and
// `rank` are of the whole tensor, of which this may be a piece.
struct Part2 {
  Numbers grad, param;
  void *m, *v;
  int64_t state_bfloat16;
  float* memory;
  int64_t whole, fan_in, rank;
};

// How a tensor moves: param -= lr * (size * d + decay * param), at a step, from 1, of a total (0: unknown).
struct Motion2 {
  double lr, decay, seed, step, total;
};
}

namespace {

// How far the networks move a candidate's weight: in units in which all count alike where the gradient is noise.
double reach(const Rule2& rule, int j) {
  const int i = j % BETAS;
  const double beta = i ? rule.betas[i - 1] : 0;
  return std::sqrt((1 + beta) / (1 - beta) / REFERENCE);
}

// What all coordinates of a tensor share in a step.
struct Control {
  float lr_size, lr_decay, rho[J], keep[SLOW], take[SLOW], keep2[GAMMAS], take2[GAMMAS], beta_hat[SLOW], gamma_hat[GAMMAS];
};

double correction(double decay, double step) { return 1 - std::pow(decay, step); }

// The TensorCell: what a tensor remembers of the last step, and the time, to the step's size and the candidates' weights.
Control tensor_cell(const Rule2& rule, const Weights& w, const Part2& part, const float* memory, const Motion2& motion) {
  const double step = motion.step, total = motion.total, before = std::max(step - 1, 1.0), known = total > 0;
  const double start = memory[0], w2 = memory[1], fan_in = (double)part.fan_in;
  const double floor = USUAL_RMS * std::min(1.0, std::sqrt(WIDE / fan_in)), least = start > 0 ? floor / SMALL : floor;
  const double* gammas = rule.gammas;
  auto bounded = [](double x) { return std::min(std::max(x, -LARGEST_FEATURE), LARGEST_FEATURE); };
  auto second = [&](int k) { return memory[3 + SLOW + k] / correction(gammas[k], before) + TINY; };
  const double first = second(0), last = second(GAMMAS - 1);
  double f[FEATURES] = {
      std::log(std::max(start, 0.01)) / 3,
      std::log(std::max(std::sqrt(w2), least) / std::max(start, least)) / 2,
      std::log(std::max((double)part.whole, 1.0)) / 5 - 1,
      double(part.rank <= 1),
      double(part.rank > 2),
      std::log(fan_in) / 4 - 1,
      known * (2 * std::min(step / std::max(total, 1.0), 1.0) - 1),
      std::log(step) / 4 - 1,
      known * (std::log(std::max(total, 1.0)) / 4 - 1),
      known,
  };
  for (int i = 0; i < BETAS; i++) {
    const double hat = i ? correction(rule.betas[i - 1], before) : 1;
    f[10 + i] = bounded(std::log((memory[2 + i] / (hat * hat) + TINY) / last) / 3);
  }
  f[10 + BETAS] = bounded(std::log(first / last));

  double h[HIDDEN];
  for (int i = 0; i < HIDDEN; i++) {
    h[i] = w.b_1[i];
    for (int k = 0; k < FEATURES; k++) h[i] += w.theta_1[i][k] * f[k];
    h[i] = std::tanh(h[i]);
  }
  auto unit = [&h](const float* theta) {
    double z = 0;
    for (int i = 0; i < HIDDEN; i++) z += theta[i] * h[i];
    return std::tanh(z);
  };
  Control c;
  const double width = part.rank > 1 ? std::pow(WIDE / fan_in, 0.25) : 1, horizon = std::pow(SHORT / (known ? total : UNKNOWN), 0.3);
  const double counted = part.rank > 1 ? std::max(start, least) : std::sqrt(std::max(start, floor) * floor);
  const double size = width * horizon * std::exp(w.log_step + LARGEST_LOG_STEP * unit(w.theta_a)) * counted / USUAL_RMS;
  c.lr_size = (float)(motion.lr * size);
  c.lr_decay = (float)(motion.lr * motion.decay);
  for (int j = 0; j < J; j++) c.rho[j] = (float)(w.rho[j] + reach(rule, j) * unit(w.theta_rho[j]));
  for (int i = 0; i < SLOW; i++) {
    c.keep[i] = (float)rule.betas[i];
    c.take[i] = (float)(1 - rule.betas[i]);
    c.beta_hat[i] = (float)(1 / correction(rule.betas[i], step));
  }
  for (int k = 0; k < GAMMAS; k++) {
    c.keep2[k] = (float)gammas[k];
    c.take2[k] = (float)(1 - gammas[k]);
    c.gamma_hat[k] = (float)(1 / correction(gammas[k], step));
  }
  return c;
}

// Where the numbers of a block lie, each row contiguous.
struct Rows2 {
  float *g, *w, *m[SLOW], *v[GAMMAS];
  float* mixture = nullptr;  // where the mixture goes if the tensor is not moved yet
};

// Sums over coordinates: of w², g², each m², each v.
typedef std::array<vf, TOTALS> Totals;

// Vectors that go through the networks side by side: a weight is read once for all, and while one waits, others go on.
constexpr int SIDE = 4;

// What the networks need of them: first moments with their bias corrected, one over the roots of the second ones, and what
// the weight field sees.
struct Seen {
  vf m[BETAS][SIDE], r[GAMMAS][SIDE], x[INPUTS][SIDE];
};

// The moments of one vector, the one at lane `l`, which is number `s` of those side by side.
static INLINE void update_moments(const Control& c, const Rows2& at, int l, int s, Seen& seen, Totals& totals) {
  const vf g = load(at.g + l);
  vf m[BETAS], v[GAMMAS], r[GAMMAS];
  m[0] = g;
  totals[1] += g * g;
  for (int i = 0; i < SLOW; i++) {
    const vf x = load(at.m[i] + l) * c.keep[i] + g * c.take[i];
    store(at.m[i] + l, x);
    totals[2 + i] += x * x;
    m[1 + i] = x * c.beta_hat[i];
  }
  for (int k = 0; k < GAMMAS; k++) {
    const vf x = load(at.v[k] + l) * c.keep2[k] + g * g * c.take2[k];
    store(at.v[k] + l, x);
    totals[2 + SLOW + k] += x;
    v[k] = x * c.gamma_hat[k];
    seen.r[k][s] = r[k] = 1.f / vsqrt(v[k] + (float)TINY);
  }
  vf sum = splat(0.f), squares = splat(1.f), u[BETAS];
  for (int i = 0; i < BETAS; i++) {
    seen.m[i][s] = m[i];
    u[i] = m[i] * r[GAMMAS - 1];
    sum += u[i];
    squares += u[i] * u[i];
  }
  const vf share = sum / squares;
  for (int i = 0; i < BETAS; i++) seen.x[i][s] = u[i] * share;
  seen.x[BETAS][s] = v[0] / (v[0] + v[GAMMAS - 1] + (float)TINY) - 0.5f;
}

// SIDE vectors of coordinates from lane `l` on: moments, fields, move.
static INLINE void step_lanes(const Control& c, const Weights& weights, const Rows2& at, int l, Totals& totals) {
  Seen seen;
#pragma GCC unroll 4  // else what is seen goes through memory
  for (int s = 0; s < SIDE; s++) update_moments(c, at, l + s * V, s, seen, totals);
  vf h[UNITS][SIDE];
  for (int unit = 0; unit < UNITS; unit++) {
    for (int s = 0; s < SIDE; s++) h[unit][s] = splat(weights.b_3[unit]);
    for (int i = 0; i < INPUTS; i++)
      for (int s = 0; s < SIDE; s++) h[unit][s] += seen.x[i][s] * weights.theta_3[unit][i];
    for (int s = 0; s < SIDE; s++) h[unit][s] = vmax(h[unit][s], splat(0.f));
  }
  vf d[SIDE] = {};
  for (int k = 0; k < GAMMAS; k++) {
    vf sum[SIDE] = {};
    for (int i = 0; i < BETAS; i++) {
      const int j = k * BETAS + i;
      vf rho[SIDE];
      for (int s = 0; s < SIDE; s++) rho[s] = splat(c.rho[j]);
      for (int unit = 0; unit < UNITS; unit++)
        for (int s = 0; s < SIDE; s++) rho[s] += h[unit][s] * weights.theta_4[j][unit];
      for (int s = 0; s < SIDE; s++) sum[s] += rho[s] * seen.m[i][s];
    }
    for (int s = 0; s < SIDE; s++) d[s] += sum[s] * seen.r[k][s];
  }
  if (at.mixture) {
    for (int s = 0; s < SIDE; s++) store(at.mixture + l + s * V, d[s]);
    return;
  }
  for (int s = 0; s < SIDE; s++) {
    float* here = at.w + l + s * V;
    const vf w = load(here), moved = w - (d[s] * c.lr_size + w * c.lr_decay);
    store(here, moved);
    totals[0] += moved * moved;
  }
}

// A block's numbers as floats: where they lie if they are whole blocks of floats, else a copy with zeros behind it.
class Window2 {
 public:
  Rows2 open(const Part2& part, int64_t run, int64_t first, int lanes) {
    const bool whole = lanes == B, state = whole && !part.state_bfloat16;
    Rows2 at;
    each(part, run, first, at, [&](int k, float*& row, const void* data, bool bfloat16, int64_t where) {
      const bool in_place = whole && !bfloat16 && (k < 2 || state);
      row = in_place ? (float*)data + where : copies[k];
      if (!in_place) load_lanes(row, data, bfloat16, where, lanes);
    });
    return at;
  }

  void close(const Part2& part, int64_t run, int64_t first, int lanes, Rows2& at, uint32_t seed) {
    uint32_t stream = noise(seed, (uint32_t)run);
    each(part, run, first, at, [&](int k, float*& row, void* data, bool bfloat16, int64_t where) {
      if (k > 1) stream += 0x6c62272eu;
      if (k == 0 || row != copies[k]) return;
      if (k == 1 || !bfloat16) return store_lanes(row, data, bfloat16, where, lanes);
      uint16_t* to = (uint16_t*)data + where;
      for (int l = 0; l < lanes; l++) to[l] = to_bfloat16(row[l], noise(stream, (uint32_t)(where + l)));
    });
  }

 private:
  // Call work(number, row, data, whether it is bfloat16, where its numbers begin) for every row of a block.
  template <class Work>
  static void each(const Part2& part, int64_t run, int64_t first, Rows2& at, Work work) {
    const int64_t n = part.grad.n;
    work(0, at.g, part.grad.data, part.grad.bfloat16, run * n + first);
    work(1, at.w, part.param.data, part.param.bfloat16, run * n + first);
    for (int i = 0; i < SLOW; i++) work(2 + i, at.m[i], part.m, part.state_bfloat16, (run * SLOW + i) * n + first);
    for (int k = 0; k < GAMMAS; k++) work(2 + SLOW + k, at.v[k], part.v, part.state_bfloat16, (run * GAMMAS + k) * n + first);
  }

  alignas(64) float copies[2 + SLOW + GAMMAS][B];
};

}  // namespace

extern "C" {

// The largest size among each part's gradients.
void hyperadam_largest2(int64_t runs, int64_t count, const Part2* parts, float* out) {
  for (int64_t p = 0; p < count; p++) out[p] = largest(parts[p].grad.data, parts[p].grad.bfloat16, runs * parts[p].grad.n);
}

// One step of all parts. `totals` [count][runs][7] are then the sums over their coordinates. A part with an entry in `mixtures`
// is not moved: its mixture of Adams goes there, [runs][n]. What it is to be multiplied by goes to `sizes` [count][runs].
void hyperadam_step2(const Rule2* rule, int32_t threads, int64_t runs, int64_t count, const Part2* parts, const Motion2* motions,
                     float* const* mixtures, double* sizes, double* totals) {
  std::vector<Item> items;
  for (int64_t p = 0; p < count; p++) add_items(items, p, runs, parts[p].grad.n, BLOCKS_EACH);
  std::vector<Control> controls(count * runs);
  auto weights_of = [&](int64_t run) -> const Weights& { return *(const Weights*)(rule->weights + run * rule->stride); };
  for (int64_t p = 0; p < count; p++)
    for (int64_t run = 0; run < runs; run++)
      controls[p * runs + run] = tensor_cell(*rule, weights_of(run), parts[p], parts[p].memory + run * MEMORY, motions[p]);
  for (int64_t i = 0; i < count * runs; i++) sizes[i] = controls[i].lr_size;
  std::vector<std::array<double, TOTALS>> partial(items.size());
#pragma omp parallel num_threads(threads)
  {
    FlushSubnormals flush;
    Window2 window;
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); index++) {
      const Item& item = items[index];
      const Part2& part = parts[item.part];
      Weights weights = weights_of(item.run);  // a copy of its own, that stores cannot reach
      for (int j = 0; j < J; j++)
        for (float& theta : weights.theta_4[j]) theta *= (float)reach(*rule, j);
      const Control control = controls[item.part * runs + item.run];
      float* const mixture = mixtures[item.part];
      alignas(64) float block[B];
      Totals sums = {};
      item.for_each_block([&](int64_t i, int lanes) {
        Rows2 at = window.open(part, item.run, i, lanes);
        if (mixture) at.mixture = block;
        for (int l = 0; l < B; l += SIDE * V) step_lanes(control, weights, at, l, sums);
        if (mixture) memcpy(mixture + item.run * part.grad.n + i, block, lanes * sizeof(float));
        window.close(part, item.run, i, lanes, at, (uint32_t)motions[item.part].seed);
      });
      for (int k = 0; k < TOTALS; k++)
        for (int l = 0; l < V; l++) partial[index][k] += sums[k][l];
    }
  }
  std::fill(totals, totals + count * runs * TOTALS, 0.0);
  for (size_t index = 0; index < items.size(); index++)
    for (int k = 0; k < TOTALS; k++) totals[(items[index].part * runs + items[index].run) * TOTALS + k] += partial[index][k];
}

// Move the parts that have a direction, [runs][n]: param -= size * direction + lr * decay * param. The sums of their squares go
// to the first of their `totals`.
void hyperadam_turn2(int32_t threads, int64_t runs, int64_t count, const Part2* parts, const Motion2* motions,
                     const float* const* directions, const double* sizes, double* totals) {
  std::vector<Item> items;
  for (int64_t p = 0; p < count; p++)
    if (directions[p]) add_items(items, p, runs, parts[p].param.n, BLOCKS_EACH);
  std::vector<double> partial(items.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (size_t index = 0; index < items.size(); index++) {
    FlushSubnormals flush;
    const Item& item = items[index];
    const Numbers& param = parts[item.part].param;
    const Motion2& motion = motions[item.part];
    const float size = (float)sizes[item.part * runs + item.run], decay = (float)(motion.lr * motion.decay);
    alignas(64) float w[B], d[B];
    vf sum = splat(0.f);
    item.for_each_block([&](int64_t i, int lanes) {
      const int64_t first = item.run * param.n + i;
      load_lanes(w, param.data, param.bfloat16, first, lanes);
      load_lanes(d, directions[item.part] + first, lanes);
      for (int l = 0; l < B; l += V) {
        const vf before = load(w + l), moved = before - (load(d + l) * size + before * decay);
        store(w + l, moved);
        sum += moved * moved;
      }
      store_lanes(w, param.data, param.bfloat16, first, lanes);
    });
    for (int l = 0; l < V; l++) partial[index] += sum[l];
  }
  for (size_t index = 0; index < items.size(); index++) totals[(items[index].part * runs + items[index].run) * TOTALS] += partial[index];
}

// The means that a tensor remembers, from the sums over all its coordinates. What overflows stays finite.
void hyperadam_remember2(int64_t runs, int64_t count, const Part2* parts, const double* totals) {
  for (int64_t p = 0; p < count; p++)
    for (int64_t run = 0; run < runs; run++)
      for (int k = 0; k < TOTALS; k++) {
        const double mean = totals[(p * runs + run) * TOTALS + k] / (double)std::max<int64_t>(parts[p].whole, 1);
        parts[p].memory[run * MEMORY + 1 + k] = (float)std::min(mean, 3e38);
      }
}
}
