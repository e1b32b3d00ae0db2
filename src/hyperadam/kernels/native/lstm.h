// A long short-term memory cell on one block of B coordinates, forwards and backwards.
#pragma once
#include "matrix.h"

// theta is [4L][X+L] on [x; s] and b [4L]: input gate, forget gate, candidate, output gate.
struct Cell {
  int X, L;
  const float *theta, *b;
};

// What the forward pass leaves behind for the backward pass, each [rows][B].
struct CellForward {
  float *xs, *s;      // [x; s_{t-1}] and s_t
  float *gates, *ec;  // e^-i, e^-f, e^-2z - 1, e^-o; e^-2c - 1

  // S rows of s, which may be more than the L of the cell where there is none.
  CellForward(int X, int S, int L, Arena& arena)
      : xs(arena.rows(X + L)), s(arena.rows(S)), gates(arena.rows(4 * L)), ec(arena.rows(L)) {}
};

// Adjoints of the same, and room for the widest transposed input of an outer product.
struct CellBackward {
  float *xs, *s, *gates, *turned;

  CellBackward(int X, int S, int L, int widest, Arena& arena)
      : xs(arena.rows(X + L)), s(arena.rows(S)), gates(arena.rows(4 * L)),
        turned(arena.rows(padded(X + L > widest ? X + L : widest))) {}
};

struct CellGradients {
  float *theta, *b;  // rows of theta padded to whole vectors

  CellGradients(const Cell& k, Arena& arena)
      : theta(arena.floats(4 * k.L * padded(k.X + k.L))), b(arena.floats(4 * k.L)) {}
};

constexpr Block NOWHERE{nullptr, 0};

// The new s and c from x, which lies in the scratch, and the old ones; s into the scratch, both to `next_` if that is somewhere.
static INLINE void lstm_cell(const Cell& k, Block s, Block c, Block next_s, Block next_c, const CellForward& t) {
  const int L = k.L;
  const bool keep = next_s.data;
  for (int j = 0; j < L; j++) memcpy(t.xs + (k.X + j) * B, s[j], B * sizeof(float));
  multiply(k.theta, k.b, t.xs, k.X + L, t.gates, 4 * L);
  exponentials(t.gates, L, -1, 0);                // i
  exponentials(t.gates + L * B, L, -1, -1);       // f, with the forget bias
  exponentials_for_tanh(t.gates + 2 * L * B, L);  // z
  exponentials(t.gates + 3 * L * B, L, -1, 0);    // o
  for (int j = 0; j < L; j++) {
    prefetch(s[j] + B);  // of the next block
    prefetch(c[j] + B);
    if (keep && next_s.data != s.data) {
      prefetch(next_s[j] + B);
      prefetch(next_c[j] + B);
    }
    for (int l = 0; l < B; l += V) {  // c = c / (1+ef) - ez / ((1+ei)(2+ez)) over one denominator
      const float *i = t.gates + j * B + l, *f = i + L * B, *z = f + L * B;
      const vf ef = load(f) + 1.f, ez = load(z), iz = (load(i) + 1.f) * (ez + 2.f);
      const vf new_c = (load(c[j] + l) * iz - ez * ef) / (iz * ef);
      store(t.ec + j * B + l, new_c);
      if (keep) store(next_c[j] + l, new_c);
    }
  }
  exponentials_for_tanh(t.ec, L);
  for (int j = 0; j < L; j++)
    for (int l = 0; l < B; l += V) {
      const vf ec = load(t.ec + j * B + l), eo = load(t.gates + (3 * L + j) * B + l);
      const vf new_s = -ec / ((ec + 2.f) * (eo + 1.f));
      store(t.s + j * B + l, new_s);
      if (keep) store(next_s[j] + l, new_s);
    }
}

// What goes into the backward pass of a cell and what comes out, but for the weights' gradients: the old c, the adjoint of
// the new c, and the adjoints of the old s and c.
struct CellAdjoints {
  Block c, d_next_c, d_s, d_c;
};

// From the adjoint of the new s, in the scratch, and of the new c: those of x, in the scratch, of the old s and c, and of the weights.
static INLINE void lstm_cell_backward(const Cell& k, const float* theta_transposed, const CellAdjoints& x, const CellForward& t,
                                      const CellBackward& a, const CellGradients& w) {
  const int L = k.L;
  for (int j = 0; j < L; j++) {
    prefetch(x.d_next_c[j] + B);
    prefetch(x.d_s[j] + B);
    prefetch(x.d_c[j] + B);
    for (int l = 0; l < B; l += V) {
      const int64_t at = j * B + l, row = L * B;
      const vf ei = load(t.gates + at), ef = load(t.gates + row + at);
      const vf ez = load(t.gates + 2 * row + at), eo = load(t.gates + 3 * row + at), ec = load(t.ec + at);
      const vf inv_if = 1.f / ((ei + 1.f) * (ef + 1.f)), inv_zoc = 1.f / ((ez + 2.f) * (eo + 1.f) * (ec + 2.f));
      const vf i = inv_if * (ef + 1.f), f = inv_if * (ei + 1.f), o = inv_zoc * (ez + 2.f) * (ec + 2.f);
      const vf inv_z = inv_zoc * (eo + 1.f) * (ec + 2.f), inv_c = inv_zoc * (ez + 2.f) * (eo + 1.f);
      const vf z = -ez * inv_z, tanh_c = -ec * inv_c;
      const vf d_new_s = load(a.s + at);
      const vf d_new_c = load(x.d_next_c[j] + l) + d_new_s * o * (4.f * (ec + 1.f) * inv_c * inv_c);
      store(a.gates + at, d_new_c * z * i * (i * ei));
      store(a.gates + row + at, d_new_c * load(x.c[j] + l) * f * (f * ef));
      store(a.gates + 2 * row + at, d_new_c * i * (4.f * (ez + 1.f) * inv_z * inv_z));
      store(a.gates + 3 * row + at, d_new_s * tanh_c * o * (o * eo));
      store(x.d_c[j] + l, d_new_c * f);
    }
  }
  multiply(theta_transposed, nullptr, a.gates, 4 * L, a.xs, k.X + L);
  outer(a.gates, t.xs, k.X + L, 4 * L, w.theta, w.b, a.turned);
  for (int j = 0; j < L; j++) memcpy(x.d_s[j], a.xs + (k.X + j) * B, B * sizeof(float));
}
