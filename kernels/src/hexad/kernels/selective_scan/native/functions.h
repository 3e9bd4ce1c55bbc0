// The functions of a scan on vectors: exp, softplus, the logistic function. Relative errors are a few 1e-7 at most;
// what would be smaller than 1e-38 becomes zero.
#pragma once

#include "simd.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hexad {

// While this lives, its thread takes numbers below 1e-38 for zero: arithmetic on them can be a hundred times
// slower, and a state that dies away passes through them.
class FlushSubnormals {
#if defined(__x86_64__)
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
 public:
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
};

inline VecF minimum(VecF a, VecF b) { return a < b ? a : b; }

// Adding this rounds to an integer n and leaves n + 127 in the low bits, ready to become an exponent.
constexpr float kMagic = 12582912.0f + 127.0f;

// 2^f for |f| <= 0.5; exactly 1 for 0. Minimax polynomial, relative error 2e-9.
inline VecF exp2_of_fraction(VecF f) {
  VecF p = splat(1.535336196e-4f) * f + 1.339887385e-3f;
  p = p * f + 9.618436918e-3f;
  p = p * f + 0.05550332367f;
  p = p * f + 0.2402264774f;
  p = p * f + 0.6931471825f;
  return p * f + 1.0f;
}

// exp(delta * a) for rate = a * log2(e). The product is fused into the difference, so it is not rounded by itself.
// Below 2^-127 the exponent field is 0 and the result is 0. Signed: the product may be positive; from 2^127.5 on the
// result is infinite.
template <bool Signed>
inline VecF decay(VecF delta, VecF rate) {
  VecF shifted = maximum(delta * rate + kMagic, splat(kMagic - 127.0f));
  if constexpr (Signed) shifted = minimum(shifted, splat(kMagic + 128.0f));
  const VecF n = shifted - kMagic;
  VecF f = maximum(delta * rate - n, splat(-1.0f));  // only where n is at its bound is it far from 0
  if constexpr (Signed) f = minimum(f, splat(1.0f));
  return exp2_of_fraction(f) * (VecF)((VecU)shifted << 23);
}

// exp(x) for x <= 0.
inline VecF exp_of_negative(VecF x) {
  const VecF shifted = maximum(x * 1.44269504f + kMagic, splat(kMagic - 127.0f));
  const VecF n = shifted - kMagic;
  // ln 2 in two parts, the first of few enough bits that its product with n is exact.
  VecF f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  f = maximum(f * 1.44269504f, splat(-1.0f));
  return exp2_of_fraction(f) * (VecF)((VecU)shifted << 23);
}

inline VecF absolute(VecF x) { return (VecF)((VecU)x & 0x7fffffffu); }

// log(1 + y) for y in [0, 1]: 2 artanh(s) with s = y / (2 + y).
inline VecF log1p_of_fraction(VecF y) {
  const VecF s = y / (y + 2.0f), t = s * s;
  VecF q = splat(0.2802445889f) * t + 0.2799914181f;
  q = q * t + 0.4002169967f;
  q = q * t + 0.6666641235f;
  return s * (t * q) + 2.0f * s;
}

// 1 / (1 + exp(-x)) and what is left of 1, both to float32's relative accuracy, and log(1 + exp(x)).
struct Logistic {
  explicit Logistic(VecF x) : x_(x), e_(exp_of_negative(-absolute(x))) {
    const VecF larger = 1.0f / (e_ + 1.0f), smaller = e_ * larger;
    value = x < 0.0f ? smaller : larger;
    complement = x < 0.0f ? larger : smaller;
  }
  VecF softplus() const { return maximum(splat(0.0f), x_) + log1p_of_fraction(e_); }
  VecF value, complement;

 private:
  VecF x_, e_;
};

}  // namespace hexad
