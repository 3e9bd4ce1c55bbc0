// How codes leave their bytes, and the order in which products take them.
//
// A group is what 64 bytes of a row hold where 8 is a multiple of the width; its codes are taken plane by plane:
// the lowest bits of the 64 bytes, then the next ones, so that one shift and one mask make 64 codes. Other widths
// have groups of 64 codes in their own order. Inputs are put into the same order, and zeros fill up the last group.
#pragma once

#include <cstdint>
#include <cstring>

#include "memory.h"
#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hexad {

constexpr int kGroupBytes = 64;

constexpr int planes_of(int bits) { return 8 % bits == 0 ? 8 / bits : 1; }
constexpr int group_codes(int bits) { return 64 * planes_of(bits); }
constexpr int group_bytes(int bits) { return 8 % bits == 0 ? kGroupBytes : 8 * bits; }
inline int64_t padded_length(int64_t k, int bits) { return round_up(k, group_codes(bits)); }
inline int64_t packed_bytes(int64_t k, int bits) { return (k * bits + 7) / 8; }

// Natural order to that of the groups.
template <int Planes, class T>
inline void order(const T* from, int64_t n, T* to) {
  for (int64_t g = 0; g < n; g += 64 * Planes)
    for (int p = 0; p < Planes; ++p)
      for (int i = 0; i < 64; ++i) to[g + p * 64 + i] = from[g + i * Planes + p];
}
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
// Bytes as the parts of an integer: narrowing has an instruction, gathering has none.
template <class Word>
inline void order_bytes(const int8_t* from, int64_t n, int8_t* to) {
  constexpr int kPlanes = sizeof(Word);
  for (int64_t g = 0; g < n; g += 64 * kPlanes) {
    Word words[64];
    std::memcpy(words, from + g, sizeof words);
    for (int p = 0; p < kPlanes; ++p)
      for (int i = 0; i < 64; ++i) to[g + p * 64 + i] = static_cast<int8_t>(words[i] >> (8 * p));
  }
}
template <>
inline void order<2, int8_t>(const int8_t* from, int64_t n, int8_t* to) {
  order_bytes<uint16_t>(from, n, to);
}
template <>
inline void order<4, int8_t>(const int8_t* from, int64_t n, int8_t* to) {
  order_bytes<uint32_t>(from, n, to);
}
template <>
inline void order<8, int8_t>(const int8_t* from, int64_t n, int8_t* to) {
  order_bytes<uint64_t>(from, n, to);
}
#endif

template <class T>
inline void order(const T* from, int64_t n, int bits, T* to) {
  switch (planes_of(bits)) {
    case 2:
      return order<2>(from, n, to);
    case 4:
      return order<4>(from, n, to);
    case 8:
      return order<8>(from, n, to);
    default:
      std::memcpy(to, from, n * sizeof(T));
  }
}

#if defined(__AVX512VBMI__) && defined(__AVX512VL__)
// 64 codes of a width that does not divide 8, from the bytes that hold them: each eight lie in `Bits` bytes, which go
// into one lane of 64 bits, and then each code to the foot of its byte.
template <int Bits>
inline __m512i spread_codes(__m512i group) {
  alignas(64) static constexpr auto kBytes = [] {
    struct {
      uint8_t at[64];
    } t{};
    for (int i = 0; i < 64; ++i) t.at[i] = uint8_t(i / 8 * Bits + i % 8);
    return t;
  }();
  constexpr uint64_t kShifts = [] {
    uint64_t shifts = 0;
    for (int c = 0; c < 8; ++c) shifts |= uint64_t(c * Bits) << (8 * c);
    return shifts;
  }();
  const __m512i lanes = _mm512_permutexvar_epi8(_mm512_load_si512(kBytes.at), group);
  const __m512i codes = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(int64_t(kShifts)), lanes);
  return _mm512_and_si512(codes, _mm512_set1_epi8((1 << Bits) - 1));
}
#endif

// The codes of one group. Of widths that do not divide 8 it reads up to 64 bytes.
template <int Bits>
inline void unpack_group(const uint8_t* from, uint8_t* to) {
  if constexpr (Bits == 8) {
    std::memcpy(to, from, 64);
  } else if constexpr (8 % Bits == 0) {
    // Words at a time: the mask takes away what a shift brings over from the byte beside.
    const VecU mask = VecU{} + 0x01010101u * ((1 << Bits) - 1);
    for (int i = 0; i < 64; i += int(sizeof(VecU))) {
      VecU words;
      std::memcpy(&words, from + i, sizeof words);
      for (int p = 0; p < 8 / Bits; ++p) {
        const VecU codes = words >> (p * Bits) & mask;
        std::memcpy(to + 64 * p + i, &codes, sizeof codes);
      }
    }
  } else {
#if defined(__AVX512VBMI__) && defined(__AVX512VL__)
    _mm512_storeu_si512(to, spread_codes<Bits>(_mm512_loadu_si512(from)));
#else
    for (int i = 0; i < 8; ++i) {
      uint64_t stream;
      std::memcpy(&stream, from + i * Bits, 8);
      constexpr uint64_t kMask = 0x0101010101010101u * ((1 << Bits) - 1);
#if defined(__BMI2__)
      const uint64_t codes = _pdep_u64(stream, kMask);
#else
      uint64_t codes = 0;
      for (int c = 0; c < 8; ++c) codes |= (stream << (c * (8 - Bits))) & (kMask & (uint64_t(0xff) << (8 * c)));
#endif
      std::memcpy(to + 8 * i, &codes, 8);
    }
#endif
  }
}

// to[i] = table[to[i]]; codes of at most four bits need the first 16 entries alone.
inline void look_up(const uint8_t* table, int bits, int n, uint8_t* to) {
  int i = 0;
  if (bits <= 4) {
#if defined(__AVX512BW__)
    const __m512i entries = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    for (; i + 64 <= n; i += 64)
      _mm512_storeu_si512(to + i, _mm512_shuffle_epi8(entries, _mm512_loadu_si512(to + i)));
#elif defined(__SSSE3__)
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    for (; i + 16 <= n; i += 16) {
      __m128i* at = reinterpret_cast<__m128i*>(to + i);
      _mm_storeu_si128(at, _mm_shuffle_epi8(entries, _mm_loadu_si128(at)));
    }
#elif defined(__aarch64__)
    const uint8x16_t entries = vld1q_u8(table);
    for (; i + 16 <= n; i += 16) vst1q_u8(to + i, vqtbl1q_u8(entries, vld1q_u8(to + i)));
#endif
  }
  for (; i < n; ++i) to[i] = table[to[i]];
}

// The codes of some groups; `readable` bytes of the row are left, which may end within the last group.
template <int Bits>
inline void unpack(const uint8_t* from, int64_t readable, int64_t groups, uint8_t* to) {
  constexpr int kBytes = group_bytes(Bits), kCodes = group_codes(Bits);
  for (int64_t g = 0; g < groups; ++g, readable -= kBytes, from += kBytes, to += kCodes) {
    if (readable >= kGroupBytes) {
      unpack_group<Bits>(from, to);
    } else {
      uint8_t rest[kGroupBytes] = {};
      std::memcpy(rest, from, readable);
      unpack_group<Bits>(rest, to);
    }
  }
}

// Calls f with the width as a constant of the type.
template <int Value>
struct Constant {
  static constexpr int value = Value;
};
template <class F>
inline auto with_bits(int bits, F f) {
  switch (bits) {
    case 1:
      return f(Constant<1>{});
    case 2:
      return f(Constant<2>{});
    case 3:
      return f(Constant<3>{});
    case 4:
      return f(Constant<4>{});
    case 5:
      return f(Constant<5>{});
    case 6:
      return f(Constant<6>{});
    case 7:
      return f(Constant<7>{});
    default:
      return f(Constant<8>{});
  }
}

}  // namespace hexad
