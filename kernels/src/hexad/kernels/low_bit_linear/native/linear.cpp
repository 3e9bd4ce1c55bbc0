// The C interface of the low-bit linear layer: rounds the tokens, multiplies, scales.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "amx.h"
#include "call.h"
#include "engines.h"
#include "memory.h"
#include "outputs.h"
#include "rounding.h"
#include "simd.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace hexad {

namespace {

#if defined(_OPENMP)
inline int thread_number() { return omp_get_thread_num(); }
inline int thread_count() { return omp_get_num_threads(); }
#else
inline int thread_number() { return 0; }
inline int thread_count() { return 1; }
#endif

// Below this many products the threads would take longer to wake than to work.
constexpr int64_t kWorthThreads = 1 << 19;
// Panels whose output is written together, if there are enough for every thread: longer runs of memory.
constexpr int64_t kPanelsTogether = 4;
// Tokens that are multiplied together at most, in bytes: they stay in the second-level cache.
constexpr int64_t kTokenBytes = int64_t(1) << 20;

class Linear {
 public:
  Linear(LinearCall& call, const WeightForm& form) : c(call), weights(form), input(input_form(call.grid)) {
    w = {c.packed, packed_bytes(c.k, c.bits), padded_length(c.k, c.bits), c.bits, &weights};
    padded = w.padded;
    rounded = c.grid != kNoGrid;
    few = c.tokens <= kFewTokens || !rounded;
    amx = !few && c.use_amx && amx_serves();
    together = c.tokens;
    if (!few) together = std::clamp<int64_t>(kTokenBytes / padded / 32 * 32, 32, round_up(c.tokens, 32));
    blocks_together = round_up(together, 2 * kBlockTokens) / kBlockTokens;
    threads = c.tokens * c.rows * padded < kWorthThreads ? 1 : std::max(1, c.threads);
    panels_together = c.rows < 2 * threads * kPanelsTogether * kPanelRows ? 1 : kPanelsTogether;
  }

  // False where memory is short.
  bool run() {
    lay_out(nullptr);
    Workspace workspace(bytes);
    if (!workspace.data()) return false;
    lay_out(workspace.data());
    if (few) run_few();
    else
      for (first_token = 0; first_token < c.tokens && !nonfinite; first_token += together) run_many();
    c.nonfinite = nonfinite;
    return true;
  }

 private:
  LinearCall& c;
  const WeightForm& weights;
  const InputForm input;
  Weights w;
  int64_t padded, together, blocks_together, panels_together, first_token = 0, bytes = 0, scratch_bytes = 0;
  int threads;
  bool rounded, few, amx;
  std::atomic<int32_t> nonfinite{0};
  // Of all threads: what the tokens are, and their products where they are few.
  int8_t *integers = nullptr, *blocks = nullptr;
  float *floats = nullptr, *float_sums = nullptr;
  int32_t* sums = nullptr;
  Token* tokens = nullptr;
  char* scratch = nullptr;

  struct Scratch {
    float* row;
    int8_t *natural, *own;  // `own`: where every thread rounds a single token for itself
    uint8_t* panel;
    int32_t *panel_sums, *turned;
  };

  void lay_out(char* base) {
    Pieces pieces(base);
    const int64_t whole = few ? together : round_up(together, kBlockTokens);
    pieces.take(tokens, together);
    pieces.take(integers, rounded ? whole * padded : 0);
    pieces.take(blocks, few ? 0 : whole * padded);
    pieces.take(floats, rounded ? 0 : together * padded);
    pieces.take(sums, few && rounded ? together * c.rows : 0);
    pieces.take(float_sums, rounded ? 0 : together * c.rows);
    Scratch ignored;
    scratch_bytes = lay_out_scratch(nullptr, ignored);
    pieces.take(scratch, scratch_bytes * threads);
    bytes = pieces.used();
  }

  int64_t lay_out_scratch(char* base, Scratch& s) const {
    Pieces pieces(base);
    pieces.take(s.row, padded);
    pieces.take(s.natural, padded);
    pieces.take(s.own, padded);
    pieces.take(s.panel, !few ? kPanelBytes : rounded ? padded : kFloatRows * padded);
    pieces.take(s.panel_sums, few ? 0 : panels_together * panel_size());
    pieces.take(s.turned, panels_together * kPanelRows * kBlockTokens);
    return pieces.used();
  }

  // Sums of a panel with all tokens.
  int64_t panel_size() const { return blocks_together * kBlockTokens * kPanelRows; }

  bool transform(int64_t token, float* row) {
    const char* x = static_cast<const char*>(c.x) + token * c.x_stride * (c.dtype == 0 ? 4 : 2);
    if (transform_row(x, c.dtype, c.k, padded, c.block, row)) return true;
    nonfinite = 1;
    return false;
  }

  // Rounds a token into `out`, in the order of the groups.
  Token prepare(int64_t token, const Scratch& s, int8_t* out) {
    if (!transform(token, s.row)) return {};
    const float unit = quantize_row(s.row, c.k, padded, c.grid, c.alpha, s.natural);
    order(s.natural, padded, c.bits, out);
    return {unit, sum_of(s.natural, c.k)};
  }

  void run_few() {
#pragma omp parallel num_threads(threads)
    {
      Scratch s;
      lay_out_scratch(scratch + thread_number() * scratch_bytes, s);
      // Each thread takes one run of whole fours of rows.
      const int64_t fours = (c.rows + 3) / 4;
      const int64_t first = std::min(c.rows, 4 * (fours * thread_number() / thread_count()));
      const int64_t last = std::min(c.rows, 4 * (fours * (thread_number() + 1) / thread_count()));
      if (!rounded) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < c.tokens; ++t)
          if (transform(t, s.row)) order(s.row, padded, c.bits, floats + t * padded);
        if (!nonfinite) {
          multiply_floats(w, first, last, floats, int(c.tokens), float_sums + first, c.rows, s.panel);
          for (int64_t t = 0; t < c.tokens; ++t)
            finish_rows(c, t, first, last - first, float_sums + t * c.rows + first);
        }
      } else if (c.tokens == 1) {
        // Every thread for itself: that takes less time than to wait for one another.
        const Token own = prepare(0, s, s.own);
        if (!nonfinite) {
          multiply_few(w, first, last, s.own, 1, sums + first, c.rows, s.panel);
          finish_rows(c, weights, input, own, 0, first, last - first, sums + first);
        }
      } else {
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < c.tokens; ++t) tokens[t] = prepare(t, s, integers + t * padded);
        if (!nonfinite) {
          multiply_few(w, first, last, integers, int(c.tokens), sums + first, c.rows, s.panel);
          for (int64_t t = 0; t < c.tokens; ++t)
            finish_rows(c, weights, input, tokens[t], t, first, last - first, sums + t * c.rows + first);
        }
      }
    }
  }

  void run_many() {
    const int64_t count = std::min(together, c.tokens - first_token);
    const int64_t block_count = (count + kBlockTokens - 1) / kBlockTokens;
#pragma omp parallel num_threads(threads)
    {
      Scratch s;
      lay_out_scratch(scratch + thread_number() * scratch_bytes, s);
#pragma omp for schedule(dynamic, 1)
      for (int64_t t = 0; t < block_count * kBlockTokens; ++t) {
        if (t < count) tokens[t] = prepare(first_token + t, s, integers + t * padded);
        else std::memset(integers + t * padded, 0, padded);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t b = 0; b < block_count; ++b)
        transpose(reinterpret_cast<const int32_t*>(integers + b * kBlockTokens * padded), padded / 4, kBlockTokens,
                  int(padded / 4), reinterpret_cast<int32_t*>(blocks + b * kBlockTokens * padded), kBlockTokens);
      if (!nonfinite) {
#if defined(HEXAD_AMX)
        std::optional<TileScope> tiles;
        if (amx) tiles.emplace();
#endif
#pragma omp for schedule(dynamic, 1)
        for (int64_t first = 0; first < c.rows; first += panels_together * kPanelRows) {
          const int64_t last = std::min(c.rows, first + panels_together * kPanelRows);
          for (int64_t r = first; r < last; r += kPanelRows)
            multiply_panel(w, r, std::min<int64_t>(kPanelRows, last - r), blocks, block_count, amx,
                           s.panel_sums + (r - first) / kPanelRows * panel_size(), s.panel);
          finish_panels(first, last, count, s);
        }
      }
    }
  }

  void finish_panels(int64_t first_row, int64_t last_row, int64_t count, const Scratch& s) const {
    const int64_t stride = panels_together * kPanelRows;
    for (int64_t t = 0; t < count; ++t) {
      if (t % kBlockTokens == 0)
        for (int64_t r = 0; r < last_row - first_row; r += kPanelRows)
          transpose(s.panel_sums + r / kPanelRows * panel_size() + t * kPanelRows, kBlockTokens, kPanelRows,
                    kBlockTokens, s.turned + r, stride);
      finish_rows(c, weights, input, tokens[t], first_token + t, first_row, last_row - first_row,
                  s.turned + t % kBlockTokens * stride);
    }
  }
};

}  // namespace
}  // namespace hexad

extern "C" {

// 0: done. 1: out of memory. 2: levels that weight_form refuses.
int32_t hexad_low_bit_linear(hexad::LinearCall* call) {
  hexad::WeightForm form;
  if (!hexad::weight_form(call->levels, call->level_count, form)) return 2;
  return hexad::Linear(*call, form).run() ? 0 : 1;
}

// Bit 0: AMX serves. Bit 1: few tokens meet packed weights in registers. Bits 8 and up: floats in a vector.
int32_t hexad_linear_features() {
  return int32_t(hexad::amx_serves()) | int32_t(hexad::few_in_registers(4)) << 1 | hexad::kWidth << 8;
}

}  // extern "C"
