// Vectors as wide as the machine's own, and the few operations on them that a compiler does not write by itself.
//
// Everything is stated in GCC/Clang vector extensions, so one source serves AVX-512, AVX2, SSE2 and NEON;
// intrinsics appear only where an instruction has no spelling in the language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hexad {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HEXAD_AVX512 1
constexpr int kWidth = 16;  // floats in a vector
constexpr int kVectors = 4;  // vectors of one row held in registers by a product: 4 x 4 accumulators
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 8;
constexpr int kVectors = 2;  // 16 registers: 4 x 2 accumulators
#elif defined(__aarch64__)
constexpr int kWidth = 4;
constexpr int kVectors = 4;  // 32 registers
#else
constexpr int kWidth = 4;
constexpr int kVectors = 2;
#endif

typedef float VecF __attribute__((vector_size(4 * kWidth)));
typedef int32_t VecI __attribute__((vector_size(4 * kWidth)));
typedef uint32_t VecU __attribute__((vector_size(4 * kWidth)));

inline VecF load(const float* p) {
  VecF v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline VecI load(const int32_t* p) {
  VecI v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, VecF v) { std::memcpy(p, &v, sizeof v); }
inline void store(int32_t* p, VecI v) { std::memcpy(p, &v, sizeof v); }
inline void store(uint32_t* p, VecU v) { std::memcpy(p, &v, sizeof v); }

inline VecF splat(float x) { return x - VecF{}; }
inline VecI splat(int32_t x) { return x - VecI{}; }

inline VecF to_float(VecF v) { return v; }
inline VecF to_float(VecI v) { return __builtin_convertvector(v, VecF); }

// The ternary operator on vectors compiles to compare-and-blend, two instructions, because it must keep the
// order of NaN operands; scores are finite here.
inline VecF maximum(VecF a, VecF b) {
#if defined(HEXAD_AVX512)
  return (VecF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__x86_64__) && defined(__AVX2__)
  return (VecF)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
  return (VecF)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
  return (VecF)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
  return a > b ? a : b;
#endif
}
inline VecI maximum(VecI a, VecI b) { return a > b ? a : b; }

// a * b rounded on its own: the compiler may not fuse it with what is added to it.
inline VecF rounded_product(VecF a, VecF b) {
  VecF product = a * b;
#if defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

inline bool any_greater(VecF a, VecF b) {
#if defined(HEXAD_AVX512)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#else
  const VecI greater = a > b;
  int32_t any = 0;
  for (int i = 0; i < kWidth; ++i) any |= greater[i];
  return any != 0;
#endif
}

inline float sum_of_lanes(VecF v) {
#if defined(HEXAD_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int i = 0; i < kWidth; ++i) sum += v[i];
  return sum;
#endif
}

// 2^x for x <= 127; anything below -125 comes out as 0 or as at most 2^-125, nothing beside a softmax's maximum.
// x = whole + f with f in [0, 1); minimax polynomials of 2^f, relative error 7.5e-5 (degree 3), 2.7e-6 (4), 1.5e-7 (5).
template <int Degree>
inline VecF exp2(VecF x) {
#if defined(HEXAD_AVX512)
  const VecF f = (VecF)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  x = maximum(x, splat(-125.0f));
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  const VecF shifted = (x - 0.5f) + magic;
  const VecF f = x - (shifted - magic);
#endif
  VecF p;
  if constexpr (Degree == 3) {
    p = splat(0.07802452147f) * f + 0.2260671556f;
    p = p * f + 0.6958335638f;
    p = p * f + 0.9999251962f;
  } else if constexpr (Degree == 4) {
    p = splat(0.01353416778f) * f + 0.05201146007f;
    p = p * f + 0.2414427549f;
    p = p * f + 0.6930038333f;
    p = p * f + 1.0000026226f;
  } else {
    p = splat(0.00187757669f) * f + 0.00898933969f;
    p = p * f + 0.05582631752f;
    p = p * f + 0.2401536107f;
    p = p * f + 0.6931530833f;
    p = p * f + 0.9999999404f;
  }
#if defined(HEXAD_AVX512)
  return (VecF)_mm512_scalef_ps((__m512)p, (__m512)x);  // p * 2^floor(x)
#else
  return (VecF)((VecU)p + ((VecU)shifted << 23));
#endif
}

// 32-bit elements, dst[c * dst_stride + r] = src[r * src_stride + c].
inline void transpose_block(const int32_t* src, ptrdiff_t src_stride, int rows, int columns, int32_t* dst,
                            ptrdiff_t dst_stride) {
  for (int c = 0; c < columns; ++c)
    for (int r = 0; r < rows; ++r) dst[c * dst_stride + r] = src[r * src_stride + c];
}

#if defined(HEXAD_AVX512)
// 16 x 16 in registers: four rounds that exchange ever larger blocks, 64 shuffles.
static inline void transpose_16x16(const int32_t* src, ptrdiff_t src_stride, int32_t* dst, ptrdiff_t dst_stride) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(src + i * src_stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
      b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    _mm512_storeu_si512(dst + j * dst_stride, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
    _mm512_storeu_si512(dst + (j + 8) * dst_stride, _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
  }
}
#endif

inline __attribute__((noinline)) void transpose(const int32_t* src, ptrdiff_t src_stride, int rows, int columns, int32_t* dst,
                      ptrdiff_t dst_stride) {
#if defined(HEXAD_AVX512)
  const int whole_rows = rows & ~15, whole_columns = columns & ~15;
  for (int r = 0; r < whole_rows; r += 16)
    for (int c = 0; c < whole_columns; c += 16)
      transpose_16x16(src + r * src_stride + c, src_stride, dst + c * dst_stride + r, dst_stride);
  if (whole_columns < columns)
    transpose_block(src + whole_columns, src_stride, whole_rows, columns - whole_columns,
                    dst + whole_columns * dst_stride, dst_stride);
  if (whole_rows < rows)
    transpose_block(src + whole_rows * src_stride, src_stride, rows - whole_rows, columns, dst + whole_rows,
                    dst_stride);
#else
  transpose_block(src, src_stride, rows, columns, dst, dst_stride);
#endif
}

}  // namespace hexad
