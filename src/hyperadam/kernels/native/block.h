// One block of B coordinates through the rule: the arithmetic of Algorithm 2 on [rows][B] arrays.
#pragma once
#include "step.h"
#include "vec.h"

constexpr double NORM_GUARD = 1e-16;
constexpr float EPSILON = 1e-24f;
constexpr double GAMMA_MAX = 0.9999;
constexpr float ALMOST_ONE = 1 - 0x1p-24f;

// Sizes that follow from the options, and where each matrix lies among the weights.
struct Shape {
  int J, X, S, L, Q;  // candidates; inputs of the state cell; rows of s; rows of c; inputs of the decay rates
  bool preprocess, lstm, normalize_state, bounded;
  float beta_max, inverse_q;
  const float *theta_p, *b_p, *theta_l, *b_l, *theta_d, *b_d, *theta_q, *b_q;
  int64_t weights;

  explicit Shape(const Rule& rule)
      : J(rule.J), X(rule.preprocess ? J : 1), S(rule.lstm ? J : X), L(rule.lstm ? J : 0), Q(J + S),
        preprocess(rule.preprocess), lstm(rule.lstm), normalize_state(rule.normalize_state), bounded(rule.decay_bound > 0) {
    inverse_q = bounded ? 1 / rule.decay_bound : 0;
    beta_max = bounded ? std::sqrt(rule.decay_bound * GAMMA_MAX) : 1;
    const float* w = rule.weights;
    auto take = [&w](int count) { const float* here = w; w += count; return here; };
    theta_p = take(preprocess ? J : 0), b_p = take(preprocess ? J : 0);
    theta_l = take(4 * L * (X + J)), b_l = take(4 * L);
    theta_d = take(2 * J * Q), b_d = take(2 * J);
    theta_q = take(J * S), b_q = take(J);
    weights = w - rule.weights;
  }
};

// A part of one buffer handed out in 64-byte steps.
struct Arena {
  float* here;
  float* rows(int64_t count) { return floats(count * B); }
  float* floats(int64_t count) {
    float* start = here;
    here += (count + 15) / 16 * 16;
    return start;
  }
};

// Rows of one block: where they start and how far apart they are.
struct Block {
  float* data;
  int64_t row;
  INLINE float* operator[](int j) const { return data + j * row; }
};

struct BlockState {
  Block m, v, beta_hat, gamma_hat, s, c;
};

// Inverse norms over the whole vector.
struct Norms {
  float g;
  const float *m, *s;
};

// What the forward pass of a block leaves behind for the backward pass, each [rows][B].
struct Forward {
  float *g, *gn;            // the gradient, and normalised
  float *xs, *s;            // [x; s_{t-1}], the LSTM's inputs, and s_t
  float *gates, *ec;        // e^-i, e^-f, e^-2z - 1, e^-o; e^-2c - 1
  float *ms, *decays;       // [m'; s'], the decay rates' inputs; e^-u, e^-r
  float *rho, *update;

  Forward(const Shape& k, Arena& arena) {
    g = arena.rows(1), gn = arena.rows(1), update = arena.rows(1);
    xs = arena.rows(k.X + k.L), s = arena.rows(k.S);
    gates = arena.rows(4 * k.L), ec = arena.rows(k.L);
    ms = arena.rows(k.Q), decays = arena.rows(2 * k.J), rho = arena.rows(k.J);
  }
};

// out[rows][B] = bias + W[rows][K] in[K][B] in register tiles of R x N vectors; no bias: nullptr.
template <int rows>
static INLINE void multiply_tile(const float* W, const float* bias, const float* in, int K, float* out) {
  for (int l = 0; l < B; l += N * V) {
    vf acc[rows][N];
    for (int r = 0; r < rows; r++)
      for (int n = 0; n < N; n++) acc[r][n] = splat(bias ? bias[r] : 0.f);
    for (int k = 0; k < K; k++) {
      vf x[N];
      for (int n = 0; n < N; n++) x[n] = load(in + k * B + l + n * V);
      for (int r = 0; r < rows; r++) {
        vf w = splat(W[r * K + k]);
        for (int n = 0; n < N; n++) acc[r][n] += w * x[n];
      }
    }
    for (int r = 0; r < rows; r++)
      for (int n = 0; n < N; n++) store(out + r * B + l + n * V, acc[r][n]);
  }
}

static void multiply(const float* W, const float* bias, const float* in, int K, float* out, int rows) {
  int r = 0;
  for (; r + R <= rows; r += R) multiply_tile<R>(W + r * K, bias ? bias + r : nullptr, in, K, out + r * B);
  for (; r < rows; r++) multiply_tile<1>(W + r * K, bias ? bias + r : nullptr, in, K, out + r * B);
}

// x = e^(times x + plus). In a loop of its own, so that many independent chains keep the units busy.
static void exponentials(float* x, int rows, float times, float plus) {
  for (int l = 0; l < rows * B; l += V) store(x + l, vexp(load(x + l), times, plus));
}

// x = e^-2x - 1: what tanh is made of, without cancellation where x is small.
static void exponentials_for_tanh(float* x, int rows) {
  for (int l = 0; l < rows * B; l += V) store(x + l, vexpm1(load(x + l), -2));
}

// Ask for the same row of the next block: 6J streams are too many for the hardware to follow.
static INLINE void prefetch(const float* row) {
  for (int l = 0; l < B; l += 16) __builtin_prefetch(row + B + l);
}

// F_h, line 8: the new s and c from the gradient and the old ones; s into the scratch, both into `next` if there is one.
static INLINE void state_cell(const Shape& k, const Norms& norms, const BlockState& old, const BlockState* next, const Forward& t) {
  const int J = k.J;
  for (int l = 0; l < B; l += V) store(t.gn + l, load(t.g + l) * norms.g);
  for (int j = 0; j < k.X; j++)
    for (int l = 0; l < B; l += V)
      store(t.xs + j * B + l, k.preprocess ? velu(load(t.gn + l) * k.theta_p[j] + k.b_p[j]) : load(t.gn + l));
  if (!k.lstm) {
    memcpy(t.s, t.xs, k.S * B * sizeof(float));
    for (int j = 0; j < k.S && next; j++) memcpy(next->s[j], t.s + j * B, B * sizeof(float));
    return;
  }
  for (int j = 0; j < J; j++) memcpy(t.xs + (k.X + j) * B, old.s[j], B * sizeof(float));
  multiply(k.theta_l, k.b_l, t.xs, k.X + J, t.gates, 4 * J);
  exponentials(t.gates, J, -1, 0);                // i
  exponentials(t.gates + J * B, J, -1, -1);       // f, with the forget bias
  exponentials_for_tanh(t.gates + 2 * J * B, J);  // z
  exponentials(t.gates + 3 * J * B, J, -1, 0);    // o
  for (int j = 0; j < J; j++) {
    prefetch(old.s[j]), prefetch(old.c[j]);
    if (next && next->s.data != old.s.data) prefetch(next->s[j]), prefetch(next->c[j]);
    for (int l = 0; l < B; l += V) {  // c = c / (1+ef) - ez / ((1+ei)(2+ez)) over one denominator
      const float *i = t.gates + j * B + l, *f = i + J * B, *z = f + J * B;
      vf ef = load(f) + 1.f, ez = load(z), iz = (load(i) + 1.f) * (ez + 2.f);
      vf c = (load(old.c[j] + l) * iz - ez * ef) / (iz * ef);
      store(t.ec + j * B + l, c);
      if (next) store(next->c[j] + l, c);
    }
  }
  exponentials_for_tanh(t.ec, J);
  for (int j = 0; j < J; j++)
    for (int l = 0; l < B; l += V) {
      vf ec = load(t.ec + j * B + l), s = -ec / ((ec + 2.f) * (load(t.gates + (3 * J + j) * B + l) + 1.f));
      store(t.s + j * B + l, s);
      if (next) store(next->s[j] + l, s);
    }
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
  vf both = 1.f / ((eu + 1.f) * (er + 1.f));
  d.u = both * (er + 1.f), d.r = both * (eu + 1.f);
  d.u_c = eu * d.u, d.r_c = er * d.r;
  if (!k.bounded) {
    const vf least = splat(1 - ALMOST_ONE), most = splat(ALMOST_ONE);
    d.beta = vmin(d.u, most), d.beta_c = vmax(d.u_c, least), d.gamma = vmin(d.r, most), d.gamma_c = vmax(d.r_c, least);
    d.gamma_min = vf{};
  } else {
    d.beta = d.u * k.beta_max, d.beta_c = 1.f - d.beta;
    d.gamma_min = d.beta * d.beta * k.inverse_q;
    d.gamma = d.gamma_min + ((float)GAMMA_MAX - d.gamma_min) * d.r, d.gamma_c = 1.f - d.gamma;
  }
  return d;
}

// Lines 11-16 and 18: the moments, and the moment field combined with the weight field.
static INLINE void adam_cell(const Shape& k, const BlockState& old, const BlockState& next, const Forward& t) {
  const int J = k.J;
  vf update[B / V] = {};
  for (int j = 0; j < J; j++) {
    for (const BlockState* s : {&old, &next}) {
      prefetch(s->m[j]), prefetch(s->v[j]), prefetch(s->beta_hat[j]), prefetch(s->gamma_hat[j]);
      if (next.m.data == old.m.data) break;
    }
    for (int l = 0; l < B; l += V) {
      Decay d = decay(k, load(t.decays + j * B + l), load(t.decays + (J + j) * B + l));
      vf g = load(t.g + l);
      vf m = d.beta * load(old.m[j] + l) + d.beta_c * g;
      vf v = d.gamma * load(old.v[j] + l) + d.gamma_c * (g * g);
      vf beta_hat = d.beta * load(old.beta_hat[j] + l) + d.beta_c;
      vf gamma_hat = d.gamma * load(old.gamma_hat[j] + l) + d.gamma_c;
      store(next.m[j] + l, m), store(next.v[j] + l, v);
      store(next.beta_hat[j] + l, beta_hat), store(next.gamma_hat[j] + l, gamma_hat);
      update[l / V] += load(t.rho + j * B + l) * m / (beta_hat * vsqrt(v / gamma_hat + EPSILON));
    }
  }
  for (int l = 0; l < B; l += V) store(t.update + l, update[l / V]);
}
