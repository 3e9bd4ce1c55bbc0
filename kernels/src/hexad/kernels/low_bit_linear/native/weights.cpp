// The C interface to the weights themselves: their levels written out, and the sums of their rows.
#include <algorithm>
#include <atomic>
#include <memory>

#include "engines.h"

namespace hexad {

namespace {

// Calls f(row, scratch) for every row, with `bytes` of scratch a thread.
template <class F>
void each_row(int64_t rows, int32_t threads, int64_t bytes, F f) {
#pragma omp parallel num_threads(std::max(1, threads))
  {
    const std::unique_ptr<uint8_t[]> scratch(new uint8_t[bytes]);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) f(r, scratch.get());
  }
}

}  // namespace
}  // namespace hexad

extern "C" {

// The levels as numbers of `dtype` into `out`, (rows, k). 2: as hexad_low_bit_linear.
int32_t hexad_write_levels(const uint8_t* packed, const int16_t* levels, int64_t level_count, int64_t rows, int64_t k,
                           int32_t bits, int32_t dtype, int32_t threads, void* out) {
  using namespace hexad;
  WeightForm form;
  if (!weight_form(levels, level_count, form)) return 2;
  const Weights w = {packed, packed_bytes(k, bits), padded_length(k, bits), bits, &form};
  each_row(rows, threads, 2 * w.padded,
           [&](int64_t r, uint8_t* scratch) { write_row_levels(w, r, k, dtype, out, scratch); });
  return 0;
}

// The sum of the levels of each row; returns the first row that has a code without a level, or -1.
int64_t hexad_level_sums(const uint8_t* packed, const int16_t* levels, int64_t level_count, int64_t rows, int64_t k,
                         int32_t bits, int32_t threads, int32_t* sums) {
  using namespace hexad;
  const Weights w = {packed, packed_bytes(k, bits), padded_length(k, bits), bits, nullptr};
  std::atomic<int64_t> wrong{rows};
  each_row(rows, threads, 2 * w.padded, [&](int64_t r, uint8_t* scratch) {
    uint8_t* codes = scratch + w.padded;
    natural_codes(w, r, scratch, codes);
    int64_t counts[256] = {};
    for (int64_t i = 0; i < k; ++i) ++counts[codes[i]];
    int64_t sum = 0, outside = 0;
    for (int64_t code = 0; code < 256; ++code) {
      if (code < level_count) sum += counts[code] * levels[code];
      else outside += counts[code];
    }
    sums[r] = int32_t(sum);
    if (outside)
      for (int64_t known = wrong; r < known && !wrong.compare_exchange_weak(known, r);) {
      }
  });
  return wrong < rows ? int64_t(wrong) : -1;
}

}  // extern "C"
