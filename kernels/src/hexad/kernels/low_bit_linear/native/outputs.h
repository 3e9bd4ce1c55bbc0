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

// Writes value(row) + bias for `rows` rows, each operation rounded on its own: fused ones would differ in the last
// bit from those of torch, and the next layer would round a token otherwise.
template <class Value, class T>
inline void write_rows(int64_t rows, const float* bias, Value value, T* y) {
  constexpr int64_t kAtOnce = 256;
  float values[kAtOnce];
  for (int64_t first = 0; first < rows; first += kAtOnce) {
    const int64_t count = rows - first < kAtOnce ? rows - first : kAtOnce;
    for (int64_t r = 0; r < count; ++r) values[r] = value(first + r);
    asm volatile("" ::"r"(values) : "memory");  // no look ahead to the sum
    if (bias)
      for (int64_t r = 0; r < count; ++r) from_float(values[r] + bias[first + r], y[first + r]);
    else
      for (int64_t r = 0; r < count; ++r) from_float(values[r], y[first + r]);
  }
}

// y = (sum of products of levels) * (unit * scale) + bias for `rows` rows from `first_row` on.
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
  auto value = [&](int64_t r, Integer more) {
    return float(Signed(factor * integer(sums[r]) + least + more)) * (token.unit * scale[r]);
  };
  if (input.offset) {
    const int32_t* row_sums = c.row_sums + first_row;
    write_rows(rows, bias, [&](int64_t r) { return value(r, offset * integer(row_sums[r])); }, y);
  } else {
    write_rows(rows, bias, [&](int64_t r) { return value(r, 0); }, y);
  }
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
  const int64_t at = token_number * c.rows + first_row;
  auto finish = [&](auto* y) {
    write_rows(rows, c.bias ? c.bias + first_row : nullptr,
               [&](int64_t r) { return sums[r] * c.scale[first_row + r]; }, y + at);
  };
  if (c.dtype == 0) finish(static_cast<float*>(c.y));
  else if (c.dtype == 1) finish(static_cast<BFloat16*>(c.y));
  else finish(static_cast<Float16*>(c.y));
}

}  // namespace hexad
