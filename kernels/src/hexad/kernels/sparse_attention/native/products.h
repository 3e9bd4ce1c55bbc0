// The two products of attention over packed operands, for vector units and for Intel's matrix unit (AMX).
//
// Both compute with queries along the lanes of a vector, so that softmax needs no operation across lanes:
//   scores   S^T[key][query]  = sum over head-dim packs  K[key][pack]   . Q^T[pack][query]
//   output   O^T[d][query]   += sum over key packs       V^T[d][pack]   . P^T[pack][query]
// A pack is 32 bits: one float32, two bfloat16 or four int8 numbers that are summed over together. The right
// operand ("lanes") is a row of packs, one a query, for every step of the sum. The left operand is read where
// it lies: element (row, step) at a + row * a_row + step * a_step bytes.
#pragma once

#include <type_traits>

#include "amx.h"
#include "numbers.h"
#include "simd.h"

namespace hexad {

// --- Vector units: one instruction multiplies a broadcast pack with a vector of packs and adds. ---

struct DotF32 {
  typedef VecF Sum;
  static Sum add(Sum sum, const char* a, VecI b) {
    float x;
    std::memcpy(&x, a, 4);
    return sum + x * (VecF)b;
  }
};

#if defined(HEXAD_AVX512) && defined(__AVX512BF16__)
#define HEXAD_DOT_BF16 1
struct DotBF16 {
  typedef VecF Sum;
  static Sum add(Sum sum, const char* a, VecI b) {
    int32_t x;
    std::memcpy(&x, a, 4);
    return (VecF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)b);
  }
};
#endif

#if (defined(HEXAD_AVX512) && defined(__AVX512VNNI__)) || (!defined(HEXAD_AVX512) && defined(__AVXVNNI__))
#define HEXAD_DOT_I8 1
// The instruction takes unsigned times signed: queries carry an offset of 128, which `scores` takes back.
struct DotI8 {
  typedef VecI Sum;
  static Sum add(Sum sum, const char* a, VecI b) {
    int32_t x;
    std::memcpy(&x, a, 4);
#if defined(HEXAD_AVX512)
    return (VecI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)b, _mm512_set1_epi32(x));
#else
    return (VecI)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)b, _mm256_set1_epi32(x));
#endif
  }
};
#endif

// Rows of the left operand that a product holds in registers beside kVectors vectors of lanes.
constexpr int kRows = 4;

template <class Dot, int Rows, int Vectors, class Scalar>
inline void product_block(const char* a, ptrdiff_t a_row, ptrdiff_t a_step, const int32_t* b, ptrdiff_t lanes,
                          int steps, const int32_t* start, bool accumulate, Scalar* c) {
  typename Dot::Sum sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sum[r][v] = start ? (typename Dot::Sum)splat(start[r]) : typename Dot::Sum{};
  for (int s = 0; s < steps; ++s) {
    VecI lane[Vectors];
    for (int v = 0; v < Vectors; ++v) lane[v] = load(b + s * lanes + v * kWidth);
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) sum[r][v] = Dot::add(sum[r][v], a + r * a_row + s * a_step, lane[v]);
  }
  // What is already there is added last: a float32 sum of thousands of terms loses digits, sums of sums do not.
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) {
      Scalar* at = c + r * lanes + v * kWidth;
      store(at, accumulate ? load(at) + sum[r][v] : sum[r][v]);
    }
}

// c[rows][lanes] (+)= a . b; `start`, where given, holds the first summand of each row. `lanes` is both the
// number of queries, a multiple of kWidth, and the stride of b and c.
template <class Dot, class Scalar>
inline void product(const char* a, ptrdiff_t a_row, ptrdiff_t a_step, int rows, const int32_t* b, ptrdiff_t lanes,
                    int steps, const int32_t* start, bool accumulate, Scalar* c) {
  auto columns = [&](auto vectors, ptrdiff_t at) {
    constexpr int V = decltype(vectors)::value;
    int r = 0;
    for (; r + kRows <= rows; r += kRows)
      product_block<Dot, kRows, V>(a + r * a_row, a_row, a_step, b + at, lanes, steps, start ? start + r : start,
                                   accumulate, c + r * lanes + at);
    for (; r < rows; ++r)
      product_block<Dot, 1, V>(a + r * a_row, a_row, a_step, b + at, lanes, steps, start ? start + r : start,
                               accumulate, c + r * lanes + at);
  };
  ptrdiff_t at = 0;
  for (; at + kVectors * kWidth <= lanes; at += kVectors * kWidth)
    columns(std::integral_constant<int, kVectors>{}, at);
  for (; at < lanes; at += kWidth) columns(std::integral_constant<int, 1>{}, at);
}

// --- AMX: eight registers of 16 rows x 64 bytes; one instruction multiplies two and adds into a third. ---

#if defined(HEXAD_AMX)

// A block of 32 rows x 32 lanes. Registers 0-3 hold it, 4-5 take two row groups of a, 6-7 two lane groups of
// b: four independent sums hide the latency of each.
inline __attribute__((always_inline)) void amx_clear() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

template <class Scalar>
inline __attribute__((always_inline)) void amx_load(const Scalar* c, ptrdiff_t lanes) {
  amx_see_stores();
  _tile_loadd(0, c, lanes * 4);
  _tile_loadd(1, c + 16, lanes * 4);
  _tile_loadd(2, c + 16 * lanes, lanes * 4);
  _tile_loadd(3, c + 16 * lanes + 16, lanes * 4);
}

template <class Scalar>
inline __attribute__((always_inline)) void amx_store(Scalar* c, ptrdiff_t lanes) {
  _tile_stored(0, c, lanes * 4);
  _tile_stored(1, c + 16, lanes * 4);
  _tile_stored(2, c + 16 * lanes, lanes * 4);
  _tile_stored(3, c + 16 * lanes + 16, lanes * 4);
}

// Adds a . b over `steps` steps of 64 bytes of a row of a (16 packs). Operands of several terms contribute the
// pairs i + j < Terms; the rest are smaller than the last bit that `Terms` terms carry.
template <int Terms, bool Int8>
inline __attribute__((always_inline)) void amx_add(const char* a, ptrdiff_t a_row, ptrdiff_t a_term,
                                                   const int32_t* b, ptrdiff_t lanes, ptrdiff_t b_term, int steps) {
  amx_see_stores();
  for (int s = 0; s < steps; ++s)
    for (int i = 0; i < Terms; ++i) {
      const char* left = a + i * a_term + s * 64;
      _tile_loadd(4, left, a_row);
      _tile_loadd(5, left + 16 * a_row, a_row);
      for (int j = 0; j < Terms - i; ++j) {
        const int32_t* right = b + j * b_term + s * 16 * lanes;
        _tile_loadd(6, right, lanes * 4);
        _tile_loadd(7, right + 16, lanes * 4);
        if constexpr (Int8) {
          _tile_dpbssd(0, 4, 6);
          _tile_dpbssd(1, 4, 7);
          _tile_dpbssd(2, 5, 6);
          _tile_dpbssd(3, 5, 7);
        } else {
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
}

#endif

}  // namespace hexad
