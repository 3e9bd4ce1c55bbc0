// Pieces of the tensors as float32, in the shape that the passes take them: kSteps steps of a vector of channels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "call.h"
#include "numbers.h"
#include "simd.h"

namespace hexad {

// A vector's lanes are neighbouring channels of one group; the last block of a group may have fewer.
struct Block {
  int64_t channel;  // the first
  int lanes;
};

// Where the times of a chunk lie.
struct Chunk {
  int64_t first;
  int steps;
};

inline int64_t chunk_count(const ScanCall& c) { return (c.steps + kSteps - 1) / kSteps; }
inline Chunk chunk_at(const ScanCall& c, int64_t number) {
  const int64_t first = number * kSteps;
  return {first, int(std::min<int64_t>(kSteps, c.steps - first))};
}

// (kSteps, kWidth) numbers of a (batch, channels, steps) tensor, zeros where there are none.
typedef float Tile[kSteps * kWidth];

template <class T>
inline void load_tile(const T* data, int64_t stride, int lanes, int steps, float* tile) {
  if (lanes < kWidth || steps < kSteps) std::memset(tile, 0, sizeof(Tile));
  if constexpr (sizeof(T) == 4) {
    transpose(reinterpret_cast<const int32_t*>(data), stride, lanes, steps, reinterpret_cast<int32_t*>(tile), kWidth);
  } else {
    float rows[kWidth * kSteps];
    for (int i = 0; i < lanes; ++i)
      for (int t = 0; t < steps; ++t) rows[i * kSteps + t] = read(data[i * stride + t]);
    transpose(reinterpret_cast<const int32_t*>(rows), kSteps, lanes, steps, reinterpret_cast<int32_t*>(tile), kWidth);
  }
}
inline void load_tile(const Strided& x, int64_t batch, Block block, Chunk chunk, float* tile) {
  const int64_t at = batch * x.stride[0] + block.channel * x.stride[1] + chunk.first;
  auto from = [&](auto* data) { load_tile(data + at, x.stride[1], block.lanes, chunk.steps, tile); };
  if (x.dtype == 0) from(static_cast<const float*>(x.data));
  else if (x.dtype == 1) from(static_cast<const BFloat16*>(x.data));
  else from(static_cast<const Float16*>(x.data));
}

// A tile lies in as many cache lines as it has channels, far apart: no prefetcher of the processor finds the next.
template <int Write>
inline void fetch_rows(const char* first, int64_t stride, int lanes, int64_t bytes) {
  for (int i = 0; i < lanes; ++i) {
    __builtin_prefetch(first + i * stride, Write);
    __builtin_prefetch(first + i * stride + bytes - 1, Write);
  }
}
inline int64_t size_of(int64_t dtype) { return dtype == 0 ? 4 : 2; }
inline void fetch_tile(const Strided& x, int64_t batch, Block block, Chunk chunk) {
  if (!x.data) return;
  const int64_t size = size_of(x.dtype), at = batch * x.stride[0] + block.channel * x.stride[1] + chunk.first;
  fetch_rows<0>(static_cast<const char*>(x.data) + at * size, x.stride[1] * size, block.lanes, chunk.steps * size);
}
inline void fetch_tile(const ScanCall& c, int64_t batch, Block block, Chunk chunk, int64_t dtype, const void* out) {
  if (!out) return;
  const int64_t size = size_of(dtype), at = (batch * c.channels + block.channel) * c.steps + chunk.first;
  fetch_rows<1>(static_cast<const char*>(out) + at * size, c.steps * size, block.lanes, chunk.steps * size);
}

// Into a contiguous (batch, channels, steps) tensor.
template <class T>
inline void store_tile(const float* tile, int64_t stride, int lanes, int steps, T* data) {
  if constexpr (sizeof(T) == 4) {
    transpose(reinterpret_cast<const int32_t*>(tile), kWidth, steps, lanes, reinterpret_cast<int32_t*>(data), stride);
  } else {
    float rows[kWidth * kSteps];
    transpose(reinterpret_cast<const int32_t*>(tile), kWidth, steps, lanes, reinterpret_cast<int32_t*>(rows), kSteps);
    for (int i = 0; i < lanes; ++i)
      for (int t = 0; t < steps; ++t) write(rows[i * kSteps + t], data[i * stride + t]);
  }
}
inline void store_tile(const ScanCall& c, const float* tile, int64_t batch, Block block, Chunk chunk, int64_t dtype,
                       void* out) {
  const int64_t at = (batch * c.channels + block.channel) * c.steps + chunk.first;
  auto to = [&](auto* data) { store_tile(tile, c.steps, block.lanes, chunk.steps, data + at); };
  if (dtype == 0) to(static_cast<float*>(out));
  else if (dtype == 1) to(static_cast<BFloat16*>(out));
  else to(static_cast<Float16*>(out));
}

// B or C of one group over a chunk: (states, kSteps).
inline void load_steps(const ScanCall& c, const Strided& x, int64_t batch, int64_t group, Chunk chunk, float* out) {
  auto from = [&](auto* data) {
    data += batch * x.stride[0] + group * x.stride[1] + chunk.first;
    for (int64_t n = 0; n < c.states; ++n)
      for (int t = 0; t < chunk.steps; ++t) out[n * kSteps + t] = read(data[n * x.stride[2] + t]);
  };
  if (x.dtype == 0) from(static_cast<const float*>(x.data));
  else if (x.dtype == 1) from(static_cast<const BFloat16*>(x.data));
  else from(static_cast<const Float16*>(x.data));
}

// Rows (states, kWidth) of a (channels, states) tensor, times a factor.
inline void load_rates(const float* data, int64_t states, Block block, float factor, float* out) {
  for (int64_t n = 0; n < states; ++n)
    for (int i = 0; i < kWidth; ++i)
      out[n * kWidth + i] = i < block.lanes ? data[(block.channel + i) * states + n] * factor : 0.0f;
}

// A row for every channel: kWidth of its entries; null stands for zeros.
inline VecF load_lanes(const float* row, Block block) {
  if (!row) return VecF{};
  if (block.lanes == kWidth) return load(row + block.channel);
  float lanes[kWidth] = {};
  std::memcpy(lanes, row + block.channel, block.lanes * sizeof(float));
  return load(lanes);
}
inline void store_lanes(VecF x, Block block, float* row) {
  if (block.lanes == kWidth) return store(row + block.channel, x);
  std::memcpy(row + block.channel, &x, block.lanes * sizeof(float));
}

// B or C of a block, over time for all channels alike, or for each channel but constant.
template <bool Constant>
struct Operand {
  const float* data;
  VecF at(int64_t n, int t) const {
    if constexpr (Constant) return load(data + n * kWidth);
    else return splat(data[n * kSteps + t]);
  }
};

// Calls f with the two flags as constants of the compiler.
template <class F>
inline void with_flags(bool first, bool second, F f) {
  const std::true_type yes;
  const std::false_type no;
  if (first) second ? f(yes, yes) : f(yes, no);
  else second ? f(no, yes) : f(no, no);
}

// Calls f(n, count) for runs of states that one pass over a chunk takes together.
template <class F>
inline void each_run(int64_t states, F f) {
  constexpr int kRun = kWidth == 16 ? 4 : 2;
  int64_t n = 0;
  for (; n + kRun <= states; n += kRun) f(n, std::integral_constant<int, kRun>());
  if constexpr (kRun > 2)
    if (n + 2 <= states) {
      f(n, std::integral_constant<int, 2>());
      n += 2;
    }
  if (n < states) f(n, std::integral_constant<int, 1>());
}

// The work is cut into tasks by shape alone, so that sums do not depend on the number of threads.
struct Tasks {
  explicit Tasks(const ScanCall& c)
      : per_group(c.channels / c.groups),
        blocks((per_group + kWidth - 1) / kWidth),
        splits(std::clamp<int64_t>(64 / std::max<int64_t>(1, c.batch * c.groups), 1, blocks)),
        most_blocks((blocks + splits - 1) / splits),
        count(c.batch * c.groups * splits),
        groups(c.groups) {}

  struct Task {
    int64_t batch, group, split, first, last;  // blocks [first, last) of the group
  };
  Task at(int64_t number) const {
    const int64_t split = number % splits, pair = number / splits;
    return {pair / groups, pair % groups, split, split * blocks / splits, (split + 1) * blocks / splits};
  }
  Block block(const Task& task, int64_t number) const {
    const int64_t first = number * kWidth;
    return {task.group * per_group + first, int(std::min<int64_t>(kWidth, per_group - first))};
  }

  int64_t per_group, blocks, splits, most_blocks, count, groups;
};

// Threads that are worth waking.
inline int thread_count(const ScanCall& c, const Tasks& tasks) {
  constexpr int64_t kWorthThreads = 1 << 16;
  if (c.batch * c.channels * c.steps * c.states < kWorthThreads) return 1;
  return int(std::clamp<int64_t>(tasks.count, 1, std::max(1, c.threads)));
}

}  // namespace hexad
