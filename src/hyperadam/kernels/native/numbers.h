// Numbers in memory, float or bfloat16, as blocks of floats and back again.
#pragma once
#include <cstring>

#include "work.h"

namespace {

INLINE float from_bfloat16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// To the nearest, ties to even.
INLINE uint16_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Up or down by chance, so that the mean is right: to the nearest, slow moving averages would stall.
INLINE uint16_t to_bfloat16(float x, uint32_t noise) { return (uint16_t)((bits_of(x) + (noise & 0xffff)) >> 16); }

// Bits that depend on their arguments alone, so that a resumed run repeats them.
INLINE uint32_t noise(uint32_t stream, uint32_t i) {
  uint32_t x = stream + i * 0x9e3779b1u;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// A block of floats from n numbers at `first`; the lanes behind them are zero.
INLINE void load_lanes(float* to, const void* data, bool bfloat16, int64_t first, int lanes) {
  if (!bfloat16) return load_lanes(to, (const float*)data + first, lanes);
  const uint16_t* from = (const uint16_t*)data + first;
  for (int l = 0; l < lanes; l++) to[l] = from_bfloat16(from[l]);
  memset(to + lanes, 0, (B - lanes) * sizeof(float));
}

INLINE void store_lanes(const float* from, void* data, bool bfloat16, int64_t first, int lanes) {
  if (!bfloat16) {
    memcpy((float*)data + first, from, lanes * sizeof(float));
    return;
  }
  uint16_t* to = (uint16_t*)data + first;
  for (int l = 0; l < lanes; l++) to[l] = to_bfloat16(from[l]);
}

// In double: squares of floats never overflow there, alone or in sum.
double sum_of_squares(const float* x, int64_t n) {
  double total[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; l++) total[l] += (double)x[i + l] * x[i + l];
  for (int l = 0; i < n; i++, l++) total[l] += (double)x[i] * x[i];
  for (int l = 1; l < 16; l++) total[0] += total[l];
  return total[0];
}

double sum_of_squares(const void* data, bool bfloat16, int64_t first, int64_t n) {
  if (!bfloat16) return sum_of_squares((const float*)data + first, n);
  double total = 0;
  float block[B];
  for (int64_t i = 0; i < n; i += B) {
    const int lanes = (int)std::min<int64_t>(B, n - i);
    load_lanes(block, data, true, first + i, lanes);
    total += sum_of_squares(block, lanes);
  }
  return total;
}

typedef uint32_t __attribute__((may_alias)) bits32;

// The largest size among n numbers, found by their bits: what is not a number is larger than infinity.
float largest(const void* data, bool bfloat16, int64_t n) {
  uint32_t most = 0;
  if (bfloat16) {
    for (int64_t i = 0; i < n; i++) most = std::max<uint32_t>(most, (((const uint16_t*)data)[i] & 0x7fffu) << 16);
  } else {
    for (int64_t i = 0; i < n; i++) most = std::max<uint32_t>(most, ((const bits32*)data)[i] & 0x7fffffffu);
  }
  float value;
  memcpy(&value, &most, sizeof value);
  return value;
}

}  // namespace
