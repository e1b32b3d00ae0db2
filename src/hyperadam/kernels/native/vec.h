// Vectors of coordinates in the compiler's own vector extension: one source for AVX-512, AVX2 and anything else.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef HYPERADAM_LANES
#define HYPERADAM_LANES 4
#endif

#define INLINE inline __attribute__((always_inline))

constexpr int V = HYPERADAM_LANES;  // coordinates a vector register holds
constexpr int B = 64;               // coordinates a block: every small product is a broadcast-FMA over these lanes
constexpr int N = V == 16 ? 4 : 2;  // vectors side by side in a register tile
constexpr int R = 5;                // rows in a register tile: R x N accumulators hide the FMA's latency

typedef float vf __attribute__((vector_size(4 * V)));
typedef int32_t vi __attribute__((vector_size(4 * V)));
typedef float vf_unaligned __attribute__((vector_size(4 * V), aligned(4), may_alias));

static INLINE vf load(const float* p) { return *(const vf_unaligned*)p; }
static INLINE void store(float* p, vf x) { *(vf_unaligned*)p = x; }
static INLINE vf splat(float x) { return x - vf{}; }
static INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
static INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }

static INLINE vf vsqrt(vf x) {
  vf r;
  for (int l = 0; l < V; l++) r[l] = __builtin_sqrtf(x[l]);
  return r;
}

static INLINE float hsum(vf x) {
  float total = 0;
  for (int l = 0; l < V; l++) total += x[l];
  return total;
}

constexpr float LOG2E = 1.44269504088896341f;

#if HYPERADAM_LANES == 4
#define LOWER 0, 4, 1, 5
#define UPPER 2, 6, 3, 7
#elif HYPERADAM_LANES == 8
#define LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif

// V x V numbers transposed: log2(V) rounds of interleaving the first half of the rows with the second.
static INLINE void transpose(vf (&x)[V]) {
  for (int round = 1; round < V; round *= 2) {
    vf y[V];
    for (int i = 0; i < V / 2; i++) {
      y[2 * i] = __builtin_shufflevector(x[i], x[i + V / 2], LOWER);
      y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + V / 2], UPPER);
    }
    for (int i = 0; i < V; i++) x[i] = y[i];
  }
}

// scale * (1 + p) = e^(times x + plus) for exponents below 29 in size, clamped beyond: three factors (1 + e^x) then still fit a float.
struct Exp {
  vf p, scale;
};

static INLINE Exp split_exp(vf x, float times, float plus) {
  vf t = x * (times * LOG2E) + plus * LOG2E;
  t = vmin(vmax(t, splat(-42.f)), splat(42.f));
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it leaves round(t) in the low bits
  vf shifted = t + magic;
  vf f = t - (shifted - magic);
  vf p = splat(1.535336171e-4f);  // minimax for 2^f - 1 on [-1/2, 1/2], relative error 2e-9
  p = p * f + 1.339887448e-3f;
  p = p * f + 9.618437359e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472029e-1f;
  return {p * f, (vf)(((vi)shifted << 23) + (127 << 23))};
}

static INLINE vf vexp(vf x, float times, float plus) {
  Exp e = split_exp(x, times, plus);
  return e.p * e.scale + e.scale;
}

// e^(times x) - 1, exact for small x too
static INLINE vf vexpm1(vf x, float times) {
  Exp e = split_exp(x, times, 0.f);
  return e.p * e.scale + (e.scale - 1.f);
}

static INLINE vf velu(vf x) { return x > 0.f ? x : vexpm1(x, 1.f); }
