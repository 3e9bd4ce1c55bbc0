// Rows of the input in the Hadamard domain, and their rounding to a grid: `grids.quantize_rows`, with the same
// float32 operations, so that the codes agree to the bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "call.h"
#include "hadamard.h"
#include "numbers.h"
#include "simd.h"

namespace hexad {

// x H of one row as float32; `out` has room for `padded` numbers, and zeros fill it up. False for NaN or infinity.
template <class T>
inline bool transform_row(const T* x, int64_t k, int64_t padded, int64_t block, float* out) {
  // Reading float16 makes a finite number of an infinite one, so the look comes first.
  if (sizeof(T) == 2 && any_nonfinite(x, int(k))) return false;
  read_row(x, int(k), out);
  hadamard_transform(out, out, k, block);
  std::memset(out + k, 0, (padded - k) * sizeof(float));
  return !any_nonfinite(out, int(k));
}
inline bool transform_row(const void* row, int32_t dtype, int64_t k, int64_t padded, int64_t block, float* out) {
  if (dtype == 0) return transform_row(static_cast<const float*>(row), k, padded, block, out);
  if (dtype == 1) return transform_row(static_cast<const BFloat16*>(row), k, padded, block, out);
  return transform_row(static_cast<const Float16*>(row), k, padded, block, out);
}

inline float root_mean_square(const float* x, int64_t n) {
  double sums[kWidth] = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    for (int j = 0; j < kWidth; ++j) sums[j] += double(x[i + j]) * double(x[i + j]);
  for (; i < n; ++i) sums[0] += double(x[i]) * double(x[i]);
  double sum = 0;
  for (int j = 0; j < kWidth; ++j) sum += sums[j];
  return float(std::sqrt(sum / double(n)));
}

// To the nearest integer, ties to even, for |x| < 2^22.
inline VecI to_nearest(VecF x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: the sum holds the integer in its low bits
  return (VecI)(x + magic) - splat(int32_t(bits_of(magic)));
}

// round(clamp(x) / step + shift). The product with 1 / step tells the same, but for sums next to a tie.
struct Nearest {
  float bound, step, inverse, shift;
  VecI operator()(VecF x) const {
    const VecF low = splat(-bound), high = splat(bound);
    x = x > low ? x : low;
    x = x < high ? x : high;
    const VecF quick = x * inverse + shift;
    const VecI found = to_nearest(quick);
    const VecF rest = quick - to_float(found);
    const VecF away = (VecF)((VecI)rest & splat(0x7fffffff));
    if (!any_greater(away, splat(0.4999f))) return found;
    const VecF quotient = x / step;
    return to_nearest(quotient + shift);
  }
};

// The nearest level of E2M1 in half units; a tie goes to the even pattern.
struct NearestE2M1 {
  float bound, unit;
  VecI operator()(VecF x) const {
    const VecF low = splat(-bound), high = splat(bound);
    x = x > low ? x : low;
    x = x < high ? x : high;
    const VecF quotient = x / unit;
    const VecF size = (VecF)((VecI)quotient & splat(0x7fffffff));
    VecI level{};
    level -= (size > 0.5f) + (size >= 1.5f) + (size > 2.5f) + (size >= 3.5f);
    level -= 2 * ((size > 5.0f) + (size >= 7.0f)) + 4 * (size > 10.0f);
    const VecI sign = (VecI)quotient >> 31;
    return (level ^ sign) - sign;
  }
};

template <class Round>
inline void round_row(const float* x, int64_t padded, int32_t factor, int32_t offset, Round round, int8_t* out) {
  typedef int8_t Bytes __attribute__((vector_size(kWidth)));
  for (int64_t i = 0; i < padded; i += kWidth) {
    const VecI integer = factor * round(load(x + i)) + offset;
    const Bytes bytes = __builtin_convertvector(integer, Bytes);
    std::memcpy(out + i, &bytes, sizeof bytes);
  }
}

// The integers a of a row (see InputForm), zeros where it is filled up, and the unit of the row.
inline float quantize_row(const float* x, int64_t k, int64_t padded, int32_t grid, float alpha, int8_t* out) {
  // Volatile: the product is rounded before the sum, as it is in torch.
  volatile float product = alpha * root_mean_square(x, k);
  const float bound = product + 1e-8f;
  float unit;
  if (grid == kFp4) {
    unit = bound / 12.0f;
    round_row(x, padded, 1, 0, NearestE2M1{bound, unit}, out);
  } else if (grid == kTernary) {
    unit = bound;
    round_row(x, padded, 1, 0, Nearest{bound, unit, 1.0f / unit, 0.0f}, out);
  } else {
    const int32_t levels = 1 << grid;
    unit = bound / float(levels - 1);
    const float step = 2.0f * unit;
    // r = round(x / step + 1/2) runs from 1 - levels / 2 to levels / 2 and stands for the level 2 r - 1.
    const bool halved = grid == kEightBits;  // whose levels do not fit: r - 1 does
    round_row(x, padded, halved ? 1 : 2, -1, Nearest{bound, step, 1.0f / step, 0.5f}, out);
  }
  std::memset(out + k, 0, padded - k);
  return unit;
}

inline int64_t sum_of(const int8_t* a, int64_t n) {
  int32_t sum = 0;  // at most 2^16 numbers of at most 128
  for (int64_t i = 0; i < n; ++i) sum += a[i];
  return sum;
}

}  // namespace hexad
