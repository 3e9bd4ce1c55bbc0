// What a call asks for, and the integers behind its two grids.
#pragma once

#include <cstdint>
#include <numeric>

namespace hexad {

// Grids of the input, as `op.grid_number` counts them: 1 to 8 are bits.
enum Grid : int32_t { kNoGrid = 0, kEightBits = 8, kTernary = 9, kFp4 = 10 };

// Mirrored by `_LinearCall` in cpu.py, field by field.
struct LinearCall {
  const void* x;            // (tokens, k), entries of a row side by side
  void* y;                  // (tokens, rows), contiguous
  const uint8_t* packed;    // (rows, bytes), contiguous
  const float* scale;       // (rows)
  const float* bias;        // (rows), or null
  const int32_t* row_sums;  // (rows), needed where the input has 8 bits
  const int16_t* levels;    // (level_count)
  int64_t tokens, k, rows, x_stride, block, level_count;
  int32_t bits, grid, dtype, threads, use_amx;
  float alpha;
  int32_t nonfinite;  // out: x or its transform holds NaN or infinity, and y is meaningless
};

// The levels of the weights as step * w + least, with w in 0..255: the code itself where levels are evenly
// spaced, otherwise its entry in a table.
struct WeightForm {
  int32_t step = 1, least = 0;
  bool lookup = false;
  uint8_t table[256] = {};
};

constexpr int32_t kLargestLevel = 255;

// False for levels that are too large, or whose distances no 8-bit integers have.
inline bool weight_form(const int16_t* levels, int64_t count, WeightForm& form) {
  int32_t least = levels[0], largest = levels[0];
  for (int64_t i = 1; i < count; ++i) {
    least = levels[i] < least ? levels[i] : least;
    largest = levels[i] > largest ? levels[i] : largest;
  }
  if (least < -kLargestLevel || largest > kLargestLevel) return false;
  int32_t step = 0;
  for (int64_t i = 0; i < count; ++i) step = std::gcd(step, levels[i] - least);
  form.step = step ? step : 1;
  form.least = least;
  if ((largest - least) / form.step > 255) return false;
  for (int64_t i = 0; i < count; ++i) {
    form.table[i] = static_cast<uint8_t>((levels[i] - least) / form.step);
    form.lookup |= form.table[i] != i;
  }
  return true;
}

// The levels of the input as factor * a + offset, with a in -128..127.
struct InputForm {
  int32_t factor, offset;
};
inline InputForm input_form(int32_t grid) { return grid == kEightBits ? InputForm{2, 1} : InputForm{1, 0}; }

}  // namespace hexad
