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

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Without a partner, tiles 2 and 3 begin anew: what they held has been added.
inline void load_sums(const int32_t* sums, bool pair) {
  if (!pair) clear_sums();
  _tile_loadd(0, sums, 4 * kBlockTokens);
  _tile_loadd(1, sums + 16 * kBlockTokens, 4 * kBlockTokens);
  if (!pair) return;
  _tile_loadd(2, sums + kBlockSums, 4 * kBlockTokens);
  _tile_loadd(3, sums + kBlockSums + 16 * kBlockTokens, 4 * kBlockTokens);
}

inline void store_sums(int32_t* sums) {
  _tile_stored(0, sums, 4 * kBlockTokens);
  _tile_stored(1, sums + 16 * kBlockTokens, 4 * kBlockTokens);
  _tile_stored(2, sums + kBlockSums, 4 * kBlockTokens);
  _tile_stored(3, sums + kBlockSums + 16 * kBlockTokens, 4 * kBlockTokens);
}

// Tiles 0 to 3 hold sums: two of 16 rows by two of 16 tokens. Tiles 4 and 5 take weights, 6 and 7 tokens. A block of
// tokens that has no partner takes all four sums too, two for even steps and two for odd ones: one pair alone would
// wait for itself.
template <int Blocks>
inline void amx_steps(const uint8_t* w, const int8_t* block, ptrdiff_t block_stride, int64_t steps) {
  constexpr int kBytes = 4 * kBlockTokens;
  amx_see_stores();
  for (int64_t s = 0; s < steps; ++s) {
    const uint8_t* left = w + s * 64;
    const int8_t* right = block + s * 64 * kBlockTokens;
    if (Blocks == 2 || s % 2 == 0) {
      _tile_loadd(6, right, kBytes);
      _tile_loadd(4, left, kPieceStride);
      _tile_loadd(5, left + 16 * kPieceStride, kPieceStride);
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
    }
    if (Blocks == 2) {
      _tile_loadd(7, right + block_stride, kBytes);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    } else if (s % 2 == 1) {
      _tile_loadd(7, right, kBytes);
      _tile_loadd(4, left, kPieceStride);
      _tile_loadd(5, left + 16 * kPieceStride, kPieceStride);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  }
}

// Pieces are small enough that the matrix unit never rests while one is unpacked: after about a thousand cycles
// without work it would take as long to wake again.
template <class Unpack>
void amx_panel(int64_t codes, const int8_t* blocks, ptrdiff_t block_stride, int64_t block_count, int32_t* sums,
               const uint8_t* scratch, Unpack unpack) {
  // Few sums stay in their tiles throughout.
  const bool keep = block_count <= 2;
  for (int64_t k = 0; k < codes; k += kPieceCodes) {
    const int64_t steps = std::min<int64_t>(kPieceCodes, codes - k) / 64;
    const bool first = k == 0, last = k + kPieceCodes >= codes;
    unpack(k);
    for (int64_t b = 0; b < block_count; b += 2) {
      int32_t* at = sums + b * kBlockSums;
      const int8_t* block = blocks + b * block_stride + k * kBlockTokens;
      const bool pair = b + 1 < block_count;
      if (first) clear_sums();
      else if (!keep) load_sums(at, pair);
      if (pair) amx_steps<2>(scratch, block, block_stride, steps);
      else amx_steps<1>(scratch, block, block_stride, steps);
      if (keep && !last) continue;
      store_sums(at);
      if (!pair)
        for (int i = 0; i < kBlockSums; ++i) at[i] += at[kBlockSums + i];
    }
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
void vector_rows(const uint8_t* w, const int8_t* block, int64_t steps, int32_t* sums, bool first) {
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
        std::memcpy(&four, w + r * kPieceStride + 4 * s, 4);
        sum[r][v] = dot_of_four(sum[r][v], four, a);
      }
    }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectorsOfBlock; ++v) store(sums + r * kBlockTokens + v * kWidth, sum[r][v]);
}

void vector_piece(const uint8_t* w, int64_t rows, const int8_t* block, int64_t steps, int32_t* sums,
                  bool first) {
  constexpr int kRows = kWidth == 16 ? 8 : kWidth == 8 ? 4 : 2;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    vector_rows<kRows>(w + r * kPieceStride, block, steps, sums + r * kBlockTokens, first);
  for (; r < rows; ++r) vector_rows<1>(w + r * kPieceStride, block, steps, sums + r * kBlockTokens, first);
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
  const ptrdiff_t block_stride = kBlockTokens * w.padded;
  with_bits(w.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value, kGroup = group_codes(kBits);
    auto unpack = [&](int64_t k) {
      const int64_t group = k / kGroup, groups = std::min<int64_t>(kPieceCodes, w.padded - k) / kGroup;
      for (int64_t r = 0; r < rows; ++r)
        unpack_row<kBits>(w, first_row + r, group, groups, scratch + r * kPieceStride);
    };
#if defined(HEXAD_AMX)
    if (use_amx) return amx_panel(w.padded, blocks, block_stride, block_count, sums, scratch, unpack);
#endif
    for (int64_t k = 0; k < w.padded; k += kPieceCodes) {
      unpack(k);
      const int64_t steps = std::min<int64_t>(kPieceCodes, w.padded - k) / 64;
      for (int64_t b = 0; b < block_count; ++b)
        vector_piece(scratch, rows, blocks + b * block_stride + k * kBlockTokens, steps, sums + b * kBlockSums, k == 0);
    }
  });
}

}  // namespace hexad
