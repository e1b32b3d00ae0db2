// HyperAdam2's pass over coordinates: moments, the two fields, and the mixture of Adams or the move.
#pragma once
#include <array>

#include "tensor_cell.h"

namespace {

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

// The moments of one vector, the one at lane `l`, which is number `s` of those side by side. What the weight field sees is left
// out where nobody looks.
template <bool field>
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
  for (int i = 0; i < BETAS; i++) seen.m[i][s] = m[i];
  if constexpr (!field) return;
  vf sum = splat(0.f), squares = splat(1.f), u[BETAS];
  for (int i = 0; i < BETAS; i++) {
    u[i] = m[i] * r[GAMMAS - 1];
    sum += u[i];
    squares += u[i] * u[i];
  }
  const vf share = sum / squares;
  for (int i = 0; i < BETAS; i++) seen.x[i][s] = u[i] * share;
  seen.x[BETAS][s] = v[0] / (v[0] + v[GAMMAS - 1] + (float)TINY) - 0.5f;
}

// SIDE vectors of coordinates from lane `l` on: moments, fields, move. Without a `field` every coordinate has the tensor's ρ.
template <bool field>
static INLINE void step_lanes(const Control& c, const Weights& weights, const Rows2& at, int l, Totals& totals) {
  Seen seen;
#pragma GCC unroll 4  // else what is seen goes through memory
  for (int s = 0; s < SIDE; s++) update_moments<field>(c, at, l + s * V, s, seen, totals);
  vf h[UNITS][SIDE];
  for (int unit = 0; field && unit < UNITS; unit++) {
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
      for (int unit = 0; field && unit < UNITS; unit++)
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
  // `moves`: whether the parameter is moved, too.
  Rows2 open(const Part2& part, int64_t run, int64_t first, int lanes, bool moves) {
    const bool whole = lanes == B, state = whole && !part.state_bfloat16;
    Rows2 at;
    each(part, run, first, at, [&](int k, float*& row, const void* data, bool bfloat16, int64_t where) {
      const bool in_place = (whole && !bfloat16 && (k < 2 || state)) || (k == 1 && !moves);
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
