// The block Hadamard transform of a row, in place: steps of stride 1, 2, 4, ... block / 2, each a sum and a
// difference, then one product with 1 / sqrt(block). Every float32 operation is that of `pure.by_steps`, so the
// two agree to the bit.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "simd.h"

namespace hexad {

// Entries that a block may have and still pass through registers once: 8 vectors.
constexpr int kHadamardVectors = 8;

// Each lane beside the one whose number differs in the bit `Stride`.
template <int Stride, int... Lanes>
inline VecF exchange(VecF x, std::integer_sequence<int, Lanes...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, (Lanes ^ Stride)...);
#else
  return __builtin_shuffle(x, VecI{(Lanes ^ Stride)...});
#endif
}

// (a, b) -> (a + b, a - b) over pairs of lanes `Stride` apart. The product with one changes nothing.
template <int Stride, int... Lanes>
inline VecF step_in_vector(VecF x, std::integer_sequence<int, Lanes...> lanes) {
  constexpr VecF sign = {(Lanes & Stride ? -1.0f : 1.0f)...};
  return exchange<Stride>(x, lanes) + x * sign;
}

// The steps of stride 1 to Block / 2 within a vector of independent blocks.
template <int Block>
inline VecF steps_in_vector(VecF x) {
  const std::make_integer_sequence<int, kWidth> lanes;
  if constexpr (Block > 1) x = step_in_vector<1>(x, lanes);
  if constexpr (Block > 2) x = step_in_vector<2>(x, lanes);
  if constexpr (Block > 4) x = step_in_vector<4>(x, lanes);
  if constexpr (Block > 8) x = step_in_vector<8>(x, lanes);
  return x;
}

// All steps of a block of `Vectors` whole vectors, and the product.
template <int Vectors>
inline void transform_in_registers(const float* from, float* to, float factor) {
  VecF v[Vectors];
  for (int i = 0; i < Vectors; ++i) v[i] = steps_in_vector<kWidth>(load(from + i * kWidth));
  for (int stride = 1; stride < Vectors; stride *= 2)
    for (int i = 0; i < Vectors; ++i)
      if (!(i & stride)) {
        const VecF sum = v[i] + v[i + stride], difference = v[i] - v[i + stride];
        v[i] = sum;
        v[i + stride] = difference;
      }
  for (int i = 0; i < Vectors; ++i) store(to + i * kWidth, v[i] * factor);
}

// The steps of stride `stride` and, for Radix 4, of twice that, over a block in memory.
template <int Radix>
inline void steps_in_memory(float* x, int64_t block, int64_t stride, float factor) {
  for (int64_t first = 0; first < block; first += Radix * stride)
    for (int64_t i = first; i < first + stride; i += kWidth) {
      const VecF a = load(x + i), b = load(x + i + stride);
      if constexpr (Radix == 2) {
        store(x + i, (a + b) * factor);
        store(x + i + stride, (a - b) * factor);
      } else {
        const VecF c = load(x + i + 2 * stride), d = load(x + i + 3 * stride);
        const VecF ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        store(x + i, (ab + cd) * factor);
        store(x + i + stride, (a_b + c_d) * factor);
        store(x + i + 2 * stride, (ab - cd) * factor);
        store(x + i + 3 * stride, (a_b - c_d) * factor);
      }
    }
}

// Blocks shorter than a vector: vectors of them, the last of which may be filled up with zeros.
template <int Block>
inline void transform_short_blocks(const float* from, float* to, int64_t n, float factor) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(to + i, steps_in_vector<Block>(load(from + i)) * factor);
  if (i < n) {
    float rest[kWidth] = {};
    std::memcpy(rest, from + i, (n - i) * sizeof(float));
    store(rest, steps_in_vector<Block>(load(rest)) * factor);
    std::memcpy(to + i, rest, (n - i) * sizeof(float));
  }
}

// n entries, a multiple of block; `from` may be `to`.
inline void hadamard_transform(const float* from, float* to, int64_t n, int64_t block) {
  const float factor = float(1.0 / std::sqrt(double(block)));
  if (block < kWidth) {
    if (block == 1) return transform_short_blocks<1>(from, to, n, factor);
    if (block == 2) return transform_short_blocks<2>(from, to, n, factor);
    if (block == 4) return transform_short_blocks<4>(from, to, n, factor);
    return transform_short_blocks<8>(from, to, n, factor);
  }
  auto each = [&](int64_t span, auto transform) {
    for (int64_t i = 0; i < n; i += span) transform(from + i, to + i, factor);
  };
  if (block == kWidth) return each(block, transform_in_registers<1>);
  if (block == 2 * kWidth) return each(block, transform_in_registers<2>);
  if (block == 4 * kWidth) return each(block, transform_in_registers<4>);
  if (block == 8 * kWidth) return each(block, transform_in_registers<8>);
  for (int64_t i = 0; i < n; i += block) {
    constexpr int64_t span = kHadamardVectors * kWidth;
    for (int64_t j = i; j < i + block; j += span) transform_in_registers<kHadamardVectors>(from + j, to + j, 1.0f);
    int64_t stride = span;
    for (; 4 * stride <= block; stride *= 4)
      steps_in_memory<4>(to + i, block, stride, 4 * stride == block ? factor : 1.0f);
    if (stride < block) steps_in_memory<2>(to + i, block, stride, factor);
  }
}

}  // namespace hexad
