// One call of block-sparse attention with one engine: the packing of operands and the schedule.
//
// A call runs in three parallel passes over one team of threads: the mean key (INT8 only), the packing of every
// key tile for the products, and the query tiles, each of which walks its kept key tiles panel by panel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "memory.h"
#include "numbers.h"
#include "panel.h"
#include "products.h"
#include "rows.h"
#include "simd.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace hexad {

// Mirrored by `_AttentionCall` in cpu.py, field by field.
struct AttentionCall {
  Array q, k, v, out;
  const uint8_t* mask;        // (batch, q_heads, q_blocks, k_blocks)
  const float* pv_threshold;  // (q_heads), or null
  int64_t batch, q_heads, k_heads, n_q, n_k, dim, value_dim;
  int64_t block_q, block_k;
  int64_t panel;  // queries that decide together in the second filter, and work together in any case
  float scale;    // positive
  int32_t dtype, is_causal, quantize, threads, use_amx;
  // Results.
  int64_t skipped;    // (tile, panel) pairs that the second filter left out
  int64_t empty;      // queries that saw no key; their output is 0
  // Bit 0, 1, 2: q, k, v hold NaN or infinity. Bit 3: scores overflow float32. The output is then meaningless.
  int32_t nonfinite;
};

template <class E>
class Attention {
 public:
  explicit Attention(AttentionCall& call) : c(call) {
    q_blocks = (c.n_q + c.block_q - 1) / c.block_q;
    k_blocks = (c.n_k + c.block_k - 1) / c.block_k;
    key_dims = round_up(c.dim, E::kDimMultiple);
    panel_rows = std::min({c.panel, c.block_q, c.n_q});
    shape.lanes = int(round_up(panel_rows, E::kLaneMultiple));
    shape.dim_packs = int(key_dims / E::kKeyPack);
    shape.keys_a_tile = int(round_up(std::min(c.block_k, c.n_k), E::kKeyMultiple));
    shape.value_dims = int(round_up(c.value_dim, E::kValueDimMultiple));
    shape.tiles_a_step = std::clamp(kKeysAStep / shape.keys_a_tile, 1, Panel<E>::kMostTilesAStep);

    key_bytes = int64_t(E::kKeyTerms) * shape.keys_a_tile * key_dims * sizeof(typename E::Key);
    value_bytes = int64_t(E::kWeightTerms) * shape.keys_a_tile * shape.value_dims * sizeof(typename E::Weight);
    // Rows that already lie as a product reads them need no copy; strided ones would fall on few cache sets.
    const bool same_key = std::is_same_v<typename E::Key, float>      ? c.dtype == kFloat32
                          : std::is_same_v<typename E::Key, BFloat16> ? c.dtype == kBFloat16
                                                                      : false;
    keys_in_place = same_key && E::kKeyTerms == 1 && !c.quantize && key_dims == c.dim && c.k.stride[2] == c.dim;
    values_in_place = std::is_same_v<typename E::Weight, float> && c.dtype == kFloat32 && c.v.stride[2] == c.value_dim;
    // Products that read whole groups of keys must not run over the end of the caller's memory.
    first_copied_tile = std::max<int64_t>(0, (c.n_k - shape.keys_a_tile) / c.block_k + 1);
    if (c.n_k < shape.keys_a_tile) first_copied_tile = 0;
    if (!keys_in_place) first_copied_tile = 0;
  }

  // False if there is not enough memory.
  bool run() {
    const int threads = std::max(1, c.threads);
    lay_out(nullptr, threads);
    Workspace workspace(total_bytes);
    if (!workspace.data()) return false;
    lay_out(workspace.data(), threads);
    int64_t skipped = 0, empty = 0;
    int32_t nonfinite = 0;
    const int64_t key_heads = c.batch * c.k_heads, query_tiles = c.batch * c.q_heads * q_blocks;
#pragma omp parallel num_threads(threads) reduction(+ : skipped, empty) reduction(| : nonfinite)
    {
#if defined(HEXAD_AMX)
      std::conditional_t<E::kAmx, TileScope, int> tiles{};
      (void)tiles;
#endif
#if defined(_OPENMP)
      Scratch scratch = scratch_of(omp_get_thread_num());
#else
      Scratch scratch = scratch_of(0);
#endif
      if (c.quantize) {
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < key_heads * mean_chunks; ++at) sum_keys(at / mean_chunks, at % mean_chunks, scratch);
#pragma omp for schedule(static)
        for (int64_t head = 0; head < key_heads; ++head) finish_mean(head);
      }
#pragma omp for schedule(dynamic, 4)
      for (int64_t at = 0; at < key_heads * k_blocks; ++at)
        nonfinite |= pack_tile(at / k_blocks, at % k_blocks, scratch);
      // Causal rows grow with the query, so the longest come first: no thread is left alone with one.
#pragma omp for schedule(dynamic, 1)
      for (int64_t at = 0; at < query_tiles; ++at)
        nonfinite |= attend_tile(at / q_blocks, q_blocks - 1 - at % q_blocks, scratch, skipped, empty);
    }
    c.skipped = skipped;
    c.empty = empty;
    c.nonfinite = nonfinite;
    return true;
  }

 private:
  // Keys that one step of the online softmax takes together, where tiles are smaller than that.
  static constexpr int kKeysAStep = E::kAmx ? 128 : 64;
  static constexpr int64_t kMeanChunk = 1024;

  struct Scratch {
    Panel<E>* panels; // of one query tile
    float* rows;      // [most rows][dim or value_dims] in float32
    int32_t* packs;   // [term][most rows][packs] before they are transposed
    int64_t* kept;    // key tiles of one query tile
  };

  AttentionCall& c;
  int64_t q_blocks, k_blocks, key_dims, panel_rows, key_bytes, value_bytes, first_copied_tile;
  bool keys_in_place, values_in_place;
  PanelShape shape;
  char *keys = nullptr, *values = nullptr;
  float *key_scales = nullptr, *mean_sums = nullptr, *means = nullptr;
  int32_t* key_sums = nullptr;
  char* scratch_base = nullptr;
  int64_t mean_chunks = 0, scratch_bytes = 0, total_bytes = 0;

  void lay_out(char* base, int threads) {
    const int64_t key_heads = c.batch * c.k_heads, tiles = key_heads * k_blocks;
    mean_chunks = (c.n_k + kMeanChunk - 1) / kMeanChunk;
    Pieces pieces(base);
    // Tiles used in place leave their part of `keys` untouched, and so without memory.
    pieces.take(keys, first_copied_tile < k_blocks ? tiles * key_bytes : 0);
    pieces.take(values, values_in_place ? 0 : tiles * value_bytes);
    pieces.take(key_scales, c.quantize ? tiles : 0);
    pieces.take(key_sums, c.quantize ? tiles * shape.keys_a_tile : 0);
    pieces.take(mean_sums, c.quantize ? key_heads * mean_chunks * c.dim : 0);
    pieces.take(means, c.quantize ? key_heads * c.dim : 0);
    scratch_bytes = lay_out_scratch(nullptr).second;
    pieces.take(scratch_base, scratch_bytes * threads);
    total_bytes = pieces.used();
  }

  Scratch scratch_of(int thread) { return lay_out_scratch(scratch_base + thread * scratch_bytes).first; }

  std::pair<Scratch, int64_t> lay_out_scratch(char* base) {
    const int64_t lanes = shape.lanes, step_keys = int64_t(shape.tiles_a_step) * shape.keys_a_tile;
    const int64_t rows = std::max<int64_t>(lanes, shape.keys_a_tile);
    const int64_t dims = std::max<int64_t>(key_dims, shape.value_dims);
    const int64_t panels = (std::min(c.block_q, c.n_q) + panel_rows - 1) / panel_rows;
    Scratch s;
    Pieces pieces(base);
    pieces.take(s.panels, panels);
    PanelBuffers common;
    pieces.take(common.scores, step_keys * lanes);
    if (E::kWeightPack == 1)
      common.weights = reinterpret_cast<int32_t*>(common.scores);
    else
      pieces.take(common.weights, E::kWeightTerms * step_keys / E::kWeightPack * lanes);
    pieces.take(common.tile_max, lanes);
    pieces.take(common.step_max, lanes);
    for (int64_t p = 0; p < panels; ++p) {
      PanelBuffers own = common;
      pieces.take(own.queries, E::kKeyTerms * shape.dim_packs * lanes);
      pieces.take(own.output, shape.value_dims * lanes);
      pieces.take(own.reference, lanes);
      pieces.take(own.running, lanes);
      pieces.take(own.sum, lanes);
      pieces.take(own.last_key, lanes);
      if (base) s.panels[p] = Panel<E>{shape, own};
    }
    pieces.take(s.rows, std::max<int64_t>(rows, 2) * round_up(dims, kWidth));
    pieces.take(s.packs, 3 * rows * dims);
    pieces.take(s.kept, k_blocks);
    return {s, pieces.used()};
  }

  // --- The mean key of a head, which INT8 leaves out: it widens the range and changes no softmax ---

  void sum_keys(int64_t head, int64_t chunk, Scratch& s) {
    float* sum = mean_sums + (head * mean_chunks + chunk) * c.dim;
    std::fill_n(sum, c.dim, 0.0f);
    const int64_t end = std::min(c.n_k, (chunk + 1) * kMeanChunk);
    for (int64_t n = chunk * kMeanChunk; n < end; ++n) {
      read_checked(row_address(c.k, c.dtype, head / c.k_heads, head % c.k_heads, n), c.dtype, int(c.dim), s.rows);
      for (int64_t i = 0; i < c.dim; ++i) sum[i] += s.rows[i];
    }
  }

  void finish_mean(int64_t head) {
    for (int64_t i = 0; i < c.dim; ++i) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < mean_chunks; ++chunk) sum += mean_sums[(head * mean_chunks + chunk) * c.dim + i];
      means[head * c.dim + i] = float(sum / double(c.n_k));
    }
  }

  // --- Packing ---

  // One row of Q or K as the first product reads it, padded with zeros.
  void encode_row(const float* x, float quantum, bool is_query, char* out, int64_t term_bytes) const {
    const int dim = int(c.dim), padded = int(key_dims);
    if constexpr (std::is_same_v<typename E::Key, float>) {
      float* to = reinterpret_cast<float*>(out);
      if (c.quantize)
        // Integers below 2^24 and their products' sums are exact in float32, so this is the int8 product.
        for (int i = 0; i < dim; ++i) {
          const float scaled = x[i] / quantum;
          to[i] = float(int32_t(scaled + (scaled < 0 ? -0.5f : 0.5f)));
        }
      else
        std::memcpy(to, x, dim * sizeof(float));
      std::fill(to + dim, to + padded, 0.0f);
    } else if constexpr (std::is_same_v<typename E::Key, BFloat16>) {
      uint16_t* to = reinterpret_cast<uint16_t*>(out);
      split_row<E::kKeyTerms>(x, dim, to, term_bytes / 2);
      for (int t = 0; t < E::kKeyTerms; ++t)
        std::fill(to + t * term_bytes / 2 + dim, to + t * term_bytes / 2 + padded, uint16_t(0));
    } else {
      int8_t* to = reinterpret_cast<int8_t*>(out);
      quantize_row(x, dim, quantum, to);
      std::fill(to + dim, to + padded, int8_t(0));
      if (is_query && !E::kAmx)
        for (int i = 0; i < padded; ++i) to[i] = int8_t(uint8_t(to[i]) ^ 0x80u);
    }
  }

  int32_t pack_tile(int64_t head, int64_t j, Scratch& s) {
    const int64_t b = head / c.k_heads, h = head % c.k_heads, first = j * c.block_k;
    const int count = int(std::min(c.block_k, c.n_k - first));
    const int64_t tile = head * k_blocks + j;
    const char* k_row = row_address(c.k, c.dtype, b, h, first);
    const char* v_row = row_address(c.v, c.dtype, b, h, first);
    const int64_t size = c.dtype == kFloat32 ? 4 : 2;
    bool finite_k = true, finite_v = true;
    if (j < first_copied_tile)
      finite_k = is_finite(k_row, c.dtype, int(count * c.dim));
    else
      finite_k = pack_keys(head, tile, k_row, c.k.stride[2] * size, count, s);
    if (values_in_place)
      finite_v = is_finite(v_row, c.dtype, int(count * c.value_dim));
    else
      finite_v = pack_values(tile, v_row, c.v.stride[2] * size, count, s);
    return (finite_k ? 0 : 2) | (finite_v ? 0 : 4);
  }

  bool pack_keys(int64_t head, int64_t tile, const char* row, int64_t row_bytes, int count, Scratch& s) {
    const int dim = int(c.dim);
    bool finite = true;
    for (int r = 0; r < count; ++r) finite &= read_checked(row + r * row_bytes, c.dtype, dim, s.rows + r * dim);
    if (!finite) return false;
    float quantum = 1.0f;
    if (c.quantize) {
      const float* mean = means + head * c.dim;
      for (int r = 0; r < count; ++r)
        for (int i = 0; i < dim; ++i) s.rows[r * dim + i] -= mean[i];
      quantum = quantization_scale(absolute_maximum(s.rows, count * dim));
      key_scales[tile] = quantum;
    }
    char* out = keys + tile * key_bytes;
    const int64_t key_row = key_dims * sizeof(typename E::Key), term_bytes = key_row * shape.keys_a_tile;
    for (int r = 0; r < count; ++r) encode_row(s.rows + r * dim, quantum, false, out + r * key_row, term_bytes);
    for (int t = 0; t < E::kKeyTerms; ++t)
      std::memset(out + t * term_bytes + count * key_row, 0, (shape.keys_a_tile - count) * key_row);
    if constexpr (std::is_same_v<typename E::Key, int8_t> && !E::kAmx)
      for (int r = 0; r < count; ++r) {
        int32_t sum = 0;
        for (int i = 0; i < dim; ++i) sum += reinterpret_cast<const int8_t*>(out + r * key_row)[i];
        key_sums[tile * shape.keys_a_tile + r] = -128 * sum;
      }
    return true;
  }

  bool pack_values(int64_t tile, const char* row, int64_t row_bytes, int count, Scratch& s) {
    const int dim = int(c.value_dim), padded = shape.value_dims;
    char* out = values + tile * value_bytes;
    bool finite = true;
    if constexpr (E::kWeightPack == 1) {
      for (int r = 0; r < count; ++r)
        finite &= read_checked(row + r * row_bytes, c.dtype, dim, reinterpret_cast<float*>(out) + r * dim);
    } else {
      // Pairs of keys side by side, [key pair][value dim]; AMX reads them with the value dim outermost.
      constexpr int T = E::kWeightTerms;
      const int pairs = shape.keys_a_tile / 2;
      const int64_t row_floats = round_up(padded, kWidth);
      int32_t* packs = E::kAmx ? s.packs : reinterpret_cast<int32_t*>(out);
      float *even = s.rows, *odd = even + row_floats;
      std::fill_n(even, 2 * row_floats, 0.0f);
      for (int p = 0; p < pairs; ++p) {
        for (int side = 0; side < 2; ++side) {
          float* x = side ? odd : even;
          const int r = 2 * p + side;
          if (r < count)
            finite &= read_checked(row + r * row_bytes, c.dtype, dim, x);
          else
            std::fill_n(x, dim, 0.0f);
        }
        for (int i = 0; i < padded; i += kWidth) {
          VecU first[T];
          split<T>(load(even + i), [&](int t, VecU term) { first[t] = term >> 16; });
          split<T>(load(odd + i), [&](int t, VecU term) {
            const VecU pack = term | first[t];
            std::memcpy(packs + (t * pairs + p) * padded + i, &pack, std::min(padded - i, kWidth) * 4);
          });
        }
      }
      if constexpr (E::kAmx)
        for (int t = 0; t < T; ++t)
          transpose(packs + t * pairs * padded, padded, pairs, padded,
                    reinterpret_cast<int32_t*>(out) + t * pairs * padded, pairs);
    }
    return finite;
  }

  KeyTile key_tile(int64_t b, int64_t h, int64_t j) const {
    const int64_t tile = (b * c.k_heads + h) * k_blocks + j;
    KeyTile t;
    t.first_key = j * c.block_k;
    t.count = int(std::min(c.block_k, c.n_k - t.first_key));
    t.key_row = key_dims * sizeof(typename E::Key);
    t.key_term = t.key_row * shape.keys_a_tile;
    t.keys = j < first_copied_tile ? row_address(c.k, c.dtype, b, h, t.first_key) : keys + tile * key_bytes;
    t.scale = c.quantize ? key_scales[tile] : 1.0f;
    t.key_sums = c.quantize ? key_sums + tile * shape.keys_a_tile : nullptr;
    t.values = values_in_place ? row_address(c.v, c.dtype, b, h, t.first_key) : values + tile * value_bytes;
    t.value_row = E::kAmx ? shape.keys_a_tile * 2 : shape.value_dims * 4;
    t.value_term = int64_t(shape.keys_a_tile) * shape.value_dims * 2;
    return t;
  }

  // --- Query tiles ---

  int32_t attend_tile(int64_t head, int64_t i, Scratch& s, int64_t& skipped, int64_t& empty) {
    const int64_t b = head / c.q_heads, h = head % c.q_heads, offset = c.n_k - c.n_q;
    const int64_t first = i * c.block_q, end = std::min(first + c.block_q, c.n_q);
    const uint8_t* row = c.mask + (head * q_blocks + i) * k_blocks;
    const int64_t reachable = c.is_causal ? std::min(k_blocks, (end - 1 + offset) / c.block_k + 1) : k_blocks;
    int64_t kept = 0;
    for (int64_t j = 0; j < reachable; ++j)
      if (row[j]) s.kept[kept++] = j;

    float quantum = 1.0f;
    const int dim = int(c.dim);
    if (c.quantize) {
      float largest = 0.0f;
      for (int64_t n = first; n < end; ++n) {
        if (!read_checked(row_address(c.q, c.dtype, b, h, n), c.dtype, dim, s.rows)) return 1;
        largest = std::max(largest, absolute_maximum(s.rows, dim));
      }
      quantum = quantization_scale(largest);
    }
    // All panels of the tile take a step before the next one begins: its keys and values come from memory once.
    const int64_t group = c.q_heads / c.k_heads, panels = (end - first + panel_rows - 1) / panel_rows;
    const float factor = c.scale * 1.44269504088896340736f * quantum;
    for (int64_t p = 0; p < panels; ++p)
      if (!start_panel(s.panels[p], b, h, first + p * panel_rows, end, quantum, factor, s)) return 1;
    const float* threshold = c.pv_threshold ? c.pv_threshold + h : nullptr;
    for (int64_t n = 0; n < kept; n += shape.tiles_a_step) {
      KeyTile tiles[Panel<E>::kMostTilesAStep];
      const int count = int(std::min<int64_t>(shape.tiles_a_step, kept - n));
      for (int t = 0; t < count; ++t) tiles[t] = key_tile(b, h / group, s.kept[n + t]);
      for (int64_t p = 0; p < panels; ++p) skipped += s.panels[p].step(tiles, count, threshold);
    }
    int32_t nonfinite = 0;
    for (int64_t p = 0; p < panels; ++p)
      empty += finish_panel(s.panels[p], b, h, first + p * panel_rows, end, s, nonfinite);
    return nonfinite;
  }

  bool start_panel(Panel<E>& panel, int64_t b, int64_t h, int64_t first, int64_t end, float quantum, float factor,
                   Scratch& s) {
    const int rows = int(std::min(panel_rows, end - first)), packs = shape.dim_packs;
    const int lanes = int(round_up(rows, E::kLaneMultiple));
    const int64_t term_packs = int64_t(lanes) * packs, offset = c.n_k - c.n_q;
    panel.shape.lanes = lanes;
    panel.scale = factor;
    panel.visible_to_all = c.is_causal ? first + offset : std::numeric_limits<int64_t>::max();
    panel.output_is_empty = true;
    std::memset(s.packs, 0, E::kKeyTerms * term_packs * 4);
    for (int r = 0; r < rows; ++r) {
      if (!read_checked(row_address(c.q, c.dtype, b, h, first + r), c.dtype, int(c.dim), s.rows)) return false;
      encode_row(s.rows, quantum, true, reinterpret_cast<char*>(s.packs + int64_t(r) * packs), term_packs * 4);
    }
    const PanelBuffers& buffer = panel.buffer;
    for (int t = 0; t < E::kKeyTerms; ++t)
      transpose(s.packs + t * term_packs, packs, lanes, packs, buffer.queries + t * term_packs, lanes);
    for (int lane = 0; lane < lanes; ++lane) {
      buffer.reference[lane] = kFloor;
      buffer.sum[lane] = 0.0f;
      // A lane without a query must never let a tile pass the second filter.
      buffer.running[lane] = lane < rows ? kFloor : std::numeric_limits<float>::max();
      buffer.last_key[lane] =
          c.is_causal && lane < rows ? int32_t(first + lane + offset) : std::numeric_limits<int32_t>::max();
    }
    return true;
  }

  // Divides by the normaliser and writes the panel's rows; returns how many saw no key.
  int64_t finish_panel(Panel<E>& panel, int64_t b, int64_t h, int64_t first, int64_t end, Scratch& s,
                       int32_t& nonfinite) {
    const int rows = int(std::min(panel_rows, end - first)), lanes = panel.shape.lanes, dims = shape.value_dims;
    const PanelBuffers& buffer = panel.buffer;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    int64_t empty = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      // A query with a key has a sum that its largest score made at least 2^-kSlack, unless scores overflowed.
      const bool saw_none = buffer.reference[lane] <= kFloor;
      const float sum = buffer.sum[lane], reference = buffer.reference[lane];
      if (lane < rows && !saw_none && !(sum > 0 && sum < infinity && reference < infinity)) nonfinite |= 8;
      buffer.sum[lane] = saw_none ? 0.0f : 1.0f / buffer.sum[lane];
      empty += saw_none && lane < rows;
    }
    if (panel.output_is_empty) std::fill_n(buffer.output, int64_t(dims) * lanes, 0.0f);
    for (int d = 0; d < dims; ++d)
      for (int lane = 0; lane < lanes; lane += kWidth) {
        float* out = buffer.output + int64_t(d) * lanes + lane;
        store(out, load(out) * load(buffer.sum + lane));
      }
    transpose(reinterpret_cast<const int32_t*>(buffer.output), lanes, dims, lanes, reinterpret_cast<int32_t*>(s.rows),
              dims);
    for (int r = 0; r < rows; ++r)
      write(s.rows + int64_t(r) * dims, int(c.value_dim), c.dtype,
            const_cast<char*>(row_address(c.out, c.dtype, b, h, first + r)));
    return empty;
  }
};

// 0: done. 1: out of memory.
template <class E>
int attend(AttentionCall& call) {
  return Attention<E>(call).run() ? 0 : 1;
}

// Each set of engines is a source of its own, so that they compile side by side.
int attend_on_matrix_unit(AttentionCall& call);
int attend_on_vector_unit(AttentionCall& call);

}  // namespace hexad
