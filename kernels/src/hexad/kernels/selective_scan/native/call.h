// What a call of the selective scan asks for.
#pragma once

#include <cstdint>

namespace hexad {

// Steps between two stored states, and of a tile: the backward pass recomputes the states in between.
constexpr int kSteps = 16;

// A tensor whose entries of the last dimension lie side by side. Strides count entries; dtypes are 0 for float32,
// 1 for bfloat16, 2 for float16. No data: the call has no such tensor.
struct Strided {
  const void* data;
  int64_t stride[3];
  int64_t dtype;
};

// Mirrored by `_Call` in cpu.py, field by field. Pointers without a stride are contiguous.
struct ScanCall {
  Strided u, delta, z, gradient;  // (batch, channels, steps); the gradient is that of y
  Strided b, c;                   // (batch, groups, states, steps), or float32 (channels, states) if constant
  const float* a;                 // (channels, states)
  const float* skip;              // (channels), or null: the factor D of u
  const float* bias;              // (channels), or null: added to delta
  const float* initial;           // (batch, states, channels), or null: zeros
  const float* last_gradient;     // (batch, states, channels), or null: zeros
  float* checkpoints;             // (batch, chunks - 1, states, channels), or null
  void* y;                        // (batch, channels, steps), of the dtype of u
  float* last;                    // (batch, states, channels)
  void *grad_u, *grad_delta, *grad_z;  // as their tensors, contiguous
  float *grad_a, *grad_b, *grad_c;     // as their tensors, contiguous
  float *grad_skip, *grad_bias;        // (channels)
  float* grad_initial;                 // (batch, states, channels)
  int64_t batch, channels, steps, states, groups;
  int32_t softplus, constant_b, constant_c, threads;
  int32_t nan;  // out, of the forward pass: a bit (see `Holder`) for each tensor that holds NaN
};

enum Holder : int32_t { kInU = 1, kInDelta = 2, kInZ = 4, kInB = 8, kInC = 16, kInSkip = 32, kInBias = 64, kInInitial = 128 };

}  // namespace hexad
