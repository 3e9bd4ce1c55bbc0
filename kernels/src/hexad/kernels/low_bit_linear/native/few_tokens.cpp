// Products with few tokens: one pass over the packed weights, as fast as memory hands them out.
#include "engines.h"
#include "simd.h"

namespace hexad {

namespace {

#if defined(HEXAD_AVX512) && defined(__AVX512VNNI__)
#define HEXAD_FEW_IN_REGISTERS 1

// Sums that stay in their registers: GCC 12 copies them before each of these instructions when it may choose.
inline __attribute__((always_inline)) void add_dot(__m512i& sum, __m512i w, __m512i a) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "vm"(a));
}

// What a row holds for one step of the loop: 64 codes of each plane.
template <int Bits>
inline __m512i load_group(const uint8_t* from, int64_t bytes) {
  constexpr int kBytes = group_bytes(Bits);
  if (kBytes == 64 && bytes >= 64) return _mm512_loadu_si512(from);
  const int64_t count = bytes < kBytes ? bytes : kBytes;
  return _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - count), from);
}

// The codes of a plane, or in place: those stay where they lie in their bytes and count 2^(plane * Bits) fold, which
// saves the shift.
template <int Bits, bool InPlace>
inline __attribute__((always_inline)) __m512i plane_of(__m512i group, int plane) {
  typedef uint16_t Words __attribute__((vector_size(64)));
  if constexpr (8 % Bits != 0) {
#if defined(__AVX512VBMI__)
    return spread_codes<Bits>(group);
#else
    return group;  // few_in_registers says no
#endif
  } else if constexpr (Bits == 8) {
    return group;
  } else if constexpr (InPlace) {
    return _mm512_and_si512(group, _mm512_set1_epi8(char(((1 << Bits) - 1) << (plane * Bits))));
  } else {
    const __m512i shifted = (__m512i)((Words)group >> (plane * Bits));
    return _mm512_and_si512(shifted, _mm512_set1_epi8((1 << Bits) - 1));
  }
}

// How far ahead the weights are called for, into the second-level cache: far enough that their pages are found too.
constexpr int64_t kAhead = 16384;

template <int Bits, bool Lookup, int Rows, int Tokens>
void multiply_rows(const Weights& w, int64_t row, const int8_t* const* a, int32_t* sums, int64_t sums_stride) {
  constexpr int kPlanes = planes_of(Bits), kBytes = group_bytes(Bits);
  constexpr bool kInPlace = Tokens == 1 && !Lookup && kPlanes > 1;
  constexpr int kSums = kInPlace ? kPlanes : Tokens;
  const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.form->table)));
  const int64_t bytes = w.row_bytes;
  const uint8_t* from = w.row(row);
  __m512i sum[Rows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int s = 0; s < kSums; ++s) sum[r][s] = _mm512_setzero_si512();
  int64_t k = 0;
  for (int64_t at = 0; at < bytes; at += kBytes, k += 64 * kPlanes) {
    __m512i group[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      group[r] = load_group<Bits>(from + r * bytes + at, bytes - at);
      _mm_prefetch(reinterpret_cast<const char*>(from + r * bytes + at + kAhead), _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int p = 0; p < kPlanes; ++p) {
      __m512i input[Tokens];
#pragma GCC unroll 8
      for (int t = 0; t < Tokens; ++t) input[t] = _mm512_loadu_si512(a[t] + k + 64 * p);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        __m512i code = plane_of<Bits, kInPlace>(group[r], p);
        if constexpr (Lookup) code = _mm512_shuffle_epi8(table, code);
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; ++t) add_dot(sum[r][kInPlace ? p : t], code, input[t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if constexpr (kInPlace)
#pragma GCC unroll 8
      for (int p = 1; p < kPlanes; ++p)
        sum[r][0] = _mm512_add_epi32(sum[r][0], (__m512i)((VecI)sum[r][p] >> (p * Bits)));
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) sums[t * sums_stride + r] = _mm512_reduce_add_epi32(sum[r][t]);
  }
}

template <int Bits, bool Lookup, int Tokens>
void multiply_all(const Weights& w, int64_t first_row, int64_t last_row, const int8_t* const* a, int32_t* sums,
                  int64_t sums_stride) {
  // As many rows as leave registers for codes and inputs.
  constexpr int kRows = planes_of(Bits) == 8 && Tokens == 1 && !Lookup ? 2 : 4;
  int64_t r = first_row;
  for (; r + kRows <= last_row; r += kRows)
    multiply_rows<Bits, Lookup, kRows, Tokens>(w, r, a, sums + (r - first_row), sums_stride);
  for (; r < last_row; ++r) multiply_rows<Bits, Lookup, 1, Tokens>(w, r, a, sums + (r - first_row), sums_stride);
}
#endif

int32_t dot(const uint8_t* w, const int8_t* a, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += int32_t(w[i]) * int32_t(a[i]);
  return sum;
}

}  // namespace

// Whether the weights pass through registers; otherwise each row goes through the first-level cache.
bool few_in_registers(int bits) {
#if defined(HEXAD_FEW_IN_REGISTERS) && defined(__AVX512VBMI__)
  return bits >= 1;
#elif defined(HEXAD_FEW_IN_REGISTERS)
  return 8 % bits == 0;
#else
  return bits < 0;
#endif
}

void multiply_few(const Weights& w, int64_t first_row, int64_t last_row, const int8_t* a, int tokens, int32_t* sums,
                  int64_t sums_stride, uint8_t* scratch) {
#if defined(HEXAD_FEW_IN_REGISTERS)
  if (few_in_registers(w.bits) && (w.bits <= 4 || !w.form->lookup)) {
    const int8_t* inputs[kFewTokens];
    for (int t = 0; t < kFewTokens; ++t) inputs[t] = a + (t < tokens ? t : tokens - 1) * w.padded;
    with_bits(w.bits, [&](auto width) {
      constexpr int kBits = decltype(width)::value;
      auto run = [&](auto count) {
        constexpr int kTokens = decltype(count)::value;
        if constexpr (kBits <= 4)
          if (w.form->lookup)
            return multiply_all<kBits, true, kTokens>(w, first_row, last_row, inputs, sums, sums_stride);
        multiply_all<kBits, false, kTokens>(w, first_row, last_row, inputs, sums, sums_stride);
      };
      if (tokens == 1) return run(Constant<1>{});
      if (tokens == 2) return run(Constant<2>{});
      run(Constant<4>{});  // the last of three tokens counts twice, into a sum that nobody reads
    });
    return;
  }
#endif
  with_bits(w.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value;
    for (int64_t r = first_row; r < last_row; ++r) {
      unpack_row<kBits>(w, r, 0, w.padded / group_codes(kBits), scratch);
      for (int t = 0; t < tokens; ++t)
        sums[t * sums_stride + r - first_row] = dot(scratch, a + t * w.padded, w.padded);
    }
  });
}

}  // namespace hexad
