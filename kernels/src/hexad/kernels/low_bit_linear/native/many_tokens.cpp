// Products with many tokens: a panel of rows is unpacked into the first-level cache and multiplied there, by
// Intel's matrix unit (AMX) or by the vector unit.
#include <algorithm>
#include <cstring>

#include "amx.h"
#include "engines.h"
#include "simd.h"

namespace hexad {

namespace {

constexpr int64_t kBlockSums = int64_t(kPanelRows) * kBlockTokens;

#if defined(HEXAD_AMX)

// Tiles 0 to 3 hold sums (two of 16 rows by two of 16 tokens), 4 and 5 weights, 6 and 7 tokens.
// One block of tokens takes all four sums too, two for the even steps and two for the odd ones: a single pair
// would wait for itself.
template <int Blocks>
void amx_piece(const uint8_t* w, ptrdiff_t stride, const int8_t* block, ptrdiff_t block_stride, int64_t steps,
               int32_t* sums, bool first) {
  constexpr int kBytes = 4 * kBlockTokens;
  int32_t* other = sums + kBlockSums;
  amx_see_stores();
  _tile_zero(2);
  _tile_zero(3);
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, sums, kBytes);
    _tile_loadd(1, sums + 16 * kBlockTokens, kBytes);
    if constexpr (Blocks == 2) {
      _tile_loadd(2, other, kBytes);
      _tile_loadd(3, other + 16 * kBlockTokens, kBytes);
    }
  }
  if constexpr (Blocks == 2) {
    for (int64_t s = 0; s < steps; ++s) {
      _tile_loadd(6, block + s * 1024, kBytes);
      _tile_loadd(4, w + s * 64, stride);
      _tile_loadd(5, w + 16 * stride + s * 64, stride);
      _tile_loadd(7, block + block_stride + s * 1024, kBytes);
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  } else {
    int64_t s = 0;
    for (; s + 2 <= steps; s += 2) {
      _tile_loadd(6, block + s * 1024, kBytes);
      _tile_loadd(4, w + s * 64, stride);
      _tile_loadd(5, w + 16 * stride + s * 64, stride);
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
      _tile_loadd(7, block + s * 1024 + 1024, kBytes);
      _tile_loadd(4, w + s * 64 + 64, stride);
      _tile_loadd(5, w + 16 * stride + s * 64 + 64, stride);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
    if (s < steps) {
      _tile_loadd(6, block + s * 1024, kBytes);
      _tile_loadd(4, w + s * 64, stride);
      _tile_loadd(5, w + 16 * stride + s * 64, stride);
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
    }
  }
  _tile_stored(0, sums, kBytes);
  _tile_stored(1, sums + 16 * kBlockTokens, kBytes);
  if constexpr (Blocks == 2) {
    _tile_stored(2, other, kBytes);
    _tile_stored(3, other + 16 * kBlockTokens, kBytes);
  } else {
    alignas(64) int32_t odd[kBlockSums];
    _tile_stored(2, odd, kBytes);
    _tile_stored(3, odd + 16 * kBlockTokens, kBytes);
    for (int i = 0; i < kBlockSums; ++i) sums[i] += odd[i];
  }
}

#endif

// Four numbers of a row, spread over the lanes, with four numbers of each token.
inline VecI dot_of_four(VecI sum, int32_t w, VecI a) {
#if defined(HEXAD_AVX512) && defined(__AVX512VNNI__)
  return (VecI)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(w), (__m512i)a);
#elif !defined(HEXAD_AVX512) && defined(__AVXVNNI__)
  return (VecI)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(w), (__m256i)a);
#else
  // Pairs of 16 bits: the even bytes and the odd ones, unsigned on the left, signed on the right.
  const VecI even = splat(w & 0x00ff00ff), odd = splat(int32_t(uint32_t(w) >> 8) & 0x00ff00ff);
#if defined(HEXAD_AVX512)
  const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)a, 8), 8), high = _mm512_srai_epi16((__m512i)a, 8);
  return sum + (VecI)_mm512_madd_epi16((__m512i)even, low) + (VecI)_mm512_madd_epi16((__m512i)odd, high);
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)a, 8), 8), high = _mm256_srai_epi16((__m256i)a, 8);
  return sum + (VecI)_mm256_madd_epi16((__m256i)even, low) + (VecI)_mm256_madd_epi16((__m256i)odd, high);
#elif defined(__SSE2__)
  const __m128i low = _mm_srai_epi16(_mm_slli_epi16((__m128i)a, 8), 8), high = _mm_srai_epi16((__m128i)a, 8);
  return sum + (VecI)_mm_madd_epi16((__m128i)even, low) + (VecI)_mm_madd_epi16((__m128i)odd, high);
#else
  return sum + (even & 0xffff) * (a << 24 >> 24) + (odd & 0xffff) * (a << 16 >> 24) +
         (even >> 16) * (a << 8 >> 24) + (odd >> 16) * (a >> 24);
#endif
#endif
}

template <int Rows>
void vector_rows(const uint8_t* w, ptrdiff_t stride, const int8_t* block, int64_t steps, int32_t* sums, bool first) {
  constexpr int kVectorsOfBlock = kBlockTokens / kWidth;
  VecI sum[Rows][kVectorsOfBlock];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectorsOfBlock; ++v)
      sum[r][v] = first ? VecI{} : load(sums + r * kBlockTokens + v * kWidth);
  const int32_t* lanes = reinterpret_cast<const int32_t*>(block);
  for (int64_t s = 0; s < 16 * steps; ++s)
    for (int v = 0; v < kVectorsOfBlock; ++v) {
      const VecI a = load(lanes + s * kBlockTokens + v * kWidth);
      for (int r = 0; r < Rows; ++r) {
        int32_t four;
        std::memcpy(&four, w + r * stride + 4 * s, 4);
        sum[r][v] = dot_of_four(sum[r][v], four, a);
      }
    }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectorsOfBlock; ++v) store(sums + r * kBlockTokens + v * kWidth, sum[r][v]);
}

void vector_piece(const uint8_t* w, ptrdiff_t stride, int64_t rows, const int8_t* block, int64_t steps, int32_t* sums,
                  bool first) {
  constexpr int kRows = kWidth == 16 ? 8 : kWidth == 8 ? 4 : 2;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    vector_rows<kRows>(w + r * stride, stride, block, steps, sums + r * kBlockTokens, first);
  for (; r < rows; ++r) vector_rows<1>(w + r * stride, stride, block, steps, sums + r * kBlockTokens, first);
}

}  // namespace

bool amx_serves() {
#if defined(HEXAD_AMX)
  return request_amx();
#else
  return false;
#endif
}

void multiply_panel(const Weights& w, int64_t first_row, int64_t rows, const int8_t* blocks, int64_t block_count,
                    [[maybe_unused]] bool use_amx, int32_t* sums, uint8_t* scratch) {
  // Rows a whole number of kilobytes apart would all meet in the same few lines of the cache.
  constexpr ptrdiff_t kStride = kPieceCodes + 64;
  const ptrdiff_t block_stride = kBlockTokens * w.padded;
  with_bits(w.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value, kGroup = group_codes(kBits);
    for (int64_t k = 0; k < w.padded; k += kPieceCodes) {
      const int64_t codes = std::min<int64_t>(kPieceCodes, w.padded - k);
      for (int64_t r = 0; r < rows; ++r) unpack_row<kBits>(w, first_row + r, k / kGroup, codes / kGroup, scratch + r * kStride);
      int64_t b = 0;
#if defined(HEXAD_AMX)
      if (use_amx) {
        for (; b + 2 <= block_count; b += 2)
          amx_piece<2>(scratch, kStride, blocks + b * block_stride + k * kBlockTokens, block_stride, codes / 64,
                       sums + b * kBlockSums, k == 0);
        for (; b < block_count; ++b)
          amx_piece<1>(scratch, kStride, blocks + b * block_stride + k * kBlockTokens, block_stride, codes / 64,
                       sums + b * kBlockSums, k == 0);
      }
#endif
      for (; b < block_count; ++b)
        vector_piece(scratch, kStride, rows, blocks + b * block_stride + k * kBlockTokens, codes / 64,
                     sums + b * kBlockSums, k == 0);
    }
  });
}

}  // namespace hexad
