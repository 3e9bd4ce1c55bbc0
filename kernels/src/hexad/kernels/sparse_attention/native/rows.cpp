#include "rows.h"

#include <cstring>

#include "numbers.h"

namespace hexad {

bool read_checked(const void* row, int32_t dtype, int n, float* out) {
  switch (dtype) {
    case kFloat32:
      std::memcpy(out, row, n * sizeof(float));
      break;
    case kBFloat16:
      read_row(static_cast<const BFloat16*>(row), n, out);
      break;
    default:
      // Reading float16 makes a finite number of an infinite one, so the look comes first.
      if (any_nonfinite(static_cast<const Float16*>(row), n)) return false;
      read_row(static_cast<const Float16*>(row), n, out);
      return true;
  }
  return !any_nonfinite(out, n);
}

bool is_finite(const void* row, int32_t dtype, int n) {
  switch (dtype) {
    case kFloat32:
      return !any_nonfinite(static_cast<const float*>(row), n);
    case kBFloat16:
      return !any_nonfinite(static_cast<const BFloat16*>(row), n);
    default:
      return !any_nonfinite(static_cast<const Float16*>(row), n);
  }
}

void write(const float* x, int n, int32_t dtype, void* row) {
  switch (dtype) {
    case kFloat32:
      std::memcpy(row, x, n * sizeof(float));
      break;
    case kBFloat16:
      write_row(x, n, static_cast<BFloat16*>(row));
      break;
    default:
      write_row(x, n, static_cast<Float16*>(row));
  }
}

}  // namespace hexad
