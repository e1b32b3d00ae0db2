// The plain C interface of the kernels: no header of Python or torch, addresses and sizes alone.
#pragma once
#include <cstdint>

extern "C" {

// HyperAdam's options, and its weights: each matrix row-major with its bias behind it, in the order
// preprocessing [J][1], LSTM [4J][X+J], decay rates [2J][J+S], weight field [J][S].
struct Rule {
  int32_t J, preprocess, lstm, normalize_state;
  float decay_bound;  // q, or 0 for none
  const float* weights;
};

// n numbers a run at an address, as float or as bfloat16.
struct Numbers {
  int64_t n;
  void* data;
  int64_t bfloat16;
};

// One tensor's share of the vector, for each run: contiguous [runs][n], and [runs][rows][n] for each field of the state,
// which are m, v, beta_hat, gamma_hat, s and c.
struct Part {
  Numbers grad, param;
  void* state[6];
  int64_t state_bfloat16;
};

// How a part's parameter moves: param -= lr * (scale * update + decay * param). The seed is of the stochastic rounding of a
// bfloat16 state, a whole number, as are the step and the total of steps, 0 if that is not known.
struct Motion {
  double lr, decay, seed, step, total;
};

// Rows of n contiguous coordinates for each of several runs; strides in floats.
struct Rows {
  float* data;
  int64_t run, row;
};

// A layer of LSTM cells with X inputs and L units: theta_x [4L][X], theta_s [4L][L], b [4L], row-major.
struct Lstm {
  int32_t X, L, threads;
  float *theta_x, *theta_s, *b;
};
}
