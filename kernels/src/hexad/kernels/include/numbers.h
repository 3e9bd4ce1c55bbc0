// Number formats: reading and writing float32, bfloat16 and float16 rows, and encoding float32 rows as the
// operands of a product (float32, one to three bfloat16 terms, int8).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace hexad {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// To nearest, ties to even. Inputs are finite.
inline uint16_t round_to_bfloat16(float x) {
  const uint32_t u = bits_of(x);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The conversions below are written without branches so that the compiler turns the loops into vectors.
inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(Float16 x) {
  // Read exponent and mantissa as those of a tiny float32; the product moves the bias from 15 to 127 and
  // is exact for subnormals too.
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const float value = float_of(magnitude) * 0x1p112f;
  return float_of(bits_of(value) | static_cast<uint32_t>(x.bits & 0x8000u) << 16);
}

inline void from_float(float x, float& out) { out = x; }
inline void from_float(float x, BFloat16& out) { out.bits = round_to_bfloat16(x); }
inline void from_float(float x, Float16& out) {
  const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const float magnitude = float_of(bits_of(x) & 0x7fffffffu);
  // Adding 2^-1 puts a float16 subnormal's unit (2^-24) at the last bit of the sum, which rounds it.
  const uint32_t subnormal = bits_of(magnitude + 0.5f) - 0x3f000000u;
  const uint32_t u = bits_of(magnitude);
  const uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
  const uint32_t infinite = 0x7c00u;
  const uint32_t value = magnitude < 0x1p-14f ? subnormal : magnitude < 65520.0f ? normal : infinite;
  out.bits = static_cast<uint16_t>(sign | value);
}

// Unlike those above these carry infinity and NaN through, as gradients need it: a gradient scaler looks for them.
inline float read(float x) { return x; }
inline float read(BFloat16 x) { return to_float(x); }
inline float read(Float16 x) {
  const float value = to_float(x);
  return (x.bits & 0x7c00u) == 0x7c00u ? float_of(bits_of(value) | 0x7f800000u) : value;
}
inline void write(float x, float& out) { out = x; }
inline void write(float x, BFloat16& out) {
  from_float(x, out);
  if (x != x) out.bits = 0x7fc0u;
}
inline void write(float x, Float16& out) {
  from_float(x, out);
  if (x != x) out.bits = 0x7e00u;
}

// Whether any of n numbers is NaN or infinite: their exponent bits are all ones.
inline bool any_nonfinite(const float* x, int n) {
  uint32_t found = 0;
  for (int i = 0; i < n; ++i) found |= (bits_of(x[i]) & 0x7f800000u) == 0x7f800000u;
  return found != 0;
}
inline bool any_nonfinite(const BFloat16* x, int n) {
  uint16_t found = 0;
  for (int i = 0; i < n; ++i) found |= static_cast<uint16_t>((x[i].bits & 0x7f80u) == 0x7f80u);
  return found != 0;
}
inline bool any_nonfinite(const Float16* x, int n) {
  uint16_t found = 0;
  for (int i = 0; i < n; ++i) found |= static_cast<uint16_t>((x[i].bits & 0x7c00u) == 0x7c00u);
  return found != 0;
}

template <class T>
inline void read_row(const T* x, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = to_float(x[i]);
}
template <class T>
inline void write_row(const float* x, int n, T* out) {
  for (int i = 0; i < n; ++i) from_float(x[i], out[i]);
}

// x as a sum of `Terms` bfloat16 numbers, each the rounded remainder of those before it: three carry the 24
// bits of a float32, two carry 16. `store_term(t, bits)` takes each with its bits in the upper half.
template <int Terms, class Store>
inline void split(VecF x, Store store_term) {
  for (int t = 0; t < Terms; ++t) {
    const VecU u = (VecU)x;
    const VecU term = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    store_term(t, term);
    x -= (VecF)term;
  }
}

// Term t of element i goes to out[t * term_stride + i].
template <int Terms>
inline void split_row(const float* x, int n, uint16_t* out, ptrdiff_t term_stride) {
  typedef uint16_t Half __attribute__((vector_size(2 * kWidth)));
  int i = 0;
  for (; i + kWidth <= n; i += kWidth)
    split<Terms>(load(x + i), [&](int t, VecU term) {
      const Half bits = __builtin_convertvector(term >> 16, Half);
      std::memcpy(out + t * term_stride + i, &bits, sizeof bits);
    });
  for (; i < n; ++i) {
    float rest = x[i];
    for (int t = 0; t < Terms; ++t) {
      const uint16_t term = round_to_bfloat16(rest);
      out[t * term_stride + i] = term;
      rest -= float_of(static_cast<uint32_t>(term) << 16);
    }
  }
}

inline float absolute_maximum(const float* x, int n) {
  // Magnitudes of finite floats order as their bits do, and integer maxima vectorise without -ffast-math.
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]) & 0x7fffffffu;
    largest = u > largest ? u : largest;
  }
  return float_of(largest);
}

// SageAttention's scale of a tile and its rounding: to nearest, halves away from zero.
inline float quantization_scale(float absolute_max) { return absolute_max / 127.0f + 1e-7f; }
inline void quantize_row(const float* x, int n, float scale, int8_t* out) {
  for (int i = 0; i < n; ++i) {
    const float scaled = x[i] / scale;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5f : 0.5f)));
  }
}

}  // namespace hexad
