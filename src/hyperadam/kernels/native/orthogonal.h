// Orthogonal directions of matrices, as rules/orthogonal.py has them: of each block its Gram matrix, by Newton and Schulz what
// the block is to be multiplied by, and the product. That is made some columns at a time and moves the parameter at once.
#pragma once
#include <type_traits>

#include "numbers.h"

namespace {

constexpr int EDGE = 32;  // rows of a block at most; rows of small matrices lie as far apart, with zeros behind them
constexpr int ROUNDS = 3;
constexpr double POLYNOMIAL[] = {3.4445, -4.7750, 2.0315}, DIRECTION_SIZE = 0.5, LEAST_BOUND = 1e-20, LEAST_SQUARES = 1e-12;
typedef float Square[EDGE * EDGE];

// How a matrix is cut into blocks of rows.
struct Cut {
  int64_t rows, columns, blocks, each;
  Cut(int64_t rows, int64_t columns) : rows(rows), columns(columns) {
    blocks = std::min(rows, columns) > EDGE ? (rows + EDGE - 1) / EDGE : 1;
    each = (rows + blocks - 1) / blocks;
  }
};

static INLINE int fours(int64_t rows) { return (int)(rows + 3) / 4 * 4; }
static INLINE int vectors(int64_t columns) { return (int)(columns + V - 1) / V; }

// Rows of numbers `row` apart, from others `from_row` apart; what lies behind them stays.
static INLINE void copy_rows(float* to, int64_t row, const float* from, int64_t from_row, int64_t rows, int64_t columns) {
  if (columns == B)  // for the compiler to see
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * row, from + i * from_row, B * sizeof(float));
  else
    for (int64_t i = 0; i < rows; i++) memmove(to + i * row, from + i * from_row, columns * sizeof(float));
}

// Rows and vectors of a product in registers.
constexpr int TILE_ROWS = V == 16 ? 8 : 4, TILE_VECTORS = 2;

template <int rows, int count, class Out>
static INLINE void product_tile(const float* a, int64_t row, int64_t step, const float* b, int64_t next, int64_t terms, Out out) {
  vf acc[rows][count] = {};
  for (int64_t k = 0; k < terms; k++) {
    vf right[count];
    for (int c = 0; c < count; c++) right[c] = load(b + k * next + c * V);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const vf left = splat(a[r * row + k * step]);
#pragma GCC unroll 2
      for (int c = 0; c < count; c++) acc[r][c] += left * right[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < count; c++) out(r, c, acc[r][c]);
}

// Calls out(i, j, sum over `terms` k of a[i * row + k * step] * b[k * next + j * V ...]) for rows i, a multiple of four, and
// vectors j.
template <class Out>
static INLINE void product(const float* a, int64_t row, int64_t step, const float* b, int64_t next, int64_t terms, int rows, int columns,
                           Out out) {
  auto across = [&](auto height, int i) {
    constexpr int H = decltype(height)::value;
    int j = 0;
    for (; j + TILE_VECTORS <= columns; j += TILE_VECTORS)
      product_tile<H, TILE_VECTORS>(a + i * row, row, step, b + j * V, next, terms, [&](int r, int c, vf x) { out(i + r, j + c, x); });
    if (j < columns) product_tile<H, 1>(a + i * row, row, step, b + j * V, next, terms, [&](int r, int c, vf x) { out(i + r, j + c, x); });
  };
  int i = 0;
  for (; i + TILE_ROWS <= rows; i += TILE_ROWS) across(std::integral_constant<int, TILE_ROWS>(), i);
  for (; i < rows; i += 4) across(std::integral_constant<int, 4>(), i);
}

// A tile of a Gram matrix has sums in all lanes of an accumulator each; the number of these is a multiple of the lanes.
constexpr int GRAM_ROWS = 4, GRAM_COLUMNS = V == 16 ? 4 : 2, GRAM_CHUNK = 1024;

// Sums over `length` columns, a multiple of V, of products of rows of a block.
static INLINE void add_products(const float* const* left, const float* const* right, int64_t length, vf (&acc)[GRAM_ROWS * GRAM_COLUMNS]) {
  for (int64_t l = 0; l < length; l += V) {
    vf y[GRAM_COLUMNS];
    for (int c = 0; c < GRAM_COLUMNS; c++) y[c] = load(right[c] + l);
#pragma GCC unroll 4
    for (int r = 0; r < GRAM_ROWS; r++) {
      const vf x = load(left[r] + l);
#pragma GCC unroll 4
      for (int c = 0; c < GRAM_COLUMNS; c++) acc[r * GRAM_COLUMNS + c] += x * y[c];
    }
  }
}

// gram = x x^T of a block of `rows` rows, at most EDGE. Only one half is computed.
static void gram_of_rows(const float* x, int rows, int64_t columns, float* gram) {
  alignas(64) float rest[EDGE * V] = {};  // the columns that fill no vector
  const int64_t whole = columns / V * V;
  copy_rows(rest, V, x + whole, columns, rows, columns - whole);
  memset(gram, 0, sizeof(Square));
  int64_t start = 0;
  do {  // some columns at a time, so that rows stay in the first cache
    const int64_t length = std::min<int64_t>(GRAM_CHUNK, whole - start);
    const bool last = start + length == whole;
    for (int i = 0; i < rows; i += GRAM_ROWS)
      for (int j = 0; j < std::min(i + GRAM_ROWS, rows); j += GRAM_COLUMNS) {
        const float *left[GRAM_ROWS], *right[GRAM_COLUMNS];
        auto point = [&](const float* from, int64_t row) {  // a row that is not there is the last one, for nothing
          for (int r = 0; r < GRAM_ROWS; r++) left[r] = from + std::min(i + r, rows - 1) * row;
          for (int c = 0; c < GRAM_COLUMNS; c++) right[c] = from + std::min(j + c, rows - 1) * row;
        };
        vf acc[GRAM_ROWS * GRAM_COLUMNS] = {};
        point(x + start, columns);
        add_products(left, right, length, acc);
        if (last && whole < columns) {
          point(rest, V);
          add_products(left, right, V, acc);
        }
        alignas(64) float sums[GRAM_ROWS * GRAM_COLUMNS];
#pragma GCC unroll 2
        for (int k = 0; k < GRAM_ROWS * GRAM_COLUMNS; k += V) {
          vf lanes[V], sum = {};
          for (int l = 0; l < V; l++) lanes[l] = acc[k + l];
          transpose(lanes);
          for (int l = 0; l < V; l++) sum += lanes[l];
          store(sums + k, sum);
        }
        for (int r = 0; r < GRAM_ROWS && i + r < rows; r++)
          for (int c = 0; c < GRAM_COLUMNS && j + c <= i + r; c++) gram[(i + r) * EDGE + j + c] += sums[r * GRAM_COLUMNS + c];
      }
    start += length;
  } while (start < whole);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < i; j++) gram[j * EDGE + i] = gram[i * EDGE + j];
}

// gram = x^T x of a block of at most EDGE columns.
static void gram_of_columns(const float* x, int64_t rows, int columns, float* gram) {
  alignas(64) float packed[B * EDGE] = {};
  memset(gram, 0, sizeof(Square));
  for (int64_t i = 0; i < rows; i += B) {
    const int64_t count = std::min<int64_t>(B, rows - i);
    copy_rows(packed, EDGE, x + i * columns, columns, count, columns);
    product(packed, 1, EDGE, packed, EDGE, count, fours(columns), vectors(columns), [&](int r, int c, vf sum) {
      float* here = gram + r * EDGE + c * V;
      store(here, load(here) + sum);
    });
  }
}

static double dot_in_double(const float* x, const float* y, int n) {
  double total[16] = {};
  for (int i = 0; i < n; i += 16)
    for (int l = 0; l < 16; l++) total[l] += (double)x[i + l] * y[i + l];
  for (int l = 1; l < 16; l++) total[0] += total[l];
  return total[0];
}

// What a block is multiplied by: by a symmetric matrix, and by one over the root of a bound on the Gram matrix's eigenvalues.
// `squares` is the sum of squares of the product. The scale is known when it is for all blocks of a matrix.
struct Whitening {
  float* matrix;  // rows EDGE apart
  double bound, squares;
};

// Of a Gram matrix of `side` rows, which is overwritten. All factors are polynomials of it: symmetric, in any order.
static Whitening newton_schulz(float* gram, int side, float* matrix) {
  alignas(64) Square p, half, other;
  const int rows = fours(side), n = rows * EDGE;
  auto multiply = [&](const float* a, const float* b, float* to) {
    product(a, EDGE, 1, b, EDGE, side, rows, vectors(side), [to](int i, int j, vf sum) { store(to + i * EDGE + j * V, sum); });
  };
  for (float* square : {p, half, other, matrix}) memset(square, 0, sizeof(Square));
  const double bound = std::max((double)(float)std::sqrt(dot_in_double(gram, gram, n)), LEAST_BOUND);
  for (int l = 0; l < n; l += V) store(gram + l, load(gram + l) / (float)bound);
  for (int k = 0; k < ROUNDS; k++) {
    product(gram, EDGE, 1, gram, EDGE, side, rows, vectors(side), [&](int i, int j, vf sum) {
      const int at = i * EDGE + j * V;
      store(p + at, sum * (float)POLYNOMIAL[2] + load(gram + at) * (float)POLYNOMIAL[1]);
    });
    for (int i = 0; i < side; i++) p[i * (EDGE + 1)] += (float)POLYNOMIAL[0];
    if (k) {
      multiply(matrix, p, other);
      memcpy(matrix, other, n * sizeof(float));
    } else {
      memcpy(matrix, p, n * sizeof(float));
    }
    multiply(p, gram, half);
    if (k < ROUNDS - 1) multiply(half, p, gram);
  }
  return {matrix, bound, dot_in_double(half, p, n)};
}

// Of a block, a rows x columns matrix whose shorter side is at most EDGE.
static Whitening whitening_of(const float* x, int64_t rows, int64_t columns, float* matrix) {
  alignas(64) Square gram;
  const bool tall = rows > columns;
  if (tall)
    gram_of_columns(x, rows, (int)columns, gram);
  else
    gram_of_rows(x, (int)rows, columns, gram);
  return newton_schulz(gram, (int)(tall ? columns : rows), matrix);
}

// What makes the root mean square of a direction of n numbers DIRECTION_SIZE, given the squares of all blocks.
static double direction_scale(double squares, int64_t n) { return DIRECTION_SIZE * std::sqrt((double)n / (squares + LEAST_SQUARES)); }

// Calls move(where it begins, how many, numbers) for stretches of the product of a block and its
// symmetric matrix; coordinates are counted from the block's first.
template <class Move>
static void multiplied(const float* x, int64_t rows, int64_t columns, const float* matrix, Move move) {
  alignas(64) float packed[B * EDGE] = {}, made[B * EDGE];
  if (rows > columns) {
    for (int64_t i = 0; i < rows; i += B) {
      const int64_t count = std::min<int64_t>(B, rows - i);
      copy_rows(packed, EDGE, x + i * columns, columns, count, columns);
      product(packed, EDGE, 1, matrix, EDGE, columns, fours(count), vectors(columns), [&](int r, int c, vf sum) {
        store(made + r * EDGE + c * V, sum);
      });
      copy_rows(made, columns, made, EDGE, count, columns);
      move(i * columns, count * columns, made);
    }
    return;
  }
  for (int64_t j = 0; j < columns; j += B) {
    const int64_t count = std::min<int64_t>(B, columns - j);
    copy_rows(packed, B, x + j, columns, rows, count);
    product(matrix, EDGE, 1, packed, B, rows, fours(rows), vectors(count), [&](int r, int c, vf sum) { store(made + r * B + c * V, sum); });
    if (columns <= B) {  // rows that lie one behind the other move together
      if (columns < B) copy_rows(made, columns, made, B, rows, columns);
      move(0, rows * columns, made);
    } else {
      for (int64_t i = 0; i < rows; i++) move(i * columns + j, count, made + i * B);
    }
  }
}

}  // namespace
