// Attention of one panel of queries over its kept key tiles: the online softmax of SpargeAttn, algorithm 1.
//
// A panel is up to some tens of queries of one query tile, one a lane. Scores, weights and output are kept
// transposed (key or head dim by query), so that maxima, sums and rescaling go lane by lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "numbers.h"
#include "products.h"
#include "simd.h"

namespace hexad {

// How the two products are computed. Key is the number format of Q and K, Weight that of P and V, each a sum of
// so many terms; Amx says which unit multiplies; Degree is that of the polynomial for 2^x.
template <class KeyFormat, int KeyTermCount, class WeightFormat, int WeightTermCount, bool UseAmx, int ExpDegree>
struct Engine {
  typedef KeyFormat Key;
  typedef WeightFormat Weight;
  typedef std::conditional_t<std::is_same_v<Key, int8_t>, int32_t, float> Score;
  static constexpr int kKeyTerms = KeyTermCount, kWeightTerms = WeightTermCount, kDegree = ExpDegree;
  static constexpr bool kAmx = UseAmx;
  // Whether the matrix unit sums each step by itself, from zero. A float32 sum of thousands of terms loses digits
  // that sums of sums keep; formats of fewer bits do not see the difference.
  static constexpr bool kSumsOfSums = WeightTermCount == 3;
  static constexpr int kKeyPack = 4 / sizeof(Key), kWeightPack = 4 / sizeof(Weight);
  // AMX works on 32 lanes, 32 keys or head dims and 64-byte steps at a time; packed operands are zero-padded.
  static constexpr int kLaneMultiple = kAmx ? 32 : kWidth;
  static constexpr int kKeyMultiple = kAmx ? 32 : kWeightPack;
  static constexpr int kDimMultiple = kAmx ? 64 / sizeof(Key) : kKeyPack;
  static constexpr int kValueDimMultiple = kAmx ? 32 : 1;
};

// Where a key tile's operands lie.
struct KeyTile {
  const char* keys;         // row r, term t at keys + r * key_row + t * key_term bytes
  ptrdiff_t key_row, key_term;
  const int32_t* key_sums;  // -128 * sum of each key's int8 numbers, where the vector unit needs it
  float scale;              // of the int8 numbers, 1 otherwise
  const char* values;       // AMX: V^T, row d; else row of keys or key pairs
  ptrdiff_t value_row, value_term;
  int count;                // keys
  int64_t first_key;
};

struct PanelShape {
  int lanes, dim_packs, keys_a_tile, value_dims, tiles_a_step;
};

// Scores, weights and the last two are shared by a thread's panels; the rest is each panel's own.
struct PanelBuffers {
  int32_t* queries;  // [term][dim_packs][lanes]
  float* scores;     // [tiles_a_step][keys_a_tile][lanes], int32 where keys are int8
  int32_t* weights;  // [term][tiles_a_step][keys_a_tile / pack][lanes]; float32 weights overwrite the scores
  float* output;     // [value_dims][lanes]
  float* reference;  // [lanes] what weights are relative to, within kSlack of the running maximum
  float* running;    // [lanes] the running maximum itself, for the second filter
  float* sum;        // [lanes] the normaliser
  int32_t* last_key; // [lanes] causal: the last key a query sees
  float* tile_max;   // [lanes]
  float* step_max;   // [lanes]
};

// Weights are taken relative to a reference that lags behind the running maximum by at most this much
// (base 2), so output and normaliser are rescaled seldom. 2^8 more or less changes no relative error.
constexpr float kSlack = 8.0f;
// Below every score: the reference before the first one. kHidden, for keys that a query does not see, lies
// far below that again, so that its weight is 0 whatever the reference.
constexpr float kFloor = -1e20f;
constexpr float kHidden = -1e30f;

template <class E>
struct Panel {
  PanelShape shape;
  PanelBuffers buffer;
  float scale = 1;             // of the scores, base 2, times that of the queries' int8 numbers
  int64_t visible_to_all = 0;  // the last key that every query sees
  bool output_is_empty = true;  // nothing has been added to it yet, and it is not even cleared

  typedef typename E::Score Score;

  Score* tile_scores(int t) const {
    return reinterpret_cast<Score*>(buffer.scores) + ptrdiff_t(t) * shape.keys_a_tile * shape.lanes;
  }
  int32_t* tile_weights(int t) const {
    return buffer.weights + ptrdiff_t(t) * (shape.keys_a_tile / E::kWeightPack) * shape.lanes;
  }
  ptrdiff_t weight_term() const {
    return ptrdiff_t(shape.tiles_a_step) * (shape.keys_a_tile / E::kWeightPack) * shape.lanes;
  }

  // S^T = K Q^T, unscaled.
  void compute_scores(const KeyTile& tile, int t) const {
    const ptrdiff_t lanes = shape.lanes;
    Score* scores = tile_scores(t);
    if constexpr (E::kAmx) {
#if defined(HEXAD_AMX)
      const int steps = shape.dim_packs / 16;
      for (int key = 0; key < tile.count; key += 32)
        for (int lane = 0; lane < lanes; lane += 32) {
          amx_clear();
          amx_add<E::kKeyTerms, std::is_same_v<typename E::Key, int8_t>>(
              tile.keys + key * tile.key_row, tile.key_row, tile.key_term, buffer.queries + lane, lanes,
              shape.dim_packs * lanes, steps);
          amx_store(scores + key * lanes + lane, lanes);
        }
#endif
    } else if constexpr (std::is_same_v<typename E::Key, float>) {
      product<DotF32>(tile.keys, tile.key_row, 4, tile.count, buffer.queries, lanes, shape.dim_packs, nullptr, false,
                      scores);
    } else if constexpr (std::is_same_v<typename E::Key, BFloat16>) {
#if defined(HEXAD_DOT_BF16)
      product<DotBF16>(tile.keys, tile.key_row, 4, tile.count, buffer.queries, lanes, shape.dim_packs, nullptr, false,
                       scores);
#endif
    } else {
#if defined(HEXAD_DOT_I8)
      product<DotI8>(tile.keys, tile.key_row, 4, tile.count, buffer.queries, lanes, shape.dim_packs, tile.key_sums,
                     false, scores);
#endif
    }
  }

  // Largest scaled score of each query in the tile, to buffer.tile_max. `Masked`: hidden keys do not count.
  template <bool Masked>
  void compute_maxima(const KeyTile& tile, int t) const {
    const Score* scores = tile_scores(t);
    const float factor = scale * tile.scale;
    for_lanes([&](auto vectors, int lane) {
      constexpr int V = decltype(vectors)::value;
      if constexpr (Masked) {
        VecF best[V];
        VecI last[V];
        for (int v = 0; v < V; ++v) {
          best[v] = splat(kHidden);
          last[v] = load(buffer.last_key + lane + v * kWidth) - int32_t(tile.first_key);
        }
        for (int r = 0; r < tile.count; ++r)
          for (int v = 0; v < V; ++v) {
            const VecF x = to_float(load(scores + ptrdiff_t(r) * shape.lanes + lane + v * kWidth)) * factor;
            best[v] = maximum(best[v], last[v] >= r ? x : splat(kHidden));
          }
        for (int v = 0; v < V; ++v) store(buffer.tile_max + lane + v * kWidth, best[v]);
      } else {
        decltype(load(scores)) best[V];
        for (int v = 0; v < V; ++v) best[v] = load(scores + lane + v * kWidth);
        for (int r = 1; r < tile.count; ++r)
          for (int v = 0; v < V; ++v)
            best[v] = maximum(best[v], load(scores + ptrdiff_t(r) * shape.lanes + lane + v * kWidth));
        for (int v = 0; v < V; ++v) store(buffer.tile_max + lane + v * kWidth, to_float(best[v]) * factor);
      }
    });
  }

  // The second filter: whether any query's maximum rises to within `threshold` of its running maximum.
  // Where it does, the running maxima move on.
  bool enters(float threshold) const {
    bool any = false;
    for (int lane = 0; lane < shape.lanes; lane += kWidth)
      any |= any_greater(load(buffer.tile_max + lane) - load(buffer.running + lane) + threshold, VecF{});
    if (any)
      for (int lane = 0; lane < shape.lanes; lane += kWidth)
        store(buffer.running + lane, maximum(load(buffer.running + lane), load(buffer.tile_max + lane)));
    return any;
  }

  // Moves the reference up where it lags too far behind, and normaliser and output with it.
  void follow_maximum() const {
    bool lags = false;
    for (int lane = 0; lane < shape.lanes; lane += kWidth)
      lags |= any_greater(load(buffer.step_max + lane), load(buffer.reference + lane) + kSlack);
    if (!lags) return;
    for (int lane = 0; lane < shape.lanes; lane += kWidth) {
      const VecF before = load(buffer.reference + lane);
      const VecF after = maximum(before, load(buffer.step_max + lane));
      const VecF factor = exp2<5>(before - after);
      store(buffer.reference + lane, after);
      store(buffer.sum + lane, load(buffer.sum + lane) * factor);
      if (!output_is_empty)
        for (int d = 0; d < shape.value_dims; ++d) {
          float* out = buffer.output + ptrdiff_t(d) * shape.lanes + lane;
          store(out, load(out) * factor);
        }
    }
  }

  // P = 2^(S - reference), added to the normaliser and encoded for the second product.
  template <bool Masked>
  void compute_weights(const KeyTile& tile, int t) const {
    const Score* scores = tile_scores(t);
    int32_t* weights = tile_weights(t);
    const float factor = scale * tile.scale;
    const ptrdiff_t lanes = shape.lanes;
    for_lanes([&](auto vectors, int lane) {
      constexpr int V = decltype(vectors)::value;
      VecF reference[V], sum[V];
      VecI last[V];
      for (int v = 0; v < V; ++v) {
        reference[v] = load(buffer.reference + lane + v * kWidth);
        sum[v] = VecF{};
        if constexpr (Masked) last[v] = load(buffer.last_key + lane + v * kWidth) - int32_t(tile.first_key);
      }
      auto weight = [&](int r, int v) {
        // Rounded as the maximum was: beyond 2^31 half a unit in the last place is a factor of 2^128.
        VecF x = rounded_product(to_float(load(scores + r * lanes + lane + v * kWidth)), splat(factor)) - reference[v];
        if constexpr (Masked) x = last[v] >= r ? x : splat(kHidden);
        const VecF p = exp2<E::kDegree>(x);
        sum[v] += p;
        return p;
      };
      if constexpr (E::kWeightPack == 1) {
        for (int r = 0; r < tile.count; ++r)
          for (int v = 0; v < V; ++v) store((float*)weights + r * lanes + lane + v * kWidth, weight(r, v));
      } else {
        const int whole = tile.count / 2;
        for (int r = 0; r < whole; ++r)
          for (int v = 0; v < V; ++v) {
            const VecF even = weight(2 * r, v), odd = weight(2 * r + 1, v);
            encode_pair(even, odd, weights + r * lanes + lane + v * kWidth);
          }
        for (int r = whole; r < shape.keys_a_tile / 2; ++r)
          for (int v = 0; v < V; ++v) {
            const VecF even = 2 * r < tile.count ? weight(2 * r, v) : VecF{};
            encode_pair(even, VecF{}, weights + r * lanes + lane + v * kWidth);
          }
      }
      for (int v = 0; v < V; ++v) {
        float* total = buffer.sum + lane + v * kWidth;
        store(total, load(total) + sum[v]);
      }
    });
  }

  // Two keys' weights as bfloat16 side by side in each lane, rounded half up (weights are positive). Of several
  // terms all but the last are cut off instead of rounded: the next takes up what is left either way.
  void encode_pair(VecF even, VecF odd, int32_t* out) const {
    const uint32_t high = 0xffff0000u, half = 0x8000u;
    for (int t = 1; t < E::kWeightTerms; ++t) {
      const VecU first_even = (VecU)even & high, first_odd = (VecU)odd & high;
      store(out, (VecI)(first_odd | first_even >> 16));
      even -= (VecF)first_even;
      odd -= (VecF)first_odd;
      out += weight_term();
    }
    store(out, (VecI)((((VecU)odd + half) & high) | ((VecU)even + half) >> 16));
  }

  // O^T += V^T P^T over the tiles of a step.
  void accumulate_output(const KeyTile* tiles, const int* entered, int entered_count) const {
    const ptrdiff_t lanes = shape.lanes;
    if constexpr (E::kAmx) {
#if defined(HEXAD_AMX)
      const int steps = shape.keys_a_tile / 32;
      for (int d = 0; d < shape.value_dims; d += 32)
        for (int lane = 0; lane < lanes; lane += 32) {
          float* out = buffer.output + d * lanes + lane;
          if (output_is_empty || E::kSumsOfSums)
            amx_clear();
          else
            amx_load(out, lanes);
          for (int e = 0; e < entered_count; ++e) {
            const KeyTile& tile = tiles[entered[e]];
            amx_add<E::kWeightTerms, false>(tile.values + d * tile.value_row, tile.value_row, tile.value_term,
                                            tile_weights(entered[e]) + lane, lanes, weight_term(), steps);
          }
          if (output_is_empty || !E::kSumsOfSums) {
            amx_store(out, lanes);
            continue;
          }
          alignas(64) float partial[32 * 32];
          amx_store(partial, 32);
          for (int r = 0; r < 32; ++r)
            for (int at = 0; at < 32; at += kWidth)
              store(out + r * lanes + at, load(out + r * lanes + at) + load(partial + r * 32 + at));
        }
#endif
    } else {
      for (int e = 0; e < entered_count; ++e) {
        const KeyTile& tile = tiles[entered[e]];
        const bool accumulate = !output_is_empty || e > 0;
        if constexpr (E::kWeightPack == 1)
          product<DotF32>(tile.values, 4, tile.value_row, shape.value_dims, tile_weights(entered[e]), lanes,
                          tile.count, nullptr, accumulate, buffer.output);
#if defined(HEXAD_DOT_BF16)
        else
          product<DotBF16>(tile.values, 4, tile.value_row, shape.value_dims, tile_weights(entered[e]), lanes,
                           (tile.count + 1) / 2, nullptr, accumulate, buffer.output);
#endif
      }
    }
  }

  // Calls f(number of vectors, first lane) over all lanes, in groups that keep a row's vectors in registers.
  template <class F>
  void for_lanes(F f) const {
    int lane = 0;
    for (; lane + kVectors * kWidth <= shape.lanes; lane += kVectors * kWidth)
      f(std::integral_constant<int, kVectors>{}, lane);
    for (; lane < shape.lanes; lane += kWidth) f(std::integral_constant<int, 1>{}, lane);
  }

  // One step of the online softmax over up to tiles_a_step tiles. Returns how many the second filter left out.
  int step(const KeyTile* tiles, int count, const float* pv_threshold) {
    int entered[kMostTilesAStep], entered_count = 0;
    std::fill_n(buffer.step_max, shape.lanes, kHidden);
    for (int t = 0; t < count; ++t) compute_scores(tiles[t], t);
    for (int t = 0; t < count; ++t) {
      if (masked(tiles[t]))
        compute_maxima<true>(tiles[t], t);
      else
        compute_maxima<false>(tiles[t], t);
      if (pv_threshold && !enters(*pv_threshold)) continue;
      entered[entered_count++] = t;
      for (int lane = 0; lane < shape.lanes; lane += kWidth)
        store(buffer.step_max + lane, maximum(load(buffer.step_max + lane), load(buffer.tile_max + lane)));
    }
    if (entered_count == 0) return count;
    follow_maximum();
    for (int e = 0; e < entered_count; ++e) {
      const KeyTile& tile = tiles[entered[e]];
      if (masked(tile))
        compute_weights<true>(tile, entered[e]);
      else
        compute_weights<false>(tile, entered[e]);
    }
    accumulate_output(tiles, entered, entered_count);
    output_is_empty = false;
    return count - entered_count;
  }

  static constexpr int kMostTilesAStep = 8;

  bool masked(const KeyTile& tile) const {
    return tile.first_key + tile.count - 1 > visible_to_all;
  }
};

}  // namespace hexad
