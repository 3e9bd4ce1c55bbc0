// From sums of integers to rows of the output.
#pragma once

#include <cstdint>
#include <type_traits>

#include "call.h"
#include "numbers.h"

namespace hexad {

// What a token brings: its unit and the sum of its integers a (see InputForm).
struct Token {
  float unit;
  int64_t sum;
};

// y = unit * scale * (sum of products of levels) + bias for `rows` rows from `first_row` on.
// The sum is factor * (step * sums + least * token.sum) + offset * row_sums. With Integer = uint32_t it is taken
// modulo 2^32, which is enough where the result fits, as it does for k up to 2^15.
template <class Integer, class T>
void finish_rows(const LinearCall& c, const WeightForm& weights, const InputForm& input, const Token& token,
                 int64_t first_row, int64_t rows, const int32_t* sums, T* y) {
  typedef std::make_signed_t<Integer> Signed;
  auto integer = [](int64_t x) { return Integer(Signed(x)); };
  const Integer factor = integer(input.factor * weights.step), offset = integer(input.offset);
  const Integer least = integer(int64_t(input.factor) * weights.least * token.sum);
  const float* scale = c.scale + first_row;
  const float* bias = c.bias ? c.bias + first_row : nullptr;
  const int32_t* row_sums = input.offset ? c.row_sums + first_row : nullptr;
  auto value = [&](int64_t r, Integer more) {
    return float(Signed(factor * integer(sums[r]) + least + more)) * (token.unit * scale[r]);
  };
  auto each = [&](auto more) {
    if (bias)
      for (int64_t r = 0; r < rows; ++r) from_float(value(r, more(r)) + bias[r], y[r]);
    else
      for (int64_t r = 0; r < rows; ++r) from_float(value(r, more(r)), y[r]);
  };
  if (row_sums) each([&](int64_t r) { return offset * integer(row_sums[r]); });
  else each([](int64_t) { return Integer(0); });
}

// Of a token of any number format.
inline void finish_rows(const LinearCall& c, const WeightForm& weights, const InputForm& input, const Token& token,
                        int64_t token_number, int64_t first_row, int64_t rows, const int32_t* sums) {
  constexpr int64_t kNarrow = int64_t(1) << 15;
  const int64_t at = token_number * c.rows + first_row;
  auto finish = [&](auto* y) {
    if (c.k <= kNarrow) finish_rows<uint32_t>(c, weights, input, token, first_row, rows, sums, y + at);
    else finish_rows<uint64_t>(c, weights, input, token, first_row, rows, sums, y + at);
  };
  if (c.dtype == 0) finish(static_cast<float*>(c.y));
  else if (c.dtype == 1) finish(static_cast<BFloat16*>(c.y));
  else finish(static_cast<Float16*>(c.y));
}

// The same for tokens that were not rounded: y = scale * sum + bias.
inline void finish_rows(const LinearCall& c, int64_t token_number, int64_t first_row, int64_t rows,
                        const float* sums) {
  auto finish = [&](auto* y) {
    for (int64_t r = first_row; r < first_row + rows; ++r) {
      const float value = sums[r - first_row] * c.scale[r];
      from_float(c.bias ? value + c.bias[r] : value, y[token_number * c.rows + r]);
    }
  };
  if (c.dtype == 0) finish(static_cast<float*>(c.y));
  else if (c.dtype == 1) finish(static_cast<BFloat16*>(c.y));
  else finish(static_cast<Float16*>(c.y));
}

}  // namespace hexad
