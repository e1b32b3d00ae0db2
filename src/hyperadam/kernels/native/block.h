// One block of B coordinates through the rule: the arithmetic of Algorithm 2 on [rows][B] arrays.
#pragma once
#include <array>

#include "lstm.h"
#include "step.h"

constexpr double NORM_GUARD = 1e-16;
constexpr float EPSILON = 1e-24f;
constexpr double GAMMA_MAX = 0.9999;
constexpr float ALMOST_ONE = 1 - 0x1p-24f;

// How many rows ahead of the arithmetic the moments are asked for. Rows ahead, not blocks: where n is a power of two, the
// rows of one block all compete for the same few places in the cache, and would be gone before their turn.
constexpr int AHEAD = 2;

// Sizes that follow from the options, and where each matrix lies among the weights.
struct Shape {
  int J, X, S, L, Q;  // candidates; inputs of the state cell; rows of s; rows of c; inputs of the decay rates
  bool preprocess, lstm, normalize_state, bounded;
  float beta_max, inverse_q;
  const float *theta_p, *b_p, *theta_d, *b_d, *theta_q, *b_q;
  Cell cell;
  int64_t weights;

  explicit Shape(const Rule& rule)
      : J(rule.J), X(rule.preprocess ? J : 1), S(rule.lstm ? J : X), L(rule.lstm ? J : 0), Q(J + S),
        preprocess(rule.preprocess), lstm(rule.lstm), normalize_state(rule.normalize_state), bounded(rule.decay_bound > 0) {
    inverse_q = bounded ? 1 / rule.decay_bound : 0;
    beta_max = bounded ? std::sqrt(rule.decay_bound * GAMMA_MAX) : 1;
    const float* w = rule.weights;
    auto take = [&w](int64_t count) {
      const float* here = w;
      w += count;
      return here;
    };
    theta_p = take(preprocess ? J : 0);
    b_p = take(preprocess ? J : 0);
    cell.X = X;
    cell.L = L;
    cell.theta = take(4 * L * (X + L));
    cell.b = take(4 * L);
    theta_d = take(2 * J * Q);
    b_d = take(2 * J);
    theta_q = take(J * S);
    b_q = take(J);
    weights = w - rule.weights;
  }

  // Rows of each field of the state.
  std::array<int, 6> rows() const { return {J, J, J, J, S, L}; }
};

// The state of one block, or its adjoint.
struct BlockState {
  Block m, v, beta_hat, gamma_hat, s, c;

  INLINE void prefetch_moments(int j) const {
    prefetch(m[j]);
    prefetch(v[j]);
    prefetch(beta_hat[j]);
    prefetch(gamma_hat[j]);
  }
};

// Inverse norms over the whole vector.
struct Norms {
  float g;
  const float *m, *s;
};

// What the forward pass of a block leaves behind for the backward pass, each [rows][B].
struct Forward : CellForward {
  float *g, *gn;       // the gradient, and normalised
  float *ms, *decays;  // [m'; s'], the decay rates' inputs; e^-u, e^-r
  float *rho, *update;

  Forward(const Shape& k, Arena& arena)
      : CellForward(k.X, k.S, k.L, arena), g(arena.rows(1)), gn(arena.rows(1)), ms(arena.rows(k.Q)),
        decays(arena.rows(2 * k.J)), rho(arena.rows(k.J)), update(arena.rows(1)) {}
};

// F_h, line 8: the new s and c from the gradient and the old ones. s goes to the scratch, and both to `next` if there is one.
static INLINE void state_cell(const Shape& k, const Norms& norms, const BlockState& old, const BlockState* next, const Forward& t) {
  for (int l = 0; l < B; l += V) store(t.gn + l, load(t.g + l) * norms.g);
  if (k.preprocess) {
    for (int j = 0; j < k.X; j++)
      for (int l = 0; l < B; l += V) store(t.xs + j * B + l, velu(load(t.gn + l) * k.theta_p[j] + k.b_p[j]));
  } else {
    memcpy(t.xs, t.gn, B * sizeof(float));
  }
  if (k.lstm) {
    lstm_cell(k.cell, old.s, old.c, next ? next->s : NOWHERE, next ? next->c : NOWHERE, t);
    return;
  }
  memcpy(t.s, t.xs, k.S * B * sizeof(float));
  for (int j = 0; j < k.S && next; j++) memcpy(next->s[j], t.s + j * B, B * sizeof(float));
}

// Lines 9, 10 and 17 up to the sigmoids: e^-u and e^-r behind the decay rates, and the weight field.
static INLINE void fields(const Shape& k, const Norms& norms, const BlockState& old, const Forward& t) {
  const int J = k.J;
  for (int j = 0; j < J; j++)
    for (int l = 0; l < B; l += V) store(t.ms + j * B + l, load(old.m[j] + l) * norms.m[j]);
  for (int j = 0; j < k.S; j++)
    for (int l = 0; l < B; l += V) store(t.ms + (J + j) * B + l, load(t.s + j * B + l) * norms.s[j]);
  multiply(k.theta_d, k.b_d, t.ms, k.Q, t.decays, 2 * J);
  multiply(k.theta_q, k.b_q, t.s, k.S, t.rho, J);
  exponentials(t.decays, 2 * J, -1, 0);
  for (int l = 0; l < J * B; l += V) store(t.rho + l, velu(load(t.rho + l)));
}

// The decay rates and their complements, from the exponentials.
struct Decay {
  vf u, u_c, r, r_c;                // the sigmoids and 1 - themselves, without cancellation
  vf beta, beta_c, gamma, gamma_c;  // the same after the bound
  vf gamma_min;
};

static INLINE Decay decay(const Shape& k, vf eu, vf er) {
  Decay d;
  const vf both = 1.f / ((eu + 1.f) * (er + 1.f));
  d.u = both * (er + 1.f);
  d.r = both * (eu + 1.f);
  d.u_c = eu * d.u;
  d.r_c = er * d.r;
  if (k.bounded) {
    d.beta = d.u * k.beta_max;
    d.beta_c = 1.f - d.beta;
    d.gamma_min = d.beta * d.beta * k.inverse_q;
    d.gamma = d.gamma_min + ((float)GAMMA_MAX - d.gamma_min) * d.r;
    d.gamma_c = 1.f - d.gamma;
  } else {
    const vf least = splat(1 - ALMOST_ONE), most = splat(ALMOST_ONE);
    d.beta = vmin(d.u, most);
    d.beta_c = vmax(d.u_c, least);
    d.gamma = vmin(d.r, most);
    d.gamma_c = vmax(d.r_c, least);
    d.gamma_min = vf{};
  }
  return d;
}

// Lines 11-16 and 18: the moments, and the moment field combined with the weight field.
static INLINE void adam_cell(const Shape& k, const BlockState& old, const BlockState& next, const Forward& t) {
  const int J = k.J;
  const bool in_place = next.m.data == old.m.data;
  vf update[B / V] = {};
  for (int j = 0; j < J; j++) {
    if (j + AHEAD < J) {
      old.prefetch_moments(j + AHEAD);
      if (!in_place) next.prefetch_moments(j + AHEAD);
    }
    for (int l = 0; l < B; l += V) {
      const Decay d = decay(k, load(t.decays + j * B + l), load(t.decays + (J + j) * B + l));
      const vf g = load(t.g + l);
      const vf m = d.beta * load(old.m[j] + l) + d.beta_c * g;
      const vf v = d.gamma * load(old.v[j] + l) + d.gamma_c * (g * g);
      const vf beta_hat = d.beta * load(old.beta_hat[j] + l) + d.beta_c;
      const vf gamma_hat = d.gamma * load(old.gamma_hat[j] + l) + d.gamma_c;
      store(next.m[j] + l, m);
      store(next.v[j] + l, v);
      store(next.beta_hat[j] + l, beta_hat);
      store(next.gamma_hat[j] + l, gamma_hat);
      update[l / V] += load(t.rho + j * B + l) * m / (beta_hat * vsqrt(v / gamma_hat + EPSILON));
    }
  }
  for (int l = 0; l < B; l += V) store(t.update + l, update[l / V]);
}

// One step of a block: `next`, which may be `old` itself, and the update in the scratch.
static INLINE void step_block(const Shape& k, const Norms& norms, const BlockState& old, const BlockState& next, const Forward& t) {
  for (int j = 0; j < k.J; j++) prefetch(old.m[j]);
  for (int j = 0; j < AHEAD && j < k.J; j++) old.prefetch_moments(j);
  state_cell(k, norms, old, &next, t);
  fields(k, norms, old, t);
  adam_cell(k, old, next, t);
}
