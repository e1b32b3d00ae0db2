// The reverse of one block: adjoints of the gradient, the old state and the weights from those of update and new state.
#pragma once
#include "block.h"

// Gradients of the weights as one slice of coordinates adds them up; matrix rows padded to whole vectors.
struct WeightGradients {
  float *theta_p, *b_p, *theta_d, *b_d, *theta_q, *b_q;
  CellGradients lstm;

  WeightGradients(const Shape& k, Arena& arena) : lstm(k.cell, arena) {
    theta_p = arena.floats(k.J), b_p = arena.floats(k.J);
    theta_d = arena.floats(2 * k.J * padded(k.Q)), b_d = arena.floats(2 * k.J);
    theta_q = arena.floats(k.J * padded(k.S)), b_q = arena.floats(k.J);
  }

  // Add to a dense vector in the order of the rule's weights.
  void add_to(const Shape& k, double* out) const {
    auto add = [&out](const float* from, int rows, int columns, int stride) {
      for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) *out++ += from[r * stride + c];
    };
    const int P = k.preprocess ? k.J : 0;
    add(theta_p, P, 1, 1), add(b_p, P, 1, 1);
    add(lstm.theta, 4 * k.L, k.X + k.L, padded(k.X + k.L)), add(lstm.b, 4 * k.L, 1, 1);
    add(theta_d, 2 * k.J, k.Q, padded(k.Q)), add(b_d, 2 * k.J, 1, 1);
    add(theta_q, k.J, k.S, padded(k.S)), add(b_q, k.J, 1, 1);
  }
};

// The three matrices transposed, for the products that go backwards.
struct Transposed {
  float *theta_l, *theta_d, *theta_q;

  Transposed(const Shape& k, Arena& arena)
      : theta_l(transposed(k.cell.theta, 4 * k.L, k.X + k.L, arena)), theta_d(transposed(k.theta_d, 2 * k.J, k.Q, arena)),
        theta_q(transposed(k.theta_q, k.J, k.S, arena)) {}
};

// Adjoints inside a block, each [rows][B], and the sums over coordinates that the norms need.
struct Backward : CellBackward {
  float *update, *g, *gn, *ms, *decays, *rho;
  double *k_g, *k_m, *k_s;  // sums of (adjoint of the normalised) times (what was normalised)

  Backward(const Shape& k, Arena& arena) : CellBackward(k.X, k.S, k.L, k.Q, arena) {
    update = arena.rows(1), g = arena.rows(1), gn = arena.rows(1);
    ms = arena.rows(k.Q), decays = arena.rows(2 * k.J), rho = arena.rows(k.J);
  }
};

// Through lines 18 to 9: adjoints of the moments, of the decay rates' and the weight field's inputs.
static INLINE void adam_cell_backward(const Shape& k, const Norms& norms, const Transposed& T, const BlockState& old,
                                      const Forward& t, const BlockState& d_next, const BlockState& d_old, const Backward& a) {
  const int J = k.J;
  memset(a.g, 0, B * sizeof(float));
  for (int j = 0; j < J; j++) {
    for (const BlockState* s : {&old, &d_next, &d_old})
      prefetch(s->m[j]), prefetch(s->v[j]), prefetch(s->beta_hat[j]), prefetch(s->gamma_hat[j]);
    for (int l = 0; l < B; l += V) {
      Decay d = decay(k, load(t.decays + j * B + l), load(t.decays + (J + j) * B + l));
      vf g = load(t.g + l), rho = load(t.rho + j * B + l), d_update = load(a.update + l);
      vf m0 = load(old.m[j] + l), v0 = load(old.v[j] + l), bh0 = load(old.beta_hat[j] + l), gh0 = load(old.gamma_hat[j] + l);
      vf m = d.beta * m0 + d.beta_c * g, v = d.gamma * v0 + d.gamma_c * (g * g);
      vf bh = d.beta * bh0 + d.beta_c, gh = d.gamma * gh0 + d.gamma_c, inv_both = 1.f / (bh * gh);
      vf inv_bh = inv_both * gh, inv_gh = inv_both * bh;
      vf v_tilde = v * inv_gh, inv_root = 1.f / vsqrt(v_tilde + EPSILON);
      vf m_hat = m * inv_bh * inv_root;

      vf d_m_hat = d_update * rho, d_v_tilde = -0.5f * d_m_hat * m_hat * inv_root * inv_root;
      vf d_m = load(d_next.m[j] + l) + d_m_hat * inv_root * inv_bh;
      vf d_bh = load(d_next.beta_hat[j] + l) - d_m_hat * m_hat * inv_bh;
      vf d_v = load(d_next.v[j] + l) + d_v_tilde * inv_gh;
      vf d_gh = load(d_next.gamma_hat[j] + l) - d_v_tilde * v_tilde * inv_gh;

      vf d_beta = d_m * (m0 - g) + d_bh * (bh0 - 1.f);
      vf d_gamma = d_v * (v0 - g * g) + d_gh * (gh0 - 1.f);
      if (k.bounded) {
        d_beta = (d_beta + d_gamma * d.r_c * d.beta * (2.f * k.inverse_q)) * k.beta_max;
        d_gamma = d_gamma * ((float)GAMMA_MAX - d.gamma_min);
      }
      store(a.decays + j * B + l, d_beta * d.u * d.u_c), store(a.decays + (J + j) * B + l, d_gamma * d.r * d.r_c);
      store(a.rho + j * B + l, d_update * m_hat * (rho > 0.f ? splat(1.f) : rho + 1.f));
      store(a.g + l, load(a.g + l) + d.beta_c * d_m + 2.f * g * d.gamma_c * d_v);
      store(d_old.m[j] + l, d.beta * d_m), store(d_old.v[j] + l, d.gamma * d_v);
      store(d_old.beta_hat[j] + l, d.beta * d_bh), store(d_old.gamma_hat[j] + l, d.gamma * d_gh);
    }
  }
  multiply(T.theta_d, nullptr, a.decays, 2 * J, a.ms, k.Q);
  multiply(T.theta_q, nullptr, a.rho, J, a.s, k.S);
  for (int j = 0; j < J; j++) {
    a.k_m[j] += dot(a.ms + j * B, old.m[j]);
    for (int l = 0; l < B; l += V) store(d_old.m[j] + l, load(d_old.m[j] + l) + load(a.ms + j * B + l) * norms.m[j]);
  }
  if (k.normalize_state)
    for (int j = 0; j < k.S; j++) a.k_s[j] += dot(a.ms + (J + j) * B, t.s + j * B);
}

// Through line 8. `norm_s[j]` is the coefficient of s that the norm of s adds to its adjoint.
static INLINE void state_cell_backward(const Shape& k, const Norms& norms, const float* norm_s, const Transposed& T,
                                       const BlockState& old, const Forward& t, const BlockState& d_next,
                                       const BlockState& d_old, const Backward& a, const WeightGradients& w) {
  const int J = k.J;
  for (int j = 0; j < k.S; j++) {
    prefetch(d_next.s[j]);
    for (int l = 0; l < B; l += V)
      store(a.s + j * B + l, load(a.s + j * B + l) + load(d_next.s[j] + l) + load(a.ms + (J + j) * B + l) * norms.s[j] -
                                 load(t.s + j * B + l) * norm_s[j]);
  }
  if (k.lstm) {
    lstm_cell_backward(k.cell, T.theta_l, old.c, t, d_next.c, d_old.s, d_old.c, a, w.lstm);
  } else {
    memcpy(a.xs, a.s, k.X * B * sizeof(float));
    for (int j = 0; j < k.S; j++) memset(d_old.s[j], 0, B * sizeof(float));
  }
  outer(a.decays, t.ms, k.Q, 2 * J, w.theta_d, w.b_d, a.turned);
  outer(a.rho, t.s, k.S, J, w.theta_q, w.b_q, a.turned);
  if (k.preprocess) {
    memset(a.gn, 0, B * sizeof(float));
    for (int j = 0; j < J; j++) {
      vf sum = {}, weighted = {};
      for (int l = 0; l < B; l += V) {
        vf x = load(t.xs + j * B + l), d = load(a.xs + j * B + l) * (x > 0.f ? splat(1.f) : x + 1.f);
        sum += d, weighted += d * load(t.gn + l);
        store(a.gn + l, load(a.gn + l) + d * k.theta_p[j]);
      }
      w.b_p[j] += hsum(sum), w.theta_p[j] += hsum(weighted);
    }
  } else {
    memcpy(a.gn, a.xs, B * sizeof(float));
  }
  *a.k_g += dot(a.gn, t.g);
  for (int l = 0; l < B; l += V) store(a.g + l, load(a.g + l) + load(a.gn + l) * norms.g);
}
