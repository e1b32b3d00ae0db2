// Small matrices by blocks of B coordinates, forwards and backwards, and the working memory for them.
#pragma once
#include "vec.h"

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

// Columns of a matrix whose rows are whole vectors.
static inline int padded(int columns) { return (columns + V - 1) / V * V; }

// A copy of W[rows][columns] for the products that go backwards.
static inline float* transposed(const float* W, int rows, int columns, Arena& arena) {
  float* out = arena.floats((int64_t)rows * columns);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) out[c * rows + r] = W[r * columns + c];
  return out;
}

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

// Ask for a row of a block: the state's rows are too many streams for the hardware to follow.
static INLINE void prefetch(const float* row) {
  for (int l = 0; l < B; l += 16) __builtin_prefetch(row + l);
}

// Adds to `rows` rows and `columns` vectors of W in registers: rows x columns accumulators hide the FMA's latency.
template <int rows, int columns>
static INLINE void outer_tile(const float* d, const float* in, int stride, float* W) {
  vf acc[rows][columns];
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) acc[r][c] = load(W + r * stride + c * V);
  for (int l = 0; l < B; l++) {
    vf x[columns];
    for (int c = 0; c < columns; c++) x[c] = load(in + l * stride + c * V);
    for (int r = 0; r < rows; r++) {
      const vf w = splat(d[r * B + l]);
      for (int c = 0; c < columns; c++) acc[r][c] += w * x[c];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) store(W + r * stride + c * V, acc[r][c]);
}

template <int columns>
static INLINE void outer_columns(const float* d, const float* in, int stride, float* W, int rows) {
  constexpr int R2 = V == 16 ? 5 : 2;  // as many rows as the registers allow
  int r = 0;
  for (; r + R2 <= rows; r += R2) outer_tile<R2, columns>(d + r * B, in, stride, W + r * stride);
  for (; r < rows; r++) outer_tile<1, columns>(d + r * B, in, stride, W + r * stride);
}

// W[rows][K] += d[rows][B] in[K][B]^T and b[rows] += d summed over lanes.
static void outer(const float* d, const float* in, int K, int rows, float* W, float* b, float* transposed) {
  const int stride = padded(K);
  for (int k = 0; k < K; k += V)
    for (int l = 0; l < B; l += V) {
      vf x[V];
      for (int i = 0; i < V; i++) x[i] = k + i < K ? load(in + (k + i) * B + l) : vf{};
      transpose(x);
      for (int i = 0; i < V; i++) store(transposed + (l + i) * stride + k, x[i]);
    }
  int c = 0;
  for (; c + 5 * V <= stride; c += 5 * V) outer_columns<5>(d, transposed + c, stride, W + c, rows);
  for (; c + 3 * V <= stride; c += 3 * V) outer_columns<3>(d, transposed + c, stride, W + c, rows);
  for (; c < stride; c += V) outer_columns<1>(d, transposed + c, stride, W + c, rows);
  for (int r = 0; r < rows; r++) {
    vf total = {};
    for (int l = 0; l < B; l += V) total += load(d + r * B + l);
    b[r] += hsum(total);
  }
}

static INLINE float dot(const float* a, const float* b) {
  vf total = {};
  for (int l = 0; l < B; l += V) total += load(a + l) * load(b + l);
  return hsum(total);
}
