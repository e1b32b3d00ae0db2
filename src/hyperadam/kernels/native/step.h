// The plain C interface of the kernels: no header of Python or torch, floats and strides alone.
#pragma once
#include <cstdint>

extern "C" {

// The rule's options, and its weights: each matrix row-major with its bias behind it, in the order
// preprocessing [J][1], LSTM [4J][X+J], decay rates [2J][J+S], weight field [J][S].
struct Rule {
  int32_t J, preprocess, lstm, normalize_state;
  float decay_bound;  // q, or 0 for none
  int32_t threads;
  const float* weights;
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

struct State {
  Rows m, v, beta_hat, gamma_hat, s, c;
};

// Sums of squares over the whole vector, by run: (‖g‖², ‖m¹‖², …), and ‖s^j‖² if the state is normalised.
struct Sums {
  const double *first, *second;
};
}
