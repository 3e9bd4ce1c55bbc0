// The first filter of SpargeAttn: which tiles to compute, from pooled queries and keys (arXiv 2502.18137,
// section 3.2). The same steps as `prediction.block_mask_from_inputs`, in one pass over q and two over k.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "memory.h"
#include "rows.h"
#include "simd.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace hexad {

// Mirrored by `_PredictCall` in cpu.py, field by field.
struct PredictCall {
  Array q, k;
  const float* theta;   // (q_heads)
  const float* tau;     // (q_heads), or null where topk is given
  const int64_t* topk;  // (q_heads) key blocks to take, or null
  uint8_t* mask;        // (batch, q_heads, q_blocks, k_blocks)
  int64_t batch, q_heads, k_heads, n_q, n_k, dim, block_q, block_k;
  float scale;
  int32_t dtype, is_causal, attention_sink, force_diagonal, smooth_k, threads;
  int32_t nonfinite;  // bit 0, 1: q, k hold NaN or infinity, and the mask is meaningless
};

namespace {

float sum_of_squares(const float* x, int n) {
  VecF sum{};
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) sum += load(x + i) * load(x + i);
  float total = sum_of_lanes(sum);
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}

class Prediction {
 public:
  explicit Prediction(PredictCall& call) : c(call) {
    q_blocks = (c.n_q + c.block_q - 1) / c.block_q;
    k_blocks = (c.n_k + c.block_k - 1) / c.block_k;
    q_heads = c.batch * c.q_heads;
    k_heads = c.batch * c.k_heads;
    chunks = (c.n_k + kMeanChunk - 1) / kMeanChunk;
  }

  bool run() {
    const int threads = std::max(1, c.threads);
    lay_out(nullptr, threads);
    Workspace workspace(bytes);
    if (!workspace.data()) return false;
    lay_out(workspace.data(), threads);
    int32_t nonfinite = 0;
#pragma omp parallel num_threads(threads) reduction(| : nonfinite)
    {
#if defined(_OPENMP)
      char* own = scratch + omp_get_thread_num() * scratch_bytes;
#else
      char* own = scratch;
#endif
      if (k_heads >= threads) {
        // A thread takes a whole head, whose keys are still in its cache when it pools them.
#pragma omp for schedule(dynamic, 1)
        for (int64_t head = 0; head < k_heads; ++head) {
          if (c.smooth_k) {
            for (int64_t chunk = 0; chunk < chunks; ++chunk) sum_keys(head, chunk, own);
            finish_mean(head);
          }
          for (int64_t j = 0; j < k_blocks; ++j)
            if (!pool_keys(head, j, own)) nonfinite |= 2;
        }
      } else {
        if (c.smooth_k) {
#pragma omp for schedule(dynamic, 1)
          for (int64_t at = 0; at < k_heads * chunks; ++at) sum_keys(at / chunks, at % chunks, own);
#pragma omp for schedule(static)
          for (int64_t head = 0; head < k_heads; ++head) finish_mean(head);
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t at = 0; at < k_heads * k_blocks; ++at)
          if (!pool_keys(at / k_blocks, at % k_blocks, own)) nonfinite |= 2;
      }
#pragma omp for schedule(dynamic, 4)
      for (int64_t at = 0; at < q_heads * q_blocks; ++at)
        if (!judge_row(at / q_blocks, at % q_blocks, own)) nonfinite |= 1;
    }
    c.nonfinite = nonfinite;
    return true;
  }

 private:
  static constexpr int64_t kMeanChunk = 256;
  static constexpr int64_t kRowsAtOnce = 64;  // so that they stay in the first-level cache

  PredictCall& c;
  int64_t q_blocks, k_blocks, q_heads, k_heads, chunks, bytes = 0, scratch_bytes = 0;
  float *mean_sums = nullptr, *means = nullptr;
  float* pooled_keys = nullptr;      // [k_heads][dim][k_blocks], so that a row of scores is a sum of rows
  float* key_similarity = nullptr;   // [k_heads][k_blocks]
  char* scratch = nullptr;

  struct Scratch {
    float *rows, *inverse_norms;  // of one block
    float *pooled, *unit;         // [dim]
    float* scores;                // [k_blocks], rounded up to whole vectors
    uint64_t* order;
  };

  void lay_out(char* base, int threads) {
    Pieces pieces(base);
    pieces.take(mean_sums, c.smooth_k ? k_heads * chunks * c.dim : 0);
    pieces.take(means, k_heads * c.dim);
    pieces.take(pooled_keys, k_heads * c.dim * k_blocks);
    pieces.take(key_similarity, k_heads * k_blocks);
    Scratch ignored;
    scratch_bytes = lay_out_scratch(nullptr, ignored);
    pieces.take(scratch, scratch_bytes * threads);
    bytes = pieces.used();
  }

  int64_t lay_out_scratch(char* base, Scratch& s) const {
    Pieces pieces(base);
    const int64_t block = std::max({c.block_q, c.block_k, kRowsAtOnce});
    pieces.take(s.rows, block * c.dim);
    pieces.take(s.inverse_norms, block);
    pieces.take(s.pooled, c.dim);
    pieces.take(s.unit, c.dim);
    pieces.take(s.scores, round_up(k_blocks, kWidth));
    pieces.take(s.order, k_blocks);
    return pieces.used();
  }

  Scratch scratch_at(char* own) const {
    Scratch s;
    lay_out_scratch(own, s);
    return s;
  }

  // Reads `count` tokens as float32, side by side. False for NaN or infinity.
  bool read_tokens(const Array& x, int64_t b, int64_t h, int64_t first, int64_t count, float* out) const {
    const char* row = row_address(x, c.dtype, b, h, first);
    if (x.stride[2] == c.dim) return read_checked(row, c.dtype, int(count * c.dim), out);
    bool finite = true;
    for (int64_t r = 0; r < count; ++r)
      finite &= read_checked(row + r * x.stride[2] * size_of(c.dtype), c.dtype, int(c.dim), out + r * c.dim);
    return finite;
  }

  void sum_keys(int64_t head, int64_t chunk, char* own) {
    const Scratch s = scratch_at(own);
    float* sum = mean_sums + (head * chunks + chunk) * c.dim;
    std::fill_n(sum, c.dim, 0.0f);
    const int64_t end = std::min(c.n_k, (chunk + 1) * kMeanChunk);
    for (int64_t n = chunk * kMeanChunk; n < end; n += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, end - n);
      // What is not finite here is met again by pool_keys, which says so.
      if (!read_tokens(c.k, head / c.k_heads, head % c.k_heads, n, count, s.rows)) return;
      add_rows(s.rows, count, sum, nullptr, nullptr);
    }
  }

  // sum += the rows; weighted, where given, += the rows, each times its weight.
  void add_rows(const float* rows, int64_t count, float* sum, const float* weights, float* weighted) const {
    const int64_t dim = c.dim;
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) {
      VecF plain{}, other{};
      for (int64_t r = 0; r < count; ++r) {
        const VecF x = load(rows + r * dim + i);
        plain += x;
        if (weighted) other += x * weights[r];
      }
      store(sum + i, load(sum + i) + plain);
      if (weighted) store(weighted + i, load(weighted + i) + other);
    }
    for (; i < dim; ++i)
      for (int64_t r = 0; r < count; ++r) {
        sum[i] += rows[r * dim + i];
        if (weighted) weighted[i] += rows[r * dim + i] * weights[r];
      }
  }

  void finish_mean(int64_t head) {
    for (int64_t i = 0; i < c.dim; ++i) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += mean_sums[(head * chunks + chunk) * c.dim + i];
      means[head * c.dim + i] = float(sum / double(c.n_k));
    }
  }

  // Mean token of a block, to s.pooled, and the mean cosine over all pairs of its tokens, which is
  // ||sum_t x_t / ||x_t|| ||^2 / n^2. A zero token is orthogonal to everything. False for NaN or infinity.
  bool pool(const Array& x, int64_t b, int64_t h, int64_t first, int64_t count, const float* mean, const Scratch& s,
            float& similarity) const {
    const int dim = int(c.dim);
    if (!read_tokens(x, b, h, first, count, s.rows)) return false;
    for (int64_t r = 0; r < count; ++r) {
      float* row = s.rows + r * dim;
      if (mean)
        for (int i = 0; i < dim; ++i) row[i] -= mean[i];
      s.inverse_norms[r] = 1.0f / std::max(std::sqrt(sum_of_squares(row, dim)), std::numeric_limits<float>::min());
    }
    std::fill_n(s.pooled, dim, 0.0f);
    std::fill_n(s.unit, dim, 0.0f);
    add_rows(s.rows, count, s.pooled, s.inverse_norms, s.unit);
    for (int i = 0; i < dim; ++i) s.pooled[i] /= float(count);
    similarity = sum_of_squares(s.unit, dim) / (float(count) * float(count));
    return true;
  }

  bool pool_keys(int64_t head, int64_t j, char* own) {
    const Scratch s = scratch_at(own);
    const int64_t first = j * c.block_k, count = std::min(c.block_k, c.n_k - first);
    const float* mean = c.smooth_k ? means + head * c.dim : nullptr;
    if (!pool(c.k, head / c.k_heads, head % c.k_heads, first, count, mean, s, key_similarity[head * k_blocks + j]))
      return false;
    for (int64_t i = 0; i < c.dim; ++i) pooled_keys[(head * c.dim + i) * k_blocks + j] = s.pooled[i];
    return true;
  }

  // One row of the mask.
  bool judge_row(int64_t head, int64_t i, char* own) {
    const Scratch s = scratch_at(own);
    const int64_t b = head / c.q_heads, h = head % c.q_heads;
    const int64_t first = i * c.block_q, count = std::min(c.block_q, c.n_q - first);
    float similarity;
    if (!pool(c.q, b, h, first, count, nullptr, s, similarity)) return false;

    uint8_t* row = c.mask + (head * q_blocks + i) * k_blocks;
    const float theta = c.theta[h];
    const int64_t first_position = first + c.n_k - c.n_q, last_position = first_position + count - 1;
    const int64_t allowed = c.is_causal ? std::min(k_blocks, last_position / c.block_k + 1) : k_blocks;
    if (theta >= 1 || !(similarity > theta)) {
      std::fill_n(row, allowed, uint8_t(1));
      std::fill(row + allowed, row + k_blocks, uint8_t(0));
    } else {
      const int64_t key_head = b * c.k_heads + h / (c.q_heads / c.k_heads);
      const float* key_sim = key_similarity + key_head * k_blocks;
      score(s, pooled_keys + key_head * c.dim * k_blocks, key_sim, theta, allowed);
      select(s, h, row);
      for (int64_t j = 0; j < allowed; ++j) row[j] |= !(key_sim[j] > theta);
      if (c.force_diagonal)
        for (int64_t j = std::max<int64_t>(0, first_position) / c.block_k;
             j < k_blocks && j * c.block_k <= last_position; ++j)
          row[j] = 1;
      std::fill(row + allowed, row + k_blocks, uint8_t(0));
    }
    if (c.attention_sink) row[0] = 1;
    return true;
  }

  // Softmax of the pooled scores over the blocks that may be judged and seen; zeros where there are none.
  void score(const Scratch& s, const float* keys, const float* key_sim, float theta, int64_t allowed) const {
    std::fill_n(s.scores, k_blocks, 0.0f);
    for (int64_t i = 0; i < c.dim; ++i)
      for (int64_t j = 0; j < k_blocks; ++j) s.scores[j] += s.pooled[i] * keys[i * k_blocks + j];
    // Far below every score, yet finite: 2^x of an infinity is not defined in simd.h.
    constexpr float kLowest = -1e30f;
    float largest = kLowest;
    for (int64_t j = 0; j < k_blocks; ++j) {
      s.scores[j] = j < allowed && key_sim[j] > theta ? s.scores[j] * c.scale : kLowest;
      largest = std::max(largest, s.scores[j]);
    }
    if (largest == kLowest) {
      std::fill_n(s.scores, k_blocks, 0.0f);
      return;
    }
    std::fill(s.scores + k_blocks, s.scores + round_up(k_blocks, kWidth), kLowest);
    for (int64_t j = 0; j < k_blocks; j += kWidth)
      store(s.scores + j, exp2<5>((load(s.scores + j) - largest) * 1.44269504088896340736f));
    double sum = 0;
    for (int64_t j = 0; j < k_blocks; ++j) sum += s.scores[j];
    for (int64_t j = 0; j < k_blocks; ++j) s.scores[j] = float(s.scores[j] / sum);
  }

  // The largest entries: while their sum is at most tau (the one that crosses it is left), or the topk largest;
  // at least one either way. Equal entries go by their index.
  void select(const Scratch& s, int64_t h, uint8_t* row) const {
    std::fill_n(row, k_blocks, uint8_t(0));
    // Probabilities are not negative, so their bits order as they do: one integer holds entry and index.
    for (int64_t j = 0; j < k_blocks; ++j) {
      uint32_t bits;
      std::memcpy(&bits, s.scores + j, 4);
      s.order[j] = uint64_t(~bits) << 32 | uint64_t(j);
    }
    int64_t take = 0;
    if (c.topk) {
      take = std::clamp<int64_t>(c.topk[h], 1, k_blocks);
      std::nth_element(s.order, s.order + take - 1, s.order + k_blocks);
    } else {
      std::sort(s.order, s.order + k_blocks);
      double sum = 0;
      for (; take < k_blocks; ++take) {
        sum += s.scores[uint32_t(s.order[take])];
        // The whole mass is 1 but for rounding, so tau = 1 is said outright to take every block.
        if (c.tau[h] < 1 && float(sum) > c.tau[h]) break;
      }
      take = std::max<int64_t>(take, 1);
    }
    for (int64_t n = 0; n < take; ++n) row[uint32_t(s.order[n])] = 1;
  }
};

}  // namespace
}  // namespace hexad

// 0: done. 1: out of memory.
extern "C" int32_t hexad_predict_block_mask(hexad::PredictCall* call) {
  return hexad::Prediction(*call).run() ? 0 : 1;
}
