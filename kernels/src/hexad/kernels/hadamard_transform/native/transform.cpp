// The C interface of the block Hadamard transform: rows of float32, bfloat16 or float16.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "hadamard.h"
#include "numbers.h"

namespace hexad {

// Mirrored by `_Call` in cpu.py, field by field.
struct HadamardCall {
  const void* x;  // (rows, k), entries of a row side by side
  void* y;        // (rows, k), contiguous
  int64_t rows, k, block, stride;
  int32_t dtype, threads;
};

namespace {

// Entries that a thread takes at a time: they stay in its first-level cache.
constexpr int64_t kChunk = 4096;
// Below this the threads would take longer to wake than to work.
constexpr int64_t kWorthThreads = 1 << 15;

template <class T>
void transform_chunk(const T* x, T* y, int64_t n, int64_t block, float* scratch) {
  if constexpr (sizeof(T) == 4) {
    hadamard_transform(x, y, n, block);
  } else {
    for (int64_t i = 0; i < n; ++i) scratch[i] = read(x[i]);
    hadamard_transform(scratch, scratch, n, block);
    for (int64_t i = 0; i < n; ++i) write(scratch[i], y[i]);
  }
}

template <class T>
void transform(const HadamardCall& c) {
  const int64_t chunk = std::min(c.k, std::max(c.block, kChunk / c.block * c.block));
  const int64_t chunks = (c.k + chunk - 1) / chunk;
#pragma omp parallel num_threads(std::max(1, c.threads)) if (c.rows * c.k >= kWorthThreads)
  {
    std::unique_ptr<float[]> scratch(sizeof(T) == 4 ? nullptr : new float[chunk]);
#pragma omp for schedule(static)
    for (int64_t at = 0; at < c.rows * chunks; ++at) {
      const int64_t row = at / chunks, first = at % chunks * chunk;
      transform_chunk(static_cast<const T*>(c.x) + row * c.stride + first, static_cast<T*>(c.y) + row * c.k + first,
                      std::min(chunk, c.k - first), c.block, scratch.get());
    }
  }
}

}  // namespace
}  // namespace hexad

extern "C" {

// Floats in a vector.
int32_t hexad_vector_width() { return hexad::kWidth; }

void hexad_hadamard_transform(const hexad::HadamardCall* call) {
  switch (call->dtype) {
    case 0:
      return hexad::transform<float>(*call);
    case 1:
      return hexad::transform<hexad::BFloat16>(*call);
    default:
      return hexad::transform<hexad::Float16>(*call);
  }
}

}  // extern "C"
