// The reverse of one block: adjoints of the gradient, the old state and the weights from those of update and new state.
#pragma once
#include "block.h"

// Gradients of the weights as one item of work adds them up; matrix rows padded to whole vectors.
struct WeightGradients {
  CellGradients lstm;
  float *theta_p, *b_p, *theta_d, *b_d, *theta_q, *b_q;

  WeightGradients(const Shape& k, Arena& arena)
      : lstm(k.cell, arena), theta_p(arena.floats(k.J)), b_p(arena.floats(k.J)),
        theta_d(arena.floats((int64_t)2 * k.J * padded(k.Q))), b_d(arena.floats(2 * k.J)),
        theta_q(arena.floats((int64_t)k.J * padded(k.S))), b_q(arena.floats(k.J)) {}

  // Add to a dense vector in the order of the rule's weights.
  void add_to(const Shape& k, double* out) const {
    auto add = [&out](const float* from, int rows, int columns, int stride) {
      for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) *out++ += from[r * stride + c];
    };
    const int P = k.preprocess ? k.J : 0;
    add(theta_p, P, 1, 1);
    add(b_p, P, 1, 1);
    add(lstm.theta, 4 * k.L, k.X + k.L, padded(k.X + k.L));
    add(lstm.b, 4 * k.L, 1, 1);
    add(theta_d, 2 * k.J, k.Q, padded(k.Q));
    add(b_d, 2 * k.J, 1, 1);
    add(theta_q, k.J, k.S, padded(k.S));
    add(b_q, k.J, 1, 1);
  }
};

// The three matrices transposed, for the products that go backwards.
struct Transposed {
  const float *theta_l, *theta_d, *theta_q;

  Transposed(const Shape& k, Arena& arena)
      : theta_l(transposed(k.cell.theta, 4 * k.L, k.X + k.L, arena)), theta_d(transposed(k.theta_d, 2 * k.J, k.Q, arena)),
        theta_q(transposed(k.theta_q, k.J, k.S, arena)) {}
};

// Sums over coordinates of (adjoint of what is normalised) times (what was normalised): what the norms' adjoints need.
struct NormSums {
  double *g, *m, *s;
};

// The states that a step back reads and writes: the old one, the adjoint of the new one, the adjoint of the old one.
struct States {
  BlockState old, d_next, d_old;

  INLINE void prefetch_moments(int j) const {
    old.prefetch_moments(j);
    d_next.prefetch_moments(j);
    d_old.prefetch_moments(j);
  }
};

// Adjoints inside a block, each [rows][B].
struct Backward : CellBackward {
  float *update, *g, *gn, *ms, *decays, *rho;

  Backward(const Shape& k, Arena& arena)
      : CellBackward(k.X, k.S, k.L, k.Q, arena), update(arena.rows(1)), g(arena.rows(1)), gn(arena.rows(1)),
        ms(arena.rows(k.Q)), decays(arena.rows(2 * k.J)), rho(arena.rows(k.J)) {}
};

// A block on its way back: what its forward pass left, the adjoints so far, and what is the same for all blocks of a run.
struct BlockBack {
  const Shape& k;
  const Transposed& T;
  const Norms& norms;
  const Forward& t;
  const Backward& a;

  // Through lines 18 to 9: adjoints of the moments, of the decay rates' and the weight field's inputs.
  INLINE void adam_cell(const States& x, const NormSums& sums) const {
    const int J = k.J;
    memset(a.g, 0, B * sizeof(float));
    for (int j = 0; j < J; j++) {
      if (j + AHEAD < J) x.prefetch_moments(j + AHEAD);
      for (int l = 0; l < B; l += V) moments(x, j, l);
    }
    multiply(T.theta_d, nullptr, a.decays, 2 * J, a.ms, k.Q);
    multiply(T.theta_q, nullptr, a.rho, J, a.s, k.S);
    for (int j = 0; j < J; j++) {
      sums.m[j] += dot(a.ms + j * B, x.old.m[j]);
      float* d_m = x.d_old.m[j];
      for (int l = 0; l < B; l += V) store(d_m + l, load(d_m + l) + load(a.ms + j * B + l) * norms.m[j]);
    }
    for (int j = 0; j < k.S && k.normalize_state; j++) sums.s[j] += dot(a.ms + (J + j) * B, t.s + j * B);
  }

  // Through line 8, and the weights' gradients. `norm_s[j]` is the coefficient of s that the norm of s adds to its adjoint.
  INLINE void state_cell(const States& x, const float* norm_s, const NormSums& sums, const WeightGradients& w) const {
    const int J = k.J;
    for (int j = 0; j < k.S; j++) {
      prefetch(x.d_next.s[j] + B);
      for (int l = 0; l < B; l += V) {
        const vf through_decays = load(a.ms + (J + j) * B + l) * norms.s[j] - load(t.s + j * B + l) * norm_s[j];
        store(a.s + j * B + l, load(a.s + j * B + l) + load(x.d_next.s[j] + l) + through_decays);
      }
    }
    if (k.lstm) {
      lstm_cell_backward(k.cell, T.theta_l, {x.old.c, x.d_next.c, x.d_old.s, x.d_old.c}, t, a, w.lstm);
    } else {
      memcpy(a.xs, a.s, k.X * B * sizeof(float));
      for (int j = 0; j < k.S; j++) memset(x.d_old.s[j], 0, B * sizeof(float));
    }
    outer(a.decays, t.ms, k.Q, 2 * J, w.theta_d, w.b_d, a.turned);
    outer(a.rho, t.s, k.S, J, w.theta_q, w.b_q, a.turned);
    if (k.preprocess) {
      preprocessing(w);
    } else {
      memcpy(a.gn, a.xs, B * sizeof(float));
    }
    *sums.g += dot(a.gn, t.g);
    for (int l = 0; l < B; l += V) store(a.g + l, load(a.g + l) + load(a.gn + l) * norms.g);
  }

 private:
  // One vector of candidate j: its step again, then its adjoints.
  INLINE void moments(const States& x, int j, int l) const {
    const Decay d = decay(k, load(t.decays + j * B + l), load(t.decays + (k.J + j) * B + l));
    const vf g = load(t.g + l), rho = load(t.rho + j * B + l), d_update = load(a.update + l);
    const vf m0 = load(x.old.m[j] + l), v0 = load(x.old.v[j] + l);
    const vf bh0 = load(x.old.beta_hat[j] + l), gh0 = load(x.old.gamma_hat[j] + l);
    const vf m = d.beta * m0 + d.beta_c * g, v = d.gamma * v0 + d.gamma_c * (g * g);
    const vf bh = d.beta * bh0 + d.beta_c, gh = d.gamma * gh0 + d.gamma_c;
    const vf inv_both = 1.f / (bh * gh), inv_bh = inv_both * gh, inv_gh = inv_both * bh;
    const vf v_tilde = v * inv_gh, inv_root = 1.f / vsqrt(v_tilde + EPSILON);
    const vf m_hat = m * inv_bh * inv_root;

    const vf d_m_hat = d_update * rho, d_v_tilde = -0.5f * d_m_hat * m_hat * inv_root * inv_root;
    const vf d_m = load(x.d_next.m[j] + l) + d_m_hat * inv_root * inv_bh;
    const vf d_bh = load(x.d_next.beta_hat[j] + l) - d_m_hat * m_hat * inv_bh;
    const vf d_v = load(x.d_next.v[j] + l) + d_v_tilde * inv_gh;
    const vf d_gh = load(x.d_next.gamma_hat[j] + l) - d_v_tilde * v_tilde * inv_gh;

    vf d_beta = d_m * (m0 - g) + d_bh * (bh0 - 1.f);
    vf d_gamma = d_v * (v0 - g * g) + d_gh * (gh0 - 1.f);
    if (k.bounded) {
      d_beta = (d_beta + d_gamma * d.r_c * d.beta * (2.f * k.inverse_q)) * k.beta_max;
      d_gamma = d_gamma * ((float)GAMMA_MAX - d.gamma_min);
    }
    store(a.decays + j * B + l, d_beta * d.u * d.u_c);
    store(a.decays + (k.J + j) * B + l, d_gamma * d.r * d.r_c);
    store(a.rho + j * B + l, d_update * m_hat * (rho > 0.f ? splat(1.f) : rho + 1.f));
    store(a.g + l, load(a.g + l) + d.beta_c * d_m + 2.f * g * d.gamma_c * d_v);
    store(x.d_old.m[j] + l, d.beta * d_m);
    store(x.d_old.v[j] + l, d.gamma * d_v);
    store(x.d_old.beta_hat[j] + l, d.beta * d_bh);
    store(x.d_old.gamma_hat[j] + l, d.gamma * d_gh);
  }

  // Through the layer in front of the LSTM.
  INLINE void preprocessing(const WeightGradients& w) const {
    memset(a.gn, 0, B * sizeof(float));
    for (int j = 0; j < k.J; j++) {
      vf sum = {}, weighted = {};
      for (int l = 0; l < B; l += V) {
        const vf x = load(t.xs + j * B + l), d = load(a.xs + j * B + l) * (x > 0.f ? splat(1.f) : x + 1.f);
        sum += d;
        weighted += d * load(t.gn + l);
        store(a.gn + l, load(a.gn + l) + d * k.theta_p[j]);
      }
      w.b_p[j] += hsum(sum);
      w.theta_p[j] += hsum(weighted);
    }
  }
};
