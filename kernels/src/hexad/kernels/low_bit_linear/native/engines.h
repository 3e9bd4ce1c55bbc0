// The integer products: sums[token][row] = sum over k of a[token][k] * w[row][k], in int32. A row has at most
// 2^16 codes, so that no sum overflows.
#pragma once

#include <cstdint>

#include "call.h"
#include "layout.h"

namespace hexad {

// Packed rows and what their codes stand for.
struct Weights {
  const uint8_t* packed;
  int64_t row_bytes, padded;  // of one row; `padded` in codes
  int32_t bits;
  const WeightForm* form;
  const uint8_t* row(int64_t r) const { return packed + r * row_bytes; }
};

template <int Bits>
inline void unpack_row(const Weights& w, int64_t row, int64_t first_group, int64_t groups, uint8_t* to) {
  const int64_t from = first_group * group_bytes(Bits);
  unpack<Bits>(w.row(row) + from, w.row_bytes - from, groups, to);
  if (w.form->lookup) look_up(w.form->table, Bits, int(groups * group_codes(Bits)), to);
}

// Few tokens: the weights are read once and pass through registers, each with every token. `a` has `padded`
// numbers a token; sums go to sums[token * sums_stride + row - first_row]. `scratch` has room for `padded` bytes.
constexpr int kFewTokens = 4;
void multiply_few(const Weights& w, int64_t first_row, int64_t last_row, const int8_t* a, int tokens, int32_t* sums,
                  int64_t sums_stride, uint8_t* scratch);
bool few_in_registers(int bits);

// The same with float32 tokens; the sums are those of levels, not of w. `scratch` has room for kFloatRows rows.
constexpr int kFloatRows = 4;
void multiply_floats(const Weights& w, int64_t first_row, int64_t last_row, const float* x, int tokens, float* sums,
                     int64_t sums_stride, uint8_t* scratch);
// The codes of a row in their natural order, and its levels as numbers of `dtype` into row `row` of `out`, a matrix
// of k columns. The scratch has room for `padded` bytes, twice for the levels.
void natural_codes(const Weights& w, int64_t row, uint8_t* scratch, uint8_t* to);
void write_row_levels(const Weights& w, int64_t row, int64_t k, int32_t dtype, void* out, uint8_t* scratch);

// Many tokens: 16 of them make a block, in which the numbers of four steps of k lie together for each token:
// blocks[block][k / 4][16][4]. A panel of rows is unpacked piece by piece into a thread's first-level cache.
constexpr int kBlockTokens = 16;
constexpr int kPanelRows = 32;
// The codes of a row in a piece: whole groups of any width. Rows a power of two of bytes apart would meet in few lines
// of the cache, hence a line between them.
constexpr int kPieceCodes = 512;
constexpr int64_t kPieceStride = kPieceCodes + 64;
constexpr int64_t kPanelBytes = kPanelRows * kPieceStride;

// sums[block][row][token] of the panel, with room for an even number of blocks. `use_amx` needs amx_serves() and a
// TileScope of the thread.
void multiply_panel(const Weights& w, int64_t first_row, int64_t rows, const int8_t* blocks, int64_t block_count,
                    bool use_amx, int32_t* sums, uint8_t* scratch);
bool amx_serves();

}  // namespace hexad
