// HyperAdam2's rule and parts as C reads them, and its TensorCell: what all coordinates of a tensor share in a step.
#pragma once
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

}  // namespace
