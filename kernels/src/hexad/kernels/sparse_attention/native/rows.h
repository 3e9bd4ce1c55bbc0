// Rows of the caller's arrays, in any of the three number formats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hexad {

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// A (batch, heads, tokens, head_dim) array whose head_dim is contiguous; strides are in elements.
struct Array {
  const void* data;
  int64_t stride[3];
};

inline int64_t size_of(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

inline const char* row_address(const Array& x, int32_t dtype, int64_t b, int64_t h, int64_t n) {
  const int64_t at = b * x.stride[0] + h * x.stride[1] + n * x.stride[2];
  return static_cast<const char*>(x.data) + at * size_of(dtype);
}

// Reads n numbers as float32; false, and `out` is not to be used, if one of them is NaN or infinite.
bool read_checked(const void* row, int32_t dtype, int n, float* out);
bool is_finite(const void* row, int32_t dtype, int n);
void write(const float* x, int n, int32_t dtype, void* row);

}  // namespace hexad
