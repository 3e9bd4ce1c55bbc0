// Products of float32 tokens with packed weights, for inputs that are not rounded; and the weights written out.
#include <algorithm>
#include <cstring>

#include "engines.h"
#include "numbers.h"
#include "simd.h"

namespace hexad {

namespace {

// Bytes as integers. GCC 12 takes __builtin_convertvector apart element by element here.
inline VecI widened(const uint8_t* w) {
#if defined(HEXAD_AVX512)
  return (VecI)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
#elif defined(__AVX2__) && defined(__FMA__)
  return (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(w)));
#else
  VecI wide;
  for (int i = 0; i < kWidth; ++i) wide[i] = w[i];
  return wide;
#endif
}

inline VecF levels_at(const uint8_t* w, float step, float least) { return to_float(widened(w)) * step + least; }

// Rows and tokens that meet at a time; a single token has two sums a row, so that none waits for the one before.
template <int Rows, int Tokens>
void float_rows(const uint8_t* w, const float* x, int64_t padded, float step, float least, float* sums,
                int64_t sums_stride) {
  constexpr int kChains = Tokens == 1 ? 2 : 1;
  VecF sum[Rows][Tokens][kChains] = {};
  for (int64_t k = 0; k < padded; k += kChains * kWidth)
    for (int c = 0; c < kChains; ++c) {
      VecF token[Tokens];
      for (int t = 0; t < Tokens; ++t) token[t] = load(x + t * padded + k + c * kWidth);
      for (int r = 0; r < Rows; ++r) {
        const VecF level = levels_at(w + r * padded + k + c * kWidth, step, least);
        for (int t = 0; t < Tokens; ++t) sum[r][t][c] += level * token[t];
      }
    }
  for (int r = 0; r < Rows; ++r)
    for (int t = 0; t < Tokens; ++t) {
      for (int c = 1; c < kChains; ++c) sum[r][t][0] += sum[r][t][c];
      sums[t * sums_stride + r] = sum_of_lanes(sum[r][t][0]);
    }
}

// The order of the groups back to the natural one.
template <int Planes>
inline void natural_order(const uint8_t* from, int64_t n, uint8_t* to) {
  for (int64_t g = 0; g < n; g += 64 * Planes)
    for (int i = 0; i < 64; ++i)
      for (int p = 0; p < Planes; ++p) to[g + i * Planes + p] = from[g + p * 64 + i];
}

template <class T>
void write_levels(const uint8_t* w, int64_t k, const WeightForm& form, T* out) {
  for (int64_t i = 0; i < k; ++i) from_float(float(w[i] * form.step + form.least), out[i]);
}

}  // namespace

void multiply_floats(const Weights& w, int64_t first_row, int64_t last_row, const float* x, int tokens, float* sums,
                     int64_t sums_stride, uint8_t* scratch) {
  const float step = float(w.form->step), least = float(w.form->least);
  with_bits(w.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value;
    auto rows_from = [&](int64_t first, auto count) {
      constexpr int kRows = decltype(count)::value;
      for (int r = 0; r < kRows; ++r)
        unpack_row<kBits>(w, first + r, 0, w.padded / group_codes(kBits), scratch + r * w.padded);
      float* at = sums + first - first_row;
      int t = 0;
      for (; t + 4 <= tokens; t += 4)
        float_rows<kRows, 4>(scratch, x + t * w.padded, w.padded, step, least, at + t * sums_stride, sums_stride);
      for (; t < tokens; ++t)
        float_rows<kRows, 1>(scratch, x + t * w.padded, w.padded, step, least, at + t * sums_stride, sums_stride);
    };
    int64_t r = first_row;
    for (; r + kFloatRows <= last_row; r += kFloatRows) rows_from(r, Constant<kFloatRows>{});
    for (; r < last_row; ++r) rows_from(r, Constant<1>{});
  });
}

void natural_codes(const Weights& w, int64_t row, uint8_t* scratch, uint8_t* to) {
  with_bits(w.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value;
    unpack<kBits>(w.row(row), w.row_bytes, w.padded / group_codes(kBits), scratch);
    natural_order<planes_of(kBits)>(scratch, w.padded, to);
  });
}

void write_row_levels(const Weights& w, int64_t row, int64_t k, int32_t dtype, void* out, uint8_t* scratch) {
  uint8_t* codes = scratch + w.padded;
  natural_codes(w, row, scratch, codes);
  if (w.form->lookup) look_up(w.form->table, w.bits, int(w.padded), codes);
  if (dtype == 0) write_levels(codes, k, *w.form, static_cast<float*>(out) + row * k);
  else if (dtype == 1) write_levels(codes, k, *w.form, static_cast<BFloat16*>(out) + row * k);
  else write_levels(codes, k, *w.form, static_cast<Float16*>(out) + row * k);
}

}  // namespace hexad
